"""The commands that score fine-tuned models: `evaluate` and `compare`."""

from __future__ import annotations

from typing import Any

import rich_click as click

from bertsmith import console, log_handlers
from bertsmith.cli import options, tables
from bertsmith.cli.options import DIR, RUN, Integer
from bertsmith.cli.settings_options import RunCommand


@click.command(cls=RunCommand)
@click.argument("runs", nargs=-1, required=True, metavar="RUN...", type=RUN)
@options.labeled
@click.option(
    "--report", type=DIR, help="Write a page (report.html), its numbers, and plots to this new folder."
)
@options.settings
@options.computation
@options.as_json
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
    models = [options.load_model(run, device, precision) for run in runs]
    if len(models) == 1:
        scores = models[0].evaluate(data, report=report, **settings)
        tables.show(scores.to_dict(), as_json, lambda _: tables.print_scores(runs[0], data, scores))
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
    tables.print_scores(f"ensemble of {len(runs)}", data, ensemble_scores.ensemble)


@click.command(cls=RunCommand)
@click.argument("a", metavar="RUN_A", type=RUN)
@click.argument("b", metavar="RUN_B", type=RUN)
@options.labeled
@click.option(
    "--rounds", type=Integer(1), help="Resampling rounds; default: 10,000, or fewer for many examples."
)
@options.random_seed
@options.settings
@options.computation
@options.as_json
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
