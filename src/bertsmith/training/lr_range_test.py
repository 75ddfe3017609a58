"""A range test: the rate rises from update to update until the loss diverges, and everything is as it was again.

After Smith 2017 (section 3.3). What a curve says is read off it when it is whole: see `CurveReading`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertsmith.device import ComputeContext
from bertsmith.errors import MachineError
from bertsmith.formatting import pluralize
from bertsmith.training.data_loader import Phase, Position, updates
from bertsmith.training.optim.optimizer import optimizer_of
from bertsmith.training.settings import TrainSettings
from bertsmith.training.train_step import Trained, update

_FIRST = (
    0.2  # of the rates: too low to change the loss, so that this part says what it is at first, and its noise
)
_WIDTH = 0.15  # decades: deviation of the bell that smooths a curve, as wide on both sides
_CLEAR_SHARE, _CLEAR_NOISE = 0.1, 7.0  # what a clear fall has at least: of the first loss, and of its noise
_NORMAL = 1.4826  # a normal's deviation, in medians of what it is off by
_RISE = 0.5  # of the fall: what the loss has lost again where it has diverged
_HOPELESS = 4.0  # times the first loss, for some updates: no higher rate is tried
_MEMORY = 0.8  # of the mean that this is asked of
_BELOW = 10.0  # times lower than where the loss is lowest: the rate to train with
_AGREED = 0.5  # decades that the seeds may be apart


def rates_between(low: float, high: float, steps: int) -> list[float]:
    """So many rates from low to high, each the same multiple of the one before."""
    return [float(rate) for rate in np.geomspace(low, high, steps)]


def range_test(
    trained: Trained,
    phase: Phase,
    settings: TrainSettings,
    place: ComputeContext,
    rates: Sequence[float],
    progress: Callable[[int, float], None] = lambda step, loss: None,
) -> list[float]:
    """The loss of each update's batches, before the update with that rate; ends where it is not finite any more,
    or hopeless. progress: is called with the number of updates so far, and the loss.

    Updates are those of a run: the settings' optimiser, batch size and clipping, the phase's batches from the
    first on. Weights, buffers, gradients, the mode and the place's generator are afterwards what they were, also
    after an error; the moments are its own.
    """
    losses: list[float] = []
    mean = 0.0
    objective: Any = trained.objective
    with _restored(trained, place):
        trained.train()
        optimizer = optimizer_of(trained, settings)
        stream = updates(
            phase.stream,
            phase.batch_size,
            settings.gradient_accumulation_steps,
            Position(),
            settings.dataloader_num_workers,
            objective.counts,
        )
        with closing(stream):
            for step, rate in enumerate(rates, 1):
                try:
                    values = update(trained, optimizer, next(stream), rate, settings, place, step)
                except MachineError:  # not finite
                    break
                losses.append(float(values["loss"]))
                progress(step, losses[-1])
                mean = losses[-1] if step == 1 else _MEMORY * mean + (1 - _MEMORY) * losses[-1]
                first = sum(losses[: _first(len(rates))]) / len(losses[: _first(len(rates))])
                if step > _first(len(rates)) and mean > _HOPELESS * first:
                    break
    return losses


@contextmanager
def _restored(trained: Trained, place: ComputeContext) -> Iterator[None]:
    """As long as this lasts `trained` may be changed; then it is as it was, to the bit."""
    weights = {name: tensor.clone() for name, tensor in trained.saved().items()}
    gradients = {parameter: parameter.grad for parameter in trained.parameters()}
    state, training = place.generator.get_state(), trained.training
    for parameter in gradients:
        parameter.grad = None
    try:
        yield
    finally:
        trained.restore(weights)
        for parameter, gradient in gradients.items():
            parameter.grad = gradient
        place.generator.set_state(state)
        trained.train(training)


@dataclass(frozen=True)
class CurveReading:
    """What the curve of one seed says.

    smoothed: the losses. lowest: the rate at which the smoothed loss is lowest. clear: whether it falls clearly
    until there. diverges: the rate at which half of the fall is lost again; None where that is nowhere.
    """

    smoothed: tuple[float, ...]
    lowest: float
    clear: bool
    diverges: float | None

    @classmethod
    def of(cls, rates: Sequence[float], losses: Sequence[float]) -> CurveReading:
        """losses: one for each of the first rates; fewer than there are rates where it ended before."""
        first = _first(len(rates))
        if len(losses) <= first:
            return cls(tuple(losses), rates[0], clear=False, diverges=rates[len(losses)])
        found = np.array(losses)
        begin = float(found[:first].mean())
        at = np.log10(np.array(rates[: len(losses)]))
        smoothed = _smoothed(
            at, np.minimum(found, 2 * begin)
        )  # what has exploded says nothing of its neighbours
        noise = _noise(found, first) / math.sqrt(_within(at))
        where = int(smoothed.argmin())
        fall = begin - float(smoothed[where])
        lost = np.flatnonzero(smoothed[where:] > smoothed[where] + _RISE * fall)
        diverges = None
        if len(lost):
            diverges = rates[where + int(lost[0])]
        elif len(losses) < len(rates):
            diverges = rates[len(losses)]
        clear = fall > max(_CLEAR_SHARE * begin, _CLEAR_NOISE * noise)
        return cls(tuple(smoothed.tolist()), rates[where], clear, diverges)


def _first(rates: int) -> int:
    return max(1, round(_FIRST * rates))


def _noise(losses: NDArray[np.float64], first: int) -> float:
    """The deviation of a single loss, from the differences of neighbours. The first losses alone are too few: of
    12,000 curves that are nothing but noise 30 would fall by six times as much. The median over the whole curve
    hardly feels its fall or its end; the larger of both counts."""
    steps = np.diff(losses)
    most = max(float(steps[:first].std()), _NORMAL * float(np.median(np.abs(steps))))
    return most / math.sqrt(2)


def _smoothed(at: NDArray[np.float64], losses: NDArray[np.float64]) -> NDArray[np.float64]:
    """Means of a curve's points under a bell around each; at: their places."""
    weights = np.exp(-0.5 * ((at[:, None] - at[None]) / _WIDTH) ** 2)
    smoothed: NDArray[np.float64] = (weights @ losses) / weights.sum(axis=1)
    return smoothed


