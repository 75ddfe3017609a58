"""What may be chosen of classification besides its texts: labels a text may have, their weights, thresholds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from pydantic import Field, PositiveFloat

from bertsmith.errors import InputError
from bertsmith.settings import ADDED_LATER
from bertsmith.tasks.classification.texts import TextSettings

ClassWeights = Literal["none", "balanced"] | dict[str, PositiveFloat]


class ClassSettings(TextSettings):
    """Of `classify`."""

    multi_label: bool = Field(False, description="whether a text has any number of labels, or exactly one")
    label_separator: str = Field(
        ",", min_length=1, description="with multi_label: what separates labels in the label column"
    )
    class_weights: ClassWeights = Field(
        "none",
        description="what weighs each label in the loss: balanced (the rarer, the more), or {label: weight, …}",
    )
    thresholds: Literal["half", "shared", "each"] = Field(
        "shared",
        description="with multi_label: above which probability a label is predicted: a half; one for all labels, "
        "or one for each, chosen on dev by macro F1",
    )
    init_head_from: Literal["none", "nsp"] = Field(
        "none",
        description="what the head is at first: drawn (none), or for two labels the base's head for the next "
        "sentence (nsp); which label begins as IsNext is told",
        json_schema_extra=ADDED_LATER,
    )
    calibrate: bool = Field(
        False,
        description="whether probabilities are calibrated: divide logits by a temperature that is chosen on dev",
    )


def weights_of(
    asked: ClassWeights, labels: Sequence[str], balanced: Mapping[str, float]
) -> list[float] | None:
    """The weight of each label in the loss; None where all are 1. balanced: what makes up for how rare each is.
    InputError for a name that is no label."""
    if asked == "none":
        return None
    if asked == "balanced":
        return [balanced[label] for label in labels]
    if unknown := [name for name in asked if name not in labels]:
        raise InputError(
            f"task.class_weights: there is no label '{unknown[0]}'",
            f"the labels are {', '.join(labels[:10])}{', …' if len(labels) > 10 else ''}",
        )
    return [asked.get(label, 1.0) for label in labels]
