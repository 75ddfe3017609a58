"""Compare our recipe with transformers' usual pre-training settings in the same time.

    python benchmarks/learning_reference.py [speed] [tune] [train] [tasks] [--seed 0] [--threads 2]

speed: tokens per second of both sides in turn, and so the number of the reference's updates in our time.
tune: three learning rates for a tenth of the updates, with a seed that is not reported, evaluated on documents
    that the whole run trains on.
train: the whole run at the best learning rate; its model folder is one that bertsmith loads.
tasks: this model and ours of the same time (learning.py mini, the run with 55 % of the tokens) on minimal pairs
    and, fine-tuned with bertsmith, on sst2.

The settings are those of transformers' pre-training script: AdamW with betas 0.9 and 0.999, no weight decay, no
warm-up, a linear schedule, dropout 0.1, weights from a normal distribution of 0.02. The instances are those of
learning.py's mini.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

import bertsmith as bs
import learning_tasks as tasks
from bertsmith import hardware
from bertsmith.corpus.shards import Shards
from bertsmith.instances.holdout_split import DocumentSplit
from bertsmith.pretraining.data import PretrainData
from bertsmith.pretraining.model import first_weights
from bertsmith.pretraining.settings import PretrainSettings
from learning import COMPARISONS, FRACTIONS, arm_settings, load_shards
from ours import OurTrainer
from pretraining_parity import compare_speed, train_reference
from record import WORK, argument_parser, environment, load_records, markdown_table, run_once, write_section
from reference import ReferenceTrainer

NAME = "learning_reference"
PARTS = ("speed", "tune", "train", "tasks")
LEARNING_RATES = (1e-4, 5e-4, 1e-3)
TUNING_FRACTION = 0.1
OUR_TOKENS = FRACTIONS["ours short"] * COMPARISONS["mini"].tokens  # the reference gets the time of this run
USUAL = [
    "train.optim=adamw",
    "train.lr_scheduler_type=linear",
    "train.warmup_steps=0",
    "train.adam_beta1=0.9",
    "train.adam_beta2=0.999",
    "train.adam_epsilon=1e-8",
    "train.weight_decay=0",
    "train.max_grad_norm=1.0",
]


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("parts", nargs="*", default=PARTS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    hardware.configure_process(options.threads)
    shards, seed, threads = load_shards("mini"), options.seed, options.threads
    tokens = OUR_TOKENS / run_once(NAME, "speed", partial(measure_speed, shards, threads))["ratio"]
    if {"tune", "train"} & set(options.parts):
        losses = {}
        for rate in LEARNING_RATES:
            measure = partial(tuning_loss, shards, rate, TUNING_FRACTION * tokens, threads)
            losses[rate] = run_once(NAME, f"tuning {rate:g}", measure)
        if "train" in options.parts:
            rate = min(losses, key=lambda rate: losses[rate])
            source = PretrainData.from_shards(shards, reference_settings(shards, rate, seed, threads))
            run_once(NAME, f"{rate:g} {seed}", partial(train, source, tokens, f"reference-{seed}"))
    if "tasks" in options.parts:
        for name in (f"reference-{seed}", f"mini-ours-short-{seed}"):
            folder = bs.load(WORK / "learning" / name).model_folder
            run_once(NAME, f"pairs {name}", partial(tasks.minimal_pair_accuracy, folder))
            tasks.task_scores(f"{name} sst2 pre-trained", "sst2", folder, tasks.SEEDS, threads)
    report(threads)


def reference_settings(shards: Shards, rate: float, seed: int, threads: int) -> PretrainSettings:
    """Return the instances of learning.py's mini with the reference's usual training settings."""
    settings = arm_settings("mini", "before", seed, threads, shards)
    return settings.changed([*USUAL, f"train.learning_rate={rate}"])


def build_usual_reference(settings: PretrainSettings) -> nn.Module:
    """Build the reference's model of these sizes with its own initial weights."""
    from transformers import BertConfig, BertForPreTraining

    torch.manual_seed(settings.train.seed)
    sizes = (
        "vocab_size",
        "hidden_size",
        "num_hidden_layers",
        "num_attention_heads",
        "intermediate_size",
        "max_position_embeddings",
    )
    model: nn.Module = BertForPreTraining(
        BertConfig(**{size: getattr(settings.model, size) for size in sizes})
    )
    return model


