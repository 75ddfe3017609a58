"""Schemes of tags for entities: IOB1, IOB2, IOBES, under their letters; which tag may follow which.

A tag is a prefix and a type (B-PER) or a bare prefix, and O is outside. IOB2 begins each entity with B; IOB1
only one that touches another of its type; IOBES (also written BILOU or BMES) has E at its end and S for one
word.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Literal, NamedTuple

Scheme = Literal["iob1", "iob2", "iobes"]

OUTSIDE = "O"
_LETTERS = {"L": "E", "U": "S", "W": "S", "M": "I"}  # BILOU and BMES → IOBES
_TAG = re.compile(r"O|[BIESLUWM](-.*)?", re.DOTALL)


class Break(NamedTuple):
    """A tag that may not be behind the one before it: of a row, word `at` (or its end, where `tag` is None)."""

    at: int
    before: str | None
    tag: str | None


def parted(tag: str) -> tuple[str, str]:
    """A tag's prefix, in the letters of IOBES, and its type."""
    prefix, _, kind = tag.partition("-")
    return _LETTERS.get(prefix, prefix), kind


def scheme_of(rows: Iterable[Sequence[str]]) -> Scheme | None:
    """The scheme that these rows break least often (most often never); None for other tags (parts of speech)."""
    pairs = Counter(pair for row in rows for pair in pairwise([None, *row, None]))
    tags = {tag for pair in pairs for tag in pair if tag is not None}
    prefixes = {parted(tag)[0] for tag in tags}
    if not prefixes & {"B", "I", "E", "S"} or not all(map(_TAG.fullmatch, tags)):
        return None
    possible: list[Scheme] = ["iob1", "iob2"]
    if prefixes & {"E", "S"}:
        possible.insert(0, "iobes")

    def breaks(scheme: Scheme) -> int:
        return sum(times for pair, times in pairs.items() if not allowed(*pair, scheme))

    return min(possible, key=breaks)


def letters_of(tags: Iterable[str]) -> dict[str, str]:
    """The letters that stand for those of IOBES in these tags: {"E": "L", "S": "U"} of BILOU."""
    prefixes = {tag.partition("-")[0] for tag in tags}
    return {ours: theirs for theirs, ours in _LETTERS.items() if theirs in prefixes}


def allowed(before: str | None, tag: str | None, scheme: Scheme) -> bool:
    """Whether a tag may follow another one; None: the sentence's border."""
    (last, of_last), (prefix, kind) = ((OUTSIDE, "") if one is None else parted(one) for one in (before, tag))
    goes_on = last in ("B", "I") and of_last == kind
    if scheme == "iob2":
        return prefix in (OUTSIDE, "B") or (prefix == "I" and goes_on)
    if scheme == "iob1":
        return prefix in (OUTSIDE, "I") or (prefix == "B" and goes_on)
    return goes_on if prefix in ("I", "E") else last not in ("B", "I")


def breaks_of(tags: Sequence[str], scheme: Scheme) -> list[Break]:
    """Where a row of tags breaks a scheme."""
    pairs = enumerate(pairwise([None, *tags, None]))
    return [Break(i, *pair) for i, pair in pairs if not allowed(*pair, scheme)]


def spelt(size: int, scheme: Scheme, *, touches: bool = False) -> list[str]:
    """The prefixes of an entity of `size` words. touches: one of its type ends right before it."""
    if scheme == "iobes":
        return ["S"] if size == 1 else ["B", *"I" * (size - 2), "E"]
    return ["B" if touches or scheme == "iob2" else "I", *"I" * (size - 1)]


def tag_of(prefix: str, kind: str, letters: Mapping[str, str]) -> str:
    """A tag in a file's own letters (`letters_of`)."""
    letter = letters.get(prefix, prefix)
    return f"{letter}-{kind}" if kind else letter
