"""Word vectors: neighbors, analogies, and files."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from bertsmith.artifacts.config_schema import read_json
from bertsmith.artifacts.locate import WORD_VECTORS_FILE
from bertsmith.corpus.shards import IntArray
from bertsmith.errors import InputError
from bertsmith.io import atomic
from bertsmith.io.folder_layout import FolderLayout
from bertsmith.io.jsonl import load_json
from bertsmith.io.word_vectors import VECTORS_FILE, WORDS_FILE, read_word_vectors, write_word_vectors
from bertsmith.retrieval.nearest_neighbors import normalize_vectors, search_vectors
from bertsmith.settings import check_positive
from bertsmith.suggestions import did_you_mean

_FOLDER_FILES = WORD_VECTORS_FILE, WORDS_FILE, VECTORS_FILE
_FOLDER_LAYOUT = FolderLayout("word vectors", WORD_VECTORS_FILE, _FOLDER_FILES, "path")
_FILE_SUFFIXES = (".txt", ".vec", ".bin")

FloatArray = NDArray[np.float32]


@dataclass(frozen=True)
class Subwords:
    """Vectors of character n-grams, of which words are composed (Bojanowski et al. 2017).

    Attributes:
        lengths: The minimum and the maximum number of characters.
        ngrams: The n-grams; a word's first begins with "<", its last ends with ">".
        inputs: The vectors of words and then of n-grams, fp32 [V + G, H]; the vector of a word is the mean of its
            own and of those of its n-grams.
    """

    lengths: tuple[int, int]
    ngrams: list[str]
    inputs: FloatArray

    @cached_property
    def rows(self) -> dict[str, int]:
        """The rows in `inputs` of n-grams."""
        first = len(self.inputs) - len(self.ngrams)
        return {ngram: row for row, ngram in enumerate(self.ngrams, start=first)}

    def compose(self, word: str) -> FloatArray | None:
        """Return the mean of the vectors of a word's n-grams [H]; None if none of them is known."""
        rows = [self.rows[ngram] for ngram in split_ngrams(word, self.lengths) if ngram in self.rows]
        return self.inputs[rows].mean(0) if rows else None


def split_ngrams(word: str, lengths: tuple[int, int]) -> list[str]:
    """Return the character n-grams of "<word>", without that itself."""
    text = f"<{word}>"
    return [
        text[start : start + length]
        for length in range(lengths[0], min(lengths[1], len(text) - 1) + 1)
        for start in range(len(text) - length + 1)
    ]


