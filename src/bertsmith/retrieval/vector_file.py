"""A .npy file of vectors that is written in parts, when the number of vectors is not known beforehand."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from bertsmith.errors import InputError


class VectorWriter:
    """Append float32 vectors of one dimension H, and write their number into the header at the end."""

    def __init__(self, file: BinaryIO, dimension: int) -> None:
        self._file, self._dimension = file, dimension
        self.rows = 0
        self._write_header()

    def write(self, vectors: NDArray[np.float32]) -> None:
        """Append vectors [n, H]."""
        if vectors.ndim != 2 or vectors.shape[1] != self._dimension:
            raise ValueError(f"expected vectors [n, {self._dimension}], got {list(vectors.shape)}")
        self._file.write(np.ascontiguousarray(vectors, dtype="<f4").tobytes())
        self.rows += len(vectors)

    def finish(self) -> None:
        """Write the header again with the number of vectors; NumPy pads it, so that its length stays the same."""
        end = self._file.tell()
        data_start = self._write_header()
        assert end == data_start + 4 * self._dimension * self.rows

    def _write_header(self) -> int:
        self._file.seek(0)
        header = {"descr": "<f4", "fortran_order": False, "shape": (self.rows, self._dimension)}
        np.lib.format.write_array_header_1_0(self._file, header)
        return self._file.tell()


@contextmanager
def open_vector_file(path: Path, dimension: int) -> Iterator[VectorWriter]:
    """Open a .npy file to write vectors of a dimension; if the block raises an error, the file is incomplete."""
    with path.open("wb") as file:
        writer = VectorWriter(file, dimension)
        yield writer
        writer.finish()


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
