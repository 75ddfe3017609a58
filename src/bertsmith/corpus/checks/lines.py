"""Checks of the lines of a corpus: repeated lines, boilerplate, and hard-wrapped lines."""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertsmith.corpus import hashing
from bertsmith.corpus.checks.characters import printable
from bertsmith.corpus.checks.histogram import Histogram
from bertsmith.corpus.sorted_hash_map import SortedHashMap
from bertsmith.corpus.tokenized_corpus import HashArray, IntArray
from bertsmith.io.unicode_scripts import UNSPACED

_LINE_ENDS = ".!?…:;。！？：；।؟۔։።"
_SENTENCE_ENDS = ".!?…。！？।؟۔։።"
_CLOSERS = "\"'”’»«)]}」』）】》〉〕›"
_BLANK, _LETTER, _LOWERCASE, _LINE_END, _SENTENCE_END, _CLOSER, _UNSPACED = 1, 2, 4, 8, 16, 32, 64
_MIN_SYMBOL_CHARACTERS = 8  # “No.” is prose.
_MAX_NAVIGATION_CHARACTERS = 200  # A longer line is prose, even with a phrase of navigation.
_MIN_DOCUMENTS = 3  # documents with the same line
_EXCERPT_CHARACTERS = 80
_MAX_FLAGGED_EXAMPLES = 1000  # per window
# From more than the first number of examples or excerpts, the second number of the most frequent are kept.
_MAX_EXAMPLES, _NUM_KEPT_EXAMPLES = 4096, 1024
_MAX_EXCERPTS, _NUM_KEPT_EXCERPTS = 20_000, 5_000
NAVIGATION_PHRASES = (
    "accept cookies", "all cookies", "cookie policy", "uses cookies", "use cookies", "privacy policy",
    "terms of use", "terms of service", "all rights reserved", "click here", "read more", "sign in", "sign up",
    "log in", "subscribe to", "skip to content", "share this", "follow us", "back to top", "add to cart",
    "newsletter", "enable javascript", "page not found", "datenschutz", "alle rechte vorbehalten",
    "tous droits réservés", "todos los derechos reservados", "版权所有", "隐私政策", "点击这里",
)  # fmt: skip
# Short lines with words of navigation and cookie notes, lines with a web address, lines that are mostly digits and
# symbols, and lines without punctuation at their end.
BOILERPLATE = ("navigation", "urls", "symbols", "unended")


@dataclass(frozen=True)
class WindowLines:
    """The L lines of a window of T texts that are not blank, without surrounding white space.

    Attributes:
        starts: int64 [L], positions in the characters.
        stops: int64 [L], exclusive ends.
        owner: int64 [L], the index of the text of each line.
        index: int64 [L], the line number in the text, from 0.
        flags: bool [L] for each kind in BOILERPLATE.
        is_wrapped: bool [L], True if the next line continues the sentence.
        has_next: bool [L], True if the line directly below is in the same text and not blank.
    """

    starts: IntArray
    stops: IntArray
    owner: IntArray
    index: IntArray
    flags: dict[str, NDArray[np.bool_]]
    is_wrapped: NDArray[np.bool_]
    has_next: NDArray[np.bool_]

    def select(self, part: slice) -> WindowLines:
        """Return a slice of the lines."""
        return WindowLines(
            self.starts[part],
            self.stops[part],
            self.owner[part],
            self.index[part],
            {name: flag[part] for name, flag in self.flags.items()},
            self.is_wrapped[part],
            self.has_next[part],
        )


