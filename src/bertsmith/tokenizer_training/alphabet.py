"""Choose the characters of a text that become entries of its vocabulary: all that fit.

The characters that make up 99.95 % of a text (SentencePiece's default coverage) come first. Others that occur
often enough fill up to a given ratio of the vocabulary, so that pieces longer than a character have the rest.
Entries that remain free go to the remaining characters, however rare: a character is excluded only if the
vocabulary is full without it. (The common limit of 1,000 characters and a minimum frequency of 2 left a tenth of
the words of a Chinese text unknown, with entries to spare.)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TypeVar

from bertsmith.tokenizer.wordpiece import BERT_SPECIAL_TOKENS

T = TypeVar("T")

_COVERAGE = 0.9995


@dataclass(frozen=True)
class CharacterCounts:
    """The occurrences of each character in the words of a text.

    Attributes:
        counts: Number of occurrences of each character.
        inside: Characters that occur after the first position of a word and so need a second entry (`##x`), if the
            kind of vocabulary has such entries.
    """

    counts: Counter[str]
    inside: frozenset[str] = frozenset()

    @classmethod
    def from_words(cls, words: Mapping[str, int], *, has_continuations: bool) -> CharacterCounts:
        """Count the characters of counted words, for a vocabulary with or without `##` entries."""
        counts: Counter[str] = Counter()
        inside: set[str] = set()
        for word, word_count in words.items():
            for character, n in Counter(word).items():
                counts[character] += n * word_count
            if has_continuations:
                inside.update(word[1:])
        return cls(counts, frozenset(inside))

    def num_entries(self, characters: Collection[str]) -> int:
        """Return the number of entries that these characters take."""
        return len(characters) + sum(character in self.inside for character in characters)

    def most_frequent(self, max_entries: int, min_frequency: int = 1) -> frozenset[str]:
        """Return the most frequent characters that fit into `max_entries` and reach `min_frequency`."""
        characters = []
        for character, count in self._by_frequency():
            entries = 2 if character in self.inside else 1
            if count < min_frequency or not max_entries:
                break
            if entries <= max_entries:
                max_entries -= entries
                characters.append(character)
        return frozenset(characters)

    def covering(self, ratio: float) -> list[str]:
        """Return the most frequent characters that together make up this ratio of the text."""
        remaining = ratio * self.counts.total()
        characters = []
        for character, count in self._by_frequency():
            if remaining <= 0:
                break
            remaining -= count
            characters.append(character)
        return characters

    def _by_frequency(self) -> list[tuple[str, int]]:
        return sorted(self.counts.items(), key=lambda item: (-item[1], item[0]))


def train_with_alphabet(
    characters: CharacterCounts,
    vocab_size: int,
    *,
    max_ratio: float,
    min_frequency: int,
    train: Callable[[frozenset[str]], T],
    size: Callable[[T], int],
) -> tuple[T, frozenset[str]]:
    """Train with the largest alphabet that fits; return the result and the alphabet.

    Training is repeated with more characters as long as entries remain free.

    Args:
        characters: The characters of the text.
        vocab_size: The size of the vocabulary.
        max_ratio: The ratio of the vocabulary that the first alphabet may take; common characters may take more.
        min_frequency: Minimum number of occurrences of a character of the first alphabet.
        train: Trains with an alphabet.
        size: Returns the vocabulary size of the result.
    """
    max_entries = vocab_size - len(BERT_SPECIAL_TOKENS)
    common = min(max_entries, characters.num_entries(characters.covering(_COVERAGE)))
    alphabet = characters.most_frequent(
        max(int(max_ratio * max_entries), common), min_frequency
    ) or characters.most_frequent(max_entries)
    while True:
        result = train(alphabet)
        free = vocab_size - size(result)
        larger = characters.most_frequent(characters.num_entries(alphabet) + max(0, free))
        if len(larger) <= len(alphabet):
            return result, alphabet
        alphabet = larger
