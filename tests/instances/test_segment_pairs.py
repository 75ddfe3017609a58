"""Plans of pairs: negatives from other documents, complete text, and sentence order."""

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
from bertsmith.instances.epoch_plan import IS_NEXT, NOT_NEXT, SWAPPED, EpochPlan
from bertsmith.instances.segment_pairs import plan_pairs
from bertsmith.instances.settings import DataSettings
from bertsmith.tokenizer.tokenizer import Tokenizer

IntArray = NDArray[np.int64]


@dataclass(frozen=True)
class Corpus:
    """The part of shards that plans read."""

    sentence_ends: IntArray
    document_sentence_offsets: IntArray

    @classmethod
    def from_lengths(cls, documents: Sequence[Sequence[int]]) -> Corpus:
        """Make a corpus from the lengths of each document's sentences."""
        lengths = np.array([n for document in documents for n in document], dtype=np.int64)
        counts = np.array([len(document) for document in documents], dtype=np.int64)
        return cls(np.cumsum(lengths), np.concatenate([[0], np.cumsum(counts)]))

    @property
    def duplicate_groups(self) -> IntArray:
        """Return a group of its own for each document."""
        return np.arange(len(self.document_sentence_offsets) - 1)

    @property
    def owner(self) -> IntArray:
        """Return the document of each token."""
        ends = np.concatenate([[0], self.sentence_ends])[self.document_sentence_offsets]
        return np.repeat(np.arange(len(ends) - 1), np.diff(ends))


def plan_of(
    documents: Sequence[Sequence[int]], length: int = 32, **arguments: float
) -> tuple[Corpus, EpochPlan]:
    corpus = Corpus.from_lengths(documents)
    numbers = {name: arguments.pop(name, 0) for name in ("seed", "epoch")}
    settings = DataSettings.of(arguments, "test")
    return corpus, plan_pairs(corpus, np.arange(len(documents)), settings, max_length=length, **numbers)  # type: ignore[arg-type]


def draw_documents(number: int, one_sentence: float, seed: int) -> list[list[int]]:
    """Draw documents, some with one sentence, the others with 2 to 12; lengths are log-normal."""
    random = np.random.default_rng(seed)
    sizes = np.where(random.random(number) < one_sentence, 1, random.integers(2, 13, number))
    return [list(np.clip(random.lognormal(2.2, 0.7, n).astype(int), 1, 80)) for n in sizes]


def count_uses(corpus: Corpus, plan: EpochPlan) -> IntArray:
    """Return how often each token of the corpus is used."""
    changes = np.zeros(len(corpus.owner) + 1, dtype=np.int64)
    for start, length in ((plan.a.starts, plan.a.lengths), (plan.b.starts, plan.b.lengths)):
        np.add.at(changes, start, 1)
        np.add.at(changes, start + length, -1)
    return np.cumsum(changes)[:-1]


def check_plan(corpus: Corpus, plan: EpochPlan, length: int) -> None:
    """Assert the properties of every plan of next-sentence pairs."""
    assert len(plan) > 0
    assert plan.a.lengths.min() >= 1
    assert plan.b.lengths.min() >= 1
    assert (plan.a.lengths + plan.b.lengths + 3).max() <= length
    owner = corpus.owner
    for start, size, document in (
        (plan.a.starts, plan.a.lengths, plan.a.documents),
        (plan.b.starts, plan.b.lengths, plan.b.documents),
    ):  # a segment is within its document
        assert (owner[start] == document).all()
        assert (owner[start + size - 1] == document).all()
    follows = plan.a.starts + plan.a.lengths <= plan.b.starts
    assert ((plan.labels == IS_NEXT) == (plan.a.documents == plan.b.documents)).all()
    assert follows[plan.labels == IS_NEXT].all()
    assert set(np.unique(plan.labels)) <= {IS_NEXT, NOT_NEXT}
    assert plan.counts["instances"] == len(plan)
    assert plan.counts["is_next"] == (plan.labels == IS_NEXT).sum()
    assert plan.counts["not_next"] == (plan.labels == NOT_NEXT).sum()
    assert plan.counts["tokens_left_out"] == (count_uses(corpus, plan) == 0).sum()
    assert plan.counts["documents_left_out"] == 0


