"""The interface of training objectives, their registry, and evaluation on held-out batches.

An objective is one class and one line in `OBJECTIVES`. It owns its heads and any second encoder that it needs (a
generator, a teacher, a second tower), and computes the loss of a batch. A loss has one or more parts, such as
`mlm` and `nsp`, each with a sum, a count, and a weight. Fine-tuning tasks are objectives too.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from bertsmith.device import ComputeContext
from bertsmith.errors import InputError, option
from bertsmith.instances.settings import DataSettings
from bertsmith.loss import Loss
from bertsmith.models.config import ModelConfig, ProblemType
from bertsmith.models.encoder import Encoder
from bertsmith.models.family import get_family
from bertsmith.models.pretraining_heads import MaskedLMHead
from bertsmith.models.weight_init import init_output_bias, unigram_cross_entropy
from bertsmith.objectives.settings import OBJECTIVES
from bertsmith.registry import lookup
from bertsmith.settings import Settings

MODEL, GENERATOR = "model", "generator"
"""Names of the model folders in a run: the trained model, and ELECTRA's generator. An objective with another
second encoder adds a name of its own."""
_MAX_EXPONENT = 700.0  # of a perplexity: exp(710) exceeds the largest float


@dataclass(frozen=True)
class ModelParts:
    """The content of a model folder: a configuration and its modules.

    Attributes:
        config: The encoder's configuration.
        modules: The encoder ("encoder") and heads, by their names in a model folder.
        labels: The names of the classes; None without a classifier.
        problem_type: As in Hugging Face's config.json.
        files: Further JSON files by their paths in the folder.
    """

    config: ModelConfig
    modules: Mapping[str, nn.Module]
    labels: list[str] | None = None
    problem_type: ProblemType | None = None
    files: Mapping[str, Any] = field(default_factory=dict)


class Objective(nn.Module):
    """Heads and their loss. Subclasses implement `from_settings` and `loss`.

    Attributes:
        name: The name in settings.
        identifying_part: A head in the model folder by which `infer_objective` recognizes that a model was trained
            with this objective, if the model also has the `required_model_settings`; "" if there is none.
        settings_type: The type of the settings group `objective`.
        required_model_settings: Settings of `model` that the objective requires.
        default_data_settings: The defaults of the settings `data` for this objective.
        loss_weights: The weights of the parts of the loss; 1 if omitted.
        perplexity_parts: Parts of the loss of which `evaluate_objective` also reports the perplexity, the
            exponential of their mean.
        summed_parts: Parts of the loss of which training minimizes the sum instead of the mean. Their own reported
            values are means; the total contains the sum.
        frozen_modules: The names of modules that are not trained and never saved, such as a teacher.
        uses_corpus_init: True if small models by default initialize embeddings and output bias from corpus
            statistics (settings `start`).
        supports_filling: True if batches may be padded (`MaskedBatch.padded_to`) without effect on the loss, which
            CUDA graphs require.
        lm_directions: The directions in which a model must predict (`HeadStructure.lm_directions`).
        masked: The masked-LM head, if the objective has one.
    """

    name: ClassVar[str]
    identifying_part: ClassVar[str] = ""
    settings_type: ClassVar[type[Settings]] = Settings
    required_model_settings: ClassVar[Mapping[str, Any]] = {}
    default_data_settings: ClassVar[Mapping[str, Any]] = {}
    loss_weights: Mapping[str, float] = {}
    perplexity_parts: tuple[str, ...] = ()
    summed_parts: tuple[str, ...] = ()
    frozen_modules: tuple[str, ...] = ()
    uses_corpus_init: ClassVar[bool] = False
    supports_filling: ClassVar[bool] = False
    lm_directions: ClassVar[int] = 1
    masked: MaskedLMHead

    @classmethod
    def from_settings(
        cls, encoder: Encoder, generator: torch.Generator, data: Any, settings: Any
    ) -> Objective:
        """Build the objective of a run.

        Args:
            encoder: The encoder to train, whose tensors the objective may share.
            generator: The random number generator for the initial weights.
            data: The data settings.
            settings: The objective's settings, of `settings_type`.

        Raises:
            InputError: The settings are not supported by the objective.
        """
        raise NotImplementedError

    def load_teacher(self, encoder: Encoder, *, fresh: bool) -> None:
        """Load other trained models that the objective needs, such as a teacher.

        Args:
            encoder: The encoder to train.
            fresh: True if the run starts, so that the objective may also initialize encoder and heads; False if it
                resumes, and their weights come from a checkpoint.
        """

    def check_tokenizer(self, tokenizer: Any) -> None:
        """Raise InputError if a loaded model, such as a teacher, has a different tokenizer."""

    @property
    def input_digests(self) -> tuple[str, ...]:
        """Digests of inputs of a run other than data, settings, and initial model, such as a teacher's weights."""
        return ()

    def counts(self, batch: Any) -> Mapping[str, int]:
        """Return the number of items (tokens, pairs, words, or choices) that each part of the loss sums over.

        It is known before the forward pass, since the loss is divided by the total of all batches and ranks of an
        optimizer update.
        """
        counts: Mapping[str, int] = batch.counts
        return counts

    def loss(self, encoder: Encoder, batch: Any) -> Loss:
        """Return the loss of a batch.

        Args:
            encoder: The encoder to train.
            batch: A batch on the encoder's device, of the type that the objective takes.
        """
        raise NotImplementedError

    def init_output_bias(self, token_counts: NDArray[np.int64]) -> None:
        """Set the bias of the masked-LM head to the logarithm of each token's frequency in the corpus, int64 [V].

        Raises:
            InputError: The objective has no such head, or the head has no bias.
        """
        bias = self.masked.bias if hasattr(self, "masked") else None
        if bias is None:
            message = f"the head of the objective '{self.name}' has no output bias"
            hint = f"use {option('start.output_bias', 'zero')}"
            raise InputError("no_output_bias", message, argument="start.output_bias", hint=hint)
        init_output_bias(bias, token_counts)

    def unigram_baseline(self, token_counts: NDArray[np.int64], batches: Iterable[Any]) -> dict[str, float]:
        """Return metrics by name of a unigram model, which predicts by `token_counts` alone, on these batches."""
        if "mlm" not in self.perplexity_parts:
            return {}
        return {"unigram_mlm_loss": unigram_cross_entropy(token_counts, (batch.labels for batch in batches))}

    def training_record(self) -> dict[str, Any]:
        """Return further entries about the training for the bertsmith.json of a model folder."""
        return {}

    def export(self, encoder: Encoder) -> dict[str, ModelParts]:
        """Return the models to save, by the names of their folders; by default the encoder and all heads."""
        heads = {name: module for name, module in self.named_children() if name not in self.frozen_modules}
        return {MODEL: ModelParts(encoder.config, {"encoder": encoder, **heads})}

    def train(self, mode: bool = True) -> Objective:
        """Set training mode, except for frozen modules, which stay in evaluation mode."""
        super().train(mode)
        for name in self.frozen_modules:
            self.get_submodule(name).eval()
        return self


