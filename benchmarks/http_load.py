"""Send requests to a server and measure its answers, in a process that shares no lock with it.

    python http_load.py < job.json > result.json

The job: `port`, `clients` (connections that each wait for an answer before they send again), `requests` (a file of
JSON lines with `path`, `body` or bytes `raw` in Latin-1, and, to be compared, `reply`), and `seconds` or `count`.
With `rate`, requests are sent at this rate, answered or not, on as many connections as
that needs.
"""

from __future__ import annotations

import asyncio
import json
import math
import sys
import time
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import cycle, islice
from pathlib import Path
from typing import Any

HOST = "127.0.0.1"
TIMEOUT = 60.0  # seconds


@dataclass
class Request:
    data: bytes
    reply: Any = None


@dataclass
class Result:
    """Counts of answers by status, and the seconds of those with status 200, and of the others.

    Status 0: a request was sent, and the connection ended without an answer; -1: there was no connection.
    """

    statuses: Counter[int] = field(default_factory=Counter)
    seconds: list[float] = field(default_factory=list)
    refused_seconds: list[float] = field(default_factory=list)
    max_difference: float = 0.0
    wrong: int = 0

    def add(self, status: int, seconds: float, body: bytes, request: Request) -> None:
        self.statuses[status] += 1
        (self.seconds if status == 200 else self.refused_seconds).append(seconds)
        if status == 200 and request.reply is not None:
            value = difference(json.loads(body), request.reply)
            self.wrong += math.isinf(value)
            self.max_difference = max(self.max_difference, 0.0 if math.isinf(value) else value)


def difference(a: Any, b: Any) -> float:
    """Return the largest difference of numbers from an expected value; infinity if something else differs."""
    if isinstance(a, float) and isinstance(b, float | int):
        return abs(a - b)
    if isinstance(a, dict) and isinstance(b, dict) and a.keys() >= b.keys():
        return max((difference(a[key], b[key]) for key in b), default=0.0)
    if isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        return max(map(difference, a, b), default=0.0)
    return 0.0 if a == b else math.inf


def read_requests(file: str) -> list[Request]:
    """Return the requests of a file as the bytes that are sent."""
    requests = []
    for line in Path(file).read_text(encoding="utf-8").splitlines():
        values = json.loads(line)
        body = values["raw"].encode("latin-1") if "raw" in values else json.dumps(values["body"]).encode()
        head = f"POST {values['path']} HTTP/1.1\r\nHost: {HOST}\r\nContent-Type: application/json\r\n"
        data = f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body
        requests.append(Request(data, values.get("reply")))
    return requests


class Connection:
    """A connection that is opened when it is needed, and again after it was closed."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._writer: asyncio.StreamWriter | None = None

    async def send(self, request: Request, result: Result) -> None:
        """Send a request, and add its answer to the result."""
        start = time.perf_counter()
        try:
            status, body = await asyncio.wait_for(self._exchange(request.data), TIMEOUT)
        except (OSError, EOFError):  # a time-out is an OSError, an incomplete answer an EOFError
            status, body = 0 if self._writer else -1, b""
            self.close()
        result.add(status, time.perf_counter() - start, body, request)

    async def _exchange(self, data: bytes) -> tuple[int, bytes]:
        if self._writer is None or self._reader.at_eof():  # the server has closed it
            self.close()
            self._reader, self._writer = await asyncio.open_connection(HOST, self._port)
        self._writer.write(data)
        head = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
        length = next(int(line[15:]) for line in head.split("\r\n") if line.startswith("content-length:"))
        body = await self._reader.readexactly(length)
        if "connection: close" in head:
            self.close()
        return int(head.split()[1]), body

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None


async def send_in_turn(job: dict[str, Any], requests: Iterator[Request], result: Result) -> None:
    """Let each client send its next request when its last one is answered."""
    stop = time.perf_counter() + job.get("seconds", math.inf)

    async def client() -> None:
        connection = Connection(job["port"])
        for request in requests:
            await connection.send(request, result)
            if time.perf_counter() > stop:
                break
        connection.close()

    await asyncio.gather(*(client() for _ in range(job["clients"])))


async def send_at_rate(job: dict[str, Any], requests: Iterator[Request], result: Result) -> None:
    """Send requests at a rate."""
    idle: deque[Connection] = deque()
    tasks: set[asyncio.Task[None]] = set()

    async def send(request: Request) -> None:
        connection = idle.pop() if idle else Connection(job["port"])
        await connection.send(request, result)
        idle.append(connection)

    start = time.perf_counter()
    for i in range(int(job["rate"] * job["seconds"])):
        await asyncio.sleep(max(0.0, start + i / job["rate"] - time.perf_counter()))
        tasks.add(task := asyncio.create_task(send(next(requests))))
        task.add_done_callback(tasks.discard)
    await asyncio.gather(*tasks)


async def main() -> None:
    job = json.load(sys.stdin)
    result, start = Result(), time.perf_counter()
    requests = islice(cycle(read_requests(job["requests"])), job.get("count"))
    await (send_at_rate if "rate" in job else send_in_turn)(job, requests, result)
    elapsed = time.perf_counter() - start
    json.dump({**vars(result), "elapsed": elapsed}, sys.stdout)


if __name__ == "__main__":
    asyncio.run(main())
