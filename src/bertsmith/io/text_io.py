"""Read the lines of text files, decoded and with the location of each error.

A line ends at "\\n", and a "\\r" before it is removed. `str.splitlines` and universal newlines also split at
U+2028, U+0085, form feeds, and single carriage returns, which occur inside real sentences: here they are
characters, as are NUL and other control characters. In a file whose first 256 KiB contain "\\r" but no "\\n"
(old Macs), each "\\r" ends a line. A byte order mark at the start is removed. UTF-16, UTF-32, and binary files
are errors unless the encoding is given.
"""

from __future__ import annotations

import codecs
import math
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path

from bertsmith.errors import InputError, option
from bertsmith.io.binary_files import describe_binary
from bertsmith.io.compression import BLOCK_BYTES, FileError, read_blocks
from bertsmith.io.encodings import (
    detect_encoding,
    detect_wide_encoding,
    encoding_hint,
    iconv,
    resolve_encoding,
)

MAX_LINE_BYTES = 1 << 26  # of a line or row; a longer one comes from missing line ends or an unclosed quote
EXCERPT_BYTES = 1 << 16  # of such a line in its rejected row
_HEAD_BYTES = 1 << 16  # by which a file's format and encoding are recognized
_COLUMN = re.compile(r":\d+:(\d+)")  # in a location behind the file


@dataclass(frozen=True)
class RejectedRow:
    """A line or row that was skipped.

    Attributes:
        file: Its file.
        line: Its line, or its row in a parquet file, from 1; None: the file, or its rest.
        byte: The byte that it begins at, from 0, of the decompressed file; None: the file is not UTF-8.
        code: The code of the error.
        reason: The message of the error.
        raw: Its bytes without the line end.
        encoding: The encoding that the file seems to have, of the code `other_encoding`.
    """

    file: str
    line: int | None
    byte: int | None
    code: str
    reason: str
    raw: bytes
    encoding: str | None = None


class LineError(InputError):
    """A line whose bytes are not of the file's encoding; the lines around it are readable."""


class ErrorCollector:
    """Raise the first error of a file, or pass each to `on_reject` and continue."""

    def __init__(self, path: object, on_reject: Callable[[RejectedRow], None] | None = None) -> None:
        """Collect the errors of the file `path`; without `on_reject` the first is raised."""
        self.path = str(path)
        self.count = 0  # of rejected rows
        self.is_utf8 = True  # else positions in bytes are not those of the file
        self._on_reject = on_reject

    @property
    def raises(self) -> bool:
        """Return True if the first error is raised."""
        return self._on_reject is None

    def add(
        self, error: InputError, line: int | None = None, byte: int | None = None, raw: bytes = b""
    ) -> None:
        """Raise an error, or reject the line that it is in."""
        if self._on_reject is None:
            raise error
        self.count += 1
        reason = error.message
        column = _COLUMN.fullmatch((error.location or "").removeprefix(self.path))
        if column and line is not None:
            reason = f"column {column[1]}: {reason}"
        encoding = error.encoding if isinstance(error, FileError) else None
        byte = byte if self.is_utf8 else None
        self._on_reject(RejectedRow(self.path, line, byte, error.code, reason, raw, encoding))


@dataclass(frozen=True)
class TextBlock:
    """Consecutive whole lines: the number of the first, its byte, and the text with "\\n" behind each line."""

    line: int
    byte: int
    text: str


@dataclass(frozen=True, slots=True)
class Line:
    """A line: its number from 1, the byte it begins at, and its text, which may end with "\\r"."""

    number: int
    byte: int
    text: str

    @property
    def raw(self) -> bytes:
        """Return its bytes without the line end."""
        return self.text.removesuffix("\r").encode("utf-8")


def read_lines(path: str | Path, encoding: str | None = "utf-8") -> Iterator[tuple[int, str]]:
    """Yield the lines of a file, decompressed and decoded, as (number from 1, text without its line end).

    Args:
        path: The file; an empty one has no lines.
        encoding: The user's option; None: the user has not set it; "utf-8": also if there is no such option.

    Raises:
        InputError: The file is missing, truncated, or not text, has another encoding, or has a line of more than
            64 MiB; bytes that are not of the encoding have the location file:line:column.
    """
    for line in LineReader(ErrorCollector(path), encoding):
        yield line.number, line.text.removesuffix("\r")


