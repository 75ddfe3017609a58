"""What the papers say of their families, on models of our own: DistilBERT, ALBERT and ELECTRA beside BERT.

    python benchmarks/family_claims.py TEACHER [--parts distil losses albert electra] [--tokens 5000000]
        [--seeds 0 1 2] [--threads 2]

TEACHER: a pre-trained run of bert-mini-uncased, such as learning_hour.py's WORK/hour/hour, its shards beside it.
distil: a student of half its layers, the same student taught by nobody, and the teacher on two tasks, with sizes
and speeds (Sanh et al. 2019, tables 1 to 3). losses: the student without each loss (table 4), by `ablate`.
albert: parameters and speed beside BERT of the same width and depth (Lan et al. 2020, tables 1 and 2). electra:
replaced tokens against masked LM in the same time (Clark et al. 2020, table 1). Each run and score is kept: the
script may be stopped and called again.
"""

from __future__ import annotations

import argparse
import logging
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

import bertsmith as bs
from bertsmith import hardware
from bertsmith.experiments.ablate import ablate
from bertsmith.experiments.ablation_report import told
from bertsmith.instances.synthetic_batches import SyntheticStream
from bertsmith.models.encoder import Encoder
from bertsmith.models.family import build_encoder, preset
from bertsmith.models.parameter_count import encoder_parameter_terms
from bertsmith.objectives.masked_lm import MaskedLM
from bertsmith.pretraining.recipe import settings_in_minutes
from bertsmith.pretraining.settings import PretrainSettings
from bertsmith.runs.run_folder import holds_run
from bertsmith.training.settings import TrainSettings
from family_tables import figures_of, recipe_of
from learning_tasks import BENCHES, RATES, ROWS, TUNING_SEED, finetuned, spread
from ours import OurTrainer
from record import HERE, WORK, environment, load_records, markdown_table, ratios, run_once, write_section
from reference import time_interleaved

NAME = "family_claims"
TASKS = ("sst2", "conll2003")
STUDENT, ALONE = "student", "the same, taught by nobody"
LENGTH, BATCH, WINDOWS, WINDOW_STEPS = 128, 32, 5, 2
ALBERTS = {"mini": ("albert-mini", "bert-mini-uncased"), "base": ("albert-base-v2", "bert-base-uncased")}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("teacher", type=Path)
    parser.add_argument("--parts", nargs="+", default=list(PARTS), choices=PARTS)
    parser.add_argument("--tokens", type=int, default=5_000_000)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    hardware.configure_process(options.threads)
    for part in options.parts:
        PARTS[part](options)


def listed(options: argparse.Namespace) -> str:
    """The seeds."""
    return ", ".join(map(str, options.seeds))


def shards_of(teacher: Path) -> Path:
    """What the teacher was trained on."""
    return teacher.parent / "shards"


def settings_for(sizes: Mapping[str, Any], tokens: int, seed: int, threads: int) -> dict[str, Any]:
    """The recipe for small budgets, for so many tokens."""
    return {
        **PretrainSettings.dotted(settings_in_minutes(sizes)),
        "train.max_tokens": tokens,
        "train.seed": seed,
        "train.threads": threads,
        "train.tensorboard": False,
    }


def scores(name: str, folder: Path, options: argparse.Namespace) -> dict[str, list[float]]:
    """A model's figure on each task by seed, at the rate that serves it best on rows that it is not trained on."""

    def scored(task: str, rate: float, seed: int) -> float:
        measure = partial(finetuned, task, folder, rate, seed, options.threads)
        return float(run_once(NAME, f"{name} {task} {rate:g} {seed}", measure))

    found = {}
    for task in TASKS:
        rate = max(RATES, key=lambda rate, task=task: scored(task, rate, TUNING_SEED))
        found[task] = [scored(task, rate, seed) for seed in options.seeds]
    return found


def cheap_cells() -> list[str]:
    """Each task's best method that needs no pre-training, on the same rows."""
    found = [load_records("learning_tasks")[f"cheap {task}"] for task in TASKS]
    return [f"{100 * score:.1f} ({method})" for score, method in found]


def as_cells(found: Mapping[str, Sequence[float]]) -> list[str]:
    """Each task's mean and deviation, in points."""
    return [spread([100 * score for score in found[task]]) for task in TASKS]


# DistilBERT


