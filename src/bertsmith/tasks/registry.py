"""The declarations of tasks by name. Importing them loads neither PyTorch nor the parts of the tasks."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any, NamedTuple

from bertsmith.registry import lookup
from bertsmith.settings import Settings


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
        report: The part `report.TaskReport`.
        metadata_type: The pydantic model that validates the metadata of a saved model.
        pipeline_tag: The hub's name of the task; None if it has none.
        inputs: The names of an example's inputs, as `predict` takes them.
        optional_inputs: The inputs that may be missing.
        accepts_label_names: True if users may name the labels.
        annotation_unit: The unit of what is lost where text is truncated, such as "tag"; "" if labels concern the
            whole text.
        fixed_settings: Settings that a trained model keeps.
        call_settings: Settings that change the predictions for given inputs.
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
    report: str = "bertsmith.tasks.report:TaskReport"
    metadata_type: str = "bertsmith.tasks.labels:NoMetadata"
    pipeline_tag: str | None = None
    inputs: tuple[str, ...] = ("text",)
    optional_inputs: tuple[str, ...] = ()
    accepts_label_names: bool = False
    annotation_unit: str = ""
    fixed_settings: tuple[str, ...] = ("head", "second_encoder")
    call_settings: tuple[str, ...] = ("max_length",)
    averaged_metadata: tuple[str, ...] = ()
    output_format: OutputFormat | None = None
    example_file: str = "train.csv"

    def part(self, name: str) -> Any:
        """Import and return a part, or the type of the metadata, by the name of the attribute here."""
        module, _, attribute = getattr(self, name).partition(":")
        return getattr(importlib.import_module(module, self.folder), attribute)


TASKS: dict[str, str | Task] = {
    "classify": "bertsmith.tasks.classification:TASK",
    "regress": "bertsmith.tasks.regression:TASK",
    "tag": "bertsmith.tasks.tagging:TASK",
    "answer": "bertsmith.tasks.question_answering:TASK",
    "choose": "bertsmith.tasks.multiple_choice:TASK",
    "relate": "bertsmith.tasks.relation_extraction:TASK",
    "embed": "bertsmith.tasks.embedding:TASK",
    "translate": "bertsmith.tasks.translation:TASK",
}
"""The declarations of tasks, or their import paths, by name."""


def get_task(name: str) -> Task:
    """Return the declaration of a task; raise InputError if there is none of this name."""
    return lookup(TASKS, name, f"there is no task {name!r}", "task")
