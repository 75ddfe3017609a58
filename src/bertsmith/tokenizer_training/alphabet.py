"""Choose a vocabulary's alphabet: the characters of a text that become entries, as many as fit.

The first alphabet consists of the most frequent characters: those that together make up 99.95 % of the text
(SentencePiece's default coverage), and others that occur often enough, up to a given ratio of the vocabulary.
Longer pieces have the other entries. If training leaves entries free, it is repeated with more characters, however
rare: a character is excluded only if the vocabulary is full without it. (The common limit of 1,000 characters and
a minimum frequency of 2 would leave a tenth of the words of a Chinese text unknown, although entries are free.)
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
        continuations: In WordPiece, the characters that occur after the first position of a word and so need a
            second entry (`##x`); empty for other kinds of vocabulary.
    """

    counts: Counter[str]
    continuations: frozenset[str] = frozenset()

    @classmethod
    def from_words(cls, words: Mapping[str, int], *, has_continuations: bool) -> CharacterCounts:
        """Count the characters of counted words, for a vocabulary with or without `##` entries."""
        counts: Counter[str] = Counter()
        continuations: set[str] = set()
        for word, word_count in words.items():
            for character, n in Counter(word).items():
                counts[character] += n * word_count
            if has_continuations:
                continuations.update(word[1:])
        return cls(counts, frozenset(continuations))

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


def train_with_largest_alphabet(
    characters: CharacterCounts,
    vocab_size: int,
    *,
    max_ratio: float,
    min_frequency: int,
    train: Callable[[frozenset[str]], T],
    get_size: Callable[[T], int],
) -> tuple[T, frozenset[str]]:
    """Train with the largest alphabet that fits; return the result and the alphabet.

    Training is repeated with more characters as long as entries remain free.

    Args:
        characters: The characters of the text.
        vocab_size: The size of the vocabulary.
        max_ratio: The ratio of the vocabulary that the first alphabet may take; the characters that make up 99.95
            % of the text may take more.
        min_frequency: Minimum number of occurrences of a character of the first alphabet.
        train: Trains with an alphabet.
        get_size: Returns the vocabulary size of a result of `train`.
    """
    max_entries = vocab_size - len(BERT_SPECIAL_TOKENS)
    common_entries = min(max_entries, characters.num_entries(characters.select_covering(_COVERAGE)))
    first_entries = max(int(max_ratio * max_entries), common_entries)
    alphabet = characters.select_most_frequent(first_entries, min_frequency)
    if not alphabet:
        alphabet = characters.select_most_frequent(max_entries)
    while True:
        result = train(alphabet)
        free_entries = max(0, vocab_size - get_size(result))
        larger_alphabet = characters.select_most_frequent(characters.num_entries(alphabet) + free_entries)
        if len(larger_alphabet) <= len(alphabet):
            return result, alphabet
        alphabet = larger_alphabet
