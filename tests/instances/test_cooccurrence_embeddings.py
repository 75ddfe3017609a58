"""Token vectors from co-occurrence counts: tokens with the same neighbors have similar vectors."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.utils import extmath
from threadpoolctl import threadpool_info, threadpool_limits

import bertsmith as bs
import tiny_run
from bertsmith.corpus.shards import Shards
from bertsmith.instances import cooccurrence_embeddings, epoch_plan
from bertsmith.instances.cooccurrence_embeddings import compute_cooccurrence_embeddings
from bertsmith.models.weight_init import init_token_embeddings
from bertsmith.pretraining import model
from run_equality import assert_same, outcome

# The first two differ in one word, and so do the last two.
SENTENCES = ("kaba kade loba", "kaba kagi loba", "mide mifo nuzu", "mide migi nuzu")


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Shards:
    folder = tmp_path_factory.mktemp("cooccurrence")
    file = folder / "corpus.txt"
    file.write_text("\n\n".join(f"{SENTENCES[i % 4]}." for i in range(80)))
    return bs.prepare([file], tiny_run.tokenizer(), folder / "shards")


def all_documents(shards: Shards) -> np.ndarray:
    return np.arange(shards.counts["documents"])


def ids(*words: str) -> list[int]:
    return [tiny_run.TOKENS.index(word) for word in words]


def cosine(first: np.ndarray, second: np.ndarray) -> float:
    return float(first @ second / np.linalg.norm(first) / np.linalg.norm(second))


@pytest.mark.parametrize("width", [4, 32, 64])
def test_tokens_with_the_same_neighbors_have_similar_vectors(shards: Shards, width: int) -> None:
    vectors = compute_cooccurrence_embeddings(
        shards, all_documents(shards), len(tiny_run.TOKENS), width, seed=0
    )
    assert vectors.shape == (len(tiny_run.TOKENS), width)
    kade, kagi, mifo, migi = vectors[ids("kade", "kagi", "mifo", "migi")]
    assert cosine(kade, kagi) > 0.9
    assert cosine(mifo, migi) > 0.9
    assert cosine(kade, mifo) < 0.5
    assert not vectors[ids("[MASK]", "tuzu")].any()  # they do not occur


def test_numpy_computes_on_one_thread(shards: Shards, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its sums depend on the number of threads, which is that of the cores or of OMP_NUM_THREADS."""
    threads: list[int] = []
    randomized_svd = extmath.randomized_svd

    def recorded_svd(*arguments: Any, **keywords: Any) -> Any:
        threads.extend(info["num_threads"] for info in threadpool_info() if info["user_api"] == "blas")
        return randomized_svd(*arguments, **keywords)

    monkeypatch.setattr(extmath, "randomized_svd", recorded_svd)
    with threadpool_limits(2, "blas"):
        compute_cooccurrence_embeddings(shards, all_documents(shards), len(tiny_run.TOKENS), 4, seed=0)
    assert set(threads) == {1}


