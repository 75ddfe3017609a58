"""A task's settings as options of the command line, made of its own declarations: no verb knows a task."""

from __future__ import annotations

import types
import typing
from typing import TYPE_CHECKING, Any

import click

from bertsmith.cli.verbs import Verb

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

    from bertsmith.settings import Settings


def options_of(kind: type[Settings]) -> list[click.Option]:
    """An option a setting: `text_column` is --text-column, a truth value --header/--no-header. Each is None where
    it was not given."""
    return [_option(name, field) for name, field in kind.model_fields.items()]


class RunCommand(Verb):
    """A command on finished runs, which takes the settings of every task as options, hidden in its help."""

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        return [*super().get_params(ctx), *_of_all_tasks()]

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        formatter.write_paragraph()
        formatter.write_text(
            "The settings of RUN's task are options, too (--text-column and others): `bertsmith finetune TASK "
            "--help` lists them. Their defaults are those of training."
        )


def _of_all_tasks() -> list[click.Option]:
    """The options of all tasks, each once."""
    from bertsmith.tasks.registry import TASKS, get_task

    every = [option for name in TASKS for option in options_of(get_task(name).settings_type)]
    for option in every:
        option.hidden = True
    return list({option.name: option for option in every}.values())


_WIDE = 60  # characters of choices that a terminal's line has no room for


def _option(name: str, field: FieldInfo) -> click.Option:
    flag = f"--{name.replace('_', '-')}"
    known = field.get_default(call_default_factory=True)
    text = (field.description or "").replace("; none:", "; default:")
    said = f"{text[:1].upper()}{text[1:]}" + (f" [{_shown(known)}]" if known is not None else "")
    if _is(field, bool):
        return click.Option([f"{flag}/--no-{flag[2:]}", name], default=None, help=said)
    kind: click.ParamType[Any] | None = None
    for number, parameter in ((int, click.INT), (float, click.FLOAT)):
        if _is(field, number):
            kind = parameter
    if typing.get_origin(field.annotation) is typing.Literal:
        kind = click.Choice([str(choice) for choice in typing.get_args(field.annotation)])
    return click.Option([flag, name], type=kind, default=None, metavar=_metavar(name, kind), help=said)


def _is(field: FieldInfo, kind: type) -> bool:
    """Whether the setting is of this type, or of this type or none."""
    annotation = field.annotation
    if isinstance(annotation, types.UnionType) or typing.get_origin(annotation) is typing.Union:
        return kind in typing.get_args(annotation)
    return annotation is kind


def _metavar(name: str, kind: Any) -> str | None:
    if isinstance(kind, click.Choice):
        return None if len("|".join(kind.choices)) < _WIDE else "NAME"  # the help has the names then
    return (
        "N"
        if kind is not None
        else "C"
        if name.endswith("column")
        else "D"
        if name == "delimiter"
        else "TEXT"
    )


def _shown(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def task_changes(given: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of a task that options give (None: not given), and those of --set task.NAME=VALUE."""
    from bertsmith.cli.options import changes_of
    from bertsmith.errors import InputError

    for name in changes:
        if not name.startswith("task."):
            raise InputError(
                "not_a_task_setting",
                f"{name} cannot be changed: a finished model takes only settings of its task",
                hint="write it as --set task.max_length=128",
            )
    of_task = changes_of({f"task.{name}": value for name, value in given.items()}, changes)
    return {name.removeprefix("task."): value for name, value in of_task.items()}
