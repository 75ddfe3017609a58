"""Which characters of a text become entries of its vocabulary: all that there is room for.

The characters that make up 99.95 % of a text (SentencePiece's usual coverage) come before all else. Others that
occur often enough fill up to a share of the vocabulary, so that pieces longer than a character have the rest. What
those leave free goes to the remaining characters, however rare: one is left out only where the vocabulary is full
without it. (Before, the customary limit of 1,000 characters and a least frequency of 2 left a tenth of a Chinese
text's words unknown, with entries to spare.)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TypeVar

from bertsmith.tokenizer.wordpiece import SPECIALS

Made = TypeVar("Made")

_COVERED = 0.9995


@dataclass(frozen=True)
class CharacterCounts:
    """How often each character occurs in the words of a text; inside: those that occur behind a word's first place
    and so need a second entry (`##x`), where a kind of vocabulary has two."""

    counts: Counter[str]
    inside: frozenset[str] = frozenset()

    @classmethod
    def of(cls, words: Mapping[str, int], *, continued: bool) -> CharacterCounts:
        """Those of counted words; continued: whether the vocabulary has `##` entries."""
        counts: Counter[str] = Counter()
        inside: set[str] = set()
        for word, count in words.items():
            for character, times in Counter(word).items():
                counts[character] += times * count
            if continued:
                inside.update(word[1:])
        return cls(counts, frozenset(inside))

    def entries(self, letters: Collection[str]) -> int:
        """How many entries these characters take."""
        return len(letters) + sum(letter in self.inside for letter in letters)

    def most_frequent(self, room: int, least: int = 1) -> frozenset[str]:
        """The most frequent characters that fit into `room` entries, of those that occur at least so often."""
        letters = []
        for character, count in sorted(self.counts.items(), key=lambda item: (-item[1], item[0])):
            entries = 2 if character in self.inside else 1
            if count < least or not room:
                break
            if entries <= room:
                room -= entries
                letters.append(character)
        return frozenset(letters)

    def covering(self, share: float) -> list[str]:
        """The most frequent characters that together are this share of the text."""
        left = share * self.counts.total()
        letters = []
        for character, count in sorted(self.counts.items(), key=lambda item: (-item[1], item[0])):
            if left <= 0:
                break
            left -= count
            letters.append(character)
        return letters


def with_alphabet(
    characters: CharacterCounts,
    vocab_size: int,
    *,
    share: float,
    least: int,
    make: Callable[[frozenset[str]], Made],
    size: Callable[[Made], int],
) -> tuple[Made, frozenset[str]]:
    """What `make` makes of an alphabet, and that alphabet: the characters that occur at least so often, in at most
    this share of the vocabulary or as much as the common ones need; made again with more of them for as long as
    entries are left."""
    room = vocab_size - len(SPECIALS)
    common = min(room, characters.entries(characters.covering(_COVERED)))
    letters = characters.most_frequent(max(int(share * room), common), least) or characters.most_frequent(
        room
    )
    while True:
        made = make(letters)
        free = vocab_size - size(made)
        more = characters.most_frequent(characters.entries(letters) + max(0, free))
        if len(more) <= len(letters):
            return made, letters
        letters = more
