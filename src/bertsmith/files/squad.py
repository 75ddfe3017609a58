"""Questions about passages: SQuAD's JSON, and rows of question, passage and answer in JSON, jsonl or tables.

Each file is typed and checked here; whether an answer stands where the file says is the task's to see.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator

from bertsmith.errors import InputError
from bertsmith.files.files import bare_suffix, json_object, read_lines
from bertsmith.files.tables import read_table
from bertsmith.files.whole_json import whole_json


class _Typed(BaseModel):
    """An object of which other keys are left alone."""

    model_config = ConfigDict(coerce_numbers_to_str=True)


class AnswerText(_Typed):
    """An answer and where it begins in its passage, in characters; None where the file does not say."""

    text: str = Field(min_length=1)
    answer_start: int | None = Field(None, ge=0)


class Asked(_Typed):
    """A question as a file has it, with its answers."""

    question: str
    id: str | None = None
    answers: list[AnswerText] = []
    is_impossible: bool = False


class _Row(Asked):
    context: str

    @model_validator(mode="before")
    @classmethod
    def _one_form(cls, row: Any) -> Any:
        """`answer` and `start`, and answers as columns ({"text": […], "answer_start": […]}), as SQuAD has them."""
        if not isinstance(row, dict):
            return row
        answers = row.get("answers")
        if answers is None and row.get("answer") is not None:
            return {**row, "answers": [{"text": row["answer"], "answer_start": row.get("start")}]}
        if isinstance(answers, dict) and isinstance(texts := answers.get("text"), list):
            starts = answers.get("answer_start")
            if not isinstance(starts, list) or len(starts) != len(texts):
                raise ValueError("'text' and 'answer_start' of 'answers' are not lists of one length")
            pairs = zip(texts, starts, strict=True)
            return {**row, "answers": [{"text": text, "answer_start": start} for text, start in pairs]}
        return {key: value for key, value in row.items() if key != "answers" or value is not None}


class _Paragraph(_Typed):
    context: str
    qas: list[Asked]


class _Article(_Typed):
    paragraphs: list[_Paragraph]


class _Squad(_Typed):
    data: list[_Article]


_ROWS = TypeAdapter(list[_Row])


def read_questions(file: str | Path, encoding: str | None = None) -> Iterator[tuple[str, Asked, str]]:
    """Each question's passage, the question, and its place: `file: data[3].paragraphs[0].qas[2]`, `file: [17]` in
    a JSON list of rows, or file:line of a .jsonl, .csv or .tsv; each also .gz, .zst, .bz2 and .xz.

    encoding: of a file that is not UTF-8. A row has question and context, and answer with start, or answers.
    InputError with the place of what is amiss.
    """
    suffix = bare_suffix(file)
    if suffix == ".json":
        yield from _of_json(file, encoding)
        return
    for place, values in _of_lines(file, encoding) if suffix == ".jsonl" else _of_table(file, encoding):
        try:
            row = _Row.model_validate(values)
        except ValidationError as error:
            raise _fault(place, error) from None
        yield row.context, row, place


def _of_lines(file: str | Path, encoding: str | None) -> Iterator[tuple[str, Any]]:
    for number, line in read_lines(file, encoding):
        if line and not line.isspace():
            yield f"{file}:{number}", json_object(file, number, line)


def _of_table(file: str | Path, encoding: str | None) -> Iterator[tuple[str, Any]]:
    for row in read_table(file, encoding=encoding):
        yield f"{file}:{row.line}", {name: value for name, value in row.values.items() if value}


def _of_json(file: str | Path, encoding: str | None) -> Iterator[tuple[str, Asked, str]]:
    text = whole_json(file, encoding)
    try:
        if text.lstrip().startswith(b"["):
            for number, row in enumerate(_ROWS.validate_json(text)):
                yield row.context, row, f"{file}: [{number}]"
            return
        articles = _Squad.model_validate_json(text).data
    except ValidationError as error:
        raise _fault(str(file), error) from None
    for a, article in enumerate(articles):
        for p, paragraph in enumerate(article.paragraphs):
            for q, question in enumerate(paragraph.qas):
                yield paragraph.context, question, f"{file}: data[{a}].paragraphs[{p}].qas[{q}]"


def _fault(place: str, error: ValidationError) -> InputError:
    """The first fault that pydantic found, in plain words, with its place in the document."""
    first = error.errors(include_url=False, include_input=False)[0]
    if first["type"] == "json_invalid":
        return InputError(
            f"{place}: this is not JSON: {first['ctx']['error']}",
            "the file is incomplete or damaged, or it has one object per line and should be called .jsonl",
        )
    path = list(first["loc"])
    if first["type"] == "missing":
        said = f"the field '{path.pop()}' is missing"
    else:
        said = first["msg"].removeprefix("Value error, ")
        said = said[0].lower() + said[1:]
    keys = (f"[{key}]" if isinstance(key, int) else f".{key}" for key in path)
    return InputError(
        ": ".join(filter(None, [place, "".join(keys).removeprefix("."), said])),
        "write SQuAD's JSON, or rows with question, context, answer and start",
    )
