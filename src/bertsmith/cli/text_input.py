"""The texts that `embed` and `search` are given: in the command, in a file, or as lines of standard input."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from bertsmith.retrieval.index import TextRow

ID_COLUMN = click.option(
    "--id-column", metavar="NAME", help="The column of --input with the ids [_id or id, else the line]."
)


def texts_of(texts: tuple[str, ...]) -> list[str]:
    """Texts of the command line, or the lines of standard input, whole."""
    return list(texts) or [row.text for row in rows_of((), None, None, None, None)]


def rows_of(
    texts: tuple[str, ...],
    file: str | None,
    text_column: str | None,
    id_column: str | None,
    encoding: str | None,
) -> Iterator[TextRow]:
    """The rows of a file, texts of the command line, or the lines of standard input."""
    from bertsmith.inference.text_input import texts_of_lines
    from bertsmith.inference.text_rows import rows_of_lines, text_rows

    if file is not None:
        return text_rows(file, text_column, id_column, encoding)
    if texts:
        return rows_of_lines((f"text:{number}", text) for number, text in enumerate(texts, start=1))
    return rows_of_lines(texts_of_lines(sys.stdin.buffer, "standard input"))
