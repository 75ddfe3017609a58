"""64-bit hashes of texts, words, and word n-grams, equal on every machine and in every process."""

from __future__ import annotations

import hashlib
import unicodedata
from functools import cache, lru_cache

import numpy as np
from numpy.typing import NDArray

from bertsmith.corpus.shards import HashArray, IntArray
from bertsmith.io.unicode_scripts import UNSPACED

FACTOR = np.uint64(0x9E3779B97F4A7C15)
"""A factor of hashes: odd, and without structure."""
_LAST_LETTER = 0x323B0  # No assigned code point from it on is a letter, a mark, or a digit.


def hash_text(text: str) -> int:
    """Return the hash of a text."""
    return int.from_bytes(hashlib.blake2b(text.encode("utf-8"), digest_size=8).digest(), "little")


def code_points(text: str) -> NDArray[np.uint32]:
    """Return the code points of the C characters of a text, [C]."""
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype=np.uint32)


@cache
def _word_roles() -> NDArray[np.uint8]:
    """Return by code point up to the last letter: 0, a separator; 1, a part of a word; 2, a word of its own."""
    categories = (unicodedata.category(chr(code))[0] for code in range(_LAST_LETTER + 1))
    roles = np.array([category in "LMN" for category in categories], dtype=np.uint8)
    for part in UNSPACED:
        roles[part.start : part.stop] *= 2
    return roles


def word_spans(text: str) -> tuple[IntArray, IntArray]:
    """Return the starts and stops of the W words of a text, [W] each.

    A word is a run of letters, marks, and digits, or such a character of a script without spaces between words.
    """
    roles = np.zeros(len(text) + 2, dtype=np.uint8)
    _word_roles().take(code_points(text), mode="clip", out=roles[1:-1])
    is_boundary = (roles[1:] != roles[:-1]) | (roles[1:] == 2)
    is_boundary[1:] |= roles[1:-1] == 2
    starts = np.flatnonzero(is_boundary[:-1] & (roles[1:-1] > 0))
    stops = np.flatnonzero(is_boundary[1:] & (roles[1:-1] > 0)) + 1
    return starts, stops


def hash_words(text: str) -> tuple[HashArray, IntArray]:
    """Return the hash of each word of a text in lower case, uint64 [W], and its position, [W]."""
    starts, stops = word_spans(text)
    words = (text[start:stop] for start, stop in zip(starts.tolist(), stops.tolist(), strict=True))
    return np.fromiter(map(_hash_word, words), dtype=np.uint64, count=len(starts)), starts


@lru_cache(maxsize=1 << 16)
def _hash_word(word: str) -> int:
    return hash_text(word.lower())


def hash_ngrams(words: HashArray, n: int) -> HashArray:
    """Return the hash of the n-gram from each word on, uint64 [W - n + 1]."""
    ngrams = words[: max(0, len(words) - n + 1)].copy()
    for i in range(1, n):
        ngrams *= FACTOR
        ngrams += words[i : i + len(ngrams)]
    ngrams ^= ngrams >> np.uint64(32)
    return ngrams
