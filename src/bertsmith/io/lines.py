"""A file's bytes become lines of text, whole blocks at once; errors have their locations.

Lines end at "\\n", and a "\\r" right before it goes too. `str.splitlines` and universal newlines cut at U+2028,
U+0085, form feeds and lone carriage returns, which stand inside real sentences: here they are characters, and
so are NUL and other control characters. Only a file that has no "\\n" in its first 256 KiB, but a "\\r", is
of an old Mac: there each "\\r" ends a line. A byte order mark at the very start goes; elsewhere it is a
character. UTF-16 and UTF-32, by their mark or by the NULs between their letters, and what is no text are refused;
an encoding that was named is read (see `encodings`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from bertsmith.errors import InputError, option, render
from bertsmith.io.binary_files import not_text
from bertsmith.io.compressed import BLOCK, FileFault, read_blocks
from bertsmith.io.encodings import as_utf8, encoding_of, known_encoding, original, remedy_of, wide_encoding

LONGEST = 1 << 26  # bytes of a line or row; a longer one is a file without line ends, or with an open quote
KEPT = 1 << 16  # bytes that are shown of such a one
_HEAD = 1 << 16  # bytes that show what kind of file it is
_BOM = b"\xef\xbb\xbf"
_COLUMN = re.compile(r":\d+:(\d+)")  # of a location, behind the file


@dataclass(frozen=True)
class Reject:
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


class LineFault(InputError):
    """A line whose bytes are not of the file's encoding; it can be left out, and nothing beside it."""


class Faults:
    """What becomes of the faults of one file: the first is raised, or each is handed to `reject`."""

    def __init__(self, path: str | Path, reject: Callable[[Reject], None] | None) -> None:
        self.path = str(path)
        self.count = 0  # handed over
        self.in_utf8 = True  # else bytes are not those of the file
        self._reject = reject

    @property
    def stop(self) -> bool:
        """Whether the first fault is raised."""
        return self._reject is None

    def add(
        self, error: InputError, line: int | None = None, byte: int | None = None, raw: bytes = b""
    ) -> None:
        """Raise an error, or pass the line that it is in to `reject`."""
        if self._reject is None:
            raise error
        self.count += 1
        reason = render(error.message, "python")
        column = _COLUMN.fullmatch((error.location or "").removeprefix(self.path))
        if column and line is not None:
            reason = f"column {column[1]}: {reason}"
        encoding = error.encoding if isinstance(error, FileFault) else None
        byte = byte if self.in_utf8 else None
        self._reject(Reject(self.path, line, byte, error.code, reason, raw, encoding))


@dataclass(frozen=True)
class LineRun:
    """Whole lines, one behind the other: the number of the first, the byte it begins at, and the text. Each
    line ends with "\\n" (the last of a file, too); a "\\r" before it is still there."""

    line: int
    byte: int
    text: str


@dataclass(frozen=True, slots=True)
class Line:
    """A line: its number from 1, the byte it begins at, its text without "\\n" (a "\\r" may stand last)."""

    number: int
    byte: int
    text: str

    @property
    def raw(self) -> bytes:
        """Its bytes, without the line end."""
        return self.text.removesuffix("\r").encode("utf-8")


def read_lines(path: str | Path, encoding: str | None = None) -> Iterator[tuple[int, str]]:
    """The lines of a file, unpacked and decoded, as (number from 1, text without its line end).

    encoding: of a file that is not UTF-8. Raises `InputError` with file:line:column for bytes that are not of the
    encoding, and for a missing file, a folder, a torn compressed file, what is no text or in another encoding, a
    line longer than 64 MiB. An empty file has no lines.
    """
    for run in Lines(path, Faults(path, None), encoding).runs():
        for number, text in enumerate(run.text.removesuffix("\n").split("\n"), start=run.line):
            yield number, text.removesuffix("\r")


