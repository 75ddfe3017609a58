"""An hour of `bertsmith pretrain --minutes 60` on the encyclopedia and books: what the model is when it is over.

    python benchmarks/learning_hour.py [--minutes 60] [--threads 2] [--all-pairs]
    python benchmarks/learning_hour.py --chinese --minutes 30

The vocabulary (8,000) and the shards are made first, and not counted. Size, batch, rates and schedule are what the
command chooses for this machine and time. --all-pairs: also score every minimal pair afterwards, where the run had
time for some alone. --chinese: on the Chinese encyclopedia instead, for which there are no minimal pairs. What it
is worth on tasks: learning_tasks.py WORK/hour/hour, or WORK/chinese/chinese with Chinese ones.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import bertsmith as bs
from bertsmith import hardware
from record import DATA, WORK, environment, load_records, run_once, write_section

PAIRS = DATA / "minimal_pairs" / "blimp_dev.jsonl.zst"


@dataclass(frozen=True)
class Text:
    """What is learnt from. folder: of the run and all it needs; pairs: whether there are minimal pairs for it."""

    folder: str
    corpora: tuple[str, ...]
    title: str
    pairs: bool


ENGLISH = Text("hour", ("enwiki", "books"), "An hour on the encyclopedia and books", True)
CHINESE = Text("chinese", ("zhwiki",), "Half an hour on the Chinese encyclopedia", False)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--all-pairs", action="store_true")
    parser.add_argument("--chinese", action="store_true")
    options = parser.parse_args()
    hardware.configure_process(options.threads)
    text = CHINESE if options.chinese else ENGLISH
    run = learnt(text, options.minutes)
    if options.all_pairs and text.pairs:
        run_once("learning_hour", "all pairs", partial(bs.load(run).score_pairs, PAIRS))
    report(text, json.loads((run / "report.json").read_text(encoding="utf-8")), options)


def learnt(text: Text, minutes: float) -> Path:
    """The run's folder, when it is finished."""
    run = WORK / text.folder / text.folder
    if (run / "report.json").exists():
        return run
    shards = shards_of(text)
    resuming = (run / "settings.yaml").exists()
    asked: dict[str, Any] = {"evaluate_pairs": PAIRS} if text.pairs and not resuming else {}
    bs.pretrain(shards, run, minutes=minutes, resume=resuming, **asked)
    return run


def shards_of(text: Text) -> Path:
    """What is learnt from, prepared."""
    tokenizer, shards = WORK / text.folder / "tok", WORK / text.folder / "shards"
    texts = [str(DATA / "corpora" / f"{name}.txt.zst") for name in text.corpora]
    if not (tokenizer / "training.json").exists():
        bs.train_tokenizer(texts, tokenizer, vocab_size=8_000)
    if not (shards / "manifest.json").exists():
        bs.prepare(texts, tokenizer, shards)
    return shards


def report(text: Text, found: dict[str, Any], options: argparse.Namespace) -> None:
    """The section of RESULTS.md."""
    held = found["held_out"]
    figures = (
        f"{found['steps']:,} updates, {found['tokens']:,} tokens, {found['seconds'] / 60:.1f} minutes of updates, "
        f"{found['tokens_per_second']:,.0f} tokens per second. Held out: masked-LM loss {held['mlm_loss']:.3f} "
        f"(word frequencies {held['unigram_mlm_loss']:.3f}), NSP accuracy {held['nsp_accuracy']:.1%}."
    )
    asked, of_pairs = "", ""
    if text.pairs:
        pairs = load_records("learning_hour").get("all pairs") or found["pairs"]
        by_phenomenon = sorted(pairs["by_phenomenon"].items(), key=lambda item: -item[1]["accuracy"])
        phenomena = ", ".join(f"{name} {one['accuracy']:.1%}" for name, one in by_phenomenon)
        asked = " --evaluate-pairs blimp_dev.jsonl.zst"
        of_pairs = f"""
{pairs["accuracy"]:.1%} of {pairs["pairs"]:,} minimal pairs of BLiMP's development half (Warstadt et al. 2020; an
n-gram model has 61.2 %, chance is 50 %): {phenomena}."""
    write_section(
        text.title,
        f"""`python benchmarks/learning_hour.py`; {environment(options.threads)}.

`bertsmith pretrain --data shards --out {text.folder} --minutes {options.minutes:g}{asked}`, the
vocabulary of 8,000 trained on the same text, one seed, beside other processes.

{figures}
{of_pairs}""",
    )


if __name__ == "__main__":
    main()
