"""Hash texts and words, and group exact and near-duplicate documents with MinHash LSH over word 5-grams.

Hashes have 64 bits, and are equal on every machine and in every process.

In next-sentence prediction, a random segment B from a duplicate of A's document may be A's true continuation, with
the wrong label. A validation document that duplicates a training document measures nothing. `prepare` therefore
groups such documents, and `data check` reports them.

Two documents are near-duplicates if the Jaccard similarity of their word 5-grams reaches a threshold. rensa
computes 128 MinHash values of a document (Broder 1997), of which one byte each is stored (b-bit minwise hashing,
Li and König 2010). Candidates are documents that agree in one of 42 bands of 3 values: of pairs with a similarity
of 0.4 this finds 94 %, with 0.5 99.6 %. The standard deviation of the estimated similarity is at most 0.045. A
short document that is contained in a long one is no near-duplicate of it.

For the signatures, words are split in the bytes of UTF-8, since `prepare` has little time for it.

Shape letters: D documents, W words, H bytes of a signature, P pairs of documents.
"""

from __future__ import annotations

import hashlib
import unicodedata
from collections.abc import Sequence
from functools import cache, lru_cache

import numpy as np
import rensa
from numpy.typing import NDArray

from bertsmith.corpus.shards import HashArray, IntArray, batches
from bertsmith.errors import InputError
from bertsmith.io.unicode_scripts import UNSPACED

_FACTOR = np.uint64(0x9E3779B97F4A7C15)  # of hashes: odd, and without structure
_LAST_LETTER = 0x323B0  # No assigned code point from it on is a letter, a mark, or a digit.
NGRAM = 5
"""The number of words of an n-gram."""
DEFAULT_THRESHOLD = 0.5
"""The default of the smallest Jaccard similarity of near-duplicates."""
SIGNATURE_BYTES = 128
_BAND_BYTES = 3
_SEED = 1
_BATCH_PAIRS = 1 << 16
_BATCH_BYTES = 1 << 19
# ASCII letters in lower case and digits stay, and so do the bytes of other characters; the rest is blank.
_WORD_BYTES = bytes(byte if byte >= 0x80 or chr(byte).isalnum() else 0x20 for byte in range(256)).lower()
_PREFIX_BYTES = 8
# By the length of a word, the bits of its bytes in a little-endian integer of eight bytes.
_PREFIX_MASKS = np.array([(1 << 8 * length) - 1 for length in range(_PREFIX_BYTES + 1)], dtype=np.uint64)
# Ends a document with words that no text has, so that each n-gram of a short document has as many words as others.
_END = b"\xff" * (NGRAM - 1) + b" "


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
        ngrams *= _FACTOR
        ngrams += words[i : i + len(ngrams)]
    ngrams ^= ngrams >> np.uint64(32)
    return ngrams


def check_threshold(threshold: float) -> None:
    """Raise an `InputError` if the threshold is not above 0 and at most 1."""
    if not 0 < threshold <= 1:
        message, hint = f"{threshold:g} is no Jaccard similarity", "give a number above 0, at most 1"
        raise InputError("threshold_out_of_range", message, argument="near_duplicate_threshold", hint=hint)


def minhash_signatures(texts: Sequence[bytes]) -> NDArray[np.uint8]:
    """Compute the MinHash signatures of D documents in UTF-8, uint8 [D, H]; each depends on its document alone.

    A signature has the low byte of each MinHash value. It covers the word 5-grams of a document, or all of its
    words if it has fewer; documents without words have equal signatures.
    """
    signatures = [np.empty((0, SIGNATURE_BYTES), dtype=np.uint8)]
    for batch in batches(texts, len, _BATCH_BYTES):
        words, first_words = _hash_utf8_words(batch)
        num_words = np.diff(first_words) - (NGRAM - 1)
        num_ngrams = np.maximum(num_words - (NGRAM - 1), np.minimum(num_words, 1))
        # The others contain the end of a document.
        runs = np.stack([num_ngrams, np.diff(first_words) - num_ngrams], axis=1).ravel()
        is_within = np.repeat(np.tile([True, False], len(batch)), runs)
        ngrams = hash_ngrams(words, NGRAM)
        matrix = rensa.RMinHash.digest_matrix_from_flat_token_hashes(
            ngrams[is_within[: len(ngrams)]],
            np.append(0, np.cumsum(num_ngrams)).astype(np.uint64),
            SIGNATURE_BYTES,
            _SEED,
        )
        signatures.append(np.array(matrix.to_rows(), dtype=np.uint32).astype(np.uint8))
    return np.concatenate(signatures)


