"""The vectors of a word in its occurrences: how far each layer separates the word's senses.

Each layer is compared with the static vector of the word, the mean of the input embeddings of its pieces, which is
the same in all occurrences, and with TF-IDF vectors of the texts around it.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from bertsmith.device import ComputeContext
from bertsmith.errors import InputError, option
from bertsmith.explain.span_states import SpanItem, compute_span_states
from bertsmith.formatting import pluralize
from bertsmith.io.unicode_scripts import UNSPACED_CLASS
from bertsmith.models.encoder import Encoder
from bertsmith.notebook import Result
from bertsmith.tasks.batching import TokenSequence
from bertsmith.tasks.tfidf import TfIdf
from bertsmith.tokenizer.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

STATIC, TFIDF = "static", "TF-IDF"
"""The names of the representations that are not of a layer."""
_HANGUL = "\uac00-\ud7a3"
_NUM_CLUSTERS = 2
_MIN_OCCURRENCES = 4
_TIE = 1e-5  # cosines that differ by less are equal

Matrix = NDArray[np.float32]


@dataclass(frozen=True)
class Occurrence:
    """An occurrence of the word.

    Attributes:
        text: The text.
        start: The first character of the word in the text.
        end: The character behind the word.
        location: The place of the text.
        sense: The sense, from the user; None if there is none.
        nearest: The index of the nearest occurrence in the chosen layer.
        cosine: The cosine of both vectors.
    """

    text: str
    start: int
    end: int
    location: str
    sense: str | None = None
    nearest: int = -1
    cosine: float = 0.0


@dataclass(frozen=True)
class Separation:
    """The separation of groups of occurrences by a representation.

    Attributes:
        representation: The layer, from 0 for the embeddings' output, or "static", or "TF-IDF".
        silhouette: The mean silhouette of the senses by cosine distance, from -1 to 1; without senses, that of two
            clusters in this representation.
        accuracy: The fraction of occurrences whose nearest one has the same sense; ties count in proportion. None
            without senses.
    """

    representation: int | str
    silhouette: float
    accuracy: float | None


@dataclass(frozen=True)
class WordNeighbors(Result):
    """The occurrences of a word, and how each layer separates them.

    Attributes:
        word: The word.
        layer: The layer of the nearest occurrences: the one above the embeddings with the
            highest silhouette unless it was chosen.
        occurrences: The n occurrences.
        separations: Of each layer, of the static vector, and of TF-IDF.
        chance: The expected accuracy of a random neighbor; None without senses.
        groups: The sense, or the cluster in the layer, of each occurrence.
        vectors: float32 [L + 1, n, H].
        static_vectors: float32 [n, E].
    """

    word: str
    layer: int
    occurrences: list[Occurrence]
    separations: list[Separation]
    chance: float | None
    groups: list[str]
    vectors: Matrix = field(repr=False)
    static_vectors: Matrix = field(repr=False)

    def to_dict(self) -> dict[str, Any]:
        """Return everything but the vectors."""
        values = {name: getattr(self, name) for name in ("word", "layer", "chance", "groups")}
        return {
            **values,
            "occurrences": [asdict(occurrence) for occurrence in self.occurrences],
            "separations": [asdict(separation) for separation in self.separations],
        }

    def plot(self, file: str | Path) -> Path:
        """Draw the occurrences in each layer to a PNG, or a page with the tables (.html); return its path.

        Raises:
            InputError: The name of the file ends in neither.
        """
        from bertsmith.explain.neighbors_page import write_neighbors

        return write_neighbors(self, Path(file))


def find_occurrences(word: str, texts: Iterable[tuple[str, str, str | None]], limit: int) -> list[Occurrence]:
    """Return the first occurrences of a word, in any case; without blanks between words also within others.

    A Korean word may have an ending.

    Args:
        word: The word.
        texts: Texts with their locations and the sense of the word, None if it is unknown.
        limit: The maximum number.
    """
    before, after = (
        "" if re.match(f"[{UNSPACED_CLASS}]", character) else boundary
        for character, boundary in ((word[:1], r"(?<!\w)"), (word[-1:], rf"(?![^\W{_HANGUL}])"))
    )
    pattern = re.compile(f"{before}{re.escape(word)}{after}", re.IGNORECASE)
    occurrences: list[Occurrence] = []
    for text, location, sense in texts:
        for match in pattern.finditer(text):
            if len(occurrences) == limit:
                message = "the first %s of '%s' are read"
                logger.warning(message, pluralize(limit, "occurrence"), word)
                return occurrences
            occurrences.append(Occurrence(text, *match.span(), location, sense))
    return occurrences


def compare_occurrences(
    encoder: Encoder,
    tokenizer: Tokenizer,
    context: ComputeContext,
    word: str,
    occurrences: Sequence[Occurrence],
    *,
    layer: int | None = None,
) -> WordNeighbors:
    """Compute the vectors of occurrences in each layer, their neighbors, and how far senses are apart.

    Raises:
        InputError: There are too few occurrences, or a single sense, or no such layer.
    """
    num_layers = encoder.config.num_hidden_layers
    if layer is not None and not 0 <= layer <= num_layers:
        hint = f"use one from 0, the embeddings' output, to {num_layers}"
        raise InputError("layer_out_of_range", f"there is no layer {layer}", argument="layer", hint=hint)
    readable, items = _encode(encoder, tokenizer, occurrences)
    senses = _senses(word, readable)
    vectors = compute_span_states(encoder, context, items, range(num_layers + 1))
    weights = encoder.embeddings.token.weight.detach().float().cpu()
    static = torch.stack([weights[item.sequences[0].ids[slice(*item.spans[0])]].mean(0) for item in items])
    texts = [occurrence.text for occurrence in readable]
    tfidf = TfIdf(texts).vectors(texts)
    similarities: dict[int | str, NDArray[np.float64]] = {
        **{index: _cosines(states) for index, states in enumerate(vectors)},
        STATIC: _cosines(static.numpy()),
        TFIDF: np.asarray((tfidf @ tfidf.T).toarray()),
    }
    groups = {name: senses or _cluster(cosines) for name, cosines in similarities.items()}
    separations = [
        Separation(
            name, _silhouette(cosines, groups[name]), nearest_accuracy(cosines, senses) if senses else None
        )
        for name, cosines in similarities.items()
    ]
    if layer is None:
        layer = max(range(1, num_layers + 1), key=lambda index: separations[index].silhouette)
    return WordNeighbors(
        word,
        layer,
        _with_nearest(readable, similarities[layer]),
        separations,
        _chance(senses) if senses else None,
        groups[layer],
        vectors,
        static.numpy(),
    )


def _encode(
    encoder: Encoder, tokenizer: Tokenizer, occurrences: Sequence[Occurrence]
) -> tuple[list[Occurrence], list[SpanItem]]:
    """Return the occurrences that the model reads, with the tokens of each."""
    limit = min(encoder.config.max_length, tokenizer.max_length)
    encodings = tokenizer.encode_batch([occurrence.text for occurrence in occurrences], max_length=limit)
    readable: list[Occurrence] = []
    items: list[SpanItem] = []
    for occurrence, encoding in zip(occurrences, encodings, strict=True):
        indices = [
            index
            for index, ((start, end), source) in enumerate(
                zip(encoding.offsets, encoding.sequence_ids, strict=True)
            )
            if source == 0 and start < occurrence.end and end > occurrence.start
        ]
        if indices:
            span = (indices[0], indices[-1] + 1)
            items.append(SpanItem(len(readable), (TokenSequence.from_encoding(encoding),), spans=(span,)))
            readable.append(occurrence)
    if num_lost := len(occurrences) - len(readable):
        lost = pluralize(num_lost, "occurrence is", "occurrences are")
        logger.warning("%s behind the %d tokens that the model reads, and left out", lost, limit)
    return readable, items


def _senses(word: str, occurrences: Sequence[Occurrence]) -> list[str]:
    """Return the sense of each occurrence; empty if there are none. Raise InputError for too few."""
    if len(occurrences) < _MIN_OCCURRENCES:
        message = f"'{word}' occurs {pluralize(len(occurrences), 'time')}, and {_MIN_OCCURRENCES} are needed"
        raise InputError(
            "too_few_occurrences",
            message,
            argument="word",
            hint="give more texts with the word, spelled as in them",
        )
    senses = [occurrence.sense for occurrence in occurrences if occurrence.sense is not None]
    if senses and not 2 <= len(set(senses)) < len(occurrences):
        message = f"the occurrences have {pluralize(len(set(senses)), 'sense')}"
        hint = f"at least two are compared, and one of them occurs twice; or omit {option('sense_column')}"
        raise InputError("senses_not_comparable", message, argument="sense_column", hint=hint)
    return senses


def nearest_accuracy(cosines: NDArray[np.float64], senses: Sequence[str]) -> float:
    """Return the leave-one-out accuracy of the nearest neighbor; ties count in proportion.

    Args:
        cosines: Cosines of n vectors, [n, n].
        senses: The sense of each.
    """
    others = cosines.copy()
    np.fill_diagonal(others, -np.inf)
    is_nearest = others >= others.max(1, keepdims=True) - _TIE
    num_right = (is_nearest & _are_equal(senses)).sum(1)
    return float((num_right / is_nearest.sum(1)).mean())


def _chance(senses: Sequence[str]) -> float:
    """Return the expected accuracy of a random neighbor."""
    return float((_are_equal(senses).sum(1) - 1).mean() / (len(senses) - 1))


def _are_equal(senses: Sequence[str]) -> NDArray[np.bool_]:
    values = np.array(senses)
    equal: NDArray[np.bool_] = values[:, None] == values[None]
    return equal


def _cosines(vectors: Matrix) -> NDArray[np.float64]:
    """Return the cosines of n vectors [n, H]."""
    values = vectors.astype(np.float64)
    values /= np.maximum(np.linalg.norm(values, axis=1, keepdims=True), 1e-12)
    cosines: NDArray[np.float64] = values @ values.T
    return cosines


def _distances(cosines: NDArray[np.float64]) -> NDArray[np.float64]:
    distances = np.maximum(0, 1 - cosines)
    distances[distances < _TIE] = 0
    np.fill_diagonal(distances, 0)
    return distances


def _cluster(cosines: NDArray[np.float64]) -> list[str]:
    """Return the cluster of each vector, by average linkage of cosine distances."""
    from sklearn.cluster import AgglomerativeClustering

    model = AgglomerativeClustering(_NUM_CLUSTERS, metric="precomputed", linkage="average")
    return [f"cluster {label + 1}" for label in model.fit_predict(_distances(cosines))]


def _silhouette(cosines: NDArray[np.float64], groups: Sequence[str]) -> float:
    from sklearn.metrics import silhouette_score

    return float(silhouette_score(_distances(cosines), list(groups), metric="precomputed"))


def _with_nearest(occurrences: Sequence[Occurrence], cosines: NDArray[np.float64]) -> list[Occurrence]:
    others = cosines.copy()
    np.fill_diagonal(others, -np.inf)
    nearest = others.argmax(1)
    return [
        replace(occurrence, nearest=int(j), cosine=float(others[i, j]))
        for i, (occurrence, j) in enumerate(zip(occurrences, nearest, strict=True))
    ]
