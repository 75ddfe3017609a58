"""Find rows of evaluation sets in the corpus by shared word n-grams (Brown et al. 2020, appendix C).

Words are compared in lower case without punctuation (characters in scripts without spaces). A text of fewer than n
words is compared completely if it has at least eight. Only 8-byte hashes of the n-grams of the evaluation sets are
stored; the corpus is streamed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bertsmith.corpus.checks.document_window import DocumentWindow
from bertsmith.corpus.checks.histogram import printable
from bertsmith.corpus.near_duplicates import hash_ngrams, hash_words
from bertsmith.corpus.shards import HashArray
from bertsmith.io import parquet
from bertsmith.io.compression import format_suffix
from bertsmith.io.delimited import detect_delimiter, read_records
from bertsmith.io.jsonl import read_json
from bertsmith.io.tables import Table, json_rows
from bertsmith.io.text_io import ErrorCollector, LineReader, read_lines

MIN_WORDS = 8
_EXCERPT_CHARACTERS = 100
_MAX_ROWS = 1000  # with hits, in the report
_MAX_CONLL_COLUMNS = 16

TaskRow = tuple[str, list[str]]
"""The location of a row and its texts."""


class LeakageCheck:
    """Index the word n-grams of evaluation sets, and find those that the corpus contains.

    Memory: about 20 bytes per n-gram of the evaluation sets, and their locations.
    """

    def __init__(self, files: Sequence[str | Path | Table], n: int, encoding: str | None) -> None:
        """Read the evaluation sets: .csv, .tsv, .txt, .jsonl, .json, .parquet; text files also compressed.

        Each field is compared by itself. Lines of one word and its label (CoNLL) are joined to sentences.

        Raises:
            InputError: A file is missing or cannot be read.
        """
        self.n = n
        self._min_words = min(MIN_WORDS, n)
        self._lengths: set[int] = set()  # of the n-grams, in words
        self._files: list[tuple[str, range]] = []  # and their rows
        self._locations: list[str] = []  # of the rows
        ngrams = [np.empty(0, dtype=np.uint64)]
        for file in files:
            first_row = len(self._locations)
            for location, texts in task_rows(file, encoding):
                self._locations.append(location)
                ngrams.append(self._row_ngrams(texts))
            self._files.append((str(file), range(first_row, len(self._locations))))
        self._num_ngrams = [len(row) for row in ngrams[1:]]
        hashes = np.concatenate(ngrams)
        order = np.argsort(hashes, kind="stable")
        self._hashes = hashes[order]
        self._rows = np.repeat(np.arange(len(self._locations)), self._num_ngrams)[order]
        self._is_hit = np.zeros(len(hashes), dtype=bool)
        self._first: dict[int, tuple[str, str]] = {}  # by row, the location and text of its first hit

    def _row_ngrams(self, texts: Sequence[str]) -> HashArray:
        """Return the hashes of the distinct n-grams of a row."""
        ngrams = [np.empty(0, dtype=np.uint64)]
        for text in texts:
            words, _ = hash_words(text)
            if len(words) >= self._min_words:
                length = min(self.n, len(words))
                self._lengths.add(length)
                ngrams.append(hash_ngrams(words, length))
        return np.unique(np.concatenate(ngrams))

    def update(self, window: DocumentWindow) -> None:
        """Search documents of the corpus for the n-grams."""
        start = 0
        for document in window.documents:
            words, positions = hash_words(document.text)
            for length in sorted(self._lengths):
                ngrams = hash_ngrams(words, length)
                first = np.searchsorted(self._hashes, ngrams, side="left")
                last = np.searchsorted(self._hashes, ngrams, side="right")
                for word in np.flatnonzero(last > first).tolist():
                    entries = slice(int(first[word]), int(last[word]))
                    self._add_hit(entries, window, start + int(positions[word]))
            start += len(document.text) + 1

    def _add_hit(self, entries: slice, window: DocumentWindow, position: int) -> None:
        """Count a hit at a position of the window."""
        if self._is_hit[entries].all():
            return
        self._is_hit[entries] = True
        if new_rows := set(self._rows[entries].tolist()) - self._first.keys():
            excerpt = " ".join(window.text[position : position + _EXCERPT_CHARACTERS].split())
            hit = (window.location(position), printable(excerpt))
            self._first.update(dict.fromkeys(new_rows, hit))

    def summary(self) -> dict[str, Any]:
        """Return rows, compared rows, and hits of each file, and the rows with hits, largest overlap first."""
        num_hits = np.bincount(self._rows[self._is_hit], minlength=len(self._locations)).tolist()
        files: list[dict[str, Any]] = []
        for file, rows_of_file in self._files:
            num_compared = sum(self._num_ngrams[i] > 0 for i in rows_of_file)
            hit = sum(num_hits[i] > 0 for i in rows_of_file)
            files.append(
                {
                    "file": file,
                    "rows": len(rows_of_file),
                    "too_short": len(rows_of_file) - num_compared,
                    "hit": hit,
                    "share": round(hit / max(1, num_compared), 6),
                }
            )
        rows = [
            {
                "row": self._locations[i],
                "corpus": self._first[i][0],
                "share": round(num_hits[i] / self._num_ngrams[i], 4),
                "text": self._first[i][1],
            }
            for i in sorted(self._first)
        ]
        rows.sort(key=lambda row: -row["share"])
        return {
            "ngram": self.n,
            "least_words": self._min_words,
            "files": files,
            "hit": len(rows),
            "rows": rows[:_MAX_ROWS],
            "rows_not_listed": max(0, len(rows) - _MAX_ROWS),
        }


def task_rows(file: str | Path | Table, encoding: str | None = None) -> Iterator[TaskRow]:
    """Yield the rows of a task file in any supported format; `encoding` is that of a file that is not UTF-8."""
    suffix = format_suffix(file)
    if isinstance(file, Table) or suffix == ".jsonl":
        yield from ((row.location, list(_strings(row.values))) for row in json_rows(file, encoding))
        return
    if suffix == ".parquet":
        yield from ((f"{file}:{n}", list(_strings(values))) for n, values in parquet.read_rows(file))
    elif suffix == ".json":
        yield from _json_rows(file, encoding)
    else:
        is_table = suffix in (".csv", ".txt")
        delimiter = detect_delimiter(file, None, encoding) if is_table else None
        if delimiter in (None, "\t"):
            yield from _line_rows(file, encoding)
            return
        for lines, fields in read_records(LineReader(ErrorCollector(file), encoding), str(delimiter)):
            yield f"{file}:{lines[0].number}", fields


def _line_rows(file: str | Path, encoding: str | None) -> Iterator[TaskRow]:
    block: list[str] = []
    first = 1
    for number, line in read_lines(file, encoding):
        if line.strip():
            first = number if not block else first
            block.append(line)
            continue
        yield from _block_rows(file, first, block)
        block = []
    yield from _block_rows(file, first, block)


def _block_rows(file: str | Path, first: int, block: list[str]) -> Iterator[TaskRow]:
    """Yield the lines between two blank lines: tab-separated rows, or one sentence with one word per line."""
    lines = [line for line in block if not line.startswith("#")]
    num_columns = {len(line.split()) for line in lines}
    if len(lines) >= MIN_WORDS and len(num_columns) == 1 and 2 <= min(num_columns) <= _MAX_CONLL_COLUMNS:
        column = 1 if all(line.split()[0].isdigit() for line in lines) else 0  # CoNLL-U numbers its words.
        yield f"{file}:{first}", [" ".join(line.split()[column] for line in lines)]
        return
    for offset, line in enumerate(block):
        yield f"{file}:{first + offset}", line.split("\t")


def _json_rows(file: str | Path, encoding: str | None) -> Iterator[TaskRow]:
    """Yield each longer string of a JSON file as a row: the rows of nested files (SQuAD) are not lines."""
    for pointer, text in _strings_with_pointers(read_json(file, encoding), ""):
        if len(text) > 2 * MIN_WORDS or not text.isascii():
            yield f"{file}#{pointer}", [text]


def _strings(value: Any) -> Iterator[str]:
    return (text for _, text in _strings_with_pointers(value, ""))


def _strings_with_pointers(value: Any, pointer: str) -> Iterator[tuple[str, str]]:
    """Yield the strings in a JSON value with their JSON pointers (RFC 6901, without its escapes)."""
    if isinstance(value, str):
        yield pointer, value
    elif isinstance(value, Mapping):
        for name, part in value.items():
            yield from _strings_with_pointers(part, f"{pointer}/{name}")
    elif isinstance(value, list):
        if len(value) >= MIN_WORDS and all(isinstance(part, str) and " " not in part for part in value):
            yield pointer, " ".join(value)  # a sentence as a list of words
        else:
            for index, part in enumerate(value):
                yield from _strings_with_pointers(part, f"{pointer}/{index}")
