"""Questions with choices in the forms of their data sets: SWAG, CODAH, DREAM, RACE, CommonsenseQA, and plain rows.

A row has `context` and `question` (one of them may be missing), `choices` (a list, or the columns choice0,
choice1, …) and `label`: the right choice's index from 0, its letter, or its text; under these names, under those
of known data sets, or under others that are given (`ChoiceNames`). All of it is checked here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bertsmith.errors import InputError, option
from bertsmith.io.files import bare_suffix, json_object, read_lines
from bertsmith.io.memory import InMemory
from bertsmith.io.records import Named, by_known_names, value_of
from bertsmith.io.tables import read_table, table_records
from bertsmith.io.whole_json import json_value

_CONTEXTS = ("context", "article", "passage", "startphrase", "ctx", "premise")
_CHOICES = ("choices", "choice", "options", "endings")
_ANSWERS = ("label", "answerKey", "answer")
_NUMBERED = re.compile(r"(?:ending|choice|option|answer|sol)[ _-]?(\d+)")
_ROW = (
    "a row has context or question, choices (a list, or choice0, choice1, …) and label; name other columns with "
    f"{option('context_column')}, {option('question_column')}, {option('choices_column')}, and "
    f"{option('label_column')}"
)
_ARTICLE = "RACE has article, and of each question one of questions, options (lists) and answers (letters)"
_DIALOGUE = "DREAM is a list of [turns, questions, id], each question with question, choice and answer"


class ChoiceRow(NamedTuple):
    """A question: context and question ("" where there is none), its choices, the right one's index (None where it
    is not asked for), its place; the file's own name for it, and the row of the table that it is, or None."""

    context: str
    question: str
    choices: tuple[str, ...]
    right: int | None
    place: str
    number: str | None = None
    row: Mapping[str, str] | None = None


class ChoiceNames(NamedTuple):
    """What a file calls the parts of a row where it has names of its own; None: as it is known. choices: a list's
    name, or of each choice's column with commas between. first: the label of the first choice as a number."""

    context: str | None = None
    question: str | None = None
    choices: str | None = None
    label: str | None = None
    first: int = 0

    @property
    def are_given(self) -> bool:
        """Whether any part has another name."""
        return any(name is not None for name in self[:4])


_KNOWN = ChoiceNames()


def read_choices(
    file: str | Path,
    *,
    labelled: bool,
    names: ChoiceNames = _KNOWN,
    delimiter: str | None = None,
    header: bool = True,
    encoding: str | None = None,
) -> Iterator[ChoiceRow]:
    """The questions of a file, in its order, or of each file of a folder (RACE has an article a file).

    .csv and .tsv: rows by their header (SWAG's startphrase, or sent1 and sent2, and ending0, …); a .tsv without
    one is CODAH's. .jsonl: rows, CommonsenseQA's, or RACE's articles; .json: a list of these, or DREAM's; .txt: an
    article of RACE. Compressed ones too. labelled: which choice is right is read, and must be there. names: of the
    columns of a row, or of a table without a header (header=False) their numbers from 1. A row of blanks has no
    choices. InputError with the place of what is amiss.
    """
    if not isinstance(file, InMemory) and Path(file).is_dir():
        inner = sorted(path for path in Path(file).rglob("*") if bare_suffix(path) in (".txt", ".json"))
        if not inner:
            message = "there is no .txt and no .json in this folder"
            raise InputError("no_files", message, location=file, hint="name a file")
        for path in inner:
            yield from read_choices(path, labelled=labelled, names=names, encoding=encoding)
        return
    suffix = bare_suffix(file)
    if suffix in (".json", ".txt"):
        try:
            value = json_value(file, encoding)
        except InputError as error:
            if suffix == ".txt" and error.code == "not_json":
                error.hint = f"a .txt is an article of RACE; {_ROW}, in .jsonl or .csv"
            raise
        yield from _of_json(value, str(file), labelled, names)
    elif suffix == ".jsonl":
        for number, line in read_lines(file, encoding):
            if line and not line.isspace():
                row = json_object(file, number, line)
                yield from _of_object(row, f"{file}:{number}", "", labelled, names)
    elif (
        suffix == ".tsv" and not (names.are_given or delimiter) and header and not _has_header(file, encoding)
    ):
        yield from _of_codah(file, encoding, labelled)
    else:
        table = read_table(
            file, delimiter=delimiter, header=header, encoding=encoding, keep_blank=not labelled
        )
        for one in table:
            found = of_row(one.values, f"{file}:{one.line}", labelled=labelled, names=names)
            yield found._replace(row=one.values)


