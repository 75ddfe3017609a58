"""Shards: what was put in comes out by position, any Arrow tool reads them, and damage is told by file."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from bertsmith.corpus import prepare as preparing
from bertsmith.corpus.prepare import prepare
from bertsmith.corpus.sentence_splitter import split
from bertsmith.corpus.shards import Rows, Shards, hash_of, id_type, write_shard
from bertsmith.errors import InputError
from bertsmith.io.files import read_documents
from bertsmith.tokenizer.tokenizer import Tokenizer

LETTERS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmnopqrstuvwxyz.", "##s", "the"]
DOCUMENTS = [f"a b. The {chr(97 + i % 26)}s.\nNew line {i}. {'x ' * (i % 7)}" for i in range(60)]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.of_vocabulary(LETTERS, lowercase=True)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("corpus") / "a.txt"
    file.write_text("\n\n".join(DOCUMENTS))
    return file


@pytest.fixture
def folder(corpus: Path, tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data folder of several small shards."""
    monkeypatch.setattr(preparing, "_PORTION", 100)
    monkeypatch.setattr(preparing, "_SHARD", 200)
    prepare([corpus], tokenizer, tmp_path / "data")
    return tmp_path / "data"


def expected(corpus: Path, tokenizer: Tokenizer) -> list[list[list[int]]]:
    return [tokenizer.pieces(split(document.text)) for document in read_documents([corpus])]


def test_every_token_comes_back_by_its_position(folder: Path, corpus: Path, tokenizer: Tokenizer) -> None:
    shards = Shards.open(folder)
    documents = expected(corpus, tokenizer)
    assert len(list(folder.glob("shard-*.arrow"))) > 2
    assert shards.documents == len(documents) == 60
    sentences = [sentence for document in documents for sentence in document]
    flat = [i for sentence in sentences for i in sentence]
    assert shards.tokens == len(flat)
    assert shards.sentence_ends.dtype == shards.document_sentences.dtype == np.int64
    assert shards.sentence_ends.tolist() == np.cumsum([len(sentence) for sentence in sentences]).tolist()
    assert shards.document_sentences.tolist() == [0, *np.cumsum([len(d) for d in documents]).tolist()]
    assert shards.take(np.arange(len(flat))).tolist() == flat
    mixed = np.random.default_rng(0).integers(0, len(flat), 500)
    found = shards.take(mixed)
    assert found.dtype == np.int64
    assert found.tolist() == [flat[i] for i in mixed]
    assert shards.take(np.array([], dtype=np.int64)).shape == (0,)
    with pytest.raises(IndexError):
        shards.take(np.array([len(flat)]))


def test_hashes_places_and_tokenizer_are_the_documents(
    folder: Path, corpus: Path, tokenizer: Tokenizer
) -> None:
    shards = Shards.open(folder)
    ids = [np.array([i for s in document for i in s]) for document in expected(corpus, tokenizer)]
    assert shards.hashes.dtype == np.uint64
    assert shards.hashes.tolist() == [hash_of(document) for document in ids]
    places = [document.place for document in read_documents([corpus])]
    assert [shards.place(i) for i in range(60)] == places
    assert shards.tokenizer.digest == shards.tokenizer_digest == tokenizer.digest
    assert shards.vocab_size == len(LETTERS)
    shards.verify()


def test_any_arrow_tool_reads_a_shard(folder: Path) -> None:
    with pa.ipc.open_file(folder / "shard-00000.arrow") as reader:
        table = reader.read_all()
    assert table.schema.names == ["ids", "sentence_ends", "place", "hash"]
    assert table.schema.field("ids").type.value_type == pa.uint16()
    assert table.schema.field("sentence_ends").type.value_type == pa.int32()
    row = table.slice(0, 1).to_pylist()[0]
    assert row["sentence_ends"][-1] == len(row["ids"])


def test_large_vocabularies_take_four_bytes_an_id(tmp_path: Path) -> None:
    assert id_type(65_535) is np.uint16
    assert id_type(65_536) is np.uint32
    rows = Rows(
        ids=np.array([70_000, 1], dtype=np.uint32),
        lengths=np.array([2]),
        sentence_ends=np.array([2], dtype=np.int32),
        sentence_counts=np.array([1]),
        places=["a:1"],
        hashes=np.array([2**64 - 1], dtype=np.uint64),
    )
    write_shard(tmp_path / "a.arrow", [rows])
    with pa.ipc.open_file(tmp_path / "a.arrow") as reader:
        assert reader.read_all().to_pylist() == [
            {"ids": [70_000, 1], "sentence_ends": [2], "place": "a:1", "hash": 2**64 - 1}
        ]


