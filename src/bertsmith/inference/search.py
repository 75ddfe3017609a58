"""`bertsmith search`: the texts of an index that are nearest to a query."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from bertsmith.errors import InputError, option
from bertsmith.inference.model import Model, load
from bertsmith.inference.reranking import Reranker
from bertsmith.retrieval.index import Index, TextRow

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
            raise InputError(
                "top_k_too_small",
                f"{self.top_k} is less than 1",
                argument="top_k",
                hint="use the number of texts per query",
            )
        if self.rerank_top < 1:
            raise InputError(
                "rerank_top_too_small",
                f"{self.rerank_top} is less than 1",
                argument="rerank_top",
                hint="use the number of texts to rerank",
            )
        if self.reranker is not None and self.rerank_top < self.top_k:
            raise InputError(
                "rerank_top_below_top_k",
                f"{self.rerank_top} is less than {option('top_k', self.top_k)}",
                argument="rerank_top",
                hint="rerank at least as many texts as you retrieve",
            )


class Searcher:
    """An index with the model that its vectors are of."""

    def __init__(self, index: Index, model: Model) -> None:
        """InputError where the model is another one than the index was built with."""
        source = index.source
        if model.vectors_digest != source.digest:
            raise InputError(
                "index_model_mismatch",
                f"this index was built with {source.model}, and {model.path} is another model",
                location=index.folder,
                argument="model",
                hint=f"search with {option('model', source.model)}, or build the index again",
            )
        self.index = index
        self._embed = model.embedder(source.pooling, True, source.max_length)

    def answers(self, queries: Sequence[str], asked: Wanted) -> Iterator[list[dict[str, Any]]]:
        """For each query the texts that are nearest, the best first."""
        waiting = iter(queries)
        most = asked.top_k if asked.reranker is None else asked.rerank_top
        while some := list(islice(waiting, _AT_ONCE)):
            numbers, cosines = self.index.nearest(self._embed(some), most, approximate=asked.approximately)
            for query, of_query, scores in zip(some, numbers.tolist(), cosines.tolist(), strict=True):
                pairs = zip(of_query, scores, strict=True)
                found = [_result(self.index.row(i), score) for i, score in pairs if i >= 0]
                if asked.reranker is not None:
                    found = asked.reranker.ordered(query, found)
                yield [{"rank": rank, **one} for rank, one in enumerate(found[: asked.top_k], start=1)]


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
    precision: str = "auto",
) -> Any:
    """The `top_k` texts of an index that are nearest to a query by the cosine of their vectors, the best first; of
    a list of queries a list of that. Each is {"rank", "score", "text", "place", "id"}.

    index: a folder of `Model.index`, or the opened index. model: what it was built with, where that is not in its
    place any more; another one is refused. approximate: by the index's graph, which is faster and may miss some.
    rerank: a classifier or regressor of pairs that reads the query with each of the best `rerank_top` texts and
    orders them by its own score (`rerank_score`); rerank_label: the classifier's label of texts that fit. device,
    precision: as `load` has them, for models that are loaded here.
    """
    opened = index if isinstance(index, Index) else Index(index)
    searcher = searcher_of(opened, model, device, precision=precision)
    if isinstance(rerank, str | Path):
        rerank = load(rerank, device, precision=precision)
    reranker = None if rerank is None else Reranker(rerank, rerank_label)
    asked = Wanted(top_k, approximate, reranker, rerank_top)
    several = [queries] if isinstance(queries, str) else list(queries)
    for number, query in enumerate(several, start=1):
        if not isinstance(query, str) or not query.strip():
            raise InputError(
                "query_empty",
                f"{query!r:.60} is not a text",
                location=f"query {number}",
                hint="pass each query as a string that is not blank",
            )
    found = list(searcher.answers(several, asked))
    return found[0] if isinstance(queries, str) else found


def searcher_of(
    index: Index,
    model: str | Path | Model | None = None,
    device: str = "auto",
    *,
    precision: str = "auto",
    mapped: bool = False,
) -> Searcher:
    """The index with its model, loaded (device, precision, mapped: as `load` has them) from where it was
    when the index was built, or from `model`."""
    if model is None:
        where = Path(index.source.model)
        if where.is_absolute() and not where.exists():
            raise InputError(
                "index_model_missing",
                f"the model of this index is no longer at {where}",
                location=index.folder,
                argument="model",
                hint=f"name its folder with {option('model')}",
            )
        model = where if where.is_absolute() else index.source.model
    if isinstance(model, str | Path):
        model = load(model, device, precision=precision, mapped=mapped)
    return Searcher(index, model)


def _result(row: TextRow, score: float) -> dict[str, Any]:
    return {"score": score, "text": row.text, "place": row.location, "id": row.id}
