"""F1 and exact match, as SQuAD's and CMRC 2018's scripts compute them; tables, and SQuAD's file of predictions."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from statistics import fmean, mean
from typing import Any

from bertsmith.errors import InputError, option
from bertsmith.formatting import pluralize
from bertsmith.metrics import squad
from bertsmith.metrics.sufficient_statistics import SufficientStatistics, mean_statistics
from bertsmith.tasks.base import TaskMetrics
from bertsmith.tasks.batching import Answers
from bertsmith.tasks.question_answering.data import QuestionExample, moved_answers
from bertsmith.tasks.question_answering.model import AnswerPrediction, AnswerScorer
from bertsmith.tasks.report import ErrorAnalysis, TaskReport, confusion, reliability
from bertsmith.tasks.results import DataSummary, Diagnostic, Metrics, table_by_label
from bertsmith.tasks.settings import AnswerSettings


class QuestionAnsweringMetrics(TaskMetrics):
    """Means of F1 and exact match with the nearest reference, 0 to 1; the scripts print per cent."""

    settings: AnswerSettings
    primary_metric = "f1"
    logged_metrics = ("f1", "exact_match")
    loss_name = "the mean over its windows of the cross-entropies of the answer's start and end"

    def compute(
        self, predictions: Sequence[AnswerPrediction], examples: Sequence[QuestionExample]
    ) -> Metrics:
        """Return the metrics of SQuAD 1.1's, SQuAD 2.0's, or CMRC 2018's script."""
        scorer = AnswerScorer(examples, self.settings.rules)
        f1, exact_match = _scores(scorer, predictions)
        moved = moved_answers(examples)
        notes = [diagnostic.text for diagnostic in moved]
        values: dict[str, float] = {
            "f1": fmean(f1),
            "exact_match": fmean(exact_match),
            "examples": len(examples),
        }
        num_moved = sum(len(diagnostic.locations) for diagnostic in moved)
        details: dict[str, Any] = {"moved_answers": num_moved}
        if scorer.rules == "cmrc":
            details["rules"] = "cmrc"
            notes.append(
                "scores are by the rules of CMRC 2018: of characters, not words (task.rules=squad: words)"
            )
        if scorer.has_unanswerable:
            answerable = [i for i, example in enumerate(examples) if not example.unanswerable]
            if answerable:
                values["answerable_f1"] = fmean(f1[i] for i in answerable)
                values["answerable_exact_match"] = fmean(exact_match[i] for i in answerable)
            unanswerable = [i for i, example in enumerate(examples) if example.unanswerable]
            values["unanswerable_accuracy"] = fmean(exact_match[i] for i in unanswerable)
            if all(prediction.null_score is not None for prediction in predictions):
                for metric in ("f1", "exact_match"):  # the best means over all values of `null_threshold`
                    score, threshold = scorer.best_threshold(metric, predictions)
                    details |= {f"best_{metric}": score, f"best_{metric}_threshold": threshold}
        return Metrics(values, details, (), notes)

    def example_losses(self, answers: Answers) -> list[float | None]:
        """Return the mean loss of each question's windows."""
        losses: list[list[float]] = [[] for _ in answers.examples]
        for logits, item in zip(answers.outputs.per_item, answers.items, strict=True):
            if item.target is not None:
                start, end = item.target
                log_probabilities = logits.log_softmax(0)
                losses[item.example].append(
                    -float(log_probabilities[start, 0] + log_probabilities[end, 1]) / 2
                )
        return [mean(values) if values else None for values in losses]

    def sufficient_statistics(
        self, predictions: Sequence[AnswerPrediction], examples: Sequence[QuestionExample]
    ) -> SufficientStatistics:
        """Return the statistics of F1 and exact match over all questions."""
        f1, exact_match = _scores(AnswerScorer(examples, self.settings.rules), predictions)
        return mean_statistics({"f1": f1, "exact_match": exact_match})

    def baseline(self, training: Sequence[QuestionExample], validation: Sequence[QuestionExample]) -> Metrics:
        """Return the metrics of the most frequent training answer, which may be none."""
        answers = Counter(squad.normalize_answer(example.references[0]) for example in training)
        prediction = AnswerPrediction(answer=answers.most_common(1)[0][0], tokens=0, tokens_read=0)
        return self.compute([prediction] * len(validation), validation)


