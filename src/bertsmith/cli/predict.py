"""The commands that answer for texts: `predict` and `fill-mask`."""

from __future__ import annotations

import codecs
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import rich_click as click

from bertsmith import console
from bertsmith.cli import options, tables
from bertsmith.cli.commands import Command, RunCommand
from bertsmith.cli.options import FILE, Integer
from bertsmith.formatting import pluralize


@click.command(cls=RunCommand)
@options.run
@options.texts
@click.option(
    "--input", "file", type=FILE, help="Examples in a format of the task, or a .txt with a text per line."
)
@click.option("--output", type=FILE, help="Write the predictions here: .csv, .jsonl, or .json.")
@click.option(
    "--format",
    metavar="NAME",
    help="json: an object per line; csv: the rows of the input with predictions; table; or a format of the task: "
    "conll, semeval, squad. Default: json, or that of --output.",
)
@options.settings
@options.inference
def predict(
    run: str,
    texts: tuple[str, ...],
    file: str | None,
    output: str | None,
    format: str | None,
    device: str,
    precision: str,
    as_json: bool,
    settings: dict[str, Any],
) -> None:
    """Predict answers for TEXTS, a file, or the lines of standard input with the model of RUN.

    \b
    Example:
      bertsmith predict moods "what a day" "leave me alone"
      bertsmith predict moods "what a day" --format table
      bertsmith predict moods --input texts.csv --output predictions.csv
      cat texts.txt | bertsmith predict moods > predictions.jsonl

    The command prints one JSON object per example, in order: the line, the text, the answer with its score, and
    the number of tokens that were read. --json prints one list. The input has the columns of training;
    --text-column and other settings of the task name others; labels are ignored. Empty texts are counted, not
    predicted. Pairs of texts come from a file, or one pair per line with a tab between the texts; questions with
    passages come from a file.
    """
    from bertsmith.inference import output as formats
    from bertsmith.inference.task_predictor import delimiter_of
    from bertsmith.io import atomic
    from bertsmith.io.compression import read_blocks

    if as_json and (output or format not in (None, "json")):
        raise click.UsageError("--json is one JSON document on standard output; omit --output and --format")
    if output:
        atomic.check_output_file(Path(output), overwrite=False)
    options.check_texts(texts, file)
    model = options.load_model(run, device, precision)
    form = formats.output_format(output, format, model.task.declaration.output_format)
    predictor = model.predictor.with_settings(settings, "predict", file or "")
    if file:
        predictions = predictor.answered_file(file)
    elif texts:
        predictions = predictor.answered(predictor.examples({predictor.task.declaration.inputs[0]: texts}))
    else:
        predictions = predictor.answered(predictor.examples_of_lines(sys.stdin.buffer, "standard input"))
    report, delimiter = model.task.report, delimiter_of(file or "", predictor.task)
    if output:
        count = formats.write_predictions(report, predictions, form, delimiter, Path(output))
        console.print_note(f"{output}: {pluralize(count, 'prediction')}")
    elif form == "table":
        width = shutil.get_terminal_size((100, 24)).columns
        console.print_table("", *formats.table_of(report, predictions, width))
    elif form == "json":
        tables.print_json_objects(formats.prediction_objects(predictions), as_json)
    elif form == "csv" and sys.stdout.isatty():
        for line in formats.csv_lines(report, predictions, delimiter):
            console.print_result(line.removesuffix("\n"))
    elif form == "csv":  # with the byte order mark of the file, as spreadsheets expect
        has_mark = file and next(read_blocks(file), b"").startswith(codecs.BOM_UTF8)
        _write(["\ufeff"] * bool(has_mark))
        _write(formats.csv_lines(report, predictions, delimiter))
    else:
        _write(report.write_output(predictions))


def _write(lines: Iterable[str]) -> None:
    """Write text to stdout unchanged, for scripts and other programs."""
    for line in lines:
        sys.stdout.buffer.write(line.encode("utf-8"))
    sys.stdout.buffer.flush()


@click.command("fill-mask", cls=Command)
@options.run
@click.argument("text")
@click.option("--top-k", type=Integer(1, 1000), default=5, help="Predictions for each mask.")
@click.option(
    "--max-length", type=Integer(2), help="Tokens around each mask of a longer text; default: all that fit."
)
@options.inference
def fill_mask(run: str, text: str, device: str, precision: str, as_json: bool, **arguments: Any) -> None:
    """Predict the words behind each [MASK] of TEXT with the pre-trained model of RUN.

    \b
    Example:
      bertsmith fill-mask bert "Paris is the [MASK] of France." --top-k 3
      bertsmith fill-mask bert-chinese "巴黎是[MASK]国的首都。"
    """
    answers = options.load_model(run, device, precision).fill_mask(text, **arguments)
    if as_json:
        console.print_json([[prediction.to_dict() for prediction in answer] for answer in answers])
        return
    for i, answer in enumerate(answers, 1):
        title = text if len(answers) == 1 else f"{text} ({i} of {len(answers)})"
        rows = [(row.token, f"{row.score:.4f}") for row in answer]
        console.print_table(title, ["token", "probability"], rows)
