"""Vectors of texts, and files of them: .npy, also without their number beforehand, and .jsonl."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from bertsmith.errors import InputError
from bertsmith.io import atomic
from bertsmith.io.tables import TextRow

VECTOR_SUFFIXES = (".npy", ".jsonl")
_CHUNK_SIZE = 4096  # texts embedded at a time
_MAX_NORM_ERROR = 1e-3  # of the squared length of a normalized vector

Embed = Callable[[Sequence[str]], NDArray[np.float32]]
"""Returns the vectors [n, H] of n texts."""
EmbeddedRows = tuple[list[TextRow], NDArray[np.float32]]


def embed_rows(rows: Iterable[TextRow], embed: Embed) -> Iterator[EmbeddedRows]:
    """Yield texts with their vectors, some thousand at a time."""
    iterator = iter(rows)
    while chunk := list(islice(iterator, _CHUNK_SIZE)):
        yield chunk, embed([row.text for row in chunk])


def write_vectors(parts: Iterable[EmbeddedRows], size: int, output: Path) -> int:
    """Write vectors to a file atomically, and return their number.

    Args:
        parts: Texts and vectors.
        size: The number of dimensions.
        output: A .npy (float32 [n, H]), or a .jsonl (id, text, and vector).
    """
    with atomic.atomic_file(output) as path:
        if output.suffix.lower() == ".npy":
            with open_vector_file(path, size) as vector_file:
                for _, vectors in parts:
                    vector_file.write(vectors)
            return vector_file.rows
        count = 0
        with path.open("w", encoding="utf-8") as file:
            for count, value in enumerate(vector_objects(parts), start=1):  # noqa: B007
                file.write(json.dumps(value, ensure_ascii=False) + "\n")
        return count


def vector_objects(parts: Iterable[EmbeddedRows]) -> Iterator[dict[str, Any]]:
    """Yield an object per text, with its vector in the fewest digits of single precision."""
    for rows, vectors in parts:
        for row, vector in zip(rows, vectors, strict=True):
            yield {"id": row.id, "text": row.text, "vector": [float(str(number)) for number in vector]}


class VectorWriter:
    """Append float32 vectors of dimension H to a .npy file, whose header has their number."""

    def __init__(self, file: BinaryIO, dimension: int) -> None:
        self._file, self._dimension = file, dimension
        self.rows = 0
        self.write_header()

    def write(self, vectors: NDArray[np.float32]) -> None:
        """Append vectors [n, H]."""
        self._file.write(np.ascontiguousarray(vectors, dtype="<f4").tobytes())
        self.rows += len(vectors)

    def write_header(self) -> None:
        """Write the header at the start; NumPy pads it to one length for any number of vectors."""
        self._file.seek(0)
        header = {"descr": "<f4", "fortran_order": False, "shape": (self.rows, self._dimension)}
        np.lib.format.write_array_header_1_0(self._file, header)


@contextmanager
def open_vector_file(path: Path, dimension: int) -> Iterator[VectorWriter]:
    """Open a .npy file to write vectors of a dimension; if the block raises an error, the file is incomplete."""
    with path.open("wb") as file:
        writer = VectorWriter(file, dimension)
        yield writer
        writer.write_header()


def map_vectors(path: Path) -> NDArray[np.float32]:
    """Map the vectors of a .npy file, float32 [n, H], into memory.

    Raises:
        InputError: The file is not a .npy file, or contains another kind of array.
    """
    try:
        vectors: NDArray[np.float32] = np.lib.format.open_memmap(path, mode="r")
    except (OSError, ValueError, SyntaxError) as error:
        reason = str(error).splitlines()[0]
        message = f"this is no .npy file of vectors ({reason})"
        hint = "write the file again"
        raise InputError("vectors_unreadable", message, location=path, hint=hint) from None
    if vectors.ndim != 2 or vectors.dtype != np.float32:
        message = f"expected a float32 array of 2 dimensions, got {vectors.dtype} of {vectors.ndim}"
        hint = "write the file again"
        raise InputError("vectors_wrong_type", message, location=path, hint=hint)
    return vectors


def are_normalized(vectors: NDArray[np.float32]) -> bool:
    """Return True if all vectors [n, H] are finite and have the length 1, or 0; they are read in blocks."""
    for start in range(0, len(vectors), _CHUNK_SIZE):
        block = np.asarray(vectors[start : start + _CHUNK_SIZE])
        squares = np.einsum("nh,nh->n", block, block)
        if not ((np.abs(squares - 1) <= _MAX_NORM_ERROR) | (squares == 0)).all():
            return False
    return True
