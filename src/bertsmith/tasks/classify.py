"""Classification: a text, or a pair of texts, gets one of K labels (Devlin et al. 2019, section 4.1)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from bertsmith.errors import InputError
from bertsmith.loss import Loss
from bertsmith.models.config import ModelConfig
from bertsmith.models.encoder import Encoder
from bertsmith.tasks.items import Item, TaskBatch
from bertsmith.tasks.task import Facts, Foreign, Prediction, Scores, ScoreTable, told_of_cuts
from bertsmith.tasks.texts import IN_WINDOWS, TextExample, TextFacts, TextSettings, TextTask

_MANY = 200  # labels above which a confusion matrix is told by its cells that are not empty
_SHOWN = 8  # labels of which a confusion matrix fits a terminal


class LabelFacts(TextFacts):
    """The labels by id; whether the data may give ids in their place."""

    labels: list[str] = Field(min_length=2)
    numbered: bool = False


class Classify(TextTask):
    """The family's head for sequences, with an output a label, and cross-entropy."""

    name = "classify"
    summary = "one label for a text, or for a pair of texts"
    facts_type = LabelFacts

    def __init__(
        self, config: ModelConfig, generator: torch.Generator, facts: Facts, settings: TextSettings
    ) -> None:
        """facts: `labels` by id; `numbered`: the data may give ids in place of labels; `pairs`."""
        self._ids = {label: i for i, label in enumerate(facts["labels"])}
        super().__init__(config, generator, facts, settings, len(facts["labels"]))

    @classmethod
    def learnt(
        cls, examples: Sequence[TextExample], settings: TextSettings, names: Sequence[str] | None
    ) -> Facts:
        """The labels, as `label_names` orders them; each example must have one of them."""
        labels = label_names(examples, names)
        ids = {label: i for i, label in enumerate(labels)}
        for example in examples:
            label_id(example, ids, numbered=names is not None)
        pairs = super().learnt(examples, settings, None)
        return {**pairs, "labels": labels, "numbered": names is not None}

    @classmethod
    def facts_of(cls, folder: Foreign) -> Facts | None:
        """Two labels or more, of which one is right."""
        found = super().facts_of(folder)
        if found is None or folder.problem_type not in (None, "single_label_classification"):
            return None
        if folder.labels is None or len(folder.labels) < 2:
            return None
        return {**found, "labels": folder.labels, "numbered": True}

    @classmethod
    def stratum(cls, example: TextExample) -> Hashable:
        """The label."""
        return example.label

    def target(self, example: TextExample) -> int | None:
        """The label's id."""
        if example.label is None:
            return None
        return label_id(example, self._ids, numbered=bool(self.facts.get("numbered")))

    def tensors(self, items: Sequence[Item]) -> tuple[dict[str, Tensor], dict[str, int]]:
        """`label`: long [B]."""
        if any(item.target is None for item in items):
            return {}, {}
        return {"label": torch.tensor([item.target for item in items])}, {"task": len(items)}

    def loss(self, encoder: Encoder, batch: TaskBatch) -> Loss:
        """Summed cross-entropy over the examples."""
        logits, wanted = self.logits(encoder, batch), batch.tensors["label"]
        right = (logits.detach().argmax(-1) == wanted).sum()
        return Loss({"task": F.cross_entropy(logits, wanted, reduction="sum")}, batch.counts, {"task": right})

    def decode(
        self, outputs: Sequence[Tensor], items: Sequence[Item], examples: Sequence[TextExample]
    ) -> list[Prediction]:
        """Label, its probability, all probabilities (the mean over the text's windows), tokens of the text and
        tokens read."""
        labels: list[str] = self.facts["labels"]
        predictions = []
        for logits, read in self.of_each(outputs, items):
            shares = logits.softmax(-1).mean(0).tolist()
            best = max(range(len(shares)), key=shares.__getitem__)
            scores = dict(zip(labels, shares, strict=True))
            predictions.append({"label": labels[best], "score": shares[best], "scores": scores, **read})
        return predictions

    @property
    def decides(self) -> str:
        """Accuracy."""
        return "accuracy"

    @property
    def logged(self) -> tuple[str, ...]:
        """Accuracy and macro F1."""
        return ("accuracy", "macro_f1")

    def score(self, predictions: Sequence[Prediction], examples: Sequence[TextExample]) -> Scores:
        """Accuracy, macro and weighted F1, Matthews' correlation, each class's figures, the confusion matrix.

        Macro F1 is the mean over all the model's labels; a label that neither occurs nor is predicted counts
        0, as scikit-learn has it with `labels` given.
        """
        from sklearn.metrics import accuracy_score, matthews_corrcoef, precision_recall_fscore_support

        labels: list[str] = self.facts["labels"]
        ids = list(range(len(labels)))
        truth = [self.target(example) for example in examples]
        guess = [self._ids[prediction["label"]] for prediction in predictions]
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
        cuts, notes = told_of_cuts(predictions, IN_WINDOWS)
        confusion = _confusion(truth, guess, labels)
        numbers = {
            "accuracy": float(accuracy_score(truth, guess)),
            "macro_f1": float(f1.mean()),
            "weighted_f1": float((f1 * support).sum() / max(1, support.sum())),
            # of one label alone there is nothing to correlate with
            "matthews": float(matthews_corrcoef(truth, guess)) if len({*truth, *guess}) > 1 else 0.0,
            "examples": len(examples),
        }
        tables = [_of_each_table(of_each)]
        if len(labels) <= _SHOWN:
            rows = [[label, *map(str, row)] for label, row in zip(labels, confusion, strict=True)]
            tables.append(ScoreTable("", ["truth, down; prediction, across", *labels], rows))
        return Scores(numbers, {**cuts, "classes": of_each, "confusion": confusion}, tables, notes)

    def baseline(self, training: Sequence[TextExample], dev: Sequence[TextExample]) -> Scores:
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


