"""`data.corruption`: labels, positions, special tokens, and lengths with inserted and deleted tokens."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from numpy.typing import NDArray

import bertsmith as bs
import tiny_run
from bertsmith.corpus.shards import Shards
from bertsmith.errors import InputError
from bertsmith.instances.batches import InstanceStream
from bertsmith.instances.corruption import Corruption, FramedInstances
from bertsmith.instances.epoch_plan import concat_ranges
from bertsmith.instances.masking import Masker, SpecialTokenIds
from bertsmith.instances.settings import DataSettings
from bertsmith.tokenizer.tokenizer import Tokenizer

IntArray = NDArray[np.int64]
LENGTH = 40
FORMS = [{"instances": "segment_pair"}, {"instances": "full_sentences", "sentence_task": "none"}]


@dataclass(frozen=True)
class Instance:
    """An instance: its ids before and after masking, segments, positions, and predicted rows."""

    original: list[int]
    masked: list[int]
    segments: list[int]
    positions: list[int]
    rows: list[int]


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Shards:
    return tiny_run.make_shards(tmp_path_factory.mktemp("corpus"), documents=80)


def stream_of(shards: Shards, batch_tokens: int | None = None, **data: Any) -> InstanceStream:
    settings = DataSettings.of({"corruption_ratio": 0.2, **data}, "test")
    return InstanceStream(
        shards,
        np.arange(shards.documents),
        shards.tokenizer,
        settings,
        length=LENGTH,
        seed=4,
        batch_tokens=batch_tokens,
    )


def instances_of(stream: InstanceStream, epoch: int = 0, size: int = 7) -> Iterator[Instance]:
    for start in range(0, stream.size(epoch), size):
        batch = stream.batch(epoch, start, start + size)
        ends = batch.packed.cu_seqlens.tolist()
        rows = batch.rows.numpy()
        for a, b in itertools.pairwise(ends):
            yield Instance(
                batch.unmasked.tokens[a:b].tolist(),
                batch.packed.tokens[a:b].tolist(),
                batch.packed.segments[a:b].tolist(),
                batch.packed.positions[a:b].tolist(),
                (rows[(rows >= a) & (rows < b)] - a).tolist(),
            )


def parts_of(stream: InstanceStream, shards: Shards, i: int) -> list[list[int]]:
    """Return the runs of text of an instance."""
    plan = stream.plan(0)
    parts = range(int(plan.part_offsets[i]), int(plan.part_offsets[i + 1]))
    return [shards.take(np.arange(plan.starts[p], plan.starts[p] + plan.lengths[p])).tolist() for p in parts]


def is_subsequence(short: list[int], long: list[int]) -> bool:
    """Return True if one list is the other without some of its entries."""
    remainder = iter(long)
    return all(any(entry == other for other in remainder) for entry in short)


def split_at(ids: list[int], sep: int) -> list[list[int]]:
    corrupted: list[list[int]] = [[]]
    for token in ids:
        if token == sep:
            corrupted.append([])
        else:
            corrupted[-1].append(token)
    return corrupted[:-1]


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form["instances"])
@pytest.mark.parametrize("corruption", ["insertion", "deletion"])
def test_text_special_tokens_and_positions(shards: Shards, form: dict[str, str], corruption: str) -> None:
    """Each run of text has floor(ratio · tokens) tokens more or fewer, the others in their order."""
    stream, t = stream_of(shards, corruption=corruption, **form), shards.tokenizer
    total = 0
    for i, instance in enumerate(instances_of(stream)):
        parts = parts_of(stream, shards, i)
        assert instance.original[0] == t.cls_token_id
        assert instance.original[-1] == t.sep_token_id
        corrupted = split_at(instance.original[1:], t.sep_token_id)
        assert len(corrupted) == len(parts)
        for before, after in zip(parts, corrupted, strict=True):
            num_corrupted = int(0.2 * len(before))
            total += num_corrupted
            assert len(after) == len(before) + (
                num_corrupted if corruption == "insertion" else -num_corrupted
            )
            assert (
                is_subsequence(before, after) if corruption == "insertion" else is_subsequence(after, before)
            )
            assert after
        assert instance.positions == list(range(len(instance.original)))
        assert len(instance.original) <= LENGTH
        ends = [k for k, token in enumerate(instance.original) if token == t.sep_token_id]
        paired = form["instances"] == "segment_pair"
        assert instance.segments == [int(paired and k > ends[0]) for k in range(len(instance.original))]
    assert total > 100


@pytest.mark.parametrize("corruption", ["insertion", "deletion"])
@pytest.mark.parametrize("candidates", ["ordinary", "all"])
def test_predictions_are_of_the_corrupted_text(shards: Shards, corruption: str, candidates: str) -> None:
    """No special or inserted token is predicted; tokens that are not predicted are unchanged."""
    stream = stream_of(
        shards,
        corruption=corruption,
        replacement_probabilities=[1, 0, 0],
        maskable_tokens=candidates,
        sentence_task="none",
    )
    plain = {shards.tokenizer.cls_token_id, shards.tokenizer.sep_token_id}
    for i, instance in enumerate(instances_of(stream)):
        before = sum(map(len, parts_of(stream, shards, i)))
        text = before if corruption == "insertion" else len(instance.original) - 3
        assert len(instance.rows) == max(1, round(0.15 * text))
        assert not {instance.original[row] for row in instance.rows} & plain
        for k, token in enumerate(instance.masked):
            assert token == (shards.tokenizer.mask_token_id if k in instance.rows else instance.original[k])


def test_an_inserted_token_is_never_predicted(shards: Shards) -> None:
    """Only inserted tokens are from the second half of this vocabulary."""
    foreign = [*tiny_run.TOKENS, *(f"x{i}" for i in range(2000))]
    tokenizer = Tokenizer.from_vocabulary(foreign, lowercase=True, max_length=64)
    settings = DataSettings.of(
        {
            "corruption": "insertion",
            "corruption_ratio": 0.5,
            "mlm_probability": 1.0,
            "replacement_probabilities": [0, 0, 1],
        },
        "test",
    )
    documents = np.arange(shards.documents)
    stream = InstanceStream(shards, documents, tokenizer, settings, length=LENGTH, seed=1)
    inserted = 0
    for i, instance in enumerate(instances_of(stream)):
        parts = parts_of(stream, shards, i)
        inserted_rows = [k for k, token in enumerate(instance.original) if token >= len(tiny_run.TOKENS)]
        inserted += len(inserted_rows)
        assert not set(inserted_rows) & set(instance.rows)
        assert len(instance.rows) == sum(map(len, parts))  # all others are
    assert inserted > 1000


@pytest.mark.parametrize("corruption", ["insertion", "deletion"])
@pytest.mark.parametrize("masking", ["whole_word", "span"])
def test_words_are_masked_whole(
    corruption: Literal["insertion", "deletion"], masking: Literal["whole_word", "span"]
) -> None:
    """No insertion splits a word, and the remaining pieces of a word are masked together. Each id is its row."""
    random = np.random.default_rng(7)
    runs, sizes = 400, random.integers(1, 30, 400)
    at = np.cumsum(sizes + 1) - sizes + np.arange(runs) // 2  # two runs per instance: [CLS] A [SEP] B [SEP]
    rows = concat_ranges(at, sizes)
    total = int(at[-1] + sizes[-1]) + 1
    word_starts, special = np.ones(total, dtype=bool), np.ones(total + 1, dtype=bool)
    special[rows] = special[total] = False
    word_starts[rows] = random.random(len(rows)) < 0.4
    word_starts[at] = True
    word = np.cumsum(word_starts)
    text = FramedInstances(
        np.arange(total),
        np.zeros(total, dtype=np.int64),
        sizes[0::2] + sizes[1::2] + 3,
        at,
        sizes,
        np.full(runs // 2, 2),
        word_starts=word_starts,
    )
    settings = DataSettings(corruption=corruption, corruption_ratio=0.3)
    corrupted = Corruption(settings, np.array([total]), 3).apply(text, np.arange(200), 1)
    assert corrupted.word_starts is not None
    remaining = corrupted.ids[corrupted.ids < total]
    assert np.isin(np.flatnonzero(special[:total]), remaining).all()  # all special tokens remain
    num_added = len(corrupted.ids) - total
    assert num_added > 500 if corruption == "insertion" else num_added < -500
    masker = Masker(
        DataSettings(
            mlm_probability=0.4, replacement_probabilities=(1, 0, 0), masking=masking, max_span_length=3
        ),
        SpecialTokenIds(0, 0, 0, special),
        5,
    )
    _, masked_rows = masker.apply(
        corrupted.ids,
        corrupted.lengths,
        np.arange(200),
        0,
        is_excluded=corrupted.is_inserted,
        word_starts=corrupted.word_starts,
    )
    assert (corrupted.ids[masked_rows] < total).all()
    masked = np.isin(np.arange(total), corrupted.ids[masked_rows])
    rows_of_word: dict[int, list[int]] = {}
    for row in remaining.tolist():
        if not special[row]:
            rows_of_word.setdefault(int(word[row]), []).append(row)
    assert all(masked[rows_].all() or not masked[rows_].any() for rows_ in rows_of_word.values())
    masked_words = [rows_ for rows_ in rows_of_word.values() if len(rows_) > 1 and masked[rows_[0]]]
    assert len(masked_words) > 100
    if corruption == "insertion":
        row_of = {row: k for k, row in enumerate(corrupted.ids.tolist()) if row < total}
        assert all(row_of[rows_[-1]] - row_of[rows_[0]] == len(rows_) - 1 for rows_ in rows_of_word.values())


@pytest.mark.parametrize("corruption", ["insertion", "deletion"])
def test_a_batch_is_a_function_of_seed_epoch_and_instance(shards: Shards, corruption: str) -> None:
    """Batches do not matter; epochs differ, except that static masks repeat."""
    stream, same = stream_of(shards, corruption=corruption), stream_of(shards, corruption=corruption)
    assert list(instances_of(stream, size=7)) == list(instances_of(same, size=3))
    assert list(instances_of(stream)) != list(instances_of(stream, epoch=1))
    static = stream_of(shards, corruption=corruption, dynamic_masking=False, dupe_factor=2)
    first, again, between = (
        sorted(tuple(x.original) for x in instances_of(static, epoch=epoch)) for epoch in (0, 2, 1)
    )
    assert first == again != between


@pytest.mark.parametrize("corruption", ["insertion", "deletion"])
def test_a_budget_of_tokens_holds(shards: Shards, corruption: str) -> None:
    stream = stream_of(shards, 160, corruption=corruption)
    start, counted = 0, []
    while start < stream.size(0):
        stop = stream.stop(0, start, 1)
        counted.append(stream.batch(0, start, stop).tokens)
        start = stop
    assert max(counted) <= 160
    assert counted == stream.fill_stats(0, 1).tokens.tolist()


def test_without_corruption_nothing_changes(shards: Shards) -> None:
    assert list(instances_of(stream_of(shards))) == list(
        instances_of(stream_of(shards, corruption_ratio=0.5, corruption="none"))
    )
    plan = stream_of(shards).plan(0)
    assert [len(instance.original) for instance in instances_of(stream_of(shards))] == plan.sizes.tolist()


def test_validation_text_is_not_corrupted(shards: Shards, tmp_path: Path) -> None:
    """With a learning rate of nearly zero, all runs have the same metrics."""
    no_training = [
        "train.learning_rate=1e-30",
        "train.weight_decay=0",
        "train.max_steps=1",
        "train.logging_steps=1",
    ]
    metrics = {
        corruption: tiny_run.run(
            shards, tmp_path / corruption, *no_training, f"data.corruption={corruption}"
        ).report["held_out"]
        for corruption in ("none", "insertion", "deletion")
    }
    assert metrics["none"] == metrics["insertion"] == metrics["deletion"]
    shown = bs.show_instance(shards, 0, corruption="insertion", corruption_ratio=0.3, sequence_length=32)
    assert shown["counts"]["inserted"] == len(shown["ids"]) - 3 - sum(p["tokens"] for p in shown["parts"])


@pytest.mark.parametrize(
    ("settings", "code"),
    [
        (["objective.name=causal", "data.corruption=deletion"], "corruption_unsupported"),
        (["objective.name=replaced", "data.corruption=insertion"], "corruption_unsupported"),
    ],
)
def test_unsupported_objectives(shards: Shards, settings: list[str], code: str, tmp_path: Path) -> None:
    options = ["data.sentence_task=none", "data.instances=full_sentences", *settings]
    with pytest.raises(InputError) as caught:
        bs.pretrain(shards, tmp_path / "run", preset="bert-tiny-uncased", settings=options)
    assert (caught.value.code, caught.value.argument) == (code, "data.corruption")


@pytest.mark.parametrize(
    "settings", [["data.corruption=swap"], ["data.corruption=insertion", "data.corruption_ratio=0.9"]]
)
def test_invalid_settings(shards: Shards, settings: list[str], tmp_path: Path) -> None:
    with pytest.raises(InputError, match=settings[-1].partition("=")[0]):
        bs.pretrain(shards, tmp_path / "run", preset="bert-tiny-uncased", settings=settings)
