"""The verbs of a corpus: `data prepare`."""

from __future__ import annotations

from typing import Any

import click

from bertsmith.cli.options import as_json


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
