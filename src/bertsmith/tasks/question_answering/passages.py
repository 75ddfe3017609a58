"""Questions about passages, with the answers that people gave, or with none: how they stand in files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from bertsmith.errors import InputError, option
from bertsmith.formatting import join_names
from bertsmith.io.squad import Asked, PassageNames, read_questions
from bertsmith.tasks.data_checks import check_unique_ids


class Gold(NamedTuple):
    """An answer of people: context[start : start + len(text)]. moved: the file had it elsewhere, or nowhere."""

    text: str
    start: int
    moved: bool = False


@dataclass(frozen=True)
class PassageExample:
    """A question, its passage, and the answers as people gave them (none where they are not known).

    number: the file's own name for the question, None where it has none. unanswerable: people found no answer in
    the passage.
    """

    question: str
    context: str
    answers: tuple[Gold, ...]
    place: str
    number: str | None = None
    unanswerable: bool = False

    @property
    def gold(self) -> list[str]:
        """The answers as texts; of an unanswerable question one that is empty."""
        return [""] if self.unanswerable else [answer.text for answer in self.answers]


def read_passages(
    file: str | Path,
    *,
    labelled: bool,
    names: PassageNames,
    delimiter: str | None = None,
    header: bool = True,
    encoding: str | None = None,
) -> list[PassageExample]:
    """The questions of a file, in its order (see `files.squad`). InputError with its place for what is amiss."""
    asked = read_questions(file, encoding, names=names, labelled=labelled, delimiter=delimiter, header=header)
    rows = list(asked)
    if labelled:
        _refuse_lost(rows)
    examples = [_example(context, question, place, labelled=labelled) for context, question, place in rows]
    if not examples:
        raise InputError(
            "no_examples",
            "this file has no questions",
            location=file,
            hint="give a file with at least one question",
        )
    if labelled and all(example.unanswerable for example in examples):
        raise InputError(
            "no_answers",
            "none of the questions in this file has an answer",
            location=file,
            hint="give the answers as SQuAD does, or in rows as 'answer' and 'start' (for other names, "
            f"{option('answer_column')} and {option('start_column')})",
        )
    check_unique_ids((example.number, example.place) for example in examples)
    return examples


def check_texts(question: Any, context: Any, place: str) -> None:
    """InputError where one is no text, or empty."""
    for name, text in (("question", question), ("passage", context)):
        if not isinstance(text, str):
            raise InputError(
                "text_not_a_string",
                f"the {name} is not a string, but {text!r:.60}",
                location=place,
                hint="give it as one string",
            )
        if not text.strip():
            raise InputError(
                "empty_text",
                f"the {name} is empty",
                location=place,
                hint="fill it in, or remove this question",
            )


def _refuse_lost(rows: Sequence[tuple[str, Asked, str]]) -> None:
    """Raise InputError if answers are not in their passages, with the location of each."""
    lost = [
        (place, answer.text)
        for context, question, place in rows
        for answer in question.answers
        if context.strip() and answer.text not in context
    ]
    if not lost:
        return
    (place, text), *others = lost
    more = join_names(f"{other!r:.40} ({at})" for at, other in others)
    raise InputError(
        "answer_not_in_passage",
        f"the answer {text!r} is not in the passage"
        + (f", and neither are {len(others):,} more: {more}" if others else ""),
        location=place,
        hint="fix it, or remove this question",
    )


def _example(context: str, asked: Asked, place: str, *, labelled: bool) -> PassageExample:
    """An example with its answers checked. InputError with its place."""
    check_texts(asked.question, context, place)
    if not labelled:
        return PassageExample(asked.question, context, (), place, asked.id)
    if asked.is_impossible and asked.answers:
        raise InputError(
            "impossible_with_answer",
            "this question is marked as impossible, and has an answer",
            location=place,
            hint="remove 'is_impossible' or the answer",
        )
    if not asked.answers:
        return PassageExample(asked.question, context, (), place, asked.id, unanswerable=True)
    gold = tuple(_gold(context, found.text, found.answer_start) for found in asked.answers)
    return PassageExample(asked.question, context, gold, place, asked.id)


def _gold(context: str, text: str, start: int | None) -> Gold:
    """An answer where it is: at its start, or at the occurrence nearest to it (the first where none is given). It
    is somewhere in the passage."""
    if start is not None and context.startswith(text, start):
        return Gold(text, start)
    near = start or 0
    found = [i for i in (context.rfind(text, 0, near + len(text)), context.find(text, near)) if i >= 0]
    return Gold(text, min(found, key=lambda i: abs(i - near)), moved=True)
