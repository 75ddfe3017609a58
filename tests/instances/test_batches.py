"""Batches: special tokens, segments, labels, determinism, token budgets, and the validation split."""

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
from bertsmith.instances.batches import InstanceStream, check_type_vocab_size, token_counts
from bertsmith.instances.holdout_split import split_documents
from bertsmith.instances.settings import DataSettings

TOKENIZER = tiny_run.tokenizer()


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Shards:
    return tiny_run.make_shards(tmp_path_factory.mktemp("corpus"), documents=80)


def stream_of(shards: Shards, seed: int = 0, length: int = 32, **data: object) -> InstanceStream:
    settings = DataSettings.of(data, "test")
    return InstanceStream(shards, np.arange(shards.documents), TOKENIZER, settings, length=length, seed=seed)


def sequences(stream: InstanceStream, epoch: int = 0, size: int = 7) -> Iterator[tuple[list[int], ...]]:
    """Yield the masked ids, segments, positions, and original ids of each instance of an epoch."""
    for start in range(0, stream.size(epoch), size):
        batch = stream.batch(epoch, start, start + size)
        original = batch.packed.tokens.clone()
        original[batch.rows] = batch.labels
        ends = batch.packed.cu_seqlens.tolist()
        for a, b in itertools.pairwise(ends):
            columns = (batch.packed.tokens, batch.packed.segments, batch.packed.positions, original)
            yield tuple(column[a:b].tolist() for column in columns)


def test_special_tokens_segments_and_positions_of_pairs(shards: Shards) -> None:
    stream = stream_of(shards)
    plan = stream.plan(0)
    text = shards.take(np.arange(shards.tokens)).tolist()
    for i, (masked, segments, positions, original) in enumerate(sequences(stream)):
        a, b = int(plan.a.lengths[i]), int(plan.b.lengths[i])
        start, second = int(plan.a.starts[i]), int(plan.b.starts[i])
        assert original == [
            TOKENIZER.cls_token_id, *text[start : start + a], TOKENIZER.sep_token_id, *text[second : second + b],
            TOKENIZER.sep_token_id,
        ]  # fmt: skip
        assert segments == [0] * (a + 2) + [1] * (b + 1)
        assert positions == list(range(a + b + 3))
        assert [masked[0], masked[a + 1], masked[-1]] == [
            TOKENIZER.cls_token_id,
            TOKENIZER.sep_token_id,
            TOKENIZER.sep_token_id,
        ]
    assert i + 1 == stream.size(0)


def test_pair_labels_tell_if_b_follows_a(shards: Shards) -> None:
    stream = stream_of(shards)
    plan = stream.plan(0)
    batch = stream.batch(0, 0, stream.size(0))
    assert (batch.pair_labels.numpy() == plan.labels).all()
    same = plan.a.documents == plan.b.documents
    assert ((batch.pair_labels.numpy() == 0) == same).all()
    a_is_first = plan.a.starts + plan.a.lengths <= plan.b.starts
    assert a_is_first[same].all()
    assert batch.pair_labels.dtype == batch.labels.dtype == torch.long


@given(start=st.integers(0, 90), size=st.integers(1, 40), epoch=st.integers(0, 3))
def test_a_batch_is_a_slice_of_its_epoch(start: int, size: int, epoch: int) -> None:
    stream, full = _cached()
    instances = stream.size(epoch)
    start = min(start, instances - 1)
    batch = stream.batch(epoch, start, start + size)
    offsets = full[epoch].packed.cu_seqlens
    stop = min(start + size, instances)
    cut = slice(int(offsets[start]), int(offsets[stop]))
    assert torch.equal(batch.packed.tokens, full[epoch].packed.tokens[cut])
    assert torch.equal(batch.packed.segments, full[epoch].packed.segments[cut])
    assert torch.equal(batch.pair_labels, full[epoch].pair_labels[start:stop])
    assert batch.counts == {"mlm": len(batch.rows), "nsp": stop - start}


_CACHE: list = []


def _cached() -> tuple[InstanceStream, dict]:
    if not _CACHE:
        import tempfile

        folder = Path(tempfile.mkdtemp())
        stream = stream_of(tiny_run.make_shards(folder, documents=30))
        _CACHE.append((stream, {e: stream.batch(e, 0, stream.size(e)) for e in range(4)}))
    return _CACHE[0]


def test_batches_can_be_made_in_any_order(shards: Shards) -> None:
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


def test_every_token_is_in_an_epoch_or_counted_as_omitted(shards: Shards) -> None:
    for epoch in range(3):
        stream = stream_of(shards, length=48)
        plan = stream.plan(epoch)
        is_used = np.zeros(shards.tokens, dtype=bool)
        for start, n in zip(
            np.concatenate([plan.a.starts, plan.b.starts]),
            np.concatenate([plan.a.lengths, plan.b.lengths]),
            strict=True,
        ):
            is_used[start : start + n] = True
        assert (~is_used).sum() == plan.counts["tokens_left_out"]
        assert plan.sizes.sum() == sum(len(ids) for ids, *_ in sequences(stream, epoch))


