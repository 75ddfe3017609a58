"""The baseline of embeddings: cosines of TF-IDF vectors."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

_TOKEN_PATTERN = (  # a word, or a character of a script without spaces
    r"[^\W_\u3040-\u30ff\u3400-\u9fff]+|[\u3040-\u30ff\u3400-\u9fff]"
)
_BATCH_QUERIES = 512


class TfIdf:
    """TF-IDF vectors of texts (scikit-learn's, with logarithms of the counts)."""

    def __init__(self, texts: Sequence[str]) -> None:
        """Count documents.

        Args:
            texts: All texts to compare, each of which counts once in the document frequencies.
        """
        from sklearn.feature_extraction.text import TfidfVectorizer

        self._vectorizer = TfidfVectorizer(token_pattern=_TOKEN_PATTERN, sublinear_tf=True)
        try:
            self._vectorizer.fit(list(dict.fromkeys(texts)))
        except ValueError:  # no text has a word
            self._vectorizer = None

    def cosines(self, firsts: Sequence[str], seconds: Sequence[str]) -> NDArray[np.float64]:
        """Return the cosines of pairs of texts, [pairs]."""
        if self._vectorizer is None:
            return np.zeros(len(firsts))
        rows, other_rows = self._vectorizer.transform(firsts), self._vectorizer.transform(seconds)
        return np.asarray(rows.multiply(other_rows).sum(axis=1), dtype=np.float64).ravel()

    def rankings(self, queries: Sequence[str], passages: Sequence[str], k: int) -> list[list[int]]:
        """Return the indices of the k best passages of each query; of equal ones the earlier."""
        if self._vectorizer is None:
            return [[*range(min(k, len(passages)))] for _ in queries]
        columns = self._vectorizer.transform(passages).T.tocsc()
        rankings: list[list[int]] = []
        for start in range(0, len(queries), _BATCH_QUERIES):
            rows = self._vectorizer.transform(queries[start : start + _BATCH_QUERIES])
            rankings += np.argsort(-(rows @ columns).toarray(), axis=1, kind="stable")[:, :k].tolist()
        return rankings
