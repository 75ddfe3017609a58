"""Vectors of tokens from the tokens that stand near them: counted, weighted, and reduced to a model's width.

They are the count-based vectors of Levy, Goldberg and Dagan 2015 (positive pointwise mutual information, contexts
smoothed by 0.75, singular values weighted by a half), learnt from some millions of tokens. That takes ten seconds
at a width of 256, a minute at 768.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertsmith import rng
from bertsmith.corpus.tokenized_corpus import Ints
from bertsmith.instances.batches import TokenShards
from bertsmith.instances.epoch_plan import ranges

_WINDOW = 4  # tokens to each side; one at distance d counts 1 / d
_SMOOTHING = 0.75
_MOST_TOKENS = 5_000_000  # that are counted, but for documents of uneven length
_AT_A_TIME = 500_000
_PASSES = 3  # of the randomised decomposition over the matrix


def vectors_of_neighbours(
    shards: TokenShards, documents: Ints, vocab_size: int, width: int, seed: int
) -> NDArray[np.float32]:
    """A vector for each token, [V, width], zeros for tokens that do not occur; turned at random by the seed, so
    that no column means more than another.

    Of more than five million tokens about as many are counted, in documents spread evenly over those given.
    """
    from scipy.stats import ortho_group
    from sklearn.utils.extmath import randomized_svd

    random = rng.generator_seed(seed, "vectors of neighbours") % 2**32  # the libraries' seeds have 32 bits
    information = _information(_near(shards, documents, vocab_size))
    rank = min(width, vocab_size)
    left, values, _ = randomized_svd(information, n_components=rank, n_iter=_PASSES, random_state=random)
    found = np.zeros((vocab_size, width))
    found[:, :rank] = left * np.sqrt(values)
    occurs = np.diff(information.indptr) > 0
    if occurs.any():
        found[occurs] -= found[occurs].mean(0)
    found[~occurs] = 0
    vectors: NDArray[np.float32] = (found @ ortho_group.rvs(width, random_state=random)).astype(np.float32)
    return vectors


def _near(shards: TokenShards, documents: Ints, vocab_size: int) -> Any:
    """How often tokens stand near each other in a document, by the inverse of their distance: sparse [V, V]."""
    from scipy.sparse import coo_array, csr_array

    bounds = np.concatenate([[0], shards.sentence_ends])[shards.document_sentences]
    sizes = bounds[documents + 1] - bounds[documents]
    step = max(1, math.ceil(int(sizes.sum()) / _MOST_TOKENS))
    some, sizes = documents[::step], sizes[::step]
    parts = np.array_split(some, max(1, int(sizes.sum()) // _AT_A_TIME))
    total = csr_array((vocab_size, vocab_size), dtype=np.float64)
    for part in parts:
        starts, lengths = bounds[part], bounds[part + 1] - bounds[part]
        ids = shards.take(ranges(starts, lengths))
        document = np.repeat(np.arange(len(part)), lengths)
        for distance in range(1, _WINDOW + 1):
            within = document[distance:] == document[:-distance]
            pair = ids[:-distance][within], ids[distance:][within]
            weights = np.full(len(pair[0]), 1 / distance)
            total += coo_array((weights, pair), shape=total.shape).tocsr()
    return total + total.T


def _information(near: Any) -> Any:
    """Positive pointwise mutual information of tokens and their smoothed contexts: sparse [V, V]."""
    near = near.tocoo()
    row, column = near.row, near.col
    tokens = np.bincount(row, near.data, minlength=near.shape[0])
    contexts = tokens**_SMOOTHING / max(float((tokens**_SMOOTHING).sum()), 1.0)
    near.data = np.maximum(np.log(near.data / (tokens[row] * contexts[column])), 0)
    found = near.tocsr()
    found.eliminate_zeros()
    return found
