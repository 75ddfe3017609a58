"""Tagging schemes for entities (IOB1, IOB2, IOBES, and its variants BILOU and BMES).

A tag is a prefix and a type (B-PER) or only a prefix; O is outside. IOB2 starts each entity with B; IOB1 only one
that touches another of its type; IOBES (also written BILOU or BMES) ends each with E, and uses S for one word.
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


class SchemeViolation(NamedTuple):
    """A tag that may not follow the one before it, at word `at`; `tag` is None at the end of the sentence."""

    position: int
    previous: str | None
    tag: str | None


def split_tag(tag: str) -> tuple[str, str]:
    """Split a tag into its prefix, in the letters of IOBES, and its type."""
    prefix, _, type_ = tag.partition("-")
    return _LETTERS.get(prefix, prefix), type_


def infer_scheme(rows: Iterable[Sequence[str]]) -> Scheme | None:
    """Return the scheme with the fewest violations in these rows; None for other tags (parts of speech)."""
    pairs = Counter(pair for row in rows for pair in pairwise([None, *row, None]))
    tags = {tag for pair in pairs for tag in pair if tag is not None}
    prefixes = {split_tag(tag)[0] for tag in tags}
    if not prefixes & {"B", "I", "E", "S"} or not all(map(_TAG.fullmatch, tags)):
        return None
    possible: list[Scheme] = ["iob1", "iob2"]
    if prefixes & {"E", "S"}:
        possible.insert(0, "iobes")

    def num_violations(scheme: Scheme) -> int:
        return sum(times for pair, times in pairs.items() if not is_allowed_transition(*pair, scheme))

    return min(possible, key=num_violations)


def infer_letters(tags: Iterable[str]) -> dict[str, str]:
    """Return the letters that these tags use in place of those of IOBES: {"E": "L", "S": "U"} for BILOU."""
    prefixes = {tag.partition("-")[0] for tag in tags}
    return {iobes: letter for letter, iobes in _LETTERS.items() if letter in prefixes}


def is_allowed_transition(previous: str | None, tag: str | None, scheme: Scheme) -> bool:
    """Return True if a tag may follow another; None is the start or end of the sentence."""
    previous_prefix, previous_type = (OUTSIDE, "") if previous is None else split_tag(previous)
    prefix, type_ = (OUTSIDE, "") if tag is None else split_tag(tag)
    continues = previous_prefix in ("B", "I") and previous_type == type_
    if scheme == "iob2":
        return prefix in (OUTSIDE, "B") or (prefix == "I" and continues)
    if scheme == "iob1":
        return prefix in (OUTSIDE, "I") or (prefix == "B" and continues)
    return continues if prefix in ("I", "E") else previous_prefix not in ("B", "I")


def find_violations(tags: Sequence[str], scheme: Scheme) -> list[SchemeViolation]:
    """Return the violations of a scheme in a row of tags."""
    pairs = enumerate(pairwise([None, *tags, None]))
    return [SchemeViolation(i, *pair) for i, pair in pairs if not is_allowed_transition(*pair, scheme)]


def entity_prefixes(size: int, scheme: Scheme, *, touches: bool = False) -> list[str]:
    """Return the prefixes of an entity of `size` words; touches: one of its type ends right before it."""
    if scheme == "iobes":
        return ["S"] if size == 1 else ["B", *"I" * (size - 2), "E"]
    return ["B" if touches or scheme == "iob2" else "I", *"I" * (size - 1)]


def format_tag(prefix: str, type_: str, letters: Mapping[str, str]) -> str:
    """Return a tag in the letters of a file (see `letters_of`)."""
    letter = letters.get(prefix, prefix)
    return f"{letter}-{type_}" if type_ else letter
