"""Exact search: for each query the k vectors with the highest products, over vectors of any number on disk.

A product of matrices in single precision depends in its last bits on how the matrices are cut, so it only
chooses who may be among the best; these are compared by products in double precision, each summed by itself. The
answer therefore does not depend on the size of the blocks, and equal scores stay in the vectors' order.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_BLOCK = 16_384  # vectors compared at a time
_QUERIES = 256  # queries at a time
_UNIT = 2.0**-24  # of rounding in single precision


def nearest_vectors(
    queries: NDArray[np.float32], vectors: NDArray[np.float32], k: int, *, block: int = _BLOCK
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """The numbers and the products of the k best of N vectors [N, H] for each of Q queries [Q, H], the best first;
    of equal ones the earlier. Both [Q, min(k, N)]. The vectors may be a file that is mapped into memory."""
    k = min(k, len(vectors))
    numbers = np.zeros((len(queries), k), dtype=np.int64)
    products = np.zeros((len(queries), k), dtype=np.float64)
    for first in range(0, len(queries), _QUERIES):
        some = np.ascontiguousarray(queries[first : first + _QUERIES], dtype=np.float32)
        best = [_Best(query, k) for query in some]
        for start in range(0, len(vectors), block):
            part = np.asarray(vectors[start : start + block], dtype=np.float32)
            longest = float(np.sqrt(np.einsum("nh,nh->n", part, part).max(initial=0.0)))
            for one, row in zip(best, some @ part.T, strict=True):
                one.look_at(row, part, start, longest)
        for i, one in enumerate(best, start=first):
            numbers[i], products[i] = one.numbers, one.products
    return numbers, products


def exact_products(query: NDArray[np.float32], vectors: NDArray[np.float32]) -> NDArray[np.float64]:
    """The products of one query [H] with vectors [n, H], each rounded as if it were alone: float64 [n]."""
    found: NDArray[np.float64] = (vectors.astype(np.float64) * query.astype(np.float64)).sum(axis=1)
    return found


def unit_length(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    """Vectors [n, H] divided by their lengths, so that products are cosines; a vector of zeros stays one."""
    found: NDArray[np.float32] = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    return found


class _Best:
    """The best k so far for one query."""

    def __init__(self, query: NDArray[np.float32], k: int) -> None:
        self._query, self._k = query, k
        # a sum of H rounded products of two vectors is off by at most this times both lengths
        self._off = (len(query) + 2) * _UNIT * float(np.linalg.norm(query))
        self.numbers = np.empty(0, dtype=np.int64)
        self.products = np.empty(0, dtype=np.float64)

    def look_at(
        self, rough: NDArray[np.float32], part: NDArray[np.float32], start: int, longest: float
    ) -> None:
        """Take in a block. rough: the products in single precision [n]; longest: the length of its longest."""
        off = self._off * longest
        enough = -np.inf
        if len(self.products) == self._k:
            enough = float(self.products[-1]) - off
        if len(rough) > self._k:
            enough = max(enough, float(np.partition(rough, -self._k)[-self._k]) - 2 * off)
        among = np.flatnonzero(rough >= enough)
        if not len(among):
            return
        numbers = np.concatenate([self.numbers, among + start])
        products = np.concatenate([self.products, exact_products(self._query, part[among])])
        order = np.lexsort((numbers, -products))[: self._k]
        self.numbers, self.products = numbers[order], products[order]
