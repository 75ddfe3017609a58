"""Errors with a code, a message, a location, and a hint.

Messages and hints are written once for both interfaces, the command line and Python. `option` and `command` return
references to arguments and commands, which `render` replaces: on the command line by `--text-column` and
`bertsmith data check`, in Python by `text_column=…` and `bertsmith.check_corpus`. Users' text in a message is
never changed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection
from functools import partial
from typing import Any, Literal

from bertsmith.formatting import format_message

Interface = Literal["command line", "python"]

PYTHON_FUNCTIONS = {
    "tokenizer train": "train_tokenizer",
    "tokenizer inspect": "inspect_tokenizers",
    "tokenizer extend": "extend_tokenizer",
    "data prepare": "prepare",
    "data check": "check_corpus",
    "data show": "show_instance",
    "lr-find": "find_rate",
    "runs": "list_runs",
    "evaluate": "Model.evaluate",
    "predict": "Model.predict",
    "fill-mask": "Model.fill_mask",
    "generate": "Model.generate",
    "score": "Model.score",
    "score --pairs": "Model.score_pairs",
    "embed": "Model.embed",
    "export": "export_model",
    "neighbors": "Model.neighbors",
    "probe": "Model.probe",
}
"""The Python function of each command that has another name in Python."""
COMMAND_LINE_OPTIONS = {
    "files": "text",
    "group_columns": "group-column",
    "heads": "head",
    "layers": "layer",
    "settings": "set",
}
"""The command line's option for each Python argument that has another name there."""
_MAX_LOCATION = 500  # characters in a message
# A reference is JSON between two control characters, which do not occur in messages otherwise.
_REFERENCE = re.compile("\x02([^\x02\x03]*)\x03")


def option(name: str, value: object = ...) -> str:
    """Return a reference to an argument or setting for use in a message or hint.

    Args:
        name: Python's name of the argument (`text_column`), or the dotted name of a setting (`train.batch_size`).
        value: The value to show; True and False for a flag that is set or unset. Without it, no value is shown.
    """
    return _reference(
        "option", name, None if value is ... else value if isinstance(value, bool) else str(value)
    )


def command(verb: str, *arguments: object, **options: object) -> str:
    """Return a reference to a command with its arguments and options for use in a message or hint.

    Args:
        verb: The command line's name of the command, such as `data check`.
        arguments: Positional arguments, shown as they are.
        options: Options by Python's names, with values as in `option`.
    """
    values = {name: value if isinstance(value, bool) else str(value) for name, value in options.items()}
    return _reference("command", verb, [str(argument) for argument in arguments], values)


def name_as_settings(text: str, names: Collection[str], group: str) -> str:
    """Return a text whose references to options of these names refer to settings of a group instead."""

    def replace(match: re.Match[str]) -> str:
        kind, name, value, *_ = json.loads(match[1])
        if kind != "option" or name not in names:
            return match[0]
        return f"{group}.{name}={'…' if value is None else value}"

    return _REFERENCE.sub(replace, text)


def render(text: str, interface: Interface) -> str:
    """Return a message or hint with its references replaced by the names of an interface."""

    def replace(match: re.Match[str]) -> str:
        try:
            parts = json.loads(match[1])
        except ValueError:  # the user's own text
            return match[0]
        if parts[0] == "option":
            return _render_option(parts[1], parts[2], interface)
        return _render_command(parts[1], parts[2], parts[3], interface)

    return _REFERENCE.sub(replace, text)


def _reference(*parts: Any) -> str:
    return f"\x02{json.dumps(parts)}\x03"


def _render_option(name: str, value: str | bool | None, interface: Interface) -> str:
    if interface == "python":
        return f"{name}={'…' if value is None else value}"
    if "." in name:
        return f"--set {name}={'…' if value is None else value}"
    flag = COMMAND_LINE_OPTIONS.get(name, name.replace("_", "-"))
    if isinstance(value, bool):
        return f"--{flag}" if value else f"--no-{flag}"
    return f"--{flag}" if value is None else f"--{flag} {value}"


def _render_command(verb: str, arguments: list[str], options: dict[str, Any], interface: Interface) -> str:
    rendered = [_render_option(name, value, interface) for name, value in options.items()]
    if interface == "command line":
        return " ".join(["bertsmith", verb, *arguments, *rendered])
    function = f"bertsmith.{PYTHON_FUNCTIONS.get(verb, verb)}"
    return (
        f"{function}({', '.join([*map(repr, arguments), *rendered])})" if arguments or options else function
    )


