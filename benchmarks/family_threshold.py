"""How many tokens until pre-training tells on tasks? The smallest preset, before the family's tables are run.

    python benchmarks/family_threshold.py [--tokens 1000000 2500000 5000000] [--seeds 0 1 2] [--threads 1]

bert-tiny-uncased by the recipe for small budgets on the encyclopedia, three seeds an amount; each model fine-tuned
on sst2 and conll2003 (at most 5,000 rows) and scored on some of the minimal pairs of the dev half, beside random
weights of the same size. Both arms' rates are chosen with a seed that is not reported, on a tenth of the training
rows that is not trained on then. Each run and each score is kept: the script may be stopped and called again.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import bertsmith as bs
from bertsmith import hardware
from bertsmith.models.family import preset
from bertsmith.pretraining.recipe import settings_in_minutes
from bertsmith.pretraining.settings import PretrainSettings
from bertsmith.quickstart.quickstart import write_untrained_model
from bertsmith.runs.run_folder import holds_run
from corpus import prepare_corpus
from learning_tasks import BENCHES, RATES, TUNING_SEED, finetuned, spread
from record import DATA, WORK, environment, load_records, markdown_table, run_once, write_section

NAME = "family_threshold"
PRESET = "bert-tiny-uncased"
TASKS = ("sst2", "conll2003")
TOKENS = (1_000_000, 2_500_000, 5_000_000)
SEEDS = (0, 1, 2)
VOCABULARY = 8_000
PAIRS = DATA / "minimal_pairs" / "blimp_dev.jsonl.zst"
PAIRS_SCORED = 3_000


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tokens", type=int, nargs="+", default=TOKENS)
    parser.add_argument("--seeds", type=int, nargs="+", default=SEEDS)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    hardware.configure_process(options.threads)
    for tokens in (0, *sorted(options.tokens)):
        for seed in options.seeds:
            model = pretrained(tokens, seed, options.threads)
            run_once(NAME, f"pairs {tokens} {seed}", partial(on_pairs, model))
            for task in TASKS:
                rate = best_rate(task, tokens, options)
                run_once(
                    NAME,
                    f"{task} {tokens} {seed}",
                    partial(finetuned, task, model, rate, seed, options.threads),
                )
        report(options.tokens, options.seeds, options.threads)


def pretrained(tokens: int, seed: int, threads: int) -> Path:
    """The model folder of a run of so many tokens; 0: random weights with the same tokenizer."""
    place = WORK / "family"
    if not tokens:
        fresh = place / f"random-{seed}"
        if not fresh.exists():
            pretrained(min(TOKENS), seed, threads)
            write_untrained_model(fresh, bs.load(place / f"tiny-{min(TOKENS)}-{seed}"))
        return fresh
    run = place / f"tiny-{tokens}-{seed}"
    own = PretrainSettings.dotted(settings_in_minutes(preset(PRESET).model_dump()))
    made = bs.pretrain(
        prepare_corpus(VOCABULARY),
        run,
        preset=PRESET,
        settings={
            **own,
            "train.max_tokens": tokens,
            "train.seed": seed,
            "train.threads": threads,
            "train.precision": hardware.choose_precision().precision,
            "train.tensorboard": False,
        },
        resume=holds_run(run),
    )
    run_once(NAME, f"loss {tokens} {seed}", lambda: made.report["held_out"]["mlm_loss"])
    return made.model_folder


def best_rate(task: str, tokens: int, options: argparse.Namespace) -> float:
    """The rate that serves random weights best, or pre-trained ones: chosen once, on the largest amount."""
    arm = max(options.tokens) if tokens else 0
    folder = pretrained(arm, options.seeds[0], options.threads)

    def tuned(rate: float) -> float:
        measure = partial(finetuned, task, folder, rate, TUNING_SEED, options.threads)
        return float(run_once(NAME, f"tuning {task} {arm} {rate:g}", measure))

    return max(RATES, key=tuned)


def on_pairs(model: Path) -> float:
    """The share of minimal pairs whose good sentence is the likelier."""
    return float(bs.load(model).score_pairs(PAIRS, sample=PAIRS_SCORED)["accuracy"])


def report(tokens: Sequence[int], seeds: Sequence[int], threads: int) -> None:
    """The section of RESULTS.md, of the amounts measured by now."""
    known = load_records(NAME)
    random = {task: [known.get(f"{task} 0 {seed}") for seed in seeds] for task in (*TASKS, "pairs")}
    rows = []
    for amount in (0, *sorted(tokens)):
        cells = []
        for task in (*TASKS, "pairs"):
            scores = [known.get(f"{task} {amount} {seed}") for seed in seeds]
            if None in scores or None in random[task]:
                break
            told = spread([100 * score for score in scores])
            cells.append(f"{told}{apart(scores, random[task])}" if amount else told)
        if len(cells) == 1 + len(TASKS):
            losses = [known[f"loss {amount} {seed}"] for seed in seeds] if amount else []
            loss = f"{statistics.mean(losses):.3f}" if losses else ""
            rows.append([f"{amount / 1e6:g} M" if amount else "none: random weights", loss, *cells])
    cheap = [load_records("learning_tasks")[f"cheap {task}"] for task in TASKS]
    beside = [f"{100 * score:.1f} ({method})" for score, method in cheap]
    rows.insert(0, ["the best cheap method", "", *beside, "61.2 (n-grams: Warstadt et al. 2020)"])
    names = [f"{task}, {BENCHES[task].figure}" for task in TASKS]
    write_section(
        "Gain of pre-training by number of tokens",
        f"""`python benchmarks/family_threshold.py`; {environment(threads)}.

{PRESET} by the recipe for small budgets (64 tokens), encyclopedia, vocabulary of {VOCABULARY:,}. Tasks: at most
5,000 training rows, three epochs, the best evaluation on dev; {PAIRS_SCORED:,} minimal pairs, chance 50; in
points, seeds {", ".join(map(str, seeds))}, mean ± standard deviation. In brackets: the distance from random
weights in pooled standard deviations. Rates chosen with seed {TUNING_SEED} on a tenth of the training rows, for
random weights and for the largest amount. The cheap methods learn from the same rows.

{markdown_table(["tokens", "held-out loss", *names, "minimal pairs"], rows)}""",
    )


def apart(scores: Sequence[float], random: Sequence[float]) -> str:
    """How far two samples are apart, in deviations."""
    if len(scores) < 2:
        return ""
    deviation = ((statistics.variance(scores) + statistics.variance(random)) / 2) ** 0.5
    return f" ({(statistics.mean(scores) - statistics.mean(random)) / deviation:+.1f})"


if __name__ == "__main__":
    main()
