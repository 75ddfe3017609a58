"""Modified manifests, shards, and progress files are refused with one error or read completely."""

from __future__ import annotations

import hashlib
import json
import random
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from bertsmith.corpus import prepare as prepare_module
from bertsmith.corpus.manifest import read_progress
from bertsmith.corpus.prepare import prepare
from bertsmith.corpus.shards import Shards
from bertsmith.errors import InputError, MachineError
from bertsmith.tokenizer.tokenizer import Tokenizer

LETTERS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghij."]
ODD: list[Any] = [None, True, -1, 0, 1, 3.5, 1e308, 1 << 40, 1 << 70, [], [[]], [1, "a"], {}, {"a": 1}]
ODD += ["", "word", "3", "..", "../x", "\u0000", "0" * 64]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    parent = tmp_path_factory.mktemp("prepared")
    file = parent / "corpus.txt"
    file.write_text("\n\n".join(f"a {'b ' * (i % 5)}c.\nd {'efghij'[i % 6]}." for i in range(40)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prepare_module, "_PORTION_BYTES", 80)
        patch.setattr(prepare_module, "_SHARD_TOKENS", 120)
        prepare([file], Tokenizer.from_vocabulary(LETTERS, lowercase=True), parent / "data")
    return parent / "data"


def read_all(folder: Path) -> None:
    """Read everything that training reads from a data folder."""
    shards = Shards.open(folder)
    shards.verify()
    assert shards.tokenizer.vocab_size == shards.vocab_size
    counts = np.bincount(shards.take(np.arange(shards.tokens)), minlength=shards.vocab_size)
    assert (len(counts), len(shards.hashes)) == (shards.vocab_size, shards.documents)
    ends = np.concatenate([[0], shards.sentence_ends])
    out = np.zeros(shards.tokens, dtype=np.int64)
    starts = ends[shards.document_sentence_offsets][:-1]
    shards.copy_spans(starts, np.diff(ends[shards.document_sentence_offsets]), out, starts)
    assert [shards.location(i) for i in range(shards.documents)]
    assert shards.language + "".join(shards.counts)


def modified_json(value: Any, rng: random.Random) -> Any:
    """Return the value with one part replaced, removed, or duplicated."""
    if isinstance(value, dict) and value and rng.random() < 0.85:
        key = rng.choice(list(value))
        result = dict(value)
        chance = rng.random()
        if chance < 0.1:
            del result[key]
        elif chance < 0.2:
            result[rng.choice([*value, "x"])] = result.pop(key)
        else:
            result[key] = modified_json(value[key], rng)
        return result
    if isinstance(value, list) and value and rng.random() < 0.85:
        at = rng.randrange(len(value))
        chance = rng.random()
        if chance < 0.1:
            return value[:at] + value[at + 1 :]
        if chance < 0.2:
            return [*value, value[at]]
        return [*value[:at], modified_json(value[at], rng), *value[at + 1 :]]
    if isinstance(value, int) and rng.random() < 0.4:
        return value + rng.choice([-1, 1, 7])
    return rng.choice(ODD)


def modified_bytes(content: bytes, rng: random.Random) -> bytes:
    """Return the bytes with some changed, removed, or inserted."""
    at = rng.randrange(len(content))
    chance = rng.random()
    if chance < 0.15:
        return content[:at]
    if chance < 0.3:
        return content[:at] + rng.randbytes(rng.randrange(1, 9)) + content[at:]
    changed = bytearray(content)
    for _ in range(rng.choice([1, 1, 1, 4])):
        at = rng.randrange(len(content))
        changed[at] = rng.choice([0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)])
    return bytes(changed)


