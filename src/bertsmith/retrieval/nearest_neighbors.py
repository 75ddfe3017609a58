"""The nearest neighbors of queries: exact search over a memory-mapped file, and approximate search by faiss.

The last bits of a single-precision matrix product depend on the block size, so in exact search it only preselects
candidates. These are ranked by products in double precision, each summed separately. The result therefore does not
depend on the block size, and vectors with equal products stay in their order.

Approximate search in an HNSW graph (Malkov and Yashunin 2018) compares a query with a small part of the vectors,
and may miss some of the nearest ones; its recall is measured when the graph is built. It is worthwhile from a few
hundred thousand texts. One thread builds the graph, which makes it deterministic.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, Field

from bertsmith.errors import InputError, option

GRAPH = "hnsw.faiss"
_M, _EF_CONSTRUCTION, _EF_SEARCH = 32, 200, 128  # parameters by faiss's names
_ADD_BATCH_SIZE = 16_384  # vectors added to a graph at a time
_RECALL_QUERIES, _RECALL_K = 200, 10
_BLOCK_SIZE = 16_384  # vectors compared at a time
_QUERY_BATCH_SIZE = 256
_UNIT_ROUNDOFF = 2.0**-24  # of single precision


def search_vectors(
    queries: NDArray[np.float32], vectors: NDArray[np.float32], k: int, *, block_size: int = _BLOCK_SIZE
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return the k vectors with the highest inner products for each query, the highest first.

    Args:
        queries: Q queries of dimension H, [Q, H].
        vectors: N vectors, [N, H]; may be a memory-mapped file.
        k: The number of results per query.
        block_size: The number of vectors compared at a time.

    Returns:
        Indices, int64, and products, float64, both [Q, min(k, N)].
    """
    k = min(k, len(vectors))
    indices = np.zeros((len(queries), k), dtype=np.int64)
    products = np.zeros((len(queries), k), dtype=np.float64)
    for first in range(0, len(queries), _QUERY_BATCH_SIZE):
        batch = np.ascontiguousarray(queries[first : first + _QUERY_BATCH_SIZE], dtype=np.float32)
        top_ks = [_TopK(query, k) for query in batch]
        for start in range(0, len(vectors), block_size):
            block = np.asarray(vectors[start : start + block_size], dtype=np.float32)
            max_norm = float(np.sqrt(np.einsum("nh,nh->n", block, block).max(initial=0.0)))
            for top_k, row in zip(top_ks, batch @ block.T, strict=True):
                top_k.update(row, block, start, max_norm)
        for i, top_k in enumerate(top_ks, start=first):
            indices[i], products[i] = top_k.indices, top_k.products
    return indices, products


