"""Test that exact search equals sorting all products, for any block size."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from bertsmith.retrieval.nearest_neighbors import normalize_vectors, search_vectors


def sort_all_products(
    queries: NDArray[np.float32], vectors: NDArray[np.float32], k: int
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    products = (queries.astype(np.float64)[:, None] * vectors.astype(np.float64)[None]).sum(-1)
    order = np.argsort(-products, axis=1, kind="stable")[:, :k]
    return order, np.take_along_axis(products, order, 1)


@given(st.integers(0, 2**32 - 1), st.integers(1, 40), st.integers(1, 60), st.booleans())
def test_results_do_not_depend_on_the_block_size(seed: int, k: int, block_size: int, ties: bool) -> None:
    """With `ties`, vectors hold small integers, so that many are equal or have equal products."""
    rng = np.random.default_rng(seed)
    size = int(rng.integers(1, 100))
    if ties:
        vectors = rng.integers(-1, 2, (size, 4)).astype(np.float32)
        queries = rng.integers(-1, 2, (5, 4)).astype(np.float32)
    else:
        vectors = normalize_vectors(rng.standard_normal((size, 33)).astype(np.float32))
        queries = normalize_vectors(rng.standard_normal((5, 33)).astype(np.float32))
    indices, products = search_vectors(queries, vectors, k, block_size=block_size)
    expected_indices, expected_products = sort_all_products(queries, vectors, k)
    np.testing.assert_array_equal(indices, expected_indices)
    np.testing.assert_array_equal(products, expected_products)


def test_products_equal_in_single_precision_are_ordered_exactly() -> None:
    # Each vector's product is lower than the one before by less than the last bit of the sum.
    vectors = np.ones((40, 256), dtype=np.float32)
    vectors[:, 0] += np.arange(40)[::-1] * np.float32(2.0**-20)
    query = np.ones((1, 256), dtype=np.float32)
    for block_size in (1, 7, 40):
        assert search_vectors(query, vectors, 40, block_size=block_size)[0][0].tolist() == list(range(40))


@pytest.mark.parametrize("shape", [(0, 4), (3, 4)])
def test_fewer_vectors_than_k(shape: tuple[int, int]) -> None:
    indices, products = search_vectors(np.ones((2, 4), np.float32), np.ones(shape, np.float32), 10)
    assert indices.shape == products.shape == (2, shape[0])


def test_a_zero_vector_stays_zero() -> None:
    assert normalize_vectors(np.zeros((1, 3), np.float32)).tolist() == [[0, 0, 0]]
