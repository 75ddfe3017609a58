"""Metrics of classification, as scikit-learn computes them, and reports."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bertsmith.metrics import sufficient_statistics as statistics
from bertsmith.metrics.calibration import expected_calibration_error, reliability_bins
from bertsmith.metrics.sufficient_statistics import FloatArray, SufficientStatistics
from bertsmith.tasks import tfidf
from bertsmith.tasks.base import Metadata, TaskMetrics, Vectorize
from bertsmith.tasks.batching import Answers
from bertsmith.tasks.classification.data import label_ids, split_labels
from bertsmith.tasks.classification.model import (
    ClassPrediction,
    LabelScores,
    MultilabelDecoder,
    MultilabelPrediction,
)
from bertsmith.tasks.labels import LabelMap
from bertsmith.tasks.report import ErrorAnalysis, TaskReport, cross_entropy, label_error_analysis, reliability
from bertsmith.tasks.results import Metrics, MetricTable, table_by_label
from bertsmith.tasks.settings import ClassSettings
from bertsmith.tasks.texts import TextDecoder, TextExample

_MAX_MATRIX_LABELS = 200  # of more labels, the confusion matrix lists the cells that are not 0
_MAX_TABLE_LABELS = 8  # of a confusion matrix that fits a terminal


class LabelMetrics(TaskMetrics):
    """Metrics of labels."""

    def __init__(self, metadata: Metadata, settings: ClassSettings, decoder: TextDecoder) -> None:
        super().__init__(metadata, settings, decoder)
        self._labels: list[str] = metadata["labels"]
        self._label_map, self._separator = LabelMap(metadata), metadata.get("separator")

    def labels(self, examples: Sequence[TextExample]) -> list[tuple[str, ...]]:
        """Return the names of each example's labels, in the model's order."""
        ids = self._label_map.ids
        return [
            tuple(
                sorted(
                    dict.fromkeys(map(self._label_map.name, split_labels(example, self._separator))),
                    key=lambda name: ids.get(name, len(ids)),
                )
            )
            for example in examples
        ]


class ClassificationMetrics(LabelMetrics):
    """Accuracy, F1, Matthews' correlation, and calibration of predicted classes."""

    primary_metric = "accuracy"
    logged_metrics = ("accuracy", "macro_f1")
    loss_name = "minus the logarithm of the right label's probability"

    def compute(self, predictions: Sequence[ClassPrediction], examples: Sequence[TextExample]) -> Metrics:
        """Return the metrics, the figures of each class, their averages, and the confusion matrix.

        A macro average is the mean over all of the model's labels. A label that neither occurs nor is predicted
        counts 0, as in scikit-learn if it is among the given `labels`.
        """
        from sklearn.metrics import accuracy_score, matthews_corrcoef

        targets, predicted = self._targets(examples), [self._label_map.ids[p.label] for p in predictions]
        by_label = _metrics_by_label(targets, predicted, self._labels)
        averages = _averages(by_label)
        details: dict[str, Any] = {"classes": by_label, "averages": averages}
        values = {
            "accuracy": float(accuracy_score(targets, predicted)),
            "macro_f1": averages["macro average"]["f1"],
            "weighted_f1": averages["weighted average"]["f1"],
            "matthews": 0.0,  # not defined for a single label
        }
        if len({*targets, *predicted}) > 1:
            values["matthews"] = float(matthews_corrcoef(targets, predicted))
        scores = [p.score for p in predictions if p.score is not None]
        if scores:
            bins = reliability_bins(scores, [t == p for t, p in zip(targets, predicted, strict=True)])
            values["calibration_error"] = expected_calibration_error(bins)
            details["calibration"] = [reliability_bin._asdict() for reliability_bin in bins]
        values["examples"] = len(examples)
        tables = [table_by_label("label", by_label, averages)]
        details["confusion"] = _confusion(targets, predicted, self._labels)
        if len(self._labels) <= _MAX_TABLE_LABELS:
            rows = zip(self._labels, details["confusion"], strict=True)
            columns = ["truth, down; prediction, across", *self._labels]
            tables.append(MetricTable("", columns, [[label, *map(str, row)] for label, row in rows]))
        return Metrics(values, details, tables)

    def baseline(self, training: Sequence[TextExample], validation: Sequence[TextExample]) -> Metrics:
        """Return the metrics of the most frequent label."""
        ((most_frequent, _),) = Counter(self._targets(training)).most_common(1)
        prediction = ClassPrediction(self._labels[most_frequent], None, {})
        return self.compute([prediction] * len(validation), validation)

    def text_baselines(
        self,
        training: Sequence[TextExample],
        validation: Sequence[TextExample],
        vectorize: Vectorize | None = None,
    ) -> dict[str, Metrics]:
        """Return the metrics of TF-IDF or other vectors and logistic regression."""
        labels = [label for (label,) in self.labels(training)]
        if (predicted := tfidf.predict_labels(training, labels, validation, vectorize)) is None:
            return {}
        return {tfidf.NAME: self.compute([ClassPrediction(p, None, {}) for p in predicted], validation)}

    def example_losses(self, answers: Answers) -> list[float | None]:
        """Return the cross-entropy of each prediction."""
        pairs = zip(answers.predictions, self.labels(answers.examples), strict=True)
        return [cross_entropy(prediction.scores[label]) for prediction, (label,) in pairs]

    def sufficient_statistics(
        self, predictions: Sequence[ClassPrediction], examples: Sequence[TextExample]
    ) -> SufficientStatistics:
        """Return the statistics of all metrics but the calibration error."""
        num_labels = len(self._labels)
        references = statistics.one_hot(self._targets(examples), num_labels)
        predicted = statistics.one_hot([self._label_map.ids[p.label] for p in predictions], num_labels)

        def metrics(
            correct: FloatArray, references: FloatArray, predicted: FloatArray, _: FloatArray
        ) -> dict[str, FloatArray]:
            f1_by_label, total = statistics.f1(correct, references, predicted), references.sum(-1)
            return {
                "accuracy": statistics.safe_divide(correct.sum(-1), total),
                "macro_f1": f1_by_label.mean(-1),
                "weighted_f1": statistics.safe_divide((f1_by_label * references).sum(-1), total),
                "matthews": statistics.matthews_from_sums(correct, references, predicted),
            }

        no_extra = np.empty((len(examples), 0))
        return statistics.count_statistics(references * predicted, references, predicted, no_extra, metrics)

    def _targets(self, examples: Sequence[TextExample]) -> list[int]:
        """Return the id of the label of each example."""
        return [label_ids(example, self._label_map, None)[0] for example in examples]


