"""Lines of a corpus: which recur, which look like navigation and not like prose, which were wrapped by force."""

from __future__ import annotations

import unicodedata
from collections import Counter
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertsmith.corpus import hashing
from bertsmith.corpus.checks.characters import shown
from bertsmith.corpus.checks.histogram import Distribution
from bertsmith.corpus.hashing import Hashes, Ints
from bertsmith.corpus.sorted_hash_map import SortedRuns
from bertsmith.io.unicode_scripts import UNSPACED

_ENDS = ".!?…:;。！？：；।؟۔։።"
_SENTENCE_ENDS = ".!?…。！？।؟۔։።"
_CLOSERS = "\"'”’»«)]}」』）】》〉〕›"
_BLANK, _LETTER, _LOWER, _END, _SENTENCE_END, _CLOSER, _UNSPACED = 1, 2, 4, 8, 16, 32, 64
_LEAST_SIGNS = 8  # characters: “No.” is prose
_SHORT = 200  # characters: a longer line is prose, whatever phrase stands in it
_MANY_DOCUMENTS = 3  # a line that stands in so many documents recurs
_EXCERPT = 80
PHRASES = (
    "accept cookies", "all cookies", "cookie policy", "uses cookies", "use cookies", "privacy policy",
    "terms of use", "terms of service", "all rights reserved", "click here", "read more", "sign in", "sign up",
    "log in", "subscribe to", "skip to content", "share this", "follow us", "back to top", "add to cart",
    "newsletter", "enable javascript", "page not found", "datenschutz", "alle rechte vorbehalten",
    "tous droits réservés", "todos los derechos reservados", "版权所有", "隐私政策", "点击这里",
)  # fmt: skip
KINDS = {
    "navigation": "short lines with words of navigation and cookie notes",
    "urls": "lines with a web address",
    "symbols": "lines that are mostly digits and signs",
    "unended": "lines without punctuation at their end",
}


@dataclass(frozen=True)
class WindowLines:
    """The lines of a window that are not blank, trimmed.

    starts, stops: int64 [L], positions in the characters. owner: int64 [L], the text of each. number: int64 [L],
    its line in the text, from 0. flags: bool [L] each, by the names of KINDS; `wrapped` where the next line goes
    on with the sentence, `joined` where the next line stands right below in the same text.
    """

    starts: Ints
    stops: Ints
    owner: Ints
    number: Ints
    flags: dict[str, NDArray[np.bool_]]
    wrapped: NDArray[np.bool_]
    joined: NDArray[np.bool_]

    def part(self, some: slice) -> WindowLines:
        """Some of the lines."""
        flags = {name: flag[some] for name, flag in self.flags.items()}
        return WindowLines(
            self.starts[some],
            self.stops[some],
            self.owner[some],
            self.number[some],
            flags,
            self.wrapped[some],
            self.joined[some],
        )


def find_lines(codes: NDArray[np.uint32], bounds: Ints, text: str) -> WindowLines:
    """The lines of the texts that `code_points` laid end to end; `text` is the same as a string."""
    marks = _marks()[codes]
    ends = np.flatnonzero(codes == 10)
    begins = np.concatenate([[0], ends[:-1] + 1])
    filled = np.flatnonzero(~marks & _BLANK)
    before = np.searchsorted(filled, begins)
    behind = np.searchsorted(filled, ends)
    kept = behind > before
    starts, last = filled[before[kept]], filled[behind[kept] - 1]
    owner = np.searchsorted(bounds, begins[kept], side="right") - 1
    number = np.flatnonzero(kept) - np.searchsorted(ends, bounds[owner])
    letters = np.concatenate([[0], np.cumsum((marks & _LETTER) > 0)])
    filled_number = (behind - before)[kept]
    letter_number = letters[last + 1] - letters[starts]
    end = marks[last]
    for back in (1, 2):  # a full stop may stand before closing quotes and brackets
        closer = (end & _CLOSER) > 0
        end = np.where(closer, marks[np.maximum(last - back, starts)], end)
    flags = {
        "navigation": _with(text, PHRASES, starts, last, lower=True) & (last - starts < _SHORT),
        "urls": _with(text, ("://", "www."), starts, last),
        "symbols": (2 * letter_number < filled_number) & (filled_number >= _LEAST_SIGNS),
        "unended": (end & _END) == 0,
    }
    joined = np.zeros(len(starts), dtype=bool)
    joined[:-1] = (owner[1:] == owner[:-1]) & (np.diff(number) == 1)
    follower = np.zeros(len(starts), dtype=np.uint8)
    follower[:-1] = marks[starts[1:]]
    goes_on = ((follower & _LOWER) > 0) | (((follower & _UNSPACED) > 0) & ((end & _UNSPACED) > 0))
    wrapped = joined & ((end & _SENTENCE_END) == 0) & goes_on
    return WindowLines(starts, last + 1, owner, number, flags, wrapped, joined)


