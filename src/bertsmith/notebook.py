"""What a notebook shows of our objects: small tables, as HTML that takes the page's own colours."""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

_MOST_ROWS = 30
_LONGEST = 200  # characters of a value
_RIGHT = " style='text-align: right; font-variant-numeric: tabular-nums'"
_LEFT = " style='text-align: left'"


class Report(dict[str, Any]):
    """A report as a dict of plain values, which a notebook shows as tables. shown: the entries that it shows;
    none: all."""

    def __init__(self, values: Mapping[str, Any], shown: Sequence[str] = ()) -> None:
        super().__init__(values)
        self._shown = tuple(shown)

    def _repr_html_(self) -> str:
        return page("", {name: self[name] for name in self._shown or self if name in self})


def page(title: str, values: Mapping[str, Any], *, below: str = "") -> str:
    """Values by name as a table, and those that are tables themselves each under its name. below: HTML to end
    with."""
    plain = {name: value for name, value in values.items() if not isinstance(value, Mapping | list | tuple)}
    parts = [table(title, (), plain.items())] if plain or title else []
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            parts.append(_of_mapping(name, value))
        elif isinstance(value, list | tuple) and value:
            parts.append(_of_list(name, value))
    return f"<div>{''.join(parts)}{below}</div>"


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A table with a title; numbers are set right, and of many rows the first are shown."""
    kept = list(rows)
    head = "".join(f"<th{_LEFT}>{_named(column)}</th>" for column in columns)
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in kept[:_MOST_ROWS])
    more = f"<div>… {len(kept) - _MOST_ROWS:,} more</div>" if len(kept) > _MOST_ROWS else ""
    above = f"<div><b>{_named(title)}</b></div>" if title else ""
    head = f"<thead><tr>{head}</tr></thead>" if head else ""
    return f"{above}<table>{head}<tbody>{body}</tbody></table>{more}"


def _of_mapping(name: str, values: Mapping[str, Any]) -> str:
    inner = [value for value in values.values() if isinstance(value, Mapping)]
    if len(inner) < len(values):
        return table(
            name, (), ((key, value) for key, value in values.items() if not isinstance(value, Mapping))
        )
    columns = list(dict.fromkeys(key for value in inner for key in value))
    return table(
        name, ("", *columns), ([key, *(row.get(c, "") for c in columns)] for key, row in values.items())
    )


def _of_list(name: str, values: Sequence[Any]) -> str:
    if all(isinstance(value, list | tuple) for value in values):
        return table(name, (), values)
    if not all(isinstance(value, Mapping) for value in values):
        return table(name, (), ([value] for value in values))
    columns = [
        key
        for key in dict.fromkeys(key for value in values for key in value)
        if not any(isinstance(value.get(key), Mapping | list) for value in values)
    ]
    return table(name, columns, ([row.get(column, "") for column in columns] for row in values))


def _named(name: Any) -> str:
    """A key of a report as words."""
    return _said(str(name).replace("_", " "))


def _cell(value: Any) -> str:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return f"<td{_RIGHT if number else _LEFT}>{_said(value)}</td>"


def _said(value: Any) -> str:
    if isinstance(value, float):
        text = f"{value:,.4g}" if abs(value) < 1000 else f"{value:,.0f}"
    elif isinstance(value, int) and not isinstance(value, bool):
        text = f"{value:,}"
    elif isinstance(value, Sequence | Mapping) and not isinstance(value, str):
        text = f"{len(value):,} entries"
    else:
        text = "" if value is None else str(value)
    return html.escape(text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…")
