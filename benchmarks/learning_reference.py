"""The reference library's usual settings for as long as ours: what has each learnt by then?

    python benchmarks/learning_reference.py [speed] [tune] [train] [tasks] [--seed 0] [--threads 2]

speed: seconds a token of both sides in turn, and so how many updates the reference makes in our time.
tune: three learning rates for a tenth of that each, with a seed that is not reported, judged on documents that are
    trained on otherwise.
train: the whole run at the best of them; written as a model folder that bertsmith loads.
tasks: that model and ours of the same time (learning.py mini, the run with 55 % of the tokens) on minimal pairs
    and, fine-tuned with bertsmith, on sst2.

Its settings are those of its pre-training script: AdamW with betas 0.9 and 0.999 and no decay, no warm-up, a
linear schedule, dropout 0.1, weights from a normal of 0.02. The instances are those of learning.py's mini.
"""

from __future__ import annotations

import argparse
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

import bertsmith as bs
from bertsmith import hardware
from bertsmith.corpus.shards import Shards
from bertsmith.instances.holdout_split import VALIDATION_SEED, DocumentSplit
from bertsmith.pretraining.data import instances_of
from bertsmith.pretraining.model_init import first_weights
from bertsmith.pretraining.settings import PretrainSettings
from family_threshold import PAIRS, PAIRS_SCORED
from learning import SHARES, SIZES, settings_of, shards_of
from learning_tasks import SEEDS, best_rate, of_arm, scored, spread
from ours import OurTrainer
from record import WORK, environment, load_records, markdown_table, run_once, write_section
from reference import ReferenceTrainer, batches_after, learning_rate_at, time_interleaved

RATES = (1e-4, 5e-4, 1e-3)
TUNING_SEED, TUNING_SHARE = 100, 0.1
OURS = SHARES["ours short"] * SIZES["mini"].tokens  # the run of ours whose time the reference gets
WINDOWS, UPDATES = 8, 4
USUAL = [
    "train.optimizer=adamw",
    "train.schedule=linear",
    "train.warmup=0",
    "train.betas=[0.9, 0.999]",
    "train.epsilon=1e-8",
    "train.weight_decay=0",
    "train.clip_norm=1.0",
]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", default=["speed", "tune", "train", "tasks"])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    hardware.configure_process(options.threads)
    shards, threads = shards_of("mini"), options.threads
    speed = run_once("learning_reference", "speed", partial(speeds, shards, threads))
    tokens = OURS / speed["ratio"]
    if {"tune", "train"} & set(options.parts):
        scores = {rate: tuned(shards, rate, TUNING_SHARE * tokens, threads) for rate in RATES}
        best = min(scores, key=lambda rate: scores[rate])
        if "train" in options.parts:
            key = f"{best:g} {options.seed}"
            run_once("learning_reference", key, partial(whole, shards, best, tokens, options.seed, threads))
    if "tasks" in options.parts:
        on_tasks(options.seed, threads)
    report(threads)


def settings(shards: Shards, rate: float, seed: int, threads: int) -> PretrainSettings:
    """The instances of learning.py's mini, and the reference's usual training at this rate."""
    chosen = settings_of("mini", "before", seed, threads, shards)
    return chosen.changed([*USUAL, f"train.learning_rate={rate}"])


def fresh(chosen: PretrainSettings) -> nn.Module:
    """The reference's model of these sizes, as it begins by itself."""
    from transformers import BertConfig, BertForPreTraining

    model = chosen.model
    torch.manual_seed(chosen.train.seed)
    return BertForPreTraining(
        BertConfig(
            vocab_size=model.vocab_size,
            hidden_size=model.hidden_size,
            num_hidden_layers=model.num_hidden_layers,
            num_attention_heads=model.num_attention_heads,
            intermediate_size=model.intermediate_size,
            max_position_embeddings=model.max_position_embeddings,
        )
    )


def speeds(shards: Shards, threads: int) -> dict[str, Any]:
    """Tokens a second of our recipe and of the reference in turn; the ratio is ours over the reference's."""
    chosen = settings_of("mini", "ours", TUNING_SEED, threads, shards)
    split = DocumentSplit.from_settings(shards, chosen.data)
    stream = instances_of(
        shards, split.train, chosen, chosen.data.sequence_length, kin=split.duplicate_groups
    )
    batches = batches_after(stream, chosen.train.batch_size, 0)
    ours = OurTrainer(*first_weights(chosen, torch.Generator().manual_seed(TUNING_SEED)), chosen.train)
    usual = settings(shards, RATES[0], TUNING_SEED, threads)
    reference = ReferenceTrainer(fresh(usual), usual.train.model_copy(update={"max_steps": 1_000}))
    schedule = chosen.train.model_copy(update={"max_steps": 1_000})

    def windows() -> Any:
        for _ in range(WINDOWS):
            work = [next(batches) for _ in range(UPDATES)]

            def our(work: Any = work) -> None:
                for batch in work:
                    ours.update(batch, learning_rate_at(ours.step + 1, schedule))

            def theirs(work: Any = work) -> None:
                for batch in work:
                    reference.update(batch)

            yield sum(batch.tokens for batch in work), our, theirs

    return time_interleaved(windows())


