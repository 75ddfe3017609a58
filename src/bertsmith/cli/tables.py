"""Tables that print the reports of fine-tuning, experiments, evaluation, and search."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertsmith import console
from bertsmith.formatting import pluralize

if TYPE_CHECKING:
    from bertsmith.finetuning.lr_finder import RateTest
    from bertsmith.inference.ensemble import EnsembleScores
    from bertsmith.tasks.results import Metrics

Report = Mapping[str, Any]

_MAX_EVALUATIONS = 20
_MAX_RATES = 22
_PAGE_KEYS = ("answers", "curve", "lengths", "findings", "settings")  # large parts that only the page shows


def decimal(value: float | None, digits: int = 4) -> str:
    """Format a number; "–" for None."""
    return "–" if value is None else f"{value:.{digits}f}"


def show(document: Any, as_json: bool, print_tables: Callable[[Any], None]) -> None:
    """Print a document as JSON or as tables."""
    if as_json:
        console.print_json(document)
    else:
        print_tables(document)


# Fine-tuning


def print_finetuning(
    output_dir: str,
    report: dict[str, Any],
    as_json: bool,
    print_report: Callable[[str, Report], None] | None = None,
) -> None:
    """Print the report of one or several fine-tuning runs.

    Args:
        output_dir: The folder of the runs.
        report: Their report.
        as_json: Print one JSON document.
        print_report: Prints the tables; None: those of one run.
    """
    if as_json:
        document = {name: value for name, value in report.items() if name not in _PAGE_KEYS}
        console.print_json({"run": output_dir, **document, "report": str(Path(output_dir) / "report.json")})
    else:
        (print_report or _print_run)(output_dir, report)


def _print_run(output_dir: str, report: Report) -> None:
    _print_evaluations(report["evaluations"])
    if report.get("stopped_early"):
        console.print_result(f"{output_dir}: {report['stopped_early']}")
    scores, baseline = report["dev"], report["baseline"]
    console.print_table(
        f"{output_dir}: validation scores of the best epoch by {report['decided_by']}",
        ["score", "this model", report.get("baseline_name", "baseline")],
        [
            (name, decimal(scores[name]), decimal(value))
            for name, value in baseline.items()
            if isinstance(value, float)
        ],
    )
    for name, value in report.get("chosen_on_dev", {}).items():
        console.print_note(
            f"{name.replace('_', ' ')} {value:.4g}, chosen on the validation data and saved with the model"
        )
    console.print_note(
        f"{pluralize(report['train_examples'], 'training example')}, {scores['examples']:,} for validation, "
        f"{console.format_duration(report['seconds'])}"
    )
    console.print_note(f"{Path(output_dir) / 'report.html'}: the report with plots, for a browser")
    console.print_note(f"next: bertsmith evaluate {output_dir} --data FILE")


def _print_evaluations(evaluations: Sequence[Report]) -> None:
    """Print the scores of the best and the last evaluations."""
    total = len(evaluations)
    listed = [row for i, row in enumerate(evaluations) if row["best"] or total - i <= _MAX_EVALUATIONS]
    scores = [name for name in evaluations[0] if name not in ("step", "epoch", "loss", "best")]
    rows = [
        (
            f"{row['epoch']:g}",
            f"{row['step']:,}",
            decimal(row["loss"]),
            *(decimal(row[name]) for name in scores),
            "← best" if row["best"] else "",
        )
        for row in listed
    ]
    more = f" ({len(listed)} of {total:,}; report.json has all)" if len(listed) < total else ""
    console.print_table(
        f"evaluations on the validation data{more}", ["epoch", "step", "loss", *scores, ""], rows
    )


def print_repeats(output_dir: str, report: Report) -> None:
    """Print the scores of several runs of a task, and their summary by cells of the grid."""
    metric = report["decided_by"]
    rows = [
        (
            row["run"],
            decimal(row["score"]),
            decimal(row["baseline"]),
            "–" if row["score"] is None else console.format_duration(row["seconds"]),
            "degenerate" if row["degenerate"] else "← best" if row["run"] == report["best"] else "",
        )
        for row in report["runs"]
    ]
    title = f"{output_dir}: {metric} on the validation data"
    console.print_table(title, ["run", metric, "baseline", "time", ""], rows)
    cells = [
        (", ".join(f"{name.rpartition('.')[2]}={value}" for name, value in cell["settings"].items()), cell)
        for cell in report["cells"]
        if cell["scores"] > 1
    ]
    columns = ("mean", "median", "best", "deviation")
    group = "by cell of the grid" if cells else f"of {pluralize(report['summary']['scores'], 'run')}"
    console.print_table(
        f"{metric}, {group}",
        ["", *columns, "degenerate"],
        [
            (name, *(decimal(cell[column]) for column in columns), len(cell["degenerate"]))
            for name, cell in cells or [("all", report["summary"])]
        ],
    )
    if (mean := report["summary"].get("mean_without_degenerate")) is not None:
        console.print_result(f"mean without degenerate runs: {mean:.4f}")
    for name, part in [*cells, ("", report["summary"])]:
        if part["pooled"] is not None:
            console.print_result(
                f"{name}{': ' if name else ''}predictions of all folds together: {metric} "
                f"{part['pooled'][metric]:.4f} ({part['pooled']['examples']:,} examples)"
            )
    if report["best"] is not None:
        console.print_note(f"next: bertsmith evaluate {output_dir}/{report['best']} --data FILE")


def print_glue(report: Report) -> None:
    """Print the table of GLUE."""
    rows = [
        (
            row["task"],
            f"{row['train_examples']:,}",
            ", ".join(f"{name} {value:.1f}" for name, value in row["metrics"].items()),
            decimal(row["baseline"], 1),
        )
        for row in report["tasks"]
    ]
    console.print_table(
        f"{report['output_dir']}: GLUE, on dev", ["task", "examples", "scores", "most frequent"], rows
    )
    console.print_result(f"average: {report['average']:.1f}")


def print_rates(rates: RateTest) -> None:
    """Print the smoothed loss of each seed at a selection of the rates, and the suggestion."""
    curves = [reading.smoothed for reading in rates.readings.values()]
    rows = [
        (f"{rates.rates[i]:.1e}", *(decimal(curve[i] if i < len(curve) else None) for curve in curves))
        for i in range(0, len(rates.rates), max(1, len(rates.rates) // _MAX_RATES))
    ]
    columns = ["rate", *(f"seed {seed}" for seed in rates.readings)]
    console.print_table("training loss by learning rate, smoothed", columns, rows)
    console.print_result(rates.message)


# Experiments


def print_ablation(report: Report) -> None:
    """Print a table for each score, the paper's table, and which of its orderings hold here."""
    baseline, paper = report["baseline"], report["paper"]
    for name, rows in report["metrics"].items():
        values = paper.get(report["paper_names"].get(name), {})
        cells = []
        for row, result in rows.items():
            deviation = "" if result["deviation"] is None else f" ± {result['deviation']:.4f}"
            p_value = "" if result["p"] is None else f" (p = {result['p']:.2g})"
            is_baseline = row == baseline or result["difference"] is None
            difference = "" if is_baseline else f"{result['difference']:+.4f}{p_value}"
            cells.append(
                (
                    row,
                    f"{result['mean']:.4f}{deviation}",
                    difference,
                    *([str(values.get(row, ""))] * bool(values)),
                )
            )
        columns = ["row", "mean", f"against {baseline}", *(["in the paper"] * bool(values))]
        console.print_table(f"{name}, {pluralize(report['seeds'], 'seed')}", columns, cells)
    if paper:
        names = dict.fromkeys(row for column in paper.values() for row in column)
        source = f" ({report['source']})" if report["source"] else ""
        console.print_table(
            f"in the paper{source}",
            ["row", *paper],
            [(row, *(str(column.get(row, "")) for column in paper.values())) for row in names],
        )
    if report["orderings"]:
        console.print_table(
            "orderings of the paper",
            ["better in the paper", "than", "score", "here", "p, adjusted"],
            [
                (
                    *(row[key] for key in ("better", "worse", "metric", "verdict")),
                    "" if row["adjusted_p"] is None else f"{row['adjusted_p']:.2g}",
                )
                for row in report["orderings"]
            ],
        )


