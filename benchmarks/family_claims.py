"""Repeat the comparisons of DistilBERT, ALBERT, and ELECTRA with BERT on small models.

    python benchmarks/family_claims.py TEACHER [--parts distil losses albert electra] [--tokens 5000000]
        [--seeds 0 1 2] [--threads 2]

TEACHER is a run of bert-mini-uncased next to its shards, such as WORK/hour/hour of learning_hour.py.
distil: a student of half the teacher's layers, the same model without a teacher, and the teacher on two tasks,
with sizes and speeds (Sanh et al. 2019, tables 1 to 3). losses: the student without each loss (table 4), by
`ablate`. albert: parameters and speed of ALBERT and BERT of the same width and depth (Lan et al. 2020, tables 1
and 2). electra: replaced tokens and masked LM in the same time (Clark et al. 2020, table 1). Each run and score is
recorded: an interrupted script resumes.
"""

from __future__ import annotations

import logging
import statistics
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
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
from bertsmith.models.config import ModelConfig, encoder_parameter_terms
from bertsmith.models.encoder import Encoder
from bertsmith.models.family import build_encoder, preset
from bertsmith.objectives.masked_lm import MaskedLM
from bertsmith.runs.run_folder import holds_run
from bertsmith.training.settings import TrainSettings
from family_tables import ablation_table, task_recipes
from family_threshold import FAMILY_TASKS, VOCAB_SIZE, pretrain, recipe_settings
from learning_tasks import (
    MAX_ROWS,
    SEEDS,
    TASKS,
    TUNING_SEED,
    best_learning_rate,
    cheap_cell,
    finetune_score,
    mean_and_std,
)
from ours import OurTrainer
from record import HERE, WORK, median_and_range, once, ratios, section, table, where
from reference import in_turn

NAME = "family_claims"
STUDENT, NO_TEACHER = "student", "the same, taught by nobody"  # in the keys of records
STUDENT_PRESET = "distilbert-mini-uncased"
ELECTRA, BERT = "electra-mini-discriminator", "bert-mini-uncased"
ALBERTS = {"mini": ("albert-mini", BERT), "base": ("albert-base-v2", "bert-base-uncased")}
LENGTH, BATCH, WINDOWS, WINDOW_STEPS = 128, 32, 5, 2
MASKED_LM_ONLY = {"data.sentence_task": "none"}


def main() -> None:
    parts = {"distil": distil, "losses": losses, "albert": albert, "electra": electra}
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("teacher", type=Path)
    parser.add_argument("--parts", nargs="+", default=list(parts), choices=parts)
    parser.add_argument("--tokens", type=int, default=5_000_000)
    parser.add_argument("--seeds", type=int, nargs="+", default=SEEDS)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    hardware.configure_process(options.threads)
    options.shards = options.teacher.parent / "shards"
    options.seed_list = ", ".join(map(str, options.seeds))
    for part in options.parts:
        parts[part](options)


def task_scores(name: str, folder: Path, options: Namespace) -> dict[str, list[float]]:
    """Measure a model on each task, by seed, at its best learning rate."""
    scores: dict[str, list[float]] = {}
    for task in FAMILY_TASKS:
        tuning_key = f"{name} {task} {{rate:g}} {TUNING_SEED}"
        rate = best_learning_rate(NAME, tuning_key, task, folder, options.threads)
        scores[task] = []
        for seed in options.seeds:
            measure = partial(finetune_score, task, folder, rate, seed, options.threads)
            scores[task].append(float(once(NAME, f"{name} {task} {rate:g} {seed}", measure)))
    return scores


def score_cells(scores: Mapping[str, Sequence[float]]) -> list[str]:
    return [mean_and_std(scores[task]) for task in FAMILY_TASKS]


def cheap_cells() -> list[str]:
    return [cheap_cell(task) for task in FAMILY_TASKS]