def _within(at: NDArray[np.float64]) -> float:
    """Points that such a mean is worth."""
    apart = float(at[-1] - at[0]) / max(1, len(at) - 1)
    return max(1.0, 2 * math.sqrt(math.pi) * _WIDTH / max(apart, 1e-9))


def suggestion(readings: Sequence[CurveReading], high: float) -> tuple[float | None, str]:
    """The rate to train with, where all curves give one and agree, and a sentence on it: a tenth of the rate at
    which the loss is lowest, in two digits. high: the highest rate that was tried."""
    unclear = sum(not reading.clear for reading in readings)
    if unclear:
        which = (
            "the loss does"
            if unclear == len(readings)
            else f"with {pluralize(unclear, 'seed')} the loss does"
        )
        return None, f"no suggestion: {which} not fall clearly at any rate (--steps makes more updates)"
    if any(reading.diverges is None for reading in readings):
        return None, (
            f"no suggestion: the loss does not rise again up to the highest rate, {high:g} (--high tries more)"
        )
    lowest = [reading.lowest for reading in readings]
    apart = math.log10(max(lowest) / min(lowest))
    if apart > _AGREED:
        return None, (
            f"no suggestion: the seeds do not agree, their losses are lowest at rates from {min(lowest):.2g} to "
            f"{max(lowest):.2g}"
        )
    middle = 10 ** (sum(map(math.log10, lowest)) / len(lowest))
    rate = float(f"{middle / _BELOW:.1e}")
    diverges = min(reading.diverges for reading in readings if reading.diverges is not None)
    return rate, (
        f"suggestion: train.learning_rate={rate:g}, a tenth of the rate at which the loss is lowest "
        f"({middle:.2g}); it diverges at {diverges:.2g}"
    )
