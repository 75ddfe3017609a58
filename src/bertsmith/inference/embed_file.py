"""`bertsmith embed`: the vectors of many texts as files that other tools open, some thousand at a time."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertsmith.errors import InputError
from bertsmith.inference.embedding import Embedder
from bertsmith.inference.output import refuse_existing
from bertsmith.io import atomic
from bertsmith.retrieval.index import TextRow
from bertsmith.retrieval.vector_file import open_vector_file

FORMATS = (".npy", ".parquet", ".jsonl")
_CHUNK = 4096

Part = tuple[list[TextRow], NDArray[np.float32]]


def embedded_rows(
    rows: Iterable[TextRow], embedder: Embedder, progress: Callable[[int], None] = lambda done: None
) -> Iterator[Part]:
    """Texts with their vectors, some thousand at a time."""
    waiting, done = iter(rows), 0
    while some := list(islice(waiting, _CHUNK)):
        yield some, embedder([row.text for row in some])
        done += len(some)
        progress(done)


def check_out(out: str | Path) -> Path:
    """The file to write. InputError where its name does not say how, or something is there."""
    path = Path(out)
    if path.suffix.lower() not in FORMATS:
        raise InputError(
            "suffix_unsupported",
            f"this file name does not end in {', '.join(FORMATS)}",
            location=out,
            argument="output",
            hint="rename it",
        )
    refuse_existing(path)
    return path


def write_vectors(parts: Iterable[Part], size: int, out: Path) -> int:
    """Vectors into a file that is whole or not there; how many. .npy: float32 [n, H], a row a text; .parquet: id,
    text and vector; .jsonl: the same, a text a line."""
    number = 0
    with atomic.atomic_file(out) as path:
        if out.suffix.lower() == ".npy":
            with open_vector_file(path, size) as writer:
                for _, vectors in parts:
                    writer.write(vectors)
            return writer.rows
        if out.suffix.lower() == ".parquet":
            return _write_parquet(parts, size, path)
        with path.open("w", encoding="utf-8") as file:
            for row in as_objects(parts):
                file.write(json.dumps(row, ensure_ascii=False) + "\n")
                number += 1
    return number


def as_objects(parts: Iterable[Part]) -> Iterator[dict[str, Any]]:
    """A text with its vector, as JSON has it."""
    for rows, vectors in parts:
        for row, vector in zip(rows, vectors, strict=True):
            numbers = [float(str(number)) for number in vector]  # as short as they may be in single precision
            yield {"id": row.id, "text": row.text, "vector": numbers}


def _write_parquet(parts: Iterable[Part], size: int, path: Path) -> int:
    import pyarrow as pa
    import pyarrow.parquet as pq

    vector = pa.list_(pa.float32(), size)
    schema = pa.schema([("id", pa.string()), ("text", pa.large_string()), ("vector", vector)])
    number = 0
    with pq.ParquetWriter(path, schema) as writer:
        for rows, vectors in parts:
            columns = [
                pa.array([row.id for row in rows], pa.string()),
                pa.array([row.text for row in rows], pa.large_string()),
                pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel(), pa.float32()), size),
            ]
            writer.write_batch(pa.record_batch(columns, schema=schema))
            number += len(rows)
    return number
