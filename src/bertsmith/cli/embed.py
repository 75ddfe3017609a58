"""The commands of vectors: `embed` and `search`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import rich_click as click

from bertsmith import console, log_handlers
from bertsmith.cli import options, tables
from bertsmith.cli.commands import Command
from bertsmith.cli.options import DIR, FILE, MODEL, RUN, Integer
from bertsmith.formatting import format_number, pluralize
from bertsmith.io.values import is_blank

if TYPE_CHECKING:
    from bertsmith.inference.search import Query, ScoredSearch
    from bertsmith.retrieval.index import Index


@click.command(cls=Command)
@options.model
@options.texts
@click.option(
    "--input", "file", type=FILE, help="Texts: a .txt with one per line, or .jsonl, .csv, .tsv, or .parquet."
)
@options.text_column
@options.id_column
@options.encoding
@click.option("--output", type=FILE, help="Write the vectors here: .npy or .jsonl.")
@click.option("--index", type=DIR, help="Build an index for `bertsmith search` in this folder.")
@click.option("--approximate", is_flag=True, help="Also build the graph of the index for approximate search.")
@options.choice(
    "--pooling", "mean", "cls", "max", default=None, help="Pooling of tokens; default: the model's, or mean."
)
@click.option(
    "--normalize/--no-normalize", default=None, help="Scale vectors to length 1; default: as the model does."
)
@click.option("--max-length", type=Integer(2), help="Tokens to read of a text; default: the model's limit.")
@options.inference
def embed(
    model: str,
    texts: tuple[str, ...],
    file: str | None,
    output: str | None,
    index: str | None,
    approximate: bool,
    pooling: Any,
    normalize: bool | None,
    max_length: int | None,
    device: str,
    precision: str,
    as_json: bool,
    **columns: Any,
) -> None:
    """Turn TEXTS, a file, or the lines of standard input into vectors or an index with MODEL.

    \b
    Example:
      bertsmith embed similar --input texts.txt --output vectors.npy
      bertsmith embed similar --input passages.jsonl --text-column passage \\
        --index index
      bertsmith search index "who painted the ceiling?"

    MODEL is a run of `bertsmith finetune embed`, a sentence-transformers folder, or any encoder. Each text has a
    vector, in order; an empty text has that of the special tokens, and is not in an index. Without --output and
    --index, the command prints one JSON object per text.
    """
    from bertsmith.inference.output import check_suffix
    from bertsmith.inference.text_input import count_empty, read_text_rows, rows_of_lines
    from bertsmith.io import atomic
    from bertsmith.retrieval import vector_file

    options.check_texts(texts, file)
    options.require(["text_column"], {**columns, "input": file}, "input")
    options.require(["approximate"], {"approximate": approximate, "index": index}, "index")
    if output and index:
        raise click.UsageError("--output and --index exclude each other")
    if index and normalize is False:
        raise click.UsageError("vectors of an index have the length 1; omit --no-normalize")
    if index:
        atomic.check_output_folder(Path(index), replaceable=True, argument="index")
    if output:
        check_suffix(output, vector_file.VECTOR_SUFFIXES)
        atomic.check_output_file(Path(output))
    loaded = options.load_model(model, device, precision)
    if index:
        source: Any = file or [text for _, text in options.read_lines(texts)]
        built = loaded.index(
            source, index, pooling=pooling, max_length=max_length, approximate=approximate, **columns
        )
        _print_index(index, built, as_json)
        return
    embedder = loaded.embedder(pooling, normalize, max_length)
    rows = read_text_rows(file, **columns) if file else rows_of_lines(options.read_lines(texts))
    vectors = vector_file.embed_rows(count_empty(rows, keep=True), embedder)
    if output:
        count = vector_file.write_vectors(vectors, embedder.size, Path(output))
        embedder.stats.log()
        if as_json:
            document = {"output": output, "vectors": count, "numbers": embedder.size}
            console.print_json({**document, **embedder.config._asdict()})
        else:
            console.print_note(f"{output}: {pluralize(count, 'vector')} of {embedder.size} numbers")
        return
    tables.print_json_objects(vector_file.vector_objects(vectors), as_json)
    embedder.stats.log()


def _print_index(folder: str, index: Index, as_json: bool) -> None:
    """Print the size of a new index, and the command that searches it."""
    if as_json:
        document = {"index": folder, "texts": len(index), "numbers": index.dimension}
        recall = None if index.recall is None else index.recall.model_dump()
        console.print_json({**document, "approximate": recall})
    else:
        console.print_note(f"{folder}: {pluralize(len(index), 'text')}, {index.dimension} numbers each")
        console.print_note(f'next: bertsmith search {folder} "a query"')


@click.command(cls=Command)
@click.argument("index", type=DIR)
@click.argument("queries", nargs=-1)
@click.option("--input", "file", type=FILE, help="Queries, in a file as for `bertsmith embed`.")
@options.text_column
@options.id_column
@click.option("--top-k", type=Integer(1, 10_000), default=5, help="Texts for each query.")
@click.option("--model", type=MODEL, help="The model of the index, if it was moved.")
@click.option("--approximate", is_flag=True, help="Search the graph of the index: faster, but not exact.")
@click.option("--rerank", type=RUN, help="A classifier or regressor of pairs that reranks the results.")
@click.option("--rerank-top", type=Integer(1, 10_000), default=50, help="Texts to rerank for each query.")
@click.option("--rerank-label", metavar="NAME", help="Label of relevant texts; default: 1, yes, same, ….")
@click.option(
    "--qrels", type=FILE, help="Relevant texts of each query, by ids (BEIR, TREC), to score the search."
)
@click.option("--output", type=FILE, help="Write the results here, a JSON object per query.")
@options.inference
@log_handlers.without_repeats()
def search(
    index: str,
    queries: tuple[str, ...],
    file: str | None,
    model: str | None,
    top_k: int,
    rerank: str | None,
    rerank_top: int,
    rerank_label: str | None,
    approximate: bool,
    output: str | None,
    device: str,
    precision: str,
    as_json: bool,
    **arguments: Any,
) -> None:
    """Find the texts of INDEX that are nearest to QUERIES, to a file's queries, or to the lines of standard input.

    \b
    Example:
      bertsmith embed similar --input passages.jsonl --index index
      bertsmith search index "who painted the ceiling?" --top-k 3
      bertsmith search index --input queries.jsonl --qrels qrels.tsv \\
        --output results.jsonl
      bertsmith search index "who painted the ceiling?" --rerank relevant

    Scores are cosine similarities; ties keep the order of the index. A file of queries with their passages
    (.jsonl with query and positives), or with --qrels, is scored by recall, MRR, and nDCG; then only --output has
    the results. Other queries from a file or standard input give one JSON object each. --json
    prints one document.
    """
    from bertsmith.inference.search import (
        Reranker,
        ScoredSearch,
        Searcher,
        load_index_model,
        read_search_queries,
    )
    from bertsmith.io import atomic
    from bertsmith.retrieval.index import Index

    options.check_texts(queries, file)
    options.require(["qrels", "text_column"], {**arguments, "input": file}, "input")
    options.require(["rerank_label"], {"rerank_label": rerank_label, "rerank": rerank}, "rerank")
    if output:
        atomic.check_output_file(Path(output))
    parsed = read_search_queries(file, **arguments) if file else _parse_queries(queries)
    opened = Index(index)
    opened.check_approximate(approximate)
    reranker = Reranker(options.load_model(rerank, device, precision), rerank_label) if rerank else None
    loaded = load_index_model(opened, model, device=device, precision=precision, mapped=True)
    searcher = Searcher(opened, loaded, top_k, approximate, reranker, rerank_top)
    results = ScoredSearch(parsed, searcher)
    if approximate:
        console.print_note(opened.recall_message)
    answers = []
    if output:
        with atomic.atomic_file(Path(output)) as path, path.open("w", encoding="utf-8") as out:
            out.writelines(json.dumps(answer, ensure_ascii=False) + "\n" for answer in results)
        console.print_note(f"{output}: the results of {pluralize(len(parsed), 'query', 'queries')}")
    elif as_json:
        answers = list(results)
    else:
        _print_results(results, as_tables=bool(queries))
    results.log_unscored()
    scores = results.metrics() if results.has_relevant_texts else None
    if as_json:
        document = {} if scores is None else {"scores": scores}
        console.print_json(document | ({"output": output} if output else {"queries": answers}))
    elif scores is not None:
        count = pluralize(int(scores.pop("queries")), "query", "queries")
        tables.print_values(count, {name: format_number(value) for name, value in scores.items()})


def _print_results(results: ScoredSearch, *, as_tables: bool) -> None:
    """Print the texts of each query, as a table or a JSON object; with relevant texts only tables."""
    for answer in results:
        if as_tables:
            tables.print_search_results(answer)
        elif not results.has_relevant_texts:
            console.print_json(answer)


def _parse_queries(queries: tuple[str, ...]) -> list[Query]:
    from bertsmith.inference.search import Query

    lines = enumerate(options.read_lines(queries), start=1)
    parsed = [Query(text, f"query {i}", str(i)) for i, (_, text) in lines if not is_blank(text)]
    if not parsed:
        raise click.UsageError("the query is empty")
    return parsed
