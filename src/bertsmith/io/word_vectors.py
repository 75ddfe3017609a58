"""Read word vectors as text: word2vec's and GloVe's files, a word and its numbers on each line, also compressed.

The first line may have the number of vectors and their size (word2vec, fastText), or be a vector (GloVe).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import chain
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bertsmith.errors import InputError
from bertsmith.io.text_io import read_lines

_FORMAT_HINT = "a line is a word and its numbers, with blanks between, as word2vec writes them (-binary 0)"


def read_word_vectors(
    path: str | Path, words: Collection[str] | None = None
) -> tuple[dict[str, NDArray[np.float32]], int]:
    """Return the float32 vectors of words that a file has, and their size; of a word that occurs again, the first.

    Args:
        path: The file, which is read in one pass.
        words: The words; None: all.

    Raises:
        InputError: A line is not a vector, the file has none, or fewer than its first line says.
    """
    vectors: dict[str, NDArray[np.float32]] = {}
    lines = _stripped_lines(path)
    first = next(lines, None)
    if first is None:
        raise InputError("no_vectors", "there is no vector in this file", location=path, hint=_FORMAT_HINT)
    total, width = _parse_header(first[1])
    number = 0
    for line, text in lines if width else chain([first], lines):
        word, _, rest = text.partition(" ")
        width = width or len(rest.split(" "))
        number += 1
        if (words is None or word in words) and word not in vectors:
            vector = _parse_vector(rest, f"{path}:{line}", width)
            if vector is not None:
                vectors[word] = vector
    if total is not None and number < total:
        message, hint = (
            f"the file ends after {number:,} of {total:,} vectors",
            "copy it again from its source",
        )
        raise InputError("truncated_file", message, location=path, hint=hint)
    return vectors, width


def _stripped_lines(path: str | Path) -> Iterator[tuple[int, str]]:
    """Yield the lines that are not blank, without the space that word2vec leaves at the end."""
    for number, text in read_lines(path):
        if stripped := text.rstrip(" ").replace("\t", " "):
            yield number, stripped


def _parse_header(text: str) -> tuple[int | None, int]:
    """Return the number of vectors and their size in a first line; None and 0 for a vector."""
    fields = text.split(" ")
    if len(fields) != 2 or not all(field.isascii() and field.isdigit() for field in fields):
        return None, 0
    return int(fields[0]), int(fields[1])


def _parse_vector(numbers: str, location: str, width: int) -> NDArray[np.float32] | None:
    """Return the numbers behind a word; None behind the first part of a word that contains spaces."""
    fields = numbers.split(" ")
    if len(fields) > width:
        return None
    if len(fields) < width:
        message = f"this line has {len(fields)} numbers, and the vectors of the file have {width}"
        raise InputError("vector_length", message, location=location, hint=_FORMAT_HINT)
    try:
        with np.errstate(over="ignore"):  # Too large numbers are infinite, an error below.
            vector = np.array(fields, dtype=np.float32)
    except ValueError:
        message = f"behind the word there are not {width} numbers"
        raise InputError("not_numbers", message, location=location, hint=_FORMAT_HINT) from None
    if not np.isfinite(vector).all():
        message = "a number of this vector is not finite"
        raise InputError("not_finite", message, location=location, hint="remove the line")
    return vector
