"""The tables of the reference pages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from docutils import nodes


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> nodes.table:
    """Return a table whose first column is code."""
    group = nodes.tgroup("", *(nodes.colspec(colwidth=1) for _ in columns), cols=len(columns))
    head, body = nodes.thead(), nodes.tbody()
    head += _row(columns, code=False)
    for row in rows:
        body += _row(row, code=True)
    group += [head, body]
    return nodes.table("", group, classes=["reference"])


def _row(cells: Sequence[str], *, code: bool) -> nodes.row:
    row = nodes.row()
    for column, cell in enumerate(cells):
        content = nodes.literal("", cell) if code and not column else nodes.Text(cell)
        row += nodes.entry("", nodes.paragraph("", "", content))
    return row
