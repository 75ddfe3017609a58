"""Classification with any number of labels: each is asked for by itself, and a text may have several or none.

The head is the one for sequences, with an output a label and binary cross-entropy. It begins with each label's
share of the training examples as its probability. A label is predicted where its probability is above a
threshold, which may be chosen on dev and is kept with the model.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from bertsmith.errors import InputError, option
from bertsmith.formatting import pluralize
from bertsmith.loss import Loss
from bertsmith.metrics.sufficient_statistics import (
    FloatArray,
    SufficientStatistics,
    count_statistics,
    f1,
    safe_divide,
)
from bertsmith.models.config import ModelConfig
from bertsmith.models.encoder import Encoder
from bertsmith.models.heads import ProblemType
from bertsmith.tasks.batching import Item, TaskBatch
from bertsmith.tasks.classification.texts import IN_WINDOWS, TextExample, TextFacts, TextTask, weights_of
from bertsmith.tasks.error_analysis import ErrorAnalysis, cross_entropy, reliability
from bertsmith.tasks.labels import LabelMap, LabelMetadata, LabelNames, label_metadata, sorted_labels
from bertsmith.tasks.results import Metrics, MetricTable, truncation_metrics
from bertsmith.tasks.settings import ClassSettings
from bertsmith.tasks.task import Facts, HFCheckpoint, Prediction

_HALF = 0.5
_LEAST = 1e-3  # weight that is reckoned with: balanced, one that all examples have weighs nothing
_STEPS = 99  # thresholds that are tried: 0.01 to 0.99


class ManyLabelFacts(TextFacts, LabelMetadata):
    """The labels, what separates them in a file, their thresholds, what weighs the loss of each, and the share of
    the training examples that have it."""

    separator: str = ","
    thresholds: list[float] | None = None
    weights: list[float] | None = None
    shares: list[float] | None = None


class ManyLabels(TextTask):
    """The family's head for sequences, with an output a label, binary cross-entropy as a mean over the labels."""

    name = "classify"
    summary = "any number of labels for a text, or for a pair of texts"
    accepts_label_names = True
    settings_type = ClassSettings
    facts_type = ManyLabelFacts
    own_facts = ("thresholds", "weights", "shares")
    may_be_blank = True
    thresholds: Tensor
    weights_of_labels: Tensor | None

    def __init__(
        self, config: ModelConfig, generator: torch.Generator, facts: Facts, settings: ClassSettings
    ) -> None:
        """facts: of `ManyLabelFacts`."""
        known = ManyLabelFacts(**facts)
        super().__init__(config, generator, facts, settings, len(known.labels))
        self._naming, self._separator = LabelMap.from_metadata(facts), known.separator
        thresholds = known.thresholds or [_HALF] * len(known.labels)
        self.register_buffer("thresholds", torch.tensor(thresholds, dtype=torch.float64))
        weights = None if known.weights is None else torch.tensor(known.weights)
        self.register_buffer("weights_of_labels", weights, persistent=False)
        if known.shares is not None:
            self._expect(torch.tensor(known.shares), weights)

    @classmethod
    def learnt(
        cls, examples: Sequence[TextExample], settings: ClassSettings, names: LabelNames | None
    ) -> Facts:
        """The labels: those named, or those of the data; each example must have some of them, or none."""
        separator = settings.label_separator
        every = [label for example in examples for label in parted(example, separator)]
        if names is None:
            if len(set(every)) < 2:
                raise InputError(
                    "single_label",
                    f"the examples have {pluralize(len(set(every)), 'different label')}",
                    location=examples[0].place,
                    argument="label_column",
                    hint=f"a classifier needs at least two labels; check {option('label_column')} and "
                    f"{option('label_separator')}, which is {separator!r}",
                )
            found: dict[str, Any] = {"labels": sorted_labels(every), "numbered": False}
        else:
            found = label_metadata(names)
        cls.check_dev(examples, {**found, "separator": separator})
        naming = LabelMap.from_metadata(found)
        times = Counter(
            name for example in examples for name in {naming.name(one) for one in parted(example, separator)}
        )
        weights = weights_of(
            settings.class_weights,
            found["labels"],
            {label: (len(examples) - times[label]) / max(1, times[label]) for label in found["labels"]},
        )
        more: dict[str, Any] = {} if weights is None else {"weights": weights}
        # half an example more with it, half without: a label that none has, or all have, can still be learnt
        more["shares"] = [(times[label] + 0.5) / (len(examples) + 1) for label in found["labels"]]
        return {**super().learnt(examples, settings, None), **found, "separator": separator, **more}

    @classmethod
    def check_dev(cls, examples: Sequence[TextExample], facts: Facts) -> None:
        """Each label is one of the model's."""
        labels = (
            (label, example.place) for example in examples for label in parted(example, facts["separator"])
        )
        LabelMap.from_metadata(facts).check_validation(labels, "label_column")

    @classmethod
    def facts_of(cls, folder: HFCheckpoint) -> Facts | None:
        """Two labels or more, of which any number is right."""
        found = super().facts_of(folder)
        if found is None or folder.problem_type != "multi_label_classification":
            return None
        if folder.labels is None or len(folder.labels) < 2:
            return None
        return {**found, "labels": folder.labels, "numbered": True, "separator": ","}

    @classmethod
    def gold(cls, examples: Sequence[TextExample], facts: Facts) -> list[tuple[str, ...]]:
        """The labels by their names, in the model's order."""
        naming, separator = LabelMap.from_metadata(facts), facts.get("separator", ",")
        order = {label: i for i, label in enumerate(facts["labels"])}
        return [
            tuple(
                sorted(
                    dict.fromkeys(map(naming.name, parted(example, separator))),
                    key=lambda label: order.get(label, len(order)),
                )
            )
            for example in examples
        ]

    @classmethod
    def stratum(cls, example: TextExample) -> Hashable | None:
        """None: sets of labels are too many to keep the proportion of each."""
        return None

    @property
    def begins_as(self) -> Mapping[str, str]:
        """No head of the base asks for each label by itself."""
        if self.settings.init_head_from != "none":
            raise InputError(
                "init_head_multi_label",
                "a head of the base model chooses one of two labels, and with "
                f"{option('multi_label', True)} a text has any number of labels",
                argument="init_head_from",
                hint=f"remove {option('init_head_from')} or {option('multi_label')}",
            )
        return {}

    @property
    def problem_type(self) -> ProblemType:
        """Several labels."""
        return "multi_label_classification"

    def _expect(self, shares: Tensor, weights: Tensor | None) -> None:
        """Begin with the probabilities that are best where nothing is known of a text: biases are their log-odds
        (as Lin et al. 2017, section 3.3).

        With 1/2 for each of many rare labels the first updates do nothing but lower all of them, through the
        encoder as well, and what it has to say of a text may be lost with that.
        """
        odds = torch.logit(shares)
        if weights is not None:
            odds += weights.clamp(min=_LEAST).log()
        classifier: Any = self.head.classifier
        with torch.no_grad():
            classifier.linear.bias.copy_(odds)

    def target(self, example: TextExample) -> NDArray[np.float32] | None:
        """float32 [K]: 1 for the example's labels."""
        if example.label is None:
            return None
        found = np.zeros(len(self.facts["labels"]), dtype=np.float32)
        for label in parted(example, self._separator):
            if (number := self._naming.id(label)) is None:
                raise self._naming.unknown_label_error(label, example.place, "label_column")
            found[number] = 1
        return found

    def tensors(self, items: Sequence[Item]) -> tuple[dict[str, Tensor], dict[str, int]]:
        """`labels`: float [B, K]."""
        if any(item.target is None for item in items):
            return {}, {}
        return {"labels": torch.from_numpy(np.stack([item.target for item in items]))}, {"task": len(items)}

    def loss(self, encoder: Encoder, batch: TaskBatch) -> Loss:
        """Summed over the examples: the mean over the labels of their binary cross-entropies."""
        logits, wanted = self.logits(encoder, batch), batch.tensors["labels"]
        found = F.binary_cross_entropy_with_logits(
            logits, wanted, reduction="sum", pos_weight=self.weights_of_labels
        )
        right = ((logits.detach() > 0) == wanted.bool()).all(1).sum()
        return Loss({"task": found / logits.shape[1]}, batch.counts, {"task": right})

    def apart(
        self, own: Sequence[Tensor], wanted: Sequence[Tensor], batch: TaskBatch, temperature: float
    ) -> Tensor:
        """Each label is there or not: the mean over the labels of their two shares' distances, softened."""
        logits, its = (
            torch.cat(list(own)).float() / temperature,
            torch.cat(list(wanted)).float() / temperature,
        )
        there, absent = (
            F.kl_div(F.logsigmoid(a), F.logsigmoid(b), reduction="sum", log_target=True)
            for a, b in ((logits, its), (-logits, -its))
        )
        return temperature**2 * (there + absent) / logits.shape[1]

    def decode(
        self, outputs: Sequence[Tensor], items: Sequence[Item], examples: Sequence[TextExample]
    ) -> list[Prediction]:
        """The labels, the probability of each (the mean over the text's windows), tokens of the text and read."""
        labels: list[str] = self.facts["labels"]
        thresholds = self.thresholds.tolist()
        predictions = []
        for logits, read in self.of_each(outputs, items):
            shares = logits.sigmoid().mean(0).tolist()
            found = [label for label, share, t in zip(labels, shares, thresholds, strict=True) if share > t]
            predictions.append({"labels": found, "scores": dict(zip(labels, shares, strict=True)), **read})
        return predictions

    def vote(self, output: Tensor) -> Tensor:
        """Probabilities."""
        return output.double().sigmoid()

    def outcome(self, votes: Sequence[Tensor]) -> Tensor:
        """Their mean, as logits."""
        return torch.logit(super().outcome(votes))

    @classmethod
    def rows(cls, example: TextExample, prediction: Prediction) -> list[dict[str, Any]]:
        """The text, its labels, and the likeliest label with its probability."""
        likeliest = max(prediction["scores"], key=prediction["scores"].__getitem__)
        found = {"prediction": ", ".join(prediction["labels"]), "likeliest": likeliest}
        return [{**cls.asked(example), **found, "score": prediction["scores"][likeliest]}]

    @property
    def decides(self) -> str:
        """Macro F1."""
        return "macro_f1"

    @property
    def logged(self) -> tuple[str, ...]:
        """F1, macro and micro."""
        return ("macro_f1", "micro_f1")

    def fit(self, outputs: Sequence[Tensor], items: Sequence[Item], examples: Sequence[TextExample]) -> None:
        """The thresholds with the best macro F1, as the settings have it: one for all labels, or one for each."""
        how = self.settings.thresholds
        if how == "half":
            return
        shares = self._shares(self.decode(outputs, items, examples))
        truth = self._truth(examples)
        steps = np.arange(1, _STEPS + 1) / (_STEPS + 1)
        f1 = np.stack([_f1(truth, shares > step) for step in steps])  # [steps, K]
        if how == "shared":
            best = np.full(len(self.thresholds), steps[_middle_of_best(f1.mean(1))])
        else:
            best = np.array([steps[_middle_of_best(column)] for column in f1.T])
        self.thresholds.copy_(torch.from_numpy(best))

    @property
    def kept_facts(self) -> Facts:
        """With the thresholds."""
        return {**self.facts, "thresholds": self.thresholds.tolist()}

    def score(self, predictions: Sequence[Prediction], examples: Sequence[TextExample]) -> Metrics:
        """F1, macro (over all the model's labels) and micro; the share of examples whose labels are all right; the
        mean average precision, which no threshold decides; each label's figures.

        A label that neither occurs nor is predicted has an F1 of 0, as scikit-learn has it with `labels` given,
        and no average precision.
        """
        from sklearn.metrics import average_precision_score, precision_recall_fscore_support

        labels: list[str] = self.facts["labels"]
        truth, shares = self._truth(examples), self._shares(predictions)
        guess = np.array([[label in p["labels"] for label in labels] for p in predictions])
        precision, recall, f1, support = precision_recall_fscore_support(
            truth, guess, average=None, zero_division=0
        )
        micro = precision_recall_fscore_support(truth, guess, average="micro", zero_division=0)[2]
        occurs = truth.any(0)
        ranked = average_precision_score(truth[:, occurs], shares[:, occurs]) if occurs.any() else 0.0
        of_each = {
            label: {
                "precision": float(precision[i]),
                "recall": float(recall[i]),
                "f1": float(f1[i]),
                "support": int(support[i]),
                "threshold": float(self.thresholds[i]),
            }
            for i, label in enumerate(labels)
        }
        cuts, notes = truncation_metrics(predictions, IN_WINDOWS)
        numbers = {
            "macro_f1": float(f1.mean()),
            "micro_f1": float(micro),
            "all_right": float((truth == guess).all(1).mean()),
            "average_precision": float(ranked),
            "examples": len(examples),
        }
        return Metrics(numbers, {**cuts, "classes": of_each}, [_table(of_each)], notes)

    @property
    def measure(self) -> str:
        """As in training, without weights."""
        return "the mean over the labels of their binary cross-entropies"

    def losses(self, answers: Any) -> list[float | None]:
        """Of the probabilities that are answered."""
        truth, shares = self._truth(answers.examples), self._shares(answers.predictions)
        right = np.where(truth, shares, 1 - shares)
        return [float(np.mean([cross_entropy(share) for share in row])) for row in right.tolist()]

    def details(self, predictions: Sequence[Prediction], examples: Sequence[TextExample]) -> ErrorAnalysis:
        """How often a label is there whose probability is so high."""
        shares, truth = self._shares(predictions).ravel(), self._truth(examples).ravel()
        return {"reliability": reliability("pairs of a text and a label", shares.tolist(), truth.tolist())}

    def compared(self, example: TextExample, prediction: Prediction) -> tuple[str, str]:
        """All labels of both."""
        (gold,) = self.gold([example], self.facts)
        return ", ".join(gold) or "none", ", ".join(prediction["labels"]) or "none"

    def tallies(
        self, predictions: Sequence[Prediction], examples: Sequence[TextExample]
    ) -> SufficientStatistics:
        """All but the average precision."""
        labels: list[str] = self.facts["labels"]
        truth = self._truth(examples)
        guess = np.array([[label in p["labels"] for label in labels] for p in predictions])
        more = np.stack([(truth == guess).all(1), np.ones(len(truth))], axis=1)

        def figures(
            right: FloatArray, gold: FloatArray, found: FloatArray, more: FloatArray
        ) -> dict[str, FloatArray]:
            return {
                "macro_f1": f1(right, gold, found).mean(-1),
                "micro_f1": f1(right.sum(-1), gold.sum(-1), found.sum(-1)),
                "all_right": safe_divide(more[..., 0], more[..., 1]),
            }

        return count_statistics(truth & guess, truth, guess, more, figures)

    def baseline(self, training: Sequence[TextExample], dev: Sequence[TextExample]) -> Metrics:
        """Of each score the better one of two answers that look at no text: the labels of at least half of the
        training examples, or the most frequent one if none is; and all labels, since no other answer that is the
        same for every text has a better macro F1."""
        shares = self._truth(training).mean(0)
        labels: list[str] = self.facts["labels"]
        often = [label for label, share in zip(labels, shares, strict=True) if share >= _HALF]
        scores = dict(zip(labels, map(float, shares), strict=True))
        often = often or [max(scores, key=scores.__getitem__)]
        few, every = (
            self.score([{"labels": found, "scores": scores, "tokens": 0, "tokens_read": 0}] * len(dev), dev)
            for found in (often, labels)
        )
        return replace(
            few, values={name: max(value, every.values[name]) for name, value in few.values.items()}
        )

    def _truth(self, examples: Sequence[TextExample]) -> NDArray[np.bool_]:
        """bool [examples, K]."""
        return np.stack([np.asarray(self.target(example)) > 0 for example in examples])

    def _shares(self, predictions: Sequence[Mapping[str, Any]]) -> NDArray[np.float64]:
        """Probabilities [examples, K]."""
        return np.array([[p["scores"][label] for label in self.facts["labels"]] for p in predictions])


