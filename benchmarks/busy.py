"""Training beside other work: updates a second on quiet cores, and with another busy process on every core.

    python benchmarks/busy.py [--presets bert-tiny-uncased …] [--ways kernels …] [--pairs 5] [--updates 40]
        [--batch 32]

Three ways of training: as the command line does (threads that wait for each other soon sleep, and their number is
what a trial finds quickest, then and whenever updates become slow), with compiled kernels and without; and as
torch does by itself (as many threads as cores, which spin). Each measurement is a process of its own on random
text of 128 tokens; quiet and busy, and the ways, take turns. The busy processes count numbers in a loop, one for
each core, pinned to nothing.
Started again, the script continues with the first measurement that is missing.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import record

PRESETS = ["bert-tiny-uncased", "bert-mini-uncased"]
WAYS = {
    "kernels": "command line",
    "bertsmith": "command line, no compiled kernels",
    "spinning": "spinning threads, one per core",
}
LENGTH, MASK_SHARE = 128, 0.15
ASKED = 0.4  # of the quiet speed


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--presets", nargs="+", default=PRESETS)
    parser.add_argument("--ways", nargs="+", default=list(WAYS), choices=list(WAYS))
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--updates", type=int, default=40)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--dry", action="store_true", help="measure and print; record and write nothing")
    parser.add_argument("--child", choices=list(WAYS), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(measured(options.presets[0], options.updates, options.batch, options.child)))
        return
    now = dict(one for preset in options.presets for one in of_preset(preset, options))
    text = told_of(now if options.dry else record.load_records("busy"))
    print(text)
    if not options.dry:
        record.write_section("Training speed beside other processes", text)


def told_of(known: dict[str, dict[str, Any]]) -> str:
    """What was measured by key, on this machine and others, as RESULTS.md has it."""
    found: dict[tuple[str, ...], dict[str, list[dict[str, Any]]]] = {}
    for key, value in known.items():
        of, machine = key.split("; ")
        preset, batch, _, updates, how, state = of.split(": ")[0].split()
        found.setdefault((machine, preset, batch, updates, how), {}).setdefault(state, []).append(value)
    rows = []
    for (machine, preset, batch, updates, how), states in found.items():
        # the last may be under way
        pairs = list(zip(states.get("quiet", ()), states.get("busy", ()), strict=False))
        if not pairs:
            continue
        ratios = [busy["rate"] / quiet["rate"] for quiet, busy in pairs]
        sides = list(zip(*pairs, strict=True))
        speeds = [f"{statistics.median(one['rate'] for one in some):.2f}" for some in sides]
        threads = "; ".join("/".join(str(one["threads"]) for one in some) for some in sides)
        share = f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
        rows.append([machine, preset, f"{updates} of {batch}", WAYS[how], *speeds, share, threads])
    columns = ["machine", "preset", "updates, pairs in each", "how", "quiet, updates/s", "busy, updates/s"]
    columns += ["busy / quiet", "threads, quiet; busy"]
    return (
        f"`python benchmarks/busy.py`. Batches of pairs of {LENGTH} tokens of random text, fp32; medians over "
        "processes in turn; ratios: median, least, and most over the pairs. Busy: one other process a core that "
        f"counts numbers. The goal is {ASKED:.0%} of the quiet speed.\n\n{record.markdown_table(columns, rows)}"
    )


def cores() -> int:
    """Of this machine, as far as this process may use them."""
    from bertsmith import hardware

    return hardware.available_cores()


def of_preset(preset: str, options: argparse.Namespace) -> Iterator[tuple[str, dict[str, Any]]]:
    """What was measured of both ways, quiet and busy in turn, by key."""
    here = record.machine_name()
    for pair in range(options.pairs):
        for how in options.ways:
            for busy in (False, True):
                state = "busy" if busy else "quiet"
                key = f"{preset} {options.batch} x {options.updates} {how} {state}: {pair}; {here}"

                def measure(how: str = how, busy: bool = busy) -> dict[str, Any]:
                    return run(preset, how, busy, options)

                value = measure() if options.dry else record.run_once("busy", key, measure)
                print(key, value, flush=True)
                yield key, value


def run(preset: str, how: str, busy: bool, options: argparse.Namespace) -> dict[str, Any]:
    """`measured` in a process of its own, alone or beside as many busy ones as there are cores."""
    line = [sys.executable, __file__, "--child", how, "--presets", preset]
    line += ["--updates", str(options.updates), "--batch", str(options.batch)]
    own = ("OMP_NUM_THREADS", "OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
    variables = {k: v for k, v in os.environ.items() if k not in own}
    with counting(cores() if busy else 0):
        done = subprocess.run(line, stdout=subprocess.PIPE, check=True, env=variables)
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


@contextmanager
def counting(number: int) -> Iterator[None]:
    """So many processes that do nothing but keep a core busy."""
    workers = [multiprocessing.Process(target=count, daemon=True) for _ in range(number)]
    for worker in workers:
        worker.start()
    try:
        yield
    finally:
        for worker in workers:
            worker.kill()
            worker.join()


def count() -> None:
    """Never ends."""
    number = 0
    while True:
        number += 1


def measured(preset_name: str, updates: int, batch: int, how: str) -> dict[str, Any]:
    """Updates a second after the trial, and the threads at the end."""
    from bertsmith import hardware

    if how != "spinning":
        hardware.set_thread_wait_policy()  # before torch is loaded, as the command line does
    import tempfile
    from pathlib import Path

    from bertsmith.device import ComputeContext
    from bertsmith.instances.synthetic_batches import SyntheticStream
    from bertsmith.kernels.backend_selection import select_training_backend
    from bertsmith.models.family import preset
    from bertsmith.pretraining.model_init import first_weights
    from bertsmith.pretraining.settings import PretrainSettings, PretrainTrainSettings
    from bertsmith.runs.compute_setup import aim_of, footing
    from bertsmith.training.data_loader import Phase
    from bertsmith.training.trainer import Course, train

    config = preset(preset_name)
    fixed = {"threads": cores()} if how == "spinning" else {}
    settings = PretrainTrainSettings(
        max_steps=updates, batch_size=batch, precision="fp32", tensorboard=False, **fixed
    )
    chosen = PretrainSettings(model=config, train=settings)
    hardware.configure_process(settings.threads)
    place = ComputeContext.create("cpu", "fp32")
    if how == "kernels":
        place = replace(place, kernels=select_training_backend("auto", config.hidden_size))
    encoder, objective = first_weights(chosen, place.init_generator)
    place.prepare_modules(encoder, objective)
    phases = [Phase(SyntheticStream(config.vocab_size, LENGTH, MASK_SHARE), 1.0, batch)]

    def number() -> int:
        return updates

    on = footing(encoder, objective, phases, settings, place, number)
    aim = aim_of(settings, on, number, hardware.clock())
    with tempfile.TemporaryDirectory() as folder:
        begin = time.perf_counter()
        done = train(encoder, objective, Course(phases, settings, Path(folder), "busy", "", aim), on.place)
        return {"rate": updates / (time.perf_counter() - begin), "threads": done.threads}


if __name__ == "__main__":
    main()
