"""Choose a vocabulary's alphabet: the characters of a text that become entries, as many as fit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from itertools import accumulate


class CharacterCounts:
    """The occurrences of each character in the words of a text.

    Attributes:
        counts: Number of occurrences of each character.
        continuations: In WordPiece, the characters that occur after the first position of a word and so need a
            second entry (`##x`); empty for other kinds of vocabulary.
    """

    def __init__(self, words: Mapping[str, int], *, has_continuations: bool) -> None:
        """Count the characters of counted words, for a vocabulary with or without `##` entries."""
        self.counts: Counter[str] = Counter()
        for word, count in words.items():
            for character in word:
                self.counts[character] += count
        self.continuations = continuations(words) if has_continuations else set()

    def num_entries(self, characters: Collection[str]) -> int:
        """Return the number of entries that these characters take."""
        return len(characters) + sum(character in self.continuations for character in characters)

    def select_most_frequent(self, max_entries: int, min_frequency: int = 1) -> frozenset[str]:
        """Return the most frequent characters that fit into `max_entries` and reach `min_frequency`."""
        characters = []
        for character, count in self._by_frequency():
            entries = self.num_entries([character])
            if count < min_frequency or not max_entries:
                break
            if entries <= max_entries:
                max_entries -= entries
                characters.append(character)
        return frozenset(characters)

    def select_covering(self, ratio: float) -> list[str]:
        """Return the most frequent characters that together make up this ratio of the text."""
        by_frequency, min_total = self._by_frequency(), ratio * self.counts.total()
        totals_before = accumulate((count for _, count in by_frequency), initial=0)
        return [
            character
            for (character, _), total in zip(by_frequency, totals_before, strict=False)
            if total < min_total
        ]

    def _by_frequency(self) -> list[tuple[str, int]]:
        return sorted(self.counts.items(), key=lambda item: (-item[1], item[0]))


def continuations(words: Collection[str]) -> set[str]:
    """Return the characters that occur after the first position of a word."""
    return set[str]().union(*(word[1:] for word in words))
