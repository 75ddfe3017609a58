"""Compare our pre-training recipe with the earlier AdamW recipe by held-out loss and by time.

    python benchmarks/learning.py [quickstart] [mini] [time] [--seeds 0 1 2] [--arms ...] [--threads 2]

quickstart, mini: both recipes on the same instances in the same order; the earlier recipe also from our initial
    weights, ours also with 30 % and 55 % of the tokens. All are evaluated on the same held-out masks.
time: seconds of an update of both in turn, in one process.

Each run is recorded: an interrupted script resumes, and seeds can be run one at a time.
"""

from __future__ import annotations

import shutil
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

import bertsmith as bs
import record
from bertsmith import hardware
from bertsmith.corpus.shards import Shards
from bertsmith.demo.quickstart import PRETRAINING_SETTINGS, quickstart
from bertsmith.device import ComputeContext
from bertsmith.objectives.objective import MODEL, evaluate_objective, objective_type
from bertsmith.pretraining.data import PretrainData
from bertsmith.pretraining.model import first_weights
from bertsmith.pretraining.resolve_settings import new_settings
from bertsmith.pretraining.settings import PretrainSettings
from corpus import prepare_corpus
from ours import OurTrainer
from reference import batches_after, learning_rate_at

NAME = "learning"
# The recipe of 2026-11-21.
_EARLIER = [
    "model.initializer_range=0.06",
    "model.hidden_dropout_prob=0",
    "model.attention_probs_dropout_prob=0",
    "start.tokens=normal",
    "start.positions=sinusoidal",
    "start.attention=normal",
    "start.output_bias=unigram",
    "data.sequence_length=64",
    "train.optim=adamw",
    "train.muon_weight_decay=none",
    "train.lr_scheduler_type=linear",
    "train.weight_decay=0.01",
    "train.adam_beta1=0.9",
    "train.adam_beta2=0.98",
]
_OUR_START = ["start.tokens=neighbours", "start.attention=local"]
FRACTIONS = {"ours least": 0.3, "ours short": 0.55}
"""Fractions of the tokens with which our recipe is compared."""
ARMS = ("before", "adamw", *FRACTIONS, "ours")
WINDOWS, UPDATES = 9, 6


@dataclass(frozen=True)
class Comparison:
    """A model size and budget. ours: settings that differ from those of `--minutes`; shared: of all arms."""

    preset: str
    tokens: int
    earlier: Sequence[str]
    ours: Sequence[str] = ()
    shared: Sequence[str] = ()
    arms: Sequence[str] = ARMS


COMPARISONS = {
    "quickstart": Comparison(
        "bert-tiny-uncased",
        4_400_000,
        [
            *_EARLIER,
            "model.num_attention_heads=4",
            "model.max_position_embeddings=64",
            "data.validation_split=0.02",
            "data.mlm_probability=0.35",
            "train.batch_size=32",
            "train.learning_rate=3e-3",
            "train.warmup_steps=0.06",
        ],
        ours=[f"{name}={value}" for name, value in PRETRAINING_SETTINGS.items()],
    ),
    "mini": Comparison(
        "bert-mini-uncased",
        20_000_000,
        [
            *_EARLIER,
            "data.mlm_probability=0.3",
            "train.batch_size=64",
            "train.learning_rate=6e-4",
            "train.warmup_steps=0.05",
        ],
        shared=["train.eval_steps=500"],
        arms=ARMS[:-1],
    ),
}


