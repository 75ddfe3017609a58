"""Search an index for the texts that are nearest to queries, and score searches with known relevant texts.

A cross-encoder, a model that reads the query and a text together, may rerank the results.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from bertsmith.errors import InputError, command, option
from bertsmith.formatting import join_names, pluralize
from bertsmith.inference.model import Model, load
from bertsmith.inference.text_input import log_empty, read_text_rows
from bertsmith.io.sources import column_values
from bertsmith.io.text_io import read_lines
from bertsmith.io.values import is_blank
from bertsmith.metrics.ranking import ranking_metrics
from bertsmith.retrieval.index import Index
from bertsmith.settings import check_positive
from bertsmith.tasks.embedding.data import MATCH_LABELS
from bertsmith.tasks.rows import is_query_file, read_queries
from bertsmith.tokenizer.tokenizer import validate_texts

_QUERIES_PER_PASS = 256
_METRICS_DEPTH = 10  # results per query that the metrics need

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class SearchResult:
    """A text of an index for a query.

    Attributes:
        rank: The rank, from 1.
        score: The cosine of the vectors.
        text: The text.
        location: The file and line of the text when the index was built.
        id: Its id.
        rerank_score: The score by the reranking model; None without one.
    """

    rank: int
    score: float
    text: str
    location: str
    id: str
    rerank_score: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the fields; the location is called "place", and a missing `rerank_score` is left out."""
        values = {
            "rank": self.rank,
            "score": self.score,
            "text": self.text,
            "place": self.location,
            "id": self.id,
        }
        return values if self.rerank_score is None else {**values, "rerank_score": self.rerank_score}


class Reranker:
    """A classifier or regressor of pairs of texts: the query, and a text of the index.

    Attributes:
        label: The label of relevant texts; None: the model predicts a number.
        stats: The statistics of the pairs so far.
    """

    def __init__(self, model: Model, label: str | None = None) -> None:
        """Wrap a model.

        Args:
            model: The model.
            label: The label of relevant texts; None: the only label such as "1", "yes", or "same".

        Raises:
            InputError: The model does not read pairs, or the label is unknown.
        """
        self._model, self.label = model, label
        if "text_pair" not in model.task.declaration.inputs or model.task.metadata.get("pairs") is False:
            message = "this model was not trained on pairs of texts, so it cannot rerank"
            hint = f"fine-tune a model on pairs: {command('finetune', 'classify', second_column='NAME')}"
            raise InputError("not_a_pair_model", message, location=model.path, hint=hint)
        self.stats = model.task.text_stats(model.tokenizer)
        labels = model.task.labels
        if labels is None or len(labels) < 2:
            if label is not None:
                message, hint = f"{model.path} has no labels", f"omit {option('rerank_label')}"
                raise InputError("no_labels", message, argument="rerank_label", hint=hint)
            return
        if label is None:
            matches = [name for name in labels if name.casefold() in MATCH_LABELS]
            self.label = matches[0] if len(matches) == 1 else None
        if self.label not in labels:
            message = f"there is no label '{label}'" if label else "the label of relevant texts is unknown"
            hint = f"choose {option('rerank_label')}: {join_names(labels)}"
            raise InputError(
                "rerank_label_unknown", message, location=model.path, argument="rerank_label", hint=hint
            )

    def rerank(self, query: str, results: Sequence[SearchResult]) -> list[SearchResult]:
        """Return the results by the model's score, best first; equal scores keep their order."""
        predictor = self._model.predictor
        examples = predictor.examples(
            {"text": [query] * len(results), "text_pair": [result.text for result in results]}
        )
        scores: list[float] = []
        for answers in predictor.answers(examples):
            self.stats.add(answers.items)
            scores += map(self.score, answers.predictions)
        scored = [replace(r, rerank_score=score) for r, score in zip(results, scores, strict=True)]
        return sorted(scored, key=lambda result: -(result.rerank_score or 0.0))

    def score(self, prediction: Any) -> float:
        """Return the relevance that a prediction says: a probability, a number, or a cosine."""
        if self.label is not None and hasattr(prediction, "scores"):
            return float(prediction.scores[self.label])
        return float(prediction.number if hasattr(prediction, "number") else prediction.cosine)