def tuned(shards: Shards, rate: float, tokens: float, threads: int) -> float:
    """The loss after a short run at this rate, on documents beside those that are reported on."""
    chosen = settings(shards, rate, TUNING_SEED, threads)
    small = DocumentSplit.from_settings(shards, chosen.data)
    large = DocumentSplit.from_settings(
        shards, chosen.data.model_copy(update={"validation_split": 2 * chosen.data.validation_split})
    )
    training, judging = large.train, np.setdiff1d(large.validation, small.validation)
    found: float = run_once(
        "learning_reference",
        f"tuning {rate:g}",
        lambda: trained(
            shards, chosen, training, judging, large.duplicate_groups, tokens, f"tuning-{rate:g}"
        )["mlm_loss"],
    )
    return found


def whole(shards: Shards, rate: float, tokens: float, seed: int, threads: int) -> dict[str, float]:
    """The held-out figures of the whole run."""
    chosen = settings(shards, rate, seed, threads)
    split = DocumentSplit.from_settings(shards, chosen.data)
    return trained(
        shards, chosen, split.train, split.validation, split.duplicate_groups, tokens, f"reference-{seed}"
    )


def trained(
    shards: Shards, chosen: PretrainSettings, training: Any, judging: Any, kin: Any, tokens: float, name: str
) -> dict[str, float]:
    """Train the reference on so many tokens, and judge it; its model is written, and what is needed to go on."""
    length, size = chosen.data.sequence_length, chosen.train.batch_size
    stream = instances_of(shards, training, chosen, length, kin=kin)
    held_out = instances_of(shards, judging, chosen, length, kin=kin, seed=VALIDATION_SEED)
    updates = round(tokens / float(stream.fill_stats(0, size).tokens.mean()))
    trainer = ReferenceTrainer(fresh(chosen), chosen.train.model_copy(update={"max_steps": updates}))
    folder = WORK / "learning" / name
    folder.mkdir(parents=True, exist_ok=True)
    state = folder / "state.pt"
    trainer.restore(state)
    batches = batches_after(stream, size, trainer.step)
    while trainer.step < updates:
        losses = trainer.update(next(batches))
        if trainer.step % 100 == 0:
            trainer.save(state)
            print(name, trainer.step, updates, losses, flush=True)
    trainer.model.save_pretrained(folder)
    shards.tokenizer.save(folder)
    last = min(held_out.size(0), chosen.data.max_validation_instances)
    figures = trainer.evaluate([held_out.batch(0, i, min(i + 64, last)) for i in range(0, last, 64)])
    return figures | {"updates": updates}


def on_tasks(seed: int, threads: int) -> None:
    """Both models on minimal pairs and sst2."""
    for name in (f"reference-{seed}", f"mini-ours-short-{seed}"):
        model = bs.load(WORK / "learning" / name)
        run_once("learning_reference", f"pairs {name}", partial(pairs, model))
        rate = best_rate(name, "sst2", "pre-trained", model.model_folder, threads)
        for number in SEEDS:
            scored(name, "sst2", "pre-trained", model.model_folder, rate, number, threads)


def pairs(model: bs.Model) -> float:
    """The share of the minimal pairs whose good sentence is the likelier."""
    return float(model.score_pairs(PAIRS, sample=PAIRS_SCORED)["accuracy"])


def task_cells(name: str) -> list[str]:
    """Return the accuracy on minimal pairs and on sst2 of a model, as far as they are measured."""
    known = load_records("learning_reference")
    found = of_arm(load_records("learning_tasks"), name, "sst2", "pre-trained", SEEDS)
    if found is None or f"pairs {name}" not in known:
        return ["", ""]
    sst2 = f"{spread([100 * score for score in found[1]])} (rate {found[0]:g})"
    return [f"{100 * known[f'pairs {name}']:.1f}", sst2]


def report(threads: int) -> None:
    """Write the section of RESULTS.md from the records."""
    known = load_records("learning_reference")
    speed = known["speed"]
    rates = ", ".join(
        f"{known[f'tuning {rate:g}']:.3f} at {rate:g}" for rate in RATES if f"tuning {rate:g}" in known
    )
    ours = load_records("learning")["mini ours short 0"]
    models = {
        f"reference, rate {key.replace(' ', ', seed ')}": (
            value["updates"],
            value,
            f"reference-{key.split()[1]}",
        )
        for key, value in known.items()
        if isinstance(value, dict) and "updates" in value
    }
    models["ours"] = (ours["steps"], ours["held_out"], "mini-ours-short-0")
    rows = [
        [model, f"{updates:,}", f"{held['mlm_loss']:.3f}", f"{held['nsp_accuracy']:.0%}", *task_cells(name)]
        for model, (updates, held, name) in models.items()
    ]
    write_section(
        "Learning against the usual settings of transformers",
        f"""`python benchmarks/learning_reference.py`; {environment(threads)}.

In the time that our recipe needs for {OURS / 1e6:g} M tokens (mini, encyclopedia, the same held-out instances).
Tokens per second in turn: ours {speed["ours"]:,.0f}, the reference {speed["reference"]:,.0f}, ratio
{speed["ratio"]:.2f}. The reference's loss after {TUNING_SHARE:.0%} of the run: {rates}. {PAIRS_SCORED:,}
minimal pairs (chance 50) and sst2 (5,000 rows, three epochs, three seeds) in points:

{markdown_table(["model", "updates", "held-out MLM loss", "NSP accuracy", "minimal pairs", "sst2"], rows)}""",
    )


if __name__ == "__main__":
    main()
