"""Is pre-training right, and how fast? bert-mini-uncased at 128 tokens, beside the reference library.

    python benchmarks/pretraining_parity.py [same|speed|long|warm|ours|reference …] [--threads 2] [--steps 3000]

same: both from our first weights, dropout 0, the same batches: the two losses at each of 300 steps.
long: dropout 0.1 on both sides, the same instances, the same number of tokens: held-out losses
    (or its halves `ours` and `reference`, to run side by side).
warm: as long, but both go on from one model that is past the plateau: the hour-long run of pretraining_pays.py,
    its tokens' vectors taken over by pieces (halves `warm-ours` and `warm-reference`).
speed: real tokens a second, windows of both in turn. Killed and started again, the long run goes on.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch

import bertsmith as bs
from bertsmith import hardware
from bertsmith.artifacts.folder import read_folder
from bertsmith.corpus.shards import Shards
from bertsmith.instances.batches import MaskedBatch, token_counts
from bertsmith.instances.holdout_split import DocumentSplit
from bertsmith.models.heads import MaskedLMHead
from bertsmith.pretraining.settings import PretrainSettings
from bertsmith.tokenizer.tokenizer import Tokenizer
from corpus import prepare_corpus
from ours import OurTrainer
from record import WORK, environment, load_records, markdown_table, run_once, write_section
from reference import (
    ReferenceTrainer,
    batches_after,
    build_reference,
    describe_rates,
    initial_weights,
    instance_streams,
    learning_rate_at,
    load_reference,
    make_settings,
    time_interleaved,
    write_model,
)

SEED = 0
SAME_STEPS, SAME_BATCH = 300, 16
LONG_BATCH, LONG_STEPS, MASK_SHARE = 32, 3500, 0.3
WARM_STEPS = 1500
WINDOWS, WINDOW_STEPS = 7, 4
# Settings at which a mini leaves the plateau of word frequencies after some five million tokens.
LONG = [
    "model.initializer_range=0.06",
    "start.positions=sinusoidal",
    "start.output_bias=unigram",
    f"data.mlm_probability={MASK_SHARE}",
    f"train.batch_size={LONG_BATCH}",
    "train.learning_rate=6e-4",
    "train.betas=[0.9, 0.98]",
    "train.warmup=0.05",
    f"train.seed={SEED}",
    "train.checkpoint_every=200",
    "train.evaluate_every=250",
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", default=["same", "speed", "long"])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--steps", type=int, default=LONG_STEPS)
    options = parser.parse_args()
    hardware.configure_process(options.threads)
    torch.manual_seed(SEED)  # the reference's dropout draws from torch's global generator
    shards = Shards.open(prepare_corpus())
    if "same" in options.parts:
        run_once("parity", "same", lambda: same_losses(shards, options.threads))
    if "speed" in options.parts:
        run_once("parity", "speed", lambda: speed(shards, options.threads))
    if {"long", "ours"} & set(options.parts):
        run_once("parity", "ours", lambda: long_ours(shards, options.steps, options.threads))
    if {"long", "reference"} & set(options.parts):
        run_once("parity", "reference", lambda: long_reference(shards, options.steps, options.threads))
    if {"warm", "warm-ours"} & set(options.parts):
        run_once("parity", "warm-ours", lambda: warm_ours(shards, options.threads))
    if {"warm", "warm-reference"} & set(options.parts):
        run_once("parity", "warm-reference", lambda: warm_reference(shards, options.threads))
    report(load_records("parity"), options.threads)


def same_losses(shards: Shards, threads: int) -> dict[str, float]:
    """The largest differences of the two losses over 300 steps."""
    run = WORK / "parity-same"
    assignments = [
        f"train.max_steps={SAME_STEPS}",
        f"train.batch_size={SAME_BATCH}",
        f"train.seed={SEED}",
        f"train.threads={threads}",
        "train.learning_rate=1e-4",
        "train.log_every=1",
        "train.precision=fp32",
        "train.device=cpu",
        "model.hidden_dropout_prob=0",
        "model.attention_probs_dropout_prob=0",
    ]
    if not (run / "report.json").exists():
        bs.pretrain(shards, run, settings=assignments, resume=(run / "settings.yaml").exists())
    ours = [line for line in read_log(run) if line["kind"] == "train"]
    chosen = PretrainSettings.from_file(run / "settings.yaml")
    reference = ReferenceTrainer(build_reference(chosen), chosen.train)
    training, _ = instance_streams(shards, chosen)
    largest = {"mlm": 0.0, "nsp": 0.0}
    batches = batches_after(training, SAME_BATCH, 0)
    for line in ours:
        losses = reference.update(next(batches))
        largest = {name: max(largest[name], abs(losses[name] - line[name])) for name in largest}
        if line["step"] % 50 == 0:
            print(line["step"], line["mlm"], losses, largest, flush=True)
    return {"steps": len(ours), **largest, "last_mlm": ours[-1]["mlm"]}


def long_assignments(steps: int, threads: int) -> list[str]:
    precision = hardware.choose_precision().precision
    run = [f"train.max_steps={steps}", f"train.threads={threads}", f"train.precision={precision}"]
    return [*LONG, *run, "train.device=cpu"]


def long_ours(shards: Shards, steps: int, threads: int) -> dict[str, Any]:
    """Our held-out figures after so many steps with dropout."""
    run = WORK / f"parity-long-{steps}"
    if not (run / "report.json").exists():
        bs.pretrain(
            shards,
            run,
            settings=long_assignments(steps, threads),
            resume=(run / "settings.yaml").exists(),
        )
    ours = bs.load(run).report
    return {
        "held_out": ours["held_out"],
        "tokens": ours["tokens"],
        "precision": ours["precision"],
        "steps": steps,
    }


def long_reference(shards: Shards, steps: int, threads: int) -> dict[str, Any]:
    """The reference's held-out figures after the same instances, from the same first weights."""
    chosen = make_settings(shards, *long_assignments(steps, threads))
    training, held_out = instance_streams(shards, chosen)
    documents = DocumentSplit.from_settings(shards, chosen.data).train
    counts = token_counts(shards, documents, chosen.model.vocab_size)
    trainer = ReferenceTrainer(build_reference(chosen, counts), chosen.train)
    train_reference(trainer, training, steps, WORK / f"parity-long-{steps}-reference.pt")
    return trainer.evaluate(held_out_batches(held_out, chosen))


