"""The scikit-learn estimator passes scikit-learn's checks and predicts as its model does."""

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
from bertsmith.inference.model import load
from bertsmith.sklearn import BertClassifier, BertEmbedder, BertRegressor

SHORT = {"train.threads": 1, "train.precision": "fp32", "train.max_steps": 60, "train.batch_size": 8}
FEW_STEPS = {**SHORT, "train.max_steps": 2}
GOOD, BAD = ["kaba lode", "lode kaba migi", "kaba"], ["nufo tuzu", "tuzu peri", "nufo peri tuzu"]
TEXTS = [f"{text} {extra}" for extra in tiny_run.WORDS[:8] for text in (*GOOD, *BAD)]
MOODS = np.array(["good"] * 3 + ["bad"] * 3).repeat(1).tolist() * 8


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a tiny pre-trained run with one layer."""
    folder = tmp_path_factory.mktemp("sklearn")
    shards = tiny_run.make_shards(folder / "shards")
    return tiny_run.run(shards, folder / "bert", "model.num_hidden_layers=1", "train.max_steps=2").path


def estimator(base: Path, settings: dict[str, Any] = SHORT, **changes: Any) -> BertClassifier:
    return BertClassifier(base, learning_rate=3e-3, settings=settings, random_state=0, **changes)


@pytest.fixture(scope="module")
def fitted(base: Path) -> BertClassifier:
    return estimator(base).fit(TEXTS, MOODS)


def test_it_learns_and_predicts_as_its_model(fitted: BertClassifier) -> None:
    assert fitted.classes_.tolist() == ["bad", "good"]
    assert fitted.score(TEXTS, MOODS) > 0.8
    probabilities = fitted.predict_proba(TEXTS[:6])
    assert probabilities.shape == (6, 2)
    predictions = fitted.model_.predict(TEXTS[:6])
    expected = [[p.scores["bad"], p.scores["good"]] for p in predictions]
    assert probabilities.tolist() == expected
    assert fitted.predict(TEXTS[:6]).tolist() == [p.label for p in predictions]
    assert fitted.predict_proba([]).shape == (0, 2)
    assert fitted.predict([]).tolist() == []


def test_it_keeps_its_model_on_disk_without_checkpoints(fitted: BertClassifier) -> None:
    names = {path.name for path in fitted.model_.path.iterdir()}
    assert "checkpoints" not in names
    assert {"model", "report.json"} <= names


def test_the_seed_determines_the_result(base: Path) -> None:
    few = estimator(base, FEW_STEPS)
    first, again = (clone(few).fit(TEXTS, MOODS).predict_proba(TEXTS) for _ in range(2))
    other = clone(few).set_params(random_state=1).fit(TEXTS, MOODS).predict_proba(TEXTS)
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


@pytest.mark.parametrize("labels", [[1, 2], [True, False], ["2", "1"], ["a ", "a"], ["0", "x"], [0.5, 1.5]])
def test_labels_of_any_type_are_returned_unchanged(base: Path, labels: list[Any]) -> None:
    y = [labels[mood == "good"] for mood in MOODS]
    if isinstance(labels[0], float):
        with pytest.raises(ValueError, match="Unknown label type"):
            estimator(base).fit(TEXTS, y)
        return
    classifier = estimator(base).fit(TEXTS, y)
    assert classifier.classes_.tolist() == sorted(labels)
    predicted = classifier.predict(TEXTS)
    assert set(predicted.tolist()) <= set(labels)
    assert predicted.dtype == classifier.classes_.dtype
    assert (predicted == np.array(y)).mean() > 0.8


def test_every_container_of_texts_is_accepted(fitted: BertClassifier) -> None:
    expected = fitted.predict_proba(TEXTS[:6])
    for texts in (np.array(TEXTS[:6]), tuple(TEXTS[:6]), np.array(TEXTS[:6], dtype=object)):
        assert np.array_equal(fitted.predict_proba(texts), expected)


def test_pairs_of_texts(base: Path) -> None:
    pairs = list(zip(TEXTS, TEXTS[1:] + TEXTS[:1], strict=True))
    classifier = estimator(base, FEW_STEPS).fit(pairs, MOODS)
    assert classifier.model_.task.metadata["pairs"] is True
    assert np.array_equal(classifier.predict_proba(np.array(pairs)), classifier.predict_proba(pairs))


def test_pandas_data(fitted: BertClassifier) -> None:
    pandas = pytest.importorskip("pandas")
    assert np.array_equal(fitted.predict_proba(pandas.Series(TEXTS[:6])), fitted.predict_proba(TEXTS[:6]))
    with pytest.raises(ValueError, match=r"shape \(2, 3\)"):
        fitted.predict(pandas.DataFrame([["ka", "lo", "mi"]] * 2))


def test_an_empty_text_has_the_prior(fitted: BertClassifier) -> None:
    probabilities = fitted.predict_proba(["", None, float("nan"), TEXTS[0]])
    assert probabilities[:3].tolist() == [fitted.class_prior_.tolist()] * 3
    assert fitted.class_prior_.tolist() == [0.5, 0.5]


def test_pickle_includes_the_model(fitted: BertClassifier) -> None:
    copy = pickle.loads(pickle.dumps(fitted))
    assert np.array_equal(copy.predict_proba(TEXTS[:6]), fitted.predict_proba(TEXTS[:6]))
    assert copy.model_.model_folder != fitted.model_.model_folder
    twice = pickle.loads(pickle.dumps(copy))
    assert np.array_equal(twice.predict(TEXTS[:6]), fitted.predict(TEXTS[:6]))
    unfitted = pickle.loads(pickle.dumps(clone(fitted)))
    assert unfitted.get_params() == fitted.get_params()
    with pytest.raises(NotFittedError):
        unfitted.predict(TEXTS)


def test_pipelines_grid_search_and_cross_validation(base: Path) -> None:
    strip = FunctionTransformer(lambda texts: [text.strip() for text in texts])
    pipe = make_pipeline(strip, estimator(base, FEW_STEPS))
    assert cross_val_predict(pipe, TEXTS, MOODS, cv=2).shape == (len(TEXTS),)
    search = GridSearchCV(estimator(base), {"learning_rate": [1e-6, 3e-3]}, cv=2).fit(TEXTS, MOODS)
    assert search.best_params_ == {"learning_rate": 3e-3}


# Checks of scikit-learn that apply only to estimators of numeric features.
NUMERIC_CHECKS = {
    "check_array_api_input": "texts are not part of the array API",
    "check_complex_data": "texts are not complex numbers",
    "check_transformer_data_not_an_array": "texts have no features",
    "check_transformer_general": "texts have no features",
    "check_classifiers_train": "its clusters of points are not texts",
    "check_estimator_sparse_array": "texts are never sparse",
    "check_estimator_sparse_matrix": "texts are never sparse",
    "check_estimator_sparse_tag": "texts are never sparse",
    "check_estimators_empty_data_messages": "there are no columns of features",
    "check_estimators_nan_inf": "a missing text is an empty text",
    "check_fit1d": "texts have one dimension",
    "check_n_features_in": "texts have no features",
    "check_n_features_in_after_fitting": "texts have no features",
}


class NumericClassifier(BertClassifier):
    """The estimator on words that stand for the numbers of scikit-learn's checks."""

    def fit(self, X: Any, y: Any) -> NumericClassifier:
        return super().fit(to_texts(X), y)

    def predict_proba(self, X: Any) -> Any:
        return super().predict_proba(to_texts(X))

    def __sklearn_tags__(self) -> Any:
        return numeric_tags(super().__sklearn_tags__())


