"""Which size gets furthest in how many minutes? `bertsmith pretrain --minutes M --preset P`, one after the other.

    python benchmarks/learning_sizes.py [--minutes 3 10] [--threads 2]

On the encyclopedia and books of learning_hour.py, with the same held-out documents and masks. What comes of it
stands in pretraining/recipe.py: from how many tokens on `--minutes` takes which size. Sizes are tried from
the smallest on, up to the first that is far behind. Each run is kept: the script may be stopped and called again.
"""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Iterator
from functools import partial
from typing import Any

import bertsmith as bs
from bertsmith import hardware
from bertsmith.pretraining.recipe import SIZES
from bertsmith.runs.run_folder import holds_run
from learning_hour import ENGLISH, shards_of
from record import WORK, environment, load_records, markdown_table, run_once, write_section

NAME = "learning_sizes"
FAR = 0.3  # nats: where a size is so far behind, no larger one is tried in that time


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, nargs="+", default=[3, 10])
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    hardware.configure_process(options.threads)
    for minutes in sorted(options.minutes):
        for size in tried(minutes):
            run_once(NAME, key(size, minutes), partial(learnt, size, minutes, options.threads))
        report(options.threads)


def key(size: str, minutes: float) -> str:
    """Of a record."""
    return f"{size} {minutes:g}"


def tried(minutes: float) -> Iterator[str]:
    """The sizes of a time: from the smallest on, up to the first that is far behind."""
    for size in SIZES:
        yield size.name
        known = load_records(NAME)
        losses = [known[key(one.name, minutes)]["loss"] for one in SIZES if key(one.name, minutes) in known]
        if losses[-1] > min(losses) + FAR:
            return


def learnt(size: str, minutes: float, threads: int) -> dict[str, Any]:
    """One run and its figures on the held-out documents."""
    run = WORK / "sizes" / f"{size}-{minutes:g}"
    settings = [f"train.threads={threads}", "train.tensorboard=false"]
    resuming = holds_run(run)
    model = bs.pretrain(
        shards_of(ENGLISH),
        run,
        preset=size,
        minutes=minutes,
        settings=[] if resuming else settings,
        resume=resuming,
    )
    held = model.report["held_out"]
    kept = {name: model.report[name] for name in ("steps", "tokens", "seconds", "precision")}
    shutil.rmtree(run / "checkpoints", ignore_errors=True)
    return kept | {"loss": held["mlm_loss"], "nsp_accuracy": held["nsp_accuracy"]}


def report(threads: int) -> None:
    """The section of RESULTS.md, of what was measured by now."""
    rows = []
    for name, found in sorted(load_records(NAME).items(), key=lambda item: float(item[0].split()[1])):
        size, minutes = name.split()
        rows.append(
            [
                minutes,
                size,
                f"{found['tokens'] / 1e6:.2f} M",
                f"{found['loss']:.3f}",
                f"{found['nsp_accuracy']:.0%}",
                found["precision"],
            ]
        )
    columns = ["minutes", "preset", "tokens", "held-out loss", "NSP accuracy", "precision"]
    write_section(
        "Model size by time budget",
        f"""`python benchmarks/learning_sizes.py`; {environment(threads)}.

`bertsmith pretrain --minutes M --preset P` on the encyclopedia and books, vocabulary of 8,000, one seed, the same
held-out documents and masks.

{markdown_table(columns, rows)}""",
    )


if __name__ == "__main__":
    main()