def modified_columns(path: Path, rng: random.Random) -> bytes:
    """Return a valid Arrow file whose numbers are no longer those of documents."""
    batch = pa.ipc.open_file(path).get_batch(0)
    name = rng.choice(batch.schema.names)
    column = batch.column(name)
    if pa.types.is_list(column.type):
        values, offsets = column.values.to_pylist(), column.offsets.to_pylist()
        target = rng.choice([values, offsets])
        value = rng.choice([0, 1, 17, 1 << 14, target[-1] + 1])
        target[rng.randrange(len(target))] = min(value, len(values)) if target is offsets else value
        new_column = pa.ListArray.from_arrays(
            pa.array(offsets, pa.int32()), pa.array(values, column.type.value_type)
        )
    else:
        values = column.to_pylist()
        values[rng.randrange(len(values))] = rng.choice([None, values[0]])
        new_column = pa.array(values, column.type)
    if rng.random() < 0.2:
        new_column = new_column.slice(rng.randrange(len(new_column)))
    columns = {
        field: batch.column(field)[: len(new_column)] for field in batch.schema.names if rng.random() < 0.98
    }
    sink = pa.BufferOutputStream()
    table = pa.record_batch({**columns, name: new_column})
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_batch(table)
    return sink.getvalue().to_pybytes()


def modify(folder: Path, rng: random.Random) -> None:
    """Make one change, most often with a manifest that matches it."""
    manifest_file = folder / "manifest.json"
    manifest = json.loads(manifest_file.read_bytes())
    index = rng.randrange(sum("documents" in entry for entry in manifest["files"]))
    entry = manifest["files"][index]
    path = folder / entry["name"]
    change = rng.choice(["manifest", "manifest", "manifest bytes", "shard", "columns"])
    if change == "manifest":
        for _ in range(rng.choice([1, 1, 3])):
            manifest = modified_json(manifest, rng)
        manifest_file.write_text(json.dumps(manifest))
        return
    if change == "manifest bytes":
        manifest_file.write_bytes(modified_bytes(manifest_file.read_bytes(), rng))
        return
    content = modified_bytes(path.read_bytes(), rng)
    if change == "columns":
        with suppress(pa.ArrowInvalid):  # Arrow refuses to write some.
            content = modified_columns(path, rng)
    path.write_bytes(content)
    if rng.random() < 0.9:
        entry |= {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        manifest_file.write_text(json.dumps(manifest))


def is_read(folder: Path, tmp_path: Path, seed: int) -> bool:
    """Modify a copy of the folder and read it; False if it is refused with an error that names it."""
    copy = tmp_path / "modified"
    shutil.copytree(folder, copy)
    refusal: InputError | MachineError | None = None
    try:
        modify(copy, random.Random(seed))
        read_all(copy)
    except (InputError, MachineError) as error:
        refusal = error
    finally:
        shutil.rmtree(copy)
    if refusal is not None:
        assert str(copy) in f"{refusal.location} {refusal.message}", (seed, refusal)
        assert "\n" not in refusal.message, seed
    return refusal is None


@pytest.mark.parametrize(
    "seeds", [range(300), pytest.param(range(300, 8_000), marks=pytest.mark.slow)], ids=["few", "many"]
)
def test_a_modified_folder_is_refused_or_read(folder: Path, tmp_path: Path, seeds: range) -> None:
    num_read = sum(is_read(folder, tmp_path, seed) for seed in seeds)
    assert num_read < len(seeds) / 2
    assert num_read > 0  # Changed counts, locations, and hashes are not detected.


def test_a_modified_progress_file_is_refused_or_read(tmp_path: Path) -> None:
    entry = {
        "name": "shard-00000.arrow",
        "size": 9,
        "sha256": "0" * 64,
        "documents": 3,
        "sentences": 4,
        "tokens": 9,
    }
    progress = {"request": "r", "portions": 2, "shards": [entry], "counts": {"bytes": 3}}
    path = tmp_path / "progress.json"
    path.write_text(json.dumps(progress))
    assert read_progress(path) is not None
    rng, num_read = random.Random(1), 0
    for i in range(300):
        if i % 3:
            path.write_text(json.dumps(modified_json(progress, rng)))
        else:
            path.write_bytes(modified_bytes(json.dumps(progress).encode(), rng))
        location = None
        try:
            read_progress(path)
        except InputError as error:
            location = error.location
        assert location in (None, str(path))
        num_read += location is None
    assert 10 < num_read < 290
