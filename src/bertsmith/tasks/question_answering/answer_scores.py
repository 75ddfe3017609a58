"""How good answers to questions are: by the rules of SQuAD 1.1, of SQuAD 2.0, or of CMRC 2018 for Chinese."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Any, Literal, NamedTuple

from bertsmith.io.unicode_scripts import HAN
from bertsmith.metrics import cmrc, squad
from bertsmith.metrics.sufficient_statistics import SufficientStatistics, mean_statistics
from bertsmith.tasks.error_analysis import confusion, reliability
from bertsmith.tasks.question_answering.passages import PassageExample
from bertsmith.tasks.results import Metrics, MetricTable, truncation_metrics
from bertsmith.tasks.settings import Rules

Prediction = Mapping[str, Any]


class _Compare(NamedTuple):
    """How an answer is compared with those of people: F1, and whether it is one of them."""

    f1: Callable[[str, Sequence[str]], float]
    exact: Callable[[str, Sequence[str]], bool]


def scored(
    predictions: Sequence[Prediction],
    examples: Sequence[PassageExample],
    rules: Rules,
    details: Mapping[str, Any],
    notes: Sequence[str],
) -> Metrics:
    """Means of F1 and exact match with the nearest gold answer, 0 to 1; the scripts print per cent.

    Where a question has no answer, also both means over the questions with one, the share of those without that
    were answered so, and the best means over all thresholds of no answer, as SQuAD 2.0's script has them. details,
    notes: to go with them.
    """
    chosen = _chosen(examples, rules)
    how = _how(chosen, examples)
    f1, exact = _of_each(predictions, examples, how)
    cuts, told = truncation_metrics(predictions)
    numbers = {"f1": fmean(f1), "exact_match": fmean(exact), "examples": len(examples)}
    details = {**cuts, **details, **({"rules": chosen} if chosen != "squad" else {})}
    if any(example.unanswerable for example in examples):
        numbers |= _parts(f1, exact, examples)
        details |= _best(predictions, examples, how)
    if chosen == "cmrc":
        notes = [
            *notes,
            "scores are by the rules of CMRC 2018: of characters, not words (task.rules=squad: words)",
        ]
    return Metrics(numbers, details, (), [*told, *notes])


def details_of(
    predictions: Sequence[Prediction], examples: Sequence[PassageExample], rules: Rules
) -> dict[str, Any]:
    """What a report shows: how often answers of some probability are one of people's; and of questions that may
    have none, the scores of both kinds, and which were taken for which."""
    f1, exact = _of_each(predictions, examples, _how(_chosen(examples, rules), examples))
    sure = [float(prediction["score"]) for prediction in predictions]
    found: dict[str, Any] = {"reliability": reliability("questions", sure, [value > 0 for value in exact])}
    kinds = ["no answer" if example.unanswerable else "an answer" for example in examples]
    if "no answer" not in kinds:
        return found
    said = ["an answer" if prediction["answer"] else "no answer" for prediction in predictions]
    rows = []
    for kind in sorted(set(kinds)):
        held = [i for i, own in enumerate(kinds) if own == kind]
        means = (f"{fmean(values[i] for i in held):.4f}" for values in (exact, f1))
        rows.append([f"with {kind}", *means, f"{len(held):,}"])
    table = MetricTable("", ["questions", "exact match", "F1", "number"], rows)
    return {"tables": [table], "confusion": confusion("questions", kinds, said), **found}


def tallied(
    predictions: Sequence[Prediction], examples: Sequence[PassageExample], rules: Rules
) -> SufficientStatistics:
    """Both means over all questions."""
    f1, exact = _of_each(predictions, examples, _how(_chosen(examples, rules), examples))
    return mean_statistics({"f1": f1, "exact_match": exact})


def _of_each(
    predictions: Sequence[Prediction], examples: Sequence[PassageExample], how: _Compare
) -> tuple[list[float], list[float]]:
    """F1 and exact match of each answer."""
    pairs = [(str(p["answer"]), example.gold) for p, example in zip(predictions, examples, strict=True)]
    return [how.f1(*pair) for pair in pairs], [float(how.exact(*pair)) for pair in pairs]


def threshold_of(
    predictions: Sequence[Prediction], examples: Sequence[PassageExample], rules: Rules
) -> float:
    """The threshold of `null_score`, above which there is no answer, with the best F1."""
    how = _how(_chosen(examples, rules), examples)
    return squad.find_best_threshold(_asked(predictions, examples, how.f1))[1]


def _parts(
    f1: Sequence[float], exact: Sequence[float], examples: Sequence[PassageExample]
) -> dict[str, float]:
    """The means over the questions with an answer, where there are any, and over those without."""
    none = [example.unanswerable for example in examples]
    found = {"unanswerable_accuracy": fmean(value for value, n in zip(exact, none, strict=True) if n)}
    if all(none):
        return found
    return {
        "answerable_f1": fmean(value for value, n in zip(f1, none, strict=True) if not n),
        "answerable_exact_match": fmean(value for value, n in zip(exact, none, strict=True) if not n),
        **found,
    }


def _best(
    predictions: Sequence[Prediction], examples: Sequence[PassageExample], how: _Compare
) -> dict[str, float]:
    """The best means over all thresholds, with these as the setting has them; nothing where the model always
    answers."""
    if not all("null_score" in prediction for prediction in predictions):
        return {}
    f1, of_f1 = squad.find_best_threshold(_asked(predictions, examples, how.f1))
    exact, of_exact = squad.find_best_threshold(_asked(predictions, examples, how.exact))
    return {
        "best_f1": f1,
        "best_f1_threshold": -of_f1,
        "best_exact_match": exact,
        "best_exact_match_threshold": -of_exact,
    }


def _asked(
    predictions: Sequence[Prediction],
    examples: Sequence[PassageExample],
    score: Callable[[str, Sequence[str]], float],
) -> list[squad.QuestionScores]:
    """What each question scores with its best span, and with none."""
    return [
        squad.QuestionScores(
            prediction["null_score"],
            float(score(prediction["n_best"][0]["answer"], example.gold)),
            float(example.unanswerable),
        )
        for prediction, example in zip(predictions, examples, strict=True)
    ]


def _chosen(examples: Sequence[PassageExample], rules: Rules) -> Literal["squad", "cmrc"]:
    """CMRC's, where most answers have an ideograph: they have no words to compare."""
    if rules != "auto":
        return rules
    answers = [answer.text for example in examples for answer in example.answers]
    chinese = sum(any(ord(c) in part for c in text for part in HAN) for text in answers)
    return "cmrc" if 2 * chinese > len(answers) else "squad"


def _how(rules: Literal["squad", "cmrc"], examples: Sequence[PassageExample]) -> _Compare:
    if rules == "cmrc":
        return _Compare(cmrc.f1, cmrc.exact_match)
    if any(example.unanswerable for example in examples):
        return _Compare(squad.f1_v2, squad.exact_match_v2)
    return _Compare(squad.f1, squad.exact_match)
