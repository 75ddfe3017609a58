"""Write the vectors of many texts: as files for other tools, or as an index for `search`."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from bertsmith.formatting import pluralize
from bertsmith.inference.embedding import Embedder
from bertsmith.inference.output import check_suffix, refuse_existing
from bertsmith.inference.text_input import log_empty
from bertsmith.io import atomic
from bertsmith.io.tables import TextRow
from bertsmith.retrieval.index import EmbeddedRows, EmbeddingSource, Index, write_index
from bertsmith.retrieval.vector_file import open_vector_file

FORMATS = (".npy", ".jsonl")

logger = logging.getLogger(__name__)


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


def build_index(
    output_dir: str | Path,
    rows: Iterable[TextRow],
    embedder: Embedder,
    source: EmbeddingSource,
    **options: Any,
) -> Index:
    """Build an index of the texts that are not empty; see `Model.index`, and `write_index` for the options."""
    empty: list[str] = []

    def nonempty() -> Iterator[TextRow]:
        for row in rows:
            if row.text.strip():
                yield row
            else:
                empty.append(row.location)

    index = write_index(output_dir, nonempty(), embedder, source, **options)
    log_empty(empty, "indexed")
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
