"""How fast ours trains beside its peers, each with its best public settings, in turn on the machine as it is.

    python -m benchmarks.speed train [--preset bert-mini-uncased] [--lengths fixed:128|natural] [--batch 32]
    python -m benchmarks.speed finetune [--task sst2]
    python -m benchmarks.speed infer [--sets sst2 emotion squad1.1]

train: masked LM with next sentence and the preset's dropout. fixed:N: random text, each sequence of N tokens.
natural: the pairs of sentences of the encyclopedia, each as long as it is, at most 128. finetune: all-MiniLM-L6-v2
on a task's own rows. Ours: fp32 and bf16, both also by torch's operations alone, as without the extra fast. The
reference library: fp32, bf16 by autocast, compiled; on texts of different lengths its batches are also grouped by
length, as its Trainer's group_by_length does. infer: speed_infer.py. Sides in bf16 are left out where a product in
bf16 is slower than in fp32. --device cuda: on a GPU; ours then builds its batches while it is
timed, the reference's are there before.

Each side is a process of its own with its memory; windows of updates go round them (on a GPU all sides begin, and
warm up, at once). Before a time is kept, the losses that all sides have of one batch, from the same weights and
without dropout, are compared, and the norms of their gradients. All sides stay in memory meanwhile; --sides times
some of them. The limit: of how many tokens the machine makes the matrix products in a second, of the model's own
shapes, measured in the same rounds.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))  # the scripts beside this one, by their own names

import torch

from bertsmith import hardware
from bertsmith.errors import InputError
from bertsmith.kernels.backend_selection import is_numba_available
from bertsmith.models.family import preset
from cpu_isa import LIMITS, restart_limited
from record import (
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

CLOSE = {"fp32": 1e-4, "bf16": 2e-2}  # relative, of losses and of the norms of gradients
EXACT = "reference, fp32"  # whose loss is the others' measure
SIDES = ("ours, fp32", "ours, bf16", EXACT, "reference, bf16", "reference, compiled")
ALONE = ("ours, fp32, torch alone", "ours, bf16, torch alone")  # without the extra fast
GROUPED = ("reference, fp32, grouped", "reference, bf16, grouped")
LEAST = 16  # tokens of a sequence: fewer are hardly two sentences
LIMITS = ("limit, fp32", "limit, bf16")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("train", "finetune", "infer"))
    parser.add_argument("--preset", default="bert-mini-uncased")
    parser.add_argument("--lengths", default="fixed:128")
    parser.add_argument("--task", default="sst2")
    parser.add_argument("--sets", nargs="+")
    parser.add_argument("--batch", type=at_least(1), default=32)
    parser.add_argument("--windows", type=at_least(5), default=5, help="5 or more, of which medians are told")
    parser.add_argument("--updates", type=at_least(1), default=6, help="of a window")
    parser.add_argument("--threads", type=at_least(1), default=2)
    parser.add_argument("--device", default="cpu", help="or cuda, where batches are built while it computes")
    parser.add_argument("--sides", nargs="+", help="time these alone: all are in memory at once")
    parser.add_argument(
        "--held-to", choices=LIMITS, help="x"
    )
    parser.add_argument("--side", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.held_to:
        if options.what == "infer" and not peers_are_within(options.held_to):
            parser.error(
                "--held-to: of infer only avx512_vnni, on a processor without AMX: peers ask it themselves"
            )
        restart_limited(options.held_to)
    if options.what == "infer":
        import speed_infer

        more = ["--sets", *options.sets] if options.sets else []
        asked = [f"--threads={options.threads}", f"--windows={options.windows}"]
        sys.argv = ["speed_infer.py", *asked, *more]
        speed_infer.main()
    elif options.side:
        import speed_sides

        speed_sides.serve(options)
    else:
        check(options, parser)
        key = key_of(options)
        run_once("speed", key, lambda: measured(options))
        report()


def at_least(least: int) -> Callable[[str], int]:
    """What reads such a number on the command line."""

    def number(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"{text}: give a whole number from {least} on")
        return int(text)

    return number


def check(options: argparse.Namespace, parser: argparse.ArgumentParser) -> None:
    """End with one sentence where sides could not begin."""
    if options.threads > (cores := hardware.describe().cores):
        parser.error(f"--threads {options.threads}: this machine has {cores} cores")
    if unknown := set(options.sides or ()) - set(names := sides_of(options)):
        parser.error(f"--sides: none here is {', '.join(sorted(unknown))}; there are: {'; '.join(names)}")
    if options.what == "finetune":
        from finetune import TASKS
        from speed_sides import KINDS

        tasks = [name for name, bench in TASKS.items() if bench.verb in KINDS]
        if options.task not in tasks:
            parser.error(f"--task {options.task}: not one of {', '.join(tasks)}")
        return
    try:
        config = preset(options.preset)
    except InputError as error:
        parser.error(f"--preset: {error}")
    tokens = options.lengths.removeprefix("fixed:")
    known = tokens != options.lengths and tokens.isdecimal() and LEAST <= int(tokens) <= config.max_length
    if not known and options.lengths != "natural":
        parser.error(
            f"--lengths {options.lengths}: give natural, or fixed:N, N from {LEAST} to {config.max_length}"
        )


def peers_are_within(to: str) -> bool:
    """Whether ONNX Runtime and OpenVINO, which nobody can hold, have no later instructions for fp32 and 8 bits."""
    return to == "avx512_vnni" and not any("amx" in name for name in hardware.describe().instruction_sets)


def key_of(options: argparse.Namespace) -> str:
    """What was measured where, in a few words: the key of its record and the title of its table."""
    device = torch.device(options.device)
    where = f"{options.threads} threads" if device.type == "cpu" else hardware.device_name(device)
    shape = f"{options.batch} a batch, {where}; {machine_name()}; {versions()}"
    if options.what == "train":
        return f"train {options.preset}, {options.lengths}, {shape}"
    return f"finetune all-MiniLM-L6-v2 on {options.task}, {shape}"


class Child:
    """A side in a process of its own, which answers a JSON line to each word."""

    def __init__(self, side: str, options: argparse.Namespace) -> None:
        self.side = side
        names = ("preset", "lengths", "task", "batch", "updates", "threads", "device")
        line = [sys.executable, __file__, options.what, "--side", side]
        line += [part for name in names for part in (f"--{name}", str(getattr(options, name)))]
        waits = hardware.thread_wait_policy() if side.startswith("ours") else {}  # as the command line has it
        self._process = subprocess.Popen(
            line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, **waits}
        )

    def ask(self, word: str) -> None:
        """Have it begin with what `answer` waits for."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            print(word, file=self._process.stdin, flush=True)

    def answer(self) -> Any:
        """To what it was asked; None where it has died, which it has said itself."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):
                return json.loads(line)
        return None

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._process.wait()


def asked(children: Iterable[Child], word: str, *, at_once: bool) -> Iterator[tuple[Child, Any]]:
    """Each with its answer: one after the other, or all at work together."""
    if at_once:
        children = list(children)
        for child in children:
            child.ask(word)
    for child in children:
        if not at_once:
            child.ask(word)
        yield child, child.answer()


def sides_of(options: argparse.Namespace) -> list[str]:
    """Those that are worth their time: on texts of one length none is grouped, and where a product in bf16 is
    slower than in fp32, as without units for it, no side computes in bf16."""
    is_fixed = options.what == "train" and options.lengths.startswith("fixed:")
    names = [*SIDES, *ALONE, *(() if is_fixed else GROUPED), *LIMITS]
    device = torch.device(options.device)
    in_bf16 = hardware.choose_precision(device).precision == "bf16"
    if device.type != "cpu" or not is_numba_available():
        names = [name for name in names if name not in ALONE]
    return [name for name in names if in_bf16 or "bf16" not in name]


def measured(options: argparse.Namespace) -> dict[str, Any]:
    """Each side's loss, tokens a second by window, and peak memory."""
    names = sides_of(options)
    found: dict[str, Any] = {}
    exact: Any = None
    children = []
    timed = [name for name in names if options.sides is None or name in options.sides]
    begun = (Child(name, options) for name in names if name in {*timed, EXACT})
    together = torch.device(options.device).type != "cpu"  # a GPU's host has cores for all of them
    for child, answer in asked(begun, "begin", at_once=together):
        name = child.side
        print(name, answer or "does not run here", flush=True)
        if name == EXACT:
            exact = answer
        if answer is None or name not in timed:
            child.close()
            continue
        found[name] = {**answer, "rates": []}
        children.append(child)
    if exact is None or not any(name.startswith("reference") for name in found):
        raise SystemExit("the reference does not run here, so there is nothing to compare with")
    try:
        for one in found.values():
            if one["loss"] is not None:
                apart = [abs(one[what] - exact[what]) / exact[what] for what in ("loss", "gradient")]
                one["difference"], one["gradient_difference"] = apart
                one["within"] = max(apart) <= CLOSE[one["precision"]]
        for child in [child for child in children if not found[child.side].get("within", True)]:
            print(f"{child.side} is not timed: its loss or gradients differ too much", flush=True)
            child.close()
            children.remove(child)
            del found[child.side]
        if not any(name.startswith("reference") for name in found):
            raise SystemExit(
                "no side of the reference computes what it does in fp32: nothing to compare with"
            )
        for window in range(options.windows + 1):  # the first one warms up
            for child, answer in asked(children, "window", at_once=together and not window):
                if answer is None:
                    raise SystemExit(f"{child.side} has died; if memory was short: --sides")
                if window:
                    found[child.side]["rates"].append(answer["rate"])
            rates = {name: round(one["rates"][-1]) for name, one in found.items() if one["rates"]}
            print(window, rates, flush=True)
        for child, answer in asked(children, "memory", at_once=False):
            found[child.side]["peak_mib"] = answer["mib"]
    finally:
        for child in children:
            child.close()
    return found


