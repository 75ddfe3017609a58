"""Compare the weights of equal commands beside 0, 1, 2, and 4 busy processes.

    python benchmarks/same_model.py [--busy 0 1 2 4] [--repeats 3] [--threads 1 …]

Pre-training, classification, and tagging are started as commands, with one seed and no setting of threads,
precision, or kernels; --threads adds runs with those. Each command is a process of its own.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from argparse import Namespace
from functools import partial
from typing import Any

import finetune_defaults
import record
from busy import busy_processes

NAME = "same_model"
FOLDER = record.WORK / "same_model"
NUM_ROWS, NUM_LINES = 200, 2_000


def main() -> None:
    parser = record.argument_parser(__doc__)
    parser.add_argument("--busy", type=int, nargs="+", default=(0, 1, 2, 4))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, nargs="+", default=())
    options = parser.parse_args()
    commands = make_commands()
    for repeat in range(options.repeats):
        for busy in options.busy:
            for name in commands:
                measure_cell(commands, name, busy, None, repeat)
    for threads in options.threads:
        for name in commands:
            measure_cell(commands, name, 0, threads, 0)
    report(options)


def measure_cell(
    commands: dict[str, list[str]], name: str, busy: int, threads: int | None, repeat: int
) -> None:
    key = f"{name} {busy} {threads or 'default'} {repeat}; {record.machine_name()}"
    print(key, record.run_once(NAME, key, partial(train, commands[name], busy, threads)), flush=True)


def make_commands() -> dict[str, list[str]]:
    """Return the commands by name, and write the files that they read."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    corpus, vocabulary = FOLDER / "corpus.txt", FOLDER / "tokenizer"
    if not corpus.exists():
        lines = (record.DATA / "corpora" / "sample" / "english.txt").read_text(encoding="utf-8").split("\n")
        corpus.write_text("\n".join(lines[:NUM_LINES]), encoding="utf-8")
    if not vocabulary.exists():
        run("tokenizer", "train", str(corpus), "--output-dir", str(vocabulary), "--vocab-size", "4000")
    if not (FOLDER / "shards").exists():
        run(
            "data",
            "prepare",
            str(corpus),
            "--tokenizer",
            str(vocabulary),
            "--output-dir",
            f"{FOLDER / 'shards'}",
        )
    pretrain = ["pretrain", "--data", f"{FOLDER / 'shards'}", "--preset", "bert-tiny-uncased"]
    commands = {"pretrain": [*pretrain, "--set", "train.max_steps=12"]}
    for verb, data in (("classify", "sst2"), ("tag", "conll2003")):
        train_file, validation_file = finetune_defaults.write_files(data, NUM_ROWS, seed=0)
        line = ["finetune", verb, "--model", "bert-mini-uncased-en", "--train", f"{train_file}"]
        commands[f"finetune {verb}"] = [
            *line,
            "--validation",
            f"{validation_file}",
            "--set",
            "train.max_steps=12",
        ]
    return commands


def train(command: list[str], busy: int, threads: int | None) -> dict[str, Any]:
    """Run a command beside busy processes; return the SHA-256 of its weights."""
    out = FOLDER / "run"
    own = ["--set", f"train.threads={threads}"] if threads else []
    shutil.rmtree(out, ignore_errors=True)
    with busy_processes(busy):
        run(*command, *own, "--output-dir", str(out), "--set", "train.report_to=none")
    return {"sha256": hashlib.sha256((out / "model" / "model.safetensors").read_bytes()).hexdigest()}


def run(*arguments: str) -> None:
    variables = ("OMP_NUM_THREADS", "NUMBA_NUM_THREADS")
    environment = {name: value for name, value in os.environ.items() if name not in variables}
    line = [sys.executable, "-P", "-m", "bertsmith", *arguments]
    subprocess.run(line, check=True, env=environment, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)


def report(options: Namespace) -> None:
    """Write the section of RESULTS.md from the records of all machines."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for key, value in record.load_records(NAME).items():
        cell, machine = key.split("; ")
        name, busy, threads, _ = cell.rsplit(" ", 3)
        groups.setdefault((machine, name, threads), []).append(f"{busy}:{value['sha256'][:12]}")
    rows = []
    for (machine, name, threads), cells in groups.items():
        hashes = sorted({cell.split(":")[1] for cell in cells})
        busy = sorted({int(cell.split(":")[0]) for cell in cells})
        rows.append([machine, name, threads, ", ".join(map(str, busy)), len(cells), ", ".join(hashes)])
    record.write_section(
        "The same command, the same model",
        f"""`python benchmarks/same_model.py`; {record.versions()}.

Twelve updates each; the first digits of all SHA-256 sums of the weights.

{record.markdown_table(["machine", "command", "threads", "busy processes", "runs", "SHA-256"], rows)}""",
    )


if __name__ == "__main__":
    main()