def measure_speed(shards: Shards, threads: int) -> dict[str, Any]:
    """Measure tokens per second of our recipe and of the reference in turn."""
    settings = arm_settings("mini", "ours", tasks.TUNING_SEED, threads, shards)
    settings = settings.changed(["train.max_tokens=none", "train.max_steps=1000"])
    weights = first_weights(settings, torch.Generator().manual_seed(tasks.TUNING_SEED))
    usual = reference_settings(shards, LEARNING_RATES[0], tasks.TUNING_SEED, threads)
    trainer = ReferenceTrainer(
        build_usual_reference(usual), usual.train.model_copy(update={"max_steps": 1_000})
    )
    stream = PretrainData.from_shards(shards, settings).streams[0]
    return compare_speed(OurTrainer(*weights, settings.train), trainer, stream)


def tuning_loss(shards: Shards, rate: float, tokens: float, threads: int) -> float:
    """Return the loss after a short run, on documents that are neither trained on then nor held out later."""
    settings = reference_settings(shards, rate, tasks.TUNING_SEED, threads)
    small = DocumentSplit.from_settings(shards, settings.data)
    doubled = {"validation_split": 2 * settings.data.validation_split}
    large = DocumentSplit.from_settings(shards, settings.data.model_copy(update=doubled))
    split = replace(large, validation=np.setdiff1d(large.validation, small.validation))
    return train(PretrainData(shards, split, settings), tokens, f"tuning-{rate:g}")["mlm_loss"]


def train(source: PretrainData, tokens: float, name: str) -> dict[str, float]:
    """Train the reference, write its model, and evaluate it on the held-out documents."""
    settings, stream = source.settings, source.streams[0]
    num_tokens = stream.fill_stats(0, settings.train.batch_size).tokens
    updates = round(tokens / float(num_tokens.mean()))
    schedule = settings.train.model_copy(update={"max_steps": updates})
    trainer = ReferenceTrainer(build_usual_reference(settings), schedule)
    folder = WORK / "learning" / name
    folder.mkdir(parents=True, exist_ok=True)
    train_reference(trainer, stream, folder / "state.pt")
    trainer.model.save_pretrained(folder)  # type: ignore[operator]
    source.shards.tokenizer.save(folder)
    return trainer.evaluate(source.validation_batches[""]) | {"updates": updates}


def model_row(name: str, folder: str, updates: int, held_out: dict[str, float]) -> list[str]:
    """Format a model's losses, and its scores on tasks if they are measured."""
    records = load_records(NAME)
    row = [name, f"{updates:,}", f"{held_out['mlm_loss']:.3f}", f"{held_out['nsp_accuracy']:.0%}"]
    scores = tasks.recorded_scores(f"{folder} sst2 pre-trained", tasks.SEEDS)
    if scores is None or f"pairs {folder}" not in records:
        return [*row, "", ""]
    return [
        *row,
        f"{100 * records[f'pairs {folder}']:.1f}",
        f"{tasks.mean_and_std(scores[1])} (rate {scores[0]:g})",
    ]


def report(threads: int) -> None:
    """Write the section of RESULTS.md from the runs that are measured."""
    records = load_records(NAME)
    speed, rows = records["speed"], []
    for rate in LEARNING_RATES:
        for key, run in records.items():
            if key.startswith(f"{rate:g} "):
                seed = key.split()[1]
                name = f"reference, rate {rate:g}, seed {seed}"
                rows.append(model_row(name, f"reference-{seed}", run["updates"], run))
    ours = load_records("learning")["mini ours short 0"]
    rows.append(model_row("ours", "mini-ours-short-0", ours["steps"], ours["held_out"]))
    tuning = [
        f"{records[f'tuning {rate:g}']:.3f} at {rate:g}"
        for rate in LEARNING_RATES
        if f"tuning {rate:g}" in records
    ]
    write_section(
        "Learning against the usual settings of transformers",
        f"""`python benchmarks/learning_reference.py`; {environment(threads)}.

In the time that our recipe needs for {OUR_TOKENS / 1e6:g} M tokens (mini, encyclopedia, the same held-out
instances). Interleaved tokens per second: ours {speed["ours"]:,.0f}, the reference {speed["reference"]:,.0f},
ratio {speed["ratio"]:.2f}. The reference's loss after {TUNING_FRACTION:.0%} of the run: {", ".join(tuning)}.
{tasks.NUM_SAMPLED_PAIRS:,} minimal pairs (chance 50) and sst2 (5,000 rows, three epochs, three seeds) in points:

{markdown_table(["model", "updates", "held-out MLM loss", "NSP accuracy", "minimal pairs", "sst2"], rows)}""",
    )


if __name__ == "__main__":
    main()
