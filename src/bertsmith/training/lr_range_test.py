"""The learning rate range test (Smith 2017, section 3.3): the rate rises until the loss diverges.

`LRCurve` analyzes the losses; `suggest_learning_rate` compares the curves of several seeds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from statistics import geometric_mean

import numpy as np
from numpy.typing import NDArray

from bertsmith.device import ComputeContext
from bertsmith.errors import MachineError
from bertsmith.formatting import pluralize
from bertsmith.training.data_loader import START, Phase, iterate_updates
from bertsmith.training.settings import TrainSettings
from bertsmith.training.train_step import GradientStrategy, TrainModule, train_step

_INITIAL_RATIO = 0.2  # of the rates: too low to change the loss, they give the initial loss and its noise
_SMOOTHING_DECADES = 0.15  # standard deviation of the Gaussian that smooths a curve
_MIN_FALL_RATIO, _MIN_FALL_NOISE = 0.1, 7.0  # of a clear fall: of the initial loss, and of its noise
_MAD_TO_DEVIATION = 1.4826  # of a normal distribution
_DIVERGENCE_RATIO = 0.5  # of the fall by which the loss has risen again where it diverges
_MAX_LOSS_RATIO = 4.0  # of the running mean of the losses to its lowest value: no higher rate is tried
_MEAN_FRACTION = 0.05  # of the rates over which that mean reaches: its decay is 0.98 with 1,000 rates
_RATE_DIVISOR = 10.0  # from the rate with the lowest loss to the suggested rate
_MAX_SEED_DECADES = 0.5  # between the lowest points of different seeds


def lr_range_test(
    module: TrainModule,
    phase: Phase,
    settings: TrainSettings,
    context: ComputeContext,
    rates: Sequence[float],
    progress: Callable[[int, float], None] = lambda step, loss: None,
) -> list[float]:
    """Make an update with each learning rate, and restore the module and the generator afterwards.

    Args:
        module: The module to train.
        phase: The instances.
        settings: The settings of the run, for optimizer, batch size, and clipping.
        context: The compute context.
        rates: The learning rates.
        progress: Called with the number of updates and the loss after each update.

    Returns:
        The loss before each update; fewer than there are rates if their running mean, corrected for its start
        at 0, rises to four times its lowest value, or one is not finite.
    """
    losses: list[float] = []
    mean, lowest_mean = 0.0, math.inf
    decay = math.exp(-1 / (_MEAN_FRACTION * len(rates)))
    with _restored(module, context):
        module.train()
        strategy = GradientStrategy(module, context, settings)
        batch_size, num_batches = phase.batch_size, settings.gradient_accumulation_steps
        counts, num_workers = module.objective.counts, settings.dataloader_num_workers
        updates = iterate_updates(phase.stream, batch_size, num_batches, START, num_workers, counts)
        with closing(updates):
            for step, rate in enumerate(rates, 1):
                try:
                    metrics = train_step(strategy, next(updates), rate, step)
                except MachineError:  # not finite
                    break
                loss = float(metrics["loss"])
                losses.append(loss)
                progress(step, loss)
                mean = decay * mean + (1 - decay) * loss
                corrected_mean = mean / (1 - decay**step)
                lowest_mean = min(lowest_mean, corrected_mean)
                if step > _num_initial(len(rates)) and corrected_mean > _MAX_LOSS_RATIO * lowest_mean:
                    break
    return losses


@contextmanager
def _restored(module: TrainModule, context: ComputeContext) -> Iterator[None]:
    """Restore weights, buffers, gradients, mode, and generator at the end of the context."""
    weights = {name: tensor.clone() for name, tensor in module.saved_tensors().items()}
    gradients = {parameter: parameter.grad for parameter in module.parameters()}
    state, was_training = context.generator.get_state(), module.training
    for parameter in gradients:
        parameter.grad = None
    try:
        yield
    finally:
        module.load_tensors(weights)
        for parameter, gradient in gradients.items():
            parameter.grad = gradient
        context.generator.set_state(state)
        module.train(was_training)


@dataclass(frozen=True)
class LRCurve:
    """The analysis of the losses of one seed.

    Attributes:
        smoothed: The smoothed losses.
        lowest: The learning rate with the lowest smoothed loss.
        clear: True if the loss falls clearly until there.
        diverges: The learning rate at which half of the fall is lost again; None if there is none.
        steepest: The learning rate at which the smoothed loss falls fastest, up to `lowest`.
    """

    smoothed: tuple[float, ...]
    lowest: float
    clear: bool
    diverges: float | None
    steepest: float

    @classmethod
    def from_losses(cls, rates: Sequence[float], losses: Sequence[float]) -> LRCurve:
        """Analyze the losses of the first rates; there are fewer losses than rates if the test ended early."""
        num_initial = _num_initial(len(rates))
        if len(losses) <= num_initial:
            return cls(tuple(losses), rates[0], clear=False, diverges=rates[len(losses)], steepest=rates[0])
        values = np.array(losses)
        initial_loss = float(values[:num_initial].mean())
        decades = np.log10(np.array(rates[: len(losses)]))
        # The smoothed loss before an explosion should not depend on its size.
        smoothed = _smooth(decades, np.minimum(values, 2 * initial_loss))
        noise = _noise(values, num_initial) / math.sqrt(_num_averaged(decades))
        lowest = int(smoothed.argmin())
        fall = initial_loss - float(smoothed[lowest])
        is_higher = np.flatnonzero(smoothed[lowest:] > smoothed[lowest] + _DIVERGENCE_RATIO * fall)
        diverges = None
        if len(is_higher):
            diverges = rates[lowest + int(is_higher[0])]
        elif len(losses) < len(rates):
            diverges = rates[len(losses)]
        is_clear = fall > max(_MIN_FALL_RATIO * initial_loss, _MIN_FALL_NOISE * noise)
        steepest = rates[int(np.gradient(smoothed, decades)[: lowest + 1].argmin())]
        return cls(tuple(smoothed.tolist()), rates[lowest], is_clear, diverges, steepest)


def _num_initial(num_rates: int) -> int:
    return max(1, round(_INITIAL_RATIO * num_rates))


def _noise(losses: NDArray[np.float64], num_initial: int) -> float:
    """Return the standard deviation of a loss, from the differences of neighbors.

    The initial losses alone are too few: of 12,000 curves of pure noise 30 would fall by six times as much. The
    median over the whole curve is robust against its fall and its end; the larger of both is used.
    """
    differences = np.diff(losses)
    by_median = _MAD_TO_DEVIATION * float(np.median(np.abs(differences)))
    return max(float(differences[:num_initial].std()), by_median) / math.sqrt(2)


def _smooth(decades: NDArray[np.float64], losses: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the losses smoothed by a Gaussian over the logarithms of the rates."""
    weights = np.exp(-0.5 * ((decades[:, None] - decades[None]) / _SMOOTHING_DECADES) ** 2)
    smoothed: NDArray[np.float64] = (weights @ losses) / weights.sum(axis=1)
    return smoothed


