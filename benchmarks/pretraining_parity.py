"""Compare pre-training with transformers: losses of the same updates, quality, and speed.

    python benchmarks/pretraining_parity.py [same speed ours reference ...] [--threads 2] [--steps 3500]

bert-mini-uncased at 128 tokens on the encyclopedia; both sides start from our initial weights.
same: dropout 0 and the same batches: the largest differences of the two losses over 300 steps.
speed: tokens per second without padding, windows of both in turn.
ours, reference: dropout 0.1, the same instances: held-out losses after --steps. The two runs may run at the same
    time. An interrupted run resumes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch

import bertsmith as bs
from bertsmith import hardware
from bertsmith.corpus.shards import Shards
from bertsmith.instances.batches import InstanceStream, MaskedBatch
from bertsmith.pretraining.data import PretrainData
from bertsmith.pretraining.settings import PretrainSettings
from corpus import prepare_corpus
from ours import OurTrainer
from record import WORK, argument_parser, environment, load_records, markdown_table, run_once, write_section
from reference import (
    ReferenceTrainer,
    batches_after,
    build_reference,
    describe_rates,
    initial_weights,
    learning_rate_at,
    make_settings,
    time_interleaved,
)

NAME = "parity"
SEED = 0
SAME_STEPS, SAME_BATCH = 300, 16
BATCH, STEPS, MASKED = 32, 3_500, 0.3
WINDOWS, WINDOW_STEPS = 7, 4
SAVE_STEPS = 50
# At these settings a mini leaves the plateau of word frequencies after some five million tokens.
LONG = [
    "model.initializer_range=0.06",
    "start.positions=sinusoidal",
    "start.output_bias=unigram",
    f"data.mlm_probability={MASKED}",
    f"train.batch_size={BATCH}",
    "train.learning_rate=6e-4",
    "train.adam_beta1=0.9",
    "train.adam_beta2=0.98",
    "train.warmup_steps=0.05",
    f"train.seed={SEED}",
    "train.save_steps=200",
    "train.eval_steps=250",
    "train.device=cpu",
]


def main() -> None:
    parts = {"same": same_losses, "speed": speed, "ours": train_ours, "reference": train_theirs}
    parser = argument_parser(__doc__)
    parser.add_argument("parts", nargs="*", default=list(parts))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--steps", type=int, default=STEPS)
    options = parser.parse_args()
    hardware.configure_process(options.threads)
    torch.manual_seed(SEED)  # dropout of the reference uses torch's global generator
    shards = Shards.open(prepare_corpus())
    for part in options.parts:
        run_once(NAME, part, partial(parts[part], shards, options.steps, options.threads))
    report(options.threads)


def pretrain(shards: Shards, run: Path, settings: PretrainSettings) -> Path:
    """Run our pre-training, or resume it.

    The settings are given as a recipe: without one, a run adds the optimizer that suits the model's size.
    """
    if not (run / "report.json").exists():
        recipe = run.with_suffix(".yaml")
        recipe.write_text(settings.to_yaml(), encoding="utf-8")
        bs.pretrain(shards, run, recipe=recipe, resume=(run / "settings.yaml").exists())
    return run


def same_losses(shards: Shards, steps: int, threads: int) -> dict[str, float]:
    """Return the largest differences of the two losses over SAME_STEPS steps without dropout."""
    settings = make_settings(
        shards,
        f"train.max_steps={SAME_STEPS}",
        f"train.batch_size={SAME_BATCH}",
        f"train.seed={SEED}",
        f"train.threads={threads}",
        "train.learning_rate=1e-4",
        "train.logging_steps=1",
        "train.precision=fp32",
        "train.device=cpu",
        "model.hidden_dropout_prob=0",
        "model.attention_probs_dropout_prob=0",
    )
    run = pretrain(shards, WORK / "parity-same", settings)
    log = [json.loads(line) for line in (run / "log.jsonl").read_text(encoding="utf-8").splitlines()]
    ours = [line for line in log if line["kind"] == "train"]
    trainer = ReferenceTrainer(build_reference(settings), settings.train)
    batches = batches_after(PretrainData.from_shards(shards, settings).streams[0], SAME_BATCH, 0)
    differences = {"mlm": 0.0, "nsp": 0.0}
    for line in ours:
        losses = trainer.train_step(next(batches))
        differences = {
            name: max(value, abs(losses[name] - line[name])) for name, value in differences.items()
        }
        if line["step"] % SAVE_STEPS == 0:
            print(line["step"], line["mlm"], losses, differences, flush=True)
    return {"steps": len(ours), **differences, "last_mlm": ours[-1]["mlm"]}


def long_settings(shards: Shards, steps: int, threads: int) -> PretrainSettings:
    precision = hardware.choose_precision()
    run = [f"train.max_steps={steps}", f"train.threads={threads}", f"train.precision={precision}"]
    return make_settings(shards, *LONG, *run)


def train_ours(shards: Shards, steps: int, threads: int) -> dict[str, Any]:
    """Train ours with dropout and return its held-out figures."""
    run = pretrain(shards, WORK / f"parity-long-{steps}", long_settings(shards, steps, threads))
    report = bs.load(run).report
    return {key: report[key] for key in ("held_out", "tokens", "precision", "steps")}


def train_theirs(shards: Shards, steps: int, threads: int) -> dict[str, Any]:
    """Train the reference on the same instances from the same initial weights."""
    settings = long_settings(shards, steps, threads)
    source = PretrainData.from_shards(shards, settings)
    trainer = ReferenceTrainer(build_reference(settings, source.token_counts), settings.train)
    train_reference(trainer, source.streams[0], WORK / f"parity-long-{steps}-reference.pt")
    return trainer.evaluate(source.validation_batches[""])


def train_reference(trainer: ReferenceTrainer, stream: InstanceStream, state: Path) -> None:
    """Train the reference for the steps of its settings; the state is saved, so that it can be resumed."""
    trainer.restore(state)
    steps = trainer.settings.max_steps or 0
    batches = batches_after(stream, trainer.settings.batch_size, trainer.step)
    while trainer.step < steps:
        losses = trainer.train_step(next(batches))
        if trainer.step % SAVE_STEPS == 0:
            trainer.save(state)
            print(trainer.step, steps, losses, flush=True)


def speed(shards: Shards, steps: int, threads: int) -> dict[str, Any]:
    """Measure tokens per second of both with dropout, windows in turn."""
    precision = hardware.choose_precision()
    assignments = ["train.max_steps=10000", f"train.batch_size={BATCH}", f"train.seed={SEED}"]
    settings = make_settings(shards, *assignments, f"train.precision={precision}")
    trainer = ReferenceTrainer(build_reference(settings), settings.train)
    stream = PretrainData.from_shards(shards, settings).streams[0]
    return compare_speed(OurTrainer(*initial_weights(settings), settings.train), trainer, stream)


def compare_speed(ours: OurTrainer, theirs: ReferenceTrainer, stream: InstanceStream) -> dict[str, Any]:
    """Time windows of updates of both sides in turn on the same batches."""
    batches = batches_after(stream, ours.settings.batch_size, 0)

    def update_ours(window: list[MaskedBatch]) -> None:
        for batch in window:
            ours.train_step(batch, learning_rate_at(ours.step + 1, ours.settings))

    def update_theirs(window: list[MaskedBatch]) -> None:
        for batch in window:
            theirs.train_step(batch)

    def windows() -> Iterator[tuple[int, Callable[[], None], Callable[[], None]]]:
        for _ in range(WINDOWS + 1):
            window = [next(batches) for _ in range(WINDOW_STEPS)]
            tokens = sum(batch.tokens for batch in window)
            yield tokens, partial(update_ours, window), partial(update_theirs, window)

    return time_interleaved(windows())


def report(threads: int) -> None:
    """Write the section of RESULTS.md from the parts that are measured."""
    records = load_records(NAME)
    parts = [f"`python benchmarks/pretraining_parity.py`, seed {SEED}; {environment(threads)}."]
    if same := records.get("same"):
        parts.append(f"""Same initial weights and batches, dropout 0, fp32, {same["steps"]} steps of {SAME_BATCH}
