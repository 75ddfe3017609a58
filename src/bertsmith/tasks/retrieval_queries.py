"""Queries with the passages that answer them: rows of a .jsonl, or SQuAD's questions with their passages."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from bertsmith.errors import InputError
from bertsmith.io.files import bare_suffix, json_object, read_lines
from bertsmith.io.squad import read_questions

POSITIVES = ("positives", "positive", "pos")
NEGATIVES = ("negatives", "negative", "neg")
"""The keys of a row; each holds a text, or a list of texts."""


class Sought(NamedTuple):
    """A query, the passages that answer it, and some that do not; its place."""

    query: str
    positives: tuple[str, ...]
    negatives: tuple[str, ...]
    place: str


def holds_queries(file: str | Path, encoding: str | None = None) -> bool:
    """Whether a file is one of these: a .json, or a .jsonl whose first row has a query and passages."""
    suffix = bare_suffix(file)
    if suffix != ".jsonl":
        return suffix == ".json"
    for number, line in read_lines(file, encoding):
        if line and not line.isspace():
            row = json_object(file, number, line)
            return "query" in row and any(key in row for key in (*POSITIVES, *NEGATIVES))
    return False


def read_queries(file: str | Path, encoding: str | None = None, *, labelled: bool = True) -> Iterator[Sought]:
    """The queries of a file in its order. labelled: each needs a positive passage. Questions of SQuAD that have no
    answer in their passage are left out. InputError with its place for what is amiss."""
    if bare_suffix(file) == ".json":
        for passage, asked, place in read_questions(file, encoding):
            if not asked.is_impossible:
                yield Sought(_text(asked.question, place), (_text(passage, place),), (), place)
        return
    for number, line in read_lines(file, encoding):
        if not line or line.isspace():
            continue
        row, place = json_object(file, number, line), f"{file}:{number}"
        if "query" not in row:
            raise InputError(
                "field_missing",
                "the field 'query' is missing",
                location=place,
                hint="give it in every line",
            )
        positives = _texts(row, POSITIVES, place)
        if labelled and not positives:
            raise InputError(
                "positive_missing",
                "this query has no positive passage",
                location=place,
                hint='write it as "positives": ["…"], or remove the query',
            )
        yield Sought(_text(row["query"], place), positives, _texts(row, NEGATIVES, place), place)


def _texts(row: dict[str, Any], keys: tuple[str, ...], place: str) -> tuple[str, ...]:
    """What a row has under any of these keys, each text once."""
    given: Any = next((row[key] for key in keys if row.get(key) is not None), [])
    values = given if isinstance(given, list) else [given]
    return tuple(dict.fromkeys(_text(value, place) for value in values))


def _text(value: Any, place: str) -> str:
    if not isinstance(value, str) or not value.strip():
        if isinstance(value, str):
            hint = "fill it in, or remove this row"
            raise InputError("empty_text", "a text is empty", location=place, hint=hint)
        message = f"a text is not a string, but {value!r:.60}"
        raise InputError("text_not_a_string", message, location=place, hint="give each text as a string")
    return value