def main() -> None:
    parser = record.argument_parser(__doc__)
    parser.add_argument("parts", nargs="*", default=["quickstart", "mini", "time"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--arms", nargs="+", default=list(ARMS), choices=ARMS)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    hardware.configure_process(options.threads)
    for name in (part for part in options.parts if part in COMPARISONS):
        for seed in options.seeds:
            for arm in (arm for arm in COMPARISONS[name].arms if arm in options.arms):
                record.run_once(
                    NAME, f"{name} {arm} {seed}", partial(train, name, arm, seed, options.threads)
                )
    if "time" in options.parts:
        for name in COMPARISONS:
            record.run_once(NAME, f"{name} time", partial(compare_time, name, options.threads))
    report(options.threads)


def load_shards(name: str) -> Shards:
    """Return the corpus of a comparison: the quickstart's of seed 0, or the encyclopedia with 8,000 tokens."""
    if name == "mini":
        return Shards.open(prepare_corpus(8_000))
    folder = record.WORK / "learning-quickstart"
    if not (folder / "report.json").exists():
        shutil.rmtree(folder, ignore_errors=True)
        quickstart(folder, steps=1)
    return Shards.open(folder / "shards")


def arm_settings(name: str, arm: str, seed: int, threads: int, shards: Shards) -> PretrainSettings:
    """Return an arm's settings: those of `--minutes`, with its own and a budget of tokens."""
    comparison = COMPARISONS[name]
    earlier = {"before": comparison.earlier, "adamw": [*comparison.earlier, *_OUR_START]}
    assignments = [
        *earlier.get(arm, comparison.ours),
        *comparison.shared,
        "train.max_minutes=60",
        "train.report_to=none",
        "train.save_steps=250",
        "train.precision=fp32",
        f"train.seed={seed}",
        f"train.threads={threads}",
    ]
    settings = new_settings(comparison.preset, None, PretrainSettings.dotted(assignments), shards.tokenizer)
    tokens = round(comparison.tokens * FRACTIONS.get(arm, 1))
    return settings.changed(["train.max_minutes=none", f"train.max_tokens={tokens}"])


def train(name: str, arm: str, seed: int, threads: int) -> dict[str, Any]:
    """Run an arm, or resume it, and evaluate its model."""
    shards = load_shards(name)
    run = record.WORK / "learning" / f"{name}-{arm.replace(' ', '-')}-{seed}"
    recipe = run.with_suffix(".yaml")
    recipe.parent.mkdir(parents=True, exist_ok=True)
    recipe.write_text(arm_settings(name, arm, seed, threads, shards).to_yaml(), encoding="utf-8")
    model = bs.pretrain(shards, run, recipe=recipe, resume=(run / "settings.yaml").exists())
    budget = {key: model.report[key] for key in ("steps", "tokens", "seconds")}
    return budget | {"held_out": evaluate(name, model, shards)}


def evaluate(name: str, model: bs.Model, shards: Shards) -> dict[str, float]:
    """Evaluate a model on the held-out instances of the earlier recipe, whatever its own masks are."""
    settings = arm_settings(name, "before", 0, 1, shards)
    source, generator = PretrainData.from_shards(shards, settings), torch.Generator()
    encoder = model.folder.encoder(generator)
    objective = objective_type("mlm_nsp").from_settings(encoder, generator, settings.data, settings.objective)
    for part, module in objective.export(encoder)[MODEL].modules.items():
        if part != "encoder":
            model.folder.load_into(part, module)
    batches = source.validation_batches[""]
    encoder.eval()
    objective.eval()
    scores = evaluate_objective(objective, encoder, batches, ComputeContext.create("cpu", "fp32", 0))
    return scores | objective.unigram_baseline(source.token_counts, batches)


def compare_time(name: str, threads: int) -> dict[str, Any]:
    """Measure the time per token of updates of both recipes in turn: medians, and the ratio of each window."""
    shards, sides = load_shards(name), {}
    for arm in ("before", "ours"):
        settings = arm_settings(name, arm, 100, threads, shards)
        trainer = OurTrainer(*first_weights(settings, torch.Generator().manual_seed(100)), settings.train)
        stream = PretrainData.from_shards(shards, settings).streams[0]
        batches = batches_after(stream, settings.train.batch_size, 0)
        sides[arm] = trainer, batches, settings.train.model_copy(update={"max_steps": 2_000})
    seconds: dict[str, list[float]] = {arm: [] for arm in sides}
    for window in range(WINDOWS):
        for arm, (trainer, batches, schedule) in sides.items():
            work = [next(batches) for _ in range(UPDATES)]
            start = hardware.clock()
            for batch in work:
                trainer.train_step(batch, learning_rate_at(trainer.step + 1, schedule))
            if window:  # the first window warms up
                seconds[arm].append((hardware.clock() - start) / sum(batch.tokens for batch in work))
    by_window = record.ratios(seconds["ours"], seconds["before"])
    print(name, by_window, flush=True)
    microseconds = {arm: 1e6 * statistics.median(values) for arm, values in seconds.items()}
    return {"microseconds": microseconds, "ratio": statistics.median(by_window), "ratios": by_window}


def report(threads: int) -> None:
    """Write the section of RESULTS.md from the runs that are measured."""
    parts = "\n\n".join(filter(None, map(describe, COMPARISONS)))
    fractions = " and ".join(f"{fraction:.0%}" for fraction in FRACTIONS.values())
    record.write_section(
        "Learning",
        f"""`python benchmarks/learning.py`; {record.environment(threads, "fp32")}.

Held-out masked-LM loss (and NSP accuracy) of the recipes with the same seed on the same instances, evaluated on
the same held-out instances and masks. Ours also with {fractions} of the tokens, each with its own schedule.

{parts}

The earlier recipe is that of 2026-11-21: AdamW, random initial weights, linear schedule. The next column has its
optimizer, rates, and schedule with our initial weights (token vectors from co-occurrence counts, local attention
heads). Ours adds Muon and a schedule that is constant and then falls. `tried.md` has the single steps.""",
    )


def describe(name: str) -> str:
    """Return a comparison's paragraph and table; nothing if no run is recorded."""
    records, comparison = record.load_records(NAME), COMPARISONS[name]
    arms = comparison.arms
    seeds = [seed for seed in range(10) if any(f"{name} {arm} {seed}" in records for arm in arms)]
    if not seeds:
        return ""
    runs = {arm: [records.get(f"{name} {arm} {seed}") for seed in seeds] for arm in arms}
    rows = [[seed, *(loss_cell(runs[arm][i]) for arm in arms)] for i, seed in enumerate(seeds)]
    if len(seeds) > 1:
        rows.append(["mean", *(mean_cell(runs[arm]) for arm in arms)])
    titles = {"before": "earlier recipe (AdamW)", "adamw": "the same with our initial weights"}
    tokens = {arm: f"{FRACTIONS.get(arm, 1) * comparison.tokens / 1e6:.3g} M tokens" for arm in arms}
    columns = ["seed", *(f"{titles.get(arm, 'ours')}, {tokens[arm]}" for arm in arms)]
    text = f"**{name}** ({comparison.preset}):\n\n{record.markdown_table(columns, rows)}"
    if (time := records.get(f"{name} time")) is not None:
        ratio, by_window, microseconds = time["ratio"], time["ratios"], time["microseconds"]
        fractions = " and ".join(
            f"{fraction:.0%} of the tokens take {fraction * ratio:.0%} of the time"
            for fraction in FRACTIONS.values()
        )
        text += (
            f"\n\nA token takes {microseconds['before']:.0f} µs with AdamW and {microseconds['ours']:.0f} with "
            f"ours: {ratio:.2f} times as long ({min(by_window):.2f} to {max(by_window):.2f} in {len(by_window)} "
            f"interleaved windows), so {fractions}."
        )
    return text


def loss_cell(run: dict[str, Any] | None) -> str:
    if run is None:
        return "not yet"
    held_out = run["held_out"]
    return f"{held_out['mlm_loss']:.3f} ({100 * held_out['nsp_accuracy']:.0f} %)"


def mean_cell(runs: Sequence[dict[str, Any] | None]) -> str:
    losses = [run["held_out"]["mlm_loss"] for run in runs if run is not None]
    return f"{statistics.mean(losses):.3f}" if len(losses) == len(runs) else "not yet"


if __name__ == "__main__":
    main()
