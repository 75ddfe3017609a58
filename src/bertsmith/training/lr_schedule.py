"""Warm-up and decay: the learning rate of each update as a function of its number."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

SchedulerType = Literal[
    "linear",
    "linear_google",
    "cosine",
    "constant_with_warmup",
    "warmup_stable_decay",
    "one_cycle",
    "step",
    "inverse_sqrt",
    "reduce_lr_on_plateau",
]

_BEGIN, _END = (
    25,
    1e4,
)  # of one cycle: the peak is so many times the first rate, and that so many times the last
_ROUNDING = 1 + 1e-12  # a share of all updates may come out a last bit too small


def warmup_updates(warmup_steps: float, updates: int) -> int:
    """The length of the warm-up: `warmup` is a share of all updates below 1, a number of updates from 1 on.

    A share above 0 is one update at least.
    """
    if warmup_steps >= 1:
        return min(updates, round(warmup_steps))
    return max(1, round(warmup_steps * updates)) if warmup_steps > 0 else 0


def learning_rate(
    update: float,
    *,
    peak: float,
    warmup_steps: float,
    updates: int,
    shape: SchedulerType = "linear",
    decay_ratio: float = 0.4,
    lr_decay_factor: float = 0.1,
    lr_milestones: Sequence[float] = (0.5, 0.75),
) -> float:
    """The rate of update number `update` (1 … updates), after Devlin et al. 2019, A.2.

    Where a run's length changed on the way, the update is where it stands among `updates`, between two numbers.
    With t the update, W the warm-up and N all updates: peak · t / W up to W, where the peak is reached once; then

    * linear: peak · (N - t) / (N - W), from the peak to 0;
    * linear_google: peak · (1 - t / N), as if it had fallen from the first update on; in BERT's release the
      warm-up ends before update W, so the rate never quite reaches the peak (0.99 of it for 10,000 of a million);
    * cosine: half a cosine from the peak to 0;
    * constant_with_warmup: the peak;
    * warmup_stable_decay: the peak, then from it in a line to 0 over the last `decay_ratio` of all updates, or
      over all after the warm-up where these are fewer (Zhai et al. 2022; Hägele et al. 2024);
    * one_cycle: half a cosine up from peak / 25 at the first update to the peak at W, half a cosine down to
      peak / 250,000 at N (Smith 2018, as torch's `OneCycleLR` has it; the momentum stays as it is);
    * step: the peak, times `lr_decay_factor` after each of the shares `lr_milestones` of all updates;
    * inverse_sqrt: peak · sqrt(W / t), W at least 1 (Vaswani et al. 2017);
    * reduce_lr_on_plateau: the peak; what evaluations take from it is the loop's to know (`Progress.drops`).

    Those that fall to 0 do so for update N. (The release and the reference library count from 0: with them it is
    the first update that has a rate of 0.)
    """
    if shape == "one_cycle":
        return _one_cycle(update, peak, warmup_steps, updates)
    if update < warmup_steps or (update == warmup_steps and shape != "linear_google"):
        return peak * update / warmup_steps
    left = (updates - update) / max(1, updates - warmup_steps)
    match shape:
        case "constant_with_warmup" | "reduce_lr_on_plateau":
            return peak
        case "linear_google":
            return peak * (updates - update) / updates
        case "warmup_stable_decay":
            return peak * min(
                1.0, (updates - update) / max(1, min(decay_ratio * updates, updates - warmup_steps))
            )
        case "cosine":
            return peak * 0.5 * (1 + math.cos(math.pi * (1 - left)))
        case "step":
            return peak * lr_decay_factor ** sum(
                update > share * updates * _ROUNDING for share in lr_milestones
            )
        case "inverse_sqrt":
            return peak * math.sqrt(max(1, warmup_steps) / max(1, update))
        case _:
            return peak * left


def _one_cycle(update: float, peak: float, warmup_steps: float, updates: int) -> float:
    """Up from the first update to number `warmup`, then down to the last."""
    low, lowest = peak / _BEGIN, peak / _BEGIN / _END
    if update < warmup_steps:
        return _along_cosine(low, peak, max(0.0, update - 1) / (warmup_steps - 1))
    return _along_cosine(peak, lowest, (update - warmup_steps) / max(1, updates - warmup_steps))


def _along_cosine(begin: float, end: float, share: float) -> float:
    """From one rate to another along half a cosine. share: of the way."""
    return end + (begin - end) / 2 * (1 + math.cos(math.pi * share))
