"""Read texts from files, data in memory, and streams of lines, each with its location and its id."""

from __future__ import annotations

import codecs
import logging
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from bertsmith.corpus.sentence_splitter import detect_language, split_sentences
from bertsmith.errors import InputError, option
from bertsmith.formatting import join_names, pluralize
from bertsmith.io.compression import format_suffix
from bertsmith.io.delimited import missing_column_hint
from bertsmith.io.sources import Source, Texts, is_path, is_table, to_source
from bertsmith.io.tables import Row, Table, TextRow, is_json_source, json_rows, read_table
from bertsmith.io.text_io import read_lines
from bertsmith.io.values import is_blank, to_text
from bertsmith.tasks.rows import is_query_file, read_queries

logger = logging.getLogger(__name__)

EMPTY_VECTOR = "embedded as the special tokens alone"
"""The consequence of an empty text among texts to embed."""
_ID_COLUMNS = ("_id", "id")
_TABLE_SUFFIXES = (".csv", ".tsv")


def log_empty(locations: Sequence[str], consequence: str) -> None:
    """Log where empty texts are, and what follows, such as "not predicted"."""
    if locations:
        texts = pluralize(len(locations), "text is", "texts are")
        logger.warning("%s empty and %s: %s", texts, consequence, join_names(locations))


def count_empty(rows: Iterable[TextRow], *, keep: bool) -> Iterator[TextRow]:
    """Yield the rows, those of empty texts only if `keep`; at the end, log where the empty ones are."""
    empty = []
    for row in rows:
        if is_empty := is_blank(row.text):
            empty.append(row.location)
        if keep or not is_empty:
            yield row
    log_empty(empty, EMPTY_VECTOR if keep else "not indexed")


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


def read_text_rows(
    source: Source, text_column: str | None = None, id_column: str | None = None, encoding: str | None = None
) -> Iterator[TextRow]:
    """Yield the texts of a source with their ids.

    Args:
        source: A .jsonl, .csv, .tsv, or .parquet file, or data in memory: the texts of a column. Queries with
            passages (.jsonl): the passages, each once. Any other file: its lines.
        text_column: The column of the texts, by default "text".
        id_column: The column of the ids, by default "_id" or "id" if there is one, else the number of the row.
        encoding: The encoding of a file that is not UTF-8.

    Raises:
        InputError: A column or a text is missing, or an id is missing or repeated.
    """
    file: Any = source
    if not isinstance(source, str | Path):
        file = to_source(source, "texts") if is_path(source) or is_table(source) else Texts(source)
    if text_column is None and not isinstance(file, Table) and is_query_file(file, encoding):
        yield from _passages(file, encoding)
    elif is_json_source(file):
        yield from _text_rows(json_rows(file, encoding), text_column, id_column)
    elif format_suffix(file) in _TABLE_SUFFIXES:
        table = read_table(file, encoding=encoding)
        names = table.columns
        if text_column is None and len(names) == 2 and names[0].isdecimal() and names[1] != "text":
            table = read_table(file, encoding=encoding, header=False)  # as MS MARCO: an id and a text
            text_column, id_column = table.columns[1], id_column or table.columns[0]
            logger.info("%s: the first row has no names of columns; it is read as an id and a text", file)
        rows = list(_text_rows(table, text_column, id_column))
        texts = table.texts(text_column or "text", "text_column")
        yield from (row._replace(text=text) for row, text in zip(rows, texts, strict=True))
    elif text_column is not None:
        message = "this file has one text per line and no columns"
        hint = f"omit {option('text_column')}"
        raise InputError("no_columns", message, location=file, argument="text_column", hint=hint)
    else:
        lines = ((f"{file}:{number}", line) for number, line in read_lines(file, encoding))
        yield from rows_of_lines(lines)


def read_sense_texts(
    source: Source, text_column: str | None = None, sense_column: str | None = None
) -> Iterator[tuple[str, str, str | None]]:
    """Yield texts with their locations and the senses of a column; without one, sentences of the texts and None.

    Raises:
        InputError: A column is missing.
    """
    if sense_column is None:
        for row in read_text_rows(source, text_column):
            for sentence in split_sentences(row.text, detect_language([row.text])):
                yield sentence, row.location, None
        return
    table = read_table(to_source(source, "texts"))
    texts, senses = (
        table.texts(text_column or "text", "text_column"),
        table.strings(sense_column, "sense_column"),
    )
    rows = [row for row in zip(texts, (row.location for row in table), senses, strict=True) if row[2]]
    if num_missing := len(texts) - len(rows):
        logger.warning("%s without a sense, and left out", pluralize(num_missing, "text is", "texts are"))
    yield from rows


def rows_of_lines(lines: Iterable[tuple[str, str]]) -> Iterator[TextRow]:
    """Yield rows of locations and texts; the id is the number of the line."""
    return (TextRow(text, location, location.rpartition(":")[2]) for location, text in lines)


def _text_rows(rows: Iterable[Row], text_column: str | None, id_column: str | None) -> Iterator[TextRow]:
    is_named, has_titles = text_column is not None, False
    text_column, ids = text_column or "text", set[str]()
    for index, row in enumerate(rows):
        location = row.location
        if not is_named and not has_titles and "_id" in row.values and row.values.get("title"):
            has_titles = True
            logger.warning("%s: the column 'title' is not read; join titles to the texts if needed", location)
        for argument, name in (("text_column", text_column), ("id_column", id_column)):
            if name is not None and name not in row.values:
                message = f"the field '{name}' is missing"
                hint = missing_column_hint(name, list(row.values), argument, unit="keys")
                raise InputError("field_missing", message, location=location, argument=argument, hint=hint)
        text = to_text(row.values[text_column], f"field '{text_column}'", location, "text_column")
        values = (row.values.get(name) for name in ([id_column] if id_column else _ID_COLUMNS))
        text_id = next(filter(None, (to_text(value, "id", location, "id_column") for value in values)), "")
        if text_id in ids:
            hint = f"give each row an id of its own, or name another column with {option('id_column')}"
            message = f"the id '{text_id}' occurs twice"
            raise InputError("duplicate_id", message, location=location, argument="id_column", hint=hint)
        if (not text_id and (ids or id_column)) or (text_id and index and not ids):
            message = "this row has an id, and earlier ones have none" if text_id else "this row has no id"
            hint = f"give each row an id, or name their column with {option('id_column')}"
            raise InputError("id_missing", message, location=location, argument="id_column", hint=hint)
        if text_id:
            ids.add(text_id)
        yield TextRow(text, location, text_id or str(row.line))


def _passages(file: Path, encoding: str | None) -> Iterator[TextRow]:
    seen: set[str] = set()
    for query in read_queries(file, encoding, labeled=False):
        for text in (*query.positives, *query.negatives):
            if text not in seen:
                seen.add(text)
                yield TextRow(text, query.location, str(len(seen)))
