"""How well relations were found: SemEval-2010 task 8's official score, and micro F1 without "no relation".

A label may say a direction: `Cause-Effect(e1,e2)` and `Cause-Effect(e2,e1)` are one relation, Cause-Effect. An
answer is right where relation and direction are; of the right relation in the wrong direction, it counts as one of
this relation that is wrong. That is the official scorer's (9+1)-way evaluation with directionality taken into
account, whose macro F1 is the mean over the relations that occur in the truth, but for Other
(semeval2010_task8_scorer-v1.2.pl). scikit-learn pools no two labels that are still told apart. Micro F1 over all
but "no relation" is TACRED's (Zhang et al. 2017), and the scorer's, too, where the truth has all relations.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bertsmith.metrics.precision_recall import Counts
from bertsmith.metrics.sufficient_statistics import Rows, Tallies, count_tallies, f1, one_hot, ratio

_DIRECTION = re.compile(r"\((e1,e2|e2,e1)\)$")


@dataclass(frozen=True)
class RelationCounts(Counts):
    """Of a relation, both directions together. turned: how many of those found are wrong in direction alone."""

    turned: int = 0


def relation_of(label: str) -> str:
    """A label without its direction."""
    return _DIRECTION.sub("", label)


def has_direction(label: str) -> bool:
    """Whether a label says a direction, as SemEval's do."""
    return _DIRECTION.search(label) is not None


def count(truth: Sequence[str], guess: Sequence[str], none: str | None = None) -> dict[str, RelationCounts]:
    """Each relation's counts, by name; not those of `none`, the label that means no relation."""
    gold, found, right, turned = Counter[str](), Counter[str](), Counter[str](), Counter[str]()
    for wanted, given in zip(truth, guess, strict=True):
        gold[relation_of(wanted)] += 1
        found[relation_of(given)] += 1
        if wanted == given:
            right[relation_of(wanted)] += 1
        elif relation_of(wanted) == relation_of(given):
            turned[relation_of(wanted)] += 1
    return {
        name: RelationCounts(gold[name], found[name], right[name], turned[name])
        for name in sorted(gold.keys() | found.keys())
        if name != none
    }


def tallied(
    truth: Sequence[str], guess: Sequence[str], labels: Sequence[str], none: str | None = None
) -> Tallies:
    """Macro and micro F1, and accuracy, from each example's counts. labels: all that may be guessed."""
    names = sorted({relation_of(label) for label in (*labels, *truth)} - {none})
    ids = {name: i for i, name in enumerate(names)}
    gold, found = (
        one_hot([ids.get(relation_of(label), -1) for label in some], len(names)) for some in (truth, guess)
    )
    hits = np.array([a == b for a, b in zip(truth, guess, strict=True)], dtype=np.float64)
    more = np.stack([hits, np.ones(len(hits))], axis=1)

    def figures(right: Rows, gold: Rows, found: Rows, more: Rows) -> dict[str, Rows]:
        occurs = (gold > 0).astype(np.float64)
        return {
            "macro_f1": ratio((f1(right, gold, found) * occurs).sum(-1), occurs.sum(-1)),
            "micro_f1": f1(right.sum(-1), gold.sum(-1), found.sum(-1)),
            "accuracy": ratio(more[..., 0], more[..., 1]),
        }

    return count_tallies(gold * hits[:, None], gold, found, more, figures)


def macro_f1(relations: dict[str, RelationCounts]) -> float:
    """The mean of F1 over the relations that the truth has; 0 where it has none."""
    scores = [counts.f1 for counts in relations.values() if counts.gold]
    return sum(scores) / len(scores) if scores else 0.0


def micro_f1(relations: dict[str, RelationCounts]) -> float:
    """F1 over all relations together, those that the truth does not have among what was found."""
    whole = (
        sum(getattr(counts, name) for counts in relations.values()) for name in ("gold", "found", "right")
    )
    return Counts(*whole).f1