def _hash_utf8_words(texts: Sequence[bytes]) -> tuple[HashArray, IntArray]:
    """Return a hash of each word of all texts, uint64 [W], and the first word of each text, int64 [D + 1].

    A word is a run of letters and digits. A character of three or four bytes (of scripts without spaces, among
    others) starts a word. The hash is that of the word's first eight bytes and of its length.
    """
    joined = _END.join([*texts, b" " * _PREFIX_BYTES]).translate(_WORD_BYTES)
    data = np.frombuffer(joined, dtype=np.uint8)
    in_word = data != ord(" ")
    is_boundary = data >= 0xE0  # the first byte of such a character
    is_boundary[1:] |= in_word[1:] != in_word[:-1]
    is_boundary[0] = True
    starts = np.flatnonzero(is_boundary & in_word)
    lengths = np.flatnonzero(is_boundary[1:] & in_word[:-1]) + 1 - starts
    # The eight bytes from each position on.
    words: HashArray = np.ndarray(len(data) - _PREFIX_BYTES + 1, "<u8", joined, strides=(1,))[starts]
    words &= _PREFIX_MASKS.take(lengths, mode="clip")
    words += lengths.view(np.uint64) * _FACTOR
    text_starts = np.cumsum([0, *(len(text) + len(_END) for text in texts)])
    return words, np.searchsorted(starts, text_starts)


def duplicate_groups(hashes: HashArray, signatures: NDArray[np.uint8], threshold: float) -> IntArray:
    """Group exact and near-duplicate documents, transitively.

    It takes about 60 bytes per document besides its arguments.

    Args:
        hashes: uint64 [D]; documents with equal hashes are one group.
        signatures: uint8 [D, H], from `minhash_signatures`.
        threshold: The smallest Jaccard similarity of near-duplicates, above 0; from 1 on, only documents with
            equal hashes are grouped.

    Returns:
        int64 [D], for each document the index of the first document of its group.
    """
    _, first, inverse = np.unique(hashes, return_index=True, return_inverse=True)
    groups: IntArray = first[inverse]
    num_bands = SIGNATURE_BYTES // _BAND_BYTES if threshold < 1 else 0
    for start in range(0, num_bands * _BAND_BYTES, _BAND_BYTES):
        band = np.zeros(len(groups), dtype=np.uint32)
        for column in signatures.T[start : start + _BAND_BYTES]:
            band = band << np.uint32(8) | column
        doc_a, doc_b = _candidate_pairs(band)
        in_different_groups = groups[doc_a] != groups[doc_b]
        doc_a, doc_b = doc_a[in_different_groups], doc_b[in_different_groups]
        is_similar = _similarities(signatures, doc_a, doc_b) >= threshold
        _merge_groups(groups, doc_a[is_similar], doc_b[is_similar])
    return groups


def _candidate_pairs(band: NDArray[np.uint32]) -> tuple[IntArray, IntArray]:
    """Return pairs of documents with equal values in a band [D], as two arrays [P].

    In each run of documents with equal values, a document is paired with its predecessor and with the run's first.
    """
    order = np.argsort(band, kind="stable")
    equals_previous = np.diff(band[order], prepend=~band[order[:1]]) == 0
    run_start = np.maximum.accumulate(np.where(equals_previous, 0, np.arange(len(order))))
    position = np.flatnonzero(equals_previous)
    others = np.concatenate([position - 1, run_start[position]])
    return order[others], order[np.tile(position, 2)]


def _similarities(signatures: NDArray[np.uint8], doc_a: IntArray, doc_b: IntArray) -> NDArray[np.float64]:
    """Estimate the Jaccard similarity of pairs [P]; of different MinHash values, 1/256 have the same low byte."""
    similarities = np.empty(len(doc_a))
    for start in range(0, len(doc_a), _BATCH_PAIRS):
        batch = slice(start, start + _BATCH_PAIRS)
        is_equal = signatures[doc_a[batch]] == signatures[doc_b[batch]]
        similarities[batch] = (is_equal.mean(axis=1) - 1 / 256) / (1 - 1 / 256)
    return similarities


def _merge_groups(groups: IntArray, doc_a: IntArray, doc_b: IntArray) -> None:
    """Merge the groups of each pair of documents in place, where a group is the index of its first document."""
    for a, b in zip(groups[doc_a].tolist(), groups[doc_b].tolist(), strict=True):
        while (parent := int(groups[a])) != a:
            a = parent
        while (parent := int(groups[b])) != b:
            b = parent
        groups[max(a, b)] = min(a, b)
    while len(doc_a) and (groups[groups] != groups).any():
        groups[:] = groups[groups]