pairs at the paper's rate of 1e-4: largest difference of the MLM loss {same["mlm"]:.1e}, of the NSP loss
{same["nsp"]:.1e} (last MLM loss {same["last_mlm"]:.3f}). At a rate of 1e-3 the MLM losses differed by 8.2e-4
after 150 steps, and the difference grew.""")
    if {"ours", "reference"} <= records.keys():
        run, theirs = records["ours"], records["reference"]
        ours, names = run["held_out"], ("mlm_loss", "mlm_accuracy", "nsp_loss", "nsp_accuracy")
        sides = {"ours": ours, "reference": theirs}
        rows = [[name, *(f"{side[key]:.4f}" for key in names)] for name, side in sides.items()]
        parts.append(f"""Dropout 0.1 on both sides, {run["precision"]}, {run["steps"]:,} steps of {BATCH} pairs,
{run["tokens"]:,} tokens, the same instances with {MASKED:.0%} of the tokens masked; held-out figures (unigram
MLM loss {ours["unigram_mlm_loss"]:.3f}); MLM loss of ours {ours["mlm_loss"] / theirs["mlm_loss"] - 1:+.2%}:

{markdown_table(["", "MLM loss", "MLM accuracy", "NSP loss", "NSP accuracy"], rows)}""")
    if rates := records.get("speed"):
        parts.append(
            f"Batches of {BATCH}, dropout 0.1, windows of {WINDOW_STEPS} steps. {describe_rates(rates)}"
        )
    write_section("Pre-training against transformers", "\n\n".join(parts))


if __name__ == "__main__":
    main()
