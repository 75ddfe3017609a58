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

from torch import Tensor

from bertsmith.errors import InputError, option
from bertsmith.formatting import join_names, pluralize
from bertsmith.inference.answering import Answering, Changes, in_chunks
from bertsmith.inference.model import Model, load
from bertsmith.inference.predictor import Predictor
from bertsmith.io.prefetch import prefetch
from bertsmith.io.sources import Source
from bertsmith.settings import Settings
from bertsmith.tasks.error_analysis import Answers
from bertsmith.tasks.items import Item
from bertsmith.tasks.scores import Scores
from bertsmith.tasks.task import Task

_SHOWN = 5  # labels in a message


class EnsembleScores(NamedTuple):
    """Of all together, and of each alone, on the same examples."""

    together: Scores
    alone: list[Scores]


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

    def read(self, examples: Sequence[Any], settings: Settings) -> list[tuple[Task, list[Item]]]:
        """Of each model the task with which it answers, and what it reads."""
        changed = {name: getattr(settings, name) for name in settings.model_fields_set}
        found = []
        for member in self.members:
            own = member.task.settings
            task = member.task.under(type(own).of(own.model_dump() | changed, "evaluate"))
            found.append((task, task.items(examples, member.tokenizer)))
        return found

    def _made(self, examples: Sequence[Any], read: Any, settings: Settings) -> Answers:
        return self.all_of(examples, read, settings)[0]

    def all_of(
        self, examples: Sequence[Any], read: Sequence[tuple[Task, list[Item]]], settings: Settings
    ) -> tuple[Answers, list[list[dict[str, Any]]]]:
        """The answers of all together to what they have read, and of each alone."""
        votes: list[list[Tensor]] = []
        every: list[Sequence[Tensor]] = []
        alone = []
        items = [own for _, own in read]
        for member, (task, own) in zip(self.members, read, strict=True):
            outputs = member.outputs_of(task, own)
            alone.append(task.decode(outputs, own, examples))
            every.append(outputs)
            votes.append([task.vote(output) for output in outputs])
        self._check_items(items, examples)
        if len(self.members) == 1:  # to the bit
            return Answers(every[0], items[0], examples, alone[0]), alone
        task = self.task.under(settings)
        outcomes = [task.outcome(of_item) for of_item in zip(*votes, strict=True)]
        return Answers(outcomes, items[0], examples, task.decode(outcomes, items[0], examples)), alone

    def _check_items(self, items: Sequence[Sequence[Item]], examples: Sequence[Any]) -> None:
        """InputError where the models read an example in another number of windows."""

        def pieces(item: Item) -> tuple[int, ...]:
            sizes = (item.size,) if self.task.by_token else ()
            return item.example, len(item.sequences), item.first, *sizes

        first = list(map(pieces, items[0]))
        for own in items[1:]:
            if (other := list(map(pieces, own))) != first:
                where = next((a[0] for a, b in zip(first, other, strict=False) if a != b), 0)
                raise InputError(
                    "windows_differ",
                    "the models split this example into different windows",
                    location=examples[where].place,
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
            task = first.task.together([member.task for member in members[1:]])
            self._answering = _Together(task, first.encoder, first.tokenizer, first.place, members)
        return self._answering

    @property
    def task(self) -> Task:
        """The task, with what each model chose on dev averaged."""
        return self.answering.task

    def scores(self, file: Source, **columns: Any) -> EnsembleScores:
        """The scores of all together on a labelled file, and those of each alone."""
        answering = self.answering
        settings, examples = answering.labelled(file, columns)
        together: list[dict[str, Any]] = []
        alone: list[list[dict[str, Any]]] = [[] for _ in self.models]
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
    if type(a) is not type(b):
        raise InputError(
            "task_mismatch",
            f"this model is for the task '{b.name}' ({b.summary}), and {first.path} is for '{a.name}' "
            f"({a.summary})",
            location=other.path,
            hint="combine models of one task",
        )
    if a.labels != b.labels:
        raise told_of_labels(first, other)
    facts, others = (task.facts_type(**task.kept_facts).model_dump() for task in (a, b))
    for name, value in facts.items():
        if name not in a.own_facts and value != others[name]:
            raise InputError(
                "metadata_mismatch",
                f"this model was trained with {name} {others[name]!r:.60}, and {first.path} with {value!r:.60}",
                location=other.path,
                hint="combine models that were trained on data of the same form",
            )
    if a.by_token and first.tokenizer.info()["digest"] != other.tokenizer.info()["digest"]:
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
