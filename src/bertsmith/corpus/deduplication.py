"""Which documents repeat an earlier one: word for word, or nearly. Hashes and sketches are kept, never texts.

Nearly: of all runs of five words (characters where a script has no blanks) that two documents hold, at least the
threshold's share is in both (Jaccard). MinHash estimates it (Broder 1997) from 256 numbers a document, of which
rensa makes them; 32 bands of 8 find the candidates, so that two documents with a share of 0.8 meet with a
probability of 99.7 %, and at 0.9 always. A byte of each number is kept to verify (Li and König 2010, b-bit
minwise hashing): the estimate has a standard deviation of 0.025 at 0.8.
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
from bertsmith.corpus.hashing import Hashes, Ints
from bertsmith.corpus.sorted_hash_map import SortedRuns

SHINGLE = 5
_NUMBERS, _BANDS = 256, 32
_SEED = 1
_RECENT = 1 << 17  # keys in the dictionary in front of the sorted runs


class Duplicates:
    """Remembers documents and tells of each new one which earlier one it repeats.

    Memory a document: about 30 bytes for "exact", about 800 for "near" (32 band keys with a number, 16 bytes each
    at most; 256 bytes of sketch; its place), and some 70 MB once. With `capacity` documents remembered, later
    ones are still compared with those but not remembered; `not_remembered` counts them.

    What is answered depends on the order of the documents alone, not on how they are grouped into calls.
    """

    def __init__(
        self, kind: Literal["exact", "near"], threshold: float = 0.8, capacity: int | None = None
    ) -> None:
        """threshold: the least share of common runs of five words, above 0; only for "near"."""
        self._near, self._threshold, self._capacity = kind == "near", threshold, capacity
        self._places = Places()
        self._earliest = _Earliest()
        self._sketches = np.empty((0, _NUMBERS if self._near else 0), dtype=np.uint8)
        self.not_remembered = 0

    def __len__(self) -> int:
        """Documents remembered."""
        return len(self._places)

    def first_seen(self, text: str, place: str) -> str | None:
        """The place of an earlier document that this one repeats; else None, and this one is remembered.

        Blanks at a document's ends do not count. One call costs some 0.3 ms ("near"); for short documents
        `first_seen_many` is faster.
        """
        return self.first_seen_many([text], [place])[0]

    def first_seen_many(self, texts: Sequence[str], places: Sequence[str]) -> list[str | None]:
        """`first_seen` of each, in order: a document may repeat an earlier one of the same call."""
        if not texts:
            return []
        self._earliest.settle()
        if self._near:
            sketches = near_sketches(texts)
            found = self._near_earlier(_band_keys(sketches), sketches.astype(np.uint8), places)
        else:
            found = self._exact_earlier(_exact_keys(texts), places)
        return [None if number is None else self._places[number] for number in found]

    def _room(self) -> bool:
        if self._capacity is None or len(self._places) < self._capacity:
            return True
        self.not_remembered += 1
        return False

    def _exact_earlier(self, keys: Hashes, places: Sequence[str]) -> list[int | None]:
        old, recent = self._earliest.settled(keys), self._earliest.recent
        found: list[int | None] = []
        for key, number, place in zip(keys.tolist(), old.tolist(), places, strict=True):
            earlier = number if number >= 0 else recent.get(key)
            if earlier is None and self._room():
                recent[key] = self._places.add(place)
            found.append(earlier)
        return found

    def _near_earlier(
        self, keys: Hashes, sketches: NDArray[np.uint8], places: Sequence[str]
    ) -> list[int | None]:
        old, recent = self._earliest.settled(keys.ravel()).reshape(keys.shape), self._earliest.recent
        found: list[int | None] = []
        for row, place in enumerate(places):
            mine = keys[row].tolist()
            known = [
                number if number >= 0 else recent.get(key, -1)
                for key, number in zip(mine, old[row].tolist(), strict=True)
            ]
            earlier = self._verified(sorted({number for number in known if number >= 0}), sketches[row])
            if earlier is None and self._room():
                number = self._places.add(place)
                self._keep(number, sketches[row])
                recent.update({key: number for key, other in zip(mine, known, strict=True) if other < 0})
            found.append(earlier)
        return found

    def _verified(self, candidates: list[int], sketch: NDArray[np.uint8]) -> int | None:
        """The earliest candidate whose sketch is like this one; of the bytes of different numbers 1/256 are equal
        by chance."""
        if not candidates:
            return None
        equal = (self._sketches[candidates] == sketch).mean(axis=1)
        likeness = (equal - 1 / 256) / (1 - 1 / 256)
        good = np.flatnonzero(likeness >= self._threshold)
        return candidates[int(good[0])] if len(good) else None

    def _keep(self, number: int, sketch: NDArray[np.uint8]) -> None:
        if number >= len(
            self._sketches
        ):  # a fifth more than needed: the copies stay a small part of the work
            more = np.empty((max(1024, len(self._sketches) // 5), _NUMBERS), dtype=np.uint8)
            self._sketches = np.concatenate([self._sketches, more])
        self._sketches[number] = sketch


class Places:
    """Places `path:line`, 8 bytes each and each path once; other names are kept as they are."""

    def __init__(self) -> None:
        self._names: dict[str, int] = {}
        self._paths: list[str] = []
        self._packed = array("Q")

    def __len__(self) -> int:
        return len(self._packed)

    def add(self, place: str) -> int:
        """Remember one; returns its number."""
        self._packed.append(self.packed(place))
        return len(self._packed) - 1

    def packed(self, place: str) -> int:
        """A place as a number of 64 bits, which `name` reads."""
        path, _, line = place.rpartition(":")
        plain = path != "" and line.isascii() and line.isdigit() and line[0] != "0" and len(line) < 12
        name = path if plain else place
        if name not in self._names:
            self._names[name] = len(self._paths)
            self._paths.append(name)
        return self._names[name] << 40 | (int(line) if plain else 0)

    def name(self, packed: int) -> str:
        """The place that was packed."""
        path, line = self._paths[packed >> 40], packed & ((1 << 40) - 1)
        return f"{path}:{line}" if line else path

    def __getitem__(self, number: int) -> str:
        return self.name(self._packed[number])


class _Earliest:
    """64-bit keys, each with the number that came with it first: a dictionary of recent ones before sorted runs
    (16 bytes a key)."""

    def __init__(self) -> None:
        self.recent: dict[int, int] = {}
        self._runs = SortedRuns({"number": np.int64})

    def settled(self, keys: Hashes) -> Ints:
        """The numbers of keys that stand in the runs, -1 for others."""
        return self._runs.look_up(keys, "number", missing=-1)

    def settle(self) -> None:
        """Move the recent keys to the runs, once they are many."""
        if len(self.recent) < _RECENT:
            return
        keys = np.fromiter(self.recent.keys(), dtype=np.uint64, count=len(self.recent))
        numbers = np.fromiter(self.recent.values(), dtype=np.int64, count=len(self.recent))
        self.recent.clear()
        self._runs.add(keys, {"number": numbers})


def near_sketches(texts: Sequence[str]) -> Hashes:
    """256 MinHash numbers of each text, [T, 256] (uint64, below 2^32): over its runs of five words, or all its
    words where it has fewer, or its characters where it has no word."""
    rows = np.full((len(texts), _NUMBERS), np.iinfo(np.uint32).max, dtype=np.uint64)
    for first, group, _ in hashing.windows(texts):
        codes, bounds = hashing.code_points(group)
        found = hashing.words(codes, bounds)
        hashes, _, ends = hashing.grams(found, SHINGLE)
        part = rows[first : first + len(group)]
        np.minimum(part, minhashes(hashes, ends), out=part)  # parts of a long text: the least of each number
    for number in np.flatnonzero(rows[:, 0] == np.iinfo(np.uint32).max).tolist():
        whole = np.array([_key(texts[number])], dtype=np.uint64)
        rows[number] = minhashes(whole, np.array([0, 1]))[0]
    return rows


def minhashes(hashes: Hashes, bounds: Ints) -> Hashes:
    """The MinHash numbers of sets that stand end to end; all ones for an empty set."""
    matrix = rensa.RMinHash.digest_matrix_from_flat_token_hashes(
        hashes, bounds.astype(np.uint64), _NUMBERS, _SEED
    )
    return np.array(matrix.to_rows(), dtype=np.uint64).reshape(-1, _NUMBERS)


def _band_keys(sketches: Hashes) -> Hashes:
    """[T, 32]: a hash of each band of 8 numbers, the band's own number among them."""
    bands = sketches.reshape(len(sketches), _BANDS, -1)
    keys = np.broadcast_to(np.arange(_BANDS, dtype=np.uint64), bands.shape[:2]).copy()
    for column in range(bands.shape[2]):
        keys = (keys ^ bands[:, :, column]) * np.uint64(0xBF58476D1CE4E5B9)
        keys ^= keys >> np.uint64(29)
    return keys


def _exact_keys(texts: Sequence[str]) -> Hashes:
    return np.fromiter((_key(text) for text in texts), dtype=np.uint64, count=len(texts))


def _key(text: str) -> int:
    data = text.strip().encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little")
