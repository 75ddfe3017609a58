"""The verbs `embed` and `search`: texts become vectors, or an index of them; and what is nearest to a query."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from bertsmith.cli import options
from bertsmith.cli.verbs import Verb
from bertsmith.errors import InputError
from bertsmith.wording import counted

if TYPE_CHECKING:
    from bertsmith.retrieval.index import TextRow
    from bertsmith.use.predict import Model
    from bertsmith.use.search_file import Searched

_DEVICE = click.option("--device", default="auto", metavar="D", help="Where to compute: cpu, cuda, auto.")
_ID_COLUMN = click.option(
    "--id-column", metavar="NAME", help="The column of --file with the ids [_id or id, else the line]."
)


@click.command(cls=Verb)
@click.argument("model")
@click.argument("texts", nargs=-1)
@click.option(
    "--file", metavar="FILE", help="Texts: a .txt with one per line, or a .jsonl, .csv, .tsv or .parquet."
)
@click.option("--text-column", metavar="NAME", help="The column of --file that holds the texts [text].")
@_ID_COLUMN
@click.option("--encoding", metavar="NAME", help="The encoding of a file that is not UTF-8.")
@click.option("--out", metavar="FILE", help="Write the vectors here: .npy, .parquet or .jsonl.")
@click.option("--index", metavar="DIR", help="Build an index for `bertsmith search` here.")
@click.option(
    "--approximate", is_flag=True, help="Also build the index's graph for fast, approximate search."
)
@click.option(
    "--pooling",
    type=click.Choice(["mean", "cls", "max"]),
    help="What becomes the vector: the tokens' mean, the first, the maximum [the model's own, or mean].",
)
@click.option(
    "--normalize/--no-normalize",
    default=None,
    help="Whether vectors get the length 1 [as the model says; in an index always].",
)
@click.option(
    "--max-length",
    type=click.IntRange(2),
    metavar="N",
    help="Tokens read of a text [the model's own, or what it can take].",
)
@_DEVICE
@options.as_json
def embed(
    model: str,
    texts: tuple[str, ...],
    file: str | None,
    text_column: str | None,
    id_column: str | None,
    encoding: str | None,
    out: str | None,
    index: str | None,
    approximate: bool,
    pooling: Any,
    normalize: bool | None,
    max_length: int | None,
    device: str,
    as_json: bool,
) -> None:
    """Turn TEXTS, a file's texts or the lines of standard input into vectors with MODEL; or into an index.

    \b
    Example:
      bertsmith embed similar --file texts.txt --out vectors.npy
      bertsmith embed similar --file passages.jsonl --text-column passage --index index
      bertsmith search index "who painted the ceiling?"

    MODEL is a run of `bertsmith finetune embed`, a folder of sentence-transformers, or any encoder. A vector for
    each text, in order: an empty text has one, too (of the special tokens), but is left out of an index. Without
    --out and --index, prints one JSON object per text.
    """
    from bertsmith import console, machine
    from bertsmith.use import embed_file
    from bertsmith.use.predict import load

    _check_embed(texts, file, text_column, out, index, approximate, normalize)
    target = embed_file.check_out(out) if out else None
    if as_json and target is None and index is None and not texts:
        raise InputError("--json is one JSON document", "leave it out to get a JSON object per text")
    machine.prepare_process()
    loaded = load(model, device, console.note)
    if index is not None:
        source = file if file is not None else _texts(texts)
        how: dict[str, Any] = {"text_column": text_column, "id_column": id_column, "encoding": encoding}
        how |= {"pooling": pooling, "max_length": max_length, "approximate": approximate}
        _index(loaded, source, index, how, as_json=as_json)
        return
    embedder = loaded.embedder(pooling, normalize, max_length)
    rows = _rows(texts, file, text_column, id_column, encoding)
    if target is None:
        objects = embed_file.as_objects(embed_file.embedded_rows(rows, embedder))
        if as_json:
            console.result_json(list(objects))
        else:
            for row in objects:
                console.result_json(row)
        return
    number = embed_file.write_vectors(embed_file.embedded_rows(rows, embedder), embedder.size, target)
    if as_json:
        console.result_json(
            {"out": out, "vectors": number, "numbers": embedder.size, **embedder.made._asdict()}
        )
        return
    console.note(f"{out}: {counted(number, 'vector')} of {embedder.size} numbers")


def _check_embed(
    texts: tuple[str, ...],
    file: str | None,
    text_column: str | None,
    out: str | None,
    index: str | None,
    approximate: bool,
    normalize: bool | None,
) -> None:
    """InputError where there is nothing to read, or more than one thing, or an option of something else."""
    if texts and file:
        raise InputError("both texts and a file are given", "give one of them")
    if not texts and not file and sys.stdin.isatty():
        raise InputError(
            "there is no text to embed",
            "give texts, --file FILE, or pipe lines in: … | bertsmith embed MODEL",
        )
    if text_column is not None and file is None:
        raise InputError("--text-column is a column of --file", "give the file, or leave it out")
    if out and index:
        raise InputError("--out and --index exclude each other", "give one of them")
    if approximate and index is None:
        raise InputError("--approximate is for an index", "give --index DIR, or leave it out")
    if index is not None and os.path.isdir(index) and os.listdir(index):
        raise InputError(f"{index}: already exists and is not empty", "name another --index, or remove it")
    if normalize is False and index is not None:
        raise InputError("--no-normalize: vectors of an index have the length 1", "leave it out")


def _index(model: Model, source: Any, out: str, how: dict[str, Any], *, as_json: bool) -> None:
    from bertsmith import console
    from bertsmith.use.search import build_index

    built = build_index(model, source, out, tell=console.note, **how)
    if as_json:
        said = None if built.approximate is None else built.approximate.model_dump()
        console.result_json(
            {"index": out, "texts": len(built), "numbers": built.dimension, "approximate": said}
        )
        return
    console.note(f"{out}: {counted(len(built), 'text')}, {built.dimension} numbers each")
    console.note(f'next: bertsmith search {out} "a query"')


def _texts(texts: tuple[str, ...]) -> list[str]:
    """Texts of the command line, or the lines of standard input."""
    return list(texts) or [row.text for row in _rows((), None, None, None, None)]


def _rows(
    texts: tuple[str, ...],
    file: str | None,
    text_column: str | None,
    id_column: str | None,
    encoding: str | None,
) -> Iterator[TextRow]:
    from bertsmith.use.lines import texts_of_lines
    from bertsmith.use.text_rows import rows_of_lines, text_rows

    if file is not None:
        return text_rows(file, text_column, id_column, encoding)
    if texts:
        return rows_of_lines((f"text:{number}", text) for number, text in enumerate(texts, start=1))
    return rows_of_lines(texts_of_lines(sys.stdin.buffer, "standard input"))


@click.command(cls=Verb)
@click.argument("index")
@click.argument("queries", nargs=-1)
@click.option("--file", metavar="FILE", help="Queries: as `bertsmith embed` reads texts.")
@click.option("--text-column", metavar="NAME", help="The column of --file that holds the queries [text].")
@_ID_COLUMN
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
    "--qrels", metavar="FILE", help="What each query of --file should find, by ids (BEIR, TREC): scores it."
)
@click.option("--out", metavar="FILE", help="Write the results here, a JSON object per query: .jsonl.")
@_DEVICE
@options.as_json
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
    device: str,
    as_json: bool,
) -> None:
    """Find the texts of INDEX that are nearest to QUERIES, to a file's queries or the lines of standard input.

    \b
    Example:
      bertsmith embed similar --file passages.jsonl --index index
      bertsmith search index "who painted the ceiling?" --top-k 3
      bertsmith search index --file queries.jsonl --qrels qrels.tsv --out found.jsonl
      bertsmith search index "who painted the ceiling?" --rerank fits --rerank-top 50

    Scores are cosines, compared exactly; equal ones stay in their order. A file of queries with their passages
    (.jsonl with query and positives, SQuAD's .json), or one with --qrels, is scored: recall, MRR and nDCG; --out
    keeps its results. Other queries of a file or of standard input print one JSON object each. With --json all of
    it is one document.
    """
    from bertsmith import console, machine
    from bertsmith.use.search_file import Query, Searched, read_search

    if queries and file:
        raise InputError("both queries and a file are given", "give one of them")
    if not queries and not file and sys.stdin.isatty():
        raise InputError(
            "there is no query", "give queries, --file FILE, or pipe lines in: … | bertsmith search INDEX"
        )
    for flag, value, needs, other in (
        ("--qrels", qrels, "--file", file),
        ("--text-column", text_column, "--file", file),
        ("--rerank-label", rerank_label, "--rerank", rerank),
    ):
        if value is not None and other is None:
            raise InputError(f"{flag} goes with {needs}", f"give {needs} too, or leave it out")
    if out is not None:
        _check_out(out)
    machine.prepare_process()
    if file is not None:
        asked = read_search(file, text_column, id_column, qrels)
    else:
        given = list(queries) or [row.text for row in _rows((), None, None, None, None)]
        asked = [Query(text, f"query {i}", str(i)) for i, text in enumerate(given, start=1) if text.strip()]
        if not asked:
            raise InputError("the query is empty", "write what is to be found")
    searched = _searched(
        Searched,
        asked,
        index,
        model,
        device,
        top_k,
        rerank_top,
        rerank,
        rerank_label,
        approximately=approximate,
    )
    if approximate:
        from bertsmith.use.search import told_of_recall

        console.note(told_of_recall(searched.searcher.index))
    _show(searched, out, as_json=as_json, plain=bool(queries))


def _searched(
    kind: type[Searched],
    queries: list[Any],
    index: str,
    model: str | None,
    device: str,
    top_k: int,
    rerank_top: int,
    rerank: str | None,
    rerank_label: str | None,
    *,
    approximately: bool,
) -> Searched:
    """The search, ready to go; a model or an index that does not fit is told before anything is computed."""
    from bertsmith import console
    from bertsmith.retrieval.index import Index
    from bertsmith.use.predict import load
    from bertsmith.use.rerank import Reranker
    from bertsmith.use.search import Wanted, searcher_of

    opened = Index(index)
    opened.refuse_without_graph(approximately)
    reranker = None if rerank is None else Reranker(load(rerank, device, console.note), rerank_label)
    how = Wanted(top_k, approximately, reranker, rerank_top)
    return kind(queries, searcher_of(opened, model, device), how)


def _check_out(out: str) -> None:
    from pathlib import Path

    from bertsmith.use.predictions import refuse_existing

    if Path(out).suffix.lower() != ".jsonl":
        raise InputError(f"--out {out}: results are written as .jsonl", "end it with .jsonl")
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
                console.result_json(answer)
    searched.tell(console.note)
    scores = searched.figures() if searched.has_gold else None
    if as_json:
        console.result_json(
            {
                **({} if scores is None else {"scores": scores}),
                **({"queries": answers} if out is None else {"out": out}),
            }
        )
    elif scores is not None:
        number = counted(int(scores.pop("queries")), "query", "queries")
        rows = [(name, f"{value:.4f}") for name, value in scores.items()]
        console.result_table(number, ["score", "value"], rows)


def _write(searched: Searched, out: str) -> None:
    import json
    from pathlib import Path

    from bertsmith import console, disk

    with disk.new_file(Path(out)) as path, path.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(answer, ensure_ascii=False) + "\n" for answer in searched)
    console.note(f"{out}: the results of {counted(len(searched.queries), 'query', 'queries')}")


def _table(answer: dict[str, Any]) -> None:
    """The results of one query."""
    from bertsmith import console
    from bertsmith.use.predictions import shortened

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
    console.result_table(shortened(answer["query"], most + 30), columns, rows)
