"""The commands that give a model to others: `card` and `push`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import rich_click as click

from bertsmith import console
from bertsmith.cli import options
from bertsmith.cli.commands import Command
from bertsmith.cli.options import FILE
from bertsmith.cli.tables import show
from bertsmith.formatting import format_bytes

_description = options.combine(
    click.option("--language", metavar="CODE", help="Language of the texts, such as en."),
    click.option("--license", metavar="NAME", help="License, such as cc-by-4.0."),
)


@click.command(cls=Command)
@options.model
@click.option("--name", metavar="NAME", help="Name of the model; default: that of its folder.")
@_description
@click.option("--output", type=FILE, help="Write the card to this file, such as README.md.")
def card(model: str, name: str | None, language: str | None, license: str | None, output: str | None) -> None:
    """Print the model card of MODEL: what it learned from, its scores, and its limits.

    \b
    Example:
      bertsmith card moods --language en --license cc-by-4.0
      bertsmith card moods --output README.md

    The card has the metadata that the Hugging Face hub reads. Scores are those of the run, with 95 % intervals and
    beside cheap methods. Texts of the data and paths of this machine are left out.
    """
    from bertsmith.export.card import card as make_card
    from bertsmith.io.atomic import write_text

    text = make_card(options.load_model(model, "auto"), name=name, language=language, license=license)
    if output is None:
        console.print_result(text)
        return
    write_text(Path(output), text)
    console.print_note(f"model card: {output}")


@click.command(cls=Command)
@options.model
@click.argument("repository", metavar="OWNER/NAME")
@click.option("--private", is_flag=True, help="Create a private repository.")
@_description
@click.option("--dry-run", is_flag=True, help="Show the files; upload nothing.")
@options.as_json
def push(
    model: str,
    repository: str,
    private: bool,
    language: str | None,
    license: str | None,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Upload MODEL to the repository OWNER/NAME of the Hugging Face hub.

    \b
    Example:
      bertsmith push moods owner/moods --dry-run
      bertsmith push moods owner/moods --private --license cc-by-4.0

    A model folder without a README.md gets the model card. The command needs the extra `hub` and a token that may
    write (`hf auth login`).
    """
    from bertsmith.export.push import push as upload

    result = upload(
        options.load_model(model, "auto"),
        repository,
        private=private,
        language=language,
        license=license,
        dry_run=dry_run,
    )
    show(result, as_json, _print_upload)


def _print_upload(result: dict[str, Any]) -> None:
    rows = [(name, format_bytes(size)) for name, size in result["files"].items()]
    console.print_table(result["repository"], ["file", "size"], rows)
    if result["url"] is None:
        console.print_note("nothing was uploaded: omit --dry-run to upload these files")
    else:
        console.print_note(f"uploaded: {result['url']}")
