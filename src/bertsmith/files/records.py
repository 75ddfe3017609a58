"""What tables of text have in common: what parts columns, the header, and the words for a bad row.

Tabs part plain fields: a `"` is a character there, as GLUE's and most task files have it. Commas and other
delimiters come with RFC 4180 quotes, which may hold delimiters, line ends and doubled quotes.
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path

from bertsmith.errors import InputError

# The module's customary limit of 131,072 characters would refuse a long document as a field.
csv.field_size_limit(sys.maxsize)

_DELIMITERS = {".csv": ",", ".tsv": "\t", ".txt": "\t"}
CLOSE = 'a quote within a quoted field is doubled: ""; a line end within a field stands in quotes'


def delimiter_of(path: str | Path, suffix: str, delimiter: str | None) -> str:
    """The delimiter given, or else what the suffix says. Raises `InputError` for none, and one that cannot be."""
    delimiter = delimiter or _DELIMITERS.get(suffix)
    if delimiter is None:
        raise InputError(
            f"{path}: the suffix '{suffix}' does not tell how columns are parted",
            "say it with --delimiter ','",
        )
    if len(delimiter) != 1 or delimiter in '"\n\r':
        raise InputError(
            f"--delimiter {delimiter!r}: a delimiter is one character", "for a tab: --delimiter $'\\t'"
        )
    return delimiter


def columns_of(path: str | Path, line: int, fields: list[str]) -> list[str]:
    """The names in a header. Raises `InputError` for one that stands twice."""
    columns: list[str] = []
    for i, field in enumerate(fields):
        name = field.strip() or str(i + 1)  # pandas leaves the header of its index blank
        if name in columns:
            raise InputError(
                f"{path}:{line}: the column '{name}' stands twice in the header",
                "rename one, or read the file without a header",
            )
        columns.append(name)
    return columns


def ragged(found: int, columns: list[str], header: bool = True) -> str:
    """Says that a row has another number of fields than the others."""
    fields = "1 field" if found == 1 else f"{found} fields"
    return f"{fields} where the {'header' if header else 'first row'} has {len(columns)}"


def ragged_remedy(delimiter: str) -> str:
    """What to do about that."""
    if delimiter == "\t":
        return "a field cannot hold a tab or a line end; use .csv or .jsonl for such texts"
    return f"a field that holds '{delimiter}' or a line end stands in quotes: \"…\""


def csv_fault(error: csv.Error) -> str:
    """The csv module's complaints in words that say what stands in the file."""
    said = str(error)
    if "unexpected end" in said:
        return "a quote opens in this row and never closes"
    if "expected after" in said:
        return "text follows a closing quote"
    if "new-line" in said:
        return "a carriage return stands in a field without quotes"
    return said
