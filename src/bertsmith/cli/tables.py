"""Tables that print values and rows of any report, and the reports of fine-tuning, experiments, and evaluation."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertsmith import console
from bertsmith.formatting import format_number, pluralize, shorten

if TYPE_CHECKING:
    from bertsmith.experiments.baselines_report import BaselinesReport
    from bertsmith.finetuning.lr_finder import RateTest
    from bertsmith.inference.ensemble import EnsembleScores
    from bertsmith.tasks.results import Metrics

Report = Mapping[str, Any]

_MAX_EVALUATIONS = 20
_MAX_RATES = 22
_PAGE_KEYS = ("answers", "curve", "lengths", "findings", "settings")  # large parts that only the page shows


def format_value(value: Any) -> str:
    """Format a value by its type; the numbers of settings have four significant digits."""
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {format_value(part)}" for name, part in value.items()) or "none"
    if isinstance(value, list | tuple):
        return ", ".join(format_value(part) for part in value) or "none"
    if value is None or isinstance(value, bool):
        return {None: "none", True: "yes", False: "no"}[value]
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 1e4 else f"{value:,.0f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def show(document: Any, as_json: bool, print_tables: Callable[[Any], None]) -> None:
    """Print a document as JSON or as tables."""
    if as_json:
        console.print_json(document)
    else:
        print_tables(document)


def print_json_objects(objects: Iterable[Any], as_json: bool) -> None:
    """Print a JSON object per line, or all in one document."""
    for document in [list(objects)] if as_json else objects:
        console.print_json(document)


def print_values(title: str, values: Report) -> None:
    """Print a table of names and values."""
    rows = [(name.replace("_", " "), format_value(value)) for name, value in values.items()]
    console.print_table(title, ["", "value"], rows)


def print_rows(title: str, rows: Iterable[Report], columns: Sequence[str]) -> None:
    """Print a table with a row for each mapping, and a column for each of the names."""
    headings = [column.replace("_", " ") for column in columns]
    cells = [
        tuple(
            format_number(row[column]) if isinstance(row[column], float | None) else format_value(row[column])
            for column in columns
        )
        for row in rows
    ]
    console.print_table(title, headings, cells)


# Fine-tuning


def print_finetuning(output_dir: str, report: dict[str, Any], as_json: bool) -> None:
    """Print the report of one or several fine-tuning runs."""
    if as_json:
        document = {name: value for name, value in report.items() if name not in _PAGE_KEYS}
        console.print_json({"run": output_dir, **document, "report": str(Path(output_dir) / "report.json")})
    elif "runs" in report:
        print_repeats(output_dir, report)
    else:
        _print_run(output_dir, report)


def _print_run(output_dir: str, report: Report) -> None:
    _print_evaluations(report["evaluations"])
    if report.get("stopped_early"):
        console.print_result(f"{output_dir}: {report['stopped_early']}")
    scores, baselines = report["validation"], report["baselines"]
    console.print_table(
        f"{output_dir}: validation scores of the best epoch by {report['decided_by']}",
        ["score", "this model", *baselines],
        [
            (name, *(format_number(values.get(name)) for values in (scores, *baselines.values())))
            for name, value in report["baseline"].items()
            if isinstance(value, float)
        ],
    )
    if test := report.get("test"):
        rows = [
            (name, format_number(test[name])) for name in report["baseline"] if isinstance(test[name], float)
        ]
        title = f"{output_dir}: {pluralize(test['examples'], 'test example')}, scored once with these weights"
        console.print_table(title, ["score", "this model"], rows)
    for name, value in report.get("chosen_on_validation", {}).items():
        name = name.replace("_", " ")
        console.print_note(f"{name} {value:.4g}, chosen on the validation data and saved with the model")
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
    more = f" ({len(listed)} of {total:,}; report.json has all)" if len(listed) < total else ""
    rows = [{**row, "epoch": f"{row['epoch']:g}", "best": "← best" if row["best"] else ""} for row in listed]
    names = [name for name in rows[0] if name not in ("step", "epoch", "loss", "best")]
    print_rows(f"evaluations on the validation data{more}", rows, ["epoch", "step", "loss", *names, "best"])


def print_repeats(output_dir: str, report: Report) -> None:
    """Print the scores of several runs of a task, and their summary by cells of the grid."""
    metric, summary = report["decided_by"], report["summary"]
    rows = [
        {
            **row,
            "time": "–" if row["score"] is None else console.format_duration(row["seconds"]),
            "": "degenerate" if row["degenerate"] else "← best" if row["run"] == report["best"] else "",
        }
        for row in report["runs"]
    ]
    title = f"{output_dir}: {metric} on the validation data"
    print_rows(title, rows, ["run", "score", "baseline", "time", ""])
    cells = [cell for cell in report["cells"] if cell["scores"] > 1]
    parts = [
        {
            **part,
            "": format_value({name.rpartition(".")[2]: value for name, value in part["settings"].items()}),
            "degenerate": len(part["degenerate"]),
            "all folds together": None if part["pooled"] is None else part["pooled"][metric],
        }
        for part in cells or [summary]
    ]
    columns = ["", "mean", "median", "best", "deviation", "degenerate"]
    columns += ["all folds together"] * (summary["pooled"] is not None)
    group = "by cell of the grid" if cells else f"of {pluralize(summary['scores'], 'run')}"
    print_rows(f"{metric}, {group}", parts, columns if cells else columns[1:])
    if (mean := summary.get("mean_without_degenerate")) is not None:
        console.print_result(f"mean without degenerate runs: {mean:.4f}")
    if test := report["test"]:
        row = (report["best"], *(format_number(test[name]) for name in ("best", "mean", "deviation")))
        title = f"{metric} on the test examples, which chose no run"
        console.print_table(title, ["best run", "score", f"mean of {test['scores']}", "deviation"], [row])
    if report["best"] is not None:
        console.print_note(f"next: bertsmith evaluate {output_dir}/{report['best']} --data FILE")


def print_glue(report: Report) -> None:
    """Print the table of GLUE."""
    rows = [
        {
            **row,
            "scores": ", ".join(f"{name} {value:.1f}" for name, value in row["metrics"].items()),
            "baseline": format_number(row["baseline"], 1),
        }
        for row in report["tasks"]
    ]
    title = f"{report['output_dir']}: GLUE, on the validation data"
    print_rows(title, rows, ["task", "train_examples", "scores", "baseline"])
    console.print_result(f"average: {report['average']:.1f}")


def print_rates(rates: RateTest) -> None:
    """Print the smoothed loss of each seed at a selection of the rates, and the suggestion."""
    curves = [reading.smoothed for reading in rates.readings.values()]
    rows = [
        (f"{rates.rates[i]:.1e}", *(format_number(curve[i] if i < len(curve) else None) for curve in curves))
        for i in range(0, len(rates.rates), max(1, len(rates.rates) // _MAX_RATES))
    ]
    columns = ["rate", *(f"seed {seed}" for seed in rates.readings)]
    console.print_table("training loss by learning rate, smoothed", columns, rows)
    console.print_result(rates.message)


# Experiments


def print_ablation(report: Report) -> None:
    """Print the setup, a table for each score beside the paper's, the paper's table, and its orderings."""
    _print_setups(report)
    for name, rows in report["metrics"].items():
        _print_ablated_metric(report, name, rows)
    if paper := report["paper"]:
        source = f" ({report['source']})" if report["source"] else ""
        _print_paper_table(f"in the paper{source}", paper)
    if report["quoted"]:
        _print_paper_table("quoted in the paper's table, not run here", report["quoted"])
    if report["orderings"]:
        columns = ["better", "worse", "metric", "verdict", "adjusted_p"]
        print_rows("orderings of the paper", report["orderings"], columns)
    if changes := report["changes"]:
        values = ", ".join(f"{name}={value}" for name, value in changes.items())
        console.print_note(f"this run changes the recipe by {values}; the next lines describe the recipe")
    for subject, text in report["departures"].items():
        console.print_note(f"unlike the paper, {subject}: {text}")


def print_baselines(report: BaselinesReport) -> None:
    """Print the tables of the models, their results, and the claims, and the continuations of prompts."""
    for table in report.tables():
        console.print_table(table.title, table.heads, table.rows)
    for prompt, samples in report.samples.items():
        console.print_table(f"{prompt} …", ("model", "continuation"), list(samples.items()))


def _print_ablated_metric(report: Report, name: str, rows: Report) -> None:
    """Print the results of a metric, in points if it is a fraction, and the paper's of the same name."""
    from bertsmith.experiments.ablation_report import points_factor

    factor = points_factor(name, (value for row in rows.values() for value in row["values"]))
    decimals = 2 if factor > 1 else 4
    paper = report["paper"].get(report["paper_names"].get(name), {})

    def scaled(value: float | None) -> str:
        return format_number(None if value is None else factor * value, decimals)

    results = [
        (
            row,
            scaled(result["mean"]),
            scaled(result["deviation"]),
            scaled(result["difference"]),
            format_number(result["p"]),
            *([str(paper.get(row, ""))] if paper else []),
        )
        for row, result in rows.items()
    ]
    unit = " in points" if factor > 1 else ""
    title = f"{name}{unit}, {pluralize(report['seeds'], 'seed')}; differences from {report['baseline']}"
    columns = ["row", "mean", "deviation", "difference", "p", *(["paper"] if paper else [])]
    console.print_table(title, columns, results)


