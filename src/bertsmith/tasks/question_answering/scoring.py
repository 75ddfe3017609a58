"""Comparison of answers with references by the rules of SQuAD 1.1, of SQuAD 2.0, or of CMRC 2018."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import starmap
from typing import Any, Literal

from bertsmith.io.unicode_scripts import HAN
from bertsmith.metrics import cmrc, squad
from bertsmith.tasks.question_answering.data import QuestionExample
from bertsmith.tasks.settings import Rules

Metric = Literal["f1", "exact_match"]


class AnswerScorer:
    """Score answers by the official scripts' rules.

    Attributes:
        rules: "squad" or "cmrc".
        has_unanswerable: True if an example is unanswerable, so that the rules are SQuAD 2.0's.
    """

    def __init__(self, examples: Sequence[QuestionExample], rules: Rules) -> None:
        self.examples = examples
        self.rules = _infer_rules(examples) if rules == "auto" else rules
        self.has_unanswerable = any(example.unanswerable for example in examples)
        if self.rules == "cmrc":
            self._functions = {"f1": cmrc.f1, "exact_match": cmrc.exact_match}
        elif self.has_unanswerable:
            self._functions = {"f1": squad.f1_v2, "exact_match": squad.exact_match_v2}
        else:
            self._functions = {"f1": squad.f1, "exact_match": squad.exact_match}

    def scores(self, metric: Metric, answers: Iterable[str]) -> list[float]:
        """Return the score of each example's answer, 0 to 1."""
        score = self._functions[metric]
        pairs = zip(answers, self.examples, strict=True)
        return [float(score(answer, example.references)) for answer, example in pairs]

    def best_threshold(self, metric: Metric, predictions: Sequence[Any]) -> tuple[float, float]:
        """Return the best mean score over all values of `null_threshold`, and the value that reaches it."""
        spans = [prediction.n_best[0]["answer"] for prediction in predictions]
        null_scores = [prediction.null_score for prediction in predictions]
        unanswerable = [float(example.unanswerable) for example in self.examples]
        questions = zip(null_scores, self.scores(metric, spans), unanswerable, strict=True)
        score, null_score = squad.find_best_threshold(starmap(squad.QuestionScores, questions))
        return score, -null_score


def _infer_rules(examples: Sequence[QuestionExample]) -> Literal["squad", "cmrc"]:
    """Return CMRC's rules if most answers have an ideograph, since they have no words to compare."""
    answers = [answer.text for example in examples for answer in example.answers]
    num_chinese = sum(any(ord(c) in part for c in text for part in HAN) for text in answers)
    return "cmrc" if 2 * num_chinese > len(answers) else "squad"
