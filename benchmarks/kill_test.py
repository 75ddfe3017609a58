"""Twenty SIGKILLs of a tiny pre-training run; each time the end must be the uninterrupted run's, to the bit.

    python benchmarks/kill_test.py [--work DIR] [--seed N]

Dropout, accumulation 2, masks anew each epoch, two workers, a checkpoint every third update. Half of the kills
fall at random moments; half between write, fsync, rename and pruning of a checkpoint, where the child kills
itself at a given call. After each kill the same command goes on with --resume, and its log, its last
checkpoint's weights, optimiser and generator, and its model are compared with the straight run's. Twenty
chains are run: one kill, one resume, one comparison each. A finished chain is remembered, so that the
script may be stopped and started again.
"""

from __future__ import annotations

import argparse
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

import record

STEPS = 60
SETTINGS = [
    "model.hidden_size=32", "model.num_hidden_layers=2", "model.num_attention_heads=2",
    "model.intermediate_size=64", "model.max_position_embeddings=64", "data.sequence_length=32",
    "data.validation_split=0.1", f"train.max_steps={STEPS}", "train.batch_size=4", "train.accumulate=2",
    "train.learning_rate=1e-3", "train.checkpoint_every=3", "train.keep_checkpoints=2", "train.workers=2",
    "train.threads=1", "train.precision=fp32", "train.device=cpu", "train.log_every=1",
    "train.evaluate_every=20", "train.tensorboard=false",
]  # fmt: skip

# The child: the real command line, where one kind of call kills the process, before or after it is made.
CHILD = """
import os, pathlib, shutil, signal, sys
kind, moment, number = sys.argv[1], sys.argv[2], int(sys.argv[3])
del sys.argv[1:4]
import bertsmith.cli.main
if kind != "none":
    from bertsmith.training import checkpoint
    owner, names = {"write": (checkpoint, ["save_file"]), "state": (pathlib.Path, ["write_text"]),
                    "fsync": (os, ["fsync"]), "rename": (os, ["rename", "replace"]),
                    "prune": (shutil, ["rmtree"])}[kind]
    calls = 0
    def killing(real):
        def call(*args, **more):
            global calls
            # calls of a checkpoint, nothing else
            mine = not more.get("ignore_errors") and (kind == "fsync" or "checkpoints" in str(args))
            calls += mine
            if mine and calls == number and moment == "before":
                os.kill(os.getpid(), signal.SIGKILL)
            if mine and calls == number and kind == "prune":  # halfway through emptying a folder
                os.unlink(sorted(pathlib.Path(args[0]).iterdir())[0])
                os.kill(os.getpid(), signal.SIGKILL)
            done = real(*args, **more)
            if mine and calls == number:
                os.kill(os.getpid(), signal.SIGKILL)
            return done
        return call
    for name in names:
        setattr(owner, name, killing(getattr(owner, name)))
bertsmith.cli.main.main()
"""


def places(draw: random.Random) -> list[tuple[str, str, int]]:
    """Ten places inside a checkpoint's saving, each kind hit twice; the call's number is drawn."""
    kinds = ["write", "state", "fsync", "rename", "prune"]
    return [
        (
            kind,
            moment,
            draw.randint(3, {"write": 50, "state": 30, "fsync": 100, "rename": 30, "prune": 15}[kind]),
        )
        for kind in kinds
        for moment in ("before", "after")
    ]


def command(work: Path, out: Path, place: tuple[str, str, int] = ("none", "-", 0)) -> list[str]:
    kind, moment, number = place
    line = [
        sys.executable,
        "-c",
        CHILD,
        kind,
        moment,
        str(number),
        "pretrain",
        "--preset",
        "bert-tiny-uncased",
    ]
    line += ["--tokenizer", str(work / "tokenizer"), "--data", str(work / "shards"), "--out", str(out)]
    for setting in SETTINGS:
        line += ["--set", setting]
    return line


def run(line: list[str], *, log: Path | None = None, kill_after: float = 0.0) -> int:
    """Run a command to its end; with `log`, kill it so many seconds after the first line there."""
    variables = os.environ | {"OMP_NUM_THREADS": "1", "RAYON_NUM_THREADS": "1"}
    with subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=variables) as process:
        if log is not None:
            while process.poll() is None and not (log.is_file() and log.stat().st_size):
                time.sleep(0.002)
            with suppress(subprocess.TimeoutExpired):
                process.wait(kill_after)
            process.send_signal(signal.SIGKILL)
        told = process.communicate(timeout=600)[1]
        if process.returncode not in (0, -signal.SIGKILL):
            raise SystemExit(f"a run ended with {process.returncode}:\n{told.decode()}")
        return process.returncode


def outcome(out: Path) -> dict[str, bytes]:
    """What must be equal: log, last checkpoint (without the seconds it took), model."""
    last = out / "checkpoints" / f"step-{STEPS}"
    state = json.loads((last / "state.json").read_text())
    del state["seconds"]
    found = {"log.jsonl": (out / "log.jsonl").read_bytes(), "state.json": json.dumps(state).encode()}
    for file in [*sorted(last.glob("*.safetensors")), out / "model" / "model.safetensors"]:
        found[file.name] = file.read_bytes()
    return found


