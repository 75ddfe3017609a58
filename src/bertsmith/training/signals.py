"""SIGTERM, SIGINT and SIGHUP (a terminal closed) ask a run to save and stop; they do not tear it."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def stop_signals() -> Iterator[list[int]]:
    """Collect these signals instead of dying of them; a second SIGINT is let through.

    Who started the process with one of them ignored (nohup, a shell's background job) wants it ignored.
    """
    received: list[int] = []

    def receive(number: int, frame: FrameType | None) -> None:
        if received and number == signal.SIGINT:
            raise KeyboardInterrupt
        received.append(number)

    before = {}
    try:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:
                before[number] = signal.signal(number, receive)
    except ValueError:  # not in the main thread: signals are somebody else's business there
        pass
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
