"""Count exact and near-duplicate documents of a corpus; no texts are stored."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertsmith.corpus.near_duplicates import SIGNATURE_BYTES, duplicate_groups, minhash_signatures
from bertsmith.corpus.tokenized_corpus import IntArray
from bertsmith.io.documents import Document

MAX_NEAR_DOCUMENTS = 2_000_000
"""The documents whose signatures are stored; later ones are only compared for equality."""


class DuplicateCheck:
    """Group documents with equal texts, and near-duplicates among the others (see `near_duplicates`).

    Memory per document: 24 bytes, and 128 for its signature.
    """

    def __init__(self, threshold: float, max_examples: int) -> None:
        self._threshold, self._max_examples = threshold, max_examples
        self._locations = LocationTable()
        self._hashes, self._sizes = array("Q"), array("q")
        self._signatures = [np.empty((0, SIGNATURE_BYTES), dtype=np.uint8)]

    def update(self, documents: Sequence[Document]) -> None:
        """Store the hashes of documents."""
        texts = [document.text.encode("utf-8", "surrogatepass") for document in documents]
        self._signatures.append(minhash_signatures(texts[: max(0, MAX_NEAR_DOCUMENTS - len(self._hashes))]))
        for document in documents:
            self._locations.add(document.location)
            digest = hashlib.blake2b(document.text.strip().encode("utf-8", "surrogatepass"), digest_size=8)
            self._hashes.append(int.from_bytes(digest.digest(), "little"))
            self._sizes.append(len(document.text))

    def summary(self, num_characters: int) -> dict[str, dict[str, Any]]:
        """Return for exact and for near-duplicates their number, share of the characters, and largest clusters."""
        hashes = np.frombuffer(self._hashes, dtype=np.uint64)
        exact = duplicate_groups(hashes, np.empty((len(hashes), 0), dtype=np.uint8), 1)
        near = np.arange(len(hashes))
        signatures = np.concatenate(self._signatures)
        new = np.flatnonzero(exact[: len(signatures)] == near[: len(signatures)])
        near[new] = new[duplicate_groups(hashes[new], signatures[new], self._threshold)]
        num_not_compared = int((exact == np.arange(len(hashes)))[len(signatures) :].sum())
        return {
            "exact": {**self._clusters(exact, num_characters), "not_remembered": 0},
            "near": {**self._clusters(near, num_characters), "not_remembered": num_not_compared},
        }

    def _clusters(self, groups: IntArray, num_characters: int) -> dict[str, Any]:
        repeats = np.flatnonzero(groups != np.arange(len(groups)))
        sizes: NDArray[np.int64] = np.frombuffer(self._sizes, dtype=np.int64)
        first, counts = np.unique(groups[repeats], return_counts=True)
        largest = np.argsort(-counts, kind="stable")[: self._max_examples]
        return {
            "number": len(repeats),
            "share_of_characters": round(int(sizes[repeats].sum()) / max(1, num_characters), 6),
            "clusters": [
                {
                    "first": self._locations[int(first[i])],
                    "repeated": int(counts[i]),
                    "places": [
                        self._locations[index]
                        for index in repeats[groups[repeats] == first[i]][: self._max_examples].tolist()
                    ],
                }
                for i in largest.tolist()
            ],
        }


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