@dataclass(frozen=True)
class Searcher:
    """An index with the model that its vectors are from.

    Attributes:
        index: The index.
        model: Its model.
        top_k: Results per query.
        approximate: Search the graph of the index.
        reranker: The model that reranks results.
        rerank_top: The number of results to rerank.

    Raises:
        InputError: The model is another one, or a number is out of range.
    """

    index: Index
    model: Model = field(repr=False)
    top_k: int = 5
    approximate: bool = False
    reranker: Reranker | None = field(default=None, repr=False)
    rerank_top: int = 50

    def __post_init__(self) -> None:
        for name, value in (("top_k", self.top_k), ("rerank_top", self.rerank_top)):
            check_positive(value, name)
        if self.reranker is not None and self.rerank_top < self.top_k:
            message = f"{self.rerank_top} is less than {option('top_k', self.top_k)}"
            hint = "rerank at least as many texts as you retrieve"
            raise InputError("rerank_top_below_top_k", message, argument="rerank_top", hint=hint)
        source = self.index.source
        if self.model.vectors_digest != source.digest:
            message = f"this index was built with {source.model}, and {self.model.path} is another model"
            hint = f"search with {option('model', source.model)}, or build the index again"
            raise InputError(
                "index_model_mismatch", message, location=self.index.folder, argument="model", hint=hint
            )

    def search(self, queries: Sequence[str]) -> Iterator[list[SearchResult]]:
        """Yield the results of each query, best first."""
        source, remaining = self.index.source, iter(queries)
        embed, check = (self.model.embedder(source.pooling, True, source.max_length) for _ in range(2))
        self.index.check_vectors(check)
        depth = self.top_k if self.reranker is None else self.rerank_top
        while chunk := list(islice(remaining, _QUERIES_PER_PASS)):
            rows, cosines = self.index.nearest(embed(chunk), depth, approximate=self.approximate)
            for query, query_rows, scores in zip(chunk, rows.tolist(), cosines.tolist(), strict=True):
                pairs = zip(query_rows, scores, strict=True)
                results = [SearchResult(0, score, *self.index.row(i)) for i, score in pairs if i >= 0]
                if self.reranker is not None:
                    results = self.reranker.rerank(query, results)
                yield [replace(r, rank=rank) for rank, r in enumerate(results[: self.top_k], start=1)]
        embed.stats.log()
        if self.reranker is not None:
            self.reranker.stats.log()


