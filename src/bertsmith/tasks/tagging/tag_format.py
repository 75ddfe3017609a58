"""Spellings of tags: files with another separator, order, or case (B_PER, PER-B, b-per) are read as B-PER."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from functools import cache
from typing import NamedTuple

from bertsmith.metrics.tagging import OUTSIDE

STANDARD = "B-TYPE"
_SEPARATORS = "-_:./|+~#@ –—‐‑－＿："
_FORMATS = tuple(f"{a}{s}{b}" for a, b in (("B", "TYPE"), ("TYPE", "B")) for s in _SEPARATORS)
OUTSIDE_TYPOS = frozenset("o0ОΟＯ〇")
"""Digits and letters of other scripts that are read as O beside tags with prefixes."""
_OUTSIDE_SIGNS = ("_", "-", "--", "*", "X", "OUT", "OTHER", "NONE", "Other", "None", "other", "none")


class Spelling(NamedTuple):
    """The spelling of a file's tags: their format, the tags that mean O, and the tags that are in neither."""

    tag_format: str
    outside: list[str]
    others: list[str]


@cache
def _pattern(tag_format: str) -> re.Pattern[str]:
    """Return the pattern of tags with a prefix; those without a type (B) are in all formats."""
    separator, prefix = (
        re.escape(tag_format.strip("BbTYPE")),
        "[BIESLUWM]" if "B" in tag_format else "[bieslumw]",
    )
    if tag_format.startswith("TYPE"):
        return re.compile(f"((?P<type>.+){separator})?(?P<prefix>{prefix})", re.DOTALL)
    return re.compile(f"(?P<prefix>{prefix})({separator}(?P<type>.*))?", re.DOTALL)


def read_tag(tag: str, tag_format: str, outside: Collection[str] = ()) -> str:
    """Return a tag of a file as B-TYPE; the same for a tag that is not in the format.

    Args:
        tag: The tag.
        tag_format: The format, such as "B-TYPE", "TYPE_B", or "b:TYPE".
        outside: Tags that are read as O.
    """
    tag = tag.strip()
    if tag in outside:
        return OUTSIDE
    if tag_format == STANDARD or (match := _pattern(tag_format).fullmatch(tag)) is None:
        return tag
    prefix, type_ = match["prefix"].upper(), match["type"]
    return prefix if type_ is None else f"{prefix}-{type_}"


def infer_spelling(tags: Iterable[str]) -> Spelling | None:
    """Return the spelling of most of a file's tags; None for tags without prefixes, such as parts of speech."""
    tags = {tag.strip() for tag in tags}
    outside = sorted(tags & OUTSIDE_TYPOS)
    if not outside and OUTSIDE not in tags:
        outside = [sign for sign in _OUTSIDE_SIGNS if sign in tags][:1]
    tags -= {OUTSIDE, *outside}
    best: Spelling | None = None
    for tag_format in (*_FORMATS, *(name.replace("B", "b") for name in _FORMATS)):
        matches = {tag: _pattern(tag_format).fullmatch(tag) for tag in tags}
        prefixes = {match["prefix"].upper() for match in matches.values() if match and match["type"]}
        others = sorted(tag for tag, match in matches.items() if match is None)
        # A set of other tags has no prefixes; single letters alone (b, m, e, s) are prefixes if all tags are.
        is_format = prefixes & set("BISUW") if others or len(tags) < 2 else True
        is_likely = tag_format == STANDARD or 2 * len(others) < len(tags)
        if is_format and is_likely and (best is None or len(others) < len(best.others)):
            best = Spelling(tag_format, outside, others)
    return best
