"""Vectors of tokens by their neighbours: tokens with the same neighbours are alike, however they were counted."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

import bertsmith as bs
import tiny_run
from bertsmith.corpus.shards import Shards
from bertsmith.instances import cooccurrence_embeddings
from bertsmith.instances.cooccurrence_embeddings import vectors_of_neighbours
from bertsmith.models.weight_init import start_from_vectors
from bertsmith.pretraining import data
from run_equality import assert_same, outcome

SENTENCES = ("kaba kade loba", "kaba kagi loba", "mide mifo nuzu", "mide migi nuzu")  # by one word alike


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Shards:
    folder = tmp_path_factory.mktemp("neighbours")
    file = folder / "corpus.txt"
    file.write_text("\n\n".join(f"{SENTENCES[i % 4]}." for i in range(80)))
    return bs.prepare([file], tiny_run.tokenizer(), folder / "shards")


def every(shards: Shards) -> np.ndarray:
    return np.arange(shards.counts["documents"])


def ids(*words: str) -> list[int]:
    return [tiny_run.TOKENS.index(word) for word in words]


def cosine(one: np.ndarray, other: np.ndarray) -> float:
    return float(one @ other / np.linalg.norm(one) / np.linalg.norm(other))


@pytest.mark.parametrize("width", [4, 32, 64])
def test_tokens_with_the_same_neighbours_are_alike(shards: Shards, width: int) -> None:
    found = vectors_of_neighbours(shards, every(shards), len(tiny_run.TOKENS), width, seed=0)
    assert found.shape == (len(tiny_run.TOKENS), width)
    kade, kagi, mifo, migi = found[ids("kade", "kagi", "mifo", "migi")]
    assert cosine(kade, kagi) > 0.9
    assert cosine(mifo, migi) > 0.9
    assert cosine(kade, mifo) < 0.5
    assert not found[ids("[MASK]", "tuzu")].any()  # they do not occur


def test_counts_follow_their_definition(shards: Shards, monkeypatch: pytest.MonkeyPatch) -> None:
    """By hand, and in one batch or in many."""
    size = len(tiny_run.TOKENS)
    expected = np.zeros((size, size))
    for i in range(80):
        row = ids(*SENTENCES[i % 4].split(), ".")
        for j, one in enumerate(row):
            for k, other in enumerate(row):
                if j != k and abs(j - k) <= 4:
                    expected[one, other] += 1 / abs(j - k)
    found = cooccurrence_embeddings._near(shards, every(shards), size).toarray()
    assert np.allclose(found, expected)
    monkeypatch.setattr(cooccurrence_embeddings, "_AT_A_TIME", 7)
    assert np.allclose(cooccurrence_embeddings._near(shards, every(shards), size).toarray(), expected)
    monkeypatch.setattr(cooccurrence_embeddings, "_MOST_TOKENS", 100)  # of 320: every third document
    few = cooccurrence_embeddings._near(shards, every(shards), size).toarray()
    assert 0 < few.sum() < 0.4 * expected.sum()


def test_information_is_that_of_the_formula(shards: Shards) -> None:
    near = cooccurrence_embeddings._near(shards, every(shards), len(tiny_run.TOKENS))
    counts, found = near.toarray(), cooccurrence_embeddings._information(near).toarray()
    tokens = counts.sum(1)
    contexts = tokens**0.75 / (tokens**0.75).sum()
    for one, other in np.argwhere(counts):
        expected = max(0.0, np.log(counts[one, other] / (tokens[one] * contexts[other])))
        assert found[one, other] == pytest.approx(expected)
    assert not found[counts == 0].any()


def test_the_same_seed_gives_the_same_vectors(shards: Shards) -> None:
    size = len(tiny_run.TOKENS)
    one, again, other = (vectors_of_neighbours(shards, every(shards), size, 16, seed) for seed in (0, 0, 1))
    assert np.array_equal(one, again)
    assert not np.allclose(one, other)
    assert np.allclose(np.linalg.norm(one, axis=1), np.linalg.norm(other, axis=1), atol=1e-3)


def test_every_seed_that_a_run_may_have_will_do(shards: Shards) -> None:
    found = vectors_of_neighbours(shards, every(shards), len(tiny_run.TOKENS), 8, seed=2**63 - 1)
    assert np.isfinite(found).all()
    assert found.any()


def test_text_in_which_nothing_stands_near_anything_has_no_vectors(tmp_path: Path) -> None:
    file = tmp_path / "corpus.txt"
    file.write_text("kaba\n\nkade\n\nloba\n")
    words = bs.prepare([file], tiny_run.tokenizer(), tmp_path / "shards")
    assert not vectors_of_neighbours(words, every(words), len(tiny_run.TOKENS), 8, seed=0).any()


def test_a_table_takes_the_vectors_it_has_and_keeps_the_rest() -> None:
    table = torch.randn(6, 4)
    before = table.clone()
    vectors = np.zeros((6, 4), dtype=np.float32)
    vectors[2:5] = np.random.default_rng(0).standard_normal((3, 4)) * 7
    start_from_vectors(table, vectors, 0.06)
    assert torch.equal(table[[0, 1, 5]], before[[0, 1, 5]])
    assert float(table[2:5].numpy().std()) == pytest.approx(0.06, rel=1e-5)
    assert np.allclose(table[2:5].numpy() / 0.06, vectors[2:5] / vectors[2:5].std(), atol=1e-5)
    start_from_vectors(table, np.zeros((6, 4), dtype=np.float32), 0.06)
    assert torch.isfinite(table).all()


def test_a_run_starts_from_them_and_resumes_as_it_was(shards: Shards, tmp_path: Path) -> None:
    settings = (
        "start.tokens=neighbours",
        "data.held_out=0",
        "train.learning_rate=1e-30",
        "train.max_steps=1",
    )
    model = tiny_run.run(shards, tmp_path / "run", *settings)
    table = model.encoder.embeddings.token.weight.detach().numpy()
    kade, kagi, mifo = table[ids("kade", "kagi", "mifo")]
    assert cosine(kade, kagi) > 0.9
    assert cosine(kade, mifo) < 0.5
    again = tiny_run.run(shards, tmp_path / "again", *settings)
    assert np.array_equal(again.encoder.embeddings.token.weight.detach().numpy(), table)


def test_a_run_that_is_resumed_does_not_count_again(
    shards: Shards, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its weights come from the checkpoint; one without a checkpoint begins again, and counts."""
    settings = ("start.tokens=neighbours", "data.held_out=0")
    told: list[str] = []
    tiny_run.run(shards, tmp_path / "straight", *settings, "train.max_steps=3", tell=told.append)
    assert sum("counting" in line for line in told) == 1  # it may take a minute
    told.clear()
    tiny_run.run(shards, tmp_path / "run", *settings, "train.max_steps=3")
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    tiny_run.run(shards, tmp_path / "run", *settings, "train.max_steps=3", resume=True)
    assert_same(tmp_path / "run", outcome(tmp_path / "straight"))
    monkeypatch.setattr(data, "vectors_of_neighbours", lambda *_: pytest.fail("neighbours were counted"))
    tiny_run.run(shards, tmp_path / "run", *settings, "train.max_steps=5", resume=True, tell=told.append)
    assert not any("counting" in line for line in told)
