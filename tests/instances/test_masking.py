"""Masks: exact counts, 80/10/10, whole words, spans, no special token ever, pure in (seed, epoch, instance)."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from bertsmith.errors import InputError
from bertsmith.instances.masking import Masker
from bertsmith.instances.settings import DataSettings
from bertsmith.instances.span_masking import SpanLengths

Ints = NDArray[np.int64]
V, MASK = 500, 4
SPECIAL = np.zeros(V, dtype=bool)
SPECIAL[:5] = SPECIAL[499] = True


def masker(share: float = 0.15, split: tuple[float, float, float] = (0.8, 0.1, 0.1), seed: int = 0) -> Masker:
    return Masker(share, split, MASK, SPECIAL, seed)


def framed(lengths: Ints, seed: int = 0) -> Ints:
    """Random ordinary tokens, with a 2 in front and a 3 behind each sequence, as [CLS] and [SEP] stand."""
    ids = np.random.default_rng(seed).integers(5, 499, lengths.sum())
    ends = np.cumsum(lengths)
    ids[ends - lengths], ids[ends - 1] = 2, 3
    return ids


def bounds(n: int, p: float) -> float:
    """Five binomial deviations."""
    return 5 * (n * p * (1 - p)) ** 0.5


@given(
    lengths=st.lists(st.integers(2, 60), min_size=1, max_size=12),
    share=st.floats(0.01, 0.99),
    seed=st.integers(0, 2**63 - 1),
    epoch=st.integers(0, 1000),
)
def test_the_count_is_exact_in_every_sequence(
    lengths: list[int], share: float, seed: int, epoch: int
) -> None:
    sizes = np.array(lengths)
    ids = framed(sizes, seed % 2**32)
    masked, rows = masker(share, seed=seed).apply(ids, sizes, np.arange(len(sizes)), epoch)
    owner = np.repeat(np.arange(len(sizes)), sizes)
    open_ = np.bincount(owner, weights=~SPECIAL[ids]).astype(int)
    wanted = [min(n, max(1, round(share * n))) for n in open_]  # round: half to even, as numpy's
    assert np.bincount(owner[rows], minlength=len(sizes)).tolist() == wanted
    assert (np.diff(rows) > 0).all()
    assert not SPECIAL[ids[rows]].any()  # never a special token …
    changed = np.flatnonzero(masked != ids)
    assert np.isin(changed, rows).all()  # … and nothing else is touched
    put = masked[rows]
    assert ((put == MASK) | ~SPECIAL[put]).all()  # … nor put in place of another
    assert ids.base is None
    assert (masked[SPECIAL[ids]] == ids[SPECIAL[ids]]).all()


def test_shares_on_two_hundred_thousand_tokens() -> None:
    sizes = np.full(2000, 102)
    ids = framed(sizes)
    masked, rows = masker().apply(ids, sizes, np.arange(2000), 0)
    assert len(rows) == 2000 * 15
    put, stood = masked[rows], ids[rows]
    n = len(rows)
    assert abs((put == MASK).sum() - 0.8 * n) < bounds(n, 0.8)
    random_again = 0.1 / (V - SPECIAL.sum())  # a random token may be the one that stood there
    assert abs((put == stood).sum() - (0.1 + random_again) * n) < bounds(n, 0.1)
    assert abs(((put != stood) & (put != MASK)).sum() - (0.1 - random_again) * n) < bounds(n, 0.1)
    # Each position is as likely, and each ordinary token as likely to be put in.
    position = rows % 102
    times = np.bincount(position, minlength=102)[1:-1]
    assert abs(times - 300).max() < bounds(2000, 0.15)
    drawn = put[(put != stood) & (put != MASK)]
    expected = len(drawn) / (V - SPECIAL.sum())
    assert (np.bincount(drawn, minlength=V)[~SPECIAL] - expected).max() < 6 * expected**0.5
    # Kind and place are independent of each other, and of the token.
    early = put[position < 51] == MASK
    assert abs(early.sum() - 0.8 * len(early)) < bounds(len(early), 0.8)


@pytest.mark.parametrize(
    ("split", "kind"), [((1, 0, 0), "mask"), ((0, 1, 0), "random"), ((0, 0, 1), "stays")]
)
def test_extreme_splits(split: tuple[float, float, float], kind: str) -> None:
    sizes = np.full(100, 50)
    ids = framed(sizes)
    masked, rows = masker(split=split).apply(ids, sizes, np.arange(100), 0)
    put = masked[rows]
    assert {"mask": (put == MASK).all(), "random": (put != MASK).all(), "stays": (put == ids[rows]).all()}[
        kind
    ]
    assert (put == ids[rows]).mean() < 0.05 or kind == "stays"


def test_an_instance_has_its_masks_alone_and_in_any_company() -> None:
    sizes = np.array([9, 30, 5, 64, 17])
    ids = framed(sizes)
    instances = np.array([7, 3, 100, 8, 0])
    whole, rows = masker().apply(ids, sizes, instances, 2)
    starts = np.cumsum(sizes) - sizes
    for order in ([0], [3], [2, 1], [4, 0, 3], [4, 3, 2, 1, 0]):
        parts = [ids[starts[i] : starts[i] + sizes[i]] for i in order]
        masked, _ = masker().apply(np.concatenate(parts), sizes[order], instances[order], 2)
        expected = np.concatenate([whole[starts[i] : starts[i] + sizes[i]] for i in order])
        assert (masked == expected).all()
    assert len(rows)


def test_masks_are_drawn_anew_for_each_epoch_seed_and_instance() -> None:
    sizes = np.full(200, 102)
    ids = framed(sizes)

    def rows(seed: int = 0, epoch: int = 0, first: int = 0) -> set[int]:
        return set(masker(seed=seed).apply(ids, sizes, np.arange(first, first + 200), epoch)[1].tolist())

    here = rows()
    assert rows() == here
    n, p = 200 * 15, 0.15
    for other in (rows(epoch=1), rows(seed=1), rows(first=1), rows(epoch=2), rows(first=200)):
        assert abs(len(here & other) - p * n) < bounds(n, p)  # as independent draws overlap


def test_a_sequence_of_specials_only_has_nothing_to_predict() -> None:
    masked, rows = masker().apply(np.array([2, 3, 2, 9, 3]), np.array([2, 3]), np.array([0, 1]), 0)
    assert rows.tolist() == [3]
    assert masked.tolist()[:2] == [2, 3]


# --- whole words and spans ----------------------------------------------------------------------------------

CONTINUES = np.zeros(V, dtype=bool)
CONTINUES[300:499] = True  # about two pieces in five go on a word


def word_masker(kind: str, share: float = 0.15, **more: object) -> Masker:
    return Masker(
        share,
        (0.8, 0.1, 0.1),
        MASK,
        SPECIAL,
        0,
        kind,
        lambda ids: ~CONTINUES[ids],
        **more,  # type: ignore[arg-type]
    )


def words_of(ids: Ints, lengths: Ints) -> list[tuple[int, int]]:
    """(first row, one behind the last) of each word; a special token ends one, a sequence begins one."""
    starts = set((np.cumsum(lengths) - lengths).tolist())
    words: list[tuple[int, int]] = []
    open_ = False
    for row, token in enumerate(ids.tolist()):
        if SPECIAL[token]:
            open_ = False
        elif open_ and CONTINUES[token] and row not in starts:
            words[-1] = (words[-1][0], row + 1)
        else:
            words.append((row, row + 1))
            open_ = True
    return words


def greedy(words: list[tuple[int, int]], order: list[int], wanted: int) -> set[int]:
    """The original's rule, with at least one word: a word that would pass the number is skipped."""
    chosen: set[int] = set()
    for i in order:
        size = words[i][1] - words[i][0]
        if len(chosen) + size <= wanted:
            chosen |= set(range(*words[i]))
    return chosen or set(range(*words[order[0]]))


