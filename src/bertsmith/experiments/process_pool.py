"""Call a function in several processes, each with its share of the cores and its own log file.

    python -P -m bertsmith.experiments.process_pool

makes one call, which it reads from stdin as a pickle. Unlike `concurrent.futures`, the pool stops its processes by
SIGTERM, after which they save their checkpoints, and works in a script without a main guard.
"""

from __future__ import annotations

import logging
import pickle
import signal
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertsmith import hardware, log_handlers
from bertsmith.errors import BertsmithError, MachineError, Stopped, option
from bertsmith.training.signals import stop_signals

logger = logging.getLogger(__name__)

_POLL_SECONDS = 0.1


@dataclass(frozen=True)
class Call:
    """A call to make in a process of its own.

    Attributes:
        arguments: The arguments of the function, which can be pickled.
        title: A name of the call, for messages.
        log: The file for the output of the process.
    """

    arguments: tuple[Any, ...]
    title: str
    log: Path


@dataclass(frozen=True)
class _Process:
    """A process that makes a call, and the file to which it writes the pickled result."""

    call: Call
    process: subprocess.Popen[bytes]
    result_file: Path

    def result(self) -> Any:
        """Return the result of a process that has ended, or raise its error."""
        try:
            result = pickle.loads(self.result_file.read_bytes())
        except FileNotFoundError:
            code, log = self.process.returncode, self.call.log
            reason = "it was killed, perhaps for lack of memory" if code < 0 else f"its error is in {log}"
            raise MachineError(
                "process_failed",
                f"the process ended with exit code {code}: {reason}",
                location=self.call.title,
                hint=f"{option('resume', True)} continues with what is finished",
            ) from None
        if isinstance(result, BertsmithError):
            title, location = self.call.title, result.location
            result.location = title if location is None else f"{title}: {location}"
            raise result
        return result


def run_processes(
    function: Callable[..., Any], calls: Sequence[Call], num_processes: int
) -> Iterator[tuple[int, Any]]:
    """Make calls in several processes at a time; yield the index and the result of each when it ends.

    If a call fails or a signal arrives, all processes are asked to stop, and may save their state before.

    Args:
        function: A function at the top level of a module.
        calls: The calls.
        num_processes: The number of processes at a time.

    Raises:
        BertsmithError: A call raised it.
        Stopped: A signal arrived.
    """
    waiting = deque(enumerate(calls))
    running: dict[int, _Process] = {}
    with tempfile.TemporaryDirectory() as folder, stop_signals() as signals:
        try:
            while waiting or running:
                while waiting and len(running) < num_processes and not signals:
                    index, call = waiting.popleft()
                    logger.info("model %d of %d: %s (%s)", index + 1, len(calls), call.title, call.log)
                    result_file = Path(folder) / str(index)
                    process = _start(function, call, result_file, num_processes)
                    running[index] = _Process(call, process, result_file)
                if signals:
                    num_finished = len(calls) - len(waiting) - len(running)
                    _terminate(running.values())
                    raise Stopped(
                        signals[0],
                        f"stopped; {num_finished} of {len(calls)} models are finished",
                        f"{option('resume', True)} continues",
                    )
                for index in [i for i, process in running.items() if process.process.poll() is not None]:
                    yield index, running.pop(index).result()
                time.sleep(_POLL_SECONDS)
        finally:
            _terminate(running.values())


def _start(
    function: Callable[..., Any], call: Call, result_file: Path, num_processes: int
) -> subprocess.Popen[bytes]:
    threads = max(1, (hardware.omp_num_threads() or hardware.available_cores()) // num_processes)
    call.log.parent.mkdir(parents=True, exist_ok=True)
    with call.log.open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "bertsmith.experiments.process_pool"],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            env=hardware.subprocess_environment(
                OMP_NUM_THREADS=str(threads), **hardware.thread_wait_policy()
            ),
        )
    assert process.stdin is not None
    with suppress(BrokenPipeError):  # it has ended already: `result` reports the missing result
        process.stdin.write(pickle.dumps((function, call.arguments, result_file)))
        process.stdin.close()
    return process


def _terminate(processes: Collection[_Process]) -> None:
    """Ask processes to save and stop, and wait until they have."""
    for process in processes:
        if process.process.poll() is None:
            process.process.send_signal(signal.SIGTERM)
    for process in processes:
        process.process.wait()


def main() -> None:
    """Make the call that stdin describes, and write its result or error to the file that it names."""
    function, arguments, result_file = pickle.load(sys.stdin.buffer)
    log_handlers.install(log_handlers.ConsoleHandler())
    hardware.configure_process()
    try:
        result = function(*arguments)
    except BertsmithError as error:
        result = error
    result_file.write_bytes(pickle.dumps(result))


if __name__ == "__main__":
    main()
