"""Approximate search by a graph of near neighbours (HNSW, Malkov and Yashunin 2018), as faiss has it.

It looks at a small part of the vectors and may miss some of the best; what it finds of them is measured when the
graph is built. It pays from some hundred thousand texts on. One thread builds it, so that it is always the same.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, Field

from bertsmith.errors import InputError
from bertsmith.retrieval.exact import exact_products, nearest_vectors

GRAPH = "hnsw.faiss"
_NEIGHBOURS, _BUILD_WIDTH, _SEARCH_WIDTH = 32, 200, 128  # of faiss: M, efConstruction, efSearch
_ADDED = 16_384  # vectors handed over at a time
_ASKED, _BEST = 200, 10  # vectors that measure it, and how many neighbours of each


class Recall(BaseModel):
    """The share of the exact ten nearest that the graph finds, over some of its own vectors."""

    recall_at_10: float = Field(ge=0, le=1)
    queries: int = Field(ge=0)


def library() -> Any:
    """faiss; InputError where it is not installed."""
    try:
        import faiss
    except ImportError:
        raise InputError(
            "approximate search needs faiss", "pip install 'bertsmith[ann]', or leave --approximate out"
        ) from None
    return faiss


def build_graph(path: Path, vectors: NDArray[np.float32]) -> Recall:
    """Write the graph of vectors [N, H] of length 1, and measure it."""
    faiss = library()
    threads = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(1)
    try:
        graph = faiss.IndexHNSWFlat(vectors.shape[1], _NEIGHBOURS, faiss.METRIC_INNER_PRODUCT)
        graph.hnsw.efConstruction = _BUILD_WIDTH
        for start in range(0, len(vectors), _ADDED):
            graph.add(np.ascontiguousarray(vectors[start : start + _ADDED]))
        faiss.write_index(graph, str(path))
        return _measured(graph, vectors)
    finally:
        faiss.omp_set_num_threads(threads)


def open_graph(path: Path) -> Any:
    """The graph of a file."""
    faiss = library()
    try:
        return faiss.read_index(str(path))
    except RuntimeError:
        raise InputError(f"{path}: faiss cannot read this file", "build the index again") from None


def candidates(graph: Any, queries: NDArray[np.float32], k: int) -> list[NDArray[np.int64]]:
    """The numbers of k vectors near each query [Q, H], or of fewer where the graph finds no more."""
    graph.hnsw.efSearch = max(_SEARCH_WIDTH, 2 * k)
    _, found = graph.search(np.ascontiguousarray(queries, dtype=np.float32), k)
    return [row[row >= 0].astype(np.int64) for row in found]


def _measured(graph: Any, vectors: NDArray[np.float32]) -> Recall:
    """By vectors of its own, evenly spread; each one's nearest is itself, and not counted."""
    asked = np.unique(np.linspace(0, len(vectors) - 1, min(_ASKED, len(vectors))).astype(np.int64))
    queries = np.ascontiguousarray(vectors[asked])
    numbers, products = nearest_vectors(queries, vectors, _BEST + 1)
    found = candidates(graph, queries, min(_BEST + 1, len(vectors)))
    shares = []
    for own, query, some, best, scores in zip(asked, queries, found, numbers, products, strict=True):
        wanted = (scores[best != own] if own in best else scores[:-1])[:_BEST]
        others = exact_products(query, np.asarray(vectors[some[some != own]]))
        near = int((others >= wanted[-1]).sum()) if len(wanted) else 0  # one as near as the tenth is as good
        shares.append(min(near, len(wanted)) / len(wanted) if len(wanted) else 1.0)
    return Recall(recall_at_10=float(np.mean(shares)), queries=len(asked))