def distil(options: argparse.Namespace) -> None:
    """Size, speed and what is kept of the teacher's scores."""
    teacher = bs.load(options.teacher)
    folders = {"teacher": teacher.model_folder} | {
        name: trained(name, teacher, options) for name in (STUDENT, ALONE)
    }
    found = {name: scores(name, folder, options) for name, folder in folders.items()}
    sizes = {name: parameters(bs.load(folder).folder.config) for name, folder in folders.items()}
    speed = run_once(
        NAME,
        f"student's speed {options.threads}",
        lambda: forward_in_turn(*(encoder_of(folders[name]) for name in (STUDENT, "teacher"))),
    )
    kept = {name: [share(found[name][task], found["teacher"][task]) for task in TASKS] for name in folders}
    rows = [
        [name, f"{sizes[name]:,}", *as_cells(found[name]), *(f"{100 * part:.1f} %" for part in kept[name])]
        for name in folders
    ]
    rows.append(["the best cheap method", "", *cheap_cells(), *("" for _ in TASKS)])
    figures = [f"{task}, {BENCHES[task].figure}" for task in TASKS]
    write_section(
        "Distillation to half the layers",
        f"""`python benchmarks/family_claims.py TEACHER --parts distil`; {environment(options.threads)}.

The teacher: {options.teacher.name}, a bert-mini of 4 layers. The student: `bertsmith distill`, 2 layers,
{options.tokens / 1e6:g} M tokens of the teacher's text; for comparison the same model pre-trained on as many
tokens by masked LM alone. Parameters are the encoder's. Tasks: at most {ROWS:,} training rows, seeds
{listed(options)}, mean ± standard deviation, rates chosen with seed {TUNING_SEED} on a tenth of the training
rows; and the ratio to the teacher's mean.

{markdown_table(["model", "parameters", *figures, *(f"kept of {task}" for task in TASKS)], rows)}

Forward pass on this processor, {BATCH} texts of {LENGTH} tokens: {speed_told(speed, "the student", "the teacher")}
In the paper: 40 % smaller, 60 % faster, 97 % of BERT's scores kept.""",
    )


def trained(name: str, teacher: bs.Model, options: argparse.Namespace) -> Path:
    """The model folder of a student, or of the same model without a teacher."""
    run = WORK / "family" / f"claims-{name.split()[0].rstrip(',')}-{options.tokens}"
    own = preset("distilbert-mini-uncased").model_dump()
    settings = settings_for(own, options.tokens, 0, options.threads)
    shards = shards_of(options.teacher)
    if name == STUDENT:
        made = bs.distill(shards, run, teacher, settings=settings, resume=holds_run(run))
    else:
        made = bs.pretrain(
            shards,
            run,
            preset="distilbert-mini-uncased",
            settings=settings,
            resume=holds_run(run),
        )
    return made.model_folder


def losses(options: argparse.Namespace) -> None:
    """The student without each loss."""
    tokens = options.tokens // 2
    out = WORK / "family" / f"losses-{tokens}"
    sizes = preset("distilbert-mini-uncased").model_dump()
    own = {
        name: value
        for name, value in settings_for(sizes, tokens, 0, options.threads).items()
        if name not in ("train.seed", "train.threads")
    }
    report = ablate(
        HERE.parent / "recipes" / "ablations" / "distillation.yaml",
        out,
        data=shards_of(options.teacher),
        tasks={task: recipe_of(task, rate_of(task)) for task in TASKS},
        seeds=len(options.seeds),
        settings={
            **own,
            "objective.teacher": options.teacher.resolve(),
            "model.hidden_size": sizes["hidden_size"],
            "model.num_attention_heads": sizes["num_attention_heads"],
            "model.intermediate_size": sizes["intermediate_size"],
            "train.precision": hardware.choose_precision().precision,
        },
        jobs=options.threads,
        resume=out.exists(),
    )
    cheap = " and ".join(f"{one} on {task}" for task, one in zip(TASKS, cheap_cells(), strict=True))
    write_section(
        "Distillation without each loss",
        f"""`python benchmarks/family_claims.py TEACHER --parts losses`; {environment(1)}.

recipes/ablations/distillation.yaml with the teacher and the student of "Distillation to half the layers",
{tokens / 1e6:g} M tokens, {report["seeds"]} seeds; at most {ROWS:,} training rows of a task. Mean ± deviation;
in brackets the difference from the first row, paired by seed, and the p of a paired t-test. {told(report)}.

The best cheap method has {cheap}.

{figures_of(report)}""",
    )


def rate_of(task: str) -> float:
    """The rate that served the student best."""
    known = load_records(NAME)
    return max(RATES, key=lambda rate: float(known[f"{STUDENT} {task} {rate:g} {TUNING_SEED}"]))


