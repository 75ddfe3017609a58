"""`data.partner=random`: the release's algorithm written out as its loop gives the same pairs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from bertsmith import rng
from bertsmith.errors import InputError
from bertsmith.instances.epoch_plan import IS_NEXT, NOT_NEXT
from bertsmith.instances.nsp_random import drawn_pairs
from bertsmith.instances.segment_pairs import plan_pairs
from bertsmith.instances.segments import fragments_of
from bertsmith.instances.settings import DataSettings

Ints = NDArray[np.int64]


class Lengths:
    """Documents as the lengths of their sentences."""

    def __init__(self, documents: list[list[int]]) -> None:
        self.sentence_ends = np.cumsum([n for document in documents for n in document])
        self.document_sentences = np.concatenate([[0], np.cumsum([len(d) for d in documents])])


def drawn(number: int, seed: int, most: int = 13) -> list[list[int]]:
    random = np.random.default_rng(seed)
    return [
        list(np.clip(random.lognormal(2.2, 0.7, n).astype(int), 1, 80))
        for n in random.integers(1, most, number)
    ]


def truncated(a: list[int], b: list[int], room: int, coins_a: list[bool], coins_b: list[bool]) -> None:
    """The release's `truncate_seq_pair`; which end loses a token comes from the coins."""
    while len(a) + len(b) > room:
        longer, coins = (a, coins_a) if len(a) > len(b) else (b, coins_b)
        if coins.pop():
            del longer[0]
        else:
            longer.pop()


def released(
    documents: list[list[int]], kin: Ints, room: int, seed: int, epoch: int, short_share: float
) -> list[tuple[list[int], list[int], bool]]:
    """`create_instances_from_document` for each document, with our draws: token positions of A and B, and whether
    B is random. Sentences are lists of their tokens' positions; a node is a sentence's number among all, each
    document counting one more."""
    at, node, texts, nodes = 0, 0, [], []
    for document in documents:
        texts.append([])
        nodes.append(node)
        for size in document:
            texts[-1].append(list(range(at, at + size)))
            at += size
        node += len(document) + 1
    pairs = []
    for number, text in enumerate(texts):
        target = room
        if rng.uniform(seed, "short", epoch, number) < short_share:
            target = 2 + int(rng.integers(seed, "target", room - 1, epoch, number))
        chunk: list[list[int]] = []
        i = 0
        while i < len(text):
            chunk.append(text[i])
            if i == len(text) - 1 or sum(map(len, chunk)) >= target:
                me = nodes[number] + i + 1 - len(chunk)
                a_end = 1
                if len(chunk) >= 2:
                    a_end += int(rng.integers(seed, "split", len(chunk) - 1, epoch, me))
                a = [token for sentence in chunk[:a_end] for token in sentence]
                b: list[int] = []
                away = len(chunk) == 1 or bool(rng.uniform(seed, "partner", epoch, me) < 0.5)
                if away:
                    target_b = target - len(a)
                    strangers = sorted(
                        (k for k in range(len(texts)) if kin[k] != kin[number]), key=lambda k: (kin[k], k)
                    )
                    other = texts[
                        strangers[int(float(rng.uniform(seed, "other", epoch, me)) * len(strangers))]
                    ]
                    start = int(rng.integers(seed, "place", len(other), epoch, me))
                    for sentence in other[start:]:
                        b += sentence
                        if len(b) >= target_b:
                            break
                    i -= len(chunk) - a_end
                else:
                    b = [token for sentence in chunk[a_end:] for token in sentence]
                coins = [
                    (rng.uniform(seed, f"front of {name}", epoch, me, np.arange(2000)) < 0.5).tolist()[::-1]
                    for name in "AB"
                ]
                truncated(a, b, room, coins[0], coins[1])
                pairs.append((a, b, away))
                chunk = []
            i += 1
    return pairs


@given(
    documents=st.lists(
        st.lists(st.one_of(st.integers(1, 12), st.integers(1, 90)), min_size=1, max_size=14),
        min_size=2,
        max_size=8,
    ),
    room=st.integers(5, 40),
    seed=st.integers(0, 2**32),
    short=st.sampled_from([0.0, 0.1, 1.0]),
    twins=st.booleans(),
)
def test_the_pairs_are_those_of_the_releases_loop(
    documents: list[list[int]], room: int, seed: int, short: float, twins: bool
) -> None:
    kin = np.arange(len(documents))
    if twins and len(documents) > 2:
        kin[-1] = 0
    corpus = Lengths(documents)
    found = drawn_pairs(
        fragments_of(corpus, np.arange(len(documents)), 1 << 62), kin, room, seed, 3, short, single=False
    )
    expected = released(documents, kin, room, seed, 3, short)
    assert (found.label == NOT_NEXT).tolist() == [away for _, _, away in expected]
    for k, segment in enumerate((found.a, found.b)):
        starts, sizes = segment[0].tolist(), segment[1].tolist()
        assert [list(range(s, s + n)) for s, n in zip(starts, sizes, strict=True)] == [e[k] for e in expected]


def test_half_the_pairs_are_not_next_and_none_is_empty_or_too_long() -> None:
    documents = drawn(3000, 1)
    corpus = Lengths(documents)
    plan = plan_pairs(corpus, np.arange(3000), length=128, seed=0, epoch=0, partner="random")
    assert plan.lengths.min() >= 1
    assert plan.sizes.max() == 128
    assert ((plan.label == IS_NEXT) == (plan.document == plan.partner)).all()
    assert plan.counts["not_next"] == (plan.label == NOT_NEXT).sum()
    alone = sum(len(document) == 1 for document in documents)
    left = len(plan) - alone  # those, and single sentences at a document's end, have no B of their own
    assert (plan.label == NOT_NEXT).sum() > alone + 0.5 * left - 5 * left**0.5
    follows = plan.label == IS_NEXT
    assert (plan.a_start + plan.a_length <= plan.b_start)[follows].all()


def test_any_document_is_drawn_alike_but_for_kin() -> None:
    kin = np.array([0, 1, 2, 1, 4, 0])
    corpus = Lengths([[5] * 4] * 6)
    times = np.zeros((6, 6))
    for epoch in range(3000):
        plan = plan_pairs(corpus, np.arange(6), length=16, seed=0, epoch=epoch, partner="random", kin=kin)
        away = plan.label == NOT_NEXT
        np.add.at(times, (plan.document[away], plan.partner[away]), 1)
    for own in range(6):
        others = np.flatnonzero(kin != kin[own])
        assert times[own].sum() == times[own, others].sum() > 1000
        expected = times[own].sum() / len(others)
        assert abs(times[own, others] - expected).max() < 5 * expected**0.5


def test_sentence_pairs_have_one_sentence_each() -> None:
    corpus = Lengths(drawn(300, 2))
    plan = plan_pairs(corpus, np.arange(300), length=200, seed=0, epoch=0, partner="random", sentences=True)
    ends = set(corpus.sentence_ends.tolist())
    starts = {0, *ends}
    assert set(plan.starts.tolist()) <= starts
    assert set((plan.starts + plan.lengths).tolist()) <= ends
    begins = np.concatenate([[0], corpus.sentence_ends])
    first = np.searchsorted(begins, plan.starts, side="right")
    assert (first == np.searchsorted(begins, plan.starts + plan.lengths - 1, side="right")).all()


def test_it_is_a_choice_of_next_sentence_pairs_only() -> None:
    for task in ("sop", "none"):
        with pytest.raises(InputError, match="partner random chooses NotNext"):
            DataSettings.of({"partner": "random", "sentence_task": task}, "test")
