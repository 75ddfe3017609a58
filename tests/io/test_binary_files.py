"""What is no text is recognised by what is in it, whatever its name: each with its own sentence and remedy."""

from __future__ import annotations

import gzip
import io
import os
import random
import zipfile
from pathlib import Path

import pyarrow as pa
import pytest

from bertsmith.errors import InputError
from bertsmith.io.documents import read_documents
from bertsmith.io.tables import read_table
from bertsmith.io.text_io import RejectedRow
from bertsmith.tasks.question_answering.data import read_questions
from bertsmith.tasks.settings import AnswerSettings

PDF = b"%PDF-1.4\n1 0 obj<</Type/Catalog/Pages 2 0 R>>endobj\ntrailer<</Root 1 0 R>>\n%%EOF\n"
NOISE = random.Random(5).randbytes(4000)


def zipped(*members: str, mimetype: str | None = None) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        if mimetype:
            archive.writestr(zipfile.ZipInfo("mimetype"), mimetype)
        for member in members:
            archive.writestr(member, "<x>words in it</x>" * 20)
    return out.getvalue()


def arrow_file() -> bytes:
    sink = io.BytesIO()
    table = pa.table({"text": ["a"]})
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


OPEN_DOCUMENT = "application/vnd.oasis.opendocument."
KINDS: dict[str, tuple[bytes, str, str]] = {
    "pdf": (PDF, "a PDF", "pdftotext"),
    "docx": (zipped("[Content_Types].xml", "word/document.xml"), "a Word document (.docx)", ".txt"),
    "xlsx": (zipped("[Content_Types].xml", "xl/workbook.xml"), "an Excel workbook (.xlsx)", ".csv"),
    "odt": (zipped("content.xml", mimetype=OPEN_DOCUMENT + "text"), "an OpenDocument text (.odt)", ".txt"),
    "ods": (zipped("a.xml", mimetype=OPEN_DOCUMENT + "spreadsheet"), "an OpenDocument sheet (.ods)", ".csv"),
    "epub": (zipped("a.xml", mimetype="application/epub+zip"), "an e-book (.epub)", "pandoc"),
    "zip": (zipped("a.txt"), "a zip archive", "unpack"),
    "ole": (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(600), "an old Word, Excel", ".txt or .csv"),
    "rtf": (b"{\\rtf1 Hello}", "an RTF document", ".txt"),
    "gzip": (gzip.compress(b"some text\n"), "compressed with gzip", ".gz"),
    "parquet": (b"PAR1" + NOISE, "a parquet file", ".parquet"),
    "arrow": (arrow_file(), "an Arrow file", ".parquet"),
    "lfs": (
        b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 9\n",
        "a pointer of Git LFS",
        "git lfs pull",
    ),
    "html": (b"\n<!DOCTYPE html>\n<html><head>a, b</head></html>\n", "an HTML page", "download"),
    "html without a type": (b"<HTML lang=en>\n</HTML>\n", "an HTML page", "download"),
    "xml": (b'<?xml version="1.0"?>\n<a>b</a>\n', "an XML file", ".csv"),
    "png": (b"\x89PNG\r\n\x1a\n" + NOISE, "binary", "leave it out"),
    "nulls": (b"ab\0\0cd\n" * 50, "binary", "leave it out"),
    "noise": (NOISE, "binary", "leave it out"),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("suffix", [".txt", ".jsonl", ".csv", ".txt.gz"])
def test_what_is_no_text_is_refused_and_never_skipped_into_documents(
    tmp_path: Path, kind: str, suffix: str
) -> None:
    data, what, remedy = KINDS[kind]
    file = tmp_path / f"a{suffix}"
    file.write_bytes(gzip.compress(data) if suffix.endswith("gz") else data)
    with pytest.raises(InputError) as error:
        list(read_documents([file]))
    assert (error.value.code, error.value.location) == ("not_text", str(file))
    assert what in error.value.message
    assert remedy in (error.value.hint or "")
    rejects: list[RejectedRow] = []
    assert list(read_documents([file], on_reject=rejects.append)) == []
    assert [(reject.line, reject.byte, reject.code) for reject in rejects] == [(None, None, "not_text")]


@pytest.mark.parametrize("suffix", [".parquet", ".arrow"])
@pytest.mark.parametrize("kind", ["lfs", "html", "gzip"])
def test_what_is_no_parquet_file_is_named(tmp_path: Path, kind: str, suffix: str) -> None:
    (tmp_path / f"a{suffix}").write_bytes(KINDS[kind][0])
    with pytest.raises(InputError) as error:
        read_table(tmp_path / f"a{suffix}")
    assert error.value.code == "bad_parquet"
    assert KINDS[kind][1] in error.value.message
    assert KINDS[kind][2] in (error.value.hint or "")


@pytest.mark.parametrize("kind", ["pdf", "xlsx", "noise", "lfs"])
def test_task_files_are_looked_at_too(tmp_path: Path, kind: str) -> None:
    data, what, _ = KINDS[kind]
    for name in ("a.csv", "a.txt", "a.jsonl"):
        (tmp_path / name).write_bytes(data)
        with pytest.raises(InputError) as error:
            read_table(tmp_path / name)
        assert error.value.code == "not_text"
        assert what in error.value.message
    (tmp_path / "a.json").write_bytes(data)
    with pytest.raises(InputError) as error:
        list(read_questions(tmp_path / "a.json", AnswerSettings()))
    assert error.value.code == "not_text"


@pytest.mark.parametrize(
    "data",
    [
        b"<html5 is a word",
        b"<p>a</p>",
        b"a\0b",
        b"PK is a name",
        b"a\x01\x02\x03\x04\x05 " * 20,
        "…\0".encode() * 3,
        b"RIF",
        b"BZ",
    ],
)
def test_text_with_odd_characters_is_text(tmp_path: Path, data: bytes) -> None:
    file = tmp_path / "a.txt"
    file.write_bytes(data)
    assert [document.text for document in read_documents([file])] == [data.decode().strip("\n")]


@pytest.mark.parametrize("name", ["a.csv", "a.jsonl", "a.txt"])
def test_a_pipe_is_refused_since_files_are_read_more_than_once(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / name)
    with pytest.raises(InputError) as caught:
        read_table(tmp_path / name)
    assert (caught.value.code, caught.value.location) == ("not_a_file", str(tmp_path / name))
