"""K-fold: each example is held out once; strata keep their proportion, equal contents stay together.

Ours, since the folds of scikit-learn's StratifiedGroupKFold, which does the same by trial, may differ in size by
more than one example.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bertsmith import rng
from bertsmith.errors import InputError, option
from bertsmith.formatting import pluralize
from bertsmith.tasks.task import Task


def folds_of(kind: type[Task], examples: Sequence[Any], folds: int, seed: int) -> list[int]:
    """The fold of each example, 0 to folds - 1, by the seed.

    What has the same content has the same fold. Where all contents differ, the sizes of two folds differ by one
    at most, and so do the numbers of any stratum's examples in them; else a group goes where the fewest of its
    stratum are, the largest groups first. InputError where there are fewer contents than folds.
    """
    groups: dict[Any, list[int]] = {}
    for i, example in enumerate(examples):
        groups.setdefault(kind.content(example), []).append(i)
    members = list(groups.values())
    if len(members) < folds:
        different = "" if len(members) == len(examples) else f" ({len(members):,} different)"
        raise InputError(
            "folds_too_many",
            f"{pluralize(len(examples), 'example')}{different} cannot be split with {option('folds', folds)}",
            argument="folds",
            hint="use fewer folds, or add examples",
        )
    numbers: dict[Any, int] = {}  # of the strata, in the order of the file
    strata = [numbers.setdefault(kind.stratum(examples[group[0]]), len(numbers)) for group in members]
    drawn = rng.permutation(seed, "folds", len(members)).tolist()
    found, sizes = [0] * len(examples), [0] * folds
    of_stratum: dict[int, list[int]] = {number: [0] * folds for number in numbers.values()}
    for g in sorted(drawn, key=lambda g: (strata[g], -len(members[g]))):
        own = of_stratum[strata[g]]
        fold = min(range(folds), key=lambda f: (own[f], sizes[f], f))
        own[fold] += len(members[g])
        sizes[fold] += len(members[g])
        for i in members[g]:
            found[i] = fold
    return found