def search(
    index: str | Path | Index,
    queries: Any,
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
    """Find the texts of an index that are nearest to a query, by the cosine of their vectors.

    Args:
        index: A folder that `Model.index` wrote, or the opened index.
        queries: A query, or a list or column of queries.
        top_k: Results per query.
        model: The model of the index, if it was moved.
        approximate: Search the graph of the index: faster, but not exact.
        rerank: A classifier or regressor of pairs that reranks the results.
        rerank_top: The number of results to rerank for each query.
        rerank_label: The classifier's label of relevant texts.
        device: The device of models that are loaded here.
        precision: The precision of models that are loaded here.

    Returns:
        A list of `SearchResult` for a query, best first; a list of such lists for a list of queries.
    """
    opened = index if isinstance(index, Index) else Index(index)
    reranker = None
    if rerank is not None:
        reranker = Reranker(load(rerank, device, precision=precision), rerank_label)
    loaded = load_index_model(opened, model, device, precision=precision)
    searcher = Searcher(opened, loaded, top_k, approximate, reranker, rerank_top)
    batch = list(validate_texts([queries] if isinstance(queries, str) else column_values(queries, "queries")))
    for number, query in enumerate(batch, start=1):
        if is_blank(query):
            hint = "pass each query as a string that is not blank"
            raise InputError("query_empty", "the query is empty", location=f"query {number}", hint=hint)
    results = list(searcher.search(batch))
    return results[0] if isinstance(queries, str) else results


def load_index_model(
    index: Index,
    model: str | Path | Model | None = None,
    device: str = "auto",
    *,
    precision: str = "auto",
    mapped: bool = False,
) -> Model:
    """Load the model of an index, from the path that the index recorded or from `model`."""
    if model is None:
        model = index.source.model
        if Path(model).is_absolute() and not Path(model).exists():
            message = f"the model of this index is no longer at {model}"
            hint = f"name its folder with {option('model')}"
            raise InputError(
                "index_model_missing", message, location=index.folder, argument="model", hint=hint
            )
    return load(model, device, precision=precision, mapped=mapped)


@dataclass(frozen=True)
class Query:
    """A query.

    Attributes:
        text: The text.
        location: Its location.
        id: Its id.
        relevant: The relevant texts of the index: their ids, or the texts themselves.
        is_by_text: True if `relevant` are texts.
    """

    text: str
    location: str
    id: str
    relevant: frozenset[str] = frozenset()
    is_by_text: bool = False


def read_search_queries(
    file: str | Path,
    text_column: str | None = None,
    id_column: str | None = None,
    qrels: str | Path | None = None,
) -> list[Query]:
    """Return the queries of a file.

    Args:
        file: Texts, as `read_text_rows` reads them; or queries with their passages, which are the relevant texts.
        text_column: The column of the queries.
        id_column: The column of the ids.
        qrels: A file with the ids of relevant texts.

    Raises:
        InputError: There are no queries, or none of them is in `qrels`.
    """
    if text_column is None and qrels is None and is_query_file(file):
        queries = [
            Query(query.query, query.location, str(number), frozenset(query.positives), is_by_text=True)
            for number, query in enumerate(read_queries(file, labeled=False), start=1)
        ]
    else:
        column = text_column or ("query" if is_query_file(file) else None)
        queries = [Query(*row) for row in read_text_rows(file, column, id_column)]
    log_empty([query.location for query in queries if is_blank(query.text)], "not searched")
    queries = [query for query in queries if not is_blank(query.text)]
    if not queries:
        hint = "use a file with at least one query"
        raise InputError("no_queries", "this file has no queries", location=file, hint=hint)
    if qrels is None:
        return queries
    relevant = read_qrels(qrels)
    if not any(query.id in relevant for query in queries):
        message = f"no query of {file} is in this file; its first query is '{queries[0].id}'"
        hint = f"name the column of the query ids with {option('id_column')}"
        raise InputError("qrels_mismatch", message, location=qrels, argument="qrels", hint=hint)
    return [replace(query, relevant=relevant.get(query.id, frozenset())) for query in queries]


def read_qrels(file: str | Path) -> dict[str, frozenset[str]]:
    """Return the ids of the texts whose relevance to a query is above 0, by the id of the query.

    Lines are "query text relevance" after a header (BEIR), or "query 0 text relevance" (TREC).
    """
    relevant: dict[str, set[str]] = {}
    for number, line in read_lines(file):
        fields = line.split()
        relevance = _relevance(fields)
        if relevance is None and fields and number > 1:
            message = "this line is not a query id, a text id, and a relevance"
            hint = "write QUERY TEXT RELEVANCE, or QUERY 0 TEXT RELEVANCE, on each line"
            raise InputError("invalid_qrels_line", message, location=f"{file}:{number}", hint=hint)
        if relevance is not None and relevance > 0:
            relevant.setdefault(fields[0], set()).add(fields[-2])
    if not relevant:
        message, hint = "no relevance in this file is above 0", "use a file of relevance judgments"
        raise InputError("no_relevant_texts", message, location=file, hint=hint)
    return {query: frozenset(texts) for query, texts in relevant.items()}


def _relevance(fields: Sequence[str]) -> float | None:
    """Return the number at the end of a line of judgments; None for a header and for other lines."""
    try:
        return float(fields[-1]) if len(fields) in (3, 4) else None
    except ValueError:
        return None


@dataclass
class ScoredSearch:
    """A search for many queries: iterate over it once, then read its metrics.

    Attributes:
        queries: The queries.
        searcher: The index, its model, and the options.
    """

    queries: Sequence[Query]
    searcher: Searcher
    _rankings: list[list[str]] = field(default_factory=list, repr=False)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Yield {"query", "id", "results"} for each query."""
        searcher, top_k = self.searcher, self.searcher.top_k
        if self.has_relevant_texts and top_k < _METRICS_DEPTH:
            rerank_top = max(searcher.rerank_top, _METRICS_DEPTH)
            searcher = replace(searcher, top_k=_METRICS_DEPTH, rerank_top=rerank_top)
        all_results = searcher.search([query.text for query in self.queries])
        for query, results in zip(self.queries, all_results, strict=True):
            ranking = (result.text if query.is_by_text else result.id for result in results)
            self._rankings.append(list(dict.fromkeys(ranking)))
            objects = [result.to_dict() for result in results[:top_k]]
            yield {"query": query.text, "id": query.id, "results": objects}

    @property
    def has_relevant_texts(self) -> bool:
        """True if the relevant texts of any query are known."""
        return any(query.relevant for query in self.queries)

    def metrics(self) -> dict[str, float]:
        """Return nDCG, MRR, and recall over the queries with relevant texts, and the number of these `queries`."""
        relevant = [query.relevant for query in self.queries]
        return {**ranking_metrics(self._rankings, relevant), "queries": sum(map(bool, relevant))}

    def log_unscored(self) -> None:
        """Log relevant texts that are not in the index, and queries without relevant texts, if others have any."""
        column: Literal["text", "id"] = "text" if any(query.is_by_text for query in self.queries) else "id"
        relevant = dict.fromkeys(text for query in self.queries for text in sorted(query.relevant))
        if missing := self.searcher.index.missing(column, list(relevant)):
            message = "%s of %s not in the index, so that no search can find them: %s"
            texts = pluralize(len(relevant), "relevant text is", "relevant texts are")
            logger.warning(message, f"{len(missing):,}", texts, join_names(missing))
        unscored = [query.id for query in self.queries if not query.relevant]
        if unscored and self.has_relevant_texts:
            logger.warning(
                "%s no relevant texts and %s not scored: %s",
                pluralize(len(unscored), "query has", "queries have"),
                "is" if len(unscored) == 1 else "are",
                join_names(unscored),
            )
