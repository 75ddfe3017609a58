"""Report of errors on the command line: a message, a hint, an exit code, and one JSON document with --json."""

from __future__ import annotations

import signal
import sys
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Literal

import rich_click as click

from bertsmith import console, hardware
from bertsmith.cli.commands import Command, UnknownCommandError
from bertsmith.console import escape_control_characters
from bertsmith.errors import BertsmithError, InputError, MachineError, Stopped
from bertsmith.suggestions import did_you_mean, similar_names


@dataclass(frozen=True)
class Failure:
    """An error as the command line reports it.

    Attributes:
        kind: Invalid use of the command line (usage), invalid input, a failure of the machine, or a signal.
        code: The error's code.
        message: The error in one sentence, with its location or argument.
        hint: A way to fix it.
        exit_code: The exit code of the command.
        location: `file:line`, or the row of a data frame.
        argument: Python's name of the argument at fault.
        is_reported: True if another rank reports the error.
    """

    kind: Literal["usage", "input", "machine", "stopped"]
    code: str
    message: str
    hint: str | None
    exit_code: int
    location: str | None = None
    argument: str | None = None
    is_reported: bool = False

    @classmethod
    def from_error(cls, kind: Literal["input", "machine", "stopped"], error: BertsmithError) -> Failure:
        """Return the report of an error of bertsmith in the terms of the command line."""
        message, hint = error.sentence_for("command line"), error.hint_for("command line")
        details = (error.location, error.argument, error.is_reported)
        return cls(kind, error.code, message, hint, error.exit_code, *details)

    def print(self, *, as_json: bool) -> None:
        """Print message and hint on stderr, and {"error": {…}} on stdout if the user asked for JSON."""
        if self.is_reported:
            return
        message = escape_control_characters(self.message, one_line=True)
        hint = escape_control_characters(self.hint, one_line=True) if self.hint else None
        with suppress(OSError):  # the terminal was closed
            _print_labeled("" if self.kind == "stopped" else "error: ", message, hint)
        if as_json:
            values = {name: value for name, value in asdict(self).items() if name != "is_reported"}
            with suppress(OSError, ValueError):  # stdout is full or closed
                console.print_json({"error": values | {"message": message, "hint": hint}})


def _print_labeled(label: str, message: str, hint: str | None) -> None:
    """Print message and hint on stderr, with a hanging indent on a terminal."""
    lines = [message, *([hint] if hint else [])]
    if not sys.stderr.isatty():
        for i, line in enumerate(lines):
            click.echo((" " * len(label) if i else label) + line, err=True)
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid()
    for i, line in enumerate(lines):
        grid.add_row("" if i else label, Text(line))
    Console(stderr=True, highlight=False).print(grid)


def failure_of(error: BaseException) -> Failure | None:
    """Return the report of an error, None for a bug, whose traceback Python prints."""
    match error:
        case Stopped():
            return Failure.from_error("stopped", error)
        case BertsmithError():
            return Failure.from_error("input" if isinstance(error, InputError) else "machine", error)
        case click.ClickException():
            return Failure("usage", "usage", *_describe_usage_error(error), error.exit_code)
        case click.Abort() | KeyboardInterrupt():
            return stopped(signal.SIGINT)
        case UnicodeEncodeError() if any("\ud800" <= character <= "\udfff" for character in error.object):
            message = f"{error.object[:200]}: this name is not UTF-8"
            return Failure("input", "name_not_utf8", message, "rename the file", InputError.exit_code)
        case OSError():
            return _failure_of_system(error)
        case MemoryError() | RuntimeError() if hardware.is_out_of_memory(error):
            hint = "lower train.batch_size, or choose a smaller preset"
            message = "there is not enough memory"
            return Failure("machine", "out_of_memory", message, hint, MachineError.exit_code)
    return None


def stopped(signal_number: int) -> Failure:
    """Return the report of a signal that ended a command with nothing to save."""
    return Failure("stopped", "stopped", "stopped", None, 128 + signal_number)


def _failure_of_system(error: OSError) -> Failure:
    location = str(error.filename) if error.filename else None
    prefix = f"{location}: " if location else ""
    if hardware.is_disk_full(error):
        hint = "free some space and start again"
        return Failure("machine", "disk_full", f"{prefix}the disk is full", hint, 1, location)
    message = f"{prefix}{(error.strerror or str(error)).lower()}"
    if isinstance(error, PermissionError | NotADirectoryError | IsADirectoryError):
        return Failure("input", "os_error", message, None, InputError.exit_code, location)
    return Failure("machine", "os_error", message, None, MachineError.exit_code, location)


def _describe_usage_error(error: click.ClickException) -> tuple[str, str | None]:
    """Return the message and the hint for an error of click."""
    context = error.ctx if isinstance(error, click.UsageError) else None
    path = context.command_path if context else "bertsmith"
    see_help = f"see `{path} --help`"
    match error:
        case UnknownCommandError():
            return error.message, error.hint
        case click.NoSuchOption():
            return f"`{path}` has no option {error.option_name[:60]}", _similar_option(error) or see_help
        case click.MissingParameter() if error.param is not None and context is not None:
            name = error.param.make_metavar(context).strip("[].")
            if not isinstance(error.param, click.Option):
                return f"{name} is missing", see_help
            flag = error.param.opts[0]
            return f"{flag} is missing", f"{flag} {name}: {error.param.help}"
        case click.BadParameter() if error.param is not None:
            name = (
                error.param.opts[0]
                if isinstance(error.param, click.Option)
                else error.param.human_readable_name.upper()
            )
            return f"{name}: {error.message.removesuffix('.')}", None
    return error.message.removesuffix("."), see_help


def _similar_option(error: click.NoSuchOption) -> str | None:
    """Return a hint with the options, or else the settings, whose names are similar."""
    if error.ctx is None:
        return None
    command, name = error.ctx.command, error.option_name.lstrip("-")
    flags = [flag[2:] for param in command.get_params(error.ctx) for flag in param.opts if flag[:2] == "--"]
    if similar := similar_names(name, (flag.replace("-", "_") for flag in flags)):
        return did_you_mean([f"--{flag.replace('_', '-')}" for flag in similar])
    settings = command.settings() if isinstance(command, Command) else None
    if settings and (similar := similar_names(name, (setting for setting, _ in settings.names()))):
        return did_you_mean([f"--set {setting}=…" for setting in similar])
    return None
