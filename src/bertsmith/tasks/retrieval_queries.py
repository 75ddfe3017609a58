"""Read queries with the passages that answer them: rows, or SQuAD's questions with their passages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from bertsmith.errors import InputError
from bertsmith.io.compression import format_suffix
from bertsmith.io.sources import Source
from bertsmith.io.tables import is_json_source, json_rows
from bertsmith.tasks.question_answering.squad import read_questions
from bertsmith.tasks.settings import AnswerSettings

POSITIVE_KEYS = ("positives", "positive", "pos")
NEGATIVE_KEYS = ("negatives", "negative", "neg")
"""The keys of a row; each holds a text, or a list of texts."""


class RetrievalQuery(NamedTuple):
    """A query, the passages that answer it, some that do not, and its location."""

    query: str
    positives: tuple[str, ...]
    negatives: tuple[str, ...]
    location: str


def is_query_file(source: Source, encoding: str | None = None) -> bool:
    """Return True for a .json file, and for rows whose first one has a query and passages."""
    if not is_json_source(source):
        return format_suffix(source) == ".json"
    first = next(json_rows(source, encoding), None)
    if first is None:
        return False
    return "query" in first.values and any(key in first.values for key in (*POSITIVE_KEYS, *NEGATIVE_KEYS))


def read_queries(
    source: Source, encoding: str | None = None, *, labeled: bool = True
) -> Iterator[RetrievalQuery]:
    """Yield the queries of a source in its order.

    Args:
        source: A .jsonl file, data in memory, or SQuAD's .json, whose unanswerable questions are skipped.
        encoding: The encoding of a file that is not UTF-8.
        labeled: Each query needs a positive passage.
    """
    if not is_json_source(source):
        for passage, question, location in read_questions(source, AnswerSettings(encoding=encoding)):
            if not question.is_impossible:
                texts = _text(question.question, location), (_text(passage, location),)
                yield RetrievalQuery(*texts, (), location)
        return
    for row in json_rows(source, encoding):
        values, location = row.values, row.location
        if "query" not in values:
            message, hint = "the field 'query' is missing", "give it in every line"
            raise InputError("field_missing", message, location=location, hint=hint)
        positives = _texts(values, POSITIVE_KEYS, location)
        if labeled and not positives:
            raise InputError(
                "positive_missing",
                "this query has no positive passage",
                location=location,
                hint='write it as "positives": ["…"], or remove the query',
            )
        query = _text(values["query"], location)
        yield RetrievalQuery(query, positives, _texts(values, NEGATIVE_KEYS, location), location)


def _texts(values: Mapping[str, Any], keys: Sequence[str], location: str) -> tuple[str, ...]:
    """Return the texts of the first key that a row has, each text once."""
    value = next((values[key] for key in keys if values.get(key) is not None), ())
    texts = value if isinstance(value, list | tuple) else [value]
    return tuple(dict.fromkeys(_text(text, location) for text in texts))


def _text(value: Any, location: str) -> str:
    if not isinstance(value, str):
        message, hint = f"a text is not a string, but {value!r:.60}", "give each text as a string"
        raise InputError("text_not_a_string", message, location=location, hint=hint)
    if not value.strip():
        hint = "fill it in, or remove this row"
        raise InputError("empty_text", "a text is empty", location=location, hint=hint)
    return value
