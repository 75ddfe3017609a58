"""Baselines without an encoder for each task (word counts and linear models), which a model's scores must beat.

Each baseline is fitted on the training rows and scored on dev as a model is. The task's own baseline competes,
too; the best one counts. All take seconds to a few minutes on one core.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
from sklearn.feature_extraction import FeatureHasher
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression, SGDClassifier
from sklearn.metrics import precision_recall_curve
from sklearn.model_selection import GridSearchCV
from sklearn.multiclass import OneVsRestClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MultiLabelBinarizer

from bertsmith import rng
from bertsmith.tasks.fitted_task import create_report
from bertsmith.tasks.registry import Task, get_task
from bertsmith.tasks.report import TaskReport
from bertsmith.tasks.results import Metrics

INVERSE_REGULARIZATION = (0.1, 1, 10, 100)
TOKEN_COUNTS = {"tokens": 0, "tokens_read": 0}  # which the task's scores require
CLAUSE_END = re.compile(r"[。！？；，\n]|[.!?;,:()] ")
CONTEXT_WORDS = 2  # on each side of a word
MAX_DISTANCE = 10  # in words from a predicate; longer ones count as this


class BaselineData(NamedTuple):
    """A task, its training examples, those of dev, and scikit-learn's analyzer ("word" or "char")."""

    report: TaskReport
    training: list[Any]
    dev: list[Any]
    analyzer: str

    def gold(self, examples: list[Any]) -> Sequence[tuple[str, ...]]:
        return self.report.metrics.labels(examples)

    @property
    def training_labels(self) -> list[str]:
        """Return the label of each training example, for tasks with one label per example."""
        return [label for (label,) in self.gold(self.training)]


def best_baseline(
    verb: str,
    train: Path,
    dev: Path,
    settings: Sequence[str],
    metric: str,
    *,
    sample: int | None = None,
    analyzer: str = "word",
) -> tuple[float, str]:
    """Return the best score on dev and its baseline's name.

    sample: the most rows of the training file, drawn as `finetune --sample` does. analyzer: "char" for languages
    that do not separate words by spaces.
    """
    task, task_settings, training, examples = read_task(verb, settings, train, dev)
    if sample is not None and sample < len(training):
        training = [training[i] for i in rng.permutation(0, "sample", len(training))[:sample]]
    metadata = task.part("data")(task_settings, {}).fit_metadata(training, None)
    report = create_report(task, metadata, task_settings)
    metrics = report.metrics
    scores = {metrics.baseline_name: score_of(metrics.baseline(training, examples), metric)}
    for name, baseline in BASELINES.get(verb, {}).items():
        predictions = baseline(BaselineData(report, training, examples, analyzer))
        scores[name] = score_of(metrics.compute(predictions, examples), metric)
        print(verb, train.parent.name, name, scores[name], flush=True)
    best = max(scores, key=lambda name: scores[name])
    return scores[best], best


def read_task(
    verb: str, assignments: Sequence[str], train: Path, dev: Path
) -> tuple[Task, Any, list[Any], list[Any]]:
    """Return a task's declaration and settings (task.* alone), and the examples of both files."""
    task = get_task(verb)
    settings = task.settings_type.of({}, verb)
    settings = settings.changed([a.removeprefix("task.") for a in assignments if a.startswith("task.")])
    data = task.part("data")(settings, {})
    return task, settings, data.read(train), data.read(dev)


def score_of(scores: Metrics, metric: str) -> float:
    """Return a score by its name; F1 of two classes is that of class "1", as in GLUE."""
    is_of_class = metric == "f1" and "classes" in scores.details
    return float(scores.details["classes"]["1"]["f1"] if is_of_class else scores.values[metric])


def text_of(example: Any) -> str:
    """Return an example's text, or both texts of a pair."""
    return " | ".join(filter(None, (example.text, example.second)))


def linear_classifier(vectorizer: TfidfVectorizer) -> GridSearchCV:
    """Return TF-IDF with logistic regression whose regularization is chosen by cross-validation."""
    pipeline = make_pipeline(vectorizer, LogisticRegression(max_iter=1000))
    grid = {"logisticregression__C": list(INVERSE_REGULARIZATION)}
    return GridSearchCV(pipeline, grid, cv=3, scoring="f1_macro")