def count_broken_sentences(corpus: Corpus, plan: EpochPlan, max_tokens: int) -> int:
    """Count sentences of at most `max_tokens` tokens that are in no part as a whole."""
    if not len(plan):
        return len(corpus.sentence_ends)
    order = np.argsort(plan.starts, kind="stable")
    covered_until = np.maximum.accumulate((plan.starts + plan.lengths)[order])
    begin = np.concatenate([[0], corpus.sentence_ends[:-1]])
    end = corpus.sentence_ends
    is_short = (end > begin) & (end - begin <= max_tokens)
    index = np.searchsorted(plan.starts[order], begin[is_short], side="right") - 1
    return int(((index < 0) | (covered_until[np.maximum(index, 0)] < end[is_short])).sum())


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
    short_seq_prob=st.sampled_from([0.0, 0.1, 1.0]),
)
def test_plans_of_any_corpus_of_two_documents_or_more(
    documents: list[list[int]], length: int, seed: int, epoch: int, short_seq_prob: float
) -> None:
    corpus, plan = plan_of(documents, length, seed=seed, epoch=epoch, short_seq_prob=short_seq_prob)
    check_plan(corpus, plan, length)


@given(
    documents=st.lists(document, min_size=2, max_size=6),
    large=st.integers(30, 200),
    length=st.integers(8, 40),
)
def test_one_dominating_document(documents: list[list[int]], large: int, length: int) -> None:
    corpus, plan = plan_of([*documents, [7] * large], length)
    check_plan(corpus, plan, length)


@given(
    documents=st.lists(st.lists(st.integers(0, 20), min_size=0, max_size=5), min_size=2, max_size=8).filter(
        lambda documents: sum(sum(d) > 0 for d in documents) >= 2
    ),
    length=st.integers(8, 32),
)
def test_empty_sentences_and_empty_documents(documents: list[list[int]], length: int) -> None:
    corpus, plan = plan_of(documents, length)
    check_plan(corpus, plan, length)


@given(selected=st.sets(st.integers(0, 19), min_size=2), epoch=st.integers(0, 5))
def test_a_plan_uses_only_the_given_documents(selected: set[int], epoch: int) -> None:
    corpus = Corpus.from_lengths(draw_documents(20, 0.3, seed=3))
    documents = np.array(sorted(selected))
    plan = plan_pairs(corpus, documents, DataSettings(), max_length=32, seed=0, epoch=epoch)
    used = np.union1d(plan.a.documents, plan.b.documents)
    assert set(used) <= selected
    assert set(used) == selected


def test_fewer_than_two_documents() -> None:
    for documents in ([], [[5, 5, 5]], [[5, 5], [0]]):
        with pytest.raises(InputError) as caught:
            plan_of(documents)
        assert caught.value.code == "too_few_documents"


def test_more_one_sentence_documents_than_others_still_give_instances() -> None:
    for share in (0.8, 1.0):
        corpus, plan = plan_of(draw_documents(2000, share, seed=2), 64)
        check_plan(corpus, plan, 64)


def test_lengths_do_not_tell_the_order() -> None:
    """Boosted trees on (|A|, |B|), trained on one corpus, guess on another like a coin, where sentences are alike
    wherever they are in a document."""

    def lengths_and_labels(seed: int) -> tuple[IntArray, IntArray]:
        corpus = Corpus.from_lengths(draw_documents(6000, 0.2, seed))
        plan = plan_pairs(
            corpus, np.arange(6000), DataSettings(sentence_task="sop"), max_length=64, seed=seed, epoch=0
        )
        return np.stack([plan.a.lengths, plan.b.lengths], 1), plan.labels

    features, labels = lengths_and_labels(21)
    test_features, test_labels = lengths_and_labels(22)
    forest = HistGradientBoostingClassifier(max_iter=60, random_state=0).fit(features, labels)
    accuracy = (forest.predict(test_features) == test_labels).mean()
    assert abs(accuracy - 0.5) < 4 * 0.5 / len(test_labels) ** 0.5


def test_a_plan_is_pure_and_differs_by_epoch_and_seed() -> None:
    documents = draw_documents(200, 0.2, seed=4)

    def rows(**arguments: float) -> list[tuple[int, ...]]:
        plan = plan_of(documents, 64, **arguments)[1]
        return list(
            zip(
                *(column.tolist() for column in (plan.a.starts, plan.b.starts, plan.b.lengths, plan.labels)),
                strict=True,
            )
        )

    assert rows() == rows()
    assert rows(epoch=1) != rows()
    assert rows(seed=1) != rows()
    assert sorted(rows(epoch=1)) != sorted(rows())  # other pairs, not only another order
    partners = [set(rows(epoch=e)) for e in (0, 1)]
    assert len(partners[0] & partners[1]) < 0.5 * len(partners[0])


