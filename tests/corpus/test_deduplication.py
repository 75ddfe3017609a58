"""Repeated documents, exact and near: what is planted is found, whatever the grouping, in bounded memory."""

from __future__ import annotations

import random
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertsmith.corpus import deduplication, hashing
from bertsmith.corpus.deduplication import Duplicates, Places, near_sketches

WORDS = [a + b + c for a in "bdfgklmnprst" for b in "aeiou" for c in "nrstlm"]
TEXTS = st.lists(st.text(alphabet="ab ñ你。\n", max_size=12), max_size=8)


def prose(number: int, seed: int) -> list[str]:
    """Some words drawn at random."""
    return random.Random(seed).choices(WORDS, k=number)


def jaccard(a: list[str], b: list[str], n: int = deduplication.SHINGLE) -> float:
    """The share of common runs of n words, counted one by one."""
    one, other = ({tuple(words[i : i + n]) for i in range(len(words) - n + 1)} for words in (a, b))
    return len(one & other) / len(one | other)


def changed(words: list[str], number: int, seed: int) -> list[str]:
    """The same words with some others in their place."""
    draw = random.Random(seed)
    new = list(words)
    for i in draw.sample(range(len(words)), number):
        new[i] = "zzz" + draw.choice(WORDS)
    return new


def test_exact_repetitions_are_told_with_the_first_place() -> None:
    seen = Duplicates("exact")
    texts = ["one two", "three", "one two", " one two\n", "One two", "three"]
    found = [seen.first_seen(text, f"a.txt:{i + 1}") for i, text in enumerate(texts)]
    assert found == [None, None, "a.txt:1", "a.txt:1", None, "a.txt:2"]
    assert len(seen) == 3


def test_near_repetitions_are_told_and_others_not() -> None:
    """On both sides of the threshold by more than four standard deviations of the estimate."""
    seen = Duplicates("near", 0.8)
    for number in range(60):
        words = prose(400, number)
        like, unlike = changed(words, 3, 1000 + number), changed(words, 32, 2000 + number)
        assert jaccard(words, like) > 0.91
        assert jaccard(words, unlike) < 0.6
        assert seen.first_seen(" ".join(words), f"first:{number + 1}") is None
        assert seen.first_seen(" ".join(like), f"like:{number + 1}") == f"first:{number + 1}"
        assert seen.first_seen(" ".join(unlike), f"unlike:{number + 1}") is None


def test_case_and_punctuation_do_not_part_near_repetitions() -> None:
    seen = Duplicates("near")
    assert seen.first_seen("The cat sat on the mat; it purred.", "a:1") is None
    assert seen.first_seen("the CAT sat, on the mat - it purred!", "a:2") == "a:1"
    assert seen.first_seen("The dog lay on a rug and it barked.", "a:3") is None


def test_chinese_is_compared_by_characters() -> None:
    seen = Duplicates("near")
    draw = random.Random(1)
    text = "".join(chr(draw.randrange(0x4E00, 0x9F00)) for _ in range(300))
    assert seen.first_seen(text, "a:1") is None
    assert seen.first_seen(text[:150] + "人" + text[151:], "a:2") == "a:1"
    assert seen.first_seen(text[:100] + text[200:] + text[100:200][::-1], "a:3") is None


def test_texts_without_a_word_repeat_only_themselves() -> None:
    seen = Duplicates("near")
    assert [seen.first_seen(text, f"a:{i}") for i, text in enumerate(["", "…", "--", "…"], start=1)] == [
        None, None, None, "a:2",
    ]  # fmt: skip


@pytest.mark.parametrize("kind", ["exact", "near"])
@given(texts=TEXTS, cuts=st.lists(st.integers(0, 8), max_size=3))
def test_the_grouping_into_calls_changes_nothing(kind: str, texts: list[str], cuts: list[int]) -> None:
    places = [f"a:{i + 1}" for i in range(len(texts))]
    one, many = Duplicates(kind), Duplicates(kind)  # type: ignore[arg-type]
    alone = [one.first_seen(text, place) for text, place in zip(texts, places, strict=True)]
    bounds = sorted({0, len(texts), *(min(cut, len(texts)) for cut in cuts)})
    grouped = [
        found
        for begin, end in pairwise(bounds)
        for found in many.first_seen_many(texts[begin:end], places[begin:end])
    ]
    assert grouped == alone


