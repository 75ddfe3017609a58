"""What a tokenizer makes of a text: tokens, unknowns, pieces per word, coverage by script, words cut most.

One tally, of the corpus check and of tokenizer inspection. A word is a run of letters, marks and digits, the same
for all tokenizers; an ideograph is a word of its own. It is encoded as it stands behind a blank, and a piece that
is that blank alone does not count. A word with an unknown piece is lost, however few its pieces: pieces per word
are those of known words, and the share of unknown words stands beside them. In bounded memory: the numbers are
exact however large the text is, only the lists of words forget what is rare.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import decoders

from bertsmith.io.unicode_scripts import script_of, script_of_word, word_pattern
from bertsmith.tokenizer.fast_words import WordEncoder, can_encode
from bertsmith.tokenizer.tokenizer import Tokenizer

Ints = NDArray[np.int64]

_KINDS = {"WordPiece": "WordPiece", "BPE": "byte-level BPE", "Unigram": "Unigram"}
_DISTINCT = 200_000  # distinct words that wait for their pieces, or
_WAITING = 1 << 24  # characters of such words
KEPT = 20_000  # words a list remembers
_MOST = 20  # pieces per word in the distribution; more count as so many
_SHOWN = 60  # characters of a long word in a list
_CODES = 0x110000


class TokenFacts:
    """One tokenizer's tally of a corpus that is read sentence by sentence."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._words, self._tally = Words(), Tally(tokenizer)

    def add(self, sentences: Sequence[str]) -> None:
        """Count the tokens and the words of some sentences."""
        if sentences:
            self._words.add(sentences)
            self._tally.add(sentences)
            if self._words.is_full:
                settle(self._words, [self._tally])

    def summary(self, limit: int = 100) -> dict[str, Any]:
        """The report of `Tally.summary`; lists have `limit` entries at most."""
        settle(self._words, [self._tally])
        return self._tally.summary(self._words, self._words.counted(), limit)


class Words:
    """What a text holds, whoever reads it: bytes, characters, and the words that wait to be encoded."""

    def __init__(self) -> None:
        self._counts = np.zeros(_CODES, dtype=np.int64)
        self.waiting: Counter[str] = Counter()
        self._size = 0  # at least as many characters as those that wait
        self.bytes = self.words = 0
        self.by_script: Counter[str] = Counter()

    def add(self, lines: Sequence[str]) -> None:
        """Count the characters and words of some lines; line ends are none."""
        text = "\n".join(lines)
        codes = np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32)
        counts = np.bincount(codes)
        self._counts[: len(counts)] += counts
        self._counts[10] = 0
        self.bytes += len(text.encode("utf-8")) + 1
        self.waiting.update(word_pattern().findall(text))
        self._size += len(text)

    @property
    def is_full(self) -> bool:
        """Whether it is time to have the waiting words encoded."""
        if self._size > _WAITING:
            self._size = sum(map(len, self.waiting))
        return len(self.waiting) > _DISTINCT or self._size > _WAITING

    @property
    def characters(self) -> int:
        """Characters so far, blanks among them."""
        return int(self._counts.sum())

    def counted(self) -> dict[str, int]:
        """How often each character stands in the text, blanks left out."""
        codes = np.flatnonzero(self._counts).tolist()
        return {chr(code): int(self._counts[code]) for code in codes if not chr(code).isspace()}

    def letters(self) -> dict[str, int]:
        """Letters by script, the most frequent first."""
        found: Counter[str] = Counter()
        for character, times in self.counted().items():
            if character.isalpha():
                found[script_of(character)] += times
        return dict(sorted(found.items(), key=lambda item: (-item[1], item[0])))

    def summary(self, cut: Sequence[str]) -> dict[str, Any]:
        """As the report holds it."""
        letters = self.letters()
        names = [*letters, *(["digits"] if self.by_script["digits"] else [])]
        return {
            "bytes": self.bytes,
            "characters": self.characters,
            "words": self.words,
            "cut_short": list(cut),
            "scripts": {
                name: {"letters": letters.get(name, 0), "words": self.by_script[name]} for name in names
            },
        }


