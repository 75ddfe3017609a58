"""The best cheap method for a task: counted words, no encoder; what a figure of a model is to be seen beside.

Of each task the methods below are fitted on the training rows and scored on dev as a model's answers are, beside
the task's own baseline; the best counts, by its name. All take seconds to a few minutes of one core.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bertsmith import rng
from bertsmith.models.config import ModelConfig
from bertsmith.tasks.scores import Scores
from bertsmith.tasks.task import Prediction, Task, task_type

Method = Callable[[Task, Sequence[Any], Sequence[Any], str], list[Prediction]]
"""Answers to dev: of the task, its training examples, those of dev, and what a text is made of (word, char)."""

STRENGTHS = (0.1, 1, 10, 100)
NOT_READ = {"tokens": 0, "tokens_read": 0}
CLAUSE_END = re.compile(r"[。！？；，\n]|[.!?;,:()] ")
NEAR = 2  # words at each side of one that is to be tagged
FAR = 10  # words from a predicate that are told apart


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
    """The best figure on dev, and its method's name. sample: rows of the training file that are drawn at most, as
    `finetune --sample` draws them; analyzer: "char" where words have no blanks between them."""
    chosen = task_type(verb).settings_type.of({}, verb)
    chosen = chosen.changed([one.removeprefix("task.") for one in settings if one.startswith("task.")])
    kind = task_type(verb).variant(chosen)
    training, asked = kind.read(train, chosen), kind.read(dev, chosen)
    if sample is not None and sample < len(training):
        training = [training[i] for i in rng.permutation(0, "sample", len(training))[:sample]]
    task = kind(ModelConfig(), torch.Generator(), kind.learnt(training, chosen, None), chosen)
    found = {task.baseline_name: figure_of(task.baseline(training, asked), metric)}
    for name, method in METHODS.get(verb, {}).items():
        found[name] = figure_of(task.score(method(task, training, asked, analyzer), asked), metric)
        print(verb, train.parent.name, name, found[name], flush=True)
    best = max(found, key=lambda name: found[name])
    return found[best], best


def figure_of(scores: Scores, figure: str) -> float:
    """A figure by its name; the F1 of two classes is of the class "1", as GLUE has it."""
    of_one = figure == "f1" and "classes" in scores.details
    return float(scores.details["classes"]["1"]["f1"] if of_one else scores.numbers[figure])


def linear(words: Any) -> Any:
    """TF-IDF and a linear classifier, its strength by cross-validation."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import GridSearchCV
    from sklearn.pipeline import make_pipeline

    model = make_pipeline(words, LogisticRegression(max_iter=1000))
    return GridSearchCV(model, {"logisticregression__C": list(STRENGTHS)}, cv=3, scoring="f1_macro")


def by_words(task: Task, training: Sequence[Any], asked: Sequence[Any], unit: str) -> list[Prediction]:
    """The label of a text by its words or characters, and pairs of them."""
    from sklearn.feature_extraction.text import TfidfVectorizer

    words = TfidfVectorizer(sublinear_tf=True, ngram_range=(1, 2), analyzer=unit)
    if "separator" in task.facts:
        return by_words_each(task, training, asked, words)
    model = linear(words).fit(list(map(text_of, training)), [label for (label,) in gold_of(task, training)])
    return [{"label": label, **NOT_READ} for label in model.predict(list(map(text_of, asked)))]