def test_a_torn_a_missing_and_a_flipped_file_are_told_by_name(folder: Path, tmp_path: Path) -> None:
    names = [entry["name"] for entry in json.loads((folder / "manifest.json").read_text())["files"]]
    assert "tokenizer/vocab.txt" in names
    for name in names:
        damaged = tmp_path / "damaged"
        whole = (folder / name).read_bytes()
        for damage in ("torn", "missing", "flipped"):
            shutil.copytree(folder, damaged)
            if damage == "torn":
                (damaged / name).write_bytes(whole[:-1])
            elif damage == "missing":
                (damaged / name).unlink()
            else:
                at = len(whole) // 2
                (damaged / name).write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
            with pytest.raises(InputError) as error:
                Shards.open(damaged).verify()
            assert error.value.sentence.startswith(f"{damaged / name}: ")
            shutil.rmtree(damaged)


def test_no_flip_of_a_bit_anywhere_in_a_shard_escapes(folder: Path) -> None:
    path = folder / "shard-00001.arrow"
    whole = path.read_bytes()
    for at in range(0, len(whole), 61):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x10]) + whole[at + 1 :])
        with pytest.raises(InputError, match=r"shard-00001\.arrow"):
            Shards.open(folder).verify()


def test_a_folder_that_is_no_data_is_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="this is no prepared data"):
        Shards.open(tmp_path)
    with pytest.raises(InputError, match="no such folder"):
        Shards.open(tmp_path / "nowhere")
    path = folder / "manifest.json"
    whole = path.read_text()
    for text, told in [
        (whole[:-9], "this is not whole JSON"),
        ("[]", "this is not a JSON object"),
        (whole.replace('"format": 1', '"format": 99'), "format 99 is not known"),
        (whole.replace('"vocab_size"', '"vocabulary"'), "'vocab_size' cannot be right"),
        (whole.replace('"vocab_size": ', '"vocab_size": "many", "x": '), "'vocab_size' cannot be right"),
        (whole.replace('"sha256"', '"sha1"'), r"'files\.0\.sha256' cannot be right"),
        (whole.replace('"size": ', '"size": -'), r"'files\.0\.size' cannot be right"),
        (whole.replace('"documents": ', '"documents": 1'), "not hold as many documents"),
        (whole.replace("shard-00001", "shard-00000"), "a file is listed twice"),
        (whole.replace('"shard-0', '"tokenizer/shard-0'), "lists no shards, or some outside"),
        (whole.replace('"documents"', '"document"'), "'files.0"),
    ]:
        path.write_text(text)
        with pytest.raises(InputError, match=told):
            Shards.open(folder)


def test_runs_are_laid_where_they_belong(folder: Path) -> None:
    shards = Shards.open(folder)
    ends = np.concatenate([[0], shards.sentence_ends])[shards.document_sentences]
    starts, lengths = ends[:-1][::-1], np.diff(ends)[::-1]
    at = np.cumsum(lengths + 1) - lengths - 1
    out = np.full(int(lengths.sum()) + len(lengths), -1)
    shards.lay(starts, lengths, out, at)
    assert (out == -1).sum() == len(lengths)
    for start, n, place in zip(starts.tolist(), lengths.tolist(), at.tolist(), strict=True):
        assert out[place : place + n].tolist() == shards.take(np.arange(start, start + n)).tolist()


@pytest.mark.parametrize(
    "name",
    [
        "../outside.arrow",
        "/etc/hostname",
        "..",
        "tokenizer/..",
        "tokenizer/../../x",
        "a/b.arrow",
        "",
        "a\\b",
        "a\nb",
    ],
)
def test_no_name_in_a_manifest_leads_out_of_the_folder(folder: Path, name: str) -> None:
    shutil.copy(folder / "shard-00000.arrow", folder.parent / "outside.arrow")
    path = folder / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["files"][0]["name"] = name
    path.write_text(json.dumps(manifest))
    with pytest.raises(InputError, match=r"manifest\.json: 'files\.0\.name' cannot be right"):
        Shards.open(folder)