@given(texts=TEXTS)
def test_exact_is_what_a_dictionary_says(texts: list[str]) -> None:
    seen, known, expected = Duplicates("exact"), {}, []
    for i, text in enumerate(texts, start=1):
        expected.append(known.get(text.strip()))
        known.setdefault(text.strip(), f"a:{i}")
    assert seen.first_seen_many(texts, [f"a:{i + 1}" for i in range(len(texts))]) == expected


@pytest.mark.parametrize("kind", ["exact", "near"])
def test_nothing_is_lost_when_recent_keys_become_sorted_runs(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [" ".join(prose(30, i % 250)) for i in range(400)]
    places = [f"a:{i + 1}" for i in range(400)]
    whole = Duplicates(kind).first_seen_many(texts, places)  # type: ignore[arg-type]
    monkeypatch.setattr(deduplication, "_RECENT", 100)
    small = Duplicates(kind)  # type: ignore[arg-type]
    assert [small.first_seen(text, place) for text, place in zip(texts, places, strict=True)] == whole
    assert whole[250:] == places[:150]
    assert whole[:250] == [None] * 250


def test_a_full_memory_is_counted_and_still_compared_with() -> None:
    seen = Duplicates("near", capacity=2)
    texts = [" ".join(prose(50, i)) for i in range(4)]
    assert [seen.first_seen(text, f"a:{i}") for i, text in enumerate(texts, start=1)] == [None] * 4
    assert (len(seen), seen.not_remembered) == (2, 2)
    assert seen.first_seen(texts[1], "b:1") == "a:2"
    assert seen.first_seen(texts[3], "b:2") is None


def test_minhash_estimates_the_share_of_common_runs() -> None:
    words = prose(1000, 5)
    others = [changed(words, n, n) for n in (1, 20, 60, 200)]
    sketches = near_sketches([" ".join(text) for text in (words, *others)])
    for sketch, other in zip(sketches[1:], others, strict=True):
        estimate = float((sketch == sketches[0]).mean())
        assert estimate == pytest.approx(jaccard(words, other), abs=0.11)


def test_a_long_text_has_the_sketch_of_its_parts() -> None:
    """Windows cut it at a blank; only the runs across a cut are lost."""
    text = " ".join(prose(5000, 7))
    parts = list(hashing.windows([text], limit=4000))
    assert len(parts) > 3
    assert "".join(part for _, [part], _ in parts) == text
    assert all(text[offset : offset + len(part)] == part for _, [part], offset in parts)
    whole = near_sketches([text])[0]
    joined = np.min([near_sketches([part])[0] for _, [part], _ in parts], axis=0)
    assert float((whole == joined).mean()) > 0.98


def test_places_are_packed_and_come_back() -> None:
    names = ["a.txt:1", "a.txt:99999999999", "b:c:7", "no number", "a:0", "a:007", "a:x", ":5", "é\n.txt:3"]
    places = Places()
    assert [places[places.add(name)] for name in names] == names


@given(st.lists(st.text(alphabet="abAB 你Éé.\n-", max_size=20), max_size=5))
def test_word_hashes_stand_for_lower_cased_words(texts: list[str]) -> None:
    """Two words have one hash where, and only where, they are the same word."""
    import re

    expected = [re.findall(r"你|[abé]+", text.lower()) for text in texts]
    found = hashing.words(*hashing.code_points(texts))
    assert np.diff(found.bounds).tolist() == [len(words) for words in expected]
    flat = [word for words in expected for word in words]
    assert len(dict(zip(flat, found.hashes.tolist(), strict=True))) == len(set(found.hashes.tolist()))
    assert len(set(zip(flat, found.hashes.tolist(), strict=True))) == len(set(flat))


@given(st.lists(st.lists(st.sampled_from("abc"), max_size=9), max_size=4), st.integers(1, 4))
def test_gram_hashes_stand_for_runs_of_words(texts: list[list[str]], n: int) -> None:
    found = hashing.words(*hashing.code_points([" ".join(words) for words in texts]))
    hashes, _, bounds = hashing.grams(found, n)
    expected = [
        [tuple(words[i : i + n]) for i in range(max(1, len(words) - n + 1))] if words else []
        for words in texts
    ]
    assert np.diff(bounds).tolist() == [len(runs) for runs in expected]
    flat = [run for runs in expected for run in runs]
    assert len(set(zip(flat, hashes.tolist(), strict=True))) == len(set(flat)) == len(set(hashes.tolist()))