class LineFacts:
    """Sums over all lines: lengths, kinds of boilerplate with examples, line ends inside of sentences."""

    def __init__(self) -> None:
        self.lengths = Distribution()
        self.breaks = self.wrapped = 0
        self.lines: Counter[str] = Counter()
        self.characters: Counter[str] = Counter()
        self._examples: dict[str, Counter[str]] = {kind: Counter() for kind in KINDS}

    def add(self, lines: WindowLines, text: str) -> None:
        """Count the lines of a window."""
        lengths = lines.stops - lines.starts
        self.lengths.add(lengths)
        self.breaks += int(lines.joined.sum())
        self.wrapped += int(lines.wrapped.sum())
        noise = np.zeros(len(lengths), dtype=bool)
        for kind, flag in lines.flags.items():
            noise |= flag
            self.lines[kind] += int(flag.sum())
            self.characters[kind] += int(lengths[flag].sum())
            examples = self._examples[kind]
            for i in np.flatnonzero(flag)[:1000].tolist():
                examples[_excerpt(text, lines.starts[i], lines.stops[i])] += 1
            if len(examples) > 4096:  # of a corpus without end the frequent ones are wanted
                self._examples[kind] = Counter(dict(examples.most_common(1024)))
        self.lines["any"] += int(noise.sum())
        self.characters["any"] += int(lengths[noise].sum())

    def boilerplate(self) -> dict[str, Any]:
        """By kind: how many lines, which share of lines and of characters, the most frequent examples."""
        number, total = max(1, self.lengths.number), max(1, self.lengths.total)

        def shares(kind: str) -> dict[str, Any]:
            return {
                "lines": self.lines[kind],
                "share_of_lines": round(self.lines[kind] / number, 6),
                "share_of_characters": round(self.characters[kind] / total, 6),
            }

        found = {
            kind: shares(kind) | {"examples": [[text, n] for text, n in self._examples[kind].most_common(5)]}
            for kind in KINDS
        }
        return {"any": shares("any"), **found}


