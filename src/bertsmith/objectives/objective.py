"""The interface of training objectives, their registry, and evaluation on held-out batches.

An objective is one file and one line in `OBJECTIVES`. It owns its heads and any second encoder that it needs (a
generator, a teacher, a second tower), and returns sums and counts by part. Fine-tuning tasks are objectives too.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from bertsmith.device import ComputeContext
from bertsmith.errors import InputError, option
from bertsmith.instances.settings import DataSettings
from bertsmith.loss import Loss
from bertsmith.models.config import ModelConfig
from bertsmith.models.encoder import Encoder
from bertsmith.models.heads import ProblemType
from bertsmith.objectives.settings import OBJECTIVES
from bertsmith.registry import lookup
from bertsmith.settings import Settings

MODEL, GENERATOR = "model", "generator"
"""Names of the folders in a run: its model, and ELECTRA's generator. An objective with another second encoder adds
its own."""


@dataclass(frozen=True)
class ModelParts:
    """The content of a model folder: a configuration and its modules.

    Attributes:
        config: The encoder's configuration.
        modules: "encoder" and any of `heads.PARTS`.
        labels: The names of the classes, if there are any.
        problem_type: As in Hugging Face's config.json.
        files: Further JSON files by their paths in the folder.
    """

    config: ModelConfig
    modules: Mapping[str, nn.Module]
    labels: list[str] | None = None
    problem_type: ProblemType | None = None
    files: Mapping[str, Any] = field(default_factory=dict)


class Objective(nn.Module):
    """Heads and their loss. Subclasses implement `made`, `loss`, and `folders`.

    Attributes:
        name: The name in settings.
        identifying_part: The part of a model that only this objective trains; "" if there is none.
        settings_type: Type of the settings group `objective`.
        required_model_settings: Settings of `model` that the objective requires.
        default_data_settings: Defaults of the settings `data` for this objective.
        loss_weights: Weights of the parts of the loss; 1 if omitted.
        perplexity_parts: Parts whose mean loss is the logarithm of a perplexity.
        summed_parts: Parts of which training minimizes the sum instead of the mean; reported values are means.
        frozen_modules: Names of modules that are not trained and never saved (a teacher).
        uses_corpus_init: True if small models initialize embeddings and output bias from corpus statistics by
            default (setting `start`).
        supports_filling: True if batches may be filled up (`PairBatch.filled`) without effect on the loss.
    """

    name: ClassVar[str]
    identifying_part: ClassVar[str] = ""
    settings_type: ClassVar[type[Settings]] = Settings
    required_model_settings: ClassVar[Mapping[str, Any]] = {}
    default_data_settings: ClassVar[Mapping[str, Any]] = {}
    loss_weights: Mapping[str, float] = {}
    perplexity_parts: ClassVar[tuple[str, ...]] = ()
    summed_parts: tuple[str, ...] = ()
    frozen_modules: tuple[str, ...] = ()
    uses_corpus_init: ClassVar[bool] = False
    supports_filling: ClassVar[bool] = False

    @classmethod
    def from_settings(
        cls, encoder: Encoder, generator: torch.Generator, data: Any, settings: Any
    ) -> Objective:
        """Build the objective of a run.

        Args:
            encoder: The encoder to train, whose tensors the objective may share.
            generator: Draws the first weights.
            data: The settings by which text becomes instances.
            settings: An instance of `settings_type`.

        Raises:
            InputError: The settings do not fit the objective.
        """
        raise NotImplementedError

    def load_teacher(self, encoder: Encoder, *, fresh: bool) -> None:
        """Load models that were trained before, such as a teacher.

        Args:
            encoder: The encoder to train.
            fresh: The run starts now, so that the objective may initialize encoder and heads; otherwise a
                checkpoint has their weights.
        """

    def check_tokenizer(self, tokenizer: Any) -> None:
        """Raise InputError if a loaded model, such as a teacher, has another tokenizer."""

    @property
    def input_digests(self) -> tuple[str, ...]:
        """Digests of the inputs of a run other than its data, settings, and initial model."""
        return ()

    def counts(self, batch: Any) -> Mapping[str, int]:
        """Return the number of items (tokens, pairs, words, choices) over which each part of the loss is a mean.

        It is known before the forward pass: an update divides by the sum over all its batches and ranks.
        """
        counts: Mapping[str, int] = batch.counts
        return counts

    def loss(self, encoder: Encoder, batch: Any) -> Loss:
        """Return the loss of a batch.

        Args:
            encoder: The encoder to train.
            batch: A batch of the objective's type on the encoder's device.

        Returns:
            Sums by part, their counts, and the numbers of correct predictions.
        """
        raise NotImplementedError

    def init_output_bias(self, tokens: Any) -> None:
        """Initialize the output bias from token frequencies.

        Args:
            tokens: The number of occurrences of each token in the corpus, int64 [V].

        Raises:
            InputError: The objective has no output bias.
        """
        raise InputError(
            "no_output_bias",
            f"the objective '{self.name}' has no output bias",
            argument="start.output_bias",
            hint=f"use {option('start.output_bias', 'zero')}",
        )

    def unigram_baseline(self, tokens: Any, batches: Iterable[Any]) -> dict[str, float]:
        """Return the scores on these batches of a model that ignores the context, by name."""
        return {}

    def training_record(self) -> dict[str, Any]:
        """Return what bertsmith.json records of the training in addition to the folder's other files."""
        return {}

    def export(self, encoder: Encoder) -> dict[str, ModelParts]:
        """Return the models to save by the name of their folder."""
        raise NotImplementedError

    def train(self, mode: bool = True) -> Objective:
        """Set training mode, except for frozen modules, which stay in evaluation mode."""
        super().train(mode)
        for name in self.frozen_modules:
            self.get_submodule(name).eval()
        return self