def train_reference(trainer: ReferenceTrainer, training: Any, steps: int, state: Path) -> None:
    """The reference's steps, saved every fifty so that they may be stopped."""
    trainer.restore(state)
    batches = batches_after(training, LONG_BATCH, trainer.step)
    while trainer.step < steps:
        losses = trainer.update(next(batches))
        if trainer.step % 50 == 0:
            trainer.save(state)
            print(trainer.step, losses, flush=True)


def warm_settings(shards: Shards, threads: int) -> PretrainSettings:
    return make_settings(
        shards,
        f"train.max_steps={WARM_STEPS}",
        f"train.batch_size={LONG_BATCH}",
        f"train.seed={SEED + 1}",
        f"train.threads={threads}",
        f"train.precision={hardware.choose_precision().precision}",
        "train.learning_rate=3e-4",
        "train.betas=[0.9, 0.98]",
        "train.warmup=0.05",
        "start.output_bias=unigram",
    )


def warm_start(shards: Shards, chosen: PretrainSettings) -> tuple[Any, Any, Any]:
    """Encoder and heads of the hour-long run with this vocabulary: a token's vector is that of the same token, or
    the mean of its pieces'. And the token counts of the training documents."""
    documents = DocumentSplit.from_settings(shards, chosen.data).train
    counts = token_counts(shards, documents, chosen.model.vocab_size)
    encoder, heads = initial_weights(chosen, counts)
    folder = read_folder(WORK / "pays-bert" / "model")
    old, words = folder.encoder(torch.Generator()), Tokenizer.load(WORK / "pays-bert" / "model")
    number = {token: i for i, token in enumerate(words.tokens)}
    pieces = words.encode_ids([token.removeprefix("##") for token in shards.tokenizer.tokens])
    vectors = old.embeddings.token.weight.data
    with torch.no_grad():
        kept = {k: v for k, v in old.state_dict().items() if k != "embeddings.token.weight"}
        encoder.load_state_dict(kept, strict=False)
        for row, token in enumerate(shards.tokenizer.tokens):
            own = [number[token]] if token in number else pieces[row]
            if own and words.unk_token_id not in own:
                encoder.embeddings.token.weight[row] = vectors[own].mean(0)
        bias = heads.masked.bias.clone()
        for name, module in (("pooler", heads.pooler), ("pair", heads.pair)):
            folder.load_into(name, module)
        donor = MaskedLMHead(folder.config, torch.Generator())
        folder.load_into("masked", donor)
        heads.masked.load_state_dict({**donor.state_dict(), "bias": bias})
    return encoder, heads, counts


