"""Ensembles: several models of one task whose outputs are averaged before they are decoded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Self

import torch

from bertsmith.errors import InputError, option
from bertsmith.formatting import join_names, pluralize
from bertsmith.inference.model import Model, load
from bertsmith.inference.task_predictor import Changes, TaskInterface, TaskPredictor
from bertsmith.io.sources import Source
from bertsmith.tasks.batching import Item, Outputs
from bertsmith.tasks.results import Metrics

_MAX_LABELS = 5  # in a message


class EnsembleScores(NamedTuple):
    """The metrics of an ensemble and of each of its models, on the same examples."""

    ensemble: Metrics
    models: list[Metrics]


@dataclass(frozen=True)
class EnsembleOutputs(Outputs):
    """The averaged outputs, and the outputs and items of each model."""

    members: Sequence[tuple[Outputs, Sequence[Item]]] = ()


@dataclass(frozen=True)
class EnsemblePredictor(TaskPredictor):
    """Answers by the averaged outputs of several models, which may have different tokenizers.

    The first model's tokenizer and context are those of the ensemble.

    Attributes:
        members: The predictor of each model.
    """

    members: tuple[TaskPredictor, ...] = ()

    def _with(self, values: Changes, caller: str, batch_size: int | None) -> Self:
        """Return the predictor with changes, which apply to each model."""
        members = tuple(member._with(values, caller, batch_size) for member in self.members)
        return replace(super()._with(values, caller, batch_size), members=members)

    def preprocess(self, requests: Sequence[Any]) -> list[list[Item]]:
        """Return the items of each model; raise InputError if their windows differ."""
        items_by_member = [member.preprocess(requests) for member in self.members]
        expected = [self._window(item) for item in items_by_member[0]]
        for items in items_by_member[1:]:
            if (windows := [self._window(item) for item in items]) != expected:
                pairs = zip(expected, windows, strict=False)
                index = next((a[0] for a, b in pairs if a != b), 0)
                message = "the models split this example into different windows"
                hint = f"use one {option('max_length')} (and {option('stride')}) that each model supports"
                raise InputError("windows_differ", message, location=requests[index].location, hint=hint)
        return items_by_member

    def _window(self, item: Item) -> tuple[int, ...]:
        """Return the example and the window of an item, and its size if outputs are per token."""
        sizes = (item.size,) if self.task.model.outputs_per_token else ()
        return item.example, len(item.sequences), item.text_start, *sizes

    def forward(self, prepared: list[list[Item]]) -> EnsembleOutputs:
        """Return the averaged outputs; those of a single model unchanged."""
        outputs = [member.forward(items) for member, items in zip(self.members, prepared, strict=True)]
        members = list(zip(outputs, prepared, strict=True))
        if len(outputs) == 1:
            return EnsembleOutputs(outputs[0].per_item, outputs[0].shared, members)
        contributions = [
            map(member.task.decoder.ensemble_output, output.per_item)
            for member, output in zip(self.members, outputs, strict=True)
        ]
        per_item = list(map(self.task.decoder.combine_outputs, zip(*contributions, strict=True)))
        names = outputs[0].shared
        shared = {name: torch.stack([output.shared[name] for output in outputs]).mean(0) for name in names}
        return EnsembleOutputs(per_item, shared, members)

    def items(self, prepared: list[list[Item]]) -> list[Item]:
        """Return the first model's items."""
        return prepared[0]