def classify_by_words(data: BaselineData) -> list[SimpleNamespace]:
    """Predict a text's label by its words (or characters) and pairs of them."""
    vectorizer = TfidfVectorizer(sublinear_tf=True, ngram_range=(1, 2), analyzer=data.analyzer)
    if "separator" in data.report.metadata:
        return classify_multilabel(data, vectorizer)
    model = linear_classifier(vectorizer).fit(list(map(text_of, data.training)), data.training_labels)
    return [
        SimpleNamespace(label=label, **TOKEN_COUNTS) for label in model.predict(list(map(text_of, data.dev)))
    ]


def classify_multilabel(data: BaselineData, vectorizer: TfidfVectorizer) -> list[SimpleNamespace]:
    """Predict labels by a classifier for each, with the threshold that has the best F1 on dev, as ours does."""
    labels = data.report.metadata["labels"]
    train_labels, dev_labels = (
        MultiLabelBinarizer(classes=labels).fit_transform(data.gold(part))
        for part in (data.training, data.dev)
    )
    model = OneVsRestClassifier(LogisticRegression(C=10, class_weight="balanced", max_iter=1000))
    model.fit(vectorizer.fit_transform(list(map(text_of, data.training))), train_labels)
    probabilities = model.predict_proba(vectorizer.transform(list(map(text_of, data.dev))))
    thresholds = []
    for i in range(len(labels)):
        precision, recall, candidates = precision_recall_curve(dev_labels[:, i], probabilities[:, i])
        f1 = 2 * precision * recall / np.maximum(precision + recall, 1e-9)
        thresholds.append(candidates[f1[:-1].argmax()])
    predictions = []
    for row in probabilities:
        predicted = [label for label, is_above in zip(labels, row >= thresholds, strict=True) if is_above]
        scores = dict(zip(labels, map(float, row), strict=True))
        predictions.append(SimpleNamespace(labels=predicted, scores=scores, **TOKEN_COUNTS))
    return predictions


def cosine_of_pair(data: BaselineData) -> list[SimpleNamespace]:
    """Predict the similarity of two texts by the cosine of their TF-IDF vectors."""
    vectorizer = TfidfVectorizer(sublinear_tf=True, analyzer=data.analyzer)
    vectorizer.fit([text for example in data.training for text in (example.text, example.second)])
    first = vectorizer.transform([example.text for example in data.dev])
    second = vectorizer.transform([example.second for example in data.dev])
    return [
        SimpleNamespace(number=float(cosine), **TOKEN_COUNTS) for cosine in first.multiply(second).sum(1).A1
    ]


def tags_by_context(data: BaselineData) -> list[SimpleNamespace]:
    """Predict tags by a linear classifier of `word_features`."""
    hasher = FeatureHasher(2**20, input_type="string", alternate_sign=False)
    model = SGDClassifier(loss="log_loss", alpha=1e-6, average=True, random_state=0)
    tags = [tag for tags in data.gold(data.training) for tag in tags]
    model.fit(hasher.transform(row for example in data.training for row in word_features(example)), tags)
    predicted = model.predict(hasher.transform(row for example in data.dev for row in word_features(example)))
    remaining = iter(predicted)
    return [as_tags([str(next(remaining)) for _ in example.words]) for example in data.dev]


def word_features(example: Any) -> Iterator[list[str]]:
    """Yield the features of each word: its letters, the words around it, and its relation to the predicate."""
    words = ["<s>"] * CONTEXT_WORDS + list(example.words) + ["</s>"] * CONTEXT_WORDS
    for i, word in enumerate(example.words):
        shape = re.sub(r"[^\W\d_]", "x", re.sub(r"[A-Z]", "X", re.sub(r"\d", "0", word)))
        features = [f"={word}", "shape=" + re.sub(r"(.)\1+", r"\1", shape)]
        features += [f"-{n}={word[-n:].lower()}" for n in (1, 2, 3, 4)]
        features += [f"+{n}={word[:n].lower()}" for n in (2, 3)]
        window = [neighbor.lower() for neighbor in words[i : i + 2 * CONTEXT_WORDS + 1]]
        features += [f"{n - CONTEXT_WORDS}={neighbor}" for n, neighbor in enumerate(window)]
        features += [f"{n}&{n + 1}={a} {b}" for n, (a, b) in enumerate(pairwise(window))]
        if example.predicate is not None:
            distance = max(-MAX_DISTANCE, min(MAX_DISTANCE, i - example.predicate))
            verb = example.words[example.predicate].lower()
            features += [f"away={distance}", f"away={distance} {verb}", f"verb={verb} {word.lower()}"]
            features += [f"away={distance} {word.lower()}"]
        yield features


