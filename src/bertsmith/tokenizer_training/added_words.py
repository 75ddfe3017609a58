"""How each kind of vocabulary has words, and takes a new one, so that every id and every entry stays.

WordPiece takes the longest entry that a word begins with: the word itself is all that is added. Byte-level BPE
joins two pieces at a time: a word is the end of a chain of merges, which stand behind all that there were, so what
those did stays done; each joint on the way is an entry, too. Unigram takes the pieces with the highest sum of
scores: the word gets a little more than the sum of its pieces, and so stands in for them and for little else.
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
from bertsmith.tokenizer.folder import Kind

_BLANK = "Ġ"  # what byte-level BPE writes for the blank before a word
_BEFORE_A_WORD = re.compile(r"(?<=\S)(?= \S)")
_ABOVE = 0.01  # by how much a new piece's score exceeds its pieces', for each of its characters
_UNKNOWN = 10.0  # how much less than the worst piece an unknown character scores (as the library has it)
_CORE = re.compile(rf"{unigram.WORD}[^\W_]+")


class VocabularyKind:
    """How words stand in a vocabulary: as people write them (cardio), as its model is given them ("▁cardio,"), and
    as tokens ("▁cardio"). What is said here holds for WordPiece, where all three are the same."""

    longest: int | None = 100
    """Characters of a word; a longer one is unknown whatever the vocabulary holds. None: no limit."""
    keeps_others = True
    """Whether a new entry changes no words but those that begin with it, so that it can be told which."""

    def runs(self, text: str) -> list[str]:
        """A text in runs whose words are the same alone."""
        return text.replace("\n", " ").split(" ")

    def candidates(self, counts: Counter[str]) -> Counter[str]:
        """Of words as the model is given them the tokens that they can become, with how often each would stand."""
        return counts

    def core(self, word: str) -> str | None:
        """The token that a word, as the model is given it, can become; None for one that cannot."""
        return word

    def token(self, word: str) -> str:
        """The token of a word as it is written."""
        return word

    def word(self, token: str) -> str:
        """A token's word as it is written."""
        return token

    def text(self, word: str) -> str:
        """A text of the word alone, in which it is its token."""
        return word

    def grow(self, model: dict[str, Any], tokens: Sequence[str], size: int) -> None:
        """Add the tokens, and what leads to them, to a tokenizer.json's model; new ids count from `size` on."""
        model["vocab"].update({token: size + i for i, token in enumerate(tokens)})


class _ByteLevelBpe(VocabularyKind):
    """A new token stands where a blank is before the word: the blank is part of it."""

    longest = None
    keeps_others = False

    def runs(self, text: str) -> list[str]:
        # Several blanks in a row are cut together; a line's end is a blank before the next, as in `prepare`.
        return _BEFORE_A_WORD.split(text.replace("\n", " "))

    def candidates(self, counts: Counter[str]) -> Counter[str]:
        return Counter({word: count for word, count in counts.items() if self.core(word)})

    def core(self, word: str) -> str | None:
        return word if word[:1] == _BLANK and len(word) > 1 else None

    def token(self, word: str) -> str:
        characters = {byte: character for character, byte in byte_level_bpe.byte_of().items()}
        return "".join(characters[byte] for byte in f" {word}".encode())

    def word(self, token: str) -> str:
        numbers = byte_level_bpe.byte_of()
        return bytes(numbers[character] for character in token).decode("utf-8", "replace").removeprefix(" ")

    def text(self, word: str) -> str:
        return f" {word}"

    def grow(self, model: dict[str, Any], tokens: Sequence[str], size: int) -> None:
        merges = [one.split(" ") if isinstance(one, str) else list(one) for one in model["merges"]]
        ranks = {(first, second): rank for rank, (first, second) in enumerate(merges)}
        for token in tokens:
            parts = list(token)
            while len(parts := _joined(parts, ranks)) > 1:  # a new merge is the last to be made
                ranks[parts[0], parts[1]] = len(merges)
                merges.append(parts[:2])
                if (joint := parts[0] + parts[1]) not in model["vocab"]:
                    model["vocab"][joint] = size
                    size += 1
        model["merges"] = merges


def _joined(parts: list[str], ranks: dict[tuple[str, str], int]) -> list[str]:
    """A word's parts merged: of the pairs that are there the one learnt first is joined, until there is none."""
    while known := [(ranks[pair], at) for at, pair in enumerate(pairwise(parts)) if pair in ranks]:
        at = min(known)[1]
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    return parts


class _Unigram(VocabularyKind):
    """Punctuation is not parted from words here, so words are looked for before it."""

    longest = None
    keeps_others = False

    def candidates(self, counts: Counter[str]) -> Counter[str]:
        found: Counter[str] = Counter()
        for word, count in counts.items():
            if core := self.core(word):
                found[core] += count
        return found

    def core(self, word: str) -> str | None:
        found = _CORE.match(word)
        return found and found[0]

    def token(self, word: str) -> str:
        return f"{unigram.WORD}{word}"

    def word(self, token: str) -> str:
        return token.removeprefix(unigram.WORD)

    def grow(self, model: dict[str, Any], tokens: Sequence[str], size: int) -> None:
        scores: dict[str, float] = dict(model["vocab"])
        unknown = min(scores.values()) - _UNKNOWN
        before = tokenizers.models.Unigram([*scores.items()], model["unk_id"], model["byte_fallback"])
        for token in tokens:
            # Of the old pieces alone: a word can have one new one, at its beginning, and the longer the more it
            # counts for, so of all new ones the longest is taken.
            whole = sum(scores.get(piece.value, unknown) for piece in before.tokenize(token))
            # As exact as a spiece.model has it, so that both files are one tokenizer.
            model["vocab"].append([token, float(np.float32(whole + _ABOVE * len(token)))])


KINDS: dict[Kind, VocabularyKind] = {
    "wordpiece": VocabularyKind(),
    "byte_level_bpe": _ByteLevelBpe(),
    "unigram": _Unigram(),
}
"""By a tokenizer's kind."""
