"""What is pre-training worth on tasks? An hour's model, random weights and the best cheap method.

    python benchmarks/learning_tasks.py RUN [--tasks sst2 cola rte …] [--seeds 0 1 2] [--threads 2]

RUN: a pre-training run, such as that of `bertsmith pretrain --data shards --out RUN --minutes 60`. Both arms have
the same architecture, tokenizer, rows, epochs and seeds; each arm's learning rate is chosen with a seed that is
not reported, on a tenth of the training rows that is not trained on then (for sst2, whose training rows are parts
of one another, on 2,000 others of at least ten words that have no part in common with these). At most 5,000
training rows a task, three epochs, the best of their evaluations on dev. The last four tasks are Chinese, for a
run on Chinese text. Each score is kept: the script may be stopped and called again.
"""

from __future__ import annotations

import argparse
import gzip
import os
import shutil
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import bertsmith as bs
from baselines import best_baseline
from bertsmith import hardware, rng
from bertsmith.quickstart.quickstart import write_untrained_model
from record import DATA, WORK, environment, load_records, markdown_table, run_once, write_section

RATES = (1e-4, 3e-4, 1e-3)
SEEDS = (0, 1, 2)
TUNING_SEED = 100
ROWS = 5_000
ARMS = ("pre-trained", "random")
TAB = "\t"
APART, LONG, PART = (
    2_000,
    10,
    3,
)  # rows to tune on; words that they have, at least; words that count as a part


@dataclass(frozen=True)
class Bench:
    """A task: what finetune is asked, and the figure that is reported (the field's for it).

    words: whether its words have blanks between them. pieces: whether training rows are parts of one another, as
    sst2's phrases are, so that rows split off by chance are half known to a model that learnt the rest by heart.
    """

    task: str
    train: str
    dev: str
    settings: Sequence[str]
    figure: str
    rows: int = ROWS
    words: bool = True
    pieces: bool = False


_PAIR = ("task.text_column=sentence1", "task.second_column=sentence2")
BENCHES = {
    "sst2": Bench(
        "classify",
        "train.tsv.gz",
        "dev.tsv",
        ["task.text_column=sentence"],
        "accuracy",
        pieces=True,
    ),
    "cola": Bench(
        "classify",
        "train.tsv.gz",
        "dev.tsv",
        ["task.header=false", "task.text_column=4", "task.label_column=2", "task.class_weights=balanced"],
        "matthews",
    ),
    "rte": Bench("classify", "train.tsv.gz", "dev.tsv", _PAIR, "accuracy"),
    "stsb": Bench(
        "regress",
        "train.tsv.gz",
        "dev.tsv.gz",
        [*_PAIR, "task.label_column=score"],
        "pearson",
    ),
    "conll2003": Bench("tag", "train.txt.gz", "dev.txt.gz", [], "f1"),
    "emotion": Bench(
        "classify",
        "train.txt.gz",
        "dev.txt",
        ["task.header=false", "task.delimiter=;", "task.text_column=1", "task.label_column=2"],
        "macro_f1",
    ),
    "thucnews": Bench(
        "classify",
        "train.txt.gz",
        "dev.txt.gz",
        ["task.header=false", "task.text_column=1", "task.label_column=2"],
        "accuracy",
        words=False,
    ),
    "chnsenticorp": Bench(
        "classify",
        "train.tsv.gz",
        "dev.tsv",
        ["task.text_column=text"],
        "accuracy",
        words=False,
    ),
    "msra_ner": Bench("tag", "train.tsv.gz", "dev.tsv.gz", [], "f1", words=False),
    "cmrc2018": Bench("answer", "train.json.gz", "dev.json.gz", [], "f1", rows=1_000, words=False),
}
ENGLISH = ("sst2", "cola", "rte", "stsb", "conll2003", "emotion")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", type=Path)
    parser.add_argument("--tasks", nargs="+", default=ENGLISH, choices=list(BENCHES))
    parser.add_argument("--seeds", type=int, nargs="+", default=SEEDS)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    hardware.configure_process(options.threads)
    model = bs.load(options.run)
    name = options.run.resolve().name
    fresh = WORK / "learning" / f"{name}-random-weights"
    if not fresh.exists():
        write_untrained_model(fresh, model)
    folders = {"pre-trained": model.model_folder, "random": fresh}
    for task in options.tasks:
        run_once("learning_tasks", f"cheap {task}", partial(cheap, task))
        for arm in ARMS:
            rate = best_rate(name, task, arm, folders[arm], options.threads)
            for seed in options.seeds:
                scored(name, task, arm, folders[arm], rate, seed, options.threads)
        report(name, options.seeds, options.threads)


def best_rate(name: str, task: str, arm: str, folder: Path, threads: int) -> float:
    """The rate that serves an arm best on rows split off the training file."""
    return max(RATES, key=lambda rate: scored(name, task, arm, folder, rate, TUNING_SEED, threads))


