"""Texts with two marked entities as examples: how they are read, and how the model sees them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from bertsmith.errors import InputError
from bertsmith.io.sources import Source
from bertsmith.tasks.data_checks import refuse_repeated_ids
from bertsmith.tasks.relation_extraction.relation_rows import (
    RelatedNames,
    Span,
    checked_spans,
    marked,
    of_tagged,
    of_words,
    read_related,
)
from bertsmith.tasks.settings import RelateSettings

_HEAD, _TAIL = "@", "#"


@dataclass(frozen=True)
class RelationExample:
    """A text, its two entities as slices of it, their relation as the file has it (None where it is not known),
    its place; the file's own number for it, and the row of the table that it is."""

    text: str
    head: Span
    tail: Span
    relation: str | None
    place: str
    number: str | None = None
    row: Mapping[str, str] | None = field(default=None, compare=False, repr=False)


def read_examples(source: Source, settings: RelateSettings, *, labelled: bool) -> list[RelationExample]:
    """Return the examples of a source, in its order (see `relation_rows`). Ids must be unique."""
    found = read_related(
        source,
        labelled=labelled,
        names=names_of(settings),
        delimiter=settings.delimiter,
        encoding=settings.encoding,
    )
    examples = [RelationExample(*one) for one in found]
    if not examples:
        raise InputError(
            "no_examples",
            "this file has no texts",
            location=source,
            hint="give a file with at least one text",
        )
    refuse_repeated_ids((example.number, example.place) for example in examples)
    return examples


def names_of(settings: RelateSettings) -> RelatedNames:
    """What the settings call a row's parts."""
    return RelatedNames(
        settings.text_column, settings.head_column, settings.tail_column, settings.label_column
    )


def example_of(text: Any, spans: Any, place: str) -> RelationExample:
    """An example of values that are in no file."""
    if isinstance(text, str) and not text.strip():
        return RelationExample("", (0, 0), (0, 0), None, place)
    if spans is not None and not isinstance(text, str):
        whole, (head, tail) = of_words(text, [tuple(span) for span in spans], place)
        return RelationExample(whole, head, tail, None, place)
    if not isinstance(text, str):
        raise InputError(
            "text_not_a_string",
            f"{text!r:.60} is not a string",
            location=place,
            argument="text",
            hint="give each text as a string with its tags",
        )
    if spans is None:
        return RelationExample(*of_tagged(text, place), None, place)
    return RelationExample(text, *checked_spans(text, spans, place), None, place)


def with_markers(example: RelationExample) -> tuple[str, list[tuple[int, int]]]:
    """The text with its markers, blanks around each, and where the markers of head and tail are."""
    text, marks, blanks = example.text, [], []
    for (start, end), mark in ((example.head, _HEAD), (example.tail, _TAIL)):
        before = " " * (start > 0 and not text[start - 1].isspace())
        behind = " " * (end < len(text) and not text[end].isspace())
        inner = [" " * (not text[at].isspace()) for at in (start, end - 1)]
        marks.append((f"{before}{mark}{inner[0]}", f"{inner[1]}{mark}{behind}"))
        blanks.append((len(before), len(inner[1])))
    whole, places = marked(text, example.head, example.tail, marks)
    return whole, [(a + x, b + y) for (a, b), (x, y) in zip(places, blanks, strict=True)]
