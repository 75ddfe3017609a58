"""From logits to labels: a calibrated temperature, or calibrated thresholds in multi-label classification."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bertsmith.metrics.calibration import fit_temperature
from bertsmith.tasks.base import Metadata, Prediction
from bertsmith.tasks.batching import Item, Outputs, logits_from_probabilities
from bertsmith.tasks.settings import ClassSettings
from bertsmith.tasks.texts import TextDecoder, TextExample, token_counts

_THRESHOLDS = np.arange(1, 100) / 100  # that are tried


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
    scores: dict[str, float]


@dataclass
class MultilabelPrediction(Prediction):
    """The labels of a text.

    Attributes:
        labels: The labels whose probabilities exceed their thresholds.
        scores: The probability of each label.
    """

    labels: list[str]
    scores: dict[str, float]


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
            self.state["temperature"] = fit_temperature([rows.numpy() for rows in logits], targets)

    def decode(
        self, outputs: Outputs, items: Sequence[Item], examples: Sequence[TextExample]
    ) -> list[ClassPrediction]:
        """Return the label and the probabilities of each text, the means over its windows."""
        labels: list[str] = self.metadata["labels"]
        predictions = []
        for logits, item in self.by_example(outputs, items):
            probabilities = (logits / self.temperature).softmax(-1).mean(0).tolist()
            best = max(range(len(labels)), key=probabilities.__getitem__)
            scores = dict(zip(labels, probabilities, strict=True))
            predictions.append(
                ClassPrediction(labels[best], probabilities[best], scores, **token_counts(item))
            )
        return predictions

    def ensemble_output(self, output: Tensor) -> Tensor:
        """Return probabilities."""
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
        probabilities = np.array([rows.sigmoid().mean(0).tolist() for rows in logits])
        targets = np.stack([item.target for item in first_items]) > 0
        f1 = np.stack([_f1_by_label(targets, probabilities > t) for t in _THRESHOLDS])  # [thresholds, K]
        if self.settings.thresholds == "shared":
            f1 = np.repeat(f1.mean(1, keepdims=True), f1.shape[1], axis=1)
        self.state["thresholds"] = [float(_THRESHOLDS[_middle_argmax(column)]) for column in f1.T]

    def decode(
        self, outputs: Outputs, items: Sequence[Item], examples: Sequence[TextExample]
    ) -> list[MultilabelPrediction]:
        """Return the labels and the probabilities of each text, the means over its windows."""
        predictions = []
        for logits, item in self.by_example(outputs, items):
            probabilities = logits.sigmoid().mean(0).tolist()
            scores = dict(zip(self.metadata["labels"], probabilities, strict=True))
            pairs = zip(scores.items(), self.thresholds, strict=True)
            labels = [label for (label, probability), threshold in pairs if probability > threshold]
            predictions.append(MultilabelPrediction(labels, scores, **token_counts(item)))
        return predictions

    def ensemble_output(self, output: Tensor) -> Tensor:
        """Return probabilities."""
        return output.double().sigmoid()

    def combine_outputs(self, outputs: Sequence[Tensor]) -> Tensor:
        """Return logits of the mean probabilities."""
        return torch.logit(super().combine_outputs(outputs))


def make_decoder(metadata: Metadata, settings: ClassSettings, state: Mapping[str, Any]) -> TextDecoder:
    """Return the decoder of one label for each text, or of any number of labels."""
    decoder_type = MultilabelDecoder if metadata.get("separator") else ClassificationDecoder
    return decoder_type(metadata, settings, state)


def _f1_by_label(targets: NDArray[np.bool_], predictions: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Return the F1 of each label, [K]; 0 for a label that neither occurs nor is predicted."""
    f1: NDArray[np.float64] = (
        2 * (targets & predictions).sum(0) / np.maximum(1, targets.sum(0) + predictions.sum(0))
    )
    return f1


def _middle_argmax(scores: NDArray[np.float64]) -> int:
    """Return the index of the highest score; of equal ones the middle one, the farthest from lower scores."""
    best = np.flatnonzero(scores == scores.max())
    return int(best[len(best) // 2])
