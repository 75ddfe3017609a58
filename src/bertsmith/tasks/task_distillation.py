"""Distillation of a fine-tuned teacher: a task is learned from labels and from the teacher's outputs.

References: Hinton et al. 2015; Sanh et al. 2019, section 4, where SQuAD is distilled a second time.
"""

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
from bertsmith.tasks.base import TaskModel
from bertsmith.tasks.batching import TaskBatch
from bertsmith.tasks.fitted_task import FittedTask


class TaskDistillation(Objective):
    """The loss of a task, and as the part `soft` the divergence of the student's outputs from the teacher's.

    The student's heads and encoder are trained and saved; the teacher is fixed.

    Attributes:
        task: The student's heads.
        teacher: The teacher's encoder.
        teacher_task: The teacher's heads.
    """

    name = "taught"
    frozen_modules = ("teacher", "teacher_task")

    def __init__(
        self,
        task: TaskModel,
        teacher: Encoder,
        teacher_task: TaskModel,
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
        weights = dict(task.loss_weights) or {"task": 1.0}
        self.loss_weights = {part: weight * task_weight for part, weight in weights.items()}
        self.loss_weights |= {"soft": soft_weight}

    def counts(self, batch: TaskBatch) -> Mapping[str, int]:
        """Return the counts of the task; `soft` has that of its first part."""
        counts = self.task.counts(batch)
        return {**counts, "soft": next(iter(counts.values()))}

    def loss(self, encoder: Encoder, batch: TaskBatch) -> Loss:
        """Return the sums of the task's loss and of `TaskModel.distillation_loss`."""
        cached_encoder = cast("Encoder", MemoizedEncoder(encoder))
        loss = self.task.loss(cached_encoder, batch)
        outputs = self.task.outputs(cached_encoder, batch)
        with torch.no_grad():
            targets = self.teacher_task.outputs(self.teacher, batch)
        soft = self.task.distillation_loss(outputs, targets, batch, self._temperature)
        return Loss({**loss.sums, "soft": soft}, self.counts(batch), loss.num_correct)

    def export(self, encoder: Encoder) -> dict[str, ModelParts]:
        """Return the student."""
        return self.task.export(encoder)


class MemoizedEncoder:
    """An encoder that computes the hidden states of a batch once for several losses and outputs."""

    def __init__(self, encoder: Encoder) -> None:
        self._encoder = encoder
        self._cache: dict[str, Any] = {}

    def __call__(self, packed: Packed, *, rows: Tensor | None = None) -> Tensor:
        if "last" not in self._cache:
            self._cache["last"] = self._encoder(packed)
        states = cast("Tensor", self._cache["last"])
        return states if rows is None else states[rows]

    def hidden_states(self, packed: Packed) -> list[Tensor]:
        if "all" not in self._cache:
            self._cache["all"] = self._encoder.hidden_states(packed)
        return cast("list[Tensor]", self._cache["all"])

    def __getattr__(self, name: str) -> Any:
        return getattr(self._encoder, name)


def check_teacher(student: FittedTask, teacher: FittedTask, location: str, teacher_length: int) -> None:
    """Raise InputError if a teacher cannot teach a student.

    Args:
        student: The student's task.
        teacher: The teacher's task.
        location: The teacher's path.
        teacher_length: The number of tokens that the teacher can read.
    """
    if not student.model.supports_distillation:
        message, hint = f"the task '{student.name}' has no distillation", f"remove {option('teacher.model')}"
        raise InputError("teacher_not_applicable", message, argument="teacher.model", hint=hint)
    if type(teacher.model) is not type(student.model):
        message = f"the teacher was fine-tuned for the task '{teacher.name}', not '{student.name}'"
        hint = "use a run of the same task"
        raise InputError(
            "teacher_task_differs", message, location=location, argument="teacher.model", hint=hint
        )
    if teacher.labels != student.labels:
        labels = ", ".join((teacher.labels or ["none"])[:5])
        message = f"the teacher has other labels than the examples, or another order: {labels}"
        hint = f"train both on examples with the same labels ({option('label_names')} determines their order)"
        raise InputError(
            "teacher_labels_differ", message, location=location, argument="teacher.model", hint=hint
        )
    if teacher_length < student.encoder.max_length:
        length = student.encoder.max_length
        message = f"the teacher reads at most {teacher_length:,} tokens, and the student {length:,}"
        hint = f"use {option('max_length', teacher_length)}"
        raise InputError(
            "student_longer_than_teacher", message, location=location, argument="max_length", hint=hint
        )
