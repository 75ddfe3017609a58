"""Metrics of cosines: correlations of graded pairs, decisions on labeled pairs, rankings of passages; reports."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bertsmith.metrics import sufficient_statistics as statistics
from bertsmith.metrics.ranking import METRIC_NAMES, query_metrics, ranking_metrics
from bertsmith.metrics.sufficient_statistics import FloatArray, SufficientStatistics
from bertsmith.retrieval.nearest_neighbors import normalize_vectors, search_vectors
from bertsmith.tasks.base import Metadata, TaskMetrics
from bertsmith.tasks.batching import Answers
from bertsmith.tasks.data_checks import summarize_numbers
from bertsmith.tasks.embedding.data import (
    DataFormat,
    EmbeddingExample,
    detect_format,
    detect_same_label,
    target,
)
from bertsmith.tasks.embedding.model import (
    EmbeddingDecoder,
    EmbeddingPrediction,
    PairMatch,
    best_threshold,
    first_cosine,
)
from bertsmith.tasks.report import ErrorAnalysis, TaskReport, confusion, number_scatter
from bertsmith.tasks.results import DataSummary, Metrics
from bertsmith.tasks.settings import EmbedSettings
from bertsmith.tasks.tfidf import TfIdf

_TOP_K = 10  # passages of a ranking
_MIN_COSINE_RANGE = 1e-9  # cosines of equal texts differ by less, through rounding
_LOGGED_METRICS = {
    "graded": ("spearman", "pearson"),
    "labeled": ("average_precision", "accuracy"),
    "retrieval": ("ndcg@10", "recall@1"),
}
_LOSS_NAMES = {
    "graded": "the squared difference of the cosine and the score, as a share of its range",
    "labeled": "how far the cosine is on the wrong side of the threshold",
    "retrieval": "1 minus the cosine with the first passage that answers it",
}


class EmbeddingMetrics(TaskMetrics):
    """Metrics of the format of the examples, compared with cosines of TF-IDF."""

    baseline_name = "TF-IDF"
    baseline_reads_text = True
    comparable_across_models = False
    decoder: EmbeddingDecoder

    def __init__(self, metadata: Metadata, settings: EmbedSettings, decoder: EmbeddingDecoder) -> None:
        super().__init__(metadata, settings, decoder)
        self._format: DataFormat = metadata["data_format"]
        self.loss_name = _LOSS_NAMES[self._format]

    @property
    def primary_metric(self) -> str:
        """Spearman's correlation, average precision, or nDCG@10."""
        return self.logged_metrics[0]

    @property
    def logged_metrics(self) -> tuple[str, ...]:
        """The primary metric, and another one."""
        return _LOGGED_METRICS[self._format]

    def labels(self, examples: Sequence[EmbeddingExample]) -> list[tuple[str, ...]]:
        """Return the label of each example, or its score as a text."""
        is_graded = self._format == "graded"
        return [() if e.label is None else (f"{e.number:g}" if is_graded else e.label,) for e in examples]

    def compute(
        self, predictions: Sequence[EmbeddingPrediction], examples: Sequence[EmbeddingExample]
    ) -> Metrics:
        """Return the metrics of the examples' format, which may differ from that of the training examples."""
        data_format = self.format_of(examples)
        if data_format == "retrieval":
            return _retrieval_metrics(*self._rankings(predictions, examples), len(examples))
        threshold = self.decoder.threshold if self._format == "labeled" else None
        cosines = np.array([first_cosine(p) for p in predictions], np.float64)
        return self._pair_metrics(data_format, examples, cosines, threshold)

    def baseline(
        self, training: Sequence[EmbeddingExample], validation: Sequence[EmbeddingExample]
    ) -> Metrics:
        """Return the metrics of cosines of TF-IDF vectors."""
        tfidf = TfIdf([text for example in (*training, *validation) for text in example.texts])
        if self._format == "retrieval":
            corpus = Corpus.from_examples(validation)
            rankings = tfidf.rankings(corpus.queries, corpus.passages, _TOP_K)
            return _retrieval_metrics(corpus, rankings, len(validation))
        cosines = tfidf.cosines([e.query for e in validation], [e.positives[0] for e in validation])
        return self._pair_metrics(self._format, validation, cosines, None)

    def example_losses(self, answers: Answers) -> list[float | None]:
        """Return the difference of each pair's cosine, or of a query's first passage, from its target."""
        if self.format_of(answers.examples) != self._format:
            return [None] * len(answers.examples)
        losses: list[float | None] = []
        for prediction, example in zip(answers.predictions, answers.examples, strict=True):
            cosine = target(example, self.metadata)
            if self._format == "retrieval":
                losses.append(None if cosine is None else 1 - first_cosine(prediction))
            elif self._format == "labeled":
                margin = self.decoder.threshold - prediction.cosine
                losses.append(margin if cosine else -margin)
            else:
                losses.append((prediction.cosine - (cosine or 0.0)) ** 2)
        return losses

    def sufficient_statistics(
        self, predictions: Sequence[EmbeddingPrediction], examples: Sequence[EmbeddingExample]
    ) -> SufficientStatistics | None:
        """Return the statistics of rankings or of the accuracy; None for rank correlations of graded pairs."""
        if self.format_of(examples) == "retrieval":
            return _ranking_statistics(*self._rankings(predictions, examples), examples)
        decisions = [p.same for p in predictions if isinstance(p, PairMatch)]
        if len(decisions) < len(predictions):
            return None
        return statistics.mean_statistics({"accuracy": np.array(decisions) == self.matches(examples)})

    def format_of(self, examples: Sequence[EmbeddingExample]) -> DataFormat:
        """Return the format of examples: that of the training examples if both have labels, or both have none."""
        if (examples[0].label is not None) == (self._format != "retrieval"):
            return self._format
        return detect_format(examples, self.settings.model_copy(update={"loss": "auto"}))

    def matches(self, examples: Sequence[EmbeddingExample]) -> NDArray[np.bool_]:
        """Return which labeled pairs match, [pairs]."""
        same_label = self.metadata.get("same_label") or detect_same_label(examples, self.settings)
        return np.array([example.label == same_label for example in examples])

    def _pair_metrics(
        self,
        data_format: DataFormat,
        examples: Sequence[EmbeddingExample],
        cosines: NDArray[np.float64],
        threshold: float | None,
    ) -> Metrics:
        if data_format == "graded":
            return graded_metrics(cosines, np.array([example.number for example in examples]))
        return labeled_metrics(cosines, self.matches(examples), threshold)

    def _rankings(
        self, predictions: Sequence[EmbeddingPrediction], examples: Sequence[EmbeddingExample]
    ) -> tuple[Corpus, list[list[int]]]:
        """Return the passages of all examples, and the best ones of each query."""
        corpus = Corpus.from_examples(examples)
        embeddings: dict[str, NDArray[np.float32]] = {}
        for prediction, example in zip(predictions, examples, strict=True):
            embeddings.update(zip(example.texts, prediction.embeddings, strict=True))
        queries, passages = (
            normalize_vectors(np.stack([embeddings[text] for text in texts]))
            for texts in (corpus.queries, corpus.passages)
        )
        return corpus, search_vectors(queries, passages, _TOP_K)[0].tolist()


