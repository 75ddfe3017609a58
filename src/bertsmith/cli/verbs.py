"""What each verb of the command line is made of: its help, and what it says to a word that it does not know.

A help fits terminals from 40 columns on, and begins its options with those that must be given.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from bertsmith.suggestions import did_you_mean, similar_names

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

    from bertsmith.settings import Settings

_WIDEST = 100  # columns of a help
_NARROW = 60  # below it a definition stands under its term
_WORD = re.compile(
    r"""(?:--[\w-]+ (?![-<>|]))?(?:"[^"]*"|'[^']*'|\S)+"""
)  # an option keeps its value beside it
_TRIES = ("bertsmith ", "cat ", "torchrun ")  # how the commands of an example begin


class Unknown(click.UsageError):
    """A word of the command line that names nothing; the remedy says what was meant, or what there is."""

    def __init__(self, sentence: str, remedy: str, ctx: click.Context | None = None) -> None:
        super().__init__(sentence, ctx)
        self.remedy = remedy


class _Formatter(click.HelpFormatter):
    def __init__(self, *_: Any, **__: Any) -> None:
        super().__init__(width=max(20, min(_WIDEST, shutil.get_terminal_size().columns) - 1))

    def write_dl(self, rows: Any, col_max: int = 30, col_spacing: int = 2) -> None:
        if self.width >= _NARROW:
            super().write_dl(rows, col_max, col_spacing)
            return
        for term, definition in rows:
            self.write_text(term)
            with self.indentation():
                self.write_text(definition)


class _Context(click.Context):
    formatter_class = _Formatter


class Verb(click.Command):
    """A command whose help names the options that must be given first, with their own heading."""

    context_class = _Context

    def __init__(self, *args: Any, **attributes: Any) -> None:
        super().__init__(*args, **attributes)
        for param in self.params:
            if param.type is click.STRING:
                param.type = _Word()

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        options = [param for param in self.get_params(ctx) if not isinstance(param, click.Argument)]
        for heading, needed in (("Required", True), ("Options", False)):
            rows = [option.get_help_record(ctx) for option in options if option.required == needed]
            if shown := list(filter(None, rows)):
                with formatter.section(heading):
                    formatter.write_dl(shown)

    def get_help(self, ctx: click.Context) -> str:
        width = ctx.make_formatter().width
        return "\n".join(_continued(line, width) for line in super().get_help(ctx).splitlines())

    def settings(self) -> type[Settings] | None:
        """What --set changes here, None where it changes nothing."""
        return None


class _Word(click.types.StringParamType):
    """Any text; a shell completes it as it completes what it knows nothing of: with the names of files."""

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        return [CompletionItem(incomplete, type="file")]


class VerbWithSettings(Verb):
    """A verb whose help ends with its settings: name, default, meaning."""

    def settings(self) -> type[Settings]:
        raise NotImplementedError

    def sections(self) -> list[tuple[str, list[tuple[str, str]]]]:
        """What the help lists before the settings: headings with their rows."""
        return []

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        from bertsmith.settings import may_change

        known = dict(self.settings().names())
        sized = "model.vocab_size" in known  # a model that is tuned has its sizes
        rows = [
            (
                name,
                f"{field.description} "
                + ("[of the preset]" if sized and name.startswith("model.") else _default(field))
                + ("; may change on --resume" if may_change(field) else ""),
            )
            for name, field in known.items()
        ]
        for heading, listed in (*self.sections(), ("Settings (--set NAME=VALUE)", rows)):
            with formatter.section(heading):
                formatter.write_dl(listed)


def _default(field: FieldInfo) -> str:
    value = field.get_default(call_default_factory=True)
    none = value is None or value == ""
    value = list(value) if isinstance(value, tuple) else value  # as --set reads it
    return f"[{'none' if none else str(value).lower() if isinstance(value, bool) else value}]"


def _continued(line: str, width: int) -> str:
    """A command of an example in lines of this width, all but the last ending in a backslash, for the shell."""
    if len(line) <= width or not line.strip().startswith(_TRIES):
        return line
    indent = " " * (len(line) - len(line.lstrip()))
    lines = [indent]
    for word in _WORD.findall(line):
        if lines[-1].strip() and len(lines[-1]) + len(word) + 3 > width:
            lines.append(f"{indent}    ")
        lines[-1] += f"{word} " if lines[-1].strip() else word + " "
    return "\\\n".join(lines).rstrip()


class Verbs(click.Group, Verb):
    """A group of verbs. An unknown one is answered by those that are like it."""

    command_class = Verb
    kind = "verb"

    def __init__(self, *args: Any, **attributes: Any) -> None:
        attributes.setdefault("subcommand_metavar", f"{self.kind.upper()} …")
        super().__init__(*args, **attributes)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section(f"{self.kind.capitalize()}s"):
            formatter.write_dl([(verb, self.summary(ctx, verb)) for verb in self.list_commands(ctx)])

    def summary(self, ctx: click.Context, verb: str) -> str:
        """What a verb does, in a line."""
        command = self.get_command(ctx, verb)
        return ((command.help if command else "") or "").partition("\n")[0]

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if ctx.resilient_parsing or name.startswith("-") or name in self.list_commands(ctx):
            return super().resolve_command(ctx, args)
        meant = self.meant(ctx, name)
        known = ", ".join(self.list_commands(ctx))
        remedy = (
            did_you_mean([f"{ctx.command_path} {verb}" for verb in meant]) if meant else f"known: {known}"
        )
        raise Unknown(f"'{name[:60]}': there is no such {self.kind}", remedy, ctx)

    def meant(self, ctx: click.Context, name: str) -> Sequence[str]:
        """The verbs, of this group or below it, that a wrong name may stand for."""
        word = name[:60].lower().replace("_", "-")
        known = self.list_commands(ctx)
        return similar_names(word, known)
