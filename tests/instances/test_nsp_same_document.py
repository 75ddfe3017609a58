"""`data.nsp_negatives=same_document`: NotNext's B is from A's own document, and never beside A."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np
import pytest
from numpy.typing import NDArray

import bertsmith as bs
import tiny_run
from bertsmith.errors import InputError
from bertsmith.instances.epoch_plan import IS_NEXT, NOT_NEXT, Plan, covered
from bertsmith.instances.segment_pairs import plan_pairs
from bertsmith.instances.settings import DataSettings

Ints = NDArray[np.int64]
ROOM = 61  # of 64 tokens


class Lengths:
    """Documents as the lengths of their sentences."""

    def __init__(self, documents: list[list[int]]) -> None:
        self.sentence_ends = np.cumsum([n for document in documents for n in document])
        self.document_sentences = np.concatenate([[0], np.cumsum([len(d) for d in documents])])
        self.sizes = [sum(document) for document in documents]


def drawn(number: int, seed: int, least: int = 1, most: int = 60) -> list[list[int]]:
    random = np.random.default_rng(seed)
    return [list(random.integers(2, 30, n)) for n in random.integers(least, most, number)]


def planned(documents: list[list[int]], partner: Literal["matched", "random"], *, sentences: bool) -> Plan:
    return plan_pairs(
        Lengths(documents),
        np.arange(len(documents)),
        length=64,
        seed=5,
        epoch=2,
        partner=partner,
        sentences=sentences,
        negatives="same_document",
    )


@pytest.mark.parametrize("partner", ["matched", "random"])
@pytest.mark.parametrize("sentences", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_a_random_second_segment_is_elsewhere_in_the_document(
    partner: Literal["matched", "random"], *, sentences: bool, seed: int
) -> None:
    documents = drawn(40, seed)
    corpus, plan = Lengths(documents), planned(documents, partner, sentences=sentences)
    bounds = np.concatenate([[0], np.cumsum(corpus.sizes)])
    away = plan.label == NOT_NEXT
    assert 0.4 < away.mean() < 0.6
    assert (plan.document == plan.partner).all()
    a, b = plan.a_start, plan.b_start
    a_end, b_end = a + plan.a_length, b + plan.b_length
    assert (bounds[plan.document] <= a).all()
    assert (b_end <= bounds[plan.document + 1]).all()
    assert (plan.a_length + plan.b_length <= ROOM).all()
    assert (np.minimum(plan.a_length, plan.b_length) > 0).all()
    before, behind = b_end[away] < a[away], a_end[away] < b[away]
    assert (before ^ behind).all()  # with a token or more in between
    assert before.any()
    assert behind.any()
    if partner == "matched":
        assert (a_end[~away] == b[~away]).all()
        halves = (plan.starts, plan.lengths)
        whole = planned(documents, partner, sentences=sentences)
        assert all(np.array_equal(x, y) for x, y in zip(halves, (whole.starts, whole.lengths), strict=True))


def test_matched_partners_leave_nothing_out_and_are_alike_in_length() -> None:
    """What is in the pairs is what their chunks were: only who has whose B changes."""
    documents = drawn(60, 1, least=30, most=90)
    plan, corpus = planned(documents, "matched", sentences=False), Lengths(documents)
    assert covered(plan.starts, plan.lengths) == corpus.sentence_ends[-1]
    assert plan.counts["tokens_left_out"] == plan.counts["tokens_cut"] == 0
    away = plan.label == NOT_NEXT
    assert abs(int(away.sum()) - len(away) / 2) <= 2
    means = [plan.b_length[side].mean() for side in (away, ~away)]
    assert means[0] == pytest.approx(means[1], rel=0.12)


def test_documents_too_short_for_it_are_all_is_next() -> None:
    """Two chunks are neighbours; a document of one sentence has no pair, and none borrows."""
    documents = [[20, 20, 20, 20, 20, 20], [20], [10, 10]]
    for partner in ("matched", "random"):
        plan = planned(documents[1:], partner, sentences=False)
        assert plan.label.tolist() == [IS_NEXT]
    assert planned(documents, "matched", sentences=False).counts["documents_left_out"] == 1


def test_one_document_is_enough(tmp_path: Path) -> None:
    sentences = [" ".join(tiny_run.WORDS[i % 30 : i % 30 + 6]) + "." for i in range(120)]
    (tmp_path / "one.txt").write_text(" ".join(sentences) + "\n")
    shards = bs.prepare([tmp_path / "one.txt"], tiny_run.tokenizer(), tmp_path / "shards", workers=1)
    settings = ["data.held_out=0", "train.max_steps=2"]
    with pytest.raises(InputError, match="at least two documents"):
        tiny_run.run(shards, tmp_path / "no", *settings)
    more = [*settings, "data.nsp_negatives=same_document"]
    found = tiny_run.run(shards, tmp_path / "run", *more).report["first_epoch"]
    assert abs(found["is_next"] - found["not_next"]) <= 4
    shown = [
        bs.show_instance(shards, i, nsp_negatives="same_document", sequence_length=32, held_out=0)
        for i in range(8)
    ]
    assert {one["label_means"] for one in shown if one["label_name"] == "NotNext"} == {
        "B is from elsewhere in A's document"
    }


def test_without_a_not_next_it_is_refused() -> None:
    with pytest.raises(InputError, match=r"sentence_task sop has no NotNext: leave data\.nsp_negatives out"):
        DataSettings.of({"sentence_task": "sop", "nsp_negatives": "same_document"}, "settings")
