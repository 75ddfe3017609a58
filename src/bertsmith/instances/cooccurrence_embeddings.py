"""Token embeddings from co-occurrence counts, to initialize those of a model.

These are the count-based vectors of Levy, Goldberg, and Dagan 2015 (positive pointwise mutual information, PPMI,
with context distribution smoothing of 0.75, reduced by a truncated SVD with singular values to the power of 0.5).
From five million tokens they take ten seconds at a hidden size of 256, and a minute at 768.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertsmith import rng
from bertsmith.corpus.shards import IntArray, Shards
from bertsmith.instances.epoch_plan import count_document_tokens, read_portions

_WINDOW = 4  # tokens on each side; a token at distance d counts 1 / d
_SMOOTHING = 0.75
_MAX_TOKENS = 5_000_000  # approximately; of a larger corpus a sample of documents is counted
_POWER_ITERATIONS = 3  # of the randomized SVD


def compute_cooccurrence_embeddings(
    corpus: Shards, documents: IntArray, vocab_size: int, hidden_size: int, seed: int
) -> NDArray[np.float32]:
    """Compute an embedding of each token.

    Embeddings are centered, and rotated at random: the columns of an SVD are sorted by variance, and a model's
    should all have about the same.

    Args:
        corpus: The corpus.
        documents: The documents to use, int64 [D].
        vocab_size: The size of the vocabulary, V.
        hidden_size: The hidden size of the model, H.
        seed: The seed.

    Returns:
        Embeddings, fp32 [V, H]; zeros for tokens that do not occur.
    """
    from scipy.stats import ortho_group
    from sklearn.utils.extmath import randomized_svd
    from threadpoolctl import threadpool_limits

    # The seeds of SciPy and scikit-learn have 32 bits.
    random_state = rng.generator_seed(seed, "vectors of neighbours") % 2**32
    pmi = _positive_pmi(_count_cooccurrences(corpus, documents, vocab_size))
    rank = min(hidden_size, vocab_size)
    vectors = np.zeros((vocab_size, hidden_size))
    with threadpool_limits(1, "blas"):  # Sums of NumPy's library depend on its number of threads.
        left_vectors, singular_values, _ = randomized_svd(
            pmi, n_components=rank, n_iter=_POWER_ITERATIONS, random_state=random_state
        )
        vectors[:, :rank] = left_vectors * np.sqrt(singular_values)
        occurs = np.diff(pmi.indptr) > 0
        if occurs.any():
            vectors[occurs] -= vectors[occurs].mean(0)
        vectors[~occurs] = 0
        vectors = vectors @ ortho_group.rvs(hidden_size, random_state=random_state)
    rotated: NDArray[np.float32] = vectors.astype(np.float32)
    return rotated


def _count_cooccurrences(corpus: Shards, documents: IntArray, vocab_size: int) -> Any:
    """Count tokens near each other in a document, weighted by their inverse distance: sparse [V, V]."""
    from scipy.sparse import coo_array, csr_array

    step = max(1, math.ceil(count_document_tokens(corpus, documents) / _MAX_TOKENS))
    total = csr_array((vocab_size, vocab_size), dtype=np.float64)
    for ids, lengths in read_portions(corpus, documents[::step]):
        document = np.repeat(np.arange(len(lengths)), lengths)
        for distance in range(1, _WINDOW + 1):
            is_same_document = document[distance:] == document[:-distance]
            pairs = ids[:-distance][is_same_document], ids[distance:][is_same_document]
            weights = np.full(len(pairs[0]), 1 / distance)
            total += coo_array((weights, pairs), shape=total.shape).tocsr()
    return total + total.T


def _positive_pmi(counts: Any) -> Any:
    """Return the positive pointwise mutual information of tokens and their smoothed contexts: sparse [V, V]."""
    counts = counts.tocoo()
    row, column = counts.row, counts.col
    tokens = np.bincount(row, counts.data, minlength=counts.shape[0])
    contexts = tokens**_SMOOTHING / max(float((tokens**_SMOOTHING).sum()), 1.0)
    counts.data = np.maximum(np.log(counts.data / (tokens[row] * contexts[column])), 0)
    pmi = counts.tocsr()
    pmi.eliminate_zeros()
    return pmi