def exact_products(query: NDArray[np.float32], vectors: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return the products [n] of a query [H] with vectors [n, H] in double precision, each summed separately."""
    products: NDArray[np.float64] = (vectors.astype(np.float64) * query.astype(np.float64)).sum(axis=1)
    return products


def normalize_vectors(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    """Divide vectors [n, H] by their lengths, so that products are cosines; zero vectors stay zero."""
    normalized: NDArray[np.float32] = vectors / np.maximum(
        np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12
    )
    return normalized


class _TopK:
    """The best k vectors so far for one query."""

    def __init__(self, query: NDArray[np.float32], k: int) -> None:
        self._query, self._k = query, k
        # An inner product of dimension H in single precision differs from the exact one by at most this, times the
        # length of the other vector (Higham, Accuracy and Stability of Numerical Algorithms, section 3.1).
        self._relative_error = (len(query) + 2) * _UNIT_ROUNDOFF * float(np.linalg.norm(query))
        self.indices = np.empty(0, dtype=np.int64)
        self.products = np.empty(0, dtype=np.float64)

    def update(
        self, approximate: NDArray[np.float32], block: NDArray[np.float32], start: int, max_norm: float
    ) -> None:
        """Merge the candidates of a block of n vectors into the best k.

        A vector is a candidate unless its approximate product shows, given the rounding error, that k others have
        higher exact products.

        Args:
            approximate: The products in single precision, [n].
            block: The vectors, [n, H].
            start: The index of the block's first vector.
            max_norm: The length of the block's longest vector.
        """
        error = self._relative_error * max_norm
        threshold = -np.inf
        if len(self.products) == self._k:
            threshold = float(self.products[-1]) - error
        if len(approximate) > self._k:
            kth = float(np.partition(approximate, -self._k)[-self._k])
            threshold = max(threshold, kth - 2 * error)  # both products of the comparison have the error
        candidates = np.flatnonzero(approximate >= threshold)
        if not len(candidates):
            return
        indices = np.concatenate([self.indices, candidates + start])
        products = np.concatenate([self.products, exact_products(self._query, block[candidates])])
        order = np.lexsort((indices, -products))[: self._k]  # by descending product, then by index
        self.indices, self.products = indices[order], products[order]


class Recall(BaseModel):
    """Recall of the ten nearest neighbors, measured with vectors of the index as queries."""

    recall_at_10: float = Field(ge=0, le=1)
    queries: int = Field(ge=0)


def import_faiss() -> Any:
    """Return the module faiss, or raise InputError if it is not installed."""
    try:
        import faiss
    except ImportError:
        message = "approximate search needs faiss, which is not installed"
        hint = f"run pip install 'bertsmith[ann]', or omit {option('approximate')}"
        raise InputError("faiss_missing", message, argument="approximate", hint=hint) from None
    return faiss


def build_graph(path: Path, vectors: NDArray[np.float32]) -> Recall:
    """Build the graph of vectors [N, H] of length 1, write it to a file, and return its recall."""
    faiss = import_faiss()
    threads = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(1)
    try:
        graph = faiss.IndexHNSWFlat(vectors.shape[1], _M, faiss.METRIC_INNER_PRODUCT)
        graph.hnsw.efConstruction = _EF_CONSTRUCTION
        for start in range(0, len(vectors), _ADD_BATCH_SIZE):
            graph.add(np.ascontiguousarray(vectors[start : start + _ADD_BATCH_SIZE]))
        faiss.write_index(graph, str(path))
        return _measure_recall(graph, vectors)
    finally:
        faiss.omp_set_num_threads(threads)


def open_graph(path: Path, shape: tuple[int, ...]) -> Any:
    """Load the graph of vectors of a shape [N, H]; raise InputError if faiss cannot read it, or has others."""
    faiss = import_faiss()
    try:
        graph = faiss.read_index(str(path))
    except (RuntimeError, MemoryError):
        graph = None
    if not isinstance(graph, faiss.IndexHNSWFlat):
        fault = "faiss cannot read this file"
    elif (graph.ntotal, graph.d, graph.metric_type) != (*shape, faiss.METRIC_INNER_PRODUCT):
        fault = "this is the graph of other vectors"
    else:
        return graph
    raise InputError("graph_unreadable", fault, location=path, hint="build the index again")


def search_graph(graph: Any, queries: NDArray[np.float32], k: int) -> list[NDArray[np.int64]]:
    """Return the indices of k vectors near each query [Q, H], or of fewer if the graph search ends early."""
    graph.hnsw.efSearch = max(_EF_SEARCH, 2 * k)
    _, indices = graph.search(np.ascontiguousarray(queries, dtype=np.float32), k)
    return [row[row >= 0].astype(np.int64) for row in indices]


def _measure_recall(graph: Any, vectors: NDArray[np.float32]) -> Recall:
    """Return the recall for evenly spaced vectors of the graph; a vector does not count as its own neighbor."""
    sample_size = min(_RECALL_QUERIES, len(vectors))
    sample = np.unique(np.linspace(0, len(vectors) - 1, sample_size).astype(np.int64))
    queries = np.ascontiguousarray(vectors[sample])
    exact_indices, exact_scores = search_vectors(queries, vectors, _RECALL_K + 1)
    candidates = search_graph(graph, queries, min(_RECALL_K + 1, len(vectors)))
    recalls = []
    for index, query, graph_ids, nearest, scores in zip(
        sample, queries, candidates, exact_indices, exact_scores, strict=True
    ):
        # Among more than k + 1 copies of a vector, the exact search may not return the vector itself.
        expected = (scores[nearest != index] if index in nearest else scores[:-1])[:_RECALL_K]
        products = exact_products(query, np.asarray(vectors[graph_ids[graph_ids != index]]))
        hits = int((products >= expected[-1]).sum()) if len(expected) else 0  # ties with the tenth count
        recalls.append(min(hits, len(expected)) / len(expected) if len(expected) else 1.0)
    return Recall(recall_at_10=float(np.mean(recalls)), queries=len(sample))
