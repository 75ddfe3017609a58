"""HTML tables that a notebook shows for reports, models, and tokenizers, in the notebook's colors."""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, ClassVar

_MAX_ROWS = 30
_MAX_CHARACTERS = 200  # of a cell
_RIGHT = " style='text-align: right; font-variant-numeric: tabular-nums'"
_LEFT = " style='text-align: left'"


class Report(dict[str, Any]):
    """A report: a dict of plain values, which are attributes, too, and which a notebook shows as tables."""

    def __init__(self, values: Mapping[str, Any], display_keys: Sequence[str] = ()) -> None:
        """Copy the values.

        Args:
            values: The report.
            display_keys: The keys of the entries that a notebook shows; empty: all.
        """
        super().__init__(values)
        self._display_keys = tuple(display_keys)

    def __getattr__(self, name: str) -> Any:
        if name in self:
            return self[name]
        raise AttributeError(f"the report has no '{name}'")

    def to_dict(self) -> dict[str, Any]:
        """Return a plain dict."""
        return dict(self)

    def _repr_html_(self) -> str:
        return render_page("", {name: self[name] for name in self._display_keys or self if name in self})


class Result:
    """Base class of dataclasses that functions return: JSON values by `to_dict`, and tables in a notebook.

    Attributes:
        display_fields: The fields that a notebook shows; empty: all.
    """

    display_fields: ClassVar[tuple[str, ...]] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the fields, with nested dataclasses as dicts."""
        return asdict(self)  # type: ignore[call-overload, no-any-return]

    def _repr_html_(self) -> str:
        values = self.to_dict()
        return render_page("", {name: values[name] for name in self.display_fields or values})


def render_page(title: str, values: Mapping[str, Any]) -> str:
    """Return HTML with a table of the plain values and a table for each value that is a mapping or a list.

    Args:
        title: The title of the table of the plain values.
        values: Values by name.
    """
    plain = {name: value for name, value in values.items() if not isinstance(value, Mapping | list | tuple)}
    parts = [render_table(title, (), plain.items())] if plain or title else []
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            parts.append(_mapping_table(name, value))
        elif isinstance(value, list | tuple) and value:
            parts.append(_list_table(name, value))
    return f"<div>{''.join(parts)}</div>"


def render_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Return an HTML table with a title, numbers aligned right, and at most the first 30 rows."""
    all_rows = list(rows)
    head = "".join(f"<th{_LEFT}>{_heading_html(column)}</th>" for column in columns)
    body = "".join(f"<tr>{''.join(map(_cell_html, row))}</tr>" for row in all_rows[:_MAX_ROWS])
    rest = f"<div>… {len(all_rows) - _MAX_ROWS:,} more</div>" if len(all_rows) > _MAX_ROWS else ""
    caption = f"<div><b>{_heading_html(title)}</b></div>" if title else ""
    head = f"<thead><tr>{head}</tr></thead>" if head else ""
    return f"{caption}<table>{head}<tbody>{body}</tbody></table>{rest}"


def _mapping_table(name: str, values: Mapping[str, Any]) -> str:
    """Return a table with a row per entry; if all entries are mappings, with a column for each of their keys."""
    plain = [(key, value) for key, value in values.items() if not isinstance(value, Mapping)]
    if plain:
        return render_table(name, (), plain)
    return _list_table(name, [{"": key, **row} for key, row in values.items()])


def _list_table(name: str, values: Sequence[Any]) -> str:
    """Return a table with a row per value; mappings have a column for each key with plain values."""
    if all(isinstance(value, list | tuple) for value in values):
        return render_table(name, (), values)
    if not all(isinstance(value, Mapping) for value in values):
        return render_table(name, (), ([value] for value in values))
    columns = [
        key
        for key in dict.fromkeys(key for value in values for key in value)
        if not any(isinstance(value.get(key), Mapping | list) for value in values)
    ]
    return render_table(name, columns, ([row.get(column, "") for column in columns] for row in values))


def _heading_html(name: Any) -> str:
    return _value_html(str(name).replace("_", " "))


def _cell_html(value: Any) -> str:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return f"<td{_RIGHT if is_number else _LEFT}>{_value_html(value)}</td>"


def _value_html(value: Any) -> str:
    if isinstance(value, float):
        text = f"{value:,.4g}" if abs(value) < 1000 else f"{value:,.0f}"
    elif isinstance(value, int) and not isinstance(value, bool):
        text = f"{value:,}"
    elif isinstance(value, Sequence | Mapping) and not isinstance(value, str):
        text = f"{len(value):,} entries"
    else:
        text = "" if value is None else str(value)
    return html.escape(text if len(text) <= _MAX_CHARACTERS else f"{text[:_MAX_CHARACTERS]}…")