class MultilabelMetrics(LabelMetrics):
    """F1, exact match, and average precision of sets of labels."""

    primary_metric = "macro_f1"
    logged_metrics = ("macro_f1", "micro_f1")
    loss_name = "the mean over the labels of their binary cross-entropies"
    decoder: MultilabelDecoder

    def compute(
        self, predictions: Sequence[MultilabelPrediction], examples: Sequence[TextExample]
    ) -> Metrics:
        """Return the metrics, and the figures of each label with its threshold.

        Macro F1 is the mean over all of the model's labels. A label that neither occurs nor is predicted has an F1
        of 0, as in scikit-learn, and no average precision. Average precision does not depend on thresholds.
        """
        from sklearn.metrics import average_precision_score

        targets, predicted = self.target_matrix(examples), self._prediction_matrix(predictions)
        by_label = _metrics_by_label(targets, predicted, self._labels, self.decoder.thresholds)
        occurs, scores = targets.any(0), self.score_matrix(predictions)
        # Contiguous, since scikit-learn copies other arrays for each label.
        columns = (np.compress(occurs, matrix, axis=1) for matrix in (targets, scores))
        ranked = average_precision_score(*columns) if occurs.any() else 0.0
        values = self.sufficient_statistics(predictions, examples).scores()
        values |= {"average_precision": float(ranked), "examples": len(examples)}
        return Metrics(values, {"classes": by_label}, [table_by_label("label", by_label)])

    def baseline(self, training: Sequence[TextExample], validation: Sequence[TextExample]) -> Metrics:
        """Return, for each metric, the better of two constant predictions.

        One has the labels of at least half of the training examples, or the most frequent label if there is none.
        The other has all labels: no other constant prediction has a better macro F1.
        """
        frequencies = self.target_matrix(training).mean(0, dtype=np.float32)
        scores = LabelScores(self._label_map.ids, frequencies)
        frequent = [label for label, frequency in scores.items() if frequency >= 0.5]
        frequent = frequent or [max(scores, key=scores.__getitem__)]
        constants = (MultilabelPrediction(labels, scores) for labels in (frequent, self._labels))
        few, every = (self.compute([constant] * len(validation), validation) for constant in constants)
        return replace(few, values={name: max(few.values[name], every.values[name]) for name in few.values})

    def text_baselines(
        self,
        training: Sequence[TextExample],
        validation: Sequence[TextExample],
        vectorize: Vectorize | None = None,
    ) -> dict[str, Metrics]:
        """Return the metrics of TF-IDF or other vectors and a logistic regression for each label."""
        probabilities = tfidf.predict_probabilities(
            training, self.target_matrix(training), validation, vectorize
        )
        if probabilities is None:
            return {}
        scores = [LabelScores(self._label_map.ids, row) for row in probabilities]
        predictions = [
            MultilabelPrediction([label for label, score in row.items() if score > 0.5], row)
            for row in scores
        ]
        return {tfidf.NAME: self.compute(predictions, validation)}

    def example_losses(self, answers: Answers) -> list[float | None]:
        """Return the mean binary cross-entropy of each prediction."""
        targets, scores = self.target_matrix(answers.examples), self.score_matrix(answers.predictions)
        losses: list[float | None] = cross_entropy(np.where(targets, scores, 1 - scores)).mean(1).tolist()
        return losses

    def sufficient_statistics(
        self, predictions: Sequence[MultilabelPrediction], examples: Sequence[TextExample]
    ) -> SufficientStatistics:
        """Return the statistics of all metrics but the average precision."""
        matrices = self.target_matrix(examples), self._prediction_matrix(predictions)
        targets, predicted = (matrix.view(np.int8) for matrix in matrices)
        exact = np.stack([(targets == predicted).all(1), np.ones(len(targets), np.int8)], axis=1)

        def metrics(
            correct: FloatArray, references: FloatArray, predicted: FloatArray, exact: FloatArray
        ) -> dict[str, FloatArray]:
            return {
                "macro_f1": statistics.f1(correct, references, predicted).mean(-1),
                "micro_f1": statistics.f1(correct.sum(-1), references.sum(-1), predicted.sum(-1)),
                "all_right": statistics.safe_divide(exact[..., 0], exact[..., 1]),
            }

        return statistics.count_statistics(targets & predicted, targets, predicted, exact, metrics)

    def target_matrix(self, examples: Sequence[TextExample]) -> NDArray[np.bool_]:
        """Return [examples, K], True for each label of an example."""
        ids_of = (label_ids(example, self._label_map, self._separator) for example in examples)
        return self._matrix(ids_of, len(examples))

    def score_matrix(self, predictions: Sequence[MultilabelPrediction]) -> NDArray[Any]:
        """Return the probabilities of the labels, [examples, K]."""
        return np.stack([p.scores.probabilities for p in predictions])

    def _prediction_matrix(self, predictions: Sequence[MultilabelPrediction]) -> NDArray[np.bool_]:
        """Return [examples, K], True for each predicted label."""
        ids_of = ([self._label_map.ids[label] for label in p.labels] for p in predictions)
        return self._matrix(ids_of, len(predictions))

    def _matrix(self, ids_of: Iterable[Sequence[int]], size: int) -> NDArray[np.bool_]:
        """Return [examples, K], True for each id of an example."""
        matrix = np.zeros((size, len(self._labels)), dtype=np.bool_)
        for row, ids in zip(matrix, ids_of, strict=True):
            row[ids] = True
        return matrix


