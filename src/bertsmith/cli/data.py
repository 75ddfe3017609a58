"""The verbs of a corpus: `data prepare`, `data check`, `data show`."""

from __future__ import annotations

import time
from typing import Any

import click

from bertsmith.cli.options import (
    FiniteRange,
    Size,
    as_json,
    bytes_of,
    changes,
    reading_of,
    reading_options,
)
from bertsmith.cli.verbs import Verb, Verbs

_language = click.option(
    "--language", metavar="CODE", help="The language, for sentence ends: en, zh, …; default: detected."
)


@click.group(cls=Verbs)
def data() -> None:
    """Check a corpus, turn it into token shards, look at training instances.

    \b
    Example:
      bertsmith data check corpus.txt
      bertsmith data prepare corpus.txt --tokenizer tokenizer --output-dir shards
    """


@data.command("prepare")
@click.argument("files", nargs=-1, required=True)
@click.option("--tokenizer", required=True, metavar="DIR", help="A tokenizer's folder.")
@click.option(
    "--output-dir",
    "out",
    required=True,
    metavar="DIR",
    help="The folder of shards to write; must be empty or new.",
)
@reading_options
@_language
@click.option(
    "--on-error",
    type=click.Choice(["stop", "skip"]),
    default="stop",
    show_default=True,
    help="What to do with what cannot be read: stop, or skip it into rejects.jsonl.",
)
@click.option(
    "--max-rejects",
    type=click.IntRange(0),
    default=1000,
    show_default=True,
    metavar="N",
    help="Stop when more than N are skipped.",
)
@click.option(
    "--deduplicate",
    type=click.Choice(["no", "exact", "near"]),
    default="no",
    show_default=True,
    help="Drop documents that repeat an earlier one.",
)
@click.option(
    "--workers",
    type=click.IntRange(1),
    metavar="N",
    help="Parallel workers; the shards are the same for any N.",
)
@click.option("--max-ram", type=Size(), metavar="SIZE", help="Memory to stay below: 512MB, 2GB, …")
@click.option(
    "--engine",
    type=click.Choice(["local", "ray"]),
    default="local",
    show_default=True,
    help="Whose processes the workers are: this machine's, or a Ray cluster's.",
)
@click.option("--address", metavar="ADDRESS", help="The Ray cluster's address; default: one on this machine.")
@as_json
def data_prepare(files: tuple[str, ...], tokenizer: str, out: str, as_json: bool, **how: Any) -> None:
    """Turn text files into token shards: documents → sentences → ids, memory-mapped Arrow files.

    \b
    Example:
      bertsmith data prepare corpus.txt --tokenizer tokenizer --output-dir shards
      bertsmith data prepare crawl/ 'more/*.jsonl.gz' --tokenizer tokenizer --output-dir shards --on-error skip

    FILES: files, folders and globs; plain text (.txt, .md, …), .jsonl, .csv, .tsv or .parquet, each but the last
    also .gz, .zst, .bz2 or .xz. Stopped and started again with the same arguments, it continues.
    """
    from bertsmith import console
    from bertsmith.cli.hints import pretrain_hint
    from bertsmith.corpus.diagnostics import required_settings
    from bertsmith.corpus.prepare import prepare
    from bertsmith.inspection.check import hard_wrap_warning

    if how["address"] and how["engine"] != "ray":
        raise click.UsageError("--address belongs to --engine ray")
    reading = reading_of(how)
    with console.ProgressBar("encoding", bytes_of(files)) as bar:
        shards = prepare(
            files,
            tokenizer,
            out,
            reading=reading,
            progress=lambda done: bar.update(done, f"{done / 1e6:,.0f} MB"),
            **how,
        )
    if (wrapped := hard_wrap_warning(files, reading, how["language"])) is not None:
        console.print_note(wrapped)
    counts: dict[str, Any] = {"data": out, **shards.counts}
    if as_json:
        console.print_json({**counts, "files_skipped": shards.skipped})
        return
    console.print_table(
        f"{out}", ["what", "number"], [(k.replace("_", " "), f"{v:,}") for k, v in shards.counts.items()]
    )
    if shards.counts.get("rejected"):
        console.print_note(f"what could not be read is in {out}/rejects.jsonl")
    console.print_note(pretrain_hint(out, required_settings(shards)))