def find_lines(codes: NDArray[np.uint32], offsets: IntArray, text: str) -> WindowLines:
    """Find the lines of texts that `code_points` concatenated.

    Args:
        codes: The characters, [C].
        offsets: The start of each text, [T + 1].
        text: The same characters as a string.
    """
    marks = _mark_table()[codes]
    ends = np.flatnonzero(codes == 10)
    line_starts = np.concatenate([[0], ends[:-1] + 1])
    nonblank = np.flatnonzero(~marks & _BLANK)  # positions of the characters that are not white space
    first_nonblank, end_nonblank = np.searchsorted(nonblank, line_starts), np.searchsorted(nonblank, ends)
    num_nonblank = end_nonblank - first_nonblank
    is_line = num_nonblank > 0
    starts, last = nonblank[first_nonblank[is_line]], nonblank[end_nonblank[is_line] - 1]
    owner = np.searchsorted(offsets, line_starts[is_line], side="right") - 1
    index = np.flatnonzero(is_line) - np.searchsorted(ends, offsets[owner])
    letter_sums = np.concatenate([[0], np.cumsum((marks & _LETTER) > 0)])
    num_nonblank = num_nonblank[is_line]
    num_letters = letter_sums[last + 1] - letter_sums[starts]
    end = marks[last]
    for distance in (1, 2):  # A full stop may precede closing quotes and brackets.
        is_closer = (end & _CLOSER) > 0
        end = np.where(is_closer, marks[np.maximum(last - distance, starts)], end)
    has_phrase = _contains(text, NAVIGATION_PHRASES, starts, last, lower=True)
    flags = {
        "navigation": has_phrase & (last - starts < _MAX_NAVIGATION_CHARACTERS),
        "urls": _contains(text, ("://", "www."), starts, last),
        "symbols": (2 * num_letters < num_nonblank) & (num_nonblank >= _MIN_SYMBOL_CHARACTERS),
        "unended": (end & _LINE_END) == 0,
    }
    has_next = np.zeros(len(starts), dtype=bool)
    has_next[:-1] = (owner[1:] == owner[:-1]) & (np.diff(index) == 1)
    next_first = np.zeros(len(starts), dtype=np.uint8)
    next_first[:-1] = marks[starts[1:]]
    is_unspaced = ((next_first & _UNSPACED) > 0) & ((end & _UNSPACED) > 0)
    continues = ((next_first & _LOWERCASE) > 0) | is_unspaced
    is_wrapped = has_next & ((end & _SENTENCE_END) == 0) & continues
    return WindowLines(starts, last + 1, owner, index, flags, is_wrapped, has_next)


class LineCheck:
    """Count lines: lengths, boilerplate with examples, and line ends inside sentences.

    Attributes:
        lengths: The distribution of line lengths in characters.
        num_breaks: Line ends within documents, between lines that are not blank.
        num_wrapped: Line ends inside sentences.
    """

    def __init__(self) -> None:
        self.lengths = Histogram()
        self.num_breaks = self.num_wrapped = 0
        self._lines: Counter[str] = Counter()
        self._characters: Counter[str] = Counter()
        self._examples: dict[str, Counter[str]] = {name: Counter() for name in BOILERPLATE}

    def update(self, lines: WindowLines, text: str) -> None:
        """Count the lines of a window."""
        lengths = lines.stops - lines.starts
        self.lengths.add(lengths)
        self.num_breaks += int(lines.has_next.sum())
        self.num_wrapped += int(lines.is_wrapped.sum())
        is_any = np.zeros(len(lengths), dtype=bool)
        for name, flag in lines.flags.items():
            is_any |= flag
            self._lines[name] += int(flag.sum())
            self._characters[name] += int(lengths[flag].sum())
            examples = self._examples[name]
            for i in np.flatnonzero(flag)[:_MAX_FLAGGED_EXAMPLES].tolist():
                examples[_excerpt(text, lines.starts[i], lines.stops[i])] += 1
            if len(examples) > _MAX_EXAMPLES:
                self._examples[name] = Counter(dict(examples.most_common(_NUM_KEPT_EXAMPLES)))
        self._lines["any"] += int(is_any.sum())
        self._characters["any"] += int(lengths[is_any].sum())

    def boilerplate(self) -> dict[str, Any]:
        """Return the lines, their shares, and the most frequent examples of each kind of boilerplate."""
        num_lines, num_characters = max(1, self.lengths.count), max(1, self.lengths.total)

        def shares(name: str) -> dict[str, Any]:
            return {
                "lines": self._lines[name],
                "share_of_lines": round(self._lines[name] / num_lines, 6),
                "share_of_characters": round(self._characters[name] / num_characters, 6),
            }

        by_name = {
            name: shares(name) | {"examples": [[text, n] for text, n in self._examples[name].most_common(5)]}
            for name in BOILERPLATE
        }
        return {"any": shares("any"), **by_name}


