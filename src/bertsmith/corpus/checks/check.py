"""Check the quality of a corpus in one pass over the files, in bounded memory.

It stores counts, hashes, and MinHash signatures, but no texts: 28 bytes per distinct line (at most 4 million,
then a sample), 24 bytes per document for exact duplicates and 128 for near duplicates (at most 2 million
documents), and windows of a million characters.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from bertsmith.corpus import hashing
from bertsmith.corpus.checks.characters import CharacterCheck, LanguageCheck, most_common, with_shares
from bertsmith.corpus.checks.document_window import TextWindow, group_documents
from bertsmith.corpus.checks.duplicates import MAX_NEAR_DOCUMENTS, DuplicateCheck, LocationTable
from bertsmith.corpus.checks.file_errors import MAX_LOCATIONS, FileErrors
from bertsmith.corpus.checks.findings import findings
from bertsmith.corpus.checks.histogram import Occurrences
from bertsmith.corpus.checks.leakage import LeakageCheck
from bertsmith.corpus.checks.lines import LineCheck, RepeatedLines, find_lines, line_hashes
from bertsmith.corpus.checks.structure import DocumentCheck, assess_structure
from bertsmith.corpus.checks.tokens import TokenizerCheck
from bertsmith.corpus.near_duplicates import DEFAULT_THRESHOLD, NGRAM, check_threshold
from bertsmith.corpus.sentence_splitter import detect_language, split_sentences
from bertsmith.errors import InputError, render
from bertsmith.formatting import pluralize
from bertsmith.io.documents import Document, Reading, read_documents
from bertsmith.io.encodings import encoding_hint
from bertsmith.io.folders import CorpusNotes, find_files
from bertsmith.io.tables import Table
from bertsmith.io.text_io import RejectedRow
from bertsmith.tokenizer.tokenizer import Tokenizer

_MAX_LINES = 4_000_000  # distinct lines that are counted
_ENCODING_SAMPLE_BYTES = 1 << 14  # of lines that are not UTF-8, from which their encoding is estimated
_UNREADABLE_FILE = "cannot be read to its end"


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
        TokenizerCheck(tokenizer) if tokenizer is not None else None,
        LeakageCheck(find_files(against), options.ngram, encoding=encoding) if against else None,
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
        tokens: TokenizerCheck | None,
        leakage: LeakageCheck | None,
        progress: Callable[[int], None],
    ) -> None:
        self._options, self._tokens, self._leakage, self._progress = options, tokens, leakage, progress
        self._language = options.language
        limit = options.max_examples
        self._bad_bytes, self._bad_records = Occurrences(limit), Occurrences(limit)
        self._unreadable = Occurrences(limit)
        self._num_bad_lines = self._num_bytes = self._num_words = 0
        self._encoding_sample = b""  # lines that are not UTF-8
        self._truncated: list[str] = []
        self.notes = CorpusNotes()
        self._file_errors = FileErrors(min(limit, MAX_LOCATIONS))
        self._characters, self._languages = CharacterCheck(limit, self._file_errors), LanguageCheck()
        self._documents, self._lines = DocumentCheck(limit), LineCheck()
        self._repeated, self._locations = RepeatedLines(_MAX_LINES), LocationTable()
        self._duplicates = DuplicateCheck(options.near_duplicate_threshold, limit)
        # Lines of the current file that could not be read, which shift the locations of the text below.
        self._missing: list[int] = []
        self._num_split = 0

    def read(self, sources: Sequence[str | Path | Table]) -> None:
        """Read the files; bytes of the sample that a file does not use go to the files after it."""
        for index, source in enumerate(sources):
            sample, done, file = self._options.sample, self._num_bytes, str(source)
            stop = None if sample is None else done + (sample - done) // (len(sources) - index)
            self._missing = []
            try:
                documents = read_documents(
                    [source], self._options.reading, on_reject=self._reject, notes=self.notes
                )
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
        if stop is None:
            return hashing.WINDOW_CHARACTERS
        return min(stop - self._num_bytes, hashing.WINDOW_CHARACTERS)

    def _add_unreadable(self, file: str, code: str, reason: str, encoding: str | None = None) -> None:
        self._unreadable.add({"place": file, "code": code, "reason": reason, "encoding": encoding})
        self._file_errors.add(file, _UNREADABLE_FILE, file, detail=reason)

    def _reject(self, reject: RejectedRow) -> None:
        if reject.line is None:
            self._add_unreadable(reject.file, reject.code, reject.reason, reject.encoding)
            return
        self._missing.append(reject.line)
        location = f"{reject.file}:{reject.line}"
        if reject.code != "not_utf8":
            self._bad_records.add({"place": location, "code": reject.code, "reason": reject.reason})
            error = "lines or rows that cannot be read"
            self._file_errors.add(reject.file, error, location, detail=reject.reason)
            return
        # Only bytes that are not UTF-8 become lone surrogates.
        line = reject.raw.decode("utf-8", "surrogateescape")
        bad = [i for i, character in enumerate(line) if "\udc80" <= character <= "\udcff"]
        self._num_bad_lines += 1
        if len(self._encoding_sample) < _ENCODING_SAMPLE_BYTES:
            self._encoding_sample += reject.raw[:_ENCODING_SAMPLE_BYTES] + b"\n"
        reason = reject.reason.partition(": ")[2] or reject.reason
        location = f"{location}:{bad[0] + 1 if bad else 1}"
        num_bad = max(1, len(bad))
        self._bad_bytes.add({"place": location, "reason": reason}, num_bad)
        byte = f"0x{ord(line[bad[0]]) - 0xDC00:02X}" if bad else ""
        self._file_errors.add(reject.file, "bytes that are not UTF-8", location, num_bad, byte)

    def _update(self, file: str, documents: list[Document]) -> None:
        texts = [document.text for document in documents]
        if self._language is None:
            self._language = detect_language(texts)
        num_words = np.zeros(len(texts), dtype=np.int64)
        sentences: list[list[str]] = [[] for _ in texts]
        for first, group, offset in hashing.windows(texts):
            part = slice(first, first + len(group))
            window = TextWindow(file, documents[part], group, offset, self._missing)
            num_words[part] += np.diff(window.words.offsets)
            for i, text in enumerate(group, start=first):
                text_sentences = split_sentences(text, self._language)
                sentences[i] += text_sentences
                if self._tokens is not None:
                    self._tokens.update(text_sentences)
            self._update_window(file, window)
        for i, document in enumerate(documents):
            self._documents.update(file, document, sentences[i], int(num_words[i]))
        self._documents.sentence_lengths.add(
            [len(sentence) for document_sentences in sentences for sentence in document_sentences]
        )
        self._num_bytes += sum(len(text.encode("utf-8", "surrogatepass")) for text in texts)
        self._num_split += sum(document.part == 1 for document in documents)
        self._duplicates.update(
            [
                document
                for document, n in zip(documents, num_words, strict=True)
                if n > 0 and document.part == 0
            ]
        )

    def _update_window(self, file: str, window: TextWindow) -> None:
        codes, words, text = window.codes, window.words, window.text
        self._num_words += len(words.hashes)
        self._characters.update(codes, text, window.location, file)
        self._languages.update(codes, window.offsets, words)
        lines = find_lines(codes, window.offsets, text)
        self._lines.update(lines, text)
        lines = window.complete_lines(lines)
        locations = window.line_locations(lines, self._locations)
        self._repeated.update(line_hashes(codes, lines), locations, lines, text, window.is_start)
        if self._leakage is not None:
            self._leakage.update(words, text, window.location)

    def report(self, files: list[str]) -> dict[str, Any]:
        """Return the counts as plain values."""
        self._documents.finish()
        num_characters = self._documents.characters.total
        lines, language, reading = self._lines.lengths, self._language or "en", self._options.reading
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
                "remedy": render(encoding_hint(self._encoding_sample), "python")
                if self._encoding_sample
                else None,
            },
            "left_out": self.notes.to_dict() | {"kinds": self.notes.skipped_names()},
            "delimiters": self.notes.delimiters,
            "records": self._bad_records.summary(),
            "unreadable": self._unreadable.summary(),
            "faults_by_file": self._file_errors.summary(),
            "characters": {
                "number": num_characters,
                "kinds": {name: entry.summary() for name, entry in self._characters.by_class.items()},
                "mojibake": self._characters.mojibake.summary(),
                "classes": with_shares(self._characters.categories()),
            },
            "documents": self._documents.summary(),
            "lines": {
                "lengths": lines.summary(),
                "repeated": self._repeated.summary(
                    lines.count, lines.total, self._locations.unpack, self._options.max_examples
                ),
                "boilerplate": self._lines.boilerplate(),
            },
            "duplicates": duplicates,
            "scripts": with_shares(self._characters.counts.letters_by_script()),
            "languages": with_shares(dict(most_common(self._languages.characters))),
            "structure": assess_structure(self._documents, self._lines, reading.documents, language),
            "limits": self._limits(duplicates["near"]),
        }
        if self._tokens is not None:
            report["tokenizer"] = self._tokens.summary()
        if self._leakage is not None:
            report["against"] = self._leakage.summary()
        return report

    def _limits(self, near_duplicates: Mapping[str, Any]) -> list[str]:
        """Return sentences on what was skipped or estimated."""
        limits = [
            f"at most {pluralize(self._options.max_examples, 'location')} listed of each finding, "
            f"{self._file_errors.limit} of each error in a file"
        ]
        if self._truncated:
            limits.append(
                f"a sample: the first {self._num_bytes / 1e6:,.1f} MB of text, divided among the files; "
                f"{pluralize(len(self._truncated), 'file')} not read to the end"
            )
        if self._num_split:
            limits.append(
                f"{pluralize(self._num_split, 'document')} too long: only the first part is compared"
            )
        if near_duplicates["number"]:
            limits.append(
                "near duplicates are estimated: the standard deviation of the Jaccard similarity is at most 0.045"
            )
        if more := near_duplicates["not_remembered"]:
            limits.append(
                f"near duplicates were searched among the first {MAX_NEAR_DOCUMENTS:,} documents; {more:,} later "
                "ones were only compared for equality"
            )
        if (fraction := self._repeated.sampled_fraction) < 1:
            limits.append(
                f"repeated lines are estimated from a sample of 1/{round(1 / fraction)} of the distinct lines"
            )
        return limits