def report() -> None:
    """Write the section of RESULTS.md from the records."""
    known = load_records("speed")
    rows = sorted(
        row(key, sides) for key, sides in known.items() if {"ours, fp32", "ours, bf16"} & sides.keys()
    )
    write_section(
        "Training speed",
        f"""`python -m benchmarks.speed train|finetune [--preset P] [--lengths L] [--held-to UNIT]`; two CPU cores
or one GPU; {versions_in(known)}.

Tokens per second without padding, medians of windows in turn. The peer is the fastest variant of transformers
whose loss and gradient norm are equal (fp32 within 1e-4, bf16 within 2 %): fp32, bf16, compiled by torch, or
batches grouped by length. The ratio compares our faster precision with the peer (median, least, and most over
windows). Limit: the share of the speed that the model's matrix products alone reach, each in its fastest known
form. Memory: peak MiB, ours and the peer's. "Limited to": no side uses later instructions of the processor.
In fixed:N all
sequences have N tokens; natural lengths are at most 128. The batch is 32 unless given. Some rows are older than
the code, which is faster now.

{markdown_table(COLUMNS, rows)}""",
    )


COLUMNS = ["processor", "workload", "fp32", "bf16", "peer", "ratio", "limit", "memory"]


def row(key: str, sides: dict[str, Any]) -> list[str]:
    """Return the table's row of one workload on one machine."""
    peers = {name: one for name, one in sides.items() if name.startswith("reference") and one["within"]}
    name, peer = max(peers.items(), key=lambda item: statistics.median(item[1]["rates"]))
    ours = {one["precision"]: one for side, one in sides.items() if side in ("ours, fp32", "ours, bf16")}
    best = max(ours.values(), key=lambda one: statistics.median(one["rates"]))
    limit = sides.get(f"limit, {best['precision']}")
    rates = {
        precision: f"{statistics.median(one['rates']):,.0f}" if (one := ours.get(precision)) else "–"
        for precision in ("fp32", "bf16")
    }
    workload = re.sub(r"train bert-(\w+)-uncased, ", r"\1, ", key.partition(" a batch")[0])
    workload = workload.replace("finetune all-MiniLM-L6-v2 on ", "fine-tune MiniLM, ").removesuffix(", 32")
    return [
        processor_class(key),
        workload,
        *rates.values(),
        f"{statistics.median(peer['rates']):,.0f} ({name.removeprefix('reference, ')})",
        median_and_range(ratios(best["rates"], peer["rates"])),
        f"{statistics.median(ratios(best['rates'], limit['rates'])):.0%}" if limit else "–",
        f"{best['peak_mib']:,.0f}, {peer['peak_mib']:,.0f}",
    ]


if __name__ == "__main__":
    main()
