"""Read rows: of tables whose columns the settings may name, and of queries with the passages that answer them."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from bertsmith.errors import InputError
from bertsmith.formatting import pluralize
from bertsmith.io.delimited import missing_column_hint
from bertsmith.io.sources import Source
from bertsmith.io.tables import Row, Table, is_json_source, json_rows, read_table
from bertsmith.settings import Settings
from bertsmith.tasks.data_checks import check_text

logger = logging.getLogger(__name__)
_PRODIGY_ANSWERS = ("accept", "reject", "ignore")
_OTHER_FORMATS = {
    frozenset({"tokenized_text", "ner"}): "training data of GLiNER",
    frozenset({"sentences", "ner"}): "a file of DyGIE",
    frozenset({"sentences", "clusters"}): "a file of DyGIE",
    frozenset({"paragraphs"}): "training data of spaCy 2",
}
_ROWS_HINT = (
    'write an object for each sentence: {"words": ["Ada", "walks"], "tags": ["B-PER", "O"]}, or for each '
    'relation: {"tokens": ["Ada", "met", "Bob"], "head": [0, 1], "tail": [2, 3], "relation": "met"}; ends are '
    "exclusive here, and inclusive in DyGIE and GLiNER"
)
POSITIVE_KEYS = ("positives", "positive", "pos")
NEGATIVE_KEYS = ("negatives", "negative", "neg")
"""The keys of a row; each holds a text, or a list of texts."""


def read_task_table(source: Source, settings: Any, *, labeled: bool) -> Table:
    """Return a table as the settings say; without labels, blank rows are examples, too."""
    table = read_table(
        source,
        delimiter=settings.delimiter,
        header=settings.header,
        encoding=settings.encoding,
        keep_blank=not labeled,
    )
    return without_rejected(table) if labeled and settings.label_column != "answer" else table


def without_rejected(table: Table) -> Table:
    """Return a labeled table without the rows that an annotator rejected (Prodigy) or skipped (Label Studio)."""
    answers = [row.values.get("answer") for row in table] if "answer" in table.columns else []
    if not answers and "annotations" in table.columns:
        answers = ["ignore" if _is_skipped(row.values.get("annotations")) else "accept" for row in table]
    num_accepted = answers.count("accept")
    if num_accepted == len(answers) or any(answer not in _PRODIGY_ANSWERS for answer in answers):
        return table
    rejected = pluralize(len(answers) - num_accepted, "row")
    logger.warning(
        "%s: %s rejected, ignored, or skipped by the annotator, and left out", table.name, rejected
    )
    rows = [row for row, answer in zip(table, answers, strict=True) if answer == "accept"]
    accepted = Table(table.name, table.columns, rows)
    accepted.in_memory, accepted.is_delimited = table.in_memory, table.is_delimited
    return read_table(accepted)


def _is_skipped(annotations: Any) -> bool:
    """Return True if all annotations of a text in Label Studio were cancelled."""
    if not isinstance(annotations, list) or not annotations:
        return False
    return all(isinstance(item, Mapping) and item.get("was_cancelled") for item in annotations)


def rename_columns(
    values: Mapping[str, Any], settings: Settings, names: Mapping[str, Sequence[str]], location: str
) -> dict[str, Any]:
    """Return a row's values with the columns that the settings name under the task's names.

    Args:
        values: The row's values by column.
        settings: The task's settings, with `text_column` for the name "text"; None stands for the usual names.
        names: The usual names of each column by the task's name; they are removed from the row if the settings
            name another column.
        location: The location of the row.
    """
    renamed = dict(values)
    for name, usual_names in names.items():
        argument = f"{name}_column"
        if (column := getattr(settings, argument)) is not None:
            value = column_value(values, column, argument, location)
            for usual_name in usual_names:
                renamed.pop(usual_name, None)
            renamed[name] = value
    return renamed


def refuse_other_format(row: Row) -> None:
    """Raise InputError for a row of a format that no task reads, and say how to write it."""
    name = next((name for keys, name in _OTHER_FORMATS.items() if keys <= row.values.keys()), None)
    if name is None:
        return
    message = f"this is {name}, which has other rows"
    raise InputError("other_row_format", message, location=row.location, hint=_ROWS_HINT)


def column_value(values: Mapping[str, Any], column: str, argument: str, location: str) -> Any:
    """Return a row's value in a column. Raises `InputError` if the column is missing."""
    if column not in values:
        message = f"the column '{column}' is missing"
        hint = missing_column_hint(column, list(values), argument)
        raise InputError("column_missing", message, location=location, argument=argument, hint=hint)
    return values[column]


def first_value(values: Mapping[str, Any], names: Sequence[str]) -> Any:
    """Return the value of the first name that has one; None if none has."""
    return next((values[name] for name in names if values.get(name) not in (None, "")), None)


class RetrievalQuery(NamedTuple):
    """A query, the passages that answer it, some that do not, and its location."""

    query: str
    positives: tuple[str, ...]
    negatives: tuple[str, ...]
    location: str


def is_query_file(source: Source, encoding: str | None = None) -> bool:
    """Return True if the first row of a .jsonl or .json file, or of data in memory, has a query and passages."""
    if not is_json_source(source):
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
        query = check_text(values["query"], "query", location)
        yield RetrievalQuery(query, positives, _texts(values, NEGATIVE_KEYS, location), location)


def _texts(values: Mapping[str, Any], keys: Sequence[str], location: str) -> tuple[str, ...]:
    """Return the texts of the first key that a row has, each text once."""
    value = next((values[key] for key in keys if values.get(key) is not None), ())
    texts = value if isinstance(value, list | tuple) else [value]
    return tuple(dict.fromkeys(check_text(text, "passage", location) for text in texts))
