"""Exact search: what sorting all products gives, whatever the blocks; equal scores in their order."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from bertsmith.retrieval.exact import nearest_vectors, unit_length


def by_sorting(
    queries: NDArray[np.float32], vectors: NDArray[np.float32], k: int
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    products = (queries.astype(np.float64)[:, None] * vectors.astype(np.float64)[None]).sum(-1)
    order = np.argsort(-products, axis=1, kind="stable")[:, :k]
    return order, np.take_along_axis(products, order, 1)


@given(st.integers(0, 2**32 - 1), st.integers(1, 40), st.integers(1, 60), st.booleans())
def test_the_blocks_leave_no_trace(seed: int, k: int, block: int, few: bool) -> None:
    """few: vectors of a few small whole numbers, among which many are equal or have equal products."""
    draw = np.random.default_rng(seed)
    number = int(draw.integers(1, 100))
    if few:
        vectors = draw.integers(-1, 2, (number, 4)).astype(np.float32)
        queries = draw.integers(-1, 2, (5, 4)).astype(np.float32)
    else:
        vectors = unit_length(draw.standard_normal((number, 33)).astype(np.float32))
        queries = unit_length(draw.standard_normal((5, 33)).astype(np.float32))
    numbers, products = nearest_vectors(queries, vectors, k, block=block)
    wanted, scores = by_sorting(queries, vectors, k)
    np.testing.assert_array_equal(numbers, wanted)
    np.testing.assert_array_equal(products, scores)


def test_products_that_single_precision_cannot_tell_apart_are_in_their_true_order() -> None:
    near = np.ones((40, 256), dtype=np.float32)
    near[:, 0] += np.arange(40)[::-1] * np.float32(
        2.0**-20
    )  # the earlier, the higher, by less than a sum's last bit
    query = np.ones((1, 256), dtype=np.float32)
    for block in (1, 7, 40):
        assert nearest_vectors(query, near, 40, block=block)[0][0].tolist() == list(range(40))


@pytest.mark.parametrize("shape", [(0, 4), (3, 4)])
def test_fewer_vectors_than_asked_for(shape: tuple[int, int]) -> None:
    numbers, products = nearest_vectors(np.ones((2, 4), np.float32), np.ones(shape, np.float32), 10)
    assert numbers.shape == products.shape == (2, shape[0])


def test_a_vector_of_zeros_stays_one() -> None:
    assert unit_length(np.zeros((1, 3), np.float32)).tolist() == [[0, 0, 0]]
