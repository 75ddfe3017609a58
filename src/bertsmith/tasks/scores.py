"""How good answers are, and what examples are like: numbers for programs, tables and sentences for people.

Verbs and pages print both as they are; they know no task.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from bertsmith.wording import counted


class ScoreTable(NamedTuple):
    """A table for people: a title, the columns' names, rows of text."""

    title: str
    columns: list[str]
    rows: list[list[str]]


@dataclass(frozen=True)
class Scores:
    """How good some predictions are: printed as it is by verbs and pages.

    numbers: the figures by name, in the order they are shown, `examples` among them. details: more, plain JSON,
    for programs. tables: more, for people. notes: sentences (what was cut, what a figure does not cover).
    """

    numbers: Mapping[str, float]
    details: Mapping[str, Any] = field(default_factory=dict)
    tables: Sequence[ScoreTable] = ()
    notes: Sequence[str] = ()

    def document(self) -> dict[str, Any]:
        """Numbers and details, and the notes where there are any, as one JSON object."""
        notes = {"notes": list(self.notes)} if self.notes else {}
        return {**self.numbers, **self.details, **notes}


@dataclass(frozen=True)
class Overview:
    """What the examples to learn from are like, before anything is learnt.

    details: plain JSON, for the report. tables: for people. warnings: what may be a mistake, a sentence each, with
    its places.
    """

    details: Mapping[str, Any] = field(default_factory=dict)
    tables: Sequence[ScoreTable] = ()
    warnings: Sequence[str] = ()

    def __or__(self, other: Overview) -> Overview:
        """Both, this one first."""
        return Overview(
            {**self.details, **other.details},
            [*self.tables, *other.tables],
            [*self.warnings, *other.warnings],
        )


def told_of_cuts(predictions: Sequence[Mapping[str, Any]]) -> tuple[dict[str, int], list[str]]:
    """What truncation cost: two numbers, and a sentence where it cost anything."""
    texts = sum(p["tokens_read"] < p["tokens"] for p in predictions)
    tokens = sum(p["tokens"] - p["tokens_read"] for p in predictions)
    was, were = ("was" if texts == 1 else "were"), ("was" if tokens == 1 else "were")
    note = [f"{counted(texts, 'text')} {was} cut; {counted(tokens, 'token')} {were} not read"]
    return {"cut_texts": texts, "cut_tokens": tokens}, note if texts else []
