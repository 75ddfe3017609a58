"""Instances of one text: filled up to the length, in order, complete, with separators between documents."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from bertsmith.instances.epoch_plan import EpochPlan
from bertsmith.instances.segments import plan_doc_sentences, plan_full_sentences

IntArray = NDArray[np.int64]


@dataclass(frozen=True)
class Corpus:
    """The part of shards that plans read."""

    sentence_ends: IntArray
    document_sentence_offsets: IntArray

    @classmethod
    def from_lengths(cls, documents: Sequence[Sequence[int]]) -> Corpus:
        lengths = np.array([n for document in documents for n in document], dtype=np.int64)
        counts = np.array([len(document) for document in documents], dtype=np.int64)
        return cls(np.cumsum(lengths), np.concatenate([[0], np.cumsum(counts)]).astype(np.int64))


def plan_full(corpus: Corpus, documents: IntArray, length: int, epoch: int) -> EpochPlan:
    return plan_full_sentences(corpus, documents, max_length=length, seed=3, epoch=epoch)


FORMS: dict[str, Callable[[Corpus, IntArray, int, int], EpochPlan]] = {
    "full": plan_full,
    "doc": lambda corpus, documents, length, _: plan_doc_sentences(corpus, documents, max_length=length),
}
documents_ = st.lists(st.lists(st.integers(0, 90), max_size=9), min_size=1, max_size=12).filter(
    lambda documents: any(map(any, documents))
)


@pytest.mark.parametrize("form", list(FORMS))
@given(documents=documents_, length=st.integers(8, 64), epoch=st.integers(0, 9), skip=st.integers(0, 3))
def test_each_token_is_in_one_part_of_its_document(
    form: str, documents: list[list[int]], length: int, epoch: int, skip: int
) -> None:
    corpus = Corpus.from_lengths(documents)
    documents_used = np.arange(min(skip, len(documents) - 1), len(documents))
    plan = FORMS[form](corpus, documents_used, length, epoch)
    before = np.concatenate([[0], corpus.sentence_ends])[corpus.document_sentence_offsets]
    changes = np.zeros(before[-1] + 1, dtype=np.int64)
    np.add.at(changes, plan.starts, 1)
    np.add.at(changes, plan.starts + plan.lengths, -1)
    used = np.cumsum(changes)[:-1]
    assert (used == (np.arange(before[-1]) >= before[documents_used[0]])).all()
    assert (plan.lengths >= 1).all()
    assert (plan.starts >= before[plan.documents]).all()
    assert (plan.starts + plan.lengths <= before[plan.documents + 1]).all()
    assert (plan.sizes <= length).all()
    assert plan.counts["tokens_left_out"] == 0
    assert plan.counts["instances"] == len(plan)
    if form != "full":
        assert (np.diff(plan.part_offsets) == 1).all()


@given(documents=documents_, length=st.integers(8, 64), epoch=st.integers(0, 9))
def test_full_sentences_equal_those_of_a_loop(documents: list[list[int]], length: int, epoch: int) -> None:
    """In the loop a fragment starts a new instance only if it does not fit."""
    corpus = Corpus.from_lengths(documents)
    plan = plan_full(corpus, np.arange(len(documents)), length, epoch)
    order = list(dict.fromkeys(plan.documents.tolist()))  # as drawn
    begins = np.concatenate([[0], corpus.sentence_ends])
    max_tokens, instances, last = length - 2, [[]], None  # type: ignore[var-annotated]
    for document in order:
        for s in range(
            corpus.document_sentence_offsets[document], corpus.document_sentence_offsets[document + 1]
        ):
            size = int(begins[s + 1] - begins[s])
            parts = -(-size // max_tokens)
            for k in range(parts):
                round_up = s % 2 * (parts - 1)  # the longer parts of every other sentence are first
                a, b = (int(begins[s]) + (size * j + round_up) // parts for j in (k, k + 1))
                num_tokens = sum(e - s_ for s_, e in instances[-1]) + max(0, len(instances[-1]) - 1)
                needs_separator = last != document and bool(instances[-1])
                if num_tokens + (b - a) + needs_separator > max_tokens:
                    instances.append([[a, b]])
                elif needs_separator or not instances[-1]:
                    instances[-1].append([a, b])
                else:
                    instances[-1][-1][1] = b
                last = document
    planned = [
        [[int(s), int(s + n)] for s, n in zip(plan.starts[a:b], plan.lengths[a:b], strict=True)]
        for a, b in zip(plan.part_offsets[:-1], plan.part_offsets[1:], strict=True)
    ]
    assert planned == instances


def test_the_order_of_documents_differs_by_epoch() -> None:
    corpus = Corpus.from_lengths([[5, 9, 7]] * 50)
    orders = [
        tuple(dict.fromkeys(plan_full(corpus, np.arange(50), 32, e).documents.tolist())) for e in range(3)
    ]
    assert len(set(orders)) == 3
    assert sorted(orders[0]) == list(range(50))
    plan = plan_full(corpus, np.arange(50), 32, 0)
    assert (np.diff(plan.part_offsets) > 1).mean() > 0.5  # instances cross the ends of documents;
    doc = plan_doc_sentences(corpus, np.arange(50), max_length=32)
    assert len(doc) == 50  # these do not
