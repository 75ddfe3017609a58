"""An index of texts: their vectors by a model, in a folder that `search` reads."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path

from bertsmith.formatting import join_names, pluralize
from bertsmith.inference.embedding import Embedder
from bertsmith.inference.text_rows import text_rows
from bertsmith.io.sources import Source
from bertsmith.retrieval.index import EmbeddingSource, Index, TextRow, write_index

logger = logging.getLogger(__name__)


def build_index(
    embedder: Embedder,
    model: str,
    digest: str,
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
    """Vectors of texts with the texts, in a new folder; see `Model.index`. model: where the embedder's model is;
    digest: distinguishes its vectors from those of another model."""
    source = EmbeddingSource(
        model=model, digest=digest, pooling=embedder.made.pooling, max_length=embedder.made.max_length
    )
    empty: list[str] = []

    def filled() -> Iterator[TextRow]:
        for row in text_rows(texts, text_column, id_column, encoding):
            if row.text.strip():
                yield row
            else:
                empty.append(row.location)

    index = write_index(
        output_dir,
        filled(),
        embedder,
        source,
        approximate=approximate,
        overwrite=overwrite,
        progress=progress,
    )
    if empty:
        logger.warning(
            "%s empty and not indexed: %s", pluralize(len(empty), "text is", "texts are"), join_names(empty)
        )
    if index.recall is not None:
        logger.info("%s", told_of_recall(index))
    return index


def told_of_recall(index: Index) -> str:
    """A sentence on the recall of approximate search."""
    assert index.recall is not None
    share, number = index.recall.recall_at_10, index.recall.queries
    return (
        f"{index.folder}: approximate search has a recall@10 of {share:.1%}, measured on "
        f"{pluralize(number, 'text')} of the index when it was built"
    )
