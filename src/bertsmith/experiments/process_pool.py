"""Several pieces of work at a time, each in a process of its own with its share of the cores.

What a process says goes into a file of its own. Where one fails, or all are asked to stop, the others save and
stop.
"""

from __future__ import annotations

import json
import logging
import signal
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertsmith import hardware
from bertsmith.errors import MachineError, Stopped, error_from_dict, option
from bertsmith.training.signals import stop_signals

logger = logging.getLogger(__name__)

_LOOK_SECONDS = 0.1  # between two looks at the processes


@dataclass(frozen=True)
class _Running:
    """A process, where it answers, where it talks, and what people call it."""

    process: subprocess.Popen[bytes]
    answer: Path
    log: Path
    title: str


def side_by_side(
    module: str,
    works: Sequence[Mapping[str, Any]],
    titles: Sequence[str],
    logs: Sequence[Path],
    at_once: int,
) -> Iterator[tuple[int, Any]]:
    """Have `python -m module` do each piece of work, `at_once` of them at a time; each one's number and answer,
    when it is there.

    The module reads {"work", "answer"} as JSON on stdin and writes {"found"} to the file `answer`, or {"error"},
    the values of `BertsmithError.to_dict`, which is raised here. Stopped where a signal asks for it.
    """
    waiting = deque(range(len(works)))
    running: dict[int, _Running] = {}
    finished = 0
    with tempfile.TemporaryDirectory() as folder, stop_signals() as stopped:
        try:
            while waiting or running:
                while waiting and len(running) < at_once and not stopped:
                    number = waiting.popleft()
                    logger.info(
                        "model %d of %d: %s (%s)", number + 1, len(works), titles[number], logs[number]
                    )
                    answer = Path(folder) / str(number)
                    process = _begun(module, works[number], answer, logs[number], at_once)
                    running[number] = _Running(process, answer, logs[number], titles[number])
                if stopped:
                    _end(running)
                    raise Stopped(
                        stopped[0],
                        f"stopped; {finished} of {len(works)} models are finished",
                        f"{option('resume', True)} continues",
                    )
                for number in [number for number, one in running.items() if one.process.poll() is not None]:
                    answered = _answer(running.pop(number))
                    finished += 1
                    yield number, answered
                time.sleep(_LOOK_SECONDS)
        finally:
            _end(running)


def _begun(
    module: str, work: Mapping[str, Any], answer: Path, log: Path, at_once: int
) -> subprocess.Popen[bytes]:
    """A new process at this work."""
    threads = max(1, (hardware.omp_num_threads() or hardware.available_cores()) // at_once)
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as said:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", module],
            stdin=subprocess.PIPE,
            stdout=said,
            stderr=said,
            env=hardware.subprocess_environment(
                OMP_NUM_THREADS=str(threads), **hardware.thread_wait_policy()
            ),
        )
    assert process.stdin is not None
    with suppress(BrokenPipeError):  # it has ended already: `_answer` reports the missing answer
        process.stdin.write(json.dumps({"work": work, "answer": str(answer)}).encode())
        process.stdin.close()
    return process


def _answer(done: _Running) -> Any:
    """What a process found. The error that it answered with is raised; MachineError where it did not answer."""
    try:
        said = json.loads(done.answer.read_text(encoding="utf-8"))
    except FileNotFoundError:
        code = done.process.returncode
        why = (
            "it was killed, perhaps for its memory" if code < 0 else f"its error is at the end of {done.log}"
        )
        raise MachineError(
            "process_failed",
            f"the process ended with exit code {code}: {why}",
            location=done.title,
            hint=f"{option('resume', True)} continues with what is finished",
        ) from None
    if "error" in said:
        error = error_from_dict(said["error"])
        error.location = done.title if error.location is None else f"{done.title}: {error.location}"
        raise error
    return said["found"]


def _end(running: dict[int, _Running]) -> None:
    """Ask what is running to save and stop, and wait for it."""
    for one in running.values():
        if one.process.poll() is None:
            one.process.send_signal(signal.SIGTERM)
    for one in running.values():
        one.process.wait()
    running.clear()
