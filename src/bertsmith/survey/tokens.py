"""What a tokenizer makes of a corpus: tokens, unknowns, pieces a word, and the words that fall apart most."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertsmith.files.scripts import word_pattern
from bertsmith.tokenizer.tokenizer import Tokenizer
from bertsmith.tokenizer.words import WordEncoder, can_encode

_KNOWN = 200_000  # distinct words that wait for their pieces: some 30 MB
_KEPT = 20_000  # of those that fell apart
_MOST = 20  # pieces a word in the distribution; more count as so many
_LONGEST = 100  # characters: WordPiece gives up beyond


class TokenFacts:
    """Counts the tokens of all sentences, and the pieces of all words as if each stood alone."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._fast = WordEncoder(tokenizer) if can_encode(tokenizer) else None
        self._lead = "" if any(token.startswith("##") for token in tokenizer.tokens) else " "
        self.tokens = self.unknown = 0
        self._words: Counter[str] = Counter()
        self._by_pieces = np.zeros(_MOST + 1, dtype=np.int64)
        self._total_words = self._total_pieces = self._unknown_words = 0
        self._apart: Counter[str] = Counter()
        self._pieces: dict[str, list[str]] = {}
        self._pruned = False

    def add(self, sentences: Sequence[str]) -> None:
        """Count the tokens of some sentences."""
        if not sentences:
            return
        if self._fast is not None:
            ids: NDArray[Any] = self._fast.encode(sentences)[0]
        else:
            ids = np.fromiter(chain.from_iterable(self._tokenizer.pieces(sentences)), dtype=np.int64)
        self.tokens += len(ids)
        self.unknown += int(np.count_nonzero(ids == self._tokenizer.unk_id))
        for sentence in sentences:
            self._words.update(word_pattern().findall(sentence))
            if len(self._words) > _KNOWN:
                self._settle()

    def _settle(self) -> None:
        """Encode the words that wait and count their pieces."""
        words = list(self._words)
        names = self._tokenizer.tokens
        for word, ids in zip(words, self._tokenizer.pieces([self._lead + w for w in words]), strict=True):
            times, pieces = self._words[word], len(ids)
            unknown = self._tokenizer.unk_id in ids
            self._by_pieces[min(pieces, _MOST)] += times
            self._total_words += times
            self._total_pieces += times * pieces
            self._unknown_words += times * unknown
            if pieces > 1 or unknown:
                self._apart[word[:_LONGEST]] += times
                self._pieces.setdefault(word[:_LONGEST], [names[i] for i in ids[:_MOST]])
        self._words.clear()
        if len(self._apart) > 5 * _KEPT:
            self._pruned = True
            top = sorted(self._apart, key=lambda word: (-self._weight(word), word))[:_KEPT]
            self._apart = Counter({word: self._apart[word] for word in top})
            self._pieces = {word: self._pieces[word] for word in top}

    def _weight(self, word: str) -> int:
        return self._apart[word] * (len(self._pieces[word]) - 1)

    def _unknown_characters(self, characters: dict[str, int]) -> list[tuple[str, int]]:
        known = [c for c in characters if not c.isspace() and not "\ud800" <= c <= "\udfff"]
        found = [
            (character, characters[character])
            for character, ids in zip(known, self._tokenizer.pieces(known), strict=True)
            if self._tokenizer.unk_id in ids
        ]
        return sorted(found, key=lambda item: (-item[1], item[0]))

    def summary(self, characters: dict[str, int], limit: int = 100) -> dict[str, Any]:
        """Tokens, unknown ones, pieces a word with their distribution; the `limit` words that cost most pieces
        beyond their first, unknown words and characters. characters: how often each was seen."""
        self._settle()
        unknown = self._tokenizer.tokens[self._tokenizer.unk_id]
        apart = sorted(
            (word for word in self._apart if unknown not in self._pieces[word]),
            key=lambda word: (-self._weight(word), word),
        )
        lost = sorted(
            (word for word in self._apart if unknown in self._pieces[word]),
            key=lambda word: (-self._apart[word], word),
        )
        words = max(1, self._total_words)
        return {
            "vocab_size": self._tokenizer.vocab_size,
            "tokens": self.tokens,
            "unknown": self.unknown,
            "unknown_rate": round(self.unknown / max(1, self.tokens), 8),
            "words": self._total_words,
            "pieces_a_word": round(self._total_pieces / words, 4),
            "whole_words": round(int(self._by_pieces[1]) / words, 6),
            "words_by_pieces": self._by_pieces[1:].tolist(),
            "falling_apart": [
                {"word": word, "times": self._apart[word], "pieces": self._pieces[word]}
                for word in apart[:limit]
            ],
            "unknown_words": [{"word": word, "times": self._apart[word]} for word in lost[:limit]],
            "unknown_characters": [
                {"character": c, "times": times} for c, times in self._unknown_characters(characters)[:limit]
            ],
            "rare_words_dropped_from_the_lists": self._pruned,
        }
