"""Label names: names, a file of names, or a file of codes and their names."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bertsmith.errors import InputError, option
from bertsmith.formatting import pluralize
from bertsmith.io.tables import read_table
from bertsmith.suggestions import not_found_error
from bertsmith.tasks.labels import LabelNames, is_integer

_NUMBERED = re.compile(r"\s*(\d+)[\s,;:=]+(\S.*?)\s*")  # a line of a .txt: 0 joy, 0: joy, 0=joy
_CODE_HEADS = {"code", "id", "label_id", "labelid", "class_id", "key", "number", "index", "nr", "no", "value"}
_NAME_HEADS = {"name", "label_name", "title", "text", "description", "meaning", "category", "class"}
_EITHER_HEADS = {"label", "labels"}


def read_label_names(value: str | Path | LabelNames) -> LabelNames:
    """Return label names from names, a text "a,b,c", or a file (csv, tsv, txt), with a header or without.

    A file has a name per row in the order of the ids, or a code and its name per row in any order.

    Raises:
        InputError: The file holds neither.
    """
    if isinstance(value, Path) or (isinstance(value, str) and os.path.isfile(value)):
        return _read_file(value)
    if not isinstance(value, str):
        return dict(value) if isinstance(value, Mapping) else list(value)
    if "," not in value:
        raise not_found_error(value, hint=f"give {option('label_names')} a file, or the labels: a,b,c")
    names = [name.strip() for name in value.split(",")]
    if len(names) < 2 or not all(names):
        raise InputError(
            "too_few_label_names",
            f"'{value}' does not name two labels or more",
            argument="label_names",
            hint="write one name per line in a file, or a,b,c",
        )
    return names


def label_names_to_list(names: LabelNames) -> list[Any]:
    """Return label names as a list for settings: names, or pairs of a code and its name."""
    return [list(pair) for pair in names.items()] if isinstance(names, Mapping) else list(names)


def _read_file(file: str | Path) -> LabelNames:
    table = read_table(file, header=False)
    rows = [[value.strip() for value in row.values.values()] for row in table]
    rows = [row for row in rows if any(row)]
    if table.plain and all(_NUMBERED.fullmatch(row[0]) for row in rows):
        rows = [list(match.groups()) for row in rows if (match := _NUMBERED.fullmatch(row[0]))]
    width = len(rows[0]) if rows else 0
    if width not in (1, 2):
        raise InputError(
            "label_names_column_count",
            f"this file has {pluralize(width, 'column')}",
            location=file,
            argument="label_names",
            hint="write one name per row, or a code and its name: 0,joy",
        )
    if width == 1:
        headed = rows[0][0].lower() in _NAME_HEADS | _EITHER_HEADS
        names = [row[0] for row in rows[headed:]]
        if len(names) < 2:
            raise InputError(
                "too_few_label_names",
                "this file does not name two labels or more",
                location=file,
                argument="label_names",
                hint="write one name per row",
            )
        return names
    return _parse_pairs(file, rows)


def _parse_pairs(file: str | Path, rows: list[list[str]]) -> dict[str, str]:
    swapped = _is_header(rows[0]) and rows[0][0].lower() in _NAME_HEADS
    if _is_header(rows[0]) or _is_above_numbers(rows):
        rows = rows[1:]
    first, second = ([row[i] for row in rows] for i in (0, 1))
    if swapped or (all(map(is_integer, second)) and not any(map(is_integer, first))):
        first, second = second, first
    codes = dict(zip(first, second, strict=True))
    if len(codes) != len(rows) or not all(first) or not all(second):
        hint = "write each code once, with its name"
        repeated = next((code for code in first if code and first.count(code) > 1), None)
        if repeated is None:
            message = "a code or a name is empty"
            raise InputError("empty_label_name", message, location=file, argument="label_names", hint=hint)
        message = f"the code '{repeated}' occurs twice"
        raise InputError("duplicate_label_code", message, location=file, argument="label_names", hint=hint)
    return codes


def _is_header(row: Sequence[str]) -> bool:
    """Return whether a row is a header: a usual name of a column of codes, and one of a column of names."""
    a, b = (cell.lower().replace(" ", "_") for cell in row)
    codes, names = _CODE_HEADS | _EITHER_HEADS, _NAME_HEADS | _EITHER_HEADS
    return (a in codes and b in names) or (a in names and b in codes)


def _is_above_numbers(rows: Sequence[Sequence[str]]) -> bool:
    """Return whether a column has a number in all rows but the first."""
    return len(rows) > 2 and any(
        not is_integer(rows[0][i]) and all(is_integer(row[i]) for row in rows[1:]) for i in (0, 1)
    )
