"""Run `bertsmith pretrain --minutes 60` on the encyclopedia and books, and report the model.

    python benchmarks/learning_hour.py [--minutes 60] [--threads 2] [--all-pairs]
    python benchmarks/learning_hour.py --chinese --minutes 30

The vocabulary (8,000) and the shards are made first, and not counted. The command chooses size, batch, rates, and
schedule for this machine and time. --all-pairs also scores every minimal pair afterwards, in case the run had time
for a sample only. --chinese uses the Chinese encyclopedia, for which there are no minimal pairs. To evaluate the
model on tasks, call learning_tasks.py with WORK/hour/hour, or with WORK/chinese/chinese.
"""

from __future__ import annotations

import json
from argparse import Namespace
from pathlib import Path
from typing import Any

import bertsmith as bs
from bertsmith import hardware
from learning_tasks import MINIMAL_PAIRS
from record import DATA, WORK, argument_parser, environment, load_records, run_once, write_section

CORPORA = {"hour": ("enwiki", "books"), "chinese": ("zhwiki",)}
TITLES = {
    "hour": "An hour on the encyclopedia and books",
    "chinese": "Half an hour on the Chinese encyclopedia",
}


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--chinese", action="store_true")
    options = parser.parse_args()
    hardware.configure_process(options.threads)
    name = "chinese" if options.chinese else "hour"
    run = pretrain(name, options.minutes)
    if name == "hour":
        run_once("learning_hour", "all pairs", lambda: bs.load(run).score_pairs(MINIMAL_PAIRS))
    report(name, json.loads((run / "report.json").read_text(encoding="utf-8")), options)


def pretrain(name: str, minutes: float) -> Path:
    """Return the folder of the finished run."""
    run, shards, tokenizer = (WORK / name / part for part in (name, "shards", "tok"))
    if (run / "report.json").exists():
        return run
    texts = [str(DATA / "corpora" / f"{corpus}.txt.zst") for corpus in CORPORA[name]]
    if not (tokenizer / "training.json").exists():
        bs.train_tokenizer(texts, tokenizer, vocab_size=8_000)
    if not (shards / "manifest.json").exists():
        bs.prepare(texts, tokenizer, shards)
    resume = (run / "settings.yaml").exists()
    pairs = MINIMAL_PAIRS if name == "hour" and not resume else None
    bs.pretrain(shards, run, minutes=minutes, resume=resume, evaluate_pairs=pairs)
    return run


def report(name: str, run: dict[str, Any], options: Namespace) -> None:
    """Write the section of RESULTS.md."""
    held_out = run["held_out"]
    pairs_option, pairs_text = "", ""
    if name == "hour":
        pairs = load_records("learning_hour")["all pairs"]
        by_phenomenon = sorted(pairs["by_phenomenon"].items(), key=lambda item: -item[1]["accuracy"])
        phenomena = ", ".join(f"{key} {value['accuracy']:.1%}" for key, value in by_phenomenon)
        pairs_option = f" --evaluate-pairs {MINIMAL_PAIRS.name}"
        pairs_text = f"""
{pairs["accuracy"]:.1%} of {pairs["pairs"]:,} minimal pairs of BLiMP's development half (Warstadt et al. 2020; an
n-gram model has 61.2 % in table 3, chance is 50 %): {phenomena}."""
    write_section(
        TITLES[name],
        f"""`python benchmarks/learning_hour.py`; {environment(options.threads)}.

`bertsmith pretrain --data shards --output-dir {name} --minutes {options.minutes:g}{pairs_option}`, the
vocabulary of 8,000 trained on the same text, one seed, while other processes ran.

{run["steps"]:,} updates, {run["tokens"]:,} tokens, {run["seconds"] / 60:.1f} minutes of updates,
{run["tokens_per_second"]:,.0f} tokens per second. Held out: masked-LM loss {held_out["mlm_loss"]:.3f}
(unigram {held_out["unigram_mlm_loss"]:.3f}), NSP accuracy {held_out["nsp_accuracy"]:.1%}.
{pairs_text}""",
    )


if __name__ == "__main__":
    main()
