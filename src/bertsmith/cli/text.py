"""The verbs that deal with text: `tokenizer train`, `data prepare`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

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


@click.group()
def data() -> None:
    """Turn files into token shards."""


@data.command("prepare")
@click.argument("files", nargs=-1, required=True)
@click.option("--tokenizer", required=True, metavar="DIR", help="A tokenizer's folder.")
@click.option(
    "--out", required=True, metavar="DIR", help="The folder of shards to write; must not hold anything."
)
@click.option(
    "--language", metavar="CODE", help="Whose sentence ends to look for: en, zh, …; default: looked up."
)
@click.option(
    "--workers", type=click.IntRange(1), metavar="N", help="Pieces made at a time; same bytes for any N."
)
@as_json
def data_prepare(
    files: tuple[str, ...], tokenizer: str, out: str, language: str | None, workers: int | None, as_json: bool
) -> None:
    """Turn text files into token shards: documents → sentences → ids, memory-mapped Arrow files.

    \b
    Example:
      bertsmith data prepare corpus.txt --tokenizer tokenizer --out shards
    """
    from bertsmith import console
    from bertsmith.data.prepare import prepare

    with console.Bar("encoding", None) as bar:
        shards = prepare(
            files,
            tokenizer,
            out,
            language=language,
            workers=workers,
            progress=lambda done: bar.advance_to(done, f"{done / 1e6:,.0f} MB"),
        )
    counts: dict[str, Any] = {"data": out, **shards.counts}
    if as_json:
        console.result_json(counts)
        return
    console.result_table(
        f"{out}", ["what", "number"], [(k.replace("_", " "), f"{v:,}") for k, v in shards.counts.items()]
    )
    console.note(f"next: bertsmith pretrain --preset bert-mini-uncased --data {out} --out RUN --minutes 30")