def where(out: Path) -> str:
    """What the kill left on the disk."""
    folder = out / "checkpoints"
    names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    lines = (out / "log.jsonl").read_bytes().count(b"\n") if (out / "log.jsonl").is_file() else 0
    return f"{lines} log lines; {', '.join(names) or 'no checkpoint'}"


def prepare(work: Path) -> None:
    """A corpus of 120 made-up documents, its vocabulary and its shards."""
    if (work / "shards" / "manifest.json").exists():
        return
    draw = random.Random(0)
    words = [
        a + b
        for a in ("ka", "lo", "mi", "nu", "pe", "ri", "so", "tu")
        for b in ("ba", "de", "gi", "fo", "zu")
    ]
    documents = [
        " ".join(
            " ".join(draw.choices(words, k=draw.randint(1, 9))).capitalize() + "."
            for _ in range(draw.randint(1, 8))
        )
        for _ in range(120)
    ]
    work.mkdir(parents=True, exist_ok=True)
    (work / "corpus.txt").write_text("\n\n".join(documents) + "\n")
    bertsmith = [sys.executable, "-m", "bertsmith"]
    for name in ("tokenizer", "shards"):
        shutil.rmtree(work / name, ignore_errors=True)
    run([*bertsmith, "tokenizer", "train", str(work / "corpus.txt"), "--out", str(work / "tokenizer"),
         "--vocab-size", "90"])  # fmt: skip
    run([*bertsmith, "data", "prepare", str(work / "corpus.txt"), "--tokenizer", str(work / "tokenizer"),
         "--out", str(work / "shards")])  # fmt: skip


def chain(
    work: Path, number: int, place: tuple[str, str, int], after: float, straight: dict[str, bytes]
) -> dict:
    """One kill, one resume, one comparison."""
    out = work / f"chain-{number}"
    shutil.rmtree(out, ignore_errors=True)
    at_random = place[0] == "none"
    code = run(command(work, out, place), log=out / "log.jsonl" if at_random else None, kill_after=after)
    left = where(out)
    run([*command(work, out), *(["--resume"] if (out / "settings.yaml").exists() else [])])
    found = outcome(out)
    differing = sorted(
        name for name in found.keys() | straight.keys() if found.get(name) != straight.get(name)
    )
    kind, moment, call = place
    at = (
        f"random moment, {after:.2f} s after the first update"
        if at_random
        else f"{moment} {kind} call {call}"
    )
    shutil.rmtree(out)
    return {"at": at, "killed": code == -signal.SIGKILL, "left": left, "differing": differing}


def killed(
    work: Path, number: int, place: tuple[str, str, int], after: float, straight: dict[str, bytes]
) -> dict:
    """A chain whose random moment lies within the run: one that came after its end is tried earlier."""
    result = chain(work, number, place, after, straight)
    for _ in range(3):
        if result["killed"]:
            break
        after *= 0.8
        result = chain(work, number, place, after, straight)
    return result


def report(seed: int, results: list[dict]) -> str:
    good = sum(result["killed"] and not result["differing"] for result in results)
    kinds = Counter(
        "random moment" if result["at"].startswith("random") else f"{result['at'].split()[1]} call"
        for result in results
    )
    return "\n\n".join(
        [
            f"`python benchmarks/kill_test.py --seed {seed}`; {record.environment(1)}.",
            f"A model of 2 layers of 32, {STEPS} updates over several epochs, dropout 0.1, gradient "
            f"accumulation 2, "
            "dynamic masks, 2 workers, a checkpoint every 3 updates. After each SIGKILL the run is resumed. Log, "
            "weights, optimizer state, generator state, data position, and model equal those of an uninterrupted "
            f"run in {good} of {len(results)} cases. Killed at: "
            + ", ".join(f"{kind} {number}" for kind, number in kinds.items())
            + ".",
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--work", type=Path, default=record.WORK / "kill_test")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    work: Path = given.work
    draw = random.Random(given.seed)
    prepare(work)
    out = work / "straight"
    shutil.rmtree(out, ignore_errors=True)
    run(command(work, out))
    straight = outcome(out)
    took = json.loads((out / "report.json").read_text())["seconds"]
    plan = [(("none", "-", 0), draw.uniform(0, took)) for _ in range(10)]
    plan += [(place, 0.0) for place in places(draw)]
    results = []
    for number, (place, after) in enumerate(plan):
        result = record.run_once(
            "kill_test",
            f"seed {given.seed}, chain {number}",
            partial(killed, work, number, place, after, straight),
        )
        results.append(result)
        print(number + 1, result, flush=True)
    section = report(given.seed, results)
    record.write_section("Kill test", section)
    print(section)
    if not all(result["killed"] and not result["differing"] for result in results):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
