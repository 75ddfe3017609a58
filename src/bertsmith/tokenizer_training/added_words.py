"""Add words to a vocabulary without changing existing ids or entries, for each kind of tokenizer.

* WordPiece takes the longest entry with which a word starts, so the word itself is the only new entry.
* Byte-level BPE merges two pieces at a time. A new word is the result of new merges of its pieces; these come
  after all existing merges, whose results therefore stay. Each intermediate piece is a new entry, too.
* Unigram takes the pieces with the highest sum of scores (log probabilities). A new word's score is slightly
  higher than the sum of its pieces' scores, so that it replaces them and little else.

A word has these forms, here in the text "the cardio, then":

* The word as written is "cardio".
* Its text has only this word and can be encoded as the word's token: "cardio", in byte-level BPE " cardio".
* Its pretoken is what the model receives after normalization and pre-tokenization: "cardio" in WordPiece,
  "Ġcardio" in byte-level BPE, and with its punctuation "▁cardio," in Unigram.
* Its token is the entry of the vocabulary: "cardio", "Ġcardio", and "▁cardio". It is the candidate token of the
  pretoken, that is, the token that the pretoken can become; "▁(cardio)" in Unigram and a pretoken without "Ġ" in
  byte-level BPE have none.

An entry is a token of the vocabulary with its id. The pieces of a word are the tokens into which a vocabulary
splits it. A run is a part of a text that has the same pretokens when it is pre-tokenized alone.
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import tokenizers
from tokenizers import decoders, pre_tokenizers

from bertsmith.tokenizer import unigram
from bertsmith.tokenizer.folder import TokenizerKind
from bertsmith.tokenizer.tokenizer import Tokenizer
from bertsmith.tokenizer_training.training_text import word_splitter

_SPACE = "Ġ"  # the space before a word in byte-level BPE
_BYTE_LEVEL = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
_BEFORE_SINGLE_SPACE = re.compile(r"(?<=\S)(?= \S)")
_SCORE_MARGIN = 0.01  # added to the score of a new piece for each of its characters
_UNKNOWN_PENALTY = 10.0  # an unknown character's score is the lowest score minus this, as in tokenizers
_LEADING_WORD = re.compile(rf"{unigram.WORD_PREFIX}[^\W_]+")  # letters and digits


class VocabularyKind:
    """The forms of a word in a kind of vocabulary, and the entries that it needs.

    This base class is for WordPiece, in which all forms of a word are equal.
    """

    def split_runs(self, text: str) -> list[str]:
        """Split a text into parts that have the same pretokens when they are pre-tokenized separately."""
        return text.replace("\n", " ").split(" ")

    def candidate_tokens(self, counts: Mapping[str, int]) -> Counter[str]:
        """Return the tokens that counted pretokens can become, with their counts."""
        tokens: Counter[str] = Counter()
        for pretoken, count in counts.items():
            if token := self.candidate_token(pretoken):
                tokens[token] += count
        return tokens

    def candidate_token(self, pretoken: str) -> str | None:
        """Return the token that a pretoken can become; None if it cannot become one."""
        return pretoken

    def to_token(self, word: str) -> str:
        """Return the token of a word as written."""
        return word

    def to_word(self, token: str) -> str:
        """Return the word, as written, of a token."""
        return token

    def to_text(self, word: str) -> str:
        """Return a text that contains only the word and that can be encoded as the word's token."""
        return word

    def add_tokens(self, model: dict[str, Any], tokens: Sequence[str], vocab_size: int) -> None:
        """Add tokens and intermediate ones to the model of a tokenizer.json, in place.

        Args:
            model: The value of "model" in the tokenizer.json.
            tokens: The tokens to add.
            vocab_size: The number of existing tokens, which is the first new id.
        """
        model["vocab"].update({token: vocab_size + i for i, token in enumerate(tokens)})


