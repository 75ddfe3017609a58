"""Five families on one task, by one changed name: scores, sizes, speed, and memory.

    python examples/families.py                   # small models, pre-trained on these pages first
    python examples/families.py bert-base-uncased roberta-base distilbert-base-uncased albert-base-v2 \\
        electra-base-discriminator --train train.csv

A name is a run, a model folder, or a published model. With --pretrain, a name is a preset, of which a model is
pre-trained on the same text for the same number of updates. DistilBERT is distilled from the first model.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import bertsmith as bs

ROOT = Path(__file__).parents[1]
SAMPLE = ROOT / "examples" / "data" / "emotions.csv"
PRESETS = [
    "bert-mini-uncased",
    "roberta-mini",
    "distilbert-mini-uncased",
    "albert-mini",
    "electra-mini-discriminator",
]
REPEATS = 20


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", help="models; without names, presets to pre-train")
    parser.add_argument("--pretrain", type=Path, help="text; default without names: the documentation")
    parser.add_argument("--steps", type=int, default=200, help="updates of pre-training")
    parser.add_argument("--train", type=Path, default=SAMPLE, help="a table with the columns text and label")
    parser.add_argument("--epochs", type=float, help="default: by the number of examples")
    parser.add_argument("--output-dir", type=Path, default=Path("families"))
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measure(options.measure, options.train)))
        return
    names, text = options.names or PRESETS, options.pretrain or (None if options.names else ROOT / "docs")
    rows = []
    for name in names:
        out = options.output_dir / Path(name).name
        teacher = options.output_dir / names[0] / "bert"
        model = pretrain(name, teacher, text, options.output_dir, options.steps) if text else name
        run = bs.finetune(
            "classify",
            model,
            out / "run",
            train=options.train,
            test_split=0.2,
            validation_split=0.1,
            num_train_epochs=options.epochs,
            overwrite=True,
        )
        # In a process of its own, whose peak memory is this model's.
        command = [sys.executable, __file__, "--measure", out / "run", "--train", options.train]
        output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        training = next(step for step in run.report["wall_time"] if step["step"] == "training")
        train_settings = run.report["settings"]["train"]
        epochs = run.report["steps"] * train_settings["batch_size"] / run.report["train_examples"]
        rows.append(
            {
                "model": Path(name).name,
                "accuracy": run.report["test"]["accuracy"],
                "million parameters": run.info()["parameters"] / 1e6,
                "s per epoch": training["seconds"] / epochs,
                **json.loads(output),
            }
        )
    (options.output_dir / "families.json").write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    print_table(rows)
    baselines = ", ".join(
        f"{name} {values['accuracy']:.3f}" for name, values in run.report["baselines"].items()
    )
    print(f"Test accuracy on {run.report['test']['examples']} examples, one seed.")
    print(f"On the {run.report['validation']['examples']} validation examples: {baselines}.")
    by_family = {row["model"].partition("-")[0]: row for row in rows}
    if {"bert", "distilbert"} <= set(by_family):
        student, bert = by_family["distilbert"], by_family["bert"]
        size, delay, score = (
            student[key] / bert[key] for key in ("million parameters", "ms per text", "accuracy")
        )
        print(
            f"DistilBERT has {score:.0%} of the accuracy of BERT here, {size:.0%} of its parameters, and "
            f"{delay:.2f} of its time. The paper: "
            "97 % of BERT base's GLUE average, 60 % of its parameters, 0.61 of its time (Sanh et al. 2019, "
            "tables 1 and 3)."
        )


def pretrain(preset: str, teacher: Path, text: Path, folder: Path, steps: int) -> Path:
    """Pre-train a model of a preset, or distill it from a teacher, on a text, and return its folder."""
    if preset.startswith("distilbert"):  # reads its teacher's tokens
        bs.distill(
            teacher.parent / "shards", folder / preset / "bert", teacher, max_steps=steps, overwrite=True
        )
        return folder / preset / "bert"
    kind: Any = {"roberta": "byte_level_bpe", "albert": "unigram"}.get(preset.partition("-")[0], "wordpiece")
    out = folder / preset
    tokenizer = bs.train_tokenizer(text, out / "tokenizer", kind=kind, vocab_size=4_000, overwrite=True)
    shards = bs.prepare(text, tokenizer, out / "shards", overwrite=True)
    bs.pretrain(shards, out / "bert", preset=preset, max_steps=steps, overwrite=True)
    return out / "bert"


def measure(run: Path, table: Path) -> dict[str, float]:
    """Return latency, throughput, and peak memory of a model in this process."""
    model = bs.load(run)
    texts = [line.rpartition(",")[0] for line in table.read_text(encoding="utf-8").splitlines()[1:]]
    model.predict(texts[0])
    times = []
    for text in texts[:REPEATS]:
        start = time.perf_counter()
        model.predict(text)
        times.append(time.perf_counter() - start)
    start = time.perf_counter()
    tokens = sum(prediction.tokens or 0 for prediction in model.predict(texts))
    seconds = time.perf_counter() - start
    status = Path("/proc/self/status")  # on Linux; ru_maxrss includes the process that started this one
    peak = re.search(r"VmHWM:\s+(\d+) kB", status.read_text()) if status.exists() else None
    return {
        "ms per text": 1000 * statistics.median(times),
        "tokens per s": tokens / seconds,
        "peak MiB": int(peak[1]) / 1024 if peak else float("nan"),
    }


def print_table(rows: list[dict[str, Any]]) -> None:
    """Print rows of numbers below their names."""
    print("  ".join(f"{name:>14}" if i else f"{name:26}" for i, name in enumerate(rows[0])))
    for row in rows:
        cells = (
            f"{value:26}" if isinstance(value, str) else f"{value:>{max(14, len(name))}.3f}"
            for name, value in row.items()
        )
        print("  ".join(cells))


if __name__ == "__main__":
    main()
