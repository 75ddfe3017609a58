"""`data.corrupt`: inserted and deleted tokens leave labels, positions, frame and lengths right."""

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
from bertsmith.instances.batches import PairStream, ids_of
from bertsmith.instances.corruption import Corruption, Framed
from bertsmith.instances.epoch_plan import ranges
from bertsmith.instances.masking import Masker
from bertsmith.instances.settings import DataSettings
from bertsmith.instances.span_masking import SpanLengths
from bertsmith.tokenizer.tokenizer import Tokenizer

Ints = NDArray[np.int64]
LENGTH = 40
FORMS = [
    {"instances": "segment_pair"},
    {"instances": "full_sentences", "sentence_task": "none"},
    {"instances": "single", "sentence_task": "none"},
]


@dataclass(frozen=True)
class Seen:
    """An instance: its ids before masks, what stands there, segments, positions, predicted rows."""

    original: list[int]
    masked: list[int]
    segments: list[int]
    positions: list[int]
    rows: list[int]


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Shards:
    return tiny_run.make_shards(tmp_path_factory.mktemp("corpus"), documents=80)


def stream_of(shards: Shards, batch_tokens: int | None = None, **data: Any) -> PairStream:
    settings = DataSettings.of({"corrupt_share": 0.2, **data}, "test")
    return PairStream(
        shards,
        np.arange(shards.documents),
        ids_of(shards.tokenizer),
        settings,
        length=LENGTH,
        seed=4,
        batch_tokens=batch_tokens,
    )


def seen(stream: PairStream, epoch: int = 0, size: int = 7) -> Iterator[Seen]:
    for start in range(0, stream.size(epoch), size):
        batch = stream.batch(epoch, start, start + size)
        ends = batch.packed.starts.tolist()
        rows = batch.rows.numpy()
        for a, b in itertools.pairwise(ends):
            yield Seen(
                batch.unmasked.tokens[a:b].tolist(),
                batch.packed.tokens[a:b].tolist(),
                batch.packed.segments[a:b].tolist(),
                batch.packed.positions[a:b].tolist(),
                (rows[(rows >= a) & (rows < b)] - a).tolist(),
            )


def parts_of(stream: PairStream, shards: Shards, i: int) -> list[list[int]]:
    """The runs of text that an instance is made of."""
    plan = stream.plan(0)
    parts = range(int(plan.first[i]), int(plan.first[i + 1]))
    return [shards.take(np.arange(plan.starts[p], plan.starts[p] + plan.lengths[p])).tolist() for p in parts]


def is_within(short: list[int], long: list[int]) -> bool:
    """Whether one is the other with some entries left out."""
    rest = iter(long)
    return all(any(one == other for other in rest) for one in short)


def cut_at(ids: list[int], sep: int) -> list[list[int]]:
    found: list[list[int]] = [[]]
    for token in ids:
        if token == sep:
            found.append([])
        else:
            found[-1].append(token)
    return found[:-1]


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form["instances"])
@pytest.mark.parametrize("corrupt", ["insert", "delete"])
def test_text_frame_and_positions_are_right(shards: Shards, form: dict[str, str], corrupt: str) -> None:
    """Each run of text has floor(share · tokens) tokens more or fewer, the others in their order; frame, segments
    and positions are those of such an instance."""
    stream, t = stream_of(shards, corrupt=corrupt, **form), shards.tokenizer
    touched = 0
    for i, one in enumerate(seen(stream)):
        parts = parts_of(stream, shards, i)
        assert one.original[0] == t.cls_id
        assert one.original[-1] == t.sep_id
        found = cut_at(one.original[1:], t.sep_id)
        assert len(found) == len(parts)
        for was, now in zip(parts, found, strict=True):
            number = int(0.2 * len(was))
            touched += number
            assert len(now) == len(was) + (number if corrupt == "insert" else -number)
            assert is_within(was, now) if corrupt == "insert" else is_within(now, was)
            assert now
        assert one.positions == list(range(len(one.original)))
        assert len(one.original) <= LENGTH
        ends = [k for k, token in enumerate(one.original) if token == t.sep_id]
        paired = form["instances"] == "segment_pair"
        assert one.segments == [int(paired and k > ends[0]) for k in range(len(one.original))]
    assert touched > 100


