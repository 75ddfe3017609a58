"""Signals that stop a run after the current update."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def stop_signals() -> Iterator[list[int]]:
    """Collect SIGTERM, SIGINT, and SIGHUP in a list. A second SIGINT raises KeyboardInterrupt.

    Signals that the process was started to ignore, such as SIGHUP with nohup, stay ignored.
    """
    received: list[int] = []

    def receive(number: int, frame: object) -> None:
        if received and number == signal.SIGINT:
            raise KeyboardInterrupt
        received.append(number)

    previous_handlers = {}
    try:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:
                previous_handlers[number] = signal.signal(number, receive)
    except ValueError:  # outside the main thread, signals belong to other code
        pass
    try:
        yield received
    finally:
        for number, handler in previous_handlers.items():
            signal.signal(number, handler)
