"""Classification: a text, or a pair of texts, gets one of K labels (Devlin et al. 2019, section 4.1).

Where the settings ask for any number of labels, the task is that of many_labels.py.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from bertsmith.errors import InputError, command, option
from bertsmith.formatting import join_names
from bertsmith.loss import Loss
from bertsmith.metrics.calibration import expected_calibration_error, fit_temperature, reliability_bins
from bertsmith.metrics.sufficient_statistics import (
    FloatArray,
    SufficientStatistics,
    count_statistics,
    f1,
    matthews_from_sums,
    one_hot,
    safe_divide,
)
from bertsmith.models.config import ModelConfig
from bertsmith.models.encoder import Encoder
from bertsmith.tasks.batching import Item, TaskBatch, logits_from_probabilities
from bertsmith.tasks.classification.multilabel import ManyLabels
from bertsmith.tasks.classification.texts import IN_WINDOWS, TextExample, TextFacts, TextTask, weights_of
from bertsmith.tasks.error_analysis import ErrorAnalysis, cross_entropy, label_error_analysis
from bertsmith.tasks.labels import (
    LabelMap,
    LabelMetadata,
    LabelNames,
    is_integer,
    label_metadata,
    sorted_labels,
)
from bertsmith.tasks.registry import CLASSIFY
from bertsmith.tasks.results import DataSummary, Diagnostic, Metrics, MetricTable, truncation_metrics
from bertsmith.tasks.settings import ClassSettings
from bertsmith.tasks.task import Facts, HFCheckpoint, Prediction, Task

_MANY = 200  # labels above which a confusion matrix is told by its cells that are not empty
_MANY_NUMBERS = 20  # whole numbers above which labels are hardly classes
_FEW = 10  # examples of which nobody can say what their numbers are
_SHOWN = 8  # labels of which a confusion matrix fits a terminal


class ClassFacts(TextFacts, LabelMetadata):
    """Whether the examples were pairs; the labels, the weight of each in the loss; what logits are divided by."""

    weights: list[float] | None = None
    temperature: float = 1.0


class Classify(TextTask):
    """The family's head for sequences, with an output a label, and cross-entropy."""

    name = "classify"
    summary = CLASSIFY.summary
    accepts_label_names = CLASSIFY.accepts_label_names
    settings_type = ClassSettings
    facts_type = ClassFacts
    own_facts = ("temperature", "weights")
    temperature: Tensor
    weights_of_labels: Tensor | None

    def __init__(
        self, config: ModelConfig, generator: torch.Generator, facts: Facts, settings: ClassSettings
    ) -> None:
        """facts: of `ClassFacts`. `numbered`: the data may give ids in place of labels, or `codes`."""
        super().__init__(config, generator, facts, settings, len(facts["labels"]))
        known = ClassFacts(**facts)
        self._naming = LabelMap.from_metadata(facts)
        self.register_buffer("temperature", torch.tensor(known.temperature, dtype=torch.float64))
        weights = None if known.weights is None else torch.tensor(known.weights)
        self.register_buffer("weights_of_labels", weights, persistent=False)

    @classmethod
    def variant(cls, settings: ClassSettings, facts: Facts | None = None) -> type[Task]:
        """Another task for any number of labels."""
        return ManyLabels if settings.multi_label or (facts or {}).get("separator") else cls

    @classmethod
    def learnt(
        cls, examples: Sequence[TextExample], settings: ClassSettings, names: LabelNames | None
    ) -> Facts:
        """The labels: those named, or those of the data, as `label_names` orders them; each example must have one
        of them."""
        found: dict[str, Any] = (
            {"labels": label_names(examples), "numbered": False} if names is None else label_metadata(names)
        )
        naming = LabelMap.from_metadata(found)
        times = Counter(found["labels"][label_id(example, naming)] for example in examples)
        even = len(examples) / len(found["labels"])
        weights = weights_of(
            settings.class_weights,
            found["labels"],
            {label: even / max(1, times[label]) for label in found["labels"]},
        )
        more = {} if weights is None else {"weights": weights}
        return {**super().learnt(examples, settings, None), **found, **more}

    @classmethod
    def check_dev(cls, examples: Sequence[TextExample], facts: Facts) -> None:
        """Each label is one of the model's."""
        labels = ((str(example.label), example.place) for example in examples)
        LabelMap.from_metadata(facts).check_validation(labels, "label_column")

    @classmethod
    def facts_of(cls, folder: HFCheckpoint) -> Facts | None:
        """Two labels or more, of which one is right, or any number."""
        if (many := ManyLabels.facts_of(folder)) is not None:
            return many
        found = super().facts_of(folder)
        if found is None or folder.problem_type not in (None, "single_label_classification"):
            return None
        if folder.labels is None or len(folder.labels) < 2:
            return None
        return {**found, "labels": folder.labels, "numbered": True}

    @classmethod
    def gold(cls, examples: Sequence[TextExample], facts: Facts) -> list[tuple[str, ...]]:
        """The label, by its name."""
        naming = LabelMap.from_metadata(facts)
        return [() if e.label is None else (naming.name(e.label),) for e in examples]

    @classmethod
    def overview_of_answers(
        cls, train: Sequence[TextExample], dev: Sequence[TextExample], facts: Facts
    ) -> DataSummary:
        """The table of labels, and what to do about numbers."""
        said = _told_of_numbers(facts["labels"])
        found = [Diagnostic("labels that are numbers", said)] if said else []
        return super().overview_of_answers(train, dev, facts) | DataSummary(diagnostics=found)

    @classmethod
    def stratum(cls, example: TextExample) -> Hashable:
        """The label."""
        return example.label

    @property
    def begins_as(self) -> Mapping[str, str]:
        """The head for the next sentence, where the settings ask for it."""
        if self.settings.init_head_from == "none":
            return {}
        if (number := len(self.facts["labels"])) != 2:
            raise InputError(
                "init_head_label_count",
                f"the head for the next sentence has two outputs, and there are {number} labels",
                argument="init_head_from",
                hint=f"remove {option('init_head_from')}",
            )
        if self.head.pooler is None or self.features.parts:
            raise InputError(
                "init_head_without_pooler",
                "the head for the next sentence reads the pooler, and this head does not",
                argument="init_head_from",
                hint=f"remove {option('init_head_from')}, or use a BERT model with its pooler and without "
                f"{option('head')} and {option('beside')}",
            )
        return {"classifier": "pair"}

    def target(self, example: TextExample) -> int | None:
        """The label's id."""
        if example.label is None:
            return None
        return label_id(example, self._naming)

    def tensors(self, items: Sequence[Item]) -> tuple[dict[str, Tensor], dict[str, int]]:
        """`label`: long [B]."""
        if any(item.target is None for item in items):
            return {}, {}
        return {"label": torch.tensor([item.target for item in items])}, {"task": len(items)}

    def loss(self, encoder: Encoder, batch: TaskBatch) -> Loss:
        """Summed cross-entropy over the examples, each with its label's weight. The mean is over the examples, not
        over their weights: it stays one number however the batch was put together."""
        logits, wanted = self.logits(encoder, batch), batch.tensors["label"]
        right = (logits.detach().argmax(-1) == wanted).sum()
        found = F.cross_entropy(logits, wanted, self.weights_of_labels, reduction="sum")
        return Loss({"task": found}, batch.counts, {"task": right})

    def decode(
        self, outputs: Sequence[Tensor], items: Sequence[Item], examples: Sequence[TextExample]
    ) -> list[Prediction]:
        """Label, its probability, all probabilities (the mean over the text's windows), tokens of the text and
        tokens read."""
        labels: list[str] = self.facts["labels"]
        predictions = []
        for logits, read in self.of_each(outputs, items):
            shares = (logits / float(self.temperature)).softmax(-1).mean(0).tolist()
            best = max(range(len(shares)), key=shares.__getitem__)
            scores = dict(zip(labels, shares, strict=True))
            predictions.append({"label": labels[best], "score": shares[best], "scores": scores, **read})
        return predictions

    def vote(self, output: Tensor) -> Tensor:
        """Probabilities."""
        return (output.double() / float(self.temperature)).softmax(-1)

    def outcome(self, votes: Sequence[Tensor]) -> Tensor:
        """Their mean, as logits."""
        return logits_from_probabilities(super().outcome(votes)) * float(self.temperature)

    @classmethod
    def rows(cls, example: TextExample, prediction: Prediction) -> list[dict[str, Any]]:
        """The text, its label, and the label's probability."""
        label, score = prediction["label"], prediction["score"]
        return [{**cls.asked(example), "prediction": label, "score": score}]

    @property
    def decides(self) -> str:
        """Accuracy."""
        return "accuracy"

    @property
    def logged(self) -> tuple[str, ...]:
        """Accuracy and macro F1."""
        return ("accuracy", "macro_f1")

    def fit(self, outputs: Sequence[Tensor], items: Sequence[Item], examples: Sequence[TextExample]) -> None:
        """The temperature, where the settings ask for it."""
        if self.settings.calibrate:
            logits = [rows.numpy() for rows, _ in self.of_each(outputs, items)]
            wanted = [label_id(example, self._naming) for example in examples]
            self.temperature.fill_(fit_temperature(logits, wanted))

    @property
    def kept_facts(self) -> Facts:
        """With the temperature, where there is one."""
        return {**self.facts, **({"temperature": float(self.temperature)} if self.settings.calibrate else {})}

    def score(self, predictions: Sequence[Prediction], examples: Sequence[TextExample]) -> Metrics:
        """Accuracy, macro and weighted F1, Matthews' correlation, the expected calibration error, each class's
        figures, the confusion matrix.

        Macro F1 is the mean over all the model's labels; a label that neither occurs nor is predicted counts
        0, as scikit-learn has it with `labels` given.
        """
        from sklearn.metrics import accuracy_score, matthews_corrcoef, precision_recall_fscore_support

        labels: list[str] = self.facts["labels"]
        ids = list(range(len(labels)))
        truth = [self.target(example) for example in examples]
        guess = [self._naming.ids[prediction["label"]] for prediction in predictions]
        precision, recall, f1, support = precision_recall_fscore_support(
            truth, guess, labels=ids, zero_division=0
        )
        of_each = {
            label: {
                "precision": float(precision[i]),
                "recall": float(recall[i]),
                "f1": float(f1[i]),
                "support": int(support[i]),
            }
            for i, label in enumerate(labels)
        }
        cuts, notes = truncation_metrics(predictions, IN_WINDOWS)
        details: dict[str, Any] = {**cuts, "classes": of_each}
        confusion = _confusion(truth, guess, labels)
        numbers = {
            "accuracy": float(accuracy_score(truth, guess)),
            "macro_f1": float(f1.mean()),
            "weighted_f1": float((f1 * support).sum() / max(1, support.sum())),
            # of one label alone there is nothing to correlate with
            "matthews": float(matthews_corrcoef(truth, guess)) if len({*truth, *guess}) > 1 else 0.0,
        }
        sure = [prediction["score"] for prediction in predictions if "score" in prediction]
        bins = reliability_bins(sure, [t == g for t, g in zip(truth, guess, strict=True)]) if sure else []
        if bins:
            numbers["calibration_error"] = expected_calibration_error(bins)
            details["calibration"] = [one._asdict() for one in bins]
        numbers["examples"] = len(examples)
        tables = [_of_each_table(of_each)]
        if len(labels) <= _SHOWN:
            rows = [[label, *map(str, row)] for label, row in zip(labels, confusion, strict=True)]
            tables.append(MetricTable("", ["truth, down; prediction, across", *labels], rows))
        return Metrics(numbers, {**details, "confusion": confusion}, tables, notes)

    @property
    def measure(self) -> str:
        """Of the right label."""
        return "minus the logarithm of the right label's probability"

    def losses(self, answers: Any) -> list[float | None]:
        """Of the probabilities that are answered."""
        gold = self.gold(answers.examples, self.facts)
        return [
            cross_entropy(p["scores"][label]) for p, (label,) in zip(answers.predictions, gold, strict=True)
        ]

    def details(self, predictions: Sequence[Prediction], examples: Sequence[TextExample]) -> ErrorAnalysis:
        """Which labels are taken for which, and how sure the model may be."""
        truth = [gold for (gold,) in self.gold(examples, self.facts)]
        guess, sure = [p["label"] for p in predictions], [p["score"] for p in predictions]
        return label_error_analysis("texts", truth, guess, sure, self.facts["labels"])

    def tallies(
        self, predictions: Sequence[Prediction], examples: Sequence[TextExample]
    ) -> SufficientStatistics:
        """All but the calibration error."""
        size = len(self.facts["labels"])
        truth = [-1 if (target := self.target(example)) is None else target for example in examples]
        guess = [self._naming.ids[prediction["label"]] for prediction in predictions]
        gold, found = one_hot(truth, size), one_hot(guess, size)

        def figures(
            right: FloatArray, gold: FloatArray, found: FloatArray, _: FloatArray
        ) -> dict[str, FloatArray]:
            of_each, number = f1(right, gold, found), gold.sum(-1)
            return {
                "accuracy": safe_divide(right.sum(-1), number),
                "macro_f1": of_each.mean(-1),
                "weighted_f1": safe_divide((of_each * gold).sum(-1), number),
                "matthews": matthews_from_sums(right, gold, found),
            }

        return count_statistics(gold * found, gold, found, np.empty((len(truth), 0)), figures)

    def baseline(self, training: Sequence[TextExample], dev: Sequence[TextExample]) -> Metrics:
        """Always the most frequent label of the training examples."""
        most = Counter(self.target(example) for example in training).most_common(1)[0][0] or 0
        answer = {"label": self.facts["labels"][most], "tokens": 0, "tokens_read": 0}
        return self.score([answer] * len(dev), dev)


