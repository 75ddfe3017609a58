"""Repeat three tables of the papers at the smallest size with three seeds.

    python benchmarks/family_tables.py [--tokens 5000000] [--seeds 3] [--jobs 2] [--rows "BERT,no NSP"] [--longer]

family_tables.yaml has the rows. Each model is scored by its held-out loss (if it has one), by minimal pairs, and
by fine-tuning on sst2 and conll2003 (at most 5,000 rows) at the learning rates that family_threshold.py chose.
`bertsmith ablate` does the work and resumes. --longer: also fine-tune on conll2003 with four times the epochs, for
the rows that show whether a BiLSTM helps, since a BiLSTM starts untrained.
"""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import zstandard

import record
from bertsmith import hardware
from bertsmith.experiments.ablation import ablate
from bertsmith.experiments.ablation_report import AblationReport
from corpus import prepare_corpus
from family_threshold import FAMILY_TASKS, NAME, TOKENS, VOCAB_SIZE
from learning_tasks import LEARNING_RATES, MAX_ROWS, MINIMAL_PAIRS, TASKS, finetune_score, mean_and_std

LONG_TASK, LONG_EPOCHS, LONG_NAME = "conll2003", 12, "family_tables"
LONG_ROWS = {
    "BERT": ("BERT", ""),
    "left to right": ("left-to-right", ""),
    "left to right + BiLSTM": ("left-to-right", "task.head=bilstm"),
}
"""Rows that --longer fine-tunes: the folder of their pre-training, and their setting."""


