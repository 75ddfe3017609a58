"""From embeddings to cosines, with a calibrated threshold for pairs that match."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from bertsmith.tasks.base import INTERNAL, Decoder, Prediction
from bertsmith.tasks.batching import Item, Outputs
from bertsmith.tasks.embedding.data import EmbeddingExample


@dataclass
class EmbeddingPrediction(Prediction):
    """The embeddings of an example.

    Attributes:
        embeddings: The embeddings of all texts of the example, float32 [texts, H]; not in the JSON output.
    """

    embeddings: NDArray[np.float32] = field(kw_only=True, compare=False, repr=False, metadata=INTERNAL)


@dataclass
class TextEmbedding(EmbeddingPrediction):
    """The embedding of a single text.

    Attributes:
        vector: The embedding.
    """

    vector: list[float]


@dataclass
class PairSimilarity(EmbeddingPrediction):
    """The similarity of a pair of texts.

    Attributes:
        cosine: The cosine of the embeddings.
    """

    cosine: float


@dataclass
class PairMatch(PairSimilarity):
    """The decision whether two texts match.

    Attributes:
        same: True if the cosine exceeds the threshold.
    """

    same: bool


@dataclass
class QuerySimilarities(EmbeddingPrediction):
    """The similarities of a query and its passages.

    Attributes:
        cosines: The cosine for each positive, then for each negative.
    """

    cosines: list[float]


class EmbeddingDecoder(Decoder):
    """Compare embeddings. The state has the `threshold` of labeled pairs."""

    @property
    def threshold(self) -> float:
        """The cosine above which labeled pairs match."""
        return float(self.state.get("threshold", 0.5))

    def calibrate(
        self, outputs: Outputs, items: Sequence[Item], examples: Sequence[EmbeddingExample]
    ) -> None:
        """Choose the threshold of labeled pairs with the best accuracy."""
        if self.metadata["data_format"] == "labeled":
            cosines = np.array([first_cosine(p) for p in self.decode(outputs, items, examples)])
            self.state["threshold"] = best_threshold(cosines, np.array([item.target == 1 for item in items]))

    def decode(
        self, outputs: Outputs, items: Sequence[Item], examples: Sequence[EmbeddingExample]
    ) -> list[EmbeddingPrediction]:
        """Return the cosine of each pair, the cosines of each query, and the vectors of single texts."""
        predictions: list[EmbeddingPrediction] = []
        for output, item in zip(outputs.per_item, items, strict=True):
            embeddings = output.numpy()
            cosines = _cosines(embeddings[:1], embeddings[1:]).tolist()
            common: dict[str, Any] = {
                "tokens": sum(sequence.tokens for sequence in item.sequences),
                "tokens_read": sum(sequence.tokens_read for sequence in item.sequences),
                "embeddings": embeddings,
            }
            if not cosines:
                predictions.append(TextEmbedding(embeddings[0].tolist(), **common))
            elif len(cosines) > 1:
                predictions.append(QuerySimilarities(cosines, **common))
            elif self.metadata["data_format"] == "labeled":
                predictions.append(PairMatch(cosines[0], cosines[0] > self.threshold, **common))
            else:
                predictions.append(PairSimilarity(cosines[0], **common))
        return predictions

    def ensemble_output(self, output: Tensor) -> Tensor:
        """Return embeddings of unit length."""
        return F.normalize(output, dim=-1)

    def combine_outputs(self, outputs: Sequence[Tensor]) -> Tensor:
        """Concatenate the embeddings, so that their cosine is the mean of the models' cosines."""
        return torch.cat(list(outputs), dim=-1)


def first_cosine(prediction: EmbeddingPrediction) -> float:
    """Return the cosine of a pair, or of a query and its first passage."""
    if isinstance(prediction, QuerySimilarities):
        return prediction.cosines[0]
    assert isinstance(prediction, PairSimilarity)
    return prediction.cosine


def best_threshold(cosines: NDArray[np.float64], same: NDArray[np.bool_]) -> float:
    """Return the threshold of cosines that separates matching pairs from others with the highest accuracy.

    It is half way between two cosines, and the lowest of equally good ones; 1 or -1 if all pairs should get one
    answer.
    """
    order = np.argsort(cosines, kind="stable")
    values, matches = cosines[order], same[order]
    correct_below = np.concatenate([[0], np.cumsum(~matches)])
    correct_above = np.concatenate([np.cumsum(matches[::-1])[::-1], [0]])
    splits = np.concatenate([[True], np.diff(values) > 0, [True]])  # not between equal cosines
    i = int(np.where(splits, correct_below + correct_above, -1).argmax())
    if i in (0, len(values)):
        return 1.0 if i else -1.0
    return float((values[i - 1] + values[i]) / 2)


def _cosines(query: NDArray[np.float32], others: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return the cosines of a vector [1, H] and others [n, H], as [n]."""
    a, b = query.astype(np.float64), others.astype(np.float64)
    norms = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
    cosines: NDArray[np.float64] = (a * b).sum(axis=1) / np.maximum(norms, 1e-12)
    return cosines
