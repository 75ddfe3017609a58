"""The quickstart's task: classify sentences from held-out documents by the library that they document."""

from __future__ import annotations

import csv
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from io import StringIO
from itertools import islice
from operator import itemgetter
from pathlib import Path
from typing import Any

from bertsmith import rng
from bertsmith.corpus.sentence_splitter import split_sentences
from bertsmith.demo.documentation import is_new, letters_of, library_of
from bertsmith.errors import InputError, command
from bertsmith.io.documents import Document
from bertsmith.runs.run_folder import write_whole

_MAX_CLASSES, _MIN_CLASSES = 5, 3
_PARTS = ("train", "validation", "test")
# Sentences per class at most; pre-training helps most with few training sentences.
_PART_SIZES = (16, 20, 200)
_MIN_TEST_SIZE = 30  # sentences per class
_HELD_OUT = 0.15  # fraction of the documents of each class
_MIN_DOCUMENTS = 6  # held out per class
_PART_ENDS = (0.3, 0.5)  # fractions of a class's held-out documents at which train and validation end
_SENTENCE_WORDS = range(8, 41)  # words of a sentence


@dataclass(frozen=True)
class QuickstartTask:
    """A task, and the remaining text for pre-training.

    Attributes:
        labels: The labels, sorted.
        parts: The (sentence, label) pairs of "train", "validation", and "test", in an order drawn by the seed.
        held_out_documents: The documents of the sentences.
        pretraining_documents: All other documents.
    """

    labels: list[str]
    parts: dict[str, list[tuple[str, str]]]
    held_out_documents: list[Document]
    pretraining_documents: list[Document]


def make_task(documents: Sequence[Document], seed: int) -> QuickstartTask:
    """Hold out documents and draw labeled sentences from them.

    The classes are the five largest libraries with enough text. Training, validation, and test sentences come from
    different documents. Sentences that name a class or occur in the pre-training text are omitted.

    Args:
        documents: The documentation of the installed libraries.
        seed: The seed of the held-out documents and of the sentences.

    Raises:
        InputError: There is not enough text.
    """
    documents_of: dict[str, list[Document]] = defaultdict(list)
    for document in documents:
        documents_of[library_of(document)].append(document)
    sizes = {label: sum(len(d.text) for d in documents_of[label]) for label in documents_of}
    largest = sorted(sizes, key=lambda label: (-sizes[label], label))
    suitable = (label for label in largest if _has_enough_text(documents_of[label]))
    labels = sorted(islice(suitable, _MAX_CLASSES))
    if len(labels) >= _MIN_CLASSES:
        return _draw_task({label: documents_of[label] for label in labels}, documents, seed)
    raise InputError(
        "too_little_documentation",
        "this Python installation has too little documentation for the quickstart's task",
        hint=f"use your own text: {command('tokenizer train')}, {command('data prepare')}, {command('pretrain')}",
    )


def _has_enough_text(documents: Sequence[Document]) -> bool:
    """Return True if the held-out documents of a class are likely to have enough sentences."""
    num_sentences = sum(len(sentences_of(d)) for d in documents)
    min_sentences = _PART_SIZES[0] + _PART_SIZES[1] + _MIN_TEST_SIZE
    has_documents = len(documents) * _HELD_OUT >= _MIN_DOCUMENTS
    # Some sentences occur elsewhere or name a class.
    return has_documents and num_sentences * _HELD_OUT >= 2 * min_sentences


def sentences_of(document: Document) -> list[str]:
    """Return the complete sentences of 8 to 40 words in a document."""
    sentences = split_sentences(document.text)
    return [
        s for s in sentences if s[0].isupper() and s.endswith(".") and s.count(" ") + 1 in _SENTENCE_WORDS
    ]


