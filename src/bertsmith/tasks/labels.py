"""Labels by name, by id, or by codes that users give names to, and the reading of these names."""

from __future__ import annotations

import difflib
import math
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field

from bertsmith.errors import InputError, command, option
from bertsmith.formatting import join_names
from bertsmith.io.tables import read_table
from bertsmith.io.values import MISSING_SPELLINGS
from bertsmith.suggestions import not_found_error

LabelNames = Sequence[str] | Mapping[str, str]
"""Names of labels from a user: in the order of the ids, or by code."""

UNNAMED_LABEL = "LABEL_0"  # Hugging Face's name of a single output, such as the number of a regression

_MAX_LISTED = 10  # labels in a hint
_MAX_COMPARED = 100  # characters of a label, since difflib is slow for long texts
_MAX_LABEL_LENGTH = 1000  # characters
_MAX_DIGITS = 400  # of a label that is a number; int() refuses some thousands
_NUMBER = re.compile(rf"([+-]?)0*(\d{{1,{_MAX_DIGITS}}})(?:\.(\d*?)0*)?")
_FILE_HINT = "write one name per row, or a code and its name: 0,joy"
_COLUMN_NAMES = {"code", "id", "label_id", "label", "name", "label_name", "class", "category"}  # of a header
_MAX_NUMBER = 1e15  # the squared errors of larger numbers may not be finite
_THOUSANDS = re.compile(r"[+-]?\d{1,3}([,'’\s]\d{3})+(\.\d+)?")
_DECIMAL_COMMA = re.compile(r"[+-]?\d{1,3}([.'’\s]?\d{3})*,\d+")
_PERCENTAGE = re.compile(r"[+-]?\d+(\.\d+)?\s*%")


class NoMetadata(BaseModel):
    """The metadata of a task that has none."""


class LabelMetadata(BaseModel):
    """The metadata of a model with labels.

    Attributes:
        labels: The labels by id.
        numbered: True if data may give ids instead of labels.
        codes: The label of each code that data may give instead of labels.
    """

    labels: list[str] = Field(min_length=2)
    numbered: bool = False
    codes: dict[str, str] = {}


class LabelMap:
    """Translates labels of a file to labels and ids of a model.

    Attributes:
        ids: The id of each label.
    """

    def __init__(self, metadata: Mapping[str, Any]) -> None:
        """Create the map of a model's metadata, with values as in `LabelMetadata`.

        Ids in files are not translated if a label is a number itself; but a whole number, which spreadsheets and
        data frames may write as 1, 1.0, or 01, is one label.
        """
        labels: list[str] = metadata["labels"]
        self.ids = {label: i for i, label in enumerate(labels)}
        self._codes: dict[str, str] = dict(metadata.get("codes") or {})
        if metadata.get("numbered") and not any(map(is_integer, labels)):
            self._codes = {str(i): label for i, label in enumerate(labels)}
        codes = self._codes or {label: label for label in labels}
        numbers = {code: plain_number(code) for code in codes}
        counts = Counter(numbers.values())
        self._by_number = {n: codes[c] for c, n in numbers.items() if n and (counts[n] == 1 or n == c)}

    def name(self, label: str) -> str:
        """Return the model's label for a label of a file; the same if there is none."""
        if label in self.ids:
            return label
        return self._codes.get(label) or self._by_number.get(plain_number(label), label)

    def name_of_code(self, label: str) -> str:
        """Return the model's label for a code; the same for a label."""
        return self._codes.get(label, label)

    def id(self, label: str) -> int | None:
        """Return the id of a label of a file; None if the model does not have it."""
        return self.ids.get(self.name(label))

    def unknown_label_error(self, label: str, location: str, argument: str) -> InputError:
        """Return the error for a label that the model does not have.

        Args:
            label: The label.
            location: The location of its example.
            argument: The argument that names the column of labels.
        """
        if label in MISSING_SPELLINGS:
            return missing_label_error(label, location)
        names = {name[:_MAX_COMPARED].casefold(): name for name in reversed(self.ids)}
        matches = difflib.get_close_matches(label[:_MAX_COMPARED].casefold(), names, 1, 0.75)
        suggestion = names[matches[0]] if matches else None
        did_you_mean = f"did you mean '{suggestion}'? " if suggestion is not None else ""
        labels = ", ".join(list(self.ids)[:_MAX_LISTED]) + (", …" if len(self.ids) > _MAX_LISTED else "")
        message = f"the label '{label}' is unknown"
        hint = (
            f"{did_you_mean}the model's labels are: {labels}; fix the row, add examples of it to "
            f"train, or name another column with {option(argument)}"
        )
        return InputError("unknown_label", message, location=location, argument=argument, hint=hint)

    def check_validation(self, labels: Iterable[tuple[str, str]], argument: str) -> None:
        """Raise InputError for validation labels that the model does not have; each comes with its location."""
        first: dict[str, str] = {}
        for label, location in labels:
            if self.id(label) is None:
                first.setdefault(label, location)
        if not first:
            return
        (label, location), *others = first.items()
        error = self.unknown_label_error(label, location, argument)
        if others:
            more = join_names(f"'{other}' ({at})" for other, at in others)
            error.message += f", and also {more}"
        raise error


