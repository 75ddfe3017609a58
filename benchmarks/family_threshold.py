"""Measure from how many tokens on pre-training improves tasks, with the smallest preset.

    python benchmarks/family_threshold.py [--tokens 1000000 2500000 5000000] [--seeds 0 1 2] [--threads 1]

bert-tiny-uncased by the recipe for small budgets on the encyclopedia. Each model is fine-tuned on sst2 and
conll2003 (at most 5,000 rows) and scored on a sample of the minimal pairs, and so are random weights of the same
size. Learning rates are chosen as in learning_tasks.py, for random weights and for the largest number of tokens.
Each run and score is recorded: an interrupted script resumes. The other family benchmarks use its learning rates.
"""

from __future__ import annotations

import statistics
from argparse import Namespace
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import bertsmith as bs
import learning_tasks as tasks
from bertsmith import hardware
from bertsmith.demo.quickstart import write_untrained_model
from bertsmith.models.family import preset
from bertsmith.pretraining.resolve_settings import measured_settings
from bertsmith.pretraining.settings import PretrainSettings
from bertsmith.runs.run_folder import holds_run
from corpus import prepare_corpus
from record import WORK, argument_parser, environment, load_records, markdown_table, run_once, write_section

NAME = "family_threshold"
PRESET = "bert-tiny-uncased"
FAMILY_TASKS = ("sst2", "conll2003")
TOKENS = (1_000_000, 2_500_000, 5_000_000)
VOCAB_SIZE = 8_000


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--tokens", type=int, nargs="+", default=TOKENS)
    parser.add_argument("--seeds", type=int, nargs="+", default=tasks.SEEDS)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    hardware.configure_process(options.threads)
    for tokens in (0, *sorted(options.tokens)):
        for seed in options.seeds:
            model = pretrained_folder(tokens, seed, options)
            run_once(NAME, f"pairs {tokens} {seed}", partial(tasks.minimal_pair_accuracy, model))
            for task in FAMILY_TASKS:
                rate = learning_rate_for(task, tokens, options)
                measure = partial(tasks.finetune_score, task, model, rate, seed, options.threads)
                run_once(NAME, f"{task} {tokens} {seed}", measure)
        report(options)


def pretrain(
    shards: Path, run: Path, size: str, tokens: int, seed: int, threads: int, **arguments: Any
) -> bs.Model:
    """Pre-train a preset by the recipe for small budgets, or resume its run; `settings` override the recipe's."""
    settings = {**recipe_settings(size, tokens), "train.seed": seed, "train.threads": threads}
    settings |= arguments.pop("settings", {})
    arguments.setdefault("resume", holds_run(run))
    return bs.pretrain(shards, run, preset=size, settings=settings, **arguments)


def recipe_settings(size: str, tokens: int) -> dict[str, Any]:
    """Return the recipe for small budgets with a number of tokens as budget."""
    settings = PretrainSettings.dotted(measured_settings(preset(size).model_dump(), has_time_budget=True))
    return {**settings, "train.max_tokens": tokens, "train.report_to": "none"}


def pretrained_folder(tokens: int, seed: int, options: Namespace) -> Path:
    """Return the model folder of a run; of 0 tokens: random weights with the same tokenizer."""
    if not tokens:
        untrained = WORK / "family" / f"random-{seed}"
        if not untrained.exists():
            run = pretrained_folder(min(options.tokens), seed, options).parent
            write_untrained_model(untrained, bs.load(run))
        return untrained
    run = WORK / "family" / f"tiny-{tokens}-{seed}"
    model = pretrain(prepare_corpus(VOCAB_SIZE), run, PRESET, tokens, seed, options.threads)
    run_once(NAME, f"loss {tokens} {seed}", lambda: model.report["held_out"]["mlm_loss"])
    return model.model_folder


def learning_rate_for(task: str, tokens: int, options: Namespace) -> float:
    """Return the best learning rate for random weights, or for all pre-trained models, by the largest run."""
    tuned_tokens = max(options.tokens) if tokens else 0
    folder = pretrained_folder(tuned_tokens, options.seeds[0], options)
    return tasks.best_learning_rate(
        NAME, f"tuning {task} {tuned_tokens} {{rate:g}}", task, folder, options.threads
    )


def report(options: Namespace) -> None:
    """Write the section of RESULTS.md from the runs that are measured."""
    records = load_records(NAME)
    columns = (*FAMILY_TASKS, "pairs")

    def scores(column: str, tokens: int) -> list[float]:
        return [records[f"{column} {tokens} {seed}"] for seed in options.seeds]

    cheap = [tasks.cheap_cell(task) for task in FAMILY_TASKS]
    rows = [["the best baseline", "", *cheap, "61.2 (n-grams: Warstadt et al. 2020, table 3)"]]
    random = {column: scores(column, 0) for column in columns}
    rows.append(["none: random weights", "", *map(tasks.mean_and_std, random.values())])
    for tokens in sorted(options.tokens):
        if any(f"{column} {tokens} {seed}" not in records for column in columns for seed in options.seeds):
            continue
        values = {column: scores(column, tokens) for column in columns}
        cells = [
            tasks.mean_and_std(values[name]) + effect_size(values[name], random[name]) for name in columns
        ]
        rows.append([f"{tokens / 1e6:g} M", f"{statistics.mean(scores('loss', tokens)):.3f}", *cells])
    names = [f"{task}, {tasks.TASKS[task].metric}" for task in FAMILY_TASKS]
    write_section(
        "Gain of pre-training by number of tokens",
        f"""`python benchmarks/family_threshold.py`; {environment(options.threads)}.

{PRESET} by the recipe for small budgets (64 tokens), encyclopedia, vocabulary of {VOCAB_SIZE:,}. Tasks: at most
{tasks.MAX_ROWS:,} training rows, three epochs, the best evaluation on dev; {tasks.NUM_SAMPLED_PAIRS:,} minimal
pairs, chance 50; in points, seeds {", ".join(map(str, options.seeds))}, mean ± standard deviation. In brackets:
the distance from random weights in pooled standard deviations. Rates chosen with seed {tasks.TUNING_SEED} on a
tenth of the training rows, for random weights and for the largest amount. The baselines learn from the same
rows.

{markdown_table(["tokens", "held-out loss", *names, "minimal pairs"], rows)}""",
    )


def effect_size(scores: Sequence[float], random: Sequence[float]) -> str:
    """Format the difference of means in pooled standard deviations; nothing for a single seed."""
    if len(scores) < 2:
        return ""
    deviation = ((statistics.variance(scores) + statistics.variance(random)) / 2) ** 0.5
    return f" ({(statistics.mean(scores) - statistics.mean(random)) / deviation:+.1f})"


if __name__ == "__main__":
    main()
