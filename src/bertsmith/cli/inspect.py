"""The commands that describe: `info` and `attention`."""

from __future__ import annotations

import rich_click as click

from bertsmith import console
from bertsmith.cli import info_tables, options, tables
from bertsmith.cli.commands import Command
from bertsmith.cli.options import MODEL

_COLUMNS = ("layer", "head", "special", "itself", "before", "after", "others", "spread")


@click.command(cls=Command)
@options.model
@click.argument("text")
@click.argument("second", required=False)
@click.option(
    "--layer",
    "layers",
    type=int,
    multiple=True,
    metavar="N",
    help="Only this layer, from 0; can be repeated.",
)
@click.option(
    "--head", "heads", type=int, multiple=True, metavar="N", help="Only this head, from 0; can be repeated."
)
@click.option("--output", metavar="FILE.png", help="Draw the weights of one head, or of all.")
@options.model_device
@options.as_json
def attention(
    model: str,
    text: str,
    second: str | None,
    layers: tuple[int, ...],
    heads: tuple[int, ...],
    output: str | None,
    device: str,
    as_json: bool,
) -> None:
    """Show where each attention head of MODEL looks in TEXT, or in the pair of TEXT and SECOND.

    \b
    Example:
      bertsmith attention bert "The river sings of rain." --output heads.png
      bertsmith attention bert "The river sings of rain." --layer 0 --head 2

    The table has a row for each head with the mean weights on special tokens, the token itself, the tokens before
    and after it, and all others, and the number of tokens that the weights spread to. --json prints the weights.
    """
    weights = options.load_model(model, device).attention(text, second).select(layers or None, heads or None)
    if output is not None:
        weights.plot(output)
        console.print_note(f"plot: {output}")
    if as_json:
        console.print_json({"tokens": weights.tokens, "heads": weights.to_rows()})
        return
    rows = [tuple(tables.decimal(row[name], 2) for name in _COLUMNS) for row in weights.summary()]
    console.print_table(" ".join(weights.tokens), _COLUMNS, rows)


@click.command(cls=Command)
@click.argument("folder", required=False, type=MODEL)
@click.option("--diff", nargs=2, metavar="A B", help="Compare two models: presets, runs, or model folders.")
@options.as_json
def info(folder: str | None, diff: tuple[str, str] | None, as_json: bool) -> None:
    """Describe FOLDER: a run, a model, data, a tokenizer, or a published name; without it, this machine.

    \b
    Example:
      bertsmith info bert
      bertsmith info albert-base
      bertsmith info --diff bert-base-uncased roberta-base
      bertsmith info
    """
    from bertsmith.inspection.info import compare_models
    from bertsmith.inspection.info import info as describe

    if diff is not None and folder is not None:
        raise click.UsageError("--diff compares two models; omit FOLDER")
    document = compare_models(*diff) if diff is not None else describe(folder)
    tables.show(document, as_json, info_tables.print_info)
