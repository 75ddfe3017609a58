"""The logits behind predictions, also of texts that are read in windows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import bertsmith as bs
import tiny_run
from bertsmith.inference.logits import LogitPredictor
from bertsmith.inference.predictor import with_class
from bertsmith.inference.task_predictor import TaskPredictor

FEW = {"max_steps": 2, "threads": 1, "report_to": "none"}
LONG = " ".join(tiny_run.WORDS * 4)


def logits_of(predictor: TaskPredictor, texts: list[str]) -> list[dict[str, float]]:
    return with_class(predictor, LogitPredictor).predict(predictor.examples({"text": texts}))


@pytest.fixture(scope="module")
def moods(base: bs.Model, tmp_path_factory: pytest.TempPathFactory) -> bs.Model:
    folder: Path = tmp_path_factory.mktemp("moods")
    rows = tiny_run.table(folder / "rows.csv", tiny_run.examples(12))
    return bs.finetune("classify", base, folder / "moods", train=rows, validation=rows, **FEW)


def test_the_softmax_of_logits_is_the_prediction(moods: bs.Model) -> None:
    texts = [tiny_run.WORDS[0], " ".join(tiny_run.WORDS[:9])]
    for values, prediction in zip(logits_of(moods.predictor, texts), moods.predict(texts), strict=True):
        assert list(values) == moods.labels
        exponentials = np.exp(list(values.values()))
        np.testing.assert_allclose(
            exponentials / exponentials.sum(), [prediction.scores[label] for label in values], rtol=1e-5
        )


def test_logits_of_windows_are_averaged(moods: bs.Model) -> None:
    predictor = moods.predictor.with_settings({"max_length": 16, "stride": 8})
    (answers,) = predictor.answers(predictor.examples({"text": [LONG]}))
    assert len(answers.items) > 2
    (values,) = logits_of(predictor, [LONG])
    expected = torch.cat(answers.outputs.per_item).mean(0).tolist()
    assert list(values.values()) == pytest.approx(expected, rel=1e-6)


def test_a_regression_answers_with_its_number(base: bs.Model, tmp_path: Path) -> None:
    rows = [(text, str(i % 3)) for i, (text, _) in enumerate(tiny_run.examples(12))]
    table = tiny_run.table(tmp_path / "rows.csv", rows)
    model = bs.finetune("regress", base, tmp_path / "grades", train=table, validation=table, **FEW)
    text = rows[0][0]
    (values,) = logits_of(model.predictor, [text])
    assert list(values.values()) == [model.predict(text).number]