def metric_columns() -> list[str]:
    return [f"{task}, {TASKS[task].metric}" for task in FAMILY_TASKS]


def distil(options: Namespace) -> None:
    """Compare a distilled student in size, speed, and scores with its teacher."""
    teacher = bs.load(options.teacher)
    folders = {"teacher": teacher.model_folder}
    for name in (STUDENT, NO_TEACHER):
        run = WORK / "family" / f"claims-{name.split()[0].rstrip(',')}-{options.tokens}"
        folders[name] = train_student(name, run, teacher, options).model_folder
    scores = {name: task_scores(name, folder, options) for name, folder in folders.items()}
    means = {
        name: [statistics.mean(values[task]) for task in FAMILY_TASKS] for name, values in scores.items()
    }
    encoders = [load_encoder(folders[name]) for name in (STUDENT, "teacher")]
    speed = once(NAME, f"student's speed {options.threads}", partial(compare_forward, *encoders))
    rows = []
    for name, folder in folders.items():
        fractions = ratios(means[name], means["teacher"])
        cells = [*score_cells(scores[name]), *(f"{100 * fraction:.1f} %" for fraction in fractions)]
        rows.append([name, f"{count_parameters(bs.load(folder).folder.config):,}", *cells])
    rows.append(["the best cheap method", "", *cheap_cells(), *("" for _ in FAMILY_TASKS)])
    columns = ["model", "parameters", *metric_columns(), *(f"kept of {task}" for task in FAMILY_TASKS)]
    section(
        "Distillation to half the layers",
        f"""`python benchmarks/family_claims.py TEACHER --parts distil`; {where(options.threads)}.

The teacher: {options.teacher.name}, a bert-mini of 4 layers. The student: `bertsmith distill`, 2 layers,
{options.tokens / 1e6:g} M tokens of the teacher's text; for comparison the same model pre-trained on as many
tokens by masked LM alone. Parameters are the encoder's. Tasks: at most {MAX_ROWS:,} training rows, seeds
{options.seed_list}, mean ± standard deviation, rates chosen with seed {TUNING_SEED} on a tenth of the training
rows; and the ratio to the teacher's mean.

{table(columns, rows)}

Forward pass on this processor, {BATCH} texts of {LENGTH} tokens: the student {speed["ours"]:,.0f} tokens per
second, the teacher {speed["reference"]:,.0f}; ratio {median_and_range(speed["ratios"])}.
In the paper: 40 % smaller, 60 % faster, 97 % of BERT's scores kept.""",
    )


def train_student(name: str, run: Path, teacher: bs.Model, options: Namespace) -> bs.Model:
    """Distill a student, or pre-train the same model without a teacher."""
    if name == NO_TEACHER:
        return pretrain(options.shards, run, STUDENT_PRESET, options.tokens, 0, options.threads)
    settings = {"train.seed": 0, "train.threads": options.threads}
    settings |= recipe_settings(STUDENT_PRESET, options.tokens)
    return bs.distill(options.shards, run, teacher, settings=settings, resume=holds_run(run))


def losses(options: Namespace) -> None:
    """Train the student without each loss."""
    tokens = options.tokens // 2
    out = WORK / "family" / f"losses-{tokens}"
    student = preset(STUDENT_PRESET)
    report = ablate(
        HERE.parent / "recipes" / "ablations" / "distillation.yaml",
        out,
        data=options.shards,
        tasks=task_recipes(NAME, f"{STUDENT} {{task}} {{rate:g}} {TUNING_SEED}"),
        seeds=len(options.seeds),
        settings={
            **recipe_settings(STUDENT_PRESET, tokens),
            "objective.teacher": options.teacher.resolve(),
            "model.hidden_size": student.hidden_size,
            "model.num_attention_heads": student.num_attention_heads,
            "model.intermediate_size": student.intermediate_size,
            "train.precision": hardware.choose_precision().precision,
        },
        jobs=options.threads,
        resume=out.exists(),
    )
    cheap = " and ".join(f"{cheap_cell(task)} on {task}" for task in FAMILY_TASKS)
    section(
        "Distillation without each loss",
        f"""`python benchmarks/family_claims.py TEACHER --parts losses`; {where(1)}.

recipes/ablations/distillation.yaml with the teacher and the student of "Distillation to half the layers",
{tokens / 1e6:g} M tokens, {report["seeds"]} seeds; at most {MAX_ROWS:,} training rows of a task. Mean ± deviation;
in brackets the difference from the first row, paired by seed, and the p of a paired t-test. {told(report)}.

The best cheap method has {cheap}.

{ablation_table(report)}""",
    )


