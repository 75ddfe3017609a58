"""The commands that score models: `evaluate` and `compare` on labeled examples, and `score` on texts and pairs."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import rich_click as click

from bertsmith import console, hardware, log_handlers
from bertsmith.cli import options, pretraining_tables, tables
from bertsmith.cli.commands import Command, RunCommand
from bertsmith.cli.options import DIR, FILE, RUN, Integer
from bertsmith.formatting import format_number, pluralize, shorten

if TYPE_CHECKING:
    from bertsmith.inference.scoring import Scorer


@click.command(cls=RunCommand)
@click.argument("runs", nargs=-1, required=True, metavar="RUN...", type=RUN)
@options.labeled
@click.option(
    "--report", type=DIR, help="Write a page (report.html), its numbers, and plots to this new folder."
)
@options.settings
@options.inference
@log_handlers.without_repeats()
def evaluate(
    runs: tuple[str, ...],
    data: str,
    report: str | None,
    device: str,
    precision: str,
    as_json: bool,
    settings: dict[str, Any],
) -> None:
    """Score the fine-tuned model of RUN on labeled examples; several runs as an ensemble.

    \b
    Example:
      bertsmith evaluate moods --data test.csv
      bertsmith evaluate moods --data test.csv --report moods-test
      bertsmith evaluate runs/seed-0 runs/seed-1 runs/seed-2 --data test.csv

    An ensemble averages the outputs of its runs.
    """
    from bertsmith.inference.ensemble import Ensemble

    if len(runs) > 1 and report is not None:
        raise click.UsageError("--report is for one run; evaluate each RUN by itself")
    start = hardware.clock()
    models = [options.load_model(run, device, precision) for run in runs]
    if len(models) == 1:
        scores = models[0].evaluate(data, report=report, **settings)
        seconds = hardware.clock() - start
        tables.show(scores.to_dict(), as_json, lambda _: tables.print_scores(runs[0], data, scores, seconds))
        return
    ensemble = Ensemble(models)
    ensemble_scores = ensemble.scores(data, **settings)
    if as_json:
        pairs = zip(runs, ensemble_scores.models, strict=True)
        documents = [{"run": run, **scores.to_dict()} for run, scores in pairs]
        console.print_json({**ensemble_scores.ensemble.to_dict(), "runs": documents})
        return
    names = list(dict.fromkeys((ensemble.task.primary_metric, *ensemble.task.metrics.logged_metrics)))
    tables.print_ensemble(runs, names, ensemble_scores)
    seconds = hardware.clock() - start
    tables.print_scores(f"ensemble of {len(runs)}", data, ensemble_scores.ensemble, seconds)


@click.command(cls=RunCommand)
@click.argument("a", metavar="RUN_A", type=RUN)
@click.argument("b", metavar="RUN_B", type=RUN)
@options.labeled
@click.option("--rounds", type=Integer(1, 10_000_000), help="Resampling rounds; default: at most 10,000.")
@options.random_seed
@options.settings
@options.inference
@log_handlers.without_repeats()
def compare(
    a: str, b: str, data: str, device: str, precision: str, as_json: bool, settings: Any, **arguments: Any
) -> None:
    """Test if the fine-tuned models of RUN_A and RUN_B differ by more than chance.

    \b
    Example:
      bertsmith compare moods moods-large --data test.csv

    For each score, the command prints both values, the difference (B - A), its 95 % interval by a paired
    bootstrap, and the p-value of a two-sided approximate randomization test.
    """
    from bertsmith.inference.significance import compare as compare_models

    models = [options.load_model(run, device, precision) for run in (a, b)]
    report = compare_models(models[0], models[1], data, **arguments, **settings)
    tables.show(report, as_json, lambda _: tables.print_comparison(a, b, data, report))


@click.command(cls=Command)
@options.model
@options.texts
@click.option("--input", "file", type=FILE, help="Texts: a .txt with one per line, or a table.")
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
@click.option("--seed", type=Integer(0), default=0, help="Seed of --sample.")
@options.choice(
    "--variant",
    "within_word",
    "token",
    default=None,
    help="Mask each token together with the later tokens of its word, or alone; default: within_word. Causal "
    "models have no variant.",
)
@click.option("--output", type=FILE, help="Write a row for each text or pair: .csv, .jsonl, or .json.")
@options.inference
def score(
    model: str,
    texts: tuple[str, ...],
    file: str | None,
    text_column: str | None,
    encoding: str | None,
    pairs: str | None,
    variant: Any,
    output: str | None,
    device: str,
    precision: str,
    as_json: bool,
    **pair_options: Any,
) -> None:
    """Score TEXTS, a file, or the lines of standard input by the pre-trained MODEL, or score minimal pairs.

    \b
    Example:
      bertsmith score bert "The river sings." "The river sing."
      bertsmith score bert --input hypotheses.txt --output scores.csv
      bertsmith score bert --pairs blimp.jsonl --sample 1000

    The score of a text is its pseudo-log-likelihood: the sum of log p(token | the others) over its tokens, each
    masked in turn, in nats. Higher is more likely. The scores rank hypotheses, such as those of a speech
    recognizer. The pseudo-perplexity, exp(-score / tokens), compares texts of different lengths; of a causal
    model, both are without "pseudo". They compare models only if these share a tokenizer. A pair is correct if
    the good sentence has the higher score; chance is 50 %, and a tie is wrong. Empty texts are counted, not
    scored.
    """
    from bertsmith.inference.output import output_format, write_rows
    from bertsmith.io import atomic

    if file and pairs:
        raise click.UsageError("--input and --pairs exclude each other")
    options.check_texts(texts, file or pairs)
    values = {**pair_options, "text_column": text_column, "input": file, "pairs": pairs}
    options.require(["good_column", "bad_column", "group_columns", "sample"], values, "pairs")
    options.require(["text_column"], values, "input")
    form = output_format(output, None)
    if output:
        atomic.check_output_file(Path(output))
    scorer = options.load_model(model, device, precision).scorer(variant)
    if pairs:
        document, rows = _score_pairs(scorer, pairs, encoding=encoding, **pair_options)
    else:
        document = rows = _score_texts(scorer, texts, file, text_column, encoding)
    if output:
        write_rows(rows, form, Path(output))
        console.print_note(f"{output}: {pluralize(len(rows), 'pair' if pairs else 'score')}")
    if as_json:
        console.print_json(document)
    elif pairs:
        pretraining_tables.print_pairs(f"minimal pairs, {scorer.variant}", document)
    elif rows and not output:
        _print_scores(rows, scorer.perplexity_name)


def _score_texts(
    scorer: Scorer, texts: tuple[str, ...], file: str | None, text_column: str | None, encoding: str | None
) -> list[dict[str, Any]]:
    """Return a row for each text, the most likely first."""
    from bertsmith.inference.scoring import score_and_rank
    from bertsmith.inference.text_input import read_text_rows

    if file:
        texts_of_file = read_text_rows(file, text_column, encoding=encoding)
        located = [(row.location, row.text) for row in texts_of_file]
    else:
        located = options.read_lines(texts)
    if not located:
        raise click.UsageError("there is no text; give texts, --input FILE, or --pairs FILE")
    with console.ProgressBar("scoring", len(located), unit="texts") as bar:
        return score_and_rank(located, scorer, bar.update)


def _score_pairs(
    scorer: Scorer, pairs: str, *, sample: int | None, seed: int, **columns: Any
) -> tuple[Any, list[dict[str, Any]]]:
    """Return the report, and a row for each pair."""
    from bertsmith.inference.minimal_pairs import read_pairs, score_pairs

    minimal_pairs = read_pairs(pairs, **columns).sample(sample, seed)
    with console.ProgressBar("scoring", 2 * len(minimal_pairs), unit="sentences") as bar:
        scores = score_pairs(minimal_pairs, scorer, bar.update)
    for message in scores.messages():
        console.print_note(message)
    return scores.to_dict(), list(scores.rows())


def _print_scores(rows: list[dict[str, Any]], perplexity_name: str) -> None:
    width = max(12, shutil.get_terminal_size((100, 24)).columns - 51)
    cells = [
        (
            row["rank"],
            shorten(row["text"], width),
            format_number(row["score"], 3),
            row["tokens"],
            format_number(row["pseudo_perplexity"], 2),
        )
        for row in rows
    ]
    console.print_table("", ("rank", "text", "score", "tokens", perplexity_name), cells)
