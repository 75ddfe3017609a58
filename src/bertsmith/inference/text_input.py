"""Read texts from files, data in memory, and streams of lines, each with its location and its id."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertsmith.errors import InputError, option
from bertsmith.io.compression import format_suffix
from bertsmith.io.sources import Source, Texts, to_source
from bertsmith.io.tables import Row, Table, json_rows, read_table, text_of
from bertsmith.io.text_io import read_lines

if TYPE_CHECKING:
    from bertsmith.retrieval.index import TextRow

_ID_COLUMNS = ("_id", "id")


def texts_of_lines(lines: Iterable[bytes], location: str) -> Iterator[tuple[str, str]]:
    """Yield the location and the text of each line of a stream of UTF-8 bytes.

    Raises:
        InputError: A line is not UTF-8.
    """
    for number, line in enumerate(lines, start=1):
        at = f"{location}:{number}"
        try:
            yield at, line.removeprefix(codecs.BOM_UTF8).decode("utf-8").rstrip("\r\n")
        except UnicodeDecodeError as error:
            message = f"byte {error.start} of the line is not UTF-8"
            raise InputError("not_utf8", message, location=at, hint="convert the text to UTF-8") from None


def read_texts(
    file: str | Path, column: str | None = None, encoding: str | None = None
) -> list[tuple[str, str]]:
    """Return the texts of a file with their locations.

    Args:
        file: A .txt with a text per line, or a table.
        column: The column of a table; "text" if None.
        encoding: The encoding of a file that is not UTF-8.
    """
    if format_suffix(file) == ".txt":
        return list(_lines(file, column, encoding))
    table = read_table(file, encoding=encoding)
    values = table.texts(column or "text", "text_column")
    return [(row.location, value) for row, value in zip(table, values, strict=True)]


def read_text_rows(
    source: Source,
    text_column: str | None = None,
    id_column: str | None = None,
    encoding: str | None = None,
) -> Iterator[TextRow]:
    """Yield the texts of a source with their ids.

    Args:
        source: A .jsonl, .csv, .tsv, or .parquet file, or data in memory: the texts of a column. Queries with
            passages (.jsonl): the passages, each once. Any other file: its lines.
        text_column: The column of the texts, by default "text".
        id_column: The column of the ids, by default "_id" or "id" if there is one, else the number of the row.
        encoding: The encoding of a file that is not UTF-8.
    """
    from bertsmith.io.documents import Reading, read_documents
    from bertsmith.retrieval.index import TextRow
    from bertsmith.tasks.retrieval_queries import is_query_file

    file = _path_or_table(source)
    suffix = "" if isinstance(file, Table) else format_suffix(file)
    column = text_column or "text"
    if text_column is None and not isinstance(file, Table) and is_query_file(file, encoding):
        yield from _passages(file, encoding)
    elif isinstance(file, Table) or suffix == ".jsonl":
        for row in json_rows(file, encoding):
            yield _text_row(row, column, id_column)
    elif suffix in (".csv", ".tsv"):
        table = read_table(file, encoding=encoding)
        texts = table.texts(column, "text_column")
        ids = id_column or next((name for name in _ID_COLUMNS if name in table.columns), None)
        id_values = table.texts(ids, "id_column") if ids else [str(row.line) for row in table]
        for row, text, text_id in zip(table, texts, id_values, strict=True):
            yield TextRow(text, row.location, text_id)
    elif suffix == ".parquet":
        for document in read_documents([file], Reading("line", column)):
            yield TextRow(document.text, document.location, document.location.rpartition(":")[2])
    else:
        yield from rows_of_lines(_lines(file, text_column, encoding))


def rows_of_lines(lines: Iterable[tuple[str, str]]) -> Iterator[TextRow]:
    """Yield rows of locations and texts; the id is the number of the line."""
    from bertsmith.retrieval.index import TextRow

    return (TextRow(text, location, location.rpartition(":")[2]) for location, text in lines)


def _lines(file: str | Path, column: str | None, encoding: str | None) -> Iterator[tuple[str, str]]:
    """Yield the location and the text of each line; raise InputError if a column is named."""
    if column is not None:
        raise InputError(
            "no_columns",
            "this file has one text per line and no columns",
            location=file,
            argument="text_column",
            hint=f"omit {option('text_column')}",
        )
    return ((f"{file}:{number}", line) for number, line in read_lines(file, encoding))


def _path_or_table(texts: Any) -> Path | Table:
    if isinstance(texts, list | tuple) and all(isinstance(text, str) for text in texts):
        return Texts(texts)
    source = to_source(texts, "texts", lambda width: ["text"])
    return Path(source) if isinstance(source, str) else source


def _text_row(row: Row, column: str, id_column: str | None) -> TextRow:
    from bertsmith.io.delimited import missing_column_hint
    from bertsmith.retrieval.index import TextRow

    if column not in row.values:
        raise InputError(
            "field_missing",
            f"the field '{column}' is missing",
            location=row.location,
            argument="text_column",
            hint=missing_column_hint(column, list(row.values), "text_column", unit="keys"),
        )
    text = row.values[column]
    if not isinstance(text, str):
        raise InputError(
            "not_a_string",
            f"the field '{column}' is not a string, but {text_of(text)[:60] or 'null'}",
            location=row.location,
            hint="write each text as a string in quotes, or remove the line",
        )
    if id_column is not None and row.values.get(id_column) is None:
        raise InputError(
            "field_missing",
            f"the field '{id_column}' is missing",
            location=row.location,
            argument="id_column",
            hint=f"name another {option('id_column')}",
        )
    ids = (row.values.get(name) for name in ([id_column] if id_column else _ID_COLUMNS))
    text_id = next((str(value) for value in ids if value is not None), str(row.line))
    return TextRow(text, row.location, text_id)


def _passages(file: Path, encoding: str | None) -> Iterator[TextRow]:
    from bertsmith.retrieval.index import TextRow
    from bertsmith.tasks.retrieval_queries import read_queries

    seen: set[str] = set()
    for query in read_queries(file, encoding, labeled=False):
        for text in (*query.positives, *query.negatives):
            if text not in seen:
                seen.add(text)
                yield TextRow(text, query.location, str(len(seen)))
