"""Updates that change nothing, to learn how long one takes: by threads, by precision, on this machine now."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from statistics import median_high
from typing import Any

import torch

from bertsmith import hardware
from bertsmith.device import ComputeContext
from bertsmith.hardware import Precision
from bertsmith.training.data_loader import Phase, Position, updates
from bertsmith.training.optim.optimizer import optimizer_of
from bertsmith.training.settings import TrainSettings
from bertsmith.training.train_step import Trained, update

_SMALLEST = 8  # the first updates are made on this part of a batch
_SOON = 0.5  # seconds: a second size may take twice as long
_HOPELESS = 2.0  # what takes that many times as long as the best is not tried again
_FEWER_PAY = 0.75  # fewer threads are taken where an update takes less than this part of the time
_BF16_PAYS = 0.95


@dataclass(frozen=True)
class Way:
    """How an update may be computed."""

    threads: int
    precision: Precision


def ways(threads: Sequence[int], precisions: Sequence[Precision]) -> list[Way]:
    """What is worth trying, the most threads first: each number of threads, and each precision at the most."""
    return [*(Way(n, precisions[0]) for n in threads), *(Way(threads[0], p) for p in precisions[1:])]


def numbers_of_threads(most: int) -> list[int]:
    """Numbers of threads to try, the largest first: all of a few, else each half of the one before."""
    if most <= 4:
        return list(range(most, 0, -1))
    return [most, *numbers_of_threads(most // 2)]


def tried(
    trained: Trained,
    phase: Phase,
    settings: TrainSettings,
    place: ComputeContext,
    among: Sequence[Way],
    enough: Callable[[float], float],
    position: Position | None = None,
) -> dict[Way, float]:
    """Seconds of an update in each way that was tried, the first one at least.

    enough: how many seconds may be spent, given those that an update takes.

    Updates are made in turn on a part of a batch first, then on larger ones, then on whole batches until the time
    is spent; the median of those on the largest counts. Where that is not a whole batch, the medians of the two
    largest show what the rest would add: an optimiser's own work, such as Muon's, does not grow with the batch.
    Where the first take less than half a second, two sizes are measured however short the time: one update of each
    way is too few to choose by.
    Weights, moments and the place's generator stay as they are: the rate is 0, the moments are others, and what
    was drawn is drawn again.
    """
    optimizer = optimizer_of(trained, settings)
    state, training, threads = place.generator.get_state(), trained.training, torch.get_num_threads()
    found: dict[Way, list[float]] = {}
    smaller: dict[Way, tuple[int, float]] = {}  # what was measured before `found`: the size, and seconds
    left, begin = list(among), hardware.clock()
    size = _first_size(phase, settings)
    measured = 0  # the size that `found` is of
    trained.train()

    def timed(way: Way) -> float:
        hardware.set_num_threads(way.threads)
        since = hardware.clock()
        counts: Any = trained.objective
        with closing(updates(phase.stream, size, 1, position or Position(), 0, counts.counts)) as work:
            update(trained, optimizer, next(work), 0.0, settings, replace(place, precision=way.precision), 0)
        return hardware.clock() - since

    try:
        for way in {way.precision: way for way in reversed(left)}.values():
            timed(way)  # the first of a process also allocates, and loads or compiles what computes
        while True:
            since = hardware.clock()
            if measured != size:
                smaller |= {way: (measured, median_high(times)) for way, times in found.items()}
                found, measured = {}, size
            for way in left:
                found.setdefault(way, []).append(timed(way))
            spent = hardware.clock() - since
            larger = min(2 * size, phase.batch_size)
            best = min(min(times) for times in found.values())
            quickest = min(found, key=lambda way: min(found[way]))
            expected = of_whole(
                size, best, smaller.get(quickest), settings.gradient_accumulation_steps * phase.batch_size
            )
            is_compared = bool(smaller) or spent > _SOON or size == phase.batch_size
            if is_compared and hardware.clock() - begin + spent * larger / size > enough(expected):
                break
            left = [way for way in left if min(found[way]) <= _HOPELESS * best]
            size = larger
    finally:
        hardware.set_num_threads(threads)
        place.generator.set_state(state)
        trained.train(training)
        optimizer.zero_grad(set_to_none=True)
    whole = settings.gradient_accumulation_steps * phase.batch_size
    return {way: of_whole(size, median_high(times), smaller.get(way), whole) for way, times in found.items()}


def of_whole(size: int, seconds: float, smaller: tuple[int, float] | None, whole: int) -> float:
    """Seconds of an update of `whole` sequences, from those of `size`, and of fewer where they were measured.

    The line through both is followed, but never down, nor above what would be in proportion to the size.
    """
    most = seconds / size
    each = most if smaller is None else (seconds - smaller[1]) / (size - smaller[0])
    return seconds + min(max(each, 0.0), most) * (whole - size)


def _first_size(phase: Phase, settings: TrainSettings) -> int:
    """Of the batches to begin with; batches that are cut by their tokens have no smaller ones."""
    if getattr(settings, "batch_tokens", None) is not None:
        return phase.batch_size
    return max(1, phase.batch_size // _SMALLEST)


def best_way(found: dict[Way, float]) -> Way:
    """The quickest: the first one's threads, unless fewer are clearly quicker, and its precision likewise."""
    first = next(iter(found))
    same = [way for way in found if way.precision == first.precision]
    quickest = min(same, key=lambda way: found[way])
    threads = quickest.threads if found[quickest] < _FEWER_PAY * found[first] else first.threads
    other = [way for way in found if way.precision != first.precision]
    precision = first.precision
    for way in other:
        if found[way] < _BF16_PAYS * found[first]:
            precision = way.precision
    return Way(threads, precision)
