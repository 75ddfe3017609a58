"""Examples of multiple choice: rows, and the formats of SWAG, DREAM, RACE, and CommonsenseQA.

A row has `context` and `question` (one of them may be missing), `choices` (a list, or the columns choice0,
choice1, …), and `label`: the index of the right choice from 0, its letter, or its text; under these names, those
of known data sets, or the user's (`ChooseSettings`).
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

from bertsmith.artifacts.folder import ModelFolder
from bertsmith.errors import InputError, option
from bertsmith.formatting import pluralize
from bertsmith.io.compression import format_suffix
from bertsmith.io.jsonl import read_json
from bertsmith.io.sources import Source
from bertsmith.io.tables import Table, has_json_lines, is_json_source, json_rows, warn_of_missing_texts
from bertsmith.io.values import MISSING_TEXTS, is_blank, parse_array, parse_collection, to_text
from bertsmith.tasks.base import Example, Metadata, TaskData
from bertsmith.tasks.data_checks import check_examples
from bertsmith.tasks.labels import is_integer, plain_number
from bertsmith.tasks.results import Diagnostic
from bertsmith.tasks.rows import column_value, first_value, read_task_table, rename_columns
from bertsmith.tasks.settings import ChooseSettings

_CONTEXTS = ("context", "article", "passage", "startphrase", "ctx", "premise")
_CHOICES = ("choices", "choice", "options", "endings")
_LABELS = ("label", "answerKey", "answer")
_NUMBERED_CHOICE = re.compile(r"(?:ending|choice|option|answer|sol)[ _-]?(\d+)")
_ROW_HINT = (
    "a row has context or question, choices (a list, or choice0, choice1, …) and label; name other columns with "
    f"{option('context_column')}, {option('question_column')}, {option('choices_column')}, and "
    f"{option('label_column')}"
)
_RACE_HINT = "RACE has article, and of each question one of questions, options (lists) and answers (letters)"
_DREAM_HINT = "DREAM is a list of [turns, questions, id], each question with question, choice and answer"
_USUAL_NAMES = ChooseSettings()


@dataclass(frozen=True)
class ChoiceExample(Example):
    """A question with choices.

    Attributes:
        context: The context; "" if there is none.
        question: The question; "" if there is none.
        choices: The choices; none for a blank row.
        label: The index of the correct choice; None if it is unknown.
        id: The file's id of the example, if it has one.
    """

    context: str
    question: str
    choices: tuple[str, ...]
    label: int | None
    location: str
    id: str | None = None
    table_row: Mapping[str, str] | None = field(default=None, compare=False, repr=False)

    @property
    def group_key(self) -> str:
        """The context, or else the question."""
        return self.context or self.question

    @property
    def question_key(self) -> Hashable:
        """Context, question, and choices in any order."""
        return self.context, self.question, tuple(sorted(self.choices))

    @property
    def is_empty(self) -> bool:
        """True for a blank row."""
        return not self.choices

    @property
    def display_inputs(self) -> dict[str, str]:
        """The question, or else the context."""
        return {"question": self.question} if self.question else {"context": self.context}

    @property
    def texts(self) -> tuple[str, ...]:
        """The context, the question, and the choices."""
        return self.context, self.question, *self.choices

    @property
    def label_text(self) -> str | None:
        """The text of the correct choice."""
        return None if self.label is None else self.choices[self.label]


def read_choices(source: Source, settings: ChooseSettings, *, labeled: bool) -> Iterator[ChoiceExample]:
    """Yield the questions of a source, or of each .txt and .json file of a folder (RACE has one file per article).

    Args:
        source: .csv and .tsv: rows (SWAG's startphrase, or sent1 and sent2, and ending0, …). .jsonl: rows,
            CommonsenseQA's, or RACE's articles; .json: a list of these, or DREAM's; .txt: an article of RACE. Or
            data in memory.
        settings: The columns of a row, and how to read a file.
        labeled: Read the right choice, which must be there.
    """
    encoding = settings.encoding
    if not isinstance(source, Table) and Path(source).is_dir():
        files = sorted(path for path in Path(source).rglob("*") if format_suffix(path) in (".txt", ".json"))
        if not files:
            message = "there is no .txt and no .json in this folder"
            raise InputError("no_files", message, location=source, hint="name a file")
        for file in files:
            yield from read_choices(file, settings, labeled=labeled)
    elif format_suffix(source) in (".json", ".txt") and not has_json_lines(source, encoding):
        document = read_json(source, encoding)
        if isinstance(document, list):
            for index, value in enumerate(document):
                yield from _read_questions(value, f"{source}: [{index}]", settings, labeled=labeled)
        else:
            yield from _read_questions(document, str(source), settings, labeled=labeled, separator=": ")
    elif is_json_source(source):
        for row in json_rows(source, encoding):
            yield from _read_questions(row.values, row.location, settings, labeled=labeled)
    else:
        table = read_task_table(source, settings, labeled=labeled)
        texts = {*_CONTEXTS, "question", settings.context_column, settings.question_column}
        for column in filter(texts.__contains__, table.columns):
            warn_of_missing_texts(column, [(row.values[column], row.location) for row in table])
        for row in table:
            missing = {n: "" for n, value in row.values.items() if n in texts and value in MISSING_TEXTS}
            example = question_of_row({**row.values, **missing}, row.location, settings, labeled=labeled)
            yield replace(example, table_row=row.texts)


def question_of_row(
    values: Mapping[str, Any], location: str, settings: ChooseSettings, *, labeled: bool
) -> ChoiceExample:
    """Return the question of a row. Raises `InputError` if a part is missing or wrong."""
    usual_names = {"context": _CONTEXTS, "question": (), **({"label": _LABELS} if labeled else {})}
    renamed = rename_columns(values, settings, usual_names, location)
    numbered = {int(match[1]): name for name in values if (match := _NUMBERED_CHOICE.fullmatch(name))}
    question, context = renamed.get("question"), first_value(renamed, _CONTEXTS)
    if renamed.get("sent1") and renamed.get("sent2"):
        context, question = renamed["sent1"], renamed["sent2"]  # the ending continues the second
    listed = first_value(renamed, _CHOICES)
    if settings.choices_column is not None:
        columns = (
            settings.choice_columns if settings.choices_column not in values else [settings.choices_column]
        )
        cells = [column_value(values, name, "choices_column", location) for name in columns]
        listed, numbered = cells[0] if len(cells) == 1 else _without_empty(cells), {}
    elif isinstance(question, Mapping):  # CommonsenseQA's
        question, listed = question.get("stem", ""), question.get("choices")
    elif listed is None and numbered:
        listed = _without_empty([values[numbered[i]] for i in sorted(numbered)])
    texts = (
        to_text(context, "context", location, "context_column"),
        to_text(question, "question", location, "question_column"),
    )
    if not labeled and not any(texts) and (listed is None or not any(listed)):
        return ChoiceExample("", "", (), None, location)
    choices, letters = _parse_choices(listed, location)
    label = None
    if labeled:
        if (answer := first_value(renamed, _LABELS)) is None:
            hint = f"give it as label: {_ROW_HINT}"
            raise InputError("answer_missing", "the right choice is missing", location=location, hint=hint)
        label = choice_index(answer, choices, letters, location, first=settings.first_index)
    if not any(texts):
        message = "there is neither a context nor a question"
        raise InputError("question_missing", message, location=location, hint=_ROW_HINT)
    return ChoiceExample(*texts, choices, label, location, to_text(values.get("id"), "id", location) or None)


def choice_index(
    answer: Any, choices: Sequence[str], letters: Sequence[str], location: str, *, first: int = 0
) -> int:
    """Return the index of the right choice.

    Args:
        answer: Its index, its letter, or its text.
        choices: The choices.
        letters: Their labels in the file; empty for A, B, ….
        location: The location of the question.
        first: The index of the first choice in the file.
    """
    last = len(choices) - 1 + first
    names = list(letters) or [chr(ord("A") + i) for i in range(len(choices))]
    valid = f"name it by its text, its index ({first} to {last}), or its letter ({names[0]} to {names[-1]})"
    if isinstance(answer, bool) or not isinstance(answer, int):
        answer = to_text(answer, "right choice", location, "label_column", valid)
    text = str(answer).strip()
    if letters and text in names and isinstance(answer, str):
        return names.index(text)
    equal = [i for i, choice in enumerate(choices) if choice.strip() == text]
    index = plain_number(text)
    if isinstance(answer, int) or (is_integer(index) and not equal):
        if first <= int(index) <= last:
            return int(index) - first
        message = f"the label {answer} is out of range: the {len(choices)} choices are {first} to {last}"
        start = (
            "indices begin at 1" if first else f"indices begin at 0 (at 1 with {option('first_index', 1)})"
        )
        hint = f"{start}; fix the row"
        raise InputError("answer_out_of_range", message, location=location, hint=hint)
    if len(equal) == 1:
        return equal[0]
    if not letters and not equal and text.upper() in names:
        return names.index(text.upper())
    message = f"the answer {text!r:.60} equals {len(equal) or 'none'} of the {len(choices)} choices"
    if equal:
        raise InputError("ambiguous_answer", message, location=location, hint=valid)
    raise InputError("unknown_answer", message, location=location, hint=valid)


def check_choices(choices: Sequence[Any], location: str) -> tuple[str, ...]:
    """Return two choices or more as strings."""
    if len(choices) < 2:
        message = f"a question has two choices or more, this one has {len(choices)}"
        hint = "add the others, or remove this question"
        raise InputError("too_few_choices", message, location=location, hint=hint)
    return tuple(to_text(choice, f"choice {i}", location) for i, choice in enumerate(choices))


def _without_empty(cells: Sequence[Any]) -> list[Any]:
    """Return the choices of a table's columns without the last ones that are empty."""
    choices = ["" if cell is None else cell for cell in cells]
    while len(choices) > 2 and choices[-1] == "":
        choices.pop()
    return choices


def _parse_choices(value: Any, location: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the choices, and their labels in the file (A, B, …) if it has some.

    The value is a list of texts, of {"label", "text"}, or both as columns; in a table's cell, the list as JSON.
    """
    if isinstance(value, str) and value.strip()[:1] in ("[", "{"):
        collection = parse_collection(value.strip())
        if (value := parse_array(value.strip()) if collection is None else collection) is None:
            message, hint = "the list of choices cannot be read", 'write ["one", "two"]'
            raise InputError("not_json", message, location=location, hint=hint)
    letters: Sequence[Any] = ()
    if isinstance(value, Mapping) and isinstance(value.get("text"), list):
        letters, value = value.get("label") or (), value["text"]
    if not isinstance(value, list | tuple):
        message = f"the choices are not a list, but {value!r:.40}"
        if value is None:
            raise InputError("choices_missing", message, location=location, hint=_ROW_HINT)
        raise InputError("not_a_list", message, location=location, hint=_ROW_HINT)
    if value and all(isinstance(choice, Mapping) for choice in value):
        letters = [choice.get("label", "") for choice in value]
        value = [choice.get("text") for choice in value]
    if letters and (len(set(map(str, letters))) < len(letters) or len(letters) != len(value)):
        message, hint = "the choices do not have one label each", "give each choice a label of its own"
        raise InputError("duplicate_choice_labels", message, location=location, hint=hint)
    return check_choices(value, location), tuple(map(str, letters))


def _read_questions(
    value: Any, location: str, settings: ChooseSettings, *, labeled: bool, separator: str = ""
) -> Iterator[ChoiceExample]:
    """Yield the question of a row, or those of an article of RACE or of a dialogue of DREAM.

    A .jsonl has no separator between the locations of an article and of its questions: all have that of its line.
    """
    if isinstance(value, list):
        yield from _dream_questions(value, location, labeled=labeled)
        return
    if not isinstance(value, dict):
        message, hint = "this is neither a list nor an object", f"{_ROW_HINT}; {_DREAM_HINT}; {_RACE_HINT}"
        raise InputError("not_a_list_or_object", message, location=location, hint=hint)
    questions, options = value.get("questions"), value.get("options")
    if not isinstance(questions, list):
        yield question_of_row(value, location, settings, labeled=labeled)
        return
    answers = value.get("answers") if labeled else [None] * len(questions)
    if not isinstance(options, list) or not isinstance(answers, list):
        message = "options or answers are not a list"
        raise InputError("not_a_list", message, location=location, hint=_RACE_HINT)
    if not len(questions) == len(options) == len(answers):
        counts = f"{len(questions)} questions, {len(options)} lists of options, and {len(answers)} answers"
        raise InputError("length_mismatch", f"there are {counts}", location=location, hint=_RACE_HINT)
    for i, (question, choices, answer) in enumerate(zip(questions, options, answers, strict=True)):
        row = {"context": value.get("article"), "question": question, "choices": choices, "label": answer}
        part = f"{location}{separator}questions[{i}]" if separator else location
        example = question_of_row(row, part, _USUAL_NAMES, labeled=labeled)
        yield replace(example, id=_question_id(value.get("id"), i))


def _dream_questions(dialogue: list[Any], location: str, *, labeled: bool) -> Iterator[ChoiceExample]:
    """Yield the questions about a dialogue: its turns, its questions, its id."""
    if len(dialogue) != 3 or not isinstance(dialogue[0], list) or not isinstance(dialogue[1], list):
        raise InputError("not_a_dialogue", "this is not a dialogue", location=location, hint=_DREAM_HINT)
    context = "\n".join(to_text(turn, "turn", location) for turn in dialogue[0])
    for i, question in enumerate(dialogue[1]):
        part = f"{location}[1][{i}]"
        if not isinstance(question, dict):
            raise InputError("not_a_question", "this is not a question", location=part, hint=_DREAM_HINT)
        example = question_of_row({**question, "context": context}, part, _USUAL_NAMES, labeled=labeled)
        yield replace(example, id=_question_id(dialogue[2], i))


def _question_id(name: Any, index: int) -> str | None:
    """Return an id for a question of a text that has one."""
    return None if name is None else f"{name}-{index + 1}"


class MultipleChoiceData(TaskData):
    """Rows of a context, a question, choices, and the label; see `read_choices` for the formats."""

    settings: ChooseSettings

    def read(self, source: Source, *, labeled: bool = True) -> list[ChoiceExample]:
        """Return the examples of a source in order."""
        examples = list(read_choices(source, self.settings, labeled=labeled))
        check_examples(examples, source, "questions")
        return examples

    def from_inputs(
        self, columns: Mapping[str, Sequence[Any]], locations: Sequence[str]
    ) -> list[ChoiceExample]:
        """Return examples of contexts, lists of choices, and optionally questions.

        Without `choices` each context is one text with its choices behind it, separated by tabs.
        """
        contexts = columns["context"]
        questions = columns.get("question") or [""] * len(contexts)
        choices = columns.get("choices") or [None] * len(contexts)
        return [_unlabeled_example(*row) for row in zip(contexts, questions, choices, locations, strict=True)]

    def example_inputs(self) -> dict[str, Any]:
        """Return choices."""
        return {"choices": ["a good day", "a bad day"]}

    def to_row(self, example: ChoiceExample) -> dict[str, Any]:
        """Return the context, the question, the choices, and the index of the correct one."""
        settings, names = self.settings, self.settings.choice_columns
        row: dict[str, Any] = {} if example.id is None else {"id": example.id}
        row[settings.context_column or "context"] = example.context
        row[settings.question_column or "question"] = example.question
        row |= (
            zip_longest(names, example.choices, fillvalue="")
            if len(names) > 1
            else {names[0]: list(example.choices)}
        )
        label = None if example.label is None else example.label + settings.first_index
        return {**row, settings.label_column or "label": label}

    def tuple_columns(self, num_values: int) -> list[str]:
        """Return the columns of the context, optionally the question, the choices, and the label."""
        settings, choices = self.settings, self.settings.choice_columns
        question = [settings.question_column or "question"] if num_values > 2 + len(choices) else []
        label = settings.label_column or "label"
        return [settings.context_column or "context", *question, *choices, label]

    def read_warnings(self, examples: Sequence[ChoiceExample]) -> list[Diagnostic]:
        """Return the choices without text."""
        blank = [e.location for e in examples for choice in e.choices if is_blank(choice)]
        message = f"{pluralize(len(blank), 'choice has', 'choices have')} no text"
        return [Diagnostic("choices without any text", message, blank)] if blank else []

    def metadata_from_hf(self, folder: ModelFolder) -> Metadata | None:
        """Return no metadata: there is none besides the architecture."""
        return {} if folder.architecture.endswith("ForMultipleChoice") else None


def _unlabeled_example(context: Any, question: Any, choices: Any, location: str) -> ChoiceExample:
    """Return an example without a label; if `choices` is None, they follow the context behind tabs."""
    context, question = to_text(context, "context", location), to_text(question, "question", location)
    if (isinstance(choices, str) and choices) or not isinstance(choices, Iterable | None):
        message, hint = f"the choices {choices!r:.60} are not a list", "give a list of texts"
        raise InputError("choices_not_a_list", message, location=location, argument="choices", hint=hint)
    if choices is None:
        context, *choices = [""] if is_blank(context) else context.split("\t")
        if (context or choices) and len(choices) < 2:
            message = "there are no choices"
            hint = "give a list of texts for each context; in a file, a column; on a line, tabs before them"
            raise InputError("choices_missing", message, location=location, argument="choices", hint=hint)
    if not choices and is_blank(context) and is_blank(question):
        return ChoiceExample("", "", (), None, location)
    return ChoiceExample(context, question, check_choices(list(choices), location), None, location)
