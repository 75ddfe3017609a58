"""Vectors as a .npy that is written while they come, however many there will be."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from bertsmith.errors import InputError


class VectorWriter:
    """Writes float32 rows of one size behind a header that says at the end how many there are."""

    def __init__(self, file: BinaryIO, size: int) -> None:
        self._file, self._size = file, size
        self.rows = 0
        self._head()

    def write(self, vectors: NDArray[np.float32]) -> None:
        """Append rows [n, H]."""
        if vectors.ndim != 2 or vectors.shape[1] != self._size:
            raise ValueError(f"vectors of shape {vectors.shape} among those of {self._size} numbers")
        self._file.write(np.ascontiguousarray(vectors, dtype="<f4").tobytes())
        self.rows += len(vectors)

    def finish(self) -> None:
        """Write the header again, with the number of rows; numpy leaves room for its digits."""
        end = self._file.tell()
        begin = self._head()
        assert end == begin + 4 * self._size * self.rows
        self._file.seek(end)

    def _head(self) -> int:
        self._file.seek(0)
        said = {"descr": "<f4", "fortran_order": False, "shape": (self.rows, self._size)}
        np.lib.format.write_array_header_1_0(self._file, said)
        return self._file.tell()


@contextmanager
def vector_file(path: Path, size: int) -> Iterator[VectorWriter]:
    """A .npy of vectors of `size` numbers; it is whole once this ends without an error."""
    with path.open("wb") as file:
        writer = VectorWriter(file, size)
        yield writer
        writer.finish()


def mapped(path: Path) -> NDArray[np.float32]:
    """The vectors of a .npy, mapped into memory: float32 [n, H], n at least 1. InputError for what is no such
    file."""
    try:
        found: NDArray[np.float32] = np.lib.format.open_memmap(path, mode="r")
    except (OSError, ValueError, SyntaxError) as error:
        raise InputError(
            f"{path}: these are no vectors ({str(error).splitlines()[0]})", "write them again"
        ) from None
    if found.ndim != 2 or found.dtype != np.float32:
        raise InputError(
            f"{path}: these are {found.dtype} of {found.ndim} dimensions, not float32 vectors",
            "write them again",
        )
    return found
