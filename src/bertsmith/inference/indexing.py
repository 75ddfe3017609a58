"""Write the vectors of many texts: as files for other tools, or as an index for `search`."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from bertsmith.formatting import join_names, pluralize
from bertsmith.inference.embedding import Embedder
from bertsmith.inference.output import check_suffix, refuse_existing
from bertsmith.inference.text_input import read_text_rows
from bertsmith.io import atomic
from bertsmith.io.sources import Source
from bertsmith.retrieval.index import EmbeddingSource, Index, TextRow, write_index
from bertsmith.retrieval.vector_file import open_vector_file

FORMATS = (".npy", ".parquet", ".jsonl")
_CHUNK_SIZE = 4096  # texts

EmbeddedRows = tuple[list[TextRow], NDArray[np.float32]]

logger = logging.getLogger(__name__)


def embed_rows(rows: Iterable[TextRow], embedder: Embedder) -> Iterator[EmbeddedRows]:
    """Yield texts with their vectors, some thousand at a time."""
    iterator = iter(rows)
    while chunk := list(islice(iterator, _CHUNK_SIZE)):
        yield chunk, embedder([row.text for row in chunk])


def check_vector_file(output: str | Path) -> Path:
    """Return the path of an output file; raise InputError for an unknown suffix, and if the file exists."""
    check_suffix(output, FORMATS)
    refuse_existing(Path(output))
    return Path(output)


def write_vectors(parts: Iterable[EmbeddedRows], size: int, output: Path) -> int:
    """Write vectors to a file atomically, and return their number.

    Args:
        parts: Texts and vectors.
        size: The number of dimensions.
        output: A .npy (float32 [n, H]), or a .parquet or .jsonl (id, text, and vector).
    """
    count, suffix = 0, output.suffix.lower()
    with atomic.atomic_file(output) as path:
        if suffix == ".npy":
            with open_vector_file(path, size) as vector_file:
                for _, vectors in parts:
                    vector_file.write(vectors)
            return vector_file.rows
        if suffix == ".parquet":
            fields = [
                ("id", pa.string()),
                ("text", pa.large_string()),
                ("vector", pa.list_(pa.float32(), size)),
            ]
            with pq.ParquetWriter(path, pa.schema(fields)) as parquet:
                for rows, vectors in parts:
                    columns = [
                        pa.array([row.id for row in rows], pa.string()),
                        pa.array([row.text for row in rows], pa.large_string()),
                        pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel(), pa.float32()), size),
                    ]
                    parquet.write_batch(pa.record_batch(columns, schema=pa.schema(fields)))
                    count += len(rows)
            return count
        with path.open("w", encoding="utf-8") as file:
            for count, value in enumerate(vector_objects(parts), start=1):  # noqa: B007
                file.write(json.dumps(value, ensure_ascii=False) + "\n")
    return count


def vector_objects(parts: Iterable[EmbeddedRows]) -> Iterator[dict[str, Any]]:
    """Yield an object per text, with its vector in the fewest digits of single precision."""
    for rows, vectors in parts:
        for row, vector in zip(rows, vectors, strict=True):
            yield {"id": row.id, "text": row.text, "vector": [float(str(number)) for number in vector]}


def build_index(
    embedder: Embedder,
    source: EmbeddingSource,
    texts: Source,
    output_dir: str | Path,
    *,
    text_column: str | None = None,
    id_column: str | None = None,
    encoding: str | None = None,
    approximate: bool = False,
    overwrite: bool = False,
    progress: Callable[[int], None] = lambda done: None,
) -> Index:
    """Build an index of the texts that are not empty; see `Model.index`."""
    empty: list[str] = []

    def nonempty() -> Iterator[TextRow]:
        for row in read_text_rows(texts, text_column, id_column, encoding):
            if row.text.strip():
                yield row
            else:
                empty.append(row.location)

    index = write_index(
        output_dir,
        nonempty(),
        embedder,
        source,
        approximate=approximate,
        overwrite=overwrite,
        progress=progress,
    )
    if empty:
        count = pluralize(len(empty), "text is", "texts are")
        logger.warning("%s empty and not indexed: %s", count, join_names(empty))
    if index.recall is not None:
        logger.info("%s", recall_message(index))
    return index


def recall_message(index: Index) -> str:
    """Return a message on the recall of approximate search."""
    assert index.recall is not None
    recall, texts = index.recall.recall_at_10, pluralize(index.recall.queries, "text")
    return (
        f"{index.folder}: approximate search has a recall@10 of {recall:.1%}, measured on {texts} of the index "
        "when it was built"
    )