@pytest.mark.parametrize("corrupt", ["insert", "delete"])
@pytest.mark.parametrize("candidates", ["ordinary", "all"])
def test_predictions_are_of_the_text_that_is_there(shards: Shards, corrupt: str, candidates: str) -> None:
    """As many as before of the tokens that the text has now; never a special or an inserted one. Without masks'
    random tokens, what is not predicted stands there as it was."""
    stream = stream_of(
        shards, corrupt=corrupt, mask_split=[1, 0, 0], mask_candidates=candidates, sentence_task="none"
    )
    plain = {shards.tokenizer.cls_id, shards.tokenizer.sep_id}
    for i, one in enumerate(seen(stream)):
        was = sum(map(len, parts_of(stream, shards, i)))
        text = was if corrupt == "insert" else len(one.original) - 3
        assert len(one.rows) == max(1, round(0.15 * text))
        assert not {one.original[row] for row in one.rows} & plain
        for k, token in enumerate(one.masked):
            assert token == (shards.tokenizer.mask_id if k in one.rows else one.original[k])


def test_an_inserted_token_is_never_predicted(shards: Shards) -> None:
    """Of a vocabulary whose second half no text has, every token that is inserted from it can be told."""
    foreign = [*tiny_run.TOKENS, *(f"x{i}" for i in range(2000))]
    tokenizer = Tokenizer.of_vocabulary(foreign, lowercase=True, max_length=64)
    settings = DataSettings.of(
        {"corrupt": "insert", "corrupt_share": 0.5, "mask_share": 1.0, "mask_split": [0, 0, 1]}, "test"
    )
    documents = np.arange(shards.documents)
    stream = PairStream(shards, documents, ids_of(tokenizer), settings, length=LENGTH, seed=1)
    inserted = 0
    for i, one in enumerate(seen(stream)):
        parts = parts_of(stream, shards, i)
        new = [k for k, token in enumerate(one.original) if token >= len(tiny_run.TOKENS)]
        inserted += len(new)
        assert not set(new) & set(one.rows)
        assert len(one.rows) == sum(map(len, parts))  # all the rest is
    assert inserted > 1000


