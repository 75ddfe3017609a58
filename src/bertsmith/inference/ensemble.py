"""`bertsmith evaluate RUN1 RUN2 …`: several models of one task answer together.

What they say of an example is averaged before anything is decided: probabilities where the task has any, logits
of starts and ends, numbers, cosines (`Task.vote`, `Task.outcome`). One decoding makes the answer, as ever.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from operator import is_not
from pathlib import Path
from typing import Any, NamedTuple

import torch

from bertsmith.errors import InputError, option
from bertsmith.formatting import join_names, pluralize
from bertsmith.inference.answering import Answering, Changes, in_chunks
from bertsmith.inference.model import Model, load
from bertsmith.inference.predictor import Predictor
from bertsmith.io.prefetch import prefetch
from bertsmith.io.sources import Source
from bertsmith.settings import Settings
from bertsmith.tasks.batching import Answers, Item, Outputs
from bertsmith.tasks.fitted import FittedTask
from bertsmith.tasks.results import Metrics

_SHOWN = 5  # labels in a message


class EnsembleScores(NamedTuple):
    """Of all together, and of each alone, on the same examples."""

    together: Metrics
    alone: list[Metrics]


@dataclass(frozen=True)
class _Together(Answering):
    """The task that decodes, with the first model's tokenizer and place; and each model by itself."""

    members: tuple[Answering, ...] = ()

    def _settings(self, changes: Changes, verb: str, file: Source = "") -> Settings:
        """The first model's settings with those given, which `model_fields_set` names: each of the others
        keeps its own in all but these."""
        found, own = super()._settings(changes, verb, file), self.task.settings
        given = {name for name, value in changes.items() if value is not None}
        given |= {name for name, value in found if value != getattr(own, name)}
        return type(found).model_construct(_fields_set=given, **dict(found))

    def read(self, examples: Sequence[Any], settings: Settings) -> list[tuple[FittedTask, list[Item]]]:
        """Return the task of each model with its settings, and its items."""
        changes = {name: getattr(settings, name) for name in settings.model_fields_set}
        encoded = []
        for member in self.members:
            member_settings = member.task.settings
            settings_type = type(member_settings)
            task = member.task.with_settings(
                settings_type.of(member_settings.model_dump() | changes, "evaluate")
            )
            encoded.append((task, task.encode(examples, member.tokenizer)))
        return encoded

    def _made(self, examples: Sequence[Any], read: Any, settings: Settings) -> Answers:
        return self.all_of(examples, read, settings)[0]

    def all_of(
        self, examples: Sequence[Any], read: Sequence[tuple[FittedTask, list[Item]]], settings: Settings
    ) -> tuple[Answers, list[list[Any]]]:
        """Return the answers of the ensemble, and the predictions of each model."""
        member_outputs = [
            member.outputs_of(task, items) for member, (task, items) in zip(self.members, read, strict=True)
        ]
        member_predictions = [
            task.decoder.decode(outputs, items, examples)
            for (task, items), outputs in zip(read, member_outputs, strict=True)
        ]
        all_items = [items for _, items in read]
        self._check_items(all_items, examples)
        if len(self.members) == 1:  # bit-equal to the model
            return Answers(
                member_outputs[0], all_items[0], examples, member_predictions[0]
            ), member_predictions
        outputs = self._combine(member_outputs, [task for task, _ in read])
        predictions = self.task.with_settings(settings).decoder.decode(outputs, all_items[0], examples)
        return Answers(outputs, all_items[0], examples, predictions), member_predictions

    def _combine(self, outputs: Sequence[Outputs], tasks: Sequence[FittedTask]) -> Outputs:
        """Combine the models' outputs into those that `decode` takes."""
        contributions = [
            [task.decoder.ensemble_output(output) for output in model_outputs.per_item]
            for task, model_outputs in zip(tasks, outputs, strict=True)
        ]
        per_item = [
            self.task.decoder.combine_outputs(of_item) for of_item in zip(*contributions, strict=True)
        ]
        shared = {
            name: torch.stack([model_outputs.shared[name] for model_outputs in outputs]).mean(0)
            for name in outputs[0].shared
        }
        return Outputs(per_item, shared)

    def _check_items(self, items: Sequence[Sequence[Item]], examples: Sequence[Any]) -> None:
        """InputError where the models read an example in another number of windows."""

        def pieces(item: Item) -> tuple[int, ...]:
            sizes = (item.size,) if self.task.model.outputs_per_token else ()
            return item.example, len(item.sequences), item.first, *sizes

        first = list(map(pieces, items[0]))
        for own in items[1:]:
            if (other := list(map(pieces, own))) != first:
                where = next((a[0] for a, b in zip(first, other, strict=False) if a != b), 0)
                raise InputError(
                    "windows_differ",
                    "the models split this example into different windows",
                    location=examples[where].location,
                    hint=f"use one {option('max_length')} (and {option('stride')}) that each model supports",
                )


