"""The commands that give a model to others or to other tools: `export`, `card`, and `push`."""

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

_FORMATS = ("onnx", "onnx-int8", "openvino")
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


@click.command(cls=Command)
@options.model
@click.option(
    "--to", type=click.Choice(_FORMATS), multiple=True, default=["onnx"], help="Format; can be repeated."
)
@options.output_dir
@click.option("--data", type=FILE, help="Labeled examples to compare on; default: the run's validation file.")
@options.as_json
def export(model: str, to: tuple[str, ...], output_dir: str, data: str | None, as_json: bool) -> None:
    """Write MODEL in a format of other tools, and compare their answers with its own.

    \b
    Example:
      bertsmith export moods --output-dir moods-onnx
      bertsmith export moods --to onnx --to onnx-int8 --output-dir moods-onnx

    The folder opens in ONNX Runtime, transformers.js, OpenVINO, and, if the model embeds texts,
    sentence-transformers. Nothing is written if an output differs by more than 0.0001 in fp32, or if the score in
    int8 is outside of its 95 % interval.
    """
    from bertsmith.export.export import export_model

    show(export_model(options.load_model(model, "auto"), output_dir, to=to, data=data), as_json, _print_files)


def _print_files(report: dict[str, Any]) -> None:
    columns = ["file", "size", "largest difference", "score", "seconds"]
    rows = [
        (
            file["file"],
            format_bytes(file["bytes"]),
            f"{file['difference']:.1e}",
            _format_score(file),
            f"{file['seconds']:.2f} (here {file['seconds_before']:.2f})",
        )
        for file in report["files"]
    ]
    console.print_table(report["output_dir"], columns, rows)
    console.print_note(f"compared on {report['files'][0]['checked_on']}")


def _format_score(file: dict[str, Any]) -> str:
    """Return the score with its change, or the cosine of a model without one."""
    if "score" in file:
        return f"{file['metric']} {file['score']:.4f} ({file['score'] - file['score_before']:+.4f})"
    return f"cosine {file['cosine']:.4f}" if "cosine" in file else ""


def _print_upload(result: dict[str, Any]) -> None:
    rows = [(name, format_bytes(size)) for name, size in result["files"].items()]
    console.print_table(result["repository"], ["file", "size"], rows)
    if result["url"] is None:
        console.print_note("nothing was uploaded: omit --dry-run to upload these files")
    else:
        console.print_note(f"uploaded: {result['url']}")