class _ByteLevelBpe(VocabularyKind):
    """In byte-level BPE, new tokens represent words after a space, and the space is part of the token."""

    def split_runs(self, text: str) -> list[str]:
        # Only before single spaces, since GPT-2's pattern treats several spaces together. A line end becomes a
        # space before the next word, as in `prepare`.
        return _BEFORE_SINGLE_SPACE.split(text.replace("\n", " "))

    def candidate_token(self, pretoken: str) -> str | None:
        return pretoken if pretoken[:1] == _SPACE and len(pretoken) > 1 else None

    def to_token(self, word: str) -> str:
        ((token, _),) = _BYTE_LEVEL.pre_tokenize_str(f" {word}")
        return str(token)

    def to_word(self, token: str) -> str:
        return str(decoders.ByteLevel().decode([token])).removeprefix(" ")

    def to_text(self, word: str) -> str:
        return f" {word}"

    def add_tokens(self, model: dict[str, Any], tokens: Sequence[str], vocab_size: int) -> None:
        merges = model["merges"]
        ranks = {(first, second): rank for rank, (first, second) in enumerate(merges)}
        next_id = vocab_size
        for token in tokens:
            pieces = _apply_merges(list(token), ranks)
            while len(pieces) > 1:
                # Merge the first two pieces, after all existing merges.
                first, second = pieces[:2]
                ranks[first, second] = len(merges)
                merges.append([first, second])
                if first + second not in model["vocab"]:
                    model["vocab"][first + second] = next_id
                    next_id += 1
                pieces = _apply_merges(pieces, ranks)


def _apply_merges(pieces: list[str], ranks: dict[tuple[str, str], int]) -> list[str]:
    """Merge pieces in place, always the pair with the lowest rank, until no pair has a rank; return them."""
    while candidates := [(ranks[pair], i) for i, pair in enumerate(pairwise(pieces)) if pair in ranks]:
        _, i = min(candidates)
        pieces[i : i + 2] = [pieces[i] + pieces[i + 1]]
    return pieces


class _Unigram(VocabularyKind):
    """In Unigram, a pretoken may contain punctuation; only the part before it can become a token."""

    def candidate_token(self, pretoken: str) -> str | None:
        match = _LEADING_WORD.match(pretoken)
        return match[0] if match else None

    def to_token(self, word: str) -> str:
        return f"{unigram.WORD_PREFIX}{word}"

    def to_word(self, token: str) -> str:
        return token.removeprefix(unigram.WORD_PREFIX)

    def add_tokens(self, model: dict[str, Any], tokens: Sequence[str], vocab_size: int) -> None:
        scores: dict[str, float] = dict(model["vocab"])
        unknown_score = min(scores.values()) - _UNKNOWN_PENALTY
        old_model = tokenizers.models.Unigram([*scores.items()], model["unk_id"], model["byte_fallback"])
        for token in tokens:
            # Only old pieces are summed: a word can start with at most one new piece, and since the margin grows
            # with the length, the longest one wins.
            old_score = sum(scores.get(piece.value, unknown_score) for piece in old_model.tokenize(token))
            # In fp32, the precision of a spiece.model, so that both files define the same tokenizer.
            model["vocab"].append([token, float(np.float32(old_score + _SCORE_MARGIN * len(token)))])


VOCABULARY_KINDS: dict[TokenizerKind, VocabularyKind] = {
    "wordpiece": VocabularyKind(),
    "byte_level_bpe": _ByteLevelBpe(),
    "unigram": _Unigram(),
}
"""The `VocabularyKind` of each kind of tokenizer."""


def max_word_length(tokenizer: Tokenizer) -> int:
    """Return the number of characters above which WordPiece's words are always unknown; others have no limit."""
    return int(json.loads(tokenizer.definition)["model"].get("max_input_chars_per_word", sys.maxsize))


class TokenizationSteps:
    """The steps of a tokenizer: split a text into pretokens, and a pretoken into tokens.

    Attributes:
        pretokens: Splits a text into pretokens.
        unk_token: The unknown token; None for byte-level BPE, which has a token for each byte.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        backend = tokenizers.Tokenizer.from_str(tokenizer.definition)
        self.pretokens = word_splitter(backend.normalizer, backend.pre_tokenizer)
        is_byte_level = tokenizer.kind == "byte_level_bpe"
        self.unk_token = None if is_byte_level else tokenizer.tokens[tokenizer.unk_token_id]
        self._model = backend.model
        self._vocabulary = tokenizer.tokens

    def tokens(self, pretoken: str) -> list[str]:
        return [self._vocabulary[token_id] for token_id in self.ids(pretoken)]

    def ids(self, pretoken: str) -> list[int]:
        return [token.id for token in self._model.tokenize(pretoken)]
