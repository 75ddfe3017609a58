"""The quickstart for three seeds: does pre-training win by five points, and what does the whole way take?

    python benchmarks/quickstart.py [--seeds 0 1 2]

Killed and started again it goes on with the first seed that is missing.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
from pathlib import Path
from typing import Any

from bertsmith.finetuning.run import finetune
from bertsmith.quickstart.quickstart import FINETUNING_SETTINGS, quickstart
from record import WORK, environment, markdown_table, run_once, write_section

RATES = (2e-4, 5e-4, 1e-3, 2e-3)  # of fine-tuning; the quickstart's is among them
NOTES = """With this recipe (2026-11-22, seed 0's model, three fine-tuning seeds): the pooler 57.5, 58.8, 56.8;
the mean of all tokens 54.8, 50.8, 54.9; the mean through the pooler 57.5, 56.2, 52.0. Initial weights without an
update: 30.1, 30.8, 29.7 with co-occurrence vectors, 22.0, 22.5, 27.0 with random ones."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    options = parser.parse_args()
    reports = []
    for seed in options.seeds:
        reports.append(run_once("quickstart", f"seed {seed}", lambda seed=seed: measured(seed)))
        write(reports)


def measured(seed: int) -> dict[str, Any]:
    """The quickstart's report for a seed, and the random arm given every chance: more updates, other rates."""
    out = WORK / f"quickstart-{seed}"
    shutil.rmtree(out, ignore_errors=True)
    report = quickstart(out, seed=seed)
    report["cores"] = len(os.sched_getaffinity(0))
    report["grid"] = {
        f"{arm} {rate:g} {updates}": tuned(out, arm, seed, rate, updates)
        for rate, updates in [*((rate, 60) for rate in RATES), (5e-4, 600)]
        for arm in ("bert", "fresh")
    }
    return report


def tuned(out: Path, arm: str, seed: int, rate: float, updates: int) -> float:
    """Test accuracy of an arm fine-tuned otherwise than the quickstart does."""
    run = WORK / "quickstart-grid"
    shutil.rmtree(run, ignore_errors=True)
    kept = {
        name: value
        for name, value in FINETUNING_SETTINGS.items()
        if not name.startswith(("train.max_steps", "train.learning_rate", "task."))
    }
    model = finetune(
        "classify",
        out / arm,
        run,
        train=out / "task" / "train.csv",
        dev=out / "task" / "dev.csv",
        settings={
            **kept,
            "train.learning_rate": rate,
            "train.max_steps": updates,
            "train.evaluate_every": updates // 12,
            "train.seed": seed,
            "train.precision": "fp32",
        },
    )
    return float(model.evaluate(out / "task" / "test.csv")["accuracy"])


def write(reports: list[dict[str, Any]]) -> None:
    """The section of RESULTS.md."""
    rows = [row(report) for report in reports]
    columns = [
        "seed",
        "majority",
        "TF-IDF + linear",
        "random weights",
        "pre-trained",
        "gain",
        "held-out MLM loss",
    ]
    columns += ["unigram", "NSP accuracy", "seconds", "of these pre-training", "tokens"]
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

{markdown_table(columns, rows)}

Other fine-tuning rates and numbers of updates (test accuracy by seed):

{markdown_table(["rate", "updates", "random weights", "pre-trained"], grid_rows(reports))}

{NOTES}
""",
    )


def row(report: dict[str, Any]) -> list[str]:
    most, linear, fresh, bert = (100 * score["accuracy"] for score in report["scores"])
    held = report["pretrain"]["held_out"]
    figures = [f"{most:.1f}", f"{linear:.1f}", f"{fresh:.1f}", f"{bert:.1f}", f"{bert - fresh:+.1f}"]
    figures += [
        f"{held['mlm_loss']:.2f}",
        f"{held['unigram_mlm_loss']:.2f}",
        f"{100 * held['nsp_accuracy']:.0f} %",
    ]
    seconds, tokens = report["pretrain"]["seconds"], report["pretrain"]["tokens"]
    pairs = ", ".join(f"{100 * score['accuracy']:.1f}" for score in report["pairs"]["scores"])
    return [str(report["seed"]), *figures, f"{report['seconds']:.0f}", f"{seconds:.0f}", f"{tokens:,}", pairs]


def grid_rows(reports: list[dict[str, Any]]) -> list[list[str]]:
    """A row for each other way of fine-tuning, the seeds' figures side by side."""
    found = []
    for name in (key for key in reports[0]["grid"] if key.startswith("fresh")):
        _, rate, updates = name.split()
        cells = []
        for arm in ("fresh", "bert"):
            values = [100 * report["grid"][name.replace("fresh", arm)] for report in reports]
            cells.append(" / ".join(f"{v:.1f}" for v in values) + f" (mean {statistics.mean(values):.1f})")
        found.append([rate, updates, *cells])
    return found


if __name__ == "__main__":
    main()
