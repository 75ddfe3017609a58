"""What a second process is worth: real tokens a second of pre-training in one and in two, in turn, and how much of
the time the two spend on each other's gradients.

    python benchmarks/processes.py [--presets bert-tiny-uncased bert-mini-uncased bert-small-uncased] [--batch 32]

The same batches of random text, 128 tokens a sequence, AdamW and the preset's dropout: in one process on one
thread and on two, and in two processes of one thread each, as torchrun starts them. Threads wait for each other as
those of the command line do. apart: the two processes without summing their gradients; what they are faster by is
communication, and waiting for each other.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
from functools import partial

from bertsmith import hardware
from record import once, recorded, section, table, where

WAYS = ("1 process, 1 thread", "1 process, 2 threads", "2 processes, 1 thread each", "apart")
LENGTH, MASK_SHARE, RATE = 128, 0.15, 1e-4


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    presets = [f"bert-{size}-uncased" for size in ("tiny", "mini", "small")]
    parser.add_argument("--presets", nargs="+", default=presets)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--windows", type=int, default=5)
    parser.add_argument("--updates", type=int, default=8, help="of a window")
    parser.add_argument("--child", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        serve(options)
        return
    for preset in options.presets:
        once("processes", f"{preset}, {options.batch} a batch", partial(measured, preset, options))
        report()


class Side:
    """One process, or two that are asked together."""

    def __init__(self, preset: str, options: argparse.Namespace, processes: int, threads: int) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = str(free.getsockname()[1])
        line = [sys.executable, __file__, "--presets", preset, "--child", str(threads)]
        line += ["--batch", str(options.batch), "--updates", str(options.updates)]
        self.processes = []
        for number in range(processes):
            several = {
                "RANK": str(number),
                "WORLD_SIZE": str(processes),
                "LOCAL_RANK": str(number),
                "LOCAL_WORLD_SIZE": str(processes),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": port,
            }
            env = {**os.environ, **hardware.brief_waits(), "OMP_NUM_THREADS": str(threads)}
            env |= several if processes > 1 else {}
            self.processes.append(
                subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env)
            )

    def asked(self, word: str) -> float:
        """Tokens a second of a window, of all its processes together."""
        for process in self.processes:
            assert process.stdin is not None
            print(word, file=process.stdin, flush=True)
        answers = []
        for process in self.processes:
            assert process.stdout is not None
            answers.append(json.loads(next(line for line in process.stdout if line.startswith("{"))))
        return float(
            sum(answer["tokens"] for answer in answers) / max(answer["seconds"] for answer in answers)
        )

    def close(self) -> None:
        """End them."""
        for process in self.processes:
            process.kill()
            process.wait()


def measured(preset: str, options: argparse.Namespace) -> dict[str, list[float]]:
    """Tokens a second by window."""
    sides = [Side(preset, options, *of) for of in ((1, 1), (1, 2), (2, 1))]
    asked = dict(zip(WAYS, [*((side, "window") for side in sides), (sides[2], "apart")], strict=True))
    rates: dict[str, list[float]] = {way: [] for way in WAYS}
    try:
        for window in range(options.windows + 1):  # the first one warms up
            found = {way: side.asked(word) for way, (side, word) in asked.items()}
            print(preset, window, {way: round(rate) for way, rate in found.items()}, flush=True)
            if window:
                for way, rate in found.items():
                    rates[way].append(rate)
    finally:
        for side in sides:
            side.close()
    return rates


def serve(options: argparse.Namespace) -> None:
    """One process: answer each word on stdin with the tokens and seconds of its part of some updates."""
    import torch

    from bertsmith.device import Place
    from bertsmith.instances.synthetic_batches import RandomPairs
    from bertsmith.kernels.backend_selection import for_training
    from bertsmith.models.family import build_encoder, preset
    from bertsmith.objectives.masked_lm import MlmNsp
    from bertsmith.training.data_loader import Position, updates
    from bertsmith.training.distributed import processes
    from bertsmith.training.optim.optimizer import optimizer_of
    from bertsmith.training.settings import TrainSettings
    from bertsmith.training.train_step import Trained, update

    answers, sys.stdout = sys.stdout, sys.stderr
    hardware.prepare_process(options.child)
    config = preset(options.presets[0])
    encoder = build_encoder(config, torch.Generator().manual_seed(0))
    objective = MlmNsp(config, encoder.generator)
    settings = TrainSettings(batch_size=options.batch)
    kernels = for_training(settings.kernels, config.hidden_size)
    place = Place(torch.device("cpu"), hardware.choose_precision().precision, encoder.generator, kernels)
    place.settle(encoder, objective)
    trained = Trained(encoder, objective).train()
    optimizer = optimizer_of(trained, settings)
    with processes(hardware.of_several()) as several:
        passes = several.passes(trained)
        stream = several.part(RandomPairs(config.vocab_size, LENGTH, MASK_SHARE))
        work = updates(stream, options.batch, 1, Position(), 0, several.counts(objective.counts))
        for word in sys.stdin:
            is_apart = word.strip() == "apart"
            tokens, begin = 0, hardware.clock()
            for _ in range(options.updates):
                one = next(work)
                tokens += one.tokens
                one = one if is_apart else several.together(one)
                update(trained, optimizer, one, RATE, settings, place, 1, None if is_apart else passes)
            print(
                json.dumps({"tokens": tokens, "seconds": hardware.clock() - begin}), file=answers, flush=True
            )


def report() -> None:
    """The section of RESULTS.md, of what was measured by now."""
    rows = []
    for key, rates in recorded("processes").items():
        middle = {way: statistics.median(values) for way, values in rates.items()}
        two, threads, apart = (rates[way] for way in (WAYS[2], WAYS[1], WAYS[3]))
        ratios = [a / b for a, b in zip(two, threads, strict=True)]
        shares = [1 - a / b for a, b in zip(two, apart, strict=True)]
        rows.append(
            [
                key,
                *(f"{middle[way]:,.0f}" for way in WAYS[:3]),
                f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})",
                f"{statistics.median(shares):.0%}",
            ]
        )
    columns = ["", *WAYS[:3], "two processes against two threads", "communication"]
    section(
        "One process and two",
        f"""`python benchmarks/processes.py`; {where(2)}.

Real tokens a second of pre-training on random text of {LENGTH} tokens with AdamW, medians of windows in turn; the
ratio's least and most. Communication: the share of the two processes' time that they do not need when each keeps
its gradients to itself.

{table(columns, rows)}""",
    )


if __name__ == "__main__":
    main()