def print_adaptation(report: Report) -> None:
    """Print the scores before and after further pre-training."""
    rows = []
    for run in report["runs"]:
        result = run["comparison"]
        interval = f"{result['low']:+.4f} to {result['high']:+.4f}, p = {result['p']:.2g}"
        gain = f"{result['difference']:+.4f} ({interval})"
        rows.append((str(run["seed"]), decimal(run["before"]), decimal(run["after"]), gain))
    if len(rows) > 1:
        gain = f"{report['gain']:+.4f} ± {report['deviation']:.4f}"
        rows.append(("mean", decimal(report["before"]), decimal(report["after"]), gain))
    console.print_table(
        f"{report['output_dir']}: {report['metric']} on the validation data",
        ["seed", "before", "after", "gain, 95 % interval"],
        rows,
    )
    if (baseline := report["baseline"]) is not None:
        console.print_note(f"{report['baseline_name']}: {baseline:.4f}")


# Evaluation


def print_scores(name: str, data: str, scores: Metrics) -> None:
    """Print the scores of a model on labeled data, and the tables of its task."""
    console.print_table(
        f"{name} on {data} ({pluralize(int(scores.values['examples']), 'example')})",
        ["score", "value"],
        [(score, decimal(value)) for score, value in scores.values.items() if isinstance(value, float)],
    )
    for table in scores.tables:
        console.print_table(table.title, table.columns, [tuple(row) for row in table.rows])
    for note in scores.notes:
        console.print_note(note)


