"""Commands on finished runs: those of a run's task have its settings as options, whatever the task is."""

from __future__ import annotations

import json
from copy import copy
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bertsmith import hardware
from bertsmith.cli import task_options
from bertsmith.cli.verbs import Verb

if TYPE_CHECKING:
    from bertsmith.tasks.task import Task


class OfRun(Verb):
    """A command on a finished RUN, which also takes the settings of the run's task as options."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        def parsed(own: list[click.Parameter], words: list[str], **more: Any) -> click.Context:
            with_task = copy(self)
            with_task.params = [*([_told(p, kind) for p in self.params] if kind else self.params), *own]
            return super(OfRun, with_task).make_context(info_name, words, parent, **{**extra, **more})

        kind = _task_for(args)
        own = task_options.options_of(kind.settings_type, defaults=False) if kind else []
        try:
            return parsed(own, list(args))
        except click.NoSuchOption:
            if own:
                raise
            # A run that is missing, or of no task, has no task's options: that is what is wrong.
            found = parsed(_options_of_all(), list(args), ignore_unknown_options=True, resilient_parsing=True)
            if own := _options_of(_first_run(found.params)):
                return parsed(own, list(args))
            raise

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        formatter.write_paragraph()
        formatter.write_text(
            "The settings of RUN's task are options, too (--text-column and others): `--help` after a RUN lists "
            "them. Their defaults are those of training."
        )


def _first_run(given: dict[str, Any]) -> str:
    """The first run among a verb's parameters."""
    return next(
        (str(run) for name in ("run", "runs", "a") for run in _as_list(given.get(name)) if run is not None),
        "-",
    )


def _as_list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, tuple) else [value]


def _task_for(args: list[str]) -> type[Task] | None:
    """The task of the first run among a verb's arguments; None where there is no run."""
    name = next((found for word in args if (found := _task_name(word))), None)
    if name is None:
        return None
    with hardware.importing():
        from bertsmith.tasks.task import TASKS, task_type

        return task_type(name) if name in TASKS else None


def _told(option: click.Parameter, kind: type[Task]) -> click.Parameter:
    """An option of the verb, as the help tells it of a run of this task: --format has the form of its field."""
    if option.name != "chosen" or not isinstance(option, click.Option):
        return option
    told, own = copy(option), kind.answer_form
    told.help = formats(f"; {own.name}: {own.summary}" if own else "")
    return told


def formats(own: str) -> str:
    return (
        "json: one object per line; csv: the file's rows, each with its answer; table: for reading"
        f"{own} [json, or what --out ends with]."
    )


def _options_of_all() -> list[click.Parameter]:
    """The options of every task, each once."""
    from bertsmith.tasks.task import TASKS, task_type

    every = [o for name in TASKS for o in task_options.options_of(task_type(name).settings_type)]
    return list({option.opts[0]: option for option in every}.values())


def _options_of(run: str) -> list[click.Parameter]:
    """The options of the task of a run that is found only by loading it, as a published name is; what is wrong
    with it is raised as `predict` would."""
    if run.startswith("-"):
        return []
    from bertsmith.inference.model import load

    quiet_machine()
    return task_options.options_of(load(run, tell=lambda text: None).task.settings_type, defaults=False)


def _task_name(word: str) -> str | None:
    """The task of a run or model folder, as its record names it, or the heads of another tool's model."""
    for folder in (Path(word) / "model", Path(word)):
        if (folder / "config.json").is_file():
            try:
                record = json.loads((folder / "bertsmith.json").read_text(encoding="utf-8"))
            except (OSError, ValueError):
                return _foreign_task(folder)
            return str(record.get("task")) if isinstance(record, dict) else None
    return None


def _foreign_task(folder: Path) -> str | None:
    from bertsmith.artifacts.folder import read_folder
    from bertsmith.errors import InputError
    from bertsmith.tasks.task import task_of

    try:
        return task_of(read_folder(folder), str(folder))[0].name
    except InputError:  # told when the model is loaded
        return None


def quiet_machine() -> None:
    """Set the process up for a verb that says nothing of the machine."""
    from bertsmith import hardware

    hardware.prepare_process()
