"""The commands that show what the layers of a model represent: `neighbors` and `probe`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import rich_click as click

from bertsmith import console
from bertsmith.cli import options
from bertsmith.cli.commands import Command
from bertsmith.cli.options import FILE, Integer
from bertsmith.cli.tables import show
from bertsmith.formatting import format_number, format_percent, pluralize

_MAX_ROWS = 20  # nearest occurrences in the terminal
_CONTEXT = 10  # characters on each side of a word in the terminal


@click.command(cls=Command)
@click.argument("word")
@options.model
@click.option(
    "--corpus", type=FILE, required=True, help="Texts with the word: lines, or a column of a table."
)
@options.text_column
@click.option("--sense-column", metavar="NAME", help="Column of the sense of the word in each text.")
@click.option(
    "--layer",
    type=Integer(0),
    help="Layer of the neighbors; default: with the highest silhouette, from layer 1 on.",
)
@click.option("--max-occurrences", type=Integer(4), default=200, help="Read the first ones only.")
@click.option("--output", type=FILE, metavar="FILE.png", help="Draw all layers, or write a page (.html).")
@options.model_device
@options.as_json
def neighbors(
    word: str,
    model: str,
    corpus: str,
    text_column: str | None,
    sense_column: str | None,
    layer: int | None,
    max_occurrences: int,
    output: str | None,
    device: str,
    as_json: bool,
) -> None:
    """Show which occurrences of WORD are similar in the layers of MODEL.

    \b
    Example:
      bertsmith neighbors bank bert --corpus corpus.txt --output bank.png
      bertsmith neighbors bank bert --corpus senses.csv --sense-column sense

    The table has the silhouette of each layer, from -1 to 1: of the senses, or else of two clusters. With senses,
    it also has the accuracy of the nearest neighbor. Beside the layers are the static vector of the word, the
    random neighbor, and TF-IDF vectors of the texts.
    """
    from bertsmith.io import atomic

    if output is not None:
        atomic.check_output_file(Path(output), overwrite=True)
    result = options.load_model(model, device).neighbors(
        word,
        corpus,
        text_column=text_column,
        sense_column=sense_column,
        layer=layer,
        max_occurrences=max_occurrences,
    )
    if output is not None:
        console.print_note(f"written: {result.plot(output)}")
    show(result.to_dict(), as_json, lambda _: _print_neighbors(result))


def _print_neighbors(result: Any) -> None:
    from bertsmith.explain.neighbors_page import snippet

    has_senses = result.chance is not None
    rows = [
        (_name(s.representation), format_number(s.silhouette, 3), format_percent(s.accuracy))
        for s in result.separations
    ]
    if has_senses:
        rows.append(("random neighbor", "–", format_percent(result.chance)))
    of, num_columns = ("senses", 3) if has_senses else ("two clusters", 2)
    title = f"{result.word}: {pluralize(len(result.occurrences), 'occurrence')}, separation of {of}"
    columns = ["vectors", "silhouette", "accuracy of the nearest"][:num_columns]
    console.print_table(title, columns, [row[:num_columns] for row in rows])
    occurrences = result.occurrences
    console.print_table(
        f"nearest in layer {result.layer} (the first {min(_MAX_ROWS, len(occurrences))})",
        ["occurrence", "nearest", "cosine"],
        [
            (
                f"{snippet(o, _CONTEXT)} [{result.groups[i]}]",
                f"{snippet(occurrences[o.nearest], _CONTEXT)} [{result.groups[o.nearest]}]",
                format_number(o.cosine, 3),
            )
            for i, o in enumerate(occurrences[:_MAX_ROWS])
        ],
    )


@click.command(cls=Command)
@options.model
@click.option("--train", type=FILE, required=True, help="Sentences with a tag for each word.")
@click.option("--validation", type=FILE, required=True, help="Sentences on which the probes are scored.")
@click.option("--tag-column", metavar="NAME", help="Column of the tags, by number or name.")
@click.option(
    "--max-words", type=Integer(100), default=20_000, help="Words of random sentences of each file."
)
@options.random_seed
@click.option("--output", type=FILE, metavar="FILE.png", help="Draw the accuracies by layer.")
@options.model_device
@options.as_json
def probe(
    model: str,
    train: str,
    validation: str,
    tag_column: str | None,
    max_words: int,
    seed: int,
    output: str | None,
    device: str,
    as_json: bool,
) -> None:
    """Measure how well a linear probe reads the tag of a word from each layer of MODEL.

    \b
    Example:
      bertsmith probe bert --train train.conll --validation validation.conll --output probes.png

    The control probe learns a random tag for each word (Hewitt and Liang 2019). The selectivity is the difference
    of both accuracies: it is high if the states hold the tags, and low if the probe learns words by heart. The
    table also has the accuracy of the most frequent tag, and of that of each word. The files have the formats of
    `finetune tag`.
    """
    from bertsmith.io import atomic

    if output is not None:
        atomic.check_output_file(Path(output), overwrite=True)
    settings = {} if tag_column is None else {"tag_column": tag_column}
    report = options.load_model(model, device).probe(
        train, validation, settings=settings, max_words=max_words, seed=seed
    )
    if output is not None:
        console.print_note(f"plot: {report.plot(output)}")
    show(report.to_dict(), as_json, lambda _: _print_probes(report))


def _print_probes(report: Any) -> None:
    rows = [
        (
            f"layer {row.layer}",
            *map(format_percent, (row.accuracy, row.control_accuracy)),
            f"{100 * row.selectivity:.1f}",
        )
        for row in report.layers
    ]
    rows.append(("most frequent tag per word", format_percent(report.word_majority), "–", "–"))
    rows.append(("most frequent tag", format_percent(report.majority), "–", "–"))
    words = f"{report.train_words:,} words to train on, {report.validation_words:,} to score on"
    title = f"{pluralize(report.labels, 'tag')}; {words}"
    console.print_table(title, ["", "accuracy", "control task", "selectivity, points"], rows)


def _name(representation: int | str) -> str:
    return f"layer {representation}" if isinstance(representation, int) else representation
