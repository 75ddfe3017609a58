"""Check for exact and near-duplicate documents."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from bertsmith.corpus.near_duplicates import SIGNATURE_BYTES, duplicate_groups, hash_text, minhash_signatures
from bertsmith.corpus.shards import IntArray
from bertsmith.io.documents import Document

MAX_NEAR_DOCUMENTS = 2_000_000
"""The documents whose signatures `DuplicateCheck` stores; later ones are only compared for equality."""


class DuplicateCheck:
    """Group documents with equal texts, and near-duplicates among the others, for a corpus check.

    No texts are stored. Memory per document: 16 bytes, its location, and 128 bytes for its signature.
    """

    def __init__(self, threshold: float, max_examples: int) -> None:
        self._threshold, self._max_examples = threshold, max_examples
        self._locations: list[pa.Array] = []
        self._hashes, self._sizes = array("Q"), array("q")
        self._signatures = [np.empty((0, SIGNATURE_BYTES), dtype=np.uint8)]

    def update(self, documents: Sequence[Document]) -> None:
        """Store the hashes of documents."""
        texts = [document.text.encode("utf-8") for document in documents]
        self._signatures.append(minhash_signatures(texts[: max(0, MAX_NEAR_DOCUMENTS - len(self._hashes))]))
        self._locations.append(pa.array([document.location for document in documents], pa.string()))
        self._hashes.extend(hash_text(document.text.strip()) for document in documents)
        self._sizes.extend(len(document.text) for document in documents)

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
            "exact": self._clusters(exact, num_characters),
            "near": {**self._clusters(near, num_characters), "not_compared": num_not_compared},
        }

    def _clusters(self, groups: IntArray, num_characters: int) -> dict[str, Any]:
        locations = pa.chunked_array(self._locations, pa.string())
        repeats = np.flatnonzero(groups != np.arange(len(groups)))
        sizes: NDArray[np.int64] = np.frombuffer(self._sizes, dtype=np.int64)
        first, counts = np.unique(groups[repeats], return_counts=True)
        largest = np.argsort(-counts, kind="stable")[: self._max_examples]
        return {
            "number": len(repeats),
            "share_of_characters": round(int(sizes[repeats].sum()) / max(1, num_characters), 6),
            "clusters": [
                {
                    "first": locations[int(first[i])].as_py(),
                    "repeated": int(counts[i]),
                    "places": locations.take(
                        repeats[groups[repeats] == first[i]][: self._max_examples]
                    ).to_pylist(),
                }
                for i in largest.tolist()
            ],
        }