@given(
    hashes=st.lists(st.integers(0, 2**64 - 1), min_size=4, max_size=60, unique=True),
    fraction=st.floats(0, 0.999, allow_subnormal=False),  # torch may flush them to 0
)
def test_both_sides_of_a_split_have_two_documents(hashes: list[int], fraction: float) -> None:
    array = np.array(hashes, dtype=np.uint64)
    training, validation = split_documents(array, fraction)
    assert sorted([*training, *validation]) == list(range(len(hashes)))
    if fraction == 0:
        assert not len(validation)
        return
    assert min(len(training), len(validation)) >= 2
    assert array[validation].max() < array[training].min()
    num_below = sum(h < fraction * 2.0**64 for h in hashes)
    assert len(validation) == min(max(num_below, 2), len(hashes) - 2)


def test_the_size_of_the_validation_split() -> None:
    hashes = np.random.default_rng(0).integers(0, 2**64 - 1, 20_000, dtype=np.uint64, endpoint=True)
    for fraction in (0.01, 0.1, 0.5, 0.9):
        validation = split_documents(hashes, fraction)[1]
        assert abs(len(validation) - fraction * 20_000) < 5 * (20_000 * fraction * (1 - fraction)) ** 0.5


def test_a_document_stays_on_its_side_if_others_are_added() -> None:
    hashes = np.random.default_rng(1).integers(0, 2**64 - 1, 3000, dtype=np.uint64)
    few, many = split_documents(hashes[:1000], 0.1)[1], split_documents(hashes, 0.1)[1]
    assert set(few) == {i for i in many if i < 1000}


def test_too_few_documents_cannot_be_split() -> None:
    for n in range(4):
        with pytest.raises(InputError) as caught:
            split_documents(np.arange(n, dtype=np.uint64), 0.1)
        assert caught.value.code == "too_few_documents"
    for n in range(2):
        with pytest.raises(InputError) as caught:
            split_documents(np.arange(n, dtype=np.uint64), 0)
        assert caught.value.code == "too_few_documents"


def test_token_counts_are_those_of_the_documents(shards: Shards) -> None:
    counts = token_counts(shards, np.arange(shards.documents), TOKENIZER.vocab_size)
    assert counts.tolist() == np.bincount(shards.take(np.arange(shards.tokens)), minlength=46).tolist()
    halves = [token_counts(shards, part, 46) for part in np.array_split(np.arange(shards.documents), 2)]
    assert (sum(halves) == counts).all()


# --- other instances, static masks, budgets -------------------------------------------------------------------

FORMS: list[dict[str, object]] = [
    {},
    {"sentence_task": "sop", "masking": "whole_word"},
    {"sentence_task": "none", "masking": "span"},
    {"dynamic_masking": False, "dupe_factor": 2, "mlm_probability_of": "all", "maskable_tokens": "all"},
    {"instances": "sentence_pair"},
    {"instances": "sentence_pair", "random_tokens": "all", "masking": "whole_word"},
    {"instances": "sentence_pair", "sentence_task": "sop"},
    {"instances": "full_sentences", "sentence_task": "none"},
    {"instances": "doc_sentences", "sentence_task": "none", "dynamic_masking": False, "dupe_factor": 2},
    {"instances": "full_sentences", "sentence_task": "none", "max_predictions_per_seq": 3},
]


def stream_with(shards: Shards, data: dict[str, object], batch_tokens: int | None = None) -> InstanceStream:
    return InstanceStream(
        shards,
        np.arange(shards.documents),
        TOKENIZER,
        DataSettings.of(data, "test"),
        length=32,
        seed=4,
        batch_tokens=batch_tokens,
    )


@pytest.mark.parametrize("data", FORMS, ids=str)
@pytest.mark.parametrize("budget", [None, 200])
def test_an_instance_does_not_depend_on_its_batch(
    shards: Shards, data: dict[str, object], budget: int | None
) -> None:
    stream = stream_with(shards, data, budget)
    for epoch in (0, 3):
        start, num_instances = 0, 0
        while start < stream.size(epoch):
            stop = stream.stop(epoch, start, 7)
            batch = stream.batch(epoch, start, stop)
            assert batch.packed.num_sequences == stop - start
            assert budget is None or batch.tokens <= budget
            for k in range(start, stop):
                other_stream = stream_with(shards, data, budget) if k < 2 else stream
                single_batch = other_stream.batch(epoch, k, k + 1)
                a, b = (int(batch.packed.cu_seqlens[k - start + j]) for j in (0, 1))
                assert torch.equal(single_batch.packed.tokens, batch.packed.tokens[a:b])
                assert torch.equal(single_batch.packed.segments, batch.packed.segments[a:b])
                assert torch.equal(single_batch.packed.positions, batch.packed.positions[a:b])
                rows = batch.rows[(batch.rows >= a) & (batch.rows < b)]
                assert torch.equal(single_batch.rows, rows - a)
                assert torch.equal(single_batch.pair_labels, batch.pair_labels[k - start : k - start + 1])
            num_instances += stop - start
            start = stop
        assert num_instances == stream.size(epoch)


