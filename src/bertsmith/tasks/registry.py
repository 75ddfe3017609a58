"""The declarations of tasks by name. Importing them loads neither PyTorch nor the parts of the tasks."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

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
    from bertsmith.tasks.task import Task as OldTask


class OutputFormat(NamedTuple):
    """The official file format of a task's predictions, which `predict` offers besides JSON and tables.

    Attributes:
        name: The name, as in `--format`.
        summary: What the file holds, for help.
        suffix: The suffix of file names that chooses the format; None if another format has it.
    """

    name: str
    summary: str
    suffix: str | None = None


@dataclass(frozen=True)
class Task:
    """The declaration of a task, in the `__init__.py` of its folder.

    A part is named as "module:attribute", where ".module" is relative to the folder. The attribute is the part's
    class, or a function with the class's arguments that returns an instance of one of several classes.

    Attributes:
        name: The name of the task, as in `finetune`.
        summary: One line for help.
        folder: The package of the task: `__name__` of its `__init__.py`.
        settings_type: The type of the task's settings.
        data: The part `base.TaskData`.
        encoder: The part `base.TaskEncoder`.
        model: The part `base.TaskModel`.
        decoder: The part `base.Decoder`.
        metrics: The part `base.TaskMetrics`.
        report: The part `base.TaskReport`.
        metadata_type: The pydantic model that validates the metadata of a saved model.
        inputs: The names of an example's inputs, as `predict` takes them.
        optional_inputs: The inputs that may be missing.
        accepts_label_names: True if users may name the labels.
        annotation_unit: The unit of what is lost where text is truncated, such as "tag"; "" if labels concern the
            whole text.
        fixed_settings: Settings that a trained model keeps.
        averaged_metadata: Metadata that may differ between the models of an ensemble and are averaged.
        output_format: The official file format of predictions.
        example_file: A typical name of a training file, for help.
    """

    name: str
    summary: str
    folder: str
    settings_type: type[Settings]
    data: str
    encoder: str
    model: str
    decoder: str
    metrics: str
    report: str = "bertsmith.tasks.base:TaskReport"
    metadata_type: str = "bertsmith.tasks.base:NoMetadata"
    inputs: tuple[str, ...] = ("text",)
    optional_inputs: tuple[str, ...] = ()
    accepts_label_names: bool = False
    annotation_unit: str = ""
    fixed_settings: tuple[str, ...] = ("head", "second_encoder")
    averaged_metadata: tuple[str, ...] = ()
    output_format: OutputFormat | None = None
    example_file: str = "train.csv"

    def part(self, name: str) -> Any:
        """Import and return a part, or the type of the metadata, by the name of the attribute here."""
        module, _, attribute = getattr(self, name).partition(":")
        return getattr(importlib.import_module(module, self.folder), attribute)


@dataclass(frozen=True)
class TaskEntry:
    """A task that is imported when it is used.

    home: "module:Class". summary: what it does, in a line. example_file: a name that its files usually have.
    accepts_label_names: whether it takes names for the labels. output_format: the field's own form of a file.
    """

    home: str
    summary: str
    settings_type: type[Settings]
    example_file: str = "train.csv"
    accepts_label_names: bool = False
    output_format: OutputFormat | None = None


CLASSIFY = TaskEntry(
    "bertsmith.tasks.classification.classify:Classify",
    "one label for a text, or for a pair of texts; or any number of labels",
    ClassSettings,
    accepts_label_names=True,
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
    accepts_label_names=True,
    output_format=OutputFormat("conll", "the file's columns, the predicted tag behind them", ".conll"),
)
ANSWER = TaskEntry(
    "bertsmith.tasks.question_answering.answer:Answer",
    "the span of a passage that answers a question",
    AnswerSettings,
    "train.json",
    output_format=OutputFormat("squad", "one object of each question's id with its answer: SQuAD's"),
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
    accepts_label_names=True,
    output_format=OutputFormat(
        "semeval", "each example's number, a tab, its relation: SemEval-2010 task 8's"
    ),
)
EMBED = TaskEntry(
    "bertsmith.tasks.embedding.embed:Embed",
    "a vector for a text: similarity, search, duplicates",
    EmbedSettings,
)

TASKS: dict[str, TaskEntry | type[OldTask]] = {
    "classify": CLASSIFY,
    "regress": REGRESS,
    "tag": TAG,
    "answer": ANSWER,
    "choose": CHOOSE,
    "relate": RELATE,
    "embed": EMBED,
}
"""Each task's entry by its name; or the class itself."""
