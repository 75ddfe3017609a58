"""Folders as people have them: every reader reads, skips, and counts the same files, and logs the same."""

from __future__ import annotations

import gzip
import json
import logging
import os
from pathlib import Path

import pytest

import bertsmith as bs
from bertsmith.corpus.checks.check import check_files
from bertsmith.corpus.checks.tokenizer_comparison import compare_tokenizers
from bertsmith.corpus.manifest import read_manifest
from bertsmith.errors import InputError
from bertsmith.io.documents import Reading, read_documents
from bertsmith.io.folders import CorpusNotes, find_files
from bertsmith.io.tables import read_table
from bertsmith.tokenizer.tokenizer import Tokenizer

STORY = "The house stood on a hill. It had a red door.\n\nPeople came there every summer.\n"
READ = ["README", "a.txt", "chapter.1", "deep/novel", "notes.md", "old.rst", "packed.gz", "x.markdown"]
SKIPPED = {
    "binary file": 2,
    ".png": 2,
    ".docx": 1,
    ".py": 1,
    ".tar.gz": 1,
    "broken link": 1,
    "linked folder": 1,
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "corpus"
    for name in READ:
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text(f"{name} begins.\n{STORY}")
    (place / "packed.gz").write_bytes(gzip.compress(STORY.encode()))
    for name, data in {
        "a.png": b"\x89PNG\r\n\x1a\n",
        "deep/b.PNG": b"\x89PNG\r\n\x1a\n",
        "c.docx": b"PK\x03\x04word/",
        "d.py": b"x = 1",
        "e.tar.gz": b"\x1f\x8b",
        "core": b"\x7fELF" + bytes(100),
        "paper": b"%PDF-1.4",
        ".git/config": b"x",
        ".hidden": b"x",
    }.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_bytes(data)
    (place / "broken.txt").symlink_to("nowhere")
    (place / "linked").symlink_to(place / "deep")
    return place


def test_text_is_read_and_the_rest_is_counted(folder: Path) -> None:
    notes = CorpusNotes()
    assert [str(file.relative_to(folder)) for file in find_files([folder], notes)] == READ
    assert notes.skipped_counts() == dict(sorted(SKIPPED.items(), key=lambda kind: (-kind[1], kind[0])))
    assert notes.hidden == 2
    assert notes.sentences() == [
        "skipped 9 files: 2 .png, 2 binary files, 1 .docx, 1 .py, 1 .tar.gz, 1 broken link, 1 linked folder"
    ]


def test_a_folder_without_text_says_what_is_in_it(tmp_path: Path) -> None:
    for name in ("a.png", "b.png", "c.pdf"):
        (tmp_path / name).write_bytes(b"x")
    with pytest.raises(InputError) as caught:
        find_files([tmp_path])
    assert (caught.value.code, caught.value.location) == ("no_files", str(tmp_path))
    assert "2 .png, 1 .pdf" in caught.value.message


def test_every_reader_of_a_corpus_counts_and_logs_the_same(
    folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("empty.txt", "blank.jsonl"):
        (folder / name).write_text("\n")
    expected = [
        "skipped 9 files: 2 .png, 2 binary files, 1 .docx, 1 .py, 1 .tar.gz, 1 broken link, 1 linked folder",
        f"2 files have no text: {folder}/blank.jsonl, {folder}/empty.txt",
    ]
    caplog.set_level(logging.INFO)
    tokenizer = bs.train_tokenizer([folder], tmp_path / "tokenizer", vocab_size=200)
    assert caplog.messages == expected
    record = json.loads((tmp_path / "tokenizer/training.json").read_text())
    assert (record["files_skipped"], record["files_empty"]) == (SKIPPED, 2)

    caplog.clear()
    shards = bs.prepare([folder], tokenizer, tmp_path / "shards")
    assert caplog.messages == expected
    assert (shards.skipped, shards.counts["files_empty"]) == (SKIPPED, 2)
    assert next(iter(read_manifest(tmp_path / "shards").skipped)) == ".png"

    report = check_files([folder])
    assert report["left_out"]["skipped"] == SKIPPED
    assert report["left_out"]["empty"] == [str(folder / "blank.jsonl"), str(folder / "empty.txt")]
    said = {finding["what"]: finding["number"] for finding in report["findings"]}
    assert said["files without any text"] == 2
    assert any(what.startswith("files of other kinds in the folders") for what in said)
    assert report["unreadable"]["number"] == 0

    assert compare_tokenizers([folder], {"t": tokenizer})["notes"] == expected


@pytest.mark.parametrize("on_error", ["stop", "skip"])
def test_files_without_text_are_refused_where_all_are(tmp_path: Path, on_error: str) -> None:
    for name in ("a.txt", "b.jsonl"):
        (tmp_path / name).write_text("\n")
    files = [tmp_path / "a.txt", tmp_path / "b.jsonl"]
    tokenizer = Tokenizer.from_vocabulary(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a"], lowercase=True)
    with pytest.raises(InputError) as caught:
        bs.prepare(files, tokenizer, tmp_path / "shards", on_error=on_error)  # type: ignore[arg-type]
    assert caught.value.code == "no_text"
    with pytest.raises(InputError) as caught:
        compare_tokenizers(files, {"t": tokenizer})
    assert caught.value.code == "no_text"
    with pytest.raises(InputError) as caught:
        bs.train_tokenizer(files, tmp_path / "tokenizer", vocab_size=100)
    assert caught.value.code == "no_words"
    with pytest.raises(InputError) as caught:
        list(read_documents(files))
    assert (caught.value.code, caught.value.location) == ("no_text", f"{files[0]}:1")
    assert check_files(files)["findings"][0]["what"] == "there is no text"


def test_a_preparation_in_another_encoding_is_another_one(tmp_path: Path) -> None:
    """Both leave shards; what a killed one left is not taken for the other's."""
    from bertsmith.corpus.prepare import PrepareSettings, request_key

    file = tmp_path / "a.txt"
    file.write_bytes("Der Käse fällt über die Brücke.\n".encode("cp1252"))
    tokenizer = bs.train_tokenizer([file], tmp_path / "t", vocab_size=90, reading=Reading(encoding="cp1252"))
    requests = [
        request_key([file], tokenizer, PrepareSettings(reading=Reading(encoding=encoding)))
        for encoding in (None, "cp1252", "latin1", "cp1250")
    ]
    assert requests[1] == requests[2]
    assert len({json.dumps(request) for request in requests}) == 3
    old = bs.prepare([file], tokenizer, tmp_path / "old", reading=Reading(encoding="cp1252"), workers=2)
    file.write_text("Der Käse fällt über die Brücke.\n", encoding="utf-8")
    new = bs.prepare([file], tokenizer, tmp_path / "new", workers=1)
    shard = "shard-00000.arrow"
    assert (old.folder / shard).read_bytes() == (new.folder / shard).read_bytes()


def test_every_reader_takes_the_delimiter_of_a_csv_from_its_header(tmp_path: Path) -> None:
    for name, rows, found in (
        ("a.csv", "id;text\n1;one, two\n", "one, two"),
        ("b.csv", "id\ttext\n1\tone\n", "one"),
        ("c.csv", "id|text\n1|one\n", "one"),
    ):
        file = tmp_path / name
        file.write_text(rows)
        notes = CorpusNotes()
        assert [d.text for d in read_documents([file], notes=notes)] == [found]
        assert notes.delimiters == {str(file): rows[2]}
        assert notes.sentences() == [f"columns are separated by {rows[2]!r}, as the header shows: {file}"]
        assert read_table(file).texts("text") == [found]
    (tmp_path / "d.csv").write_text("text\none; two\n")  # one column
    assert read_table(tmp_path / "d.csv").texts("text") == ["one; two"]
    (tmp_path / "e.csv").write_text("text; raw\nno such sign here\n")
    with pytest.raises(InputError) as error:
        list(read_documents([tmp_path / "e.csv"]))
    assert error.value.code == "column_missing"
    assert "delimiter=';'" in (error.value.hint or "")


def test_a_missing_column_or_key_lists_those_there_are(tmp_path: Path) -> None:
    rows = {"a.jsonl": '{"Text": "x", "id": 1}\n', "a.csv": "Text,id\nx,1\n", "a.tsv": "Text\tid\nx\t1\n"}
    for name, content in rows.items():
        file = tmp_path / name
        file.write_text(content)
        code = "field_missing" if name.endswith("jsonl") else "column_missing"
        with pytest.raises(InputError) as error:
            list(read_documents([file]))
        assert (error.value.code, error.value.location) == (code, f"{file}:1")
        for text in ("'Text'?", "Text, id", "text_column='Text'"):
            assert text in (error.value.hint or "")
        with pytest.raises(InputError) as error:
            read_table(file).column("text")
        assert (error.value.code, error.value.location) == ("column_missing", f"{file}:1")
        for text in ("'Text'?", "Text, id"):
            assert text in (error.value.hint or "")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read_is_refused(tmp_path: Path) -> None:
    for name in ("a.txt", "novel"):
        (tmp_path / name).write_text(STORY)
        (tmp_path / name).chmod(0)
        with pytest.raises(InputError) as caught:
            list(read_documents([tmp_path]))
        assert (caught.value.code, caught.value.location) == ("permission_denied", str(tmp_path / name))
        (tmp_path / name).unlink()
