"""Tables of questions and answers, and SQuAD's file of predictions."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from statistics import fmean
from typing import Any

from bertsmith.errors import InputError, option
from bertsmith.formatting import pluralize
from bertsmith.tasks.base import TaskReport
from bertsmith.tasks.error_analysis import ErrorAnalysis, confusion, reliability
from bertsmith.tasks.question_answering.data import QuestionExample
from bertsmith.tasks.question_answering.decode import AnswerPrediction
from bertsmith.tasks.question_answering.scoring import AnswerScorer
from bertsmith.tasks.results import DataSummary, Diagnostic, MetricTable
from bertsmith.tasks.settings import AnswerSettings


class QuestionAnsweringReport(TaskReport):
    """Present questions, passages, and answers."""

    settings: AnswerSettings

    def answer_summary(
        self, train: Sequence[QuestionExample], validation: Sequence[QuestionExample]
    ) -> DataSummary:
        """Return the number of questions and passages, and the mean length of answers."""
        parts = {"train": train, "dev": validation}
        figures = {part: _figures(examples) for part, examples in parts.items() if examples}
        rows = [[part, *(f"{value:,}" for value in values.values())] for part, values in figures.items()]
        columns = ["part", "questions", "passages", "unanswerable", "answers", "letters per answer"]
        table = MetricTable("questions", columns, rows)
        diagnostics = []
        unanswerable = [example.location for example in validation if example.unanswerable]
        if unanswerable and not any(example.unanswerable for example in train):
            message = (
                f"{pluralize(len(unanswerable), 'question of dev has', 'questions of dev have')} no answer, and "
                "all of train have one: the model will never say that there is none"
            )
            diagnostics.append(Diagnostic("questions without an answer", message, unanswerable))
        return DataSummary({"questions": figures}, [table], diagnostics)

    def error_analysis(
        self, predictions: Sequence[AnswerPrediction], examples: Sequence[QuestionExample]
    ) -> ErrorAnalysis:
        """Return how reliable probabilities are; and if a question has no answer, the scores of both kinds of
        questions and which were taken for which."""
        scorer = AnswerScorer(examples, self.settings.rules)
        answers = [prediction.answer for prediction in predictions]
        exact_match = scorer.scores("exact_match", answers)
        probabilities = [prediction.score for prediction in predictions]
        calibration = reliability("questions", probabilities, [score > 0 for score in exact_match])
        if not scorer.has_unanswerable:
            return {"reliability": calibration}
        f1 = scorer.scores("f1", answers)
        references = ["no answer" if example.unanswerable else "an answer" for example in examples]
        rows = []
        for kind in sorted(set(references)):
            indices = [i for i, reference in enumerate(references) if reference == kind]
            means = (f"{fmean(scores[i] for i in indices):.4f}" for scores in (exact_match, f1))
            rows.append([f"with {kind}", *means, f"{len(indices):,}"])
        table = MetricTable("", ["questions", "exact match", "F1", "number"], rows)
        predicted = ["an answer" if answer else "no answer" for answer in answers]
        return {
            "tables": [table],
            "confusion": confusion("questions", references, predicted),
            "reliability": calibration,
        }

    def describe_error(self, example: QuestionExample, prediction: AnswerPrediction) -> tuple[str, str]:
        """Return the reference answers, each once, and the predicted answer."""
        references = " / ".join(dict.fromkeys(answer or "no answer" for answer in example.references))
        return references, prediction.answer or "no answer"

    def table_rows(self, example: QuestionExample, prediction: AnswerPrediction) -> list[dict[str, Any]]:
        """Return the question, its answer with its slice of the passage, and its probability."""
        cells = prediction.to_dict()
        names = [name for name in ("start", "end", "score", "null_score") if name in cells]
        row = {} if example.id is None else {"id": example.id}
        row |= {**example.display_inputs, "prediction": prediction.answer}
        return [row | {name: cells[name] for name in names}]

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


def _figures(examples: Sequence[QuestionExample]) -> dict[str, float]:
    lengths = [len(answer.text) for example in examples for answer in example.answers]
    return {
        "questions": len(examples),
        "passages": len({example.context for example in examples}),
        "unanswerable": sum(example.unanswerable for example in examples),
        "answers": len(lengths),
        "letters_per_answer": round(fmean(lengths), 1) if lengths else 0.0,
    }
