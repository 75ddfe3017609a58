"""Report of errors on the command line: a message, a hint, an exit code, and one JSON document with --json."""

from __future__ import annotations

import shutil
import signal
import sys
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Literal

import click

from bertsmith import console, hardware
from bertsmith.cli.verbs import Unknown, Verb
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
        return cls(
            kind,
            error.code,
            error.sentence_for("command line"),
            error.hint_for("command line"),
            error.exit_code,
            error.location,
            error.argument,
            error.is_reported,
        )

    def print(self, *, as_json: bool) -> None:
        """Print message and hint on stderr and, if asked, {"error": {…}} on stdout."""
        if self.is_reported:
            return
        message = escape_control_characters(self.message, one_line=True)
        hint = escape_control_characters(self.hint, one_line=True) if self.hint else None
        label = "" if self.kind == "stopped" else "error: "
        with suppress(OSError):  # the terminal was closed
            click.echo(_wrapped(label + message, len(label)), err=True)
            if hint:
                click.echo(_wrapped(" " * len(label) + hint, len(label)), err=True)
        if as_json:
            values = {name: value for name, value in asdict(self).items() if name != "is_reported"}
            with suppress(OSError, ValueError):  # stdout is full or closed
                console.print_json({"error": values | {"message": message, "hint": hint}})


def _wrapped(line: str, indent: int) -> str:
    """A line as a terminal has room for it, the next ones set under its text; elsewhere as it is."""
    if not sys.stderr.isatty():
        return line
    from rich.console import Console
    from rich.text import Text

    width = shutil.get_terminal_size().columns
    lines = Text(line[indent:]).wrap(Console(width=width), max(20, width - indent))
    return "\n".join(
        (line[:indent] if number == 0 else " " * indent) + part.plain.rstrip()
        for number, part in enumerate(lines)
    )


def failure_of(error: BaseException) -> Failure | None:
    """Return the report of an error, None for a bug, whose traceback Python prints."""
    match error:
        case Stopped():
            return Failure.from_error("stopped", error)
        case BertsmithError():
            return Failure.from_error("input" if isinstance(error, InputError) else "machine", error)
        case click.ClickException():
            return Failure("usage", "usage", *_of_usage(error), error.exit_code)
        case click.Abort() | KeyboardInterrupt():
            return stopped(signal.SIGINT)
        case UnicodeEncodeError() if any("\ud800" <= character <= "\udfff" for character in error.object):
            message = f"{error.object[:200]}: this name is not UTF-8"
            return Failure("input", "name_not_utf8", message, "rename the file", InputError.exit_code)
        case OSError():
            return _of_system(error)
        case MemoryError() | RuntimeError() if hardware.is_out_of_memory(error):
            hint = "lower train.batch_size, or choose a smaller preset"
            return Failure(
                "machine", "out_of_memory", "there is not enough memory", hint, MachineError.exit_code
            )
    return None


def stopped(signal_number: int) -> Failure:
    """Return the report of a signal that ended a command with nothing to save."""
    return Failure("stopped", "stopped", "stopped", None, 128 + signal_number)


def _of_system(error: OSError) -> Failure:
    location = str(error.filename) if error.filename else None
    prefix = f"{location}: " if location else ""
    if hardware.is_disk_full(error):
        hint = "free some space and start again"
        return Failure("machine", "disk_full", f"{prefix}the disk is full", hint, 1, location)
    message = f"{prefix}{(error.strerror or str(error)).lower()}"
    if isinstance(error, PermissionError | NotADirectoryError | IsADirectoryError):
        return Failure("input", "os_error", message, None, InputError.exit_code, location)
    return Failure("machine", "os_error", message, None, MachineError.exit_code, location)


def _of_usage(error: click.ClickException) -> tuple[str, str | None]:
    """Return the message and the hint for an error of click."""
    context = error.ctx if isinstance(error, click.UsageError) else None
    path = context.command_path if context else "bertsmith"
    see = f"`{path} --help` lists what it takes"
    match error:
        case Unknown():
            return error.message, error.remedy
        case click.NoSuchOption():
            return f"`{path}` has no option {error.option_name[:60]}", _option_meant(error) or see
        case click.MissingParameter() if isinstance(error.param, click.Option):
            name = f"{error.param.opts[0]} {error.param.metavar or ''}".strip()
            return f"{error.param.opts[0]} is missing", f"{name}: {error.param.help}"
        case click.MissingParameter() if error.param is not None:
            return f"{error.param.human_readable_name.upper()} is missing", see
        case click.BadParameter() if error.param is not None:
            return f"{_name(error.param)}: {error.message.removesuffix('.')}", None
    return error.message.removesuffix("."), see


def _option_meant(error: click.NoSuchOption) -> str | None:
    """The option, or the setting, that a wrong option stands for."""
    command = error.ctx.command if error.ctx else None
    if error.ctx is None or command is None:
        return None
    name = error.option_name.lstrip("-")
    settings = command.settings() if isinstance(command, Verb) else None
    options = [flag[2:] for param in command.get_params(error.ctx) for flag in param.opts if flag[:2] == "--"]
    found = similar_names(name, (option.replace("-", "_") for option in options))
    if found:
        return did_you_mean([f"--{option.replace('_', '-')}" for option in found])
    if settings and (meant := similar_names(name, (setting for setting, _ in settings.names()))):
        return did_you_mean([f"--set {setting}=…" for setting in meant])
    return None


def _name(param: click.Parameter) -> str:
    return param.opts[0] if isinstance(param, click.Option) else param.human_readable_name.upper()
