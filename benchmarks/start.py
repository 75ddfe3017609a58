"""Time whole commands, and compare them with `import torch` and reading the weights.

    python benchmarks/start.py [RUN]

RUN is a fine-tuned run, by default finetune.py's WORK/finetune/sst2-0. Each command is a process of its own. The
first round, in which Python may compile its files, does not count; from then on files are in memory.
"""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

from record import WORK, argument_parser, environment, markdown_table, median_and_range, ratios, write_section

ROUNDS = 9


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("run", type=Path, nargs="?", default=WORK / "finetune" / "sst2-0")
    run = parser.parse_args().run
    weights = run / "model" / "model.safetensors"
    load = f"import torch, safetensors.torch as files; files.load_file({str(weights)!r})"
    commands = {
        "import torch, and the weights by `load_file`": ["-c", load],
        "`bertsmith predict` of one text": ["-m", "bertsmith", "predict", str(run), "a fine film"],
        "`bertsmith --help`": ["-m", "bertsmith", "--help"],
        "`import bertsmith`": ["-c", "import bertsmith"],
        "Python alone": ["-c", "pass"],
    }
    rounds = [[seconds_of(line) for line in commands.values()] for _ in range(ROUNDS + 1)]
    rows, first = [], [times[0][0] for times in rounds[1:]]
    for i, name in enumerate(commands):
        seconds, cpu_seconds = zip(*(times[i] for times in rounds[1:]), strict=True)
        medians = [f"{statistics.median(values):.2f}" for values in (seconds, cpu_seconds)]
        rows.append([name, *medians, median_and_range(ratios(seconds, first))])
    table = markdown_table(["command", "seconds", "CPU seconds", "seconds, relative to the first"], rows)
    print(table)
    size = round(weights.stat().st_size / 1e6)
    write_section(
        "Start-up",
        f"""`python benchmarks/start.py`; {environment(2)}.

Medians of {ROUNDS} whole commands, interleaved. The weights are {size} MB; `load_file` maps them into memory.

{table}""",
    )


def seconds_of(arguments: list[str]) -> tuple[float, float]:
    """Run Python with these arguments. Return wall-clock and CPU seconds."""
    # a user's Python keeps what it has compiled
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run([sys.executable, *arguments], stdout=subprocess.DEVNULL, check=True, env=environment)
    seconds, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    return seconds, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


if __name__ == "__main__":
    main()
