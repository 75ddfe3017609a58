"""Compare a pre-trained model with random weights and with the best baseline on downstream tasks.

    python benchmarks/learning_tasks.py RUN [--tasks sst2 cola rte ...] [--seeds 0 1 2] [--threads 2]

RUN is a pre-training run, such as that of learning_hour.py. Both models have the same architecture, tokenizer,
training rows, epochs, and seeds. The learning rate of each model is chosen in separate runs with another seed,
whose scores are not reported, on a tenth of the training rows. Training rows of sst2 are phrases of one another:
there, the rate is chosen on 2,000 other rows of at least ten words, none of which contains, or is part of, a
training row of three words or more. The last four tasks are Chinese. Each score is recorded: an interrupted
script resumes.
"""

from __future__ import annotations

import gzip
import os
import shutil
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path

import bertsmith as bs
import record
from baselines import best_baseline
from bertsmith import hardware, rng
from bertsmith.demo.quickstart import write_untrained_model

NAME = "learning_tasks"
ENGLISH = ("sst2", "cola", "rte", "stsb", "conll2003", "emotion")
MODELS = ("pre-trained", "random")
LEARNING_RATES = (1e-4, 3e-4, 1e-3)
SEEDS = (0, 1, 2)
TUNING_SEED = 100
MAX_ROWS = 5_000
NUM_TUNING_ROWS, MIN_TUNING_WORDS, MIN_PHRASE_WORDS = 2_000, 10, 3
MINIMAL_PAIRS = record.DATA / "minimal_pairs" / "blimp_dev.jsonl.zst"
NUM_SAMPLED_PAIRS = 3_000


@dataclass(frozen=True)
class DownstreamTask:
    """A fine-tuning task and the metric that is reported.

    analyzer: "char" for languages without spaces between words. overlapping: training rows are phrases of one
    another, so that a random split of them would score memorized text.
    """

    verb: str
    train: str
    dev: str
    settings: Sequence[str]
    metric: str
    max_rows: int = MAX_ROWS
    analyzer: str = "word"
    overlapping: bool = False


_PAIR = ("task.text_column=sentence1", "task.second_column=sentence2")
_TEXT_AND_LABEL = ("task.header=false", "task.text_column=1", "task.label_column=2")
_COLA = ("task.header=false", "task.text_column=4", "task.label_column=2", "task.class_weights=balanced")
TASKS = {
    "sst2": DownstreamTask(
        "classify", "train.tsv.gz", "dev.tsv", ["task.text_column=sentence"], "accuracy", overlapping=True
    ),
    "cola": DownstreamTask("classify", "train.tsv.gz", "dev.tsv", _COLA, "matthews"),
    "rte": DownstreamTask("classify", "train.tsv.gz", "dev.tsv", _PAIR, "accuracy"),
    "stsb": DownstreamTask(
        "regress", "train.tsv.gz", "dev.tsv.gz", [*_PAIR, "task.label_column=score"], "pearson"
    ),
    "conll2003": DownstreamTask("tag", "train.txt.gz", "dev.txt.gz", [], "f1"),
    "emotion": DownstreamTask(
        "classify", "train.txt.gz", "dev.txt", [*_TEXT_AND_LABEL, "task.delimiter=;"], "macro_f1"
    ),
    "thucnews": DownstreamTask(
        "classify", "train.txt.gz", "dev.txt.gz", _TEXT_AND_LABEL, "accuracy", analyzer="char"
    ),
    "chnsenticorp": DownstreamTask(
        "classify", "train.tsv.gz", "dev.tsv", ["task.text_column=text"], "accuracy", analyzer="char"
    ),
    "msra_ner": DownstreamTask("tag", "train.tsv.gz", "dev.tsv.gz", [], "f1", analyzer="char"),
    "cmrc2018": DownstreamTask(
        "answer", "train.json.gz", "dev.json.gz", [], "f1", max_rows=1_000, analyzer="char"
    ),
}


