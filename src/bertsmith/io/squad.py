"""Questions about passages: SQuAD's JSON, and rows of question, passage and answer in JSON, jsonl or tables.

Each file is typed and checked here; whether an answer stands where the file says is the task's to see.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator

from bertsmith.errors import InputError, option
from bertsmith.io.files import bare_suffix, json_object, read_lines
from bertsmith.io.records import Named, by_known_names
from bertsmith.io.tables import read_table
from bertsmith.io.whole_json import whole_json


class PassageNames(NamedTuple):
    """What a file of rows calls their parts where it has names of its own; None: as it is known."""

    question: str | None = None
    context: str | None = None
    answer: str | None = None
    start: str | None = None


_KNOWN = PassageNames()


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
        """`answer` and `start` (or answer_text and answer_start; an empty answer is none), and answers as columns
        ({"text": […], "answer_start": […]}), as SQuAD has them."""
        if not isinstance(row, dict):
            return row
        answers = row.get("answers")
        if answers is None:
            answer = next(
                (row[key] for key in ("answer", "answer_text") if row.get(key) not in (None, "")), None
            )
            start = next(
                (row[key] for key in ("start", "answer_start") if row.get(key) not in (None, "")), None
            )
            if answer is None:
                return {key: value for key, value in row.items() if key != "answers"}
            return {**row, "answers": [{"text": answer, "answer_start": _start_of(start)}]}
        if isinstance(answers, dict) and isinstance(texts := answers.get("text"), list):
            starts = answers.get("answer_start")
            if not isinstance(starts, list) or len(starts) != len(texts):
                raise ValueError("'text' and 'answer_start' of 'answers' are not lists of one length")
            pairs = zip(texts, starts, strict=True)
            return {**row, "answers": [{"text": text, "answer_start": start} for text, start in pairs]}
        return {key: value for key, value in row.items() if key != "answers" or value is not None}


def _start_of(value: Any) -> Any:
    """Where an answer begins, of a row. ValueError where that is no place."""
    try:
        number = int(value) if isinstance(value, str) else value
    except ValueError:
        number = None if value is None else -1
    if number is not None and (not isinstance(number, int) or isinstance(number, bool) or number < 0):
        raise ValueError(f"the start {value!r:.40} is not a number of characters from 0 (empty: not known)")
    return number


class _Paragraph(_Typed):
    context: str
    qas: list[Asked]


class _Article(_Typed):
    paragraphs: list[_Paragraph]


class _Squad(_Typed):
    data: list[_Article]


_ROWS = TypeAdapter(list[_Row])
_ANSWERS = {"answer", "answer_text", "answers"}  # columns that a table has them in


def read_questions(
    file: str | Path,
    encoding: str | None = None,
    *,
    names: PassageNames = _KNOWN,
    labelled: bool = True,
    delimiter: str | None = None,
    header: bool = True,
) -> Iterator[tuple[str, Asked, str]]:
    """Each question's passage, the question, and its place: `file: data[3].paragraphs[0].qas[2]`, `file: [17]` in
    a JSON list of rows, or file:line of a .jsonl, .csv or .tsv; each also .gz, .zst, .bz2 and .xz.

    encoding: of a file that is not UTF-8. A row has question and context, and answer with start, or answers.
    names: of its columns, or of a table without a header (header=False) their numbers from 1. labelled: whether
    the answers must be there. InputError with the place of what is amiss.
    """
    suffix = bare_suffix(file)
    if suffix == ".json":
        yield from _of_json(file, encoding, names, labelled=labelled)
        return
    rows = (
        _of_lines(file, encoding)
        if suffix == ".jsonl"
        else _of_table(file, encoding, delimiter, header=header, names=names, labelled=labelled)
    )
    for place, values in rows:
        try:
            row = _Row.model_validate(_by_known_names(values, names, place, labelled=labelled))
        except ValidationError as error:
            raise _fault(place, error) from None
        yield row.context, row, place


def _of_lines(file: str | Path, encoding: str | None) -> Iterator[tuple[str, Any]]:
    for number, line in read_lines(file, encoding):
        if line and not line.isspace():
            yield f"{file}:{number}", json_object(file, number, line)


def _of_table(
    file: str | Path,
    encoding: str | None,
    delimiter: str | None,
    *,
    header: bool,
    names: PassageNames,
    labelled: bool,
) -> Iterator[tuple[str, Any]]:
    for row in read_table(file, delimiter=delimiter, header=header, encoding=encoding):
        if labelled and names.answer is None and not _ANSWERS & row.values.keys():
            raise InputError(
                "column_missing",
                "there is no column of answers",
                location=f"{file}:{row.line}",
                argument="answer_column",
                hint=f"name it with {option('answer_column')}: {', '.join(row.values)}; it is empty where a "
                "question has no answer",
            )
        yield f"{file}:{row.line}", dict(row.values)


def _by_known_names(values: Any, names: PassageNames, place: str, *, labelled: bool) -> Any:
    """A row by the names that `_Row` knows. InputError for a column that is not there, but one of answers beside
    SQuAD's own."""
    if not isinstance(values, Mapping):
        return values

    def of_answer(column: str | None) -> str | None:
        return column if labelled and not ("answers" in values and column not in values) else None

    parts = {
        "question": Named(names.question, "question_column", ()),
        "context": Named(names.context, "context_column", ()),
        "answer": Named(of_answer(names.answer), "answer_column", ("answer", "answer_text", "answers")),
        "start": Named(of_answer(names.start), "start_column", ("start", "answer_start")),
    }
    return by_known_names(values, parts, place)


def _of_json(
    file: str | Path, encoding: str | None, names: PassageNames, *, labelled: bool
) -> Iterator[tuple[str, Asked, str]]:
    text = whole_json(file, encoding)
    try:
        if text.lstrip().startswith(b"[") and names != _KNOWN:
            for number, values in enumerate(json.loads(text)):
                place = f"{file}: [{number}]"
                row = _Row.model_validate(_by_known_names(values, names, place, labelled=labelled))
                yield row.context, row, place
            return
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
    """Return the error for the first fault that pydantic reports, with its location in the document."""
    first = error.errors(include_url=False, include_input=False)[0]
    if first["type"] == "json_invalid":
        return InputError(
            "not_json",
            f"this is not JSON: {first['ctx']['error']}",
            location=place,
            hint="the file is incomplete or damaged, or it has one object per line and should be called .jsonl",
        )
    path = list(first["loc"])
    if first["type"] == "missing":
        message = f"the field '{path.pop()}' is missing"
    else:
        message = first["msg"].removeprefix("Value error, ")
        message = message[0].lower() + message[1:]
    keys = "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in path).removeprefix(".")
    location = f"{place}: {keys}" if keys else place
    options = ", ".join(option(f"{part}_column") for part in ("question", "context", "answer", "start"))
    hint = (
        "write SQuAD's JSON, or rows with question, context, answer, and start (or name their columns: "
        f"{options})"
    )
    if first["type"] == "missing":
        return InputError("field_missing", message, location=location, hint=hint)
    return InputError("invalid_value", message, location=location, hint=hint)
