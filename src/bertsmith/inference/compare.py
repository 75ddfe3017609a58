"""`bertsmith compare A B`: whether two models' answers to the same examples differ by more than chance."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertsmith.errors import InputError, option
from bertsmith.inference.ensemble import told_of_labels
from bertsmith.inference.model import Model, load
from bertsmith.inference.significance import Difference, compared, compared_slowly
from bertsmith.io.sources import Source, name_of
from bertsmith.notebook import Report
from bertsmith.tasks.fitted import FittedTask

_APART = 0.05  # the largest p at which two models are said to be told apart


def compare(
    a: str | Path | Model,
    b: str | Path | Model,
    data: Source,
    *,
    seed: int = 0,
    rounds: int | None = None,
    device: str = "auto",
    precision: str = "auto",
    **columns: Any,
) -> Report:
    """Two fine-tuned models of one task on the same labelled examples: each one's scores, their difference (b - a)
    with its 95 % interval (paired bootstrap, percentiles), and p, two-sided (approximate randomization: half of
    the examples have their two answers exchanged, at random).

    data: a file, or data in memory, as `Model.evaluate` takes it. rounds: of each resampling; by default as many
    as take seconds, 10,000 of up to 5,000 examples, and 200 to 1,000 for a score that is computed anew for each (a
    rank correlation, an average precision). The seed gives the same figures everywhere. columns: settings of the
    task for both, such as text_column.

    Returns {"scores": {name: {"a", "b", "difference", "low", "high", "p", "rounds"}}, "told_apart", …}. InputError
    where the models are of different tasks or labels, or read different texts from the data.
    """
    if rounds is not None and rounds < 1:
        raise InputError(
            "rounds_too_small",
            f"{rounds} is less than 1",
            argument="rounds",
            hint="use the number of resamples",
        )
    models = [one if isinstance(one, Model) else load(one, device, precision=precision) for one in (a, b)]
    _check_fit(*models)
    task = models[0].task
    examples, predictions = _answered(models, data, columns)
    names = list(dict.fromkeys((task.primary_metric, *task.metrics.logged_metrics)))
    tallies = [task.metrics.sufficient_statistics(answers, examples) for answers in predictions]
    found: dict[str, Difference] = {}
    if tallies[0] is not None and tallies[1] is not None:
        found = compared(tallies[0], tallies[1], seed, rounds)
    if task.primary_metric not in found:
        found[task.primary_metric] = _slowly(task, predictions, examples, seed, rounds)
    scores = {name: found[name]._asdict() for name in names if name in found}
    return Report(
        {
            "a": str(models[0].path),
            "b": str(models[1].path),
            "task": task.name,
            "examples": len(examples),
            "decided_by": task.primary_metric,
            "scores": scores,
            "told_apart": scores[task.primary_metric]["p"] < _APART,
            "seed": seed,
        },
        ("a", "b", "scores"),
    )


def told(report: dict[str, Any]) -> str:
    """What a comparison says, in a sentence."""
    name, examples = report["decided_by"], report["examples"]
    score = report["scores"][name]
    if score["difference"] == 0:
        return f"both have the same {name}, so on these {examples:,} examples they cannot be told apart"
    better = "b" if score["difference"] > 0 else "a"
    ahead = f"{report[better]} has the higher {name} by {abs(score['difference']):.4f}"
    if report["told_apart"]:
        return f"{ahead}, more than chance explains on these {examples:,} examples (p = {score['p']:.2g})"
    return (
        f"{ahead}, but on these {examples:,} examples the two cannot be told apart: by chance alone a difference "
        f"as large arises {100 * score['p']:.0f} times in 100"
    )


def _check_fit(a: Model, b: Model) -> None:
    """InputError where their answers cannot be scored alike."""
    first, second = a.task, b.task
    if type(first.model) is not type(second.model) or first.primary_metric != second.primary_metric:
        raise InputError(
            "task_mismatch",
            f"this model is for the task '{second.name}' ({second.primary_metric}), and {a.path} is for "
            f"'{first.name}' ({first.primary_metric})",
            location=b.path,
            hint="compare models of one task",
        )
    if set(first.labels or ()) != set(second.labels or ()):
        raise told_of_labels(a, b)


def _answered(
    models: Sequence[Model], data: Source, columns: dict[str, Any]
) -> tuple[list[Any], list[list[Any]]]:
    """The examples, and each model's answers to them. InputError where the two do not read the same."""
    examples: list[Any] = []
    predictions = []
    for model in models:
        settings, own = model.answering.labelled(data, columns, "compare")
        examples = examples or own
        if len(own) != len(examples):
            raise InputError(
                "example_count_mismatch",
                f"{models[0].path} reads {len(examples):,} examples from this data, and {model.path} {len(own):,}",
                location=name_of(data, "data"),
                hint=f"the models were trained on files of different formats: pass the settings that differ, such "
                f"as {option('delimiter')}",
            )
        for one, other in zip(examples, own, strict=True):
            if one.group_key != other.group_key:
                raise InputError(
                    "texts_differ",
                    f"{models[0].path} and {models[1].path} read different texts from this row",
                    location=other.location,
                    hint=f"the models were trained on other columns: name those of this file, such as "
                    f"{option('text_column', 'text')}",
                )
        predictions.append(list(model.answering.answers(settings)(own)))
    return examples, predictions


def _slowly(
    task: FittedTask,
    predictions: Sequence[Sequence[Any]],
    examples: Sequence[Any],
    seed: int,
    rounds: int | None,
) -> Difference:
    """The score that decides, computed for each resample."""

    def score(answers: Sequence[Any], some: Sequence[Any]) -> float:
        return task.metrics.compute(answers, some).values[task.primary_metric]

    def of(answers: Sequence[Any], numbers: NDArray[np.int64]) -> float:
        return score([answers[i] for i in numbers], [examples[i] for i in numbers])

    def mixed(swapped: NDArray[np.bool_]) -> tuple[float, float]:
        pairs = [
            (b, a) if swap else (a, b) for a, b, swap in zip(*predictions, swapped.tolist(), strict=True)
        ]
        left, right = zip(*pairs, strict=True)
        return score(left, examples), score(right, examples)

    a, b = predictions
    return compared_slowly(
        lambda some: of(a, some), lambda some: of(b, some), mixed, len(examples), seed, rounds
    )
