"""Bent data folders: whatever is changed in a manifest, a shard or a progress, one sentence tells it, or all is
read."""

from __future__ import annotations

import hashlib
import json
import random
import shutil
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from bertsmith.corpus import prepare as preparing
from bertsmith.corpus.manifest import read_progress
from bertsmith.corpus.prepare import prepare
from bertsmith.corpus.shards import Shards
from bertsmith.errors import InputError, MachineError
from bertsmith.tokenizer.tokenizer import Tokenizer

LETTERS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghij."]
ODD: list[Any] = [None, True, -1, 0, 1, 3.5, 1e308, 1 << 40, 1 << 70, [], [[]], [1, "a"], {}, {"a": 1}]
ODD += ["", "word", "3", "..", "../x", "\u0000", "0" * 64]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    file = folder / "corpus.txt"
    file.write_text("\n\n".join(f"a {'b ' * (i % 5)}c.\nd {'efghij'[i % 6]}." for i in range(40)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(preparing, "_PORTION", 80)
        patch.setattr(preparing, "_SHARD", 120)
        prepare([file], Tokenizer.of_vocabulary(LETTERS, lowercase=True), folder / "data")
    return folder / "data"


def read_all(folder: Path) -> None:
    """All that training asks of a data folder."""
    shards = Shards.open(folder)
    shards.verify()
    assert shards.tokenizer.vocab_size == shards.vocab_size
    counts = np.bincount(shards.take(np.arange(shards.tokens)), minlength=shards.vocab_size)
    assert (len(counts), len(shards.hashes)) == (shards.vocab_size, shards.documents)
    ends = np.concatenate([[0], shards.sentence_ends])
    out = np.zeros(shards.tokens, dtype=np.int64)
    starts = ends[shards.document_sentences][:-1]
    shards.lay(starts, np.diff(ends[shards.document_sentences]), out, starts)
    assert [shards.place(i) for i in range(shards.documents)]
    assert shards.language + "".join(shards.counts)


def bent_json(value: Any, draw: random.Random) -> Any:
    """The value with one part of it replaced, removed or twice."""
    if isinstance(value, dict) and value and draw.random() < 0.85:
        key = draw.choice(list(value))
        found = dict(value)
        chance = draw.random()
        if chance < 0.1:
            del found[key]
        elif chance < 0.2:
            found[draw.choice([*value, "x"])] = found.pop(key)
        else:
            found[key] = bent_json(value[key], draw)
        return found
    if isinstance(value, list) and value and draw.random() < 0.85:
        at = draw.randrange(len(value))
        chance = draw.random()
        if chance < 0.1:
            return value[:at] + value[at + 1 :]
        if chance < 0.2:
            return [*value, value[at]]
        return [*value[:at], bent_json(value[at], draw), *value[at + 1 :]]
    if isinstance(value, int) and draw.random() < 0.4:
        return value + draw.choice([-1, 1, 7])
    return draw.choice(ODD)


def bent_bytes(content: bytes, draw: random.Random) -> bytes:
    """The bytes with some changed, cut off, put in or moved."""
    at = draw.randrange(len(content))
    chance = draw.random()
    if chance < 0.15:
        return content[:at]
    if chance < 0.3:
        return content[:at] + draw.randbytes(draw.randrange(1, 9)) + content[at:]
    changed = bytearray(content)
    for _ in range(draw.choice([1, 1, 1, 4])):
        at = draw.randrange(len(content))
        changed[at] = draw.choice([0, 1, 0x7F, 0x80, 0xFF, draw.randrange(256)])
    return bytes(changed)


def bent_columns(path: Path, draw: random.Random) -> bytes:
    """A shard that Arrow wrote, with numbers in it that are no longer those of documents."""
    batch = pa.ipc.open_file(path).get_batch(0)
    name = draw.choice(batch.schema.names)
    column = batch.column(name)
    if pa.types.is_list(column.type):
        values, offsets = column.values.to_pylist(), column.offsets.to_pylist()
        some = draw.choice([values, offsets])
        value = draw.choice([0, 1, 17, 1 << 14, some[-1] + 1])
        some[draw.randrange(len(some))] = min(value, len(values)) if some is offsets else value
        made = pa.ListArray.from_arrays(
            pa.array(offsets, pa.int32()), pa.array(values, column.type.value_type)
        )
    else:
        values = column.to_pylist()
        values[draw.randrange(len(values))] = draw.choice([None, values[0]])
        made = pa.array(values, column.type)
    if draw.random() < 0.2:
        made = made.slice(draw.randrange(len(made)))
    columns = {
        field: batch.column(field)[: len(made)] for field in batch.schema.names if draw.random() < 0.98
    }
    sink = pa.BufferOutputStream()
    table = pa.record_batch({**columns, name: made})
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_batch(table)
    return sink.getvalue().to_pybytes()


def bend(folder: Path, draw: random.Random) -> None:
    """One change, most often with a manifest that was signed anew for it."""
    manifest_file = folder / "manifest.json"
    manifest = json.loads(manifest_file.read_bytes())
    number = draw.randrange(sum("documents" in entry for entry in manifest["files"]))
    entry = manifest["files"][number]
    path = folder / entry["name"]
    kind = draw.choice(["manifest", "manifest", "manifest bytes", "shard", "columns"])
    if kind == "manifest":
        for _ in range(draw.choice([1, 1, 3])):
            manifest = bent_json(manifest, draw)
        manifest_file.write_text(json.dumps(manifest))
        return
    if kind == "manifest bytes":
        manifest_file.write_bytes(bent_bytes(manifest_file.read_bytes(), draw))
        return
    content = bent_bytes(path.read_bytes(), draw)
    if kind == "columns":
        with suppress(pa.ArrowInvalid):  # what Arrow itself refuses to write
            content = bent_columns(path, draw)
    path.write_bytes(content)
    if draw.random() < 0.9:
        entry |= {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        manifest_file.write_text(json.dumps(manifest))


def outcome(whole: Path, tmp_path: Path, seed: int) -> str:
    folder = tmp_path / "bent"
    shutil.copytree(whole, folder)
    try:
        bend(folder, random.Random(seed))
        read_all(folder)
    except (InputError, MachineError) as error:
        said = error.sentence
    else:
        said = ""
    finally:
        shutil.rmtree(folder)
    assert not said or str(folder) in said, (seed, said)
    assert "\n" not in said, seed
    return "refused" if said else "read"


@pytest.mark.parametrize(
    "seeds", [range(300), pytest.param(range(300, 8_000), marks=pytest.mark.slow)], ids=["few", "many"]
)
def test_a_bent_folder_is_refused_in_a_sentence_or_read(whole: Path, tmp_path: Path, seeds: range) -> None:
    found = Counter(outcome(whole, tmp_path, seed) for seed in seeds)
    assert found["refused"] > len(seeds) / 2
    assert found["read"] > 0  # a count of a report, a place, a hash: nothing says that it is wrong


def test_a_bent_progress_is_refused_in_a_sentence_or_read(tmp_path: Path) -> None:
    entry = {
        "name": "shard-00000.arrow",
        "size": 9,
        "sha256": "0" * 64,
        "documents": 3,
        "sentences": 4,
        "tokens": 9,
    }
    progress = {"request": "r", "portions": 2, "shards": [entry], "counts": {"bytes": 3}, "last": ["a:1", 7]}
    path = tmp_path / "progress.json"
    path.write_text(json.dumps(progress))
    assert read_progress(path) is not None
    draw, found = random.Random(1), Counter[str]()
    for number in range(300):
        if number % 3:
            path.write_text(json.dumps(bent_json(progress, draw)))
        else:
            path.write_bytes(bent_bytes(json.dumps(progress).encode(), draw))
        said = ""
        try:
            read_progress(path)
        except InputError as error:
            said = error.sentence
        assert not said or said.startswith(f"{path}: ")
        found["refused" if said else "read"] += 1
    assert min(found["read"], found["refused"]) > 10
