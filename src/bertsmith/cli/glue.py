"""The verb `finetune glue`: GLUE's nine tasks, one after the other, and their table."""

from __future__ import annotations

from typing import Any

import click

from bertsmith.cli import options
from bertsmith.cli.verbs import Verb


@click.command(cls=Verb)
@click.option("--model", required=True, metavar="DIR|NAME", help="A run, a model folder or a published name.")
@click.option("--data", required=True, metavar="DIR", help="A folder with one of each task: CoLA, SST-2, …")
@click.option(
    "--output-dir", "out", required=True, metavar="DIR", help="The folder for the runs and their table."
)
@click.option("--tasks", metavar="A,B", help="Only these tasks [those whose files are there].")
@click.option(
    "--sample", type=click.IntRange(1), metavar="N", help="Use N training examples of each, by files.seed."
)
@click.option("--recipe", metavar="FILE", help="YAML of the settings of all runs; --set wins over it.")
@options.short_forms
@options.changes
@options.resume
@options.as_json
def glue(
    model: str,
    data: str,
    out: str,
    tasks: str | None,
    sample: int | None,
    recipe: str | None,
    changes: dict[str, Any],
    resume: bool,
    as_json: bool,
    **short: Any,
) -> None:
    """Fine-tune a model for each task of GLUE, and print the benchmark's table.

    \b
    Example:
      bertsmith finetune glue --model bert --data glue --output-dir runs
      bertsmith finetune glue --model bert --data glue --output-dir runs --tasks cola,rte --epochs 5
      bertsmith finetune glue --model bert --data glue --output-dir runs --resume

    Each task's folder has train and dev files as they are published (.tsv, .csv or .jsonl, also compressed; of
    MNLI dev_matched and dev_mismatched). Each run is an ordinary one, such as runs/CoLA. Scores are those on dev.
    """
    from bertsmith import console
    from bertsmith.experiments.glue import finetune_glue

    report = finetune_glue(
        model,
        out,
        data=data,
        tasks=None if tasks is None else [name.strip() for name in tasks.split(",")],
        sample=sample,
        recipe=recipe,
        settings=options.changes_of(options.short_of(short), changes),
        resume=resume,
    )
    if as_json:
        console.print_json({"output_dir": out, **report})
        return
    rows = [
        (
            row["task"],
            f"{row['train_examples']:,}",
            ", ".join(f"{name} {value:.1f}" for name, value in row["figures"].items()),
            "–" if row["baseline"] is None else f"{row['baseline']:.1f}",
        )
        for row in report["tasks"]
    ]
    console.print_table(f"{out}: GLUE, on dev", ["task", "examples", "scores", "most frequent"], rows)
    console.print_result(f"average: {report['average']:.1f}")