def of_row(
    values: Mapping[str, Any], place: str, *, labelled: bool, names: ChoiceNames = _KNOWN
) -> ChoiceRow:
    """Return the question of a row's values by name. InputError with the location `place` for what is amiss."""
    values = _by_known_names(values, names, place, labelled=labelled)
    question = values.get("question")
    stem = question if isinstance(question, Mapping) else {}  # CommonsenseQA's
    asked = stem.get("stem", "") if stem else question
    context = _first(values, _CONTEXTS)
    if values.get("sent1") and values.get("sent2"):
        context, asked = values["sent1"], values["sent2"]  # the ending continues the second
    numbered = {int(found[1]): name for name in values if (found := _NUMBERED.fullmatch(name))}
    given = _first(stem, _CHOICES) if stem else _first(values, _CHOICES)
    if given in (None, "") and numbered:
        given = _of_columns([values[numbered[i]] for i in sorted(numbered)])
    texts = [_text(value, name, place) for value, name in ((context, "context"), (asked, "question"))]
    if not labelled and not any(texts) and not any(given or ()):
        return ChoiceRow("", "", (), None, place)
    choices, keys = _choices(given, place)
    answer = _first(values, _ANSWERS) if labelled else None
    if labelled and answer in (None, ""):
        raise InputError(
            "answer_missing", "the right choice is missing", location=place, hint=f"give it as label: {_ROW}"
        )
    right = None
    if labelled:
        right = position_of(answer, choices, keys, place, numbers=bool(numbered), first=names.first)
    number = values.get("id")
    if not any(texts):
        message = "there is neither a context nor a question"
        raise InputError("question_missing", message, location=place, hint=_ROW)
    return ChoiceRow(texts[0], texts[1], choices, right, place, None if number is None else str(number))


def _by_known_names(
    values: Mapping[str, Any], names: ChoiceNames, place: str, *, labelled: bool
) -> Mapping[str, Any]:
    """The values by the names that `of_row` knows. InputError for a column that is not there."""
    parts = {
        "context": Named(names.context, "context_column", _CONTEXTS),
        "question": Named(names.question, "question_column", ()),
        "label": Named(names.label if labelled else None, "label_column", _ANSWERS),
    }
    found = by_known_names(values, parts, place)
    if (name := names.choices) is not None:
        several = [name] if name in values else [one.strip() for one in name.split(",")]
        cells = [value_of(values, one, "choices_column", place) for one in several]
        found = {key: cell for key, cell in found.items() if not _NUMBERED.fullmatch(key)}
        found["choices"] = cells[0] if len(several) == 1 else _of_columns(cells)
    return found


def position_of(
    answer: Any,
    choices: Sequence[str],
    keys: Sequence[str],
    place: str,
    *,
    numbers: bool = False,
    first: int = 0,
) -> int:
    """The index of the right choice, by its number (the first one's is `first`), its key (of `keys`, if the file
    names them), its letter or its text. numbers: a number is an index even where a choice has it as its text."""
    letters = list(keys or (chr(ord("A") + i) for i in range(min(26, len(choices)))))
    last = len(choices) - 1 + first
    known = f"its text, its index ({first} to {last}) or its letter ({letters[0]} to {letters[-1]})"
    text = answer.strip() if isinstance(answer, str) else ""
    if isinstance(answer, bool) or not isinstance(answer, int | str):
        message = f"the right choice is {answer!r:.40}"
        raise InputError("bad_answer", message, location=place, hint=f"name it by {known}")
    if keys and text in keys:
        return keys.index(text)
    index = answer if isinstance(answer, int) else int(text) if _is_index(text) else None
    same = [i for i, choice in enumerate(choices) if choice == answer or choice.strip() == text]
    if index is None or (same and isinstance(answer, str) and not numbers):
        if len(same) > 1:
            message = f"the answer {text!r:.60} equals {len(same)} choices"
            raise InputError("ambiguous_answer", message, location=place, hint="name its index")
        if same:
            return same[0]
        if not keys and text.upper() in letters:
            return letters.index(text.upper())
        raise InputError(
            "unknown_answer",
            f"the answer {text!r:.60} is none of the {len(choices)} choices",
            location=place,
            hint=f"name it by {known}",
        )
    if not first <= index <= last:
        begin = (
            "indices begin at 1" if first else f"indices begin at 0 (at 1 with {option('first_index', 1)})"
        )
        raise InputError(
            "answer_out_of_range",
            f"the label {index} is out of range: the {len(choices)} choices are {first} to {last}",
            location=place,
            hint=f"{begin}; fix the row",
        )
    return index - first


