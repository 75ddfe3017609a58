"""Evaluate word vectors on published word pairs and analogies, which are read from files."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertsmith.errors import InputError
from bertsmith.formatting import pluralize
from bertsmith.io.text_io import read_lines
from bertsmith.predecessors.word_vectors import WordVectors

_BATCH_SIZE = 512  # questions whose answers are searched at once
_SYNTACTIC = "gram"  # the beginning of the names of questions-words' syntactic sections


@dataclass(frozen=True)
class SimilarityScore:
    """The agreement of cosines with people's judgments of similarity.

    Attributes:
        spearman: Spearman's rank correlation; NaN for fewer than two pairs, or constant values.
        pairs: The number of pairs whose words both have vectors.
        total: The number of pairs in the file.
    """

    spearman: float
    pairs: int
    total: int

    @property
    def coverage(self) -> float:
        """The ratio of the file's pairs that count."""
        return self.pairs / self.total

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for reports."""
        return {**asdict(self), "coverage": self.coverage}


@dataclass(frozen=True)
class AnalogyScore:
    """The answers to questions "a is to b as c is to d".

    Attributes:
        correct: The number of correct answers by section.
        answered: The number of questions whose four words all have vectors, by section.
        total: The number of questions in the file.
    """

    correct: dict[str, int]
    answered: dict[str, int]
    total: int

    @property
    def accuracy(self) -> float:
        """The ratio of correct answers among answered questions; NaN without any."""
        return self._accuracy(list(self.answered))

    @property
    def semantic_accuracy(self) -> float:
        """The accuracy in sections whose names do not begin with "gram"."""
        return self._accuracy([name for name in self.answered if not name.startswith(_SYNTACTIC)])

    @property
    def syntactic_accuracy(self) -> float:
        """The accuracy in sections whose names begin with "gram"."""
        return self._accuracy([name for name in self.answered if name.startswith(_SYNTACTIC)])

    @property
    def coverage(self) -> float:
        """The ratio of the file's questions that were answered."""
        return sum(self.answered.values()) / self.total

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for reports."""
        names = ("accuracy", "semantic_accuracy", "syntactic_accuracy", "coverage")
        return {**asdict(self), **{name: getattr(self, name) for name in names}}

    def _accuracy(self, sections: list[str]) -> float:
        answered = sum(self.answered[name] for name in sections)
        return sum(self.correct[name] for name in sections) / answered if answered else float("nan")


def evaluate_similarity(vectors: WordVectors, file: str | Path) -> SimilarityScore:
    """Compare the cosines of word pairs with judgments of their similarity.

    Args:
        vectors: The word vectors.
        file: A pair per line: two words and, in the first column with a number, their similarity, separated by
            tabs, commas, or spaces, as in WordSim-353 and SimLex-999. Lines that begin with # and a header are
            skipped. Words without a vector are looked up in lower case.

    Raises:
        InputError: A line is no pair, or the file has none.
    """
    from scipy.stats import spearmanr

    total, cosines, similarities = 0, [], []
    for first, second, similarity in read_word_pairs(file):
        total += 1
        words = _known_word(vectors, first), _known_word(vectors, second)
        if words[0] is not None and words[1] is not None:
            cosines.append(vectors.similarity(words[0], words[1]))
            similarities.append(similarity)
    if not total:
        raise InputError("no_pairs", "there is no pair of words in this file", location=file)
    is_constant = len(set(cosines)) < 2 or len(set(similarities)) < 2
    spearman = float("nan") if is_constant else float(spearmanr(cosines, similarities).statistic)
    return SimilarityScore(spearman, len(cosines), total)


def evaluate_analogies(vectors: WordVectors, file: str | Path) -> AnalogyScore:
    """Answer analogies, each by the word nearest to b − a + c among all others (3CosAdd), as `analogy` does.

    Args:
        vectors: The word vectors.
        file: Four words per line, and section names after a colon, as in questions-words.txt. Words of the file
            are looked up as they are, or else in lower case; only words of the vocabulary count.

    Raises:
        InputError: A line has another number of words, or the file has no question.
    """
    total, names, questions = 0, [], []
    for section, words in read_analogies(file):
        total += 1
        forms = [_known_word(vectors, word) for word in words]
        indices = [vectors.indices.get(word or "", -1) for word in forms]
        names.append(section)
        questions.append(indices)
    if not total:
        raise InputError("no_analogies", "there is no analogy in this file", location=file)
    rows = np.array(questions, dtype=np.int64)
    is_known = np.all(rows >= 0, axis=1)
    is_correct = np.zeros(total, dtype=bool)
    is_correct[is_known] = _answer(vectors, rows[is_known]) == rows[is_known, 3]
    sections = dict.fromkeys(names)
    by_name = {name: np.array([name == other for other in names]) for name in sections}
    return AnalogyScore(
        {name: int(is_correct[members].sum()) for name, members in by_name.items()},
        {name: int(is_known[members].sum()) for name, members in by_name.items()},
        total,
    )


def _answer(vectors: WordVectors, questions: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the index of the best word for each question [Q, 4], whose first three words are no answers."""
    unit, answers = vectors.unit_vectors, np.empty(len(questions), dtype=np.int64)
    for first in range(0, len(questions), _BATCH_SIZE):
        a, b, c = questions[first : first + _BATCH_SIZE, :3].T
        scores = (unit[b] - unit[a] + unit[c]) @ unit.T
        np.put_along_axis(scores, np.stack([a, b, c], axis=1), -np.inf, axis=1)
        answers[first : first + len(a)] = scores.argmax(1)
    return answers


def _known_word(vectors: WordVectors, word: str) -> str | None:
    return next((form for form in (word, word.lower()) if form in vectors), None)


def read_word_pairs(file: str | Path) -> Iterator[tuple[str, str, float]]:
    """Yield two words and their similarity."""
    is_header_possible = True
    for number, line in read_lines(file):
        if not line.strip() or line.startswith("#"):
            continue
        delimiter = next((delimiter for delimiter in "\t," if delimiter in line), None)
        fields = [field.strip() for field in line.split(delimiter)]
        similarity = next((float(field) for field in fields[2:] if _is_number(field)), None)
        if similarity is not None:
            yield fields[0], fields[1], similarity
        elif not is_header_possible:
            message = "this line does not have two words and a number"
            hint = "write them with tabs, commas, or spaces between, such as: king queen 8.5"
            raise InputError("not_a_pair", message, location=f"{file}:{number}", hint=hint)
        is_header_possible = False


def _is_number(text: str) -> bool:
    try:
        return bool(np.isfinite(float(text)))
    except ValueError:
        return False


def read_analogies(file: str | Path) -> Iterator[tuple[str, list[str]]]:
    """Yield the name of the section and four words."""
    section = ""
    for number, line in read_lines(file):
        words = line.split()
        if line.startswith(":"):
            section = line[1:].strip()
        elif words:
            if len(words) != 4:
                message = f"this line has {pluralize(len(words), 'word')}, and an analogy has 4"
                hint = (
                    "write four words, such as: man king woman queen; the name of a section is after a colon"
                )
                raise InputError("not_an_analogy", message, location=f"{file}:{number}", hint=hint)
            yield section, words
