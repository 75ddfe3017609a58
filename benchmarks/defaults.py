"""Which settings learn at each size: held-out masked-LM loss after the same few updates, beside word frequencies.

    python benchmarks/defaults.py [--sizes tiny mini small] [--threads 1]

Each size is pre-trained with its defaults, tiny also with the paper's and at a second rate: the same shards
(encyclopedia and books, vocabulary 8,000), updates of 32 pairs of 128 tokens, one seed. Each run is kept;
the script may be stopped and called again.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
from pathlib import Path
from typing import Any

import bertsmith as bs
import record
from record import DATA, WORK

CORPORA = {"enwiki": 40_000_000, "books": 28_000_000}  # the first bytes of each, in whole documents
UPDATES = {"tiny": 500, "mini": 400, "small": 250}
RATES = {"tiny": (1e-3, 3e-3), "mini": (5e-4,), "small": (3e-4,)}
DEVIATION = {"tiny": 0.06, "mini": 0.06, "small": 0.04}  # of the first weights
PAPER = {
    "model.initializer_range": 0.02,
    "model.hidden_dropout_prob": 0.1,
    "model.attention_probs_dropout_prob": 0.1,
    "start.positions": "normal",
    "start.output_bias": "zero",
    "data.mlm_probability": 0.15,
    "train.betas": [0.9, 0.999],
    "train.warmup": 0.1,
    "train.learning_rate": 1e-4,
}
SMALL_RUN = {
    "model.hidden_dropout_prob": 0.0,
    "model.attention_probs_dropout_prob": 0.0,
    "start.positions": "sinusoidal",
    "start.output_bias": "unigram",
    "data.mlm_probability": 0.15,
    "train.betas": [0.9, 0.98],
    "train.warmup": 0.06,
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sizes", nargs="+", default=list(UPDATES), choices=list(UPDATES))
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    shards = prepared()
    rows = [row for size in options.sizes for row in rows_of(size, shards, options.threads)]
    text = (
        f"`python benchmarks/defaults.py`; {record.environment(options.threads)}.\n\n"
        "Encyclopedia and books (68 MB), "
        "vocabulary 8,000, updates of 32 pairs of 128 tokens, 15 % masked, one seed; loss on 1 % of the "
        f"documents, held out, and that of word frequencies.\n\n{record.markdown_table(COLUMNS, rows)}"
    )
    print(text)
    record.write_section("Learning rates of small runs", text)


COLUMNS = ["size", "settings", "rate", "updates", "held-out MLM loss", "word frequencies", "NSP accuracy"]


def prepared() -> Path:
    """The shards, made once."""
    tokenizer, shards = WORK / "defaults-tokenizer", WORK / "defaults-shards"
    files = [WORK / f"defaults-{name}.txt" for name in CORPORA]
    for file, (name, size) in zip(files, CORPORA.items(), strict=True):
        if not file.exists():
            with subprocess.Popen(
                ["zstd", "-dc", DATA / "corpora" / f"{name}.txt.zst"], stdout=subprocess.PIPE
            ) as whole:
                assert whole.stdout is not None
                text = whole.stdout.read(size)
                whole.kill()
            file.write_bytes(text[: text.rindex(b"\n\n") + 1])
    if not (tokenizer / "training.json").exists():
        bs.train_tokenizer(files, tokenizer, vocab_size=8_000)
    if not (shards / "manifest.json").exists():
        bs.prepare(files, tokenizer, shards)
    return shards


def rows_of(size: str, shards: Path, threads: int) -> list[list[str]]:
    """One line for each way to train a model of this size."""
    ways: list[tuple[str, dict[str, Any]]] = [("the paper's", PAPER)] if size == "tiny" else []
    for rate in RATES[size]:
        own = {"model.initializer_range": DEVIATION[size], "train.learning_rate": rate}
        ways.append(("a small run's", SMALL_RUN | own))
    rows = []
    for name, settings in ways:
        held = record.run_once(
            "defaults",
            f"{size} {UPDATES[size]} {sorted(settings.items())}",
            lambda settings=settings: measured(size, settings, shards, threads),
        )
        row = [size, name, f"{settings['train.learning_rate']:g}", str(UPDATES[size])]
        row += [f"{held[k]:.3f}" for k in ("mlm_loss", "unigram_mlm_loss", "nsp_accuracy")]
        print(*row, flush=True)
        rows.append(row)
    return rows


def measured(size: str, settings: dict[str, Any], shards: Path, threads: int) -> dict[str, float]:
    """The held-out figures at the end of a run."""
    run = WORK / "defaults-run"
    shutil.rmtree(run, ignore_errors=True)
    usual = {
        "train.max_steps": UPDATES[size],
        "train.threads": threads,
        "train.precision": "fp32",
        "train.tensorboard": False,
        "data.validation_split": 0.01,
    }
    assignments = [f"{name}={value}" for name, value in (usual | settings).items()]
    held: dict[str, float] = bs.pretrain(
        shards, run, preset=f"bert-{size}-uncased", settings=assignments
    ).report["held_out"]
    return held


if __name__ == "__main__":
    main()