def missing_label_error(label: str, location: str, *, has_names: bool = False) -> InputError:
    """Return the error for a row whose label is empty, or a spelling of a missing value.

    Args:
        label: The label.
        location: The location of the row.
        has_names: The task takes the names of all labels, which may be such spellings.
    """
    message, hint = "the label is missing", "give each row a label, or remove the row"
    if label:
        message += f" ('{label}')"
        hint += f"; if it is a label, name all labels with {option('label_names')}" if has_names else ""
    return InputError("empty_label", message, location=location, argument="label_column", hint=hint)


def parse_number(label: str | None, location: str) -> float:
    """Return a label as a finite number.

    Raises:
        InputError: The label is not a number, or so large that squared errors would overflow.
    """
    label = label or ""
    try:
        value = float(label.replace("\u2212", "-").replace("_", "x"))  # Python reads 1_5 as 15
    except ValueError:
        value = math.nan
    if abs(value) <= _MAX_NUMBER:
        return value
    if label in MISSING_SPELLINGS:
        raise missing_label_error(label, location)
    if not math.isnan(value):
        message, hint = f"'{label}' is too large to learn", f"scale the numbers to at most {_MAX_NUMBER:g}"
        raise InputError("number_too_large", message, location=location, argument="label_column", hint=hint)
    hint = f"use a decimal point, or name another column with {option('label_column')}; for words, use "
    message = f"'{label}' is not a number"
    hint = hint + command("finetune", "classify")
    number, readings = re.sub(r"[,'’\s]", "", label), []
    if _PERCENTAGE.fullmatch(label):
        readings.append(f"{label.rstrip('% ')} without the percent sign")
    if _THOUSANDS.fullmatch(label):
        readings.append(f"{number} if the signs separate thousands")
    if _DECIMAL_COMMA.fullmatch(label):
        number = re.sub(r"[.'’\s]", "", label).replace(",", ".")
        readings.append(f"{number} if the comma is a decimal comma")
    hint = f"write {', or '.join(readings)}" if readings else hint
    raise InputError("not_a_number", message, location=location, argument="label_column", hint=hint)


def check_length(label: str, location: str) -> None:
    """Raise InputError for a label of more than 1,000 characters, which is a text."""
    if (length := len(label)) > _MAX_LABEL_LENGTH:
        message = f"the label has {length:,} characters, more than {_MAX_LABEL_LENGTH:,}"
        hint = f"check {option('label_column')}, and in a .csv that each quote closes"
        raise InputError("label_too_long", message, location=location, hint=hint)


def check_spellings(labels: Iterable[tuple[str, str]]) -> None:
    """Raise InputError for a label that is a spelling of a missing value; each comes with its location."""
    for label, location in labels:
        if label in MISSING_SPELLINGS:
            raise missing_label_error(label, location, has_names=True)


def label_metadata(names: LabelNames) -> dict[str, Any]:
    """Return the metadata `labels`, `numbered`, and `codes` of the names that a user gave.

    Raises:
        InputError: The names are too few or ambiguous.
    """
    codes = dict(names) if isinstance(names, Mapping) else {}
    labels = list(dict.fromkeys(codes.values())) if codes else list(names)
    if codes and all(map(is_integer, codes)):
        codes = dict(sorted(codes.items(), key=lambda item: int(item[0])))
        labels = list(dict.fromkeys(codes.values()))
        if [int(code) for code in codes] == list(range(len(labels))):
            codes = {}  # the codes are ids
    if repeated := [name for name, count in Counter(labels).items() if count > 1]:
        message = f"the name '{repeated[0]}' occurs twice"
        hint = "name each label once"
        raise InputError("duplicate_label_name", message, argument="label_names", hint=hint)
    if len(labels) < 2:
        message = f"{', '.join(labels) or 'an empty list'} does not name two labels or more"
        hint = "name each label"
        raise InputError("too_few_label_names", message, argument="label_names", hint=hint)
    for code, name in codes.items():
        if codes.get(name, name) != name:
            message = f"'{name}' is the name of '{code}' and the code of '{codes[name]}'"
            hint = "give names that are not codes of other labels"
            raise InputError("ambiguous_label_name", message, argument="label_names", hint=hint)
    return {"labels": labels, "numbered": not codes, **({"codes": codes} if codes else {})}