def _of_each_table(of_each: dict[str, dict[str, Any]]) -> ScoreTable:
    rows = [
        [label, *(f"{row[k]:.4f}" for k in ("precision", "recall", "f1")), f"{row['support']:,}"]
        for label, row in of_each.items()
    ]
    return ScoreTable("", ["label", "precision", "recall", "F1", "support"], rows)


def label_names(examples: Sequence[TextExample], names: Sequence[str] | None) -> list[str]:
    """The classes in the order of their ids: the given names, or the labels of the data, sorted.

    Labels that are whole numbers are sorted by value.
    """
    if names is not None:
        if len(set(names)) != len(names) or len(names) < 2:
            raise InputError(f"--label-names: {', '.join(names)}: two or more different names are needed")
        return list(names)
    found = {example.label for example in examples if example.label is not None}
    if len(found) < 2:
        raise InputError(
            f"{examples[0].place}: all examples have the label {next(iter(found), None)!r}",
            "a classifier needs at least two; is this the label column? (--label-column)",
        )
    if all(_whole_number(label) for label in found):
        return sorted(found, key=lambda label: (int(label), label))
    return sorted(found)


def label_id(example: TextExample, ids: dict[str, int], *, numbered: bool) -> int:
    """The id of an example's label. numbered: the data may give ids (0, 1, …) in place of names.

    Names that are numbers themselves are names only: nobody could tell the name 1 from the id 1.
    """
    label = example.label
    if label is not None and label in ids:
        return ids[label]
    words = not any(_whole_number(name) for name in ids)
    if numbered and words and label is not None and _whole_number(label) and 0 <= int(label) < len(ids):
        return int(label)
    known = ", ".join(list(ids)[:10]) + (", …" if len(ids) > 10 else "")
    raise InputError(
        f"{example.place}: the label '{label}' is unknown",
        f"the model's labels are: {known}; mend the row, or name another column with --label-column",
    )


def _whole_number(text: str) -> bool:
    return text.removeprefix("-").isdecimal()
