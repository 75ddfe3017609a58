"""Plan the runs of a repeated fine-tuning: one per seed or fold, for each combination of a grid of settings."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

from bertsmith.errors import InputError, option
from bertsmith.finetuning.settings import OWN_ARGUMENTS, FinetuneSettings, settings_type
from bertsmith.runs.compute_setup import without_other_budgets
from bertsmith.settings import Function, full_name, parse_assignment, read_yaml
from bertsmith.tasks.registry import Task

Grid = Mapping[str, Sequence[Any]] | Sequence[str]
"""Settings with the values to try: {"learning_rate": [5e-5, 3e-5]}, or as text: ["learning_rate=5e-5,3e-5"]."""

_MAX_RUNS = 1_000
_MAX_NAME_LENGTH = 120  # characters of a folder's name


@dataclass(frozen=True)
class PlannedRun:
    """A run to make.

    Attributes:
        name: The name of its folder.
        cell: The settings that the grid gives it, by dotted names.
        changes: All settings in which it differs from the other runs: those of the cell, and the seed or fold.
    """

    name: str
    cell: dict[str, Any]
    changes: dict[str, Any]


def plan_runs(
    task: Task,
    recipe: str | Path | None,
    changes: Mapping[str, Any],
    *,
    restarts: int | None,
    folds: int | None,
    grid: Grid | None,
    function: Function,
) -> list[PlannedRun]:
    """Return the runs in order: for each cell of the grid, one per seed or per fold.

    Args:
        task: The task.
        recipe: The recipe of all runs.
        changes: Changed settings of all runs, by dotted names.
        restarts: The number of seeds, which start at train.seed.
        folds: The number of folds.
        grid: The settings to vary.
        function: The function that received the grid, for messages.

    Raises:
        InputError: The arguments exclude each other or the settings, or a value is invalid.
    """
    values = {} if recipe is None else read_yaml(recipe)
    settings = settings_type(task).of(values, str(recipe or "settings"))
    settings = settings.changed(without_other_budgets(changes))
    variants = _variants(settings.train.seed, restarts, folds)
    axes = _grid_axes(settings, grid or {}, function)
    fixed = changes.keys() | next(iter(variants.values())).keys()
    if repeated := sorted(fixed & axes.keys()):
        message = f"{option('grid')} varies {repeated[0]}, which is also set otherwise"
        raise InputError("setting_in_grid", message, argument=repeated[0], hint="omit one of the two")
    num_runs = math.prod(map(len, axes.values())) * len(variants)
    _check_number(num_runs)
    cells = [dict(zip(axes, cell, strict=True)) for cell in product(*axes.values())]
    runs = [
        PlannedRun(_run_name(cell, name), cell, {**cell, **variant})
        for cell in cells
        for name, variant in variants.items()
    ]
    with _attribute_errors_to_grid():
        for run in runs:  # refuse invalid combinations before the first run
            settings.changed(without_other_budgets(run.changes))
    names = [run.name for run in runs]
    if len(set(names)) < len(names) or max(map(len, names)) > _MAX_NAME_LENGTH:
        return [replace(run, name=f"run-{number}") for number, run in enumerate(runs, start=1)]
    return runs


def _variants(first_seed: int, restarts: int | None, folds: int | None) -> dict[str, dict[str, Any]]:
    """Return the settings of each seed or fold by name; a single variant without settings if there is neither."""
    if restarts is not None and folds is not None:
        message = f"{option('restarts')} and {option('folds')} exclude each other"
        raise InputError("restarts_with_folds", message, hint=f"{option('grid')} works with either")
    for argument, number in (("restarts", restarts), ("folds", folds)):
        if number is not None and number < 2:
            message, hint = f"{number} is less than 2", "give the number of runs"
            raise InputError("number_of_runs_invalid", message, argument=argument, hint=hint)
    if restarts is not None:
        return {f"seed-{seed}": {"train.seed": seed} for seed in range(first_seed, first_seed + restarts)}
    if folds is not None:
        return {f"fold-{i}": {"files.folds": folds, "files.fold": i} for i in range(1, folds + 1)}
    return {"": {}}


def _grid_axes(settings: FinetuneSettings, grid: Grid, function: Function) -> dict[str, list[Any]]:
    """Return the values of each setting of the grid by its dotted name, converted to the setting's type."""
    axes: dict[str, list[Any]] = {}
    with _attribute_errors_to_grid():
        for name, values in _parse_grid(grid):
            if isinstance(values, str) or not isinstance(values, Sequence) or not len(values):
                message = f"{name}: {values!r:.60} is not a list of values"
                hint = f"write it as {option('grid', 'learning_rate=5e-5,3e-5')}"
                raise InputError("grid_invalid", message, hint=hint)
            _check_number(len(values))
            setting = full_name(type(settings), name.replace("-", "_"), function, OWN_ARGUMENTS)
            for value in values:
                changed = settings.changed(without_other_budgets({setting: value}))
                axes.setdefault(setting, []).append(changed.flat()[setting])
    return axes


def _check_number(num_runs: int) -> None:
    if num_runs > _MAX_RUNS:
        message = f"the grid has {num_runs:,} runs or more, and the limit is {_MAX_RUNS:,}"
        raise InputError("too_many_runs", message, argument="grid", hint="give fewer values")


def _parse_grid(grid: Grid) -> Iterator[tuple[str, Any]]:
    """Yield the name and the values of each setting of a grid."""
    if isinstance(grid, Mapping):
        yield from grid.items()
        return
    for text in [grid] if isinstance(grid, str) else grid:
        name, _, values = text.partition("=")
        name, values = parse_assignment(f"{name}=[{values}]")
        yield name, [None if value == "none" else value for value in values]


@contextmanager
def _attribute_errors_to_grid() -> Iterator[None]:
    """Name `grid` as the argument that caused an InputError."""
    try:
        yield
    except InputError as error:
        error.argument = "grid"
        raise


def _run_name(cell: Mapping[str, Any], variant: str) -> str:
    """Return a folder name such as "learning_rate=3e-05,seed-1"."""
    parts = [f"{name.rpartition('.')[2]}={_format_value(value)}" for name, value in cell.items()]
    return re.sub(r"[^\w.,=+-]", "_", ",".join([*parts, *filter(None, [variant])]))


def _format_value(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)
