"""Plan the runs of a repeated fine-tuning: one per seed or fold, for each combination of a grid of settings."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from bertsmith.errors import InputError, option
from bertsmith.finetuning.settings import OWN_ARGUMENTS, FinetuneSettings, settings_type
from bertsmith.runs.compute_setup import without_other_budgets
from bertsmith.settings import Function, full_name, parse_assignment, read_yaml
from bertsmith.tasks.task import Task

Grid = Mapping[str, Sequence[Any]] | Sequence[str]
"""Settings with the values to try: {"learning_rate": [5e-5, 3e-5]}, or as text: ["learning_rate=5e-5,3e-5"]."""

_MAX_RUNS = 1000
_MAX_NAME_LENGTH = 120  # characters of a folder's name
_SEPARATOR = re.compile(
    r",(?![^\[({]*[\])}])"
)  # commas between values, but not in a list such as [0.9, 0.999]


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
    task_class: type[Task],
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
        task_class: The task.
        recipe: The recipe of all runs.
        changes: Changed settings of all runs, by dotted names.
        restarts: The number of seeds, which start at train.seed.
        folds: The number of folds.
        grid: The settings to vary.
        function: The function that received the grid, for messages.

    Raises:
        InputError: The arguments exclude each other or the settings, or a value is invalid.
    """
    _check_counts(restarts, folds)
    values = {} if recipe is None else read_yaml(recipe)
    settings = settings_type(task_class).of(values, str(recipe or "settings"))
    settings = settings.changed(without_other_budgets(changes))
    axes = _grid_axes(settings, grid, function)
    if repeated := sorted(changes.keys() & axes.keys()):
        raise InputError(
            "setting_in_grid",
            f"{repeated[0]} is set for all runs, and {option('grid')} varies it",
            argument=repeated[0],
            hint="omit one of the two",
        )
    if restarts is not None and "train.seed" in axes:
        raise InputError(
            "seed_in_grid",
            f"both {option('restarts')} and {option('grid')} vary train.seed",
            argument="grid",
            hint="omit one of them",
        )
    variants = _variants(settings.train.seed, restarts, folds)
    cells = [dict(zip(axes, cell, strict=True)) for cell in product(*axes.values())]
    runs = [
        PlannedRun(_run_name(cell, variant), cell, {**cell, **variant_changes})
        for cell in cells
        for variant, variant_changes in variants.items()
    ]
    if len(runs) > _MAX_RUNS:
        raise InputError(
            "number_of_runs_invalid",
            f"{len(runs):,} runs are too many",
            argument="grid",
            hint=f"use fewer values: at most {_MAX_RUNS:,} runs are possible",
        )
    for run in runs:  # refuse invalid combinations before the first run
        _change_settings(settings, run.changes)
    names = [run.name for run in runs]
    if len(set(names)) < len(names) or max(map(len, names)) > _MAX_NAME_LENGTH:
        names = [f"run-{number}" for number in range(1, len(runs) + 1)]
    return [PlannedRun(name, run.cell, run.changes) for name, run in zip(names, runs, strict=True)]


def _variants(first_seed: int, restarts: int | None, folds: int | None) -> dict[str, dict[str, Any]]:
    """Return the settings of each seed or fold by name; a single variant without settings if there is neither."""
    if restarts is not None:
        return {f"seed-{seed}": {"train.seed": seed} for seed in range(first_seed, first_seed + restarts)}
    if folds is not None:
        return {f"fold-{i}": {"files.folds": folds, "files.fold": i} for i in range(1, folds + 1)}
    return {"": {}}


def _check_counts(restarts: int | None, folds: int | None) -> None:
    if restarts is not None and folds is not None:
        raise InputError(
            "restarts_with_folds",
            f"{option('restarts')} and {option('folds')} exclude each other, because one varies the seed and the "
            "other the data",
            hint=f"omit one of them; {option('grid')} works with either",
        )
    for argument, number in (("restarts", restarts), ("folds", folds)):
        if number is not None and not 2 <= number <= _MAX_RUNS:
            raise InputError(
                "number_of_runs_invalid",
                f"{number} is not between 2 and {_MAX_RUNS:,}",
                argument=argument,
                hint="give the number of runs",
            )


def _grid_axes(settings: FinetuneSettings, grid: Grid | None, function: Function) -> dict[str, list[Any]]:
    """Return the values of each setting of the grid by its dotted name, converted to the setting's type."""
    axes: dict[str, list[Any]] = {}
    for name, values in _parse_grid(grid or {}):
        setting = _dotted_name(type(settings), name.replace("-", "_"), function)
        if setting in axes:
            raise InputError(
                "grid_setting_repeated",
                f"{name} occurs twice",
                argument="grid",
                hint="give all its values in one place",
            )
        axes[setting] = []
        for value in (_change_settings(settings, {setting: value}).flat()[setting] for value in values):
            if value in axes[setting]:
                raise InputError(
                    "grid_value_repeated",
                    f"the value {_format_value(value)} of {name} occurs twice",
                    argument="grid",
                    hint="give each value once",
                )
            axes[setting].append(value)
    return axes


def _parse_grid(grid: Grid) -> Iterator[tuple[str, list[Any]]]:
    """Yield the name and the values of each setting of a grid."""
    if isinstance(grid, Mapping):
        for name, values in grid.items():
            if isinstance(values, str) or not isinstance(values, Sequence) or not len(values):
                raise InputError(
                    "grid_invalid",
                    f"{name}: {values!r:.60} is not a list of values",
                    argument="grid",
                    hint="give a list",
                )
            yield name, list(values)
        return
    for text in [grid] if isinstance(grid, str) else grid:
        name, equals, values_text = text.partition("=")
        value_texts = [value.strip() for value in _SEPARATOR.split(values_text)]
        if not equals or not name.strip() or not all(value_texts):
            raise InputError(
                "grid_invalid",
                f"'{text[:60]}' is not NAME=VALUE,VALUE",
                argument="grid",
                hint=f"write it as {option('grid', 'learning_rate=5e-5,3e-5')}",
            )
        with _attribute_errors_to_grid():
            parsed = [parse_assignment(f"{name}={value}")[1] for value in value_texts]
        yield name.strip(), parsed


def _dotted_name(settings_class: type[FinetuneSettings], name: str, function: Function) -> str:
    if name in {setting for setting, _ in settings_class.names()}:
        return name
    try:
        return full_name(settings_class, name, function, OWN_ARGUMENTS)
    except InputError as error:
        raise InputError(
            "setting_unknown", f"there is no setting '{name[:60]}'", argument="grid", hint=error.hint
        ) from None


def _change_settings(settings: FinetuneSettings, changes: Mapping[str, Any]) -> FinetuneSettings:
    with _attribute_errors_to_grid():
        return settings.changed(without_other_budgets(changes))


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