def utf8_blocks(path: str | Path, named: str | None = None) -> tuple[str, Iterator[bytes]]:
    """The encoding of a file, unpacked, and its bytes in UTF-8, in blocks of some 256 KiB; a mark is still there.

    named: the encoding of files that are not UTF-8. Raises as `read_blocks`, and FileFault for a file that is no
    text, or in another encoding though none is named.
    """
    named = named and known_encoding(named)
    head, blocks = _looked_into(read_blocks(path))
    encoding = encoding_of(head, named)
    wide = encoding if encoding.startswith(("utf-16", "utf-32")) else wide_encoding(head)
    if fault := not_text(str(path), head, wide=wide is not None):
        raise fault
    if wide is not None and (named is None or encoding != wide):
        # A mark says in which order the bytes are, too.
        name = wide[:6] if encoding == wide else wide[:6] + wide[7:]
        raise FileFault(
            "other_encoding",
            f"this file is {name.upper()}, not {named or 'UTF-8'}",
            location=f"{path}:1:1",
            argument="encoding",
            hint=f"add {option('encoding', name)}, or convert it: iconv -f {name} -t utf-8",
            raw=head,
            encoding=name,
        )
    blocks = _gathered(blocks, BLOCK)
    return encoding, blocks if encoding == "utf-8" else as_utf8(str(path), blocks, encoding)


def _looked_into(blocks: Iterator[bytes]) -> tuple[bytes, Iterator[bytes]]:
    """The beginning of a file, and all of its blocks, with the fault that they end in."""
    begun: list[bytes] = []
    fault: FileFault | None = None
    size = 0
    try:
        while size < _HEAD and (block := next(blocks, b"")):
            begun.append(block)
            size += len(block)
    except FileFault as error:
        fault = error

    def again() -> Iterator[bytes]:
        yield from begun
        if fault is not None:
            raise fault
        yield from blocks

    return b"".join(begun)[:_HEAD], again()


class Lines:
    """The lines of one file that can be read; the others are added to `faults`. encoding: of a file that is not
    UTF-8."""

    def __init__(self, path: str | Path, faults: Faults, encoding: str | None = None) -> None:
        self.path, self.faults = str(path), faults
        self._named, self._encoding = encoding, "utf-8"
        self.torn = False  # ended where the file does not
        self._line, self._byte = 1, 0  # where the text that is not yet read begins
        self._waiting: list[bytes] = []  # the beginning of a line; joined once, a long one is copied once
        self._held = 0  # bytes of it
        self._skipping = False  # inside of a line that was too long

    def __iter__(self) -> Iterator[Line]:
        for run in self.runs():
            byte = run.byte
            for number, text in enumerate(run.text.removesuffix("\n").split("\n"), start=run.line):
                yield Line(number, byte, text)
                byte += (len(text) if text.isascii() else len(text.encode("utf-8"))) + 1

    def runs(self) -> Iterator[LineRun]:
        """The lines in runs of some 256 KiB. A fault parts a run, and nothing else of it is lost."""
        try:
            self._encoding, blocks = utf8_blocks(self.path, self._named)
            self.faults.in_utf8 = self._encoding == "utf-8"
            yield from self._of_blocks(blocks)
        except FileFault as fault:
            self.torn = True
            start = b"".join(self._waiting)
            if self._byte == 0 and not start:
                self.faults.add(fault, raw=fault.raw[:KEPT])
            else:
                self.faults.add(fault, self._line, self._byte, start[:KEPT])
        else:
            if last := b"".join(self._waiting):
                yield from self._decoded(last + b"\n")

    def _of_blocks(self, blocks: Iterable[bytes]) -> Iterator[LineRun]:
        mac = False
        for number, block in enumerate(blocks):
            if number == 0:
                head = block[:BLOCK]
                mac = b"\n" not in head and b"\r" in head
                if block.startswith(_BOM):
                    block, self._byte = block[len(_BOM) :], len(_BOM)
            if mac:
                block = block.replace(b"\r", b"\n")
            if self._skipping:
                block = self._skipped(block)
            cut = block.rfind(b"\n") + 1
            if cut:
                whole = b"".join((*self._waiting, block[:cut]))
                self._waiting, self._held = [], 0
                yield from self._decoded(whole)
            if rest := block[cut:]:
                self._waiting.append(rest)
                self._held += len(rest)
            if self._held > LONGEST:
                self.faults.add(self._too_long(), self._line, self._byte, b"".join(self._waiting)[:KEPT])
                self._byte += self._held
                self._waiting, self._held, self._skipping = [], 0, True

    def _skipped(self, block: bytes) -> bytes:
        """What follows the line that is too long."""
        end = block.find(b"\n") + 1
        self._byte += end or len(block)
        if not end:
            return b""
        self._line += 1
        self._skipping = False
        return block[end:]

    def _decoded(self, whole: bytes) -> Iterator[LineRun]:
        """The lines of `whole`, which ends with one's end."""
        if len(whole) <= LONGEST:
            try:
                run = LineRun(self._line, self._byte, whole.decode("utf-8"))
            except UnicodeDecodeError:
                pass
            else:
                self._line += whole.count(b"\n")
                self._byte += len(whole)
                yield run
                return
        good: list[bytes] = []
        first, start = self._line, self._byte
        for raw in whole[:-1].split(b"\n"):
            fault = self._fault_of(raw, whole)
            if fault is None:
                good.append(raw)
            else:
                if good:
                    yield _run(first, start, good)
                kept = raw[:KEPT] if len(raw) > LONGEST else original(raw.removesuffix(b"\r"), self._encoding)
                self.faults.add(fault, self._line, self._byte, kept)
                good = []
            self._line += 1
            self._byte += len(raw) + 1
            if fault is not None:
                first, start = self._line, self._byte
        if good:
            yield _run(first, start, good)

    def _fault_of(self, raw: bytes, around: bytes) -> InputError | None:
        if len(raw) > LONGEST:
            return self._too_long()
        try:
            raw.decode("utf-8")
        except UnicodeDecodeError as error:
            if self._encoding != "utf-8":
                return _not_in(self._encoding, self.path, self._line, error)
            hint = remedy_of(around) if self.faults.stop else None  # of a reject the reason alone is kept
            return _not_utf8(self.path, self._line, self._byte, error, hint)
        return None

    def _too_long(self) -> InputError:
        return too_long(self.path, self._line, "line", "break it into lines")


