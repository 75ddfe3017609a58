"""Seconds an update of pre-training takes, here and in another checkout of this project: A B A B, in turn.

    python benchmarks/paired_speed.py OTHER/src [--presets bert-tiny-uncased …] [--pairs 5] [--updates 20]
        [--batch 32] [--threads 1]

Random text of 128 tokens, 15 % predicted, next sentence, dropout as in the preset, fp32. Each measurement is a
process of its own with one checkout's code, makes two updates to warm up, and gives the median of those that
follow; making batches is not timed. The loss of the last update shows that both sides computed the same. The
other checkout may be older than the modules that make an update today (`before_places`).
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import record

HERE = Path(__file__).resolve().parent.parent / "src"
PRESETS = ["bert-tiny-uncased", "bert-mini-uncased"]
LENGTH, MASK_SHARE, RATE, WARM_UP = 128, 0.15, 1e-4, 2


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("other", type=Path, help="src of the other checkout")
    parser.add_argument("--presets", nargs="+", default=PRESETS)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--updates", type=int, default=20)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(measured(options.presets[0], options.updates, options.batch, options.threads)))
        return
    other = options.other.resolve()
    names = {HERE: version_of(HERE), other: version_of(other)}
    rows = [row(preset, other, names, options) for preset in options.presets]
    columns = [
        "preset",
        f"here ({names[HERE]}), s",
        f"other ({names[other]}), s",
        "here / other",
        "last loss",
    ]
    text = (
        f"`python benchmarks/paired_speed.py`, {record.environment(options.threads)}. "
        f"Batches of {options.batch} pairs "
        f"of {LENGTH} tokens of random text, fp32; seconds an update, median over {options.pairs} processes a "
        f"side, in turn, of each one's median of {options.updates} updates; the ratio's median, least and most "
        f"over the pairs.\n\n{record.markdown_table(columns, rows)}"
    )
    print(text)
    record.write_section("Speed beside an earlier version", text)


def version_of(src: Path) -> str:
    """The commit of a checkout, marked where files were changed since."""
    line = ["git", "-C", str(src), "describe", "--always", "--dirty", "--exclude=*"]
    return subprocess.run(line, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()


def row(preset: str, other: Path, names: dict[Path, str], options: argparse.Namespace) -> list[str]:
    """A preset's figures; each measurement is kept when done."""
    sides: dict[Path, list[dict[str, float]]] = {HERE: [], other: []}
    for pair in range(options.pairs):
        for src, found in sides.items():
            key = (
                f"{names[src]} {preset} {options.batch} x {options.updates} threads {options.threads}: {pair}"
            )
            found.append(record.run_once("paired_speed", key, lambda src=src: run(src, preset, options)))
        print(preset, pair + 1, {names[src]: found[-1] for src, found in sides.items()}, flush=True)
    here, there = ([one["seconds"] for one in found] for found in sides.values())
    ratios = [a / b for a, b in zip(here, there, strict=True)]
    losses = [found[-1]["loss"] for found in sides.values()]
    return [
        preset,
        f"{statistics.median(here):.4f}",
        f"{statistics.median(there):.4f}",
        f"{statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})",
        "the same" if losses[0] == losses[1] else f"{losses[0]:.6f}, {losses[1]:.6f}",
    ]


def run(src: Path, preset: str, options: argparse.Namespace) -> dict[str, float]:
    """`measured` in a process of its own, with the code in `src`."""
    numbers = {name: str(getattr(options, name)) for name in ("updates", "batch", "threads")}
    line = [sys.executable, __file__, str(src), "--child", "--presets", preset]
    line += [part for name, number in numbers.items() for part in (f"--{name}", number)]
    found = subprocess.run(
        line,
        stdout=subprocess.PIPE,
        check=True,
        env=os.environ | {"PYTHONPATH": str(src), "OMP_NUM_THREADS": numbers["threads"]},
    )
    answer: dict[str, Any] = json.loads(found.stdout.splitlines()[-1])
    if Path(answer.pop("code")) != src / "bertsmith":
        raise SystemExit(f"{src}: another bertsmith than this one was imported")
    return answer


def measured(preset: str, updates: int, batch: int, threads: int) -> dict[str, Any]:
    """The median of the updates' seconds, the loss of the last one, and where the code is."""
    import bertsmith
    from bertsmith import hardware

    hardware.configure_process(threads)
    now = importlib.util.find_spec("bertsmith.training.train_step") is not None
    make, stream = (of_today if now else before_places)(preset, batch)
    seconds, loss = [], 0.0
    for number in range(WARM_UP + updates):
        one = stream.batch(0, number * batch, (number + 1) * batch)
        begin = time.perf_counter()
        loss = make(one)
        seconds.append(time.perf_counter() - begin)
    median = statistics.median(seconds[WARM_UP:])
    return {"seconds": median, "loss": loss, "code": str(Path(bertsmith.__file__).resolve().parent)}


def of_today(preset_name: str, batch: int) -> tuple[Callable[[Any], float], Any]:
    """What makes an update and gives its loss, and the stream of batches."""
    import torch

    from bertsmith.instances.synthetic_batches import SyntheticStream
    from bertsmith.models.family import build_encoder, preset
    from bertsmith.objectives.masked_lm import MaskedLM
    from bertsmith.training.settings import TrainSettings
    from ours import OurTrainer

    config = preset(preset_name)
    encoder = build_encoder(config, torch.Generator().manual_seed(0))
    settings = TrainSettings(precision="fp32", batch_size=batch)
    trainer = OurTrainer(encoder, MaskedLM(config, encoder.generator), settings)
    return lambda one: float(trainer.update(one, RATE)["loss"]), SyntheticStream(
        config.vocab_size, LENGTH, MASK_SHARE
    )


def before_places(preset_name: str, batch: int) -> tuple[Callable[[Any], float], Any]:
    """The same of a checkout whose loop made the update itself, on the CPU."""
    import torch
    from bertsmith.workflows.probe import RandomPairs

    from bertsmith.models.config import preset
    from bertsmith.models.encoder import Encoder
    from bertsmith.objectives.masked_lm import MaskedLM
    from bertsmith.training.optim.optimizer import make_optimizer
    from bertsmith.training.settings import TrainSettings
    from bertsmith.training.trainer import Trained, update

    config = preset(preset_name)
    encoder = Encoder(config, torch.Generator().manual_seed(0))
    settings = TrainSettings(precision="fp32", batch_size=batch)
    trained = Trained(encoder, MaskedLM(config, encoder.generator)).train()
    optimizer = make_optimizer(
        trained.named_parameters(),
        betas=settings.betas,
        epsilon=settings.epsilon,
        weight_decay=settings.weight_decay,
    )
    return lambda one: update(trained, optimizer, [one], RATE, settings, "fp32", 1)["loss"], RandomPairs(
        config.vocab_size, LENGTH, MASK_SHARE
    )


if __name__ == "__main__":
    main()
