"""Measure the largest differences of outputs, losses, and gradients of each model family from transformers.

    PYTHONPATH=tests python benchmarks/family_parity.py

The cases and the comparison are those of the tests (tests/family_harness.py): small sizes, sequences of different
lengths, each class of the reference, in training (without dropout) and in evaluation. load: a folder that
transformers wrote is opened by bertsmith. save: the other way.
"""

from __future__ import annotations

import tempfile
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import torch

from bertsmith.artifacts.folder import read_folder, write_folder
from family_harness import (
    CASES,
    KINDS,
    compared,
    config_of,
    opened_here,
    opened_there,
    ours_at_random,
    reference,
)
from record import section, table, where

COLUMNS = [
    f"{direction}: {what}" for direction in ("load", "save") for what in ("output", "loss", "gradient")
]


def main() -> None:
    torch.set_num_threads(1)
    differences: dict[str, dict[str, float]] = defaultdict(lambda: dict.fromkeys(COLUMNS, 0.0))
    classes: dict[str, set[tuple[str, str]]] = defaultdict(set)
    cases: list[Any] = [kind.values for kind in KINDS]
    for case, parts in cases:
        name, largest = compare(case, parts)
        family = family_name(case)
        classes[family].add((case, name))
        differences[family] = {key: max(value, largest[key]) for key, value in differences[family].items()}
    variants = Counter(map(family_name, CASES))
    rows = [
        [family, variants[family], len(classes[family]), *(f"{largest[key]:.1e}" for key in COLUMNS)]
        for family, largest in differences.items()
    ]
    section(
        "Model families against transformers",
        f"""`PYTHONPATH=tests python benchmarks/family_parity.py`; {where(1)}.

The largest absolute difference over all variants (untied decoder, activation, sharing) and classes, in training
without dropout and in evaluation; the tests allow 1e-5. load: a folder of transformers opened by bertsmith;
save: the other way.

{table(["family", "variants", "classes", *COLUMNS], rows)}""",
    )


def family_name(case: str) -> str:
    return case.replace(",", " ").split()[0]


def compare(case: str, parts: frozenset[str]) -> tuple[str, dict[str, float]]:
    """Return the reference's class and the largest differences by column, in both directions."""
    config, largest = config_of(case), dict.fromkeys(COLUMNS, 0.0)
    labels = ["a", "b", "c"] if {"classifier", "tagger"} & parts else None
    with tempfile.TemporaryDirectory() as folder:
        theirs_path, ours_path = Path(folder) / "theirs", Path(folder) / "ours"
        theirs: Any = reference(config, parts)
        theirs.save_pretrained(theirs_path)
        ours = ours_at_random(config, parts)
        write_folder(ours_path, config, ours.parts, labels=labels)
        models = {
            "load": (opened_here(read_folder(theirs_path), config, parts), theirs),
            "save": (ours, opened_there(ours_path, config, parts)[0]),
        }
    for direction, (mine, other) in models.items():
        for train in (False, True):
            for pair in compared(mine, config, other, parts, train=train):
                if pair.ours.numel():
                    column = f"{direction}: {pair.what}"
                    difference = float((pair.ours - pair.theirs).detach().abs().max())
                    largest[column] = max(largest[column], difference)
    return type(theirs).__name__, largest


if __name__ == "__main__":
    main()
