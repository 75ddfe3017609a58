"""Examples of question answering: SQuAD's JSON, and rows of a question, its passage, and its answers.

The types of all values are checked first, and then that an answer is at its position.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, NamedTuple

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from bertsmith.artifacts.folder import ModelFolder
from bertsmith.errors import InputError, option
from bertsmith.formatting import pluralize
from bertsmith.io.compression import format_suffix
from bertsmith.io.jsonl import read_json_bytes
from bertsmith.io.sources import Source
from bertsmith.io.tables import Row, has_json_lines, is_json_source, json_rows, read_table
from bertsmith.io.values import MISSING_TEXTS, to_text
from bertsmith.tasks.base import Example, Metadata, TaskData
from bertsmith.tasks.data_checks import check_examples, check_text
from bertsmith.tasks.labels import LabelNames
from bertsmith.tasks.results import Diagnostic
from bertsmith.tasks.rows import first_value, rename_columns
from bertsmith.tasks.settings import AnswerSettings

_ANSWER_COLUMNS = ("answer", "answer_text", "answers")
_START_COLUMNS = ("start", "answer_start")


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

    @property
    def texts(self) -> tuple[str, str]:
        """The question and the passage."""
        return self.question, self.context


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
    question, context = check_text(question, "question", location), check_text(context, "context", location)
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


class _Object(BaseModel):
    model_config = ConfigDict(coerce_numbers_to_str=True)


class AnswerText(_Object):
    """An answer and its start in its passage, in characters; None if the file does not give it."""

    text: str = Field(min_length=1)
    answer_start: Annotated[
        int | None,
        Field(ge=0),
        BeforeValidator(lambda value: None if str(value) in {"", *MISSING_TEXTS} else value),
    ] = None


class SquadQuestion(_Object):
    """A question of a file with its answers."""

    question: str
    id: str | None = None
    answers: list[AnswerText] = []
    is_impossible: bool = False


class _Row(SquadQuestion):
    context: str

    @model_validator(mode="before")
    @classmethod
    def _convert_answers(cls, row: dict[str, Any]) -> dict[str, Any]:
        """Convert an answer and its start, and answers as columns ({"text": […], "answer_start": […]})."""
        answers = row.get("answers")
        if answers is None:
            answer, start = first_value(row, _ANSWER_COLUMNS), first_value(row, _START_COLUMNS)
            answers = [] if answer is None else [{"text": answer, "answer_start": start}]
        elif isinstance(answers, dict) and isinstance(texts := answers.get("text"), list):
            starts = answers.get("answer_start")
            if not isinstance(starts, list) or len(starts) != len(texts):
                raise ValueError("'text' and 'answer_start' of 'answers' are not lists of one length")
            pairs = zip(texts, starts, strict=True)
            answers = [{"text": text, "answer_start": start} for text, start in pairs]
        return {**row, "answers": answers}


class _Paragraph(_Object):
    context: str
    qas: list[SquadQuestion]


class _Article(_Object):
    paragraphs: list[_Paragraph]


class _Squad(_Object):
    data: list[_Article]


def read_questions(
    source: Source, settings: AnswerSettings, *, labeled: bool = True
) -> Iterator[tuple[str, SquadQuestion, str]]:
    """Yield each question's passage, the question, and its location.

    The location is `file: data[3].paragraphs[0].qas[2]` in SQuAD's JSON, `file: [17]` in a JSON array, or
    file:line.

    Args:
        source: SQuAD's .json, or a table whose rows have question and context, and answer with start, or answers.
        settings: The columns of the rows, and how to read a file.
        labeled: The answers must exist.
    """
    encoding, is_json = settings.encoding, is_json_source(source)
    if format_suffix(source) == ".json" and not has_json_lines(source, encoding):
        content = read_json_bytes(source, encoding)
        if not content.lstrip().startswith(b"["):
            yield from _squad_questions(source, content)
            return
    rows = (
        json_rows(source, encoding)
        if is_json
        else read_table(source, delimiter=settings.delimiter, header=settings.header, encoding=encoding)
    )
    for row in rows:
        if (
            labeled
            and not is_json
            and settings.answer_column is None
            and not {*_ANSWER_COLUMNS} & {*row.values}
        ):
            raise InputError(
                "column_missing",
                "there is no column of answers",
                location=row.location,
                argument="answer_column",
                hint=f"name it with {option('answer_column')}: {', '.join(row.values)}; it is empty where a "
                "question has no answer",
            )
        values = _known_columns(row, settings, labeled=labeled)
        if not is_json:
            values |= {name: "" for name in ("question", "context") if values.get(name) in MISSING_TEXTS}
        try:
            question = _Row.model_validate(values)
        except ValidationError as error:
            raise _validation_error(row.location, error) from None
        yield question.context, question, row.location


def _known_columns(row: Row, settings: AnswerSettings, *, labeled: bool) -> dict[str, Any]:
    """Return a row's values under the usual names; SQuAD's own answers need no columns of answers."""
    names: dict[str, tuple[str, ...]] = {"question": (), "context": ()}
    for name, usual_names in (("answer", _ANSWER_COLUMNS), ("start", _START_COLUMNS)):
        column = getattr(settings, f"{name}_column")
        if labeled and (column in row.values or "answers" not in row.values):
            names[name] = usual_names
    values = rename_columns(row.values, settings, names, row.location)
    for name in ("question", "context", "answer"):
        if name in values:
            values[name] = to_text(values[name], name, row.location, f"{name}_column")
    return values


def _squad_questions(source: Source, content: bytes) -> Iterator[tuple[str, SquadQuestion, str]]:
    try:
        articles = _Squad.model_validate_json(content).data
    except ValidationError as error:
        raise _validation_error(str(source), error) from None
    for a, article in enumerate(articles):
        for p, paragraph in enumerate(article.paragraphs):
            for q, question in enumerate(paragraph.qas):
                yield paragraph.context, question, f"{source}: data[{a}].paragraphs[{p}].qas[{q}]"


def _validation_error(location: str, error: ValidationError) -> InputError:
    """Return the error for the first one that pydantic reports, with its location in the document."""
    first = error.errors(include_url=False, include_input=False)[0]
    if first["type"] == "json_invalid":
        message = f"this is not JSON: {first['ctx']['error']}"
        hint = "the file is incomplete or damaged, or it has one object per line and should be called .jsonl"
        return InputError("not_json", message, location=location, hint=hint)
    path, name = list(first["loc"]), None
    if first["type"] == "missing":
        name = path.pop()
    if keys := "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in path):
        location += keys if location.endswith("]") else f": {keys.removeprefix('.')}"
    options = ", ".join(option(f"{part}_column") for part in ("question", "context", "answer", "start"))
    hint = f"write SQuAD's JSON, or rows with question, context, answer, and start, or name the columns: {options}"
    if name is not None:
        return InputError("field_missing", f"the field '{name}' is missing", location=location, hint=hint)
    message = first["msg"].removeprefix("Value error, ")
    return InputError("invalid_value", message[0].lower() + message[1:], location=location, hint=hint)
