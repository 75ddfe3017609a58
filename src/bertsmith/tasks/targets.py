"""The output that an explanation is about, such as the logit of a class."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from torch import Tensor

from bertsmith.errors import InputError
from bertsmith.formatting import join_names


class Target(NamedTuple):
    """A number that follows from an item's output.

    Attributes:
        name: What it is, such as "joy".
        score: Returns it, [], for the output of an item, [r, ...].
    """

    name: str
    score: Callable[[Tensor], Tensor]


def class_target(output: Tensor, labels: Sequence[str], name: str | None) -> Target:
    """Return the logit of a label.

    Args:
        output: The logits of all labels, [K] or [1, K].
        labels: The labels.
        name: The label; None: the most probable one.
    """
    index = int(output.argmax()) if name is None else find_label(labels, name)
    return Target(labels[index], lambda output: output.flatten()[index])


def find_label(labels: Sequence[str], name: str) -> int:
    """Return the index of a label; raise InputError if there is none of this name."""
    if name not in labels:
        message, hint = f"there is no output {name!r}", f"use one of these: {join_names(labels)}"
        raise InputError("unknown_target", message, argument="target", hint=hint)
    return labels.index(name)