class EmbeddingReport(TaskReport):
    """Report pairs, and queries with passages."""

    metrics: EmbeddingMetrics

    def answer_summary(
        self, train: Sequence[EmbeddingExample], validation: Sequence[EmbeddingExample]
    ) -> DataSummary:
        """Return the distribution of scores, or the frequencies of labels."""
        if self.metadata["data_format"] == "graded":
            return summarize_numbers(*([example.number for example in part] for part in (train, validation)))
        return super().answer_summary(train, validation)

    def error_analysis(
        self, predictions: Sequence[EmbeddingPrediction], examples: Sequence[EmbeddingExample]
    ) -> ErrorAnalysis:
        """Return the cosines beside the scores of graded pairs, or the decisions on labeled pairs."""
        data_format = self.metrics.format_of(examples)
        if data_format == "graded":
            scores, cosines = [e.number for e in examples], [first_cosine(p) for p in predictions]
            return {"numbers": number_scatter(scores, cosines, "score", "cosine")}
        decisions = [p.same for p in predictions if isinstance(p, PairMatch)]
        if data_format == "retrieval" or len(decisions) < len(predictions):
            return {}
        names = ["the same", "others"]
        sides = (self.metrics.matches(examples), decisions)
        references, answers = ([names[0] if same else names[1] for same in side] for side in sides)
        return {"confusion": confusion("pairs", references, answers, names)}

    def describe_error(self, example: EmbeddingExample, prediction: EmbeddingPrediction) -> tuple[str, str]:
        """Return the score, the label, or the first passage, and the cosine."""
        reference = example.positives[0] if example.label is None else example.label
        return reference, f"{first_cosine(prediction):.4f}"