def _print_paper_table(title: str, paper: Report) -> None:
    names = dict.fromkeys(row for column in paper.values() for row in column)
    rows = [(row, *(str(column.get(row, "")) for column in paper.values())) for row in names]
    console.print_table(title, ["row", *paper], rows)


def _print_setups(report: Report) -> None:
    """Print what each row was trained on, and the settings that all rows share and BERT's paper has not."""
    setups = report["setups"]
    if not setups:
        return
    print_rows(
        f"pre-training of each row, {pluralize(report['seeds'], 'seed')}",
        [
            {**setup, "row": row, "rate": f"{setup['muon_learning_rate'] or setup['learning_rate']:g}"}
            for row, setup in setups.items()
        ],
        ["row", "parameters", "updates", "tokens", "optimizer", "rate"],
    )
    first = next(iter(setups.values()))
    documents = pluralize(first["corpus"]["documents"], "document")
    console.print_note(f"text: {documents}, {first['corpus']['tokens']:,} tokens")
    shared = [
        f"{name}={value}"
        for name, value in first["differences"].items()
        if all(setup["differences"].get(name) == value for setup in setups.values())
    ]
    if shared:
        console.print_note(f"settings of all rows that differ from BERT's paper: {', '.join(shared)}")


def print_adaptation(report: Report) -> None:
    """Print the scores before and after further pre-training."""
    runs = report["runs"]
    rows = [{**run, **run["comparison"], "95 % interval": _interval(run["comparison"])} for run in runs]
    title = f"{report['output_dir']}: {report['metric']} on the validation data"
    print_rows(title, rows, ["seed", "before", "after", "difference", "95 % interval", "p"])
    if len(rows) > 1:
        console.print_result(f"mean gain: {report['gain']:+.4f} ± {report['deviation']:.4f}")
    if (baseline := report["baseline"]) is not None:
        console.print_note(f"{report['baseline_name']}: {baseline:.4f}")


