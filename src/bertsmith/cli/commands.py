"""Commands whose help has panels, and whose settings are options."""

from __future__ import annotations

import inspect
import signal
import types
import typing
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import rich_click as click
from click.exceptions import NoSuchCommand

from bertsmith import errors
from bertsmith.cli.options import Integer, Number, SettingOption

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo
    from rich.panel import Panel

    from bertsmith.settings import Settings
    from bertsmith.tasks.registry import Task

HELP_STYLE = click.RichHelpConfiguration(
    max_width=80,
    range_string="",
    append_metavars_help_string="{}",
    options_table_column_types=["opt_all_metavar", "help"],
    options_table_help_sections=["help", "default"],
)
Rows = list[tuple[str, str]]
_LENGTHS = ("train.num_train_epochs", "train.max_steps", "train.max_minutes", "train.max_tokens")
_MAX_CHOICES_LENGTH = 30  # characters; longer lists of choices are in the help text only
HUGGING_FACE_NAMES = {
    "text-classification": "classify",
    "token-classification": "tag",
    "question-answering": "answer",
    "multiple-choice": "choose",
    "sentence-similarity": "embed",
    "translation": "translate",
}
"""The Hugging Face names of tasks, which `finetune` accepts as well."""


def _write_help_text(self: click.Command, ctx: click.RichContext, formatter: click.RichHelpFormatter) -> None:
    """Write the text of a help with an empty line between paragraphs; one that begins with \\b keeps its lines."""
    from rich.padding import Padding
    from rich.text import Text

    for paragraph in inspect.cleandoc(self.help or "").split("\n\n"):
        is_block = paragraph.startswith("\b\n")
        lines = paragraph.removeprefix("\b\n") if is_block else " ".join(paragraph.split())
        formatter.write(Padding(Text(lines), (0, 1, 1, 1)))


class Command(click.RichCommand):
    """A command; its required options have a panel of their own."""

    format_help_text = _write_help_text

    def __init__(self, *args: Any, **attributes: Any) -> None:
        super().__init__(*args, **attributes)
        for param in self.params:
            if isinstance(param, click.RichOption) and param.panel is None:
                param.panel = "Required" if param.required else "Options"
        for panel in ("Required", "Options"):
            self.add_panel(click.RichOptionPanel(panel))

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        rest = super().parse_args(ctx, args)
        if "settings" in ctx.params:
            options = [param for param in self.get_params(ctx) if isinstance(param, SettingOption)]
            named = [option for option in options if ctx.params.get(str(option.name)) is not None]
            values = {option.setting: ctx.params[str(option.name)] for option in named}
            assigned = ctx.params["settings"] or {}
            flags = {option.setting: option.opts[0] for option in named}
            _check_given_once(flags, {name for name in assigned if assigned[name] != values.get(name, ...)})
            for option in options:
                if option.is_argument:
                    values.pop(option.setting, None)
                else:
                    ctx.params.pop(str(option.name), None)
            ctx.params["settings"] = assigned | values
        return rest

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; after Ctrl-C, raise Stopped, which says how to continue.

        Errors that a positional argument caused get its name in the usage.
        """
        try:
            return super().invoke(ctx)
        except errors.BertsmithError as error:
            for param in self.params:
                if isinstance(param, click.Argument) and param.name == error.argument:
                    error.metavar = param.human_readable_name.removesuffix("...")
            raise
        except KeyboardInterrupt:
            raise errors.Stopped(signal.SIGINT, "stopped", resume_hint(ctx)) from None


def resume_hint(context: click.Context) -> str | None:
    """Return how to continue a command that was stopped; None if it cannot be continued."""
    out = context.params.get("output_dir")
    if "resume" not in context.params or out is None or not Path(out).is_dir():
        return None
    return f"continue with the same command and {errors.option('resume', True)}"


def _check_given_once(flags: Mapping[str, str], assigned: Collection[str]) -> None:
    """Raise UsageError if a setting, or the length of the training, is given twice.

    Args:
        flags: The option of each setting that has one in the command.
        assigned: The settings that the command assigns by `--set`, without those of the same value in both.
    """
    for setting in (name for name in (*_LENGTHS, *flags) if name in flags):
        rivals = _LENGTHS if setting in _LENGTHS else (setting,)
        others = [flags[name] for name in rivals if name in flags and name != setting]
        others += [f"--set {name}" for name in rivals if name in assigned]
        if others:
            raise click.UsageError(f"{flags[setting]} and {others[0]} exclude each other")


class SettingsCommand(Command):
    """A command whose help ends with its settings."""

    def __init__(
        self,
        *args: Any,
        settings_type: Callable[[], type[Settings]],
        sections: Callable[[], dict[str, Rows]] = dict,
        **attributes: Any,
    ) -> None:
        super().__init__(*args, **attributes)
        self._settings_type, self._sections = settings_type, sections

    def format_epilog(self, ctx: click.RichContext, formatter: click.RichHelpFormatter) -> None:  # type: ignore[override]
        from bertsmith.settings import may_change

        fields = dict(self._settings_type().names())
        has_preset = "model.vocab_size" in fields
        rows = []
        for name, field in fields.items():
            default = format_default(field.get_default(call_default_factory=True))
            shown = "of the preset" if has_preset and name.startswith("model.") else default
            on_resume = "; may change on --resume" if may_change(field) else ""
            rows.append((name, f"{field.description} [{shown}]{on_resume}"))
        for title, lines in (self._sections() | {"Settings (--set NAME=VALUE)": rows}).items():
            formatter.write(_panel(title, lines))


def _panel(title: str, rows: Rows) -> Panel:
    from rich.padding import Padding
    from rich.panel import Panel
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 1), expand=True)
    for name, description in rows:
        table.add_row(Text(name, style="bold cyan"))
        table.add_row(Padding(Text(description), (0, 0, 0, 2)))
    return Panel(table, title=title, title_align="left", border_style="dim")


def format_default(value: Any) -> str:
    """Format a default as `--set` accepts it."""
    if isinstance(value, bool):
        return str(value).lower()
    return "none" if value in (None, "") else str(list(value) if isinstance(value, tuple) else value)


class Group(click.RichGroup):
    """A group of commands. The error for an unknown name suggests similar ones, imported or not."""

    command_class = Command
    format_help_text = _write_help_text  # type: ignore[assignment]

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if not (ctx.resilient_parsing or name.startswith("-")) and self.get_command(ctx, name) is None:
            raise NoSuchCommand(name[:60], possibilities=self.list_commands(ctx), ctx=ctx)
        return super().resolve_command(ctx, args)


def task_options(settings_type: type[Settings], panel: str = "Task") -> list[SettingOption]:
    """Return an option for each setting of a task: `--text-column`, `--header/--no-header`."""
    return [_option(name, field, panel) for name, field in settings_type.model_fields.items()]


def _option(name: str, field: FieldInfo, panel: str) -> SettingOption:
    flag = f"--{name.replace('_', '-')}"
    default = field.get_default(call_default_factory=True)
    text = (field.description or "").replace("; none:", "; default:")
    shown = "" if default in (None, "") else f" [{format_default(default)}]"
    attributes: dict[str, Any] = {"default": None, "help": f"{text[:1].upper()}{text[1:]}{shown}"}
    attributes |= {"setting": f"task.{name}", "panel": panel}
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


def task_settings(task: Task) -> type[Settings]:
    """Return the type of all settings of fine-tuning for a task."""
    from bertsmith.finetuning.settings import settings_type

    return settings_type(task)


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
