"""The plan of an epoch: labels even and not to be guessed from lengths, negatives from elsewhere, no text lost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from sklearn.ensemble import HistGradientBoostingClassifier

from bertsmith.corpus.prepare import prepare
from bertsmith.errors import InputError
from bertsmith.instances.epoch_plan import IS_NEXT, NOT_NEXT, SWAPPED, Plan
from bertsmith.instances.segment_pairs import SentenceTask, plan_pairs
from bertsmith.tokenizer.tokenizer import Tokenizer

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Corpus:
    """What a plan reads of shards."""

    sentence_ends: Ints
    document_sentences: Ints

    @classmethod
    def of(cls, documents: Sequence[Sequence[int]]) -> Corpus:
        """From the lengths of each document's sentences."""
        lengths = np.array([n for document in documents for n in document], dtype=np.int64)
        counts = np.array([len(document) for document in documents], dtype=np.int64)
        return cls(np.cumsum(lengths), np.concatenate([[0], np.cumsum(counts)]))

    @property
    def owner(self) -> Ints:
        """The document of each token."""
        ends = np.concatenate([[0], self.sentence_ends])[self.document_sentences]
        return np.repeat(np.arange(len(ends) - 1), np.diff(ends))


def plan_of(documents: Sequence[Sequence[int]], length: int = 32, **more: float) -> tuple[Corpus, Plan]:
    corpus = Corpus.of(documents)
    given_: dict[str, float] = {"seed": 0, "epoch": 0} | more
    return corpus, plan_pairs(corpus, np.arange(len(documents)), length=length, **given_)  # type: ignore[arg-type]


def drawn(number: int, one_sentence: float, seed: int) -> list[list[int]]:
    """Documents as texts have them: a share of one sentence, the others of two to a dozen; lengths skewed."""
    random = np.random.default_rng(seed)
    sizes = np.where(random.random(number) < one_sentence, 1, random.integers(2, 13, number))
    return [list(np.clip(random.lognormal(2.2, 0.7, n).astype(int), 1, 80)) for n in sizes]


def covered(corpus: Corpus, plan: Plan) -> Ints:
    """How often each token of the corpus is used."""
    times = np.zeros(len(corpus.owner) + 1, dtype=np.int64)
    for start, length in ((plan.a_start, plan.a_length), (plan.b_start, plan.b_length)):
        np.add.at(times, start, 1)
        np.add.at(times, start + length, -1)
    return np.cumsum(times)[:-1]