class Tally:
    """What one tokenizer makes of the text."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        model = json.loads(tokenizer.definition)["model"]
        self.kind = _KINDS.get(model["type"], model["type"])
        self._unknown = _unknown_id(tokenizer, model)
        self._lead = "" if self.kind == "WordPiece" else " "
        self._blanks = [i for i, token in enumerate(tokenizer.tokens) if token in ("▁", "Ġ")]
        self._fast = WordEncoder(tokenizer) if can_encode(tokenizer) else None
        self._used = np.zeros(tokenizer.vocab_size, dtype=np.int64)
        self._by_pieces = np.zeros(_MOST + 1, dtype=np.int64)
        self._words = self._pieces = self._lost = 0
        self._scripts: dict[str, Ints] = {}  # script → words, known ones, pieces of these, whole words
        self._apart: Counter[str] = Counter()  # word → its times
        self._beyond: dict[str, int] = {}  # word → its pieces beyond the first
        self._unknown_words: Counter[str] = Counter()
        self.forgot = False

    def add(self, lines: Sequence[str]) -> None:
        """Count the tokens of some lines, each encoded as a whole."""
        if self._fast is not None:
            ids: Ints = self._fast.encode(lines)[0]
        else:
            ids = np.fromiter(chain.from_iterable(self._tokenizer.pieces(lines)), dtype=np.int64)
        self._used += np.bincount(ids, minlength=len(self._used))

    def add_words(self, words: Sequence[str], times: Ints, scripts: Sequence[str]) -> None:
        """Count the pieces of some distinct words, each with how often it stands in the text and its script."""
        counts, whole, known = self._measured(words)
        np.add.at(self._by_pieces, np.minimum(counts[known], _MOST), times[known])
        self._words += int(times.sum())
        self._pieces += int((times * counts)[known].sum())
        self._lost += int(times[~known].sum())
        facts = np.stack([times, times * known, times * counts * known, times * whole], axis=1)
        names, owner = np.unique(np.array(scripts), return_inverse=True)
        sums = np.zeros((len(names), 4), dtype=np.int64)
        np.add.at(sums, owner, facts)
        for name, row in zip(names.tolist(), sums, strict=True):
            self._scripts[name] = self._scripts.get(name, np.zeros(4, dtype=np.int64)) + row
        for i in np.flatnonzero(known & (counts > 1)).tolist():
            self._apart[words[i]] += int(times[i])
            self._beyond[words[i]] = int(counts[i]) - 1
        for i in np.flatnonzero(~known).tolist():
            self._unknown_words[words[i]] += int(times[i])
        self._forget()

    def _measured(self, words: Sequence[str]) -> tuple[Ints, NDArray[np.bool_], NDArray[np.bool_]]:
        """Pieces of each word, whether it is one whole known piece, and whether all its pieces are known."""
        found = self._tokenizer.pieces([self._lead + word for word in words])
        lengths = np.fromiter(map(len, found), dtype=np.int64, count=len(found))
        owner = np.repeat(np.arange(len(found)), lengths)
        ids = np.fromiter(chain.from_iterable(found), dtype=np.int64, count=int(lengths.sum()))
        blank = np.isin(ids, self._blanks)
        counts = np.bincount(owner[~blank], minlength=len(found)).astype(np.int64)
        unknown = np.bincount(owner[ids == self._unknown], minlength=len(found))
        return counts, (counts == 1) & (unknown == 0), unknown == 0

    def _forget(self) -> None:
        if len(self._apart) > 5 * KEPT:
            self.forgot = True
            top = sorted(self._apart, key=lambda word: (-self._weight(word), word))[:KEPT]
            self._apart = Counter({word: self._apart[word] for word in top})
            self._beyond = {word: self._beyond[word] for word in top}
        if len(self._unknown_words) > 5 * KEPT:
            self.forgot = True
            self._unknown_words = Counter(dict(_frequent(self._unknown_words, KEPT)))

    def _weight(self, word: str) -> int:
        return self._apart[word] * self._beyond[word]

    def summary(self, text: Words, characters: Mapping[str, int], listed: int) -> dict[str, Any]:
        """As the report holds it. `pieces_per_word` and `words_by_pieces` are of the known words."""
        tokens, words = int(self._used.sum()), max(1, self._words)
        unknown = 0 if self._unknown is None else int(self._used[self._unknown])
        apart = sorted(self._apart, key=lambda word: (-self._weight(word), word))[:listed]
        lost, dropped = self._characters(characters)
        return {
            "kind": self.kind,
            "lowercase": self._tokenizer.lowercase,
            "vocab_size": self._tokenizer.vocab_size,
            "words": self._words,
            "tokens": tokens,
            "characters_per_token": _ratio(text.characters, tokens),
            "pieces_per_word": _ratio(self._pieces, self._words - self._lost)
            if self._words > self._lost
            else None,
            "words_kept_whole": _ratio(self._words_whole(), words),
            "words_by_pieces": self._by_pieces.tolist(),
            "unknown_tokens": unknown,
            "unknown_token_share": _ratio(unknown, tokens, 8),
            "unknown_words": self._lost,
            "unknown_word_share": _ratio(self._lost, words, 8),
            "frequent_unknown_words": [
                {"word": word[:_SHOWN], "times": times}
                for word, times in _frequent(self._unknown_words, listed)
            ],
            "unknown_characters": sum(lost.values()),
            "unknown_character_share": _ratio(sum(lost.values()), sum(characters.values()), 8),
            "frequent_unknown_characters": [
                {"character": character, "code": f"U+{ord(character):04X}", "times": times}
                for character, times in _frequent(lost, listed)
            ],
            "dropped_characters": sum(dropped.values()),
            "scripts": self._by_script(text, lost, dropped),
            **self._vocabulary(listed),
            "falling_apart": [
                {"word": word[:_SHOWN], "times": self._apart[word], "pieces": pieces}
                for word, pieces in zip(apart, self._shown(apart), strict=True)
            ],
            "rare_words_forgotten": self.forgot,
        }

    def _words_whole(self) -> int:
        return int(sum(row[3] for row in self._scripts.values()))

    def _characters(self, characters: Mapping[str, int]) -> tuple[Counter[str], Counter[str]]:
        """The characters that are unknown when they stand alone, and those of which nothing is left."""
        lost: Counter[str] = Counter()
        dropped: Counter[str] = Counter()
        found = self._tokenizer.pieces(list(characters))
        blanks = set(self._blanks)
        for (character, times), ids in zip(characters.items(), found, strict=True):
            if not blanks.issuperset(ids):
                if self._unknown in ids:
                    lost[character] = times
            else:
                dropped[character] = times
        return lost, dropped

    def _by_script(
        self, text: Words, lost: Mapping[str, int], dropped: Mapping[str, int]
    ) -> dict[str, dict[str, Any]]:
        letters = text.letters()
        gone: Counter[str] = Counter()
        for character, times in chain(lost.items(), dropped.items()):
            if character.isalpha():
                gone[script_of(character)] += times
        none = np.zeros(4, dtype=np.int64)
        names = [*letters, *(["digits"] if "digits" in self._scripts else [])]
        rows = {}
        for name in names:
            words, known, pieces, whole = map(int, self._scripts.get(name, none))
            of = letters.get(name, 0)
            rows[name] = {
                "letters_known": _ratio(of - gone[name], of, 8) if of else None,
                "words_known": _ratio(known, words, 8) if words else None,
                "words_kept_whole": _ratio(whole, words) if words else None,
                "pieces_per_word": _ratio(pieces, known) if known else None,
            }
        return rows

    def _bare(self, piece: str) -> str:
        """A piece without the mark that says where in a word it stands."""
        if self.kind == "WordPiece":
            return piece.removeprefix(self._tokenizer.prefix)
        return piece.removeprefix("▁").removeprefix("Ġ")

    def _vocabulary(self, listed: int) -> dict[str, Any]:
        special = self._tokenizer.special_ids
        plain = [i for i in range(self._tokenizer.vocab_size) if i not in special]
        names = {i: shown_piece(self._tokenizer.tokens[i], self.kind) for i in plain}
        longest = sorted(plain, key=lambda i: (-len(self._bare(names[i])), names[i]))
        used = [i for i in longest if self._used[i]]
        return {
            "pieces_used": len(used),
            "pieces_used_share": _ratio(len(used), len(plain)),
            "longest_pieces": [names[i] for i in longest[:listed]],
            "longest_pieces_used": [{"piece": names[i], "times": int(self._used[i])} for i in used[:listed]],
        }

    def _shown(self, words: Sequence[str]) -> list[list[str]]:
        names, blanks = self._tokenizer.tokens, set(self._blanks)
        found = self._tokenizer.pieces([self._lead + word for word in words])
        return [[shown_piece(names[i], self.kind) for i in ids if i not in blanks][:_MOST] for ids in found]


def settle(text: Words, tallies: Iterable[Tally]) -> None:
    """Have all tokenizers encode the words that wait."""
    words = list(text.waiting)
    times = np.fromiter(text.waiting.values(), dtype=np.int64, count=len(words))
    scripts = [script_of_word(word) for word in words]
    for script, number in zip(scripts, times.tolist(), strict=True):
        text.by_script[script] += number
    text.words += int(times.sum())
    for begin in range(0, len(words), 10_000):
        part = slice(begin, begin + 10_000)
        for tally in tallies:
            tally.add_words(words[part], times[part], scripts[part])
    text.waiting.clear()


def shown_piece(token: str, kind: str) -> str:
    """A piece for people: a byte-level BPE's bytes as text where they are text, "▁" for a blank before it."""
    if kind != _KINDS["BPE"]:
        return token
    text = str(decoders.ByteLevel().decode([token]))
    return token if "\ufffd" in text else text.replace(" ", "▁")


def _unknown_id(tokenizer: Tokenizer, model: Mapping[str, Any]) -> int | None:
    """The id of what is unknown; None where nothing can be, as in byte-level BPE."""
    if model["type"] == "Unigram":
        return None if model.get("byte_fallback") or model["unk_id"] is None else int(model["unk_id"])
    token = model.get("unk_token")
    return tokenizer.tokens.index(token) if token in tokenizer.tokens else None


def _frequent(counts: Mapping[str, int], number: int) -> list[tuple[str, int]]:
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:number]


def _ratio(part: float, whole: float, digits: int = 6) -> float:
    return round(part / whole, digits) if whole else 0.0
