"""The verb `ablate`: a paper's table at one's own size."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from bertsmith.cli import options
from bertsmith.cli.verbs import Verb
from bertsmith.formatting import pluralize


@click.command(cls=Verb)
@click.argument("recipe")
@click.option(
    "--data", metavar="DIR", help="Token shards, from `bertsmith data prepare` [the recipe's `data`]."
)
@click.option(
    "--output-dir", "out", required=True, metavar="DIR", help="The folder for all runs and their report."
)
@click.option(
    "--tasks",
    metavar="FILE",
    help="YAML of what each model is fine-tuned for: a name, below it verb, train, validation, "
    "settings [the recipe's `tasks`].",
)
@click.option(
    "--pairs",
    metavar="FILE",
    help="Minimal pairs to score each model on, as `bertsmith score` does [the recipe's `pairs`].",
)
@click.option("--rows", metavar="A,B", help="Only these rows, and the first [all].")
@click.option(
    "--seeds", type=click.IntRange(1), default=3, show_default=True, metavar="N", help="Runs of each row."
)
@click.option(
    "--jobs",
    type=click.IntRange(1),
    metavar="N",
    help="Models at a time, each in a process of its own with its share of the cores [of small models as many as "
    "there are cores, else 1].",
)
@options.changes
@options.resume
@options.as_json
def ablate(
    recipe: str,
    data: str | None,
    out: str,
    tasks: str | None,
    pairs: str | None,
    rows: str | None,
    seeds: int,
    jobs: int | None,
    changes: dict[str, Any],
    resume: bool,
    as_json: bool,
) -> None:
    """Repeat a paper's comparison at your size: pre-train each row with several seeds, and set them side by side.

    \b
    Example:
      bertsmith ablate recipes/ablations/formats.yaml --data shards --tasks tasks.yaml --output-dir formats
      bertsmith ablate … --pairs blimp.jsonl --seeds 5 --set train.max_steps=2000
      bertsmith ablate … --resume

    RECIPE: YAML of the rows, each with the settings that it changes, and of the paper's figures; it may name
    data, tasks and pairs, too. --set holds for all pre-training runs; all compute in one precision, chosen
    once. A figure of ours is held against the paper's of the same name (a task sst2 against SST-2), any other
    against what all of the paper's figures agree on. Differences are paired by seed; with few seeds most cannot
    be told from chance, and the report says which. Each run is an ordinary one, such as OUT/static/0/pretrain;
    plots stand in OUT/figures. Of several models at a time each says what it does in a file, such as
    OUT/static/0/output.txt.
    """
    from bertsmith import console
    from bertsmith.experiments.ablate import ablate as run
    from bertsmith.experiments.ablation_report import told

    report = run(
        recipe,
        out,
        data=data,
        tasks=tasks,
        pairs=pairs,
        rows=None if rows is None else [row.strip() for row in rows.split(",")],
        seeds=seeds,
        settings=changes,
        jobs=jobs,
        resume=resume,
    )
    if as_json:
        console.print_json({"output_dir": out, **report})
        return
    show(report)
    console.print_result(told(report))


def show(report: Mapping[str, Any]) -> None:
    """A table a figure: each row's mean and deviation, its difference from the first, and the paper's figure of
    that name; then all of the paper's figures, and which of its orderings hold here."""
    from bertsmith import console

    for name, rows in report["figures"].items():
        its = report["paper"].get(report["beside"].get(name), {})
        cells = [
            (
                row,
                _spread(one),
                _difference(one, row == report["baseline"]),
                *([str(its.get(row, ""))] if its else []),
            )
            for row, one in rows.items()
        ]
        console.print_table(
            f"{name}, {pluralize(report['seeds'], 'seed')}",
            ["row", "mean", f"against {report['baseline']}", *(["in the paper"] if its else [])],
            cells,
        )
    if report["paper"]:
        columns = list(report["paper"])
        every = dict.fromkeys(row for of in report["paper"].values() for row in of)
        cells = [(row, *(str(report["paper"][name].get(row, "")) for name in columns)) for row in every]
        source = f" ({report['source']})" if report["source"] else ""
        console.print_table(f"in the paper{source}", ["row", *columns], cells)
    if report["orderings"]:
        cells = [
            (one["better"], one["worse"], one["figure"], one["verdict"], _p(one))
            for one in report["orderings"]
        ]
        columns = ["better in the paper", "than", "figure", "here that", "p, adjusted"]
        console.print_table("the paper's orderings", columns, cells)


def _spread(one: Mapping[str, Any]) -> str:
    return f"{one['mean']:.4f}" + ("" if one["deviation"] is None else f" ± {one['deviation']:.4f}")


def _difference(one: Mapping[str, Any], first: bool) -> str:
    if first or one["difference"] is None:
        return ""
    p = "" if one["p"] is None else f" (p = {one['p']:.2g})"
    return f"{one['difference']:+.4f}{p}"


def _p(one: Mapping[str, Any]) -> str:
    return "" if one["adjusted_p"] is None else f"{one['adjusted_p']:.2g}"