class RepeatedLines:
    """Count the occurrences of each distinct line, and the documents with it, in bounded memory.

    Memory: 28 bytes per distinct line, and as much again while runs are merged. Beyond `capacity` distinct lines,
    only those stay whose hash is in the lower half, then in the lowest quarter, and so on: a uniform sample of the
    distinct lines, from which the counts are estimated (distinct sampling, Gibbons 2001).
    """

    def __init__(self, capacity: int = 4_000_000) -> None:
        self._capacity = capacity
        self._halvings = 0
        self._lines = SortedHashMap(
            {"times": np.uint32, "documents": np.uint32, "length": np.uint32, "location": np.uint64},
            summed=("times", "documents"),
        )
        self._excerpts: dict[int, str] = {}

    def update(
        self,
        hashes: HashArray,
        locations: HashArray,
        lines: WindowLines,
        text: str,
        is_start: NDArray[np.bool_],
    ) -> None:
        """Count the lines of a window.

        Args:
            hashes: The hash of each line, uint64 [L].
            locations: The packed location of each line, uint64 [L].
            lines: The lines.
            text: The characters of the window.
            is_start: bool [T], True for texts that start a document; only the first part of a long document counts
                as a document with the line.
        """
        is_sampled = hashes < self._limit() if self._halvings else np.ones(len(hashes), dtype=bool)
        hashes, locations, owners = hashes[is_sampled], locations[is_sampled], lines.owner[is_sampled]
        starts, stops = lines.starts[is_sampled], lines.stops[is_sampled]
        lengths = stops - starts
        if not len(hashes):
            return
        order = np.argsort(hashes, kind="stable")
        sorted_hashes, sorted_owners = hashes[order], owners[order]
        is_first = np.concatenate([[True], sorted_hashes[1:] != sorted_hashes[:-1]])
        # Owners ascend within equal hashes.
        is_new_owner = is_first | np.concatenate([[True], sorted_owners[1:] != sorted_owners[:-1]])
        first = np.flatnonzero(is_first)
        self._lines.add(
            sorted_hashes,
            {
                "times": np.ones(len(order)),
                "documents": is_new_owner & is_start[sorted_owners],
                "length": lengths[order],
                "location": locations[order],
            },
        )
        self._store_excerpts(sorted_hashes[first], starts[order[first]], stops[order[first]], text)
        while len(self._lines) > self._capacity:
            self._halvings += 1
            self._lines.drop_from(self._limit())
            self._excerpts = {k: v for k, v in self._excerpts.items() if k < self._limit()}

    @property
    def sampled_fraction(self) -> float:
        """Return the fraction of the distinct lines that is counted."""
        return 1 / (1 << self._halvings)

    def _limit(self) -> np.uint64:
        return np.uint64(1 << (64 - self._halvings))

    def _store_excerpts(self, hashes: HashArray, starts: IntArray, stops: IntArray, text: str) -> None:
        for i in np.flatnonzero(self._lines.lookup(hashes, "times") > 1).tolist():
            self._excerpts.setdefault(int(hashes[i]), _excerpt(text, starts[i], stops[i]))
        if len(self._excerpts) > _MAX_EXCERPTS:
            keys = np.fromiter(self._excerpts, dtype=np.uint64, count=len(self._excerpts))
            times = self._lines.lookup(keys, "times")
            top = keys[np.lexsort((keys, -times))[:_NUM_KEPT_EXCERPTS]].tolist()
            self._excerpts = {key: self._excerpts[key] for key in top}

    def summary(
        self, num_lines: int, num_characters: int, unpack: Callable[[int], str], limit: int
    ) -> dict[str, Any]:
        """Return the repeated lines for a report.

        Args:
            num_lines: Lines in the corpus.
            num_characters: Characters in the lines of the corpus.
            unpack: A function that returns the location for its packed number.
            limit: The most examples to list.
        """
        lines = self._lines.merged()
        times, documents = (lines.columns[name].astype(np.int64) for name in ("times", "documents"))
        locations, lengths = lines.columns["location"], lines.columns["length"].astype(np.int64)
        scale = 1 << self._halvings
        is_repeated, in_many = times > 1, documents >= _MIN_DOCUMENTS
        extra = times[is_repeated] - 1
        extra_characters = int((extra * lengths[is_repeated]).sum()) * scale
        many_characters = int((times[in_many] * lengths[in_many]).sum()) * scale
        score = np.where(is_repeated, (times - 1) * lengths, 0)
        top = [i for i in np.lexsort((locations, -score))[: 4 * limit].tolist() if score[i] > 0][:limit]
        return {
            "distinct": len(lines.keys) * scale,
            "repeated": int(is_repeated.sum()) * scale,
            "occurrences_too_many": int(extra.sum()) * scale,
            "share_of_lines": round(min(1.0, int(extra.sum()) * scale / max(1, num_lines)), 6),
            "share_of_characters": round(min(1.0, extra_characters / max(1, num_characters)), 6),
            "in_many_documents": {
                "documents_at_least": _MIN_DOCUMENTS,
                "lines": int(in_many.sum()) * scale,
                "share_of_characters": round(min(1.0, many_characters / max(1, num_characters)), 6),
            },
            "estimated_from_share": 1 / scale,
            "examples": [
                {
                    "text": self._excerpts.get(int(lines.keys[i]), ""),
                    "times": int(times[i]),
                    "documents": max(1, int(documents[i])),
                    "first": unpack(int(locations[i])),
                }
                for i in top
            ],
        }


