"""Check the quality of a corpus in one pass over the files, in bounded memory.

It stores counts, hashes, and MinHash signatures, but no texts: 160 bytes per distinct line (at most 1 million,
then a sample), 16 bytes and the location per document for exact duplicates, and 128 bytes for near-duplicates (at
most 2 million documents).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from bertsmith.corpus.checks.characters import CharacterCheck, with_shares
from bertsmith.corpus.checks.document_window import DocumentWindow, group_documents
from bertsmith.corpus.checks.duplicates import MAX_NEAR_DOCUMENTS, DuplicateCheck
from bertsmith.corpus.checks.findings import findings
from bertsmith.corpus.checks.histogram import Occurrences
from bertsmith.corpus.checks.leakage import LeakageCheck
from bertsmith.corpus.checks.lines import LineCheck
from bertsmith.corpus.checks.structure import DocumentCheck, assess_structure
from bertsmith.corpus.checks.tokens import TokenizerStats, WordCounter
from bertsmith.corpus.near_duplicates import DEFAULT_THRESHOLD, NGRAM, check_threshold, word_spans
from bertsmith.corpus.sentence_splitter import detect_language, split_sentences
from bertsmith.errors import InputError, render
from bertsmith.formatting import pluralize
from bertsmith.io.documents import Document, Reading, read_documents
from bertsmith.io.encodings import encoding_hint
from bertsmith.io.folders import CorpusNotes, find_files
from bertsmith.io.tables import Table
from bertsmith.io.text_io import RejectedRow
from bertsmith.tokenizer.script_coverage import letters_by_script
from bertsmith.tokenizer.tokenizer import Tokenizer

_MAX_GROUP_CHARACTERS = 1 << 20  # of documents that are checked together
_MAX_TOKENIZER_EXAMPLES = 100  # of words and pieces in the report
_ENCODING_SAMPLE_BYTES = 1 << 14  # of lines that are not UTF-8, from which their encoding is estimated


@dataclass(frozen=True)
class CheckOptions:
    """Options of a corpus check.

    Attributes:
        reading: The rules by which files become documents.
        language: ISO 639-1 code; None: detected.
        ngram: Words of the n-grams that are compared with evaluation sets.
        near_duplicate_threshold: The smallest Jaccard similarity of near duplicates.
        sample: Bytes of text to read, divided among the files; None: all.
        max_examples: The most locations to list for each finding.
    """

    reading: Reading = field(default_factory=Reading)
    language: str | None = None
    ngram: int = 13
    near_duplicate_threshold: float = DEFAULT_THRESHOLD
    sample: int | None = None
    max_examples: int = 20


def check_files(
    files: Sequence[str | Path | Table],
    options: CheckOptions | None = None,
    *,
    tokenizer: Tokenizer | str | Path | None = None,
    against: Sequence[str | Path | Table] = (),
    progress: Callable[[int], None] | None = None,
) -> dict[str, Any]:
    """Check a corpus; the same files give the same report.

    Args:
        files: The files of the corpus.
        options: The options of the check.
        tokenizer: A tokenizer, whose tokens, unknown words, and pieces are counted too.
        against: Evaluation sets that the corpus should not contain.
        progress: A function that receives the bytes of text read so far.

    Returns:
        A report of plain values: `findings`, the worst first, and the counts behind them.

    Raises:
        InputError: A file is missing. Lines that cannot be read are reported.
    """
    options = options or CheckOptions()
    check_threshold(options.near_duplicate_threshold)
    if tokenizer is not None and not isinstance(tokenizer, Tokenizer):
        tokenizer = Tokenizer.load(tokenizer)
    encoding = options.reading.encoding
    corpus_check = _CorpusCheck(
        options,
        TokenizerStats(tokenizer) if tokenizer is not None else None,
        LeakageCheck(find_files(against), options.ngram, encoding) if against else None,
        progress or (lambda done: None),
    )
    sources = find_files(files, corpus_check.notes)
    corpus_check.read(sources)
    report = corpus_check.report(list(map(str, sources)))
    return {"findings": findings(report), **report}


class _CorpusCheck:
    """All checks of one pass over the files."""

    def __init__(
        self,
        options: CheckOptions,
        tokens: TokenizerStats | None,
        leakage: LeakageCheck | None,
        progress: Callable[[int], None],
    ) -> None:
        self._options, self._tokens, self._leakage, self._progress = options, tokens, leakage, progress
        self._words = WordCounter([] if tokens is None else [tokens])
        self._language = options.language
        limit = options.max_examples
        self._bad_bytes, self._bad_records = Occurrences(limit), Occurrences(limit)
        self._unreadable = Occurrences(limit)
        self._num_bad_lines = self._num_bytes = self._num_words = 0
        self._encoding_sample = b""  # lines that are not UTF-8
        self._truncated: list[str] = []
        self.notes = CorpusNotes()
        self._characters, self._documents = CharacterCheck(limit), DocumentCheck(limit)
        self._lines, self._duplicates = LineCheck(), DuplicateCheck(options.near_duplicate_threshold, limit)
        # Lines of the current file that could not be read, which shift the locations of the text below.
        self._missing: set[int] = set()
        self._num_split = 0

    def read(self, sources: Sequence[str | Path | Table]) -> None:
        """Read the files; bytes of the sample that a file does not use go to the files after it."""
        reading = self._options.reading
        for index, source in enumerate(sources):
            sample, done, file = self._options.sample, self._num_bytes, str(source)
            stop = None if sample is None else done + (sample - done) // (len(sources) - index)
            self._missing = set()
            try:
                documents = read_documents([source], reading, on_reject=self._reject, notes=self.notes)
                for group in group_documents(documents, partial(self._window_size, stop)):
                    self._update(file, group)
                    self._progress(self._num_bytes)
                    if stop is not None and self._num_bytes >= stop:
                        self._truncated.append(file)
                        break
            except InputError as error:
                self._add_unreadable(file, error.code, error.sentence_for("python"))
            self._documents.close()

    def _window_size(self, stop: int | None) -> int:
        """Return the characters of the next window, so that reading ends near `stop` bytes."""
        return _MAX_GROUP_CHARACTERS if stop is None else min(stop - self._num_bytes, _MAX_GROUP_CHARACTERS)

    def _add_unreadable(self, file: str, code: str, reason: str, encoding: str | None = None) -> None:
        self._unreadable.add({"place": file, "code": code, "reason": reason, "encoding": encoding})

    def _reject(self, reject: RejectedRow) -> None:
        if reject.line is None:
            self._add_unreadable(reject.file, reject.code, reject.reason, reject.encoding)
            return
        self._missing.add(reject.line)
        location = f"{reject.file}:{reject.line}"
        if reject.code != "not_utf8":
            self._bad_records.add({"place": location, "code": reject.code, "reason": reject.reason})
            return
        # Only bytes that are not UTF-8 become lone surrogates.
        line = reject.raw.decode("utf-8", "surrogateescape")
        bad = [i for i, character in enumerate(line) if "\udc80" <= character <= "\udcff"]
        self._num_bad_lines += 1
        if len(self._encoding_sample) < _ENCODING_SAMPLE_BYTES:
            self._encoding_sample += reject.raw[:_ENCODING_SAMPLE_BYTES] + b"\n"
        reason = reject.reason.partition(": ")[2] or reject.reason
        location = f"{location}:{bad[0] + 1 if bad else 1}"
        self._bad_bytes.add({"place": location, "reason": reason}, max(1, len(bad)))

    def _update(self, file: str, documents: list[Document]) -> None:
        if self._language is None:
            self._language = detect_language([document.text for document in documents])
        with_words, all_sentences = [], []
        for document in documents:
            num_words = len(word_spans(document.text)[0])
            sentences = split_sentences(document.text, self._language)
            self._documents.update(file, document, sentences, num_words)
            all_sentences += sentences
            if num_words and document.part == 0:
                with_words.append(document)
            self._num_words += num_words
            self._num_bytes += len(document.text.encode("utf-8"))
            self._num_split += document.part == 1
        if self._tokens is not None and all_sentences:
            self._words.add(all_sentences)
        self._duplicates.update(with_words)
        window = DocumentWindow(file, documents, self._missing)
        self._characters.update(window)
        self._lines.update(window)
        if self._leakage is not None:
            self._leakage.update(window)

    def report(self, files: list[str]) -> dict[str, Any]:
        """Return the counts as plain values."""
        self._documents.close()
        num_characters = self._documents.characters.total
        lines, language, reading = self._lines.lengths, self._language or "en", self._options.reading
        max_examples, sample = self._options.max_examples, self._encoding_sample
        duplicates = self._duplicates.summary(num_characters)
        duplicates["near"] |= {"threshold": self._options.near_duplicate_threshold, "ngram_words": NGRAM}
        report: dict[str, Any] = {
            "files": files,
            "bytes": self._num_bytes,
            "words": self._num_words,
            "language": language,
            "documents_are": reading.documents,
            "encoding": {
                "bytes": self._bad_bytes.count,
                "lines": self._num_bad_lines,
                "places": self._bad_bytes.locations,
                "remedy": render(encoding_hint(sample), "python") if sample else None,
            },
            "left_out": self.notes.to_dict() | {"kinds": self.notes.skipped_names()},
            "delimiters": self.notes.delimiters,
            "records": self._bad_records.summary(),
            "unreadable": self._unreadable.summary(),
            "characters": {
                "number": num_characters,
                "kinds": {name: entry.summary() for name, entry in self._characters.by_class.items()},
                "mojibake": self._characters.mojibake.summary(),
                "classes": with_shares(self._characters.categories()),
            },
            "documents": self._documents.summary(),
            "lines": {
                "lengths": lines.summary(),
                "repeated": self._lines.repeated.summary(lines.count, lines.total, max_examples),
                "boilerplate": self._lines.boilerplate(),
            },
            "duplicates": duplicates,
            "scripts": with_shares(letters_by_script(self._characters.counts.by_character())),
            "structure": assess_structure(self._documents, self._lines, reading.documents, language),
            "limits": self._limits(duplicates["near"]),
        }
        if self._tokens is not None:
            self._words.encode_waiting()
            report["tokenizer"] = self._tokens.summary(self._words, _MAX_TOKENIZER_EXAMPLES)
        if self._leakage is not None:
            report["against"] = self._leakage.summary()
        return report

    def _limits(self, near_duplicates: Mapping[str, Any]) -> list[str]:
        """Return sentences on what was skipped or estimated."""
        limits = [f"at most {pluralize(self._options.max_examples, 'location')} listed of each finding"]
        if self._truncated:
            limits.append(
                f"a sample: the first {self._num_bytes / 1e6:,.1f} MB of text, divided among the files; "
                f"{pluralize(len(self._truncated), 'file')} not read to the end"
            )
        if self._num_split:
            limits.append(f"{pluralize(self._num_split, 'document')} too long: only first parts are compared")
        if near_duplicates["number"]:
            limits.append(
                "near duplicates are estimated: the standard deviation of the Jaccard similarity is at most 0.045"
            )
        if more := near_duplicates["not_compared"]:
            limits.append(
                f"near duplicates were searched among the first {MAX_NEAR_DOCUMENTS:,} documents; {more:,} later "
                "ones were only compared for equality"
            )
        if (fraction := self._lines.repeated.sampled_fraction) < 1:
            limits.append(
                f"repeated lines are estimated from a sample of 1/{round(1 / fraction)} of the distinct lines"
            )
        return limits
