"""Fine-tuning with an auxiliary language-modeling loss (Radford et al. 2018, section 3.2).

The loss is L(task) + weight · L(lm). Both are means: of the task over its examples, of language modeling over the
predicted tokens of all sequences that the task reads, special tokens included.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from bertsmith.loss import Loss
from bertsmith.models.encoder import Encoder
from bertsmith.objectives.language_modeling import CausalLM
from bertsmith.objectives.objective import ModelParts, Objective
from bertsmith.tasks.batching import TaskBatch
from bertsmith.tasks.task_distillation import MemoizedEncoder


class TaskWithLM(Objective):
    """The loss of a task, and as the part `lm` that of a causal language model on the same hidden states.

    Attributes:
        task: The task, or its distillation.
        lm: The language-modeling head, which is trained and not saved with the model.
    """

    name = "task_with_lm"

    def __init__(self, task: Objective, lm: CausalLM, weight: float) -> None:
        """Add a language-modeling loss with this weight to the loss of a task."""
        super().__init__()
        self.task, self.lm = task, lm
        self.loss_weights = {**task.loss_weights, "lm": weight}
        self.frozen_modules = tuple(f"task.{name}" for name in task.frozen_modules)

    def counts(self, batch: TaskBatch) -> Mapping[str, int]:
        """Return the counts of the task, and the number of predicted tokens: all but one of each sequence."""
        num_tokens = batch.tokens - int((batch.packed.lengths > 0).sum())
        return {**self.task.counts(batch), "lm": num_tokens}

    def loss(self, encoder: Encoder, batch: TaskBatch) -> Loss:
        """Return the sums of both losses."""
        memoized_encoder = cast("Encoder", MemoizedEncoder(encoder))
        lm = self.lm.sequence_loss(memoized_encoder, batch.packed)
        task = self.task.loss(memoized_encoder, batch)
        num_correct = {**task.num_correct, **lm.num_correct}
        return Loss({**task.sums, **lm.sums}, {**task.counts, **lm.counts}, num_correct)

    def export(self, encoder: Encoder) -> dict[str, ModelParts]:
        """Return the model of the task."""
        return self.task.export(encoder)
