"""What goes wrong outside our code: a user's mistake, or the machine's failure, in one sentence each.

Sentences name options as the command line does (`--text-column`), which prints them as they are; as a string,
which Python prints, an error names Python's arguments (`text_column=…`): see `in_python`.
"""

from __future__ import annotations

import re
from typing import Any

VERBS = {
    "tokenizer train": "train_tokenizer",
    "tokenizer inspect": "inspect_tokenizers",
    "tokenizer extend": "extend_tokenizer",
    "data prepare": "prepare",
    "data check": "check_corpus",
    "data show": "show_instance",
    "pretrain": "pretrain",
    "finetune": "finetune",
    "lr-find": "find_rate",
    "evaluate": "Model.evaluate",
    "compare": "compare",
    "predict": "Model.predict",
    "fill-mask": "Model.fill_mask",
    "score": "Model.score",
    "embed": "Model.embed",
    "search": "search",
}
"""The command line's verbs, and what Python calls them."""
ARGUMENTS = {"text": "files", "steps": "max_steps", "group-column": "group_columns"}
"""The options that Python calls otherwise."""
_FLAGS = ("resume", "overwrite", "chinese", "cased", "probe")  # given or not: True
_CHOICES = ("blank-line", "line", "file", "skip", "stop", "exact", "near")
_VALUE = rf"\$?'[^']*'|[\d.,]*\d%?|nan|[A-Z]{{2,}}\b|[\w./-]+\.[a-z]{{2,5}}\b|(?:{'|'.join(_CHOICES)})\b"
_COMMAND = re.compile(rf"bertsmith ({'|'.join(VERBS)})\b((?: [A-Z]{{2,}}\b| --[a-z-]+ [^\s,;()]+)*)")
_GIVEN = re.compile(r"--([a-z-]+) ([^\s,;()]+)|([A-Z]{2,})")  # an option and its value, or an argument
_OPTION = re.compile(rf"(?<![\w-])--(no-)?([a-z]+(?:-[a-z]+)*)(?: ({_VALUE}))?")
_ROW = re.compile(r" \(in memory\):(\d+)")


def in_python(text: str) -> str:
    """A sentence for the command line in Python's terms: `--out` is `out=…`, `--resume` is `resume=True`,
    `bertsmith data check` is `bertsmith.check_corpus`, an assignment of --set is itself; the place of a row of
    data in memory is `train row 17`."""
    text = _ROW.sub(r" row \1", text)
    text = _COMMAND.sub(_call, text)
    text = re.sub(r"(^|[\s(])--set(?=: |$)", r"\1settings", text)
    text = re.sub(r"(^|[\s(])--(?:task-)?set (?=[^\s,;)]*[.='])", r"\1", text)
    return _OPTION.sub(_argument, text)


def _call(found: re.Match[str]) -> str:
    verb, given = f"bertsmith.{VERBS[found[1]]}", []
    if found[1] == "score" and "--pairs" in found[2]:
        verb += "_pairs"
    for option, value, positional in _GIVEN.findall(found[2]):
        given.append(positional or f"{_name(option)}={value}")
    return f"{verb}({', '.join(given)})" if given else verb


def _argument(found: re.Match[str]) -> str:
    no, option, value = found.groups()
    name = _name(option)
    if option == "help":
        return found[0].replace("--help", "the command line's --help")
    if option in _FLAGS:
        return f"{name}={not no}" + (f" {value}" if value else "")
    if value is None:
        return f"{name}=False" if no else f"{name}=…"
    value = value.removeprefix("$")
    if value in _CHOICES:
        value = repr(value.replace("-", "_"))
    return f"{name}={value}"


def _name(option: str) -> str:
    return ARGUMENTS.get(option, option.replace("-", "_"))


class BertsmithError(Exception):
    """An error that is told in one sentence and never with a traceback.

    sentence and remedy: in the words of the command line. python: the remedy in Python, where it is another one
    and not only `in_python`'s. `exit_code` is what the command line exits with.
    """

    exit_code = 1

    def __init__(self, sentence: str, remedy: str | None = None, *, python: str | None = None) -> None:
        super().__init__(sentence if remedy is None else f"{sentence}\n{remedy}")
        self.sentence = sentence
        self.remedy = remedy
        self.python = python

    def __str__(self) -> str:
        remedy = self.python or (self.remedy and in_python(self.remedy))
        sentence = in_python(self.sentence)
        return f"{sentence}\n{remedy}" if remedy else sentence

    def _render_traceback_(self) -> list[str]:
        """What a notebook shows in place of a traceback."""
        return [f"{type(self).__name__}: {self}"]

    def __reduce__(self) -> tuple[Any, ...]:  # another process must get the same error
        return type(self), (self.sentence, self.remedy), {"python": self.python}


class InputError(BertsmithError):
    """A user's mistake: what is wrong and where (`reviews.csv:17: …`), and what to do about it. Exit code 2."""

    exit_code = 2


class MachineError(BertsmithError):
    """The machine's own failure (disk full, out of memory, a number that is no longer finite). Exit code 1."""


class Diverged(MachineError):
    """A training whose loss or gradient is no longer finite, which another rate or seed may not be."""


class Left(BertsmithError):
    """The process that leads a run of several has ended it, and has said why. Its exit code."""

    def __init__(self, exit_code: int) -> None:
        super().__init__("the process that leads this run has ended it")
        self.exit_code = exit_code

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.exit_code,)


class Stopped(BertsmithError):
    """The run was asked to stop by a signal and saved before it did. Exit code 128 + signal, as shells have it."""

    def __init__(self, signal_number: int, sentence: str, remedy: str | None = None) -> None:
        super().__init__(sentence, remedy)
        self.exit_code = 128 + signal_number

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.exit_code - 128, self.sentence, self.remedy), {"python": self.python}