def utf8_blocks(path: str | Path, encoding: str | None) -> tuple[str, Iterator[bytes]]:
    """Return the encoding of a file, and its text as UTF-8 in blocks of about 256 KiB, with its byte order mark.

    Args:
        path: The file.
        encoding: The encoding of a file that is not UTF-8.

    Raises:
        FileError: The file is not text, or has another encoding.
    """
    requested = encoding and resolve_encoding(encoding)
    blocks = read_blocks(path)
    first_blocks = list(islice(blocks, math.ceil(_HEAD_BYTES / BLOCK_BYTES)))
    head = b"".join(first_blocks)[:_HEAD_BYTES]
    detected = detect_encoding(head, requested)
    wide = detected if detected.startswith(("utf-16", "utf-32")) else detect_wide_encoding(head)
    if (binary := describe_binary(head, is_wide=wide is not None)) is not None:
        message = f"this file is {binary[0]}, not text"
        raise FileError("not_text", message, location=path, hint=binary[1].format(path=path), raw=head)
    if wide is not None and (requested is None or detected != wide):
        # The byte order mark shows the byte order, so the name needs none.
        name = wide[:6] if detected == wide else wide[:6] + wide[7:]
        add_option = "" if requested == "utf-8" else f"add {option('encoding', name)}, or "
        raise FileError(
            "other_encoding",
            f"this file is {name.upper()}, not {requested or 'UTF-8'}",
            location=f"{path}:1:1",
            argument="encoding",
            hint=f"{add_option}convert it: {iconv(name)}",
            raw=head,
            encoding=name,
        )
    blocks = chain(first_blocks, blocks)
    return detected, blocks if detected == "utf-8" else _transcode(str(path), blocks, detected)


def _transcode(path: str, blocks: Iterator[bytes], encoding: str) -> Iterator[bytes]:
    """Yield text in another encoding as UTF-8.

    A byte that the encoding does not have becomes a lone surrogate, which UTF-8 does not allow, so that its line
    and column are found as in other files. In UTF-16 and UTF-32 an error shifts all that follows: it raises
    `FileError`.
    """
    is_wide = encoding.startswith(("utf-16", "utf-32"))
    decoder = codecs.getincrementaldecoder(encoding)("strict" if is_wide else "surrogateescape")
    line = 1
    is_last = False
    while not is_last:
        block = next(blocks, b"")
        is_last = not block
        pending, state = decoder.getstate()
        error: UnicodeDecodeError | None = None
        try:
            text = decoder.decode(block, is_last)
        except UnicodeDecodeError as raised:
            error = raised
            decoder.setstate((pending, state))
            text = decoder.decode(block[: max(0, error.start - len(pending))])
        line += text.count("\n")
        if text:
            yield text.encode("utf-8", "surrogatepass")
        if error is not None:
            message = f"from here on the file is not {encoding} ({error.reason})"
            hint = "check that the file is complete and that this is its encoding"
            raise FileError(
                "decoding_failed", message, location=f"{path}:{line}", argument="encoding", hint=hint
            )


