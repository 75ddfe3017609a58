"""The task that a model folder was fine-tuned for: by its own record, or by what another tool's heads say."""

from __future__ import annotations

import re
from pathlib import Path

import torch

from bertsmith.artifacts.config_schema import typed
from bertsmith.artifacts.folder import ModelFolder
from bertsmith.device import Place
from bertsmith.errors import InputError
from bertsmith.models.feature_extraction import BETWEEN
from bertsmith.tasks.registry import TASKS
from bertsmith.tasks.task import Facts, Task, task_of, task_type

_HEADLESS = re.compile(r"(Model|ForPreTraining|ForMaskedLM|ForCausalLM)$")  # classes that answer no task


def loaded_task(name: Path, folder: ModelFolder, place: Place) -> Task:
    """The task with its weights, in evaluation. name: what the model was loaded as. InputError where it was
    fine-tuned for none, or its files do not belong together."""
    kind, facts = _kind_of(name, folder)
    written = str(folder.path / "bertsmith.json")
    settings = kind.settings_type.of(folder.record.get("settings", {}), written)
    with torch.inference_mode(False):
        try:  # a task reads its facts when it is made
            task = kind(folder.config, place.drawing, facts, settings)
        except (KeyError, TypeError, ValueError, AttributeError):
            raise InputError(
                f"{written}: its facts are not those of the task '{kind.name}'",
                "it was damaged or changed: copy it again",
            ) from None
        if strange := sorted(BETWEEN & folder.parts - task.parts.keys()):
            raise InputError(
                f"{written}: its settings say nothing of '{strange[0]}', and the weights have it",
                "one of them was changed: copy both again from their source",
            )
        for part, head in task.parts.items():
            folder.fill(part, head)
        place.settle(task)
    return task.eval()


def _kind_of(path: Path, folder: ModelFolder) -> tuple[type[Task], Facts]:
    """What was recorded, or what the heads of another tool's model say."""
    record, own = folder.record, folder.path
    if (name := record.get("task")) in TASKS:
        kind = task_type(name)
        facts = record["facts"] if "facts" in record else kind.facts_before(record, folder)
        if facts is None:
            raise InputError(
                f"{own}: bertsmith.json and config.json do not belong together",
                "one of them was changed: copy both again from their source",
            )
        settings = kind.settings_type.of(record.get("settings", {}), str(own / "bertsmith.json"))
        kind = kind.variant(settings, facts)
        typed(kind.facts_type, facts, f"{own / 'bertsmith.json'}: facts")
        if facts.get("labels", folder.labels) != folder.labels:
            raise InputError(
                f"{own}: bertsmith.json and config.json name other labels",
                "one of them was changed: copy both again from their source",
            )
        return kind, facts
    if name not in (None, "pretrain"):
        raise InputError(
            f"{own}: this model is for the task '{name}', which this version does not know",
            f"known tasks: {', '.join(TASKS)}",
        )
    if record or _HEADLESS.search(folder.architecture):
        raise InputError(
            f"{path}: this model was not fine-tuned for a task, so it has nothing to predict",
            f"fine-tune it: bertsmith finetune TASK --model {path} --train FILE --dev FILE --out RUN "
            f"(tasks: {', '.join(TASKS)})",
        )
    return task_of(folder, str(own))