@dataclass
class _LossTotals:
    """Totals over batches by part, on the device until the end."""

    sums: dict[str, Tensor] = field(default_factory=dict)
    correct: dict[str, Tensor] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)

    def add(self, loss: Loss) -> None:
        for part, value in loss.sums.items():
            self.sums[part] = self.sums.get(part, 0) + value.double()
            self.counts[part] = self.counts.get(part, 0) + loss.counts[part]
        for part, value in loss.num_correct.items():
            self.correct[part] = self.correct.get(part, 0) + value

    def metrics(self, perplexities: Iterable[str] = ()) -> dict[str, float]:
        """Return mean losses, accuracies, and perplexities by name."""
        metrics = {f"{part}_loss": float(v) / max(1, self.counts[part]) for part, v in self.sums.items()}
        metrics |= {
            f"{part}_accuracy": float(v) / max(1, self.counts[part]) for part, v in self.correct.items()
        }
        for part in perplexities:
            if f"{part}_loss" in metrics:
                metrics[f"{part}_perplexity"] = math.exp(min(metrics[f"{part}_loss"], 700.0))
        return metrics


def check_no_pairs(data: DataSettings, objective: str) -> None:
    """Raise InputError if the data has a sentence task, which the objective of this name does not train."""
    if data.sentence_task != "none":
        raise InputError(
            "sentence_task_unsupported",
            f"the objective '{objective}' has no sentence task, and this is '{data.sentence_task}'",
            argument="data.sentence_task",
            hint=f"use {option('data.sentence_task', 'none')} and {option('data.instances', 'full_sentences')}",
        )


def check_corruption(data: DataSettings, objective: str, reason: str, *unsupported: str) -> None:
    """Raise InputError if the data corrupts text in a way that the objective of this name does not support."""
    if data.corruption in unsupported:
        raise InputError(
            "corruption_unsupported",
            f"'{data.corruption}' is not supported by the objective '{objective}', which {reason}",
            argument="data.corruption",
            hint=f"use {option('data.corruption', 'none')}, or another objective",
        )


def evaluate_objective(
    objective: Objective, encoder: Encoder, batches: Iterable[Any], context: ComputeContext
) -> dict[str, float]:
    """Return mean losses, accuracies, and perplexities of an objective over held-out batches."""
    totals, reader = _LossTotals(), context.autocast_encoder(encoder)
    with torch.inference_mode():
        for batch in batches:
            totals.add(objective.loss(reader, context.to_device(batch)))
    return totals.metrics(objective.perplexity_parts)


def infer_objective(config: ModelConfig, parts: Collection[str]) -> str:
    """Return the name of the objective that trained a model with these parts, or the default."""
    for name in OBJECTIVES:
        objective = objective_type(name)
        if objective.identifying_part in parts and all(
            getattr(config, key) == value for key, value in objective.required_model_settings.items()
        ):
            return name
    return next(iter(OBJECTIVES))


def objective_type(name: str) -> type[Objective]:
    """Return the class of an objective; raise InputError if there is none of this name."""
    return lookup(OBJECTIVES, name, f"there is no objective '{name}'", "objective")
