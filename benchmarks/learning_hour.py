"""An hour of `bertsmith pretrain --minutes 60` on the encyclopedia and books: what the model is when it is over.

    python benchmarks/learning_hour.py [--minutes 60] [--threads 2] [--all-pairs]

The vocabulary (8,000) and the shards are made first, and not counted. Size, batch, rates and schedule are what the
command chooses for this machine and time. --all-pairs: also score every minimal pair afterwards, where the run had
time for some alone. What it is worth on tasks: learning_tasks.py WORK/hour/hour.
"""

from __future__ import annotations

import argparse
import json
from functools import partial
from typing import Any

import bertsmith as bs
from bertsmith import machine
from record import DATA, WORK, once, recorded, section, table, where

TEXTS = [str(DATA / "corpora" / f"{name}.txt.zst") for name in ("enwiki", "books")]
PAIRS = DATA / "minimal_pairs" / "blimp_dev.jsonl.zst"
FOLDER = WORK / "hour"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--all-pairs", action="store_true")
    options = parser.parse_args()
    machine.prepare_process(options.threads)
    run = FOLDER / "hour"
    if not (run / "report.json").exists():
        tokenizer, shards = FOLDER / "tok", FOLDER / "shards"
        if not (tokenizer / "training.json").exists():
            bs.train_tokenizer(TEXTS, tokenizer, vocab_size=8_000)
        if not (shards / "manifest.json").exists():
            bs.prepare(TEXTS, tokenizer, shards)
        resuming = (run / "settings.yaml").exists()
        asked: dict[str, Any] = {} if resuming else {"evaluate_pairs": PAIRS}
        bs.pretrain(shards, run, minutes=options.minutes, resume=resuming, tell=print, **asked)
    if options.all_pairs:
        once("learning_hour", "all pairs", partial(bs.load(run).score_pairs, PAIRS))
    report(json.loads((run / "report.json").read_text(encoding="utf-8")), options)


def report(found: dict[str, Any], options: argparse.Namespace) -> None:
    """The section of RESULTS.md."""
    held = found["held_out"]
    pairs = recorded("learning_hour").get("all pairs") or found["pairs"]
    rows = [
        ["updates", f"{found['steps']:,}"],
        ["tokens", f"{found['tokens']:,}"],
        ["minutes of updates", f"{found['seconds'] / 60:.1f}"],
        ["tokens a second", f"{found['tokens_per_second']:,.0f}"],
        ["held-out masked-LM loss", f"{held['mlm_loss']:.3f}"],
        ["that of word frequencies", f"{held['unigram_mlm_loss']:.3f}"],
        ["pairs of sentences", f"{held['nsp_accuracy']:.1%}"],
        [f"minimal pairs ({pairs['pairs']:,})", f"{pairs['accuracy']:.1%}"],
    ]
    phenomena = [
        [name, f"{one['pairs']:,}", f"{one['accuracy']:.1%}"]
        for name, one in sorted(pairs["by_phenomenon"].items(), key=lambda item: -item[1]["accuracy"])
    ]
    section(
        "An hour on the encyclopedia and books",
        f"""`python benchmarks/learning_hour.py`; {where(options.threads)}.

`bertsmith pretrain --data shards --out hour --minutes {options.minutes:g} --evaluate-pairs
blimp_dev.jsonl.zst`, the vocabulary of 8,000 trained on the same text, one seed; the machine had
other work to do as well.

{table(["", "figure"], rows)}

Minimal pairs of BLiMP's development half (Warstadt et al. 2020), whose paper gives an n-gram model 61.2 %;
chance is 50 %. By phenomenon:

{table(["phenomenon", "pairs", "accuracy"], phenomena)}""",
    )


if __name__ == "__main__":
    main()
