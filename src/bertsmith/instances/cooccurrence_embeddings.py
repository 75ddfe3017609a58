"""Token vectors from co-occurrence counts, weighted and reduced to a model's hidden size.

These are the count-based vectors of Levy, Goldberg, and Dagan 2015 (positive pointwise mutual information, context
distribution smoothed by 0.75, singular values to the power of 0.5), from some millions of tokens. They take ten
seconds at a hidden size of 256, a minute at 768.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertsmith import rng
from bertsmith.corpus.tokenized_corpus import IntArray, TokenizedCorpus
from bertsmith.instances.epoch_plan import concat_ranges

_WINDOW = 4  # tokens on each side; one at distance d counts 1 / d
_SMOOTHING = 0.75
_MAX_TOKENS = 5_000_000  # that are counted, approximately
_TOKENS_PER_PORTION = 500_000
_POWER_ITERATIONS = 3  # of the randomized decomposition


def compute_cooccurrence_embeddings(
    shards: TokenizedCorpus, documents: IntArray, vocab_size: int, hidden_size: int, seed: int
) -> NDArray[np.float32]:
    """Compute a vector for each token, rotated at random so that no column means more than another.

    Of more than five million tokens about as many are counted, in documents that are spread evenly.

    Args:
        shards: The corpus.
        documents: The documents to use, int64 [D].
        vocab_size: The size of the vocabulary.
        width: The hidden size of the model.
        seed: The seed.

    Returns:
        Vectors [V, width]; zeros for tokens that do not occur.
    """
    from scipy.stats import ortho_group
    from sklearn.utils.extmath import randomized_svd

    random_state = (
        rng.generator_seed(seed, "vectors of neighbours") % 2**32
    )  # the libraries' seeds have 32 bits
    pmi = _positive_pmi(_count_cooccurrences(shards, documents, vocab_size))
    rank = min(hidden_size, vocab_size)
    left_vectors, singular_values, _ = randomized_svd(
        pmi, n_components=rank, n_iter=_POWER_ITERATIONS, random_state=random_state
    )
    vectors = np.zeros((vocab_size, hidden_size))
    vectors[:, :rank] = left_vectors * np.sqrt(singular_values)
    occurs = np.diff(pmi.indptr) > 0
    if occurs.any():
        vectors[occurs] -= vectors[occurs].mean(0)
    vectors[~occurs] = 0
    rotated: NDArray[np.float32] = (vectors @ ortho_group.rvs(hidden_size, random_state=random_state)).astype(
        np.float32
    )
    return rotated


def _count_cooccurrences(shards: TokenizedCorpus, documents: IntArray, vocab_size: int) -> Any:
    """Count tokens near each other in a document, weighted by their inverse distance: sparse [V, V]."""
    from scipy.sparse import coo_array, csr_array

    bounds = np.concatenate([[0], shards.sentence_ends])[shards.document_sentence_offsets]
    sizes = bounds[documents + 1] - bounds[documents]
    step = max(1, math.ceil(int(sizes.sum()) / _MAX_TOKENS))
    sample, sizes = documents[::step], sizes[::step]
    portions = np.array_split(sample, max(1, int(sizes.sum()) // _TOKENS_PER_PORTION))
    total = csr_array((vocab_size, vocab_size), dtype=np.float64)
    for portion in portions:
        starts, lengths = bounds[portion], bounds[portion + 1] - bounds[portion]
        ids = shards.take(concat_ranges(starts, lengths))
        document = np.repeat(np.arange(len(portion)), lengths)
        for distance in range(1, _WINDOW + 1):
            is_same = document[distance:] == document[:-distance]
            pairs = ids[:-distance][is_same], ids[distance:][is_same]
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
