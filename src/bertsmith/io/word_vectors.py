"""Word vectors as text: word2vec's and GloVe's files, a word and its numbers a line, also compressed.

The first line may say how many vectors there are and how wide (word2vec, fastText) or be a vector itself (GloVe).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bertsmith.errors import InputError
from bertsmith.io.lines import read_lines

_FORM = "a line is a word and its numbers, with blanks between, as word2vec writes them (-binary 0)"


@dataclass(frozen=True)
class WordVectors:
    """Vectors of some words, float32 [width] each; number: how many the file has."""

    vectors: dict[str, NDArray[np.float32]]
    width: int
    number: int


def read_word_vectors(path: str | Path, words: Collection[str] | None = None) -> WordVectors:
    """The vectors of these words that a file has, all of them where none are named; of a word that occurs again,
    the first one's.

    One pass, in memory no more than what is kept. InputError with file:line for a line that is no vector, for
    fewer vectors than the first line says, for a file without one, and as `read_lines`.
    """
    found: dict[str, NDArray[np.float32]] = {}
    lines = _not_empty(read_lines(path))
    first = next(lines, None)
    if first is None:
        raise InputError("no_vectors", "there is no vector in this file", location=path, hint=_FORM)
    promised, width = _header(first[1])
    number = 0
    for line, text in lines if width else _with_first(first, lines):
        word, _, rest = text.partition(" ")
        width = width or len(rest.split(" "))
        number += 1
        if (words is None or word in words) and word not in found:
            vector = _vector(rest, f"{path}:{line}", width)
            if vector is not None:
                found[word] = vector
    if promised is not None and number < promised:
        raise InputError(
            "truncated_file",
            f"the file ends after {number:,} of {promised:,} vectors",
            location=path,
            hint="copy it again from its source",
        )
    return WordVectors(found, width, number)


def _not_empty(lines: Iterator[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    for number, text in lines:
        if stripped := text.rstrip(" ").replace("\t", " "):  # word2vec leaves a blank at the end
            yield number, stripped


def _with_first(first: tuple[int, str], lines: Iterator[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    yield first
    yield from lines


def _header(text: str) -> tuple[int | None, int]:
    """How many vectors of how many numbers a first line promises; None and 0 where it is a vector itself."""
    fields = text.split(" ")
    if len(fields) != 2 or not all(field.isascii() and field.isdigit() for field in fields):
        return None, 0
    return int(fields[0]), int(fields[1])


def _vector(numbers: str, place: str, width: int) -> NDArray[np.float32] | None:
    """The numbers behind a word; None behind the first part of a word with blanks in it."""
    fields = numbers.split(" ")
    if len(fields) > width:
        return None
    if len(fields) < width:
        message = f"this line has {len(fields)} numbers, and the vectors of the file have {width}"
        raise InputError("vector_length", message, location=place, hint=_FORM)
    try:
        with np.errstate(over="ignore"):  # numbers that are too large raise an error below
            vector = np.array(fields, dtype=np.float32)
    except ValueError:
        message = f"behind the word there are not {width} numbers"
        raise InputError("not_numbers", message, location=place, hint=_FORM) from None
    if not np.isfinite(vector).all():
        message = "a number of this vector is not finite"
        raise InputError("not_finite", message, location=place, hint="remove the line")
    return vector