def make_metrics(metadata: Metadata, settings: ClassSettings, decoder: TextDecoder) -> LabelMetrics:
    """Return the metrics of one label for each text, or of any number of labels."""
    metrics_type = MultilabelMetrics if metadata.get("separator") else ClassificationMetrics
    return metrics_type(metadata, settings, decoder)


class ClassificationReport(TaskReport):
    """Report texts with one label."""

    def error_analysis(
        self, predictions: Sequence[ClassPrediction], examples: Sequence[TextExample]
    ) -> ErrorAnalysis:
        """Return the confusion matrix and the reliability of the probabilities."""
        references = [label for (label,) in self.metrics.labels(examples)]
        labels, scores = [p.label for p in predictions], [p.score or 0.0 for p in predictions]
        return label_error_analysis("texts", references, labels, scores, self.metadata["labels"])

    def table_rows(self, example: TextExample, prediction: ClassPrediction) -> list[dict[str, Any]]:
        """Return the text, its label, and the probability of the label."""
        return [{**example.display_inputs, "prediction": prediction.label, "score": prediction.score}]


class MultilabelReport(TaskReport):
    """Report texts with any number of labels."""

    metrics: MultilabelMetrics

    def error_analysis(
        self, predictions: Sequence[MultilabelPrediction], examples: Sequence[TextExample]
    ) -> ErrorAnalysis:
        """Return the reliability of the probabilities of all labels."""
        scores, targets = self.metrics.score_matrix(predictions), self.metrics.target_matrix(examples)
        return {"reliability": reliability("pairs of a text and a label", scores.ravel(), targets.ravel())}

    def describe_error(self, example: TextExample, prediction: MultilabelPrediction) -> tuple[str, str]:
        """Return the labels of the example and the predicted labels."""
        (labels,) = self.metrics.labels([example])
        return ", ".join(labels) or "none", ", ".join(prediction.labels) or "none"

    def table_rows(self, example: TextExample, prediction: MultilabelPrediction) -> list[dict[str, Any]]:
        """Return the text, its labels, and the most probable label with its probability."""
        labels, (likeliest, score) = (
            ", ".join(prediction.labels),
            max(prediction.scores.items(), key=lambda pair: pair[1]),
        )
        return [{**example.display_inputs, "prediction": labels, "likeliest": likeliest, "score": score}]


