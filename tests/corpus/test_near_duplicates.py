"""Near duplicates are grouped; they yield no NotNext segments and stay on one side of the validation split."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

import tiny_run
from bertsmith.corpus.checks.check import CheckOptions, check_files
from bertsmith.corpus.near_duplicates import DEFAULT_THRESHOLD, duplicate_groups, minhash_signatures
from bertsmith.corpus.prepare import prepare
from bertsmith.corpus.shards import Shards, document_hash
from bertsmith.errors import InputError
from bertsmith.instances.batches import InstanceStream
from bertsmith.instances.epoch_plan import NOT_NEXT, concat_ranges
from bertsmith.instances.holdout_split import DocumentSplit
from bertsmith.instances.segment_pairs import plan_pairs
from bertsmith.instances.settings import DataSettings

IntArray = NDArray[np.int64]


class Texts:
    """Documents of token ids with the interface of shards; each sentence has at most ten tokens."""

    def __init__(
        self,
        documents: Sequence[Sequence[int]],
        hashes: Sequence[int] | None = None,
        threshold: float = DEFAULT_THRESHOLD,
    ) -> None:
        self.ids = np.array([i for document in documents for i in document], dtype=np.int64)
        sizes = np.array([len(document) for document in documents])
        ends = [[*range(10, n, 10), n] for n in sizes.tolist()]
        starts = np.cumsum(sizes) - sizes
        self.sentence_ends = np.concatenate([np.array(e) + s for e, s in zip(ends, starts, strict=True)])
        self.document_sentence_offsets = np.concatenate([[0], np.cumsum([len(e) for e in ends])])
        true_hashes = [document_hash(np.array(document, dtype=np.int64)) for document in documents]
        self.hashes = np.array(hashes or true_hashes, dtype=np.uint64)
        signatures = minhash_signatures([" ".join(map(str, document)).encode() for document in documents])
        self.duplicate_groups = duplicate_groups(self.hashes, signatures, threshold)

    def copy_spans(self, starts: IntArray, lengths: IntArray, out: IntArray, target_starts: IntArray) -> None:
        out[concat_ranges(target_starts, lengths)] = self.ids[concat_ranges(starts, lengths)]


def text(size: int, seed: int, vocabulary: int = 5000) -> list[int]:
    """Return random token ids; small ids are frequent, like words in texts."""
    draw = np.random.default_rng(seed)
    return (vocabulary * draw.random(size) ** 3).astype(int).tolist()


def nearly(document: list[int], share: float, seed: int) -> list[int]:
    """Return the document with a fraction of its tokens replaced."""
    draw = random.Random(seed)
    return [draw.randrange(5000) if draw.random() < share else token for token in document]


def overlap(a: Sequence[int], b: Sequence[int]) -> float:
    """Return the Jaccard similarity of the 5-grams."""
    one, two = ({tuple(x[i : i + 5]) for i in range(len(x) - 4)} for x in (a, b))
    return len(one & two) / max(1, len(one | two))


@pytest.mark.parametrize(("size", "share"), [(40, 0.01), (200, 0.02), (900, 0.04), (20_000, 0.05)])
def test_near_duplicates_are_grouped_and_other_documents_are_not(size: int, share: float) -> None:
    number = 60 if size < 20_000 else 12
    first = [text(size, seed) for seed in range(number)]
    twins = [nearly(document, share, seed) for seed, document in enumerate(first)]
    assert min(overlap(a, b) for a, b in zip(first, twins, strict=True)) > 0.55
    assert Texts([*first, *twins]).duplicate_groups.tolist() == [*range(number)] * 2


@pytest.mark.parametrize("threshold", [0.3, 0.4, 0.5, 0.6, 0.7, 0.8])
def test_documents_above_the_threshold_are_grouped(threshold: float) -> None:
    """Similarities differ from the threshold by three standard deviations of the estimate.

    Below a similarity of 0.5, one pair in twenty may agree in no band and so be no candidate.
    """
    first = [text(600, seed) for seed in range(150)]
    num_above = num_below = num_missed = 0
    for share in (0.01, 0.02, 0.05, 0.08, 0.2, 0.3):
        twins = [nearly(document, share, seed) for seed, document in enumerate(first)]
        similarities = np.array([overlap(a, b) for a, b in zip(first, twins, strict=True)])
        is_grouped = Texts([*first, *twins], threshold=threshold).duplicate_groups[150:] == np.arange(150)
        is_above, is_below = similarities > threshold + 0.135, similarities < threshold - 0.135
        num_missed += int((is_above & ~is_grouped).sum())
        assert not is_grouped[is_below].any()
        num_above += int(is_above.sum())
        num_below += int(is_below.sum())
    assert num_missed <= (0.05 * num_above if threshold < 0.4 else 0)
    assert num_above > 20
    assert num_below > 100


def test_groups_are_transitive_and_contain_equal_hashes() -> None:
    """A chain of small changes; and the parts of a document that was too long for one row, which share a hash."""
    chain = [text(400, 0)]
    for step in range(6):
        chain.append(nearly(chain[-1], 0.03, step))
    assert overlap(chain[0], chain[-1]) < 0.45
    parts = [text(300, 1), text(300, 2)]
    documents = [*chain, *parts, text(400, 9)]
    hashes = [*range(100, 107), 7, 7, 8]
    assert Texts(documents, hashes).duplicate_groups.tolist() == [0] * 7 + [7, 7, 9]
    assert Texts(documents, hashes, threshold=1).duplicate_groups.tolist() == [*range(8), 7, 9]


@given(documents=st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=4), min_size=1, max_size=8))
def test_tiny_documents_are_grouped_if_equal(documents: list[list[int]]) -> None:
    groups = Texts(documents).duplicate_groups
    for i, a in enumerate(documents):
        assert groups[i] <= i
        assert groups[groups[i]] == groups[i]
        for j, b in enumerate(documents):
            if a == b:
                assert groups[i] == groups[j]


def test_batches_do_not_change_the_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    first = [text(size, seed) for seed, size in enumerate((3, 50, 700, 9, 2000, 31))]
    documents = [*first, *(nearly(document, 0.02, 5) for document in first)]
    expected = Texts(documents).duplicate_groups
    monkeypatch.setattr("bertsmith.corpus.near_duplicates._BATCH_BYTES", 64)
    monkeypatch.setattr("bertsmith.corpus.near_duplicates._BATCH_PAIRS", 1)
    assert Texts(documents).duplicate_groups.tolist() == expected.tolist()


def test_case_punctuation_and_spaces_are_ignored_and_other_scripts_are_compared() -> None:
    texts = ["The cat, 1 km on: über", "the CAT 1 km\n(on) über", "the dog 1 km on über"]
    texts += ["猫在垫子上面睡觉", "猫在垫子上面吃饭", "Γάτα πάνω στο χαλί τώρα", "Γάτα πάνω στο χαλί αύριο"]
    signatures = minhash_signatures([part.encode() for part in texts])
    assert (signatures[0] == signatures[1]).all()
    for a, b in ((0, 2), (3, 4), (5, 6)):
        assert 0 <= (signatures[a] == signatures[b]).mean() < 0.6


@pytest.mark.parametrize("threshold", [0, -0.5, 1.01, float("nan")])
def test_a_threshold_out_of_range_is_refused(tmp_path: Path, threshold: float) -> None:
    (tmp_path / "corpus.txt").write_text("a b c\n")
    files = [tmp_path / "corpus.txt"]
    with pytest.raises(InputError) as caught:
        prepare(files, tiny_run.tokenizer(), tmp_path / "shards", near_duplicate_threshold=threshold)
    assert (caught.value.code, caught.value.argument) == (
        "threshold_out_of_range",
        "near_duplicate_threshold",
    )
    assert not (tmp_path / "shards").exists()
    with pytest.raises(InputError) as caught:
        check_files(files, CheckOptions(near_duplicate_threshold=threshold))
    assert caught.value.code == "threshold_out_of_range"


def test_prepare_drops_what_the_check_reports(tmp_path: Path) -> None:
    first = [text(80, seed) for seed in range(100)]
    twins = [nearly(document, 0.001 * seed, seed) for seed, document in enumerate(first)]
    words = tiny_run.WORDS
    texts = [" ".join(words[i % len(words)] for i in document) for document in [*first, *twins]]
    (tmp_path / "corpus.txt").write_text("\n\n".join(texts))
    files = [tmp_path / "corpus.txt"]
    reported = check_files(files)["duplicates"]
    num_reported = reported["exact"]["number"] + reported["near"]["number"]
    shards = prepare(files, tiny_run.tokenizer(), tmp_path / "shards", deduplicate="near", workers=1)
    assert 20 < num_reported < 95
    assert shards.documents == 200 - num_reported


# --- The use of the groups ----------------------------------------------------------------------------------


def corpus_of_twins(folder: Path, number: int = 60, changed: int = 1) -> Shards:
    """Documents of which each comes twice, the second time with a word or so changed."""
    draw = random.Random(3)
    texts = tiny_run.corpus(number, seed=8).strip().split("\n\n")
    texts = [" ".join(texts[k : k + 4]) for k in range(0, number, 4)] * 2
    for k in range(len(texts) // 2, len(texts)):
        words = texts[k].split()
        for _ in range(changed):
            words[draw.randrange(len(words))] = draw.choice(tiny_run.WORDS)
        texts[k] = " ".join(words)
    folder.mkdir(exist_ok=True)
    (folder / "corpus.txt").write_text("\n\n".join(texts) + "\n", encoding="utf-8")
    return prepare([folder / "corpus.txt"], tiny_run.tokenizer(), folder / "shards", workers=1)


@pytest.fixture(scope="module")
def twins(tmp_path_factory: pytest.TempPathFactory) -> Shards:
    return corpus_of_twins(tmp_path_factory.mktemp("twins"))


@pytest.mark.parametrize("changed", [0, 1])
def test_no_not_next_comes_from_a_twin(tmp_path: Path, changed: int) -> None:
    shards = corpus_of_twins(tmp_path, changed=changed)
    half = shards.documents // 2
    stream = InstanceStream(shards, np.arange(2 * half), shards.tokenizer, DataSettings(), length=32, seed=0)
    not_next = 0
    for epoch in range(20):
        plan = stream.plan(epoch)
        away = plan.labels == NOT_NEXT
        assert not (plan.a.documents % half == plan.b.documents % half)[away].any()
        not_next += int(away.sum())
    assert not_next > 1000


def test_twins_stay_on_one_side(twins: Shards) -> None:
    half = twins.documents // 2
    for share in (0.1, 0.3, 0.6):
        split = DocumentSplit.from_settings(twins, DataSettings.of({"validation_split": share}, "test"))
        assert len(split.train)
        assert len(split.validation)
        assert set(split.train % half).isdisjoint(split.validation % half)


def test_more_twins_than_are_to_be_held_out_are_trained_on() -> None:
    """Else a corpus of many near copies could lose a third of itself to the held-out side."""
    near = [nearly(text(400, 0), 0.02, seed) for seed in range(30)]
    others = [text(100, seed) for seed in range(1, 71)]
    split = DocumentSplit.from_settings(
        Texts([*near, *others]), DataSettings.of({"validation_split": 0.2}, "test")
    )
    assert set(range(30)) <= set(split.train.tolist())
    assert abs(len(split.validation) - 0.2 * 70) < 14


def test_the_share_held_out_of_twins_is_the_share_asked() -> None:
    pairs = [text(120, seed) for seed in range(3000)]
    corpus = Texts([*pairs, *(nearly(document, 0.02, seed) for seed, document in enumerate(pairs))])
    split = DocumentSplit.from_settings(corpus, DataSettings.of({"validation_split": 0.2}, "test"))
    assert np.unique(corpus.duplicate_groups).size < 3100
    assert abs(len(split.validation) - 0.2 * 6000) < 5 * 2 * (3000 * 0.2 * 0.8) ** 0.5


def test_where_all_documents_are_twins_it_is_said() -> None:
    near = Texts([nearly(text(400, 0), 0.02, seed) for seed in range(5)])
    for data in ({}, {"validation_split": 0.0}):
        with pytest.raises(InputError) as caught:
            DocumentSplit.from_settings(near, DataSettings.of(data, "test"))
        assert caught.value.code == "too_few_documents"
    with pytest.raises(InputError) as caught:
        plan_pairs(near, np.arange(5), DataSettings(), max_length=32, seed=0, epoch=0)
    assert caught.value.code == "too_few_documents"
    equal_only = Texts([nearly(text(400, 0), 0.02, seed) for seed in range(5)], threshold=1)
    settings = DataSettings.of({"validation_split": 0.2}, "test")
    assert len(DocumentSplit.from_settings(equal_only, settings).validation) >= 2
    with pytest.raises(InputError) as caught:
        DocumentSplit.from_settings(near, DataSettings(), allow_empty_validation=True)
    assert caught.value.code == "too_few_documents"


def test_the_summary_of_a_split(twins: Shards) -> None:
    settings = DataSettings.of({"validation_split": 0.9}, "test")
    split = DocumentSplit.from_settings(twins, settings)
    lines = list(split.describe(twins, settings))
    assert f"validation split: {len(split.validation)} documents" in lines[0]
    assert f"{twins.documents} documents have exact or near-duplicates" in lines[1]
    assert "NotNext" in lines[1]
    assert "data.validation_split is 0.9" in lines[2]
    plain = DataSettings.of({"sentence_task": "none"}, "test")
    assert len(list(DocumentSplit.from_settings(twins, plain).describe(twins, plain))) == 2


def test_less_text_is_a_part_of_more_and_the_held_out_side_stays() -> None:
    corpus = Texts([[i, i + 1, i + 2, i + 3] for i in range(0, 1000, 4)])
    splits = {
        share: DocumentSplit.from_settings(
            corpus, DataSettings.of({"validation_split": 0.2, "train_fraction": share}, "test")
        )
        for share in (1.0, 0.5, 0.1, 1e-6)
    }
    every = splits[1.0].train
    assert [len(split.train) for split in splits.values()] == [
        len(every),
        round(0.5 * len(every)),
        round(0.1 * len(every)),
        2,
    ]
    for more, less in pairwise(splits.values()):
        assert {*less.train} < {*more.train}
        assert less.validation.tolist() == more.validation.tolist()
    told = [
        *splits[0.1].describe(
            corpus, DataSettings.of({"validation_split": 0.2, "train_fraction": 0.1}, "test")
        )
    ]
    assert told[0].startswith("250 documents, 1,000 tokens")
    assert f"training on {len(splits[0.1].train)} documents" in told[0]