class NumericRegressor(BertRegressor):
    """The regressor on words that stand for numbers."""

    def fit(self, X: Any, y: Any) -> NumericRegressor:
        return super().fit(to_texts(X), y)

    def predict(self, X: Any) -> Any:
        return super().predict(to_texts(X))

    def __sklearn_tags__(self) -> Any:
        tags = numeric_tags(super().__sklearn_tags__())
        tags.regressor_tags.poor_score = True
        return tags


class NumericEmbedder(BertEmbedder):
    """The transformer on words that stand for numbers."""

    def fit(self, X: Any, y: Any = None) -> NumericEmbedder:
        return super().fit(to_texts(X), y)

    def transform(self, X: Any) -> Any:
        return super().transform(to_texts(X))

    def __sklearn_tags__(self) -> Any:
        return numeric_tags(super().__sklearn_tags__())


def numeric_tags(tags: Any) -> Any:
    tags.input_tags.one_d_array, tags.input_tags.two_d_array = False, True
    return tags


def to_texts(X: Any) -> list[str]:
    rows = np.asarray(X, dtype=float)
    if rows.ndim != 2:
        raise ValueError("Expected 2D array, got 1D array instead. Reshape your data")
    return [" ".join(tiny_run.WORDS[int(7 * cell) % len(tiny_run.WORDS)] for cell in row) for row in rows]


