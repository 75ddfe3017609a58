"""Answer requests of many callers in batches: a bounded queue, one worker, answers in order. It knows no HTTP.

A request is tokenized in a thread when it arrives, so that its tokens are known: the queue and the batches are
bounded in tokens. The worker, a thread, takes the first request of the queue and, as far as the budget of tokens
allows, later ones that the same model can compute with it. It starts as soon as it is idle; requests that arrive
meanwhile are the next batch. A request whose call is cancelled, because its client went away or its time is over,
leaves the queue and costs nothing more.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, Self

from torch import Tensor

from bertsmith.errors import InputError, MachineError
from bertsmith.inference.predictor import Predictor
from bertsmith.serving.limits import Limits
from bertsmith.serving.metrics import ServerMetrics
from bertsmith.tasks.batching import Answers, Outputs

TOKENIZATION_THREADS = 2
_TOKEN_SECONDS_DECAY = 0.8  # for each later batch
_MIN_MEASURED_TOKENS = 1_024  # a batch of fewer tokens takes about as long as one of these


@dataclass(eq=False)
class _Job:
    """A tokenized request: some inputs that are answered together.

    Attributes:
        predictor: The predictor.
        requests: The requests as the predictor takes them.
        prepared: The model's inputs.
        sizes: The number of tokens of each input.
        future: Receives the answers.
        outputs: The outputs of the first inputs.
        shared: The outputs that all inputs share; None if the model has none.
        num_taken: The number of inputs that are computed, or are in the batch that is being computed.
        error: The error that ended the computation.
        queued_at: The time at which it entered the queue.
    """

    predictor: Predictor
    requests: Sequence[Any]
    prepared: Sequence[Any]
    sizes: Sequence[int]
    future: asyncio.Future[Answers]
    outputs: list[Any] = field(default_factory=list)
    shared: Mapping[str, Tensor] | None = None
    num_taken: int = 0
    error: Exception | None = None
    queued_at: float = field(default_factory=perf_counter)

    @property
    def is_taken(self) -> bool:
        """True if no input waits."""
        return self.num_taken == len(self.prepared)

    def take(self, budget: int, *, at_least: int) -> _Part:
        """Return the next inputs within a budget of tokens."""
        start, tokens = self.num_taken, 0
        while not self.is_taken:
            size = self.sizes[self.num_taken]
            if tokens + size > budget and self.num_taken - start >= at_least:
                break
            tokens += size
            self.num_taken += 1
        return _Part(self, start, self.num_taken, tokens)

    def answers(self) -> Answers:
        """Decode the outputs of all inputs."""
        outputs: Any = self.outputs if self.shared is None else Outputs(self.outputs, self.shared)
        items = self.predictor.items(self.prepared)
        self.predictor.check_finite(outputs, items, self.requests)
        return Answers(outputs, items, self.requests, self.predictor.decode(outputs, items, self.requests))


@dataclass(frozen=True)
class _Part:
    """The inputs [start, end) of a job, which are in one batch."""

    job: _Job
    start: int
    end: int
    tokens: int


class Engine:
    """Answers requests for any predictors, first come, first served; `async with` starts and stops the worker.

    Attributes:
        limits: The limits.
        metrics: The metrics, which it updates.
        num_waiting: The number of requests that wait or are computed.
    """

    def __init__(self, limits: Limits, metrics: ServerMetrics) -> None:
        self.limits, self.metrics = limits, metrics
        self.num_waiting = self._waiting_tokens = self._num_untokenized = 0
        self._token_seconds = 0.0  # of a token in the slowest recent batch
        self._queue: deque[_Job] = deque()
        self._has_jobs, self._all_tokenized = asyncio.Event(), asyncio.Event()

    async def __aenter__(self) -> Self:
        self._tokenization = ThreadPoolExecutor(TOKENIZATION_THREADS, "tokenization")
        self._worker = ThreadPoolExecutor(1, "inference")
        self._loop = asyncio.create_task(self._run())
        return self

    async def __aexit__(self, *error: object) -> None:
        self._loop.cancel()
        for job in self._queue:
            job.future.cancel()
        for executor in (self._tokenization, self._worker):
            executor.shutdown(wait=False, cancel_futures=True)

    async def answer(
        self, predictor: Predictor, requests: Sequence[Any], prepared: Sequence[Any] | None = None
    ) -> Answers:
        """Return the answers to requests, with what they were decoded from. The call may be cancelled at any time.

        Args:
            predictor: The predictor. Requests of predictors that share the forward pass are computed together.
            requests: The requests as `Predictor.preprocess` takes them.
            prepared: The model's inputs; None: `Predictor.preprocess` makes them.

        Raises:
            InputError: There are too many inputs or tokens, or the predictor refuses a request.
            MachineError: The queue is full (`queue_full`), or there is not enough memory.
        """
        limits = self.limits
        if len(requests) > limits.max_inputs:
            message = f"there are {len(requests):,} inputs, more than {limits.max_inputs:,}"
            raise InputError("too_many_inputs", message, hint="send several requests")
        self.check_queue()
        self.num_waiting += 1
        self.metrics.waiting_requests.set(self.num_waiting)
        try:
            if prepared is None:
                prepared = await self._tokenize(predictor, requests)
            return await self._enqueue(predictor, requests, prepared)
        finally:
            self.num_waiting -= 1
            self.metrics.waiting_requests.set(self.num_waiting)

    async def _tokenize(self, predictor: Predictor, requests: Sequence[Any]) -> Any:
        start_time = perf_counter()
        self._num_untokenized += 1
        self._all_tokenized.clear()
        try:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._tokenization, predictor.preprocess, requests)
        finally:
            self.metrics.tokenization_seconds.observe(perf_counter() - start_time)
            self._num_untokenized -= 1
            if not self._num_untokenized:
                self._all_tokenized.set()

    async def _enqueue(
        self, predictor: Predictor, requests: Sequence[Any], prepared: Sequence[Any]
    ) -> Answers:
        """Put a tokenized request in the queue and return its answers; a cancelled one leaves the queue."""
        limits, sizes = self.limits, predictor.sizes(prepared)
        for size in sizes:
            self.metrics.input_tokens.observe(size)
        if (tokens := sum(sizes)) > limits.max_tokens:
            message = f"the inputs cost {tokens:,} tokens, more than {limits.max_tokens:,}"
            raise InputError("too_many_tokens", message, hint="send fewer or shorter inputs")
        self._check_waiting_tokens(tokens)
        job = _Job(predictor, requests, prepared, sizes, asyncio.get_running_loop().create_future())
        self._queue.append(job)
        self._has_jobs.set()
        self._add_waiting_tokens(tokens)
        try:
            return await job.future
        finally:
            self._add_waiting_tokens(-tokens)
            if not job.is_taken:
                self._queue.remove(job)

    def check_queue(self) -> None:
        """Raise MachineError (`queue_full`) if no further request may wait."""
        if self.num_waiting >= self.limits.max_waiting:
            message = f"{self.num_waiting:,} requests are waiting"
            raise MachineError("queue_full", message, hint="try again later")
        self._check_waiting_tokens()

    def _check_waiting_tokens(self, tokens: int = 0) -> None:
        """Raise MachineError if too many tokens wait, or for too long, to add a request with more tokens."""
        limits, waiting = self.limits, self._waiting_tokens
        if waiting and waiting + tokens > limits.max_waiting_tokens:
            message = f"requests with {waiting:,} tokens are waiting"
            raise MachineError("queue_full", message, hint="try again later")
        expected_seconds = waiting * self._token_seconds
        if expected_seconds > limits.max_queue_seconds:
            message = f"the queue takes {expected_seconds:.0f} s"
            raise MachineError("queue_full", message, hint="try again later")

    def _add_waiting_tokens(self, tokens: int) -> None:
        self._waiting_tokens += tokens
        self.metrics.waiting_tokens.set(self._waiting_tokens)

    async def _run(self) -> None:
        """Compute batches until the engine stops."""
        while await self._has_jobs.wait():
            if self._num_untokenized and self._waiting_tokens < self.limits.max_batch_tokens:
                with suppress(TimeoutError):
                    async with asyncio.timeout(self.limits.batch_wait):
                        await self._all_tokenized.wait()
            if self._queue:
                await self._compute_batch()
            else:
                self._has_jobs.clear()

    async def _compute_batch(self) -> None:
        """Compute the next batch. Afterwards nothing refers to it, nor to a model that was replaced meanwhile."""
        batch, start_time = self._take_batch(), perf_counter()
        loop = asyncio.get_running_loop()
        answers_of = await loop.run_in_executor(self._worker, _compute, batch)
        seconds = perf_counter() - start_time
        tokens = sum(part.tokens for part in batch)
        token_seconds = seconds / max(tokens, min(_MIN_MEASURED_TOKENS, self.limits.max_batch_tokens))
        self._token_seconds = max(token_seconds, _TOKEN_SECONDS_DECAY * self._token_seconds)
        self.metrics.batch_tokens.observe(tokens)
        self.metrics.inference_seconds.observe(seconds)
        for part in batch:
            if part.start == 0:
                self.metrics.queue_seconds.observe(start_time - part.job.queued_at)
            self._finish(part.job, answers_of.get(part.job))

    def _finish(self, job: _Job, answers: Answers | None) -> None:
        """Give a job its answers or its error; do nothing if inputs of it are left, or if it was cancelled."""
        if job.future.done():
            return
        if job.error is not None:
            job.future.set_exception(job.error)
        elif answers is not None:
            job.future.set_result(answers)

    def _take_batch(self) -> list[_Part]:
        """Return the inputs of the next batch, and take jobs of which no input is left from the queue."""
        budget, batch = self.limits.max_batch_tokens, list[_Part]()
        for job in self._queue:
            if batch and not job.predictor.shares_forward(batch[0].job.predictor):
                continue
            part = job.take(budget, at_least=0 if batch else 1)
            if part.start == part.end and not job.is_taken:
                break
            batch.append(part)
            budget -= part.tokens
            if not job.is_taken:
                break
        for part in batch:
            if part.job.is_taken:
                self._queue.remove(part.job)
        return batch


def _compute(batch: Sequence[_Part]) -> dict[_Job, Answers]:
    """Compute a batch in the worker's thread, and return the answers of the jobs that it completes.

    Jobs keep their errors. A batch that fails is computed job by job, so that an input harms no other request.
    """
    predictor = batch[0].job.predictor
    try:
        for part in batch:
            if part.job.predictor.check is not None:
                part.job.predictor.check(part.job.requests)
        outputs = predictor.forward([x for part in batch for x in part.job.prepared[part.start : part.end]])
    except Exception as error:
        if len(batch) > 1:
            return {job: answers for part in batch for job, answers in _compute([part]).items()}
        batch[0].job.error = error
        return {}
    shared = outputs.shared if isinstance(outputs, Outputs) else None
    per_input = iter(outputs if shared is None else outputs.per_item)
    answers_of = {}
    for part in batch:
        job = part.job
        job.outputs += [next(per_input) for _ in range(part.start, part.end)]
        job.shared = shared
        if job.is_taken:
            try:
                answers_of[job] = job.answers()
            except Exception as error:
                job.error = error
    return answers_of
