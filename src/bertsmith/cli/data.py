"""The commands `data prepare`, `data check`, and `data show`."""

from __future__ import annotations

from typing import Any

import rich_click as click

from bertsmith import console
from bertsmith.cli import corpus_tables, options, pretraining_tables, tables
from bertsmith.cli.commands import Group
from bertsmith.cli.options import DIR, FILE, Integer, Size


@click.group(cls=Group)
def data() -> None:
    """Check a corpus, turn it into token shards, and show training instances.

    \b
    Example:
      bertsmith data check corpus.txt
      bertsmith data prepare corpus.txt --tokenizer tokenizer --output-dir shards
    """


@data.command("prepare")
@options.files
@click.option("--tokenizer", required=True, type=DIR, help="A tokenizer, or a run or model that has one.")
@options.output_dir
@options.reading
@options.language
@options.choice(
    "--on-error", "stop", "skip", default="stop", help="skip: write unreadable records to rejects.jsonl."
)
@click.option("--max-rejects", type=Integer(0), default=1000, help="Stop after more than N rejects.")
@options.choice(
    "--deduplicate", "no", "exact", "near", default="no", help="Drop documents that repeat an earlier one."
)
@click.option(
    "--near-duplicate-threshold",
    type=click.FloatRange(0, 1, min_open=True),
    default=0.5,
    metavar="X",
    help="Smallest ratio of shared word 5-grams of near-duplicates; 1: equal documents only.",
)
@click.option("--workers", type=Integer(1, 1024), help="Parallel workers; the shards are the same for any N.")
@options.max_ram
@options.choice(
    "--engine", "local", "ray", default="local", help="Run the workers on this machine or on a Ray cluster."
)
@click.option("--address", metavar="ADDRESS", help="Address of the Ray cluster; default: start one here.")
@options.as_json
def data_prepare(files: tuple[str, ...], output_dir: str, as_json: bool, **arguments: Any) -> None:
    """Turn text files into token shards (memory-mapped Arrow files).

    \b
    Example:
      bertsmith data prepare corpus.txt --tokenizer tokenizer --output-dir shards
      bertsmith data prepare crawl/ 'more/*.jsonl.gz' --tokenizer tokenizer \\
        --output-dir shards --on-error skip

    FILES are files, folders, and globs: plain text (.txt, .md, …), .jsonl, .csv, .tsv, or .parquet; all but the
    last also compressed (.gz, .zst, .bz2, .xz). The same command continues an interrupted preparation.
    """
    from bertsmith.artifacts.locate import locate_tokenizer
    from bertsmith.corpus.checks.structure import hard_wrap_warning, required_settings
    from bertsmith.corpus.prepare import prepare

    if arguments["address"] and arguments["engine"] != "ray":
        raise click.UsageError("--address belongs to --engine ray")
    reading, tokenizer = options.pop_reading(arguments), locate_tokenizer(arguments.pop("tokenizer"))
    with console.ProgressBar("encoding", options.size_of(files)) as bar:
        arguments |= {"output_dir": output_dir, "reading": reading, "progress": bar.update_bytes}
        shards = prepare(files, tokenizer, **arguments)
    if (warning := hard_wrap_warning(files, reading, arguments["language"])) is not None:
        console.print_note(warning)
    if as_json:
        console.print_json({"data": output_dir, **shards.counts, "files_skipped": shards.skipped})
        return
    tables.print_values(output_dir, shards.counts)
    if shards.counts.get("rejected"):
        console.print_note(f"{output_dir}/rejects.jsonl lists the records that could not be read")
    console.print_note(pretraining_tables.pretrain_hint(output_dir, required_settings(shards)))


@data.command("check")
@options.files
@options.reading
@options.language
@click.option("--tokenizer", type=DIR, help="Also count tokens, unknown words, and pieces per word.")
@click.option(
    "--against",
    multiple=True,
    type=FILE,
    help="Task files whose rows must not be in the corpus: a file or a quoted glob; can be repeated.",
)
@click.option("--ngram", type=Integer(1, 1000), default=13, help="Words in a row that are a match.")
@click.option(
    "--preset",
    "preset_name",
    metavar="NAME",
    help="Model of the forecast; default: bert-mini-uncased, or -chinese.",
)
@click.option("--epochs", type=options.POSITIVE, default=1.0, help="Epochs of the forecast.")
@click.option("--no-benchmark", is_flag=True, help="Do not measure the time of an update.")
@click.option("--sample", type=Size(), help="Read only the first part of the text, such as 100MB.")
@click.option(
    "--max-examples", type=Integer(1, 1_000_000), default=20, help="Examples to list for each finding."
)
@options.html
@options.as_json
def data_check(
    files: tuple[str, ...], as_json: bool, sample: int | None, no_benchmark: bool, **arguments: Any
) -> None:
    """Check a corpus before you train on it: problems, their locations, and what to do.

    \b
    Example:
      bertsmith data check corpus.txt --html report.html
      bertsmith data check crawl/ --tokenizer tokenizer --sample 1GB \\
        --against 'tasks/*/dev.*'

    FILES are as for `data prepare`. The exit code is 0 whatever the check finds, and 2 if a file is missing.
    """
    from bertsmith.corpus.checks.check import CheckOptions
    from bertsmith.inspection.check import check_corpus

    reading = options.pop_reading(arguments)
    with console.ProgressBar("checking", sample or options.size_of(files)) as bar:
        arguments |= {"benchmark": not no_benchmark, "progress": bar.update_bytes}
        report = check_corpus(files, CheckOptions(reading, sample=sample), **arguments)
    tables.show(report, as_json, corpus_tables.print_check)
    if arguments["html"] is not None:
        console.print_note(f"report: {arguments['html']}")


@data.command("show")
@click.argument("folder", metavar="DIR", type=DIR)
@click.option("--index", type=Integer(0), default=0, help="Index of the instance.")
@click.option("--epoch", type=Integer(0), default=0, help="Index of the epoch.")
@click.option("--settings", "settings_file", type=FILE, help="A run's settings.yaml, or a recipe.")
@options.settings
@click.option("--phase", type=Integer(1, 2), default=1, help="2: the phase with long sequences.")
@options.as_json
def data_show(folder: str, index: int, epoch: int, as_json: bool, **arguments: Any) -> None:
    """Print one training instance: its masks, original tokens, label, and source text.

    \b
    Example:
      bertsmith data show shards --index 12 --set data.masking=whole_word
      bertsmith data show shards --index 12 --settings bert/settings.yaml

    DIR is a folder of `data prepare`. Pre-training with the same settings reads the same instance. For the
    settings, see `pretrain --help`.
    """
    from bertsmith.inspection.show import show_instance

    instance = show_instance(folder, index, epoch, **arguments)
    tables.show(instance, as_json, pretraining_tables.print_instance)
