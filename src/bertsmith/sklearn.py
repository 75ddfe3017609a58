"""A classifier of texts as scikit-learn has classifiers: fit, predict, predict_proba, score, get_params.

    from bertsmith.sklearn import BertClassifier

    moods = BertClassifier("bert-base-uncased", epochs=3).fit(texts, labels)
    moods.predict(["what a day"])

It is `bertsmith.finetune("classify", …)`, with one model folder behind each fitted estimator: pipelines, grid
search, cross-validation, `clone`, pickle and joblib work with it.
"""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_consistent_length, check_is_fitted, column_or_1d

from bertsmith import console
from bertsmith.finetuning.run import finetune
from bertsmith.inference.model import Model, load
from bertsmith.runs.run_folder import CHECKPOINTS

_SEEDS = 2**31 - 1
_NEVER = 2**31  # updates between evaluations, of which the last one is always made
_JUDGED = 64
_FILES = "files of model_"  # in a pickle


class BertClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """One label for a text, or for a pair of texts.

    model: where to start from: a run, a model folder or a published name. epochs: passes over the training texts.
    batch_size: texts in a batch. learning_rate: the highest, at the end of warm-up. max_length: tokens read of a
    text, special ones included; None: what the model can take. class_weight: what weighs each label in the loss:
    "balanced" (the rarer, the more), or a dict of labels and weights. validation_fraction: share of the training
    texts that is held out, each label in its proportion; the weights of the epoch that is most accurate on them
    are kept. None: all are trained on, and the last weights are kept. random_state: draws what is held out, the
    head's first weights, and the order of the texts. device: where to compute: cpu, cuda, cuda:1; auto: a GPU if
    there is one. settings: further ones by name, such as {"train.warmup": 0.2}; `bertsmith finetune classify
    --help` lists them. verbose: whether the run tells how it goes.

    Once fitted, `classes_` has the labels, sorted; `class_prior_` each label's share of the training texts, which
    is the answer for a text that is empty; `model_` the `bertsmith.Model` with its report, and
    `model_.save(folder)` keeps it.
    """

    def __init__(
        self,
        model: str | Path = "bert-base-uncased",
        *,
        epochs: float = 3.0,
        batch_size: int = 32,
        learning_rate: float = 5e-5,
        max_length: int | None = None,
        class_weight: Any = None,
        validation_fraction: float | None = None,
        random_state: Any = None,
        device: str = "auto",
        settings: Mapping[str, Any] | None = None,
        verbose: bool = False,
    ) -> None:
        self.model = model
        self.epochs = epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.max_length = max_length
        self.class_weight = class_weight
        self.validation_fraction = validation_fraction
        self.random_state = random_state
        self.device = device
        self.settings = settings
        self.verbose = verbose

    def fit(self, X: Any, y: Any) -> Self:
        """Fine-tune a copy of the model. X: n texts, or n pairs of texts in two columns; y: their labels.

        ValueError or TypeError for what is no text or no label; InputError for settings.
        """
        columns = _columns(X)
        check_consistent_length(columns["text"], y)
        labels = column_or_1d(y, warn=True)
        check_classification_targets(labels)
        classes, codes = np.unique(labels, return_inverse=True)
        if len(classes) < 2:
            raise ValueError(
                f"y has {len(classes)} class: {', '.join(map(str, classes))}; at least 2 classes are needed"
            )
        names = _names(classes)
        seed = int(check_random_state(self.random_state).randint(_SEEDS))
        chosen = {
            "train.epochs": self.epochs,
            "train.batch_size": self.batch_size,
            "train.learning_rate": self.learning_rate,
            "train.seed": seed,
            "train.device": self.device,
            "train.tensorboard": False,
            "files.seed": seed,
            "task.second_column": "second" if "second" in columns else None,
            "task.max_length": self.max_length,
            "task.class_weights": _weights(self.class_weight, classes, names),
            **({} if self.validation_fraction else {"train.evaluate_every": _NEVER}),
            **(self.settings or {}),
        }
        place = _new_folder()
        try:
            fitted = self._finetuned(place / "run", columns, [names[code] for code in codes], names, chosen)
            shutil.rmtree(
                place / "run" / CHECKPOINTS
            )  # with moments, twice the model and more: nobody resumes it
        except BaseException:
            shutil.rmtree(place, ignore_errors=True)
            raise
        self.classes_ = classes
        self.class_prior_ = np.bincount(codes, minlength=len(classes)) / len(codes)
        self.model_ = _kept(fitted, place)
        self._names = names
        return self

    def _finetuned(
        self,
        run: Path,
        columns: dict[str, list[str]],
        labels: list[str],
        names: list[str],
        chosen: dict[str, Any],
    ) -> Model:
        rows = {**columns, "label": labels}
        known: dict[str, Any] = {"dev_share": self.validation_fraction}
        if not self.validation_fraction:  # a run is judged once, at its end, and here on what it has seen
            some = np.unique(labels, return_index=True)[1].tolist() + list(range(_JUDGED))
            known = {
                "dev": {name: [cells[i] for i in some if i < len(cells)] for name, cells in rows.items()}
            }
        return finetune(
            "classify",
            self.model,
            run,
            train=rows,
            **known,
            label_names=names,
            settings=chosen,
            tell=console.tell if self.verbose else lambda text: None,
        )

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """The probability of each label, float64 [n, n_classes], in the order of `classes_`."""
        check_is_fitted(self, "model_")
        columns = _columns(X)
        rows = np.empty((len(columns["text"]), len(self.classes_)))
        if not len(rows):
            return rows
        for row, answer in zip(rows, self.model_.predict(*columns.values()), strict=True):
            scores = answer.get("scores")
            row[:] = self.class_prior_ if scores is None else [scores[name] for name in self._names]
        return rows

    def predict(self, X: Any) -> NDArray[Any]:
        """The likeliest label of each text, [n]."""
        probabilities = self.predict_proba(X)
        found: NDArray[Any] = self.classes_[probabilities.argmax(axis=1)]
        return found

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.string = True
        tags.input_tags.one_d_array = True
        tags.input_tags.two_d_array = False
        return tags

    def __getstate__(self) -> dict[str, Any]:
        state = dict(super().__getstate__())
        if (fitted := state.pop("model_", None)) is not None:
            state[_FILES] = {
                file.relative_to(fitted.model_folder).as_posix(): file.read_bytes()
                for file in sorted(fitted.model_folder.rglob("*"))
                if file.is_file()
            }
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        files = state.get(_FILES)
        super().__setstate__({name: value for name, value in state.items() if name != _FILES})
        if files is not None:
            place = _new_folder()
            for name, content in files.items():
                (place / name).parent.mkdir(parents=True, exist_ok=True)
                (place / name).write_bytes(content)
            self.model_ = _kept(load(place, self.device), place)


