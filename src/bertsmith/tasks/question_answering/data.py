"""Examples of question answering: a question, its passage, and the reference answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from pydantic import BaseModel

from bertsmith.artifacts.folder import ModelFolder
from bertsmith.errors import InputError, option
from bertsmith.formatting import pluralize
from bertsmith.io.sources import Source
from bertsmith.tasks.base import Example, Metadata, TaskData
from bertsmith.tasks.data_checks import check_examples, check_text
from bertsmith.tasks.labels import LabelNames
from bertsmith.tasks.question_answering.squad import SquadQuestion, read_questions
from bertsmith.tasks.results import Diagnostic
from bertsmith.tasks.settings import AnswerSettings


class ReferenceAnswer(NamedTuple):
    """A reference answer, `context[start : start + len(text)]`; `moved`: the file gives another start or none."""

    text: str
    start: int
    moved: bool = False


@dataclass(frozen=True)
class QuestionExample(Example):
    """A question about a passage.

    Attributes:
        answers: The reference answers; none if the question is unlabeled or unanswerable.
        id: The file's id of the question, if it has one.
        unanswerable: True if the reference is that the passage has no answer.
    """

    question: str
    context: str
    answers: tuple[ReferenceAnswer, ...]
    location: str
    id: str | None = None
    unanswerable: bool = False

    @property
    def references(self) -> list[str]:
        """The texts of the reference answers; one empty text if the question is unanswerable."""
        return [""] if self.unanswerable else [answer.text for answer in self.answers]

    @property
    def group_key(self) -> str:
        """The passage."""
        return self.context

    @property
    def display_inputs(self) -> dict[str, str]:
        """The question."""
        return {"question": self.question}


class AnswerMetadata(BaseModel):
    """Metadata: `unanswerable` is True if a training question had no answer."""

    unanswerable: bool = False


class QuestionAnsweringData(TaskData):
    """SQuAD's JSON, or rows of a question, its passage, and its answers."""

    settings: AnswerSettings

    def read(self, source: Source, *, labeled: bool = True) -> list[QuestionExample]:
        """Return the questions of a source in order; see `read_questions` for the formats."""
        rows = read_questions(source, self.settings, labeled=labeled)
        examples = [_make_example(*row, labeled=labeled) for row in rows]
        check_examples(examples, source, "questions")
        if labeled and all(example.unanswerable for example in examples):
            raise InputError(
                "no_answers",
                "none of the questions in this file has an answer",
                location=source,
                hint="give the answers as SQuAD does, or in rows as 'answer' and 'start' (for other names, "
                f"{option('answer_column')} and {option('start_column')})",
            )
        return examples

    def from_inputs(
        self, columns: Mapping[str, Sequence[str]], locations: Sequence[str]
    ) -> list[QuestionExample]:
        """Return questions with their passages."""
        rows = zip(columns["question"], columns["context"], locations, strict=True)
        return [_unlabeled_example(*row) for row in rows]

    def to_row(self, example: QuestionExample) -> dict[str, Any]:
        """Return the question, its passage, and its answers as SQuAD writes them."""
        question_column, context_column, *_ = self.tuple_columns(2)
        row: dict[str, Any] = {} if example.id is None else {"id": example.id}
        row |= {question_column: example.question, context_column: example.context}
        row["answers"] = [{"text": text, "answer_start": start} for text, start, _ in example.answers]
        return row | ({"is_impossible": True} if example.unanswerable else {})

    def tuple_columns(self, num_values: int) -> list[str]:
        """Return the columns of the question, its passage, its answer, and optionally the answer's start."""
        parts = ("question", "context", "answer", "start")
        names = [getattr(self.settings, f"{part}_column") or part for part in parts]
        return names[: max(3, num_values)]

    def read_warnings(self, examples: Sequence[QuestionExample]) -> list[Diagnostic]:
        """Return the answers that are not where the file says."""
        return moved_answers(examples)

    def fit_metadata(self, examples: Sequence[QuestionExample], label_names: LabelNames | None) -> Metadata:
        """Return whether a question may have no answer."""
        super().fit_metadata(examples, label_names)
        return {"unanswerable": any(example.unanswerable for example in examples)}

    def metadata_from_hf(self, folder: ModelFolder) -> Metadata | None:
        """Return no metadata: the architecture does not say whether a question may have no answer."""
        return {} if folder.architecture.endswith("ForQuestionAnswering") else None


def moved_answers(examples: Sequence[QuestionExample]) -> list[Diagnostic]:
    """Return a diagnostic of the answers that are not where the file says, if there are any."""
    moved = [example.location for example in examples for answer in example.answers if answer.moved]
    if not moved:
        return []
    were = pluralize(len(moved), "answer was", "answers were")
    text = "its text" if len(moved) == 1 else "their texts"
    message = f"{were} found by {text}, at another start than the file gives, or where it gives none"
    return [Diagnostic("answers not at their offset", message, moved)]


def _make_example(context: str, row: SquadQuestion, location: str, *, labeled: bool) -> QuestionExample:
    """Return an example of a row of `read_questions`."""
    example = _unlabeled_example(row.question, context, location, row.id)
    if not labeled:
        return example
    if row.is_impossible and row.answers:
        message, hint = "the question is impossible, and has an answer", "remove one of the two"
        raise InputError("impossible_with_answer", message, location=location, hint=hint)
    answers = tuple(_locate(context, answer.text, answer.answer_start, location) for answer in row.answers)
    return replace(example, answers=answers, unanswerable=not answers)


def _unlabeled_example(question: Any, context: Any, location: str, id: str | None = None) -> QuestionExample:
    """Return an example without answers.

    Raises:
        InputError: The question or the passage is empty or not a string.
    """
    for name, text in (("question", question), ("context", context)):
        check_text(text, name, location)
    return QuestionExample(question, context, (), location, id)


def _locate(context: str, text: str, start: int | None, location: str) -> ReferenceAnswer:
    """Return an answer at its start, or else at its occurrence nearest to it (the first if no start is given)."""
    if start is not None and context.startswith(text, start):
        return ReferenceAnswer(text, start)
    near = start or 0
    starts = [i for i in (context.rfind(text, 0, near + len(text)), context.find(text, near)) if i >= 0]
    if not starts:
        message, hint = f"the answer {text!r} is not in the passage", "fix it, or remove this question"
        raise InputError("answer_not_in_passage", message, location=location, hint=hint)
    return ReferenceAnswer(text, min(starts, key=lambda i: abs(i - near)), moved=True)