@given(
    lengths=st.lists(st.integers(2, 60), min_size=1, max_size=12),
    share=st.floats(0.01, 1.0),
    seed=st.integers(0, 2**32 - 1),
    kind=st.sampled_from(["whole_word", "span"]),
    most=st.sampled_from([None, 1, 5]),
)
def test_words_are_masked_whole_and_never_too_many(
    lengths: list[int], share: float, seed: int, kind: str, most: int | None
) -> None:
    sizes = np.array(lengths)
    ids = framed(sizes, seed)
    ids[np.random.default_rng(seed).random(len(ids)) < 0.05] = 3  # specials amid the text
    masked, rows = word_masker(kind, share, most=most).apply(ids, sizes, np.arange(len(sizes)), 1)
    chosen = set(rows.tolist())
    assert (np.diff(rows) > 0).all()
    assert not SPECIAL[ids[rows]].any()
    assert np.isin(np.flatnonzero(masked != ids), rows).all()
    words = words_of(ids, sizes)
    for a, b in words:
        assert len(chosen & set(range(a, b))) in (0, b - a)
    starts = np.cumsum(sizes) - sizes
    for start, size in zip(starts.tolist(), lengths, strict=True):
        mine = [(a, b) for a, b in words if start <= a < start + size]
        n = sum(b - a for a, b in mine)
        wanted = min(n, max(1, round(share * n)), most or n)
        got = [b - a for a, b in mine if a in chosen]
        assert sum(got) <= wanted or len(got) == 1
        assert most is None or sum(got) <= most
        assert bool(got) == any(b - a <= (most or n) for a, b in mine)
        if sum(got) > wanted:
            assert min(b - a for a, b in mine) > wanted  # only where no word fits
        elif got:
            left = [b - a for a, b in mine if a not in chosen]
            assert not left or min(left) > wanted - sum(got)  # nothing that still fits is left