class Ensemble(Predictor):
    """Several models of one task, which answer together. `ensemble` makes one."""

    def __init__(self, models: Sequence[Model]) -> None:
        """InputError where they do not fit together."""
        self.models = list(models)
        self._answering: _Together | None = None
        if not self.models:
            raise InputError("no_models", "an ensemble needs at least one model", hint="name a run")
        for model in self.models[1:]:
            _check_fit(self.models[0], model)

    def __repr__(self) -> str:
        return f"Ensemble of {', '.join(str(model.path) for model in self.models)}"

    @property
    def answering(self) -> _Together:
        """What answers."""
        members = tuple(model.answering for model in self.models)
        if self._answering is None or any(map(is_not, self._answering.members, members)):
            first = members[0]
            task = first.task.for_ensemble([member.task for member in members[1:]])
            self._answering = _Together(task, first.encoder, first.tokenizer, first.place, members)
        return self._answering

    @property
    def task(self) -> FittedTask:
        """The task, with what each model chose on dev averaged."""
        return self.answering.task

    def scores(self, file: Source, **columns: Any) -> EnsembleScores:
        """The scores of all together on a labelled file, and those of each alone."""
        answering = self.answering
        settings, examples = answering.labelled(file, columns)
        together: list[Any] = []
        alone: list[list[Any]] = [[] for _ in self.models]
        with closing(prefetch(in_chunks(examples), lambda some: answering.read(some, settings))) as parts:
            for some, read in parts:
                answers, each = answering.all_of(some, read, settings)
                together += answers.predictions
                for found, own in zip(alone, each, strict=True):
                    found += own
        return EnsembleScores(
            answering.scored(together, examples),
            [
                model.answering.scored(found, examples)
                for model, found in zip(self.models, alone, strict=True)
            ],
        )


def ensemble(
    runs: Sequence[str | Path | Model], device: str = "auto", *, precision: str = "auto"
) -> Ensemble:
    """Several fine-tuned runs (or model folders, or models) as one that predicts and evaluates: what they say is
    averaged before anything is decided. They are held in memory together.

    InputError where they do not fit together: the same task and labels, and where outputs are of tokens (tag,
    answer) the same tokenizer.
    """
    if isinstance(runs, str | Path | Model):
        runs = [runs]
    return Ensemble(
        [run if isinstance(run, Model) else load(run, device, precision=precision) for run in runs]
    )


def _check_fit(first: Model, other: Model) -> None:
    """InputError where what two models say of an example cannot be averaged."""
    a, b = first.task, other.task
    if type(a.model) is not type(b.model):
        raise InputError(
            "task_mismatch",
            f"this model is for the task '{b.name}' ({b.declaration.summary}), and {first.path} is for '{a.name}' "
            f"({a.declaration.summary})",
            location=other.path,
            hint="combine models of one task",
        )
    if a.labels != b.labels:
        raise told_of_labels(first, other)
    metadata, other_metadata = (
        task.declaration.part("metadata_type")(**task.metadata).model_dump() for task in (a, b)
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
        raise InputError(
            "tokenizer_mismatch",
            f"this model and {first.path} have different tokenizers, so their tokens differ",
            location=other.path,
            hint=f"for the task '{a.name}', combine models whose base models have the same tokenizer",
        )


def told_of_labels(first: Model, other: Model) -> InputError:
    """The error for two models whose labels differ."""
    a, b = ([*(model.task.labels or ())] for model in (first, other))
    strange = [label for label in b if label not in a] or [label for label in a if label not in b]
    if not strange:
        return InputError(
            "label_order_mismatch",
            f"this model has its labels in another order than {first.path}",
            location=other.path,
            hint="train it again",
        )
    has, lacks = ("has", "lacks") if strange[0] in b else ("lacks", "has")
    return InputError(
        "labels_mismatch",
        f"this model {has} {pluralize(len(strange), 'label')} that {first.path} "
        f"{lacks}: {join_names(strange, _SHOWN)}",
        location=other.path,
        hint="use models with the same labels",
    )