def test_counts_follow_their_definition(shards: Shards, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compare with a loop, for one portion and for many."""
    size = len(tiny_run.TOKENS)
    expected = np.zeros((size, size))
    for i in range(80):
        row = ids(*SENTENCES[i % 4].split(), ".")
        for j, first in enumerate(row):
            for k, second in enumerate(row):
                if j != k and abs(j - k) <= 4:
                    expected[first, second] += 1 / abs(j - k)
    counts = cooccurrence_embeddings._count_cooccurrences(shards, all_documents(shards), size).toarray()
    assert np.allclose(counts, expected)
    monkeypatch.setattr(epoch_plan, "_TOKENS_PER_PORTION", 7)
    counts = cooccurrence_embeddings._count_cooccurrences(shards, all_documents(shards), size).toarray()
    assert np.allclose(counts, expected)
    monkeypatch.setattr(cooccurrence_embeddings, "_MAX_TOKENS", 100)  # of 320: every third document
    sampled = cooccurrence_embeddings._count_cooccurrences(shards, all_documents(shards), size).toarray()
    assert 0 < sampled.sum() < 0.4 * expected.sum()


def test_pmi_equals_the_formula(shards: Shards) -> None:
    sparse = cooccurrence_embeddings._count_cooccurrences(shards, all_documents(shards), len(tiny_run.TOKENS))
    counts, pmi = sparse.toarray(), cooccurrence_embeddings._positive_pmi(sparse).toarray()
    tokens = counts.sum(1)
    contexts = tokens**0.75 / (tokens**0.75).sum()
    for first, second in np.argwhere(counts):
        expected = max(0.0, np.log(counts[first, second] / (tokens[first] * contexts[second])))
        assert pmi[first, second] == pytest.approx(expected)
    assert not pmi[counts == 0].any()


def test_the_same_seed_gives_the_same_vectors(shards: Shards) -> None:
    size = len(tiny_run.TOKENS)
    first, again, second = (
        compute_cooccurrence_embeddings(shards, all_documents(shards), size, 16, seed) for seed in (0, 0, 1)
    )
    assert np.array_equal(first, again)
    assert not np.allclose(first, second)
    assert np.allclose(np.linalg.norm(first, axis=1), np.linalg.norm(second, axis=1), atol=1e-3)


def test_the_largest_seed(shards: Shards) -> None:
    vectors = compute_cooccurrence_embeddings(
        shards, all_documents(shards), len(tiny_run.TOKENS), 8, seed=2**63 - 1
    )
    assert np.isfinite(vectors).all()
    assert vectors.any()


def test_text_without_cooccurrences_has_no_vectors(tmp_path: Path) -> None:
    file = tmp_path / "corpus.txt"
    file.write_text("kaba\n\nkade\n\nloba\n")
    words = bs.prepare([file], tiny_run.tokenizer(), tmp_path / "shards")
    assert not compute_cooccurrence_embeddings(
        words, all_documents(words), len(tiny_run.TOKENS), 8, seed=0
    ).any()


def test_only_embeddings_with_vectors_change() -> None:
    embeddings = torch.randn(6, 4)
    before = embeddings.clone()
    vectors = np.zeros((6, 4), dtype=np.float32)
    vectors[2:5] = np.random.default_rng(0).standard_normal((3, 4)) * 7
    init_token_embeddings(embeddings, vectors, 0.06)
    assert torch.equal(embeddings[[0, 1, 5]], before[[0, 1, 5]])
    assert float(embeddings[2:5].numpy().std()) == pytest.approx(0.06, rel=1e-5)
    assert np.allclose(embeddings[2:5].numpy() / 0.06, vectors[2:5] / vectors[2:5].std(), atol=1e-5)
    init_token_embeddings(embeddings, np.zeros((6, 4), dtype=np.float32), 0.06)
    assert torch.isfinite(embeddings).all()


def test_a_run_starts_from_the_vectors(shards: Shards, tmp_path: Path) -> None:
    settings = (
        "start.tokens=neighbours",
        "data.validation_split=0",
        "train.learning_rate=1e-30",
        "train.max_steps=1",
    )
    model = tiny_run.run(shards, tmp_path / "run", *settings)
    embeddings = model.encoder.embeddings.token.weight.detach().numpy()
    kade, kagi, mifo = embeddings[ids("kade", "kagi", "mifo")]
    assert cosine(kade, kagi) > 0.9
    assert cosine(kade, mifo) < 0.5
    again = tiny_run.run(shards, tmp_path / "again", *settings)
    assert np.array_equal(again.encoder.embeddings.token.weight.detach().numpy(), embeddings)


def test_a_resumed_run_does_not_count_again(
    shards: Shards, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A checkpoint has the weights; without one the run starts again, and counts."""
    settings = ("start.tokens=neighbours", "data.validation_split=0")
    caplog.clear()
    tiny_run.run(shards, tmp_path / "straight", *settings, "train.max_steps=3")
    assert sum("counting" in line for line in caplog.messages) == 1  # it may take a minute
    caplog.clear()
    tiny_run.run(shards, tmp_path / "run", *settings, "train.max_steps=3")
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    tiny_run.run(shards, tmp_path / "run", *settings, "train.max_steps=3", resume=True)
    assert_same(tmp_path / "run", outcome(tmp_path / "straight"))
    monkeypatch.setattr(
        model, "compute_cooccurrence_embeddings", lambda *_: pytest.fail("cooccurrences were counted")
    )
    caplog.clear()
    tiny_run.run(shards, tmp_path / "run", *settings, "train.max_steps=5", resume=True)
    assert not any("counting" in line for line in caplog.messages)
