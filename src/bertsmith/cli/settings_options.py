"""The settings of tasks as options. No other module of the command line reads the tasks."""

from __future__ import annotations

import types
import typing
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import rich_click as click

from bertsmith.cli.commands import Command, Group, SettingOption, format_default
from bertsmith.cli.options import Integer, Number

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

    from bertsmith.settings import Settings
    from bertsmith.tasks.registry import Task

_MAX_CHOICES_LENGTH = 30  # characters; longer lists of choices are in the help text only
HUGGING_FACE_NAMES = {
    "text-classification": "classify",
    "token-classification": "tag",
    "question-answering": "answer",
    "multiple-choice": "choose",
    "sentence-similarity": "embed",
}
"""The Hugging Face names of tasks, which `finetune` accepts as well."""


def task_options(settings_type: type[Settings]) -> list[SettingOption]:
    """Return an option for each setting of a task: `--text-column`, `--header/--no-header`."""
    return [_option(name, field) for name, field in settings_type.model_fields.items()]


def _option(name: str, field: FieldInfo) -> SettingOption:
    flag = f"--{name.replace('_', '-')}"
    default = field.get_default(call_default_factory=True)
    text = (field.description or "").replace("; none:", "; default:")
    shown = "" if default in (None, "") else f" [{format_default(default)}]"
    attributes: dict[str, Any] = {"default": None, "help": f"{text[:1].upper()}{text[1:]}{shown}"}
    attributes |= {"setting": f"task.{name}", "panel": "Task"}
    is_union = typing.get_origin(field.annotation) in (types.UnionType, typing.Union)
    types_of = typing.get_args(field.annotation) if is_union else (field.annotation,)
    if bool in types_of:
        return SettingOption([f"{flag}/--no-{flag[2:]}", name], **attributes)
    if typing.get_origin(field.annotation) is typing.Literal:
        choices = [str(choice) for choice in typing.get_args(field.annotation)]
        is_short = len("|".join(choices)) < _MAX_CHOICES_LENGTH
        attributes |= {"type": click.Choice(choices), "metavar": None if is_short else "NAME"}
    elif int in types_of or float in types_of:
        attributes["type"] = Number() if float in types_of else Integer()
    else:
        attributes["metavar"] = "NAME" if name.endswith("column") else "TEXT"
    return SettingOption([flag, name], **attributes)


def task_settings(task: Task) -> Callable[[], type[Settings]]:
    """Return a function that imports all settings of fine-tuning for a task."""

    def load() -> type[Settings]:
        from bertsmith.finetuning.settings import settings_type

        return settings_type(task)

    return load


class RunCommand(Command):
    """A command on fine-tuned models, which takes the settings of every task as hidden options."""

    def __init__(self, *args: Any, **attributes: Any) -> None:
        epilog = (
            "The settings of the run's task are options, too, such as --text-column; see "
            "`bertsmith finetune TASK --help`. Their defaults are the values of the training run."
        )
        super().__init__(*args, epilog=epilog, **attributes)

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        from bertsmith.tasks.registry import TASKS, get_task

        options = {
            option.name: option for name in TASKS for option in task_options(get_task(name).settings_type)
        }
        for option in options.values():
            option.hidden = True
        return [*super().get_params(ctx), *options.values()]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        rest = super().parse_args(ctx, args)
        settings = ctx.params.get("settings", {})
        ctx.params["settings"] = {name.removeprefix("task."): value for name, value in settings.items()}
        return rest


class TaskGroup(Group):
    """A group with a command for each task, and further commands."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        from bertsmith.tasks.registry import TASKS

        return [*TASKS, *self.commands]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        from bertsmith.tasks.registry import TASKS, get_task

        name = HUGGING_FACE_NAMES.get(cmd_name, cmd_name)
        if name not in TASKS:
            return super().get_command(ctx, cmd_name)
        task = get_task(name)
        command = self.task_command(name, task)
        command.short_help = f"{task.summary[:1].upper()}{task.summary[1:]}."
        command.params += task_options(task.settings_type)
        assert isinstance(command, click.Command)
        return command

    def task_command(self, name: str, task: Task) -> Any:
        """Return the command of a task, without the options of its settings."""
        raise NotImplementedError