def test_two_documents_and_one_huge_document() -> None:
    for epoch in range(400):
        corpus, plan = plan_of([[5, 6, 7], [4, 8]], 64, epoch=epoch)
        check_plan(corpus, plan, 64)
    corpus, plan = plan_of([*draw_documents(1, 0.0, 5), [9] * 20_000, [6, 5], [9, 9, 9]], 64)
    check_plan(corpus, plan, 64)


@given(
    documents=st.lists(document, min_size=1, max_size=14),
    length=st.integers(8, 64),
    epoch=st.integers(0, 100),
    task=st.sampled_from(["sop", "none"]),
    sentences=st.booleans(),
)
def test_sentence_order_and_pairs_without_a_label(
    documents: list[list[int]], length: int, epoch: int, task: str, sentences: bool
) -> None:
    corpus = Corpus.from_lengths(documents)
    all_documents = np.arange(len(documents))
    instances = "sentence_pair" if sentences else "segment_pair"
    settings = DataSettings.of({"sentence_task": task, "instances": instances}, "test")
    plan = plan_pairs(corpus, all_documents, settings, max_length=length, seed=1, epoch=epoch)
    one_token = sum(sum(d) == 1 for d in documents)
    assert plan.counts["documents_left_out"] == plan.counts["tokens_left_out"] == one_token
    assert int((count_uses(corpus, plan) == 0).sum()) == one_token
    assert count_broken_sentences(corpus, plan, (length - 3) // 2) <= sum(len(d) == 1 for d in documents)
    assert (plan.a.documents == plan.b.documents).all()
    assert (plan.sizes <= length).all()
    assert plan.lengths.min(initial=1) >= 1
    swapped = plan.labels == SWAPPED
    follows = plan.a.starts + plan.a.lengths == plan.b.starts
    leads = plan.b.starts + plan.b.lengths == plan.a.starts
    assert (follows == ~swapped).all()
    assert (leads == swapped).all()
    if task == "none":
        assert not swapped.any()
    else:
        assert abs(2 * int(swapped.sum()) - len(plan)) <= 1


@given(documents=st.lists(document, min_size=2, max_size=14), length=st.integers(8, 64))
def test_sentence_pairs_hold_one_sentence_each(documents: list[list[int]], length: int) -> None:
    corpus = Corpus.from_lengths(documents)
    plan = plan_pairs(
        corpus,
        np.arange(len(documents)),
        DataSettings(instances="sentence_pair"),
        max_length=length,
        seed=0,
        epoch=0,
    )
    check_plan(corpus, plan, length)
    begins = np.concatenate([[0], corpus.sentence_ends])
    sentence_of = np.searchsorted(begins, plan.starts, side="right")
    last = np.searchsorted(begins, plan.starts + plan.lengths - 1, side="right")
    assert (sentence_of == last).all()


def test_two_separators() -> None:
    corpus = Corpus.from_lengths(draw_documents(200, 0.2, seed=6))
    plan = plan_pairs(
        corpus, np.arange(200), DataSettings(), max_length=64, seed=0, epoch=0, num_separators=2
    )
    assert plan.sizes.max() <= 64
    assert (plan.sizes == plan.a.lengths + plan.b.lengths + 4).all()


@pytest.mark.parametrize("length", [64, 128])
def test_the_sample_corpora_are_complete(shared_data: Path, tmp_path: Path, length: int) -> None:
    vocabulary = shared_data / "vocabs"
    files = sorted((shared_data / "corpora" / "sample").glob("*.txt"))
    tokenizer = Tokenizer.load(
        next(vocabulary.rglob("*uncased*/vocab.txt"), next(vocabulary.rglob("vocab.txt")))
    )
    for file in files:
        shards = prepare([file], tokenizer, tmp_path / file.stem)
        all_documents = np.arange(shards.documents)
        for epoch in range(3):
            pairs = plan_pairs(shards, all_documents, DataSettings(), max_length=length, seed=0, epoch=epoch)
            assert (pairs.a.documents != pairs.b.documents).sum() == pairs.counts["not_next"]
            assert pairs.counts["documents_left_out"] == 0
            plan = plan_pairs(
                shards,
                all_documents,
                DataSettings(sentence_task="sop"),
                max_length=length,
                seed=0,
                epoch=epoch,
            )
            assert plan.counts["tokens_left_out"] == plan.counts["tokens_cut"] == 0
            assert not count_broken_sentences(shards, plan, (length - 3) // 2)
