"""Shards return what was written, Arrow opens them, and errors name the damaged file."""

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

from bertsmith.corpus import prepare as prepare_module
from bertsmith.corpus.prepare import prepare
from bertsmith.corpus.sentence_splitter import split_sentences
from bertsmith.corpus.shards import Shards, document_hash, id_dtype, write_shard
from bertsmith.errors import InputError
from bertsmith.io.documents import read_documents
from bertsmith.tokenizer.tokenizer import Tokenizer

LETTERS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmnopqrstuvwxyz.", "##s", "the"]
DOCUMENTS = [f"a b. The {chr(97 + i % 26)}s.\nNew line {i}. {'x ' * (i % 7)}" for i in range(60)]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_vocabulary(LETTERS, lowercase=True)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("corpus") / "a.txt"
    file.write_text("\n\n".join(DOCUMENTS))
    return file


@pytest.fixture
def folder(corpus: Path, tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Prepare a data folder of several small shards."""
    monkeypatch.setattr(prepare_module, "_PORTION_BYTES", 100)
    monkeypatch.setattr(prepare_module, "_SHARD_TOKENS", 200)
    prepare([corpus], tokenizer, tmp_path / "data")
    return tmp_path / "data"


def expected(corpus: Path, tokenizer: Tokenizer) -> list[list[list[int]]]:
    return [tokenizer.encode_ids(split_sentences(document.text)) for document in read_documents([corpus])]


def test_take_returns_each_token_by_position(folder: Path, corpus: Path, tokenizer: Tokenizer) -> None:
    shards = Shards.open(folder)
    documents = expected(corpus, tokenizer)
    assert len(list(folder.glob("shard-*.arrow"))) > 2
    assert shards.documents == len(documents) == 60
    sentences = [sentence for document in documents for sentence in document]
    flat = [i for sentence in sentences for i in sentence]
    assert shards.tokens == len(flat)
    assert shards.sentence_ends.dtype == shards.document_sentence_offsets.dtype == np.int64
    assert shards.sentence_ends.tolist() == np.cumsum([len(sentence) for sentence in sentences]).tolist()
    assert shards.document_sentence_offsets.tolist() == [0, *np.cumsum([len(d) for d in documents]).tolist()]
    assert shards.take(np.arange(len(flat))).tolist() == flat
    mixed = np.random.default_rng(0).integers(0, len(flat), 500)
    ids = shards.take(mixed)
    assert ids.dtype == np.int64
    assert ids.tolist() == [flat[i] for i in mixed]
    assert shards.take(np.array([], dtype=np.int64)).shape == (0,)
    with pytest.raises(IndexError):
        shards.take(np.array([len(flat)]))


def test_hashes_locations_and_tokenizer(folder: Path, corpus: Path, tokenizer: Tokenizer) -> None:
    shards = Shards.open(folder)
    ids = [np.array([i for s in document for i in s]) for document in expected(corpus, tokenizer)]
    assert shards.hashes.dtype == np.uint64
    assert shards.hashes.tolist() == [document_hash(document) for document in ids]
    locations = [document.location for document in read_documents([corpus])]
    assert [shards.location(i) for i in range(60)] == locations
    assert shards.tokenizer.digest == shards.tokenizer_digest == tokenizer.digest
    assert shards.vocab_size == len(LETTERS)
    shards.verify()


def test_arrow_opens_a_shard(folder: Path) -> None:
    with pa.ipc.open_file(folder / "shard-00000.arrow") as reader:
        table = reader.read_all()
    assert table.schema.names == ["ids", "sentence_ends", "place", "hash", "group"]
    assert table.schema.field("ids").type.value_type == pa.uint16()
    assert table.schema.field("sentence_ends").type.value_type == pa.int32()
    row = table.slice(0, 1).to_pylist()[0]
    assert row["sentence_ends"][-1] == len(row["ids"])


def test_large_vocabularies_use_uint32(tmp_path: Path) -> None:
    assert id_dtype(65_535) is np.uint16
    assert id_dtype(65_536) is np.uint32
    batch = pa.record_batch(
        {
            "ids": list_array([0, 2], [70_000, 1], pa.uint32()),
            "sentence_ends": list_array([0, 1], [2], pa.int32()),
            "place": ["a:1"],
            "hash": np.array([2**64 - 1], dtype=np.uint64),
        }
    )
    write_shard(tmp_path / "a.arrow", batch)
    with pa.ipc.open_file(tmp_path / "a.arrow") as reader:
        assert reader.read_all().to_pylist() == [
            {"ids": [70_000, 1], "sentence_ends": [2], "place": "a:1", "hash": 2**64 - 1}
        ]


def flip(path: Path, position: int, bits: int) -> None:
    """Flip bits of one byte of a file."""
    content = bytearray(path.read_bytes())
    content[position] ^= bits
    path.write_bytes(content)


def test_damaged_and_missing_files_are_named(folder: Path, tmp_path: Path) -> None:
    names = [entry["name"] for entry in json.loads((folder / "manifest.json").read_text())["files"]]
    assert "tokenizer/vocab.txt" in names
    for name in names:
        damaged = tmp_path / "damaged"
        content = (folder / name).read_bytes()
        for damage in ("torn", "missing", "flipped"):
            shutil.copytree(folder, damaged)
            if damage == "torn":
                (damaged / name).write_bytes(content[:-1])
            elif damage == "missing":
                (damaged / name).unlink()
            else:
                flip(damaged / name, len(content) // 2, 1)
            with pytest.raises(InputError) as caught:
                Shards.open(damaged).verify()
            assert caught.value.location == str(damaged / name)
            shutil.rmtree(damaged)


def test_every_flipped_bit_of_a_shard_is_detected(folder: Path) -> None:
    path = folder / "shard-00001.arrow"
    content = path.read_bytes()
    for position in range(0, len(content), 61):
        flip(path, position, 0x10)
        with pytest.raises(InputError) as caught:
            Shards.open(folder).verify()
        assert caught.value.location == str(path)
        path.write_bytes(content)


def test_folders_without_a_valid_manifest_are_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        Shards.open(tmp_path)
    assert (caught.value.code, caught.value.location) == ("not_prepared_data", str(tmp_path))
    with pytest.raises(InputError) as caught:
        Shards.open(tmp_path / "nowhere")
    assert caught.value.code == "not_found"
    assert str(caught.value.location).endswith("nowhere")
    path = folder / "manifest.json"
    text = path.read_text()
    for changed, code, field in [
        (text[:-9], "invalid_metadata", ""),
        ("[]", "invalid_metadata", ""),
        (text.replace('"format": 2', '"format": 1'), "unknown_format", "1"),
        (text.replace('"format": 2', '"format": 99'), "unknown_format", "99"),
        (text.replace('"vocab_size"', '"vocabulary"'), "invalid_metadata", "'vocab_size'"),
        (text.replace('"vocab_size": ', '"vocab_size": "many", "x": '), "invalid_metadata", "'vocab_size'"),
        (text.replace('"sha256"', '"sha1"'), "invalid_metadata", "'files.0.sha256'"),
        (text.replace('"size": ', '"size": -'), "invalid_metadata", "'files.0.size'"),
        (text.replace('"documents": ', '"documents": 1'), "shard_counts", ""),
        (text.replace("shard-00001", "shard-00000"), "manifest_duplicate_file", ""),
        (text.replace('"shard-0', '"tokenizer/shard-0'), "manifest_without_shards", ""),
        (text.replace('"documents"', '"document"'), "invalid_metadata", "'files.0"),
    ]:
        path.write_text(changed)
        with pytest.raises(InputError) as caught:
            Shards.open(folder)
        assert caught.value.code == code
        assert field in caught.value.message


def test_spans_are_copied_to_their_positions(folder: Path) -> None:
    shards = Shards.open(folder)
    ends = np.concatenate([[0], shards.sentence_ends])[shards.document_sentence_offsets]
    starts, lengths = ends[:-1][::-1], np.diff(ends)[::-1]
    at = np.cumsum(lengths + 1) - lengths - 1
    out = np.full(int(lengths.sum()) + len(lengths), -1)
    shards.copy_spans(starts, lengths, out, at)
    assert (out == -1).sum() == len(lengths)
    for start, n, target in zip(starts.tolist(), lengths.tolist(), at.tolist(), strict=True):
        assert out[target : target + n].tolist() == shards.take(np.arange(start, start + n)).tolist()


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
def test_file_names_in_a_manifest_stay_inside_the_folder(folder: Path, name: str) -> None:
    shutil.copy(folder / "shard-00000.arrow", folder.parent / "outside.arrow")
    path = folder / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["files"][0]["name"] = name
    path.write_text(json.dumps(manifest))
    with pytest.raises(InputError) as caught:
        Shards.open(folder)
    assert (caught.value.code, caught.value.location) == ("invalid_metadata", str(path))
    assert "'files.0.name'" in caught.value.message


def rewrite_shard(folder: Path, index: int, change: Callable[[pa.Table], pa.Table | pa.RecordBatch]) -> Path:
    """Change the columns of a shard and update its entry in the manifest."""
    path = folder / f"shard-{index:05d}.arrow"
    batch = pa.ipc.open_file(path).get_batch(0)
    changed = change(batch)
    with pa.ipc.new_file(path, changed.schema) as writer:
        writer.write(changed)
    manifest = json.loads((folder / "manifest.json").read_text())
    entry = manifest["files"][index]
    entry["size"] = path.stat().st_size
    entry["sha256"] = hashlib.sha256(path.read_bytes()).hexdigest()
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return path


def list_array(offsets: list[int], values: list[int] | list[int | None], dtype: pa.DataType) -> pa.ListArray:
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pa.array(values, dtype))


def test_shards_with_invalid_columns_are_refused(folder: Path) -> None:
    def column(name: str, make: Callable[[pa.Array], pa.Array]) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
        def change(batch: pa.RecordBatch) -> pa.RecordBatch:
            return batch.set_column(batch.schema.get_field_index(name), name, make(batch.column(name)))

        return change

    def with_values(array: pa.Array, values: list[Any], dtype: Any = None) -> pa.ListArray:
        return list_array(array.offsets.to_pylist(), values, dtype or array.values.type)

    changes: list[tuple[Callable[[pa.RecordBatch], Any], str]] = [
        (column("ids", lambda a: with_values(a, a.values.to_pylist(), pa.int64())), "shard_columns"),
        (column("place", lambda a: pa.array(range(len(a)))), "shard_columns"),
        (column("hash", lambda a: a.cast(pa.float64(), safe=False)), "shard_columns"),
        (lambda b: b.select(["ids", "sentence_ends", "place"]), "shard_columns"),
        (column("hash", lambda a: pa.array([None, *a.to_pylist()[1:]], a.type)), "shard_value_missing"),
        (column("ids", lambda a: with_values(a, [None, *a.values.to_pylist()[1:]])), "shard_value_missing"),
        (column("sentence_ends", lambda a: with_values(a, [-1, *a.values.to_pylist()[1:]])), "shard_sentences"),
        (column("sentence_ends", lambda a: with_values(a, [1 << 30, *a.values.to_pylist()[1:]])),
         "shard_sentences"),
        (column("sentence_ends", lambda a: with_values(a, [0] * len(a.values))), "shard_sentences"),
        (column("ids", lambda a: list_array([3, *a.offsets.to_pylist()[1:]], a.values.to_pylist(), a.values.type)),
         "shard_counts"),
        (lambda b: pa.Table.from_batches([b.slice(0, 1), b.slice(1)]), "shard_counts"),
        (lambda b: b.slice(0, 0), "shard_counts"),
    ]  # fmt: skip
    for change, code in changes:
        content, manifest = (
            (folder / "shard-00001.arrow").read_bytes(),
            (folder / "manifest.json").read_bytes(),
        )
        path = rewrite_shard(folder, 1, change)
        with pytest.raises(InputError) as caught:
            Shards.open(folder)
        assert (caught.value.code, caught.value.location) == (code, str(path))
        path.write_bytes(content)
        (folder / "manifest.json").write_bytes(manifest)


def test_an_id_outside_the_vocabulary_is_detected_on_reading(folder: Path) -> None:
    def change_last_id(batch: pa.RecordBatch) -> pa.RecordBatch:
        ids = batch.column("ids")
        values = ids.values.to_pylist()
        values[-1] = len(LETTERS)
        return batch.set_column(0, "ids", list_array(ids.offsets.to_pylist(), values, pa.uint16()))

    path = rewrite_shard(folder, 1, change_last_id)
    shards = Shards.open(folder)
    shards.verify()
    sizes = [
        len(pa.ipc.open_file(folder / f"shard-{i:05d}.arrow").get_batch(0).column(0).values) for i in (0, 1)
    ]
    end = sum(sizes)
    assert len(shards.take(np.arange(end - 1))) == end - 1
    with pytest.raises(InputError) as caught:
        shards.take(np.array([0, end - 1, 1]))
    assert (caught.value.code, caught.value.location) == ("token_id_out_of_range", str(path))
    assert str(len(LETTERS)) in caught.value.message
    with pytest.raises(InputError) as caught:
        shards.copy_spans(
            np.array([0, end - 2]), np.array([1, 2]), np.zeros(3, dtype=np.int64), np.array([0, 1])
        )
    assert (caught.value.code, caught.value.location) == ("token_id_out_of_range", str(path))
