"""The quickstart's task: which library does a sentence come from? Its labels come from text held out for it."""

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
from bertsmith.corpus.sentence_splitter import split
from bertsmith.errors import InputError
from bertsmith.io.documentation import STANDARD, library_of
from bertsmith.io.files import Document
from bertsmith.runs.run_folder import write_whole

CLASSES = 5
TRAIN, DEV, TEST = 16, 20, 200  # sentences a class: few labels are what pre-training is for
_FEWEST_TEST = 30
_HELD_OUT, _HELD_OUT_OF_FAMILIES = 0.15, 0.4  # of the documents of each class
_FEWEST_DOCUMENTS = 6  # held out of a class
_PARTS = (0.3, 0.5)  # of those, where the train documents end, and where the dev documents end
_WORDS = range(8, 41)


@dataclass(frozen=True)
class QuickstartTask:
    """A task and the text that is left for pre-training.

    kind: what the labels are, for people. parts: "train", "dev", "test", each a list of (sentence, label), in
    an order drawn by the seed. held_out: the documents that the sentences come from; rest: all others. unseen:
    every sentence of the former that is not in the latter, sorted.
    """

    kind: str
    labels: list[str]
    parts: dict[str, list[tuple[str, str]]]
    held_out: list[Document]
    rest: list[Document]
    unseen: list[str]


def make_task(documents: Sequence[Document], seed: int) -> QuickstartTask:
    """Hold documents out and draw labelled sentences from them.

    The classes are the five largest libraries that have enough text (measured in words); where fewer than
    three have, the largest module families of the standard library. Train, dev and test sentences come from
    different documents; a sentence that names a class, or stands in the pre-training text, is left out.
    InputError where there is too little text even for that.
    """
    for kind, name_of, share in (
        ("libraries", library_of, _HELD_OUT),
        ("families of standard modules", _family, _HELD_OUT_OF_FAMILIES),
    ):
        sizes: Counter[str] = Counter()
        for document in documents:
            if name := name_of(document):
                sizes[name] += len(document.text)
        largest = sorted(sizes, key=lambda name: (-sizes[name], name))[: 3 * CLASSES]
        labels: list[str] = []
        for name in largest:  # in order of size, as long as classes are wanted
            if len(labels) < CLASSES and _enough([d for d in documents if name_of(d) == name], share):
                labels.append(name)
        if len(labels) >= 3:
            names = {d.place: name_of(d) for d in documents}
            return _drawn(kind, sorted(labels), names, documents, share, seed)
    raise InputError(
        "this Python installation carries too little documentation for the quickstart's task",
        "continue with text of your own: bertsmith tokenizer train, data prepare, pretrain",
    )


def _family(document: Document) -> str:
    """The top-level package of a standard module; the language reference goes as "reference"."""
    library, _, path = document.place.partition(":")
    if library != STANDARD:
        return ""
    return "reference" if path.startswith("pydoc_data/") else path.split("/")[0].removesuffix(".py")


def _enough(documents: Sequence[Document], share: float) -> bool:
    """Whether a class can be made of these: a rough look, before anything is drawn."""
    sentences = sum(len(sentences_of(d)) for d in documents)
    wanted = TRAIN + DEV + _FEWEST_TEST
    return len(documents) * share >= _FEWEST_DOCUMENTS and sentences * share >= 2 * wanted


def sentences_of(document: Document) -> list[str]:
    """The sentences of a document that can be asked about: whole ones of 8 to 40 words."""
    return [
        s for s in split(document.text) if s[0].isupper() and s.endswith(".") and s.count(" ") + 1 in _WORDS
    ]


def _drawn(
    kind: str,
    labels: list[str],
    name_of: dict[str, str],
    documents: Sequence[Document],
    share: float,
    seed: int,
) -> QuickstartTask:
    held: dict[str, list[Document]] = {}
    for label in labels:
        own = [d for d in documents if name_of[d.place] == label]
        order = rng.permutation(seed, f"quickstart {label}", len(own))
        held[label] = [own[i] for i in order[: round(share * len(own))]]
    places = {d.place for some in held.values() for d in some}
    rest = [d for d in documents if d.place not in places]
    used = {_letters(sentence) for d in rest for sentence in split(d.text)}
    found_out = {sentence for some in held.values() for d in some for sentence in sentences_of(d)}
    unseen = sorted(sentence for sentence in found_out if _letters(sentence) not in used)
    naming = _names(labels)
    pools: dict[str, list[list[str]]] = {}
    for label in labels:
        own, (first, second) = held[label], (round(part * len(held[label])) for part in _PARTS)
        found = [_spread(some, used, naming, seed) for some in (own[:first], own[first:second], own[second:])]
        pools[label] = found
    # As many of each class, so that no part of the score is about how frequent a class is.
    sizes = [
        min([wanted, *(len(pools[label][i]) for label in labels)])
        for i, wanted in enumerate((TRAIN, DEV, TEST))
    ]
    parts = {}
    for i, part in enumerate(("train", "dev", "test")):
        rows = [(sentence, label) for label in labels for sentence in pools[label][i][: sizes[i]]]
        parts[part] = [rows[j] for j in rng.permutation(seed, f"quickstart {part}", len(rows))]
    return QuickstartTask(kind, labels, parts, [d for label in labels for d in held[label]], rest, unseen)


