"""Relation extraction scores: the official score of SemEval-2010 task 8, and micro F1 without "no relation".

A label may include a direction: `Cause-Effect(e1,e2)` and `Cause-Effect(e2,e1)` are the same relation,
Cause-Effect. A prediction is correct if its relation and its direction are; the correct relation in the wrong
direction counts as a wrong prediction of this relation. This is the official scorer's (9+1)-way evaluation
with directionality taken into account (semeval2010_task8_scorer-v1.2.pl), whose macro F1 is the mean over the
relations in the references except Other. scikit-learn cannot compute it, since both labels of a relation count as
one class, but a prediction of one for the other is wrong. Micro F1 over all but "no relation" is TACRED's (Zhang
et al. 2017), and also the scorer's if the references contain all relations.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bertsmith.metrics import sufficient_statistics as stats
from bertsmith.metrics.sufficient_statistics import Counts, FloatArray, SufficientStatistics

_DIRECTION = re.compile(r"\((e1,e2|e2,e1)\)$")


@dataclass(frozen=True)
class RelationCounts(Counts):
    """Counts of a relation in both directions; `num_reversed` counts predictions of the wrong direction."""

    num_reversed: int = 0


def relation_name(label: str) -> str:
    """Return a label without its direction."""
    return _DIRECTION.sub("", label)


def has_direction(label: str) -> bool:
    """Return True if a label includes a direction, as SemEval's do."""
    return _DIRECTION.search(label) is not None


def count_relations(
    references: Sequence[str], predictions: Sequence[str], no_relation: str | None = None
) -> dict[str, RelationCounts]:
    """Count relations by name without direction.

    Args:
        references: The correct label of each example.
        predictions: The predicted labels.
        no_relation: The label that means no relation, which is not counted.
    """
    num_references, num_predictions = Counter[str](), Counter[str]()
    num_correct, num_reversed = Counter[str](), Counter[str]()
    for reference, prediction in zip(references, predictions, strict=True):
        num_references[relation_name(reference)] += 1
        num_predictions[relation_name(prediction)] += 1
        if reference == prediction:
            num_correct[relation_name(reference)] += 1
        elif relation_name(reference) == relation_name(prediction):
            num_reversed[relation_name(reference)] += 1
    return {
        name: RelationCounts(
            num_references[name], num_predictions[name], num_correct[name], num_reversed[name]
        )
        for name in sorted(num_references.keys() | num_predictions.keys())
        if name != no_relation
    }


def relation_statistics(
    references: Sequence[str],
    predictions: Sequence[str],
    labels: Sequence[str],
    no_relation: str | None = None,
) -> SufficientStatistics:
    """Return sufficient statistics of macro F1, micro F1, and accuracy.

    Args:
        references: The correct label of each example.
        predictions: The predicted labels.
        labels: All labels that the model may predict.
        no_relation: The label that means no relation; only accuracy includes it.
    """
    names = sorted({relation_name(label) for label in (*labels, *references)} - {no_relation})
    ids = {name: i for i, name in enumerate(names)}
    reference_matrix, prediction_matrix = (
        stats.one_hot([ids.get(relation_name(label), -1) for label in row], len(names))
        for row in (references, predictions)
    )
    is_correct = np.array([a == b for a, b in zip(references, predictions, strict=True)], dtype=np.float64)
    accuracy_terms = np.stack([is_correct, np.ones(len(is_correct))], axis=1)

    def scores(
        correct: FloatArray, references: FloatArray, predictions: FloatArray, accuracy_sums: FloatArray
    ) -> dict[str, FloatArray]:
        occurs = (references > 0).astype(np.float64)
        f1_sum = (stats.f1(correct, references, predictions) * occurs).sum(-1)
        return {
            "macro_f1": stats.safe_divide(f1_sum, occurs.sum(-1)),
            "micro_f1": stats.f1(correct.sum(-1), references.sum(-1), predictions.sum(-1)),
            "accuracy": stats.safe_divide(accuracy_sums[..., 0], accuracy_sums[..., 1]),
        }

    correct_matrix = reference_matrix * is_correct[:, None]
    return stats.count_statistics(correct_matrix, reference_matrix, prediction_matrix, accuracy_terms, scores)


def macro_f1(relations: dict[str, RelationCounts]) -> float:
    """Return the mean of F1 over the relations in the references; 0 without any."""
    scores = [counts.f1 for counts in relations.values() if counts.num_references]
    return sum(scores) / len(scores) if scores else 0.0
