"""Regression: a text, or a pair of texts, gets a number (STS-B; Devlin et al. 2019, section 4.1)."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from bertsmith.errors import InputError, command, option
from bertsmith.loss import Loss
from bertsmith.metrics.sufficient_statistics import SufficientStatistics, regression_statistics
from bertsmith.models.config import ModelConfig
from bertsmith.models.encoder import Encoder
from bertsmith.models.heads import ProblemType
from bertsmith.tasks.batching import Item, TaskBatch
from bertsmith.tasks.classification.texts import IN_WINDOWS, TextExample, TextTask
from bertsmith.tasks.data_checks import summarize_numbers
from bertsmith.tasks.error_analysis import ErrorAnalysis, number_scatter
from bertsmith.tasks.labels import LabelNames
from bertsmith.tasks.registry import REGRESS
from bertsmith.tasks.results import DataSummary, Metrics, truncation_metrics
from bertsmith.tasks.settings import TextSettings
from bertsmith.tasks.task import Facts, HFCheckpoint, Prediction

_COMMA = re.compile(r"[+-]?\d*,\d+")  # as half of the world's spreadsheets write a half


class Regress(TextTask):
    """The family's head for sequences with one output, and the mean squared error."""

    name = "regress"
    summary = REGRESS.summary

    def __init__(
        self, config: ModelConfig, generator: torch.Generator, facts: Facts, settings: TextSettings
    ) -> None:
        """facts: `pairs`."""
        super().__init__(config, generator, facts, settings, 1)

    @classmethod
    def learnt(
        cls, examples: Sequence[TextExample], settings: TextSettings, names: LabelNames | None
    ) -> Facts:
        """That each label is a number, and that they are not all the same."""
        values = {number_of(example) for example in examples}
        if len(values) < 2:
            raise InputError(
                "single_value",
                f"all examples have the number {next(iter(values), None)}",
                location=examples[0].place,
                argument="label_column",
                hint=f"check {option('label_column')}",
            )
        return super().learnt(examples, settings, names)

    @classmethod
    def facts_of(cls, folder: HFCheckpoint) -> Facts | None:
        """One output, or what says that it is a regression."""
        found = super().facts_of(folder)
        one = folder.labels is not None and len(folder.labels) == 1
        return found if one and folder.problem_type in (None, "regression") else None

    @classmethod
    def overview_of_answers(
        cls, train: Sequence[TextExample], dev: Sequence[TextExample], facts: Facts
    ) -> DataSummary:
        """How the number_scatter spread."""
        parts = [[number_of(example) for example in part] for part in (train, dev)]
        return summarize_numbers(*parts)

    @classmethod
    def gold(cls, examples: Sequence[TextExample], facts: Facts) -> list[tuple[str, ...]]:
        """The number, as it is written by Python: 1 and 1.0 are the same."""
        return [() if example.label is None else (f"{number_of(example):g}",) for example in examples]

    @property
    def problem_type(self) -> ProblemType:
        """Regression."""
        return "regression"

    @property
    def labels(self) -> list[str]:
        """The one output by the field's own name: its config.json counts outputs by their labels."""
        return ["LABEL_0"]

    def target(self, example: TextExample) -> float | None:
        """The number."""
        return None if example.label is None else number_of(example)

    def tensors(self, items: Sequence[Item]) -> tuple[dict[str, Tensor], dict[str, int]]:
        """`number`: float [B]."""
        if any(item.target is None for item in items):
            return {}, {}
        return {"number": torch.tensor([float(item.target) for item in items])}, {"task": len(items)}

    def loss(self, encoder: Encoder, batch: TaskBatch) -> Loss:
        """Summed squared errors over the examples."""
        found = self.logits(encoder, batch)[:, 0]
        return Loss({"task": F.mse_loss(found, batch.tensors["number"], reduction="sum")}, batch.counts)

    def apart(
        self, own: Sequence[Tensor], wanted: Sequence[Tensor], batch: TaskBatch, temperature: float
    ) -> Tensor:
        """Squared differences of the number_scatter: there is nothing to soften."""
        return F.mse_loss(torch.cat(list(own)), torch.cat(list(wanted)), reduction="sum")

    def decode(
        self, outputs: Sequence[Tensor], items: Sequence[Item], examples: Sequence[TextExample]
    ) -> list[Prediction]:
        """The number (the mean over the text's windows), tokens of the text and tokens read."""
        return [{"number": float(rows[:, 0].mean()), **read} for rows, read in self.of_each(outputs, items)]

    @classmethod
    def rows(cls, example: TextExample, prediction: Prediction) -> list[dict[str, Any]]:
        """The text and its number."""
        return [{**cls.asked(example), "prediction": prediction["number"]}]

    @property
    def decides(self) -> str:
        """Pearson's correlation."""
        return "pearson"

    @property
    def logged(self) -> tuple[str, ...]:
        """Both correlations."""
        return ("pearson", "spearman")

    def score(self, predictions: Sequence[Prediction], examples: Sequence[TextExample]) -> Metrics:
        """Pearson's and Spearman's correlations (0 where one side is constant), mean squared and absolute
        error."""
        truth = np.array([number_of(example) for example in examples])
        guess = np.array([prediction["number"] for prediction in predictions])
        varied = len(examples) > 1 and np.ptp(truth) > 0 and np.ptp(guess) > 0
        pearson = spearman = 0.0
        if varied:
            from scipy.stats import pearsonr, spearmanr

            pearson, spearman = float(pearsonr(truth, guess)[0]), float(spearmanr(truth, guess)[0])
        cuts, notes = truncation_metrics(predictions, IN_WINDOWS)
        if not varied:
            notes = [
                *notes,
                "the number_scatter do not vary, so there is nothing to correlate: both correlations are 0",
            ]
        error = guess - truth
        figures = {
            "pearson": pearson,
            "spearman": spearman,
            "mean_squared_error": float((error**2).mean()),
            "mean_absolute_error": float(np.abs(error).mean()),
            "examples": len(examples),
        }
        return Metrics(figures, cuts, (), notes)

    @property
    def measure(self) -> str:
        """As in training."""
        return "the squared error"

    def losses(self, answers: Any) -> list[float | None]:
        """Of the number_scatter that are answered."""
        pairs = zip(answers.predictions, answers.examples, strict=True)
        return [(p["number"] - number_of(e)) ** 2 for p, e in pairs]

    def details(self, predictions: Sequence[Prediction], examples: Sequence[TextExample]) -> ErrorAnalysis:
        """The number_scatter beside the true ones."""
        return {
            "numbers": number_scatter([number_of(e) for e in examples], [p["number"] for p in predictions])
        }

    def compared(self, example: TextExample, prediction: Prediction) -> tuple[str, str]:
        """Both number_scatter."""
        return f"{number_of(example):g}", f"{prediction['number']:.4g}"

    def tallies(
        self, predictions: Sequence[Prediction], examples: Sequence[TextExample]
    ) -> SufficientStatistics:
        """All but Spearman's correlation."""
        truth = [number_of(example) for example in examples]
        return regression_statistics(truth, [prediction["number"] for prediction in predictions])

    def baseline(self, training: Sequence[TextExample], dev: Sequence[TextExample]) -> Metrics:
        """Always the mean of the training examples."""
        mean = float(np.mean([number_of(example) for example in training]))
        return self.score([{"number": mean, "tokens": 0, "tokens_read": 0}] * len(dev), dev)


class Labelled(Protocol):
    """An example with a label and a place."""

    @property
    def label(self) -> str | None:
        """As the file has it."""
        ...

    @property
    def place(self) -> str:
        """Where it is."""
        ...


def number_of(example: Labelled) -> float:
    """The label as a finite number; InputError with its place where it is none."""
    try:
        value = float(example.label or "")
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        point = (example.label or "").replace(",", ".")
        raise InputError(
            "not_a_number",
            f"'{example.label}' is not a number",
            location=example.place,
            argument="label_column",
            hint=f"write it with a decimal point: {point}"
            if _COMMA.fullmatch(example.label or "")
            else f"fix the row, or name another column with {option('label_column')}; for labels that are words, "
            f"use {command('finetune', 'classify')}",
        )
    return value
