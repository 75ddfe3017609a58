"""Measure training speed on quiet cores and with another busy process on every core.

    python benchmarks/busy.py [--presets bert-tiny-uncased …] [--modes kernels …] [--pairs 5] [--updates 40]
        [--batch 32]

Three modes: as the command line trains (waiting threads soon sleep), with compiled kernels and without; and as
torch does by itself (a thread per core, which spins). Each measurement is a process of its own on random text of
128 tokens; modes, quiet and busy, alternate. The busy processes count in a loop, one per core, pinned to nothing.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from record import (
    argument_parser,
    load_records,
    machine_name,
    markdown_table,
    median_and_range,
    ratios,
    run_once,
    write_section,
)

MODES = {
    "kernels": "command line",
    "bertsmith": "command line, no compiled kernels",
    "spinning": "spinning threads, one per core",
}
LENGTH, MLM_PROBABILITY = 128, 0.15
GOAL = 0.4  # of the quiet speed


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--presets", nargs="+", default=["bert-tiny-uncased", "bert-mini-uncased"])
    parser.add_argument("--modes", nargs="+", default=list(MODES), choices=list(MODES))
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--updates", type=int, default=40)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--child", choices=list(MODES), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(measure(options.child, options.presets[0], options.updates, options.batch)))
        return
    for preset in options.presets:
        for pair in range(options.pairs):
            for mode in options.modes:
                for state in ("quiet", "busy"):
                    workload = f"{preset} {options.batch} x {options.updates} {mode} {state}: {pair}"
                    key = f"{workload}; {machine_name()}"
                    value = run_once("busy", key, partial(measure_in_child, mode, state, preset, options))
                    print(key, value, flush=True)
    report()


def measure_in_child(mode: str, state: str, preset: str, options: argparse.Namespace) -> dict[str, Any]:
    """Measure in a process of its own, alone or beside a busy process per core."""
    line = [sys.executable, __file__, f"--child={mode}", f"--presets={preset}"]
    line += [f"--updates={options.updates}", f"--batch={options.batch}"]
    thread_variables = ("OMP_NUM_THREADS", "OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
    variables = {name: value for name, value in os.environ.items() if name not in thread_variables}
    with busy_processes(num_cores() if state == "busy" else 0):
        child = subprocess.run(line, stdout=subprocess.PIPE, check=True, env=variables)
    result: dict[str, Any] = json.loads(child.stdout.splitlines()[-1])
    return result


def num_cores() -> int:
    from bertsmith import hardware

    return hardware.available_cores()


@contextmanager
def busy_processes(count: int) -> Iterator[None]:
    """Run processes that do nothing but keep a core busy."""
    processes = [multiprocessing.Process(target=count_forever, daemon=True) for _ in range(count)]
    for process in processes:
        process.start()
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.join()


def count_forever() -> None:
    n = 0
    while True:
        n += 1


def measure(mode: str, preset_name: str, updates: int, batch: int) -> dict[str, Any]:
    """Train. Return updates per second after the trial, and the number of threads at the end."""
    from bertsmith import hardware

    if mode != "spinning":
        os.environ.update(hardware.thread_wait_policy())  # before torch is imported, as the command line does
    from bertsmith.device import ComputeContext
    from bertsmith.instances.batches import SyntheticStream
    from bertsmith.models.family import preset
    from bertsmith.pretraining.model import first_weights
    from bertsmith.pretraining.settings import PretrainSettings, PretrainTrainSettings
    from bertsmith.runs.compute_setup import measure_throughput, training_budget
    from bertsmith.training.data_loader import Phase
    from bertsmith.training.train_step import TrainModule
    from bertsmith.training.trainer import Trainer
    from bertsmith.training.training_job import TrainingJob

    config = preset(preset_name)
    settings = PretrainTrainSettings(
        max_steps=updates,
        batch_size=batch,
        precision="fp32",
        report_to="none",
        threads=num_cores() if mode == "spinning" else None,
    )
    hardware.configure_process(settings.threads)
    context = ComputeContext.create("cpu", "fp32")
    if mode == "kernels":
        context = context.with_kernels(settings, config.hidden_size, None)
    run_settings = PretrainSettings(model=config, train=settings)
    encoder, objective = first_weights(run_settings, context.init_generator)
    context.prepare_modules(encoder, objective)
    phases = [Phase(SyntheticStream(config.vocab_size, LENGTH, MLM_PROBABILITY), 1.0, batch)]
    module = TrainModule(encoder, objective)
    throughput = measure_throughput(module, phases, settings, context)
    budget = training_budget(settings, throughput, lambda: updates, hardware.clock())
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        job = TrainingJob(phases, settings, Path(folder), "busy", "", budget)
        output = Trainer(module, job, context).fit()
        return {"rate": updates / (time.perf_counter() - start), "threads": output.threads}


def report() -> None:
    """Write the section of RESULTS.md from the records of all machines."""
    groups: dict[tuple[str, ...], dict[str, list[dict[str, Any]]]] = defaultdict(lambda: defaultdict(list))
    for key, value in load_records("busy").items():
        workload, machine = key.split("; ")
        preset, batch, _, updates, mode, state = workload.split(": ")[0].split()
        groups[machine, preset, f"{updates} of {batch}", MODES[mode]][state].append(value)
    rows = []
    for group, states in groups.items():
        # a killed run may lack the last busy measurement
        pairs = list(zip(states["quiet"], states["busy"], strict=False))
        if pairs:
            quiet, busy = zip(*pairs, strict=True)
            rates = [[value["rate"] for value in side] for side in (quiet, busy)]
            threads = "; ".join("/".join(str(value["threads"]) for value in side) for side in (quiet, busy))
            medians = [f"{statistics.median(side):.2f}" for side in rates]
            rows.append([*group, *medians, median_and_range(ratios(rates[1], rates[0])), threads])
    columns = ["machine", "preset", "updates, pairs in each", "how", "quiet, updates/s", "busy, updates/s"]
    columns += ["busy / quiet", "threads, quiet; busy"]
    text = f"""`python benchmarks/busy.py`. Batches of pairs of {LENGTH} tokens of random text, fp32; medians over
interleaved processes; ratios: median, minimum, and maximum over the pairs. Busy: one other process per core that
counts numbers. The goal is {GOAL:.0%} of the quiet speed. Rows with one thread are of versions that chose the
number of threads by a trial; now it is the number of cores.

{markdown_table(columns, rows)}"""
    print(text)
    write_section("Training speed on a busy machine", text)


if __name__ == "__main__":
    main()
