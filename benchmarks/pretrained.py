"""Evaluate a pre-trained model on minimal pairs and on tasks with all of their training rows.

    python benchmarks/pretrained.py [FOLDER] [--tasks sst2 cola rte stsb conll2003] [--seeds 0 1 2] [--rate 3e-4]
        [--threads 2]

FOLDER is a model folder, by default bert-mini-uncased-en, which the package includes. Three epochs at one learning
rate for all tasks; the best evaluation on dev counts. The table compares the model with the best method without an
encoder on the same rows, and with published scores of the size (Turc et al. 2019, whose models read many times as
much text, and whose rates were searched for). Each score is recorded: an interrupted script resumes.
"""

from __future__ import annotations

import json
from argparse import Namespace
from functools import partial
from pathlib import Path

from bertsmith import hardware
from bertsmith.artifacts.locate import locate
from learning_tasks import TASKS, cheap_cell, cheap_score, finetune_score, mean_and_std, minimal_pair_accuracy
from record import argument_parser, environment, load_records, markdown_table, run_once, write_section

NAME, DEFAULT_RATE = "pretrained", 3e-4
EVALUATED = ("sst2", "cola", "rte", "stsb", "conll2003")
PUBLISHED = {
    "mini": {"sst2": "85.9 (test)", "rte": "57.9 (test)", "stsb": "75.4 (test)"},
    "small": {"sst2": "89.7 (test)", "rte": "61.8 (test)", "stsb": "78.8 (test)"},
}


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("folder", type=Path, nargs="?", default=locate("bert-mini-uncased-en"))
    parser.add_argument("--tasks", nargs="*", default=EVALUATED, choices=EVALUATED)
    parser.add_argument("--seeds", type=int, nargs="+", default=(0, 1, 2))
    parser.add_argument("--rate", type=float, default=DEFAULT_RATE)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    hardware.configure_process(options.threads)
    name = options.folder.resolve().name
    run_once(NAME, f"{name} pairs", partial(minimal_pair_accuracy, options.folder, None))
    for task in options.tasks:
        run_once(NAME, f"cheap {task}", partial(cheap_score, task, all_rows=True))
        for seed in options.seeds:
            arguments = (task, options.folder, options.rate, seed, options.threads)
            key = record_key(name, task, options.rate, seed)
            run_once(NAME, key, partial(finetune_score, *arguments, all_rows=True))
        report(name, options)


def record_key(name: str, task: str, rate: float, seed: int) -> str:
    return f"{name} {task} {seed}" if rate == DEFAULT_RATE else f"{name} {task} {rate:g} {seed}"


def report(name: str, options: Namespace) -> None:
    """Write the section of RESULTS.md from the tasks that are measured."""
    records = load_records(NAME)
    metadata = json.loads((options.folder / "bertsmith.json").read_text(encoding="utf-8"))
    held_out = metadata["held_out"]
    published = next((scores for size, scores in PUBLISHED.items() if size in name), {})
    rows = []
    for task in EVALUATED:
        keys = (record_key(name, task, options.rate, seed) for seed in range(10))
        scores = [records[key] for key in keys if key in records]
        if scores and f"cheap {task}" in records:
            score = f"{mean_and_std(scores)} ({len(scores)} seed{'s' if len(scores) > 1 else ''})"
            columns = [f"{task}, {TASKS[task].metric}", cheap_cell(task, NAME), score]
            rows.append([*columns, published.get(task, "")])
    write_section(
        f"Evaluation of {name}",
        f"""`python benchmarks/pretrained.py`; {environment(options.threads)}.

{metadata["steps"]:,} updates, {metadata["tokens"]:,} tokens. Held out: masked-LM loss {held_out["mlm_loss"]:.3f}
(unigram {held_out["unigram_mlm_loss"]:.3f}), accuracy {held_out["mlm_accuracy"]:.1%}; NSP accuracy
{held_out["nsp_accuracy"]:.1%}. Minimal pairs of BLiMP's development half: {records[f"{name} pairs"]:.1%}
(chance 50 %; an n-gram model 61.2 %: Warstadt et al. 2020, table 3).
Dev, in points, all training rows, 3 epochs, rate {options.rate:g}, mean ± standard deviation over seeds:

{markdown_table(["task", "baseline", "this model", "published, this size"], rows)}

Published: the table of GLUE test scores in the README of google-research/bert.""",
    )


if __name__ == "__main__":
    main()
