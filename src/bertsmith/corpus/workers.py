"""Portions encoded in parallel and handed back in their order: by processes of this machine, or on a Ray cluster.

Whatever runs them, each portion goes through one `PortionEncoder`, a pure function of the portion: the results are
the same bytes for any engine and any number of workers.
"""

from __future__ import annotations

import logging
import socket
import subprocess
import sys
import tempfile
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from itertools import chain, islice
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pyarrow as pa

from bertsmith import hardware
from bertsmith.corpus import worker_process
from bertsmith.corpus.encode import PortionEncoder
from bertsmith.corpus.shards import Rows
from bertsmith.errors import InputError, MachineError
from bertsmith.io.files import Document
from bertsmith.tokenizer.tokenizer import Tokenizer

Portion = Sequence[Document]
Encoded = tuple[Rows, Counter[str]]

_FEW = 4  # portions that are done before a process has started


def locally(
    portions: Iterable[Portion], tokenizer: Tokenizer, language: str, workers: int
) -> Iterator[Encoded]:
    """Encode with `workers` processes while this one reads; at most `workers` + 1 portions are held. One worker,
    or a few portions, need no other process. MachineError where one dies."""
    portions = iter(portions)
    first = list(islice(portions, _FEW)) if workers > 1 else []
    portions = chain(first, portions)
    if len(first) < _FEW:
        yield from map(PortionEncoder(tokenizer, language).encode, portions)
        return
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        tokenizer.save(folder)
        spare: SimpleQueue[_Process] = SimpleQueue()
        for _ in range(workers):
            process = _Process(folder, language)
            stack.callback(process.close)
            spare.put(process)

        def encode(portion: Portion) -> Encoded:
            process = spare.get()
            try:
                return process.encode(portion)
            finally:
                spare.put(process)

        # A thread a process only waits for its pipe.
        pool = stack.enter_context(ThreadPoolExecutor(workers))
        stack.callback(pool.shutdown, cancel_futures=True)
        running: deque[Future[Encoded]] = deque()
        for portion in portions:
            running.append(pool.submit(encode, portion))
            if len(running) > workers:
                yield running.popleft().result()
        while running:
            yield running.popleft().result()


class _Process:
    """A `worker` and its two pipes."""

    def __init__(self, tokenizer: Path, language: str) -> None:
        # One thread each is enough, and memory that goes back when it is free.
        frugal = {
            "TOKENIZERS_PARALLELISM": "false",
            "ARROW_DEFAULT_MEMORY_POOL": "system",
            "MALLOC_ARENA_MAX": "1",
        }
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", worker_process.__name__, str(tokenizer), language],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=hardware.of_child(**frugal),
        )
        self._to: Any = None
        self._from: Any = None

    def encode(self, portion: Portion) -> Encoded:
        """Send a portion, wait for its rows."""
        try:
            if self._to is None:
                self._to = pa.ipc.new_stream(self._process.stdin, worker_process.SCHEMA)
            self._to.write_batch(worker_process.batch_of_documents(portion))
            self._process.stdin.flush()  # type: ignore[union-attr]
            if self._from is None:
                self._from = pa.ipc.open_stream(self._process.stdout, memory_pool=pa.system_memory_pool())
            return worker_process.result_of(*self._from.read_next_batch_with_custom_metadata())
        except (OSError, StopIteration, pa.ArrowException):
            code = self._process.wait()
            reason = "killed, perhaps for its memory" if code < 0 else "its error is above"
            raise MachineError(
                f"a worker process of the preparation ended with {code} ({reason})",
                "start again, with --workers 1 or a smaller --max-ram; it continues where it was",
            ) from None

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            with suppress(OSError):
                if pipe:
                    pipe.close()


def by_ray(
    portions: Iterable[Portion],
    tokenizer: Tokenizer,
    language: str,
    workers: int | None,
    address: str | None,
) -> Iterator[Encoded]:
    """Encode with `workers` actors (None: one a CPU of the cluster) of the Ray cluster at `address` (None: the one
    this process is connected to, else a local one, started and stopped here). An actor that is lost is started
    again and its portions with it. InputError where Ray is not installed, MachineError where none answers.
    """
    ray: Any
    try:
        import ray
    except ImportError:
        raise InputError("the engine ray needs Ray", "pip install 'bertsmith[ray]'") from None

    ours = not ray.is_initialized()
    if ours:
        try:
            _answers(address)
            # Ray lets actors import from the current folder, where a downloaded corpus may bring a json.py, unless
            # they have another one to work in.
            with tempfile.TemporaryDirectory() as empty:
                ray.init(
                    address=address,
                    include_dashboard=None if address else False,
                    log_to_driver=False,
                    logging_level=logging.WARNING,
                    runtime_env={"working_dir": empty},
                )
        except (OSError, RuntimeError, ValueError) as error:
            raise MachineError(f"there is no Ray cluster at {address}: {error}", "ray status tells") from None
    try:
        workers = workers or max(1, int(ray.cluster_resources().get("CPU", 1)))
        remote: Any = ray.remote(num_cpus=1, max_restarts=-1, max_task_retries=-1)(PortionEncoder)
        shared = ray.put(tokenizer)
        actors: list[Any] = [remote.remote(shared, language) for _ in range(workers)]
        running: deque[Any] = deque()
        for number, portion in enumerate(portions):
            running.append(actors[number % workers].encode.remote(portion))
            if len(running) > 2 * workers:
                yield ray.get(running.popleft())
        while running:
            yield ray.get(running.popleft())
    finally:
        if ours:
            ray.shutdown()


def _answers(address: str | None) -> None:
    """OSError where nothing listens at HOST:PORT; Ray itself would try for a quarter of an hour."""
    host, colon, port = (address or "").removeprefix("ray://").rpartition(":")
    if colon and port.isdigit():
        socket.create_connection((host, int(port)), timeout=10).close()
