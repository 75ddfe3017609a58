"""Hashes of words and n-grams identify them."""

from __future__ import annotations

import random
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertsmith.corpus import hashing
from bertsmith.corpus.near_duplicates import minhash_signatures

WORDS = [a + b + c for a in "bdfgklmnprst" for b in "aeiou" for c in "nrstlm"]


def jaccard(a: list[str], b: list[str]) -> float:
    """Return the Jaccard similarity of the word 5-grams, counted one by one."""
    first, second = ({tuple(words[i : i + 5]) for i in range(len(words) - 4)} for words in (a, b))
    return len(first & second) / len(first | second)


def replace_words(words: list[str], count: int, seed: int) -> list[str]:
    """Return the words with `count` of them replaced."""
    rng = random.Random(seed)
    new = list(words)
    for i in rng.sample(range(len(words)), count):
        new[i] = "zzz" + rng.choice(WORDS)
    return new


def test_minhash_estimates_the_jaccard_similarity() -> None:
    words = random.Random(5).choices(WORDS, k=1000)
    others = [replace_words(words, n, n) for n in (1, 20, 60, 200)]
    signatures = minhash_signatures([" ".join(text).encode() for text in (words, *others)])
    for signature, other in zip(signatures[1:], others, strict=True):
        estimate = float((signature == signatures[0]).mean())
        assert estimate == pytest.approx(jaccard(words, other), abs=0.11)


def test_the_windows_of_a_long_text_cover_it() -> None:
    text = " ".join(random.Random(7).choices(WORDS, k=5000))
    parts = list(hashing.windows([text], limit=4000))
    assert len(parts) > 3
    assert "".join(part for _, [part], _ in parts) == text
    assert all(text[offset : offset + len(part)] == part for _, [part], offset in parts)


@given(st.lists(st.text(alphabet="abAB 你Éé.\n-", max_size=20), max_size=5))
def test_word_hashes_identify_lower_cased_words(texts: list[str]) -> None:
    """Two words have the same hash if and only if they are the same word."""
    expected = [re.findall(r"你|[abé]+", text.lower()) for text in texts]
    hashed = hashing.hash_words(*hashing.code_points(texts))
    assert np.diff(hashed.offsets).tolist() == [len(words) for words in expected]
    flat = [word for words in expected for word in words]
    assert len(dict(zip(flat, hashed.hashes.tolist(), strict=True))) == len(set(hashed.hashes.tolist()))
    assert len(set(zip(flat, hashed.hashes.tolist(), strict=True))) == len(set(flat))


@given(st.lists(st.lists(st.sampled_from("abc"), max_size=9), max_size=4), st.integers(1, 4))
def test_ngram_hashes_identify_ngrams(texts: list[list[str]], n: int) -> None:
    hashed = hashing.hash_words(*hashing.code_points([" ".join(words) for words in texts]))
    hashes, _, offsets = hashing.ngram_hashes(hashed.hashes, hashed.offsets, n)
    expected = [
        [tuple(words[i : i + n]) for i in range(max(1, len(words) - n + 1))] if words else []
        for words in texts
    ]
    assert np.diff(offsets).tolist() == [len(ngrams) for ngrams in expected]
    flat = [ngram for ngrams in expected for ngram in ngrams]
    assert len(set(zip(flat, hashes.tolist(), strict=True))) == len(set(flat)) == len(set(hashes.tolist()))