def held_out_batches(held_out: Any, chosen: PretrainSettings) -> list[MaskedBatch]:
    last = min(held_out.size(0), chosen.data.max_validation_instances)
    return [held_out.batch(0, at, min(at + 64, last)) for at in range(0, last, 64)]


def warm_ours(shards: Shards, threads: int) -> dict[str, Any]:
    """Held-out figures before, and after the steps with our update; a unigram model's loss on the same tokens."""
    chosen = warm_settings(shards, threads)
    training, held_out = instance_streams(shards, chosen)
    encoder, heads, counts = warm_start(shards, chosen)
    test = held_out_batches(held_out, chosen)
    before = ReferenceTrainer(
        load_reference(write_model("warm-start", encoder, heads)), chosen.train
    ).evaluate(test)
    trainer = OurTrainer(encoder, heads, chosen.train)
    tokens, batches = 0, batches_after(training, LONG_BATCH, 0)
    for step in range(1, WARM_STEPS + 1):
        batch = next(batches)
        tokens += batch.tokens
        losses = trainer.update(batch, learning_rate_at(step, chosen.train))
        if step % 50 == 0:
            print(step, {name: loss.item() for name, loss in losses.items()}, flush=True)
    return {
        "before": before,
        "after": ReferenceTrainer(
            load_reference(write_model("warm-ours", encoder, heads)), chosen.train
        ).evaluate(test),
        **heads.by_frequency(counts, test),
        "tokens": tokens,
        "precision": chosen.train.precision,
    }


def warm_reference(shards: Shards, threads: int) -> dict[str, Any]:
    """The reference's held-out figures after the same steps on the same instances from the same weights."""
    chosen = warm_settings(shards, threads)
    training, held_out = instance_streams(shards, chosen)
    encoder, heads, _ = warm_start(shards, chosen)
    trainer = ReferenceTrainer(
        load_reference(write_model("warm-start-reference", encoder, heads)), chosen.train
    )
    train_reference(trainer, training, WARM_STEPS, WORK / "parity-warm-reference.pt")
    return trainer.evaluate(held_out_batches(held_out, chosen))


def speed(shards: Shards, threads: int) -> dict[str, Any]:
    """Tokens a second of both, windows in turn; dropout 0.1 on both sides."""
    precision = hardware.choose_precision().precision
    chosen = make_settings(
        shards,
        "train.max_steps=10000",
        f"train.batch_size={LONG_BATCH}",
        f"train.seed={SEED}",
        f"train.precision={precision}",
    )
    training, _ = instance_streams(shards, chosen)
    ours = OurTrainer(*initial_weights(chosen), chosen.train)
    theirs = ReferenceTrainer(build_reference(chosen), chosen.train)
    batches = batches_after(training, LONG_BATCH, 0)

    def window_of_ours(some: list[MaskedBatch]) -> None:
        for batch in some:
            ours.update(batch, 1e-4)

    def window_of_theirs(some: list[MaskedBatch]) -> None:
        for batch in some:
            theirs.update(batch)

    def windows() -> Iterator[tuple[int, Callable[[], None], Callable[[], None]]]:
        for _ in range(WINDOWS + 1):
            some = [next(batches) for _ in range(WINDOW_STEPS)]
            tokens = sum(batch.tokens for batch in some)
            yield tokens, partial(window_of_ours, some), partial(window_of_theirs, some)

    return time_interleaved(windows())