class Corpus(NamedTuple):
    """Queries and the passages to search.

    Attributes:
        queries: The queries, each once.
        passages: The passages of all queries, negatives included, each once.
        relevant: The indices of the passages that answer each query.
    """

    queries: list[str]
    passages: list[str]
    relevant: list[set[int]]

    @classmethod
    def from_examples(cls, examples: Sequence[EmbeddingExample]) -> Corpus:
        """Collect queries and passages; equal queries become one with the passages of all."""
        texts = [text for example in examples for text in example.positives]
        texts += [text for example in examples for text in example.negatives]
        passages = {text: i for i, text in enumerate(dict.fromkeys(texts))}
        relevant: dict[str, set[int]] = {}
        for example in examples:
            indices = relevant.setdefault(example.query, set())
            indices.update(passages[text] for text in example.positives)
        return cls([*relevant], [*passages], [*relevant.values()])


def graded_metrics(cosines: NDArray[np.float64], scores: NDArray[np.float64]) -> Metrics:
    """Return Spearman's and Pearson's correlation of cosines with scores; 0 if one side is constant."""
    numbers = {"spearman": 0.0, "pearson": 0.0, "examples": len(scores)}
    if len(scores) < 2 or np.ptp(scores) == 0 or np.ptp(cosines) <= _MIN_COSINE_RANGE:
        note = "the scores or the cosines do not vary, so there is nothing to correlate: both are 0"
        return Metrics(numbers, notes=[note])
    from scipy.stats import pearsonr, spearmanr

    numbers["spearman"] = float(spearmanr(scores, cosines)[0])
    numbers["pearson"] = float(pearsonr(scores, cosines)[0])
    return Metrics(numbers)


def labeled_metrics(
    cosines: NDArray[np.float64], same: NDArray[np.bool_], threshold: float | None = None
) -> Metrics:
    """Return average precision, the area under the ROC curve, and the accuracy at a threshold.

    Args:
        cosines: The cosine of each pair.
        same: True for pairs that match.
        threshold: The threshold; None for the best one on these pairs.
    """
    notes = []
    if threshold is None:
        threshold = best_threshold(cosines, same)
        notes.append("the accuracy is that at the threshold which is best on these very pairs")
    numbers = {"average_precision": 0.0, "auc": 0.0}
    if same.any() and not same.all():
        from sklearn.metrics import average_precision_score, roc_auc_score

        numbers["average_precision"] = float(average_precision_score(same, cosines))
        numbers["auc"] = float(roc_auc_score(same, cosines))
    else:
        notes.append("all pairs have one label, so average precision and AUC say nothing: both are 0")
    numbers |= {"accuracy": float(((cosines > threshold) == same).mean()), "examples": len(same)}
    return Metrics(numbers, {"threshold": threshold}, (), notes)


def _retrieval_metrics(corpus: Corpus, rankings: Sequence[Sequence[int]], num_examples: int) -> Metrics:
    """Return the metrics of the rankings of all queries among all passages."""
    numbers = {**ranking_metrics(rankings, corpus.relevant), "examples": num_examples}
    return Metrics(numbers, {"queries": len(corpus.queries), "passages": len(corpus.passages)})


def _ranking_statistics(
    corpus: Corpus, rankings: Sequence[Sequence[int]], examples: Sequence[EmbeddingExample]
) -> SufficientStatistics:
    """Return the statistics of the rankings' metrics; a query counts for the first example that has it."""
    indices = {query: i for i, query in enumerate(corpus.queries)}
    per_example = np.zeros((len(examples), len(METRIC_NAMES) + 1))
    for values, example in zip(per_example, examples, strict=True):
        i = indices.pop(example.query, None)
        if i is not None and corpus.relevant[i]:
            values[:] = [*query_metrics(rankings[i], corpus.relevant[i]), 1.0]

    def means(sums: FloatArray) -> dict[str, FloatArray]:
        return {
            name: statistics.safe_divide(sums[..., i], sums[..., -1]) for i, name in enumerate(METRIC_NAMES)
        }

    return SufficientStatistics(per_example, means)
