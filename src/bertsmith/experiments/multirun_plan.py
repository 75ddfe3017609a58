"""Which runs a repeated fine-tuning is: one for each seed, each fold, each cell of a grid of settings."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from bertsmith.errors import InputError, option
from bertsmith.finetuning.settings import OWN_ARGUMENTS, FinetuneSettings, settings_type
from bertsmith.runs.compute_setup import without_other_budgets
from bertsmith.settings import Function, full_name, parse_assignment, read_yaml
from bertsmith.tasks.registry import Task

Grid = Mapping[str, Sequence[Any]] | Sequence[str]
"""Settings with the values to try: {"learning_rate": [5e-5, 3e-5]}, or as text: ["learning_rate=5e-5,3e-5"]."""

_MOST = 1000  # runs of one command
_LONGEST = 120  # characters of a folder's name
_BETWEEN = re.compile(r",(?![^\[({]*[\])}])")  # values; not the parts of one, such as [0.9, 0.999]


class Planned(NamedTuple):
    """One run. name: of its folder. cell: the settings that the grid gives it, by their names; varied: with these
    all that differs from the other runs."""

    name: str
    cell: dict[str, Any]
    varied: dict[str, Any]


def planned(
    task: Task,
    recipe: str | Path | None,
    changes: Mapping[str, Any],
    *,
    restarts: int | None,
    folds: int | None,
    grid: Grid | None,
    function: Function,
) -> list[Planned]:
    """The runs in their order: every cell of the grid with each seed, or each fold. The seeds follow on the one
    that is set.

    InputError where the axes exclude each other or what is set, and for a value that no run could have.
    """
    if restarts is not None and folds is not None:
        raise InputError(
            "restarts_with_folds",
            f"{option('restarts')} and {option('folds')} exclude each other, because one varies the seed and the "
            "other the data",
            hint=f"omit one of them; {option('grid')} works with either",
        )
    for argument, number in (("restarts", restarts), ("folds", folds)):
        if number is not None and not 2 <= number <= _MOST:
            raise InputError(
                "number_of_runs_invalid",
                f"{number} is not between 2 and {_MOST:,}",
                argument=argument,
                hint="give the number of runs",
            )
    values = {} if recipe is None else read_yaml(recipe)
    chosen = settings_type(task).of(values, str(recipe or "settings")).changed(without_other_budgets(changes))
    axes = _axes(chosen, grid, function)
    if twice := sorted(changes.keys() & axes.keys()):
        raise InputError(
            "setting_in_grid",
            f"{twice[0]} is set for all runs, and {option('grid')} varies it",
            argument=twice[0],
            hint="omit one of the two",
        )
    cells = [dict(zip(axes, cell, strict=True)) for cell in product(*axes.values())]
    found = [_planned(cell, {}, "") for cell in cells]
    if restarts is not None:
        if "train.seed" in axes:
            raise InputError(
                "seed_in_grid",
                f"both {option('restarts')} and {option('grid')} vary train.seed",
                argument="grid",
                hint="omit one of them",
            )
        seeds = range(chosen.train.seed, chosen.train.seed + restarts)
        found = [_planned(cell, {"train.seed": seed}, f"seed-{seed}") for cell in cells for seed in seeds]
    if folds is not None:
        parts = [({"files.folds": folds, "files.fold": i}, f"fold-{i}") for i in range(1, folds + 1)]
        found = [_planned(cell, *part) for cell in cells for part in parts]
    if len(found) > _MOST:
        raise InputError(
            "number_of_runs_invalid",
            f"{len(found):,} runs are too many",
            argument="grid",
            hint=f"use fewer values: at most {_MOST:,} runs are possible",
        )
    for one in found:  # before the first begins
        _as_said_of_grid(chosen, one.varied)
    return _with_names_of_their_own(found)


def _axes(chosen: FinetuneSettings, grid: Grid | None, function: Function) -> dict[str, list[Any]]:
    """Each setting of the grid by its full name, with its values as the settings have them."""
    axes: dict[str, list[Any]] = {}
    for name, values in _values(grid or {}):
        full = _full_name(type(chosen), name, function)
        if full in axes:
            raise InputError(
                "grid_setting_repeated",
                f"{name} occurs twice",
                argument="grid",
                hint="give all its values in one place",
            )
        axes[full] = []
        for given in values:
            value = _as_said_of_grid(chosen, {full: given}).flat()[full]
            if value in axes[full]:
                raise InputError(
                    "grid_value_repeated",
                    f"the value {_shown(value)} of {name} occurs twice",
                    argument="grid",
                    hint="give each value once",
                )
            axes[full].append(value)
    return axes


def _full_name(kind: type[FinetuneSettings], name: str, function: Function) -> str:
    name = name.replace("-", "_")  # as the option is called
    if name in {full for full, _ in kind.names()}:
        return name
    try:
        return full_name(kind, name, function, OWN_ARGUMENTS)
    except InputError as error:
        raise InputError(
            "setting_unknown", f"there is no setting '{name[:60]}'", argument="grid", hint=error.hint
        ) from None


def _values(grid: Grid) -> list[tuple[str, list[Any]]]:
    """Return each name of a grid with its values."""
    if isinstance(grid, Mapping):
        for name, values in grid.items():
            if isinstance(values, str) or not isinstance(values, Sequence) or not len(values):
                raise InputError(
                    "grid_invalid",
                    f"{name}: {values!r:.60} is not a list of values",
                    argument="grid",
                    hint="give a list",
                )
        return [(name, list(values)) for name, values in grid.items()]
    found: list[tuple[str, list[Any]]] = []
    for word in [grid] if isinstance(grid, str) else grid:
        name, equals, text = word.partition("=")
        values = [value.strip() for value in _BETWEEN.split(text)]
        if not equals or not name.strip() or not all(values):
            raise InputError(
                "grid_invalid",
                f"'{word[:60]}' is not NAME=VALUE,VALUE",
                argument="grid",
                hint=f"write it as {option('grid', 'learning_rate=5e-5,3e-5')}",
            )
        with _blaming_the_grid():
            found.append((name.strip(), [parse_assignment(f"{name}={value}")[1] for value in values]))
    return found


def _as_said_of_grid(chosen: FinetuneSettings, changes: Mapping[str, Any]) -> FinetuneSettings:
    """The settings with those of a cell."""
    with _blaming_the_grid():
        return chosen.changed(without_other_budgets(changes))


@contextmanager
def _blaming_the_grid() -> Iterator[None]:
    """Name `grid` as the argument at fault in an InputError."""
    try:
        yield
    except InputError as error:
        error.message = error.message.removeprefix("--set ").removeprefix("--set: ")
        error.argument = "grid"
        error.location = None if error.location == "--set" else error.location
        raise


def _planned(cell: dict[str, Any], more: dict[str, Any], name: str) -> Planned:
    parts = [f"{full.rpartition('.')[2]}={_shown(value)}" for full, value in cell.items()]
    return Planned(",".join([*parts, *([name] if name else [])]), cell, {**cell, **more})


def _with_names_of_their_own(runs: list[Planned]) -> list[Planned]:
    """With names that a folder can have, each once."""
    names = [re.sub(r"[^\w.,=+-]", "_", one.name) for one in runs]
    if len(set(names)) < len(names) or any(len(name) > _LONGEST for name in names):
        names = [f"run-{number}" for number in range(1, len(runs) + 1)]
    return [one._replace(name=name) for one, name in zip(runs, names, strict=True)]


def _shown(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "none"}[value]
    return f"{value:g}" if isinstance(value, float) else str(value)
