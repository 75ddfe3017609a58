"""Instances of one text: filled to the length, in order, nothing lost, separators only between documents."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from bertsmith.instances.epoch_plan import Plan
from bertsmith.instances.text_instances import plan_doc_sentences, plan_full_sentences, plan_single

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Corpus:
    """What a plan reads of shards."""

    sentence_ends: Ints
    document_sentences: Ints

    @classmethod
    def of(cls, documents: Sequence[Sequence[int]]) -> Corpus:
        lengths = np.array([n for document in documents for n in document], dtype=np.int64)
        counts = np.array([len(document) for document in documents], dtype=np.int64)
        return cls(np.cumsum(lengths), np.concatenate([[0], np.cumsum(counts)]).astype(np.int64))


def full(corpus: Corpus, documents: Ints, length: int, epoch: int) -> Plan:
    return plan_full_sentences(corpus, documents, length=length, seed=3, epoch=epoch)


KINDS: dict[str, Callable[[Corpus, Ints, int, int], Plan]] = {
    "full": full,
    "doc": lambda corpus, documents, length, _: plan_doc_sentences(corpus, documents, length=length),
    "single": lambda corpus, documents, length, _: plan_single(corpus, documents, length=length),
}
documents_ = st.lists(st.lists(st.integers(0, 90), max_size=9), min_size=1, max_size=12).filter(
    lambda documents: any(map(any, documents))
)


@pytest.mark.parametrize("kind", list(KINDS))
@given(documents=documents_, length=st.integers(8, 64), epoch=st.integers(0, 9), skip=st.integers(0, 3))
def test_each_token_stands_once_within_its_document(
    kind: str, documents: list[list[int]], length: int, epoch: int, skip: int
) -> None:
    corpus = Corpus.of(documents)
    chosen = np.arange(min(skip, len(documents) - 1), len(documents))
    plan = KINDS[kind](corpus, chosen, length, epoch)
    before = np.concatenate([[0], corpus.sentence_ends])[corpus.document_sentences]
    times = np.zeros(before[-1] + 1, dtype=np.int64)
    np.add.at(times, plan.starts, 1)
    np.add.at(times, plan.starts + plan.lengths, -1)
    used = np.cumsum(times)[:-1]
    assert (used == (np.arange(before[-1]) >= before[chosen[0]])).all()
    assert (plan.lengths >= 1).all()
    assert (plan.starts >= before[plan.documents]).all()
    assert (plan.starts + plan.lengths <= before[plan.documents + 1]).all()
    assert (plan.sizes <= length).all()
    assert plan.counts["tokens_left_out"] == 0
    assert plan.counts["instances"] == len(plan)
    if kind != "full":
        assert (np.diff(plan.first) == 1).all()


@given(documents=documents_, length=st.integers(8, 64), epoch=st.integers(0, 9))
def test_full_sentences_are_filled_as_a_walk_fills_them(
    documents: list[list[int]], length: int, epoch: int
) -> None:
    """Beside a plain loop over the pieces: the next piece opens a new instance only where it does not fit."""
    corpus = Corpus.of(documents)
    plan = full(corpus, np.arange(len(documents)), length, epoch)
    read = list(dict.fromkeys(plan.documents.tolist()))  # the order drawn
    begins = np.concatenate([[0], corpus.sentence_ends])
    room, instances, last = length - 2, [[]], None  # type: ignore[var-annotated]
    for document in read:
        for s in range(corpus.document_sentences[document], corpus.document_sentences[document + 1]):
            size = int(begins[s + 1] - begins[s])
            parts = -(-size // room)
            for k in range(parts):
                up = s % 2 * (parts - 1)  # every other sentence has its longer parts first
                a, b = (int(begins[s]) + (size * j + up) // parts for j in (k, k + 1))
                held = sum(e - s_ for s_, e in instances[-1]) + max(0, len(instances[-1]) - 1)
                opens = last != document and bool(instances[-1])
                if held + (b - a) + opens > room:
                    instances.append([[a, b]])
                elif opens or not instances[-1]:
                    instances[-1].append([a, b])
                else:
                    instances[-1][-1][1] = b
                last = document
    found = [
        [[int(s), int(s + n)] for s, n in zip(plan.starts[a:b], plan.lengths[a:b], strict=True)]
        for a, b in zip(plan.first[:-1], plan.first[1:], strict=True)
    ]
    assert found == instances


def test_documents_are_met_in_another_order_each_epoch() -> None:
    corpus = Corpus.of([[5, 9, 7]] * 50)
    orders = [tuple(dict.fromkeys(full(corpus, np.arange(50), 32, e).documents.tolist())) for e in range(3)]
    assert len(set(orders)) == 3
    assert sorted(orders[0]) == list(range(50))
    plan = full(corpus, np.arange(50), 32, 0)
    assert (np.diff(plan.first) > 1).mean() > 0.5  # instances cross the ends of documents
    doc = plan_doc_sentences(corpus, np.arange(50), length=32)
    assert len(doc) == 50  # and these do not


def test_a_long_single_text_is_parted_evenly_and_counted() -> None:
    plan = plan_single(Corpus.of([[200, 56], [3]]), np.arange(2), length=66)
    assert plan.lengths.tolist() == [64, 64, 64, 64, 3]
    assert plan.counts["documents_parted"] == 1
