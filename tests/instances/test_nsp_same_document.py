"""`data.nsp_sampling=same_document`: NotNext's B is from A's own document and not adjacent to A."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

import bertsmith as bs
import tiny_run
from bertsmith.errors import InputError
from bertsmith.instances.epoch_plan import IS_NEXT, NOT_NEXT, EpochPlan
from bertsmith.instances.segment_pairs import plan_pairs
from bertsmith.instances.settings import DataSettings

IntArray = NDArray[np.int64]
MAX_TOKENS = 61  # of 64


class Lengths:
    """Corpus with the lengths of the sentences of each document."""

    def __init__(self, documents: list[list[int]]) -> None:
        self.sentence_ends = np.cumsum([n for document in documents for n in document])
        self.document_sentence_offsets = np.concatenate([[0], np.cumsum([len(d) for d in documents])])
        self.duplicate_groups = np.arange(len(documents))
        self.sizes = [sum(document) for document in documents]


def draw_documents(
    number: int, seed: int, min_sentences: int = 1, max_sentences: int = 60
) -> list[list[int]]:
    random = np.random.default_rng(seed)
    return [list(random.integers(2, 30, n)) for n in random.integers(min_sentences, max_sentences, number)]


def plan_documents(documents: list[list[int]], *, sentences: bool) -> EpochPlan:
    return plan_pairs(
        Lengths(documents),
        np.arange(len(documents)),
        DataSettings(
            instances="sentence_pair" if sentences else "segment_pair", nsp_sampling="same_document"
        ),
        max_length=64,
        seed=5,
        epoch=2,
    )


@pytest.mark.parametrize("sentences", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_a_random_second_segment_is_elsewhere_in_the_document(*, sentences: bool, seed: int) -> None:
    documents = draw_documents(40, seed)
    corpus, plan = Lengths(documents), plan_documents(documents, sentences=sentences)
    bounds = np.concatenate([[0], np.cumsum(corpus.sizes)])
    is_random = plan.labels == NOT_NEXT
    assert 0.4 < is_random.mean() < 0.6
    assert (plan.a.documents == plan.b.documents).all()
    a, b = plan.a.starts, plan.b.starts
    a_end, b_end = a + plan.a.lengths, b + plan.b.lengths
    assert (bounds[plan.a.documents] <= a).all()
    assert (b_end <= bounds[plan.a.documents + 1]).all()
    assert (plan.a.lengths + plan.b.lengths <= MAX_TOKENS).all()
    assert (np.minimum(plan.a.lengths, plan.b.lengths) > 0).all()
    is_before, is_behind = b_end[is_random] < a[is_random], a_end[is_random] < b[is_random]
    assert (is_before ^ is_behind).all()  # with one or more tokens in between
    assert is_before.any()
    assert is_behind.any()
    again = plan_documents(documents, sentences=sentences)
    assert np.array_equal(plan.starts, again.starts)
    assert np.array_equal(plan.lengths, again.lengths)


def test_short_documents_are_all_is_next() -> None:
    """A document of one sentence has no pair; one of two sentences has no other B."""
    plan = plan_documents([[20], [10, 10]], sentences=False)
    assert plan.labels.tolist() == [IS_NEXT]
    assert plan.counts["documents_left_out"] == 1
    assert plan.counts["tokens_left_out"] == 20


def test_one_document_is_enough(tmp_path: Path) -> None:
    sentences = [" ".join(tiny_run.WORDS[i % 30 : i % 30 + 6]) + "." for i in range(120)]
    (tmp_path / "one.txt").write_text(" ".join(sentences) + "\n")
    shards = bs.prepare([tmp_path / "one.txt"], tiny_run.tokenizer(), tmp_path / "shards", workers=1)
    settings = ["data.validation_split=0", "train.max_steps=2"]
    with pytest.raises(InputError) as caught:
        tiny_run.run(shards, tmp_path / "no", *settings)
    assert caught.value.code == "too_few_documents"
    options = [*settings, "data.nsp_sampling=same_document"]
    counts = tiny_run.run(shards, tmp_path / "run", *options).report["first_epoch"]
    assert 0.3 < counts["is_next"] / counts["instances"] < 0.7
    instances = [
        bs.show_instance(shards, i, nsp_sampling="same_document", sequence_length=32, validation_split=0)
        for i in range(8)
    ]
    assert {instance["label_means"] for instance in instances if instance["label_name"] == "NotNext"} == {
        "B is from elsewhere in A's document"
    }


def test_another_sentence_task_has_no_negatives() -> None:
    with pytest.raises(InputError) as caught:
        DataSettings.of({"sentence_task": "sop", "nsp_sampling": "same_document"}, "settings")
    assert caught.value.code == "invalid_setting"
    assert "nsp_sampling" in caught.value.message