def test_whole_words_are_chosen_as_the_plain_rule_has_it() -> None:
    """Against the loop over words in their drawn order; the order is read off masks of everything but one."""
    from bertsmith.instances.span_masking import WordRuns, choose_words

    draw = np.random.default_rng(5)
    sizes = draw.integers(2, 80, 60)
    ids = framed(sizes, 5)
    positions = np.concatenate([np.arange(n) for n in sizes])
    words = WordRuns.of(~CONTINUES[ids], SPECIAL[ids], positions, np.cumsum(sizes) - sizes)
    spelled = words_of(ids, sizes)
    assert list(zip(words.first.tolist(), (words.first + words.size).tolist(), strict=True)) == spelled
    order = np.lexsort((draw.random(len(words.first)), words.owner))
    wanted = draw.integers(1, 20, len(sizes))
    chosen = choose_words(words, order, wanted)
    rows = {row for i in chosen.tolist() for row in range(*spelled[i])}
    expected: set[int] = set()
    for sequence in range(len(sizes)):
        mine = [i for i in order.tolist() if words.owner[i] == sequence]
        expected |= greedy(spelled, mine, int(wanted[sequence])) if mine else set()
    assert rows == expected


@pytest.mark.parametrize("kind", ["token", "whole_word", "span"])
def test_shares_hold_for_every_kind_on_two_hundred_thousand_tokens(kind: str) -> None:
    sizes = np.full(2000, 102)
    ids = framed(sizes)
    masked, rows = word_masker(kind).apply(ids, sizes, np.arange(2000), 0)
    n = len(rows)
    assert 0.14 * 200_000 < n <= 0.15 * 200_000
    put, stood = masked[rows], ids[rows]
    spread = 4 if kind == "span" else 1  # a span is drawn as one: fewer draws than tokens
    assert abs((put == MASK).sum() - 0.8 * n) < spread * bounds(n, 0.8)
    assert abs((put == stood).sum() - 0.1 * n) < spread * bounds(n, 0.1)
    apart = np.diff(rows) == 1
    # Tokens of one word each have a draw of their own; those of a span share it.
    alike = ((put == MASK)[1:] == (put == MASK)[:-1])[apart].mean()
    assert (alike > 0.85) == (kind == "span")


def test_spans_have_the_lengths_that_were_asked_for() -> None:
    """Few and far between, so that spans rarely touch: words in a row, counted against the shares."""
    sizes = np.full(6000, 500)
    ids = np.random.default_rng(0).integers(5, 300, sizes.sum())  # each piece a word
    for lengths in (SpanLengths(), SpanLengths("harmonic", longest=3), SpanLengths("geometric", 0.5, 4)):
        made = word_masker("span", 0.02, spans=lengths)
        _, rows = made.apply(ids, sizes, np.arange(6000), 0)
        first = np.flatnonzero(np.diff(rows, prepend=-9) != 1)
        found = np.bincount(np.diff(np.append(first, len(rows))), minlength=lengths.longest + 1)
        # Of each sequence the last span may be cut: the first spans of all sequences are whole where they fit.
        mean = (found * np.arange(len(found))).sum() / found.sum()
        wanted = (lengths.shares * np.arange(1, lengths.longest + 1)).sum()
        assert abs(mean - wanted) / wanted < 0.2
        assert found[1 : lengths.longest + 1].sum() > 0.97 * found.sum()
    assert (SpanLengths().shares * np.arange(1, 11)).sum() == pytest.approx(3.8, abs=0.01)  # the paper's mean
    assert SpanLengths("harmonic", longest=3).shares.tolist() == pytest.approx([6 / 11, 3 / 11, 2 / 11])
    drawn = SpanLengths().of(np.linspace(0, 1, 100_000, endpoint=False))
    assert np.bincount(drawn, minlength=11)[1:] / 100_000 == pytest.approx(SpanLengths().shares, abs=1e-4)


@pytest.mark.parametrize("kind", ["whole_word", "span"])
def test_words_and_spans_are_the_same_alone_and_in_company(kind: str) -> None:
    sizes = np.array([9, 30, 5, 64, 17])
    ids = framed(sizes)
    instances = np.array([7, 3, 100, 8, 0])
    whole, _ = word_masker(kind).apply(ids, sizes, instances, 2)
    starts = np.cumsum(sizes) - sizes
    for order in ([0], [3], [2, 1], [4, 3, 2, 1, 0]):
        parts = [ids[starts[i] : starts[i] + sizes[i]] for i in order]
        masked, _ = word_masker(kind).apply(np.concatenate(parts), sizes[order], instances[order], 2)
        expected = np.concatenate([whole[starts[i] : starts[i] + sizes[i]] for i in order])
        assert (masked == expected).all()


