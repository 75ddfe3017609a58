"""Approximate nearest-neighbor search with an HNSW graph (Malkov and Yashunin 2018), by faiss.

The search compares a query with a small part of the vectors, and may miss some of the nearest ones; its recall is
measured when the graph is built. It is worthwhile from a few hundred thousand texts. One thread builds the graph,
which makes it deterministic.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, Field

from bertsmith.errors import InputError, option
from bertsmith.retrieval.exact import exact_products, search_vectors

GRAPH = "hnsw.faiss"
_M, _EF_CONSTRUCTION, _EF_SEARCH = 32, 200, 128  # parameters by faiss's names
_ADD_BATCH_SIZE = 16_384  # vectors
_RECALL_QUERIES, _RECALL_K = 200, 10


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


def open_graph(path: Path) -> Any:
    """Load a graph; raise InputError if faiss cannot read it."""
    faiss = import_faiss()
    try:
        return faiss.read_index(str(path))
    except RuntimeError:
        raise InputError(
            "graph_unreadable", "faiss cannot read this file", location=path, hint="build the index again"
        ) from None


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
