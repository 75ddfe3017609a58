"""The quickstart's task: classify sentences by the library of their documentation, on held-out documents."""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

from bertsmith import rng
from bertsmith.corpus.sentence_splitter import split_sentences
from bertsmith.errors import InputError, command
from bertsmith.io.documentation import STANDARD, library_of
from bertsmith.io.files import Document
from bertsmith.runs.run_folder import write_whole

_NUM_CLASSES = 5
_MIN_CLASSES = 3
_PARTS = ("train", "dev", "test")
_PART_SIZES = (16, 20, 200)  # sentences per class: pre-training helps most with few labels
_MIN_TEST_SIZE = 30
_LIBRARY_HELD_OUT, _FAMILY_HELD_OUT = 0.15, 0.4  # fraction of the documents of each class
_MIN_DOCUMENTS = 6  # held out per class
_PART_ENDS = (0.3, 0.5)  # fractions of the held-out documents at which train and dev end
_SENTENCE_WORDS = range(8, 41)


@dataclass(frozen=True)
class QuickstartTask:
    """A task, and the remaining text for pre-training.

    Attributes:
        label_noun: A plural noun for the labels.
        labels: The classes.
        parts: "train", "dev", and "test", each a list of (sentence, label) in an order drawn by the seed.
        held_out: The documents of the sentences.
        rest: All other documents.
        unseen: All sentences of `held_out` that are not in `rest`, sorted.
    """

    label_noun: str
    labels: list[str]
    parts: dict[str, list[tuple[str, str]]]
    held_out: list[Document]
    rest: list[Document]
    unseen: list[str]


def make_task(documents: Sequence[Document], seed: int) -> QuickstartTask:
    """Hold out documents and draw labeled sentences from them.

    The classes are the five largest libraries with enough text; if fewer than three have enough, the largest
    module families of the standard library. Train, dev, and test sentences come from different documents.
    Sentences that name a class or occur in the pre-training text are omitted.

    Raises:
        InputError: There is not enough text.
    """
    for label_noun, label_of, held_out in (
        ("libraries", library_of, _LIBRARY_HELD_OUT),
        ("families of standard modules", _module_family, _FAMILY_HELD_OUT),
    ):
        sizes: Counter[str] = Counter()
        for document in documents:
            if name := label_of(document):
                sizes[name] += len(document.text)
        largest = sorted(sizes, key=lambda name: (-sizes[name], name))[: 3 * _NUM_CLASSES]
        labels: list[str] = []
        for name in largest:
            if len(labels) < _NUM_CLASSES and _has_enough_text(
                [d for d in documents if label_of(d) == name], held_out
            ):
                labels.append(name)
        if len(labels) >= _MIN_CLASSES:
            document_labels = {d.place: label_of(d) for d in documents}
            return _draw_task(label_noun, sorted(labels), document_labels, documents, held_out, seed)
    raise InputError(
        "too_little_documentation",
        "this Python installation has too little documentation for the quickstart's task",
        hint=f"use your own text: {command('tokenizer train')}, {command('data prepare')}, {command('pretrain')}",
    )


def _module_family(document: Document) -> str:
    """Return the top-level package of a standard module, and "reference" for the language reference."""
    library, _, path = document.place.partition(":")
    if library != STANDARD:
        return ""
    return "reference" if path.startswith("pydoc_data/") else path.split("/")[0].removesuffix(".py")


def _has_enough_text(documents: Sequence[Document], held_out: float) -> bool:
    """Return True if the documents are likely to have enough sentences for a class."""
    num_sentences = sum(len(sentences_of(d)) for d in documents)
    min_sentences = _PART_SIZES[0] + _PART_SIZES[1] + _MIN_TEST_SIZE
    return len(documents) * held_out >= _MIN_DOCUMENTS and num_sentences * held_out >= 2 * min_sentences


def sentences_of(document: Document) -> list[str]:
    """Return the complete sentences of 8 to 40 words in a document."""
    return [
        s
        for s in split_sentences(document.text)
        if s[0].isupper() and s.endswith(".") and s.count(" ") + 1 in _SENTENCE_WORDS
    ]