class RepeatedLines:
    """Counts how often each distinct line occurs, and in how many documents, in bounded memory.

    28 bytes a distinct line, and as much again while runs are merged. Beyond `capacity` distinct lines only those
    stay whose hash falls into the lower half, then the lowest quarter … : an even sample of the distinct lines, by
    which numbers become estimates (Gibbons 2001, distinct sampling), and are called so.
    """

    def __init__(self, capacity: int = 4_000_000) -> None:
        self._capacity = capacity
        self._halvings = 0
        self._runs = SortedRuns(
            {"times": np.uint32, "documents": np.uint32, "length": np.uint32, "place": np.uint64},
            summed=("times", "documents"),
        )
        self._excerpts: dict[int, str] = {}

    def add(
        self, hashes: Hashes, places: Hashes, lines: WindowLines, text: str, begun: NDArray[np.bool_]
    ) -> None:
        """Count the lines of a window. hashes, places: uint64 [L]. begun: bool [T], which texts are a document's
        beginning: of a long one only the first part counts as a document that holds the line."""
        kept = hashes < self._limit() if self._halvings else np.ones(len(hashes), dtype=bool)
        hashes, places, documents = hashes[kept], places[kept], lines.owner[kept]
        starts, stops = lines.starts[kept], lines.stops[kept]
        lengths = stops - starts
        if not len(hashes):
            return
        order = np.argsort(hashes, kind="stable")
        sorted_hashes, owners = hashes[order], documents[order]
        first = np.concatenate([[True], sorted_hashes[1:] != sorted_hashes[:-1]])
        other = first | np.concatenate([[True], owners[1:] != owners[:-1]])  # owners rise within equal hashes
        begins = np.flatnonzero(first)
        self._runs.add(
            sorted_hashes,
            {
                "times": np.ones(len(order)),
                "documents": other & begun[owners],
                "length": lengths[order],
                "place": places[order],
            },
        )
        self._keep_excerpts(sorted_hashes[begins], starts[order[begins]], stops[order[begins]], text)
        while len(self._runs) > self._capacity:
            self._halvings += 1
            self._runs.keep_below(self._limit())
            self._excerpts = {k: v for k, v in self._excerpts.items() if k < self._limit()}

    @property
    def share(self) -> float:
        """The share of the distinct lines that is still counted."""
        return 1 / (1 << self._halvings)

    def _limit(self) -> np.uint64:
        return np.uint64(1 << (64 - self._halvings))

    def _keep_excerpts(self, hashes: Hashes, starts: Ints, stops: Ints, text: str) -> None:
        for i in np.flatnonzero(self._runs.look_up(hashes, "times") > 1).tolist():
            self._excerpts.setdefault(int(hashes[i]), _excerpt(text, starts[i], stops[i]))
        if len(self._excerpts) > 20_000:
            kept = np.fromiter(self._excerpts, dtype=np.uint64, count=len(self._excerpts))
            top = kept[np.lexsort((kept, -self._runs.look_up(kept, "times")))[:5_000]].tolist()
            self._excerpts = {key: self._excerpts[key] for key in top}

    def summary(self, lines: int, characters: int, name: Any, limit: int) -> dict[str, Any]:
        """What recurs. lines, characters: of the corpus. name: place number → place. limit: examples to list."""
        whole = self._runs.whole()
        times, documents = (whole.columns[name].astype(np.int64) for name in ("times", "documents"))
        places, sizes = whole.columns["place"], whole.columns["length"].astype(np.int64)
        scale = 1 << self._halvings
        repeated, recurring = times > 1, documents >= _MANY_DOCUMENTS
        again = times[repeated] - 1
        recurring_characters = int((times[recurring] * sizes[recurring]).sum()) * scale
        score = np.where(repeated, (times - 1) * sizes, 0)
        top = [i for i in np.lexsort((places, -score))[: 4 * limit].tolist() if score[i] > 0][:limit]
        return {
            "distinct": len(whole.keys) * scale,
            "repeated": int(repeated.sum()) * scale,
            "occurrences_too_many": int(again.sum()) * scale,
            "share_of_lines": round(min(1.0, int(again.sum()) * scale / max(1, lines)), 6),
            "share_of_characters": round(
                min(1.0, int((again * sizes[repeated]).sum()) * scale / max(1, characters)), 6
            ),
            "in_many_documents": {
                "documents_at_least": _MANY_DOCUMENTS,
                "lines": int(recurring.sum()) * scale,
                "share_of_characters": round(min(1.0, recurring_characters / max(1, characters)), 6),
            },
            "estimated_from_share": 1 / scale,
            "examples": [
                {
                    "text": self._excerpts.get(int(whole.keys[i]), ""),
                    "times": int(times[i]),
                    "documents": max(1, int(documents[i])),
                    "first": name(int(places[i])),
                }
                for i in top
            ],
        }


def line_hashes(codes: NDArray[np.uint32], lines: WindowLines) -> Hashes:
    """A hash of each line, blanks at its ends not counted."""
    return hashing.spans(codes, lines.starts, lines.stops)


def _excerpt(text: str, start: int, stop: int) -> str:
    return shown(text[start : min(stop, start + _EXCERPT)])


def _with(
    text: str, phrases: tuple[str, ...], starts: Ints, last: Ints, lower: bool = False
) -> NDArray[np.bool_]:
    """Which lines hold one of the phrases."""
    found = np.zeros(len(starts), dtype=bool)
    # İ is the one character that grows when lower-cased, and positions would move.
    searched = text.replace("\u0130", "I").lower() if lower else text
    for phrase in phrases:
        at = searched.find(phrase)
        while at >= 0:
            line = int(np.searchsorted(starts, at, side="right")) - 1
            if line < 0:
                break
            if at == 0 or not (
                phrase[0].isascii() and phrase[0].isalpha() and searched[at - 1].isalpha()
            ):  # "sign in", not "design in"
                found[line] = True
                at = int(last[line])
            at = searched.find(phrase, at + 1)
    return found


@cache
def _marks() -> NDArray[np.uint8]:
    """By character: bits of what it is at the ends of lines."""
    table = np.zeros(0x110000, dtype=np.uint8)
    unspaced = np.zeros(0x110000, dtype=bool)
    for part in UNSPACED:
        unspaced[part.start : part.stop] = True
    for code in range(0x323B0):
        character = chr(code)
        if character.isalpha() or unicodedata.category(character)[0] == "M":
            table[code] = (
                _LETTER | (_LOWER if character.islower() else 0) | (_UNSPACED if unspaced[code] else 0)
            )
        elif character.isspace() or code == 0xFEFF:
            table[code] = _BLANK
    for mark, characters in ((_END, _ENDS), (_SENTENCE_END, _SENTENCE_ENDS), (_CLOSER, _CLOSERS)):
        for character in characters:
            table[ord(character)] |= mark
    return table
