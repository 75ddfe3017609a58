"""`bertsmith lr-find TASK`: suggest a learning rate by a range test on a task's own batches (Smith 2017)."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Unpack

import numpy as np

from bertsmith import console, hardware
from bertsmith.device import ComputeContext
from bertsmith.errors import InputError, option
from bertsmith.finetuning.data import file_settings, read_training
from bertsmith.finetuning.job import new_settings
from bertsmith.finetuning.model import build_model, cached_encoder, create_context
from bertsmith.finetuning.settings import OWN_ARGUMENTS, settings_type
from bertsmith.formatting import pluralize
from bertsmith.inference.model import Model, load
from bertsmith.io import atomic
from bertsmith.io.sources import Source
from bertsmith.keywords import FinetuneKeywords
from bertsmith.log_handlers import without_repeats
from bertsmith.reports.result_plots import plot_lr_range_test
from bertsmith.settings import Changes, resolve
from bertsmith.tasks.batching import Item, ItemStream
from bertsmith.tasks.labels import LabelNames
from bertsmith.tasks.registry import get_task
from bertsmith.training.data_loader import Phase
from bertsmith.training.lr_range_test import LRCurve, lr_range_test, suggest_learning_rate
from bertsmith.training.settings import TrainSettings
from bertsmith.training.train_step import TrainModule

logger = logging.getLogger(__name__)

_MIN_UPDATES = 10  # of a curve


@dataclass(frozen=True)
class RateTest:
    """The result of `find_rate`.

    Attributes:
        task: The name of the task.
        rates: The learning rates of the updates, ascending.
        losses: By seed, the loss of each update's batches before the update; fewer than rates if it diverged.
        readings: By seed, the evaluation of the curve.
        suggestion: A tenth of the rate with the lowest loss; None if the curves suggest no rate.
        steepest: The rate at which the loss falls fastest, likewise.
        message: The reason, in a sentence.
        seconds: The duration of the test.
    """

    task: str
    rates: list[float]
    losses: Mapping[int, list[float]]
    readings: Mapping[int, LRCurve]
    suggestion: float | None
    steepest: float | None
    message: str
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        """Return the result as one JSON object."""
        return {
            "task": self.task,
            "suggestion": self.suggestion,
            "steepest": self.steepest,
            "said": self.message,
            "seconds": self.seconds,
            "rates": self.rates,
            "seeds": {
                str(seed): {
                    "losses": self.losses[seed],
                    "smoothed": list(reading.smoothed),
                    "lowest_at": reading.lowest,
                    "steepest_at": reading.steepest,
                    "falls_clearly": reading.clear,
                    "diverges_at": reading.diverges,
                }
                for seed, reading in self.readings.items()
            },
        }

    def plot(self) -> bytes:
        """Return the curves as a PNG."""
        curves = {seed: (self.losses[seed], reading.smoothed) for seed, reading in self.readings.items()}
        marks = {"minimum / 10": self.suggestion, "steepest": self.steepest}
        return plot_lr_range_test(
            self.rates, curves, {n: rate for n, rate in marks.items() if rate is not None}
        )

    _repr_png_ = plot  # the picture that a notebook shows


def find_rate(
    task: str,
    model: str | Path | Model,
    *,
    train: Source,
    seeds: int = 3,
    steps: int = 100,
    low: float = 1e-7,
    high: float = 10.0,
    output: str | Path | None = None,
    overwrite: bool = False,
    sample: int | None = None,
    label_names: str | Path | LabelNames | None = None,
    recipe: str | Path | None = None,
    settings: Changes = (),
    **keywords: Unpack[FinetuneKeywords],
) -> RateTest:
    """Raise the learning rate from `low` to `high`, update by update, and suggest two from the losses.

    The model is not changed (Smith 2017). A curve ends early where the running mean of its losses is four times
    its lowest value. Rates are suggested only if every curve falls clearly and then diverges, and the seeds agree
    within half a decade on the rate of the lowest loss.

    Args:
        task: The name of the task.
        model: The base model.
        train: Training examples, as for `finetune`; the updates are those of `finetune` but for the rate.
        seeds: The number of curves, each with other initial weights, order, and dropout, from train.seed on.
        steps: The number of updates of each curve.
        low: The lowest learning rate.
        high: The highest learning rate.
        output: A PNG file of the curves to write.
        overwrite: Replace the file.
        sample: As for `finetune`.
        label_names: As for `finetune`.
        recipe: As for `finetune`.
        settings: As for `finetune`.
        keywords: As for `finetune`.

    Raises:
        InputError: The user can fix the error.
    """
    start, declaration, plot = hardware.clock(), get_task(task), None if output is None else Path(output)
    if plot is not None:
        atomic.check_output_file(plot, overwrite=overwrite)
    _check(seeds, steps, low, high)
    base = load(model)
    changes = resolve(settings_type(declaration), settings, keywords, find_rate, hidden=OWN_ARGUMENTS)
    files = file_settings(train, sample=sample, label_names=label_names)
    run_settings = new_settings(declaration, base, files, recipe, changes)
    train_settings = run_settings.train
    context = create_context(train_settings, base.folder)
    logger.info("computing in %s on %s", context.precision, hardware.device_name(context.device))
    examples, metadata = read_training(declaration, run_settings.files, run_settings.task, {"train": train})
    rates, losses, readings = np.geomspace(low, high, steps).tolist(), {}, {}
    items: list[Item] = []
    with TemporaryDirectory(prefix="bertsmith-") as features, without_repeats():
        for seed in range(train_settings.seed, train_settings.seed + seeds):
            seed_context = ComputeContext.create(
                str(context.device), context.precision, seed, for_training=True
            )
            encoder, fitted_task = build_model(declaration, base.folder, run_settings, metadata, seed_context)
            items = items or fitted_task.encode(examples, base.tokenizer.with_end_tokens())
            if train_settings.freeze_encoder:  # the first seed computes the states
                folder = Path(features)
                encoder = cached_encoder(base.folder, encoder, fitted_task, items, seed_context, folder)
            module = TrainModule(encoder, fitted_task.model)
            phase = Phase(ItemStream(fitted_task.model.collate, items, seed), 1.0, train_settings.batch_size)
            title = f"lr-find {task}, seed {seed}"
            losses[seed] = _losses(title, module, phase, train_settings, seed_context, rates)
            readings[seed] = LRCurve.from_losses(rates, losses[seed])
    suggestion = suggest_learning_rate(list(readings.values()), high)
    seconds = hardware.clock() - start
    num_updates = sum(map(len, losses.values()))  # a curve ends where the loss rises
    logger.info(
        "%s of %s, %.2g passes over %s, in %s; the model is not changed",
        pluralize(num_updates, "update"),
        pluralize(seeds, "seed"),
        num_updates * train_settings.batch_size * train_settings.gradient_accumulation_steps / len(items),
        pluralize(len(examples), "example"),
        console.format_duration(seconds),
    )
    rate, steepest, message = suggestion.rate, suggestion.steepest, suggestion.message
    result = RateTest(task, rates, losses, readings, rate, steepest, message, seconds)
    if plot is not None:
        plot.parent.mkdir(parents=True, exist_ok=True)
        atomic.write_bytes(plot, result.plot())
    return result


def _losses(
    title: str,
    module: TrainModule,
    phase: Phase,
    settings: TrainSettings,
    context: ComputeContext,
    rates: Sequence[float],
) -> list[float]:
    """Return the losses of a range test, and show its progress."""
    with console.ProgressBar(title, len(rates), unit="updates") as bar:

        def show(num_updates: int, loss: float) -> None:
            bar.update(num_updates, f"rate {rates[num_updates - 1]:.1e} · loss {loss:.2f}")

        return lr_range_test(module, phase, settings, context, rates, show)


def _check(seeds: int, steps: int, low: float, high: float) -> None:
    """Raise InputError for arguments with which a curve is meaningless."""
    if seeds < 1:
        raise InputError("seeds_too_few", f"{seeds} is less than 1", argument="seeds", hint="give 1 or more")
    if steps < _MIN_UPDATES:
        message, hint = f"{steps} updates are too few for a curve", f"give at least {_MIN_UPDATES}"
        raise InputError("steps_too_few", message, argument="steps", hint=hint)
    if not 0 < low < high <= 10:
        message = (
            f"{option('low', f'{low:g}')} and {option('high', f'{high:g}')} are no range of learning rates"
        )
        hint = "choose them with 0 < low < high <= 10"
        raise InputError("rates_invalid", message, argument="low", hint=hint)