def _confusion(truth: Sequence[Any], guess: Sequence[int], labels: Sequence[str]) -> list[Any]:
    """Rows of truth, columns of predictions; of many labels the cells that are not empty, the fullest first."""
    if len(labels) <= _MANY:
        matrix = np.zeros((len(labels), len(labels)), dtype=np.int64)
        np.add.at(matrix, (np.asarray(truth), np.asarray(guess)), 1)
        rows: list[Any] = matrix.tolist()
        return rows
    cells = Counter(zip(truth, guess, strict=True)).most_common()
    return [{"truth": labels[t], "prediction": labels[g], "times": n} for (t, g), n in cells]


def _of_each_table(of_each: dict[str, dict[str, Any]]) -> MetricTable:
    rows = [
        [label, *(f"{row[k]:.4f}" for k in ("precision", "recall", "f1")), f"{row['support']:,}"]
        for label, row in of_each.items()
    ]
    return MetricTable("", ["label", "precision", "recall", "F1", "support"], rows)


def label_names(examples: Sequence[TextExample]) -> list[str]:
    """The labels of the data in the order of their ids (`sorted_labels`). InputError where there is only one."""
    found = {example.label for example in examples if example.label is not None}
    if len(found) < 2:
        raise InputError(
            "single_label",
            f"all examples have the label {next(iter(found), None)!r}",
            location=examples[0].place,
            argument="label_column",
            hint=f"a classifier needs at least two labels; check {option('label_column')}",
        )
    numbers = all(map(_is_number, found))
    many = len(found) > _MANY_NUMBERS or 2 * len(found) > len(examples)
    if numbers and not all(map(is_integer, found)) and many and len(examples) >= _FEW:
        raise InputError(
            "labels_are_numbers",
            f"the labels are {len(found):,} different numbers in {len(examples):,} examples "
            f"({join_names(sorted_labels(found), 3)})",
            location=examples[0].place,
            argument="label_column",
            hint=f"to predict a number, use {command('finetune', 'regress')}; or name another column with "
            f"{option('label_column')}",
        )
    return sorted_labels(found)


def label_id(example: TextExample, naming: LabelMap) -> int:
    """The id of an example's label. InputError for a label that the model does not have."""
    label = str(example.label)
    if (found := naming.id(label)) is None:
        raise naming.unknown_label_error(label, example.place, "label_column")
    return found


def _told_of_numbers(labels: Sequence[str]) -> str | None:
    """What to do about labels that are numbers: name them, or learn them as numbers."""
    some = join_names(labels, 3)
    if all(map(is_integer, labels)) and len(labels) <= _MANY_NUMBERS:
        measure = "; if they measure something (stars, grades), try bertsmith finetune regress"
        return (
            f"the labels are numbers ({some}), and so are the predictions; name them with label_names: A,B,C or a "
            f"file of code,name rows{measure if len(labels) > 2 else ''}"
        )
    if all(map(_is_number, labels)):
        return (
            f"the labels are {len(labels):,} different numbers ({some}), each learnt as a label of its own; "
            "to predict a number, use bertsmith finetune regress"
        )
    return None


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False