@pytest.mark.parametrize(
    "create",
    [
        lambda base: NumericClassifier(base, random_state=0, settings=FEW_STEPS),
        lambda base: NumericRegressor(base, random_state=0, settings=FEW_STEPS),
        NumericEmbedder,
    ],
    ids=["classifier", "regressor", "embedder"],
)
def test_scikit_learn_checks(base: Path, create: Any) -> None:
    estimator = create(base)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of omitted checks, and of invalid input that checks pass
        results = check_estimator(estimator, on_fail=None, expected_failed_checks=NUMERIC_CHECKS)
    assert [
        (result["check_name"], result["exception"]) for result in results if result["status"] == "failed"
    ] == []
    assert sum(result["status"] == "passed" for result in results) > 25


def test_the_regressor_predicts_as_its_model(base: Path) -> None:
    targets = [float(mood == "good") for mood in MOODS]
    regressor = BertRegressor(base, learning_rate=3e-3, settings=SHORT, random_state=0).fit(TEXTS, targets)
    assert regressor.score(TEXTS, targets) > 0.3
    expected = [prediction.number for prediction in regressor.model_.predict(TEXTS[:6])]
    assert regressor.predict([*TEXTS[:6], ""]).tolist() == [*expected, regressor.mean_]
    copy = pickle.loads(pickle.dumps(regressor))
    assert copy.predict(TEXTS[:6]).tolist() == expected


def test_the_embedder_is_a_transformer(base: Path) -> None:
    embedder = BertEmbedder(base, normalize=True, batch_size=2)
    vectors = make_pipeline(embedder).fit_transform(TEXTS[:6])
    assert np.array_equal(vectors, load(base).embed(TEXTS[:6], normalize=True))
    assert np.linalg.norm(vectors, axis=1) == pytest.approx(1, abs=1e-5)
    with pytest.raises(ValueError, match="pairs of texts"):
        embedder.fit([["ka", "lo"]])


@pytest.mark.parametrize(
    ("texts", "labels", "error", "message"),
    [
        ("kaba", ["a"], ValueError, "a single text"),
        ([1, 2], ["a", "b"], TypeError, "X has 1 in row 0, which is not a text"),
        (np.zeros((2, 3)), ["a", "b"], ValueError, r"shape \(2, 3\)"),
        (["ka", "lo"], ["a"], ValueError, "inconsistent numbers of samples"),
        (["ka", "lo"], ["a", "a"], ValueError, "y has 1 class: a"),
        (["ka", "lo"], [0.1, 0.2], ValueError, "Unknown label type"),
        (["ka", "lo"], ["a", None], ValueError, "row 1"),
        (["ka", "lo"], ["a", ""], ValueError, "row 1"),
        (["ka", "lo"], [" ", "a"], ValueError, "row 0"),
        (["ka", "lo"], ["a", float("nan")], ValueError, "row 1"),
        (["ka", "lo"], np.array(["a", np.nan]), ValueError, "row 1"),
        (["ka", "lo"], ["a", ["b"]], ValueError, "row 1"),
    ],
)
def test_invalid_texts_and_labels_are_errors(
    base: Path, texts: Any, labels: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        estimator(base).fit(texts, labels)


def test_invalid_settings_are_errors(base: Path) -> None:
    with pytest.raises(InputError) as caught:
        BertClassifier(base, num_train_epochs=-1).fit(TEXTS, MOODS)
    assert (caught.value.code, caught.value.argument) == ("invalid_setting", "train.num_train_epochs")
    with pytest.raises(ValueError, match="class_weight names 'x'"):
        estimator(base, class_weight={"x": 2}).fit(TEXTS, MOODS)


def test_class_weights_change_the_model(base: Path) -> None:
    unweighted, weighted = (estimator(base, class_weight=w).fit(TEXTS, MOODS) for w in (None, {"bad": 50.0}))
    assert weighted.predict_proba(TEXTS)[:, 0].mean() > unweighted.predict_proba(TEXTS)[:, 0].mean()