def parted(example: TextExample, separator: str) -> list[str]:
    """The labels of an example as its file has them: a list of JSON, or text with a separator between them; none
    of an empty one. InputError with its place for one that is empty among others."""
    text = (example.label or "").strip()
    if not text:
        return []
    if text.startswith("["):
        try:
            found = json.loads(text)
        except ValueError:
            found = None
        if isinstance(found, list) and all(isinstance(one, str | int) for one in found):
            return [str(one) for one in found]
    labels = [label.strip() for label in text.split(separator)]
    if not all(labels):
        raise InputError(
            "empty_label",
            f"a label in '{text}' is empty",
            location=example.place,
            hint=f"separate labels by {separator!r}, or set {option('label_separator')}",
        )
    return labels


def _f1(truth: NDArray[np.bool_], guess: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Of each label, [K]; 0 where it neither occurs nor is guessed."""
    both = (truth & guess).sum(0)
    found: NDArray[np.float64] = 2 * both / np.maximum(1, truth.sum(0) + guess.sum(0))
    return found


def _middle_of_best(scores: NDArray[np.float64]) -> int:
    """Where a row of scores is the highest: of equal ones the middle one, which is the farthest from worse."""
    best = np.flatnonzero(scores == scores.max())
    return int(best[len(best) // 2])


def _table(of_each: dict[str, dict[str, Any]]) -> MetricTable:
    keys = ("precision", "recall", "f1")
    rows = [
        [label, *(f"{row[k]:.4f}" for k in keys), f"{row['support']:,}", f"{row['threshold']:.2f}"]
        for label, row in of_each.items()
    ]
    return MetricTable("", ["label", "precision", "recall", "F1", "support", "threshold"], rows)
