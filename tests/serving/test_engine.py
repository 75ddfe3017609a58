"""The engine: batches within a budget, first come first served, errors and cancellations of one request alone."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pytest

from bertsmith.errors import InputError, MachineError
from bertsmith.inference.predictor import Predictor
from bertsmith.serving.engine import Engine
from bertsmith.serving.limits import Limits
from bertsmith.serving.metrics import ServerMetrics


class Word(NamedTuple):
    """An input of as many tokens as its text has letters."""

    text: str
    size: int


@dataclass(frozen=True)
class Upper(Predictor):
    """Answers a text with its capital letters; computes while `may_run` is set, and records its batches."""

    encoder: Any = None
    tokenizer: Any = None
    context: Any = None
    name: str = "a"
    batches: list[list[str]] = field(default_factory=list, compare=False)
    may_run: threading.Event = field(default_factory=threading.Event, compare=False)

    def preprocess(self, requests: Sequence[str]) -> list[Word]:
        return [Word(text, len(text)) for text in requests]

    def forward(self, prepared: Sequence[Word]) -> list[float]:
        assert self.may_run.wait(60)
        self.batches.append([word.text for word in prepared])
        if any(word.text.startswith("!") for word in prepared):
            raise RuntimeError("broken")
        return [float("nan") if word.text.startswith("?") else float(word.size) for word in prepared]

    def decode(self, outputs: Any, items: Any, requests: Sequence[str]) -> list[str]:
        assert [len(text) for text in requests] == list(outputs)
        return [text.upper() for text in requests]


Test = Callable[[Engine, Upper], Coroutine[Any, Any, None]]


def run(test: Test, **limits: Any) -> None:
    """Run a test on an engine; its predictor computes nothing before `may_run` is set."""

    async def run_test() -> None:
        async with Engine(Limits.of({"batch_wait": 0.0, **limits}, "test"), ServerMetrics()) as engine:
            predictor = Upper()
            try:
                async with asyncio.timeout(60):
                    await test(engine, predictor)
            finally:
                predictor.may_run.set()

    asyncio.run(run_test())


async def queued(
    engine: Engine, predictor: Upper, requests: Sequence[Sequence[str]]
) -> list[asyncio.Task[Any]]:
    """Queue requests in order behind a first one, which occupies the worker."""
    tasks = []
    for texts in ["x", *requests]:
        tasks.append(asyncio.create_task(engine.answer(predictor, list(texts))))
        count, value = len(tasks), -1.0
        while value < count:
            await asyncio.sleep(0.001)
            value = engine.metrics.registry.get_sample_value("bertsmith_tokenization_seconds_count") or 0.0
    while len(engine._queue) > len(requests):
        await asyncio.sleep(0.001)
    return tasks


def test_a_lone_request_is_computed_at_once_and_later_ones_together() -> None:
    async def test(engine: Engine, predictor: Upper) -> None:
        tasks = await queued(engine, predictor, [["aa"], ["bb", "b"], ["cc"]])
        predictor.may_run.set()
        answers = await asyncio.gather(*tasks)
        assert [a.predictions for a in answers] == [["X"], ["AA"], ["BB", "B"], ["CC"]]
        assert predictor.batches == [["x"], ["aa", "bb", "b", "cc"]]

    run(test)


def test_no_batch_exceeds_the_budget_and_a_large_request_is_computed_in_parts() -> None:
    async def test(engine: Engine, predictor: Upper) -> None:
        tasks = await queued(engine, predictor, [["aaaa", "bbbb", "cccc", "dddddddddddd"], ["ee"]])
        predictor.may_run.set()
        answers = await asyncio.gather(*tasks)
        assert answers[1].predictions == ["AAAA", "BBBB", "CCCC", "DDDDDDDDDDDD"]
        assert predictor.batches[1:] == [["aaaa", "bbbb"], ["cccc"], ["dddddddddddd"], ["ee"]]

    run(test, max_batch_tokens=8)


def test_first_come_first_served_between_models() -> None:
    async def test(engine: Engine, predictor: Upper) -> None:
        other = Upper(name="b", batches=predictor.batches, may_run=predictor.may_run)
        tasks = await queued(engine, predictor, [["a1"]])
        for name, which in (("b1", other), ("a2", predictor), ("b2", other)):
            tasks.append(asyncio.create_task(engine.answer(which, [name])))
            while len(engine._queue) < len(tasks) - 1:
                await asyncio.sleep(0.001)
        predictor.may_run.set()
        await asyncio.gather(*tasks)
        assert predictor.batches == [["x"], ["a1", "a2"], ["b1", "b2"]]

    run(test)


@pytest.mark.parametrize("text", ["!", "?"])
def test_an_error_concerns_one_request_only(text: str) -> None:
    async def test(engine: Engine, predictor: Upper) -> None:
        tasks = await queued(engine, predictor, [["a"], [text], ["b"]])
        predictor.may_run.set()
        _, a, broken, b = await asyncio.gather(*tasks, return_exceptions=True)
        assert (a.predictions, b.predictions) == (["A"], ["B"])
        if text == "!":
            assert isinstance(broken, RuntimeError)
        else:
            assert isinstance(broken, InputError)
            assert broken.code == "outputs_not_finite"
        assert (await engine.answer(predictor, ["c"])).predictions == ["C"]

    run(test)


def test_a_cancelled_request_is_not_computed_and_frees_the_queue() -> None:
    async def test(engine: Engine, predictor: Upper) -> None:
        tasks = await queued(engine, predictor, [["a"], ["b"], ["c"]])
        assert engine.num_waiting == 4
        tasks[2].cancel()
        await asyncio.wait([tasks[2]])
        assert engine.num_waiting == 3
        assert engine.metrics.registry.get_sample_value("bertsmith_waiting_tokens") == 3
        predictor.may_run.set()
        await asyncio.gather(tasks[0], tasks[1], tasks[3])
        assert predictor.batches == [["x"], ["a", "c"]]
        assert engine.num_waiting == 0

    run(test)


def test_the_queue_is_bounded_in_requests_and_in_tokens() -> None:
    async def test(engine: Engine, predictor: Upper) -> None:
        tasks = await queued(engine, predictor, [["aaaa"]])
        with pytest.raises(MachineError) as many_tokens:
            await engine.answer(predictor, ["bbbbbb"])
        tasks.append(asyncio.create_task(engine.answer(predictor, ["b"])))
        while len(engine._queue) < 2:
            await asyncio.sleep(0.001)
        with pytest.raises(MachineError) as many_requests:
            await engine.answer(predictor, ["b"])
        assert [many_tokens.value.code, many_requests.value.code] == ["queue_full"] * 2
        predictor.may_run.set()
        await asyncio.gather(*tasks)
        assert (await engine.answer(predictor, ["b"])).predictions == ["B"]

    run(test, max_waiting=3, max_waiting_tokens=10)


def test_a_request_that_would_wait_too_long_is_refused_at_once() -> None:
    async def test(engine: Engine, predictor: Upper) -> None:
        threading.Timer(0.05, predictor.may_run.set).start()
        await engine.answer(predictor, ["x"])  # a batch takes 0.05 s
        predictor.may_run.clear()
        tasks = [asyncio.create_task(engine.answer(predictor, [text])) for text in "abcdefghijklmnopqrst"]
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        assert {getattr(task.exception(), "code", None) for task in done} == {"queue_full"}
        predictor.may_run.set()
        answers = await asyncio.gather(*tasks, return_exceptions=True)
        assert "A" in [answer.predictions[0] for answer in answers if not isinstance(answer, Exception)]
        await engine.answer(predictor, ["y"])  # the queue is empty again

    run(test, max_batch_tokens=1, max_queue_seconds=0.12)


async def compute_in(seconds: float, engine: Engine, predictor: Upper, text: str) -> None:
    """Have a text answered, which takes this time."""
    threading.Timer(seconds, predictor.may_run.set).start()
    await engine.answer(predictor, [text])
    predictor.may_run.clear()


async def waiting(engine: Engine, predictor: Upper, text: str) -> asyncio.Task[Any]:
    """Send a text, and wait until it is in the queue."""
    task = asyncio.create_task(engine.answer(predictor, [text]))
    while engine.metrics.registry.get_sample_value("bertsmith_waiting_tokens") != len(text):
        await asyncio.sleep(0.001)
    return task


def test_a_full_queue_refuses_before_a_text_is_tokenized() -> None:
    @dataclass(frozen=True)
    class Untokenized(Upper):
        def preprocess(self, requests: Sequence[str]) -> list[Word]:
            raise AssertionError("the text was tokenized")

    async def test(engine: Engine, predictor: Upper) -> None:
        await compute_in(0.2, engine, predictor, "x")
        task = await waiting(engine, predictor, "aaaa")  # takes 0.8 s
        with pytest.raises(MachineError) as error:
            await engine.answer(Untokenized(), ["b"])
        assert error.value.code == "queue_full"
        predictor.may_run.set()
        await task

    run(test, max_batch_tokens=1, max_queue_seconds=0.5)


def test_the_queue_is_measured_in_tokens_and_not_in_batches() -> None:
    """A burst after a small batch, which took a fraction of the time of a full one, may not fill the queue."""

    async def test(engine: Engine, predictor: Upper) -> None:
        await compute_in(0.1, engine, predictor, "x" * 1_024)
        task = await waiting(engine, predictor, "a" * 4_096)  # takes 0.4 s
        with pytest.raises(MachineError) as error:
            await engine.answer(predictor, ["b"])
        assert error.value.code == "queue_full"
        predictor.may_run.set()
        await task

    run(test, max_batch_tokens=8_192, max_queue_seconds=0.3)


def test_what_is_too_large_is_refused_before_it_is_computed() -> None:
    async def test(engine: Engine, predictor: Upper) -> None:
        predictor.may_run.set()
        for texts, code in ((["a"] * 4, "too_many_inputs"), (["aaaa", "bbb"], "too_many_tokens")):
            with pytest.raises(InputError) as error:
                await engine.answer(predictor, texts)
            assert error.value.code == code
        assert predictor.batches == []

    run(test, max_inputs=3, max_tokens=6)


def test_inputs_that_are_already_tokens_are_not_tokenized_again() -> None:
    async def test(engine: Engine, predictor: Upper) -> None:
        predictor.may_run.set()
        answers = await engine.answer(predictor, ["abc"], [Word("abc", 3)])
        assert answers.predictions == ["ABC"]
        assert engine.metrics.registry.get_sample_value("bertsmith_tokenization_seconds_count") == 0

    run(test)


def test_a_batch_waits_for_requests_that_are_being_tokenized() -> None:
    async def test(engine: Engine, predictor: Upper) -> None:
        predictor.may_run.set()
        tasks = [asyncio.create_task(engine.answer(predictor, [text])) for text in "abcdefgh"]
        await asyncio.gather(*tasks)
        assert len(predictor.batches) == 1
        assert sorted(predictor.batches[0]) == list("abcdefgh")

    run(test, batch_wait=1.0)
