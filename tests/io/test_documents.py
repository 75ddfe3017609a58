"""Corpus files: the documents in them, and the place of every fault."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from bertsmith.errors import InputError
from bertsmith.io.compression import read_blocks
from bertsmith.io.documents import Document, read_documents
from bertsmith.io.text_io import RejectedRow, read_lines

TEXT = "One line.\nAnother.\n\n\nSecond document\u2028still, with \x00 and a lone \r inside.\n"


def texts(path: Path) -> list[str]:
    return [document.text for document in read_documents([path])]


def error_of(path: Path) -> tuple[str, str]:
    """Return the code of the error of a file, and its location behind the file's name."""
    with pytest.raises(InputError) as caught:
        list(read_documents([path]))
    location = caught.value.location or ""
    assert location.startswith(str(path))
    return caught.value.code, location.removeprefix(str(path))


def test_blank_lines_part_documents_and_only_newlines_part_lines(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_bytes(TEXT.encode())
    assert list(read_documents([file])) == [
        Document("One line.\nAnother.", f"{file}:1"),
        Document("Second document\u2028still, with \x00 and a lone \r inside.", f"{file}:5"),
    ]


def test_windows_line_ends_and_a_leading_mark_are_no_text(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_bytes(b"\xef\xbb\xbfOne\r\ntwo\r\n\r\nthree")
    assert texts(file) == ["One\ntwo", "three"]


def test_a_file_without_a_blank_line_is_one_document(tmp_path: Path) -> None:
    file = tmp_path / "story.md"
    file.write_text("a\nb\nc")
    assert texts(file) == ["a\nb\nc"]


def test_jsonl_has_a_document_a_line_with_newlines_of_its_own(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text(json.dumps({"text": "a\n\nb", "id": 1}) + "\n\n" + json.dumps({"text": "ü"}))
    assert list(read_documents([file])) == [Document("a\n\nb", f"{file}:1"), Document("ü", f"{file}:3")]


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
def test_compressed_files_read_as_plain_ones(tmp_path: Path, suffix: str) -> None:
    pack = gzip.compress if suffix == ".gz" else zstandard.ZstdCompressor().compress
    plain, packed, frames = tmp_path / "a.txt", tmp_path / f"a.txt{suffix}", tmp_path / f"b.txt{suffix}"
    data = (TEXT * 20_000).encode()
    plain.write_bytes(data)
    packed.write_bytes(pack(data))
    frames.write_bytes(pack(data[:1_000_003]) + pack(data[1_000_003:]))
    assert texts(packed) == texts(plain)
    assert texts(frames) == texts(plain)
    lines = tmp_path / f"a.jsonl{suffix}"
    lines.write_bytes(pack(b'{"text": "x"}'))
    assert texts(lines) == ["x"]


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
@pytest.mark.parametrize("keep", [0.1, 0.5, 0.99])
def test_a_torn_compressed_file_is_refused(tmp_path: Path, suffix: str, keep: float) -> None:
    pack = gzip.compress if suffix == ".gz" else zstandard.ZstdCompressor().compress
    whole = pack("".join(f"line {i}\n" for i in range(20_000)).encode())
    file = tmp_path / f"a.txt{suffix}"
    file.write_bytes(whole[: int(len(whole) * keep)])
    assert error_of(file) == ("truncated_file", "")
    file.write_bytes(b"this is plain text")
    assert error_of(file) == ("bad_compression", "")


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
def test_repetitive_text_is_decompressed_in_small_blocks(tmp_path: Path, suffix: str) -> None:
    """Sixty bytes of .zst may hold two megabytes; four kilobytes would hold a hundred and more."""
    pack = gzip.compress if suffix == ".gz" else zstandard.ZstdCompressor().compress
    text = b"the sun sings\n" + b"a" * 60_000_000
    file = tmp_path / f"a.txt{suffix}"
    file.write_bytes(pack(text))
    sizes = [len(block) for block in read_blocks(file)]
    assert sum(sizes) == len(text)
    assert max(sizes) < 20_000_000


def test_invalid_utf8_is_an_error_with_line_column_and_byte(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_bytes("fine\nü caf".encode() + b"\xe9\nmore\n")
    assert error_of(file) == ("not_utf8", ":2:6")
    with pytest.raises(InputError) as caught:
        texts(file)
    assert caught.value.code == "not_utf8"
    assert "0xE9 (at offset 11)" in caught.value.message
    file.write_bytes(b"\xef\xbb\xbfab\xff")
    assert error_of(file) == ("not_utf8", ":1:3")
    with pytest.raises(InputError) as caught:
        texts(file)
    assert caught.value.code == "not_utf8"
    assert "0xFF (at offset 5)" in caught.value.message
    file.write_bytes("\ufefftext".encode("utf-16-le"))
    assert error_of(file) == ("other_encoding", ":1:1")


@pytest.mark.parametrize("content", [b"", b"\n\n", b" \r\n\t\n", b"\xef\xbb\xbf"])
def test_a_file_without_text_is_refused(tmp_path: Path, content: bytes) -> None:
    for name in ("a.txt", "a.jsonl"):
        file = tmp_path / name
        file.write_bytes(content)
        assert error_of(file) == ("no_text", ":1")


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    assert error_of(tmp_path / "missing.txt") == ("not_found", "")
    assert error_of(tmp_path) == ("no_files", "")


@pytest.mark.parametrize(
    ("line", "location", "code"),
    [
        ('{"text": "a"', ":2:13", "not_json"),
        ('{"words": "a"}', ":2", "field_missing"),
        ('{"text": ["a", "b"]}', ":2", "not_a_string"),
        ('{"text": {"a": "b"}}', ":2", "not_a_string"),
        ('["text"]', ":2", "not_a_json_object"),
        ('{"text": "\\ud83d"}', ":2", "lone_surrogate"),
        ('{"text": "a", "text": "b"}', ":2", "duplicate_key"),
        ('{"text": ' + "9" * 10_000 + "}", ":2", "number_too_long"),
        ('{"text": ' + "[" * 100_000, ":2", "json_too_deep"),
    ],
)
def test_a_bad_jsonl_line_is_an_error_with_its_location(
    tmp_path: Path, line: str, location: str, code: str
) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text('{"text": "fine \\ud83d\\ude00"}\n' + line)
    assert error_of(file) == (code, location)


@given(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])))  # many NULs are UTF-16
def test_lines_joined_are_the_file(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    text = text.replace("\r\n", "\n").removeprefix("\ufeff")
    file = tmp_path_factory.mktemp("lines") / "a.txt"
    file.write_bytes(text.encode())
    lines = [line for _, line in read_lines(file)]
    end = "\r" if "\n" not in text and "\r" in text else "\n"  # a file of the old Mac has no other
    expected = text.removesuffix(end).split(end) if text else []
    assert lines == [line.removesuffix("\r") for line in expected]


def test_the_sample_of_hard_cases_has_its_72_blocks(shared_data: Path) -> None:
    found = texts(shared_data / "corpora/sample/mixed.txt")
    assert len(found) == 72
    assert any("\x00" in text for text in found)
    assert any("\u2028" in text for text in found)


def test_a_parquet_of_one_text_takes_the_memory_of_one_text(tmp_path: Path) -> None:
    """A file of some KB that stands for 2 GB; rows came 8,192 at a time."""
    file = tmp_path / "a.parquet"
    indices = pa.array([0] * 20_000 + [1, None], pa.int32())
    column = pa.DictionaryArray.from_arrays(indices, pa.array(["word " * 20_000, "another"]))
    pq.write_table(pa.table({"text": column}), file, store_schema=False)
    assert file.stat().st_size < 20_000
    seen: list[RejectedRow] = []
    before = pa.total_allocated_bytes()
    sizes, peak = [], 0
    for document in read_documents([file], on_reject=seen.append):
        sizes.append(len(document.text))
        peak = max(peak, pa.total_allocated_bytes() - before)
    assert sizes == [100_000] * 20_000 + [7, 0]
    assert not seen
    assert peak < 16 << 20


@pytest.mark.parametrize("named", ["caf\udce9.txt", ".", "*.txt", "none\udce9.txt"])
def test_a_name_that_is_not_utf8_is_an_error_that_can_be_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: str
) -> None:
    (tmp_path / "a.txt").write_text("text")
    (tmp_path / "caf\udce9.txt").write_text("text")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError) as caught:
        list(read_documents([named]))
    assert caught.value.code == "name_not_utf8"
    assert "\\xe9" in (caught.value.location or "")
    str(caught.value).encode("utf-8")
    if "udce9" in ascii(named):
        with pytest.raises(InputError) as caught:
            list(read_lines(named))
        assert caught.value.code == "name_not_utf8"


@pytest.mark.parametrize(
    "content", ['[{"text": "a"}, {"text": null}, {"text": 3}]', '{"text": "a"}\n{"text": 3}']
)
def test_a_json_file_has_records(tmp_path: Path, content: str) -> None:
    file = tmp_path / "a.json"
    file.write_text(content)
    assert [text for text in texts(file) if text] == ["a", "3"]
