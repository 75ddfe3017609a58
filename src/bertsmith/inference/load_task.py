"""Load the task that a model folder was fine-tuned for, by bertsmith or by another tool."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from bertsmith.artifacts.config_schema import validate
from bertsmith.artifacts.folder import ModelFolder
from bertsmith.device import ComputeContext
from bertsmith.errors import InputError, command
from bertsmith.models.feature_extraction import FEATURE_PARTS
from bertsmith.tasks.base import Metadata
from bertsmith.tasks.fitted_task import FittedTask, infer_task
from bertsmith.tasks.registry import TASKS, Task, get_task

_MISMATCH_HINT = "one of the files was changed: copy both again from their source"
_HEADLESS = re.compile(r"(Model|ForPreTraining|ForMaskedLM|ForCausalLM)$")  # architectures without a task


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
            state = _decoder_state(folder.record.get("decoder_state", {}))
            task = FittedTask.create(
                declaration, folder.config, context.init_generator, metadata, settings, state
            )
        except (KeyError, TypeError, ValueError, AttributeError):
            raise InputError(
                "invalid_metadata",
                f"the values under 'metadata' do not fit the task '{declaration.name}'",
                location=record_path,
                hint="the file is damaged or was changed: copy it again",
            ) from None
        if unknown_parts := sorted(FEATURE_PARTS & folder.parts - task.model.parts.keys()):
            raise InputError(
                "weights_settings_mismatch",
                f"the weights contain '{unknown_parts[0]}', which the settings do not mention",
                location=record_path,
                hint=_MISMATCH_HINT,
            )
        for part, head in task.model.parts.items():
            folder.load_into(part, head)
        context.prepare_modules(task.model)
    task.model.eval()
    return task


def _decoder_state(state: Any) -> Mapping[str, Any]:
    """Return the state of a decoder if it consists of numbers and lists of numbers; else raise ValueError."""
    if not isinstance(state, dict):
        raise TypeError("decoder_state")
    for value in state.values():
        numbers = value if isinstance(value, list) else [value]
        if not all(isinstance(number, int | float) for number in numbers):
            raise ValueError("decoder_state")
    return state


def _task_and_metadata(path: Path, folder: ModelFolder) -> tuple[Task, Metadata]:
    """Return the task and metadata that bertsmith.json names, or those of the heads of another tool's model."""
    record, location = folder.record, folder.path
    if (name := record.get("task")) in TASKS:
        task = get_task(name)
        metadata = record.get("metadata")
        if metadata is not None:
            validate(task.part("metadata_type"), metadata, f"{location / 'bertsmith.json'}: metadata")
        if metadata is None or metadata.get("labels", folder.labels) != folder.labels:
            raise InputError(
                "metadata_config_mismatch",
                "bertsmith.json and config.json do not match, or have different labels",
                location=location,
                hint=_MISMATCH_HINT,
            )
        return task, metadata
    if name not in (None, "pretrain"):
        raise InputError(
            "unknown_task",
            f"this model is for the task '{name}', which this version does not have",
            location=location,
            hint=f"this version has {', '.join(TASKS)}",
        )
    if record or _HEADLESS.search(folder.architecture):
        finetune = command("finetune", "TASK", model=path, train="FILE", validation="FILE", output_dir="RUN")
        raise InputError(
            "not_fine_tuned",
            "this model was not fine-tuned for a task, so it cannot predict",
            location=path,
            hint=f"fine-tune it: {finetune} (tasks: {', '.join(TASKS)})",
        )
    return infer_task(folder, str(location))
