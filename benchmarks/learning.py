"""How much is learnt from so many tokens, and in so much time? Our recipe beside the earlier one of AdamW.

    python benchmarks/learning.py [quickstart] [mini] [time] [--seeds 0 1 2] [--threads 2]

quickstart, mini: both recipes on the same instances in the same order; the earlier one also from our first
    weights, ours also with 30 % and 55 % of the tokens, where it is to be as good already. All are judged on the
    same held-out instances and masks.
time: seconds of an update of both in turn, in one process.

Each run is kept and resumed: the script may be stopped and called again, also for the seeds one by one. The
section of RESULTS.md is written from what there is.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

import bertsmith as bs
from bertsmith import hardware
from bertsmith.corpus.shards import Shards
from bertsmith.device import ComputeContext
from bertsmith.instances.batches import token_counts
from bertsmith.instances.holdout_split import VALIDATION_SEED, DocumentSplit
from bertsmith.objectives.objective import MODEL, evaluate_objective, objective_type
from bertsmith.pretraining.data import instances_of
from bertsmith.pretraining.model_init import first_weights
from bertsmith.pretraining.resolve_settings import asked_for, resolved
from bertsmith.pretraining.settings import PretrainSettings
from bertsmith.quickstart.quickstart import PRETRAINING_SETTINGS, quickstart
from corpus import prepare_corpus
from ours import OurTrainer
from record import WORK, environment, load_records, markdown_table, run_once, write_section
from reference import batches_after, learning_rate_at

# The recipes that these are measured against: the quickstart's of 2026-11-21 and that of pretraining_pays.py.
_FIRST = [
    "model.initializer_range=0.06",
    "model.hidden_dropout_prob=0",
    "model.attention_probs_dropout_prob=0",
    "start.tokens=normal",
    "start.positions=sinusoidal",
    "start.attention=normal",
    "start.output_bias=unigram",
    "data.sequence_length=64",
    "train.optimizer=adamw",
    "train.muon_weight_decay=none",
    "train.schedule=linear",
    "train.weight_decay=0.01",
    "train.betas=[0.9, 0.98]",
]
# What the optimiser and its schedule gain where both recipes begin from our first weights.
_OUR_START = ["start.tokens=neighbours", "start.attention=local"]
_TINY = ["model.num_attention_heads=4", "model.max_position_embeddings=64", "data.validation_split=0.02"]
# Parts of the tokens with which our recipe is to have come as far as the other with all of them.
SHARES = {"ours least": 0.3, "ours short": 0.55}
ARMS = ("before", "adamw", *SHARES, "ours")
WINDOWS, UPDATES = 9, 6


@dataclass(frozen=True)
class Size:
    """One comparison. before: the settings of the earlier recipe. ours: what `--minutes` adds to a size's own; or
    the quickstart's. tokens: that both are trained on. arms: that are run."""

    preset: str
    tokens: int
    before: Sequence[str]
    ours: Sequence[str]
    aside: Sequence[str]
    arms: Sequence[str] = ARMS

    def settings(self, arm: str) -> list[str]:
        """The settings of an arm of ARMS, by assignments."""
        run = ["train.tensorboard=false", "train.checkpoint_every=250", "train.precision=fp32"]
        own = {"before": self.before, "adamw": [*self.before, *_OUR_START]}.get(arm, self.ours)
        return [*own, *self.aside, *run]


