"""Estimators with scikit-learn's interface: a classifier, a regressor, and a transformer to embeddings.

    from bertsmith.sklearn import BertClassifier

    classifier = BertClassifier("bert-base-uncased", num_train_epochs=3).fit(texts, labels)
    classifier.predict(["what a day"])

`fit` calls `bertsmith.finetune("classify", …)`. A fitted estimator keeps its model in a temporary folder, which is
removed with it. Pipelines, grid search, cross-validation, `clone`, pickle, and joblib work with all of them.
"""

from __future__ import annotations

import logging
import shutil
import tempfile
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin, TransformerMixin
from sklearn.utils import check_array, check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_consistent_length, check_is_fitted, column_or_1d

from bertsmith.finetuning.run import finetune
from bertsmith.inference.model import Model, load
from bertsmith.io.values import MISSING_SPELLINGS, is_missing
from bertsmith.models.config import Pooling
from bertsmith.runs.run_folder import CHECKPOINTS

_MAX_SEED = 2**31 - 1
_UNREACHABLE_STEP = 2**31  # to evaluate only after the last update, which is always evaluated
_NUM_EVALUATION_ROWS = 64  # rows of the training data, if no validation data is held out
_MODEL_FILES_KEY = "files of model_"  # of the model's files in a pickle


class _SavedModelMixin:
    """Puts the files of the fitted model into the pickle.

    Attributes:
        model_: The `bertsmith.Model` with its report; `model_.save(folder)` saves it.
    """

    device: str
    model_: Model

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()  # type: ignore[misc]
        tags.input_tags.string = True
        tags.input_tags.one_d_array = True
        tags.input_tags.two_d_array = False
        return tags

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = dict(super().__getstate__())  # type: ignore[call-overload]
        if (model := state.pop("model_", None)) is not None:
            state[_MODEL_FILES_KEY] = {
                file.relative_to(model.model_folder).as_posix(): file.read_bytes()
                for file in sorted(model.model_folder.rglob("*"))
                if file.is_file()
            }
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        files = state.get(_MODEL_FILES_KEY)
        state = {name: value for name, value in state.items() if name != _MODEL_FILES_KEY}
        super().__setstate__(state)  # type: ignore[misc]
        if files is not None:
            folder = _make_temporary_folder()
            for name, content in files.items():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                (folder / name).write_bytes(content)
            self.model_ = _remove_with_model(load(folder, self.device), folder)


