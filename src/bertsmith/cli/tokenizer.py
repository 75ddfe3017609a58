"""The verbs of a vocabulary: `tokenizer train`."""

from __future__ import annotations

import json
from pathlib import Path

import click

from bertsmith.cli.options import as_json


@click.group()
def tokenizer() -> None:
    """Train a vocabulary."""


@tokenizer.command("train")
@click.argument("files", nargs=-1, required=True)
@click.option("--out", required=True, metavar="DIR", help="The folder to write, in the field's file layout.")
@click.option("--vocab-size", type=click.IntRange(10), default=30_000, show_default=True, metavar="N")
@click.option("--cased", is_flag=True, help="Keep case and accents.")
@click.option("--chinese", is_flag=True, help="Keep every ideograph that fits; each is a word of its own.")
@as_json
def tokenizer_train(
    files: tuple[str, ...], out: str, vocab_size: int, cased: bool, chinese: bool, as_json: bool
) -> None:
    """Train a WordPiece vocabulary from text files.

    \b
    Example:
      bertsmith tokenizer train corpus.txt more.jsonl.gz --out tokenizer --vocab-size 8000

    FILES: plain text with a blank line between documents, or .jsonl with a field "text"; each also .gz or
    .zst. The same files give the same vocabulary, always.
    """
    from bertsmith import console
    from bertsmith.errors import InputError
    from bertsmith.text.vocabulary import train_tokenizer

    if cased and chinese:
        raise InputError("--cased and --chinese exclude each other", "a Chinese vocabulary is lower-cased")
    with console.Bar("reading", None) as bar:
        trained = train_tokenizer(
            files,
            out,
            vocab_size=vocab_size,
            cased=cased,
            chinese=chinese,
            progress=lambda done: bar.advance_to(done, f"{done / 1e6:,.0f} MB"),
        )
    record = json.loads((Path(out) / "training.json").read_text(encoding="utf-8"))
    if as_json:
        console.result_json({"tokenizer": out, "vocab_size": trained.vocab_size, **record})
        return
    console.result(f"{out}: {trained.vocab_size:,} entries from {record['words']:,} words")
    if record["size"] < record["asked"]:
        console.note(f"the text holds no more pieces: {record['size']:,} of the {record['asked']:,} asked")
    if record["words_cut"]:
        console.note(
            f"{record['characters_cut']:,} rare characters got no place; "
            f"{record['words_cut']:,} words ({record['words_cut'] / record['words']:.3%}) will be unknown"
        )
    console.note(f"next: bertsmith data prepare {' '.join(files)} --tokenizer {out} --out DIR")
