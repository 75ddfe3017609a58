"""Batches: framing, segments, labels; any batch of any epoch from two integers; who is held out."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import tiny_run
from bertsmith.corpus.shards import Shards
from bertsmith.errors import InputError
from bertsmith.instances.batches import PairStream, SpecialIds, check_segments, special_ids, token_counts
from bertsmith.instances.holdout_split import split_documents
from bertsmith.instances.settings import DataSettings

TOKENIZER = tiny_run.tokenizer()
IDS = special_ids(
    TOKENIZER.cls_id,
    TOKENIZER.sep_id,
    TOKENIZER.mask_id,
    sorted(TOKENIZER.special_ids),
    TOKENIZER.vocab_size,
)


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Shards:
    return tiny_run.make_shards(tmp_path_factory.mktemp("corpus"), documents=80)


def stream_of(shards: Shards, seed: int = 0, length: int = 32, **data: object) -> PairStream:
    settings = DataSettings.of(data, "test")
    return PairStream(shards, np.arange(shards.documents), IDS, settings, length=length, seed=seed)


def sequences(stream: PairStream, epoch: int = 0, size: int = 7) -> Iterator[tuple[list[int], ...]]:
    """Each instance of an epoch: masked ids, segments, positions, original ids."""
    for start in range(0, stream.size(epoch), size):
        batch = stream.batch(epoch, start, start + size)
        original = batch.packed.tokens.clone()
        original[batch.rows] = batch.labels
        ends = batch.packed.starts.tolist()
        for a, b in itertools.pairwise(ends):
            columns = (batch.packed.tokens, batch.packed.segments, batch.packed.positions, original)
            yield tuple(column[a:b].tolist() for column in columns)


def test_each_instance_is_framed_as_the_paper_has_it(shards: Shards) -> None:
    stream = stream_of(shards)
    plan = stream.plan(0)
    text = shards.take(np.arange(shards.tokens)).tolist()
    for i, (masked, segments, positions, original) in enumerate(sequences(stream)):
        a, b = int(plan.a_length[i]), int(plan.b_length[i])
        start, second = int(plan.a_start[i]), int(plan.b_start[i])
        assert original == [
            TOKENIZER.cls_id, *text[start : start + a], TOKENIZER.sep_id, *text[second : second + b],
            TOKENIZER.sep_id,
        ]  # fmt: skip
        assert segments == [0] * (a + 2) + [1] * (b + 1)
        assert positions == list(range(a + b + 3))
        assert [masked[0], masked[a + 1], masked[-1]] == [
            TOKENIZER.cls_id,
            TOKENIZER.sep_id,
            TOKENIZER.sep_id,
        ]
    assert i + 1 == stream.size(0)


def test_labels_say_whether_the_text_goes_on(shards: Shards) -> None:
    stream = stream_of(shards)
    plan = stream.plan(0)
    batch = stream.batch(0, 0, stream.size(0))
    assert (batch.pair_labels.numpy() == plan.label).all()
    goes_on = plan.a_start + plan.a_length == plan.b_start
    same = plan.document == plan.partner
    assert ((batch.pair_labels.numpy() == 0) == (goes_on & same)).all()
    assert batch.pair_labels.dtype == batch.labels.dtype == torch.long


@given(start=st.integers(0, 90), size=st.integers(1, 40), epoch=st.integers(0, 3))
def test_a_batch_is_a_cut_of_its_epoch(start: int, size: int, epoch: int) -> None:
    stream, whole = _cached()
    instances = stream.size(epoch)
    start = min(start, instances - 1)
    batch = stream.batch(epoch, start, start + size)
    offsets = whole[epoch].packed.starts
    stop = min(start + size, instances)
    cut = slice(int(offsets[start]), int(offsets[stop]))
    assert torch.equal(batch.packed.tokens, whole[epoch].packed.tokens[cut])
    assert torch.equal(batch.packed.segments, whole[epoch].packed.segments[cut])
    assert torch.equal(batch.pair_labels, whole[epoch].pair_labels[start:stop])
    assert batch.counts == {"mlm": len(batch.rows), "nsp": stop - start}


_CACHE: list = []


def _cached() -> tuple[PairStream, dict]:
    if not _CACHE:
        import tempfile

        folder = Path(tempfile.mkdtemp())
        stream = stream_of(tiny_run.make_shards(folder, documents=30))
        _CACHE.append((stream, {e: stream.batch(e, 0, stream.size(e)) for e in range(4)}))
    return _CACHE[0]


def test_an_epoch_can_be_built_in_any_order_and_again(shards: Shards) -> None:
    forward, back = stream_of(shards), stream_of(shards)
    pairs = [(epoch, start) for epoch in (0, 1, 2, 5) for start in (0, 3, 9)]
    first = {pair: forward.batch(*pair, pair[1] + 4).packed.tokens for pair in pairs}
    for pair in reversed(pairs):
        assert torch.equal(back.batch(*pair, pair[1] + 4).packed.tokens, first[pair])


def test_epochs_and_seeds_differ_in_masks_and_pairs(shards: Shards) -> None:
    def tokens(seed: int, epoch: int) -> list[tuple[int, ...]]:
        return [tuple(masked) for masked, *_ in sequences(stream_of(shards, seed), epoch)]

    assert tokens(0, 0) == tokens(0, 0)
    assert len(set(tokens(0, 0)) & set(tokens(0, 1))) < 0.1 * len(tokens(0, 0))
    assert len(set(tokens(0, 0)) & set(tokens(1, 0))) < 0.1 * len(tokens(0, 0))


def test_every_token_of_the_corpus_is_read_in_an_epoch_but_for_what_is_counted(shards: Shards) -> None:
    for epoch in range(3):
        stream = stream_of(shards, length=48)
        plan = stream.plan(epoch)
        seen = np.zeros(shards.tokens, dtype=bool)
        for start, n in zip(
            np.concatenate([plan.a_start, plan.b_start]),
            np.concatenate([plan.a_length, plan.b_length]),
            strict=True,
        ):
            seen[start : start + n] = True
        assert (~seen).sum() == plan.counts["tokens_left_out"]
        assert plan.tokens == sum(len(ids) for ids, *_ in sequences(stream, epoch))


@given(
    hashes=st.lists(st.integers(0, 2**64 - 1), min_size=4, max_size=60, unique=True),
    share=st.floats(0, 0.999, allow_subnormal=False),  # torch may flush them to 0 by now
)
def test_both_sides_of_a_split_can_make_pairs(hashes: list[int], share: float) -> None:
    array = np.array(hashes, dtype=np.uint64)
    kept, out = split_documents(array, share)
    assert sorted([*kept, *out]) == list(range(len(hashes)))
    if share == 0:
        assert not len(out)
        return
    assert min(len(kept), len(out)) >= 2
    assert array[out].max() < array[kept].min()
    by_share = sum(h < share * 2.0**64 for h in hashes)
    assert len(out) == min(max(by_share, 2), len(hashes) - 2)


def test_the_share_held_out_is_the_share_asked() -> None:
    hashes = np.random.default_rng(0).integers(0, 2**64 - 1, 20_000, dtype=np.uint64, endpoint=True)
    for share in (0.01, 0.1, 0.5, 0.9):
        out = split_documents(hashes, share)[1]
        assert abs(len(out) - share * 20_000) < 5 * (20_000 * share * (1 - share)) ** 0.5


def test_a_document_keeps_its_side_when_others_come() -> None:
    hashes = np.random.default_rng(1).integers(0, 2**64 - 1, 3000, dtype=np.uint64)
    few, many = split_documents(hashes[:1000], 0.1)[1], split_documents(hashes, 0.1)[1]
    assert set(few) == {i for i in many if i < 1000}


def test_too_few_documents_cannot_be_split() -> None:
    for n in range(4):
        with pytest.raises(InputError, match="two documents to train on"):
            split_documents(np.arange(n, dtype=np.uint64), 0.1)
    for n in range(2):
        with pytest.raises(InputError, match="at least two documents"):
            split_documents(np.arange(n, dtype=np.uint64), 0)


def test_token_counts_are_those_of_the_documents(shards: Shards) -> None:
    counts = token_counts(shards, np.arange(shards.documents), TOKENIZER.vocab_size)
    assert counts.tolist() == np.bincount(shards.take(np.arange(shards.tokens)), minlength=46).tolist()
    halves = [token_counts(shards, part, 46) for part in np.array_split(np.arange(shards.documents), 2)]
    assert (sum(halves) == counts).all()


def test_an_id_outside_the_vocabulary_is_refused(shards: Shards) -> None:
    for size in (40, 1):
        with pytest.raises(InputError, match=f"its vocabulary ends at {size - 1}"):
            token_counts(shards, np.arange(shards.documents), size)


# --- the other kinds of instances, static masks, budgets ------------------------------------------------------

KINDS: list[dict[str, object]] = [
    {},
    {"sentence_task": "sop", "masking": "whole_word"},
    {"sentence_task": "none", "masking": "span"},
    {
        "partner": "random",
        "masks": "static",
        "duplicates": 2,
        "mask_share_of": "all",
        "mask_candidates": "all",
    },
    {"instances": "sentence_pair"},
    {"instances": "sentence_pair", "partner": "random", "random_tokens": "all", "masking": "whole_word"},
    {"instances": "sentence_pair", "sentence_task": "sop"},
    {"instances": "full_sentences", "sentence_task": "none"},
    {"instances": "doc_sentences", "sentence_task": "none", "masks": "static", "duplicates": 2},
    {"instances": "single", "sentence_task": "none", "predictions_max": 3},
]


def kind_of(shards: Shards, data: dict[str, object], batch_tokens: int | None = None) -> PairStream:
    return PairStream(
        shards,
        np.arange(shards.documents),
        IDS,
        DataSettings.of(data, "test"),
        length=32,
        seed=4,
        word_starts=TOKENIZER.word_starts,
        batch_tokens=batch_tokens,
    )


@pytest.mark.parametrize("data", KINDS, ids=str)
@pytest.mark.parametrize("budget", [None, 200])
def test_any_instance_alone_is_the_instance_in_its_batch(
    shards: Shards, data: dict[str, object], budget: int | None
) -> None:
    stream = kind_of(shards, data, budget)
    for epoch in (0, 3):
        start, seen = 0, 0
        while start < stream.size(epoch):
            stop = stream.stop(epoch, start, 7)
            batch = stream.batch(epoch, start, stop)
            assert batch.packed.sequences == stop - start
            assert budget is None or batch.tokens <= budget
            for k in range(start, stop):
                one = kind_of(shards, data, budget) if k < 2 else stream
                alone = one.batch(epoch, k, k + 1)
                a, b = (int(batch.packed.starts[k - start + j]) for j in (0, 1))
                assert torch.equal(alone.packed.tokens, batch.packed.tokens[a:b])
                assert torch.equal(alone.packed.segments, batch.packed.segments[a:b])
                assert torch.equal(alone.packed.positions, batch.packed.positions[a:b])
                rows = batch.rows[(batch.rows >= a) & (batch.rows < b)]
                assert torch.equal(alone.rows, rows - a)
                assert torch.equal(alone.pair_labels, batch.pair_labels[k - start : k - start + 1])
            seen += stop - start
            start = stop
        assert seen == stream.size(epoch)


@pytest.mark.parametrize("data", KINDS, ids=str)
def test_frames_segments_and_counts_of_every_kind(shards: Shards, data: dict[str, object]) -> None:
    stream = kind_of(shards, data)
    plan = stream.plan(0)
    batch = stream.batch(0, 0, len(plan))
    task = str(data.get("sentence_task", "nsp"))
    assert batch.counts == {"mlm": len(batch.rows)} | ({} if task == "none" else {task: len(plan)})
    text = shards.take(np.arange(shards.tokens)).tolist()
    original = batch.packed.tokens.clone()
    original[batch.rows] = batch.labels
    expected, segments = [], []
    for i in range(len(plan)):
        expected.append(TOKENIZER.cls_id)
        segments.append(0)
        for k, part in enumerate(range(int(plan.first[i]), int(plan.first[i + 1]))):
            start, n = int(plan.starts[part]), int(plan.lengths[part])
            expected += [*text[start : start + n], TOKENIZER.sep_id]
            segments += [k if plan.pair else 0] * (n + 1)
    assert original.tolist() == expected
    assert batch.packed.segments.tolist() == segments
    assert batch.packed.lengths.tolist() == plan.sizes.tolist()
    assert batch.packed.longest == plan.sizes.max() <= 32


def test_a_tokenizer_with_two_separators_and_no_segments(shards: Shards) -> None:
    special = np.zeros(TOKENIZER.vocab_size, dtype=bool)
    special[[2, 3, 4]] = True
    ids = SpecialIds(2, 3, 4, special, separators=2, uses_segments=False)
    stream = PairStream(shards, np.arange(shards.documents), ids, DataSettings(), length=32, seed=0)
    batch = stream.batch(0, 0, stream.size(0))
    assert not batch.packed.segments.any()
    plan = stream.plan(0)
    for i, row in enumerate(np.split(batch.packed.tokens.numpy(), batch.packed.starts[1:-1].numpy())):
        a = int(plan.a_length[i])
        assert np.flatnonzero(row == 3).tolist() == [a + 1, a + 2, len(row) - 1]
        assert len(row) <= 32


def test_static_masks_come_again_in_another_order(shards: Shards) -> None:
    def rows(stream: PairStream, epoch: int) -> list[tuple[int, ...]]:
        return [tuple(masked) for masked, *_ in sequences(stream, epoch)]

    static = stream_of(shards, masks="static", duplicates=3)
    assert rows(static, 1) != rows(static, 4)
    assert sorted(rows(static, 1)) == sorted(rows(static, 4)) == sorted(rows(static, 7))
    assert len(set(rows(static, 1)) & set(rows(static, 2))) < 0.1 * len(rows(static, 1))
    dynamic = stream_of(shards)
    assert sorted(rows(dynamic, 1)) != sorted(rows(dynamic, 4))
    assert sorted(rows(dynamic, 1)) == sorted(rows(static, 1))


def test_choices_that_do_not_fit_together_are_refused() -> None:
    for instances in ("full_sentences", "doc_sentences", "single"):
        for task in ("nsp", "sop"):
            with pytest.raises(InputError, match=f"sentence_task {task} asks about a pair"):
                DataSettings.of({"instances": instances, "sentence_task": task}, "test")
        DataSettings.of({"instances": instances, "sentence_task": "none"}, "test")
    with pytest.raises(InputError, match="word_segmenter jieba"):
        DataSettings.of({"word_segmenter": "jieba"}, "test")
    assert DataSettings().changed(["sentence_task=none", "word_segmenter=none"]).sentence_task == "none"


def test_one_document_is_enough_without_next_sentence() -> None:
    hashes = np.array([7, 9], dtype=np.uint64)
    assert [part.tolist() for part in split_documents(hashes, 0.1, 1)] == [[1], [0]]
    assert split_documents(hashes[:1], 0, 1)[0].tolist() == [0]
    with pytest.raises(InputError, match="one document to train on"):
        split_documents(hashes[:1], 0.1, 1)


def test_a_pair_needs_two_segment_ids_where_the_tokenizer_gives_them() -> None:
    for instances in ("segment_pair", "sentence_pair"):
        pairs = DataSettings.of({"instances": instances}, "test")
        with pytest.raises(InputError, match="type_vocab_size is 1, and the second segment"):
            check_segments(pairs, True, 1)
        check_segments(pairs, True, 2)
        check_segments(pairs, False, 1)  # as RoBERTa's: all tokens have segment 0
    for instances in ("full_sentences", "doc_sentences", "single"):
        check_segments(DataSettings.of({"instances": instances, "sentence_task": "none"}, "test"), True, 1)