class BertsmithError(Exception):
    """An error that is reported in one sentence, without a traceback.

    Attributes:
        code: A stable name of the error, such as `column_missing`.
        message: A description of the error in one sentence, without the location, in Python's terms.
        location: The place of the error, such as `file:line` or the row of a data frame; None: there is none.
        argument: Python's name of the argument that caused the error; None: there is none.
        hint: A suggestion to fix the error, in Python's terms; None: there is none.
        exit_code: The command line's exit code.
        is_reported: True if another rank of a run under torchrun reports this error.
        metavar: The command line's name of the argument if it is positional, such as WORD.
    """

    exit_code = 1
    is_reported = False
    metavar: str | None = None

    def __init__(
        self,
        code: str,
        message: str,
        *,
        location: object = None,
        argument: str | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(code, render(message, "python"))
        self.code, self.argument = code, argument
        self._message, self._hint = message, hint  # with references
        self.location = None if location is None else str(location)

    @property
    def message(self) -> str:
        return render(self._message, "python")

    @message.setter
    def message(self, text: str) -> None:
        self._message = text

    @property
    def hint(self) -> str | None:
        return None if self._hint is None else render(self._hint, "python")

    def change_hint(self, change: Callable[[str], str]) -> None:
        """Replace the hint by a function's result for the hint with its references; do nothing without a hint."""
        if self._hint is not None:
            self._hint = change(self._hint)

    def sentence_for(self, interface: Interface) -> str:
        """Return the message with a prefix: the location, or else the argument if the message does not name it."""
        message = format_message(render(self._message, interface))
        if self.location is not None:
            return f"{format_message(self.location, _MAX_LOCATION)}: {message}"
        if self.argument is None:
            return message
        argument = _render_option(self.argument, None, interface).removesuffix("=…")
        if interface == "command line":
            argument = self.metavar or argument
        names = "|".join(map(re.escape, (self.argument, argument)))
        names_argument = re.search(rf"(?<![\w-])({names})(?![\w-])", message)
        return message if names_argument else f"{argument}: {message}"

    def hint_for(self, interface: Interface) -> str | None:
        """Return the hint in the terms of an interface; None if there is none."""
        return format_message(render(self._hint, interface)) if self._hint else None

    def __str__(self) -> str:
        return "\n".join(filter(None, [self.sentence_for("python"), self.hint_for("python")]))

    def _render_traceback_(self) -> list[str]:
        """Return the lines that IPython shows in place of a traceback."""
        return [f"{type(self).__name__}: {self}"]

    def to_dict(self) -> dict[str, Any]:
        """Return the error as JSON values, from which `error_from_dict` rebuilds it in another process."""
        names = ("code", "_message", "location", "argument", "_hint", "exit_code")
        values = {name.removeprefix("_"): getattr(self, name) for name in names}
        return {"type": type(self).__name__, **values}

    def __reduce__(self) -> tuple[Any, ...]:
        return error_from_dict, (self.to_dict(),)


class InputError(BertsmithError):
    """Invalid input of a user: a file, an argument, a setting. Exit code 2."""

    exit_code = 2


corrupt_file_error = partial(InputError, hint="download or copy the file again")
"""Create the error of an incomplete or damaged file."""


class MachineError(BertsmithError):
    """A failure of the machine: disk full, out of memory, a loss that is not finite. Exit code 1."""


class Diverged(MachineError):
    """A training run whose loss or gradient is not finite, which another learning rate or seed may avoid."""


class Stopped(BertsmithError):
    """A run that a signal stopped after it was saved. Exit code 128 + signal, as in shells."""

    def __init__(self, signal_number: int, message: str, hint: str | None = None) -> None:
        super().__init__("stopped", message, hint=hint)
        self.exit_code = 128 + signal_number


def error_from_dict(values: dict[str, Any]) -> BertsmithError:
    """Rebuild an error from the values of `BertsmithError.to_dict`."""
    error_class = {cls.__name__: cls for cls in (InputError, MachineError, Diverged, Stopped)}.get(
        values["type"], BertsmithError
    )
    error = error_class.__new__(error_class)
    BertsmithError.__init__(
        error,
        values["code"],
        values["message"],
        location=values["location"],
        argument=values["argument"],
        hint=values["hint"],
    )
    error.exit_code = values["exit_code"]
    return error
