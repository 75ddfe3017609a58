"""Decide what a value is: a text or label is a string, a number, a bool, or a date; None and NaN are missing.

Files, data in memory, and arguments share these rules. Lists and objects are never turned into strings.
"""

from __future__ import annotations

import ast
import csv
import datetime
import json
import math
import numbers
import re
from collections.abc import Mapping, MappingView, Set
from decimal import Decimal
from typing import Any

from bertsmith.errors import InputError, option
from bertsmith.formatting import shorten
from bertsmith.io.jsonl import load_json, surrogate_error

# fmt: off
MISSING_TEXTS = frozenset([
    "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN", "<NA>", "N/A", "NA",
    "NULL", "NaN", "NaT", "None", "n/a", "nan", "null",
    "#DIV/0!", "#NAME?", "#NULL!", "#NV", "#REF!", "#VALUE!", "\\N",
])
# fmt: on
"""Cells of delimited files that stand for a missing text: the spellings of pandas.read_csv, of spreadsheets,
and of SQL."""
MISSING_SPELLINGS = MISSING_TEXTS | {"inf", "-inf", "Inf", "-Inf", "Infinity", "-Infinity"}
"""Labels that stand for a missing one."""

# White space, controls, and characters that no font shows (Default_Ignorable_Code_Point, without rare ones).
_INVISIBLE = re.compile(
    "[\\s\x00-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e"
    "\u2060-\u206f\u2800\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff9-\ufffb\U000e0001-\U000e007f]*"
)
_MISSING_TYPES = ("NAType", "NaTType")  # of pandas
_SCALARS = (str, bool, numbers.Real, Decimal, datetime.date, datetime.time, datetime.timedelta)
_TYPE_NAMES = {"tuple": "a list", "dict": "an object", "bytes": "bytes"}
_BRACKETS = ("[]", "()", "{}")
_ADJACENT_STRINGS = re.compile(r"""['"]\s+['"]""")  # a printed NumPy array, whose strings Python would join
_NUMPY_INTEGERS = re.compile(r"\[\s*\d+(\s+\d+)+\s*\]")
_CONSTRUCTOR = re.compile(
    r"(c|list|tuple|set|frozenset|deque|character|integer|(?:\w+\.)?(?:array|tensor)|np\.\w+|(?:Datetime|Multi|Range)?Index|Series"
    r"|OrderedDict|Counter|dict_\w+)\((.*?)(?:,\s*dtype=[^,]*)?\)",
    re.DOTALL,
)
_BYTES = re.compile(r"""b(['"]).*\1""", re.DOTALL)
_MAX_SHOWN_CHARACTERS = 60


def is_missing(value: Any) -> bool:
    """Return True for None, NaN of any library, and pandas' NA and NaT."""
    if value is None or type(value).__name__ in _MISSING_TYPES:
        return True
    return isinstance(value, numbers.Real | Decimal) and bool(value != value)


def is_blank(text: str) -> bool:
    """Return True for a text without a visible character."""
    return _INVISIBLE.fullmatch(text) is not None


def is_unordered(values: Any) -> bool:
    """Return True for a set of any kind; views of a dict have an order."""
    return isinstance(values, Set) and not isinstance(values, MappingView)


def to_python(value: Any) -> Any:
    """Return None for a missing value, and a value or array of NumPy as Python's own."""
    if isinstance(value, str) or value is None:
        return value
    if is_missing(value):
        return None
    return value.tolist() if hasattr(value, "tolist") else value


def to_text(
    value: Any, name: str, location: str, argument: str | None = None, hint: str | None = None
) -> str:
    """Return a text or label as a string; a missing or infinite one is empty.

    Args:
        value: The value.
        name: The name of the value for errors, such as "query".
        location: The location of its row.
        argument: The argument that names its column.
        hint: The advice for a value that is not a text.

    Raises:
        InputError: The value is neither a string nor a number, a bool, or a date.
    """
    if not isinstance(value, str):
        value = to_python(value)
    if value is None or (isinstance(value, numbers.Real | Decimal) and abs(value) == math.inf):
        return ""
    if not isinstance(value, _SCALARS):
        type_name = _TYPE_NAMES.get(type(value).__name__, f"a {type(value).__name__}")
        message = (
            f"the {name} is not a string, but {type_name}: {shorten(f'{value!r}', _MAX_SHOWN_CHARACTERS)}"
        )
        others = f", or name another column with {option(argument)}" if argument else ""
        hint = hint or f"give one string, number, or bool{others}"
        raise InputError("not_a_string", message, location=location, argument=argument, hint=hint)
    if isinstance(value, str):
        text = str.__str__(value)  # of enumerations the value
    else:
        text = json.dumps(value) if isinstance(value, bool | int | float) else str(value)
    if not text.isascii():
        try:
            text.encode("utf-8")
        except UnicodeEncodeError:  # half a surrogate pair, which no tokenizer takes
            raise surrogate_error(location) from None
    return text


