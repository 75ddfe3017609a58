"""The verb `embed`: texts become vectors, or an index of them."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

import click

from bertsmith.cli import options
from bertsmith.cli.computing import On, computed
from bertsmith.cli.text_input import ID_COLUMN, rows_of, texts_of
from bertsmith.cli.verbs import Verb
from bertsmith.errors import InputError
from bertsmith.formatting import pluralize

if TYPE_CHECKING:
    from bertsmith.inference.model import Model


@click.command(cls=Verb)
@click.argument("model")
@click.argument("texts", nargs=-1)
@click.option(
    "--input",
    "file",
    metavar="FILE",
    help="Texts: a .txt with one per line, or a .jsonl, .csv, .tsv or .parquet.",
)
@click.option("--text-column", metavar="NAME", help="The column of --input that holds the texts [text].")
@ID_COLUMN
@click.option("--encoding", metavar="NAME", help="The encoding of a file that is not UTF-8.")
@click.option("--output", "out", metavar="FILE", help="Write the vectors here: .npy, .parquet or .jsonl.")
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
@computed
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
    on: On,
    as_json: bool,
) -> None:
    """Turn TEXTS, a file's texts or the lines of standard input into vectors with MODEL; or into an index.

    \b
    Example:
      bertsmith embed similar --input texts.txt --output vectors.npy
      bertsmith embed similar --input passages.jsonl --text-column passage --index index
      bertsmith search index "who painted the ceiling?"

    MODEL is a run of `bertsmith finetune embed`, a folder of sentence-transformers, or any encoder. A vector for
    each text, in order: an empty text has one, too (of the special tokens), but is left out of an index. Without
    --output and --index, prints one JSON object per text.
    """
    from bertsmith import console, hardware
    from bertsmith.inference import embed_file
    from bertsmith.inference.model import load

    _check_embed(texts, file, text_column, out, index, approximate, normalize)
    target = embed_file.check_out(out) if out else None
    if as_json and target is None and index is None and not texts:
        raise InputError(
            "single_json_document",
            "--json is one JSON document",
            hint="leave it out to get a JSON object per text",
        )
    hardware.configure_process()
    loaded = load(model, **on)
    if index is not None:
        source = file if file is not None else texts_of(texts)
        how: dict[str, Any] = {"text_column": text_column, "id_column": id_column, "encoding": encoding}
        how |= {"pooling": pooling, "max_length": max_length, "approximate": approximate}
        _index(loaded, source, index, how, as_json=as_json)
        return
    embedder = loaded.embedder(pooling, normalize, max_length)
    rows = rows_of(texts, file, text_column, id_column, encoding)
    if target is None:
        objects = embed_file.as_objects(embed_file.embedded_rows(rows, embedder))
        if as_json:
            console.print_json(list(objects))
        else:
            for row in objects:
                console.print_json(row)
        return
    number = embed_file.write_vectors(embed_file.embedded_rows(rows, embedder), embedder.size, target)
    if as_json:
        console.print_json(
            {"output": out, "vectors": number, "numbers": embedder.size, **embedder.made._asdict()}
        )
        return
    console.print_note(f"{out}: {pluralize(number, 'vector')} of {embedder.size} numbers")


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
        raise InputError("texts_and_file", "both texts and a file are given", hint="give one of them")
    if not texts and not file and sys.stdin.isatty():
        raise InputError(
            "no_text",
            "there is no text to embed",
            hint="give texts, --input FILE, or pipe lines in: … | bertsmith embed MODEL",
        )
    if text_column is not None and file is None:
        raise InputError(
            "option_needs_file", "--text-column is a column of --input", hint="give the file, or leave it out"
        )
    if out and index:
        raise InputError(
            "exclusive_options", "--output and --index exclude each other", hint="give one of them"
        )
    if approximate and index is None:
        raise InputError(
            "option_needs_index", "--approximate is for an index", hint="give --index DIR, or leave it out"
        )
    if index is not None and os.path.isdir(index) and os.listdir(index):
        raise InputError(
            "folder_not_empty",
            "the folder exists and is not empty",
            location=index,
            hint="name another --index, or remove it",
        )
    if normalize is False and index is not None:
        raise InputError(
            "vectors_normalized", "--no-normalize: vectors of an index have the length 1", hint="leave it out"
        )


def _index(model: Model, source: Any, out: str, how: dict[str, Any], *, as_json: bool) -> None:
    from bertsmith import console

    built = model.index(source, out, **how)
    if as_json:
        said = None if built.recall is None else built.recall.model_dump()
        console.print_json(
            {"index": out, "texts": len(built), "numbers": built.dimension, "approximate": said}
        )
        return
    console.print_note(f"{out}: {pluralize(len(built), 'text')}, {built.dimension} numbers each")
    console.print_note(f'next: bertsmith search {out} "a query"')