def check_data_settings(data: DataSettings, objective: str, *unsupported_corruptions: str) -> None:
    """Raise InputError for a sentence task, and for kinds of corruption that an objective does not support."""
    if data.sentence_task != "none":
        message = f"the objective '{objective}' has no sentence task, and this is '{data.sentence_task}'"
        hint = f"use {option('data.sentence_task', 'none')} and {option('data.instances', 'full_sentences')}"
        raise InputError("sentence_task_unsupported", message, argument="data.sentence_task", hint=hint)
    if data.corruption in unsupported_corruptions:
        message = f"'{data.corruption}' is not supported by the objective '{objective}'"
        hint = f"use {option('data.corruption', 'none')}, or another objective"
        raise InputError("corruption_unsupported", message, argument="data.corruption", hint=hint)


def evaluate_objective(
    objective: Objective, encoder: Encoder, batches: Iterable[Any], context: ComputeContext
) -> dict[str, float]:
    """Return mean losses, accuracies, and perplexities of an objective over held-out batches."""
    # Totals by part; tensors stay on the device, so that the host does not wait.
    sums: dict[str, Tensor] = {}
    num_correct: dict[str, Tensor] = {}
    counts: dict[str, int] = {}
    autocast_encoder = context.autocast_encoder(encoder)
    with torch.inference_mode():
        for batch in batches:
            loss = objective.loss(autocast_encoder, context.to_device(batch))
            for part, value in loss.sums.items():
                sums[part] = sums.get(part, 0) + value.double()
                counts[part] = counts.get(part, 0) + loss.counts[part]
            for part, value in loss.num_correct.items():
                num_correct[part] = num_correct.get(part, 0) + value
    metrics = {f"{part}_loss": float(value) / max(1, counts[part]) for part, value in sums.items()}
    for part, value in num_correct.items():
        metrics[f"{part}_accuracy"] = float(value) / max(1, counts[part])
    for part in objective.perplexity_parts:
        if part in sums:
            metrics[f"{part}_perplexity"] = math.exp(min(metrics[f"{part}_loss"], _MAX_EXPONENT))
    return metrics


def infer_objective(config: ModelConfig, parts: Collection[str]) -> str:
    """Return the name of the objective that trained a model with these heads, or of the default objective.

    The usual objective of the family comes first.
    """
    for name in (get_family(config.model_type).objective, *OBJECTIVES):
        objective = objective_type(name)
        if objective.identifying_part in parts and all(
            getattr(config, key) == value for key, value in objective.required_model_settings.items()
        ):
            return name
    return next(iter(OBJECTIVES))


def objective_type(name: str) -> type[Objective]:
    """Return the class of an objective; raise InputError if there is none of this name."""
    return lookup(OBJECTIVES, name, f"there is no objective '{name}'", "objective")