# ALBERT


def albert(options: argparse.Namespace) -> None:
    """Parameters and speed beside BERT of the same width and depth."""
    rows = []
    for size, pair in ALBERTS.items():
        configs = [preset(name, vocab_size=8_000) for name in pair]
        encoders = [build_encoder(config, torch.Generator().manual_seed(0)) for config in configs]
        forward = run_once(
            NAME,
            f"albert {size} forward {options.threads}",
            lambda encoders=encoders: forward_in_turn(*encoders),
        )
        update = run_once(
            NAME,
            f"albert {size} update {options.threads}",
            lambda encoders=encoders: update_in_turn(*encoders),
        )
        mine, theirs = map(parameters, configs)
        rows.append(
            [
                f"{pair[0]} and {pair[1]}",
                f"{mine:,}",
                f"{theirs:,}",
                f"{theirs / mine:.1f}",
                *(ratio(found) for found in (forward, update)),
            ]
        )
    columns = [
        "models",
        "ALBERT's parameters",
        "BERT's",
        "ratio",
        "forward, ALBERT's speed / BERT's",
        "an update",
    ]
    write_section(
        "ALBERT against BERT of the same width and depth",
        f"""`python benchmarks/family_claims.py TEACHER --parts albert`; {environment(options.threads)}.

Both with a vocabulary of 8,000; the parameters are the encoder's. {BATCH} texts of {LENGTH} tokens, fp32,
windows in turn: median (least to most). An update is masked LM and a sentence-pair task with AdamW. ALBERT
computes as many layers as BERT: sharing saves parameters, not time.

{markdown_table(columns, rows)}""",
    )


# ELECTRA


ELECTRA_READ = """The paper's order, ELECTRA ahead after the same computation, does not hold with so few tokens:
the discriminator learns little while its generator is weak. The paper's smallest comparison has some three
thousand times as many tokens. In the longer runs ELECTRA ran at 0.54 times the speed of masked LM, so it had
more time, not less."""


