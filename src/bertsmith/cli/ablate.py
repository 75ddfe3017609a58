"""The verb `ablate`: a paper's table at one's own size."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from bertsmith.cli import options
from bertsmith.cli.verbs import Verb
from bertsmith.formatting import pluralize

if TYPE_CHECKING:
    from bertsmith.experiments.ablation_report import AblationReport, RowMetric


@click.command(cls=Verb)
@click.argument("recipe")
@click.option(
    "--data", metavar="DIR", help="Token shards, from `bertsmith data prepare` [the recipe's `data`]."
)
@click.option("--out", required=True, metavar="DIR", help="The folder for all runs and their report.")
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
      bertsmith ablate recipes/ablations/formats.yaml --data shards --tasks tasks.yaml --out formats
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
    from bertsmith.experiments.ablation import ablate as run

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
        console.print_json({"out": out, **report.to_dict()})
        return
    show(report)
    console.print_result(report.describe_orderings())


def show(report: AblationReport) -> None:
    """Print a table per metric, of each row's mean, difference from the first row's, and value in the paper.

    Two further tables have all of the paper's values, and its orderings of rows that hold here.
    """
    from bertsmith import console

    for name, rows in report.metrics.items():
        paper = report.paper.get(report.paper_names.get(name, ""), {})
        cells = [
            (
                row,
                _mean(metric),
                "" if row == report.baseline else _difference(metric),
                *([str(paper.get(row, ""))] if paper else []),
            )
            for row, metric in rows.items()
        ]
        console.print_table(
            f"{name}, {pluralize(report.seeds, 'seed')}",
            ["row", "mean", f"against {report.baseline}", *(["in the paper"] if paper else [])],
            cells,
        )
    if report.paper:
        columns = list(report.paper)
        paper_rows = dict.fromkeys(row for values in report.paper.values() for row in values)
        cells = [(row, *(str(report.paper[name].get(row, "")) for name in columns)) for row in paper_rows]
        source = f" ({report.source})" if report.source else ""
        console.print_table(f"in the paper{source}", ["row", *columns], cells)
    if report.orderings:
        cells = [
            (one.better, one.worse, one.metric, one.verdict, _format_p(one.adjusted_p))
            for one in report.orderings
        ]
        columns = ["better in the paper", "than", "metric", "here that", "p, adjusted"]
        console.print_table("the paper's orderings", columns, cells)


def _mean(metric: RowMetric) -> str:
    return f"{metric.mean:.4f}" + ("" if metric.deviation is None else f" ± {metric.deviation:.4f}")


def _difference(metric: RowMetric) -> str:
    if metric.difference is None:
        return ""
    p = "" if metric.p is None else f" (p = {_format_p(metric.p)})"
    return f"{metric.difference:+.4f}{p}"


def _format_p(p: float | None) -> str:
    return "" if p is None else f"{p:.2g}"
