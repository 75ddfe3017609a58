"""The command `score`: pseudo-log-likelihoods of texts, and accuracy on minimal pairs."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import rich_click as click

from bertsmith import console
from bertsmith.cli import options, pretraining_tables, tables
from bertsmith.cli.commands import Command
from bertsmith.cli.options import FILE, MODEL, Integer
from bertsmith.formatting import pluralize

if TYPE_CHECKING:
    from bertsmith.inference.scoring import Scorer


@click.command(cls=Command)
@click.argument("model", type=MODEL)
@click.argument("texts", nargs=-1)
@click.option("--input", type=FILE, help="Texts: a .txt with one per line, or a table.")
@options.text_column
@options.encoding
@click.option("--pairs", type=FILE, help="Minimal pairs: a .jsonl, .csv, or .tsv with columns good and bad.")
@click.option("--good-column", metavar="NAME", help="Column of the good sentences; default: good.")
@click.option("--bad-column", metavar="NAME", help="Column of the bad sentences; default: bad.")
@click.option(
    "--group-column",
    "group_columns",
    multiple=True,
    metavar="NAME",
    help="Column to group pairs by; can be repeated; default: phenomenon and paradigm.",
)
@click.option("--sample", type=Integer(1), help="Score only N pairs, in proportion to the groups.")
@click.option("--seed", type=Integer(0), help="Seed of --sample; default: 0.")
@click.option(
    "--variant",
    type=click.Choice(["within_word", "token"]),
    help="Mask each token together with the later tokens of its word, or alone; default: within_word. Causal "
    "models have no variant.",
)
@click.option("--output", type=FILE, help="Write a row for each text or pair: .csv, .jsonl, or .json.")
@options.computation
@options.as_json
def score(
    model: str,
    texts: tuple[str, ...],
    variant: Any,
    output: str | None,
    device: str,
    precision: str,
    as_json: bool,
    **arguments: Any,
) -> None:
    """Score TEXTS, a file, or the lines of standard input by the pre-trained MODEL, or score minimal pairs.

    \b
    Example:
      bertsmith score bert "The river sings." "The river sing."
      bertsmith score bert --input hypotheses.txt --output scores.csv
      bertsmith score bert --pairs blimp.jsonl --sample 1000

    The score of a text is its pseudo-log-likelihood: the sum of log p(token | the others) over its tokens, each
    masked in turn, in nats. Higher is more likely. The scores rank hypotheses, such as those of a speech
    recognizer. The pseudo-perplexity, exp(-score / tokens), compares texts of different lengths. Both compare
    models only if these share a tokenizer. A pair is correct if the good sentence has the higher score; chance is
    50 %, and a tie is wrong. Empty texts are counted, not scored.
    """
    from bertsmith.inference.output import output_format, refuse_existing

    _check(texts, arguments)
    form = output_format(output, None)
    if output:
        refuse_existing(Path(output))
    if as_json and output and arguments["pairs"] is None:
        raise click.UsageError("--json is one JSON document on standard output; omit --output")
    scorer = options.load_model(model, device, precision).scorer(variant)
    if arguments["pairs"] is not None:
        _score_pairs(scorer, output, form, as_json, **arguments)
    else:
        _score_texts(scorer, texts, output, form, as_json, **arguments)


def _check(texts: tuple[str, ...], arguments: dict[str, Any]) -> None:
    """Raise InputError if the texts are not from one source, or an option has no effect."""
    sources = [name for name in ("input", "pairs") if arguments[name] is not None]
    if len(sources) == 2:
        raise click.UsageError("--input and --pairs exclude each other")
    options.check_texts(texts, arguments[sources[0]] if sources else None, "score MODEL")
    options.require(["good_column", "bad_column", "group_columns", "sample"], arguments, "pairs")
    options.require(["seed"], arguments, "sample")
    options.require(["text_column"], arguments, "input")
    options.require(["encoding"], arguments, sources[0] if sources else "input")


def _score_texts(
    scorer: Scorer,
    texts: tuple[str, ...],
    output: str | None,
    form: str,
    as_json: bool,
    *,
    input: str | None,
    text_column: str | None,
    encoding: str | None,
    **_: Any,
) -> None:
    from bertsmith.inference.output import shorten, write_rows
    from bertsmith.inference.scoring import score_and_rank
    from bertsmith.inference.text_input import read_text_rows

    if input:
        texts_of_file = read_text_rows(input, text_column, encoding=encoding)
        located = [(row.location, row.text) for row in texts_of_file]
    else:
        located = options.read_lines(texts)
    if not located:
        raise click.UsageError("standard input is empty; give texts, --input FILE, or --pairs FILE")
    with console.ProgressBar("scoring", len(located), unit="texts") as bar:
        rows = score_and_rank(located, scorer, bar.update)
    if as_json:
        console.print_json(rows)
    elif output is not None:
        write_rows(rows, form, Path(output))
        console.print_note(f"{output}: {pluralize(len(rows), 'score')}")
    elif rows:
        width = max(12, shutil.get_terminal_size((100, 24)).columns - 51)
        cells = [
            (
                row["rank"],
                shorten(row["text"], width),
                f"{row['score']:.3f}",
                f"{row['tokens']:,}",
                f"{row['pseudo_perplexity']:,.2f}",
            )
            for row in rows
        ]
        console.print_table("", ("rank", "text", "score", "tokens", "pseudo-perplexity"), cells)


def _score_pairs(
    scorer: Scorer,
    output: str | None,
    form: str,
    as_json: bool,
    *,
    pairs: str,
    sample: int | None,
    seed: int | None,
    input: None,
    text_column: None,
    **columns: Any,
) -> None:
    from bertsmith.inference.minimal_pairs import read_pairs, score_pairs
    from bertsmith.inference.output import write_rows

    minimal_pairs = read_pairs(pairs, **columns).sample(sample, seed or 0)
    with console.ProgressBar("scoring", 2 * len(minimal_pairs), unit="sentences") as bar:
        scores = score_pairs(minimal_pairs, scorer, bar.update)
    for message in scores.messages():
        console.print_note(message)
    if output is not None:
        write_rows(list(scores.rows()), form, Path(output))
        console.print_note(f"{output}: {pluralize(len(minimal_pairs), 'pair')}")
    document = scores.to_dict()
    title = f"minimal pairs, {scorer.variant}"
    tables.show(document, as_json, lambda pairs: pretraining_tables.print_pairs(title, pairs))
