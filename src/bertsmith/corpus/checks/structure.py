"""Check that a corpus has the documents and sentences that NSP, SOP, and full sentences need.

`data check` judges files, `prepare` and `pretrain` warn about prepared shards and name the settings they need.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bertsmith.corpus.checks.document_window import DocumentWindow, group_documents
from bertsmith.corpus.checks.histogram import Histogram, Occurrences
from bertsmith.corpus.checks.lines import LineCheck
from bertsmith.corpus.sentence_splitter import detect_language
from bertsmith.corpus.shards import Shards
from bertsmith.formatting import format_percent, pluralize
from bertsmith.io.documents import Document, Reading, read_documents
from bertsmith.io.folders import CorpusNotes, find_files

MIN_DOCUMENTS = 4
"""The number of different documents that next-sentence pairs for training and validation need."""
NO_PAIR_SETTINGS = {"data.sentence_task": "none", "data.validation_split": "0"}
"""The settings for a single document."""
NO_VALIDATION_SETTINGS = {"data.validation_split": "0"}
"""The settings for two or three documents."""
FULL_SENTENCE_SETTINGS = {"data.sentence_task": "none", "data.instances": "full_sentences"}
"""The settings for documents of one sentence."""
MAX_ONE_SENTENCE_RATIO = 0.5
"""With more documents of one sentence, next-sentence pairs are too few to learn from."""


def required_settings(shards: Shards) -> dict[str, str]:
    """Return the settings that pre-training on this corpus needs; {} if the defaults work."""
    return _assess(shards)[1]


def _assess(shards: Shards) -> tuple[str, dict[str, str]]:
    """Return a problem of the documents, and the settings without it; "" and {} if the defaults work."""
    num_different = len(np.unique(shards.hashes))
    one_sentence_ratio = float((np.diff(shards.document_sentence_offsets) == 1).mean())
    separate = "put blank lines between documents and prepare again (with documents=line, each line is one)"
    if num_different < 2:
        problem = "all the text is one document: next-sentence pairs and validation need another one"
        return f"{problem}; {separate}", NO_PAIR_SETTINGS
    if one_sentence_ratio > MAX_ONE_SENTENCE_RATIO:
        documents = pluralize(len(shards.hashes), "document")
        problem = f"{one_sentence_ratio:.0%} of the {documents} have one sentence, which has no next one"
        return f"{problem}; give complete documents", FULL_SENTENCE_SETTINGS
    if num_different < MIN_DOCUMENTS:
        problem = f"{pluralize(num_different, 'different document')}: too few to hold some out"
        return f"{problem}; {separate}", NO_VALIDATION_SETTINGS
    return "", {}


def format_settings(settings: Mapping[str, str]) -> str:
    """Return settings as text: "data.sentence_task=none and data.validation_split=0"."""
    return " and ".join(f"{name}={value}" for name, value in settings.items())


def corpus_warning(shards: Shards) -> str:
    """Return a warning if the default settings do not work for a corpus, else ""."""
    problem, settings = _assess(shards)
    return f"{problem}, or train with {format_settings(settings)}" if problem else ""


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
_GOOD_ONE_SENTENCE_RATIO = 0.2
_SAMPLE_CHARACTERS, _SAMPLE_FILES = 500_000, 8  # read for the warning of hard-wrapped lines


class DocumentCheck:
    """Count documents, and store `limit` locations of each kind of unusual document.

    Attributes:
        characters: The distribution of document lengths in characters.
        sentences: The distribution of document lengths in sentences.
        sentence_lengths: The distribution of sentence lengths in characters.
        num_lines: The number of lines.
        files: By file, the numbers of documents and lines.
        one_line: The documents of one line.
    """

    def __init__(self, limit: int) -> None:
        self.characters, self.sentences, self.sentence_lengths = Histogram(), Histogram(), Histogram()
        self.empty, self.huge, self.one_line = (Occurrences(limit) for _ in range(3))
        self.num_one_sentence = self.num_lines = 0
        self.files: dict[str, Counter[str]] = {}
        self._file = self._location = ""
        self._open: Counter[str] = Counter()  # the counts of the last document, which may have further parts

    def update(self, file: str, document: Document, sentences: Sequence[str], num_words: int) -> None:
        """Count a document, or a further part of the last one."""
        if document.part == 0:
            self.close()
            self._file, self._location = file, document.location
        self._open["characters"] += len(document.text) + (document.part > 0)
        self._open["lines"] += document.text.count("\n") + 1
        self._open["sentences"] += len(sentences)
        self._open["words"] += num_words
        self.sentence_lengths.add(map(len, sentences))

    def close(self) -> None:
        """End the last document."""
        document = self._open
        if not document:
            return
        self.files.setdefault(self._file, Counter()).update(documents=1, lines=document["lines"])
        self.num_lines += document["lines"]
        self.characters.add([document["characters"]])
        self.sentences.add([document["sentences"]])
        self.num_one_sentence += document["sentences"] == 1
        if document["words"] == 0:
            self.empty.add(self._location)
        if document["characters"] > MAX_CHARACTERS:
            self.huge.add(self._location)
        if document["lines"] == 1:
            self.one_line.add(self._location)
        self._open = Counter()

    def summary(self) -> dict[str, Any]:
        """Return the counts for a report, after `close`."""
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
    return {
        "one_sentence_share": round(one_sentence_ratio, 6),
        "wrapped_share": round(lines.num_wrapped / max(1, lines.num_breaks), 6),
        "faults": faults,
        **_assess_objectives(num_documents, num_sentences, one_sentence_ratio, names),
    }


def _structural_faults(
    documents: DocumentCheck, lines: LineCheck, document_unit: str, language: str
) -> Iterator[dict[str, Any]]:
    num_documents = documents.characters.count
    if (fault := _hard_wrap_fault(lines, language)) is not None:
        yield fault
    if document_unit == "blank_line":
        files = documents.files
        names = [
            name for name in files if files[name]["documents"] == 1 and files[name]["lines"] >= _MIN_LINES
        ]
        if names and len(names) >= 0.5 * len(files):
            has_paragraphs = documents.sentences.total >= _MIN_SENTENCES_PER_LINE * documents.num_lines
            what = "files without a blank line: each is one document"
            remedy = "put a blank line between documents, or between the chapters of a book"
            if lines.lengths.quantile(0.5) >= _MIN_LINE_CHARACTERS or has_paragraphs:
                what += ", its lines look like documents"
                remedy = "read with documents=line if each line is a document or a paragraph"
            if num_documents < MIN_DOCUMENTS:
                settings = NO_PAIR_SETTINGS if num_documents < 2 else NO_VALIDATION_SETTINGS
                remedy += f"; or train with {format_settings(settings)}"
            yield _fault("one_document", what, len(names), f"{names[0]}:1", remedy)
    all_one_line = num_documents > 1 and documents.one_line.count == num_documents
    if all_one_line and documents.num_one_sentence > 0.5 * num_documents:
        what, number = "most documents are one line of one sentence", documents.num_one_sentence
        remedy = "read with documents=blank_line if blank lines separate the documents"
        if document_unit == "blank_line":
            remedy = "put blank lines between documents only, not between their lines"
        remedy += f"; or, if each line is a document, train with {format_settings(FULL_SENTENCE_SETTINGS)}"
        yield _fault("sentence_documents", what, number, documents.one_line.locations[0], remedy)


def _hard_wrap_fault(lines: LineCheck, language: str) -> dict[str, Any] | None:
    num_wrapped, num_breaks = lines.num_wrapped, lines.num_breaks
    has_short_lines = lines.lengths.quantile(0.95) <= _MAX_WRAPPED_CHARACTERS
    if num_breaks < _MIN_BREAKS or num_wrapped <= _MIN_WRAPPED_RATIO * num_breaks or not has_short_lines:
        return None
    ratio = num_wrapped / num_breaks
    what = f"lines wrapped inside sentences: {ratio:.0%} of the line ends; each splits a sentence"
    join = _JOIN_COMMAND.format(separator="" if language == "zh" else " ")
    return _fault("hard_wrapped", what, num_wrapped, "", f"{_JOIN_LINES}: {join}")


def hard_wrap_warning(files: Sequence[str | Path], reading: Reading, language: str | None) -> str | None:
    """Return a warning if lines at the beginning of the first files are hard-wrapped, else None."""
    lines, texts = LineCheck(), []
    sources = find_files(files)[:_SAMPLE_FILES]
    for source in sources:
        documents = read_documents([source], reading, on_reject=lambda row: None, notes=CorpusNotes())
        sample = next(group_documents(documents, lambda: _SAMPLE_CHARACTERS // len(sources)), [])
        lines.update(DocumentWindow(str(source), sample, ()))
        texts += [document.text for document in sample]
    fault = _hard_wrap_fault(lines, language or detect_language(texts))
    return None if fault is None else f"{fault['what']}; {fault['remedy']}"


def _fault(name: str, what: str, number: int, first: str, remedy: str) -> dict[str, Any]:
    return {"fault": name, "what": what, "number": number, "first": first, "remedy": remedy}


def _assess_objectives(
    num_documents: int, num_sentences: int, one_sentence_ratio: float, faults: set[str]
) -> dict[str, dict[str, str]]:
    """Return a verdict, its reason, and a remedy for NSP, SOP, and full sentences."""
    mean_sentences = num_sentences / max(1, num_documents)
    description = (
        f"{pluralize(num_documents, 'document')} of {mean_sentences:,.1f} sentences on average, "
        f"{format_percent(one_sentence_ratio)} of one sentence"
    )
    verdicts = {name: {"verdict": "fit", "why": description, "remedy": ""} for name in ("nsp", "sop")}
    verdicts["full_sentences"] = {"verdict": "fit", "why": "sentences follow each other", "remedy": ""}

    def judge(names: Sequence[str], verdict: str, remedy: str) -> None:
        for name in names:
            verdicts[name] |= {"verdict": verdict, "remedy": remedy}

    # Later judgments are worse.
    if one_sentence_ratio > _GOOD_ONE_SENTENCE_RATIO:
        judge(("nsp", "sop"), "limited", "documents of several sentences make better pairs")
    if num_documents < _MIN_NSP_DOCUMENTS or "one_document" in faults:
        judge(("nsp",), "limited", "give more documents, with a blank line between them")
    if num_documents < MIN_DOCUMENTS:
        settings = format_settings(NO_VALIDATION_SETTINGS)
        remedy = f"give more documents, with a blank line between them, or train with {settings}"
        judge(("nsp",), "limited", remedy)
    if "hard_wrapped" in faults:
        judge(("nsp", "sop"), "limited", _JOIN_LINES)
    if one_sentence_ratio > MAX_ONE_SENTENCE_RATIO:
        remedy = f"give complete documents, or train with {format_settings(FULL_SENTENCE_SETTINGS)}"
        judge(("nsp", "sop"), "unfit", remedy)
    if num_documents < 2:
        settings = format_settings(NO_PAIR_SETTINGS)
        remedy = f"put a blank line between documents, or read with documents=line, or train with {settings}"
        judge(("nsp",), "unfit", remedy)
    if num_sentences == 0:
        judge(list(verdicts), "unfit", "give text")
    return verdicts
