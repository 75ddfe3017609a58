"""The scikit-learn estimator: what scikit-learn asks of any, and that it answers as the model behind it."""

from __future__ import annotations

import pickle
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils.estimator_checks import check_estimator

import tiny_run
from bertsmith.errors import InputError
from bertsmith.sklearn import BertClassifier

QUICK = {"train.threads": 1, "train.precision": "fp32", "train.max_steps": 60, "train.batch_size": 8}
GOOD, BAD = ["kaba lode", "lode kaba migi", "kaba"], ["nufo tuzu", "tuzu peri", "nufo peri tuzu"]
TEXTS = [f"{text} {extra}" for extra in tiny_run.WORDS[:8] for text in (*GOOD, *BAD)]
MOODS = np.array(["good"] * 3 + ["bad"] * 3).repeat(1).tolist() * 8


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny pre-trained run."""
    folder = tmp_path_factory.mktemp("sklearn")
    return tiny_run.run(tiny_run.make_shards(folder / "shards"), folder / "bert", "train.max_steps=2").path


def estimator(base: Path, **changes: Any) -> BertClassifier:
    return BertClassifier(base, learning_rate=3e-3, settings=QUICK, random_state=0, **changes)


@pytest.fixture(scope="module")
def fitted(base: Path) -> BertClassifier:
    return estimator(base).fit(TEXTS, MOODS)


def test_it_learns_and_answers_as_its_model(fitted: BertClassifier) -> None:
    assert fitted.classes_.tolist() == ["bad", "good"]
    assert fitted.score(TEXTS, MOODS) > 0.8
    shares = fitted.predict_proba(TEXTS[:6])
    assert shares.shape == (6, 2)
    answers = fitted.model_.predict(TEXTS[:6])
    assert shares.tolist() == [[a["scores"]["bad"], a["scores"]["good"]] for a in answers]
    assert fitted.predict(TEXTS[:6]).tolist() == [a["label"] for a in answers]
    assert fitted.predict_proba([]).shape == (0, 2)
    assert fitted.predict([]).tolist() == []


def test_it_holds_its_model_on_disk_and_not_what_training_left(fitted: BertClassifier) -> None:
    left = {path.name for path in fitted.model_.path.iterdir()}
    assert "checkpoints" not in left
    assert {"model", "report.json"} <= left


def test_the_seed_settles_everything(base: Path) -> None:
    first, again = (estimator(base).fit(TEXTS, MOODS).predict_proba(TEXTS) for _ in range(2))
    other = estimator(base).set_params(random_state=1).fit(TEXTS, MOODS).predict_proba(TEXTS)
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


@pytest.mark.parametrize("labels", [[1, 2], [True, False], ["2", "1"], ["a ", "a"], ["0", "x"], [0.5, 1.5]])
def test_labels_of_any_kind_come_back_as_they_were(base: Path, labels: list[Any]) -> None:
    y = [labels[mood == "good"] for mood in MOODS]
    if isinstance(labels[0], float):
        with pytest.raises(ValueError, match="Unknown label type"):
            estimator(base).fit(TEXTS, y)
        return
    found = estimator(base).fit(TEXTS, y)
    assert found.classes_.tolist() == sorted(labels)
    answers = found.predict(TEXTS)
    assert set(answers.tolist()) <= set(labels)
    assert answers.dtype == found.classes_.dtype
    assert (answers == np.array(y)).mean() > 0.8


def test_every_container_of_texts_is_read(fitted: BertClassifier) -> None:
    wanted = fitted.predict_proba(TEXTS[:6])
    for same in (
        np.array(TEXTS[:6]),
        tuple(TEXTS[:6]),
        np.array(TEXTS[:6], dtype=object),
    ):
        assert np.array_equal(fitted.predict_proba(same), wanted)


def test_pairs_of_texts(base: Path) -> None:
    pairs = list(zip(TEXTS, TEXTS[1:] + TEXTS[:1], strict=True))
    found = estimator(base).fit(pairs, MOODS)
    assert found.model_.task.facts["pairs"] is True
    assert np.array_equal(found.predict_proba(np.array(pairs)), found.predict_proba(pairs))


def test_frames_of_pandas(fitted: BertClassifier) -> None:
    pandas = pytest.importorskip("pandas")
    assert np.array_equal(fitted.predict_proba(pandas.Series(TEXTS[:6])), fitted.predict_proba(TEXTS[:6]))
    with pytest.raises(ValueError, match=r"shape \(2, 3\)"):
        fitted.predict(pandas.DataFrame([["ka", "lo", "mi"]] * 2))


def test_an_empty_text_has_the_prior(fitted: BertClassifier) -> None:
    with pytest.warns(UserWarning, match="empty"):
        shares = fitted.predict_proba(["", None, float("nan"), TEXTS[0]])
    assert shares[:3].tolist() == [fitted.class_prior_.tolist()] * 3
    assert fitted.class_prior_.tolist() == [0.5, 0.5]


def test_pickle_carries_the_model(fitted: BertClassifier) -> None:
    again = pickle.loads(pickle.dumps(fitted))
    assert np.array_equal(again.predict_proba(TEXTS[:6]), fitted.predict_proba(TEXTS[:6]))
    assert again.model_.model_folder != fitted.model_.model_folder
    twice = pickle.loads(pickle.dumps(again))
    assert np.array_equal(twice.predict(TEXTS[:6]), fitted.predict(TEXTS[:6]))
    unfitted = pickle.loads(pickle.dumps(clone(fitted)))
    assert unfitted.get_params() == fitted.get_params()
    with pytest.raises(NotFittedError):
        unfitted.predict(TEXTS)


def test_in_pipelines_searches_and_cross_validation(base: Path) -> None:
    pipe = make_pipeline(FunctionTransformer(lambda texts: [text.strip() for text in texts]), estimator(base))
    assert cross_val_predict(pipe, TEXTS, MOODS, cv=2).shape == (len(TEXTS),)
    found = GridSearchCV(estimator(base), {"learning_rate": [1e-6, 3e-3]}, cv=2).fit(TEXTS, MOODS)
    assert found.best_params_ == {"learning_rate": 3e-3}


# What scikit-learn checks of estimators of numbers alone.
OF_NUMBERS = {
    "check_array_api_input": "texts are in no array API",
    "check_classifiers_train": "its clusters of points are no texts",
    "check_estimator_sparse_array": "texts are never sparse",
    "check_estimator_sparse_matrix": "texts are never sparse",
    "check_estimator_sparse_tag": "texts are never sparse",
    "check_estimators_empty_data_messages": "there are no columns of features",
    "check_estimators_nan_inf": "a missing text is an empty one",
    "check_fit1d": "texts stand in one dimension",
    "check_n_features_in": "texts have no features",
    "check_n_features_in_after_fitting": "texts have no features",
}


class OfNumbers(BertClassifier):
    """The estimator behind words for numbers, which scikit-learn's checks are made of."""

    def fit(self, X: Any, y: Any) -> OfNumbers:
        return super().fit(as_words(X), y)

    def predict_proba(self, X: Any) -> Any:
        return super().predict_proba(as_words(X))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.one_d_array, tags.input_tags.two_d_array = False, True
        return tags


