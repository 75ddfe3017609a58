"""Read questions with choices: rows, and the formats of SWAG, CODAH, DREAM, RACE, and CommonsenseQA.

A row has `context` and `question` (one of them may be missing), `choices` (a list, or the columns choice0,
choice1, …), and `label`: the index of the right choice from 0, its letter, or its text; under these names, those
of known data sets, or the user's (`ChoiceNames`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bertsmith.errors import InputError, option
from bertsmith.io.compression import format_suffix
from bertsmith.io.delimited import read_records
from bertsmith.io.jsonl import read_json
from bertsmith.io.sources import Source
from bertsmith.io.tables import Table, is_json_source, json_rows, read_table
from bertsmith.io.text_io import ErrorCollector, LineReader
from bertsmith.tasks.columns import NamedColumn, column_value, first_value, rename_columns
from bertsmith.tasks.settings import ChoiceNames

_CONTEXTS = ("context", "article", "passage", "startphrase", "ctx", "premise")
_CHOICES = ("choices", "choice", "options", "endings")
_ANSWERS = ("label", "answerKey", "answer")
_NUMBERED_CHOICE = re.compile(r"(?:ending|choice|option|answer|sol)[ _-]?(\d+)")
_INDEX = re.compile("-?[0-9]+")
_ROW_HINT = (
    "a row has context or question, choices (a list, or choice0, choice1, …) and label; name other columns with "
    f"{option('context_column')}, {option('question_column')}, {option('choices_column')}, and "
    f"{option('label_column')}"
)
_RACE_HINT = "RACE has article, and of each question one of questions, options (lists) and answers (letters)"
_DREAM_HINT = "DREAM is a list of [turns, questions, id], each question with question, choice and answer"
_DEFAULT_NAMES = ChoiceNames()


class ChoiceRow(NamedTuple):
    """A question.

    Attributes:
        context: The text that it is about, or "".
        question: The question, or "".
        choices: Its choices; of a blank row none.
        right: The index of the right choice; None if labels are not read.
        place: Its location.
        number: Its id in the file.
        row: The row of a table, as text.
    """

    context: str
    question: str
    choices: tuple[str, ...]
    right: int | None
    place: str
    number: str | None = None
    row: Mapping[str, str] | None = None


def read_choices(
    source: Source,
    *,
    labeled: bool,
    names: ChoiceNames = _DEFAULT_NAMES,
    delimiter: str | None = None,
    header: bool = True,
    encoding: str | None = None,
) -> Iterator[ChoiceRow]:
    """Yield the questions of a source, or of each .txt and .json file of a folder (RACE has one file per article).

    Args:
        source: .csv and .tsv: rows (SWAG's startphrase, or sent1 and sent2, and ending0, …); a .tsv without a
        header
            is CODAH's. .jsonl: rows, CommonsenseQA's, or RACE's articles; .json: a list of these, or DREAM's;
            .txt: an article of RACE. Or data in memory.
        labeled: Read the right choice, which must be there.
        names: The columns of a row; without a header their numbers from 1.
        delimiter: The delimiter of a text file.
        header: The first row has the names of the columns.
        encoding: The encoding of a file that is not UTF-8.
    """
    suffix = format_suffix(source)
    if not isinstance(source, Table) and Path(source).is_dir():
        files = sorted(path for path in Path(source).rglob("*") if format_suffix(path) in (".txt", ".json"))
        if not files:
            message = "there is no .txt and no .json in this folder"
            raise InputError("no_files", message, location=source, hint="name a file")
        for file in files:
            yield from read_choices(file, labeled=labeled, names=names, encoding=encoding)
    elif suffix in (".json", ".txt"):
        try:
            value = read_json(source, encoding)
        except InputError as error:
            if suffix == ".txt" and error.code == "not_json":
                error.hint = f"a .txt is an article of RACE; {_ROW_HINT}, in .jsonl or .csv"
            raise
        yield from _questions_of_json(value, str(source), labeled=labeled, names=names)
    elif is_json_source(source):
        for row in json_rows(source, encoding):
            yield from _questions_of_object(row.values, row.location, labeled=labeled, names=names)
    elif suffix == ".tsv" and header and not (names.are_given or delimiter or _has_header(source, encoding)):
        yield from _codah_questions(source, encoding, labeled=labeled)
    else:
        table = read_table(
            source, delimiter=delimiter, header=header, encoding=encoding, keep_blank=not labeled
        )
        for row in table:
            question = question_of_row(row.values, row.location, labeled=labeled, names=names)
            yield question._replace(row=row.texts)


def question_of_row(
    values: Mapping[str, Any], location: str, *, labeled: bool, names: ChoiceNames = _DEFAULT_NAMES
) -> ChoiceRow:
    """Return the question of a row. Raises `InputError` if a part is missing or wrong."""
    values = _known_columns(values, names, location, labeled=labeled)
    question = values.get("question")
    stem = question if isinstance(question, Mapping) else {}  # CommonsenseQA's
    question = stem.get("stem", "") if stem else question
    context = first_value(values, _CONTEXTS)
    if values.get("sent1") and values.get("sent2"):
        context, question = values["sent1"], values["sent2"]  # the ending continues the second
    numbered = {int(match[1]): name for name in values if (match := _NUMBERED_CHOICE.fullmatch(name))}
    listed = first_value(stem or values, _CHOICES)
    if listed is None and numbered:
        listed = _without_empty([values[numbered[i]] for i in sorted(numbered)])
    texts = _text(context, "context", location), _text(question, "question", location)
    if not labeled and not any(texts) and (listed is None or not any(listed)):
        return ChoiceRow("", "", (), None, location)
    choices, letters = _parse_choices(listed, location)
    right = None
    if labeled:
        if (answer := first_value(values, _ANSWERS)) is None:
            hint = f"give it as label: {_ROW_HINT}"
            raise InputError("answer_missing", "the right choice is missing", location=location, hint=hint)
        right = choice_index(
            answer, choices, letters, location, has_indices=bool(numbered), first=names.first
        )
    if not any(texts):
        message = "there is neither a context nor a question"
        raise InputError("question_missing", message, location=location, hint=_ROW_HINT)
    number = values.get("id")
    return ChoiceRow(*texts, choices, right, location, None if number is None else str(number))


def _known_columns(
    values: Mapping[str, Any], names: ChoiceNames, location: str, *, labeled: bool
) -> Mapping[str, Any]:
    """Return a row's values under the names that `question_of_row` knows."""
    columns = {
        "context": NamedColumn(names.context, "context_column", _CONTEXTS),
        "question": NamedColumn(names.question, "question_column"),
        "label": NamedColumn(names.label if labeled else None, "label_column", _ANSWERS),
    }
    renamed = rename_columns(values, columns, location)
    if names.choices is not None:
        several = [names.choices]
        if names.choices not in values:
            several = [name.strip() for name in names.choices.split(",")]
        cells = [column_value(values, name, "choices_column", location) for name in several]
        renamed = {key: cell for key, cell in renamed.items() if not _NUMBERED_CHOICE.fullmatch(key)}
        renamed["choices"] = cells[0] if len(several) == 1 else _without_empty(cells)
    return renamed


def choice_index(
    answer: Any,
    choices: Sequence[str],
    letters: Sequence[str],
    location: str,
    *,
    has_indices: bool = False,
    first: int = 0,
) -> int:
    """Return the index of the right choice.

    Args:
        answer: Its index, its letter, or its text.
        choices: The choices.
        letters: Their labels in the file; empty for A, B, ….
        location: The location of the question.
        has_indices: A number is an index even if a choice has it as its text.
        first: The index of the first choice in the file.
    """
    defaults = [chr(ord("A") + i) for i in range(min(26, len(choices)))]
    names = list(letters or defaults)
    last = len(choices) - 1 + first
    valid = f"its text, its index ({first} to {last}) or its letter ({names[0]} to {names[-1]})"
    if isinstance(answer, bool) or not isinstance(answer, int | str):
        message, hint = f"the right choice is {answer!r:.40}", f"name it by {valid}"
        raise InputError("bad_answer", message, location=location, hint=hint)
    text = answer.strip() if isinstance(answer, str) else ""
    if letters and text in names:
        return names.index(text)
    index = answer if isinstance(answer, int) else int(text) if _INDEX.fullmatch(text) else None
    equal = [i for i, choice in enumerate(choices) if choice == answer or choice.strip() == text]
    if index is None or (equal and isinstance(answer, str) and not has_indices):
        if len(equal) == 1:
            return equal[0]
        if equal:
            message = f"the answer {text!r:.60} equals {len(equal)} choices"
            raise InputError("ambiguous_answer", message, location=location, hint="name its index")
        if not letters and text.upper() in names:
            return names.index(text.upper())
        message, hint = (
            f"the answer {text!r:.60} is none of the {len(choices)} choices",
            f"name it by {valid}",
        )
        raise InputError("unknown_answer", message, location=location, hint=hint)
    if not first <= index <= last:
        start = (
            "indices begin at 1" if first else f"indices begin at 0 (at 1 with {option('first_index', 1)})"
        )
        raise InputError(
            "answer_out_of_range",
            f"the label {index} is out of range: the {len(choices)} choices are {first} to {last}",
            location=location,
            hint=f"{start}; fix the row",
        )
    return index - first


def check_choices(choices: Sequence[Any], location: str) -> tuple[str, ...]:
    """Return two choices or more as strings."""
    if len(choices) < 2:
        raise InputError(
            "too_few_choices",
            f"a question has two choices or more, this one has {len(choices)}",
            location=location,
            hint="add the others, or remove this question",
        )
    return tuple(_text(choice, f"choice {i}", location) for i, choice in enumerate(choices))


def _without_empty(cells: Sequence[Any]) -> list[Any]:
    """Return the choices of a table's columns without the last ones that are empty."""
    choices = ["" if cell is None else cell for cell in cells]
    while len(choices) > 2 and choices[-1] == "":
        choices.pop()
    return choices


def _text(value: Any, name: str, location: str) -> str:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return json.dumps(value)
    if value is not None and not isinstance(value, str):
        message, hint = f"the {name} is not a string, but {value!r:.60}", "give it as one string"
        raise InputError("not_a_string", message, location=location, hint=hint)
    return value or ""


def _parse_choices(value: Any, location: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the choices, and their labels in the file (A, B, …) if it has some.

    The value is a list of texts, of {"label", "text"}, or both as columns; in a table's cell, the list as JSON.
    """
    if isinstance(value, str) and value.lstrip().startswith("["):
        try:
            value = json.loads(value)
        except ValueError:
            message, hint = "the choices are not a JSON list", 'write ["one", "two"]'
            raise InputError("not_json", message, location=location, hint=hint) from None
    letters: Sequence[Any] = ()
    if isinstance(value, Mapping) and isinstance(value.get("text"), list):
        letters, value = value.get("label") or (), value["text"]
    if value is None:
        raise InputError("choices_missing", "the choices are missing", location=location, hint=_ROW_HINT)
    if not isinstance(value, list | tuple):
        message = f"the choices are not a list, but {value!r:.40}"
        raise InputError("not_a_list", message, location=location, hint=_ROW_HINT)
    if value and all(isinstance(choice, Mapping) for choice in value):
        letters = [choice.get("label", "") for choice in value]
        value = [choice.get("text") for choice in value]
    if letters and (len(set(map(str, letters))) < len(letters) or len(letters) != len(value)):
        raise InputError(
            "duplicate_choice_labels",
            "the choices do not have one label each",
            location=location,
            hint="give each choice a label of its own",
        )
    return check_choices(value, location), tuple(map(str, letters))


def _questions_of_json(value: Any, file: str, *, labeled: bool, names: ChoiceNames) -> Iterator[ChoiceRow]:
    if isinstance(value, dict) and isinstance(value.get("data"), list):
        value = value["data"]
    if isinstance(value, dict):
        yield from _questions_of_object(value, file, labeled=labeled, names=names, separator=": ")
        return
    if not isinstance(value, list):
        raise _wrong_type_error(file)
    for index, item in enumerate(value):
        location = f"{file}: [{index}]"
        if isinstance(item, list):
            yield from _dream_questions(item, location, labeled=labeled)
        elif isinstance(item, dict):
            yield from _questions_of_object(item, location, labeled=labeled, names=names)
        else:
            raise _wrong_type_error(location)


def _wrong_type_error(location: str) -> InputError:
    message, hint = "this is neither a list nor an object", f"{_ROW_HINT}; {_DREAM_HINT}; {_RACE_HINT}"
    return InputError("not_a_list_or_object", message, location=location, hint=hint)


def _questions_of_object(
    values: Mapping[str, Any], location: str, *, labeled: bool, names: ChoiceNames, separator: str = ""
) -> Iterator[ChoiceRow]:
    """Yield the question of a row, or those of an article of RACE.

    A .jsonl has no separator between the locations of an article and of its questions: all have that of its line.
    """
    questions, options = values.get("questions"), values.get("options")
    if not isinstance(questions, list):
        yield question_of_row(values, location, labeled=labeled, names=names)
        return
    context = _text(values.get("article"), "article", location)
    answers = values.get("answers") if labeled else [None] * len(questions)
    if not isinstance(options, list) or not isinstance(answers, list):
        message = "options or answers are not a list"
        raise InputError("not_a_list", message, location=location, hint=_RACE_HINT)
    if not len(questions) == len(options) == len(answers):
        counts = f"{len(questions)} questions, {len(options)} lists of options, and {len(answers)} answers"
        raise InputError("length_mismatch", f"there are {counts}", location=location, hint=_RACE_HINT)
    for i, (question, choices, answer) in enumerate(zip(questions, options, answers, strict=True)):
        row = {"context": context, "question": question, "choices": choices, "label": answer}
        part = f"{location}{separator}questions[{i}]" if separator else location
        yield question_of_row(row, part, labeled=labeled)._replace(number=_numbered(values.get("id"), i))


def _dream_questions(dialogue: list[Any], location: str, *, labeled: bool) -> Iterator[ChoiceRow]:
    """Yield the questions about a dialogue: its turns, its questions, its id."""
    if len(dialogue) != 3 or not isinstance(dialogue[0], list) or not isinstance(dialogue[1], list):
        raise InputError("not_a_dialogue", "this is not a dialogue", location=location, hint=_DREAM_HINT)
    context = "\n".join(_text(turn, "turn", location) for turn in dialogue[0])
    for i, question in enumerate(dialogue[1]):
        part = f"{location}[1][{i}]"
        if not isinstance(question, dict):
            raise InputError("not_a_question", "this is not a question", location=part, hint=_DREAM_HINT)
        row = {"context": context, "question": question.get("question"), "choices": question.get("choice")}
        parsed = question_of_row(row, part, labeled=False)
        if labeled:
            if not isinstance(answer := question.get("answer"), str):
                raise InputError("answer_missing", "the answer is missing", location=part, hint=_DREAM_HINT)
            parsed = parsed._replace(right=choice_index(answer, parsed.choices, (), part))
        yield parsed._replace(number=_numbered(dialogue[2], i))


def _numbered(name: Any, index: int) -> str | None:
    """Return an id for a question of a text that has one."""
    return None if name is None else f"{name}-{index + 1}"


def _tsv_rows(file: str | Path, encoding: str | None) -> Iterator[tuple[str, list[str]]]:
    errors = ErrorCollector(file)
    for lines, fields in read_records(LineReader(file, errors, encoding), "\t", errors):
        yield f"{file}:{lines[0].number}", fields


def _has_header(file: str | Path, encoding: str | None) -> bool:
    """Return True if the first line of a .tsv has names of known columns."""
    _, fields = next(_tsv_rows(file, encoding), ("", []))
    columns = {*_CONTEXTS, *_CHOICES, *_ANSWERS, "question", "sent1"}
    return any(name.strip() in columns or _NUMBERED_CHOICE.fullmatch(name.strip()) for name in fields)


def _codah_questions(file: str | Path, encoding: str | None, *, labeled: bool) -> Iterator[ChoiceRow]:
    """Yield CODAH's rows: category, prompt, endings, and the index of the right one."""
    for location, fields in _tsv_rows(file, encoding):
        has_index = _INDEX.fullmatch(fields[-1].strip()) is not None
        if len(fields) < 4 + has_index or (labeled and not has_index):
            raise InputError(
                "not_a_codah_row",
                "this is not a row of CODAH: a category, a prompt, endings, and the index of the right one",
                location=location,
                hint="fix it, or give the file a header: context, question, choice0, choice1, …, label",
            )
        choices = check_choices(fields[2:-1] if has_index else fields[2:], location)
        right = choice_index(int(fields[-1]), choices, (), location) if labeled else None
        yield ChoiceRow(fields[1], "", choices, right, location)