def _draw_task(
    candidates: dict[str, list[Document]], documents: Sequence[Document], seed: int
) -> QuickstartTask:
    """Draw the held-out documents and the sentences of each label from its candidates."""
    held_out: dict[str, list[Document]] = {}
    for label, group in candidates.items():
        order = rng.permutation(seed, f"quickstart {label}", len(group))
        held_out[label] = [group[i] for i in order[: round(_HELD_OUT * len(group))]]
    held_out_documents = [d for group in held_out.values() for d in group]
    locations = {d.location for d in held_out_documents}
    pretraining_documents = [d for d in documents if d.location not in locations]
    texts = (d.text for d in pretraining_documents)
    used_letters = {letters_of(sentence) for text in texts for sentence in split_sentences(text)}
    class_names = _class_name_pattern(candidates)
    selected: dict[str, list[list[str]]] = {}  # of each part by label
    for label, group in held_out.items():
        train_end, validation_end = (round(end * len(group)) for end in _PART_ENDS)
        selected[label] = [
            _select_sentences(part, used_letters, class_names, seed)
            for part in (group[:train_end], group[train_end:validation_end], group[validation_end:])
        ]
    parts = {}
    for i, (part, max_size) in enumerate(zip(_PARTS, _PART_SIZES, strict=True)):
        # All classes have the same size, so that the score does not reward predicting frequent ones.
        size = min([max_size, *(len(by_part[i]) for by_part in selected.values())])
        rows = [(sentence, label) for label, by_part in selected.items() for sentence in by_part[i][:size]]
        parts[part] = [rows[j] for j in rng.permutation(seed, f"quickstart {part}", len(rows))]
    return QuickstartTask(list(candidates), parts, held_out_documents, pretraining_documents)


def _class_name_pattern(labels: Iterable[str]) -> re.Pattern[str]:
    """Return a pattern of the classes' names and their common variants."""
    variants = {"scikit-learn": ["sklearn", "scikit"], "torch": ["pytorch"], "python": ["cpython"]}
    words = [re.escape(word) for label in labels for word in [label, *variants.get(label, [])]]
    return re.compile("|".join(words), re.IGNORECASE)


def _select_sentences(
    documents: Sequence[Document], used_letters: set[str], class_name_pattern: re.Pattern[str], seed: int
) -> list[str]:
    """Select one sentence at a time from each document in turn, so that no document dominates.

    Sentences whose letters are in `used_letters` are omitted; the letters of the selected ones are added to it.
    """
    ranked: list[tuple[int, int, str]] = []
    for i, document in enumerate(documents):
        sentences = sentences_of(document)
        for rank, j in enumerate(rng.permutation(seed, f"quickstart {document.location}", len(sentences))):
            ranked.append((rank, i, sentences[j]))
    return [
        sentence
        for _, _, sentence in sorted(ranked)
        if not class_name_pattern.search(sentence) and is_new(sentence, used_letters)
    ]


def write_task(task: QuickstartTask, folder: Path) -> dict[str, Path]:
    """Write train.csv, validation.csv, and test.csv with the columns text and label; return their paths."""
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
    most_frequent = Counter(label for _, label in task.parts["train"]).most_common(1)[0][0]
    labels = [label for _, label in task.parts["test"]]
    return _classification_scores(labels, [most_frequent] * len(labels))


def score_linear_baseline(task: QuickstartTask) -> dict[str, Any]:
    """Return the test scores of TF-IDF and logistic regression, with features and regularization tuned.

    The model uses the same training and validation sentences as the BERTs.
    """
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline

    (train, train_labels), (validation, validation_labels), (test, test_labels) = (
        zip(*task.parts[part], strict=True) for part in _PARTS
    )
    candidates: list[tuple[float, str, Any]] = []
    features: dict[str, dict[str, Any]] = {
        "words": {"analyzer": "word", "ngram_range": (1, 1)},
        "words and pairs": {"analyzer": "word", "ngram_range": (1, 2)},
        "words but stop words": {"analyzer": "word", "stop_words": "english"},
        "3 to 5 letters": {"analyzer": "char_wb", "ngram_range": (3, 5)},
    }
    for name, options in features.items():
        for strength in (0.1, 1.0, 10.0, 100.0):
            classifier = LogisticRegression(C=strength, max_iter=1000)
            model = make_pipeline(TfidfVectorizer(sublinear_tf=True, **options), classifier)
            score = model.fit(train, train_labels).score(validation, validation_labels)
            candidates.append((score, f"{name}, C = {strength:g}", model))
    _, name, model = max(candidates, key=itemgetter(0))
    return {**_classification_scores(test_labels, model.predict(test)), "chosen": name}


def _classification_scores(labels: Sequence[str], predictions: Sequence[str]) -> dict[str, float]:
    from sklearn.metrics import accuracy_score, f1_score

    return {
        "accuracy": float(accuracy_score(labels, predictions)),
        "macro_f1": float(f1_score(labels, predictions, average="macro", zero_division=0)),
    }
