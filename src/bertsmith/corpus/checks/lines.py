"""Check lines: repeated, boilerplate, and hard-wrapped ones."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from bertsmith.corpus.checks.document_window import DocumentWindow
from bertsmith.corpus.checks.histogram import Histogram, printable
from bertsmith.corpus.near_duplicates import hash_text
from bertsmith.io.unicode_scripts import UNSPACED

_LINE_ENDS = frozenset(".!?…:;。！？：；।؟۔։።")
_SENTENCE_ENDS = frozenset(".!?…。！？।؟۔։።")
_CLOSERS = "\"'”’»«)]}」』）】》〉〕›"
_MIN_SYMBOL_CHARACTERS = 8  # “No.” is prose.
_JUDGED_CHARACTERS = 200  # whose letters and symbols are counted
_MAX_NAVIGATION_CHARACTERS = 200  # A longer line is prose, even with a phrase of navigation.
_MIN_DOCUMENTS = 3  # documents with the same line
_EXCERPT_CHARACTERS = 80
# From more than the first number of examples, the second number of the most frequent are kept.
_MAX_EXAMPLES, _NUM_KEPT_EXAMPLES = 4096, 1024
_MAX_PENDING_LINES = 100_000  # counted at once
_PHRASES = (
    "accept cookies", "all cookies", "cookie policy", "uses cookies", "use cookies", "privacy policy",
    "terms of use", "terms of service", "all rights reserved", "click here", "read more", "sign in", "sign up",
    "log in", "subscribe to", "skip to content", "share this", "follow us", "back to top", "add to cart",
    "newsletter", "enable javascript", "page not found", "datenschutz", "alle rechte vorbehalten",
    "tous droits réservés", "todos los derechos reservados",
)  # fmt: skip
_NAVIGATION = re.compile(rf"\b(?:{'|'.join(_PHRASES)})|版权所有|隐私政策|点击这里")
_LETTERS = re.compile(r"[^\W\d_]+")
_UNSPACED = re.compile("[" + "".join(f"{chr(part.start)}-{chr(part.stop - 1)}" for part in UNSPACED) + "]")
# Short lines with words of navigation and cookie notes, lines with a web address, lines that are mostly digits and
# symbols, and lines without punctuation at their end.
BOILERPLATE = ("navigation", "urls", "symbols", "unended")


def boilerplate_kinds(line: str) -> list[str]:
    """Return the kinds of boilerplate that a line without surrounding white space belongs to."""
    characters = "".join(line[:_JUDGED_CHARACTERS].split())
    is_kind = {
        "navigation": len(line) <= _MAX_NAVIGATION_CHARACTERS and _NAVIGATION.search(line.lower()),
        "urls": "://" in line or "www." in line,
        "symbols": len(characters) >= _MIN_SYMBOL_CHARACTERS
        and 2 * len(_LETTERS.sub("", characters)) > len(characters),
        "unended": line.rstrip(_CLOSERS)[-1:] not in _LINE_ENDS,
    }
    return [kind for kind in BOILERPLATE if is_kind[kind]]


def _is_wrapped(line: str, next_line: str) -> bool:
    """Return True if the sentence at the end of a line continues in the next line."""
    end = line.rstrip(_CLOSERS)[-1:]
    if end in _SENTENCE_ENDS:
        return False
    return next_line[0].islower() or bool(_UNSPACED.match(end) and _UNSPACED.match(next_line))


class LineCheck:
    """Count lines: lengths, repetitions, boilerplate with examples, and line ends inside sentences.

    Attributes:
        lengths: The distribution of line lengths in characters.
        repeated: The distinct lines.
        num_breaks: Line ends within documents, between lines that are not blank.
        num_wrapped: Line ends inside sentences.
    """

    def __init__(self) -> None:
        self.lengths = Histogram()
        self.repeated = RepeatedLines()
        self.num_breaks = self.num_wrapped = 0
        self._lines: Counter[str] = Counter()
        self._characters: Counter[str] = Counter()
        self._examples: dict[str, Counter[str]] = {name: Counter() for name in BOILERPLATE}

    def update(self, window: DocumentWindow) -> None:
        """Count the lines of some documents."""
        for document in window.documents:
            previous = ""
            first_locations: dict[str, str] = {}
            lines: list[str] = []
            for location, line in window.lines(document):
                line = line.strip()
                if line:
                    lines.append(line)
                    first_locations.setdefault(line, location)
                    self._count_boilerplate(line)
                    if previous:
                        self.num_breaks += 1
                        self.num_wrapped += _is_wrapped(previous, line)
                previous = line
            self.lengths.add(map(len, lines))
            times = Counter(lines)
            for line, location in first_locations.items():
                self.repeated.add(line, location, times[line], document.part == 0)

    def _count_boilerplate(self, line: str) -> None:
        if kinds := boilerplate_kinds(line):
            for kind in kinds:
                examples = self._examples[kind]
                examples[line[:_EXCERPT_CHARACTERS]] += 1
                if len(examples) > _MAX_EXAMPLES:
                    self._examples[kind] = Counter(dict(examples.most_common(_NUM_KEPT_EXAMPLES)))
            self._lines.update([*kinds, "any"])
            self._characters.update(dict.fromkeys([*kinds, "any"], len(line)))

    def boilerplate(self) -> dict[str, Any]:
        """Return the lines, their shares, and the most frequent examples of each kind of boilerplate."""
        num_lines, num_characters = max(1, self.lengths.count), max(1, self.lengths.total)
        report: dict[str, Any] = {
            name: {
                "lines": self._lines[name],
                "share_of_lines": round(self._lines[name] / num_lines, 6),
                "share_of_characters": round(self._characters[name] / num_characters, 6),
            }
            for name in ("any", *BOILERPLATE)
        }
        for name, examples in self._examples.items():
            report[name]["examples"] = [[printable(text), n] for text, n in examples.most_common(5)]
        return report


class RepeatedLines:
    """Count the occurrences of each distinct line, and the documents with it, in bounded memory.

    Memory: about 160 bytes per distinct line, and as much again while lines are added up. Beyond `capacity`
    distinct lines, only those stay whose hash is in the lower half, then in the lowest quarter, and so on: a
    uniform sample of the distinct lines, from which the counts are estimated (distinct sampling, Gibbons 2001).
    """

    def __init__(self, capacity: int = 1_000_000) -> None:
        self._capacity = capacity
        self._num_halvings = 0
        self._columns: dict[str, tuple[pa.DataType, str]] = {
            "times": (pa.int64(), "sum"),
            "documents": (pa.int64(), "sum"),
            "length": (pa.int64(), "first"),
            "text": (pa.string(), "first"),
            "location": (pa.string(), "first"),
        }
        self._schema = pa.schema(
            [("hash", pa.uint64()), *((name, dtype) for name, (dtype, _) in self._columns.items())]
        )
        self._lines = self._schema.empty_table()
        self._pending: list[tuple[int, int, int, int, str, str]] = []

    def add(self, line: str, location: str, times: int, is_start: bool) -> None:
        """Count a line that occurs `times` times in a document, or in a further part of it if not `is_start`."""
        excerpt = printable(line[:_EXCERPT_CHARACTERS])
        self._pending.append((hash_text(line), times, int(is_start), len(line), excerpt, location))
        if len(self._pending) >= _MAX_PENDING_LINES:
            self._count_pending()

    def _count_pending(self) -> None:
        columns = zip(*self._pending, strict=True) if self._pending else [()] * len(self._schema)
        pending = pa.table(list(map(list, columns)), schema=self._schema)
        self._pending.clear()
        aggregates = [(name, function) for name, (_, function) in self._columns.items()]
        lines = pa.concat_tables([self._lines, pending]).group_by("hash", use_threads=False)
        names = ["hash", *(f"{name}_{function}" for name, function in aggregates)]
        self._lines = lines.aggregate(aggregates).select(names).rename_columns(self._schema.names)
        while True:
            limit = pa.scalar((1 << (64 - self._num_halvings)) - 1, pa.uint64())
            self._lines = self._lines.filter(pc.less_equal(self._lines["hash"], limit))
            if len(self._lines) <= self._capacity:
                return
            self._num_halvings += 1

    @property
    def sampled_fraction(self) -> float:
        """Return the fraction of the distinct lines that is counted."""
        return 1 / (1 << self._num_halvings)

    def summary(self, num_lines: int, num_characters: int, limit: int) -> dict[str, Any]:
        """Return the repeated lines for a report.

        Args:
            num_lines: Lines in the corpus.
            num_characters: Characters in the lines of the corpus.
            limit: The most examples to list.
        """
        self._count_pending()
        columns = self._lines.select(["times", "documents", "length"])
        times, documents, lengths = (column.to_numpy() for column in columns.columns)
        scale = 1 << self._num_halvings
        is_repeated, in_many = times > 1, documents >= _MIN_DOCUMENTS

        def share(characters: NDArray[np.int64]) -> float:
            return round(min(1.0, int(characters.sum()) * scale / max(1, num_characters)), 6)

        extra = times - 1
        num_extra = int(extra.sum()) * scale
        top = np.argsort(-extra * lengths, kind="stable")[:limit]
        examples = self._lines.select(["text", "times", "documents", "location"]).take(top[is_repeated[top]])
        return {
            "distinct": len(times) * scale,
            "repeated": int(is_repeated.sum()) * scale,
            "occurrences_too_many": num_extra,
            "share_of_lines": round(min(1.0, num_extra / max(1, num_lines)), 6),
            "share_of_characters": share(extra * lengths),
            "in_many_documents": {
                "documents_at_least": _MIN_DOCUMENTS,
                "lines": int(in_many.sum()) * scale,
                "share_of_characters": share((times * lengths)[in_many]),
            },
            "examples": examples.rename_columns(["text", "times", "documents", "first"]).to_pylist(),
        }