def main() -> None:
    parser = record.argument_parser(__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("--tasks", nargs="+", default=ENGLISH, choices=list(TASKS))
    parser.add_argument("--seeds", type=int, nargs="+", default=SEEDS)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    hardware.configure_process(options.threads)
    model, name = bs.load(options.run), options.run.resolve().name
    untrained = record.WORK / "learning" / f"{name}-random-weights"
    if not untrained.exists():
        write_untrained_model(untrained, model)
    for task in options.tasks:
        record.run_once(NAME, f"cheap {task}", partial(cheap_score, task))
        for kind, folder in zip(MODELS, (model.model_folder, untrained), strict=True):
            task_scores(f"{name} {task} {kind}", task, folder, options.seeds, options.threads)
        report(name, options.seeds, options.threads)


def task_scores(prefix: str, task: str, folder: Path, seeds: Sequence[int], threads: int) -> None:
    """Choose a model's learning rate and measure its score of each seed; all is recorded under the prefix."""
    tuning_key = f"{prefix} {{rate:g}} {TUNING_SEED}{' apart' if TASKS[task].overlapping else ''}"
    rate = best_learning_rate(NAME, tuning_key, task, folder, threads)
    for seed in seeds:
        measure = partial(finetune_score, task, folder, rate, seed, threads)
        record.run_once(NAME, f"{prefix} {rate:g} {seed}", measure)


def best_learning_rate(name: str, key: str, task: str, folder: Path, threads: int) -> float:
    """Return the rate with the best score on held-out training rows; `{rate:g}` in the key stands for it."""

    def tuning_score(rate: float) -> float:
        measure = partial(finetune_score, task, folder, rate, TUNING_SEED, threads)
        return float(record.run_once(name, key.format(rate=rate), measure))

    return max(LEARNING_RATES, key=tuning_score)


def finetune_score(
    task: str,
    folder: Path,
    learning_rate: float,
    seed: int,
    threads: int,
    *,
    epochs: int = 3,
    settings: Sequence[str] = (),
    all_rows: bool = False,
) -> float:
    """Fine-tune a model and return its metric on dev, or on held-out training rows for the tuning seed."""
    spec, data = TASKS[task], record.DATA / "tasks" / task
    is_split = seed == TUNING_SEED and not spec.overlapping
    dev = data / spec.dev if seed != TUNING_SEED else None if is_split else write_tuning_rows(task)
    out = record.WORK / f"finetune-{os.getpid()}"
    model = bs.finetune(
        spec.verb,
        folder,
        out,
        train=data / spec.train,
        validation=dev,
        validation_split=0.1 if is_split else None,
        sample=None if all_rows else spec.max_rows,
        overwrite=True,
        settings=[
            *spec.settings,
            f"train.num_train_epochs={epochs}",
            f"train.learning_rate={learning_rate}",
            f"train.seed={seed}",
            f"train.threads={threads}",
            "train.report_to=none",
            *settings,
        ],
    )
    score = float(model.report["validation"][spec.metric])
    print(task, folder, learning_rate, seed, score, flush=True)
    shutil.rmtree(out)
    return score


def write_tuning_rows(task: str) -> Path:
    """Write rows outside the sample that neither contain nor are part of a sampled row of three words or more."""
    path = record.WORK / "learning" / f"{task}-tuning.tsv"
    if not path.exists():
        with gzip.open(record.DATA / "tasks" / task / TASKS[task].train, "rt", encoding="utf-8") as lines:
            header, *rows = lines.read().splitlines()
        texts = [f" {row.partition(chr(9))[0].strip()} " for row in rows]
        order = rng.permutation(0, "sample", len(rows))  # the order of `finetune --sample`
        trained = [
            text for text in (texts[i] for i in order[:MAX_ROWS]) if len(text.split()) >= MIN_PHRASE_WORDS
        ]
        disjoint = (
            rows[i]
            for i in order[MAX_ROWS:]
            if len(texts[i].split()) >= MIN_TUNING_WORDS
            and not any(text in texts[i] or texts[i] in text for text in trained)
        )
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join([header, *islice(disjoint, NUM_TUNING_ROWS)]) + "\n", encoding="utf-8")
    return path


def cheap_score(task: str, *, all_rows: bool = False) -> tuple[float, str]:
    """Return the best score without an encoder, on the same rows, and its method."""
    spec, data = TASKS[task], record.DATA / "tasks" / task
    files = data / spec.train, data / spec.dev
    sample = None if all_rows else spec.max_rows
    return best_baseline(spec.verb, *files, spec.settings, spec.metric, sample=sample, analyzer=spec.analyzer)


def minimal_pair_accuracy(folder: Path, sample: int | None = NUM_SAMPLED_PAIRS) -> float:
    """Return the ratio of minimal pairs whose correct sentence is the more probable one."""
    return float(bs.load(folder).score_pairs(MINIMAL_PAIRS, sample=sample)["accuracy"])


def recorded_scores(prefix: str, seeds: Sequence[int]) -> tuple[float, list[float]] | None:
    """Return the recorded learning rate and scores of a model; None if a seed is missing."""
    records = record.load_records(NAME)
    for rate in LEARNING_RATES:
        keys = [f"{prefix} {rate:g} {seed}" for seed in seeds]
        if all(key in records for key in keys):
            return rate, [records[key] for key in keys]
    return None


def mean_and_std(scores: Sequence[float]) -> str:
    """Format mean ± standard deviation in points; a single score alone."""
    points = [100 * score for score in scores]
    deviation = f" ± {statistics.stdev(points):.1f}" if len(points) > 1 else ""
    return f"{statistics.mean(points):.1f}{deviation}"


def cheap_cell(task: str, name: str = NAME) -> str:
    """Format the recorded score of the best baseline."""
    score, method = record.load_records(name)[f"cheap {task}"]
    return f"{100 * score:.1f} ({method})"


def report(name: str, seeds: Sequence[int], threads: int) -> None:
    """Write the section of RESULTS.md from the tasks that are measured."""
    rows, fewer_rows = [], ""
    for task, spec in TASKS.items():
        scores = [recorded_scores(f"{name} {task} {kind}", seeds) for kind in MODELS]
        pretrained, random = scores
        if pretrained is None or random is None:
            continue
        gains = [a - b for a, b in zip(pretrained[1], random[1], strict=True)]
        cells = [f"{mean_and_std(values)} (rate {rate:g})" for rate, values in (pretrained, random)]
        rows.append([f"{task}, {spec.metric}", cheap_cell(task), *cells, mean_and_std(gains)])
        if spec.max_rows < MAX_ROWS:
            fewer_rows += f" ({spec.max_rows:,} of {task})"
    columns = ["task", "baseline", "pre-trained", "random weights", "gain, paired by seed"]
    seed_list = ", ".join(map(str, seeds))
    deviations = f"seeds {seed_list}, mean ± standard deviation" if len(seeds) > 1 else f"seed {seed_list}"
    record.write_section(
        f"Tasks after {name}",
        f"""`python benchmarks/learning_tasks.py RUN`; {record.environment(threads)}.

At most {MAX_ROWS:,} training rows{fewer_rows}, three epochs, dropout 0.1, the best evaluation on dev, in points;
{deviations}. Rates chosen with seed {TUNING_SEED} on rows that were not trained on.

{record.markdown_table(columns, rows)}""",
    )


if __name__ == "__main__":
    main()
