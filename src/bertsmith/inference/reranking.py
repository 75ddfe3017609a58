"""Re-ranking: a model that reads a query and a text together puts the best of a search into its own order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bertsmith.errors import InputError, command, option
from bertsmith.formatting import join_names
from bertsmith.inference.model import Model
from bertsmith.tasks.embedding.data import MATCH_LABELS


class Reranker:
    """A classifier or a regressor of pairs: the query and a text.

    label: of a classifier, the label of texts that fit; where none is given, the one of its labels that says so.
    """

    def __init__(self, model: Model, label: str | None = None) -> None:
        """InputError where the model is none of pairs, or its labels do not say which one fits."""
        self._model, self._label = model, label
        if "second" not in model.task.declaration.inputs or model.task.metadata.get("pairs") is False:
            raise InputError(
                "not_a_pair_model",
                "this model was not trained on pairs of texts, so it cannot rerank",
                location=model.path,
                hint=f"fine-tune a model on pairs: {command('finetune', 'classify', second_column='NAME')}",
            )
        labels = model.task.labels
        if labels is None or len(labels) < 2:
            if label is not None:
                raise InputError(
                    "no_labels",
                    f"{model.path} has no labels",
                    argument="rerank_label",
                    hint=f"omit {option('rerank_label')}",
                )
            return
        if label is None:
            fit = [name for name in labels if name.casefold() in MATCH_LABELS]
            self._label = fit[0] if len(fit) == 1 else None
        if self._label not in labels:
            raise InputError(
                "rerank_label_unknown",
                f"there is no label '{label}'" if label else "the label of relevant texts is unknown",
                location=model.path,
                argument="rerank_label",
                hint=f"set {option('rerank_label')} to one of {join_names(labels)}",
            )

    def ordered(self, query: str, found: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Results by this model's score (`rerank_score`), the best first; of equal ones in their order."""
        answers = self._model.predict([query] * len(found), [one["text"] for one in found])
        scores = map(self._score, answers)
        scored = [{**one, "rerank_score": score} for one, score in zip(found, scores, strict=True)]
        return sorted(scored, key=lambda one: -one["rerank_score"])

    def _score(self, answer: Mapping[str, Any]) -> float:
        if self._label is not None and "scores" in answer:
            return float(answer["scores"][self._label])
        return float(answer["number"] if "number" in answer else answer["cosine"])
