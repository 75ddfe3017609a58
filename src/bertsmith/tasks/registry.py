"""The tasks by name, and what the command line shows of each before it is imported."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from bertsmith.settings import Settings
from bertsmith.tasks.settings import (
    AnswerSettings,
    ChooseSettings,
    ClassSettings,
    EmbedSettings,
    RelateSettings,
    TagSettings,
    TextSettings,
)

if TYPE_CHECKING:
    from bertsmith.tasks.task import Task


class AnswerForm(NamedTuple):
    """A file of answers as the field's own script reads it, which `predict` offers beside JSON and tables.

    name: as --format takes it. summary: what the file holds, for --help. suffix: of a file's name that chooses it;
    None where other forms end alike.
    """

    name: str
    summary: str
    suffix: str | None = None


@dataclass(frozen=True)
class TaskEntry:
    """A task that is imported when it is used.

    home: "module:Class". summary: what it does, in a line. example_file: a name that its files usually have.
    may_name_labels: whether it takes names for the labels. answer_form: the field's own form of a file of answers.
    """

    home: str
    summary: str
    settings_type: type[Settings]
    example_file: str = "train.csv"
    may_name_labels: bool = False
    answer_form: AnswerForm | None = None


CLASSIFY = TaskEntry(
    "bertsmith.tasks.classification.classify:Classify",
    "one label for a text, or for a pair of texts; or any number of labels",
    ClassSettings,
    may_name_labels=True,
)
REGRESS = TaskEntry(
    "bertsmith.tasks.classification.regress:Regress",
    "a number for a text, or for a pair of texts",
    TextSettings,
)
TAG = TaskEntry(
    "bertsmith.tasks.tagging.tag:Tag",
    "a tag for each word of a sentence: entities, chunks, parts of speech",
    TagSettings,
    "train.conll",
    may_name_labels=True,
    answer_form=AnswerForm("conll", "the file's columns, the predicted tag behind them", ".conll"),
)
ANSWER = TaskEntry(
    "bertsmith.tasks.question_answering.answer:Answer",
    "the span of a passage that answers a question",
    AnswerSettings,
    "train.json",
    answer_form=AnswerForm("squad", "one object of each question's id with its answer: SQuAD's"),
)
CHOOSE = TaskEntry(
    "bertsmith.tasks.multiple_choice.choose:Choose",
    "the right one of several choices for a context or a question",
    ChooseSettings,
    "train.jsonl",
)
RELATE = TaskEntry(
    "bertsmith.tasks.relation_extraction.relate:Relate",
    "the relation of two entities that are marked in a text",
    RelateSettings,
    "train.txt",
    may_name_labels=True,
    answer_form=AnswerForm("semeval", "each example's number, a tab, its relation: SemEval-2010 task 8's"),
)
EMBED = TaskEntry(
    "bertsmith.tasks.embedding.embed:Embed",
    "a vector for a text: similarity, search, duplicates",
    EmbedSettings,
)

TASKS: dict[str, TaskEntry | type[Task]] = {
    "classify": CLASSIFY,
    "regress": REGRESS,
    "tag": TAG,
    "answer": ANSWER,
    "choose": CHOOSE,
    "relate": RELATE,
    "embed": EMBED,
}
"""Each task's entry by its name; or the class itself."""