class QuestionAnsweringReport(TaskReport):
    """Present questions, passages, and answers."""

    settings: AnswerSettings

    def answer_summary(
        self, train: Sequence[QuestionExample], validation: Sequence[QuestionExample]
    ) -> DataSummary:
        """Return the numbers of questions, passages, and answers."""
        parts = {"train": train, "validation": validation}
        figures = {part: _figures(examples) for part, examples in parts.items() if examples}
        table = table_by_label("part", figures)._replace(title="questions")
        diagnostics = []
        unanswerable = [example.location for example in validation if example.unanswerable]
        if unanswerable and not any(example.unanswerable for example in train):
            message = (
                f"{pluralize(len(unanswerable), 'validation question has', 'validation questions have')} no "
                "answer, and all training questions have one: the model will never say that there is none"
            )
            diagnostics.append(Diagnostic("questions without an answer", message, unanswerable))
        return DataSummary({"questions": figures}, [table], diagnostics)

    def error_analysis(
        self, predictions: Sequence[AnswerPrediction], examples: Sequence[QuestionExample]
    ) -> ErrorAnalysis:
        """Return how reliable probabilities are; if a question has no answer, also which were taken for which."""
        scorer = AnswerScorer(examples, self.settings.rules)
        answers = [prediction.answer for prediction in predictions]
        exact_match = scorer.scores("exact_match", answers)
        probabilities = [prediction.score for prediction in predictions]
        calibration = reliability("questions", probabilities, [score > 0 for score in exact_match])
        if not scorer.has_unanswerable:
            return {"reliability": calibration}
        references, predicted = (
            ["an answer" if has_answer else "no answer" for has_answer in side]
            for side in ((not example.unanswerable for example in examples), answers)
        )
        return {"confusion": confusion("questions", references, predicted), "reliability": calibration}

    def describe_error(self, example: QuestionExample, prediction: AnswerPrediction) -> tuple[str, str]:
        """Return the reference answers, each once, and the predicted answer."""
        references = " / ".join(dict.fromkeys(answer or "no answer" for answer in example.references))
        return references, prediction.answer or "no answer"

    def table_rows(self, example: QuestionExample, prediction: AnswerPrediction) -> list[dict[str, Any]]:
        """Return the question, its answer with its slice of the passage, and its probability."""
        row = {} if example.id is None else {"id": example.id}
        row |= {**example.display_inputs, "prediction": prediction.answer}
        names = ("start", "end", "score", "null_score")
        return [row | {name: cell for name, cell in prediction.to_dict().items() if name in names}]

    def write_output(
        self, answered: Iterable[tuple[QuestionExample, AnswerPrediction | None]]
    ) -> Iterator[str]:
        """Yield SQuAD's predictions.json: an object of each question's id with its answer."""
        answers: dict[str, str] = {}
        for example, prediction in answered:
            if example.id is None or example.id in answers:
                hint = f"give each question an id of its own, or choose another {option('format')}"
                if example.id is None:
                    message = "the question has no id"
                    raise InputError("id_missing", message, location=example.location, hint=hint)
                message = f"the id '{example.id}' occurs twice"
                raise InputError("duplicate_id", message, location=example.location, hint=hint)
            answers[example.id] = prediction.answer if prediction else ""
        yield json.dumps(answers, ensure_ascii=False) + "\n"


def _figures(examples: Sequence[QuestionExample]) -> dict[str, int]:
    return {
        "questions": len(examples),
        "passages": len({example.context for example in examples}),
        "unanswerable": sum(example.unanswerable for example in examples),
        "answers": sum(len(example.answers) for example in examples),
    }


def _scores(scorer: AnswerScorer, predictions: Sequence[AnswerPrediction]) -> tuple[list[float], list[float]]:
    """Return F1 and exact match of each prediction."""
    answers = [prediction.answer for prediction in predictions]
    return scorer.scores("f1", answers), scorer.scores("exact_match", answers)