def test_predictions_have_a_cap() -> None:
    sizes = np.array([200, 20])
    _, rows = Masker(0.5, (1, 0, 0), MASK, SPECIAL, 0, most=20).apply(framed(sizes), sizes, np.arange(2), 0)
    assert np.bincount(rows >= 200).tolist() == [20, 9]


@given(
    lengths=st.lists(st.integers(2, 60), min_size=1, max_size=12),
    share=st.floats(0.01, 1.0),
    seed=st.integers(0, 2**32 - 1),
    kind=st.sampled_from(["token", "whole_word", "span"]),
    most=st.integers(1, 8),
    released=st.booleans(),
)
def test_no_instance_passes_the_cap_whatever_is_masked(
    lengths: list[int], share: float, seed: int, kind: str, most: int, released: bool
) -> None:
    sizes = np.array(lengths)
    ids = np.random.default_rng(seed).integers(300, 499, sizes.sum())  # words as long as their sequences …
    ids[np.random.default_rng(seed).random(len(ids)) < 0.2] = 7  # … but for a few starts
    more = {"counts_special": released, "puts_special": released}
    _, rows = word_masker(kind, share, most=most, **more).apply(ids, sizes, np.arange(len(sizes)), 0)
    owner = np.repeat(np.arange(len(sizes)), sizes)
    assert np.bincount(owner[rows], minlength=len(sizes)).max() <= most


# --- as BERT's release has it --------------------------------------------------------------------------------


def released(settings: dict[str, object], seed: int = 0) -> Masker:
    names = {"mask_share_of": "all", "mask_candidates": "all", "random_tokens": "all"}
    return Masker.of(DataSettings.of(names | settings, "test"), MASK, SPECIAL, (2, 3), None, seed)


@given(
    lengths=st.lists(st.integers(3, 130), min_size=1, max_size=12),
    most=st.sampled_from([None, 1, 20]),
    unknown=st.floats(0, 1, allow_subnormal=False),
    seed=st.integers(0, 2**32 - 1),
)
def test_the_releases_count(lengths: list[int], most: int | None, unknown: float, seed: int) -> None:
    """num_to_predict = min(max_predictions, max(1, int(round(len(tokens) * masked_lm_prob)))), [CLS] and [SEP]
    among the tokens but never chosen, [UNK] like any other."""
    sizes = np.array(lengths)
    ids = framed(sizes, seed)
    inside = np.flatnonzero(~SPECIAL[ids])
    ids[inside[np.random.default_rng(seed).random(len(inside)) < unknown]] = 1
    _, rows = released({"predictions_max": most}, seed).apply(ids, sizes, np.arange(len(sizes)), 0)
    owner = np.repeat(np.arange(len(sizes)), sizes)
    expected = [min(most or n, n - 2, max(1, round(n * 0.15))) for n in lengths]
    assert np.bincount(owner[rows], minlength=len(sizes)).tolist() == expected
    assert not np.isin(ids[rows], [2, 3]).any()


def test_a_full_instance_has_nineteen_predictions_as_in_the_release_not_the_ten_of_one_half_unknown() -> None:
    sizes = np.array([128])
    ids = framed(sizes)
    ids[1:60] = 1
    assert len(released({}).apply(ids, sizes, np.arange(1), 0)[1]) == 19
    assert len(masker().apply(ids, sizes, np.arange(1), 0)[1]) == round(0.15 * 67)


def test_unknown_tokens_are_predicted_and_special_tokens_drawn_as_in_the_release() -> None:
    sizes = np.full(3000, 102)
    ids = framed(sizes)
    inside = np.flatnonzero(~SPECIAL[ids])
    ids[inside[::4]] = 1
    masked, rows = released({"mask_split": [0, 1, 0]}).apply(ids, sizes, np.arange(3000), 0)
    n = len(rows)
    assert abs((ids[rows] == 1).sum() - n / 4) < bounds(n, 0.25)
    times = np.bincount(masked[rows], minlength=V)
    assert abs(times - n / V).max() < 6 * (n / V) ** 0.5  # each id of the vocabulary alike
    plain = DataSettings.of({"mask_split": [0, 1, 0]}, "test")
    masked, rows = Masker.of(plain, MASK, SPECIAL, (2, 3), None, 0).apply(ids, sizes, np.arange(3000), 0)
    assert not SPECIAL[ids[rows]].any()
    assert not SPECIAL[masked[rows]].any()


def test_an_id_outside_the_vocabulary_is_refused() -> None:
    ids = np.array([2, 7, V + 3, 3])
    with pytest.raises(InputError, match="token id 503, and its vocabulary ends at 499"):
        masker().apply(ids, np.array([4]), np.array([0]), 0)
