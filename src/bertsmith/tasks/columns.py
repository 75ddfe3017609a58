"""Read the columns that a user names under the names that a task knows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from bertsmith.errors import InputError
from bertsmith.io.delimited import missing_column_hint


class NamedColumn(NamedTuple):
    """A column that the user may have named.

    Attributes:
        column: Its name in the file; None: the task's own names.
        argument: Python's name of the argument that names it.
        replaces: The task's own names, which are removed from the row.
    """

    column: str | None
    argument: str
    replaces: Sequence[str] = ()


def rename_columns(
    values: Mapping[str, Any], columns: Mapping[str, NamedColumn], location: str
) -> dict[str, Any]:
    """Return a row's values with the named columns under the task's names, the keys of `columns`."""
    renamed = dict(values)
    for name, (column, argument, replaces) in columns.items():
        if column is not None:
            value = column_value(values, column, argument, location)
            for other in replaces:
                renamed.pop(other, None)
            renamed[name] = value
    return renamed


def column_value(values: Mapping[str, Any], column: str, argument: str, location: str) -> Any:
    """Return a row's value in a column. Raises `InputError` if the column is missing."""
    if column not in values:
        raise InputError(
            "column_missing",
            f"the column '{column}' is missing",
            location=location,
            argument=argument,
            hint=missing_column_hint(column, list(values), argument),
        )
    return values[column]


def first_value(values: Mapping[str, Any], names: Sequence[str]) -> Any:
    """Return the value of the first name that has one; None if none has."""
    return next((values[name] for name in names if values.get(name) not in (None, "")), None)
