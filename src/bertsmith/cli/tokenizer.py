"""The commands `tokenizer train`, `tokenizer inspect`, and `tokenizer extend`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import rich_click as click

from bertsmith import console
from bertsmith.cli import corpus_tables, options, pretraining_tables, tables
from bertsmith.cli.commands import Group
from bertsmith.cli.options import DIR, FILE, MODEL, Integer, Size
from bertsmith.formatting import format_percent, pluralize


@click.group(cls=Group)
def tokenizer() -> None:
    """Train a vocabulary, compare vocabularies, and add words to one.

    \b
    Example:
      bertsmith tokenizer train corpus.txt --output-dir tokenizer
      bertsmith tokenizer inspect tokenizer --text corpus.txt
    """


@tokenizer.command("train")
@options.files
@options.output_dir
@click.option(
    "--vocab-size", type=Integer(10, 10_000_000), default=30_000, help="Entries, including special tokens."
)
@options.choice(
    "--kind",
    "wordpiece",
    "byte-level-bpe",
    "unigram",
    default="wordpiece",
    help="Algorithm: that of BERT, RoBERTa (which keeps case), or ALBERT.",
)
@click.option("--cased", is_flag=True, help="Keep case and accents.")
@click.option("--chinese", is_flag=True, help="For Chinese text: each character is a word.")
@click.option(
    "--min-frequency",
    type=Integer(1, 1_000_000_000),
    default=2,
    help="Merge pairs that occur at least N times (not for unigram).",
)
@options.choice(
    "--normalizer",
    "hf",
    "google",
    default="hf",
    help="Variant of BERT's rules: Hugging Face's, or the original with pinned Unicode.",
)
@click.option(
    "--max-ram", type=Size(), help="Memory limit, such as 512MB; documents are sampled to stay below it."
)
@options.random_seed
@options.reading
@options.as_json
def tokenizer_train(files: tuple[str, ...], output_dir: str, as_json: bool, **arguments: Any) -> None:
    """Train a vocabulary on text files.

    \b
    Example:
      bertsmith tokenizer train corpus.txt more.jsonl.gz --output-dir tokenizer \\
        --vocab-size 8000

    FILES are files, folders, and globs: plain text with a blank line between documents, or .jsonl, .csv, or
    .parquet with a column "text"; also compressed. The same files always give the same vocabulary.
    """
    from bertsmith.tokenizer_training.train import train_tokenizer

    arguments["reading"] = options.pop_reading(arguments)
    arguments["kind"] = arguments["kind"].replace("-", "_")
    arguments["cased"] = arguments["cased"] or None  # byte-level BPE always keeps case
    with console.ProgressBar("reading", options.size_of(files)) as bar:
        trained = train_tokenizer(files, output_dir, progress=bar.update_bytes, **arguments)
    record = json.loads((Path(output_dir) / "training.json").read_text(encoding="utf-8"))
    if as_json:
        console.print_json({"tokenizer": output_dir, "vocab_size": trained.vocab_size, **record})
    else:
        entries = pluralize(trained.vocab_size, "entry", "entries")
        console.print_result(f"{output_dir}: {entries} from {pluralize(record['words'], 'word')}")
    for note in _omissions(record):
        console.print_note(note)
    if not as_json:
        console.print_note(pretraining_tables.prepare_hint(files, arguments["reading"], output_dir))


def _omissions(record: dict[str, Any]) -> Iterator[str]:
    """Describe what a training did not read or keep."""
    if record["share_sampled"] < 1:
        share = format_percent(record["share_sampled"])
        yield f"--max-ram: the vocabulary is from a sample of {record['documents_sampled']:,} documents ({share})"
    if record["size"] < record["requested_size"]:
        yield f"the text has only {record['size']:,} of the {record['requested_size']:,} requested tokens"
    if record["characters_cut"]:
        yield (
            f"the vocabulary has no room for the {pluralize(record['characters_cut'], 'rarest character')} "
            f"({format_percent(record['characters_cut_share'])} of the text; most often "
            f"{' '.join(record['characters_cut_first'])}): words with these are unknown; raise --vocab-size"
        )
    if record["words_cut"]:
        count, share = pluralize(record["words_cut"], "word"), record["words_cut"] / record["words"]
        yield f"{count} ({format_percent(share)}) not learned from: too long, or with such a character"


@tokenizer.command("inspect")
@click.argument("tokenizers", nargs=-1, required=True, type=MODEL)
@click.option(
    "--text", "files", multiple=True, required=True, type=FILE, help="A text file; can be repeated."
)
@options.reading
@click.option("--cased", multiple=True, type=FILE, help="A vocab.txt of these that keeps case.")
@click.option("--limit", type=Size(), help="Read only this much text, such as 10MB.")
@options.html
@options.as_json
def tokenizer_inspect(files: tuple[str, ...], as_json: bool, **arguments: Any) -> None:
    """Compare tokenizers on a text: pieces per word, unknown words, coverage of scripts.

    \b
    Example:
      bertsmith tokenizer inspect tokenizer bert-base-uncased --text corpus.txt \\
        --html report.html

    TOKENIZERS are folders, vocab.txt or tokenizer.json files, runs, or published names. A word is a run of
    letters, marks, and digits, or one ideograph.
    """
    from bertsmith.inspection.inspect import inspect_tokenizers

    reading = options.pop_reading(arguments)
    with console.ProgressBar("reading", arguments["limit"]) as bar:
        report = inspect_tokenizers(files=files, reading=reading, progress=bar.update_bytes, **arguments)
    tables.show(report, as_json, corpus_tables.print_inspection)
    if arguments["html"] is not None:
        console.print_note(f"written: {arguments['html']}")


@tokenizer.command("extend")
@click.argument("files", nargs=-1, type=FILE)
@click.option("--model", type=DIR, help="A run or model folder whose vocabulary and vectors to extend.")
@click.option("--tokenizer", type=DIR, help="A tokenizer without a model.")
@click.option("--output-dir", type=DIR, help="The folder to write; without it, only show the words.")
@click.option("--words", type=Integer(1, 1_000_000), default=1000, help="Maximum number of new words.")
@click.option("--min-frequency", type=Integer(1), default=5, help="Minimum count of a new word.")
@click.option("--min-pieces", type=Integer(2), default=2, help="Minimum pieces of a new word.")
@click.option("--against", multiple=True, type=FILE, help="General text: its common words are not proposed.")
@click.option("--word-list", type=FILE, help="Add the words of this file, one per line, and no others.")
@options.choice(
    "--init", "mean", "first", default="mean", help="New vectors: the mean of a word's pieces, or the first."
)
@options.reading
@options.as_json
def tokenizer_extend(files: tuple[str, ...], output_dir: str | None, as_json: bool, **arguments: Any) -> None:
    """Add the words of a domain to a vocabulary, and to the model that uses it.

    \b
    Example:
      bertsmith tokenizer extend articles.txt --model bert
      bertsmith tokenizer extend articles.txt --model bert --output-dir bert-medical

    FILES are text of the domain. The command proposes words that the vocabulary splits, those that save most
    tokens first. New words are appended, so that no id changes; all other weights stay. Longer words that begin
    with a new one are split differently, which the report shows. For byte-level BPE, each merge that a word needs
    is an entry, too.
    """
    from bertsmith.pretraining.extend_vocabulary import extend_tokenizer

    if not files and not arguments["word_list"]:
        raise click.UsageError("name text FILES of the domain, or a --word-list")
    reading = options.pop_reading(arguments)
    with console.ProgressBar("reading", None) as bar:
        report = extend_tokenizer(files, output_dir, reading=reading, progress=bar.update_bytes, **arguments)
    tables.show(report, as_json, corpus_tables.print_extension)
    requested = arguments["words"]
    if not arguments["word_list"] and report["added"] < requested:
        console.print_note(f"the files have only {report['added']:,} of the {requested:,} requested words")
    if output_dir is not None:
        entries = pluralize(report["vocab_size"], "entry", "entries")
        console.print_note(f"{output_dir}: {report['vocab_size_before']:,} → {entries}")
