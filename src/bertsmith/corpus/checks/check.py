"""What is wrong with a corpus, before hours are spent on it: one pass over the files, in bounded memory.

Kept are counts, hashes and sketches, never texts: 28 bytes a distinct line (at most 4 million, then a sample of
them), about 40 bytes a document for exact repetitions and 800 for near ones (at most 500,000 remembered), and the
windows of a million characters that are looked at.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from bertsmith.corpus import hashing
from bertsmith.corpus.checks.characters import Characters, Languages, as_shares
from bertsmith.corpus.checks.document_window import TextWindow, together
from bertsmith.corpus.checks.file_errors import PLACES, FaultsByFile
from bertsmith.corpus.checks.findings import findings
from bertsmith.corpus.checks.histogram import Found
from bertsmith.corpus.checks.leakage import Leakage
from bertsmith.corpus.checks.lines import LineFacts, RepeatedLines, find_lines, line_hashes
from bertsmith.corpus.checks.structure import DocumentFacts, judge
from bertsmith.corpus.checks.tokens import TokenFacts
from bertsmith.corpus.deduplication import Duplicates, Places
from bertsmith.corpus.sentence_splitter import guessed_language, split
from bertsmith.errors import InputError
from bertsmith.formatting import counted
from bertsmith.io.encodings import remedy_of
from bertsmith.io.files import Document, Notes, Reading, Reject, find_files, read_documents
from bertsmith.tokenizer.tokenizer import Tokenizer

_NEAR_CAPACITY = 500_000
_LINE_CAPACITY = 4_000_000
_STRANGE = 1 << 14  # bytes of lines that are not UTF-8, to guess their encoding by
_CLUSTERS = 10_000  # of repeated documents that are told apart
_UNREADABLE = "cannot be read to its end"


@dataclass(frozen=True)
class CheckOptions:
    """How much is looked at and listed.

    sample: bytes of text to look at, shared out over the files (None: all). listed: places a finding.
    """

    reading: Reading = field(default_factory=Reading)
    language: str | None = None
    ngram: int = 13
    threshold: float = 0.8
    sample: int | None = None
    listed: int = 20


def check(
    files: Sequence[str | Path],
    options: CheckOptions | None = None,
    *,
    tokenizer: Tokenizer | str | Path | None = None,
    against: Sequence[str | Path] = (),
    progress: Callable[[int], None] | None = None,
) -> dict[str, Any]:
    """Look through a corpus; returns the report, a document of plain values: `findings` (the worst first) and the
    facts behind them. The same files give the same report.

    tokenizer: also count its tokens, unknowns and pieces. against: task files that the corpus should not hold.
    progress: hears the bytes of text done so far.

    Raises `InputError` for files that are missing; what cannot be read inside of one is reported.
    """
    options = options or CheckOptions()
    if tokenizer is not None and not isinstance(tokenizer, Tokenizer):
        tokenizer = Tokenizer.load(tokenizer)
    encoding = options.reading.encoding
    whole = _Pass(
        options,
        TokenFacts(tokenizer) if tokenizer is not None else None,
        Leakage(find_files(against), options.ngram, encoding=encoding) if against else None,
        progress or (lambda done: None),
    )
    found = [str(file) for file in find_files(files, whole.notes)]
    whole.read(found)
    report = whole.report(found)
    return {"findings": findings(report), **report}


class _Pass:
    """All that is counted on the way through the files."""

    def __init__(
        self,
        options: CheckOptions,
        tokens: TokenFacts | None,
        leakage: Leakage | None,
        progress: Callable[[int], None],
    ) -> None:
        self._options, self._tokens, self._leakage, self._progress = options, tokens, leakage, progress
        self._language = options.language
        limit = options.listed
        self._faults, self._records, self._unreadable = Found(limit), Found(limit), Found(limit)
        self._fault_lines = self._bytes = self._words = 0
        self._strange = b""  # some lines that are not UTF-8
        self._cut_short: list[str] = []
        self.notes = Notes()
        self._by_file = FaultsByFile(min(limit, PLACES))
        self._characters, self._languages = Characters(limit, self._by_file), Languages()
        self._documents, self._lines = DocumentFacts(limit), LineFacts()
        self._repeated, self._places = RepeatedLines(_LINE_CAPACITY), Places()
        self._exact = _Repetitions(Duplicates("exact"), limit)
        self._near = _Repetitions(Duplicates("near", options.threshold, _NEAR_CAPACITY), limit)
        self._missing: list[
            int
        ] = []  # lines of this file that could not be read: text below stands further down
        self._in_parts = 0

    def read(self, files: Sequence[str]) -> None:
        """Look through the files. What one leaves of its share of a sample goes to those behind it."""
        for position, file in enumerate(files):
            sample = self._options.sample
            stop = None if sample is None else self._bytes + (sample - self._bytes) // (len(files) - position)
            self._missing = []
            try:
                found = read_documents([file], self._options.reading, reject=self._reject, notes=self.notes)
                for documents in together(found, partial(self._room, stop)):
                    self._look(file, documents)
                    self._progress(self._bytes)
                    if stop is not None and self._bytes >= stop:
                        self._cut_short.append(file)
                        break
            except InputError as error:
                self._unreadable.add({"place": file, "reason": error.sentence})
                self._by_file.add(file, _UNREADABLE, file, told=error.sentence)
            self._documents.close()

    def _room(self, stop: int | None) -> int:
        """Characters to look at together, before as many bytes as `stop` were seen."""
        return hashing.WINDOW if stop is None else min(stop - self._bytes, hashing.WINDOW)

    def _reject(self, reject: Reject) -> None:
        if reject.line is None:
            self._unreadable.add({"place": reject.file, "reason": reject.reason})
            self._by_file.add(reject.file, _UNREADABLE, reject.file, told=reject.reason)
            return
        self._missing.append(reject.line)
        place = f"{reject.file}:{reject.line}"
        if not reject.reason.endswith("is not UTF-8"):
            self._records.add({"place": place, "reason": reject.reason})
            self._by_file.add(reject.file, "lines or rows that cannot be read", place, told=reject.reason)
            return
        # Each byte that is not UTF-8 becomes one half character here, and nothing else does.
        line = reject.raw.decode("utf-8", "surrogateescape")
        bad = [i for i, character in enumerate(line) if "\udc80" <= character <= "\udcff"]
        self._fault_lines += 1
        if len(self._strange) < _STRANGE:
            self._strange += reject.raw[:_STRANGE] + b"\n"
        reason = reject.reason.partition(": ")[2] or reject.reason
        place = f"{place}:{bad[0] + 1 if bad else 1}"
        self._faults.add({"place": place, "reason": reason}, max(1, len(bad)))
        byte = f"0x{ord(line[bad[0]]) - 0xDC00:02X}" if bad else ""
        self._by_file.add(reject.file, "bytes that are not UTF-8", place, max(1, len(bad)), byte)

    def _look(self, file: str, documents: list[Document]) -> None:
        texts = [document.text for document in documents]
        if self._language is None:
            self._language = guessed_language(texts)
        number = np.zeros(len(texts), dtype=np.int64)
        sentences: list[list[str]] = [[] for _ in texts]
        for first, group, offset in hashing.windows(texts):
            some = slice(first, first + len(group))
            window = TextWindow(file, documents[some], group, offset, self._missing)
            number[some] += np.diff(window.words.bounds)
            for i, part in enumerate(group, start=first):
                found = split(part, self._language)
                sentences[i] += found
                if self._tokens is not None:
                    self._tokens.add(found)
            self._count(file, window)
        for i, document in enumerate(documents):
            self._documents.add(file, document, sentences[i], int(number[i]))
        self._documents.sentence_lengths.add([len(s) for found in sentences for s in found])
        self._bytes += sum(len(text.encode("utf-8", "surrogatepass")) for text in texts)
        self._in_parts += sum(document.part == 1 for document in documents)
        whole = [document for i, document in enumerate(documents) if number[i] and document.part == 0]
        self._near.add(self._exact.add(whole))

    def _count(self, file: str, window: TextWindow) -> None:
        """Count what stands in a window."""
        codes, words, text = window.codes, window.words, window.text
        self._words += len(words.hashes)
        self._characters.add(codes, text, window.place, file)
        self._languages.add(codes, window.bounds, words)
        lines = find_lines(codes, window.bounds, text)
        self._lines.add(lines, text)
        lines = window.uncut(lines)
        places = window.line_places(lines, self._places)
        self._repeated.add(line_hashes(codes, lines), places, lines, text, window.begun)
        if self._leakage is not None:
            self._leakage.add(words, text, window.place)

    def report(self, files: list[str]) -> dict[str, Any]:
        """The facts, as plain values."""
        self._documents.finish()
        lines = self._lines.lengths
        documents = self._documents.summary()
        limit = self._options.listed
        report: dict[str, Any] = {
            "files": files,
            "bytes": self._bytes,
            "words": self._words,
            "language": self._language or "en",
            "documents_are": self._options.reading.documents,
            "encoding": {
                "bytes": self._faults.number,
                "lines": self._fault_lines,
                "places": self._faults.places,
                "remedy": remedy_of(self._strange) if self._strange else None,
            },
            "left_out": self.notes.record() | {"kinds": self.notes.kinds()},
            "delimiters": self.notes.delimiters,
            "records": self._records.summary(),
            "unreadable": self._unreadable.summary(),
            "faults_by_file": self._by_file.summary(),
            "characters": {
                "number": self._documents.characters.total,
                "kinds": {name: found.summary() for name, found in self._characters.kinds.items()},
                "mojibake": self._characters.mojibake.summary(),
                "classes": as_shares(self._characters.classes()),
            },
            "documents": documents,
            "lines": {
                "lengths": lines.summary(),
                "repeated": self._repeated.summary(lines.number, lines.total, self._places.name, limit),
                "boilerplate": self._lines.boilerplate(),
            },
            "duplicates": {
                "exact": self._exact.summary(self._documents.characters.total),
                "near": self._near.summary(self._documents.characters.total)
                | {"threshold": self._options.threshold, "shingle_words": 5},
            },
            "scripts": as_shares(self._characters.scripts()),
            "languages": as_shares(
                dict(sorted(self._languages.characters.items(), key=lambda i: (-i[1], i[0])))
            ),
            "structure": judge(
                self._documents,
                lines,
                self._lines.wrapped,
                self._lines.breaks,
                self._options.reading.documents,
                self._language or "en",
            ),
            "limits": self._limits(),
        }
        if self._tokens is not None:
            report["tokenizer"] = self._tokens.summary()
        if self._leakage is not None:
            report["against"] = self._leakage.summary()
        return report

    def _limits(self) -> list[str]:
        """What was not looked at, or only estimated, in a sentence each."""
        told = [
            f"at most {counted(self._options.listed, 'place')} listed of each finding, {self._by_file.limit} of "
            "each fault in a file"
        ]
        if self._cut_short:
            told.append(
                f"a sample: the first {self._bytes / 1e6:,.1f} MB of text, shared out over the files; "
                f"{counted(len(self._cut_short), 'file')} not read to the end"
            )
        if self._in_parts:
            told.append(
                f"{counted(self._in_parts, 'document')} too long to be held whole: only the first part is compared"
            )
        if self._near.number:
            told.append(
                "near repetitions are judged by an estimate of the share of common runs of five words, whose "
                "standard deviation is some 0.025"
            )
        if left := self._near.duplicates.not_remembered:
            told.append(
                f"near repetitions were looked for among the first {_NEAR_CAPACITY:,} different documents; "
                f"{left:,} later ones were compared with those but not with each other"
            )
        if (share := self._repeated.share) < 1:
            told.append(
                f"repeated lines are estimated from a sample of 1/{round(1 / share)} of the distinct lines"
            )
        return told


class _Repetitions:
    """Documents that repeat an earlier one, in clusters around the first of each."""

    def __init__(self, duplicates: Duplicates, limit: int) -> None:
        self.duplicates, self._limit = duplicates, limit
        self.number = self._characters = 0
        self._sizes: Counter[str] = Counter()
        self._members: dict[str, list[str]] = {}

    def add(self, documents: list[Document]) -> list[Document]:
        """Compare documents with all before; returns those that repeat none."""
        fresh: list[Document] = []
        found = self.duplicates.first_seen_many([d.text for d in documents], [d.place for d in documents])
        for document, earlier in zip(documents, found, strict=True):
            if earlier is None:
                fresh.append(document)
                continue
            self.number += 1
            self._characters += len(document.text)
            if earlier in self._members or len(self._members) < _CLUSTERS:
                self._sizes[earlier] += 1
                members = self._members.setdefault(earlier, [])
                if len(members) < self._limit:
                    members.append(document.place)
        return fresh

    def summary(self, characters: int) -> dict[str, Any]:
        """Documents that repeat another one, their share of the text, and the largest clusters."""
        top = sorted(self._sizes, key=lambda first: -self._sizes[first])[: self._limit]
        return {
            "number": self.number,
            "share_of_characters": round(self._characters / max(1, characters), 6),
            "clusters": [
                {"first": first, "repeated": self._sizes[first], "places": self._members[first]}
                for first in top
            ],
            "not_remembered": self.duplicates.not_remembered,
        }