def sorted_labels(labels: Iterable[str]) -> list[str]:
    """Return the different labels in order, by value if all are integers; equal numbers (1, 01, 1.0) are one."""
    by_number: dict[str, str] = {}
    for label in sorted(set(labels), key=lambda label: (len(label), label)):
        by_number.setdefault(plain_number(label) or label, label)
    are_numbers = all(map(is_integer, by_number)) and max(map(len, by_number), default=0) <= _MAX_DIGITS
    return [by_number[number] for number in sorted(by_number, key=int if are_numbers else None)]


def plain_number(text: str) -> str:
    """Return the usual spelling of a decimal number, such as 1 for 1.0, 1. and 01; "" for other texts."""
    match = _NUMBER.fullmatch(text)
    if match is None:
        return ""
    sign, digits, fraction = match.groups()
    return f"{sign.strip('+')}{int(digits)}.{fraction}" if fraction else str(int(sign + digits))


def is_integer(text: str) -> bool:
    """Return whether a label is an integer as int() reads it."""
    return text.removeprefix("-").isdecimal()


def read_label_names(value: str | Path | LabelNames) -> LabelNames:
    """Return label names from names, a text "a,b,c", or a file (csv, tsv, txt), with a header or without.

    A file has a name per row in the order of the ids, or a code and its name per row in any order.

    Raises:
        InputError: The file holds neither.
    """
    if isinstance(value, Path) or (isinstance(value, str) and os.path.isfile(value)):
        return _read_label_file(value)
    if not isinstance(value, str):
        return dict(value) if isinstance(value, Mapping) else list(value)
    if "," not in value:
        raise not_found_error(value, hint=f"give {option('label_names')} a file, or the labels: a,b,c")
    names = [name.strip() for name in value.split(",")]
    if len(names) < 2 or not all(names):
        message = f"'{value}' does not name two labels or more"
        hint = "write one name per line in a file, or a,b,c"
        raise InputError("too_few_label_names", message, argument="label_names", hint=hint)
    return names


def label_names_to_list(names: LabelNames) -> list[Any]:
    """Return label names as a list for settings: names, or pairs of a code and its name."""
    return [list(pair) for pair in names.items()] if isinstance(names, Mapping) else list(names)


def _read_label_file(file: str | Path) -> LabelNames:
    rows = [
        [value.strip() for value in row.texts.values()]
        for row in read_table(file, header=False, encoding="utf-8")
    ]
    rows = [row for row in rows if any(row)]
    has_header = bool(rows) and {cell.lower() for cell in rows[0]} <= _COLUMN_NAMES

    where: dict[str, Any] = {"location": file, "argument": "label_names", "hint": _FILE_HINT}
    if rows and len(rows[0]) == 1:
        names = [row[0] for row in rows[has_header:]]
        if len(names) < 2:
            message = "this file does not name two labels or more"
            raise InputError("too_few_label_names", message, **where)
        return names
    if not rows or len(rows[0]) != 2:
        raise InputError("label_names_column_count", "this file does not have one or two columns", **where)
    codes, names = (list(column) for column in zip(*rows, strict=True))
    if has_header or (len(rows) > 2 and not is_integer(codes[0]) and all(map(is_integer, codes[1:]))):
        codes, names = codes[1:], names[1:]
    if all(map(is_integer, names)) and not any(map(is_integer, codes)):
        codes, names = names, codes
    if not all(codes) or not all(names):
        raise InputError("empty_label_name", "a code or a name is empty", **where)
    if repeated := [code for code, count in Counter(codes).items() if count > 1]:
        raise InputError("duplicate_label_code", f"the code '{repeated[0]}' occurs twice", **where)
    return dict(zip(codes, names, strict=True))