def by_words_each(task: Task, training: Sequence[Any], asked: Sequence[Any], words: Any) -> list[Prediction]:
    """Any number of labels: a classifier each, its threshold chosen on dev, as ours is."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import precision_recall_curve
    from sklearn.multiclass import OneVsRestClassifier
    from sklearn.preprocessing import MultiLabelBinarizer

    labels = task.labels or []
    truth, wanted = (
        MultiLabelBinarizer(classes=labels).fit_transform(gold_of(task, some)) for some in (training, asked)
    )
    model = OneVsRestClassifier(LogisticRegression(C=10, class_weight="balanced", max_iter=1000))
    model.fit(words.fit_transform(list(map(text_of, training))), truth)
    shares = model.predict_proba(words.transform(list(map(text_of, asked))))
    thresholds = []
    for i in range(len(labels)):
        precision, recall, at = precision_recall_curve(wanted[:, i], shares[:, i])
        both = 2 * precision * recall / np.maximum(precision + recall, 1e-9)
        thresholds.append(at[both[:-1].argmax()])
    found = []
    for row in shares:
        above = [label for label, share, least in zip(labels, row, thresholds, strict=True) if share >= least]
        found.append({"labels": above, "scores": dict(zip(labels, map(float, row), strict=True)), **NOT_READ})
    return found


def by_cosine(task: Task, training: Sequence[Any], asked: Sequence[Any], unit: str) -> list[Prediction]:
    """How alike two texts are: the cosine of their TF-IDF vectors."""
    from sklearn.feature_extraction.text import TfidfVectorizer

    model = TfidfVectorizer(sublinear_tf=True, analyzer=unit)
    model.fit([text for one in training for text in (one.text, one.second)])
    first, second = (
        model.transform(texts) for texts in zip(*((o.text, o.second) for o in asked), strict=True)
    )
    return [{"number": float(one), **NOT_READ} for one in first.multiply(second).sum(1).A1]


def usual_tags(task: Task, training: Sequence[Any], asked: Sequence[Any], unit: str) -> list[Prediction]:
    """Each word's most frequent tag; of a word that was not seen, that of the words seen once."""
    seen: dict[str, Counter[str]] = defaultdict(Counter)
    for example, tags in zip(training, gold_of(task, training), strict=True):
        for word, tag in zip(example.words, tags, strict=True):
            seen[word][tag] += 1
    rare = Counter(tag for times in seen.values() if times.total() == 1 for tag in times)
    unseen = rare.most_common(1)[0][0]
    usual = {word: times.most_common(1)[0][0] for word, times in seen.items()}
    return [tagged([usual.get(word, unseen) for word in example.words]) for example in asked]


def by_neighbours(task: Task, training: Sequence[Any], asked: Sequence[Any], unit: str) -> list[Prediction]:
    """Each word's tag by its letters, its neighbours and the predicate, if there is one: a linear classifier."""
    from sklearn.feature_extraction import FeatureHasher
    from sklearn.linear_model import SGDClassifier

    hashed = FeatureHasher(2**20, input_type="string", alternate_sign=False)
    model = SGDClassifier(loss="log_loss", alpha=1e-6, average=True, random_state=0)
    tags = [tag for tags in gold_of(task, training) for tag in tags]
    model.fit(hashed.transform(look for example in training for look in looks(example)), tags)
    found = iter(model.predict(hashed.transform(look for example in asked for look in looks(example))))
    return [tagged([str(next(found)) for _ in example.words]) for example in asked]


def looks(example: Any) -> Iterator[list[str]]:
    """What is to be seen of each word of a sentence."""
    words = ["<s>"] * NEAR + list(example.words) + ["</s>"] * NEAR
    for at, word in enumerate(example.words):
        shape = re.sub(r"[^\W\d_]", "x", re.sub(r"[A-Z]", "X", re.sub(r"\d", "0", word)))
        found = [f"={word}", "shape=" + re.sub(r"(.)\1+", r"\1", shape)]
        found += [f"-{n}={word[-n:].lower()}" for n in (1, 2, 3, 4)]
        found += [f"+{n}={word[:n].lower()}" for n in (2, 3)]
        near = [one.lower() for one in words[at : at + 2 * NEAR + 1]]
        found += [f"{n - NEAR}={one}" for n, one in enumerate(near)]
        found += [f"{n}&{n + 1}={a} {b}" for n, (a, b) in enumerate(pairwise(near))]
        if example.predicate is not None:
            away = max(-FAR, min(FAR, at - example.predicate))
            verb = example.words[example.predicate].lower()
            found += [f"away={away}", f"away={away} {verb}", f"verb={verb} {word.lower()}"]
            found += [f"away={away} {word.lower()}"]
        yield found


