"""Encoding, the family's head for sequences with an output for each label (Devlin et al. 2019), and decoding."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import starmap
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from bertsmith.errors import InputError, option
from bertsmith.loss import Loss, classification_loss
from bertsmith.metrics.calibration import fit_temperature
from bertsmith.metrics.sufficient_statistics import f1
from bertsmith.models.config import ModelConfig
from bertsmith.models.encoder import Encoder
from bertsmith.tasks.base import Metadata
from bertsmith.tasks.batching import Item, Outputs, TaskBatch, logits_from_probabilities
from bertsmith.tasks.classification.data import label_ids
from bertsmith.tasks.labels import LabelMap
from bertsmith.tasks.results import Prediction
from bertsmith.tasks.settings import ClassSettings
from bertsmith.tasks.texts import TextDecoder, TextEncoder, TextExample, TextModel, token_counts

_MIN_WEIGHT = 1e-3  # in the initial bias: the balanced weight of a label that all examples have is 0
_THRESHOLDS = np.arange(1, 100) / 100  # that are tried


class ClassificationEncoder(TextEncoder):
    """Encode texts; targets are ids of labels, or in multi-label classification 1 for each label of the text."""

    def __init__(self, config: ModelConfig, metadata: Metadata, settings: ClassSettings) -> None:
        super().__init__(config, metadata, settings)
        self._label_map, self._separator = LabelMap(metadata), metadata.get("separator")

    def target(self, example: TextExample) -> int | NDArray[np.float32] | None:
        """Return the id of the label, or float32 [K] of ones and zeros."""
        if example.label is None:
            return None
        ids = label_ids(example, self._label_map, self._separator)
        if self._separator is None:
            return ids[0]
        target = np.zeros(len(self._label_map.ids), dtype=np.float32)
        target[ids] = 1
        return target


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

        if settings.init_head_from != "none":
            self.head_init = self._next_sentence_head()

    def _next_sentence_head(self) -> Mapping[str, str]:
        """Return the head for next sentence prediction; raise InputError if the classifier is no such head."""
        is_single = self.problem_type is None and len(self.metadata["labels"]) == 2
        if not is_single or self.head.pooler is None or self.features.parts:
            raise InputError(
                "init_head_not_applicable",
                "the head for the next sentence reads the pooler, and chooses one of two labels",
                argument="init_head_from",
                hint=f"remove {option('init_head_from')}; or use two labels and a BERT model with its pooler, "
                f"without {option('multi_label')}, {option('head')}, and {option('second_encoder')}",
            )
        return {"classifier": "pair"}

    def init_bias(self, items: Sequence[Item]) -> None:
        """Initialize the biases with the logarithms of the frequencies of the labels, times their weights."""
        classifier: Any = self.head.classifier
        biases = self.log_frequencies(self.tensors(items)[0]["targets"])
        if self.class_weights is not None:
            biases += self.class_weights.cpu().clamp(min=_MIN_WEIGHT).log()
        with torch.no_grad():
            classifier.linear.bias.copy_(biases)

    def log_frequencies(self, targets: Tensor) -> Tensor:
        """Return the logarithms of the smoothed frequencies of the labels in targets [N]: [K]."""
        return torch.log(
            (torch.bincount(targets, minlength=len(self.labels or ())) + 0.5) / (len(targets) + 1)
        )

    def loss(self, encoder: Encoder, batch: TaskBatch) -> Loss:
        """Return the sum over the examples of the cross-entropies, each with the weight of its label.

        The mean is over the examples, not over their weights, so that it does not depend on the other examples of
        a batch.
        """
        logits, targets = self.logits(encoder, batch), batch.tensors["targets"]
        return classification_loss(logits, targets, batch.counts, self.class_weights)


class MultilabelModel(ClassificationModel):
    """Classifier with any number of labels for each text, trained with binary cross-entropy."""

    problem_type = "multi_label_classification"

    def log_frequencies(self, targets: Tensor) -> Tensor:
        """Return log-odds of targets [N, K] (Lin et al. 2017, section 3.3).

        With 1/2 for each of many rare labels, the first steps would only lower all probabilities, also through
        the encoder, which may lose the features of the text.
        """
        return torch.logit((targets.sum(0) + 0.5) / (len(targets) + 1))

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
        student, teacher = (torch.cat(list(logits)).float() / temperature for logits in (outputs, targets))
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


class LabelScores(Mapping[str, float]):
    """The probability of each label, in less memory than a dict, since a file may have thousands of labels."""

    def __init__(self, ids: Mapping[str, int], probabilities: NDArray[Any]) -> None:
        self._ids, self.probabilities = ids, probabilities

    def __getitem__(self, label: str) -> float:
        return float(self.probabilities[self._ids[label]])

    def __iter__(self) -> Iterator[str]:
        return iter(self._ids)

    def __len__(self) -> int:
        return len(self._ids)

    def __repr__(self) -> str:
        return repr(dict(self))


@dataclass
class ClassPrediction(Prediction):
    """The label of a text.

    Attributes:
        label: The most probable label.
        score: Its probability; None for a baseline.
        scores: The probability of each label.
    """

    label: str
    score: float | None
    scores: Mapping[str, float]


@dataclass
class MultilabelPrediction(Prediction):
    """The labels of a text.

    Attributes:
        labels: The labels whose probabilities exceed their thresholds.
        scores: The probability of each label.
    """

    labels: list[str]
    scores: LabelScores


class ClassificationDecoder(TextDecoder):
    """Choose the most probable label. The state has the `temperature` of the logits if it was calibrated."""

    @property
    def temperature(self) -> float:
        """The divisor of the logits."""
        return float(self.state.get("temperature", 1.0))

    def calibrate(self, outputs: Outputs, items: Sequence[Item], examples: Sequence[TextExample]) -> None:
        """Fit the temperature if the settings ask for it."""
        if self.settings.calibrate:
            logits, first_items = zip(*self.by_example(outputs, items), strict=True)
            targets = [item.target for item in first_items]
            self.state["temperature"] = fit_temperature([windows.numpy() for windows in logits], targets)

    def decode(
        self, outputs: Outputs, items: Sequence[Item], examples: Sequence[TextExample]
    ) -> list[ClassPrediction]:
        """Return the label and the probabilities of each text, the means over its windows."""
        labels: list[str] = self.metadata["labels"]
        ids = LabelMap(self.metadata).ids
        predictions = []
        for logits, item in self.by_example(outputs, items):
            probabilities = (logits / self.temperature).softmax(-1).mean(0).numpy()
            best = int(probabilities.argmax())
            scores = LabelScores(ids, probabilities)
            predictions.append(
                ClassPrediction(labels[best], scores[labels[best]], scores, **token_counts(item))
            )
        return predictions

    def probabilities(self, output: Tensor) -> Tensor:
        """Return the softmax of the logits at the calibrated temperature."""
        return (output.double() / self.temperature).softmax(-1)

    def combine_outputs(self, outputs: Sequence[Tensor]) -> Tensor:
        """Return logits of the mean probabilities."""
        return logits_from_probabilities(super().combine_outputs(outputs)) * self.temperature


class MultilabelDecoder(TextDecoder):
    """Choose each label whose probability exceeds its threshold. The state has the `thresholds`."""

    @property
    def thresholds(self) -> list[float]:
        """The threshold of each label."""
        return self.state.get("thresholds") or [0.5] * len(self.metadata["labels"])

    def calibrate(self, outputs: Outputs, items: Sequence[Item], examples: Sequence[TextExample]) -> None:
        """Choose the thresholds with the best macro F1: one for all labels, or one for each."""
        if self.settings.thresholds == "half":
            return
        logits, first_items = zip(*self.by_example(outputs, items), strict=True)
        probabilities = np.stack([windows.sigmoid().mean(0).numpy() for windows in logits])
        targets = np.stack([item.target for item in first_items]) > 0
        predictions = (probabilities > threshold for threshold in _THRESHOLDS)
        counts = (((targets & labels).sum(0), targets.sum(0), labels.sum(0)) for labels in predictions)
        scores = np.stack(list(starmap(f1, counts)))  # [thresholds, K]
        if self.settings.thresholds == "shared":
            scores = np.repeat(scores.mean(1, keepdims=True), scores.shape[1], axis=1)
        self.state["thresholds"] = [float(_THRESHOLDS[_middle_argmax(column)]) for column in scores.T]

    def decode(
        self, outputs: Outputs, items: Sequence[Item], examples: Sequence[TextExample]
    ) -> list[MultilabelPrediction]:
        """Return the labels and the probabilities of each text, the means over its windows."""
        names, thresholds, ids = self.metadata["labels"], self.thresholds, LabelMap(self.metadata).ids
        predictions = []
        for logits, item in self.by_example(outputs, items):
            probabilities = logits.sigmoid().mean(0).numpy()
            labels = [names[i] for i in np.flatnonzero(probabilities > np.array(thresholds))]
            predictions.append(
                MultilabelPrediction(labels, LabelScores(ids, probabilities), **token_counts(item))
            )
        return predictions

    def probabilities(self, output: Tensor) -> Tensor:
        """Return the probability of each label."""
        return output.double().sigmoid()

    def combine_outputs(self, outputs: Sequence[Tensor]) -> Tensor:
        """Return logits of the mean probabilities."""
        return torch.logit(super().combine_outputs(outputs))


def make_decoder(metadata: Metadata, settings: ClassSettings, state: Mapping[str, Any]) -> TextDecoder:
    """Return the decoder of one label for each text, or of any number of labels."""
    decoder_type = MultilabelDecoder if metadata.get("separator") else ClassificationDecoder
    return decoder_type(metadata, settings, state)


def _middle_argmax(scores: NDArray[np.float64]) -> int:
    """Return the index of the highest score; of equal ones the middle one, the farthest from lower scores."""
    best = np.flatnonzero(scores == scores.max())
    return int(best[len(best) // 2])
