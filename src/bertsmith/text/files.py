"""Corpus files become documents: plain text or jsonl, bare or compressed, a document in memory at a time.

Plain text: a blank line ends a document; a file without one is one document. Lines end at "\\n" alone
(a "\\r" right before it goes too): `str.splitlines` and universal newlines cut at U+2028, form feeds and lone
carriage returns, which stand inside real sentences. `.jsonl`: one document a line, in its field `text`.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import zstandard

from bertsmith.errors import InputError

_BLOCK = 1 << 18
_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class Document:
    """One document: its text (lines joined by "\\n") and the place of its first line, `path:line`."""

    text: str
    place: str


def read_documents(paths: Sequence[str | Path]) -> Iterator[Document]:
    """The documents of some files, in order. A file's name says its form: `.jsonl`, or else plain text, each
    also with `.gz` or `.zst` behind.

    Raises `InputError` with file:line for bytes that are not UTF-8, a missing file, a folder, a file without
    any text, a torn compressed file, and a jsonl line that is not an object with a string `text`.
    """
    for path in paths:
        documents = _of_jsonl(path) if bare_suffix(path) == ".jsonl" else _of_text(path)
        empty = True
        for document in documents:
            empty = False
            yield document
        if empty:
            raise InputError(
                f"{path}:1: there is no text in this file", "leave it out, or check how it was made"
            )


def read_lines(path: str | Path) -> Iterator[tuple[int, str]]:
    """The lines of a file, decompressed and decoded, as (number from 1, text without its line end).

    Raises `InputError` as `read_documents` does; an empty file has no lines.
    """
    offset = 0
    for number, line in enumerate(_byte_lines(_blocks(path)), start=1):
        length = len(line) + 1
        if number == 1:
            line = line.removeprefix(_BOM)
        try:
            text = line.decode("utf-8")
        except UnicodeDecodeError as error:
            raise _not_utf8(path, number, offset + length - 1 - len(line), error) from None
        yield number, text.removesuffix("\r")
        offset += length


def bare_suffix(path: str | Path) -> str:
    """The suffix that tells a file's form, in lower case: that of `a.jsonl.gz` is `.jsonl`."""
    name = Path(path)
    return Path(name.stem).suffix.lower() if name.suffix.lower() in _DECODERS else name.suffix.lower()


def json_object(path: str | Path, number: int, line: str) -> dict[str, Any]:
    """The JSON object on one line of a jsonl file; anything else is an `InputError` with file:line:column."""
    try:
        value = json.loads(line)
        if "\\u" in line:  # only an escape can make half a surrogate pair, which no tokenizer takes
            json.dumps(value, ensure_ascii=False).encode("utf-8")
    except json.JSONDecodeError as error:
        raise InputError(
            f"{path}:{number}:{error.colno}: this is not JSON ({error.msg[0].lower()}{error.msg[1:]})",
            "a .jsonl file holds one JSON object a line",
        ) from None
    except RecursionError:
        raise InputError(f"{path}:{number}: this JSON is nested too deeply") from None
    except UnicodeEncodeError:
        raise InputError(
            f"{path}:{number}: an escape (\\ud800 to \\udfff) is half a character",
            "write both halves, or none",
        ) from None
    if not isinstance(value, dict):
        raise InputError(f"{path}:{number}: this is not a JSON object", 'write {"text": "…"} on each line')
    return value


def _of_text(path: str | Path) -> Iterator[Document]:
    lines: list[str] = []
    first = 0
    for number, line in read_lines(path):
        if line and not line.isspace():
            if not lines:
                first = number
            lines.append(line)
        elif lines:
            yield Document("\n".join(lines), f"{path}:{first}")
            lines = []
    if lines:
        yield Document("\n".join(lines), f"{path}:{first}")


def _of_jsonl(path: str | Path) -> Iterator[Document]:
    for number, line in read_lines(path):
        if not line or line.isspace():
            continue
        value = json_object(path, number, line)
        if "text" not in value:
            raise InputError(
                f"{path}:{number}: the field 'text' is missing", "name the field that holds the text 'text'"
            )
        if not isinstance(value["text"], str):
            raise InputError(f"{path}:{number}: the field 'text' is not a string")
        yield Document(value["text"], f"{path}:{number}")


class _Decoder(Protocol):
    eof: bool
    unused_data: bytes

    def decompress(self, data: bytes) -> bytes: ...


def _gzip_decoder() -> Any:
    return zlib.decompressobj(wbits=31)


def _zstd_decoder() -> Any:
    return zstandard.ZstdDecompressor().decompressobj()


_DECODERS = {".gz": _gzip_decoder, ".zst": _zstd_decoder}


def _blocks(path: str | Path) -> Iterator[bytes]:
    """The bytes of a file in blocks of bounded size, decompressed when its name ends in .gz or .zst."""
    new_decoder = _DECODERS.get(Path(path).suffix.lower())
    try:
        with open(path, "rb") as file:
            if new_decoder is None:
                while block := file.read(_BLOCK):
                    yield block
            else:
                yield from _decompressed(path, file, new_decoder)
    except FileNotFoundError:
        raise InputError(f"{path}: there is no such file", "check the path") from None
    except IsADirectoryError:
        raise InputError(
            f"{path}: this is a folder, not a file", f"name the files in it: {path}/*.txt"
        ) from None
    except PermissionError:
        raise InputError(f"{path}: this file may not be read", "check its permissions") from None


def _decompressed(path: str | Path, file: BinaryIO, new_decoder: Any) -> Iterator[bytes]:
    # Decompressor objects and not file-like readers: zstandard's reader takes a torn file for a whole one.
    # A file may hold several frames one after the other (pzstd, `cat a.gz b.gz`); `torn`: inside of one.
    decoder: _Decoder = new_decoder()
    torn = False
    while data := file.read(_BLOCK >> 4):
        while data := data if torn else data.lstrip(b"\0"):  # between frames gzip allows zeros
            try:
                if block := decoder.decompress(data):
                    yield block
            except (zlib.error, zstandard.ZstdError):
                kind = Path(path).suffix[1:]
                raise InputError(
                    f"{path}: this is not a whole {kind} file", "compress or download it again"
                ) from None
            torn, data = not decoder.eof, b""
            if decoder.eof:
                data, decoder = decoder.unused_data, new_decoder()
    if torn:
        raise InputError(f"{path}: the compressed file ends in the middle", "compress or download it again")


def _byte_lines(blocks: Iterable[bytes]) -> Iterator[bytes]:
    # The parts of an unfinished line wait in a list: joined once, a line of 100 MB is copied once.
    unfinished: list[bytes] = []
    for block in blocks:
        first, *others = block.split(b"\n")
        unfinished.append(first)
        if others:
            yield b"".join(unfinished)
            yield from others[:-1]
            unfinished = [others[-1]]
    if last := b"".join(unfinished):
        yield last


def _not_utf8(path: str | Path, number: int, offset: int, error: UnicodeDecodeError) -> InputError:
    line: bytes = error.object
    if number == 1 and line[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return InputError(
            f"{path}:1:1: this file is UTF-16, not UTF-8", "iconv -f utf-16 -t utf-8 makes it so"
        )
    column = len(line[: error.start].decode("utf-8")) + 1
    byte = f"byte 0x{line[error.start]:02X} (number {offset + error.start} of the text, from 0)"
    return InputError(
        f"{path}:{number}:{column}: {byte} is not UTF-8",
        "save it as UTF-8: iconv -f latin1 -t utf-8, or the like",
    )