def check(corpus: Corpus, plan: Plan, length: int) -> None:
    """What holds of every plan."""
    assert len(plan) > 0
    assert plan.a_length.min() >= 1
    assert plan.b_length.min() >= 1
    assert (plan.a_length + plan.b_length + 3).max() <= length
    owner = corpus.owner
    for start, size, whose in (
        (plan.a_start, plan.a_length, plan.document),
        (plan.b_start, plan.b_length, plan.partner),
    ):  # a segment lies within its document
        assert (owner[start] == whose).all()
        assert (owner[start + size - 1] == whose).all()
    follows = plan.a_start + plan.a_length == plan.b_start
    assert ((plan.label == IS_NEXT) == (plan.document == plan.partner)).all()
    assert follows[plan.label == IS_NEXT].all()
    assert set(np.unique(plan.label)) <= {IS_NEXT, NOT_NEXT}
    assert plan.counts["instances"] == len(plan)
    assert plan.counts["is_next"] == (plan.label == IS_NEXT).sum()
    assert plan.counts["not_next"] == (plan.label == NOT_NEXT).sum()
    missing = int((covered(corpus, plan) == 0).sum())
    assert plan.counts["tokens_left_out"] == missing
    assert (missing == 0) == (plan.counts["documents_left_out"] == 0)
    if not missing:
        assert not broken_sentences(corpus, plan, longest=(length - 3) // 2)


def broken_sentences(corpus: Corpus, plan: Plan, longest: int) -> int:
    """Sentences of up to `longest` tokens that stand whole in no part of an instance."""
    if not len(plan):
        return len(corpus.sentence_ends)
    order = np.argsort(plan.starts, kind="stable")
    reach = np.maximum.accumulate((plan.starts + plan.lengths)[order])
    begin = np.concatenate([[0], corpus.sentence_ends[:-1]])
    end = corpus.sentence_ends
    small = (end > begin) & (end - begin <= longest)
    at = np.searchsorted(plan.starts[order], begin[small], side="right") - 1
    return int(((at < 0) | (reach[np.maximum(at, 0)] < end[small])).sum())


sentence = st.integers(1, 90)
document = st.one_of(
    st.lists(sentence, min_size=1, max_size=1),
    st.lists(sentence, min_size=1, max_size=12),
    st.lists(st.just(1), min_size=1, max_size=30),
)


@given(
    documents=st.lists(document, min_size=2, max_size=14),
    length=st.integers(8, 64),
    seed=st.integers(0, 2**63 - 1),
    epoch=st.integers(0, 100),
    short=st.sampled_from([0.0, 0.1, 1.0]),
)
def test_any_corpus_of_two_documents_or_more_has_a_sound_plan(
    documents: list[list[int]], length: int, seed: int, epoch: int, short: float
) -> None:
    corpus, plan = plan_of(documents, length, seed=seed, epoch=epoch, short_share=short)
    check(corpus, plan, length)
    assert plan.counts["tokens_left_out"] == 0


@given(
    documents=st.lists(document, min_size=2, max_size=6),
    large=st.integers(30, 200),
    length=st.integers(8, 40),
)
def test_one_dominating_document(documents: list[list[int]], large: int, length: int) -> None:
    corpus, plan = plan_of([*documents, [7] * large], length)
    check(corpus, plan, length)
    assert plan.counts["tokens_left_out"] == 0
    one_fragment = plan.counts["documents_of_one_fragment"]
    assert abs((plan.label == NOT_NEXT).sum() - len(plan) / 2) <= 2 + one_fragment / 2


@given(
    documents=st.lists(st.lists(st.integers(0, 20), min_size=0, max_size=5), min_size=2, max_size=8).filter(
        lambda documents: sum(sum(d) > 0 for d in documents) >= 2
    ),
    length=st.integers(8, 32),
)
def test_empty_sentences_and_empty_documents_do_no_harm(documents: list[list[int]], length: int) -> None:
    corpus, plan = plan_of(documents, length)
    check(corpus, plan, length)


@given(chosen=st.sets(st.integers(0, 19), min_size=2), epoch=st.integers(0, 5))
def test_a_plan_of_some_documents_uses_those_only(chosen: set[int], epoch: int) -> None:
    corpus = Corpus.of(drawn(20, 0.3, seed=3))
    some = np.array(sorted(chosen))
    plan = plan_pairs(corpus, some, length=32, seed=0, epoch=epoch)
    used = np.union1d(plan.document, plan.partner)
    assert set(used) <= chosen
    assert set(used) == chosen


def test_fewer_than_two_documents_are_refused() -> None:
    for documents in ([], [[5, 5, 5]]):
        with pytest.raises(InputError, match="two documents"):
            plan_of(documents)


@pytest.mark.parametrize("one_sentence", [0.0, 0.2, 0.5])
def test_labels_are_even_and_no_text_is_lost(one_sentence: float) -> None:
    """On 200,000 tokens: half of each label, whatever the share of one-sentence documents."""
    documents = drawn(4000, one_sentence, seed=1)
    corpus, plan = plan_of(documents, 128)
    assert len(corpus.owner) > 100_000
    check(corpus, plan, 128)
    assert abs((plan.label == NOT_NEXT).mean() - 0.5) < 4 * 0.5 / len(plan) ** 0.5
    assert plan.counts["tokens_left_out"] == plan.counts["documents_left_out"] == 0
    assert plan.counts["tokens_cut"] == plan.counts["added_for_balance"] == 0


def test_more_one_sentence_documents_than_others_still_give_instances() -> None:
    for share in (0.8, 1.0):
        corpus, plan = plan_of(drawn(2000, share, seed=2), 64)
        check(corpus, plan, 64)
        assert plan.counts["documents_left_out"] == 0


@pytest.mark.parametrize("length", [32, 128])
@pytest.mark.parametrize("one_sentence", [0.0, 0.2, 0.5])
def test_lengths_do_not_tell_the_label(one_sentence: float, length: int) -> None:
    """A boosted forest on (|A|, |B|, |A| + |B|), trained on one corpus, guesses on another like a coin."""

    def seen(seed: int) -> tuple[Ints, Ints]:
        _, plan = plan_of(drawn(6000, one_sentence, seed), length, seed=seed)
        return np.stack([plan.a_length, plan.b_length, plan.a_length + plan.b_length], 1), plan.label

    features, labels = seen(11)
    others, truth = seen(12)
    forest = HistGradientBoostingClassifier(max_iter=60, random_state=0).fit(features, labels)
    accuracy = (forest.predict(others) == truth).mean()
    assert abs(accuracy - 0.5) < 4 * 0.5 / len(truth) ** 0.5


def test_lengths_do_not_tell_the_order() -> None:
    """Nor swapped from in order, where sentences are alike wherever they stand in a document."""

    def seen(seed: int) -> tuple[Ints, Ints]:
        corpus = Corpus.of(drawn(6000, 0.2, seed))
        plan = plan_pairs(corpus, np.arange(6000), length=64, seed=seed, epoch=0, task="sop")
        return np.stack([plan.a_length, plan.b_length], 1), plan.label

    features, labels = seen(21)
    others, truth = seen(22)
    forest = HistGradientBoostingClassifier(max_iter=60, random_state=0).fit(features, labels)
    accuracy = (forest.predict(others) == truth).mean()
    assert abs(accuracy - 0.5) < 4 * 0.5 / len(truth) ** 0.5


def test_a_plan_is_pure_and_differs_by_epoch_and_seed() -> None:
    documents = drawn(200, 0.2, seed=4)

    def rows(**more: float) -> list[tuple[int, ...]]:
        plan = plan_of(documents, 64, **more)[1]
        return list(
            zip(
                *(getattr(plan, k).tolist() for k in ("a_start", "b_start", "b_length", "label")), strict=True
            )
        )

    assert rows() == rows()
    assert rows(epoch=1) != rows()
    assert rows(seed=1) != rows()
    assert sorted(rows(epoch=1)) != sorted(rows())  # not only another order: other pairs
    partners = [set(rows(epoch=e)) for e in (0, 1)]
    assert len(partners[0] & partners[1]) < 0.5 * len(partners[0])


def test_two_documents_and_one_huge_document() -> None:
    """Balanced over epochs for the smallest corpus; half and half at once where one document is nearly all."""
    two = [[5, 6, 7], [4, 8]]
    not_next = 0
    instances = 0
    for epoch in range(400):
        corpus, plan = plan_of(two, 64, epoch=epoch)
        check(corpus, plan, 64)
        assert plan.counts["tokens_left_out"] == 0
        not_next += plan.counts["not_next"]
        instances += len(plan)
    # Labels of one epoch come in twos or more: the deviation is up to twice a coin's.
    assert abs(not_next - instances / 2) < 5 * instances**0.5
    huge = [*drawn(1, 0.0, 5), [9] * 20_000, [6, 5], [9, 9, 9]]
    corpus, plan = plan_of(huge, 64)
    check(corpus, plan, 64)
    assert plan.counts["tokens_left_out"] == 0
    assert abs((plan.label == NOT_NEXT).mean() - 0.5) < 0.01
    assert plan.counts["added_for_balance"] > 0


@given(
    documents=st.lists(document, min_size=1, max_size=14),
    length=st.integers(8, 64),
    epoch=st.integers(0, 100),
    task=st.sampled_from(["sop", "none"]),
    sentences=st.booleans(),
)
def test_order_and_pairs_without_a_question(
    documents: list[list[int]], length: int, epoch: int, task: SentenceTask, sentences: bool
) -> None:
    corpus = Corpus.of(documents)
    every = np.arange(len(documents))
    plan = plan_pairs(corpus, every, length=length, seed=1, epoch=epoch, task=task, sentences=sentences)
    one_token = sum(sum(d) == 1 for d in documents)
    assert plan.counts["documents_left_out"] == plan.counts["tokens_left_out"] == one_token
    assert int((covered(corpus, plan) == 0).sum()) == one_token
    assert broken_sentences(corpus, plan, (length - 3) // 2) <= sum(len(d) == 1 for d in documents)
    assert (plan.document == plan.partner).all()
    assert (plan.sizes <= length).all()
    assert plan.lengths.min(initial=1) >= 1
    swapped = plan.label == SWAPPED
    follows = plan.a_start + plan.a_length == plan.b_start
    leads = plan.b_start + plan.b_length == plan.a_start
    assert (follows == ~swapped).all()
    assert (leads == swapped).all()
    if task == "none":
        assert not swapped.any()
    else:
        assert abs(2 * int(swapped.sum()) - len(plan)) <= 1


@given(documents=st.lists(document, min_size=2, max_size=14), length=st.integers(8, 64))
def test_sentence_pairs_hold_one_sentence_each(documents: list[list[int]], length: int) -> None:
    corpus = Corpus.of(documents)
    plan = plan_pairs(corpus, np.arange(len(documents)), length=length, seed=0, epoch=0, sentences=True)
    check(corpus, plan, length)
    assert plan.counts["tokens_left_out"] == plan.counts["tokens_cut"] == 0
    begins = np.concatenate([[0], corpus.sentence_ends])
    sentence_of = np.searchsorted(begins, plan.starts, side="right")
    last = np.searchsorted(begins, plan.starts + plan.lengths - 1, side="right")
    assert (sentence_of == last).all()


def test_room_for_two_separators() -> None:
    corpus = Corpus.of(drawn(200, 0.2, seed=6))
    plan = plan_pairs(corpus, np.arange(200), length=64, seed=0, epoch=0, separators=2)
    assert plan.sizes.max() <= 64
    assert (plan.sizes == plan.a_length + plan.b_length + 4).all()


@pytest.mark.parametrize("length", [64, 128])
def test_the_sample_corpora_appear_whole(shared_data: Path, tmp_path: Path, length: int) -> None:
    vocabulary = shared_data / "vocabs"
    files = sorted((shared_data / "corpora" / "sample").glob("*.txt"))
    tokenizer = Tokenizer.load(
        next(vocabulary.rglob("*uncased*/vocab.txt"), next(vocabulary.rglob("vocab.txt")))
    )
    for file in files:
        shards = prepare([file], tokenizer, tmp_path / file.stem)
        for epoch in range(3):
            plan = plan_pairs(shards, np.arange(shards.documents), length=length, seed=0, epoch=epoch)
            assert plan.counts["tokens_left_out"] == plan.counts["tokens_cut"] == 0
            assert (plan.document != plan.partner).sum() == plan.counts["not_next"]
            assert not broken_sentences(shards, plan, (length - 3) // 2)
