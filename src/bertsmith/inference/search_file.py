"""Queries of a file and what they should find: searched one after the other, and scored where that is known."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from bertsmith.errors import InputError, option
from bertsmith.formatting import join_names, pluralize
from bertsmith.inference.search import Searcher, Wanted
from bertsmith.inference.text_rows import text_rows
from bertsmith.io.text_io import read_lines
from bertsmith.metrics.ranking import ranking_metrics
from bertsmith.tasks.retrieval_queries import is_query_file, read_queries

_DEEPEST = 10  # of the figures

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Query:
    """A query, its place and its id. gold: the ids of the texts that it should find; texts: or the texts."""

    text: str
    place: str
    id: str
    gold: frozenset[str] = frozenset()
    texts: frozenset[str] = frozenset()


def read_search(
    file: str | Path,
    text_column: str | None = None,
    id_column: str | None = None,
    qrels: str | Path | None = None,
) -> list[Query]:
    """The queries of a file, as `text_rows` reads texts; of a .jsonl or .json of queries with passages these are
    what should be found. qrels: a file that says so by ids. InputError for what is amiss."""
    if text_column is None and qrels is None and is_query_file(file):
        found = [
            Query(one.query, one.location, str(number), texts=frozenset(one.positives))
            for number, one in enumerate(read_queries(file, labeled=False), start=1)
        ]
    else:
        column = text_column or ("query" if is_query_file(file) else None)
        found = [Query(*row) for row in _rows(file, column, id_column)]
    found = [query for query in found if query.text.strip()]
    if not found:
        raise InputError(
            "no_queries", "this file has no queries", location=file, hint="use a file with at least one query"
        )
    if qrels is None:
        return found
    wanted = read_qrels(qrels)
    if not any(query.id in wanted for query in found):
        raise InputError(
            "qrels_mismatch",
            f"no query of {file} is in this file: its first query is '{found[0].id}', and the first here is "
            f"'{next(iter(wanted))}'",
            location=qrels,
            argument="qrels",
            hint=f"name the column of the query ids with {option('id_column')}",
        )
    return [replace(query, gold=wanted.get(query.id, frozenset())) for query in found]


def _rows(file: str | Path, column: str | None, id_column: str | None) -> Iterator[tuple[str, str, str]]:
    for row in text_rows(file, column, id_column):
        yield row.text, row.location, row.id


def read_qrels(file: str | Path) -> dict[str, frozenset[str]]:
    """What each query should find, by ids: lines of query, text and relevance (with a header, as BEIR has them),
    or of query, 0, text and relevance (TREC); what has no relevance above 0 is left out."""
    found: dict[str, set[str]] = {}
    for number, line in read_lines(file):
        fields = line.split()
        if not fields or (number == 1 and not _is_number(fields[-1])):
            continue
        if len(fields) not in (3, 4) or not _is_number(fields[-1]):
            raise InputError(
                "invalid_qrels_line",
                "this line is not a query id, a text id, and a relevance",
                location=f"{file}:{number}",
                hint="write QUERY TEXT RELEVANCE, or QUERY 0 TEXT RELEVANCE, on each line",
            )
        if float(fields[-1]) > 0:
            found.setdefault(fields[0], set()).add(fields[-2])
    if not found:
        raise InputError(
            "no_relevant_texts",
            "no relevance in this file is above 0",
            location=file,
            hint="use a file of relevance judgments",
        )
    return {query: frozenset(texts) for query, texts in found.items()}


@dataclass
class Searched:
    """A search of many queries: its answers, once, and the figures once these are through."""

    queries: Sequence[Query]
    searcher: Searcher
    asked: Wanted
    _rankings: list[list[str]] = field(default_factory=list, repr=False)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """For each query {"query", "id", "results"}."""
        deep = self.asked
        if self.has_gold and deep.top_k < _DEEPEST:
            deep = replace(deep, top_k=_DEEPEST, rerank_top=max(deep.rerank_top, _DEEPEST))
        found = self.searcher.answers([query.text for query in self.queries], deep)
        for query, results in zip(self.queries, found, strict=True):
            by = "text" if query.texts else "id"
            self._rankings.append(list(dict.fromkeys(one[by] for one in results)))
            yield {"query": query.text, "id": query.id, "results": results[: self.asked.top_k]}

    @property
    def has_gold(self) -> bool:
        """Whether it is known what any query should find."""
        return any(query.gold or query.texts for query in self.queries)

    def figures(self) -> dict[str, float]:
        """ndcg@10, mrr@10, recall@1 and @10 over the queries of which it is known; how many these are."""
        gold = [query.texts or query.gold for query in self.queries]
        return {**ranking_metrics(self._rankings, gold), "queries": sum(map(bool, gold))}

    def log_unscored(self) -> None:
        """Log which queries have no relevant texts, if others have."""
        unknown = [query.id for query in self.queries if not (query.texts or query.gold)]
        if unknown and self.has_gold:
            logger.warning(
                "%s no relevant texts and %s not scored: %s",
                pluralize(len(unknown), "query has", "queries have"),
                "is" if len(unknown) == 1 else "are",
                join_names(unknown),
            )


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