def check_choices(choices: Sequence[Any], place: str) -> tuple[str, ...]:
    """Two texts or more, as strings."""
    if len(choices) < 2:
        raise InputError(
            "too_few_choices",
            f"a question has two choices or more, this one has {len(choices)}",
            location=place,
            hint="add the others, or remove this question",
        )
    return tuple(_text(choice, f"choice {i}", place) for i, choice in enumerate(choices))


def _of_columns(cells: Sequence[Any]) -> list[Any]:
    """The choices of a table's columns: of a question with fewer of them the last ones are empty, and none."""
    found = ["" if cell is None else cell for cell in cells]
    while len(found) > 2 and found[-1] == "":
        found.pop()
    return found


def _is_index(text: str) -> bool:
    return text.removeprefix("-").isdecimal() and text.isascii()


def _first(values: Mapping[str, Any], names: Sequence[str]) -> Any:
    """The value of the first of some names that there is."""
    return next((values[name] for name in names if values.get(name) not in (None, "")), None)


def _text(value: Any, name: str, place: str) -> str:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return json.dumps(value)
    if value is None:
        return ""
    if not isinstance(value, str):
        message = f"the {name} is not a string, but {value!r:.60}"
        raise InputError("not_a_string", message, location=place, hint="give it as one string")
    return value


