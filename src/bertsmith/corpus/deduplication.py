"""Exact and near-duplicate documents, found by hashes and MinHash signatures; no texts are stored.

Two documents are near duplicates if the Jaccard similarity of their word 5-grams (characters in scripts without
spaces) reaches the threshold. MinHash (Broder 1997) estimates it from 256 values per document, computed by rensa.
Locality-sensitive hashing with 32 bands of 8 values finds the candidates: documents of similarity 0.8 meet with a
probability of 99.7 %, those of 0.9 always. One byte of each value verifies a candidate (b-bit minwise hashing, Li
and König 2010): the estimate has a standard deviation of 0.025 at 0.8.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence
from typing import Literal

import numpy as np
import rensa
from numpy.typing import NDArray

from bertsmith.corpus import hashing
from bertsmith.corpus.sorted_hash_map import SortedHashMap
from bertsmith.corpus.tokenized_corpus import HashArray, IntArray

SHINGLE_WORDS = 5
_NUM_HASHES, _NUM_BANDS = 256, 32
_SEED = 1
_MAX_RECENT_KEYS = 1 << 17  # keys in the dictionary before they move to the sorted map


class DuplicateIndex:
    """Index documents and find the earlier document that a new one repeats.

    Memory per document: about 30 bytes for "exact", about 800 for "near" (at most 16 bytes for each of 32 band
    keys, 256 bytes of signature, and the location), and some 70 MB once. Results depend on the order of the
    documents alone, not on how they are grouped into calls.

    Attributes:
        num_not_indexed: Documents that were compared but not indexed, since `capacity` documents were.
    """

    def __init__(
        self, method: Literal["exact", "near"], threshold: float = 0.8, capacity: int | None = None
    ) -> None:
        """Create an empty index; `threshold` is the smallest Jaccard similarity of near duplicates, above 0."""
        self._is_near, self._threshold, self._capacity = method == "near", threshold, capacity
        self._locations = LocationTable()
        self._first_index = _FirstIndexMap()
        self._signatures = np.empty((0, _NUM_HASHES if self._is_near else 0), dtype=np.uint8)
        self.num_not_indexed = 0

    def find_duplicates(self, texts: Sequence[str], locations: Sequence[str]) -> list[str | None]:
        """Return for each document the location of the earlier one that it repeats; index it if there is none.

        A document may repeat an earlier one of the same call. White space at the ends of a document is ignored.
        """
        if not texts:
            return []
        self._first_index.flush_if_large()
        if self._is_near:
            signatures = minhash_signatures(texts)
            matches = self._match_near(_band_keys(signatures), signatures.astype(np.uint8), locations)
        else:
            matches = self._match_exact(_text_hashes(texts), locations)
        return [None if index is None else self._locations[index] for index in matches]

    def _has_capacity(self) -> bool:
        if self._capacity is None or len(self._locations) < self._capacity:
            return True
        self.num_not_indexed += 1
        return False

    def _match_exact(self, keys: HashArray, locations: Sequence[str]) -> list[int | None]:
        old, recent = self._first_index.lookup_flushed(keys), self._first_index.recent
        matches: list[int | None] = []
        for key, index, location in zip(keys.tolist(), old.tolist(), locations, strict=True):
            earlier = index if index >= 0 else recent.get(key)
            if earlier is None and self._has_capacity():
                recent[key] = self._locations.add(location)
            matches.append(earlier)
        return matches

    def _match_near(
        self, keys: HashArray, signatures: NDArray[np.uint8], locations: Sequence[str]
    ) -> list[int | None]:
        old = self._first_index.lookup_flushed(keys.ravel()).reshape(keys.shape)
        recent = self._first_index.recent
        matches: list[int | None] = []
        for row, location in enumerate(locations):
            row_keys = keys[row].tolist()
            by_band = [
                index if index >= 0 else recent.get(key, -1)
                for key, index in zip(row_keys, old[row].tolist(), strict=True)
            ]
            earlier = self._verify(sorted({index for index in by_band if index >= 0}), signatures[row])
            if earlier is None and self._has_capacity():
                index = self._locations.add(location)
                self._store(index, signatures[row])
                recent.update({key: index for key, other in zip(row_keys, by_band, strict=True) if other < 0})
            matches.append(earlier)
        return matches

    def _verify(self, candidates: list[int], signature: NDArray[np.uint8]) -> int | None:
        """Return the earliest candidate that reaches the threshold."""
        if not candidates:
            return None
        equal = (self._signatures[candidates] == signature).mean(axis=1)
        similarity = (equal - 1 / 256) / (1 - 1 / 256)  # Of different values, 1/256 have the same low byte.
        matches = np.flatnonzero(similarity >= self._threshold)
        return candidates[int(matches[0])] if len(matches) else None

    def _store(self, index: int, signature: NDArray[np.uint8]) -> None:
        if index >= len(self._signatures):
            # Growing by a fifth keeps the copies a small part of the work.
            more = np.empty((max(1024, len(self._signatures) // 5), _NUM_HASHES), dtype=np.uint8)
            self._signatures = np.concatenate([self._signatures, more])
        self._signatures[index] = signature


class LocationTable:
    """Store locations `path:line` in 8 bytes each, and each path once; other names are stored as they are."""

    def __init__(self) -> None:
        self._indices: dict[str, int] = {}
        self._names: list[str] = []
        self._packed = array("Q")

    def __len__(self) -> int:
        return len(self._packed)

    def add(self, location: str) -> int:
        """Store a location and return its index."""
        self._packed.append(self.pack(location))
        return len(self._packed) - 1

    def pack(self, location: str) -> int:
        """Return a location as a 64-bit number: index of the path << 40 | line."""
        path, _, line = location.rpartition(":")
        has_line = path != "" and line.isascii() and line.isdigit() and line[0] != "0" and len(line) < 12
        name = path if has_line else location
        if name not in self._indices:
            self._indices[name] = len(self._names)
            self._names.append(name)
        return self._indices[name] << 40 | (int(line) if has_line else 0)

    def unpack(self, packed: int) -> str:
        """Return the location that `pack` encoded."""
        path, line = self._names[packed >> 40], packed & ((1 << 40) - 1)
        return f"{path}:{line}" if line else path

    def __getitem__(self, index: int) -> str:
        return self.unpack(self._packed[index])


class _FirstIndexMap:
    """Map 64-bit keys to the index of the first document with the key, 16 bytes per key.

    Recent keys are in a dictionary, older ones in a sorted map.
    """

    def __init__(self) -> None:
        self.recent: dict[int, int] = {}
        self._flushed = SortedHashMap({"index": np.int64})

    def lookup_flushed(self, keys: HashArray) -> IntArray:
        """Return the indices of keys in the sorted map, -1 for other keys."""
        return self._flushed.lookup(keys, "index", missing=-1)

    def flush_if_large(self) -> None:
        """Move the recent keys to the sorted map if there are many."""
        if len(self.recent) < _MAX_RECENT_KEYS:
            return
        keys = np.fromiter(self.recent.keys(), dtype=np.uint64, count=len(self.recent))
        indices = np.fromiter(self.recent.values(), dtype=np.int64, count=len(self.recent))
        self.recent.clear()
        self._flushed.add(keys, {"index": indices})


def minhash_signatures(texts: Sequence[str]) -> HashArray:
    """Return 256 MinHash values of each text, uint64 [T, 256], below 2^32.

    They cover the word 5-grams of a text, all its words if it has fewer, or all its characters if it has no word.
    """
    empty = np.iinfo(np.uint32).max
    signatures = np.full((len(texts), _NUM_HASHES), empty, dtype=np.uint64)
    for first, group, _ in hashing.windows(texts):
        words = hashing.hash_words(*hashing.code_points(group))
        hashes, _, offsets = hashing.ngram_hashes(words, SHINGLE_WORDS)
        part = signatures[first : first + len(group)]
        np.minimum(part, _minhash(hashes, offsets), out=part)  # A long text has the minimum over its parts.
    for index in np.flatnonzero(signatures[:, 0] == empty).tolist():
        text_hash = np.array([_text_hash(texts[index])], dtype=np.uint64)
        signatures[index] = _minhash(text_hash, np.array([0, 1]))[0]
    return signatures


def _minhash(hashes: HashArray, offsets: IntArray) -> HashArray:
    """Return the MinHash values of concatenated sets, [T, 256]; the maximum of uint32 for an empty set."""
    matrix = rensa.RMinHash.digest_matrix_from_flat_token_hashes(
        hashes, offsets.astype(np.uint64), _NUM_HASHES, _SEED
    )
    return np.array(matrix.to_rows(), dtype=np.uint64).reshape(-1, _NUM_HASHES)


def _band_keys(signatures: HashArray) -> HashArray:
    """Return a hash of each band of 8 values and of the band's index, [T, 32]."""
    bands = signatures.reshape(len(signatures), _NUM_BANDS, -1)
    keys = np.broadcast_to(np.arange(_NUM_BANDS, dtype=np.uint64), bands.shape[:2]).copy()
    for column in range(bands.shape[2]):
        keys = (keys ^ bands[:, :, column]) * np.uint64(0xBF58476D1CE4E5B9)
        keys ^= keys >> np.uint64(29)
    return keys


def _text_hashes(texts: Sequence[str]) -> HashArray:
    return np.fromiter((_text_hash(text) for text in texts), dtype=np.uint64, count=len(texts))


def _text_hash(text: str) -> int:
    data = text.strip().encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little")