def albert(options: Namespace) -> None:
    """Compare ALBERT in parameters and speed with BERT of the same width and depth."""
    rows = []
    for size, names in ALBERTS.items():
        configs = [preset(name, vocab_size=VOCAB_SIZE) for name in names]
        encoders = [build_encoder(config, torch.Generator().manual_seed(0)) for config in configs]
        forward = once(NAME, f"albert {size} forward {options.threads}", partial(compare_forward, *encoders))
        update = once(NAME, f"albert {size} update {options.threads}", partial(compare_update, *encoders))
        counts = [count_parameters(config) for config in configs]
        cells = [f"{count:,}" for count in counts] + [f"{counts[1] / counts[0]:.1f}"]
        speeds = [median_and_range(result["ratios"]) for result in (forward, update)]
        rows.append([" and ".join(names), *cells, *speeds])
    columns = [
        "models",
        "ALBERT's parameters",
        "BERT's",
        "ratio",
        "forward, ALBERT's speed / BERT's",
        "an update",
    ]
    section(
        "ALBERT against BERT of the same width and depth",
        f"""`python benchmarks/family_claims.py TEACHER --parts albert`; {where(options.threads)}.

Both with a vocabulary of {VOCAB_SIZE:,}; the parameters are the encoder's. {BATCH} texts of {LENGTH} tokens, fp32,
windows in turn: median (least to most). An update is masked LM and a sentence-pair task with AdamW. ALBERT
computes as many layers as BERT: sharing saves parameters, not time.

{table(columns, rows)}""",
    )