class Ensemble(TaskInterface):
    """Several models of one task that answer together; `bertsmith.ensemble` makes one."""

    def __init__(self, models: Sequence[Model]) -> None:
        """Combine models; raise InputError if they do not fit together."""
        self.models = list(models)
        if not self.models:
            raise InputError("no_models", "an ensemble needs at least one model", hint="name a run")
        for model in self.models[1:]:
            _check_fit(self.models[0], model)

    def __repr__(self) -> str:
        return f"Ensemble of {', '.join(str(model.path) for model in self.models)}"

    @property
    def predictor(self) -> EnsemblePredictor:
        """The predictor, whose calibrated thresholds are the means of the models'."""
        members = tuple(model.predictor for model in self.models)
        first = members[0]
        return EnsemblePredictor(
            first.encoder,
            first.tokenizer,
            first.context,
            first.task.for_ensemble([member.task for member in members[1:]]),
            members,
            validation_digests=frozenset().union(*(member.validation_digests for member in members)),
            check=partial(_check_members, members),
        )

    def scores(self, data: Source, **settings: Any) -> EnsembleScores:
        """Return the metrics of the ensemble and of each model on labeled data."""
        predictor = self.predictor.with_settings(settings, "evaluate", data)
        examples = predictor.read(data)
        predictor.warn_of_validation(examples)
        predictions: list[Any] = []
        by_member: list[list[Any]] = [[] for _ in self.models]
        stats = [member.task.text_stats(member.tokenizer) for member in predictor.members]
        for answers in predictor.answers(examples):
            predictions += answers.predictions
            outputs_of_all: Any = answers.outputs
            parts = zip(predictor.members, outputs_of_all.members, by_member, stats, strict=True)
            for member, (outputs, items), member_predictions, member_stats in parts:
                member_predictions += member.decode(outputs, items, answers.examples)
                member_stats.add(items, answers.examples)
        members = zip(predictor.members, by_member, stats, strict=True)
        return EnsembleScores(
            predictor.metrics(predictions, examples, stats[0]),
            [member.metrics(answers, examples, texts) for member, answers, texts in members],
        )


def _check_members(members: Sequence[TaskPredictor], requests: Sequence[Any]) -> None:
    for member in members:
        if member.check is not None:
            member.check(requests)


def ensemble(
    runs: Sequence[str | Path | Model], device: str = "auto", *, precision: str = "auto"
) -> Ensemble:
    """Combine fine-tuned models, whose outputs are averaged before they are decoded.

    Args:
        runs: Runs, model folders, or models of one task with the same labels; for tasks with outputs per token
            (tag, answer) also with the same tokenizer. All of them are held in memory.
        device: The device of models that are loaded here.
        precision: The precision of models that are loaded here.

    Returns:
        An object that predicts and evaluates like a model.

    Raises:
        InputError: The models do not fit together.
    """
    if isinstance(runs, str | Path | Model):
        runs = [runs]
    return Ensemble([load(run, device, precision=precision) for run in runs])


def check_same_task(first: Model, other: Model) -> None:
    """Raise InputError if two models are for different tasks, or have different labels."""
    a, b = first.task, other.task
    if type(a.model) is not type(b.model) or a.primary_metric != b.primary_metric:
        raise InputError(
            "task_mismatch",
            f"this model is for the task '{b.name}' ({b.declaration.summary}), and {first.path} is for '{a.name}' "
            f"({a.declaration.summary})",
            location=other.path,
            hint="use models of one task",
        )
    if different := set(a.labels or ()) ^ set(b.labels or ()):
        raise InputError(
            "labels_mismatch",
            f"only one of this model and {first.path} has {pluralize(len(different), 'label')}: "
            f"{join_names(sorted(different), _MAX_LABELS)}",
            location=other.path,
            hint="use models with the same labels",
        )


def _check_fit(first: Model, other: Model) -> None:
    """Raise InputError if the outputs of two models cannot be averaged."""
    check_same_task(first, other)
    a, b = first.task, other.task
    metadata, other_metadata = (
        {**task.declaration.part("metadata_type")(**task.metadata).model_dump(), "labels": task.labels}
        for task in (a, b)
    )
    for name, value in metadata.items():
        if name not in a.declaration.averaged_metadata and value != other_metadata[name]:
            raise InputError(
                "metadata_mismatch",
                f"this model was trained with {name} {other_metadata[name]!r:.60}, and {first.path} with "
                f"{value!r:.60}",
                location=other.path,
                hint="combine models that were trained on data of the same form",
            )
    if a.model.outputs_per_token and first.tokenizer.info()["digest"] != other.tokenizer.info()["digest"]:
        message = f"this model and {first.path} have different tokenizers, so their tokens differ"
        hint = f"for the task '{a.name}', combine models whose base models have the same tokenizer"
        raise InputError("tokenizer_mismatch", message, location=other.path, hint=hint)