def scored(name: str, task: str, arm: str, folder: Path, rate: float, seed: int, threads: int) -> float:
    """`finetuned`, measured once."""
    apart = " apart" if BENCHES[task].pieces and seed == TUNING_SEED else ""
    key = f"{name} {task} {arm} {rate:g} {seed}{apart}"
    return float(run_once("learning_tasks", key, lambda: finetuned(task, folder, rate, seed, threads)))


def finetuned(task: str, folder: Path, rate: float, seed: int, threads: int) -> float:
    """The figure on dev; in tuning, on training rows instead."""
    bench, out = BENCHES[task], WORK / f"finetune-{os.getpid()}"
    shutil.rmtree(out, ignore_errors=True)
    place = DATA / "tasks" / task
    tuning = seed == TUNING_SEED
    split = tuning and not bench.pieces
    model = bs.finetune(
        bench.task,
        folder,
        out,
        train=place / bench.train,
        dev=None if split else rows_apart(task) if tuning else place / bench.dev,
        **({"dev_share": 0.1} if split else {}),
        sample=bench.rows,
        settings=[
            *bench.settings,
            "train.epochs=3",
            f"train.learning_rate={rate}",
            f"train.seed={seed}",
            f"train.threads={threads}",
            "train.tensorboard=false",
        ],
    )
    figure = float(model.report["dev"][bench.figure])
    print(task, folder, rate, seed, figure, flush=True)
    shutil.rmtree(out)
    return figure


def rows_apart(task: str) -> Path:
    """A file of training rows as long as dev's that neither hold nor are a part of one that is trained on."""
    file = WORK / "learning" / f"{task}-apart.tsv"
    if not file.exists():
        with gzip.open(DATA / "tasks" / task / BENCHES[task].train, "rt", encoding="utf-8") as lines:
            head, *rows = lines.read().splitlines()
        texts = [f" {row.split(TAB)[0].strip()} " for row in rows]
        order = rng.permutation(0, "sample", len(rows))  # as `files.sample` takes them
        learnt = [text for text in (texts[i] for i in order[:ROWS]) if len(text.split()) >= PART]
        apart = (
            rows[i]
            for i in order[ROWS:]
            if len(texts[i].split()) >= LONG
            and not any(text in texts[i] or texts[i] in text for text in learnt)
        )
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("\n".join([head, *islice(apart, APART)]) + "\n", encoding="utf-8")
    return file


def cheap(task: str) -> tuple[float, str]:
    """The best cheap method on the same rows."""
    bench, place = BENCHES[task], DATA / "tasks" / task
    analyzer = "word" if bench.words else "char"
    return best_baseline(
        bench.task,
        place / bench.train,
        place / bench.dev,
        bench.settings,
        bench.figure,
        sample=bench.rows,
        analyzer=analyzer,
    )


def report(name: str, seeds: Sequence[int], threads: int) -> None:
    """The section of RESULTS.md, of the tasks measured by now."""
    known, rows, shown = load_records("learning_tasks"), [], []
    for task, bench in BENCHES.items():
        scores = {arm: of_arm(known, name, task, arm, seeds) for arm in ARMS}
        if not all(scores.values()):
            continue
        shown.append(task)
        gains = [100 * (a - b) for a, b in zip(*(scores[arm][1] for arm in ARMS), strict=True)]
        rows.append(
            [
                f"{task}, {bench.figure}",
                "{:.1f} ({})".format(100 * known[f"cheap {task}"][0], known[f"cheap {task}"][1]),
                *(f"{spread([100 * s for s in scores[arm][1]])} (rate {scores[arm][0]:g})" for arm in ARMS),
                spread(gains),
            ]
        )
    columns = ["task", "cheap method", "pre-trained", "random weights", "gain, paired by seed"]
    several = f"seeds {', '.join(map(str, seeds))}, mean ± standard deviation"
    told = several if len(seeds) > 1 else f"seed {seeds[0]}"
    fewer = "".join(
        f" ({bench.rows:,} of {task})"
        for task, bench in BENCHES.items()
        if bench.rows < ROWS and task in shown
    )
    write_section(
        f"Tasks after {name}",
        f"""`python benchmarks/learning_tasks.py RUN`; {environment(threads)}.

At most {ROWS:,} training rows{fewer}, three epochs, dropout 0.1, the best evaluation on dev, in points; {told}.
Rates chosen with seed {TUNING_SEED} on rows that were not trained on.

{markdown_table(columns, rows)}""",
    )


def of_arm(
    known: Mapping[str, Any], name: str, task: str, arm: str, seeds: Sequence[int]
) -> tuple[float, list[float]] | None:
    """An arm's rate and its scores by seed; None where they are not all there."""
    for rate in RATES:
        keys = [f"{name} {task} {arm} {rate:g} {seed}" for seed in seeds]
        if all(key in known for key in keys):
            return rate, [known[key] for key in keys]
    return None


def spread(values: Sequence[float]) -> str:
    """Mean ± standard deviation; of one value that."""
    if len(values) == 1:
        return f"{values[0]:.1f}"
    return f"{statistics.mean(values):.1f} ± {statistics.stdev(values):.1f}"


if __name__ == "__main__":
    main()