def _new_folder() -> Path:
    return Path(tempfile.mkdtemp(prefix="bertsmith-"))


def _kept(model: Model, folder: Path) -> Model:
    """A model whose folder is there as long as it is."""
    weakref.finalize(model, shutil.rmtree, folder, ignore_errors=True)
    return model


def _columns(X: Any) -> dict[str, list[str]]:
    """The texts, and the second texts where X has two columns. ValueError, TypeError for what has none."""
    if isinstance(X, str):
        raise ValueError(f"X is one text alone, {X!r:.40}: give a list of texts")
    cells = np.asarray(X, dtype=object)
    if cells.ndim == 1:
        return {"text": _texts(cells, "X")}
    if cells.ndim == 2 and cells.shape[1] == 2:
        return {"text": _texts(cells[:, 0], "X[:, 0]"), "second": _texts(cells[:, 1], "X[:, 1]")}
    raise ValueError(
        f"X has the shape {cells.shape}: give n texts, or pairs of texts as an array of shape (n, 2)"
    )


def _texts(cells: NDArray[Any], name: str) -> list[str]:
    """The cells as texts; a missing one is empty."""
    found = []
    for row, cell in enumerate(cells):
        if cell is None or (isinstance(cell, float) and np.isnan(cell)):
            cell = ""
        if not isinstance(cell, str):
            raise TypeError(f"{name} has {cell!r:.40} in row {row}, which is not a text")
        found.append(str(cell))
    return found


def _names(classes: NDArray[Any]) -> list[str]:
    """What the model calls the classes: as they are written, where that tells them apart in any file."""
    names = [str(one) for one in classes.tolist()]
    plain = all(name and name == " ".join(name.split()) for name in names)
    return names if plain and len(set(names)) == len(names) else [f"class {i}" for i in range(len(names))]


def _weights(asked: Any, classes: NDArray[Any], names: list[str]) -> Any:
    """`class_weight` as the setting has it, by the model's names. ValueError for a label that is not there."""
    if asked is None or isinstance(asked, str):
        return asked or "none"
    known = dict(zip(classes.tolist(), names, strict=True))
    if unknown := [label for label in asked if label not in known]:
        raise ValueError(f"class_weight names {unknown[0]!r}, which is not a label of y: {list(known)[:10]}")
    return {known[label]: weight for label, weight in asked.items()}
