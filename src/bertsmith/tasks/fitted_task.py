"""The parts of a task with the metadata and settings of one model; load those of a model folder."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from bertsmith.artifacts.config_schema import validate
from bertsmith.artifacts.folder import ModelFolder
from bertsmith.device import ComputeContext
from bertsmith.errors import InputError, command, option
from bertsmith.models.config import ModelConfig
from bertsmith.models.feature_extraction import FEATURE_PARTS
from bertsmith.tasks.base import Decoder, Metadata, TaskData, TaskEncoder, TaskModel
from bertsmith.tasks.batching import Item, mean_of_values
from bertsmith.tasks.labels import UNNAMED_LABEL
from bertsmith.tasks.registry import TASKS, Task, get_task
from bertsmith.tasks.report import TaskReport
from bertsmith.tasks.results import Metrics
from bertsmith.tasks.windows import TextStats
from bertsmith.tokenizer.tokenizer import Tokenizer

_MISMATCH_HINT = "one of the files was changed: copy both again from their source"
_HEADLESS = re.compile(r"(Model|ForPreTraining|ForMaskedLM|ForCausalLM)$")  # architectures without a task


class FittedTask:
    """The six parts of a task with one model's metadata and settings.

    Attributes:
        declaration: The declaration of the task.
        model: The heads.
        metadata: The metadata of the training examples.
        settings: The task's settings.
        data: Reads examples.
        encoder: Turns examples into items.
        report: Presents examples and predictions.
        metrics: Scores predictions.
        decoder: Turns outputs into predictions.
    """

    def __init__(
        self,
        declaration: Task,
        model: TaskModel,
        metadata: Metadata,
        settings: Any,
        state: Mapping[str, Any] | None = None,
    ) -> None:
        """Create the parts besides the model.

        Args:
            declaration: The declaration of the task.
            model: The heads.
            metadata: The metadata of the training examples.
            settings: The task's settings.
            state: The state of the decoder; None before `Decoder.calibrate`.
        """
        self.declaration, self.model, self.metadata, self.settings = declaration, model, metadata, settings
        self.data: TaskData = declaration.part("data")(settings, metadata)
        self.encoder: TaskEncoder = declaration.part("encoder")(model.config, metadata, settings)
        self.report = create_report(declaration, metadata, settings, state)
        self.metrics = self.report.metrics
        self.decoder: Decoder = self.metrics.decoder

    @classmethod
    def create(
        cls,
        declaration: Task,
        config: ModelConfig,
        generator: torch.Generator,
        metadata: Metadata,
        settings: Any,
        state: Mapping[str, Any] | None = None,
    ) -> FittedTask:
        """Create the parts and the heads, whose initial weights the generator draws."""
        model = declaration.part("model")(config, generator, metadata, settings)
        return cls(declaration, model, metadata, settings, state)

    @property
    def name(self) -> str:
        """The name of the task."""
        return self.declaration.name

    @property
    def labels(self) -> list[str] | None:
        """The names of the classes by id; None if there are none, as for a number."""
        labels = self.model.labels
        return None if labels == [UNNAMED_LABEL] else labels

    @property
    def primary_metric(self) -> str:
        """The metric that chooses the best checkpoint."""
        return self.metrics.primary_metric

    def with_settings(self, settings: Any) -> FittedTask:
        """Return the task with other settings and the same model.

        Raises:
            InputError: One of `Task.fixed_settings` differs.
        """
        for name in self.declaration.fixed_settings:
            value, new_value = getattr(self.settings, name, None), getattr(settings, name, None)
            if new_value != value:
                message = f"this model was trained with {value}, not {new_value}"
                hint = f"remove {option(name)}, or fine-tune another model"
                raise InputError("fixed_setting_changed", message, argument=name, hint=hint)
        return FittedTask(self.declaration, self.model, self.metadata, settings, self.decoder.state)

    def for_ensemble(self, others: Sequence[FittedTask]) -> FittedTask:
        """Return the task that decodes the combined outputs of this model and others.

        Numbers in `Task.averaged_metadata` and in the decoders' states are averaged.
        """
        members = [self, *others]
        metadata = dict(self.metadata)
        for name in self.declaration.averaged_metadata:
            values = [member.metadata.get(name) for member in members]
            if all(isinstance(value, int | float | list) for value in values):
                metadata[name] = mean_of_values(values)
        state = self.decoder.combine_states([member.decoder.state for member in members])
        return FittedTask(self.declaration, self.model, metadata, self.settings, state)

    def encode(self, examples: Sequence[Any], tokenizer: Tokenizer) -> list[Item]:
        """Return the items of examples.

        Raises:
            InputError: A label is unknown, or an item needs more segment ids than the model has.
        """
        items = self.encoder.encode(examples, tokenizer)
        num_segments = self.model.config.type_vocab_size
        for item in items if num_segments else ():
            if any(sequence.segments.max(initial=0) >= num_segments for sequence in item.sequences):
                raise InputError(
                    "segments_unsupported",
                    "the second text needs a segment id of its own, and this model has only one",
                    location=examples[item.example].location,
                    hint=f"give single texts, or use a model with {option('model.type_vocab_size', 2)}",
                )
        return items

    def text_stats(
        self, tokenizer: Tokenizer, items: Sequence[Item] = (), examples: Sequence[Any] = ()
    ) -> TextStats:
        """Return statistics of the texts of examples, to which others can be added."""
        encoder, unit = self.encoder, self.declaration.annotation_unit
        stats = TextStats(tokenizer, encoder.max_length, encoder.coverage, unit, encoder.truncation_hint)
        stats.add(items, examples)
        return stats

    def score(self, predictions: Sequence[Any], examples: Sequence[Any], stats: TextStats) -> Metrics:
        """Return the metrics of predictions on labeled examples, with what is not read of their texts."""
        metrics = self.metrics.compute(predictions, examples)
        details = {**metrics.details, "truncation": stats.to_dict()}
        notes = [*metrics.notes, *stats.messages()]
        return replace(metrics, details=details, notes=notes)


def create_report(
    declaration: Task, metadata: Metadata, settings: Any, state: Mapping[str, Any] | None = None
) -> TaskReport:
    """Create the report of a task, which needs no model, with its metrics and their decoder."""
    decoder = declaration.part("decoder")(metadata, settings, state or {})
    metrics = declaration.part("metrics")(metadata, settings, decoder)
    report: TaskReport = declaration.part("report")(metadata, settings, metrics)
    return report


def load_task(name: Path, folder: ModelFolder, context: ComputeContext) -> FittedTask:
    """Load the task of a model folder with its weights, in evaluation mode.

    Args:
        name: The path or name that the user gave.
        folder: The model folder.
        context: The device.

    Raises:
        InputError: The model was not fine-tuned for a task, or its files do not match.
    """
    declaration, metadata = _task_and_metadata(name, folder)
    record_path = str(folder.path / "bertsmith.json")
    settings = declaration.settings_type.of(folder.record.get("settings", {}), record_path)
    with torch.inference_mode(False):
        try:
            generator, state = context.init_generator, folder.record.get("decoder_state")
            task = FittedTask.create(declaration, folder.config, generator, metadata, settings, state)
        except (KeyError, TypeError, ValueError, AttributeError):
            message = f"the values under 'metadata' do not fit the task '{declaration.name}'"
            hint = "the file is damaged or was changed: copy it again"
            raise InputError("invalid_metadata", message, location=record_path, hint=hint) from None
        parts = {**task.model.features.parts, **task.model.heads}
        if unknown_parts := sorted(FEATURE_PARTS & folder.parts - parts.keys()):
            message = f"the weights contain '{unknown_parts[0]}', which the settings do not mention"
            raise InputError("weights_settings_mismatch", message, location=record_path, hint=_MISMATCH_HINT)
        for part, head in parts.items():
            folder.load_into(part, head)
        context.prepare_modules(task.model)
    task.model.eval()
    return task


def _task_and_metadata(path: Path, folder: ModelFolder) -> tuple[Task, Metadata]:
    """Return the task and metadata that bertsmith.json names, or those of the heads of another tool's model."""
    record, location = folder.record, folder.path
    if (name := record.get("task")) in TASKS:
        task = get_task(name)
        metadata = record.get("metadata")
        if metadata is not None:
            validate(task.part("metadata_type"), metadata, f"{location / 'bertsmith.json'}: metadata")
        if metadata is None or metadata.get("labels", folder.labels) != folder.labels:
            message = "bertsmith.json and config.json do not match, or have different labels"
            raise InputError("metadata_config_mismatch", message, location=location, hint=_MISMATCH_HINT)
        return task, metadata
    if name not in (None, "pretrain"):
        message = f"this model is for the task '{name}', which this version does not have"
        hint = f"this version has {', '.join(TASKS)}"
        raise InputError("unknown_task", message, location=location, hint=hint)
    if record or _HEADLESS.search(folder.architecture):
        finetune = command("finetune", "TASK", model=path, train="FILE", validation="FILE", output_dir="RUN")
        message = "this model was not fine-tuned for a task, so it cannot predict"
        hint = f"fine-tune it: {finetune} (tasks: {', '.join(TASKS)})"
        raise InputError("not_fine_tuned", message, location=path, hint=hint)
    return infer_task(folder, str(location))


def infer_task(folder: ModelFolder, location: str) -> tuple[Task, Metadata]:
    """Return the task of a model that another tool trained, and its metadata.

    Args:
        folder: The folder of the model.
        location: The model's location, for the error.

    Raises:
        InputError: No task has such heads.
    """
    for declaration in map(get_task, TASKS):
        data: TaskData = declaration.part("data")(declaration.settings_type(), {})
        metadata = data.metadata_from_hf(folder)
        if metadata is not None:
            return declaration, metadata
    problem_type = f" ({folder.problem_type})" if folder.problem_type else ""
    message = f"bertsmith has no task for the heads of {folder.architecture}{problem_type}"
    hint = f"use a model for one of the tasks {', '.join(TASKS)}"
    raise InputError("unsupported_architecture", message, location=location, hint=hint)


def check_max_length(settings: Any, limit: int) -> None:
    """Raise InputError if the setting `max_length` exceeds the number of tokens that a model can read."""
    max_length = getattr(settings, "max_length", None)
    if max_length is not None and max_length > limit:
        message = f"this model reads at most {limit:,} tokens, not {max_length:,}"
        hint = f"use {option('max_length', limit)} or less"
        raise InputError("max_length_too_large", message, argument="max_length", hint=hint)
