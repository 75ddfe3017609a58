"""Questions about passages, with the answers that people gave, or with none: how they stand in files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from bertsmith.errors import InputError, option
from bertsmith.formatting import join_names
from bertsmith.io.sources import Source
from bertsmith.tasks.data_checks import refuse_repeated_ids
from bertsmith.tasks.question_answering.squad import PassageNames, SquadQuestion, read_questions


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
    source: Source,
    *,
    labelled: bool,
    names: PassageNames,
    delimiter: str | None = None,
    header: bool = True,
    encoding: str | None = None,
) -> list[PassageExample]:
    """Return the questions of a source, in its order (see `squad`), with their answers checked."""
    questions = read_questions(
        source, encoding, names=names, labelled=labelled, delimiter=delimiter, header=header
    )
    rows = list(questions)
    if labelled:
        _refuse_lost(rows)
    examples = [_example(context, question, place, labelled=labelled) for context, question, place in rows]
    if not examples:
        raise InputError(
            "no_examples",
            "this file has no questions",
            location=source,
            hint="give a file with at least one question",
        )
    if labelled and all(example.unanswerable for example in examples):
        raise InputError(
            "no_answers",
            "none of the questions in this file has an answer",
            location=source,
            hint="give the answers as SQuAD does, or in rows as 'answer' and 'start' (for other names, "
            f"{option('answer_column')} and {option('start_column')})",
        )
    refuse_repeated_ids((example.number, example.place) for example in examples)
    return examples


def check_texts(question: Any, context: Any, place: str) -> None:
    """Raise `InputError` if one is not a string or empty."""
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


def _refuse_lost(rows: Sequence[tuple[str, SquadQuestion, str]]) -> None:
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


def _example(context: str, squad: SquadQuestion, place: str, *, labelled: bool) -> PassageExample:
    """Return an example with its answers checked."""
    check_texts(squad.question, context, place)
    if labelled and squad.is_impossible and squad.answers:
        message = "this question is marked as impossible, and has an answer"
        hint = "remove 'is_impossible' or the answer"
        raise InputError("impossible_with_answer", message, location=place, hint=hint)
    answers = tuple(_gold(context, a.text, a.answer_start) for a in squad.answers) if labelled else ()
    unanswerable = labelled and not answers
    return PassageExample(squad.question, context, answers, place, squad.id, unanswerable=unanswerable)


def _gold(context: str, text: str, start: int | None) -> Gold:
    """Return an answer at its start, or at the nearest occurrence (without a start, the first)."""
    if start is not None and context.startswith(text, start):
        return Gold(text, start)
    near = start or 0
    starts = [i for i in (context.rfind(text, 0, near + len(text)), context.find(text, near)) if i >= 0]
    return Gold(text, min(starts, key=lambda i: abs(i - near)), moved=True)