@pytest.mark.parametrize("data", FORMS, ids=str)
def test_special_tokens_segments_and_counts_of_all_instances(shards: Shards, data: dict[str, object]) -> None:
    stream = stream_with(shards, data)
    plan = stream.plan(0)
    batch = stream.batch(0, 0, len(plan))
    task = str(data.get("sentence_task", "nsp"))
    assert batch.counts == {"mlm": len(batch.rows)} | ({} if task == "none" else {task: len(plan)})
    text = shards.take(np.arange(shards.tokens)).tolist()
    original = batch.packed.tokens.clone()
    original[batch.rows] = batch.labels
    expected, segments = [], []
    for i in range(len(plan)):
        expected.append(TOKENIZER.cls_token_id)
        segments.append(0)
        for k, part in enumerate(range(int(plan.part_offsets[i]), int(plan.part_offsets[i + 1]))):
            start, n = int(plan.starts[part]), int(plan.lengths[part])
            expected += [*text[start : start + n], TOKENIZER.sep_token_id]
            segments += [k if plan.is_pair else 0] * (n + 1)
    assert original.tolist() == expected
    assert batch.packed.segments.tolist() == segments
    assert batch.packed.lengths.tolist() == plan.sizes.tolist()
    assert batch.packed.max_seqlen == plan.sizes.max() <= 32


def test_a_tokenizer_with_two_separators_and_no_segments(shards: Shards) -> None:
    tokenizer = tiny_run.tokenizer()
    tokenizer.num_separators, tokenizer.uses_segments = 2, False
    stream = InstanceStream(shards, np.arange(shards.documents), tokenizer, DataSettings(), length=32, seed=0)
    batch = stream.batch(0, 0, stream.size(0))
    assert not batch.packed.segments.any()
    plan = stream.plan(0)
    for i, row in enumerate(np.split(batch.packed.tokens.numpy(), batch.packed.cu_seqlens[1:-1].numpy())):
        a = int(plan.a.lengths[i])
        assert np.flatnonzero(row == 3).tolist() == [a + 1, a + 2, len(row) - 1]
        assert len(row) <= 32


def test_static_masks_repeat_in_another_order(shards: Shards) -> None:
    def rows(stream: InstanceStream, epoch: int) -> list[tuple[int, ...]]:
        return [tuple(masked) for masked, *_ in sequences(stream, epoch)]

    static = stream_of(shards, dynamic_masking=False, dupe_factor=3)
    assert rows(static, 1) != rows(static, 4)
    assert sorted(rows(static, 1)) == sorted(rows(static, 4)) == sorted(rows(static, 7))
    assert len(set(rows(static, 1)) & set(rows(static, 2))) < 0.1 * len(rows(static, 1))
    dynamic = stream_of(shards)
    assert sorted(rows(dynamic, 1)) != sorted(rows(dynamic, 4))
    assert sorted(rows(dynamic, 1)) == sorted(rows(static, 1))


def test_invalid_combinations_of_settings() -> None:
    for instances in ("full_sentences", "doc_sentences"):
        for task in ("nsp", "sop"):
            with pytest.raises(InputError) as caught:
                DataSettings.of({"instances": instances, "sentence_task": task}, "test")
            assert caught.value.code == "invalid_setting"
            assert "sentence_task" in caught.value.message
        DataSettings.of({"instances": instances, "sentence_task": "none"}, "test")
    with pytest.raises(InputError) as caught:
        DataSettings.of({"word_segmenter": "jieba"}, "test")
    assert caught.value.code == "invalid_setting"
    assert "word_segmenter" in caught.value.message
    assert DataSettings().changed(["sentence_task=none", "word_segmenter=none"]).sentence_task == "none"


def test_one_document_is_enough_without_next_sentence() -> None:
    hashes = np.array([7, 9], dtype=np.uint64)
    assert [part.tolist() for part in split_documents(hashes, 0.1, 1)] == [[1], [0]]
    assert split_documents(hashes[:1], 0, 1)[0].tolist() == [0]
    with pytest.raises(InputError) as caught:
        split_documents(hashes[:1], 0.1, 1)
    assert caught.value.code == "too_few_documents"


def test_pairs_need_two_segment_ids_if_the_tokenizer_uses_them() -> None:
    for instances in ("segment_pair", "sentence_pair"):
        pairs = DataSettings.of({"instances": instances}, "test")
        with pytest.raises(InputError) as caught:
            check_type_vocab_size(pairs, True, 1)
        assert caught.value.code == "type_vocab_size_too_small"
        check_type_vocab_size(pairs, True, 2)
        check_type_vocab_size(pairs, False, 1)  # as RoBERTa's: all segment ids are 0
    for instances in ("full_sentences", "doc_sentences"):
        check_type_vocab_size(
            DataSettings.of({"instances": instances, "sentence_task": "none"}, "test"), True, 1
        )
