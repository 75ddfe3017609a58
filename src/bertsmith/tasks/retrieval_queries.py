"""Read queries with the passages that answer them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from bertsmith.errors import InputError
from bertsmith.io.compression import format_suffix
from bertsmith.io.sources import Source
from bertsmith.io.tables import is_json_source, json_rows
from bertsmith.tasks.data_checks import check_text

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
    """Return True if the first row of a .jsonl or .json file, or of data in memory, has a query and passages."""
    if not is_json_source(source) and format_suffix(source) != ".json":
        return False
    first = next(json_rows(source, encoding), None)
    if first is None:
        return False
    return "query" in first.values and any(key in first.values for key in (*POSITIVE_KEYS, *NEGATIVE_KEYS))


def read_queries(
    source: Source, encoding: str | None = None, *, labeled: bool = True
) -> Iterator[RetrievalQuery]:
    """Yield the queries of a source in its order; if it is labeled, each needs a positive passage."""
    for row in json_rows(source, encoding):
        values, location = row.values, row.location
        if "query" not in values:
            message, hint = "the field 'query' is missing", "give it in every line"
            raise InputError("field_missing", message, location=location, hint=hint)
        positives = _texts(values, POSITIVE_KEYS, location)
        if labeled and not positives:
            message, hint = "this query has no positive passage", 'write it as "positives": ["…"]'
            raise InputError("positive_missing", message, location=location, hint=hint)
        check_text(values["query"], "query", location)
        yield RetrievalQuery(values["query"], positives, _texts(values, NEGATIVE_KEYS, location), location)


def _texts(values: Mapping[str, Any], keys: Sequence[str], location: str) -> tuple[str, ...]:
    """Return the texts of the first key that a row has, each text once."""
    value = next((values[key] for key in keys if values.get(key) is not None), ())
    texts = value if isinstance(value, list | tuple) else [value]
    for text in texts:
        check_text(text, "passage", location)
    return tuple(dict.fromkeys(texts))