def electra(options: argparse.Namespace) -> None:
    """Replaced tokens against masked LM in the same time, for a quarter of the tokens and for all."""
    shards = shards_of(options.teacher)
    speeds = run_once(NAME, f"electra's speed {options.threads}", lambda: electra_in_turn(shards, options))
    runs = {}
    for tokens in (options.tokens // 4, options.tokens):
        runs[f"masked LM {tokens}"] = ("bert-mini-uncased", tokens, {"data.sentence_task": "none"})
        runs[f"replaced tokens {tokens}"] = (
            "electra-mini-discriminator",
            round(tokens * speeds["ratio"]),
            {},
        )
    made = {name: electra_run(name, shards, *how, options) for name, how in runs.items()}
    rows = []
    for name, (size, tokens, _) in runs.items():
        seconds = load_records(NAME)[f"{name} seconds"]
        found = scores(name, made[name], options)
        objective = name.rsplit(" ", 1)[0]
        told = load_records(NAME)[f"{name} held out"]
        of_parts = [
            f"{part} {told[f'{part}_loss']:.3f}" for part in ("mlm", "replaced") if f"{part}_loss" in told
        ]
        done = [f"{tokens / 1e6:.1f} M", f"{seconds / 60:.1f}", ", ".join(of_parts)]
        rows.append([f"{objective} ({size})", *done, *as_cells(found)])
    rows.append(["the best cheap method", "", "", "", *cheap_cells()])
    figures = [f"{task}, {BENCHES[task].figure}" for task in TASKS]
    write_section(
        "ELECTRA against masked LM in the same time",
        f"""`python benchmarks/family_claims.py TEACHER --tokens {options.tokens} --parts electra`;
{environment(options.threads)}.

The discriminator has 4 layers of 256, its generator a quarter of the width; masked LM has the same layers. In
turn, ELECTRA trains at {ratio(speeds)} times the speed of masked LM, so it gets that part of its tokens. Both
use the recipe for small budgets, which was tuned with masked LM. One pre-training seed; tasks: at most {ROWS:,}
training rows, seeds {listed(options)}, rates chosen with seed {TUNING_SEED} on a tenth of the training rows.

{markdown_table(["objective", "tokens", "minutes of updates", "held-out loss", *figures], rows)}

{ELECTRA_READ}""",
    )


def electra_run(
    name: str, shards: Path, size: str, tokens: int, own: Mapping[str, Any], options: argparse.Namespace
) -> Path:
    """The model of one side, whose seconds of updates are recorded."""
    run = WORK / "family" / f"claims-{size}-{tokens}"
    made = bs.pretrain(
        shards,
        run,
        preset=size,
        settings={**settings_for(preset(size).model_dump(), tokens, 0, options.threads), **own},
        resume=holds_run(run),
    )
    run_once(NAME, f"{name} seconds", lambda: made.report["seconds"])
    run_once(NAME, f"{name} held out", lambda: made.report["held_out"])
    return made.model_folder


def electra_in_turn(shards: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Tokens a second of updates of both, by short runs in turn: what a run measures by itself."""
    rates: dict[str, list[float]] = {"ours": [], "reference": []}
    arms: dict[str, tuple[str, dict[str, Any]]] = {
        "ours": ("electra-mini-discriminator", {}),
        "reference": ("bert-mini-uncased", {"data.sentence_task": "none"}),
    }
    for number in range(5):
        for side, (size, own) in arms.items():
            run = WORK / "family" / f"claims-speed-{side}"
            made = bs.pretrain(
                shards,
                run,
                preset=size,
                settings={
                    **settings_for(preset(size).model_dump(), 100_000, number, options.threads),
                    **own,
                    "data.validation_split": 0,
                },
                overwrite=True,
            )
            rates[side].append(made.report["tokens"] / made.report["seconds"])
    by_window = ratios(rates["ours"], rates["reference"])
    medians = {side: statistics.median(found) for side, found in rates.items()}
    return medians | {"ratio": statistics.median(by_window), "ratios": by_window}


# Sizes and speeds


def parameters(config: bs.ModelConfig) -> int:
    """Of the encoder."""
    return sum(term.size for term in encoder_parameter_terms(config))


def encoder_of(folder: Path) -> Encoder:
    """A model folder's encoder, to be timed."""
    return bs.load(folder).folder.encoder(torch.Generator().manual_seed(0)).eval()


def forward_in_turn(one: Encoder, other: Encoder) -> dict[str, Any]:
    """Windows of forward passes of both on the same random text."""

    def run(encoder: Encoder, batches: Sequence[Any]) -> None:
        with torch.inference_mode():
            for batch in batches:
                encoder(batch.packed)

    return time_interleaved(windows(one, other, run))


def update_in_turn(one: Encoder, other: Encoder) -> dict[str, Any]:
    """Windows of updates of both on the same random text."""
    settings = TrainSettings(precision="fp32", batch_size=BATCH)
    trainers = {
        id(side): OurTrainer(side, MaskedLM(side.config, side.generator), settings) for side in (one, other)
    }

    def run(encoder: Encoder, batches: Sequence[Any]) -> None:
        for batch in batches:
            trainers[id(encoder)].update(batch, settings.learning_rate)

    return time_interleaved(windows(one, other, run))


def windows(
    one: Encoder, other: Encoder, run: Callable[[Encoder, Sequence[Any]], None]
) -> Iterator[tuple[int, Callable[[], None], Callable[[], None]]]:
    """What `in_turn` takes, of batches that both sides get."""
    for side in (one, other):
        side.eval()
    pairs = SyntheticStream(min(one.config.vocab_size, other.config.vocab_size), LENGTH, 0.15)
    for number in range(WINDOWS + 1):
        first = number * WINDOW_STEPS * BATCH
        batches = [pairs.batch(0, at, at + BATCH) for at in range(first, first + WINDOW_STEPS * BATCH, BATCH)]
        tokens = sum(batch.tokens for batch in batches)
        yield tokens, partial(run, one, batches), partial(run, other, batches)


def ratio(found: Mapping[str, Any]) -> str:
    """The median ratio with its extremes."""
    return f"{found['ratio']:.2f} ({min(found['ratios']):.2f} to {max(found['ratios']):.2f})"


def speed_told(found: Mapping[str, Any], one: str, other: str) -> str:
    """Both speeds in a sentence."""
    return f"{one} {found['ours']:,.0f} tokens a second, {other} {found['reference']:,.0f}; ratio {ratio(found)}."


def share(of: Sequence[float], whole: Sequence[float]) -> float:
    """What is kept of a score."""
    return statistics.mean(of) / statistics.mean(whole)


PARTS: Mapping[str, Callable[[argparse.Namespace], None]] = {
    "distil": distil,
    "losses": losses,
    "albert": albert,
    "electra": electra,
}

if __name__ == "__main__":
    main()
