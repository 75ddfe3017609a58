"""Three of the papers' tables at the smallest size, three seeds, side by side with the papers' figures.

    python benchmarks/family_tables.py [--tokens 5000000] [--seeds 3] [--jobs 2] [--rows "BERT,no NSP"] [--longer]

The rows stand in family_tables.yaml. Each model is judged by its held-out loss where it has one, by minimal pairs,
and fine-tuned on sst2 and conll2003 (at most 5,000 rows) at the rates that family_threshold.py chose. `bertsmith
ablate` does the work: what is finished stays, and the script may be stopped and called again. --longer: then
conll2003 with four times the epochs for the rows of which one has a BiLSTM, which begins untrained.
"""

from __future__ import annotations

import argparse
import logging
import tempfile
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import zstandard

import bertsmith as bs
from bertsmith import hardware
from bertsmith.experiments.ablate import ablate
from bertsmith.experiments.ablation_report import told
from corpus import prepare_corpus
from family_threshold import NAME, PAIRS, TASKS, TOKENS, VOCABULARY
from learning_tasks import BENCHES, RATES, ROWS, spread
from record import DATA, HERE, WORK, environment, load_records, markdown_table, run_once, write_section

LONG_TASK, EPOCHS, NAME_LONGER = "conll2003", 12, "family_tables"
LONGER: dict[str, tuple[str, list[str]]] = {
    "BERT": ("BERT", []),
    "left to right": ("left-to-right", []),
    "left to right + BiLSTM": ("left-to-right", ["task.head=bilstm"]),
}
"""Rows whose fine-tuning is measured for longer: the folder of their pre-training, and their settings."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tokens", type=int, default=max(TOKENS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--rows")
    parser.add_argument("--longer", action="store_true")
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    out = WORK / "family" / f"tables-{options.tokens}"
    report = ablate(
        HERE / "family_tables.yaml",
        out,
        data=prepare_corpus(VOCABULARY),
        tasks={task: recipe_of(task, rate_of(task)) for task in TASKS},
        pairs=some_pairs(),
        rows=None if options.rows is None else options.rows.split(","),
        seeds=options.seeds,
        settings=[
            f"train.max_tokens={options.tokens}",
            f"train.precision={hardware.choose_precision().precision}",
        ],
        jobs=options.jobs,
        resume=out.exists(),
    )
    if options.longer:
        runs = [(row, seed, out) for row in LONGER for seed in range(options.seeds)]
        with ProcessPoolExecutor(options.jobs, get_context("spawn")) as several:
            list(several.map(longer_once, *zip(*runs, strict=True)))
    write(report, options.tokens)


def some_pairs() -> Path:
    """Every fifth minimal pair: a hundred of each paradigm."""
    file = WORK / "family" / "pairs.jsonl"
    lines = zstandard.decompress(PAIRS.read_bytes()).splitlines(keepends=True)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(b"".join(lines[::5]))
    return file


def longer_once(row: str, seed: int, out: Path) -> None:
    """Measured now, or known from an earlier call."""
    run_once(NAME_LONGER, f"{row} {seed}", lambda: longer(row, seed, out))


def longer(row: str, seed: int, out: Path) -> float:
    """The best F1 on conll2003's dev file in EPOCHS epochs of the row's fine-tuning."""
    base, head = LONGER[row]
    recipe = recipe_of(LONG_TASK, rate_of(LONG_TASK))
    with tempfile.TemporaryDirectory() as folder:
        made = bs.finetune(
            recipe["verb"],
            out / base / str(seed) / "pretrain",
            Path(folder) / "run",
            train=recipe["train"],
            dev=recipe["dev"],
            settings=[
                *(
                    f"{name}={value}"
                    for name, value in recipe["settings"].items()
                    if not name.startswith("files.")
                ),
                *head,
                f"train.epochs={EPOCHS}",
                f"train.seed={seed}",
                "train.threads=1",
            ],
            sample=ROWS,
        )
        return float(made.report["dev"]["f1"])


def recipe_of(task: str, rate: float) -> dict[str, Any]:
    """What each model of an ablation is fine-tuned with."""
    bench, place = BENCHES[task], DATA / "tasks" / task
    settings = dict(setting.split("=", 1) for setting in bench.settings)
    return {
        "verb": bench.task,
        "train": str(place / bench.train),
        "dev": str(place / bench.dev),
        "settings": {
            **settings,
            "files.sample": ROWS,
            "train.epochs": 3,
            "train.learning_rate": rate,
            "train.precision": "fp32",
            "train.tensorboard": False,
        },
    }


def rate_of(task: str) -> float:
    """The rate that family_threshold.py found best for pre-trained models."""
    known = load_records(NAME)
    return max(RATES, key=lambda rate: float(known[f"tuning {task} {max(TOKENS)} {rate:g}"]))


def write(report: Mapping[str, Any], tokens: int) -> None:
    """The section of RESULTS.md."""
    paper = "; ".join(
        f"{name}: {', '.join(f'{row} {value:g}' for row, value in of.items())}"
        for name, of in report["paper"].items()
    )
    write_section(
        "Tables of the papers at the tiny size",
        f"""`python benchmarks/family_tables.py`; {environment(1)}.

