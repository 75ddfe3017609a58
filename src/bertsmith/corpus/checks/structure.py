"""Whether a corpus has the documents and sentences that next sentence, sentence order and full sentences need."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from bertsmith.corpus.checks.histogram import Distribution, Found
from bertsmith.corpus.diagnostics import FEW_DOCUMENTS, FULL_SENTENCES, NO_PAIRS, NOT_HELD_OUT, as_options
from bertsmith.formatting import counted, percent
from bertsmith.io.files import Document

_TOGETHER = 4096
_JOIN = """awk 'BEGIN{{RS="";ORS="\\n\\n"}}{{gsub(/\\n/,"{between}");print}}' FILE > JOINED"""
HUGE = 1_000_000  # characters of a document
_MANY_LINES = 50  # a file of so many lines and one document lacks its blank lines
_ONE_LINE = 300  # median characters of a line that is itself a text of several sentences
_SENTENCES_A_LINE = 2.5  # on average, from which on lines are paragraphs
_WRAPPED_SHARE = 0.3  # of line ends inside documents; prose with a paragraph a line has next to none
_WRAPPED_WIDTH = 200  # characters: no hard-wrapped line is longer
_LEAST_BREAKS = 5
_FEW_DOCUMENTS = 20  # with fewer, a random second segment often comes from a neighbour


@dataclass
class _File:
    documents: int = 0
    lines: int = 0


@dataclass
class _Open:
    """A document whose parts are still coming."""

    file: str
    place: str
    characters: int = 0
    lines: int = 0
    sentences: int = 0
    words: int = 0


@dataclass
class DocumentFacts:
    """Counts over documents; `limit` places are kept of each finding."""

    limit: int
    characters: Distribution = field(default_factory=Distribution)
    sentences: Distribution = field(default_factory=Distribution)
    sentence_lengths: Distribution = field(default_factory=Distribution)
    one_sentence: int = 0
    lines: int = 0
    files: dict[str, _File] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.empty, self.huge, self.one_line = (Found(self.limit) for _ in range(3))
        self._open: _Open | None = None
        self._waiting: list[tuple[int, int]] = []  # counted many at a time: one by one costs 0.1 ms

    def add(self, file: str, document: Document, sentences: Sequence[str], words: int) -> None:
        """Count a document, or one more part of the one before."""
        if document.part == 0 or self._open is None:
            self.close()
            self._open = _Open(file, document.place)
        self._open.characters += len(document.text) + (document.part > 0)
        self._open.lines += document.text.count("\n") + 1
        self._open.sentences += len(sentences)
        self._open.words += words

    def close(self) -> None:
        """The document that was added last is whole."""
        if (whole := self._open) is None:
            return
        self._open = None
        of_file = self.files.setdefault(whole.file, _File())
        of_file.documents += 1
        of_file.lines += whole.lines
        self.lines += whole.lines
        self._waiting.append((whole.characters, whole.sentences))
        if len(self._waiting) >= _TOGETHER:
            self._settle()
        self.one_sentence += whole.sentences == 1
        if whole.words == 0:
            self.empty.add(whole.place)
        if whole.characters > HUGE:
            self.huge.add(whole.place)
        if whole.lines == 1:
            self.one_line.add(whole.place)

    def _settle(self) -> None:
        if self._waiting:
            characters, sentences = zip(*self._waiting, strict=True)
            self.characters.add(characters)
            self.sentences.add(sentences)
            self._waiting.clear()

    def finish(self) -> None:
        """All documents were added."""
        self.close()
        self._settle()

    def summary(self) -> dict[str, Any]:
        """As a report holds it, once all documents were added."""
        return {
            "number": self.characters.number,
            "lines": self.lines,
            "sentences": self.sentences.total,
            "characters": self.characters.summary(),
            "sentences_per_document": self.sentences.summary(),
            "sentence_characters": self.sentence_lengths.summary(),
            "one_sentence": self.one_sentence,
            "empty": self.empty.summary(),
            "huge": self.huge.summary() | {"characters_more_than": HUGE},
            "one_line": self.one_line.summary(),
        }


def judge(
    documents: DocumentFacts,
    lines: Distribution,
    wrapped: int,
    breaks: int,
    documents_are: str,
    language: str,
) -> dict[str, Any]:
    """What the structure is fit for, with a sentence for each and the faults that were found.

    lines: the lengths of lines; wrapped of `breaks` line ends stand inside of sentences. documents_are: how the
    files were read ("blank_line", "file", "line"); language: a code, "zh" joins lines without a blank.
    """
    number = documents.characters.number
    faults = _faults(documents, lines, wrapped, breaks, documents_are, language)
    names = {fault["fault"] for fault in faults}
    one = documents.one_sentence / max(1, number)
    many = documents.sentences.total / max(1, number)
    shape = (
        f"{counted(number, 'document')} of {many:,.1f} sentences on average, {percent(one)} of one sentence"
    )
    if number == 1:
        shape = f"one document of {counted(documents.sentences.total, 'sentence')}"
    return {
        "one_sentence_share": round(one, 6),
        "wrapped_share": round(wrapped / max(1, breaks), 6),
        "faults": faults,
        "nsp": _nsp(number, one, names, shape),
        "sop": _sop(number, one, names, shape),
        "full_sentences": _full(documents.sentences.total, names),
    }


def _faults(
    documents: DocumentFacts,
    lines: Distribution,
    wrapped: int,
    breaks: int,
    documents_are: str,
    language: str,
) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    number = documents.characters.number
    if (
        breaks >= _LEAST_BREAKS
        and wrapped > _WRAPPED_SHARE * breaks
        and lines.quantile(0.95) <= _WRAPPED_WIDTH
    ):
        found.append(
            {
                "fault": "hard_wrapped",
                "what": f"lines wrapped inside sentences: {wrapped / breaks:.0%} of the line ends; each cuts a "
                "sentence in two",
                "number": wrapped,
                "first": "",
                "remedy": "join the lines of each paragraph first: "
                + _JOIN.format(between="" if language == "zh" else " "),
            }
        )
    if documents_are == "blank_line":
        whole = [name for name, f in documents.files.items() if f.documents == 1 and f.lines >= _MANY_LINES]
        if whole and len(whole) >= 0.5 * len(documents.files):
            paragraphs = documents.sentences.total >= _SENTENCES_A_LINE * documents.lines
            long_lines = lines.quantile(0.5) >= _ONE_LINE or paragraphs
            found.append(
                {
                    "fault": "one_document",
                    "what": "files without a blank line: each is one document"
                    + (", its lines look like documents" if long_lines else ""),
                    "number": len(whole),
                    "first": f"{whole[0]}:1",
                    "remedy": _one_document_remedy(number, long_lines),
                }
            )
    if number > 1 and documents.one_line.number == number and documents.one_sentence > 0.5 * number:
        found.append(
            {
                "fault": "sentence_documents",
                "what": "most documents are one line of one sentence",
                "number": documents.one_sentence,
                "first": documents.one_line.places[0],
                "remedy": (
                    "put blank lines between documents only, not between their lines"
                    if documents_are == "blank_line"
                    else "--documents blank-line, if blank lines separate the documents"
                )
                + f"; or, where each is a document, train with {as_options(FULL_SENTENCES)}",
            }
        )
    return found


def _one_document_remedy(number: int, long_lines: bool) -> str:
    between = "put a blank line between documents, of a book between its chapters"
    if long_lines:
        between = "--documents line, if each line is a document or a paragraph"
    if number >= FEW_DOCUMENTS:
        return f"fine if each file is a document (--documents file); else {between}"
    return f"{between}; or train with {as_options(NO_PAIRS if number < 2 else NOT_HELD_OUT)}"


def _verdict(level: str, why: str, remedy: str = "") -> dict[str, str]:
    return {"verdict": level, "why": why, "remedy": remedy}


def _nsp(number: int, one: float, faults: set[str], shape: str) -> dict[str, str]:
    if number < 2:
        return _verdict(
            "unfit", f"{shape}; a wrong next sentence comes from another document",
            "put a blank line between documents, or --documents line / file; or train with "
            + as_options(NO_PAIRS),
        )  # fmt: skip
    if one > 0.5:
        return _verdict(
            "unfit", f"{shape}; one sentence has no next one",
            f"give whole documents, or train with {as_options(FULL_SENTENCES)}",
        )  # fmt: skip
    if "hard_wrapped" in faults:
        return _verdict("limited", "lines are cut inside sentences", "join the lines of each paragraph first")
    if number < FEW_DOCUMENTS:
        return _verdict(
            "limited", f"{shape}; too few to hold some out",
            f"give more documents, with a blank line between two, or train with {as_options(NOT_HELD_OUT)}",
        )  # fmt: skip
    if "one_document" in faults:
        return _verdict(
            "limited", f"{shape}; whole files count as documents", "put a blank line between documents"
        )
    if number < _FEW_DOCUMENTS or one > 0.2:
        return _verdict("limited", shape, "more documents of several sentences make better pairs")
    return _verdict("fit", shape)


def _sop(number: int, one: float, faults: set[str], shape: str) -> dict[str, str]:
    if number == 0 or one > 0.5:
        return _verdict(
            "unfit", f"{shape}; an order needs two sentences",
            f"give whole documents, or train with {as_options(FULL_SENTENCES if number > 1 else NO_PAIRS)}",
        )  # fmt: skip
    if "hard_wrapped" in faults:
        return _verdict("limited", "lines are cut inside sentences", "join the lines of each paragraph first")
    if one > 0.2:
        return _verdict("limited", shape, "documents of one sentence give no pair")
    return _verdict("fit", shape)


def _full(sentences: int, faults: set[str]) -> dict[str, str]:
    if sentences == 0:
        return _verdict("unfit", "there is no sentence", "give text")
    if "hard_wrapped" in faults:
        return _verdict("fit", "sentences follow each other; wrapped lines only count as more of them")
    return _verdict("fit", "sentences follow each other across documents, with a separator between two")