def electra(options: Namespace) -> None:
    """Compare replaced tokens with masked LM in the same time, for a quarter of the tokens and for all."""
    speed = once(NAME, f"electra's speed {options.threads}", lambda: compare_pretraining(options))
    rows = []
    for tokens in (options.tokens // 4, options.tokens):
        models = {"masked LM": (BERT, tokens), "replaced tokens": (ELECTRA, round(tokens * speed["ratio"]))}
        for objective, (size, num_tokens) in models.items():
            run, name = WORK / "family" / f"claims-{size}-{num_tokens}", f"{objective} {tokens}"
            settings = MASKED_LM_ONLY if size == BERT else {}
            model = pretrain(options.shards, run, size, num_tokens, 0, options.threads, settings=settings)
            seconds = once(NAME, f"{name} seconds", partial(model.report.get, "seconds"))
            held_out = once(NAME, f"{name} held out", partial(model.report.get, "held_out"))
            parts = [part for part in ("mlm", "replaced") if f"{part}_loss" in held_out]
            held_out_losses = ", ".join(f"{part} {held_out[f'{part}_loss']:.3f}" for part in parts)
            cells = score_cells(task_scores(name, model.model_folder, options))
            budget = [f"{num_tokens / 1e6:.1f} M", f"{seconds / 60:.1f}"]
            rows.append([f"{objective} ({size})", *budget, held_out_losses, *cells])
    rows.append(["the best cheap method", "", "", "", *cheap_cells()])
    columns = ["objective", "tokens", "minutes of updates", "held-out loss", *metric_columns()]
    section(
        "ELECTRA against masked LM in the same time",
        f"""`python benchmarks/family_claims.py TEACHER --tokens {options.tokens} --parts electra`;
{where(options.threads)}.

The discriminator has 4 layers of 256, its generator a quarter of the width; masked LM has the same layers. In
turn, ELECTRA trains at {median_and_range(speed["ratios"])} times the speed of masked LM, so it gets that part of
its tokens. Both use the recipe for small budgets, which was tuned with masked LM. One pre-training seed; tasks: at
most {MAX_ROWS:,} training rows, seeds {options.seed_list}, rates chosen with seed {TUNING_SEED} on a tenth of the
training rows.

{table(columns, rows)}

The paper's order, ELECTRA ahead after the same computation, does not hold with so few tokens: the discriminator
learns little while its generator is weak. The paper's smallest comparison has some three thousand times as many
tokens. In the longer runs ELECTRA ran at 0.54 times the speed of masked LM, so it had more time, not less.""",
    )


def compare_pretraining(options: Namespace) -> dict[str, Any]:
    """Measure tokens per second of short ELECTRA and masked-LM runs in turn, as the runs report them."""
    speeds: dict[str, list[float]] = {ELECTRA: [], BERT: []}
    for seed in range(5):
        for size, values in speeds.items():
            settings = {"data.validation_split": 0, **(MASKED_LM_ONLY if size == BERT else {})}
            run = WORK / "family" / f"claims-speed-{size}"
            report = pretrain(
                options.shards, run, size, 100_000, seed, options.threads,
                settings=settings, resume=False, overwrite=True,
            ).report  # fmt: skip
            values.append(report["tokens"] / report["seconds"])
    by_window = ratios(*speeds.values())
    return {"ratio": statistics.median(by_window), "ratios": by_window}


def count_parameters(config: ModelConfig) -> int:
    """Count the parameters of an encoder."""
    return sum(term.size for term in encoder_parameter_terms(config))


def load_encoder(folder: Path) -> Encoder:
    return bs.load(folder).folder.encoder(torch.Generator().manual_seed(0)).eval()


def compare_forward(first: Encoder, second: Encoder) -> dict[str, Any]:
    """Time windows of forward passes of two encoders in turn on the same random text."""

    def run(encoder: Encoder, batches: Sequence[Any]) -> None:
        with torch.inference_mode():
            for batch in batches:
                encoder(batch.packed)

    return in_turn(windows(partial(run, first.eval()), partial(run, second.eval()), first.config.vocab_size))


def compare_update(first: Encoder, second: Encoder) -> dict[str, Any]:
    """Time windows of updates of two encoders in turn on the same random text."""
    settings = TrainSettings(precision="fp32", batch_size=BATCH)

    def run(trainer: OurTrainer, batches: Sequence[Any]) -> None:
        for batch in batches:
            trainer.update(batch, settings.learning_rate)

    trainers = [OurTrainer(side, MaskedLM(side.config, side.generator), settings) for side in (first, second)]
    for side in (first, second):
        side.eval()  # no dropout, which only BERT's presets have
    return in_turn(windows(*(partial(run, trainer) for trainer in trainers), first.config.vocab_size))


def windows(
    first: Callable[[Sequence[Any]], None], second: Callable[[Sequence[Any]], None], vocab_size: int
) -> Iterator[tuple[int, Callable[[], None], Callable[[], None]]]:
    """Yield windows of batches for both sides, as `in_turn` takes them."""
    stream = SyntheticStream(vocab_size, LENGTH, 0.15)
    for window in range(WINDOWS + 1):
        offsets = range(window * WINDOW_STEPS * BATCH, (window + 1) * WINDOW_STEPS * BATCH, BATCH)
        batches = [stream.batch(0, offset, offset + BATCH) for offset in offsets]
        yield sum(batch.tokens for batch in batches), partial(first, batches), partial(second, batches)


if __name__ == "__main__":
    main()
