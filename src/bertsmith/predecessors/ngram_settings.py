"""Settings of n-gram models."""

from __future__ import annotations

from itertools import pairwise
from typing import Literal

from pydantic import Field

from bertsmith.errors import InputError, option
from bertsmith.formatting import pluralize
from bertsmith.settings import Settings


class NgramSettings(Settings):
    """Settings of an n-gram model."""

    order: int = Field(3, ge=1, le=20, description="number of words in the longest n-grams")
    smoothing: Literal["kneser_ney", "interpolated", "add_k", "maximum_likelihood"] = Field(
        "kneser_ney",
        description="estimate of probabilities: modified Kneser–Ney; interpolation of all orders with one weight "
        "each; k added to each count; relative frequencies",
    )
    k: float = Field(1.0, gt=0, description="number that add_k adds to each count; 1: Laplace's rule")
    interpolation_weights: tuple[float, ...] | None = Field(
        None, description="weights of the orders from 1 up, between 0 and 1; none: estimated from the text"
    )
    prune: tuple[int, ...] = Field(
        (0,),
        min_length=1,
        description="counts up to which n-grams are dropped, by order from 1 up; the last is for all others",
    )
    discount_fallback: tuple[float, float, float] | None = Field(
        None,
        description="Kneser–Ney discounts of counts 1, 2, and 3 or more of an order whose discounts cannot be "
        "estimated; none: an error, and 0.5, 1, 1.5 for the pieces of shards, of which few are rare",
    )
    vocabulary_size: int | None = Field(
        None, ge=1, description="number of most frequent words to keep, others are <unk>; none: all"
    )
    lowercase: bool = Field(False, description="lower-case the text")
    sentence_boundaries: bool = Field(True, description="count <s> and </s> at the ends of sentences")
    unknown_words: bool = Field(
        True, description="give <unk> a probability even if the text does not have it"
    )

    def thresholds(self) -> list[int]:
        """Return the largest count of pruned n-grams by order."""
        prune = [*self.prune, *[self.prune[-1]] * self.order][: max(self.order, len(self.prune))]
        if (
            len(prune) > self.order
            or prune[0] != 0
            or any(a > b for a, b in pairwise(prune))
            or prune[-1] < 0
        ):
            message = (
                f"{self.prune} does not begin with 0, is not ascending, or has more than {self.order} numbers"
            )
            hint = f"to drop rare words, use {option('vocabulary_size')}"
            raise InputError("prune_thresholds", message, argument="prune", hint=hint)
        return prune

    def check(self) -> None:
        """Raise InputError for settings that contradict each other."""
        self.thresholds()
        weights = self.interpolation_weights
        if weights is not None and (
            len(weights) != self.order or not all(0 <= weight <= 1 for weight in weights)
        ):
            message = f"{weights} is not {pluralize(self.order, 'weight')} between 0 and 1"
            raise InputError("interpolation_weights", message, argument="interpolation_weights")
        fallback = self.discount_fallback
        if fallback is not None and not all(0 <= value <= i for i, value in enumerate(fallback, start=1)):
            message = f"{fallback} is not three discounts, each between 0 and its count"
            raise InputError("discount_fallback", message, argument="discount_fallback")
        if self.smoothing == "kneser_ney" and not self.sentence_boundaries:
            message = "Kneser–Ney smoothing counts preceding words, and needs the starts of sentences"
            hint = f"use {option('sentence_boundaries', True)}, or another {option('smoothing')}"
            raise InputError("boundaries_needed", message, argument="sentence_boundaries", hint=hint)
