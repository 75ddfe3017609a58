"""How good answers are, and what examples are like: numbers for programs, tables and sentences for people.

Verbs and pages print both as they are; they know no task.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from bertsmith.formatting import join_names, pluralize

_PLACES = 20  # of a finding, that a report lists


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


class Finding(NamedTuple):
    """What people should know of some examples before they are learnt from.

    kind: what it is, in a few words. what: the same in a sentence, without places. places: file and line of each
    example that it is about; empty where it is about all of them. shown: places with what is there, or names,
    where places alone say too little. so: what follows from it, or what to do.
    """

    kind: str
    what: str
    places: Sequence[str] = ()
    shown: Sequence[str] = ()
    so: str = ""

    @property
    def where(self) -> Sequence[str]:
        """What stands for each place."""
        return self.shown or self.places

    @property
    def said(self) -> str:
        """The whole sentence, the first places within."""
        return ": ".join(filter(None, [self.what, join_names(self.where), self.so]))

    def document(self) -> dict[str, Any]:
        """As a report holds it: of very many places the first."""
        return {
            "kind": self.kind,
            "said": self.said,
            "places": list(self.places[:_PLACES]),
            "number": len(self.places),
        }


@dataclass(frozen=True)
class Overview:
    """What the examples to learn from are like, before anything is learnt.

    details: plain JSON, for the report. tables: for people. findings: what may be a mistake.
    """

    details: Mapping[str, Any] = field(default_factory=dict)
    tables: Sequence[ScoreTable] = ()
    findings: Sequence[Finding] = ()

    @property
    def warnings(self) -> list[str]:
        """A sentence each finding."""
        return [finding.said for finding in self.findings]

    def __or__(self, other: Overview) -> Overview:
        """Both, this one first."""
        return Overview(
            {**self.details, **other.details},
            [*self.tables, *other.tables],
            [*self.findings, *other.findings],
        )


def told_of_cuts(
    predictions: Sequence[Mapping[str, Any]], remedy: str = ""
) -> tuple[dict[str, int], list[str]]:
    """What truncation cost: two numbers, and a sentence where it cost anything, which ends with `remedy`."""
    texts = sum(p["tokens_read"] < p["tokens"] for p in predictions)
    tokens = sum(p["tokens"] - p["tokens_read"] for p in predictions)
    were = pluralize(tokens, "token was", "tokens were")
    note = [f"{pluralize(texts, 'text was', 'texts were')} cut; {were} not read{remedy}"]
    return {"cut_texts": texts, "cut_tokens": tokens}, note if texts else []
