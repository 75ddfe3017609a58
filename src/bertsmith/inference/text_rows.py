"""The texts of a file, one at a time, each with its place and its id: what becomes vectors."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from bertsmith.errors import InputError, option
from bertsmith.io.files import Reading, bare_suffix, json_object, read_documents, read_lines
from bertsmith.io.memory import InMemory, Source, Texts, as_file, is_path
from bertsmith.io.records import missing_column
from bertsmith.io.tables import read_table
from bertsmith.retrieval.index import TextRow
from bertsmith.tasks.retrieval_queries import is_query_file, read_queries

_IDS = ("_id", "id")


def source_of(texts: Any, name: str = "texts") -> str | Path:
    """A path as it is; a list of texts, a column or a table in memory under a name."""
    if is_path(texts):
        return Path(texts)
    if isinstance(texts, list | tuple) and all(isinstance(text, str) for text in texts):
        return Texts(texts, name)
    return as_file(texts, name, lambda width: ["text"])


def text_rows(
    source: Source,
    text_column: str | None = None,
    id_column: str | None = None,
    encoding: str | None = None,
) -> Iterator[TextRow]:
    """The rows of a .jsonl, .csv, .tsv or .parquet with the texts of a column ("text" if none is named) and their
    ids ("_id" or "id" where there is one, else their lines); the lines of any other file; of queries with passages
    (.jsonl, SQuAD's .json) the passages, each once. InputError with its place for what is amiss."""
    file = source_of(source)
    suffix = bare_suffix(file)
    if text_column is None and not isinstance(file, InMemory) and is_query_file(file, encoding):
        yield from _passages(file, encoding)
    elif suffix == ".jsonl":
        yield from _of_jsonl(file, text_column or "text", id_column, encoding)
    elif suffix in (".csv", ".tsv"):
        table = read_table(file, encoding=encoding)
        texts = table.column(text_column or "text", "text_column")
        known = id_column or next((name for name in _IDS if name in table.columns), None)
        ids = table.column(known, "id_column") if known else None
        for i, row in enumerate(table):
            yield TextRow(texts[i], f"{file}:{row.line}", ids[i] if ids else str(row.line))
    elif suffix == ".parquet":
        for document in read_documents([file], Reading("line", text_column or "text")):
            yield TextRow(document.text, document.place, document.place.rpartition(":")[2])
    else:
        if text_column is not None:
            raise InputError(
                "no_columns",
                "this file has one text per line and no columns",
                location=file,
                argument="text_column",
                hint=f"omit {option('text_column')}",
            )
        for number, line in read_lines(file, encoding):
            yield TextRow(line, f"{file}:{number}", str(number))


def rows_of_lines(lines: Iterable[tuple[str, str]]) -> Iterator[TextRow]:
    """Texts with their places as rows."""
    for place, text in lines:
        yield TextRow(text, place, place.rpartition(":")[2])


def _of_jsonl(
    file: str | Path, column: str, id_column: str | None, encoding: str | None
) -> Iterator[TextRow]:
    for number, line in read_lines(file, encoding):
        if not line or line.isspace():
            continue
        row, place = json_object(file, number, line), f"{file}:{number}"
        if column not in row:
            raise InputError(
                "field_missing",
                f"the field '{column}' is missing",
                location=place,
                argument="text_column",
                hint=missing_column(column, list(row), "text_column", word="keys"),
            )
        if not isinstance(text := row[column], str):
            raise InputError(
                "not_a_string",
                f"the field '{column}' is not a string, but {json.dumps(text)[:60]}",
                location=place,
                hint="write each text as a string in quotes, or remove the line",
            )
        if id_column is not None and row.get(id_column) is None:
            raise InputError(
                "field_missing",
                f"the field '{id_column}' is missing",
                location=place,
                argument="id_column",
                hint=f"name another {option('id_column')}",
            )
        known = [id_column] if id_column else _IDS
        yield TextRow(text, place, next((str(row[k]) for k in known if row.get(k) is not None), str(number)))


def _passages(file: str | Path, encoding: str | None) -> Iterator[TextRow]:
    seen: set[str] = set()
    for sought in read_queries(file, encoding, labeled=False):
        for text in (*sought.positives, *sought.negatives):
            if text not in seen:
                seen.add(text)
                yield TextRow(text, sought.location, str(len(seen)))
