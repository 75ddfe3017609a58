"""How the command line ends when it cannot do what was asked: a sentence, a remedy, an exit code; with --json also
one JSON document. A user's mistake exits with 2, the machine's failure with 1, neither with a traceback."""

from __future__ import annotations

import shutil
import signal
import sys
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

import click

from bertsmith import console, hardware
from bertsmith.cli.verbs import Unknown, Verb
from bertsmith.console import visible
from bertsmith.errors import BertsmithError, InputError, MachineError, Stopped
from bertsmith.suggestions import did_you_mean, nearest


@dataclass(frozen=True)
class Failure:
    """What is told of an error. kind: whose it is: the command line's (usage), the input's, the machine's, or a
    signal's."""

    kind: Literal["usage", "input", "machine", "stopped"]
    sentence: str
    remedy: str | None
    exit_code: int
    is_reported: bool = False

    def tell(self, *, as_json: bool) -> None:
        """Sentence and remedy on stderr; as_json: also {"error": {…}} on stdout, the one document there. Nothing
        where another rank reports it."""
        if self.is_reported:
            return
        sentence = visible(self.sentence, one_line=True)
        remedy = visible(self.remedy, one_line=True) if self.remedy else None
        label = "" if self.kind == "stopped" else "error: "
        with suppress(OSError):  # the terminal was closed
            click.echo(_wrapped(label + sentence, len(label)), err=True)
            if remedy:
                click.echo(_wrapped(" " * len(label) + remedy, len(label)), err=True)
        if as_json:
            told = {"kind": self.kind, "sentence": sentence, "remedy": remedy, "exit_code": self.exit_code}
            with suppress(OSError, ValueError):  # stdout is full or closed
                console.result_json({"error": told})


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
    """What an error says to a user; None for a fault of our own, which keeps its traceback."""
    match error:
        case Stopped():
            return Failure("stopped", error.sentence, error.remedy, error.exit_code, error.is_reported)
        case BertsmithError():
            kind: Literal["input", "machine"] = "input" if isinstance(error, InputError) else "machine"
            return Failure(kind, error.sentence, error.remedy, error.exit_code, error.is_reported)
        case click.ClickException():
            return Failure("usage", *_of_usage(error), error.exit_code)
        case click.Abort() | KeyboardInterrupt():
            return stopped(signal.SIGINT)
        case UnicodeEncodeError() if any("\ud800" <= character <= "\udfff" for character in error.object):
            return Failure("input", f"{error.object[:200]}: this name is not UTF-8", "rename the file", 2)
        case OSError():
            return _of_system(error)
        case MemoryError() | RuntimeError() if hardware.is_out_of_memory(error):
            remedy = "lower train.batch_size, or choose a smaller preset"
            return Failure("machine", "there is not enough memory", remedy, MachineError.exit_code)
    return None


def stopped(signal_number: int) -> Failure:
    """What is told where a signal ended a verb that had nothing to save."""
    return Failure("stopped", "stopped", None, 128 + signal_number)


def _of_system(error: OSError) -> Failure:
    place = f"{error.filename}: " if error.filename else ""
    if hardware.is_disk_full(error):
        return Failure("machine", f"{place}the disk is full", "free some space and start again", 1)
    sentence = f"{place}{(error.strerror or str(error)).lower()}"
    if isinstance(error, PermissionError | NotADirectoryError | IsADirectoryError):
        return Failure("input", sentence, None, 2)
    return Failure("machine", sentence, None, 1)


def _of_usage(error: click.ClickException) -> tuple[str, str | None]:
    """Sentence and remedy of what click says of the command line."""
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
    found = nearest(name, (option.replace("-", "_") for option in options))
    if found:
        return did_you_mean([f"--{option.replace('_', '-')}" for option in found])
    if settings and (meant := nearest(name, (setting for setting, _ in settings.names()))):
        return did_you_mean([f"--set {setting}=…" for setting in meant])
    return None


def _name(param: click.Parameter) -> str:
    return param.opts[0] if isinstance(param, click.Option) else param.human_readable_name.upper()