def _interval(comparison: Report) -> str:
    return f"{comparison['low']:+.4f} to {comparison['high']:+.4f}"


# Evaluation


def print_scores(name: str, data: str, scores: Metrics, seconds: float) -> None:
    """Print the scores of a model on labeled data, the tables of its task, and the duration."""
    title = f"{name} on {data} ({pluralize(int(scores.values['examples']), 'example')})"
    values = scores.values.items()
    rows = [(score, format_number(value)) for score, value in values if isinstance(value, float)]
    console.print_table(title, ["score", "value"], rows)
    for table in scores.tables:
        console.print_table(table.title, table.columns, [tuple(row) for row in table.rows])
    for note in scores.notes:
        console.print_note(note)
    console.print_note(f"scored in {console.format_duration(seconds)}")


def print_ensemble(runs: Sequence[str], names: Sequence[str], scores: EnsembleScores) -> None:
    """Print the scores of each run, their mean, and the scores of the ensemble."""
    numbers = [run_scores.values for run_scores in scores.models]
    means = {name: sum(float(values[name]) for values in numbers) / len(numbers) for name in names}
    rows = [*zip(runs, numbers, strict=True), ("mean", means), ("ensemble", scores.ensemble.values)]
    title = "each run, and the ensemble"
    print_rows(title, [{**values, "run": name} for name, values in rows], ["run", *names])


def print_comparison(a: str, b: str, data: str, report: dict[str, Any]) -> None:
    """Print the comparison of two runs."""
    from bertsmith.inference.significance import comparison_message

    rows = [
        {**score, "score": name, "B - A": f"{score['difference']:+.4f}", "95 % interval": _interval(score)}
        for name, score in report["scores"].items()
    ]
    title = f"A: {a}, B: {b}, on {data} ({pluralize(report['examples'], 'example')})"
    print_rows(title, rows, ["score", "a", "b", "B - A", "95 % interval", "p"])
    console.print_result(comparison_message(report))
    rounds = " and ".join(f"{n:,}" for n in sorted({score["rounds"] for score in report["scores"].values()}))
    console.print_note(f"{rounds} rounds of resampling, seed {report['seed']}")


def print_search_results(answer: Report) -> None:
    """Print the results of one query."""
    width = max(20, shutil.get_terminal_size((100, 24)).columns - 46)
    rows = [
        {
            **result,
            "reranked": result.get("rerank_score"),
            "cosine": result["score"],
            "text": shorten(result["text"], width),
            "location": shorten(result["place"].rpartition("/")[2], 20),
        }
        for result in answer["results"]
    ]
    reranked = ["reranked"] * any("rerank_score" in result for result in answer["results"])
    columns = ["rank", *reranked, "cosine", "text", "location"]
    print_rows(shorten(answer["query"], width + 30), rows, columns)
