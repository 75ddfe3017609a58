"""`bertsmith lr-find TASK`: at which learning rates a task is learnt, by a range test on its own batches."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from torch import nn

from bertsmith import console, hardware
from bertsmith.device import ComputeContext
from bertsmith.errors import InputError, option
from bertsmith.finetuning.data import read_training
from bertsmith.finetuning.feature_cache import Frozen
from bertsmith.finetuning.job import build_model
from bertsmith.finetuning.repeated_logs import drop_repeated_logs
from bertsmith.finetuning.settings import OWN_ARGUMENTS, new_settings, settings_type
from bertsmith.formatting import pluralize
from bertsmith.inference.model import Model, load
from bertsmith.inference.output import refuse_existing
from bertsmith.io import atomic
from bertsmith.io.memory import Source, name_of
from bertsmith.models.parameter_count import count_parameters
from bertsmith.reports.lr_range_plot import plot_lr_range_test
from bertsmith.settings import Changes, read_yaml, resolve
from bertsmith.tasks.items import Item, ItemStream
from bertsmith.tasks.label_names import as_listed, names_of
from bertsmith.tasks.labels import Names
from bertsmith.tasks.task import refuse_too_long, task_type
from bertsmith.training.data_loader import Phase
from bertsmith.training.lr_range_test import CurveReading, range_test, rates_between, suggestion
from bertsmith.training.train_step import Trained

logger = logging.getLogger(__name__)

_FEWEST = 10  # updates, below which a curve says nothing


@dataclass(frozen=True)
class RateTest:
    """What `find_rate` found.

    rates: that were tried, ascending. losses: by seed, of each update's batches before the update; fewer than
    there are rates where the loss diverged before. readings: by seed, what a curve says. suggestion: a rate to
    train with; None where the curves give none. said: why, in a sentence.
    """

    task: str
    rates: list[float]
    losses: Mapping[int, list[float]]
    readings: Mapping[int, CurveReading]
    suggestion: float | None
    said: str

    def document(self) -> dict[str, Any]:
        """All of it as one JSON object."""
        return {
            "task": self.task,
            "suggestion": self.suggestion,
            "said": self.said,
            "rates": self.rates,
            "seeds": {
                str(seed): {
                    "losses": self.losses[seed],
                    "smoothed": list(reading.smoothed),
                    "lowest_at": reading.lowest,
                    "falls_clearly": reading.clear,
                    "diverges_at": reading.diverges,
                }
                for seed, reading in self.readings.items()
            },
        }

    def plot(self) -> bytes:
        """The curves as a PNG."""
        curves = {seed: (self.losses[seed], reading.smoothed) for seed, reading in self.readings.items()}
        return plot_lr_range_test(self.rates, curves, self.suggestion)

    def _repr_png_(self) -> bytes:
        """What a notebook shows."""
        return self.plot()


def find_rate(
    task: str,
    model: str | Path | Model,
    *,
    train: Source,
    seeds: int = 3,
    steps: int = 100,
    low: float = 1e-7,
    high: float = 1.0,
    output: str | Path | None = None,
    overwrite: bool = False,
    sample: int | None = None,
    label_names: str | Path | Names | None = None,
    recipe: str | Path | None = None,
    settings: Changes = (),
    **keywords: Any,
) -> RateTest:
    """Try learning rates from `low` to `high`, one an update, and see where the loss falls and where it diverges
    (Smith 2017). The model given stays as it is, and nothing is kept but what is returned.

    train, sample, label_names, recipe, settings, keywords: as for `finetune`; the updates are those that it would
    make, but for the rate. seeds: how often it is done, with a head, an order of the examples and dropout drawn
    anew each time, by train.seed and the numbers after it. steps: updates of each. output: a PNG of the curves to
    write. A rate is suggested only where every curve falls clearly, then diverges, and the seeds agree within half
    a decade on where it is lowest.

    Raises InputError for what a user can fix.
    """
    kind, plot = task_type(task), None if output is None else Path(output)
    if plot is not None and not overwrite:
        refuse_existing(plot)
    _check(seeds, steps, low, high)
    base = model if isinstance(model, Model) else load(model)
    changes = resolve(settings_type(kind), settings, keywords, find_rate, hidden=OWN_ARGUMENTS)
    given = {
        "train": name_of(train, "train"),
        "sample": sample,
        "label_names": None if label_names is None else as_listed(names_of(label_names)),
    }
    values = read_yaml(recipe) if recipe is not None else {}
    chosen = new_settings(kind, base, given, recipe, values, changes)
    kind = kind.variant(chosen.task)
    refuse_too_long(chosen.task, base.folder.config.max_length)
    hardware.configure_process(chosen.train.threads)
    place = ComputeContext.create(
        chosen.train.device, chosen.train.precision, chosen.train.seed, for_training=True
    )
    logger.info("computing in %s on %s", place.precision, hardware.device_name(place.device))
    parameters = sum(term.size for term in count_parameters(base.folder.config))
    hardware.check_memory(parameters, hardware.memory_bytes(place.device))
    examples, facts = read_training(kind, chosen.files, chosen.task, {"train": train})
    rates, losses, readings = rates_between(low, high, steps), {}, {}
    items: list[Item] = []
    with TemporaryDirectory(prefix="bertsmith-") as states, drop_repeated_logs():
        for number in range(seeds):
            seed = chosen.train.seed + number
            here = ComputeContext.create(str(place.device), place.precision, seed, for_training=True)
            encoder, head = build_model(kind, base.folder, chosen, facts, here)
            items = items or head.items(examples, base.tokenizer)
            read: nn.Module = encoder
            if (
                chosen.train.freeze_encoder
            ):  # as a run reads them: without dropout, computed for the first seed alone
                read = Frozen(encoder, head.layers_read, here, Path(states))
                sequences = (one for item in items for one in item.sequences)
                read.remember(sequences, base.folder.weights_digest())
            phase = Phase(ItemStream(head, items, seed), 1.0, chosen.train.batch_size)
            with console.ProgressBar(f"lr-find {kind.name}, seed {seed}", steps, unit="updates") as bar:

                def shown(made: int, loss: float, bar: console.ProgressBar = bar) -> None:
                    bar.update(made, f"rate {rates[made - 1]:.1e} · loss {loss:.2f}")

                losses[seed] = range_test(Trained(read, head), phase, chosen.train, here, rates, shown)
            readings[seed] = CurveReading.of(rates, losses[seed])
    rate, why = suggestion(list(readings.values()), high)
    passes = steps * chosen.train.batch_size * chosen.train.gradient_accumulation_steps / len(items)
    logger.info(
        "%s per seed, %.2g passes over %s; the model is not changed",
        pluralize(steps, "update"),
        passes,
        pluralize(len(examples), "example"),
    )
    found = RateTest(kind.name, rates, losses, readings, rate, why)
    if plot is not None:
        plot.parent.mkdir(parents=True, exist_ok=True)
        atomic.write_bytes(plot, found.plot())
    return found


def _check(seeds: int, steps: int, low: float, high: float) -> None:
    """InputError for what no curve can be drawn of."""
    if seeds < 1:
        raise InputError("seeds_too_few", f"{seeds} is less than 1", argument="seeds", hint="give 1 or more")
    if steps < _FEWEST:
        raise InputError(
            "steps_too_few",
            f"{steps} updates are too few for a curve",
            argument="steps",
            hint=f"give at least {_FEWEST}, better 50 or more",
        )
    if not 0 < low < high <= 10:
        raise InputError(
            "rates_invalid",
            f"{option('low', f'{low:g}')} and {option('high', f'{high:g}')} are not a range of learning rates",
            argument="low",
            hint="choose them with 0 < low < high <= 10",
        )