def _num_averaged(decades: NDArray[np.float64]) -> float:
    """Return the effective number of losses in a smoothed loss."""
    distance = float(decades[-1] - decades[0]) / max(1, len(decades) - 1)
    return max(1.0, 2 * math.sqrt(math.pi) * _SMOOTHING_DECADES / max(distance, 1e-9))


@dataclass(frozen=True)
class LRSuggestion:
    """Learning rates with two digits, None if the curves suggest none.

    Attributes:
        message: The rates, or the reason why there are none, in a sentence.
        rate: A tenth of the rate with the lowest loss.
        steepest: The rate at which the loss falls fastest.
    """

    message: str
    rate: float | None = None
    steepest: float | None = None


def suggest_learning_rate(curves: Sequence[LRCurve], high: float) -> LRSuggestion:
    """Suggest learning rates, geometric means over the curves, if all have a clear minimum and agree.

    Args:
        curves: The curves of several seeds.
        high: The highest learning rate that was tried.
    """
    num_unclear = sum(not curve.clear for curve in curves)
    if num_unclear:
        seeds = "" if num_unclear == len(curves) else f"with {pluralize(num_unclear, 'seed')} "
        return LRSuggestion(
            f"no suggestion: {seeds}the loss does not fall clearly at any rate (--steps makes more updates)"
        )
    if any(curve.diverges is None for curve in curves):
        return LRSuggestion(
            f"no suggestion: the loss does not rise again up to the highest rate, {high:g} (--high tries more)"
        )
    lowest = [curve.lowest for curve in curves]
    if math.log10(max(lowest) / min(lowest)) > _MAX_SEED_DECADES:
        return LRSuggestion(
            f"no suggestion: the seeds do not agree, their losses are lowest at rates from {min(lowest):.2g} to "
            f"{max(lowest):.2g}"
        )
    mean = geometric_mean(lowest)
    rate = float(f"{mean / _RATE_DIVISOR:.1e}")
    steepest = float(f"{geometric_mean([curve.steepest for curve in curves]):.1e}")
    diverges = min(curve.diverges for curve in curves if curve.diverges is not None)
    message = (
        f"suggestion: train.learning_rate={rate:g}, a tenth of the rate at which the loss is lowest "
        f"({mean:.2g}); or {steepest:g}, where it falls fastest; it diverges at {diverges:.2g}"
    )
    return LRSuggestion(message, rate, steepest)