def rewritten(folder: Path, number: int, change: Callable[[pa.Table], pa.Table | pa.RecordBatch]) -> Path:
    """One shard with other columns, its entry in the manifest as it must then be."""
    path = folder / f"shard-{number:05d}.arrow"
    batch = pa.ipc.open_file(path).get_batch(0)
    changed = change(batch)
    with pa.ipc.new_file(path, changed.schema) as writer:
        writer.write(changed)
    manifest = json.loads((folder / "manifest.json").read_text())
    entry = manifest["files"][number]
    entry["size"] = path.stat().st_size
    entry["sha256"] = hashlib.sha256(path.read_bytes()).hexdigest()
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return path


def lists(offsets: list[int], values: list[int] | list[int | None], kind: pa.DataType) -> pa.ListArray:
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pa.array(values, kind))


def test_a_shard_with_other_columns_is_told_by_name(folder: Path) -> None:
    def column(name: str, make: Callable[[pa.Array], pa.Array]) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
        def change(batch: pa.RecordBatch) -> pa.RecordBatch:
            return batch.set_column(batch.schema.get_field_index(name), name, make(batch.column(name)))

        return change

    def of(array: pa.Array, values: list[Any], kind: Any = None) -> pa.ListArray:
        return lists(array.offsets.to_pylist(), values, kind or array.values.type)

    changes: list[tuple[Callable[[pa.RecordBatch], Any], str]] = [
        (column("ids", lambda a: of(a, a.values.to_pylist(), pa.int64())), "its columns are not those"),
        (column("place", lambda a: pa.array(range(len(a)))), "its columns are not those"),
        (column("hash", lambda a: a.cast(pa.float64(), safe=False)), "its columns are not those"),
        (lambda b: b.select(["ids", "sentence_ends", "place"]), "its columns are not those"),
        (column("hash", lambda a: pa.array([None, *a.to_pylist()[1:]], a.type)), "a value is missing"),
        (column("ids", lambda a: of(a, [None, *a.values.to_pylist()[1:]])), "a value is missing"),
        (column("sentence_ends", lambda a: of(a, [-1, *a.values.to_pylist()[1:]])), "do not fill"),
        (column("sentence_ends", lambda a: of(a, [1 << 30, *a.values.to_pylist()[1:]])), "do not fill"),
        (column("sentence_ends", lambda a: of(a, [0] * len(a.values))), "do not fill"),
        (column("ids", lambda a: lists([3, *a.offsets.to_pylist()[1:]], a.values.to_pylist(), a.values.type)),
         "as many documents"),
        (lambda b: pa.Table.from_batches([b.slice(0, 1), b.slice(1)]), "its columns are not those"),
        (lambda b: b.slice(0, 0), "not those|as many documents"),
    ]  # fmt: skip
    for change, told in changes:
        whole, manifest = (folder / "shard-00001.arrow").read_bytes(), (folder / "manifest.json").read_bytes()
        path = rewritten(folder, 1, change)
        with pytest.raises(InputError, match=told) as error:
            Shards.open(folder)
        assert error.value.sentence.startswith(f"{path}: ")
        path.write_bytes(whole)
        (folder / "manifest.json").write_bytes(manifest)


def test_an_id_outside_of_the_vocabulary_is_told_when_it_is_read(folder: Path) -> None:
    def last_one(batch: pa.RecordBatch) -> pa.RecordBatch:
        ids = batch.column("ids")
        values = ids.values.to_pylist()
        values[-1] = len(LETTERS)
        return batch.set_column(0, "ids", lists(ids.offsets.to_pylist(), values, pa.uint16()))

    path = rewritten(folder, 1, last_one)
    shards = Shards.open(folder)
    shards.verify()
    sizes = [
        len(pa.ipc.open_file(folder / f"shard-{i:05d}.arrow").get_batch(0).column(0).values) for i in (0, 1)
    ]
    end = sum(sizes)
    told = f"{path}: the token id {len(LETTERS)} is outside of the vocabulary of {len(LETTERS)}"
    assert len(shards.take(np.arange(end - 1))) == end - 1
    with pytest.raises(InputError) as error:
        shards.take(np.array([0, end - 1, 1]))
    assert error.value.sentence == told
    with pytest.raises(InputError) as error:
        shards.lay(np.array([0, end - 2]), np.array([1, 2]), np.zeros(3, dtype=np.int64), np.array([0, 1]))
    assert error.value.sentence == told
