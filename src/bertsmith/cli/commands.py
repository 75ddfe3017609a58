"""Commands and groups whose help has panels, and whose settings are options."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import rich_click as click

from bertsmith.suggestions import did_you_mean, similar_names

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo
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


class UnknownCommandError(click.UsageError):
    """A word that names no command; `hint` has similar names, or all."""

    def __init__(self, message: str, hint: str, ctx: click.Context | None = None) -> None:
        super().__init__(message, ctx)
        self.hint = hint


class SettingOption(click.RichOption):
    """An option that stands for `--set NAME=VALUE`; its value is passed in the argument `settings`."""

    def __init__(
        self, flags: Sequence[str], *, setting: str, is_argument: bool = False, **attributes: Any
    ) -> None:
        """Create the option.

        Args:
            flags: As click has them.
            setting: The dotted name of the setting.
            is_argument: Pass the value as an argument of the function, not in `settings`.
            attributes: As click has them.
        """
        super().__init__(flags, **attributes)
        self.setting, self.is_argument = setting, is_argument


def write_help_text(text: str, formatter: click.RichHelpFormatter) -> None:
    """Write the text of a help; a paragraph that begins with \\b keeps its lines, as in click."""
    from rich.padding import Padding
    from rich.text import Text

    for paragraph in inspect.cleandoc(text).split("\n\n"):
        is_block = paragraph.startswith("\b\n")
        lines = paragraph.removeprefix("\b\n") if is_block else " ".join(paragraph.split())
        formatter.write(Padding(Text(lines), (0, 1, 1, 1)))


class Command(click.RichCommand):
    """A command; its required options have a panel of their own."""

    def __init__(self, *args: Any, **attributes: Any) -> None:
        super().__init__(*args, **attributes)
        for param in self.params:
            if isinstance(param, click.RichOption) and param.panel is None:
                param.panel = "Required" if param.required else "Options"
        for panel in ("Required", "Options"):
            self.add_panel(click.RichOptionPanel(panel))

    def format_help_text(self, ctx: click.RichContext, formatter: click.RichHelpFormatter) -> None:  # type: ignore[override]
        write_help_text(self.help or "", formatter)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        rest = super().parse_args(ctx, args)
        options = [param for param in self.get_params(ctx) if isinstance(param, SettingOption)]
        if "settings" in ctx.params and not ctx.resilient_parsing:
            from bertsmith.cli.settings_options import collect_settings

            collect_settings(ctx.params, options)
        return rest

    def settings(self) -> type[Settings] | None:
        """Return the settings that `--set` changes here."""
        return None


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

    def settings(self) -> type[Settings]:
        return self._settings_type()

    def format_epilog(self, ctx: click.RichContext, formatter: click.RichHelpFormatter) -> None:  # type: ignore[override]
        from bertsmith.settings import may_change

        fields = dict(self.settings().names())
        has_preset = "model.vocab_size" in fields
        rows = [
            (
                name,
                f"{field.description} "
                + ("[of the preset]" if has_preset and name.startswith("model.") else _default(field))
                + ("; may change on --resume" if may_change(field) else ""),
            )
            for name, field in fields.items()
        ]
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


def _default(field: FieldInfo) -> str:
    value = field.get_default(call_default_factory=True)
    if value is None or value == "":
        return "[none]"
    if isinstance(value, bool):
        return f"[{str(value).lower()}]"
    return f"[{list(value) if isinstance(value, tuple) else value}]"


class Group(click.RichGroup):
    """A group of commands. An unknown name is an error with similar names."""

    command_class = Command
    noun = "command"

    def format_help_text(self, ctx: click.RichContext, formatter: click.RichHelpFormatter) -> None:  # type: ignore[override]
        write_help_text(self.help or "", formatter)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if ctx.resilient_parsing or name.startswith("-") or self.get_command(ctx, name) is not None:
            return super().resolve_command(ctx, args)
        similar = self.similar_commands(ctx, name[:60])
        hint = (
            did_you_mean([f"{ctx.command_path} {command}" for command in similar])
            if similar
            else f"choose from {', '.join(self.list_commands(ctx))}"
        )
        raise UnknownCommandError(f"'{name[:60]}': there is no such {self.noun}", hint, ctx)

    def similar_commands(self, ctx: click.Context, name: str) -> list[str]:
        """Return the commands, of this group or below it, that a wrong name may stand for."""
        return similar_names(name.lower().replace("_", "-"), self.list_commands(ctx))