def too_long(path: str, line: int, what: str, remedy: str) -> InputError:
    """Return the error for a line or row of more than `LONGEST` bytes."""
    return InputError(
        "line_too_long",
        f"this {what} is longer than {LONGEST:,} bytes (of a reject the first {KEPT:,} are kept)",
        location=f"{path}:{line}",
        hint=remedy,
    )


def _gathered(blocks: Iterable[bytes], size: int) -> Iterator[bytes]:
    """The same bytes in blocks of at least `size`, but for the last."""
    waiting: list[bytes] = []
    held = 0
    try:
        for block in blocks:
            waiting.append(block)
            held += len(block)
            if held >= size:
                yield b"".join(waiting)
                waiting, held = [], 0
    except FileFault:  # the text before it comes first
        if waiting:
            yield b"".join(waiting)
        raise
    if waiting:
        yield b"".join(waiting)


def _run(line: int, byte: int, lines: list[bytes]) -> LineRun:
    return LineRun(line, byte, (b"\n".join(lines) + b"\n").decode("utf-8"))


def _not_utf8(path: str, number: int, offset: int, error: UnicodeDecodeError, hint: str | None) -> InputError:
    line: bytes = error.object
    column = len(line[: error.start].decode("utf-8")) + 1
    message = f"byte 0x{line[error.start]:02X} (at offset {offset + error.start}) is not UTF-8"
    return LineFault("not_utf8", message, location=f"{path}:{number}:{column}", hint=hint)


def _not_in(encoding: str, path: str, number: int, error: UnicodeDecodeError) -> InputError:
    """The fault of a byte that `as_utf8` made half a character of."""
    line: bytes = error.object
    column = len(line[: error.start].decode("utf-8")) + 1
    byte = ord(line[error.start : error.start + 3].decode("utf-8", "surrogatepass")) & 0xFF
    return LineFault(
        "not_in_encoding",
        f"byte 0x{byte:02X} is not {encoding}",
        location=f"{path}:{number}:{column}",
        argument="encoding",
        hint="check that this is the file's encoding; if it is, correct or remove the line",
    )
