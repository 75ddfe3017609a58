"""Tagging schemes for entities (IOB1, IOB2, IOBES, and its variants BILOU and BMES).

A tag is a prefix and an entity type (B-PER), or only a prefix; O is outside of entities. IOB2 starts each entity
with B. IOB1 starts an entity with B only if it directly follows another entity of the same type. IOBES, which
BILOU and BMES write with other letters, also ends each entity with E, and tags an entity of one word with S.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Literal, NamedTuple

Scheme = Literal["iob1", "iob2", "iobes"]

OUTSIDE = "O"
_IOBES_LETTERS = {"L": "E", "U": "S", "W": "S", "M": "I"}  # BILOU and BMES → IOBES
_TAG = re.compile(r"O|[BIESLUWM](-.*)?", re.DOTALL)


class SchemeViolation(NamedTuple):
    """A tag that may not follow the previous one.

    Attributes:
        position: The index of the tag's word.
        previous: The previous tag; None at the start of the sentence.
        tag: The tag; None at the end of the sentence, where an entity of IOBES may be incomplete.
    """

    position: int
    previous: str | None
    tag: str | None


def split_tag(tag: str) -> tuple[str, str]:
    """Split a tag into its prefix, in the letters of IOBES, and its type."""
    prefix, _, type_ = tag.partition("-")
    return _IOBES_LETTERS.get(prefix, prefix), type_


def infer_scheme(rows: Iterable[Sequence[str]]) -> Scheme | None:
    """Return the scheme with the fewest violations in rows of tags; None for other tags, e.g. parts of speech."""
    pairs = Counter(pair for row in rows for pair in pairwise([None, *row, None]))
    tags = {tag for pair in pairs for tag in pair if tag is not None}
    prefixes = {split_tag(tag)[0] for tag in tags}
    if not prefixes & {"B", "I", "E", "S"} or not all(map(_TAG.fullmatch, tags)):
        return None
    candidates: list[Scheme] = ["iob1", "iob2"]
    if prefixes & {"E", "S"}:
        candidates.insert(0, "iobes")

    def num_violations(scheme: Scheme) -> int:
        return sum(count for pair, count in pairs.items() if not is_allowed_transition(*pair, scheme))

    return min(candidates, key=num_violations)


def infer_letters(tags: Iterable[str]) -> dict[str, str]:
    """Return the letters that these tags use in place of those of IOBES: {"E": "L", "S": "U"} for BILOU."""
    prefixes = {tag.partition("-")[0] for tag in tags}
    return {iobes: letter for letter, iobes in _IOBES_LETTERS.items() if letter in prefixes}


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


def entity_prefixes(num_words: int, scheme: Scheme, *, touches: bool = False) -> list[str]:
    """Return the prefixes of an entity's tags.

    Args:
        num_words: The number of words of the entity.
        scheme: The tagging scheme.
        touches: True if an entity of the same type ends right before it.
    """
    if scheme == "iobes":
        return ["S"] if num_words == 1 else ["B", *"I" * (num_words - 2), "E"]
    return ["B" if touches or scheme == "iob2" else "I", *"I" * (num_words - 1)]


def format_tag(prefix: str, type_: str, letters: Mapping[str, str]) -> str:
    """Return a tag in the letters of a file (see `infer_letters`)."""
    letter = letters.get(prefix, prefix)
    return f"{letter}-{type_}" if type_ else letter
