"""Kill a tiny pre-training run twenty times; each resumed run must equal the uninterrupted one bit for bit.

    python benchmarks/kill_test.py [--work DIR] [--seed N]

Ten SIGKILLs come at random times. Ten come while a checkpoint is saved: the process kills itself before or after
its n-th call that writes, syncs, renames, or deletes a file. The run is that of tests/tiny_run.py (dropout,
gradient accumulation, new masks in each epoch) with two workers and a checkpoint every third update. After each
kill, `--resume` continues the run; log, last checkpoint, and model are compared. Results are recorded: the script
may be stopped and restarted.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import record

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
import run_equality
import tiny_run

Kill = tuple[str, str, int]
"""A kind of call (or "none"), "before" or "after", and which call of that kind."""

STEPS = 60
SETTINGS = [
    *tiny_run.SETTINGS,
    *(
        f"train.max_steps={STEPS}",
        "train.save_steps=3",
        "train.save_total_limit=2",
        "train.dataloader_num_workers=2",
    ),
    *("train.eval_steps=20", "train.device=cpu"),
]
# The calls that save a checkpoint, and the highest n at which one of them kills the process.
CALLS = {"write": 50, "state": 30, "fsync": 100, "rename": 30, "prune": 15}

# Run the command line in a process that kills itself before or after the n-th call of a kind.
CHILD = """
import os, pathlib, shutil, signal, sys
kind, moment, n = sys.argv[1], sys.argv[2], int(sys.argv[3])
del sys.argv[1:4]
import bertsmith.cli.main
from bertsmith.training import checkpoint
owner, names = {"none": (os, []), "write": (checkpoint, ["save_file"]), "state": (pathlib.Path, ["write_text"]),
                "fsync": (os, ["fsync"]), "rename": (os, ["rename", "replace"]),
                "prune": (shutil, ["rmtree"])}[kind]
count = 0
def killing(function):
    def call(*args, **keywords):
        global count
        is_of_checkpoint = kind == "fsync" or "checkpoints" in str(args)
        is_counted = is_of_checkpoint and not keywords.get("ignore_errors")
        count += is_counted
        is_last = is_counted and count == n
        if is_last and kind == "prune" and moment == "after":  # after one of the folder's files
            os.unlink(sorted(pathlib.Path(args[0]).iterdir())[0])
        if is_last and (kind == "prune" or moment == "before"):
            os.kill(os.getpid(), signal.SIGKILL)
        result = function(*args, **keywords)
        if is_last:
            os.kill(os.getpid(), signal.SIGKILL)
        return result
    return call
for name in names:
    setattr(owner, name, killing(getattr(owner, name)))
bertsmith.cli.main.main()
"""


def main() -> None:
    parser = record.argument_parser(__doc__)
    parser.add_argument("--work", type=Path, default=record.WORK / "kill_test")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    work, rng = options.work, random.Random(options.seed)
    if not (work / "shards" / "manifest.json").exists():
        tiny_run.make_shards(work, documents=120)
    out = work / "straight"
    shutil.rmtree(out, ignore_errors=True)
    run(work, out)
    expected = run_equality.outcome(out)
    seconds = json.loads((out / "report.json").read_text())["seconds"]
    kills: list[tuple[Kill, float]] = [(("none", "-", 0), rng.uniform(0, seconds)) for _ in range(10)]
    kills += [((kind, m, rng.randint(3, CALLS[kind])), 0.0) for kind in CALLS for m in ("before", "after")]
    results = []
    for i, (kill, kill_after) in enumerate(kills):
        measure = partial(kill_and_resume, work, kill, kill_after, expected)
        results.append(record.run_once("kill_test", f"seed {options.seed}, chain {i}", measure))
        print(i + 1, results[-1], flush=True)
    section = format_section(options.seed, results)
    record.write_section("Kill test", section)
    print(section)
    if not all(map(is_exact, results)):
        raise SystemExit(1)


def run(
    work: Path, out: Path, *options: str, kill: Kill = ("none", "-", 0), kill_after: float | None = None
) -> int:
    """Run pre-training and return its exit code. kill_after: seconds from the first line of its log to a kill."""
    command = [sys.executable, "-c", CHILD, *map(str, kill), "pretrain", "--preset", "bert-tiny-uncased"]
    command += ["--data", str(work / "shards"), "--output-dir", str(out), *options]
    command += [word for setting in SETTINGS for word in ("--set", setting)]
    variables = os.environ | {"OMP_NUM_THREADS": "1", "RAYON_NUM_THREADS": "1"}
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=variables
    ) as process:
        if kill_after is not None:
            log = out / "log.jsonl"
            while process.poll() is None and not (log.is_file() and log.stat().st_size):
                time.sleep(0.002)
            with suppress(subprocess.TimeoutExpired):
                process.wait(kill_after)
            process.send_signal(signal.SIGKILL)
        messages = process.communicate(timeout=600)[1]
        if process.returncode not in (0, -signal.SIGKILL):
            raise SystemExit(f"a run ended with {process.returncode}:\n{messages.decode()}")
        return process.returncode


def kill_and_resume(work: Path, kill: Kill, seconds: float, expected: dict[str, Any]) -> dict[str, Any]:
    """Kill a run, resume it, and compare it. A random kill that comes after the run's end is tried earlier."""
    out, is_random = work / "killed", kill[0] == "none"
    for _ in range(4):
        shutil.rmtree(out, ignore_errors=True)
        code = run(work, out, kill=kill, kill_after=seconds if is_random else None)
        if code == -signal.SIGKILL or not is_random:
            break
        seconds *= 0.8
    checkpoints = sorted(path.name for path in out.glob("checkpoints/*"))
    run(work, out, *(["--resume"] if (out / "settings.yaml").exists() else []))
    content = run_equality.outcome(out)
    names = sorted(content.keys() | expected.keys())
    kind, moment, n = kill
    random_time = f"random moment, {seconds:.2f} s after the first update"
    return {
        "at": random_time if is_random else f"{moment} {kind} call {n}",
        "killed": code == -signal.SIGKILL,
        "left": ", ".join(checkpoints) or "no checkpoint",
        "differing": [name for name in names if content.get(name) != expected.get(name)],
    }


def is_exact(result: dict[str, Any]) -> bool:
    return result["killed"] and not result["differing"]


def format_section(seed: int, results: list[dict[str, Any]]) -> str:
    kinds = Counter(
        "random moment" if result["at"].startswith("random") else f"{result['at'].split()[1]} call"
        for result in results
    )
    counts = ", ".join(f"{kind} {count}" for kind, count in kinds.items())
    return f"""`python benchmarks/kill_test.py --seed {seed}`; {record.environment(1)}.

A model of 2 layers of 32, {STEPS} updates over several epochs, dropout 0.1, gradient accumulation 2, dynamic
masks, 2 workers, a checkpoint every 3 updates. After each SIGKILL the run is resumed. Log, weights, optimizer
state, generator state, data position, and model equal those of an uninterrupted run in
{sum(map(is_exact, results))} of {len(results)} cases. Killed at: {counts}."""


if __name__ == "__main__":
    main()