@dataclass(frozen=True)
class WordVectors:
    """A vector for each word of a vocabulary.

    Attributes:
        words: V words.
        vectors: Their vectors, fp32 [V, H].
        counts: The number of occurrences of each word in the training text, int64 [V]; None if unknown.
        outputs: The vectors by which training predicts words, fp32 [V, H], to continue it; None if unknown.
        subwords: The vectors of character n-grams, for words outside of the vocabulary; None without.
        report: Settings and losses of training.
    """

    words: list[str]
    vectors: FloatArray
    counts: IntArray | None = None
    outputs: FloatArray | None = None
    subwords: Subwords | None = None
    report: dict[str, Any] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        shapes = {
            "vectors": (self.vectors, (len(self.words), self.vectors.shape[-1])),
            "counts": (self.counts, (len(self.words),)),
            "outputs": (self.outputs, self.vectors.shape),
        }
        for name, (array, shape) in shapes.items():
            if array is not None and array.shape != shape:
                message = f"there are {len(self.words):,} words, and the shape of {name} is {array.shape}"
                raise InputError("vector_shape", message, argument=name, hint="give a row for each word")
        if len(self.indices) < len(self.words):
            word = next(word for i, word in enumerate(self.words) if self.indices[word] != i)
            message, hint = f"the word {word!r:.40} is repeated", "give each word once"
            raise InputError("repeated_word", message, argument="words", hint=hint)

    @classmethod
    def one_hot(cls, words: Sequence[str]) -> WordVectors:
        """Return the vectors of the identity matrix: every word is as far from each other word."""
        return cls(list(words), np.eye(len(words), dtype=np.float32))

    def __repr__(self) -> str:
        return f"WordVectors({len(self.words):,} words, {self.vectors.shape[1]} dimensions)"

    def __len__(self) -> int:
        """Return the number of words, V."""
        return len(self.words)

    def __contains__(self, word: str) -> bool:
        """Return True if a word has a vector, also one composed of subwords."""
        return word in self.indices or (self.subwords is not None and self.subwords.compose(word) is not None)

    def __getitem__(self, word: str) -> FloatArray:
        """Return the vector of a word [H]. Raises InputError if it has none."""
        if word in self.indices:
            row: FloatArray = self.vectors[self.indices[word]]
            return row
        vector = None if self.subwords is None else self.subwords.compose(word)
        if vector is None:
            in_lower_case = str(word).lower() if str(word).lower() in self.indices else None
            hint = did_you_mean([in_lower_case]) if in_lower_case else "use a word of the vocabulary"
            raise InputError(
                "unknown_word", f"the word {word!r:.40} has no vector", argument="word", hint=hint
            )
        return vector

    @cached_property
    def indices(self) -> dict[str, int]:
        """The index of each word."""
        return {word: i for i, word in enumerate(self.words)}

    @cached_property
    def unit_vectors(self) -> FloatArray:
        """The vectors, scaled to length 1; zero vectors stay zero, fp32 [V, H]."""
        return normalize_vectors(self.vectors)

    def similarity(self, word: str, other: str) -> float:
        """Return the cosine of the vectors of two words. Raises InputError if one has none."""
        unit = normalize_vectors(np.stack([self[word], self[other]]))
        return float(unit[0] @ unit[1])

    def neighbors(self, word: str | FloatArray, k: int = 10) -> list[tuple[str, float]]:
        """Return the k words nearest to a word or to a vector [H], with their cosines, the nearest first.

        A word is not its own neighbor. Raises InputError if it has no vector, or the vector has another size.
        """
        if isinstance(word, str):
            return self._nearest(self[word], {word}, k)
        if np.shape(word) != self.vectors.shape[1:]:
            message = (
                f"the shape is {np.shape(word)}, and the vectors have {self.vectors.shape[1]} dimensions"
            )
            hint = "give a word, or a vector of as many numbers"
            raise InputError("vector_shape", message, argument="word", hint=hint)
        return self._nearest(np.asarray(word, dtype=np.float32), set(), k)

    def analogy(self, a: str, b: str, c: str, k: int = 1) -> list[tuple[str, float]]:
        """Return the k best words d for "a is to b as c is to d", with their cosines to b − a + c.

        All vectors are scaled to length 1 before (3CosAdd; Levy and Goldberg 2014, equation 1). The words a, b,
        and c are no answers. Raises InputError if one of them has no vector.
        """
        unit = normalize_vectors(np.stack([self[word] for word in (a, b, c)]))
        return self._nearest(unit[1] - unit[0] + unit[2], {a, b, c}, k)

    def _nearest(self, vector: FloatArray, excluded: set[str], k: int) -> list[tuple[str, float]]:
        check_positive(k, "k")
        query = normalize_vectors(vector[None])
        indices, cosines = search_vectors(query, self.unit_vectors, k + len(excluded))
        nearest = zip((self.words[i] for i in indices[0]), cosines[0].tolist(), strict=True)
        return [(word, cosine) for word, cosine in nearest if word not in excluded][:k]

    def save(self, path: str | Path, *, overwrite: bool = False) -> Path:
        """Save the vectors, and return the path.

        Args:
            path: A file of word2vec's text format (.txt, .vec) or binary format (.bin), with words and vectors; or
                with another name a folder, with all that continued training and unknown words need.
            overwrite: Replace an existing file, or a folder that this method wrote.

        Raises:
            InputError: The path exists, or a word has white space, which word2vec's formats cannot hold.
        """
        path = atomic.output_path(path)
        if path.suffix.lower() in _FILE_SUFFIXES:
            atomic.check_output_file(path, overwrite=overwrite, argument="path")
            write_word_vectors(path, self.words, self.vectors)
            return path
        _FOLDER_LAYOUT.check_replaceable(path, overwrite=overwrite)
        tensors = {"vectors": self.vectors, "counts": self.counts, "outputs": self.outputs}
        names: dict[str, Any] = {"words": self.words}
        if self.subwords is not None:
            tensors["inputs"] = self.subwords.inputs
            names |= {"subword_lengths": self.subwords.lengths, "subwords": self.subwords.ngrams}
        with atomic.atomic_folder(path, replace=overwrite) as folder:
            arrays = {
                name: np.ascontiguousarray(array) for name, array in tensors.items() if array is not None
            }
            save_file(arrays, folder / VECTORS_FILE)
            (folder / WORDS_FILE).write_text(json.dumps(names, ensure_ascii=False), encoding="utf-8")
            (folder / WORD_VECTORS_FILE).write_text(
                json.dumps(self.report, indent=1) + "\n", encoding="utf-8"
            )
        return path

    @classmethod
    def load(cls, path: str | Path) -> WordVectors:
        """Load a folder that `save` wrote, or a file of word2vec's, GloVe's, or fastText's formats.

        Args:
            path: The folder or file; a file with the suffix .bin is binary, any other is text; each may be
                compressed.

        Raises:
            InputError: The file is missing or damaged; the message or location names the line or byte.
        """
        path = Path(path)
        if not path.is_dir():
            vectors, _ = read_word_vectors(path)
            return cls(list(vectors), np.stack(list(vectors.values())))
        if not (path / WORD_VECTORS_FILE).is_file():
            message, hint = "this folder holds no word vectors", "name a folder that WordVectors.save wrote"
            raise InputError("not_word_vectors", message, location=path, hint=hint)
        report = read_json(path / WORD_VECTORS_FILE)
        try:
            names = load_json(atomic.read_file(path / WORDS_FILE).decode("utf-8"))
            tensors = load_file(path / VECTORS_FILE)
            subwords = None
            if "inputs" in tensors:
                low, high = names["subword_lengths"]
                subwords = Subwords((int(low), int(high)), list(names["subwords"]), tensors["inputs"])
            result = cls(
                list(names["words"]),
                tensors["vectors"],
                tensors.get("counts"),
                tensors.get("outputs"),
                subwords,
                report,
            )
        except (OSError, SafetensorError, KeyError, TypeError, ValueError, InputError):
            message = "these word vectors are damaged or incomplete"
            hint = "copy the folder again from its source"
            raise InputError("damaged_vectors", message, location=path, hint=hint) from None
        return result
