"""Compare the speed of training and inference with transformers and other peers on this machine.

    python -m benchmarks.speed train [--preset bert-mini-uncased] [--lengths fixed:128|natural] [--batch 32]
    python -m benchmarks.speed finetune [--task sst2]
    python -m benchmarks.speed infer [--sets sst2 emotion squad1.1]

train: masked LM with next sentence and the preset's dropout. fixed:N is random text, each sequence of N tokens;
natural is pairs of sentences of the encyclopedia, at most 128 tokens. finetune: all-MiniLM-L6-v2 on a task's own
examples. infer: see speed_infer.py.

The sides of train and finetune: bertsmith in fp32 and bf16, both also without compiled kernels; transformers in
fp32, in bf16 by autocast, compiled, and, if lengths differ, with batches grouped by length as its Trainer's
group_by_length does. Sides in bf16 are left out on processors where bf16 is slower than fp32. The limit is the
speed at which this machine computes the model's matrix products alone.

Each side is a process of its own, and all stay in memory (--sides chooses fewer). They first compute the loss and
the norm of the gradients of the same batch from the same weights without dropout; sides that differ from the
reference in fp32 are not timed. Windows of updates then alternate. On a GPU ours builds its batches while it is
timed; the reference's batches are built before.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))  # for the imports below under `python -m benchmarks.speed`

import torch

from bertsmith import hardware
from bertsmith.kernels.backend_selection import is_numba_available
from bertsmith.models.family import presets
from cpu_isa import LIMITS, restart_limited
from record import (
    HERE,
    argument_parser,
    load_records,
    machine_name,
    markdown_table,
    median_and_range,
    processor_class,
    ratios,
    run_once,
    versions,
    versions_in,
    write_section,
)

TOLERANCES = {"fp32": 1e-4, "bf16": 2e-2}  # relative, of losses and of the norms of gradients
EXACT_SIDE = "reference, fp32"  # the losses of all others are compared with its loss
OUR_SIDES = ("ours, fp32", "ours, bf16")
SIDES = (*OUR_SIDES, EXACT_SIDE, "reference, bf16", "reference, compiled")
SIDES_WITHOUT_KERNELS = ("ours, fp32, torch alone", "ours, bf16, torch alone")
GROUPED_SIDES = ("reference, fp32, grouped", "reference, bf16, grouped")
LIMIT_SIDES = ("limit, fp32", "limit, bf16")


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("what", choices=("train", "finetune", "infer"))
    add_workload_options(parser)
    parser.add_argument("--sets", nargs="+", default=["sst2", "emotion", "squad1.1"], help="of infer")
    parser.add_argument("--sides", nargs="+", help="train, finetune: time only these")
    parser.add_argument("--max-isa", choices=LIMITS, help="use no newer instructions, see cpu_isa.py")
    parser.add_argument("--side", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.max_isa:
        restart_limited(options.max_isa)
    if options.what == "infer":
        import speed_infer

        speed_infer.run(options.sets, options.threads, options.windows)
    elif options.side:
        import speed_sides

        speed_sides.serve(options)
    else:
        if unknown := set(options.sides or ()) - set(sides := sides_of(options)):
            parser.error(f"--sides: unknown: {', '.join(sorted(unknown))}; choose from: {'; '.join(sides)}")
        run_once("speed", record_key(options), lambda: measure(options))
        report()


def add_workload_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that describe what is trained, and how long."""
    parser.add_argument("--preset", default="bert-mini-uncased", choices=presets(), metavar="NAME")
    parser.add_argument("--lengths", default="fixed:128", help="natural, or fixed:N")
    parser.add_argument("--task", default="sst2", help="of finetune: a classification task of finetune.py")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--windows", type=int, default=5)
    parser.add_argument("--updates", type=int, default=6, help="of a window")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--device", default="cpu")


def record_key(options: argparse.Namespace) -> str:
    """Return the key of a record: the workload, the machine, and the versions."""
    device = torch.device(options.device)
    processor = f"{options.threads} threads" if device.type == "cpu" else hardware.device_name(device)
    suffix = f"{options.batch} a batch, {processor}; {machine_name()}; {versions()}"
    if options.what == "train":
        return f"train {options.preset}, {options.lengths}, {suffix}"
    return f"finetune all-MiniLM-L6-v2 on {options.task}, {suffix}"


