"""The lines of a stream of bytes, as standard input has them, become texts with their places."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Iterator

from bertsmith.errors import InputError


def texts_of_lines(lines: Iterable[bytes], place: str) -> Iterator[tuple[str, str]]:
    """Each line as (place, text). InputError for a line that is not UTF-8."""
    for number, line in enumerate(lines, start=1):
        at = f"{place}:{number}"
        yield at, decoded(line, at)


def decoded(line: bytes, place: str) -> str:
    """A line of UTF-8 without its end and a byte order mark. InputError with its place for what is none."""
    try:
        return line.removeprefix(codecs.BOM_UTF8).decode("utf-8").rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise InputError(
            "not_utf8",
            f"byte {error.start} of the line is not UTF-8",
            location=place,
            hint="convert the text to UTF-8",
        ) from None
