"""64-bit hashes of lines, words, and word n-grams, computed with NumPy for many texts at once.

Repetitions in a corpus larger than memory are found by hashes, which fit into memory where the texts do not. A
hash is polynomial: the sum over characters of mix(character) · B^position modulo 2^64. It is computed as a
difference of prefix sums and divided by B^start, so that the hash of any span takes a few operations. Hashes are
equal on every machine and in every process.

Shape letters: T texts, C characters, W words, G n-grams.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from bertsmith.corpus.tokenized_corpus import HashArray, IntArray
from bertsmith.io.unicode_scripts import UNSPACED

WINDOW_CHARACTERS = 1 << 20  # The arrays of a window take some 60 MB.
_NUM_CODE_POINTS = 0x110000
_BASE = 0x9E3779B97F4A7C15  # odd, so that it has an inverse
_SEPARATOR, _WORD_CHARACTER, _SINGLE_CHARACTER_WORD = 0, 1, 2
_LAST_LETTER = 0x323B0  # No assigned code point from it on is a letter, a mark, or a digit.


@dataclass(frozen=True)
class WordHashes:
    """The words of T texts: lower-cased runs of letters, marks, and digits.

    In scripts without spaces between words, each character is a word.

    Attributes:
        hashes: uint64 [W].
        starts: int64 [W], positions in the characters.
        offsets: int64 [T + 1]; text t has the words offsets[t] to offsets[t + 1].
    """

    hashes: HashArray
    starts: IntArray
    offsets: IntArray


def code_points(texts: Sequence[str]) -> tuple[NDArray[np.uint32], IntArray]:
    """Return the concatenated characters of all texts, a line end after each, [C], and text offsets, [T + 1]."""
    joined = "\n".join(texts) + "\n"
    # A string may hold a lone surrogate (from a parquet file, for example), which counts as a character.
    codes = np.frombuffer(joined.encode("utf-32-le", "surrogatepass"), dtype=np.uint32)
    offsets = np.cumsum([0, *(len(text) + 1 for text in texts)], dtype=np.int64)
    return codes, offsets


def windows(texts: Sequence[str], limit: int = WINDOW_CHARACTERS) -> Iterator[tuple[int, list[str], int]]:
    """Yield texts in groups of at most about `limit` characters: (index of the first text, group, offset).

    A longer text is yielded in several groups of one part each. A part ends with the last line end before the
    limit, or with a space if the line is longer still. `offset` is the start of the part in its text (0 for other
    groups).
    """
    group: list[str] = []
    size = 0
    for index, text in enumerate(texts):
        if group and size + len(text) > limit:
            yield index - len(group), group, 0
            group, size = [], 0
        if len(text) <= limit:
            group.append(text)
            size += len(text) + 1
            continue
        start = 0
        while start < len(text):
            end = start + limit
            if end < len(text):
                cut = (text.rfind("\n", start, end) + 1) or (text.rfind(" ", start, end) + 1)
                end = cut if cut > start else end
            yield index, [text[start:end]], start
            start = end
    if group:
        yield len(texts) - len(group), group, 0


def span_hashes(codes: NDArray[np.uint32], starts: IntArray, stops: IntArray) -> HashArray:
    """Return the case-sensitive hash of each span [start, stop) of the characters."""
    sums = _prefix_sums(_mixed_code_points()[codes])
    hashes: HashArray = (sums[stops] - sums[starts]) * _inverse_powers(len(codes))[starts]
    return _mix(hashes)


def hash_words(codes: NDArray[np.uint32], offsets: IntArray) -> WordHashes:
    """Hash the words of texts that `code_points` concatenated."""
    roles, values = _word_tables()
    role = roles.take(codes, mode="clip")
    in_word = role == _WORD_CHARACTER
    is_start = role == _SINGLE_CHARACTER_WORD
    is_start[:1] |= in_word[:1]
    is_start[1:] |= in_word[1:] > in_word[:-1]
    starts = np.flatnonzero(is_start)
    # Separators have the value 0, so that a word ends where the next one starts.
    sums = _prefix_sums(values.take(codes, mode="clip"))
    hashes: HashArray = np.diff(sums[starts], append=sums[-1:]) * _inverse_powers(len(codes))[starts]
    return WordHashes(_mix(hashes), starts, np.searchsorted(starts, offsets))


def ngram_hashes(tokens: HashArray, offsets: IntArray, n: int) -> tuple[HashArray, IntArray, IntArray]:
    """Return the n-grams within each text: hashes [G], index of the first token [G], and text offsets [T + 1].

    A text of fewer than n tokens has one n-gram: all of its tokens. A text without tokens has none.

    Args:
        tokens: uint64 [W], the tokens of all texts, such as hashes of words.
        offsets: int64 [T + 1], the start of each text in `tokens`.
        n: The number of tokens of an n-gram.
    """
    lengths = np.diff(offsets)
    counts = np.where(lengths > 0, np.maximum(lengths - n + 1, 1), 0)
    ngram_offsets = np.concatenate([[0], np.cumsum(counts)])
    first = np.arange(ngram_offsets[-1]) + np.repeat(offsets[:-1] - ngram_offsets[:-1], counts)
    last = np.minimum(first + n, np.repeat(offsets[1:], counts))
    sums = _prefix_sums(tokens)
    hashes: HashArray = sums[last]
    hashes -= sums[first]
    hashes *= _inverse_powers(len(sums))[first]
    return _mix(hashes), first, ngram_offsets


def _mix(x: HashArray) -> HashArray:
    """Apply the finalizer of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014) in place: it spreads each bit."""
    x ^= x >> np.uint64(30)
    x *= np.uint64(0xBF58476D1CE4E5B9)
    x ^= x >> np.uint64(27)
    x *= np.uint64(0x94D049BB133111EB)
    x ^= x >> np.uint64(31)
    return x


def _prefix_sums(values: HashArray) -> HashArray:
    """Return the sums of value · B^position before each position, [N + 1]."""
    sums = np.empty(len(values) + 1, dtype=np.uint64)
    sums[0] = 0
    np.multiply(values, _powers(len(values)), out=sums[1:])
    return np.cumsum(sums, out=sums)


def _powers(count: int) -> HashArray:
    return _power_table(_BASE, _table_size(count))[:count]


def _inverse_powers(count: int) -> HashArray:
    return _power_table(pow(_BASE, -1, 1 << 64), _table_size(count))[:count]


def _table_size(count: int) -> int:
    return 1 << max(18, count.bit_length())


@cache
def _power_table(base: int, size: int) -> HashArray:
    table = np.full(size, base, dtype=np.uint64)
    table[0] = 1
    return np.multiply.accumulate(table)


@cache
def _mixed_code_points() -> HashArray:
    return _mix(np.arange(1, _NUM_CODE_POINTS + 1, dtype=np.uint64) * np.uint64(_BASE))


@cache
def _word_tables() -> tuple[NDArray[np.uint8], HashArray]:
    """Return, by code point up to the last letter, its role in words and the value that is hashed.

    The value is that of the lower case; 0 for separators.
    """
    characters = [chr(code) for code in range(_LAST_LETTER + 1)]
    roles = np.array(
        [_WORD_CHARACTER if unicodedata.category(c)[0] in "LMN" else _SEPARATOR for c in characters],
        dtype=np.uint8,
    )
    for unspaced in UNSPACED:
        part = roles[unspaced.start : unspaced.stop]
        part[part == _WORD_CHARACTER] = _SINGLE_CHARACTER_WORD
    lower = [c.lower() for c in characters]
    codes = np.array(
        [ord(low) if len(low) == 1 else ord(c) for c, low in zip(characters, lower, strict=True)]
    )
    return roles, np.where(roles == _SEPARATOR, np.uint64(0), _mixed_code_points()[codes])