@dataclass(eq=False, repr=False)
class _FinetunedEstimator(_SavedModelMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """Fine-tunes a model on texts, or pairs of texts, and one label each; `BertClassifier` lists its arguments."""

    model: str | Path = "bert-base-uncased"
    _: KW_ONLY
    num_train_epochs: float | None = None
    batch_size: int = 32
    learning_rate: float | None = None
    max_length: int | None = None
    validation_fraction: float | None = None
    random_state: Any = None
    device: str = "auto"
    settings: Mapping[str, Any] | None = None
    verbose: bool = False

    def _finetune(
        self,
        task: str,
        columns: dict[str, list[str]],
        labels: list[Any],
        label_names: list[str] | None = None,
        **task_settings: Any,
    ) -> Model:
        """Fine-tune a copy of the model in a temporary folder."""
        seed = int(check_random_state(self.random_state).randint(_MAX_SEED))
        settings = {
            "train.num_train_epochs": self.num_train_epochs,
            "train.batch_size": self.batch_size,
            **({} if self.learning_rate is None else {"train.learning_rate": self.learning_rate}),
            "train.seed": seed,
            "train.device": self.device,
            "train.report_to": "none",
            "files.seed": seed,
            "task.second_column": "second" if "second" in columns else None,
            "task.max_length": self.max_length,
            **task_settings,
            **({} if self.validation_fraction else {"train.eval_steps": _UNREACHABLE_STEP}),
            **(self.settings or {}),
        }
        rows = {**columns, "label": labels}
        validation: dict[str, Any] = {"validation_split": self.validation_fraction}
        if not self.validation_fraction:
            # The evaluation at the end needs some data: the first row of each label, and the first 64 rows.
            first_rows = np.unique(labels, return_index=True)[1].tolist() if label_names else []
            indices = [*first_rows, *range(min(len(labels), _NUM_EVALUATION_ROWS))]
            cells = {name: [values[i] for i in indices] for name, values in rows.items()}
            validation = {"validation": cells}
        folder = _make_temporary_folder()
        try:
            with _suppress_logs(enabled=not self.verbose):
                model = finetune(
                    task,
                    self.model,
                    folder / "run",
                    train=rows,
                    **validation,
                    label_names=label_names,
                    settings=settings,
                )
            # Checkpoints are three times as large as the model (AdamW's moments), and nobody can resume this run.
            shutil.rmtree(folder / "run" / CHECKPOINTS)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        return _remove_with_model(model, folder)

    def _predict(self, X: Any) -> list[Any]:
        """Return the predictions of the model."""
        check_is_fitted(self, "model_")
        columns = list(_text_columns(X).values())
        return self.model_.predict(*columns) if columns[0] else []


@dataclass(eq=False, repr=False)
class BertClassifier(ClassifierMixin, _FinetunedEstimator):  # type: ignore[misc]
    """A BERT classifier that assigns one label to a text or to a pair of texts.

    Args:
        model: The model to start from: a run, a model folder, or a published name.
        class_weight: The weight of each label in the loss: "balanced" (inversely proportional to its frequency),
            or a dict from label to weight.
        num_train_epochs: Passes over the training texts; None: 3, or more of few texts.
        batch_size: Texts per batch.
        learning_rate: The peak learning rate, after warm-up; None: by the size of the model.
        max_length: Maximum number of tokens of a text, special tokens included; None: the model's maximum.
        validation_fraction: The fraction of the training texts to hold out, stratified by label. The weights of
            the epoch with the best accuracy on them are kept. None: train on all texts and keep the last weights.
        random_state: The seed of the split, of the head's initialization, and of the order of the texts.
        device: "cpu", "cuda", "cuda:1", …; "auto": a GPU if there is one.
        settings: Further settings by name, such as {"train.warmup_steps": 0.2}; `bertsmith finetune classify
            --help` lists them.
        verbose: Log information about the run, which a notebook shows; otherwise only errors are logged.

    Attributes:
        classes_: The sorted labels.
        class_prior_: The fraction of each label in the training texts, which is the prediction for an empty text.
        model_: The `bertsmith.Model` with its report; `model_.save(folder)` saves it.
    """

    _: KW_ONLY
    class_weight: Any = None

    def fit(self, X: Any, y: Any) -> Self:
        """Fine-tune a copy of the model.

        Args:
            X: n texts, or n pairs of texts as an array of shape (n, 2).
            y: Their labels, [n].

        Raises:
            ValueError: The labels or the shape of X are invalid.
            TypeError: X contains something that is not a text.
            InputError: A setting is invalid.
        """
        columns = _text_columns(X)
        check_consistent_length(columns["text"], y)
        labels = _label_array(y)
        check_classification_targets(labels)
        classes, codes = np.unique(labels, return_inverse=True)
        if len(classes) < 2:
            raise ValueError(
                f"y has {len(classes)} class: {', '.join(map(str, classes))}; at least 2 classes are needed"
            )
        names = _label_names(classes)
        weights = {"task.class_weights": _class_weights(self.class_weight, classes, names)}
        self.model_ = self._finetune("classify", columns, [names[code] for code in codes], names, **weights)
        self.classes_ = classes
        self.class_prior_ = np.bincount(codes, minlength=len(classes)) / len(codes)
        self._names = names
        return self

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """Return the probability of each label.

        Args:
            X: n texts, or n pairs of texts as an array of shape (n, 2).

        Returns:
            Probabilities, float64 [n, n_classes], in the order of `classes_`.
        """
        predictions = self._predict(X)
        rows = np.empty((len(predictions), len(self.classes_)))
        for row, prediction in zip(rows, predictions, strict=True):
            scores = prediction.scores
            row[:] = self.class_prior_ if scores is None else [scores[name] for name in self._names]
        return rows

    def predict(self, X: Any) -> NDArray[Any]:
        """Return the most probable label of each text, [n]."""
        probabilities = self.predict_proba(X)
        labels: NDArray[Any] = self.classes_[probabilities.argmax(axis=1)]
        return labels


class BertRegressor(RegressorMixin, _FinetunedEstimator):  # type: ignore[misc]
    """A BERT regressor that assigns a number to a text or to a pair of texts.

    Its arguments are those of `BertClassifier` without `class_weight`.

    Attributes:
        mean_: The mean of the training targets, which is the prediction for an empty text.
        model_: The `bertsmith.Model` with its report; `model_.save(folder)` saves it.
    """

    def fit(self, X: Any, y: Any) -> Self:
        """Fine-tune a copy of the model.

        Args:
            X: n texts, or n pairs of texts as an array of shape (n, 2).
            y: Their targets, [n].
        """
        columns = _text_columns(X)
        check_consistent_length(columns["text"], y)
        targets = check_array(_label_array(y), ensure_2d=False, dtype=np.float64, ensure_min_samples=2)
        self.model_ = self._finetune("regress", columns, targets.tolist())
        self.mean_ = float(targets.mean())
        return self

    def predict(self, X: Any) -> NDArray[np.float64]:
        """Return the number of each text, [n]."""
        numbers = [prediction.number for prediction in self._predict(X)]
        return np.array([self.mean_ if number is None else number for number in numbers], dtype=np.float64)


@dataclass(eq=False, repr=False)
class BertEmbedder(_SavedModelMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """A transformer of texts to embeddings by a model that is not trained here.

    Args:
        model: A run, a model folder, or a published name.
        pooling: "mean", "max", or "cls"; None: as in `Model.embed`.
        normalize: Scale embeddings to unit length; None: as in `Model.embed`.
        max_length: Tokens that are read of a text; None: the model's maximum.
        batch_size: The maximum number of texts per forward pass.
        device: "cpu", "cuda", "cuda:1", …; "auto": a GPU if there is one.

    Attributes:
        model_: The `bertsmith.Model`.
    """

    model: str | Path = "bert-base-uncased"
    _: KW_ONLY
    pooling: Pooling | None = None
    normalize: bool | None = None
    max_length: int | None = None
    batch_size: int | None = None
    device: str = "auto"

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = []
        return tags

    def fit(self, X: Any, y: Any = None) -> Self:
        """Load the model; `y` is ignored."""
        _single_texts(X)
        self.model_ = load(self.model, self.device)
        return self

    def transform(self, X: Any) -> NDArray[np.float32]:
        """Return a vector per text, float32 [n, H]."""
        check_is_fitted(self, "model_")
        return self.model_.embed(
            _single_texts(X),
            pooling=self.pooling,
            normalize=self.normalize,
            max_length=self.max_length,
            batch_size=self.batch_size,
        )


def _single_texts(X: Any) -> list[str]:
    """Return the texts; raise ValueError for pairs."""
    columns = _text_columns(X)
    if "second" in columns:
        raise ValueError("X has pairs of texts: pass n texts")
    return columns["text"]


def _make_temporary_folder() -> Path:
    return Path(tempfile.mkdtemp(prefix="bertsmith-"))


def _remove_with_model(model: Model, folder: Path) -> Model:
    """Remove a folder when the model is garbage-collected; return the model."""
    weakref.finalize(model, shutil.rmtree, folder, ignore_errors=True)
    return model


def _text_columns(X: Any) -> dict[str, list[str]]:
    """Return the texts, and the second texts if X has two columns."""
    if isinstance(X, str):
        raise ValueError(f"X is a single text, {X!r:.40}: pass a list of texts")
    cells = np.asarray(X, dtype=object)
    if cells.ndim == 1:
        return {"text": _to_texts(cells, "X")}
    if cells.ndim == 2 and cells.shape[1] == 2:
        return {"text": _to_texts(cells[:, 0], "X[:, 0]"), "second": _to_texts(cells[:, 1], "X[:, 1]")}
    raise ValueError(
        f"X has the shape {cells.shape}: pass n texts, or pairs of texts as an array of shape (n, 2)"
    )


def _to_texts(cells: NDArray[Any], name: str) -> list[str]:
    """Return the cells as texts; a missing value becomes an empty text."""
    texts = []
    for row, cell in enumerate(cells):
        cell = "" if is_missing(cell) else cell
        if not isinstance(cell, str):
            raise TypeError(f"{name} has {cell!r:.40} in row {row}, which is not a text")
        texts.append(str(cell))
    return texts


def _label_array(y: Any) -> NDArray[Any]:
    """Return labels [n]; raise ValueError for one that is missing or not a single value, with its row, from 0."""
    cells = np.asarray(y, dtype=object)
    for row, label in enumerate(cells.ravel().tolist() if cells.ndim else ()):
        is_text, is_list = isinstance(label, str), isinstance(label, list | tuple | dict | set)
        if is_missing(label) or (is_text and (not label.strip() or label in MISSING_SPELLINGS)):
            raise ValueError(f"y has {label!r} in row {row}, which is missing: remove the row")
        if is_list or is_text != isinstance(cells.flat[0], str):
            raise ValueError(f"y has {label!r:.40} in row {row}: give each text one label, all of one type")
    return np.asarray(column_or_1d(y, warn=True))


def _label_names(classes: NDArray[Any]) -> list[str]:
    """Return the classes as strings, or "class 0", … if these are not unique or contain unusual white space."""
    names = [str(label) for label in classes.tolist()]
    is_plain = all(name and name == " ".join(name.split()) for name in names)
    if is_plain and len(set(names)) == len(names):
        return names
    return [f"class {i}" for i in range(len(names))]


def _class_weights(class_weight: Any, classes: NDArray[Any], names: list[str]) -> Any:
    """Return scikit-learn's `class_weight` as the value of the setting `task.class_weights`."""
    if class_weight is None or isinstance(class_weight, str):
        return class_weight or "none"
    name_of_class = dict(zip(classes.tolist(), names, strict=True))
    if unknown := [label for label in class_weight if label not in name_of_class]:
        raise ValueError(
            f"class_weight names {unknown[0]!r}, which is not a label of y: {list(name_of_class)[:10]}"
        )
    return {name_of_class[label]: weight for label, weight in class_weight.items()}


@contextmanager
def _suppress_logs(*, enabled: bool) -> Iterator[None]:
    """Return a context manager that suppresses log records below errors."""
    logger = logging.getLogger("bertsmith")
    level = logger.level
    if enabled:
        logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