def as_words(X: Any) -> list[str]:
    rows = np.asarray(X, dtype=float)
    if rows.ndim != 2:
        raise ValueError("Expected 2D array, got 1D array instead. Reshape your data")
    return [" ".join(tiny_run.WORDS[int(7 * cell) % len(tiny_run.WORDS)] for cell in row) for row in rows]


def test_the_checks_of_scikit_learn(base: Path) -> None:
    made = OfNumbers(base, random_state=0, settings={**QUICK, "train.max_steps": 2})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of checks that are left out, and of what they give on purpose
        found = check_estimator(made, on_fail=None, expected_failed_checks=OF_NUMBERS)
    assert [(one["check_name"], one["exception"]) for one in found if one["status"] == "failed"] == []
    assert sum(one["status"] == "passed" for one in found) > 40


@pytest.mark.parametrize(
    ("texts", "labels", "error", "said"),
    [
        ("kaba", ["a"], ValueError, "one text alone"),
        ([1, 2], ["a", "b"], TypeError, "X has 1 in row 0, which is not a text"),
        (np.zeros((2, 3)), ["a", "b"], ValueError, r"shape \(2, 3\)"),
        (["ka", "lo"], ["a"], ValueError, "inconsistent numbers of samples"),
        (["ka", "lo"], ["a", "a"], ValueError, "y has 1 class: a"),
        (["ka", "lo"], [0.1, 0.2], ValueError, "Unknown label type"),
    ],
)
def test_what_is_no_text_or_no_label_is_refused(
    base: Path, texts: Any, labels: Any, error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        estimator(base).fit(texts, labels)


def test_wrong_settings_are_refused(base: Path) -> None:
    with pytest.raises(InputError, match="epochs"):
        BertClassifier(base, epochs=-1).fit(TEXTS, MOODS)
    with pytest.raises(ValueError, match="class_weight names 'x'"):
        estimator(base, class_weight={"x": 2}).fit(TEXTS, MOODS)


def test_class_weights_are_learnt_by(base: Path) -> None:
    plain, heavy = (estimator(base, class_weight=w).fit(TEXTS, MOODS) for w in (None, {"bad": 50.0}))
    assert heavy.predict_proba(TEXTS)[:, 0].mean() > plain.predict_proba(TEXTS)[:, 0].mean()
