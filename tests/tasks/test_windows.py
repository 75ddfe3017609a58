"""Windows: no token is left out, each has its place, and the release's rule says which window decides."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tiny_run
from bertsmith.errors import InputError
from bertsmith.tasks.windows import NO_LIMIT, best_windows, split_windows

QUESTION = "who is kaba"


def text_of(words: int) -> str:
    return " ".join(["kaba", "lode", "migi", "nufo"][i % 4] for i in range(words))


@given(st.integers(0, 60), st.integers(3, 20), st.integers(1, 30) | st.none())
def test_windows_of_a_text_hold_all_its_tokens_in_order(words: int, limit: int, stride: int | None) -> None:
    encoding = tiny_run.tokenizer().encode(text_of(words), max_length=NO_LIMIT)
    cut = split_windows(encoding, limit, stride=stride)
    inner = encoding.ids[1:-1]
    held = set()
    for window in cut:
        ids, offsets = window.sequence.ids.tolist(), window.sequence.offsets.tolist()
        assert len(ids) <= limit
        assert (ids[0], ids[-1]) == (encoding.ids[0], encoding.ids[-1])
        assert (
            ids[window.sequence_start : window.sequence_start + window.size]
            == inner[window.text_start :][: window.size]
        )
        wanted = [list(pair) for pair in encoding.offsets[1:-1][window.text_start :][: window.size]]
        assert offsets[window.sequence_start : window.sequence_start + window.size] == wanted
        assert window.sequence.tokens == window.sequence.tokens_read == window.size
        held |= set(range(window.text_start, window.text_start + window.size))
    assert held == set(range(len(inner)))
    assert len(cut) == 1 or len(inner) > limit - 2


def test_a_text_that_fits_is_one_window_and_is_what_the_tokenizer_makes() -> None:
    encoding = tiny_run.tokenizer().encode("kaba lode", max_length=NO_LIMIT)
    (window,) = split_windows(encoding, len(encoding.ids))
    assert window.sequence.ids.tolist() == encoding.ids
    assert len(split_windows(encoding, len(encoding.ids) - 1)) == 2


def test_a_passage_is_cut_and_the_question_stands_before_each_part() -> None:
    tokenizer = tiny_run.tokenizer()
    encoding = tokenizer.encode(QUESTION, text_of(40), max_length=NO_LIMIT)
    before = encoding.sequence_ids.index(1)
    cut = split_windows(encoding, before + 11, source=1, stride=4)
    assert [window.text_start for window in cut[:3]] == [0, 4, 8]
    for window in cut:
        ids, segments = window.sequence.ids.tolist(), window.sequence.segments.tolist()
        assert ids[: window.sequence_start] == encoding.ids[:before]
        assert ids[-1] == tokenizer.sep_token_id
        assert segments == [0] * before + [1] * (window.size + 1)
        assert window.sequence.sources.tolist()[-window.size - 1 :] == [1] * window.size + [-1]
        for row in range(window.sequence_start, window.sequence_start + window.size):
            start, end = window.sequence.offsets[row]
            assert text_of(40)[start:end] == tokenizer.tokens[ids[row]]


def test_a_long_question_is_truncated_and_counted() -> None:
    encoding = tiny_run.tokenizer().encode(text_of(9), text_of(3), max_length=NO_LIMIT)
    asked, passage = encoding.sequence_ids.count(0), encoding.sequence_ids.count(1)
    (window,) = split_windows(encoding, NO_LIMIT, source=1, max_other_tokens=2)
    assert window.sequence.ids.tolist() == encoding.ids[:3] + encoding.ids[1 + asked :]
    assert (window.sequence_start, window.size) == (4, passage)
    assert window.sequence.tokens - window.sequence.tokens_read == asked - 2


def test_no_room_beside_the_question_is_refused_with_its_place() -> None:
    encoding = tiny_run.tokenizer().encode(text_of(9), "kaba", max_length=NO_LIMIT)
    around = len(encoding.ids) - encoding.sequence_ids.count(1)
    with pytest.raises(InputError) as caught:
        split_windows(encoding, around, source=1, location="a.json:3")
    assert (caught.value.code, caught.value.location) == ("other_text_too_long", "a.json:3")


@given(st.integers(1, 60), st.integers(3, 20), st.integers(1, 30))
def test_the_window_that_decides_is_the_release_s(words: int, limit: int, stride: int) -> None:
    cut = split_windows(
        tiny_run.tokenizer().encode(text_of(words), max_length=NO_LIMIT), limit, stride=stride
    )
    found = best_windows(cut)
    for position, number in enumerate(found):
        # run_squad.py, _check_is_max_context, in hundredths
        scores = {
            i: 100 * min(position - w.text_start, w.text_start + w.size - 1 - position) + w.size
            for i, w in enumerate(cut)
            if w.text_start <= position < w.text_start + w.size
        }
        assert number == max(scores, key=scores.__getitem__)
    assert found.dtype == np.int64
