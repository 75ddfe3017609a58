"""Rerank search results by a model that reads the query and a text together (a cross-encoder)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from bertsmith.errors import InputError, command, option
from bertsmith.formatting import join_names
from bertsmith.inference.model import Model
from bertsmith.tasks.embedding.data import MATCH_LABELS


@dataclass(frozen=True)
class SearchResult:
    """A text of an index for a query.

    Attributes:
        rank: The rank, from 1.
        score: The cosine of the vectors.
        text: The text.
        location: The file and line of the text when the index was built.
        id: Its id.
        rerank_score: The score by the reranking model; None without one.
    """

    rank: int
    score: float
    text: str
    location: str
    id: str
    rerank_score: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the fields; the location is called "place", and a missing `rerank_score` is left out."""
        values = {
            "rank": self.rank,
            "score": self.score,
            "text": self.text,
            "place": self.location,
            "id": self.id,
        }
        return values if self.rerank_score is None else {**values, "rerank_score": self.rerank_score}


class Reranker:
    """A classifier or regressor of pairs of texts: the query, and a text of the index."""

    def __init__(self, model: Model, label: str | None = None) -> None:
        """Wrap a model.

        Args:
            model: The model.
            label: The label of relevant texts; None: the only label such as "1", "yes", or "same".

        Raises:
            InputError: The model does not read pairs, or the label is unknown.
        """
        self._model, self._label = model, label
        if "text_pair" not in model.task.declaration.inputs or model.task.metadata.get("pairs") is False:
            raise InputError(
                "not_a_pair_model",
                "this model was not trained on pairs of texts, so it cannot rerank",
                location=model.path,
                hint=f"fine-tune a model on pairs: {command('finetune', 'classify', second_column='NAME')}",
            )
        labels = model.task.labels
        if labels is None or len(labels) < 2:
            if label is not None:
                message, hint = f"{model.path} has no labels", f"omit {option('rerank_label')}"
                raise InputError("no_labels", message, argument="rerank_label", hint=hint)
            return
        if label is None:
            matches = [name for name in labels if name.casefold() in MATCH_LABELS]
            self._label = matches[0] if len(matches) == 1 else None
        if self._label not in labels:
            raise InputError(
                "rerank_label_unknown",
                f"there is no label '{label}'" if label else "the label of relevant texts is unknown",
                location=model.path,
                argument="rerank_label",
                hint=f"set {option('rerank_label')} to one of {join_names(labels)}",
            )

    def rerank(self, query: str, results: Sequence[SearchResult]) -> list[SearchResult]:
        """Return the results by the model's score, best first; equal scores keep their order."""
        predictor = self._model.predictor
        examples = predictor.examples(
            {"text": [query] * len(results), "text_pair": [result.text for result in results]}
        )
        scores = map(self._score, predictor.predict_all(examples))
        scored = [replace(r, rerank_score=score) for r, score in zip(results, scores, strict=True)]
        return sorted(scored, key=lambda result: -(result.rerank_score or 0.0))

    def _score(self, prediction: Any) -> float:
        if self._label is not None and hasattr(prediction, "scores"):
            return float(prediction.scores[self._label])
        return float(prediction.number if hasattr(prediction, "number") else prediction.cosine)
