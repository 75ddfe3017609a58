"""Make calls in several processes, each with its share of the cores and its own log file.

Unlike `concurrent.futures`, the pool stops its processes by SIGTERM, so that they save checkpoints, and works in
scripts without a main guard.
"""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertsmith import hardware, log_handlers
from bertsmith.errors import BertsmithError, MachineError, Stopped, error_from_dict, option
from bertsmith.io import atomic
from bertsmith.training.signals import stop_signals

logger = logging.getLogger(__name__)

_POLL_SECONDS = 0.1


@dataclass(frozen=True)
class Call:
    """A call to make in a process of its own.

    Attributes:
        arguments: The arguments by name, as JSON values.
        title: A name of the call, for messages.
        log: The file for the output of the process.
    """

    arguments: dict[str, Any]
    title: str
    log: Path


def make_calls(function: Callable[..., Any], calls: Sequence[Call]) -> Iterator[tuple[int, Any]]:
    """Make calls in this process; yield the index and the result of each."""
    for index, call in enumerate(calls):
        logger.info("model %d of %d: %s", index + 1, len(calls), call.title)
        yield index, function(**call.arguments)


def run_processes(module: str, calls: Sequence[Call], num_processes: int) -> Iterator[tuple[int, Any]]:
    """Make calls in several processes at a time; yield the index and the result of each when it ends.

    If a call fails or a signal arrives, all processes are asked to stop, and may save their state before.

    Args:
        module: A module whose main program is `answer_call`.
        calls: The calls.
        num_processes: The number of processes at a time.

    Raises:
        BertsmithError: A call raised it.
        Stopped: A signal arrived.
    """
    waiting = deque(enumerate(calls))
    running: dict[int, subprocess.Popen[bytes]] = {}
    with tempfile.TemporaryDirectory() as folder, stop_signals() as signals:
        try:
            while waiting or running:
                while waiting and len(running) < num_processes and not signals:
                    index, call = waiting.popleft()
                    logger.info("model %d of %d: %s (%s)", index + 1, len(calls), call.title, call.log)
                    running[index] = _start(module, call, Path(folder) / str(index), num_processes)
                if signals:
                    num_finished = len(calls) - len(waiting) - len(running)
                    _terminate(running.values())
                    message = f"stopped; {num_finished} of {len(calls)} models are finished"
                    raise Stopped(signals[0], message, f"{option('resume', True)} continues")
                for index in [i for i, process in running.items() if process.poll() is not None]:
                    code = running.pop(index).returncode
                    yield index, _result(calls[index], Path(folder) / str(index), code)
                time.sleep(_POLL_SECONDS)
        finally:
            _terminate(running.values())


def _start(module: str, call: Call, result_file: Path, num_processes: int) -> subprocess.Popen[bytes]:
    arguments_file = result_file.with_suffix(".json")
    arguments_file.write_text(json.dumps(call.arguments), encoding="utf-8")
    threads = max(1, (hardware.omp_num_threads() or hardware.available_cores()) // num_processes)
    variables = {"OMP_NUM_THREADS": str(threads), **hardware.thread_wait_policy()}
    environment = hardware.subprocess_environment(**variables)
    command = [sys.executable, "-P", "-m", module, str(arguments_file), str(result_file)]
    call.log.parent.mkdir(parents=True, exist_ok=True)
    with atomic.open_for_appending(call.log) as log:
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment)


def _result(call: Call, result_file: Path, code: int) -> Any:
    """Return the result of a call whose process has ended, or raise its error."""
    try:
        answer = json.loads(result_file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        reason = "it was killed, perhaps for lack of memory" if code < 0 else f"its error is in {call.log}"
        message = f"the process ended with exit code {code}: {reason}"
        hint = f"{option('resume', True)} continues with what is finished"
        raise MachineError("process_failed", message, location=call.title, hint=hint) from None
    if "error" in answer:
        error = error_from_dict(answer["error"])
        error.location = ": ".join(filter(None, (call.title, error.location)))
        raise error
    return answer["result"]


def _terminate(processes: Collection[subprocess.Popen[bytes]]) -> None:
    """Ask processes to save and stop, and wait until they have."""
    for process in processes:
        process.terminate()
    for process in processes:
        process.wait()


def answer_call(function: Callable[..., Any]) -> None:
    """Make a call with the arguments in the file `sys.argv[1]`, and write its result or error to `sys.argv[2]`."""
    arguments = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    log_handlers.install(log_handlers.ConsoleHandler())
    hardware.configure_process()
    try:
        answer = {"result": function(**arguments)}
    except BertsmithError as error:
        answer = {"error": error.to_dict()}
    Path(sys.argv[2]).write_text(json.dumps(answer), encoding="utf-8")
