"""The correlations that `regress` reports, against calculations by hand and by SciPy."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt

import pytest
import torch
from scipy.stats import pearsonr, spearmanr

from bertsmith.models.config import ModelConfig
from bertsmith.tasks.regression.model import NumberPrediction
from bertsmith.tasks.results import Metrics
from bertsmith.tasks.settings import TextSettings
from bertsmith.tasks.texts import TextExample
from task_files import fitted_task, task_data

CONFIG = ModelConfig(
    vocab_size=9, hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8
)


def report(predicted: Sequence[float], labels: Sequence[float]) -> Metrics:
    examples = [TextExample("a", None, str(label), "here") for label in labels]
    data = task_data("regress", TextSettings())
    task = fitted_task(
        "regress", CONFIG, torch.Generator(), data.fit_metadata(examples, None), TextSettings()
    )
    return task.metrics.compute([NumberPrediction(number) for number in predicted], examples)


def test_spearman_reads_ranks_only() -> None:
    """Four ranks differ by 1: 1 - 6 * 4 / (5 * 24) = 0.8, however far the numbers are apart."""
    metrics = report([1, 10, 100, 1000, 10_000], [2, 1, 4, 3, 5])
    assert metrics.spearman == pytest.approx(0.8)
    assert metrics.pearson == pytest.approx(pearsonr([1, 10, 100, 1000, 10_000], [2, 1, 4, 3, 5])[0])
    assert abs(metrics.pearson - 0.8) > 0.05
    assert report([4, 3, 2], [1, 2, 3]).spearman == pytest.approx(-1)


def test_tied_numbers_have_the_mean_rank() -> None:
    """Ranks 1.5, 1.5, 3, 4 and 1, 2, 3, 4: 4.5 / sqrt(4.5 * 5)."""
    metrics = report([1, 1, 2, 3], [1, 2, 3, 4])
    assert metrics.spearman == pytest.approx(4.5 / sqrt(4.5 * 5))
    assert metrics.spearman == pytest.approx(spearmanr([1, 1, 2, 3], [1, 2, 3, 4])[0])
