"""Warm-up and decay: the learning rate of each update as a function of its number."""

from __future__ import annotations

import math
from typing import Literal

Shape = Literal["linear", "cosine", "constant"]


def warmup_updates(warmup: float, updates: int) -> int:
    """The length of the warm-up: `warmup` is a share of all updates below 1, a number of updates from 1 on."""
    return min(updates, round(warmup * updates) if warmup < 1 else round(warmup))


def learning_rate(update: int, *, peak: float, warmup: int, updates: int, shape: Shape = "linear") -> float:
    """The rate of update number `update` (1 … updates), after Devlin et al. 2019, A.2.

    Up to `warmup` it is peak · update / warmup; then it falls from the peak towards 0, which the update after
    the last one would have, so that no update is made with a rate of 0.
    """
    if update <= warmup:
        return peak * update / warmup
    left = (updates - update + 1) / max(1, updates - warmup)
    if shape == "constant":
        return peak
    if shape == "cosine":
        return peak * 0.5 * (1 + math.cos(math.pi * (1 - left)))
    return peak * left