def main() -> None:
    parser = record.argument_parser(__doc__)
    parser.add_argument("--tokens", type=int, default=max(TOKENS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--rows")
    parser.add_argument("--longer", action="store_true")
    options = parser.parse_args()
    out = record.WORK / "family" / f"tables-{options.tokens}"
    tuning_key = f"tuning {{task}} {max(TOKENS)} {{rate:g}}"
    report = ablate(
        record.HERE / "family_tables.yaml",
        out,
        data=prepare_corpus(VOCAB_SIZE),
        tasks=task_recipes(NAME, tuning_key),
        pairs=write_sampled_pairs(),
        rows=None if options.rows is None else options.rows.split(","),
        seeds=options.seeds,
        settings=[f"train.max_tokens={options.tokens}", f"train.precision={hardware.choose_precision()}"],
        jobs=options.jobs,
        resume=out.exists(),
    )
    if options.longer:
        rate = recorded_learning_rate(NAME, tuning_key, LONG_TASK)
        runs = [(row, seed, rate, out) for row in LONG_ROWS for seed in range(options.seeds)]
        with ProcessPoolExecutor(options.jobs, get_context("spawn")) as pool:
            list(pool.map(finetune_longer, *zip(*runs, strict=True)))
    write_report(report, options.tokens)


def write_sampled_pairs() -> Path:
    """Write every fifth minimal pair: a hundred of each paradigm."""
    path = record.WORK / "family" / "pairs.jsonl"
    lines = zstandard.decompress(MINIMAL_PAIRS.read_bytes()).splitlines(keepends=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(lines[::5]))
    return path


def finetune_longer(row: str, seed: int, rate: float, out: Path) -> None:
    """Fine-tune a row's model with LONG_EPOCHS epochs; each score is recorded."""
    base, setting = LONG_ROWS[row]
    folder = out / base / str(seed) / "pretrain"
    settings = ["train.precision=fp32", *filter(None, [setting])]

    def measure() -> float:
        return finetune_score(LONG_TASK, folder, rate, seed, 1, epochs=LONG_EPOCHS, settings=settings)

    record.run_once(LONG_NAME, f"{row} {seed}", measure)


def recorded_learning_rate(name: str, tuning_key: str, task: str) -> float:
    """Return the learning rate that had the best recorded score in tuning."""
    records = record.load_records(name)
    return max(LEARNING_RATES, key=lambda rate: float(records[tuning_key.format(task=task, rate=rate)]))


def task_recipes(name: str, tuning_key: str) -> dict[str, dict[str, Any]]:
    """Return how an ablation fine-tunes each model, by task."""
    recipes = {}
    for task in FAMILY_TASKS:
        spec, data = TASKS[task], record.DATA / "tasks" / task
        settings: dict[str, Any] = dict(setting.split("=", 1) for setting in spec.settings)
        settings |= {
            "files.sample": MAX_ROWS,
            "train.num_train_epochs": 3,
            "train.learning_rate": recorded_learning_rate(name, tuning_key, task),
            "train.precision": "fp32",
            "train.report_to": "none",
        }
        files = {"train": str(data / spec.train), "validation": str(data / spec.dev)}
        recipes[task] = {"verb": spec.verb, **files, "settings": settings}
    return recipes


def write_report(report: AblationReport, tokens: int) -> None:
    """Write the section of RESULTS.md."""
    orderings = [
        f"{pair.better} above {pair.worse} on {pair.metric} {pair.verdict} ({pair.adjusted_p:.2g})"
        for pair in report.orderings
        if pair.verdict != "is undecided"
    ]
    paper = "; ".join(
        f"{name}: {', '.join(f'{row} {value:g}' for row, value in rows.items())}"
        for name, rows in report.paper.items()
    )
    record.write_section(
        "Tables of the papers at the tiny size",
        f"""`python benchmarks/family_tables.py`; {record.environment(1)}.

bert-tiny-uncased, {tokens / 1e6:g} M tokens of 64 by the recipe for small budgets (start.attention=normal), about
2.2 M tokens of text, {report.seeds} seeds; a hundred minimal pairs of each paradigm. Mean ± deviation; in
brackets the difference from the first row, paired by seed, and the p of a paired t-test.

{ablation_table(report)}

{report.describe_orderings()}.{f" By metric, with the adjusted p: {'; '.join(orderings)}." if orderings else ""}

{cheap_sentence()}; n-grams have 61.2 % of the minimal pairs right (Warstadt et al. 2020, table
3).{longer_sentence()}

In the papers (table 5 of Devlin et al. 2019, table 4 of Lan et al. 2020): {paper}.""",
    )


def cheap_sentence() -> str:
    cheap = [(task, *record.load_records("learning_tasks")[f"cheap {task}"]) for task in FAMILY_TASKS]
    cells = " and ".join(f"{score:.3f} on {task} ({method})" for task, score, method in cheap)
    return f"The best baseline has {cells}"


def longer_sentence() -> str:
    """Describe the scores of --longer; nothing if they are not measured."""
    records = record.load_records(LONG_NAME)
    scores = {
        row: [value for key, value in records.items() if key.rpartition(" ")[0] == row] for row in LONG_ROWS
    }
    if not all(scores.values()):
        return ""
    cells = ", ".join(f"{mean_and_std(values)} ({row})" for row, values in scores.items())
    return f" A BiLSTM starts untrained; with {LONG_EPOCHS} epochs, the F1 of {LONG_TASK} is {cells}."


def ablation_table(report: AblationReport) -> str:
    """Format an ablation's metrics with their differences from the first row."""

    def cell(name: str, row: str) -> str:
        metric = report.metrics[name].get(row)
        if metric is None:
            return ""
        deviation = "" if metric.deviation is None else f" ± {metric.deviation:.3f}"
        text = f"{metric.mean:.3f}{deviation}"
        if row == report.baseline or metric.difference is None:
            return text
        p = "" if metric.p is None else f", p = {metric.p:.2g}"
        return f"{text} ({metric.difference:+.3f}{p})"

    rows = dict.fromkeys(row for values in report.metrics.values() for row in values)
    return record.markdown_table(
        ["row", *report.metrics], [[row, *(cell(name, row) for name in report.metrics)] for row in rows]
    )


if __name__ == "__main__":
    main()