def make_report(metadata: Metadata, settings: ClassSettings, metrics: TaskMetrics) -> TaskReport:
    """Return the report of one label for each text, or of any number of labels."""
    report_type = MultilabelReport if metadata.get("separator") else ClassificationReport
    return report_type(metadata, settings, metrics)


def _metrics_by_label(
    targets: ArrayLike, predicted: ArrayLike, labels: Sequence[str], thresholds: Sequence[float] | None = None
) -> dict[str, dict[str, Any]]:
    """Return precision, recall, F1, support, and threshold by label."""
    from sklearn.metrics import precision_recall_fscore_support

    columns = precision_recall_fscore_support(targets, predicted, labels=range(len(labels)), zero_division=0)
    by_name = dict(zip(("precision", "recall", "f1", "support"), map(np.asarray, columns), strict=True))
    if thresholds is not None:
        by_name["threshold"] = np.array(thresholds)
    return {label: {name: by_name[name][i].item() for name in by_name} for i, label in enumerate(labels)}


def _averages(by_label: Mapping[str, Mapping[str, float]]) -> dict[str, dict[str, float]]:
    """Return precision, recall, and F1 as means over the labels, and as means weighted by support."""
    support = np.array([row["support"] for row in by_label.values()])
    averages = {}
    for name, weights in (("macro average", np.ones(len(support))), ("weighted average", support)):
        columns = {n: np.array([row[n] for row in by_label.values()]) for n in ("precision", "recall", "f1")}
        means = {n: float((column * weights).sum() / max(1, weights.sum())) for n, column in columns.items()}
        averages[name] = {**means, "support": int(support.sum())}
    return averages


def _confusion(targets: Sequence[int], predicted: Sequence[int], labels: Sequence[str]) -> list[Any]:
    """Return rows of references with columns of predictions; of many labels the cells that are not 0, by count."""
    cells, ids = Counter(zip(targets, predicted, strict=True)), range(len(labels))
    if len(labels) <= _MAX_MATRIX_LABELS:
        return [[cells[t, p] for p in ids] for t in ids]
    return [
        {"truth": labels[t], "prediction": labels[p], "times": count} for (t, p), count in cells.most_common()
    ]