class _ManyAgainst(Verb):
    """A command whose --against takes all that follows it up to the next option, as shells expand a glob."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        spread: list[str] = []
        taking = False
        for argument in args:
            if argument.startswith("-"):
                taking = argument == "--against"
            elif taking and spread[-1] != "--against":
                spread.append("--against")
            spread.append(argument)
        try:
            return super().parse_args(ctx, spread)
        except click.MissingParameter:  # no FILES are left: they came behind a single --against FILE
            ctx.params.clear()
            return super().parse_args(ctx, list(args))


@data.command("check", cls=_ManyAgainst)
@click.argument("files", nargs=-1, required=True)
@reading_options
@_language
@click.option("--tokenizer", metavar="DIR", help="Also count its tokens, unknowns and pieces per word.")
@click.option(
    "--against",
    multiple=True,
    metavar="TASK_FILES",
    help="Task files whose rows must not be in the corpus; all up to the next option.",
)
@click.option(
    "--ngram",
    type=click.IntRange(1),
    default=13,
    show_default=True,
    metavar="N",
    help="Words in a row that count as a match.",
)
@click.option(
    "--preset",
    metavar="NAME",
    help="The model whose training is forecast.  [default: bert-mini-uncased, of Chinese text bert-mini-chinese]",
)
@click.option(
    "--epochs",
    type=FiniteRange(0, min_open=True),
    default=1.0,
    show_default=True,
    metavar="N",
    help="Passes over the corpus to forecast.",
)
@click.option("--no-benchmark", is_flag=True, help="Do not measure how long an update takes here.")
@click.option(
    "--sample", type=Size(), metavar="SIZE", help="Look only at the first SIZE of text: 100MB, 2GB, …"
)
@click.option(
    "--max-examples",
    type=click.IntRange(1),
    default=20,
    show_default=True,
    metavar="N",
    help="Locations and examples to list for each finding.",
)
@click.option("--html", metavar="FILE", help="Write the report as one page with plots, too.")
@as_json
def data_check(
    files: tuple[str, ...], as_json: bool, no_benchmark: bool, html: str | None, **how: Any
) -> None:
    """Look through a corpus before hours are spent on it: what is wrong, where, and what to do.

    \b
    Example:
      bertsmith data check corpus.txt --html report.html
      bertsmith data check crawl/ --tokenizer tokenizer --sample 1GB --against tasks/*/dev.*

    FILES: as for data prepare. Exits with 0 whatever is found, with 2 where a file is missing.
    """
    from bertsmith import console
    from bertsmith.cli.corpus_table import print_check
    from bertsmith.corpus.checks.check import CheckOptions
    from bertsmith.inspection.check import check_corpus

    reading = reading_of(how)
    sample = how["sample"]
    with console.ProgressBar("looking", sample or bytes_of(files)) as bar:
        begin = time.monotonic()

        def progress(done: int) -> None:
            rate = done / 1e6 / max(1e-3, time.monotonic() - begin)
            bar.update(done, f"{done / 1e6:,.0f} MB, {rate:,.1f} MB/s")

        report = check_corpus(
            files,
            CheckOptions(
                reading, how["language"], how["ngram"], sample=sample, max_examples=how["max_examples"]
            ),
            tokenizer=how["tokenizer"],
            against=how["against"],
            preset_name=how["preset"],
            epochs=how["epochs"],
            benchmark=not no_benchmark,
            html=html,
            progress=progress,
        )
    if as_json:
        console.print_json(report)
    else:
        print_check(report)
    if html is not None:
        console.print_note(f"the report as a page: {html}")


@data.command("show")
@click.argument("folder", metavar="DIR")
@click.option(
    "--index", type=click.IntRange(0), default=0, show_default=True, metavar="I", help="Which instance."
)
@click.option(
    "--epoch", type=click.IntRange(0), default=0, show_default=True, metavar="E", help="Of which epoch."
)
@click.option("--settings", "settings_file", metavar="FILE", help="A run's settings.yaml, or a recipe.")
@changes
@click.option("--seed", type=click.IntRange(0), metavar="N", help="The run's seed; default: of the settings.")
@click.option(
    "--phase",
    type=click.IntRange(1, 2),
    default=1,
    show_default=True,
    metavar="N",
    help="2: the run's second phase, with long sequences.",
)
@as_json
def data_show(
    folder: str,
    index: int,
    epoch: int,
    settings_file: str | None,
    changes: dict[str, Any],
    seed: int | None,
    phase: int,
    as_json: bool,
) -> None:
    """Print one training instance: what is masked, what was there, its label, where its text is from.

    \b
    Example:
      bertsmith data show shards --index 12 --epoch 3 --set data.masking=whole_word
      bertsmith data show shards --index 12 --settings bert/settings.yaml

    DIR: a folder of data prepare. The instance is the one that pre-training with these settings reads; the names
    of its settings are those of pretrain --help.
    """
    from bertsmith import console
    from bertsmith.cli.instance_text import print_instance
    from bertsmith.inspection.show import show_instance

    found = show_instance(
        folder,
        index,
        epoch,
        settings_file=settings_file,
        settings=changes,
        seed=seed,
        phase=phase,
    )
    if as_json:
        console.print_json(found)
    else:
        print_instance(found)
