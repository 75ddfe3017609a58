"""Text as numbers: 64-bit hashes of its lines, of its words and of runs of words, all at once with NumPy.

Who looks for repetitions in a corpus larger than memory keeps such hashes, not texts. A hash is a sum over
characters, mixed(character) · B^position modulo 2^64, taken as a difference of running sums and divided by
B^start: so every stretch of a text, wherever it stands, has its hash for a few operations. Equal on every
machine and in every process.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from bertsmith.io.unicode_scripts import UNSPACED

Ints = NDArray[np.int64]
Hashes = NDArray[np.uint64]

WINDOW = 1 << 20  # characters looked at together: some 60 MB of arrays
_CODES = 0x110000
_BASE = 0x9E3779B97F4A7C15  # odd, so that it has an inverse
_SEPARATOR, _JOINED, _ALONE = 0, 1, 2
_LAST_LETTER = 0x323B0  # nothing that is assigned beyond is a letter, a mark or a digit


@dataclass(frozen=True)
class WordHashes:
    """The words of some texts: runs of letters, marks and digits, lower-cased; where a script has no blanks
    between words, each character.

    hashes: uint64 [W]. starts: int64 [W], positions in the characters. bounds: int64 [T + 1]: text t has the
    words bounds[t] to bounds[t + 1].
    """

    hashes: Hashes
    starts: Ints
    bounds: Ints


def code_points(texts: Sequence[str]) -> tuple[NDArray[np.uint32], Ints]:
    """The characters of all texts end to end, a line end behind each [C], and where each begins [T + 1]."""
    joined = "\n".join(texts) + "\n"
    # A string may hold half a surrogate pair (from a parquet file, say): it is a character to be counted.
    codes = np.frombuffer(joined.encode("utf-32-le", "surrogatepass"), dtype=np.uint32)
    bounds = np.zeros(len(texts) + 1, dtype=np.int64)
    np.cumsum([len(text) + 1 for text in texts], out=bounds[1:])
    return codes, bounds


def windows(texts: Sequence[str], limit: int = WINDOW) -> Iterator[tuple[int, list[str], int]]:
    """Texts in groups of at most about `limit` characters, as (number of the first, group, offset).

    A text that is longer stands alone and comes in parts, cut after the last line end before the limit (in a line
    that is longer still, after a blank); `offset` is where its part begins (0 for groups).
    """
    group: list[str] = []
    size = 0
    for number, text in enumerate(texts):
        if group and size + len(text) > limit:
            yield number - len(group), group, 0
            group, size = [], 0
        if len(text) <= limit:
            group.append(text)
            size += len(text) + 1
            continue
        begin = 0
        while begin < len(text):
            end = begin + limit
            if end < len(text):
                cut = (text.rfind("\n", begin, end) + 1) or (text.rfind(" ", begin, end) + 1)
                end = cut if cut > begin else end
            yield number, [text[begin:end]], begin
            begin = end
    if group:
        yield len(texts) - len(group), group, 0


def spans(codes: NDArray[np.uint32], starts: Ints, stops: Ints) -> Hashes:
    """The hash of each stretch [start, stop) of the characters, case and all."""
    sums = _running(_mixed_codes()[codes])
    found: Hashes = (sums[stops] - sums[starts]) * _inverses(len(codes))[starts]
    return _mixed(found)


def words(codes: NDArray[np.uint32], bounds: Ints) -> WordHashes:
    """The words of texts that were laid end to end by `code_points`."""
    kinds, folded = _word_tables()
    kind = kinds[np.minimum(codes, _LAST_LETTER)]
    inside = np.flatnonzero(kind)
    if not len(inside):
        empty = np.empty(0, dtype=np.int64)
        return WordHashes(np.empty(0, dtype=np.uint64), empty, np.zeros_like(bounds))
    begins = kind == _ALONE
    joined = kind == _JOINED
    begins[0] |= joined[0]
    begins[1:] |= joined[1:] & ~joined[:-1]
    first = np.flatnonzero(begins[inside])  # of each word, among the characters of words
    values = folded[codes[inside]] * _powers(len(inside))
    hashes = np.add.reduceat(values, first) * _inverses(len(inside))[first]
    starts = inside[first]
    return WordHashes(_mixed(hashes), starts, np.searchsorted(starts, bounds))


def grams(found: WordHashes, n: int) -> tuple[Hashes, Ints, Ints]:
    """The runs of n words within each text: their hashes, the number of each one's first word, and bounds [T + 1]
    as in `WordHashes`. A text of fewer words has one: all of it; a text without words none."""
    lengths = np.diff(found.bounds)
    counts = np.where(lengths > 0, np.maximum(lengths - n + 1, 1), 0)
    bounds = np.zeros(len(found.bounds), dtype=np.int64)
    np.cumsum(counts, out=bounds[1:])
    first = np.arange(bounds[-1]) + np.repeat(found.bounds[:-1] - bounds[:-1], counts)
    length = np.repeat(np.minimum(lengths, n), counts)
    sums = _running(found.hashes)
    hashes = (sums[first + length] - sums[first]) * _inverses(len(found.hashes) + 1)[first]
    return _mixed(hashes), first, bounds


def _mixed(x: Hashes) -> Hashes:
    """SplitMix64's finaliser (Steele, Lea and Flood, OOPSLA 2014): spreads every bit over all."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def _running(values: Hashes) -> Hashes:
    """[N + 1]: the sums of value · B^position before each position."""
    sums = np.zeros(len(values) + 1, dtype=np.uint64)
    np.cumsum(values * _powers(len(values)), out=sums[1:])
    return sums


def _powers(number: int) -> Hashes:
    return _power_table(_BASE, _table_size(number))[:number]


def _inverses(number: int) -> Hashes:
    return _power_table(pow(_BASE, -1, 1 << 64), _table_size(number))[:number]


def _table_size(number: int) -> int:
    return max(WINDOW * 2, 1 << max(0, number - 1).bit_length())


@cache
def _power_table(base: int, size: int) -> Hashes:
    table = np.full(size, base, dtype=np.uint64)
    table[0] = 1
    return np.multiply.accumulate(table)


@cache
def _mixed_codes() -> Hashes:
    return _mixed(np.arange(1, _CODES + 1, dtype=np.uint64) * np.uint64(_BASE))


@cache
def _word_tables() -> tuple[NDArray[np.uint8], Hashes]:
    """By character up to the last letter: what it does to words, and the mixed value of its lower case."""
    characters = [chr(code) for code in range(_LAST_LETTER + 1)]
    kinds = np.array(
        [_JOINED if unicodedata.category(c)[0] in "LMN" else _SEPARATOR for c in characters], dtype=np.uint8
    )
    for unspaced in UNSPACED:
        part = kinds[unspaced.start : unspaced.stop]
        part[part == _JOINED] = _ALONE
    lower = [c.lower() for c in characters]
    codes = np.array(
        [ord(low) if len(low) == 1 else ord(c) for c, low in zip(characters, lower, strict=True)]
    )
    return kinds, _mixed_codes()[codes]
