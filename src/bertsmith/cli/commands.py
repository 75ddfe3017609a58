"""Commands whose help has panels, and whose settings are options."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import rich_click as click
from click.exceptions import NoSuchCommand

if TYPE_CHECKING:
    from rich.panel import Panel

    from bertsmith.settings import Settings

HELP_STYLE = click.RichHelpConfiguration(
    max_width=80,
    range_string="",
    append_metavars_help_string="{}",
    options_table_column_types=["opt_all_metavar", "help"],
    options_table_help_sections=["help", "default"],
)
Rows = list[tuple[str, str]]
_LENGTHS = ("train.num_train_epochs", "train.max_steps", "train.max_minutes", "train.max_tokens")


class SettingOption(click.RichOption):
    """An option that stands for `--set NAME=VALUE`; its value is passed in the argument `settings`."""

    def __init__(
        self, flags: Sequence[str], *, setting: str, is_argument: bool = False, **attributes: Any
    ) -> None:
        """Create the option.

        Args:
            flags: As click has them.
            setting: The dotted name of the setting.
            is_argument: Pass the value in an argument of its own instead.
            attributes: As click has them.
        """
        super().__init__(flags, **attributes)
        self.setting, self.is_argument = setting, is_argument


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
            assigned = ctx.params["settings"] or {}
            flags = {option.setting: option.opts[0] for option in named}
            repeated = [o.setting for o in named if assigned.get(o.setting) == ctx.params[str(o.name)]]
            _check_given_once(flags, [name for name in assigned if name not in repeated])
            passed = [option for option in options if not option.is_argument]
            values = {option.setting: ctx.params.pop(str(option.name), None) for option in passed}
            settings = {name: value for name, value in values.items() if value is not None}
            ctx.params["settings"] = assigned | settings
        return rest


def _check_given_once(flags: Mapping[str, str], assigned: Collection[str]) -> None:
    """Raise UsageError if a setting, or the length of the training, is given twice.

    Args:
        flags: The option of each setting that has one in the command.
        assigned: The settings that the command assigns by `--set`, without those of the same value in both.
    """
    twice = [(flag, f"--set {name}") for name, flag in flags.items() if name in assigned]
    lengths = [flags[name] for name in _LENGTHS if name in flags]
    if lengths:
        twice += [(lengths[0], other) for other in lengths[1:]]
        twice += [(lengths[0], f"--set {name}") for name in _LENGTHS if name in assigned]
    for first, second in twice:
        raise click.UsageError(f"{first} and {second} exclude each other")


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
    from rich.panel import Panel
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 1), expand=True)
    for name, description in rows:
        table.add_row(Text(name, style="bold cyan"))
        table.add_row(Text(f"  {description}"))
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