class Child:
    """A side in a process of its own: it reads a word per line and answers each with a line of JSON."""

    def __init__(self, side: str, options: argparse.Namespace, checkout: Path = HERE.parent) -> None:
        self.side = side
        names = ("preset", "lengths", "task", "batch", "updates", "threads", "device")
        line = [sys.executable, str(checkout / "benchmarks" / "speed.py"), options.what, "--side", side]
        line += [f"--{name}={getattr(options, name)}" for name in names]
        # ours waits as under the command line
        variables = hardware.thread_wait_policy() if side.startswith("ours") else {}
        path = os.pathsep.join(filter(None, [str(checkout / "src"), os.environ.get("PYTHONPATH")]))
        self._process = subprocess.Popen(
            line,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **variables, "PYTHONPATH": path},
        )

    def send(self, word: str) -> None:
        """Send begin, window, or memory."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            print(word, file=self._process.stdin, flush=True)

    def receive(self) -> Any:
        """Wait for the answer; None if the process ended."""
        assert self._process.stdout is not None
        return next((json.loads(line) for line in self._process.stdout if line.startswith("{")), None)

    def ask(self, word: str) -> Any:
        """Send a word and return its answer; exit if there is none."""
        self.send(word)
        if (answer := self.receive()) is None:
            raise SystemExit(f"{self.side} ended; if memory was short, use --sides")
        return answer

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()


def send_to_all(children: Iterable[Child], word: str, *, at_once: bool) -> Iterator[tuple[Child, Any]]:
    """Yield each child and its answer; the children work one after the other, or all at once."""
    if at_once:
        children = list(children)
        for child in children:
            child.send(word)
    for child in children:
        if not at_once:
            child.send(word)
        yield child, child.receive()


def sides_of(options: argparse.Namespace) -> list[str]:
    """Return the sides that are worth measuring with this workload on this device."""
    device = torch.device(options.device)
    is_fixed = options.what == "train" and options.lengths.startswith("fixed:")
    has_kernels = device.type == "cpu" and is_numba_available()
    has_bf16 = hardware.choose_precision(device) == "bf16"
    sides = [
        *SIDES,
        *(SIDES_WITHOUT_KERNELS if has_kernels else ()),
        *(() if is_fixed else GROUPED_SIDES),
        *LIMIT_SIDES,
    ]
    return [side for side in sides if has_bf16 or "bf16" not in side]


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Return each side's loss, tokens per second by window, and peak memory."""
    on_gpu = torch.device(options.device).type != "cpu"  # whose host has cores for all sides at once
    timed = set(options.sides or sides_of(options))
    names = [name for name in sides_of(options) if name in {*timed, EXACT_SIDE}]
    figures: dict[str, Any] = {}
    children: dict[str, Child] = {}
    try:
        for child, answer in send_to_all((Child(name, options) for name in names), "begin", at_once=on_gpu):
            print(child.side, answer or "does not run here", flush=True)
            children[child.side] = child
            if answer is not None:
                figures[child.side] = {**answer, "rates": []}
        if EXACT_SIDE not in figures:
            raise SystemExit("the reference does not run here, so there is nothing to compare with")
        exact = figures[EXACT_SIDE]
        for side in [side for side in figures if figures[side]["loss"] is not None]:
            add_differences(figures[side], exact)
            if not figures[side]["within"]:
                print(f"{side} is not timed: its loss or gradients differ too much", flush=True)
        figures = {
            side: values for side, values in figures.items() if side in timed and values.get("within", True)
        }
        for side in children.keys() - figures.keys():
            children.pop(side).close()
        if not any(side.startswith("reference") for side in figures):
            raise SystemExit("no side of the reference is timed, so there is nothing to compare with")
        list(send_to_all(children.values(), "window", at_once=on_gpu))  # warms up
        for window in range(options.windows):
            for side, child in children.items():
                figures[side]["rates"].append(child.ask("window")["rate"])
            rates = {side: round(values["rates"][-1]) for side, values in figures.items()}
            print(window + 1, rates, flush=True)
        for side, child in children.items():
            figures[side]["peak_mib"] = child.ask("memory")["mib"]
    finally:
        for child in children.values():
            child.close()
    return figures


def add_differences(values: dict[str, Any], exact: dict[str, Any]) -> None:
    """Add the relative differences of loss and gradient norm, and if they are within the tolerance."""
    loss, gradient = (abs(values[name] - exact[name]) / exact[name] for name in ("loss", "gradient"))
    values["difference"], values["gradient_difference"] = loss, gradient
    values["within"] = max(loss, gradient) <= TOLERANCES[values["precision"]]


def report() -> None:
    """Write the section of RESULTS.md from the records."""
    records = load_records("speed")
    rows = sorted(row(key, sides) for key, sides in records.items() if sides.keys() & set(OUR_SIDES))
    columns = ["processor", "workload", "fp32", "bf16", "peer", "ratio", "limit", "memory"]
    write_section(
        "Training speed",
        f"""`python -m benchmarks.speed train|finetune [--preset P] [--lengths L] [--max-isa ISA]`; two CPU cores
or one GPU; {versions_in(records)}.

Tokens per second without padding, medians of interleaved windows. The peer is the fastest variant of transformers
whose loss and gradient norm are equal (fp32 within 1e-4, bf16 within 2 %): fp32, bf16, compiled by torch, or
batches grouped by length. The ratio compares our faster precision with the peer (median, least, and most over
windows). Limit: the share of the speed that the model's matrix products alone reach, each in its fastest known
form. Memory: peak MiB, ours and the peer's. "Limited to": no side uses later instructions of the processor.
In fixed:N all
sequences have N tokens; natural lengths are at most 128. The batch is 32 unless given. Some rows are older than
the code, which is faster now.

{markdown_table(columns, rows)}""",
    )


def row(key: str, sides: dict[str, Any]) -> list[str]:
    """Return the table's row of one workload on one machine."""
    medians = {side: statistics.median(values["rates"]) for side, values in sides.items()}
    peer = max(
        (side for side in sides if side.startswith("reference") and sides[side]["within"]),
        key=medians.__getitem__,
    )
    best = max((side for side in OUR_SIDES if side in sides), key=medians.__getitem__)
    limit = sides.get(f"limit, {sides[best]['precision']}")
    workload = re.sub(r"train bert-(\w+)-uncased, ", r"\1, ", key.partition(" a batch")[0])
    workload = workload.replace("finetune all-MiniLM-L6-v2 on ", "fine-tune MiniLM, ").removesuffix(", 32")
    return [
        processor_class(key),
        workload,
        *(f"{medians[side]:,.0f}" if side in sides else "–" for side in OUR_SIDES),
        f"{medians[peer]:,.0f} ({peer.removeprefix('reference, ')})",
        median_and_range(ratios(sides[best]["rates"], sides[peer]["rates"])),
        f"{statistics.median(ratios(sides[best]['rates'], limit['rates'])):.0%}" if limit else "–",
        f"{sides[best]['peak_mib']:,.0f}, {sides[peer]['peak_mib']:,.0f}",
    ]


if __name__ == "__main__":
    main()
