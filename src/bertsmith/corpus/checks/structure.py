"""Check that a corpus has the documents and sentences that NSP, SOP, and full sentences need."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from bertsmith.corpus.checks.histogram import Histogram, Occurrences
from bertsmith.corpus.checks.lines import LineCheck
from bertsmith.corpus.diagnostics import (
    FULL_SENTENCE_SETTINGS,
    MIN_DOCUMENTS,
    NO_PAIR_SETTINGS,
    NO_VALIDATION_SETTINGS,
    format_settings,
)
from bertsmith.formatting import format_percent, pluralize
from bertsmith.io.documents import Document

_BATCH_DOCUMENTS = 4096  # counted at once
_JOIN_COMMAND = """awk 'BEGIN{{RS="";ORS="\\n\\n"}}{{gsub(/\\n/,"{separator}");print}}' FILE > JOINED"""
_JOIN_LINES = "join the lines of each paragraph first"
MAX_CHARACTERS = 1_000_000  # Longer documents are reported.
_MIN_LINES = 50  # A file with at least this many lines that is one document probably lacks blank lines.
_MIN_LINE_CHARACTERS = 300  # the median from which on lines are texts of several sentences
_MIN_SENTENCES_PER_LINE = 2.5  # the mean from which on lines are paragraphs
_MIN_WRAPPED_RATIO = 0.3  # of line ends inside documents; prose with one paragraph per line has almost none
_MAX_WRAPPED_CHARACTERS = 200  # No hard-wrapped line is longer.
_MIN_BREAKS = 5
_MIN_NSP_DOCUMENTS = 20  # With fewer, a random second segment often comes from a neighboring document.
_MAX_ONE_SENTENCE_RATIO, _GOOD_ONE_SENTENCE_RATIO = 0.5, 0.2


@dataclass
class _FileCounts:
    documents: int = 0
    lines: int = 0


@dataclass
class _OpenDocument:
    """A document with further parts to come."""

    file: str
    location: str
    characters: int = 0
    lines: int = 0
    sentences: int = 0
    words: int = 0


@dataclass
class DocumentCheck:
    """Count documents, and store `limit` locations of each kind of unusual document."""

    limit: int
    characters: Histogram = field(default_factory=Histogram)
    sentences: Histogram = field(default_factory=Histogram)
    sentence_lengths: Histogram = field(default_factory=Histogram)
    num_one_sentence: int = 0
    num_lines: int = 0
    files: dict[str, _FileCounts] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.empty, self.huge, self.one_line = (Occurrences(self.limit) for _ in range(3))
        self._open: _OpenDocument | None = None
        self._waiting: list[tuple[int, int]] = []  # Adding documents one by one takes 0.1 ms each.

    def update(self, file: str, document: Document, sentences: Sequence[str], num_words: int) -> None:
        """Count a document, or a further part of the last one."""
        if document.part == 0 or self._open is None:
            self.close()
            self._open = _OpenDocument(file, document.location)
        self._open.characters += len(document.text) + (document.part > 0)
        self._open.lines += document.text.count("\n") + 1
        self._open.sentences += len(sentences)
        self._open.words += num_words

    def close(self) -> None:
        """End the last document."""
        if (document := self._open) is None:
            return
        self._open = None
        file = self.files.setdefault(document.file, _FileCounts())
        file.documents += 1
        file.lines += document.lines
        self.num_lines += document.lines
        self._waiting.append((document.characters, document.sentences))
        if len(self._waiting) >= _BATCH_DOCUMENTS:
            self._add_waiting()
        self.num_one_sentence += document.sentences == 1
        if document.words == 0:
            self.empty.add(document.location)
        if document.characters > MAX_CHARACTERS:
            self.huge.add(document.location)
        if document.lines == 1:
            self.one_line.add(document.location)

    def _add_waiting(self) -> None:
        if self._waiting:
            characters, sentences = zip(*self._waiting, strict=True)
            self.characters.add(characters)
            self.sentences.add(sentences)
            self._waiting.clear()

    def finish(self) -> None:
        """End the last document and complete the counts."""
        self.close()
        self._add_waiting()

    def summary(self) -> dict[str, Any]:
        """Return the counts for a report, after `finish`."""
        return {
            "number": self.characters.count,
            "lines": self.num_lines,
            "sentences": self.sentences.total,
            "characters": self.characters.summary(),
            "sentences_per_document": self.sentences.summary(),
            "sentence_characters": self.sentence_lengths.summary(),
            "one_sentence": self.num_one_sentence,
            "empty": self.empty.summary(),
            "huge": self.huge.summary() | {"characters_more_than": MAX_CHARACTERS},
            "one_line": self.one_line.summary(),
        }


def assess_structure(
    documents: DocumentCheck, lines: LineCheck, document_unit: str, language: str
) -> dict[str, Any]:
    """Return structural problems and a verdict with a reason for each training objective.

    Args:
        documents: The counts of documents.
        lines: The counts of lines.
        document_unit: The value of `documents` with which files were read ("blank_line", "file", "line").
        language: The language code; "zh" joins lines without a space.
    """
    num_documents, num_sentences = documents.characters.count, documents.sentences.total
    faults = list(_structural_faults(documents, lines, document_unit, language))
    names = {fault["fault"] for fault in faults}
    one_sentence_ratio = documents.num_one_sentence / max(1, num_documents)
    mean_sentences = num_sentences / max(1, num_documents)
    description = (
        f"{pluralize(num_documents, 'document')} of {mean_sentences:,.1f} sentences on average, "
        f"{format_percent(one_sentence_ratio)} of one sentence"
    )
    if num_documents == 1:
        description = f"one document of {pluralize(num_sentences, 'sentence')}"
    return {
        "one_sentence_share": round(one_sentence_ratio, 6),
        "wrapped_share": round(lines.num_wrapped / max(1, lines.num_breaks), 6),
        "faults": faults,
        "nsp": _assess_nsp(num_documents, one_sentence_ratio, names, description),
        "sop": _assess_sop(num_documents, one_sentence_ratio, names, description),
        "full_sentences": _assess_full_sentences(num_sentences, names),
    }


def _structural_faults(
    documents: DocumentCheck, lines: LineCheck, document_unit: str, language: str
) -> Iterator[dict[str, Any]]:
    num_documents = documents.characters.count
    num_wrapped, num_breaks = lines.num_wrapped, lines.num_breaks
    has_short_lines = lines.lengths.quantile(0.95) <= _MAX_WRAPPED_CHARACTERS
    if num_breaks >= _MIN_BREAKS and num_wrapped > _MIN_WRAPPED_RATIO * num_breaks and has_short_lines:
        ratio = num_wrapped / num_breaks
        what = f"lines wrapped inside sentences: {ratio:.0%} of the line ends; each splits a sentence"
        join = _JOIN_COMMAND.format(separator="" if language == "zh" else " ")
        yield _fault("hard_wrapped", what, num_wrapped, "", f"{_JOIN_LINES}: {join}")
    if document_unit == "blank_line":
        names = [
            name for name, file in documents.files.items() if file.documents == 1 and file.lines >= _MIN_LINES
        ]
        if names and len(names) >= 0.5 * len(documents.files):
            has_paragraphs = documents.sentences.total >= _MIN_SENTENCES_PER_LINE * documents.num_lines
            has_long_lines = lines.lengths.quantile(0.5) >= _MIN_LINE_CHARACTERS or has_paragraphs
            what = "files without a blank line: each is one document"
            if has_long_lines:
                what += ", its lines look like documents"
            remedy = _one_document_hint(num_documents, has_long_lines)
            yield _fault("one_document", what, len(names), f"{names[0]}:1", remedy)
    all_one_line = num_documents > 1 and documents.one_line.count == num_documents
    if all_one_line and documents.num_one_sentence > 0.5 * num_documents:
        what, number = "most documents are one line of one sentence", documents.num_one_sentence
        remedy = "read with documents=blank_line if blank lines separate the documents"
        if document_unit == "blank_line":
            remedy = "put blank lines between documents only, not between their lines"
        remedy += f"; or, if each line is a document, train with {format_settings(FULL_SENTENCE_SETTINGS)}"
        yield _fault("sentence_documents", what, number, documents.one_line.locations[0], remedy)


def _fault(name: str, what: str, number: int, first: str, remedy: str) -> dict[str, Any]:
    return {"fault": name, "what": what, "number": number, "first": first, "remedy": remedy}


def _one_document_hint(num_documents: int, has_long_lines: bool) -> str:
    hint = "put a blank line between documents, or between the chapters of a book"
    if has_long_lines:
        hint = "read with documents=line if each line is a document or a paragraph"
    if num_documents >= MIN_DOCUMENTS:
        return f"fine if each file is a document (documents=file); else {hint}"
    return (
        f"{hint}; or train with "
        f"{format_settings(NO_PAIR_SETTINGS if num_documents < 2 else NO_VALIDATION_SETTINGS)}"
    )


def _verdict(level: str, reason: str, hint: str = "") -> dict[str, str]:
    return {"verdict": level, "why": reason, "remedy": hint}


def _assess_nsp(
    num_documents: int, one_sentence_ratio: float, faults: set[str], description: str
) -> dict[str, str]:
    if num_documents < 2:
        hint = "put a blank line between documents, or read with documents=line or documents=file; or train with "
        hint += format_settings(NO_PAIR_SETTINGS)
        return _verdict("unfit", f"{description}; a random next sentence comes from another document", hint)
    if one_sentence_ratio > _MAX_ONE_SENTENCE_RATIO:
        hint = f"give complete documents, or train with {format_settings(FULL_SENTENCE_SETTINGS)}"
        return _verdict("unfit", f"{description}; one sentence has no next one", hint)
    if "hard_wrapped" in faults:
        return _verdict("limited", "lines are split inside sentences", _JOIN_LINES)
    if num_documents < MIN_DOCUMENTS:
        hint = "give more documents, with a blank line between them, or train with "
        hint += format_settings(NO_VALIDATION_SETTINGS)
        return _verdict("limited", f"{description}; too few to hold some out", hint)
    if "one_document" in faults:
        return _verdict(
            "limited", f"{description}; each file counts as a document", "put a blank line between documents"
        )
    if num_documents < _MIN_NSP_DOCUMENTS or one_sentence_ratio > _GOOD_ONE_SENTENCE_RATIO:
        return _verdict("limited", description, "more documents of several sentences make better pairs")
    return _verdict("fit", description)


def _assess_sop(
    num_documents: int, one_sentence_ratio: float, faults: set[str], description: str
) -> dict[str, str]:
    if num_documents == 0 or one_sentence_ratio > _MAX_ONE_SENTENCE_RATIO:
        settings = format_settings(FULL_SENTENCE_SETTINGS if num_documents > 1 else NO_PAIR_SETTINGS)
        hint = f"give complete documents, or train with {settings}"
        return _verdict("unfit", f"{description}; sentence order needs two sentences", hint)
    if "hard_wrapped" in faults:
        return _verdict("limited", "lines are split inside sentences", _JOIN_LINES)
    if one_sentence_ratio > _GOOD_ONE_SENTENCE_RATIO:
        return _verdict("limited", description, "documents of one sentence make no pair")
    return _verdict("fit", description)


def _assess_full_sentences(num_sentences: int, faults: set[str]) -> dict[str, str]:
    if num_sentences == 0:
        return _verdict("unfit", "there is no sentence", "give text")
    if "hard_wrapped" in faults:
        return _verdict("fit", "sentences follow each other; a wrapped one counts as several")
    return _verdict("fit", "sentences follow each other across documents, with a separator between documents")