SIZES = {
    "quickstart": Size(
        "bert-tiny-uncased",
        4_400_000,
        [
            *_FIRST,
            *_TINY,
            "data.mlm_probability=0.35",
            "train.batch_size=32",
            "train.learning_rate=3e-3",
            "train.warmup=0.06",
        ],
        [f"{name}={value}" for name, value in PRETRAINING_SETTINGS.items()],
        [],
    ),
    "mini": Size(
        "bert-mini-uncased",
        20_000_000,
        [
            *_FIRST,
            "data.mlm_probability=0.3",
            "train.batch_size=64",
            "train.learning_rate=6e-4",
            "train.warmup=0.05",
        ],
        [],
        ["train.evaluate_every=500"],
        ARMS[:-1],
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", default=["quickstart", "mini", "time"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--arms", nargs="+", default=list(ARMS), choices=ARMS)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    hardware.configure_process(options.threads)
    for name in (part for part in options.parts if part in SIZES):
        for seed in options.seeds:
            for arm in (arm for arm in SIZES[name].arms if arm in options.arms):
                run_once(
                    "learning", f"{name} {arm} {seed}", partial(trained, name, arm, seed, options.threads)
                )
    if "time" in options.parts:
        for name in SIZES:
            run_once("learning", f"{name} time", partial(timed, name, options.threads))
    report(options.threads)


def shards_of(name: str) -> Shards:
    """The corpus of a comparison: the quickstart's own of seed 0, or the encyclopedia with 8,000 pieces."""
    if name == "mini":
        return Shards.open(prepare_corpus(8_000))
    folder = WORK / "learning-quickstart"
    if not (folder / "report.json").exists():
        shutil.rmtree(folder, ignore_errors=True)
        quickstart(folder, steps=1)
    return Shards.open(folder / "shards")


def settings_of(name: str, arm: str, seed: int, threads: int, shards: Shards) -> PretrainSettings:
    """The settings of an arm's run."""
    size = SIZES[name]
    tokens = round(size.tokens * SHARES.get(arm, 1))
    given = [*size.settings(arm), f"train.seed={seed}", f"train.threads={threads}"]
    return in_tokens(size.preset, given, tokens, shards)


def in_tokens(preset: str, given: Sequence[str], tokens: int, shards: Shards) -> PretrainSettings:
    """What `--minutes` gives a model of a preset's size, with these settings, for so many tokens instead."""
    sizes, _ = asked_for(preset, None)
    chosen = resolved(
        sizes, {}, None, PretrainSettings.dotted(["train.max_minutes=60", *given]), shards.tokenizer
    )
    return chosen.changed(["train.max_minutes=none", f"train.max_tokens={tokens}"])


def trained(name: str, arm: str, seed: int, threads: int) -> dict[str, Any]:
    """One run, and how it is judged."""
    shards = shards_of(name)
    chosen = settings_of(name, arm, seed, threads, shards)
    return run_and_judged(f"{name}-{arm.replace(' ', '-')}-{seed}", name, chosen, shards)


def run_and_judged(folder: str, name: str, chosen: PretrainSettings, shards: Shards) -> dict[str, Any]:
    """The run in a folder, begun or resumed, and its figures on the held-out text of a comparison."""
    run = WORK / "learning" / folder
    recipe = run.with_suffix(".yaml")
    recipe.parent.mkdir(parents=True, exist_ok=True)
    recipe.write_text(chosen.to_yaml(), encoding="utf-8")
    model = bs.pretrain(shards, run, recipe=recipe, resume=(run / "settings.yaml").exists())
    kept = {key: model.report[key] for key in ("steps", "tokens", "seconds")}
    return kept | {"held_out": judged(name, model, shards)}


def judged(name: str, model: bs.Model, shards: Shards) -> dict[str, float]:
    """A model on the held-out instances of the earlier recipe, whatever it was trained to predict itself."""
    chosen = settings_of(name, "before", 0, 1, shards)
    split, generator = DocumentSplit.from_settings(shards, chosen.data), torch.Generator()
    encoder = model.folder.encoder(generator)
    objective = objective_type("mlm_nsp").from_settings(encoder, generator, chosen.data, chosen.objective)
    for part, module in objective.export(encoder)[MODEL].modules.items():
        if part != "encoder":
            model.folder.load_into(part, module)
    stream = instances_of(
        shards,
        split.validation,
        chosen,
        chosen.data.sequence_length,
        kin=split.duplicate_groups,
        seed=VALIDATION_SEED,
    )
    last = min(stream.size(0), chosen.data.max_validation_instances)
    batches = [stream.batch(0, i, min(i + 64, last)) for i in range(0, last, 64)]
    counts = token_counts(shards, split.train, shards.tokenizer.vocab_size)
    place = ComputeContext.create("cpu", "fp32", 0)
    encoder.eval()
    objective.eval()
    return evaluate_objective(objective, encoder, batches, place) | objective.unigram_baseline(
        counts, batches
    )


def timed(name: str, threads: int) -> dict[str, Any]:
    """Seconds a token of updates of both recipes in turn: medians, and the ratio of each window."""
    shards = shards_of(name)
    sides = {}
    for arm in ("before", "ours"):
        chosen = settings_of(name, arm, 100, threads, shards)
        split = DocumentSplit.from_settings(shards, chosen.data)
        encoder, objective = first_weights(chosen, torch.Generator().manual_seed(100))
        stream = instances_of(
            shards, split.train, chosen, chosen.data.sequence_length, kin=split.duplicate_groups
        )
        batches = batches_after(stream, chosen.train.batch_size, 0)
        sides[arm] = (OurTrainer(encoder, objective, chosen.train), batches, chosen.train)
    each: dict[str, list[float]] = {arm: [] for arm in sides}
    for window in range(WINDOWS):
        for arm, (trainer, batches, settings) in sides.items():
            work = [next(batches) for _ in range(UPDATES)]
            begin = hardware.clock()
            for batch in work:
                trainer.update(
                    batch,
                    learning_rate_at(trainer.step + 1, settings.model_copy(update={"max_steps": 2_000})),
                )
            if window:
                each[arm].append((hardware.clock() - begin) / sum(batch.tokens for batch in work))
    ratios = [ours / before for before, ours in zip(each["before"], each["ours"], strict=True)]
    print(name, ratios, flush=True)
    return {
        "microseconds": {arm: 1e6 * statistics.median(values) for arm, values in each.items()},
        "ratio": statistics.median(ratios),
        "ratios": ratios,
    }


def report(threads: int) -> None:
    """The section of RESULTS.md, of all that was measured by now."""
    known = load_records("learning")
    parts = "\n\n".join(text for text in (of_size(name, known) for name in SIZES) if text)
    shares = " and ".join(f"{share:.0%}" for share in SHARES.values())
    write_section(
        "Learning",
        f"""`python benchmarks/learning.py`; {environment(threads, "fp32")}.

Held-out masked-LM loss (and NSP accuracy) of the recipes with the same seed on the same instances, evaluated on
the same held-out instances and masks. Ours also with {shares} of the tokens, each with its own schedule.

{parts}

The earlier recipe is that of 2026-11-21: AdamW, random initial weights, linear schedule. The next column has its
optimizer, rates, and schedule with our initial weights (token vectors from co-occurrence counts, local attention
heads). Ours adds Muon and a schedule that is constant and then falls. `tried.md` has the single steps.""",
    )


def of_size(name: str, known: dict[str, Any]) -> str:
    """The paragraph and table of one size; empty where nothing was measured."""
    seeds = [seed for seed in range(10) if any(f"{name} {arm} {seed}" in known for arm in ARMS)]
    if not seeds:
        return ""
    arms = SIZES[name].arms
    runs = {arm: [known.get(f"{name} {arm} {seed}") for seed in seeds] for arm in arms}
    rows = [[str(seed), *(cell(runs[arm][i]) for arm in arms)] for i, seed in enumerate(seeds)]
    if len(seeds) > 1:
        rows.append(["mean", *(mean_cell(runs[arm]) for arm in arms)])
    tokens = SIZES[name].tokens / 1e6
    named = {"before": "earlier recipe (AdamW)", "adamw": "the same with our initial weights"}
    columns = [
        "seed",
        *(f"{named.get(arm, 'ours')}, {SHARES.get(arm, 1) * tokens:.3g} M tokens" for arm in arms),
    ]
    text = f"**{name}** ({SIZES[name].preset}):\n\n{markdown_table(columns, rows)}"
    if (time := known.get(f"{name} time")) is not None:
        ratio, ratios, each = time["ratio"], time["ratios"], time["microseconds"]
        text += (
            f"\n\nA token takes {each['before']:.0f} µs with AdamW and {each['ours']:.0f} with ours: {ratio:.2f} "
            f"times as long ({min(ratios):.2f} to {max(ratios):.2f} in {len(ratios)} windows in turn), so "
            + " and ".join(
                f"{share:.0%} of the tokens take {share * ratio:.0%} of the time" for share in SHARES.values()
            )
            + "."
        )
    return text


def cell(run: dict[str, Any] | None) -> str:
    """Loss and pair accuracy of a run."""
    if run is None:
        return "not yet"
    held = run["held_out"]
    return f"{held['mlm_loss']:.3f} ({100 * held['nsp_accuracy']:.0f} %)"


def mean_cell(runs: Sequence[dict[str, Any] | None]) -> str:
    """The mean loss of the seeds, where all were run."""
    losses = [run["held_out"]["mlm_loss"] for run in runs if run is not None]
    return f"{statistics.mean(losses):.3f}" if len(losses) == len(runs) else "not yet"


if __name__ == "__main__":
    main()
