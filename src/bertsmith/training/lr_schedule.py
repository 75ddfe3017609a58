"""Warm-up and decay: the learning rate of each update as a function of its number."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

Shape = Literal[
    "linear",
    "linear_release",
    "cosine",
    "constant",
    "constant_then_down",
    "one_cycle",
    "step",
    "inverse_sqrt",
    "plateau",
]

_BEGIN, _END = (
    25,
    1e4,
)  # of one cycle: the peak is so many times the first rate, and that so many times the last
_ROUNDING = 1 + 1e-12  # a share of all updates may come out a last bit too small


def warmup_updates(warmup: float, updates: int) -> int:
    """The length of the warm-up: `warmup` is a share of all updates below 1, a number of updates from 1 on.

    A share above 0 is one update at least.
    """
    if warmup >= 1:
        return min(updates, round(warmup))
    return max(1, round(warmup * updates)) if warmup > 0 else 0


def learning_rate(
    update: float,
    *,
    peak: float,
    warmup: float,
    updates: int,
    shape: Shape = "linear",
    down: float = 0.4,
    drop: float = 0.1,
    drops_at: Sequence[float] = (0.5, 0.75),
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
      after the warm-up where these are fewer (Zhai et al. 2022; Hägele et al. 2024);
    * one_cycle: half a cosine up from peak / 25 at the first update to the peak at W, half a cosine down to
      peak / 250,000 at N (Smith 2018, as torch's `OneCycleLR` has it; the momentum stays as it is);
    * step: the peak, times `drop` after each of the shares `drops_at` of all updates;
    * inverse_sqrt: peak · sqrt(W / t), W at least 1 (Vaswani et al. 2017);
    * plateau: the peak; what evaluations take from it is the loop's to know (`Progress.drops`).

    Those that fall to 0 do so for update N. (The release and the reference library count from 0: with them it is
    the first update that has a rate of 0.)
    """
    if shape == "one_cycle":
        return _one_cycle(update, peak, warmup, updates)
    if update < warmup or (update == warmup and shape != "linear_release"):
        return peak * update / warmup
    left = (updates - update) / max(1, updates - warmup)
    match shape:
        case "constant" | "plateau":
            return peak
        case "linear_release":
            return peak * (updates - update) / updates
        case "constant_then_down":
            return peak * min(1.0, (updates - update) / max(1, min(down * updates, updates - warmup)))
        case "cosine":
            return peak * 0.5 * (1 + math.cos(math.pi * (1 - left)))
        case "step":
            return peak * drop ** sum(update > share * updates * _ROUNDING for share in drops_at)
        case "inverse_sqrt":
            return peak * math.sqrt(max(1, warmup) / max(1, update))
        case _:
            return peak * left


def _one_cycle(update: float, peak: float, warmup: float, updates: int) -> float:
    """Up from the first update to number `warmup`, then down to the last."""
    low, lowest = peak / _BEGIN, peak / _BEGIN / _END
    if update < warmup:
        return _along_cosine(low, peak, max(0.0, update - 1) / (warmup - 1))
    return _along_cosine(peak, lowest, (update - warmup) / max(1, updates - warmup))


def _along_cosine(begin: float, end: float, share: float) -> float:
    """From one rate to another along half a cosine. share: of the way."""
    return end + (begin - end) / 2 * (1 + math.cos(math.pi * share))
