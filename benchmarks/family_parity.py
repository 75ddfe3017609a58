"""Each family beside the reference library: the largest difference of outputs, losses and gradients, both ways.

    PYTHONPATH=tests python benchmarks/family_parity.py

The cases and the comparison are those of the tests (tests/family_harness.py): small sizes, sequences of unlike
lengths, each class of the reference, in training (without dropout) and in evaluation. load: a folder that the
reference wrote is opened here; save: a folder that was written here is opened there.
"""

from __future__ import annotations

import tempfile
from collections import defaultdict
from pathlib import Path

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
from record import environment, markdown_table, write_section

WHATS = ("output", "loss", "gradient")


def main() -> None:
    torch.set_num_threads(1)
    worst: dict[tuple[str, str, str], float] = defaultdict(float)
    classes: dict[str, set[str]] = defaultdict(set)
    for kind in KINDS:
        case, parts = kind.values
        config = config_of(case)
        with tempfile.TemporaryDirectory() as folder:
            theirs = reference(config, parts)
            theirs.save_pretrained(Path(folder) / "theirs")
            ours = ours_at_random(config, parts)
            labels = ["a", "b", "c"] if {"classifier", "tagger"} & parts else None
            write_folder(Path(folder) / "ours", config, ours.parts, labels=labels)
            sides = {
                "load": (opened_here(read_folder(Path(folder) / "theirs"), config, parts), theirs),
                "save": (ours, opened_there(Path(folder) / "ours", config, parts)[0]),
            }
            for way, (mine, other) in sides.items():
                for train in (False, True):
                    for one in compared(mine, config, other, parts, train=train):
                        far = float((one.ours - one.theirs).detach().abs().max()) if one.ours.numel() else 0.0
                        key = (case, way, one.what)
                        worst[key] = max(worst[key], far)
        classes[case].add(type(theirs).__name__)
    families: dict[str, list[str]] = defaultdict(list)
    for case in CASES:
        families[case.replace(",", " ").split()[0]].append(case)
    rows = [
        [
            family,
            len(cases),
            sum(len(classes[case]) for case in cases),
            *(
                f"{max(worst[case, way, what] for case in cases):.1e}"
                for way in ("load", "save")
                for what in WHATS
            ),
        ]
        for family, cases in families.items()
    ]
    columns = [
        "family",
        "variants",
        "classes",
        *(f"{way}: {what}" for way in ("load", "save") for what in WHATS),
    ]
    write_section(
        "Model families against transformers",
        f"""`PYTHONPATH=tests python benchmarks/family_parity.py`; {environment(1)}.

The largest absolute difference over all variants (untied decoder, activation, sharing) and classes, in training
without dropout and in evaluation; the tests allow 1e-5. load: a folder of transformers opened by bertsmith;
save: the other way.

{markdown_table(columns, rows)}""",
    )


if __name__ == "__main__":
    main()