def print_ensemble(runs: Sequence[str], names: Sequence[str], scores: EnsembleScores) -> None:
    """Print the scores of each run, their mean, and the scores of the ensemble."""
    numbers = [run_scores.values for run_scores in scores.models]
    means = {name: sum(float(values[name]) for values in numbers) / len(numbers) for name in names}
    rows = [*zip(runs, numbers, strict=True), ("mean", means), ("ensemble", scores.ensemble.values)]
    console.print_table(
        "each run, and the ensemble",
        ["run", *names],
        [(name, *(decimal(values[score]) for score in names)) for name, values in rows],
    )


def print_comparison(a: str, b: str, data: str, report: dict[str, Any]) -> None:
    """Print the comparison of two runs."""
    from bertsmith.inference.significance import comparison_message

    console.print_table(
        f"A: {a}, B: {b}, on {data} ({pluralize(report['examples'], 'example')})",
        ["score", "A", "B", "B - A", "95 % interval", "p"],
        [
            (
                name,
                decimal(score["a"]),
                decimal(score["b"]),
                f"{score['difference']:+.4f}",
                f"{score['low']:+.4f} to {score['high']:+.4f}",
                decimal(score["p"]),
            )
            for name, score in report["scores"].items()
        ],
    )
    console.print_result(comparison_message(report))
    rounds = " and ".join(f"{n:,}" for n in sorted({score["rounds"] for score in report["scores"].values()}))
    console.print_note(f"{rounds} rounds of resampling, seed {report['seed']}")


# Search


def print_search_results(answer: Report) -> None:
    """Print the results of one query."""
    from bertsmith.inference.output import shorten

    width = max(20, shutil.get_terminal_size((100, 24)).columns - 46)
    is_reranked = any("rerank_score" in result for result in answer["results"])
    rows = [
        (
            result["rank"],
            *([decimal(result["rerank_score"])] if is_reranked else []),
            decimal(result["score"]),
            shorten(result["text"], width),
            shorten(result["place"].rpartition("/")[2], 20),
        )
        for result in answer["results"]
    ]
    columns = ["rank", *(["reranked"] * is_reranked), "cosine", "text", "location"]
    console.print_table(shorten(answer["query"], width + 30), columns, rows)


def print_scores_of_search(scores: dict[str, float]) -> None:
    """Print the scores of a search with known relevant texts."""
    count = pluralize(int(scores.pop("queries")), "query", "queries")
    console.print_table(count, ["score", "value"], [(name, decimal(value)) for name, value in scores.items()])
