"""Queries with relevant passages: rows of a .jsonl file, or questions of SQuAD with their passages."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from bertsmith.errors import InputError
from bertsmith.io.files import bare_suffix, json_object, read_lines
from bertsmith.io.squad import read_questions

POSITIVE_KEYS = ("positives", "positive", "pos")
NEGATIVE_KEYS = ("negatives", "negative", "neg")
"""The keys of a row; each holds a text, or a list of texts."""


class RetrievalQuery(NamedTuple):
    """A query with relevant and irrelevant passages, and its location."""

    query: str
    positives: tuple[str, ...]
    negatives: tuple[str, ...]
    location: str


def is_query_file(file: str | Path, encoding: str | None = None) -> bool:
    """Return whether a file is a .json file, or a .jsonl file whose first row has a query and passages."""
    suffix = bare_suffix(file)
    if suffix != ".jsonl":
        return suffix == ".json"
    for number, line in read_lines(file, encoding):
        if line and not line.isspace():
            row = json_object(file, number, line)
            return "query" in row and any(key in row for key in (*POSITIVE_KEYS, *NEGATIVE_KEYS))
    return False


def read_queries(
    file: str | Path, encoding: str | None = None, *, labeled: bool = True
) -> Iterator[RetrievalQuery]:
    """Yield the queries of a file in order, without SQuAD's unanswerable questions.

    Args:
        file: The file.
        encoding: The encoding of a file that is not UTF-8.
        labeled: True if each query needs a relevant passage.

    Raises:
        InputError: A query or passage is missing or not a text.
    """
    if bare_suffix(file) == ".json":
        for passage, question, location in read_questions(file, encoding):
            if not question.is_impossible:
                query, passage_text = _text(question.question, location), _text(passage, location)
                yield RetrievalQuery(query, (passage_text,), (), location)
        return
    for number, line in read_lines(file, encoding):
        if not line or line.isspace():
            continue
        row, location = json_object(file, number, line), f"{file}:{number}"
        if "query" not in row:
            raise InputError(
                "field_missing",
                "the field 'query' is missing",
                location=location,
                hint="give it in every line",
            )
        positives = _texts(row, POSITIVE_KEYS, location)
        if labeled and not positives:
            raise InputError(
                "positive_missing",
                "this query has no positive passage",
                location=location,
                hint='write it as "positives": ["…"], or remove the query',
            )
        negatives = _texts(row, NEGATIVE_KEYS, location)
        yield RetrievalQuery(_text(row["query"], location), positives, negatives, location)


def _texts(row: dict[str, Any], keys: tuple[str, ...], location: str) -> tuple[str, ...]:
    """Return the different texts under the first of these keys that a row has."""
    value: Any = next((row[key] for key in keys if row.get(key) is not None), [])
    texts = value if isinstance(value, list) else [value]
    return tuple(dict.fromkeys(_text(text, location) for text in texts))


def _text(value: Any, location: str) -> str:
    if not isinstance(value, str) or not value.strip():
        if isinstance(value, str):
            hint = "fill it in, or remove this row"
            raise InputError("empty_text", "a text is empty", location=location, hint=hint)
        message = f"a text is not a string, but {value!r:.60}"
        raise InputError("text_not_a_string", message, location=location, hint="give each text as a string")
    return value
