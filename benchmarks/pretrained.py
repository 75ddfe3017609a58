"""What a pre-trained model is worth: minimal pairs, and tasks with all of their training rows.

    python benchmarks/pretrained.py [FOLDER] [--tasks sst2 cola rte stsb conll2003] [--seeds 0 1 2] [--rate 3e-4]
        [--threads 2]

FOLDER: a model folder; by default bert-mini-uncased-en, which the package includes. Three epochs at one rate, the
same for all tasks; the best evaluation on dev. Beside it the best method without an encoder, on the same rows, and
what is published of this size (Turc et al. 2019, whose models read many times as much text, and whose rates were
searched for). Each score is kept: the script may be stopped and called again.
"""

from __future__ import annotations

import argparse
import json
import shutil
from functools import partial
from pathlib import Path

import bertsmith as bs
from baselines import best_baseline
from bertsmith import hardware
from bertsmith.artifacts.locate import locate
from learning_hour import PAIRS
from learning_tasks import BENCHES, spread
from record import DATA, WORK, environment, load_records, markdown_table, run_once, write_section

RATE, EPOCHS = 3e-4, 3
TASKS = ("sst2", "cola", "rte", "stsb", "conll2003")
PUBLISHED = {
    "mini": {"sst2": "85.9 (test)", "rte": "57.9 (test)", "stsb": "75.4 (test)"},
    "small": {"sst2": "89.7 (test)", "rte": "61.8 (test)", "stsb": "78.8 (test)"},
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, nargs="?", default=locate("bert-mini-uncased-en"))
    parser.add_argument("--tasks", nargs="*", default=TASKS, choices=TASKS)
    parser.add_argument("--seeds", type=int, nargs="+", default=(0, 1, 2))
    parser.add_argument("--rate", type=float, default=RATE)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    hardware.configure_process(options.threads)
    name = options.folder.resolve().name
    run_once("pretrained", f"{name} pairs", lambda: bs.load(options.folder).score_pairs(PAIRS)["accuracy"])
    for task in options.tasks:
        run_once("pretrained", f"cheap {task}", partial(cheap, task))
        for seed in options.seeds:
            key = _key(name, task, options.rate, seed)
            run_once("pretrained", key, partial(finetuned, options, task, seed))
        report(name, options)


def _key(name: str, task: str, rate: float, seed: int) -> str:
    return f"{name} {task} {seed}" if rate == RATE else f"{name} {task} {rate:g} {seed}"


def finetuned(options: argparse.Namespace, task: str, seed: int) -> float:
    """The figure on dev."""
    bench, place = BENCHES[task], DATA / "tasks" / task
    out = WORK / "pretrained" / f"{options.folder.resolve().name}-{task}-{seed}"
    model = bs.finetune(
        bench.task,
        options.folder,
        out,
        overwrite=True,  # what was broken off
        train=place / bench.train,
        dev=place / bench.dev,
        settings=[
            *bench.settings,
            f"train.epochs={EPOCHS}",
            f"train.learning_rate={options.rate}",
            f"train.seed={seed}",
            f"train.threads={options.threads}",
            "train.tensorboard=false",
        ],
    )
    figure = float(model.report["dev"][bench.figure])
    print(task, seed, figure, flush=True)
    shutil.rmtree(out)
    return figure


def cheap(task: str) -> tuple[float, str]:
    """The best cheap method on the same rows."""
    bench, place = BENCHES[task], DATA / "tasks" / task
    return best_baseline(bench.task, place / bench.train, place / bench.dev, bench.settings, bench.figure)


def report(name: str, options: argparse.Namespace) -> None:
    """The section of RESULTS.md."""
    known = load_records("pretrained")
    about = json.loads((options.folder / "bertsmith.json").read_text(encoding="utf-8"))
    held = about["held_out"]
    published = next((figures for size, figures in PUBLISHED.items() if size in name), {})
    rows = []
    for task in TASKS:
        keys = (_key(name, task, options.rate, seed) for seed in range(10))
        scores = [100 * known[key] for key in keys if key in known]
        if scores and f"cheap {task}" in known:
            least, how = known[f"cheap {task}"]
            of = f"{spread(scores)} ({len(scores)} seed{'s' if len(scores) > 1 else ''})"
            rows.append(
                [f"{task}, {BENCHES[task].figure}", f"{100 * least:.1f} ({how})", of, published.get(task, "")]
            )
    write_section(
        f"Evaluation of {name}",
        f"""`python benchmarks/pretrained.py`; {environment(options.threads)}.

{about["steps"]:,} updates, {about["tokens"]:,} tokens. Held out: masked-LM loss {held["mlm_loss"]:.3f} (word
frequencies {held["unigram_mlm_loss"]:.3f}), accuracy {held["mlm_accuracy"]:.1%}; NSP accuracy
{held["nsp_accuracy"]:.1%}. Minimal pairs of BLiMP's development half: {known[f"{name} pairs"]:.1%}
(chance 50 %; an n-gram model 61.2 %).
Dev, in points, all training rows, {EPOCHS} epochs, rate {options.rate:g}, mean ± standard deviation over seeds:

{markdown_table(["task", "cheap method", "this model", "published, this size"], rows)}""",
    )


if __name__ == "__main__":
    main()