@pytest.mark.parametrize("corrupt", ["insert", "delete"])
@pytest.mark.parametrize("kind", ["whole_word", "span"])
def test_words_are_masked_whole(
    corrupt: Literal["insert", "delete"], kind: Literal["whole_word", "span"]
) -> None:
    """No insertion parts a word, and what is left of a word is masked together. Each token is the number of its
    row, so that it can be told afterwards."""
    random = np.random.default_rng(7)
    runs, sizes = 400, random.integers(1, 30, 400)
    at = np.cumsum(sizes + 1) - sizes + np.arange(runs) // 2  # two runs an instance: [CLS] A [SEP] B [SEP]
    rows = ranges(at, sizes)
    total = int(at[-1] + sizes[-1]) + 1
    begins, special = np.ones(total, dtype=bool), np.ones(total + 1, dtype=bool)
    special[rows] = special[total] = False
    begins[rows] = random.random(len(rows)) < 0.4
    begins[at] = True
    word = np.cumsum(begins)
    text = Framed(
        np.arange(total),
        np.zeros(total, dtype=np.int64),
        sizes[0::2] + sizes[1::2] + 3,
        at,
        sizes,
        np.full(runs // 2, 2),
    )
    settings = DataSettings(corrupt=corrupt, corrupt_share=0.3)
    found = Corruption(settings, np.array([total]), 3, lambda ids: begins).apply(text, np.arange(200), 1)
    assert found.begins is not None
    kept = found.ids[found.ids < total]
    assert np.isin(np.flatnonzero(special[:total]), kept).all()  # of the frame nothing is lost
    touched = len(found.ids) - total
    assert touched > 500 if corrupt == "insert" else touched < -500
    split = (1.0, 0.0, 0.0)
    masker = Masker(0.4, split, 0, special, 5, kind, lambda ids: found.begins, spans=SpanLengths(longest=3))
    _, chosen = masker.apply(
        found.ids, found.lengths, np.arange(200), 0, barred=found.closed, begins=found.begins
    )
    assert (found.ids[chosen] < total).all()
    masked = np.isin(np.arange(total), found.ids[chosen])
    of_word: dict[int, list[int]] = {}
    for row in kept.tolist():
        if not special[row]:
            of_word.setdefault(int(word[row]), []).append(row)
    assert all(masked[rows_].all() or not masked[rows_].any() for rows_ in of_word.values())
    several = [rows_ for rows_ in of_word.values() if len(rows_) > 1 and masked[rows_[0]]]
    assert len(several) > 100
    if corrupt == "insert":
        place = {row: k for k, row in enumerate(found.ids.tolist()) if row < total}
        assert all(place[rows_[-1]] - place[rows_[0]] == len(rows_) - 1 for rows_ in of_word.values())


@pytest.mark.parametrize("corrupt", ["insert", "delete"])
def test_a_batch_is_a_function_of_seed_epoch_and_instance(shards: Shards, corrupt: str) -> None:
    """Whatever stands beside an instance; other epochs have other tokens, static masks the same again."""
    one, other = stream_of(shards, corrupt=corrupt), stream_of(shards, corrupt=corrupt)
    assert list(seen(one, size=7)) == list(seen(other, size=3))
    assert list(seen(one)) != list(seen(one, epoch=1))
    static = stream_of(shards, corrupt=corrupt, masks="static", duplicates=2)
    first, again, between = (
        sorted(tuple(x.original) for x in seen(static, epoch=epoch)) for epoch in (0, 2, 1)
    )
    assert first == again != between


@pytest.mark.parametrize("corrupt", ["insert", "delete"])
def test_a_budget_of_tokens_holds(shards: Shards, corrupt: str) -> None:
    stream = stream_of(shards, 160, corrupt=corrupt)
    start, counted = 0, []
    while start < stream.size(0):
        stop = stream.stop(0, start, 1)
        counted.append(stream.batch(0, start, stop).tokens)
        start = stop
    assert max(counted) <= 160
    assert counted == stream.filling(0, 1).tokens.tolist()


def test_off_it_changes_nothing(shards: Shards) -> None:
    assert list(seen(stream_of(shards))) == list(seen(stream_of(shards, corrupt_share=0.5, corrupt="none")))
    plan = stream_of(shards).plan(0)
    assert [len(one.original) for one in seen(stream_of(shards))] == plan.sizes.tolist()


def test_it_is_trained_on_and_judged_on_the_text_as_it_is(shards: Shards, tmp_path: Path) -> None:
    """The same held-out instances whatever becomes of training text: at a rate of nothing, the same figures."""
    still = ["train.learning_rate=1e-30", "train.weight_decay=0", "train.max_steps=1", "train.log_every=1"]
    held = {
        kind: tiny_run.run(shards, tmp_path / kind, *still, f"data.corrupt={kind}").report["held_out"]
        for kind in ("none", "insert", "delete")
    }
    assert held["none"] == held["insert"] == held["delete"]
    shown = bs.show_instance(shards, 0, corrupt="insert", corrupt_share=0.3, sequence_length=32)
    assert shown["counts"]["inserted"] == len(shown["ids"]) - 3 - sum(p["tokens"] for p in shown["parts"])


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (["objective.name=causal", "data.corrupt=delete"], "data.corrupt: 'delete' is not supported"),
        (["objective.name=replaced", "data.corrupt=insert"], "data.corrupt: 'insert' is not supported"),
        (["data.corrupt=swap"], "data.corrupt is 'swap', not 'none', 'insert' or 'delete'"),
        (["data.corrupt=insert", "data.corrupt_share=0.9"], "data.corrupt_share is 0.9"),
    ],
)
def test_what_cannot_be_learnt_from_it_is_refused(
    shards: Shards, settings: list[str], said: str, tmp_path: Path
) -> None:
    more = ["data.sentence_task=none", "data.instances=full_sentences"] if "name" in settings[0] else []
    with pytest.raises(InputError, match=said):
        bs.pretrain(shards, tmp_path / "run", preset="bert-tiny-uncased", settings=[*settings, *more])
