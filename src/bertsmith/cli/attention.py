"""`bertsmith attention`: what each head of a model looks at in a text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from bertsmith import hardware
from bertsmith.cli import options
from bertsmith.cli.computing import DEVICE
from bertsmith.cli.verbs import Verb
from bertsmith.errors import InputError

_COLUMNS = ("layer", "head", "special", "itself", "before", "after", "others", "spread")


@click.command(cls=Verb)
@click.argument("model")
@click.argument("text")
@click.argument("second", required=False)
@click.option(
    "--layer",
    "layers",
    type=int,
    multiple=True,
    metavar="N",
    help="Only this layer, from 0; may be repeated.",
)
@click.option(
    "--head", "heads", type=int, multiple=True, metavar="N", help="Only this head, from 0; may be repeated."
)
@click.option(
    "--output",
    "out",
    metavar="FILE",
    help="Draw the weights into this .png: of one head with its tokens, or of all.",
)
@DEVICE
@options.as_json
def attention(
    model: str,
    text: str,
    second: str | None,
    layers: tuple[int, ...],
    heads: tuple[int, ...],
    out: str | None,
    device: str,
    as_json: bool,
) -> None:
    """Say what each head of MODEL looks at in TEXT, or in the pair of TEXT and SECOND.

    \b
    Example:
      bertsmith attention bert "The river sings of rain."
      bertsmith attention bert "The river sings of rain." --output heads.png
      bertsmith attention bert "The river sings of rain." --layer 0 --head 2 --output head.png

    The table has a row for each head: where the weights of the text's tokens go on average, to the special tokens,
    to the token itself, to the one before or after it, to all others; and to how many tokens they spread. --json
    gives the weights themselves, a list of rows for each head.
    """
    from bertsmith import console
    from bertsmith.inference.model import load

    if out is not None and Path(out).suffix.lower() != ".png":
        raise InputError(
            "not_a_png",
            f"the plot is a PNG, which {out} is not",
            argument="output",
            hint="name a file that ends in .png",
        )
    hardware.configure_process()
    found = load(model, device).attention(text, second).of(layers or None, heads or None)
    if out is not None:
        found.plot(out)
    if as_json:
        console.print_json({"tokens": found.tokens, "heads": found.as_rows()})
        return
    rows = [tuple(_cell(name, row[name]) for name in _COLUMNS) for row in found.habits()]
    console.print_table(" ".join(found.tokens), _COLUMNS, rows)
    if out is not None:
        console.print_note(f"the weights are drawn in {out}")


def _cell(name: str, value: Any) -> str:
    if name in ("layer", "head"):
        return str(value)
    return f"{value:.1f}" if name == "spread" else f"{value:.2f}"
