"""An index of texts: their vectors by a model, in a folder that `search` reads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from bertsmith import console
from bertsmith.formatting import counted, listed
from bertsmith.inference.embedding import Embedder
from bertsmith.inference.text_rows import text_rows
from bertsmith.io.memory import Source
from bertsmith.retrieval.index import Index, TextRow, Whose, write_index


def build_index(
    embedder: Embedder,
    model: str,
    digest: str,
    texts: Source,
    out: str | Path,
    *,
    text_column: str | None = None,
    id_column: str | None = None,
    encoding: str | None = None,
    approximate: bool = False,
    overwrite: bool = False,
    tell: Callable[[str], None] = console.tell,
    progress: Callable[[int], None] = lambda done: None,
) -> Index:
    """Vectors of texts with the texts, in a new folder; see `Model.index`. model: where the embedder's model is;
    digest: what tells its vectors from another's."""
    whose = Whose(
        model=model, digest=digest, pooling=embedder.made.pooling, max_length=embedder.made.max_length
    )
    empty: list[str] = []

    def filled() -> Iterator[TextRow]:
        for row in text_rows(texts, text_column, id_column, encoding):
            if row.text.strip():
                yield row
            else:
                empty.append(row.place)

    index = write_index(
        out, filled(), embedder, whose, approximately=approximate, overwrite=overwrite, progress=progress
    )
    if empty:
        tell(f"{counted(len(empty), 'text is', 'texts are')} empty and not indexed: {listed(empty)}")
    if index.approximate is not None:
        tell(told_of_recall(index))
    return index


def told_of_recall(index: Index) -> str:
    """A sentence on what approximate search finds."""
    assert index.approximate is not None
    share, number = index.approximate.recall_at_10, index.approximate.queries
    return (
        f"{index.folder}: approximate search found {share:.1%} of the ten nearest of {counted(number, 'text')} of "
        "the index when it was built"
    )
