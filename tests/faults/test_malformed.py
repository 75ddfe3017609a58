"""Malformed and odd files of every form: refused in one sentence with the place, or read as documented; and with
`reject` exactly the good rows remain, the others told with their place and bytes."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from bertsmith.errors import InputError
from bertsmith.io import compression, documents, text_io
from bertsmith.io.documents import Reading, read_documents
from bertsmith.io.folders import find_files
from bertsmith.io.text_io import RejectedRow

PACK: dict[str, Callable[[bytes], bytes]] = {
    "gz": gzip.compress,
    "zst": lambda data: zstandard.ZstdCompressor().compress(data),
    "bz2": bz2.compress,
    "xz": lzma.compress,
}
PLAIN, LINE, FILE = Reading(), Reading("line"), Reading("file")
GOOD = [f"good line {i} {'x' * (i % 50)}" for i in range(4000)]
MANY = "".join(f"{line}\n" for line in GOOD).encode()
BLOCK = b"x" * (compression.BLOCK_BYTES - 1)


def parquet(values: Any, kind: Any = None, column: str = "text") -> bytes:
    out = io.BytesIO()
    pq.write_table(pa.table({column: pa.array(values, kind)}), out)
    return out.getvalue()


def bad_utf8_parquet() -> bytes:
    binary = pa.array([b"good", b"caf\xe9", b"fine"])
    return parquet(pa.Array.from_buffers(pa.string(), 3, binary.buffers()))


def jsonl(*rows: str) -> bytes:
    return "".join(f"{row}\n" for row in ['{"text": "one"}', *rows, '{"text": "two"}']).encode()


def csv(*rows: str, header: str = "text,label") -> bytes:
    return "".join(f"{row}\n" for row in [header, "one,1", *rows, "two,2"]).encode()


# name, bytes, reading, the fault (what follows the file's name), good documents, rejects as (line, byte, raw;
# None: not compared).
Told = list[tuple[int | None, int | None, bytes | None]]
WHOLE: Told = [(None, None, None)]
EMPTY: Told = [(None, None, b"")]
REFUSED: list[tuple[str, bytes, Reading, str, list[str], Told]] = [
    # bytes that are not UTF-8
    (
        "latin1.txt",
        b"ok\ncaf\xe9 x\nend\n",
        PLAIN,
        ":2:4: byte 0xE9 (at offset 6)",
        ["ok\nend"],
        [(2, 3, b"caf\xe9 x")],
    ),
    ("crlf.txt", b"ok\r\nb\xff\r\nend\r\n", LINE, ":2:2: byte 0xFF", ["ok", "end"], [(2, 4, b"b\xff")]),
    ("overlong.txt", b"ok\n\xc0\xaf\nend", LINE, ":2:1: byte 0xC0", ["ok", "end"], [(2, 3, b"\xc0\xaf")]),
    ("overlong3.txt", b"ok\n\xe0\x80\xaf\n", LINE, ":2:1: byte 0xE0", ["ok"], [(2, 3, b"\xe0\x80\xaf")]),
    (
        "surrogate.txt",
        b"ok\na\xed\xa0\x80\nend",
        LINE,
        ":2:2: byte 0xED",
        ["ok", "end"],
        [(2, 3, b"a\xed\xa0\x80")],
    ),
    ("beyond.txt", b"ok\n\xf4\x90\x80\x80\n", LINE, ":2:1: byte 0xF4", ["ok"], [(2, 3, b"\xf4\x90\x80\x80")]),
    ("lonely.txt", b"\x80\nok\n", LINE, ":1:1: byte 0x80", ["ok"], [(1, 0, b"\x80")]),
    ("cut.txt", b"ok\nend \xe4\xb8", LINE, ":2:5: byte 0xE4", ["ok"], [(2, 3, b"end \xe4\xb8")]),
    (
        "border.txt",
        b"ok\n" + BLOCK[4:] + b"\xe4\xb8\nend\n",
        LINE,
        ":2:262140: byte 0xE4",
        ["ok", "end"],
        [(2, 3, BLOCK[4:] + b"\xe4\xb8")],
    ),
    (
        "two.txt",
        b"a\n\xff\n\nb\n\xfe\xfd\nc\n",
        PLAIN,
        ":2:1: byte 0xFF",
        ["a", "b\nc"],
        [(2, 2, b"\xff"), (5, 7, b"\xfe\xfd")],
    ),
    (
        "mark.txt",
        b"\xef\xbb\xbfab\xff\nok",
        LINE,
        ":1:3: byte 0xFF (at offset 5)",
        ["ok"],
        [(1, 3, b"ab\xff")],
    ),
    (
        "bad.jsonl",
        b'{"text": "one"}\n{"text": "\xff"}\n',
        PLAIN,
        ":2:11: byte 0xFF",
        ["one"],
        [(2, 16, b'{"text": "\xff"}')],
    ),
    (
        "bad.csv",
        b"text,n\none,1\n\xff,2\ntwo,3\n",
        PLAIN,
        ":3:1: byte 0xFF",
        ["one", "two"],
        [(3, 13, b"\xff,2")],
    ),
    (
        "bad.tsv",
        b"text\tn\none\t1\n\xff\t2\ntwo\t3\n",
        PLAIN,
        ":3:1: byte 0xFF",
        ["one", "two"],
        [(3, 13, b"\xff\t2")],
    ),
    (
        "header.csv",
        b"te\xffxt\none\n",
        PLAIN,
        ":1:3: byte 0xFF",
        [],
        [(1, 0, b"te\xffxt"), (None, None, b"")],
    ),
    # other encodings
    (
        "le-mark.txt",
        "\ufeffSome text\n".encode("utf-16-le"),
        PLAIN,
        ":1:1: this file is UTF-16, not",
        [],
        WHOLE,
    ),
    (
        "be-mark.txt",
        "\ufeffSome text\n".encode("utf-16-be"),
        PLAIN,
        ":1:1: this file is UTF-16, not",
        [],
        WHOLE,
    ),
    ("le.txt", "Some text\n".encode("utf-16-le"), PLAIN, ":1:1: this file is UTF-16LE, not", [], WHOLE),
    ("be.txt", "Some text\n".encode("utf-16-be"), PLAIN, ":1:1: this file is UTF-16BE, not", [], WHOLE),
    ("le32-mark.txt", "\ufeffSome".encode("utf-32-le"), PLAIN, ":1:1: this file is UTF-32, not", [], WHOLE),
    ("be32.txt", "Some text".encode("utf-32-be"), PLAIN, ":1:1: this file is UTF-32BE, not", [], WHOLE),
    ("wide.csv", "text,n\na,1\n".encode("utf-16"), PLAIN, ":1:1: this file is UTF-16", [], WHOLE),
    ("wide.jsonl", '{"text": "a"}\n'.encode("utf-16"), PLAIN, ":1:1: this file is UTF-16", [], WHOLE),
    # nothing in it
    *[
        (f"empty{s}", b"", PLAIN, ":1: there is no text", [], EMPTY)
        for s in (".txt", ".jsonl", ".csv", ".tsv")
    ],
    *[
        (f"blank{s}", b" \r\n\t\n\n", r, ":1: there is no text", [], EMPTY)
        for s, r in ((".txt", PLAIN), (".md", FILE), (".text", LINE), (".jsonl", PLAIN))
    ],
    ("mark-only.txt", b"\xef\xbb\xbf", PLAIN, ":1: there is no text", [], EMPTY),
    ("header-only.csv", b"text,label\n", PLAIN, ":1: there is no text", [], EMPTY),
    ("no-texts.jsonl", b'{"text": " "}\n', PLAIN, ":1: there is no text", [" "], EMPTY),
    ("empty.txt.gz", gzip.compress(b""), PLAIN, ":1: there is no text", [], EMPTY),
    ("nothing.parquet", parquet([], pa.string()), PLAIN, ":1: there is no text", [], EMPTY),
    # torn and wrong packages
    *[
        (
            f"plain.txt.{s}",
            b"just text\n",
            PLAIN,
            f": this is not a whole {s} file",
            [],
            [(None, None, b"just text\n")],
        )
        for s in PACK
    ],
    *[
        (
            f"behind.txt.{s}",
            PACK[s](b"one\ntwo\n") + b"garbage, and more",
            LINE,
            ": after the compressed text comes",
            ["one", "two"],
            [(3, 8, b"")],
        )
        for s in ("gz", "zst", "bz2", "xz")
    ],
    ("flipped.txt.gz", PACK["gz"](b"a\n")[:-5] + b"\0" * 5, LINE, ": this is not a whole gz", [], WHOLE),
    # jsonl
    *[
        (name, jsonl(row), PLAIN, ":2" + told, ["one", "two"], [(2, 16, row.encode())])
        for name, row, told in (
            ("key.jsonl", '{"words": "a"}', ": the field 'text' is missing"),
            ("list.jsonl", '{"text": ["a"]}', ": the field 'text' is not a string, but a list"),
            ("object.jsonl", '{"text": {"en": "a"}}', ": the field 'text' is not a string, but an object"),
            ("array.jsonl", '["text"]', ": this is not a JSON object"),
            ("string.jsonl", '"text"', ": this is not a JSON object"),
            ("open.jsonl", '{"text": "a"', ":13: this is not JSON"),
            ("two.jsonl", '{"text": "a"}{"text": "b"}', ":14: this is not JSON (extra data)"),
            ("control.jsonl", '{"text": "a\tb"}', ":12: this is not JSON (invalid control"),
            ("single.jsonl", "{'text': 'a'}", ":2: this is not JSON"),
            ("twice.jsonl", '{"text": "a", "text": "b"}', ": the key 'text' occurs twice"),
            ("half.jsonl", '{"text": "\\ud83d"}', ": an escape"),
            (
                "deep.jsonl",
                '{"text": "a", "x": ' + "[" * 100_000 + "]" * 100_000 + "}",
                ": this JSON is nested too deeply",
            ),
            ("digits.jsonl", '{"text": "a", "x": ' + "1" * 10_000 + "}", ": a number has too many digits"),
            ("mark.jsonl", '\ufeff{"text": "a"}', ":1: this is not JSON"),
        )
    ],
    # csv and tsv
    *[
        (name, csv(row), PLAIN, f":3: {told}", ["one", "two"], [(3, 17, row.encode())])
        for name, row, told in (
            ("ragged.csv", "a,b,c", "3 fields where the header has 2"),
            ("short.csv", "alone", "1 field where the header has 2"),
            ("unclosed.csv", '"open,1', "a quote opens in this line and never closes"),
            ("behind.csv", '"a"b,1', "text follows a closing quote"),
            ("nested.csv", '"he said "no" to it",1', "text follows a closing quote"),
            ("return.csv", "a\rb,1", "a carriage return is in a field"),
            ("again.csv", "text,label", "the header is repeated here"),
            ("lines.csv", '"a\nb",1,2', "3 fields where the header has 2"),
        )
    ],
    (
        "swallow.csv",
        csv('"open,1', 'he "x"', "good,3"),
        PLAIN,
        ":3: text follows",
        ["one", "good", "two"],
        [(3, 17, b'"open,1'), (4, 25, b'he "x"')],
    ),
    (
        "twice.csv",
        b"text,text\na,b\n",
        PLAIN,
        ":1: the column 'text' occurs twice",
        [],
        [(None, None, b"text,text")],
    ),
    (
        "column.csv",
        b"words,label\na,b\n",
        PLAIN,
        ":1: column 'text' is missing",
        [],
        [(None, None, b"words,label")],
    ),
    (
        "ragged.tsv",
        b"text\tn\none\t1\na\tb\tc\ntwo\t2\n",
        PLAIN,
        ":3: 3 fields",
        ["one", "two"],
        [(3, 13, b"a\tb\tc")],
    ),
    # parquet
    (
        "magic.parquet",
        b"text, not a parquet at all",
        PLAIN,
        ": this is not a whole parquet",
        [],
        [(None, None, b"text, not a parquet at all")],
    ),
    ("cut.parquet", parquet(["a", "b"])[:-6], PLAIN, ": this is not a whole parquet", [], WHOLE),
    ("empty.parquet", b"", PLAIN, ": this is not a whole parquet", [], EMPTY),
    ("column.parquet", parquet(["a"], column="words"), PLAIN, ": column 'text' is missing", [], EMPTY),
    (
        "bytes.parquet",
        bad_utf8_parquet(),
        PLAIN,
        ":2: the column 'text' holds bytes",
        ["good", "fine"],
        [(2, None, b"caf\xe9")],
    ),
    (
        "a.parquet.gz",
        gzip.compress(parquet(["a"])),
        PLAIN,
        ": a parquet file is compressed inside",
        [],
        EMPTY,
    ),
]

ODD: list[tuple[str, bytes, Reading, list[str]]] = [
    ("mark.txt", b"\xef\xbb\xbfone\n\ntwo", PLAIN, ["one", "two"]),
    ("number.jsonl", b'{"text": 3}', PLAIN, ["3"]),
    ("float.ndjson", b'{"text": 3.5}', PLAIN, ["3.5"]),
    ("bool.jsonl", b'{"text": true}', PLAIN, ["true"]),
    ("null.jsonl", jsonl('{"text": null}'), PLAIN, ["one", "", "two"]),
    ("nan.jsonl", jsonl('{"text": NaN}'), PLAIN, ["one", "", "two"]),
    ("ints.parquet", parquet([1, 2]), PLAIN, ["1", "2"]),
    ("null.parquet", parquet(["one", None, "two"]), PLAIN, ["one", "", "two"]),
    ("mark.csv", b"\xef\xbb\xbftext\na\n", PLAIN, ["a"]),
    ("mark.jsonl", b'\xef\xbb\xbf{"text": "a"}', PLAIN, ["a"]),
    ("middle.txt", "one\n\ufefftwo \ufeff\n".encode(), LINE, ["one", "\ufefftwo \ufeff"]),
    ("nul.txt", b"a\x00b\n\n\x00\n", PLAIN, ["a\x00b", "\x00"]),
    ("control.txt", b"a\x01\x08\x0b\x0c\x1c\x1bb\n", LINE, ["a\x01\x08\x0b\x0c\x1c\x1bb"]),
    ("return.txt", b"a\rb\nc\n", LINE, ["a\rb", "c"]),
    ("mac.txt", b"a\rb\r\rc", PLAIN, ["a\nb", "c"]),
    ("mac.csv", b'text,n\ra,1\r"b\rc",2\r', PLAIN, ["a", "b\nc"]),
    ("mixed.txt", b"a\r\nb\nc\r\n\r\nd\r", PLAIN, ["a\nb\nc", "d"]),
    ("separators.txt", "a\u2028b\u2029c\u0085d\n".encode(), LINE, ["a\u2028b\u2029c\u0085d"]),
    ("separator-line.txt", "a\n\u2028\nb".encode(), PLAIN, ["a", "b"]),
    ("white.txt", "a\n \t\u3000\n\n\nb\n".encode(), PLAIN, ["a", "b"]),
    ("whole.txt", b"\n\n a\n\nb \n \n", FILE, [" a\n\nb "]),
    ("nested.csv", csv('"he said ""no"", and\nleft",1'), PLAIN, ["one", 'he said "no", and\nleft', "two"]),
    ("crlf.csv", b'text,n\r\n"a, b",1\r\n\r\nc,2\r\n', PLAIN, ["a, b", "c"]),
    ("semicolon.csv", b"n;text\n1;a,b\n", Reading(delimiter=";"), ["a,b"]),
    ("named.csv", b"n,body\n1,a\n", Reading(text_column="body"), ["a"]),
    ("quotes.tsv", b'text\tn\n"open\t1\n', PLAIN, ['"open']),
    (
        "escapes.jsonl",
        b'{"text": "\\ud83d\\ude00 \\u2028 \\u0000", "x": NaN}\n',
        PLAIN,
        ["\U0001f600 \u2028 \x00"],
    ),
    ("raw.jsonl", '{"text": "a\u2028b\u0085"}\r\n'.encode(), PLAIN, ["a\u2028b\u0085"]),
    ("upper.JSONL", b'{"text": "a"}', PLAIN, ["a"]),
    ("dictionary.parquet", parquet(pa.array(["a", "b", "a"]).dictionary_encode()), PLAIN, ["a", "b", "a"]),
    ("large.parquet", parquet(["a\x00", "\u2028"], pa.large_string()), PLAIN, ["a\x00", "\u2028"]),
    *[(f"frames.txt.{s}", PACK[s](b"one\ntw") + PACK[s](b"o\n"), LINE, ["one", "two"]) for s in PACK],
    ("zeros.txt.gz", gzip.compress(b"one\n") + b"\0" * 512, LINE, ["one"]),
]


def both(path: Path, reading: Reading) -> tuple[InputError | list[str], list[str], list[RejectedRow]]:
    """What reading does without `reject`, and with it."""
    first: InputError | list[str]
    try:
        first = [document.text for document in read_documents([path], reading)]
    except InputError as error:
        first = error
    told: list[RejectedRow] = []
    return first, [document.text for document in read_documents([path], reading, on_reject=told.append)], told


def test_there_are_sixty_of_them() -> None:
    assert len(REFUSED) >= 60


@pytest.mark.parametrize(
    ("name", "data", "reading", "fault", "good", "told"), REFUSED, ids=[row[0] for row in REFUSED]
)
def test_a_malformed_file_is_refused_and_its_good_rows_remain(
    tmp_path: Path, name: str, data: bytes, reading: Reading, fault: str, good: list[str], told: Told
) -> None:
    path = tmp_path / name
    path.write_bytes(data)
    refused, remaining, rejects = both(path, reading)
    assert isinstance(refused, InputError)
    assert refused.sentence_for("command line").startswith(f"{path}{fault}")
    assert "\n" not in refused.sentence_for("command line")
    assert remaining == good
    assert [(reject.line, reject.byte) for reject in rejects] == [(line, byte) for line, byte, _ in told]
    for reject, (_, byte, raw) in zip(rejects, told, strict=True):
        assert reject.file == str(path)
        assert raw is None or reject.raw == raw
        if byte is not None and path.suffix[1:] not in PACK:
            assert data[byte : byte + len(reject.raw)] == reject.raw
    said = fault.lstrip(":0123456789").removeprefix(" ")
    assert said in rejects[0].reason


@pytest.mark.parametrize(("name", "data", "reading", "texts"), ODD, ids=[row[0] for row in ODD])
def test_an_odd_file_is_read_as_documented(
    tmp_path: Path, name: str, data: bytes, reading: Reading, texts: list[str]
) -> None:
    path = tmp_path / name
    path.write_bytes(data)
    assert both(path, reading) == (texts, texts, [])


@pytest.mark.parametrize("kind", PACK)
@pytest.mark.parametrize("keep", [0.3, 0.9, 0.999])
def test_what_stands_before_a_tear_is_kept(tmp_path: Path, kind: str, keep: float) -> None:
    path = tmp_path / f"a.txt.{kind}"
    whole = PACK[kind](MANY * 5)
    path.write_bytes(whole[: int(len(whole) * keep)])
    refused, remaining, rejects = both(path, LINE)
    assert isinstance(refused, InputError)
    assert (refused.code, refused.location) == ("truncated_file", str(path))
    assert remaining == (GOOD * 5)[: len(remaining)]
    assert [reject.code for reject in rejects] == ["truncated_file"]
    if remaining:
        assert rejects[0].line == len(remaining) + 1
        assert rejects[0].byte == len("".join(f"{x}\n" for x in remaining))


@pytest.mark.parametrize("end", [b"\nend\n", b"\n", b""])
@pytest.mark.parametrize("form", [".txt", ".jsonl", ".tsv", ".csv"])
def test_a_line_that_is_too_long_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str, end: bytes
) -> None:
    monkeypatch.setattr(text_io, "MAX_LINE_BYTES", 1000)
    monkeypatch.setattr(text_io, "EXCERPT_BYTES", 10)
    monkeypatch.setattr(text_io, "BLOCK_BYTES", 300)
    start = {".txt": b"", ".jsonl": b'{"text": "a"}\n'}.get(form, b"text\na\n")
    end = b'\n{"text": "end"}\n' if form == ".jsonl" and end == b"\nend\n" else end
    path = tmp_path / f"a{form}"
    path.write_bytes(start + b"x" * 5000 + end)
    refused, remaining, rejects = both(path, LINE)
    number = start.count(b"\n") + 1
    assert isinstance(refused, InputError)
    assert (refused.code, refused.location) == ("line_too_long", f"{path}:{number}")
    assert remaining == (["a"] if start else []) + (["end"] if b"end" in end else [])
    assert [(r.line, r.byte, r.raw) for r in rejects] == [(number, len(start), b"x" * 10)]


def test_a_row_that_never_ends_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_io, "MAX_LINE_BYTES", 1000)
    path = tmp_path / "a.csv"
    path.write_bytes(b'text\n"open\n' + b"fine\n" * 1000)
    refused, remaining, rejects = both(path, Reading())
    assert isinstance(refused, InputError)
    assert (refused.code, refused.location) == ("line_too_long", f"{path}:2")
    assert remaining == ["fine"] * 1000
    assert [(r.line, r.byte, r.raw) for r in rejects] == [(2, 5, b'"open')]


@pytest.mark.slow
def test_a_line_of_100_mb_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.txt.gz"
    path.write_bytes(gzip.compress(b"one\n" + b"x" * 100_000_000 + b"\ntwo\n", 1))
    refused, remaining, rejects = both(path, LINE)
    assert isinstance(refused, InputError)
    assert (refused.code, refused.location) == ("line_too_long", f"{path}:2")
    assert remaining == ["one", "two"]
    assert rejects[0].raw == b"x" * 65536


def test_a_long_document_comes_in_parts_of_whole_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(documents, "_MAX_CHARACTERS", 10)
    path = tmp_path / "a.txt"
    path.write_bytes(b"1234\n6789A\n34567\nalone and too long\nx\n\ny\n")
    assert [(d.text, d.location, d.part) for d in read_documents([path])] == [
        ("1234\n6789A", f"{path}:1", 0),
        ("34567", f"{path}:3", 1),
        ("alone and too long", f"{path}:4", 2),
        ("x", f"{path}:5", 3),
        ("y", f"{path}:7", 0),
    ]


def test_files_of_folders_and_globs_are_found_in_order(tmp_path: Path) -> None:
    for name in ("b.txt", "a/z.jsonl.gz", "a/.DS_Store", ".git/x.txt", "c.png", "a/b/d.ndjson", "odd[1].txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")

    def found(*paths: Path) -> list[str]:
        return [str(path.relative_to(tmp_path)) for path in find_files(paths)]

    assert found(tmp_path) == ["a/b/d.ndjson", "a/z.jsonl.gz", "b.txt", "odd[1].txt"]
    assert found(tmp_path / "**/*.ndjson", tmp_path / "c.png") == ["a/b/d.ndjson", "c.png"]
    assert found(tmp_path / "odd[1].txt") == ["odd[1].txt"]
    for paths, told in (
        ([tmp_path / ".git" / "none"], "no such file"),
        ([tmp_path / "*.csv"], "no file has such a name"),
        ([tmp_path / "b.txt", tmp_path / "a" / ".." / "b.txt"], "this file is named twice"),
        ([tmp_path, tmp_path / "b.txt"], "this file is named twice"),
    ):
        with pytest.raises(InputError, match=told):
            find_files(paths)
    (tmp_path / "nothing").mkdir()
    with pytest.raises(InputError) as caught:
        find_files([tmp_path / "nothing"])
    assert caught.value.code == "no_files"


def test_a_missing_file_cannot_be_skipped(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        list(read_documents([tmp_path / "missing.txt"], on_reject=lambda _: None))
    assert caught.value.code == "not_found"


def test_reading_goes_on_with_the_next_file(tmp_path: Path) -> None:
    for name, data in (("a.parquet", b"no"), ("b.txt", b""), ("c.txt", b"fine\n")):
        (tmp_path / name).write_bytes(data)
    told: list[RejectedRow] = []
    assert [d.text for d in read_documents([tmp_path], on_reject=told.append)] == ["fine"]
    assert [(Path(r.file).name, r.line) for r in told] == [("a.parquet", None)]


SUFFIXES = [".txt", ".jsonl", ".csv", ".tsv", ".parquet", ".txt.gz", ".csv.zst", ".jsonl.bz2", ".tsv.xz"]
PIECES = [
    b"\n",
    b"\r",
    b"\r\n",
    b'"',
    b",",
    b"\t",
    b"text",
    b"\xff",
    b"\xef\xbb\xbf",
    b"\0",
    b" ",
    b"x",
    "ü\u2028".encode(),
    b'{"text": "a"}',
]
anything = st.one_of(st.binary(max_size=80), st.lists(st.sampled_from(PIECES), max_size=40).map(b"".join))


@given(anything, st.sampled_from(SUFFIXES), st.sampled_from(["blank_line", "file", "line"]), st.booleans())
def test_any_bytes_are_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, data: bytes, suffix: str, documents: Any, packed: bool
) -> None:
    path = tmp_path_factory.getbasetemp() / f"anything{suffix}"
    if suffix.startswith((".csv", ".tsv")):
        data = b"text\n" + data
    path.write_bytes(PACK.get(path.suffix[1:], bytes)(data) if packed else data)
    refused, remaining, rejects = both(path, Reading(documents))
    if isinstance(refused, InputError):
        assert (refused.location or "").startswith(str(path))
        assert rejects
    else:
        assert (refused, []) == (remaining, rejects)


@given(anything, st.integers(1, 7), st.integers(1, 20), st.sampled_from([".txt", ".jsonl", ".csv", ".tsv"]))
def test_where_blocks_end_changes_nothing(
    tmp_path_factory: pytest.TempPathFactory, data: bytes, size: int, longest: int, suffix: str
) -> None:
    path = tmp_path_factory.getbasetemp() / f"blocks{suffix}"
    data = b"text\n" + data  # with a line end in the first block
    path.write_bytes(data)

    def found() -> list[Any]:
        told: list[RejectedRow] = []
        return [*read_documents([path], on_reject=told.append), *told]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(documents, "_MAX_CHARACTERS", longest)
        patch.setattr(text_io, "MAX_LINE_BYTES", 30)
        patch.setattr(text_io, "EXCERPT_BYTES", 10)
        expected = found()
        patch.setattr(compression, "BLOCK_BYTES", 5 + size)
        patch.setattr(text_io, "BLOCK_BYTES", 5 + size)
        assert found() == expected


@given(anything)
def test_blank_lines_part_as_line_by_line_reading_does(
    tmp_path_factory: pytest.TempPathFactory, data: bytes
) -> None:
    path = tmp_path_factory.getbasetemp() / "plain.txt"
    path.write_bytes(data)
    told: list[RejectedRow] = []
    found = [d.text for d in read_documents([path], on_reject=told.append)]
    if any(reject.line is None for reject in told):
        return
    end = b"\n" if b"\n" in data else b"\r"
    expected: list[list[str]] = [[]]
    for raw in data.removeprefix(b"\xef\xbb\xbf").split(end):
        try:
            line = raw.decode("utf-8").removesuffix("\r")
        except UnicodeDecodeError:
            continue
        if line.strip():
            expected[-1].append(line)
        else:
            expected.append([])
    assert found == ["\n".join(some) for some in expected if some]


def test_a_flipped_byte_of_a_parquet_is_told_or_harmless(tmp_path: Path) -> None:
    whole = parquet([f"row {i}" for i in range(200)])
    path = tmp_path / "a.parquet"
    for i in range(0, len(whole), 7):
        path.write_bytes(whole[:i] + bytes([whole[i] ^ 0x55]) + whole[i + 1 :])
        both(path, Reading())