def line_hashes(codes: NDArray[np.uint32], lines: WindowLines) -> HashArray:
    """Return a hash of each line without surrounding white space, uint64 [L]."""
    return hashing.span_hashes(codes, lines.starts, lines.stops)


def _excerpt(text: str, start: int, stop: int) -> str:
    return printable(text[start : min(stop, start + _EXCERPT_CHARACTERS)])


def _contains(
    text: str, phrases: tuple[str, ...], starts: IntArray, last: IntArray, lower: bool = False
) -> NDArray[np.bool_]:
    """Return True for each line that contains one of the phrases, bool [L]."""
    result = np.zeros(len(starts), dtype=bool)
    # İ is the only character whose lower case is longer, which would shift positions.
    searched = text.replace("\u0130", "I").lower() if lower else text
    for phrase in phrases:
        starts_with_letter = phrase[0].isascii() and phrase[0].isalpha()
        position = searched.find(phrase)
        while position >= 0:
            line = int(np.searchsorted(starts, position, side="right")) - 1
            if line < 0:
                break
            # A phrase starts at the start of a word: "sign in" is not in "design in".
            if position == 0 or not (starts_with_letter and searched[position - 1].isalpha()):
                result[line] = True
                position = int(last[line])
            position = searched.find(phrase, position + 1)
    return result


@cache
def _mark_table() -> NDArray[np.uint8]:
    """Return, by code point, bits that describe its role at the ends of lines."""
    table = np.zeros(0x110000, dtype=np.uint8)
    unspaced = np.zeros(0x110000, dtype=bool)
    for part in UNSPACED:
        unspaced[part.start : part.stop] = True
    for code in range(0x323B0):
        character = chr(code)
        if character.isalpha() or unicodedata.category(character)[0] == "M":
            lowercase = _LOWERCASE if character.islower() else 0
            table[code] = _LETTER | lowercase | (_UNSPACED if unspaced[code] else 0)
        elif character.isspace() or code == 0xFEFF:
            table[code] = _BLANK
    for mark, characters in ((_LINE_END, _LINE_ENDS), (_SENTENCE_END, _SENTENCE_ENDS), (_CLOSER, _CLOSERS)):
        for character in characters:
            table[ord(character)] |= mark
    return table
