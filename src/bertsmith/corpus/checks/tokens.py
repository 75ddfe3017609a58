"""Statistics of a tokenizer on a text: tokens, unknown words, pieces per word, coverage by script.

The corpus check and tokenizer inspection share them. A word is a run of letters, marks, and digits, the same for
all tokenizers; an ideograph is a word by itself. A word is encoded with a space before it, and a piece that
consists of that space alone is not counted. A word with an unknown piece is unknown. Pieces per word are averaged
over the known words, since an unknown word has few pieces, and are reported with the share of unknown words.
Memory is bounded: counts are exact for texts of any size; only the lists of words drop rare ones.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import decoders

from bertsmith.corpus.checks.characters import CodePointCounts, most_common
from bertsmith.corpus.shards import IntArray
from bertsmith.io.unicode_scripts import HAN_CLASS, script_of_word, word_pattern
from bertsmith.tokenizer.fast_words import concatenate, text_encoder
from bertsmith.tokenizer.script_coverage import letters_by_script
from bertsmith.tokenizer.tokenizer import Tokenizer

_ALGORITHMS = {"WordPiece": "WordPiece", "BPE": "byte-level BPE", "Unigram": "Unigram"}
_HAN = re.compile(f"[{HAN_CLASS}]")
_MAX_WAITING_WORDS = 200_000  # distinct words to encode at once
_MAX_WAITING_CHARACTERS = 1 << 24
_BATCH_WORDS = 10_000  # words per call of a tokenizer
MAX_TRACKED_WORDS = 20_000  # words that stay in a list when rare ones are dropped
_MAX_PIECES = 20  # pieces per word in the distribution; words of more count as 20
_MAX_WORD_CHARACTERS = 60  # of a word in a list of the report


class WordCounter:
    """Count the bytes, characters, and words of a text, and encode its words with some tokenizers.

    Attributes:
        code_points: Counts of all characters, including blanks.
        bytes: Bytes of UTF-8.
        words: Words that were encoded.
        by_script: Words that were encoded, by script.
    """

    def __init__(self, stats: Iterable[TokenizerStats]) -> None:
        """Count words for the statistics `stats` of each tokenizer."""
        self._stats = list(stats)
        self.code_points = CodePointCounts()
        self._waiting: Counter[str] = Counter()  # words to encode
        self._max_size = 0  # an upper bound on the characters of these words
        self.bytes = self.words = 0
        self.by_script: Counter[str] = Counter()

    def add(self, lines: Sequence[str]) -> None:
        """Count the characters, words, and tokens of some lines, without line ends."""
        text = "\n".join(lines)
        counts = self.code_points.add("".join(lines))
        self.bytes += len(text.encode("utf-8")) + 1
        for entry in self._stats:
            entry.add(lines)
        self._waiting.update(word_pattern().findall(text))
        self._waiting.update({character: counts[character] for character in _HAN.findall("".join(counts))})
        self._max_size += len(text)
        if self._max_size > _MAX_WAITING_CHARACTERS:
            self._max_size = sum(map(len, self._waiting))
        if len(self._waiting) > _MAX_WAITING_WORDS or self._max_size > _MAX_WAITING_CHARACTERS:
            self.encode_waiting()

    def encode_waiting(self) -> None:
        """Encode the waiting words, and count their pieces; called after the last `add`, too."""
        words = list(self._waiting)
        times = np.fromiter(self._waiting.values(), dtype=np.int64, count=len(words))
        scripts = [script_of_word(word) for word in words]
        for script, count in zip(scripts, times.tolist(), strict=True):
            self.by_script[script] += count
        self.words += int(times.sum())
        for start in range(0, len(words), _BATCH_WORDS):
            part = slice(start, start + _BATCH_WORDS)
            for entry in self._stats:
                entry.add_words(words[part], times[part], scripts[part])
        self._waiting.clear()

    @property
    def characters(self) -> int:
        """Return the number of characters, including blanks."""
        return sum(self.code_points.by_character().values())

    def summary(self, truncated: Sequence[str]) -> dict[str, Any]:
        """Return the counts for a report; `truncated` lists the files that were not read to the end."""
        letters = letters_by_script(self.code_points.by_character())
        names = [*letters, *(["digits"] if self.by_script["digits"] else [])]
        return {
            "bytes": self.bytes,
            "characters": self.characters,
            "words": self.words,
            "cut_short": list(truncated),
            "scripts": {
                name: {"letters": letters.get(name, 0), "words": self.by_script[name]} for name in names
            },
        }


class TokenizerStats:
    """Statistics of one tokenizer on a text.

    Attributes:
        algorithm: The name of the tokenizer's algorithm.
        has_dropped_words: True if the lists of words dropped rare ones.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        model = json.loads(tokenizer.definition)["model"]
        self.algorithm = _ALGORITHMS.get(model["type"], model["type"])
        self._unknown_id = _unknown_id(tokenizer, model)
        self._word_prefix = "" if self.algorithm == "WordPiece" else " "
        self._space_ids = [i for i, token in enumerate(tokenizer.tokens) if token in ("▁", "Ġ")]
        self._encode_texts = text_encoder(tokenizer)
        self._token_counts = np.zeros(tokenizer.vocab_size, dtype=np.int64)
        self._by_pieces = np.zeros(_MAX_PIECES + 1, dtype=np.int64)
        self._num_words = self._num_pieces = self._num_unknown_words = 0
        # By script: words, known words, pieces of known words, words of one piece.
        self._scripts: dict[str, IntArray] = {}
        self._split_words: Counter[str] = Counter()
        self._extra_pieces: dict[str, int] = {}  # by word, the pieces after the first
        self._unknown_words: Counter[str] = Counter()
        self.has_dropped_words = False

    def add(self, lines: Sequence[str]) -> None:
        """Count the tokens of some lines."""
        self._token_counts += np.bincount(self._encode_texts(lines)[0], minlength=len(self._token_counts))

    def add_words(self, words: Sequence[str], times: IntArray, scripts: Sequence[str]) -> None:
        """Count the pieces of W distinct words.

        Args:
            words: The words.
            times: The number of occurrences of each word, [W].
            scripts: The script of each word.
        """
        num_pieces, is_single, is_known = self._encode_words(words)
        np.add.at(self._by_pieces, np.minimum(num_pieces[is_known], _MAX_PIECES), times[is_known])
        self._num_words += int(times.sum())
        self._num_pieces += int((times * num_pieces)[is_known].sum())
        self._num_unknown_words += int(times[~is_known].sum())
        counts = np.stack([times, times * is_known, times * num_pieces * is_known, times * is_single], axis=1)
        names, owner = np.unique(np.array(scripts), return_inverse=True)
        sums = np.zeros((len(names), 4), dtype=np.int64)
        np.add.at(sums, owner, counts)
        for name, row in zip(names.tolist(), sums, strict=True):
            self._scripts[name] = self._scripts.get(name, np.zeros(4, dtype=np.int64)) + row
        for i in np.flatnonzero(is_known & (num_pieces > 1)).tolist():
            self._split_words[words[i]] += int(times[i])
            self._extra_pieces[words[i]] = int(num_pieces[i]) - 1
        for i in np.flatnonzero(~is_known).tolist():
            self._unknown_words[words[i]] += int(times[i])
        self._drop_rare_words()

    def _encode_words(self, words: Sequence[str]) -> tuple[IntArray, NDArray[np.bool_], NDArray[np.bool_]]:
        """Return, by word [W], the number of pieces, if it is one known piece, and if all pieces are known."""
        ids, lengths = concatenate(self._tokenizer.encode_ids([self._word_prefix + word for word in words]))
        owner = np.repeat(np.arange(len(words)), lengths)
        is_space = np.isin(ids, self._space_ids)
        num_pieces = np.bincount(owner[~is_space], minlength=len(words)).astype(np.int64)
        num_unknown = np.bincount(owner[ids == self._unknown_id], minlength=len(words))
        return num_pieces, (num_pieces == 1) & (num_unknown == 0), num_unknown == 0

    def _drop_rare_words(self) -> None:
        if len(self._split_words) > 5 * MAX_TRACKED_WORDS:
            self.has_dropped_words = True
            top = self._top_split_words(MAX_TRACKED_WORDS)
            self._split_words = Counter({word: self._split_words[word] for word in top})
            self._extra_pieces = {word: self._extra_pieces[word] for word in top}
        if len(self._unknown_words) > 5 * MAX_TRACKED_WORDS:
            self.has_dropped_words = True
            self._unknown_words = Counter(dict(most_common(self._unknown_words, MAX_TRACKED_WORDS)))

    def _top_split_words(self, limit: int) -> list[str]:
        """Return the words with the most extra pieces over all their occurrences."""
        counts, extra = self._split_words, self._extra_pieces
        return sorted(counts, key=lambda word: (-counts[word] * extra[word], word))[:limit]

    def summary(self, text: WordCounter, max_examples: int) -> dict[str, Any]:
        """Return the statistics for a report; `pieces_per_word` and `words_by_pieces` are of the known words."""
        num_tokens, num_words = int(self._token_counts.sum()), max(1, self._num_words)
        num_known = self._num_words - self._num_unknown_words
        num_unknown_tokens = 0 if self._unknown_id is None else int(self._token_counts[self._unknown_id])
        split_words = self._top_split_words(max_examples)
        characters = {c: n for c, n in text.code_points.by_character().items() if not c.isspace()}
        unknown, dropped = self._uncovered_characters(characters)
        return {
            "kind": self.algorithm,
            "lowercase": self._tokenizer.lowercase,
            "vocab_size": self._tokenizer.vocab_size,
            "words": self._num_words,
            "tokens": num_tokens,
            "characters_per_token": _ratio(text.characters, num_tokens),
            "pieces_per_word": _ratio(self._num_pieces, num_known) if num_known > 0 else None,
            "words_kept_whole": _ratio(sum(int(row[3]) for row in self._scripts.values()), num_words),
            "words_by_pieces": self._by_pieces.tolist(),
            "unknown_tokens": num_unknown_tokens,
            "unknown_token_share": _ratio(num_unknown_tokens, num_tokens, 8),
            "unknown_words": self._num_unknown_words,
            "unknown_word_share": _ratio(self._num_unknown_words, num_words, 8),
            "frequent_unknown_words": [
                {"word": word[:_MAX_WORD_CHARACTERS], "times": times}
                for word, times in most_common(self._unknown_words, max_examples)
            ],
            "unknown_characters": sum(unknown.values()),
            "unknown_character_share": _ratio(sum(unknown.values()), sum(characters.values()), 8),
            "frequent_unknown_characters": [
                {"character": character, "code": f"U+{ord(character):04X}", "times": times}
                for character, times in most_common(unknown, max_examples)
            ],
            "dropped_characters": sum(dropped.values()),
            "scripts": self._script_summary(text, unknown, dropped),
            **self._vocabulary_summary(max_examples),
            "falling_apart": [
                {"word": word[:_MAX_WORD_CHARACTERS], "times": self._split_words[word], "pieces": pieces}
                for word, pieces in zip(split_words, self._display_pieces(split_words), strict=True)
            ],
            "rare_words_forgotten": self.has_dropped_words,
        }

    def _uncovered_characters(self, characters: Mapping[str, int]) -> tuple[Counter[str], Counter[str]]:
        """Return counts of characters that are unknown by themselves, and of those that the tokenizer removes."""
        unknown: Counter[str] = Counter()
        dropped: Counter[str] = Counter()
        pieces = self._tokenizer.encode_ids(list(characters))
        space_ids = set(self._space_ids)
        for (character, times), ids in zip(characters.items(), pieces, strict=True):
            if space_ids.issuperset(ids):
                dropped[character] = times
            elif self._unknown_id in ids:
                unknown[character] = times
        return unknown, dropped

    def _script_summary(
        self, text: WordCounter, unknown: Mapping[str, int], dropped: Mapping[str, int]
    ) -> dict[str, dict[str, Any]]:
        letters = letters_by_script(text.code_points.by_character())
        uncovered = letters_by_script({**unknown, **dropped})
        zeros = np.zeros(4, dtype=np.int64)
        rows = {}
        for name in [*letters, *(["digits"] if "digits" in self._scripts else [])]:
            words, known_words, pieces, single = map(int, self._scripts.get(name, zeros))
            num_letters = letters.get(name, 0)
            covered = num_letters - uncovered.get(name, 0)
            rows[name] = {
                "letters_known": _ratio(covered, num_letters, 8) if num_letters else None,
                "words_known": _ratio(known_words, words, 8) if words else None,
                "words_kept_whole": _ratio(single, words) if words else None,
                "pieces_per_word": _ratio(pieces, known_words) if known_words else None,
            }
        return rows

    def _without_marker(self, piece: str) -> str:
        """Return a piece without the marker of its position in a word."""
        if self.algorithm == "WordPiece":
            return piece.removeprefix(self._tokenizer.continuation_prefix)
        return piece.removeprefix("▁").removeprefix("Ġ")

    def _vocabulary_summary(self, max_examples: int) -> dict[str, Any]:
        special_ids = self._tokenizer.all_special_ids
        ids = [i for i in range(self._tokenizer.vocab_size) if i not in special_ids]
        names = {i: display_piece(self._tokenizer.tokens[i], self.algorithm) for i in ids}
        longest = sorted(ids, key=lambda i: (-len(self._without_marker(names[i])), names[i]))
        used = [i for i in longest if self._token_counts[i]]
        return {
            "pieces_used": len(used),
            "pieces_used_share": _ratio(len(used), len(ids)),
            "longest_pieces": [names[i] for i in longest[:max_examples]],
            "longest_pieces_used": [
                {"piece": names[i], "times": int(self._token_counts[i])} for i in used[:max_examples]
            ],
        }

    def _display_pieces(self, words: Sequence[str]) -> list[list[str]]:
        tokens, space_ids = self._tokenizer.tokens, set(self._space_ids)
        pieces = self._tokenizer.encode_ids([self._word_prefix + word for word in words])
        return [
            [display_piece(tokens[i], self.algorithm) for i in ids if i not in space_ids][:_MAX_PIECES]
            for ids in pieces
        ]


def display_piece(token: str, algorithm: str) -> str:
    """Return a piece for display: the bytes of byte-level BPE as text if they are text, "▁" for a space."""
    if algorithm != _ALGORITHMS["BPE"]:
        return token
    text = str(decoders.ByteLevel().decode([token]))
    return token if "\ufffd" in text else text.replace(" ", "▁")


def _unknown_id(tokenizer: Tokenizer, model: Mapping[str, Any]) -> int | None:
    """Return the id of the unknown token; None if nothing can be unknown, as in byte-level BPE."""
    if model["type"] == "Unigram":
        return None if model.get("byte_fallback") or model["unk_id"] is None else int(model["unk_id"])
    token = model.get("unk_token")
    return tokenizer.tokens.index(token) if token in tokenizer.tokens else None


def _ratio(part: float, total: float, digits: int = 6) -> float:
    return round(part / total, digits) if total else 0.0
