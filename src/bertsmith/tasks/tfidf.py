"""The cheap method that a fine-tuned model should beat: TF-IDF vectors of the texts, and a linear model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertsmith.tasks.base import Example, Vectorize

NAME = "TF-IDF + linear"
_TOKEN_PATTERN = (  # a word, or a character of a script without spaces
    r"[^\W_\u3040-\u30ff\u3400-\u9fff]+|[\u3040-\u30ff\u3400-\u9fff]"
)
_MAX_EXAMPLES = 20_000  # the first ones
_MAX_LABELS = 200
_BATCH_QUERIES = 512
_INVERSE_REGULARIZATION = 10.0


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
        except ValueError:  # no text has a word, so all vectors are 0
            self._vectorizer.fit(["word"])

    def vectors(self, texts: Sequence[str]) -> Any:
        """Return the sparse vectors of texts, [texts, words]."""
        return self._vectorizer.transform(texts)

    def cosines(self, firsts: Sequence[str], seconds: Sequence[str]) -> NDArray[np.float64]:
        """Return the cosines of pairs of texts, [pairs]."""
        vectors, others = self._vectorizer.transform(firsts), self._vectorizer.transform(seconds)
        return np.asarray(vectors.multiply(others).sum(axis=1), dtype=np.float64).ravel()

    def rankings(self, queries: Sequence[str], passages: Sequence[str], k: int) -> list[list[int]]:
        """Return the indices of the k best passages of each query; of equal ones the earlier."""
        passage_vectors = self._vectorizer.transform(passages).T.tocsc()
        rankings: list[list[int]] = []
        for start in range(0, len(queries), _BATCH_QUERIES):
            query_vectors = self._vectorizer.transform(queries[start : start + _BATCH_QUERIES])
            rankings += np.argsort(-(query_vectors @ passage_vectors).toarray(), axis=1, kind="stable")[
                :, :k
            ].tolist()
        return rankings


def tfidf_vectors(train: Sequence[Example], validation: Sequence[Example]) -> tuple[Any, Any]:
    """Return the TF-IDF vectors of the examples' texts, with document frequencies of the training part."""
    train_texts, texts = (
        ["\n".join(map(str, example.display_inputs.values())) for example in part]
        for part in (train, validation)
    )
    tfidf = TfIdf(train_texts)
    return tfidf.vectors(train_texts), tfidf.vectors(texts)


def predict_labels(
    train: Sequence[Example],
    labels: Sequence[str],
    validation: Sequence[Example],
    vectorize: Vectorize | None = None,
) -> list[str] | None:
    """Return the labels by logistic regression; None if there is only one, or too many."""
    from sklearn.linear_model import LogisticRegression

    if not 1 < len(set(labels[:_MAX_EXAMPLES])) <= _MAX_LABELS:
        return None
    vectors = (vectorize or tfidf_vectors)(train[:_MAX_EXAMPLES], validation)
    model = LogisticRegression(C=_INVERSE_REGULARIZATION, max_iter=300)
    predicted = model.fit(vectors[0], labels[:_MAX_EXAMPLES]).predict(vectors[1])
    return [str(label) for label in predicted]


def predict_probabilities(
    train: Sequence[Example],
    targets: NDArray[np.bool_],
    validation: Sequence[Example],
    vectorize: Vectorize | None = None,
) -> NDArray[np.float64] | None:
    """Return the probabilities [examples, K] by balanced logistic regressions; None for too many labels."""
    from sklearn.linear_model import LogisticRegression

    if targets.shape[1] > _MAX_LABELS:
        return None
    vectors = (vectorize or tfidf_vectors)(train[:_MAX_EXAMPLES], validation)
    targets = targets[:_MAX_EXAMPLES]
    probabilities = np.tile(targets.mean(0), (len(validation), 1))
    for index in np.flatnonzero(targets.any(0) & ~targets.all(0)):
        model = LogisticRegression(C=_INVERSE_REGULARIZATION, max_iter=300, class_weight="balanced")
        model.fit(vectors[0], targets[:, index])
        probabilities[:, index] = model.predict_proba(vectors[1])[:, 1]
    return probabilities


def predict_numbers(
    train: Sequence[Example],
    numbers: Sequence[float],
    validation: Sequence[Example],
    vectorize: Vectorize | None = None,
) -> list[float]:
    """Return the numbers by ridge regression."""
    from sklearn.linear_model import Ridge

    vectors = (vectorize or tfidf_vectors)(train[:_MAX_EXAMPLES], validation)
    values: list[float] = Ridge().fit(vectors[0], numbers[:_MAX_EXAMPLES]).predict(vectors[1]).tolist()
    return values
