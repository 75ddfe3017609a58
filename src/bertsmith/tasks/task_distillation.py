"""A task learnt from examples and from a teacher's answers to them: distillation of a fine-tuned model (Hinton et
al. 2015; Sanh et al. 2019, section 4, where SQuAD is distilled a second time)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor

from bertsmith.errors import InputError, option
from bertsmith.loss import Loss
from bertsmith.models.encoder import Encoder
from bertsmith.objectives.objective import ModelParts, Objective
from bertsmith.packed import Packed
from bertsmith.tasks.batching import TaskBatch
from bertsmith.tasks.task import Task


class Taught(Objective):
    """Parts of the loss: the task's own, and `soft`, how far the student's answers are from the teacher's.

    The student's task and encoder are those that are trained and saved; the teacher stays as it is.
    """

    name = "taught"
    frozen_modules = ("teacher", "teacher_task")

    def __init__(
        self,
        task: Task,
        teacher: Encoder,
        teacher_task: Task,
        *,
        temperature: float,
        soft_weight: float,
        task_weight: float,
    ) -> None:
        super().__init__()
        self.task = task
        self.teacher = teacher.requires_grad_(False).eval()
        self.teacher_task = teacher_task.requires_grad_(False).eval()
        self._temperature = temperature
        own = dict(task.loss_weights) or {"task": 1.0}
        self.loss_weights = {part: weight * task_weight for part, weight in own.items()} | {
            "soft": soft_weight
        }

    def counts(self, batch: TaskBatch) -> Mapping[str, int]:
        """Those of the task; the teacher's answers are counted as its first part is."""
        counts = self.task.counts(batch)
        return {**counts, "soft": next(iter(counts.values()))}

    def loss(self, encoder: Encoder, batch: TaskBatch) -> Loss:
        """The task's sums, and those of `Task.apart`."""
        once = cast("Encoder", _Once(encoder))
        found = self.task.loss(once, batch)
        own = self.task.outputs(once, batch)
        with torch.no_grad():
            wanted = self.teacher_task.outputs(self.teacher, batch)
        soft = self.task.apart(own, wanted, batch, self._temperature)
        return Loss({**found.sums, "soft": soft}, self.counts(batch), found.num_correct)

    def export(self, encoder: Encoder) -> dict[str, ModelParts]:
        """The student's."""
        return self.task.export(encoder)


class _Once:
    """An encoder that computes the states of a batch once, though its task's loss and its answers both ask."""

    def __init__(self, encoder: Encoder) -> None:
        self._encoder = encoder
        self._known: dict[str, Any] = {}

    def __call__(self, packed: Packed, *, rows: Tensor | None = None) -> Tensor:
        if "last" not in self._known:
            self._known["last"] = self._encoder(packed)
        found = cast("Tensor", self._known["last"])
        return found if rows is None else found[rows]

    def hidden_states(self, packed: Packed) -> list[Tensor]:
        if "all" not in self._known:
            self._known["all"] = self._encoder.hidden_states(packed)
        return cast("list[Tensor]", self._known["all"])

    def __getattr__(self, name: str) -> Any:
        return getattr(self._encoder, name)


def check_teacher(task: Task, teacher: Task, place: str, longest: int) -> None:
    """InputError where a teacher's answers are not to the same question. longest: tokens that it takes."""
    if task.imitated == "":
        raise InputError(
            "teacher_not_applicable",
            f"the task '{task.name}' cannot be distilled from a teacher",
            argument="teacher.model",
            hint=f"fine-tune without {option('teacher.model')}",
        )
    if type(teacher) is not type(task):
        raise InputError(
            "teacher_task_differs",
            f"the teacher was fine-tuned for the task '{teacher.name}', not '{task.name}'",
            location=place,
            argument="teacher.model",
            hint="use a run of the same task",
        )
    if teacher.labels != task.labels:
        ours, theirs = (", ".join((one or ["none"])[:5]) for one in (task.labels, teacher.labels))
        raise InputError(
            "teacher_labels_differ",
            f"the labels of the teacher are {theirs}, those of the examples {ours}",
            location=place,
            argument="teacher.model",
            hint=f"train both on examples with the same labels ({option('label_names')} determines their order)",
        )
    if longest < task.reads:
        raise InputError(
            "student_longer_than_teacher",
            f"the teacher takes {longest:,} tokens, the student {task.reads:,}",
            location=place,
            argument="max_length",
            hint=f"use {option('max_length', longest)}",
        )