class LineReader:
    """Read the lines of a file that can be decoded; the others are added to an `ErrorCollector`."""

    def __init__(self, errors: ErrorCollector, encoding: str | None) -> None:
        """Read the file of `errors`; `encoding` is that of a file that is not UTF-8."""
        self.path, self.errors = errors.path, errors
        self.is_truncated = False  # an error ended the lines before the file does
        self._requested, self._encoding = encoding, "utf-8"
        self._line, self._byte = 1, 0  # of the first line that is not yet read
        self._pending = bytearray()  # the beginning of that line
        self._is_skipping = False  # inside of a line that is too long

    def __iter__(self) -> Iterator[Line]:
        """Yield the lines."""
        for block in self.blocks():
            byte = block.byte
            for number, text in enumerate(block.text.removesuffix("\n").split("\n"), start=block.line):
                yield Line(number, byte, text)
                byte += (len(text) if text.isascii() else len(text.encode("utf-8"))) + 1

    def blocks(self) -> Iterator[TextBlock]:
        """Yield the lines in blocks of about 256 KiB; an error splits a block."""
        try:
            self._encoding, blocks = utf8_blocks(self.path, self._requested)
            self.errors.is_utf8 = self._encoding == "utf-8"
            yield from self._split(blocks)
        except FileError as error:
            self.is_truncated = True
            if self._byte == 0 and not self._pending:
                self.errors.add(error, raw=error.raw[:EXCERPT_BYTES])
            else:
                self.errors.add(error, self._line, self._byte, bytes(self._pending[:EXCERPT_BYTES]))
        else:
            if self._pending:
                yield from self._decode(bytes(self._pending) + b"\n")

    def _split(self, blocks: Iterable[bytes]) -> Iterator[TextBlock]:
        has_mac_lines = False
        for index, block in enumerate(blocks):
            if index == 0:
                head = block[:BLOCK_BYTES]
                has_mac_lines = b"\n" not in head and b"\r" in head
                if block.startswith(codecs.BOM_UTF8):
                    block, self._byte = block.removeprefix(codecs.BOM_UTF8), len(codecs.BOM_UTF8)
            if has_mac_lines:
                block = block.replace(b"\r", b"\n")
            if self._is_skipping:
                block = self._skip_line(block)
            end = block.rfind(b"\n") + 1
            if end:
                lines = bytes(self._pending) + block[:end]
                self._pending.clear()
                yield from self._decode(lines)
            self._pending += block[end:]
            if len(self._pending) > MAX_LINE_BYTES:
                start = bytes(self._pending[:EXCERPT_BYTES])
                self.errors.add(self._line_too_long(), self._line, self._byte, start)
                self._byte += len(self._pending)
                self._pending.clear()
                self._is_skipping = True

    def _skip_line(self, block: bytes) -> bytes:
        """Return the part of a block behind the line that is too long."""
        end = block.find(b"\n") + 1
        self._byte += end or len(block)
        if not end:
            return b""
        self._line += 1
        self._is_skipping = False
        return block[end:]

    def _decode(self, lines: bytes) -> Iterator[TextBlock]:
        """Yield the readable ones of whole lines, of which the last ends with a line end, too."""
        if len(lines) <= MAX_LINE_BYTES:
            try:
                block = TextBlock(self._line, self._byte, lines.decode("utf-8"))
            except UnicodeDecodeError:
                pass
            else:
                self._line += lines.count(b"\n")
                self._byte += len(lines)
                yield block
                return
        readable = bytearray()
        for raw in lines[:-1].split(b"\n"):
            if (rejected := self._check_line(raw, lines)) is None:
                readable += raw + b"\n"
            else:
                if readable:
                    yield self._preceding_block(readable)
                error, raw_line = rejected
                self.errors.add(error, self._line, self._byte, raw_line)
                readable.clear()
            self._line += 1
            self._byte += len(raw) + 1
        if readable:
            yield self._preceding_block(readable)

    def _preceding_block(self, lines: bytearray) -> TextBlock:
        """Return whole lines that end where the reader is."""
        return TextBlock(self._line - lines.count(b"\n"), self._byte - len(lines), lines.decode("utf-8"))

    def _check_line(self, raw: bytes, neighbors: bytes) -> tuple[InputError, bytes] | None:
        """Return the error of a line, and its bytes in the file; None if it is readable."""
        if len(raw) > MAX_LINE_BYTES:
            return self._line_too_long(), raw[:EXCERPT_BYTES]
        try:
            raw.decode("utf-8")
            return None
        except UnicodeDecodeError as error:
            start = error.start
        location = f"{self.path}:{self._line}:{len(raw[:start].decode('utf-8')) + 1}"
        if self._encoding == "utf-8":
            message = f"byte 0x{raw[start]:02X} (at offset {self._byte + start}) is not UTF-8"
            hint = None  # of a rejected row
            if self.errors.raises:
                hint = encoding_hint(neighbors, has_option=self._requested != "utf-8")
            return LineError("not_utf8", message, location=location, hint=hint), raw.removesuffix(b"\r")
        byte = ord(raw[start : start + 3].decode("utf-8", "surrogatepass")) & 0xFF
        error_in_line = LineError(
            "not_in_encoding",
            f"byte 0x{byte:02X} is not {self._encoding}",
            location=location,
            argument="encoding",
            hint="check that this is the file's encoding; if it is, correct or remove the line",
        )
        text = raw.removesuffix(b"\r").decode("utf-8", "surrogatepass")
        return error_in_line, text.encode(self._encoding, "surrogateescape")

    def _line_too_long(self) -> InputError:
        return too_long_error(f"{self.path}:{self._line}", "line", "break it into lines")


def too_long_error(location: str, unit: str, hint: str) -> InputError:
    """Return the error for a line or row of more than `MAX_LINE_BYTES` bytes."""
    message = (
        f"this {unit} is longer than {MAX_LINE_BYTES:,} bytes (rejects keep the first {EXCERPT_BYTES:,})"
    )
    return InputError("line_too_long", message, location=location, hint=hint)
