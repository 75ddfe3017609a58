"""Compare the training speed of this checkout with that of another one, in alternating windows.

    python benchmarks/paired_speed.py OTHER [train|finetune] [--preset bert-mini-uncased] [--side "ours, bf16"]

OTHER is the folder of the other checkout, whose own benchmarks/speed.py measures its side. Equal losses show that
both compute the same.
"""

from __future__ import annotations

import statistics
from pathlib import Path

from record import HERE, argument_parser, median_and_range, ratios
from speed import Child, add_workload_options


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("other", type=Path)
    parser.add_argument("what", nargs="?", default="train", choices=("train", "finetune"))
    parser.add_argument("--side", default="ours, bf16", help="a side of speed.py")
    add_workload_options(parser)
    options = parser.parse_args()
    checkouts = {"old": options.other.resolve(), "new": HERE.parent.resolve()}
    children = {name: Child(options.side, options, checkout) for name, checkout in checkouts.items()}
    rates: dict[str, list[float]] = {name: [] for name in children}
    try:
        losses = {name: child.ask("begin")["loss"] for name, child in children.items()}
        for child in children.values():
            child.ask("window")  # warms up
        for window in range(options.windows):
            for name in ("old", "new") if window % 2 else ("new", "old"):
                rates[name].append(children[name].ask("window")["rate"])
            print(window + 1, {name: round(values[-1]) for name, values in rates.items()}, flush=True)
    finally:
        for child in children.values():
            child.close()
    medians = ", ".join(f"{name} {statistics.median(values):,.0f}" for name, values in rates.items())
    print(f"tokens per second: {medians}")
    print(f"new / old: {median_and_range(ratios(rates['new'], rates['old']), '.3f')}")
    print(f"loss of the first batch: old {losses['old']}, new {losses['new']}")


if __name__ == "__main__":
    main()
