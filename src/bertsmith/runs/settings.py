"""The settings of a run: those it started with, and those with which it may continue."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from bertsmith.device import ComputeContext
from bertsmith.errors import InputError, option
from bertsmith.runs.compute_setup import without_other_budgets
from bertsmith.runs.run_folder import SETTINGS
from bertsmith.settings import Settings
from bertsmith.training.settings import TrainSettings

logger = logging.getLogger(__name__)

_CHOSEN_AT_START = {  # settings that the run chooses when it starts, with the values that let it
    "train.precision": "auto",
    "train.device": "auto",
    "train.kernels": "auto",
    "train.eval_steps": None,
}

AnySettings = TypeVar("AnySettings", bound=Settings)
AnyTrainSettings = TypeVar("AnyTrainSettings", bound=TrainSettings)


def settings_of_run(settings_class: type[AnySettings], out: Path, changes: Mapping[str, Any]) -> AnySettings:
    """Return the settings with which a run continues.

    Args:
        settings_class: The class of the settings.
        out: The run folder.
        changes: Settings as in the command that started the run, or others that may change. A budget replaces the
            run's. Values that let the run choose, such as train.precision=auto, keep its choice.

    Raises:
        InputError: A changed setting would change the results.
    """
    before = settings_class.from_file(out / SETTINGS)
    changes = without_other_budgets(changes)
    requested = before.changed(changes).flat()
    left_open = {name for name, value in _CHOSEN_AT_START.items() if requested[name] == value}
    after = before.changed({name: value for name, value in changes.items() if name not in left_open})
    old_values = before.flat()
    for name, value in after.flat().items():
        if value == old_values[name]:
            continue
        if name not in settings_class.may_change():
            message = f"this run has {name}={old_values[name]}, and it cannot continue with {name}={value}"
            hint = f"remove {option(name)}, or start a new run with another {option('output_dir')}"
            raise InputError("setting_differs_from_run", message, location=out, argument=name, hint=hint)
        if name == "train.kernels":
            logger.warning(
                "computing with train.kernels=%s from here on, not %s: numbers are rounded differently, so the "
                "run is no longer bit-identical to an uninterrupted one",
                value,
                old_values[name],
            )
    return after


def with_context(train: AnyTrainSettings, context: ComputeContext) -> AnyTrainSettings:
    """Return the settings with the precision, device, and kernels of a compute context."""
    values = {"precision": context.precision, "device": str(context.device), "kernels": context.kernels.name}
    return train.model_copy(update=values)


def fingerprint_settings(settings: Settings) -> str:
    """Return the settings that a run's results depend on, as JSON."""
    may_change = type(settings).may_change()
    return json.dumps({k: v for k, v in settings.flat().items() if k not in may_change}, sort_keys=True)


def updates_in_budget(train: TrainSettings, updates_per_epoch: float, tokens_per_update: float) -> int:
    """Return the number of updates of a budget that is not in minutes.

    Raises:
        InputError: One update takes more passes over the data than the run has.
    """
    if train.max_steps:
        return train.max_steps
    if train.max_tokens:
        return math.ceil(train.max_tokens / tokens_per_update)
    if train.gradient_accumulation_steps > 1 and train.num_train_epochs * updates_per_epoch < 0.5:
        raise InputError(
            "update_longer_than_run",
            f"with train.gradient_accumulation_steps={train.gradient_accumulation_steps}, one update takes "
            f"{1 / updates_per_epoch:,.0f} passes over the data, and train.num_train_epochs is "
            f"{train.num_train_epochs:g}",
            argument="train.gradient_accumulation_steps",
            hint="lower train.gradient_accumulation_steps, or set the number of updates with "
            f"{option('train.max_steps')}",
        )
    return math.ceil(train.num_train_epochs * updates_per_epoch)
