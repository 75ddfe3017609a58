"""The family's head for sequences with an output for each label (Devlin et al. 2019, section 4.1)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from bertsmith.errors import InputError, option
from bertsmith.loss import Loss
from bertsmith.models.config import ModelConfig
from bertsmith.models.encoder import Encoder
from bertsmith.tasks.base import Metadata
from bertsmith.tasks.batching import TaskBatch
from bertsmith.tasks.settings import ClassSettings
from bertsmith.tasks.texts import TextModel

_MIN_WEIGHT = 1e-3  # in the initial bias: the balanced weight of a label that all examples have is 0


class ClassificationModel(TextModel):
    """Classifier with exactly one label for each text, trained with cross-entropy."""

    def __init__(
        self, config: ModelConfig, generator: torch.Generator, metadata: Metadata, settings: ClassSettings
    ) -> None:
        super().__init__(config, generator, metadata, settings)
        weights = metadata.get("weights")
        self.class_weights: Tensor | None
        self.register_buffer(
            "class_weights", None if weights is None else torch.tensor(weights), persistent=False
        )

    @property
    def head_init(self) -> Mapping[str, str]:
        """Return the head for next sentence prediction if the settings ask for it."""
        if self.settings.init_head_from == "none":
            return {}
        if (num_labels := len(self.metadata["labels"])) != 2:
            message = f"the head for the next sentence has two outputs, and there are {num_labels} labels"
            hint = f"remove {option('init_head_from')}"
            raise InputError("init_head_label_count", message, argument="init_head_from", hint=hint)
        if self.head.pooler is None or self.features.parts:
            raise InputError(
                "init_head_without_pooler",
                "the head for the next sentence reads the pooler, and this head does not",
                argument="init_head_from",
                hint=f"remove {option('init_head_from')}, or use a BERT model with its pooler and without "
                f"{option('head')} and {option('second_encoder')}",
            )
        return {"classifier": "pair"}

    def loss(self, encoder: Encoder, batch: TaskBatch) -> Loss:
        """Return the sum over the examples of the cross-entropies, each with the weight of its label.

        The mean is over the examples, not over their weights, so that it does not depend on the other examples of
        a batch.
        """
        logits, targets = self.logits(encoder, batch), batch.tensors["targets"]
        num_correct = (logits.detach().argmax(-1) == targets).sum()
        loss = F.cross_entropy(logits, targets, self.class_weights, reduction="sum")
        return Loss({"task": loss}, batch.counts, {"task": num_correct})


class MultilabelModel(ClassificationModel):
    """Classifier with any number of labels for each text, trained with binary cross-entropy."""

    problem_type = "multi_label_classification"

    def __init__(
        self, config: ModelConfig, generator: torch.Generator, metadata: Metadata, settings: ClassSettings
    ) -> None:
        super().__init__(config, generator, metadata, settings)
        if (frequencies := metadata.get("label_frequencies")) is not None:
            self._init_bias(torch.tensor(frequencies))

    def _init_bias(self, frequencies: Tensor) -> None:
        """Initialize the biases as log-odds of the frequencies of the labels (Lin et al. 2017, section 3.3).

        With 1/2 for each of many rare labels, the first updates would only lower all probabilities, also through
        the encoder, which may lose the features of the text.
        """
        log_odds = torch.logit(frequencies)
        if self.class_weights is not None:
            log_odds += self.class_weights.clamp(min=_MIN_WEIGHT).log()
        classifier: Any = self.head.classifier
        with torch.no_grad():
            classifier.linear.bias.copy_(log_odds)

    @property
    def head_init(self) -> Mapping[str, str]:
        """Return no head: heads of the base model choose one of two labels."""
        if self.settings.init_head_from != "none":
            raise InputError(
                "init_head_multi_label",
                "a head of the base model chooses one of two labels, and with "
                f"{option('multi_label', True)} a text has any number of labels",
                argument="init_head_from",
                hint=f"remove {option('init_head_from')} or {option('multi_label')}",
            )
        return {}

    def loss(self, encoder: Encoder, batch: TaskBatch) -> Loss:
        """Return the sum over the examples of the mean binary cross-entropy of the labels."""
        logits, targets = self.logits(encoder, batch), batch.tensors["targets"]
        loss = F.binary_cross_entropy_with_logits(
            logits, targets, reduction="sum", pos_weight=self.class_weights
        )
        num_correct = ((logits.detach() > 0) == targets.bool()).all(1).sum()
        return Loss({"task": loss / logits.shape[1]}, batch.counts, {"task": num_correct})

    def distillation_loss(
        self, outputs: Sequence[Tensor], targets: Sequence[Tensor], batch: TaskBatch, temperature: float
    ) -> Tensor:
        """Return the divergence of the probability of each label, averaged over the labels."""
        student, teacher = (torch.cat(list(rows)).float() / temperature for rows in (outputs, targets))
        present, absent = (
            F.kl_div(F.logsigmoid(a), F.logsigmoid(b), reduction="sum", log_target=True)
            for a, b in ((student, teacher), (-student, -teacher))
        )
        return temperature**2 * (present + absent) / student.shape[1]


def make_model(
    config: ModelConfig, generator: torch.Generator, metadata: Metadata, settings: ClassSettings
) -> ClassificationModel:
    """Return the model of a task with one label for each text, or with any number of labels."""
    model_type = MultilabelModel if metadata.get("separator") else ClassificationModel
    return model_type(config, generator, metadata, settings)
