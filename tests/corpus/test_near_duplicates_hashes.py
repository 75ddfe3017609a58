"""Hashes of words and n-grams identify them."""

from __future__ import annotations

import random
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertsmith.corpus.near_duplicates import hash_ngrams, hash_words, minhash_signatures

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


@given(st.text(alphabet="abAB 你Éé.\n-", max_size=60))
def test_word_hashes_identify_lower_cased_words(text: str) -> None:
    """Two words have the same hash if and only if they are the same word."""
    matches = list(re.finditer(r"你|[abé]+", text.lower()))
    hashes, starts = hash_words(text)
    assert starts.tolist() == [match.start() for match in matches]
    words = [match[0] for match in matches]
    assert len(set(zip(words, hashes.tolist(), strict=True))) == len(set(words)) == len(set(hashes.tolist()))


@given(st.lists(st.sampled_from("abc"), max_size=30), st.integers(1, 4))
def test_ngram_hashes_identify_ngrams(words: list[str], n: int) -> None:
    hashes = hash_ngrams(hash_words(" ".join(words))[0], n).tolist()
    ngrams = [tuple(words[i : i + n]) for i in range(len(words) - n + 1)]
    assert len(set(zip(ngrams, hashes, strict=True))) == len(set(ngrams)) == len(set(hashes))
