"""Entities in rows of tags, and how well they were found, counted as the CoNLL-2000 script conlleval counts them.

A tag is a prefix and a type (B-PER) or a bare prefix; the schemes are IOB1, IOB2 and IOBES, also under their other
letters (BILOU, BMES). Broken rows are read as the script reads them: an I- that goes on nothing begins an entity,
and so does any change of type. Where the script, older than IOBES, has no rule (S, and B behind E), a B or S
begins an entity and an E or S ends one, as its successors have it.

Ours, since the one library for it, seqeval, had its last release in 2020 and asks for a build of its own; these
counts equal its default mode's.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

_LETTERS = {"L": "E", "U": "S", "W": "S", "M": "I"}  # BILOU and BMES → IOBES
_TAG = re.compile(r"O|[BIESLUWM](-.*)?", re.DOTALL)


class Entity(NamedTuple):
    """Words [start, end) of a row."""

    type: str
    start: int
    end: int


@dataclass(frozen=True)
class Found:
    """How many entities there are, how many were found, and how many of these are right: type, start and end."""

    gold: int
    found: int
    right: int

    @property
    def precision(self) -> float:
        """Share of those found that are right; 0 where none was found."""
        return self.right / self.found if self.found else 0.0

    @property
    def recall(self) -> float:
        """Share of the gold ones that were found; 0 where there is none."""
        return self.right / self.gold if self.gold else 0.0

    @property
    def f1(self) -> float:
        """Harmonic mean of both."""
        return 2 * self.right / (self.gold + self.found) if self.right else 0.0


def scheme_of(rows: Iterable[Sequence[str]]) -> str | None:
    """ "iob1", "iob2" or "iobes": how entities are tagged in these rows; None for other tags (parts of speech).

    IOB2 where each entity begins with B, else IOB1, which has B only where two of a kind touch.
    """
    prefixes: set[str] = set()
    always_b = True
    for row in rows:
        before = ("O", "")
        for tag in row:
            if not _TAG.fullmatch(tag):
                return None
            now = _parted(tag)
            prefixes.add(now[0])
            always_b = always_b and (now[0] in "OB" or not _begins(before, now))
            before = now
    if prefixes & {"E", "S"}:
        return "iobes"
    if not prefixes & {"B", "I"}:
        return None
    return "iob2" if always_b else "iob1"


def entities(tags: Sequence[str]) -> list[Entity]:
    """The entities of one sentence, in order."""
    found: list[Entity] = []
    start: int | None = None
    before = ("O", "")
    for i, tag in enumerate([*tags, "O"]):
        now = _parted(tag)
        begins = _begins(before, now)
        if start is not None and (begins or now[0] == "O" or before[0] in ("E", "S")):
            found.append(Entity(before[1], start, i))
            start = None
        if begins:
            start = i
        before = now
    return found


def count(truth: Iterable[Sequence[str]], guess: Iterable[Sequence[str]]) -> dict[str, Found]:
    """Each type's counts over pairs of rows of tags, in the types' order; `total` sums them up."""
    gold: Counter[str] = Counter()
    found: Counter[str] = Counter()
    right: Counter[str] = Counter()
    for wanted, given in zip(truth, guess, strict=True):
        of_truth, of_guess = set(entities(wanted)), set(entities(given))
        gold.update(e.type for e in of_truth)
        found.update(e.type for e in of_guess)
        right.update(e.type for e in of_truth & of_guess)
    return {kind: Found(gold[kind], found[kind], right[kind]) for kind in sorted(gold | found)}


def total(types: dict[str, Found]) -> Found:
    """All types together."""
    return Found(*(sum(getattr(f, name) for f in types.values()) for name in ("gold", "found", "right")))


def _parted(tag: str) -> tuple[str, str]:
    prefix, _, kind = tag.partition("-")
    return _LETTERS.get(prefix, prefix), kind


def _begins(before: tuple[str, str], now: tuple[str, str]) -> bool:
    """Whether an entity begins with this tag."""
    prefix, kind = now
    if prefix == "O":
        return False
    return prefix in ("B", "S") or kind != before[1] or before[0] in ("O", "E", "S")
