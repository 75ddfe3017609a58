"""Run the quickstart with several seeds: accuracy with and without pre-training, and duration.

python benchmarks/quickstart.py [--seeds 0 1 2]
"""

from __future__ import annotations

import os
import shutil
import statistics
from functools import partial
from typing import Any

from bertsmith.finetuning.run import finetune
from bertsmith.quickstart.quickstart import FINETUNING_SETTINGS, quickstart
from record import WORK, argument_parser, environment, markdown_table, run_once, write_section

GRID = ((2e-4, 60), (5e-4, 60), (1e-3, 60), (2e-3, 60), (5e-4, 600))  # learning rates and updates
ARMS = ("fresh", "bert")  # model folders of the quickstart: random and pre-trained weights
NOTES = """With this recipe (2026-11-22, seed 0's model, three fine-tuning seeds): the pooler 57.5, 58.8, 56.8;
the mean of all tokens 54.8, 50.8, 54.9; the mean through the pooler 57.5, 56.2, 52.0. Initial weights without an
update: 30.1, 30.8, 29.7 with co-occurrence vectors, 22.0, 22.5, 27.0 with random ones."""


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    reports = []
    for seed in parser.parse_args().seeds:
        reports.append(run_once("quickstart", f"seed {seed}", partial(measure, seed)))
        write_report(reports)


def measure(seed: int) -> dict[str, Any]:
    """Return the quickstart's report, with the accuracy of both arms for other learning rates and more updates."""
    out = WORK / f"quickstart-{seed}"
    shutil.rmtree(out, ignore_errors=True)
    report = quickstart(out, seed=seed)
    report["cores"] = len(os.sched_getaffinity(0))
    report["grid"] = {
        f"{arm} {learning_rate:g} {updates}": finetuned_accuracy(seed, arm, learning_rate, updates)
        for learning_rate, updates in GRID
        for arm in ARMS
    }
    return report


def finetuned_accuracy(seed: int, arm: str, learning_rate: float, updates: int) -> float:
    """Fine-tune an arm of the quickstart, and return its test accuracy."""
    out, run = WORK / f"quickstart-{seed}", WORK / "quickstart-grid"
    shutil.rmtree(run, ignore_errors=True)
    model = finetune(
        "classify",
        out / arm,
        run,
        train=out / "task" / "train.csv",
        dev=out / "task" / "dev.csv",
        settings={
            **FINETUNING_SETTINGS,
            "train.learning_rate": learning_rate,
            "train.max_steps": updates,
            "train.evaluate_every": updates // 12,
            "train.seed": seed,
            "train.precision": "fp32",
        },
    )
    return float(model.evaluate(out / "task" / "test.csv")["accuracy"])


def write_report(reports: list[dict[str, Any]]) -> None:
    """Write the section of RESULTS.md."""
    columns = ["seed", "majority", "TF-IDF + linear", "random weights", "pre-trained", "gain"]
    columns += ["held-out MLM loss", "unigram", "NSP accuracy", "seconds", "of these pre-training", "tokens"]
    columns += ["minimal pairs"]
    first = reports[0]
    libraries = ", ".join(f"{row['name']} {row['version']}" for row in first["corpus"]["libraries"][:10])
    sizes = first["task"]["sentences"]
    write_section(
        "Quickstart",
        f"""`python benchmarks/quickstart.py`; {environment(first["machine"]["threads"])}.

`bertsmith quickstart --seed N`. The task: which of {", ".join(first["task"]["labels"])} a sentence comes from;
{sizes["train"]} sentences for training, {sizes["dev"]} for validation, {sizes["test"]:,} for the test, from
documents held out of pre-training. Corpus: {first["corpus"]["words"]:,} words in
{first["corpus"]["documents"]:,} documents of {libraries}, and smaller packages. {first["pretrain"]["steps"]:,}
updates. Test accuracy in %; minimal pairs: accuracy without fine-tuning on a sentence and
the same with one word exchanged, of bigram counts, random weights, and the pre-trained model.

{markdown_table(columns, map(report_row, reports))}

Other fine-tuning rates and numbers of updates (test accuracy by seed):

{markdown_table(["rate", "updates", "random weights", "pre-trained"], grid_rows(reports))}

{NOTES}
""",
    )


def report_row(report: dict[str, Any]) -> list[str]:
    """Return a seed's row."""
    majority, linear, fresh, bert = (100 * score["accuracy"] for score in report["scores"])
    pretraining, held_out = report["pretrain"], report["pretrain"]["held_out"]
    return [
        str(report["seed"]),
        *(f"{accuracy:.1f}" for accuracy in (majority, linear, fresh, bert)),
        f"{bert - fresh:+.1f}",
        f"{held_out['mlm_loss']:.2f}",
        f"{held_out['unigram_mlm_loss']:.2f}",
        f"{100 * held_out['nsp_accuracy']:.0f} %",
        f"{report['seconds']:.0f}",
        f"{pretraining['seconds']:.0f}",
        f"{pretraining['tokens']:,}",
        ", ".join(f"{100 * score['accuracy']:.1f}" for score in report["pairs"]["scores"]),
    ]


def grid_rows(reports: list[dict[str, Any]]) -> list[list[str]]:
    """Return a row per learning rate and number of updates, with the accuracies of all seeds."""
    rows = []
    for learning_rate, updates in GRID:
        cells = []
        for arm in ARMS:
            values = [100 * report["grid"][f"{arm} {learning_rate:g} {updates}"] for report in reports]
            cells.append(" / ".join(f"{v:.1f}" for v in values) + f" (mean {statistics.mean(values):.1f})")
        rows.append([f"{learning_rate:g}", str(updates), *cells])
    return rows


if __name__ == "__main__":
    main()
