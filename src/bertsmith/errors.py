"""What goes wrong outside our code: a user's mistake, or the machine's failure, in one sentence each."""

from __future__ import annotations

from typing import Any


class BertsmithError(Exception):
    """An error that is told in one sentence and never with a traceback.

    `exit_code` is what the command line exits with.
    """

    exit_code = 1

    def __init__(self, sentence: str, remedy: str | None = None) -> None:
        super().__init__(sentence if remedy is None else f"{sentence}\n{remedy}")
        self.sentence = sentence
        self.remedy = remedy

    def __reduce__(self) -> tuple[Any, ...]:  # another process must get the same error
        return type(self), (self.sentence, self.remedy)


class InputError(BertsmithError):
    """A user's mistake: what is wrong and where (`reviews.csv:17: …`), and what to do about it. Exit code 2."""

    exit_code = 2


class MachineError(BertsmithError):
    """The machine's own failure (disk full, out of memory, a number that is no longer finite). Exit code 1."""


class Stopped(BertsmithError):
    """The run was asked to stop by a signal and saved before it did. Exit code 128 + signal, as shells have it."""

    def __init__(self, signal_number: int, sentence: str, remedy: str | None = None) -> None:
        super().__init__(sentence, remedy)
        self.exit_code = 128 + signal_number

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.exit_code - 128, self.sentence, self.remedy)
