"""`bertsmith search`: the texts of an index that are nearest to a query; and how an index is built of a model."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertsmith import console
from bertsmith.errors import InputError
from bertsmith.files.memory import Source
from bertsmith.models.pooling import Pooling
from bertsmith.retrieval.index import Index, TextRow, Whose, write_index
from bertsmith.use.rerank import Reranker
from bertsmith.use.text_rows import text_rows
from bertsmith.wording import counted, listed

if TYPE_CHECKING:
    from bertsmith.use.model import Model

_AT_ONCE = 256  # queries


@dataclass(frozen=True)
class Wanted:
    """How a search is done. top_k: texts a query. approximately: by the index's graph. reranker: a model of pairs
    that puts the best `rerank_top` into its own order."""

    top_k: int = 5
    approximately: bool = False
    reranker: Reranker | None = field(default=None, repr=False)
    rerank_top: int = 50

    def __post_init__(self) -> None:
        if self.top_k < 1:
            raise InputError(f"--top-k {self.top_k}: is less than 1", "give the number of texts")
        if self.rerank_top < 1:
            raise InputError(f"--rerank-top {self.rerank_top}: is less than 1", "give the number of texts")
        if self.reranker is not None and self.rerank_top < self.top_k:
            raise InputError(
                f"--rerank-top {self.rerank_top} is less than --top-k {self.top_k}",
                "re-rank at least as many as you want to see",
            )


class Searcher:
    """An index with the model that its vectors are of."""

    def __init__(self, index: Index, model: Model) -> None:
        """InputError where the model is another one than the index was built with."""
        whose = index.whose
        if digest_of(model) != whose.digest:
            raise InputError(
                f"{index.folder}: this index was built with another model than {model.path} (of {whose.model})",
                "search with that model (--model), or build the index again with this one",
            )
        self.index = index
        self._embed = model.embedder(whose.pooling, True, whose.max_length)

    def answers(self, queries: Sequence[str], asked: Wanted) -> Iterator[list[dict[str, Any]]]:
        """For each query the texts that are nearest, the best first."""
        waiting = iter(queries)
        most = asked.top_k if asked.reranker is None else asked.rerank_top
        while some := list(islice(waiting, _AT_ONCE)):
            numbers, cosines = self.index.nearest(self._embed(some), most, approximately=asked.approximately)
            for query, of_query, scores in zip(some, numbers.tolist(), cosines.tolist(), strict=True):
                pairs = zip(of_query, scores, strict=True)
                found = [_result(self.index.row(i), score) for i, score in pairs if i >= 0]
                if asked.reranker is not None:
                    found = asked.reranker.ordered(query, found)
                yield [{"rank": rank, **one} for rank, one in enumerate(found[: asked.top_k], start=1)]


def build_index(
    model: Model,
    texts: Source,
    out: str | Path,
    *,
    text_column: str | None = None,
    id_column: str | None = None,
    encoding: str | None = None,
    pooling: Pooling | None = None,
    max_length: int | None = None,
    approximate: bool = False,
    overwrite: bool = False,
    tell: Callable[[str], None] = console.tell,
    progress: Callable[[int], None] = lambda done: None,
) -> Index:
    """Vectors of texts with the texts, in a new folder; see `Model.index`."""
    embedder = model.embedder(pooling, True, max_length)
    whose = Whose(
        model=str(model.path.resolve() if model.path.exists() else model.path),
        digest=digest_of(model),
        pooling=embedder.made.pooling,
        max_length=embedder.made.max_length,
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


def search(
    index: str | Path | Index,
    queries: str | Sequence[str],
    *,
    top_k: int = 5,
    model: str | Path | Model | None = None,
    approximate: bool = False,
    rerank: str | Path | Model | None = None,
    rerank_top: int = 50,
    rerank_label: str | None = None,
    device: str = "auto",
) -> Any:
    """The `top_k` texts of an index that are nearest to a query by the cosine of their vectors, the best first; of
    a list of queries a list of that. Each is {"rank", "score", "text", "place", "id"}.

    index: a folder of `Model.index`, or the opened index. model: what it was built with, where that is not in its
    place any more; another one is refused. approximate: by the index's graph, which is faster and may miss some.
    rerank: a classifier or regressor of pairs that reads the query with each of the best `rerank_top` texts and
    orders them by its own score (`rerank_score`); rerank_label: the classifier's label of texts that fit.
    """
    opened = index if isinstance(index, Index) else Index(index)
    searcher = searcher_of(opened, model, device)
    reranker = None if rerank is None else Reranker(_loaded(rerank, device), rerank_label)
    asked = Wanted(top_k, approximate, reranker, rerank_top)
    several = [queries] if isinstance(queries, str) else list(queries)
    for number, query in enumerate(several, start=1):
        if not isinstance(query, str) or not query.strip():
            raise InputError(f"query {number}: {query!r:.60} is no text", "give each query as a string")
    found = list(searcher.answers(several, asked))
    return found[0] if isinstance(queries, str) else found


def searcher_of(index: Index, model: str | Path | Model | None = None, device: str = "auto") -> Searcher:
    """The index with its model, loaded from where it was when the index was built, or from `model`."""
    if model is None:
        where = Path(index.whose.model)
        if where.is_absolute() and not where.exists():
            raise InputError(
                f"{index.folder}: the model that it was built with is not at {where} any more",
                "say where it is with --model",
            )
        model = where if where.is_absolute() else index.whose.model
    return Searcher(index, _loaded(model, device))


def digest_of(model: Model) -> str:
    """What tells a model's vectors from another's: its weights and its tokenizer."""
    both = f"{model.folder.weights_digest()} {model.tokenizer.digest}"
    return hashlib.sha256(both.encode("ascii")).hexdigest()


def told_of_recall(index: Index) -> str:
    """A sentence on what approximate search finds."""
    assert index.approximate is not None
    share, number = index.approximate.recall_at_10, index.approximate.queries
    return (
        f"{index.folder}: approximate search found {share:.1%} of the ten nearest of {counted(number, 'text')} of "
        "the index when it was built"
    )


def _loaded(model: str | Path | Model, device: str) -> Model:
    from bertsmith.use.model import load

    return load(model, device) if isinstance(model, str | Path) else model


def _result(row: TextRow, score: float) -> dict[str, Any]:
    return {"score": score, "text": row.text, "place": row.place, "id": row.id}