bert-tiny-uncased, {tokens / 1e6:g} M tokens of 64 by the recipe for small budgets (start.attention=normal), about
2.2 M tokens of text, {report["seeds"]} seeds; a hundred minimal pairs of each paradigm. Mean ± deviation; in
brackets the difference from the first row, paired by seed, and the p of a paired t-test.

{figures_of(report)}

{told(report)}.{held(report)}

{beside()}

In the papers: {paper}.""",
    )


def held(report: Mapping[str, Any]) -> str:
    """Which of the paper's orderings hold here, or are reversed."""
    found = [
        f"{one['better']} above {one['worse']} on {one['figure']} {one['verdict']} ({one['adjusted_p']:.2g})"
        for one in report["orderings"]
        if one["verdict"] != "cannot be told"
    ]
    return f" By figure, with the adjusted p: {'; '.join(found)}." if found else ""


def beside() -> str:
    """The cheap methods, and what more epochs change."""
    cheap = [(task, *load_records("learning_tasks")[f"cheap {task}"]) for task in TASKS]
    text = "The best cheap method has " + " and ".join(
        f"{score:.3f} on {task} ({method})" for task, score, method in cheap
    )
    text += "; n-grams have 61.2 % of the minimal pairs right (Warstadt et al. 2020)."
    known = load_records(NAME_LONGER)
    scores = {row: [100 * known[key] for key in known if key.rpartition(" ")[0] == row] for row in LONGER}
    if all(scores.values()):
        text += (
            f" A BiLSTM begins untrained, and three epochs are few for it: with {EPOCHS} {LONG_TASK}'s F1 is "
            + ", ".join(f"{spread(found)} ({row})" for row, found in scores.items())
            + "."
        )
    return text


def figures_of(report: Mapping[str, Any]) -> str:
    """The table of an ablation's figures."""
    figures = report["figures"]
    rows = [
        [row, *(cell(of.get(row), first=row == report["baseline"]) for of in figures.values())]
        for row in dict.fromkeys(row for of in figures.values() for row in of)
    ]
    return markdown_table(["row", *figures], rows)


def cell(figure: Mapping[str, Any] | None, *, first: bool) -> str:
    """A figure with its difference from the first row."""
    if figure is None:
        return ""
    spread = f"{figure['mean']:.3f}" + (
        "" if figure["deviation"] is None else f" ± {figure['deviation']:.3f}"
    )
    if first or figure["difference"] is None:
        return spread
    p = "" if figure["p"] is None else f", p = {figure['p']:.2g}"
    return f"{spread} ({figure['difference']:+.3f}{p})"


if __name__ == "__main__":
    main()
