"""Rules by which each kind of vocabulary represents a word and gains one, without changing ids or entries.

WordPiece takes the longest entry that a word starts with: the word itself is all that is added. Byte-level BPE
merges two pieces at a time: a word is the end of a chain of merges, which come after all existing ones, so that
the results of those stay; each intermediate piece is an entry, too. Unigram takes the pieces with the highest sum
of scores: the word gets a little more than the sum of its pieces, so that it replaces them and little else.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import tokenizers

from bertsmith.tokenizer import byte_level_bpe, unigram
from bertsmith.tokenizer.folder import TokenizerKind

_SPACE = "Ġ"  # the space before a word in byte-level BPE
_BEFORE_WORD = re.compile(r"(?<=\S)(?= \S)")
_SCORE_MARGIN = 0.01  # added to the score of a new piece for each of its characters
_UNKNOWN_PENALTY = 10.0  # an unknown character scores the worst piece's score minus this, as in the library
_WORD_TOKEN = re.compile(rf"{unigram.WORD_PREFIX}[^\W_]+")


class VocabularyKind:
    """The forms of a word: as written (cardio), as the model receives it ("▁cardio,"), and as a token ("▁cardio").

    This base class is WordPiece, in which all three are equal.

    Attributes:
        max_word_length: Maximum number of characters; a longer word is unknown whatever the vocabulary holds.
            None: no limit.
        changes_only_longer_words: True if a new entry changes only words that start with it, so that these can be
            determined.
    """

    max_word_length: int | None = 100
    changes_only_longer_words = True

    def split_runs(self, text: str) -> list[str]:
        """Split a text into runs that have the same words when they are tokenized separately."""
        return text.replace("\n", " ").split(" ")

    def candidate_tokens(self, counts: Counter[str]) -> Counter[str]:
        """Return the tokens that words, as the model receives them, can become, with their counts."""
        return counts

    def candidate_token(self, word: str) -> str | None:
        """Return the token that a word, as the model receives it, can become; None if it cannot become one."""
        return word

    def to_token(self, word: str) -> str:
        """Return the token of a word as written."""
        return word

    def to_word(self, token: str) -> str:
        """Return the word of a token, as written."""
        return token

    def to_text(self, word: str) -> str:
        """Return a text of the word alone, in which it is its token."""
        return word

    def add_tokens(self, model: dict[str, Any], tokens: Sequence[str], vocab_size: int) -> None:
        """Add tokens and intermediate ones to a tokenizer.json's model in place; ids start at `vocab_size`."""
        model["vocab"].update({token: vocab_size + i for i, token in enumerate(tokens)})


class _ByteLevelBpe(VocabularyKind):
    """New tokens represent words after a space; the space is part of the token."""

    max_word_length = None
    changes_only_longer_words = False

    def split_runs(self, text: str) -> list[str]:
        # Successive spaces are split together; a line end is a space before the next word, as in `prepare`.
        return _BEFORE_WORD.split(text.replace("\n", " "))

    def candidate_tokens(self, counts: Counter[str]) -> Counter[str]:
        return Counter({word: count for word, count in counts.items() if self.candidate_token(word)})

    def candidate_token(self, word: str) -> str | None:
        return word if word[:1] == _SPACE and len(word) > 1 else None

    def to_token(self, word: str) -> str:
        encoder = {byte: character for character, byte in byte_level_bpe.byte_decoder().items()}
        return "".join(encoder[byte] for byte in f" {word}".encode())

    def to_word(self, token: str) -> str:
        decoder = byte_level_bpe.byte_decoder()
        return bytes(decoder[character] for character in token).decode("utf-8", "replace").removeprefix(" ")

    def to_text(self, word: str) -> str:
        return f" {word}"

    def add_tokens(self, model: dict[str, Any], tokens: Sequence[str], vocab_size: int) -> None:
        merges = [merge.split(" ") if isinstance(merge, str) else list(merge) for merge in model["merges"]]
        ranks = {(first, second): rank for rank, (first, second) in enumerate(merges)}
        for token in tokens:
            parts = list(token)
            while len(parts := _apply_merges(parts, ranks)) > 1:  # new merges come last
                ranks[parts[0], parts[1]] = len(merges)
                merges.append(parts[:2])
                if (piece := parts[0] + parts[1]) not in model["vocab"]:
                    model["vocab"][piece] = vocab_size
                    vocab_size += 1
        model["merges"] = merges


def _apply_merges(parts: list[str], ranks: dict[tuple[str, str], int]) -> list[str]:
    """Merge a word's parts in place, always the pair of the lowest rank, until no pair has a rank."""
    while pairs := [(ranks[pair], i) for i, pair in enumerate(pairwise(parts)) if pair in ranks]:
        i = min(pairs)[1]
        parts[i : i + 2] = [parts[i] + parts[i + 1]]
    return parts


class _Unigram(VocabularyKind):
    """The pre-tokenizer does not separate punctuation from words, so only the part before it counts."""

    max_word_length = None
    changes_only_longer_words = False

    def candidate_tokens(self, counts: Counter[str]) -> Counter[str]:
        tokens: Counter[str] = Counter()
        for word, count in counts.items():
            if token := self.candidate_token(word):
                tokens[token] += count
        return tokens

    def candidate_token(self, word: str) -> str | None:
        match = _WORD_TOKEN.match(word)
        return match and match[0]

    def to_token(self, word: str) -> str:
        return f"{unigram.WORD_PREFIX}{word}"

    def to_word(self, token: str) -> str:
        return token.removeprefix(unigram.WORD_PREFIX)

    def add_tokens(self, model: dict[str, Any], tokens: Sequence[str], vocab_size: int) -> None:
        scores: dict[str, float] = dict(model["vocab"])
        unknown_score = min(scores.values()) - _UNKNOWN_PENALTY
        old_model = tokenizers.models.Unigram([*scores.items()], model["unk_id"], model["byte_fallback"])
        for token in tokens:
            # Scores are sums of old pieces only: a word can start with one new piece, and the margin grows with
            # its length, so that the longest new piece wins.
            old_score = sum(scores.get(piece.value, unknown_score) for piece in old_model.tokenize(token))
            # Rounded to the precision of a spiece.model, so that both files are the same tokenizer.
            model["vocab"].append([token, float(np.float32(old_score + _SCORE_MARGIN * len(token)))])


VOCABULARY_KINDS: dict[TokenizerKind, VocabularyKind] = {
    "wordpiece": VocabularyKind(),
    "byte_level_bpe": _ByteLevelBpe(),
    "unigram": _Unigram(),
}
"""The rules by a tokenizer's kind."""
