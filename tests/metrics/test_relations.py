"""Relations counted as by the official scorer of SemEval-2010 task 8, and by TACRED's."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence

import pytest
from sklearn.metrics import precision_recall_fscore_support

from bertsmith.metrics.relations import count, has_direction, macro_f1, micro_f1, relation_of

CE, EC, PW, WP, O = "C-E(e1,e2)", "C-E(e2,e1)", "P-W(e1,e2)", "P-W(e2,e1)", "Other"  # noqa: E741


def test_by_hand() -> None:
    truth = [CE, CE, EC, PW, PW, O, O]
    guess = [CE, EC, EC, PW, O, PW, O]
    found = count(truth, guess, O)
    assert found.keys() == {"C-E", "P-W"}
    cause, part = found["C-E"], found["P-W"]
    # three of Cause-Effect are found, one of them turned round: wrong for precision and for recall
    assert (cause.gold, cause.found, cause.right, cause.turned) == (3, 3, 2, 1)
    assert (cause.precision, cause.recall, cause.f1) == pytest.approx((2 / 3, 2 / 3, 2 / 3))
    assert (part.gold, part.found, part.right, part.turned) == (2, 2, 1, 0)
    assert (part.precision, part.recall, part.f1) == (0.5, 0.5, 0.5)
    assert macro_f1(found) == pytest.approx((2 / 3 + 1 / 2) / 2)
    assert micro_f1(found) == pytest.approx(2 * 3 / (5 + 5))


def test_a_relation_that_the_truth_does_not_have_is_no_part_of_the_mean() -> None:
    found = count([CE, CE], [CE, PW], O)
    assert macro_f1(found) == pytest.approx(2 / 3)  # of Cause-Effect alone
    assert micro_f1(found) == pytest.approx(2 * 1 / (2 + 2))  # where what was found counts whole


def test_without_any_relation_there_is_nothing_to_score() -> None:
    assert macro_f1(count([O, O], [O, O], O)) == micro_f1(count([O, O], [O, O], O)) == 0.0
    assert count([O, O], [O, CE], O)["C-E"].f1 == 0.0


def test_labels_without_direction_are_relations_of_their_own() -> None:
    assert [relation_of(label) for label in (CE, EC, O, "per:title", "f(x)")] == [
        "C-E",
        "C-E",
        O,
        "per:title",
        "f(x)",
    ]
    assert [has_direction(label) for label in (CE, EC, O, "per:title")] == [True, True, False, False]


def as_the_scorer(truth: Sequence[str], guess: Sequence[str]) -> tuple[float, float]:
    """The script's way: a confusion matrix of ten, in which a wrong direction has a column of its own; macro and
    micro F1 but for Other."""
    matrix: Counter[tuple[str, str]] = Counter()
    proposed: Counter[str] = Counter()
    answer: Counter[str] = Counter()
    for wanted, given in zip(truth, guess, strict=True):
        a, b = relation_of(wanted), relation_of(given)
        column = "WRONG_DIR" if a == b and wanted != given else b
        matrix[column, a] += 1
        proposed[column] += 1
        answer[a] += 1
    scores, right, said, known = [], 0, 0, 0
    for label in sorted(answer.keys() - {O}):
        wrong = matrix["WRONG_DIR", label]
        p = matrix[label, label] / (proposed[label] + wrong) if proposed[label] else 0.0
        r = matrix[label, label] / answer[label]
        scores.append(2 * p * r / (p + r) if p + r else 0.0)
        right += matrix[label, label]
        said += proposed[label] + wrong
        known += answer[label]
    micro_p, micro_r = right / said if said else 0.0, right / known
    return sum(scores) / len(scores), 2 * micro_p * micro_r / (micro_p + micro_r) if right else 0.0


@pytest.mark.parametrize("seed", range(20))
def test_random_answers_score_as_by_the_script(seed: int) -> None:
    draw = random.Random(seed)
    labels = [f"{name}({way})" for name in ("A-B", "C-D", "E-F") for way in ("e1,e2", "e2,e1")] + [O]
    truth = [*labels, *draw.choices(labels, k=80)]
    guess = [label if draw.random() < 0.5 else draw.choice(labels) for label in truth]
    found = count(truth, guess, O)
    macro, micro = as_the_scorer(truth, guess)
    assert macro_f1(found) == pytest.approx(macro)
    assert micro_f1(found) == pytest.approx(micro)


def test_micro_f1_is_scikit_learns_over_all_but_none() -> None:
    draw = random.Random(7)
    labels = ["per:title", "org:city", "no_relation", "per:age"]
    truth, guess = draw.choices(labels, k=60), draw.choices(labels, k=60)
    kept = [label for label in labels if label != "no_relation"]
    wanted = precision_recall_fscore_support(truth, guess, labels=kept, average="micro", zero_division=0)[2]
    assert micro_f1(count(truth, guess, "no_relation")) == pytest.approx(wanted)
