"""Failures that users of other servers report, each with its issue."""

from __future__ import annotations

import base64
import gc
import json
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bertsmith as bs
from bertsmith.inference.embedding import Embedder
from bertsmith.serving import engine
from bertsmith.tasks.batching import Item
from served import SECONDS, Client, raw_post, served, wait_until
from tiny_run import WORDS

EMBED = "/v1/models/model/embed"


class Worker:
    """Records the batches of embedders, in tokens, and computes them while `may_run` is set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.batches: list[list[int]] = []
        self.first_words: list[list[int]] = []  # the id of each text's first word, by batch
        self.may_run = threading.Event()
        self.may_run.set()
        forward = Embedder.forward

        def recorded(embedder: Embedder, items: Sequence[Item]) -> Any:
            self.batches.append([item.size for item in items])
            self.first_words.append([int(item.sequences[0].ids[1]) for item in items])
            assert self.may_run.wait(SECONDS)
            return forward(embedder, items)

        monkeypatch.setattr(Embedder, "forward", recorded)


@pytest.fixture(scope="module")
def source(base: bs.Model) -> str:
    return f"model={base.path}"


@pytest.fixture
def client(source: str) -> Iterator[Client]:
    with served(source, limits={"max_batch_tokens": 60, "max_seconds": 30}) as client:
        yield client


@pytest.fixture
def worker(client: Client, monkeypatch: pytest.MonkeyPatch) -> Iterator[Worker]:
    worker = Worker(monkeypatch)
    yield worker
    worker.may_run.set()


def text(words: int, seed: int = 0) -> str:
    return " ".join(WORDS[(seed + 7 * i) % len(WORDS)] for i in range(words))


def embeddings(client: Client, inputs: Any) -> Any:
    reply = client.post(EMBED, {"inputs": inputs})
    assert reply.status == 200, reply.value
    return np.array(reply.value["embeddings"], np.float32)


def occupy(client: Client, worker: Worker, pool: ThreadPoolExecutor) -> Any:
    """Send a request that occupies the worker until `may_run` is set."""
    worker.may_run.clear()
    before = len(worker.batches)
    blocker = pool.submit(embeddings, client, text(1))
    wait_until(lambda: len(worker.batches) > before)
    return blocker


def resident_pages() -> int:
    """Return the size of this process in memory; 0 where the system does not say."""
    file = Path("/proc/self/statm")
    return int(file.read_text().split()[1]) if file.exists() else 0


def queued(client: Client) -> int:
    """Return the number of requests in the queue."""
    return len(client.state.engine._queue)


def test_memory_does_not_grow_tei_156_infinity_517(client: Client) -> None:
    def send(count: int) -> None:
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda i: embeddings(client, [text(1 + i % 20, i)] * (1 + i % 3)), range(count)))
        wait_until(lambda: client.state.num_open == 0)
        gc.collect()

    send(100)
    before = resident_pages()
    send(400)
    assert [o for o in gc.get_objects() if type(o) in (engine._Job, engine._Part)] == []
    assert resident_pages() <= 1.05 * before
    assert client.state.engine.num_waiting == queued(client) == 0


def test_a_batch_may_be_larger_than_the_limit_tei_378_tei_50(client: Client, worker: Worker) -> None:
    inputs = [text(10, seed) for seed in range(20)]
    assert embeddings(client, inputs).shape == (20, 32)
    assert len(worker.batches) == 4
    assert embeddings(client, [text(62)]).shape == (1, 32)  # more than the limit by itself


def test_batches_stay_small_whatever_waits_tei_713(client: Client, worker: Worker) -> None:
    with ThreadPoolExecutor(24) as pool:
        occupy(client, worker, pool)
        answers = [pool.submit(embeddings, client, text(5, seed)) for seed in range(23)]
        wait_until(lambda: queued(client) == 23)
        worker.may_run.set()
        assert all(answer.result().shape == (1, 32) for answer in answers)
    assert max(map(sum, worker.batches)) <= 60
    assert [len(batch) for batch in worker.batches] == [1, 8, 8, 7]


def test_vectors_in_base64_and_of_token_ids_tei_288_tei_273(base: bs.Model, client: Client) -> None:
    ids = base.tokenizer.encode_ids([text(3), text(5)])
    for inputs in ([text(3), text(5)], ids):
        reply = client.post("/v1/embeddings", {"input": inputs, "encoding_format": "base64"})
        vectors = [np.frombuffer(base64.b64decode(item["embedding"]), "<f4") for item in reply.value["data"]]
        np.testing.assert_array_equal(vectors, base.embed([text(3), text(5)]))


@pytest.mark.parametrize("pooling", ["cls", "mean", "max"])
def test_the_pooling_is_that_of_the_folder_vllm_45995(base: bs.Model, tmp_path: Path, pooling: str) -> None:
    folder = base.save(tmp_path / "model")
    (folder / "modules.json").write_text(
        json.dumps(
            [
                {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
                {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
            ]
        )
    )
    (folder / "1_Pooling").mkdir()
    modes = {name: name == pooling for name in ("cls", "mean", "max")}
    values = {
        "word_embedding_dimension": 32,
        "pooling_mode_cls_token": modes["cls"],
        "pooling_mode_mean_tokens": modes["mean"],
        "pooling_mode_max_tokens": modes["max"],
    }
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(values))
    model = bs.load(folder, "cpu", precision="fp32")
    with served(folder) as client:
        assert client.get("/v1/models/model").value["embedding"]["pooling"] == pooling
        vectors = embeddings(client, [text(5), text(9)])
        np.testing.assert_allclose(vectors, model.embed([text(5), text(9)], pooling=pooling), atol=1e-5)
        assert client.post(EMBED, {"inputs": "kaba", "pooling": "mean"}).status == 422
    values["pooling_mode_weightedmean_tokens"] = True
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(values))
    with served(folder) as client:
        assert client.post(EMBED, {"inputs": "kaba"}).code == "route_missing"


def test_a_client_that_goes_away_harms_nobody_ray_41057_bentoml_4971(client: Client, worker: Worker) -> None:
    with ThreadPoolExecutor(2) as pool:
        blocker = occupy(client, worker, pool)
        connections = [client.connect(raw_post(EMBED, b'{"inputs": "lode"}')) for _ in range(5)]
        wait_until(lambda: queued(client) == 5)
        for connection in connections:
            connection.close()
        wait_until(lambda: queued(client) == 0 and client.state.num_open == 1)
        worker.may_run.set()
        assert blocker.result().shape == (1, 32)
    assert len(worker.batches) == 1
    metrics = client.get("/metrics").body.decode()
    assert 'code="client_disconnected",route="/v1/models/{model}/embed"} 5.0' in metrics


def test_abandoned_requests_are_not_computed_triton_8030(
    source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with served(source, limits={"max_seconds": 0.5}) as client, ThreadPoolExecutor(8) as pool:
        worker = Worker(monkeypatch)
        worker.may_run.clear()
        first = pool.submit(client.post, EMBED, {"inputs": "kaba"})
        wait_until(lambda: worker.batches)
        replies = list(pool.map(lambda i: client.post(EMBED, {"inputs": text(i)}), range(1, 7)))
        assert [reply.code for reply in (first.result(), *replies)] == ["timeout"] * 7
        worker.may_run.set()
        assert embeddings(client, "lode").shape == (1, 32)
        assert [len(batch) for batch in worker.batches] == [1, 1]


def test_the_queue_is_fair_bentoml_4592(client: Client, worker: Worker, base: bs.Model) -> None:
    finished: list[str] = []

    def send(name: str, inputs: list[str]) -> None:
        embeddings(client, inputs)
        finished.append(name)

    with ThreadPoolExecutor(8) as pool:
        occupy(client, worker, pool)
        order = ["large", "small 1", "other large", "small 2"]
        for i, name in enumerate(order):
            pool.submit(send, name, [text(20, i)] * {"large": 8, "other large": 7}.get(name, 1))
            wait_until(lambda count=i + 1: queued(client) == count)
        worker.may_run.set()
    assert sorted(finished) == sorted(order)
    # The threads of two replies may change places, but the batches are computed in the order of the requests.
    ids = [base.tokenizer.encode(WORDS[i]).ids[1] for i in range(len(order))]
    last_batches = [max(n for n, words in enumerate(worker.first_words) if i in words) for i in ids]
    first_batches = [min(n for n, words in enumerate(worker.first_words[1:]) if i in words) for i in ids]
    assert last_batches == sorted(last_batches)
    assert first_batches == sorted(first_batches)


def test_answers_do_not_depend_on_the_batch_sentence_transformers_2312(
    client: Client, worker: Worker
) -> None:
    texts = [text(1 + 5 * (i % 12), i) for i in range(24)]
    alone = np.concatenate([embeddings(client, [one]) for one in texts])
    with ThreadPoolExecutor(24) as pool:
        occupy(client, worker, pool)
        answers = [pool.submit(embeddings, client, [one]) for one in texts[:23]]
        wait_until(lambda: queued(client) == 23)
        worker.may_run.set()
        together = np.concatenate([answer.result() for answer in answers])
    np.testing.assert_allclose(together, alone[:23], atol=1e-5)
    np.testing.assert_allclose(embeddings(client, texts), alone, atol=1e-5)


def test_requests_in_flight_are_answered_at_shutdown_kserve_3360(client: Client, worker: Worker) -> None:
    with ThreadPoolExecutor(20) as pool:
        blocker = occupy(client, worker, pool)
        answers = [pool.submit(embeddings, client, text(6, seed)) for seed in range(15)]
        wait_until(lambda: queued(client) == 15)
        client.drain()
        wait_until(lambda: client.get("/health/ready").status == 503)
        refused = client.post(EMBED, {"inputs": "kaba"})
        assert (refused.status, refused.code, refused.headers["retry-after"]) == (503, "draining", "1")
        assert refused.headers["connection"] == "close"
        worker.may_run.set()
        assert all(answer.result().shape == (1, 32) for answer in (blocker, *answers))