def read_log(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "log.jsonl").read_text(encoding="utf-8").splitlines()]


def report(found: dict[str, Any], threads: int) -> None:
    parts = [f"`python benchmarks/pretraining_parity.py`, seed {SEED}; {environment(threads)}."]
    if same := found.get("same"):
        parts.append(
            f"Same initial weights and batches, dropout 0, fp32, {same['steps']} steps of "
            f"{SAME_BATCH} pairs at the "
            f"paper's rate of 1e-4: largest difference of the MLM loss {same['mlm']:.1e}, of the NSP loss "
            f"{same['nsp']:.1e} (last MLM loss {same['last_mlm']:.3f}). At a rate of 1e-3 the MLM "
            f"losses differed by "
            "8.2e-4 after 150 steps, and the difference grew."
        )
    if {"ours", "reference"} <= found.keys():
        run, ours, theirs = found["ours"], found["ours"]["held_out"], found["reference"]
        rows = [
            [name, *(f"{side[k]:.4f}" for k in ("mlm_loss", "mlm_accuracy", "nsp_loss", "nsp_accuracy"))]
            for name, side in (("ours", ours), ("reference", theirs))
        ]
        parts.append(
            f"Dropout 0.1 on both sides, {run['precision']}, {run['steps']:,} steps of {LONG_BATCH} pairs, "
            f"{run['tokens']:,} tokens, the same instances with {MASK_SHARE:.0%} of the tokens masked; held-out "
            f"figures (unigram MLM loss {ours['unigram_mlm_loss']:.3f}); "
            f"MLM loss of ours {ours['mlm_loss'] / theirs['mlm_loss'] - 1:+.2%}:\n\n"
            + markdown_table(["", "MLM loss", "MLM accuracy", "NSP loss", "NSP accuracy"], rows)
        )
    if {"warm-ours", "warm-reference"} <= found.keys():
        warm, theirs = found["warm-ours"], found["warm-reference"]
        rows = [
            [name, *(f"{side[k]:.4f}" for k in ("mlm_loss", "mlm_accuracy", "nsp_loss", "nsp_accuracy"))]
            for name, side in (
                ("both before", warm["before"]),
                ("ours", warm["after"]),
                ("reference", theirs),
            )
        ]
        parts.append(
            'Both sides continue from the model of "Gain of pre-training", with its token vectors mapped to this '
            "vocabulary. (From random weights, ours had a held-out MLM loss of 6.71 and NSP at chance after 1,500 "
            "steps; the comparison was stopped there.) "
            f"Dropout 0.1 on both sides, {warm['precision']}, {WARM_STEPS:,} steps of {LONG_BATCH} pairs, "
            f"{warm['tokens']:,} tokens, the same instances. Held-out figures, all measured by the reference "
            f"(unigram MLM loss {warm['unigram_mlm_loss']:.3f}); MLM loss of ours "
            f"{warm['after']['mlm_loss'] / theirs['mlm_loss'] - 1:+.2%}:\n\n"
            + markdown_table(["", "MLM loss", "MLM accuracy", "NSP loss", "NSP accuracy"], rows)
        )
    if rate := found.get("speed"):
        parts.append(
            f"Batches of {LONG_BATCH}, dropout 0.1, windows of {WINDOW_STEPS} steps. {describe_rates(rate)}"
        )
    write_section("Pre-training against transformers", "\n\n".join(parts))


if __name__ == "__main__":
    main()