def as_tags(tags: list[str]) -> SimpleNamespace:
    return SimpleNamespace(tags=tags, scores=[1.0] * len(tags))


def most_similar_clause(data: BaselineData) -> list[SimpleNamespace]:
    """Answer with the clause of the passage that is most similar to the question, by words or character pairs."""
    ngrams = (2, 2) if data.analyzer == "char" else (1, 1)
    vectorizer = TfidfVectorizer(sublinear_tf=True, analyzer=data.analyzer, ngram_range=ngrams)
    vectorizer.fit(dict.fromkeys(example.context for example in data.training))
    predictions = []
    for example in data.dev:
        parts = (part.strip() for part in CLAUSE_END.split(example.context))
        clauses = [part for part in parts if len(part) > 1] or [""]
        similarity = vectorizer.transform(clauses) @ vectorizer.transform([example.question]).T
        answer = clauses[int(similarity.toarray().argmax())]
        predictions.append(SimpleNamespace(answer=answer, **TOKEN_COUNTS))
    return predictions


def most_similar_choice(data: BaselineData) -> list[SimpleNamespace]:
    """Predict the choice that, with its question, is most similar to one or two lines of the context."""
    vectorizer = TfidfVectorizer(sublinear_tf=True, analyzer=data.analyzer)
    vectorizer.fit(dict.fromkeys(example.context for example in data.training))
    predictions = []
    for example in data.dev:
        lines = example.context.splitlines() or [""]
        passages = vectorizer.transform([*lines, *map(" ".join, pairwise(lines))])
        choices = vectorizer.transform([f"{example.question} {choice}" for choice in example.choices])
        similarity = (passages @ choices.T).max(0).toarray()
        predictions.append(SimpleNamespace(choice=int(similarity.argmax()), **TOKEN_COUNTS))
    return predictions


def relation_by_words(data: BaselineData) -> list[SimpleNamespace]:
    """Predict the relation by a linear classifier of `relation_features`."""
    vectorizer = TfidfVectorizer(sublinear_tf=True, analyzer=relation_features)
    model = linear_classifier(vectorizer).fit(data.training, data.training_labels)
    return [SimpleNamespace(label=label, **TOKEN_COUNTS) for label in model.predict(data.dev)]


def relation_features(example: Any) -> list[str]:
    """Return the entities, the words between and around them, and pairs of the words between."""
    spans = sorted((example.head, example.tail))
    text: str = example.text.lower()

    def words(start: int, stop: int) -> list[str]:
        return re.findall(r"\w+|[^\w\s]", text[start:stop])

    order = "12" if example.head <= example.tail else "21"
    between = words(spans[0][1], spans[1][0])
    features = [f"between {word}" for word in between]
    features += [f"between {a} {b}" for a, b in pairwise(between)]
    features += [f"order {order}", f"all {order} {' '.join(between)}"]
    for mark, span in zip(order, spans, strict=True):
        features += [f"entity {mark} {word}" for word in words(*span)]
    features += [f"before {word}" for word in words(0, spans[0][0])[-CONTEXT_WORDS:]]
    features += [f"behind {word}" for word in words(spans[1][1], len(text))[:CONTEXT_WORDS]]
    return features


BASELINES: dict[
    str, dict[str, Callable[[BaselineData], list[SimpleNamespace]]]
] = {  # the names are in the records
    "classify": {"TF-IDF, linear": classify_by_words},
    "regress": {"TF-IDF, cosine": cosine_of_pair},
    "tag": {"neighbours, linear": tags_by_context},
    "answer": {"the clause most like the question": most_similar_clause},
    "choose": {"the choice most like a line": most_similar_choice},
    "relate": {"words between, linear": relation_by_words},
}
