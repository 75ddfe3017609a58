"""Read tables, with the columns that a user names under the names that a task knows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bertsmith.errors import InputError
from bertsmith.io.delimited import missing_column_hint
from bertsmith.io.sources import Source
from bertsmith.io.tables import Table, read_table
from bertsmith.settings import Settings


def read_task_table(source: Source, settings: Any, *, labeled: bool) -> Table:
    """Return a table as the settings say; without labels, blank rows are examples, too."""
    return read_table(
        source,
        delimiter=settings.delimiter,
        header=settings.header,
        encoding=settings.encoding,
        keep_blank=not labeled,
    )


def rename_columns(
    values: Mapping[str, Any], settings: Settings, names: Mapping[str, Sequence[str]], location: str
) -> dict[str, Any]:
    """Return a row's values with the columns that the settings name under the task's names.

    Args:
        values: The row's values by column.
        settings: The task's settings, with `text_column` for the name "text"; None stands for the usual names.
        names: The usual names of each column by the task's name; they are removed from the row if the settings
            name another column.
        location: The location of the row.
    """
    renamed = dict(values)
    for name, usual_names in names.items():
        argument = f"{name}_column"
        if (column := getattr(settings, argument)) is not None:
            value = column_value(values, column, argument, location)
            for usual_name in usual_names:
                renamed.pop(usual_name, None)
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