def tagged(tags: list[str]) -> Prediction:
    """As `tag` predicts."""
    return {"tags": tags, "scores": [1.0] * len(tags)}


def likeliest_clauses(
    task: Task, training: Sequence[Any], asked: Sequence[Any], unit: str
) -> list[Prediction]:
    """The clause of the passage with the most of the question's words (pairs of characters), rare ones for more,
    for its length."""
    from sklearn.feature_extraction.text import TfidfVectorizer

    parts: dict[str, Any] = {"ngram_range": (2, 2)} if unit == "char" else {}
    model = TfidfVectorizer(sublinear_tf=True, analyzer=unit, **parts)
    model.fit(dict.fromkeys(example.context for example in training))
    found = []
    for example in asked:
        parted = (one.strip() for one in CLAUSE_END.split(example.context))
        clauses = [one for one in parted if len(one) > 1] or [""]
        alike = model.transform(clauses) @ model.transform([example.question]).T
        found.append({"answer": clauses[int(alike.toarray().argmax())], **NOT_READ})
    return found


def likeliest_choices(
    task: Task, training: Sequence[Any], asked: Sequence[Any], unit: str
) -> list[Prediction]:
    """The choice that, with its question, is most like one of the context's lines or two in a row."""
    from sklearn.feature_extraction.text import TfidfVectorizer

    model = TfidfVectorizer(sublinear_tf=True, analyzer=unit)
    model.fit(dict.fromkeys(example.context for example in training))
    found = []
    for example in asked:
        lines = example.context.splitlines() or [""]
        places = model.transform([*lines, *(" ".join(two) for two in pairwise(lines))])
        choices = model.transform([f"{example.question} {choice}" for choice in example.choices])
        found.append({"choice": int((places @ choices.T).max(0).toarray().argmax()), **NOT_READ})
    return found


def by_words_between(
    task: Task, training: Sequence[Any], asked: Sequence[Any], unit: str
) -> list[Prediction]:
    """The relation by the entities, the words between them and at their sides, and pairs of these."""
    from sklearn.feature_extraction.text import TfidfVectorizer

    words = TfidfVectorizer(sublinear_tf=True, analyzer=around)
    model = linear(words).fit(list(training), [label for (label,) in gold_of(task, training)])
    return [{"label": label, **NOT_READ} for label in model.predict(list(asked))]


def around(example: Any) -> list[str]:
    """What is to be seen of a relation: entities, words between and beside them, and pairs of these."""
    spans = sorted((example.head, example.tail))
    text: str = example.text.lower()

    def words(begin: int, end: int) -> list[str]:
        return re.findall(r"\w+|[^\w\s]", text[begin:end])

    order = "12" if example.head <= example.tail else "21"
    between = words(spans[0][1], spans[1][0])
    found = [f"between {word}" for word in between] + [f"between {a} {b}" for a, b in pairwise(between)]
    found += [f"order {order}", f"all {order} {' '.join(between)}"]
    for mark, span in zip(order, spans, strict=True):
        found += [f"entity {mark} {word}" for word in words(*span)]
    found += [f"before {word}" for word in words(0, spans[0][0])[-NEAR:]]
    found += [f"behind {word}" for word in words(spans[1][1], len(text))[:NEAR]]
    return found


def text_of(example: Any) -> str:
    """An example's text, or both of a pair."""
    return " | ".join(filter(None, (example.text, example.second)))


def gold_of(task: Task, examples: Iterable[Any]) -> Sequence[tuple[str, ...]]:
    """What people said of each example."""
    return task.gold(list(examples), task.facts)


METHODS: dict[str, dict[str, Method]] = {
    "classify": {"TF-IDF, linear": by_words},
    "regress": {"TF-IDF, cosine": by_cosine},
    "tag": {"each word's usual tag": usual_tags, "neighbours, linear": by_neighbours},
    "answer": {"the clause most like the question": likeliest_clauses},
    "choose": {"the choice most like a line": likeliest_choices},
    "relate": {"words between, linear": by_words_between},
}
