"""Predictions and their metrics, and diagnostics and summaries of examples, for programs and for people."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

from bertsmith.formatting import join_names
from bertsmith.notebook import Report, Result

_MAX_LOCATIONS = 20  # of a diagnostic in a report


OMIT_IF_NONE: Mapping[str, Any] = {"omit_if_none": True}
"""Metadata of a prediction's field that `to_dict` leaves out if it is None."""
INTERNAL: Mapping[str, Any] = {"internal": True}
"""Metadata of a prediction's field that `to_dict` always leaves out."""


@dataclass(kw_only=True)
class Prediction:
    """One example's answer. The names of a subclass's fields are the keys of its JSON output, in order.

    Attributes:
        tokens: The number of tokens of the example's texts, special tokens excluded, set by `Decoder.decode`;
            None if it is not counted.
        tokens_read: The number of these that the model read.
        empty: True if the example is empty, so that there is no answer; None otherwise.
    """

    tokens: int | None = field(default=None, metadata=OMIT_IF_NONE)
    tokens_read: int | None = field(default=None, metadata=OMIT_IF_NONE)
    empty: bool | None = field(default=None, metadata=OMIT_IF_NONE)

    def to_dict(self) -> dict[str, Any]:
        """Return the prediction as plain JSON; the counts of tokens come last."""
        counts = dataclasses.fields(Prediction)
        values = {}
        for f in (*dataclasses.fields(self)[len(counts) :], *counts):
            value = getattr(self, f.name)
            if not f.metadata.get("internal") and (value is not None or not f.metadata.get("omit_if_none")):
                values[f.name] = dict(value) if isinstance(value, Mapping) else value
        return values

    def as_empty(self) -> Self:
        """Return the prediction of an empty example: None for all but the id, lists, and the counts of tokens."""
        values: dict[str, Any] = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        for name, value in values.items():
            if not isinstance(value, list) and name not in ("id", "tokens", "tokens_read"):
                values[name] = None
        return type(self)(**values | {"empty": True})


class MetricTable(NamedTuple):
    """A table for people: a title, the names of the columns, and rows of text."""

    title: str
    columns: list[str]
    rows: list[list[str]]


@dataclass(frozen=True)
class Metrics(Result):
    """The metrics of predictions; values and details are attributes, too, such as `metrics.accuracy`.

    Attributes:
        values: The metrics by name, in the order of display, and the number of `examples`.
        details: More for programs, as plain JSON.
        tables: More for people.
        notes: Sentences, such as what was truncated.
    """

    values: Mapping[str, float]
    details: Mapping[str, Any] = field(default_factory=dict)
    tables: Sequence[MetricTable] = ()
    notes: Sequence[str] = ()

    def __getattr__(self, name: str) -> Any:
        for values in (vars(self).get("values", {}), vars(self).get("details", {})):
            if name in values:
                return values[name]
        raise AttributeError(f"there is no metric '{name}'")

    def _repr_html_(self) -> str:
        return Report(self.to_dict())._repr_html_()

    def to_dict(self) -> dict[str, Any]:
        """Return values, details, and notes (if there are any) as one JSON object."""
        notes = {"notes": list(self.notes)} if self.notes else {}
        return {**self.values, **self.details, **notes}


def table_by_label(
    heading: str,
    by_label: Mapping[str, Mapping[str, float]],
    averages: Mapping[str, Mapping[str, float]] = {},
) -> MetricTable:
    """Return a table with a row for each label and each average, and a column for each of their metrics."""
    names = next(iter(by_label.values()), {})
    rows = [
        [label, *(f"{value:.4f}" if isinstance(value, float) else f"{value:,}" for value in row.values())]
        for label, row in [*by_label.items(), *averages.items()]
    ]
    return MetricTable("", [heading, *("F1" if name == "f1" else name for name in names)], rows)


class Diagnostic(NamedTuple):
    """A possible problem of some examples.

    Attributes:
        kind: Its kind, in a few words.
        message: A sentence without locations.
        locations: The file and line of each example concerned; empty if it concerns all.
        excerpts: What to display instead of the locations, such as a location with its text.
        consequence: What follows, or what to do.
    """

    kind: str
    message: str
    locations: Sequence[str] = ()
    excerpts: Sequence[str] = ()
    consequence: str = ""

    @property
    def displayed(self) -> Sequence[str]:
        """The excerpts, or the locations if there are none."""
        return self.excerpts or self.locations

    @property
    def text(self) -> str:
        """The message with the first excerpts or locations, and the consequence."""
        return ": ".join(filter(None, [self.message, join_names(self.displayed), self.consequence]))

    def to_dict(self) -> dict[str, Any]:
        """Return the diagnostic as in a report, with the first locations."""
        return {
            "kind": self.kind,
            "said": self.text,
            "places": list(self.locations[:_MAX_LOCATIONS]),
            "number": len(self.locations),
        }


@dataclass(frozen=True)
class DataSummary:
    """Properties of labeled examples before training.

    Attributes:
        details: Plain JSON, for the report.
        tables: Tables for people.
        diagnostics: Possible mistakes.
    """

    details: Mapping[str, Any] = field(default_factory=dict)
    tables: Sequence[MetricTable] = ()
    diagnostics: Sequence[Diagnostic] = ()

    @property
    def warnings(self) -> list[str]:
        """The texts of the diagnostics."""
        return [diagnostic.text for diagnostic in self.diagnostics]

    def __or__(self, other: DataSummary) -> DataSummary:
        """Return both summaries as one, this one first."""
        return DataSummary(
            {**self.details, **other.details},
            [*self.tables, *other.tables],
            [*self.diagnostics, *other.diagnostics],
        )
