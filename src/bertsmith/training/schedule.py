"""Warm-up and decay: the learning rate of each update as a function of its number."""

from __future__ import annotations

import math
from typing import Literal

Shape = Literal["linear", "linear_release", "cosine", "constant", "constant_then_down"]


def warmup_updates(warmup: float, updates: int) -> int:
    """The length of the warm-up: `warmup` is a share of all updates below 1, a number of updates from 1 on.

    A share above 0 is one update at least.
    """
    if warmup >= 1:
        return min(updates, round(warmup))
    return max(1, round(warmup * updates)) if warmup > 0 else 0


def learning_rate(
    update: float, *, peak: float, warmup: float, updates: int, shape: Shape = "linear", down: float = 0.4
) -> float:
    """The rate of update number `update` (1 … updates), after Devlin et al. 2019, A.2.

    Where a run's length changed on the way, the update is where it stands among `updates`, between two numbers.
    With t the update, W the warm-up and N all updates: peak · t / W up to W, where the peak is reached once; then

    * linear: peak · (N - t) / (N - W), from the peak to 0;
    * linear_release: peak · (1 - t / N), as if it had fallen from the first update on; in BERT's release the
      warm-up ends before update W, so the rate never quite reaches the peak (0.99 of it for 10,000 of a million);
    * cosine: half a cosine from the peak to 0;
    * constant: the peak;
    * constant_then_down: the peak, then from it in a line to 0 over the last `down` of all updates, or over all
      after the warm-up where these are fewer (Zhai et al. 2022; Hägele et al. 2024).

    All but `constant` end with a rate of 0 for update N. (The release and the reference library count from 0: with
    them it is the first update that has a rate of 0.)
    """
    if update < warmup or (update == warmup and shape != "linear_release"):
        return peak * update / warmup
    if shape == "constant":
        return peak
    if shape == "linear_release":
        return peak * (updates - update) / updates
    left = (updates - update) / max(1, updates - warmup)
    if shape == "constant_then_down":
        return peak * min(1.0, (updates - update) / max(1, min(down * updates, updates - warmup)))
    if shape == "cosine":
        return peak * 0.5 * (1 + math.cos(math.pi * (1 - left)))
    return peak * left
