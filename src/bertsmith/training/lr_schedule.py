"""Learning rate schedules: warm-up, and the decay after it."""

from __future__ import annotations

import math

from bertsmith.training.settings import TrainSettings

_DIV_FACTOR, _FINAL_DIV_FACTOR = 25, 1e4  # of one_cycle, as in torch's OneCycleLR
_LINEAR_DIV_FACTOR = 10  # of one_cycle_linear, twice
_MIN_BETA1, _MAX_BETA1 = 0.85, 0.95  # of one_cycle_linear, at and far from the peak
_ROUNDING = 1 + 1e-12  # a fraction of all updates may be rounded down in the last bit


def warmup_updates(warmup_steps: float, num_updates: int) -> int:
    """Return the length of the warm-up in updates.

    Args:
        warmup_steps: Below 1 a fraction of all updates, which is at least one update unless it is 0; from 1 on a
            number of updates.
        num_updates: The number of all updates.
    """
    if warmup_steps >= 1:
        return min(num_updates, round(warmup_steps))
    return max(1, round(warmup_steps * num_updates)) if warmup_steps > 0 else 0


def learning_rate(update: float, warmup_steps: float, num_updates: int, settings: TrainSettings) -> float:
    """Return the learning rate of an update (Devlin et al. 2019, A.2).

    With t the update, W the warm-up, N all updates, and the peak `settings.learning_rate`, the rate is
    peak · t / W up to W, and then by `settings.lr_scheduler_type`:

    * linear: peak · (N - t) / (N - W), from the peak to 0;
    * linear_google: peak · (1 - t / N), as if it had decreased from the first update on; in BERT's released code
      the warm-up ends before update W, so that the rate does not quite reach the peak (0.99 of it with W = 10,000
      and N = 1,000,000);
    * cosine: half a cosine from the peak to 0;
    * constant_with_warmup: the peak;
    * warmup_stable_decay: the peak, then linear to 0 over the last `decay_ratio` of all updates, or over all
      updates after the warm-up if they are fewer (Zhai et al. 2022; Hägele et al. 2024);
    * one_cycle: half a cosine up from peak / 25 at the first update to the peak at W, half a cosine down to
      peak / 250,000 at N (Smith 2018; torch's `OneCycleLR` without its cycle of the momentum);
    * one_cycle_linear: linear from peak / 10 at the first update to the peak at `pct_start` of all updates, linear
      to peak / 100 at N, without a warm-up; `adam_beta1` moves against it (Smith 2018, section 4);
    * step: the peak, times `lr_decay_factor` after each of the fractions `lr_milestones` of all updates;
    * inverse_sqrt: peak · sqrt(W / t), W at least 1 (Vaswani et al. 2017);
    * reduce_lr_on_plateau: the peak; the trainer applies the reductions (`TrainState.num_lr_reductions`).

    The schedules that decrease to 0 reach it at update N. (BERT's released code and transformers count from 0: the
    rate of their first update is 0.)

    Args:
        update: The update, from 1 to N; it lies between two updates if the length of the run has changed.
        warmup_steps: W, in updates.
        num_updates: N.
        settings: The settings of the run.
    """
    peak, scheduler_type = settings.learning_rate, settings.lr_scheduler_type
    if scheduler_type == "one_cycle":
        return _one_cycle(update, peak, warmup_steps, num_updates)
    if scheduler_type == "one_cycle_linear":
        initial = peak / _LINEAR_DIV_FACTOR
        return _linear_cycle(
            update, num_updates, settings.pct_start, (initial, peak, initial / _LINEAR_DIV_FACTOR)
        )
    if update < warmup_steps or (update == warmup_steps and scheduler_type != "linear_google"):
        return peak * update / warmup_steps
    remaining = (num_updates - update) / max(1, num_updates - warmup_steps)
    match scheduler_type:
        case "constant_with_warmup" | "reduce_lr_on_plateau":
            return peak
        case "linear_google":
            return peak * (num_updates - update) / num_updates
        case "warmup_stable_decay":
            decay_updates = min(settings.decay_ratio * num_updates, num_updates - warmup_steps)
            return peak * min(1.0, (num_updates - update) / max(1, decay_updates))
        case "cosine":
            return _cosine(peak, 0.0, 1 - remaining)
        case "step":
            ends = [milestone * num_updates * _ROUNDING for milestone in settings.lr_milestones]
            return peak * settings.lr_decay_factor ** sum(update > end for end in ends)
        case "inverse_sqrt":
            return peak * math.sqrt(max(1, warmup_steps) / max(1, update))
        case _:
            return peak * remaining


def adam_beta1(update: float, num_updates: int, settings: TrainSettings) -> float:
    """Return beta 1 of AdamW in an update: the setting, or with one_cycle_linear 0.95, 0.85 at the peak, 0.95."""
    if settings.lr_scheduler_type != "one_cycle_linear":
        return settings.adam_beta1
    return _linear_cycle(update, num_updates, settings.pct_start, (_MAX_BETA1, _MIN_BETA1, _MAX_BETA1))


def _linear_cycle(
    update: float, num_updates: int, pct_start: float, values: tuple[float, float, float]
) -> float:
    """Return the value on the lines from the first of three values to the second, at `pct_start`, to the third."""
    first, middle, last = values
    peak_update = pct_start * num_updates
    if update < peak_update:
        return first + (middle - first) * max(0.0, update - 1) / (peak_update - 1)
    return middle + (last - middle) * (update - peak_update) / max(1, num_updates - peak_update)


def _one_cycle(update: float, peak: float, warmup_steps: float, num_updates: int) -> float:
    initial, final = peak / _DIV_FACTOR, peak / _DIV_FACTOR / _FINAL_DIV_FACTOR
    if update < warmup_steps:
        return _cosine(initial, peak, max(0.0, update - 1) / (warmup_steps - 1))
    return _cosine(peak, final, (update - warmup_steps) / max(1, num_updates - warmup_steps))


def _cosine(start: float, end: float, fraction: float) -> float:
    """Return the value at a fraction of the half cosine from start to end."""
    return end + (start - end) / 2 * (1 + math.cos(math.pi * fraction))
