"""Character checks of a corpus: unwanted characters, mojibake, categories, and scripts."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np

from bertsmith.corpus.checks.document_window import DocumentWindow
from bertsmith.corpus.checks.histogram import Occurrences, printable
from bertsmith.corpus.near_duplicates import code_points
from bertsmith.io.encodings import find_mojibake

_NUM_CODE_POINTS = 0x110000
CHARACTER_CLASSES = {
    "NUL characters": "\0",
    "control characters": "\x01-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f",
    "lone carriage returns": "\r",
    "replacement characters (U+FFFD)": "\ufffd",
    "byte order marks inside the text (U+FEFF)": "\ufeff",
    "line and paragraph separators (U+2028, U+2029)": "\u2028\u2029",
    "half characters (lone surrogates)": "\ud800-\udfff",
    "noncharacters": "\ufdd0-\ufdef"
    + "".join(chr(plane + 0xFFFE) + chr(plane + 0xFFFF) for plane in range(0, _NUM_CODE_POINTS, 1 << 16)),
    "private-use characters": "\ue000-\uf8ff\U000f0000-\U000ffffd\U00100000-\U0010fffd",
    "invisible marks (zero-width, direction, soft hyphen)": "\xad\u200b\u200e\u200f\u202a-\u202e\u2060-\u2064"
    "\u2066-\u2069",
}
"""The classes of characters that are reported, by name, each for a character class of a regular expression."""
_UNWANTED = re.compile(f"[{''.join(CHARACTER_CLASSES.values())}]")
_CLASS_PATTERNS = {name: re.compile(f"[{characters}]") for name, characters in CHARACTER_CLASSES.items()}

# By the first letter of the Unicode category.
_CATEGORY = {"L": "letters", "M": "letters", "N": "digits", "P": "punctuation", "S": "symbols", "Z": "blanks"}


class CodePointCounts:
    """Counts of all characters of a text."""

    def __init__(self) -> None:
        self._counts = np.zeros(_NUM_CODE_POINTS, dtype=np.int64)

    def add(self, text: str) -> dict[str, int]:
        """Count the characters of a text, and return the counts of those that it contains."""
        counts = np.bincount(code_points(text))
        self._counts[: len(counts)] += counts
        return {chr(code): int(counts[code]) for code in np.flatnonzero(counts).tolist()}

    def by_character(self) -> dict[str, int]:
        """Return the number of occurrences of each character that occurs."""
        return {chr(code): int(self._counts[code]) for code in np.flatnonzero(self._counts).tolist()}


class CharacterCheck:
    """Count every character, and store the first locations of those that should not occur.

    Attributes:
        counts: The counts of all characters.
        by_class: The occurrences of each class of unwanted characters.
        mojibake: The occurrences of UTF-8 that was decoded with another encoding.
    """

    def __init__(self, limit: int) -> None:
        self.counts = CodePointCounts()
        self.by_class = {name: Occurrences(limit) for name in CHARACTER_CLASSES}
        self.mojibake = Occurrences(limit)

    def update(self, window: DocumentWindow) -> None:
        """Count the characters of some documents."""
        text = window.text
        characters = "".join(self.counts.add(text))
        unwanted = "|".join(map(re.escape, _UNWANTED.findall(characters)))
        for match in re.finditer(unwanted, text) if unwanted else ():
            name = next(name for name, pattern in _CLASS_PATTERNS.items() if pattern.match(match[0]))
            occurrences = self.by_class[name]
            occurrences.add("" if occurrences.is_full else window.location(match.start()))
        for match, original in find_mojibake(text):
            location = "" if self.mojibake.is_full else window.location(match.start())
            self.mojibake.add({"place": location, "found": printable(match[0]), "meant": printable(original)})

    def categories(self) -> dict[str, int]:
        """Return the number of letters, digits, punctuation, symbols, blanks, and other characters."""
        counts: Counter[str] = Counter()
        for character, count in self.counts.by_character().items():
            category = "Z" if character.isspace() else unicodedata.category(character)[0]
            counts[_CATEGORY.get(category, "others")] += count
        return dict(counts.most_common())


def most_common(counts: Mapping[str, int], limit: int | None = None) -> list[tuple[str, int]]:
    """Return the largest counts with their names, in alphabetical order if they are equal."""
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:limit]


def with_shares(counts: Mapping[str, int]) -> dict[str, Any]:
    """Return each count with its share of the total."""
    total = max(1, sum(counts.values()))
    return {name: {"number": n, "share": round(n / total, 6)} for name, n in counts.items()}