def _draw_task(
    label_noun: str,
    labels: list[str],
    document_labels: dict[str, str],
    documents: Sequence[Document],
    fraction: float,
    seed: int,
) -> QuickstartTask:
    held_out: dict[str, list[Document]] = {}
    for label in labels:
        candidates = [d for d in documents if document_labels[d.place] == label]
        order = rng.permutation(seed, f"quickstart {label}", len(candidates))
        held_out[label] = [candidates[i] for i in order[: round(fraction * len(candidates))]]
    held_out_documents = [d for label in labels for d in held_out[label]]
    locations = {d.place for d in held_out_documents}
    rest = [d for d in documents if d.place not in locations]
    used = {_letters(sentence) for d in rest for sentence in split_sentences(d.text)}
    sentences = {sentence for d in held_out_documents for sentence in sentences_of(d)}
    unseen = sorted(sentence for sentence in sentences if _letters(sentence) not in used)
    class_names = _class_names(labels)
    pools: dict[str, list[list[str]]] = {}
    for label in labels:
        class_documents = held_out[label]
        first, second = (round(end * len(class_documents)) for end in _PART_ENDS)
        parts = (class_documents[:first], class_documents[first:second], class_documents[second:])
        pools[label] = [_select_sentences(part, used, class_names, seed) for part in parts]
    # All classes have the same size, so that the score does not reward predicting frequent ones.
    sizes = [
        min([max_size, *(len(pools[label][i]) for label in labels)]) for i, max_size in enumerate(_PART_SIZES)
    ]
    parts_rows = {}
    for i, part in enumerate(_PARTS):
        rows = [(sentence, label) for label in labels for sentence in pools[label][i][: sizes[i]]]
        parts_rows[part] = [rows[j] for j in rng.permutation(seed, f"quickstart {part}", len(rows))]
    return QuickstartTask(label_noun, labels, parts_rows, held_out_documents, rest, unseen)


def _class_names(labels: Iterable[str]) -> re.Pattern[str]:
    """Return a pattern of the classes' names and their common variants."""
    variants = {"scikit-learn": ["sklearn", "scikit"], "torch": ["pytorch"], "python": ["cpython"]}
    words = [re.escape(word) for label in labels for word in [label, *variants.get(label, [])]]
    return re.compile("|".join(words), re.IGNORECASE)


def _select_sentences(
    documents: Sequence[Document], used: set[str], class_names: re.Pattern[str], seed: int
) -> list[str]:
    """Select sentences in turn from each document, so that no document dominates, and add them to `used`."""
    ranked: list[tuple[int, int, str]] = []
    for i, document in enumerate(documents):
        sentences = sentences_of(document)
        for rank, j in enumerate(rng.permutation(seed, f"quickstart {document.place}", len(sentences))):
            ranked.append((rank, i, sentences[j]))
    selected = []
    for _, _, sentence in sorted(ranked):
        letters = _letters(sentence)
        if letters not in used and not class_names.search(sentence):
            used.add(letters)
            selected.append(sentence)
    return selected


def _letters(text: str) -> str:
    return "".join(filter(str.isalpha, text)).lower()


def write_task(task: QuickstartTask, folder: Path) -> dict[str, Path]:
    """Write train.csv, dev.csv, and test.csv with the columns text and label; return their paths."""
    files = {}
    for part, rows in task.parts.items():
        text = StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(("text", "label"))
        writer.writerows(rows)
        files[part] = folder / f"{part}.csv"
        write_whole(files[part], text.getvalue())
    return files


def score_majority_baseline(task: QuickstartTask) -> dict[str, Any]:
    """Return the test scores of always predicting the most frequent training label."""
    from sklearn.metrics import accuracy_score, f1_score

    most_frequent = Counter(label for _, label in task.parts["train"]).most_common(1)[0][0]
    labels = [label for _, label in task.parts["test"]]
    predictions = [most_frequent] * len(labels)
    return {
        "accuracy": float(accuracy_score(labels, predictions)),
        "macro_f1": float(f1_score(labels, predictions, average="macro", zero_division=0)),
    }


def score_linear_baseline(task: QuickstartTask) -> dict[str, Any]:
    """Return the test scores of TF-IDF and logistic regression, with features and regularization tuned on dev.

    The model uses the same training and dev sentences as the BERTs.
    """
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import f1_score
    from sklearn.pipeline import make_pipeline

    (train, train_labels), (dev, dev_labels), (test, test_labels) = (
        zip(*task.parts[part], strict=True) for part in _PARTS
    )
    best, best_score, best_name = None, -1.0, ""
    features: dict[str, dict[str, Any]] = {
        "words": {"analyzer": "word", "ngram_range": (1, 1)},
        "words and pairs": {"analyzer": "word", "ngram_range": (1, 2)},
        "words but stop words": {"analyzer": "word", "stop_words": "english"},
        "3 to 5 letters": {"analyzer": "char_wb", "ngram_range": (3, 5)},
    }
    for name, options in features.items():
        for strength in (0.1, 1.0, 10.0, 100.0):
            model = make_pipeline(
                TfidfVectorizer(sublinear_tf=True, **options), LogisticRegression(C=strength, max_iter=1000)
            ).fit(train, train_labels)
            if (score := model.score(dev, dev_labels)) > best_score:
                best, best_score, best_name = model, score, f"{name}, C = {strength:g}"
    assert best is not None
    return {
        "accuracy": float(best.score(test, test_labels)),
        "macro_f1": float(f1_score(test_labels, best.predict(test), average="macro", zero_division=0)),
        "chosen": best_name,
    }