def _names(labels: Iterable[str]) -> re.Pattern[str]:
    """What gives a class away: its name, and the names that people call it by."""
    called = {"scikit-learn": ["sklearn", "scikit"], "torch": ["pytorch"], "python": ["cpython"]}
    words = [re.escape(word) for label in labels for word in [label, *called.get(label, [])]]
    return re.compile("|".join(words), re.IGNORECASE)


def _spread(documents: Sequence[Document], used: set[str], naming: re.Pattern[str], seed: int) -> list[str]:
    """Sentences of some documents, one of each in turn, so that no document outweighs the others.

    What is taken is added to `used`.
    """
    ranked: list[tuple[int, int, str]] = []
    for i, document in enumerate(documents):
        sentences = sentences_of(document)
        for rank, j in enumerate(rng.permutation(seed, f"quickstart {document.place}", len(sentences))):
            ranked.append((rank, i, sentences[j]))
    taken = []
    for _, _, sentence in sorted(ranked):
        letters = _letters(sentence)
        if letters not in used and not naming.search(sentence):
            used.add(letters)
            taken.append(sentence)
    return taken


def _letters(text: str) -> str:
    return "".join(filter(str.isalpha, text)).lower()


def write_task(task: QuickstartTask, folder: Path) -> dict[str, Path]:
    """train.csv, dev.csv and test.csv with the columns text and label; returns their paths."""
    files = {}
    for part, rows in task.parts.items():
        text = StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(("text", "label"))
        writer.writerows(rows)
        files[part] = folder / f"{part}.csv"
        write_whole(files[part], text.getvalue())
    return files


def majority(task: QuickstartTask) -> dict[str, Any]:
    """What always answering the most frequent training label scores on test."""
    from sklearn.metrics import accuracy_score, f1_score

    most = Counter(label for _, label in task.parts["train"]).most_common(1)[0][0]
    truth = [label for _, label in task.parts["test"]]
    guess = [most] * len(truth)
    return {
        "accuracy": float(accuracy_score(truth, guess)),
        "macro_f1": float(f1_score(truth, guess, average="macro", zero_division=0)),
    }


def linear(task: QuickstartTask) -> dict[str, Any]:
    """TF-IDF and a linear classifier on test; words or letters, and how much it is regularised, by dev.

    The model gets what the BERTs get: train to learn from, dev to choose by.
    """
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import f1_score
    from sklearn.pipeline import make_pipeline

    (train, labels), (dev, of_dev), (test, of_test) = (
        zip(*task.parts[part], strict=True) for part in ("train", "dev", "test")
    )
    best, best_score, chosen = None, -1.0, ""
    ways: dict[str, dict[str, Any]] = {
        "words": {"analyzer": "word", "ngram_range": (1, 1)},
        "words and pairs": {"analyzer": "word", "ngram_range": (1, 2)},
        "words but stop words": {"analyzer": "word", "stop_words": "english"},
        "3 to 5 letters": {"analyzer": "char_wb", "ngram_range": (3, 5)},
    }
    for name, features in ways.items():
        for strength in (0.1, 1.0, 10.0, 100.0):
            model = make_pipeline(
                TfidfVectorizer(sublinear_tf=True, **features), LogisticRegression(C=strength, max_iter=1000)
            ).fit(train, labels)
            if (score := model.score(dev, of_dev)) > best_score:
                best, best_score, chosen = model, score, f"{name}, C = {strength:g}"
    assert best is not None
    guess = best.predict(test)
    return {
        "accuracy": float(best.score(test, of_test)),
        "macro_f1": float(f1_score(of_test, guess, average="macro", zero_division=0)),
        "chosen": chosen,
    }
