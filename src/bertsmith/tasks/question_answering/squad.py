"""Read questions about passages: SQuAD's JSON, and rows of question, passage, and answer.

The types of all values are checked here; the task checks that an answer is at its position.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from bertsmith.errors import InputError, option
from bertsmith.io.compression import format_suffix
from bertsmith.io.jsonl import read_json_bytes
from bertsmith.io.sources import Source
from bertsmith.io.tables import Row, is_json_array, is_json_source, json_rows, read_table
from bertsmith.tasks.rows import first_value, rename_columns
from bertsmith.tasks.settings import AnswerSettings

_ANSWER_COLUMNS = ("answer", "answer_text", "answers")
_START_COLUMNS = ("start", "answer_start")


class _Object(BaseModel):
    model_config = ConfigDict(coerce_numbers_to_str=True)


class AnswerText(_Object):
    """An answer and its start in its passage, in characters; None if the file does not give it."""

    text: str = Field(min_length=1)
    answer_start: Annotated[
        int | None, Field(ge=0), BeforeValidator(lambda value: None if value == "" else value)
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
    encoding, is_json = settings.encoding, format_suffix(source) == ".json"
    if is_json and not is_json_array(source, encoding):
        yield from _squad_questions(source, encoding)
        return
    is_json = is_json or is_json_source(source)
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
        try:
            question = _Row.model_validate(_known_columns(row, settings, labeled=labeled))
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
    return rename_columns(row.values, settings, names, row.location)


def _squad_questions(source: Source, encoding: str | None) -> Iterator[tuple[str, SquadQuestion, str]]:
    try:
        articles = _Squad.model_validate_json(read_json_bytes(source, encoding)).data
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
