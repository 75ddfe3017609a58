"""The verb `search`: the texts of an index that are nearest to queries, as a table, as JSON, or as scores."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from bertsmith import log_handlers
from bertsmith.cli import options
from bertsmith.cli.computing import On, computed
from bertsmith.cli.text_input import ID_COLUMN, texts_of
from bertsmith.cli.verbs import Verb
from bertsmith.errors import InputError
from bertsmith.formatting import pluralize

if TYPE_CHECKING:
    from bertsmith.inference.search_file import Query, Searched


@click.command(cls=Verb)
@click.argument("index")
@click.argument("queries", nargs=-1)
@click.option("--input", "file", metavar="FILE", help="Queries: as `bertsmith embed` reads texts.")
@click.option("--text-column", metavar="NAME", help="The column of --input that holds the queries [text].")
@ID_COLUMN
@click.option(
    "--top-k",
    type=click.IntRange(1, 10_000),
    default=5,
    show_default=True,
    metavar="K",
    help="How many texts to print for each query.",
)
@click.option(
    "--model", metavar="DIR|NAME", help="The model of the index, where it was moved [where it was then]."
)
@click.option("--approximate", is_flag=True, help="Search by the index's graph: faster, may miss some.")
@click.option("--rerank", metavar="RUN", help="A classifier or regressor of pairs that orders the best anew.")
@click.option(
    "--rerank-top",
    type=click.IntRange(1, 10_000),
    default=50,
    show_default=True,
    metavar="N",
    help="How many texts --rerank reads for each query.",
)
@click.option("--rerank-label", metavar="NAME", help="The label of texts that fit [1, yes, same, …].")
@click.option(
    "--qrels", metavar="FILE", help="What each query of --input should find, by ids (BEIR, TREC): scores it."
)
@click.option(
    "--output", "out", metavar="FILE", help="Write the results here, a JSON object per query: .jsonl."
)
@computed
@options.as_json
@log_handlers.without_repeats()
def search(
    index: str,
    queries: tuple[str, ...],
    file: str | None,
    text_column: str | None,
    id_column: str | None,
    top_k: int,
    model: str | None,
    approximate: bool,
    rerank: str | None,
    rerank_top: int,
    rerank_label: str | None,
    qrels: str | None,
    out: str | None,
    on: On,
    as_json: bool,
) -> None:
    """Find the texts of INDEX that are nearest to QUERIES, to a file's queries or the lines of standard input.

    \b
    Example:
      bertsmith embed similar --input passages.jsonl --index index
      bertsmith search index "who painted the ceiling?" --top-k 3
      bertsmith search index --input queries.jsonl --qrels qrels.tsv --output found.jsonl
      bertsmith search index "who painted the ceiling?" --rerank fits --rerank-top 50

    Scores are cosines, compared exactly; equal ones stay in their order. A file of queries with their passages
    (.jsonl with query and positives, SQuAD's .json), or one with --qrels, is scored: recall, MRR and nDCG;
    --output keeps its results. Other queries of a file or of standard input print one JSON object each. With
    --json all of it is one document.
    """
    from bertsmith import console, hardware
    from bertsmith.inference.search_file import Searched, read_search

    _check(queries, file, {"--qrels": qrels, "--text-column": text_column}, rerank, rerank_label)
    if out is not None:
        _check_out(out)
    hardware.configure_process()
    asked = read_search(file, text_column, id_column, qrels) if file is not None else _typed(queries)
    searched = _searched(
        Searched,
        asked,
        index,
        model,
        on,
        top_k,
        rerank_top,
        rerank,
        rerank_label,
        approximately=approximate,
    )
    if approximate:
        from bertsmith.inference.indexing import told_of_recall

        console.print_note(told_of_recall(searched.searcher.index))
    _show(searched, out, as_json=as_json, plain=bool(queries))


def _check(
    queries: tuple[str, ...],
    file: str | None,
    of_file: Mapping[str, str | None],
    rerank: str | None,
    rerank_label: str | None,
) -> None:
    """InputError where there is no query, or more than one source of them, or an option of something else."""
    if queries and file:
        raise InputError("queries_and_file", "both queries and a file are given", hint="give one of them")
    if not queries and not file and sys.stdin.isatty():
        raise InputError(
            "no_query",
            "there is no query",
            hint="give queries, --input FILE, or pipe lines in: … | bertsmith search INDEX",
        )
    for flag, value in of_file.items():
        if value is not None and file is None:
            raise InputError(
                "option_needs_file", f"{flag} goes with --input", hint="give --input too, or leave it out"
            )
    if rerank_label is not None and rerank is None:
        raise InputError(
            "option_needs_rerank",
            "--rerank-label goes with --rerank",
            hint="give --rerank too, or leave it out",
        )


def _typed(queries: tuple[str, ...]) -> list[Query]:
    """The queries of the command line or of standard input. InputError where each is empty."""
    from bertsmith.inference.search_file import Query

    given = enumerate(texts_of(queries), start=1)
    asked = [Query(text, f"query {i}", str(i)) for i, text in given if text.strip()]
    if not asked:
        raise InputError("empty_query", "the query is empty", hint="write what is to be found")
    return asked


def _searched(
    kind: type[Searched],
    queries: list[Any],
    index: str,
    model: str | None,
    on: On,
    top_k: int,
    rerank_top: int,
    rerank: str | None,
    rerank_label: str | None,
    *,
    approximately: bool,
) -> Searched:
    """The search, ready to go; a model or an index that does not fit is told before anything is computed."""
    from bertsmith.inference.model import load
    from bertsmith.inference.reranking import Reranker
    from bertsmith.inference.search import Wanted, searcher_of
    from bertsmith.retrieval.index import Index

    opened = Index(index)
    opened.check_approximate(approximately)
    reranker = None if rerank is None else Reranker(load(rerank, **on), rerank_label)
    how = Wanted(top_k, approximately, reranker, rerank_top)
    return kind(queries, searcher_of(opened, model, **on), how)


def _check_out(out: str) -> None:
    from pathlib import Path

    from bertsmith.inference.output import refuse_existing

    if Path(out).suffix.lower() != ".jsonl":
        raise InputError(
            "not_jsonl",
            f"results are written as .jsonl, not to {out}",
            argument="output",
            hint="end it with .jsonl",
        )
    refuse_existing(Path(out))


def _show(searched: Searched, out: str | None, *, as_json: bool, plain: bool) -> None:
    """Results as tables where queries stood in the command, else as JSON; the figures where there are any, which
    stand for the results of a file unless these are written."""
    from bertsmith import console

    answers = []
    if out is not None:
        _write(searched, out)
    else:
        for answer in searched:
            if as_json:
                answers.append(answer)
            elif plain:
                _table(answer)
            elif not searched.has_gold:
                console.print_json(answer)
    searched.log_unscored()
    scores = searched.figures() if searched.has_gold else None
    if as_json:
        console.print_json(
            {
                **({} if scores is None else {"scores": scores}),
                **({"queries": answers} if out is None else {"output": out}),
            }
        )
    elif scores is not None:
        number = pluralize(int(scores.pop("queries")), "query", "queries")
        rows = [(name, f"{value:.4f}") for name, value in scores.items()]
        console.print_table(number, ["score", "value"], rows)


def _write(searched: Searched, out: str) -> None:
    import json
    from pathlib import Path

    from bertsmith import console
    from bertsmith.io import atomic

    with atomic.atomic_file(Path(out)) as path, path.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(answer, ensure_ascii=False) + "\n" for answer in searched)
    console.print_note(f"{out}: the results of {pluralize(len(searched.queries), 'query', 'queries')}")


def _table(answer: dict[str, Any]) -> None:
    """The results of one query."""
    from bertsmith import console
    from bertsmith.inference.output import shortened

    most = max(20, shutil.get_terminal_size((100, 24)).columns - 46)
    ranked = any("rerank_score" in one for one in answer["results"])
    rows = [
        (
            one["rank"],
            *((f"{one['rerank_score']:.4f}",) if ranked else ()),
            f"{one['score']:.4f}",
            shortened(one["text"], most),
            shortened(one["place"].rpartition("/")[2], 20),
        )
        for one in answer["results"]
    ]
    columns = ["rank", *(("re-ranked",) if ranked else ()), "cosine", "text", "place"]
    console.print_table(shortened(answer["query"], most + 30), columns, rows)
