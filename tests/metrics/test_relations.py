"""Test relation scores against the official scorer of SemEval-2010 task 8 and TACRED's."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence

import pytest
from sklearn.metrics import precision_recall_fscore_support

from bertsmith.metrics.relations import count_relations, has_direction, macro_f1, relation_name
from bertsmith.metrics.sufficient_statistics import sum_counts

CE, EC, PW, WP, O = "C-E(e1,e2)", "C-E(e2,e1)", "P-W(e1,e2)", "P-W(e2,e1)", "Other"  # noqa: E741


def test_small_case() -> None:
    references = [CE, CE, EC, PW, PW, O, O]
    predictions = [CE, EC, EC, PW, O, PW, O]
    counts = count_relations(references, predictions, O)
    assert counts.keys() == {"C-E", "P-W"}
    cause, part = counts["C-E"], counts["P-W"]
    # Three predictions of Cause-Effect, one in the wrong direction: wrong for precision and for recall.
    assert (cause.num_references, cause.num_predictions, cause.num_correct, cause.num_reversed) == (
        3,
        3,
        2,
        1,
    )
    assert (cause.precision, cause.recall, cause.f1) == pytest.approx((2 / 3, 2 / 3, 2 / 3))
    assert (part.num_references, part.num_predictions, part.num_correct, part.num_reversed) == (2, 2, 1, 0)
    assert (part.precision, part.recall, part.f1) == (0.5, 0.5, 0.5)
    assert macro_f1(counts) == pytest.approx((2 / 3 + 1 / 2) / 2)
    assert sum_counts(counts).f1 == pytest.approx(2 * 3 / (5 + 5))


def test_macro_f1_excludes_relations_without_references() -> None:
    counts = count_relations([CE, CE], [CE, PW], O)
    assert macro_f1(counts) == pytest.approx(2 / 3)  # Cause-Effect only
    assert sum_counts(counts).f1 == pytest.approx(2 * 1 / (2 + 2))  # all predictions count


def test_scores_are_0_without_relations() -> None:
    assert (
        macro_f1(count_relations([O, O], [O, O], O))
        == sum_counts(count_relations([O, O], [O, O], O)).f1
        == 0.0
    )
    assert count_relations([O, O], [O, CE], O)["C-E"].f1 == 0.0


def test_labels_without_direction_are_separate_relations() -> None:
    assert [relation_name(label) for label in (CE, EC, O, "per:title", "f(x)")] == [
        "C-E",
        "C-E",
        O,
        "per:title",
        "f(x)",
    ]
    assert [has_direction(label) for label in (CE, EC, O, "per:title")] == [True, True, False, False]


def official_scores(references: Sequence[str], predictions: Sequence[str]) -> tuple[float, float]:
    """Return macro and micro F1 except Other, as the script does: wrong directions have a separate column."""
    matrix: Counter[tuple[str, str]] = Counter()
    proposed: Counter[str] = Counter()
    actual: Counter[str] = Counter()
    for reference, prediction in zip(references, predictions, strict=True):
        a, b = relation_name(reference), relation_name(prediction)
        column = "WRONG_DIR" if a == b and reference != prediction else b
        matrix[column, a] += 1
        proposed[column] += 1
        actual[a] += 1
    scores, num_correct, num_predictions, num_references = [], 0, 0, 0
    for label in sorted(actual.keys() - {O}):
        wrong = matrix["WRONG_DIR", label]
        p = matrix[label, label] / (proposed[label] + wrong) if proposed[label] else 0.0
        r = matrix[label, label] / actual[label]
        scores.append(2 * p * r / (p + r) if p + r else 0.0)
        num_correct += matrix[label, label]
        num_predictions += proposed[label] + wrong
        num_references += actual[label]
    macro = sum(scores) / len(scores)
    if not num_correct:
        return macro, 0.0
    micro_p, micro_r = num_correct / num_predictions, num_correct / num_references
    return macro, 2 * micro_p * micro_r / (micro_p + micro_r)


@pytest.mark.parametrize("seed", range(20))
def test_scores_equal_the_official_scorer(seed: int) -> None:
    rng = random.Random(seed)
    labels = [
        f"{name}({direction})" for name in ("A-B", "C-D", "E-F") for direction in ("e1,e2", "e2,e1")
    ] + [O]
    references = [*labels, *rng.choices(labels, k=80)]
    predictions = [label if rng.random() < 0.5 else rng.choice(labels) for label in references]
    counts = count_relations(references, predictions, O)
    macro, micro = official_scores(references, predictions)
    assert macro_f1(counts) == pytest.approx(macro)
    assert sum_counts(counts).f1 == pytest.approx(micro)


def test_micro_f1_equals_scikit_learns_over_all_but_no_relation() -> None:
    rng = random.Random(7)
    labels = ["per:title", "org:city", "no_relation", "per:age"]
    references, predictions = rng.choices(labels, k=60), rng.choices(labels, k=60)
    relations = [label for label in labels if label != "no_relation"]
    expected = precision_recall_fscore_support(
        references, predictions, labels=relations, average="micro", zero_division=0
    )[2]
    assert sum_counts(count_relations(references, predictions, "no_relation")).f1 == pytest.approx(expected)