def _choices(given: Any, place: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The choices, and what the file calls them (A, B, …) where it says so: a list of texts, of {"label", "text"},
    or both as columns; in a table's cell, the list as JSON."""
    if isinstance(given, str) and given.lstrip().startswith("["):
        try:
            given = json.loads(given)
        except ValueError:
            message = "the choices are not a JSON list"
            raise InputError("not_json", message, location=place, hint='write ["one", "two"]') from None
    keys: Sequence[Any] = ()
    if isinstance(given, Mapping) and isinstance(given.get("text"), list):
        keys, given = given.get("label") or (), given["text"]
    if given is None:
        raise InputError("choices_missing", "the choices are missing", location=place, hint=_ROW)
    if not isinstance(given, list | tuple):
        message = f"the choices are not a list, but {given!r:.40}"
        raise InputError("not_a_list", message, location=place, hint=_ROW)
    if given and all(isinstance(choice, Mapping) for choice in given):
        keys = [choice.get("label", "") for choice in given]
        given = [choice.get("text") for choice in given]
    if keys and (len(set(map(str, keys))) < len(keys) or len(keys) != len(given)):
        raise InputError(
            "duplicate_choice_labels",
            "the choices do not have one label each",
            location=place,
            hint="give each choice a label of its own",
        )
    return check_choices(given, place), tuple(map(str, keys))


def _of_json(value: Any, file: str, labelled: bool, names: ChoiceNames) -> Iterator[ChoiceRow]:
    if isinstance(value, dict) and isinstance(value.get("data"), list):
        value = value["data"]
    if isinstance(value, dict):
        yield from _of_object(value, file, ": ", labelled, names)
        return
    if not isinstance(value, list):
        raise InputError(
            "not_a_list_or_object",
            "this is neither a list nor an object",
            location=file,
            hint=f"{_ROW}; {_DIALOGUE}; {_ARTICLE}",
        )
    for number, one in enumerate(value):
        if isinstance(one, list):
            yield from _of_dialogue(one, f"{file}: [{number}]", labelled)
        elif isinstance(one, dict):
            yield from _of_object(one, f"{file}: [{number}]", "", labelled, names)
        else:
            raise InputError(
                "not_a_list_or_object",
                "this is neither a list nor an object",
                location=f"{file}: [{number}]",
                hint=f"{_ROW}; {_DIALOGUE}",
            )


def _of_object(
    values: Mapping[str, Any], place: str, mark: str, labelled: bool, names: ChoiceNames
) -> Iterator[ChoiceRow]:
    """A row, or RACE's article with its questions. mark: what separates a question's place from its object's."""
    if not isinstance(values.get("questions"), list):
        yield of_row(values, place, labelled=labelled, names=names)
        return
    article = _text(values.get("article"), "article", place)
    questions, options = values["questions"], values.get("options")
    answers = values.get("answers") if labelled else [None] * len(questions)
    if not isinstance(options, list) or not isinstance(answers, list):
        raise InputError("not_a_list", "options or answers are not a list", location=place, hint=_ARTICLE)
    if not len(questions) == len(options) == len(answers):
        raise InputError(
            "length_mismatch",
            f"there are {len(questions)} questions, {len(options)} lists of options, and {len(answers)} answers",
            location=place,
            hint=_ARTICLE,
        )
    rows = zip(questions, options, answers, strict=True)
    for k, (question, choices, answer) in enumerate(rows):
        # of a .jsonl the line is the place
        here = f"{place}{mark}questions[{k}]" if mark else place
        row = {"context": article, "question": question, "choices": choices, "label": answer}
        yield of_row(row, here, labelled=labelled)._replace(number=_numbered(values.get("id"), k))


def _of_dialogue(one: list[Any], place: str, labelled: bool) -> Iterator[ChoiceRow]:
    """DREAM's: the turns of a dialogue, its questions, its id."""
    if len(one) != 3 or not isinstance(one[0], list) or not isinstance(one[1], list):
        raise InputError("not_a_dialogue", "this is not a dialogue", location=place, hint=_DIALOGUE)
    context = "\n".join(_text(turn, "turn", place) for turn in one[0])
    for k, asked in enumerate(one[1]):
        here = f"{place}[1][{k}]"
        if not isinstance(asked, dict):
            raise InputError("not_a_question", "this is not a question", location=here, hint=_DIALOGUE)
        row = {"context": context, "question": asked.get("question"), "choices": asked.get("choice")}
        found = of_row(row, here, labelled=False)
        if labelled:
            if not isinstance(answer := asked.get("answer"), str):
                raise InputError("answer_missing", "the answer is missing", location=here, hint=_DIALOGUE)
            found = found._replace(right=position_of(answer, found.choices, (), here))
        yield found._replace(number=_numbered(one[2], k))


def _numbered(name: Any, k: int) -> str | None:
    """A name for the k-th question of a text that has one."""
    return None if name is None else f"{name}-{k + 1}"


def _has_header(file: str | Path, encoding: str | None) -> bool:
    """Whether the first line of a .tsv names columns of ours."""
    _, first = next(table_records(file, "\t", encoding), (0, []))
    known = {*_CONTEXTS, *_CHOICES, *_ANSWERS, "question", "sent1"}
    return any(name.strip() in known or _NUMBERED.fullmatch(name.strip()) for name in first)


def _of_codah(file: str | Path, encoding: str | None, labelled: bool) -> Iterator[ChoiceRow]:
    """Category, prompt, endings, and the index of the right one."""
    for number, fields in table_records(file, "\t", encoding):
        place = f"{file}:{number}"
        indexed = _is_index(fields[-1].strip())
        if len(fields) < 4 + indexed or (labelled and not indexed):
            raise InputError(
                "not_a_codah_row",
                "this is not a row of CODAH: a category, a prompt, endings, and the index of the right one",
                location=place,
                hint="fix it, or give the file a header: context, question, choice0, choice1, …, label",
            )
        choices = check_choices(fields[2:-1] if indexed else fields[2:], place)
        right = position_of(int(fields[-1]), choices, (), place) if labelled else None
        yield ChoiceRow(fields[1], "", choices, right, place)
