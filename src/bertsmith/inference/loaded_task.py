"""The task that a model folder was fine-tuned for: by its own record, or by what another tool's heads say."""

from __future__ import annotations

import re
from pathlib import Path

import torch

from bertsmith.artifacts.config_schema import validate
from bertsmith.artifacts.folder import ModelFolder
from bertsmith.device import ComputeContext
from bertsmith.errors import InputError, command
from bertsmith.models.feature_extraction import FEATURE_PARTS
from bertsmith.tasks.registry import TASKS
from bertsmith.tasks.task import Facts, Task, task_of, task_type

_MISMATCH_HINT = "one of the files was changed: copy both again from their source"
_HEADLESS = re.compile(r"(Model|ForPreTraining|ForMaskedLM|ForCausalLM)$")  # classes that answer no task


def loaded_task(name: Path, folder: ModelFolder, place: ComputeContext) -> Task:
    """The task with its weights, in evaluation. name: what the model was loaded as. InputError where it was
    fine-tuned for none, or its files do not belong together."""
    kind, facts = _kind_of(name, folder)
    written = str(folder.path / "bertsmith.json")
    settings = kind.settings_type.of(folder.record.get("settings", {}), written)
    with torch.inference_mode(False):
        try:  # a task reads its facts when it is made
            task = kind(folder.config, place.init_generator, facts, settings)
        except (KeyError, TypeError, ValueError, AttributeError):
            raise InputError(
                "invalid_metadata",
                f"the values under 'facts' do not fit the task '{kind.name}'",
                location=written,
                hint="the file is damaged or was changed: copy it again",
            ) from None
        if strange := sorted(FEATURE_PARTS & folder.parts - task.parts.keys()):
            raise InputError(
                "weights_settings_mismatch",
                f"the weights contain '{strange[0]}', which the settings do not mention",
                location=written,
                hint=_MISMATCH_HINT,
            )
        for part, head in task.parts.items():
            folder.load_into(part, head)
        place.prepare_modules(task)
    return task.eval()


def _kind_of(path: Path, folder: ModelFolder) -> tuple[type[Task], Facts]:
    """What was recorded, or what the heads of another tool's model say."""
    record, own = folder.record, folder.path
    if (name := record.get("task")) in TASKS:
        kind = task_type(name)
        facts = record.get("facts")
        if facts is None:
            raise InputError(
                "metadata_config_mismatch",
                "bertsmith.json and config.json do not match",
                location=own,
                hint=_MISMATCH_HINT,
            )
        settings = kind.settings_type.of(record.get("settings", {}), str(own / "bertsmith.json"))
        kind = kind.variant(settings, facts)
        validate(kind.facts_type, facts, f"{own / 'bertsmith.json'}: facts")
        if facts.get("labels", folder.labels) != folder.labels:
            raise InputError(
                "labels_mismatch",
                "bertsmith.json and config.json name different labels",
                location=own,
                hint=_MISMATCH_HINT,
            )
        return kind, facts
    if name not in (None, "pretrain"):
        raise InputError(
            "unknown_task",
            f"this model is for the task '{name}', which this version does not have",
            location=own,
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
    return task_of(folder, str(own))
