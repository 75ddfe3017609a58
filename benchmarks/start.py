"""How soon a command answers, beside `import torch` and what it must read; whole commands in turn.

    python benchmarks/start.py [RUN]

RUN: a fine-tuned run, such as finetune.py's WORK/finetune/sst2-0. Each command is a process of its own, its files
in memory from the round before; the first round, which may still compile Python's files, is not counted.
"""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

from record import WORK, environment, markdown_table, write_section

ROUNDS = 9
TEXT = "a fine film"


def main() -> None:
    run = Path(sys.argv[1]) if len(sys.argv) > 1 else WORK / "finetune" / "sst2-0"
    weights = run / "model" / "model.safetensors"
    reads = f"import torch, safetensors.torch as files; files.load_file({str(weights)!r})"
    commands = {
        "import torch, and the weights by `load_file`": ["-c", reads],
        "`bertsmith predict` of one text": ["-m", "bertsmith", "predict", str(run), TEXT],
        "`bertsmith --help`": ["-m", "bertsmith", "--help"],
        "`import bertsmith`": ["-c", "import bertsmith"],
        "Python alone": ["-c", "pass"],
    }
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in commands}
    for _ in range(ROUNDS + 1):
        for name, line in commands.items():
            seconds[name].append(took(line))
    first = next(iter(commands))
    rows = []
    for name, found in seconds.items():
        counted = found[1:]
        ratios = [one[0] / other[0] for one, other in zip(counted, seconds[first][1:], strict=True)]
        rows.append(
            [
                name,
                *(f"{statistics.median(one[i] for one in counted):.2f}" for i in (0, 1)),
                f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})",
            ]
        )
    text = markdown_table(["command", "seconds", "CPU seconds", "seconds, relative to the first"], rows)
    print(text)
    size = round(weights.stat().st_size / 1e6)
    write_section(
        "Start-up",
        f"""`python benchmarks/start.py`; {environment(2)}.

Medians of {ROUNDS} whole commands, in turn. The weights are {size} MB; `load_file` maps them into memory.

{text}""",
    )


def took(arguments: list[str]) -> tuple[float, float]:
    """Seconds of a command, and the processor's."""
    # a user's Python keeps what it has compiled
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    before, begun = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run([sys.executable, *arguments], stdout=subprocess.DEVNULL, check=True, env=environment)
    whole, after = time.perf_counter() - begun, resource.getrusage(resource.RUSAGE_CHILDREN)
    return whole, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


if __name__ == "__main__":
    main()
