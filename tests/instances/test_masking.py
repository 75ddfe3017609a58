"""Masking: exact counts, replacement probabilities, whole words, spans, special tokens, determinism."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from bertsmith.instances.masking import Masker, SpecialTokenIds
from bertsmith.instances.settings import DataSettings
from bertsmith.instances.span_masking import Words, select_words, span_length_probabilities

IntArray = NDArray[np.int64]
V, MASK = 500, 4
SPECIAL = np.zeros(V, dtype=bool)
SPECIAL[:5] = SPECIAL[499] = True
IDS = SpecialTokenIds(2, 3, MASK, SPECIAL)


def masker(
    mlm_probability: float = 0.15, replacement: tuple[float, float, float] = (0.8, 0.1, 0.1), seed: int = 0
) -> Masker:
    settings = DataSettings(mlm_probability=mlm_probability, replacement_probabilities=replacement)
    return Masker(settings, IDS, seed)


def frame_sequences(lengths: IntArray, seed: int = 0) -> IntArray:
    """Return random ordinary tokens; each sequence starts with 2, as [CLS], and ends with 3, as [SEP]."""
    ids = np.random.default_rng(seed).integers(5, 499, lengths.sum())
    ends = np.cumsum(lengths)
    ids[ends - lengths], ids[ends - 1] = 2, 3
    return ids


def bounds(n: int, p: float) -> float:
    """Return five standard deviations of a binomial distribution."""
    return 5 * (n * p * (1 - p)) ** 0.5


@given(
    lengths=st.lists(st.integers(2, 60), min_size=1, max_size=12),
    mlm_probability=st.floats(0.01, 0.99),
    seed=st.integers(0, 2**63 - 1),
    epoch=st.integers(0, 1000),
)
def test_the_count_is_exact_in_every_sequence(
    lengths: list[int], mlm_probability: float, seed: int, epoch: int
) -> None:
    sizes = np.array(lengths)
    ids = frame_sequences(sizes, seed % 2**32)
    masked, rows = masker(mlm_probability, seed=seed).apply(ids, sizes, np.arange(len(sizes)), epoch)
    owner = np.repeat(np.arange(len(sizes)), sizes)
    num_maskable = np.bincount(owner, weights=~SPECIAL[ids]).astype(int)
    num_predictions = [
        min(n, max(1, round(mlm_probability * n))) for n in num_maskable
    ]  # round: half to even, as numpy's
    assert np.bincount(owner[rows], minlength=len(sizes)).tolist() == num_predictions
    assert (np.diff(rows) > 0).all()
    assert not SPECIAL[ids[rows]].any()
    changed = np.flatnonzero(masked != ids)
    assert np.isin(changed, rows).all()
    replacements = masked[rows]
    assert ((replacements == MASK) | ~SPECIAL[replacements]).all()
    assert ids.base is None
    assert (masked[SPECIAL[ids]] == ids[SPECIAL[ids]]).all()


def test_replacement_probabilities_on_two_hundred_thousand_tokens() -> None:
    sizes = np.full(2000, 102)
    ids = frame_sequences(sizes)
    masked, rows = masker().apply(ids, sizes, np.arange(2000), 0)
    assert len(rows) == 2000 * 15
    replacements, originals = masked[rows], ids[rows]
    n = len(rows)
    assert abs((replacements == MASK).sum() - 0.8 * n) < bounds(n, 0.8)
    repeat_probability = 0.1 / (V - SPECIAL.sum())  # a random token may be the original one
    assert abs((replacements == originals).sum() - (0.1 + repeat_probability) * n) < bounds(n, 0.1)
    assert abs(
        ((replacements != originals) & (replacements != MASK)).sum() - (0.1 - repeat_probability) * n
    ) < bounds(n, 0.1)
    # All positions have the same probability, and so do all ordinary tokens as replacements.
    position = rows % 102
    times = np.bincount(position, minlength=102)[1:-1]
    assert abs(times - 300).max() < bounds(2000, 0.15)
    samples = replacements[(replacements != originals) & (replacements != MASK)]
    expected = len(samples) / (V - SPECIAL.sum())
    assert (np.bincount(samples, minlength=V)[~SPECIAL] - expected).max() < 6 * expected**0.5
    # The replacement and the position are independent.
    early = replacements[position < 51] == MASK
    assert abs(early.sum() - 0.8 * len(early)) < bounds(len(early), 0.8)


@pytest.mark.parametrize(
    ("replacement", "unit"), [((1, 0, 0), "mask"), ((0, 1, 0), "random"), ((0, 0, 1), "stays")]
)
def test_extreme_replacement_probabilities(replacement: tuple[float, float, float], unit: str) -> None:
    sizes = np.full(100, 50)
    ids = frame_sequences(sizes)
    masked, rows = masker(replacement=replacement).apply(ids, sizes, np.arange(100), 0)
    replacements = masked[rows]
    assert {
        "mask": (replacements == MASK).all(),
        "random": (replacements != MASK).all(),
        "stays": (replacements == ids[rows]).all(),
    }[unit]
    assert (replacements == ids[rows]).mean() < 0.05 or unit == "stays"


def test_masks_do_not_depend_on_the_other_sequences() -> None:
    sizes = np.array([9, 30, 5, 64, 17])
    ids = frame_sequences(sizes)
    instance_ids = np.array([7, 3, 100, 8, 0])
    all_masked, rows = masker().apply(ids, sizes, instance_ids, 2)
    starts = np.cumsum(sizes) - sizes
    for order in ([0], [3], [2, 1], [4, 0, 3], [4, 3, 2, 1, 0]):
        parts = [ids[starts[i] : starts[i] + sizes[i]] for i in order]
        masked, _ = masker().apply(np.concatenate(parts), sizes[order], instance_ids[order], 2)
        expected = np.concatenate([all_masked[starts[i] : starts[i] + sizes[i]] for i in order])
        assert (masked == expected).all()
    assert len(rows)


def test_masks_differ_by_epoch_seed_and_instance() -> None:
    sizes = np.full(200, 102)
    ids = frame_sequences(sizes)

    def rows(seed: int = 0, epoch: int = 0, first: int = 0) -> set[int]:
        return set(masker(seed=seed).apply(ids, sizes, np.arange(first, first + 200), epoch)[1].tolist())

    reference = rows()
    assert rows() == reference
    n, p = 200 * 15, 0.15
    for other in (rows(epoch=1), rows(seed=1), rows(first=1), rows(epoch=2), rows(first=200)):
        assert abs(len(reference & other) - p * n) < bounds(n, p)  # independent draws overlap this much


def test_a_sequence_of_special_tokens_has_no_predictions() -> None:
    masked, rows = masker().apply(np.array([2, 3, 2, 9, 3]), np.array([2, 3]), np.array([0, 1]), 0)
    assert rows.tolist() == [3]
    assert masked.tolist()[:2] == [2, 3]


# --- whole words and spans ----------------------------------------------------------------------------------

CONTINUES = np.zeros(V, dtype=bool)
CONTINUES[300:499] = True  # about two of five pieces continue a word


class WordMasker(Masker):
    def apply(self, ids: IntArray, *args: Any, **kwargs: Any) -> tuple[IntArray, IntArray]:
        return super().apply(ids, *args, **kwargs, word_starts=~CONTINUES[ids])


def word_masker(unit: str, mlm_probability: float = 0.15, **options: object) -> Masker:
    settings = DataSettings.of({"masking": unit, "mlm_probability": mlm_probability, **options}, "test")
    return WordMasker(settings, IDS, 0)


def words_of(ids: IntArray, lengths: IntArray) -> list[tuple[int, int]]:
    """Return the first row of each word and the row behind it; a special token ends a word."""
    starts = set((np.cumsum(lengths) - lengths).tolist())
    words: list[tuple[int, int]] = []
    in_word = False
    for row, token in enumerate(ids.tolist()):
        if SPECIAL[token]:
            in_word = False
        elif in_word and CONTINUES[token] and row not in starts:
            words[-1] = (words[-1][0], row + 1)
        else:
            words.append((row, row + 1))
            in_word = True
    return words


def select_greedily(words: list[tuple[int, int]], order: list[int], num_predictions: int) -> set[int]:
    """Select words in order and skip those that would exceed the number; at least one word is selected."""
    selected: set[int] = set()
    for i in order:
        size = words[i][1] - words[i][0]
        if len(selected) + size <= num_predictions:
            selected |= set(range(*words[i]))
    return selected or set(range(*words[order[0]]))


@given(
    lengths=st.lists(st.integers(2, 60), min_size=1, max_size=12),
    mlm_probability=st.floats(0.01, 1.0),
    seed=st.integers(0, 2**32 - 1),
    unit=st.sampled_from(["whole_word", "span"]),
    max_predictions=st.sampled_from([None, 1, 5]),
)
def test_words_are_masked_whole_and_never_too_many(
    lengths: list[int], mlm_probability: float, seed: int, unit: str, max_predictions: int | None
) -> None:
    sizes = np.array(lengths)
    ids = frame_sequences(sizes, seed)
    ids[np.random.default_rng(seed).random(len(ids)) < 0.05] = 3  # special tokens within the text
    masked, rows = word_masker(unit, mlm_probability, max_predictions_per_seq=max_predictions).apply(
        ids, sizes, np.arange(len(sizes)), 1
    )
    selected = set(rows.tolist())
    assert (np.diff(rows) > 0).all()
    assert not SPECIAL[ids[rows]].any()
    assert np.isin(np.flatnonzero(masked != ids), rows).all()
    words = words_of(ids, sizes)
    for a, b in words:
        assert len(selected & set(range(a, b))) in (0, b - a)
    starts = np.cumsum(sizes) - sizes
    for start, size in zip(starts.tolist(), lengths, strict=True):
        sequence_words = [(a, b) for a, b in words if start <= a < start + size]
        n = sum(b - a for a, b in sequence_words)
        num_predictions = min(n, max(1, round(mlm_probability * n)), max_predictions or n)
        masked_sizes = [b - a for a, b in sequence_words if a in selected]
        assert sum(masked_sizes) <= num_predictions or len(masked_sizes) == 1
        assert max_predictions is None or sum(masked_sizes) <= max_predictions
        assert bool(masked_sizes) == any(b - a <= (max_predictions or n) for a, b in sequence_words)
        if sum(masked_sizes) > num_predictions:
            assert min(b - a for a, b in sequence_words) > num_predictions  # only if no word fits
        elif masked_sizes:
            unmasked_sizes = [b - a for a, b in sequence_words if a not in selected]
            assert not unmasked_sizes or min(unmasked_sizes) > num_predictions - sum(
                masked_sizes
            )  # nothing else fits


def test_whole_words_equal_those_of_a_loop_over_the_words() -> None:
    draw = np.random.default_rng(5)
    sizes = draw.integers(2, 80, 60)
    ids = frame_sequences(sizes, 5)
    positions = np.concatenate([np.arange(n) for n in sizes])
    words = Words.from_starts(~CONTINUES[ids], SPECIAL[ids], positions, np.cumsum(sizes) - sizes)
    word_ranges = words_of(ids, sizes)
    assert list(zip(words.first.tolist(), (words.first + words.size).tolist(), strict=True)) == word_ranges
    order = np.lexsort((draw.random(len(words.first)), words.sequence))
    num_predictions = draw.integers(1, 20, len(sizes))
    selected = select_words(words, order, num_predictions)
    rows = {row for i in selected.tolist() for row in range(*word_ranges[i])}
    expected: set[int] = set()
    for sequence in range(len(sizes)):
        sequence_words = [i for i in order.tolist() if words.sequence[i] == sequence]
        expected |= (
            select_greedily(word_ranges, sequence_words, int(num_predictions[sequence]))
            if sequence_words
            else set()
        )
    assert rows == expected


@pytest.mark.parametrize("unit", ["token", "whole_word", "span"])
def test_replacement_probabilities_of_every_unit_on_two_hundred_thousand_tokens(unit: str) -> None:
    sizes = np.full(2000, 102)
    ids = frame_sequences(sizes)
    masked, rows = word_masker(unit).apply(ids, sizes, np.arange(2000), 0)
    n = len(rows)
    assert 0.14 * 200_000 < n <= 0.15 * 200_000
    replacements, originals = masked[rows], ids[rows]
    spread = 4 if unit == "span" else 1  # one draw per span: fewer draws than tokens
    assert abs((replacements == MASK).sum() - 0.8 * n) < spread * bounds(n, 0.8)
    assert abs((replacements == originals).sum() - 0.1 * n) < spread * bounds(n, 0.1)
    is_adjacent_row = np.diff(rows) == 1
    # Each token has a draw; the tokens of a span share one.
    same_ratio = ((replacements == MASK)[1:] == (replacements == MASK)[:-1])[is_adjacent_row].mean()
    assert (same_ratio > 0.85) == (unit == "span")


def test_span_lengths_follow_the_distribution() -> None:
    """Spans are so few that they rarely touch: runs of masked words are spans."""
    sizes = np.full(6000, 500)
    ids = np.random.default_rng(0).integers(5, 300, sizes.sum())  # each piece a word
    for options in (
        {},
        {"span_length_distribution": "harmonic", "max_span_length": 3},
        {"span_geometric_p": 0.5, "max_span_length": 4},
    ):
        settings = DataSettings.of(options, "test")
        probabilities, max_length = span_length_probabilities(settings), settings.max_span_length
        _, rows = word_masker("span", 0.02, **options).apply(ids, sizes, np.arange(6000), 0)
        first = np.flatnonzero(np.diff(rows, prepend=-9) != 1)
        histogram = np.bincount(np.diff(np.append(first, len(rows))), minlength=max_length + 1)
        # The last span of each sequence may be cut.
        mean = (histogram * np.arange(len(histogram))).sum() / histogram.sum()
        expected_mean = (probabilities * np.arange(1, max_length + 1)).sum()
        assert abs(mean - expected_mean) / expected_mean < 0.2
        assert histogram[1 : max_length + 1].sum() > 0.97 * histogram.sum()
    mean_in_paper = 3.8
    probabilities = span_length_probabilities(DataSettings())
    assert (probabilities * np.arange(1, 11)).sum() == pytest.approx(mean_in_paper, abs=0.01)
    harmonic = DataSettings(span_length_distribution="harmonic", max_span_length=3)
    assert span_length_probabilities(harmonic).tolist() == pytest.approx([6 / 11, 3 / 11, 2 / 11])


@pytest.mark.parametrize("unit", ["whole_word", "span"])
def test_words_and_spans_do_not_depend_on_the_other_sequences(unit: str) -> None:
    sizes = np.array([9, 30, 5, 64, 17])
    ids = frame_sequences(sizes)
    instance_ids = np.array([7, 3, 100, 8, 0])
    all_masked, _ = word_masker(unit).apply(ids, sizes, instance_ids, 2)
    starts = np.cumsum(sizes) - sizes
    for order in ([0], [3], [2, 1], [4, 3, 2, 1, 0]):
        parts = [ids[starts[i] : starts[i] + sizes[i]] for i in order]
        masked, _ = word_masker(unit).apply(np.concatenate(parts), sizes[order], instance_ids[order], 2)
        expected = np.concatenate([all_masked[starts[i] : starts[i] + sizes[i]] for i in order])
        assert (masked == expected).all()


def test_predictions_have_a_limit() -> None:
    sizes = np.array([200, 20])
    _, rows = Masker(DataSettings(mlm_probability=0.5, max_predictions_per_seq=20), IDS, 0).apply(
        frame_sequences(sizes), sizes, np.arange(2), 0
    )
    assert np.bincount(rows >= 200).tolist() == [20, 9]


@given(
    lengths=st.lists(st.integers(2, 60), min_size=1, max_size=12),
    mlm_probability=st.floats(0.01, 1.0),
    seed=st.integers(0, 2**32 - 1),
    unit=st.sampled_from(["token", "whole_word", "span"]),
    max_predictions=st.integers(1, 8),
    released=st.booleans(),
)
def test_no_instance_exceeds_the_limit(
    lengths: list[int], mlm_probability: float, seed: int, unit: str, max_predictions: int, released: bool
) -> None:
    sizes = np.array(lengths)
    ids = np.random.default_rng(seed).integers(300, 499, sizes.sum())  # words as long as their sequences,
    ids[np.random.default_rng(seed).random(len(ids)) < 0.2] = 7  # except for a few starts
    options = {"mlm_probability_of": "all", "random_tokens": "all"} if released else {}
    _, rows = word_masker(unit, mlm_probability, max_predictions_per_seq=max_predictions, **options).apply(
        ids, sizes, np.arange(len(sizes)), 0
    )
    owner = np.repeat(np.arange(len(sizes)), sizes)
    assert np.bincount(owner[rows], minlength=len(sizes)).max() <= max_predictions


# --- BERT's release ------------------------------------------------------------------------------------------


def released(settings: dict[str, object], seed: int = 0) -> Masker:
    names = {"mlm_probability_of": "all", "maskable_tokens": "all", "random_tokens": "all"}
    return Masker(DataSettings.of(names | settings, "test"), IDS, seed)


@given(
    lengths=st.lists(st.integers(3, 130), min_size=1, max_size=12),
    max_predictions=st.sampled_from([None, 1, 20]),
    unknown=st.floats(0, 1, allow_subnormal=False),
    seed=st.integers(0, 2**32 - 1),
)
def test_the_releases_count(
    lengths: list[int], max_predictions: int | None, unknown: float, seed: int
) -> None:
    """Check min(max_predictions, max(1, int(round(len(tokens) * masked_lm_prob)))).

    [CLS] and [SEP] count and are never predicted; [UNK] is a token like any other.
    """
    sizes = np.array(lengths)
    ids = frame_sequences(sizes, seed)
    inside = np.flatnonzero(~SPECIAL[ids])
    ids[inside[np.random.default_rng(seed).random(len(inside)) < unknown]] = 1
    _, rows = released({"max_predictions_per_seq": max_predictions}, seed).apply(
        ids, sizes, np.arange(len(sizes)), 0
    )
    owner = np.repeat(np.arange(len(sizes)), sizes)
    expected = [min(max_predictions or n, n - 2, max(1, round(n * 0.15))) for n in lengths]
    assert np.bincount(owner[rows], minlength=len(sizes)).tolist() == expected
    assert not np.isin(ids[rows], [2, 3]).any()


def test_unknown_tokens_count_as_in_the_release() -> None:
    sizes = np.array([128])
    ids = frame_sequences(sizes)
    ids[1:60] = 1
    assert len(released({}).apply(ids, sizes, np.arange(1), 0)[1]) == 19
    assert len(masker().apply(ids, sizes, np.arange(1), 0)[1]) == round(0.15 * 67)


def test_unknown_tokens_are_predicted_and_special_tokens_drawn_as_in_the_release() -> None:
    sizes = np.full(3000, 102)
    ids = frame_sequences(sizes)
    inside = np.flatnonzero(~SPECIAL[ids])
    ids[inside[::4]] = 1
    masked, rows = released({"replacement_probabilities": [0, 1, 0]}).apply(ids, sizes, np.arange(3000), 0)
    n = len(rows)
    assert abs((ids[rows] == 1).sum() - n / 4) < bounds(n, 0.25)
    times = np.bincount(masked[rows], minlength=V)
    assert abs(times - n / V).max() < 6 * (n / V) ** 0.5  # all ids have the same probability
    plain = DataSettings.of({"replacement_probabilities": [0, 1, 0]}, "test")
    masked, rows = Masker(plain, IDS, 0).apply(ids, sizes, np.arange(3000), 0)
    assert not SPECIAL[ids[rows]].any()
    assert not SPECIAL[masked[rows]].any()