def display_text(value: Any) -> str:
    """Return any value as text for output: lists and objects as JSON, a missing one empty."""
    if value is None or isinstance(value, str):
        return value or ""
    if isinstance(value, bool | int | float | list | tuple | dict):
        return json.dumps(value, ensure_ascii=False, default=str)
    return str(value)


def is_printed_collection(text: str) -> bool:
    """Return True for a list, an object, or bytes as JSON, Python, or NumPy prints them."""
    text = text.strip()
    is_enclosed = text[:1] + text[-1:] in _BRACKETS or bool(_BYTES.fullmatch(text))
    return is_enclosed and (bool(_ADJACENT_STRINGS.search(text)) or parse_collection(text) is not None)


def parse_array(text: str, separator: str = ",") -> list[str] | None:
    """Return the strings of a list without quotes, or of PostgreSQL's {a,"b, c"}; None for other text."""
    if _NUMPY_INTEGERS.fullmatch(text):
        return text[1:-1].split()
    inner = text[1:-1]
    quotes = "'" if text[:1] == "{" else "'\""
    if text[:1] + text[-1:] not in _BRACKETS or not {*"[](){}", *quotes}.isdisjoint(inner):
        return None
    separator = separator if len(separator) == 1 and separator in inner and text[0] != "{" else ","
    fields = next(csv.reader([inner], delimiter=separator, escapechar="\\", skipinitialspace=True), [])
    return [field.strip() for field in fields]


def without_constructor(text: str) -> str:
    """Return the list in c("a", "b") or character(0) of R, or in array(['a'], dtype=object) or set() of Python."""
    if (match := _CONSTRUCTOR.fullmatch(text)) is None:
        return text
    name, inner = match.groups()
    if name in ("character", "integer"):
        return "[]" if inner == "0" else text
    return inner if inner.startswith(("[", "(", "{")) else f"[{inner}]"


def parse_collection(text: str) -> list[Any] | dict[Any, Any] | bytes | None:
    """Return the list, object, or bytes that a cell has as JSON, Python, or R prints it; None for other text."""
    text = without_constructor(text)
    is_printed = text[:1] in ("[", "(", "{") or _BYTES.fullmatch(text)
    if not is_printed or _ADJACENT_STRINGS.search(text):
        return None
    for parse in (load_json, ast.literal_eval):
        try:
            value = parse(text)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            continue
        if isinstance(value, Mapping):
            return dict(value)
        if is_unordered(value):
            return sorted(value, key=str)
        return list(value) if isinstance(value, list | tuple) else value if isinstance(value, bytes) else None
    return None


def is_unreadable_list(text: str) -> bool:
    """Return True for a cell that looks like a list of strings, if `parse_collection` cannot read it."""
    return without_constructor(text).startswith("[") and ("'" in text or '"' in text)


def parse_label(text: str) -> Any:
    """Return the list, object, or bytes in the cell of a label; None for a label, such as (0, 30] or [joy]."""
    value, array = parse_collection(text), parse_array(text) or ()
    if text.startswith("(") and not any(isinstance(item, str) for item in value or ()):
        return None
    return [text] if value is None and (len(array) > 1 or is_unreadable_list(text)) else value


def to_label(value: Any, name: str, location: str, argument: str) -> str:
    """Return a label as `to_text` does, without spaces around; a printed list is no label, either."""
    text = to_text(value, name, location, argument).strip()
    printed = parse_label(text)
    return text if printed is None else to_text(printed, name, location, argument)
