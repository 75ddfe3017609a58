"""What there is to know of pairs and queries before anything is learnt: their kind, the range of their scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel

from bertsmith.errors import InputError, option
from bertsmith.tasks.classification.regress import number_of
from bertsmith.tasks.data_checks import summarize_numbers
from bertsmith.tasks.embedding.matches import Kind, Match, kind_of, same_label
from bertsmith.tasks.results import DataSummary, MetricTable
from bertsmith.tasks.settings import EmbedSettings


class EmbedFacts(BaseModel):
    """What the training examples were; of labelled pairs the label of those that mean the same, and the cosine
    above which dev's do; of graded ones the scores of cosine 0 and 1."""

    kind: Kind
    same: str | None = None
    lowest: float | None = None
    highest: float | None = None
    threshold: float = 0.5


def learnt_of(matches: Sequence[Match], settings: EmbedSettings) -> Mapping[str, Any]:
    """The facts of training examples. InputError for a score out of bounds, and where `kind_of` has one."""
    kind = kind_of(matches, settings)
    if kind == "labelled":
        return {"kind": kind, "same": same_label(matches, settings)}
    if kind == "retrieval":
        return {"kind": kind}
    scores = [number_of(match) for match in matches]
    lowest = min(scores) if settings.lowest_score is None else settings.lowest_score
    highest = max(scores) if settings.highest_score is None else settings.highest_score
    for score, match in zip(scores, matches, strict=True):
        if not lowest <= score <= highest:
            raise InputError(
                "score_out_of_range",
                f"the score {score:g} is not between {lowest:g} and {highest:g}",
                location=match.place,
                hint=f"fix the row, or set {option('lowest_score')} and {option('highest_score')}",
            )
    return {"kind": kind, "lowest": lowest, "highest": highest}


def check_kind(matches: Sequence[Match], kind: Kind) -> None:
    """InputError where an example of dev is of another kind than those of training."""
    for match in matches:
        if (match.label is None) != (kind == "retrieval"):
            has, had = ("no label", "have one") if match.label is None else ("a label", "have none")
            raise InputError(
                "examples_differ_from_training",
                f"this example has {has}, and the training examples {had}",
                location=match.place,
                hint="give files of the same form to train and dev, with the same column names",
            )
        if kind == "graded":
            number_of(match)


def overview_of(train: Sequence[Match], dev: Sequence[Match], kind: Kind) -> DataSummary:
    """How scores spread, or how many queries and passages there are."""
    if kind == "graded":
        return summarize_numbers(*([number_of(match) for match in part] for part in (train, dev)))
    figures = {
        part: {
            "queries": len({match.query for match in some}),
            "positives": len({text for match in some for text in match.positives}),
            "negatives": len({text for match in some for text in match.negatives}),
        }
        for part, some in (("train", train), ("dev", dev))
    }
    rows = [[part, *(f"{value:,}" for value in found.values())] for part, found in figures.items()]
    columns = ["part", "queries", "positive passages", "negative passages"]
    return DataSummary({"queries": figures}, [MetricTable("queries", columns, rows)])
