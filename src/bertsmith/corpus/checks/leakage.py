"""Find rows of evaluation sets in the corpus by shared word n-grams (Brown et al. 2020, appendix C).

Words are compared in lower case without punctuation (characters in scripts without spaces). A text of fewer than n
words is compared completely if it has at least eight. Only 8-byte hashes of the n-grams of the evaluation sets are
stored; the corpus is streamed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bertsmith.corpus import hashing
from bertsmith.corpus.batching import batches
from bertsmith.corpus.checks.characters import printable
from bertsmith.corpus.hashing import WordHashes
from bertsmith.corpus.tokenized_corpus import HashArray, IntArray
from bertsmith.errors import InputError
from bertsmith.io import parquet
from bertsmith.io.compression import format_suffix
from bertsmith.io.delimited import detect_delimiter, read_records
from bertsmith.io.tables import Table
from bertsmith.io.text_io import ErrorCollector, LineReader, read_lines

MIN_WORDS = 8
_MIN_ROW_SIZE = 256  # Shorter rows count as this many characters, so that a batch has at most 4,096 rows.
_MIN_FILTER_BITS, _MAX_FILTER_BITS = 20, 27  # of the filter before the search: 1 to 128 MB
_EXCERPT_CHARACTERS = 100
_MAX_CONLL_COLUMNS = 16

TaskRow = tuple[str, list[str]]
"""The location of a row and its texts."""


@dataclass
class _TaskFile:
    """The rows of one file: their locations and numbers of n-grams (0: too short to compare)."""

    file: str
    locations: list[str]
    num_ngrams: list[int]


class LeakageCheck:
    """Index the word n-grams of evaluation sets, and find those that the corpus contains.

    Memory: about 25 bytes per n-gram of the evaluation sets, and 1 to 128 MB for the filter in front of them.
    """

    def __init__(
        self,
        files: Sequence[str | Path | Table],
        n: int = 13,
        max_examples: int = 1000,
        encoding: str | None = None,
    ) -> None:
        """Read the evaluation sets: .csv, .tsv, .txt, .jsonl, .json, .parquet; text files also compressed.

        Each field is compared by itself. Lines of one word and its label (CoNLL) are joined to sentences.

        Raises:
            InputError: A file is missing or cannot be read.
        """
        self.n, self._max_examples = n, max_examples
        self._min_words = min(MIN_WORDS, n)
        self._files: list[_TaskFile] = []
        hashes, rows, lengths = self._read(files, encoding)
        order = np.lexsort((rows, hashes))
        self._hashes, self._rows = hashes[order], rows[order]
        self._lengths = sorted(set(lengths.tolist()))
        self._is_hit = np.zeros(len(self._hashes), dtype=bool)
        self._first: dict[int, tuple[str, str]] = {}  # by row, the location and text of its first hit
        num_bits = np.ceil(np.log2(max(1, len(hashes)) * 16))
        bits = int(np.clip(num_bits, _MIN_FILTER_BITS, _MAX_FILTER_BITS))
        self._shift = np.uint64(64 - bits)
        self._filter = np.zeros(1 << bits, dtype=bool)
        self._filter[(self._hashes >> self._shift).astype(np.int64)] = True

    def _read(
        self, files: Sequence[str | Path | Table], encoding: str | None
    ) -> tuple[HashArray, IntArray, IntArray]:
        """Return all n-grams: their hashes [G], their rows [G], and the distinct numbers of words."""
        hashes, rows, lengths = [], [], []
        first_row = 0
        for file in files:
            entry = _TaskFile(str(file), [], [])
            for batch in batches(task_rows(file, encoding), _row_size, hashing.WINDOW_CHARACTERS):
                texts = [text for _, fields in batch for text in fields]
                row_of_text = np.repeat(np.arange(len(batch)), [len(fields) for _, fields in batch])
                words = hashing.hash_words(*hashing.code_points(texts))
                ngrams, _, offsets = hashing.ngram_hashes(words.hashes, words.offsets, self.n)
                num_ngrams = np.diff(offsets)
                length = np.repeat(np.minimum(np.diff(words.offsets), self.n), num_ngrams)
                row_of_ngram = np.repeat(row_of_text, num_ngrams).astype(np.uint64)
                is_long = length >= self._min_words
                # An n-gram counts once per row.
                pairs = np.unique(np.stack([row_of_ngram[is_long], ngrams[is_long]]), axis=1)
                row = pairs[0].astype(np.int64)
                hashes.append(pairs[1])
                rows.append(row + first_row)
                lengths.append(np.unique(length[is_long]))
                entry.locations += [location for location, _ in batch]
                entry.num_ngrams += np.bincount(row, minlength=len(batch)).tolist()
                first_row += len(batch)
            self._files.append(entry)
        empty = np.empty(0, dtype=np.int64)
        return (
            np.concatenate([np.empty(0, dtype=np.uint64), *hashes]),
            np.concatenate([empty, *rows]),
            np.concatenate([empty, *lengths]),
        )

    def update(self, words: WordHashes, text: str, location: Callable[[int], str]) -> None:
        """Search a window of the corpus for the n-grams.

        Args:
            words: The words of the window.
            text: The characters of the window.
            location: A function that returns the location of a position in `text`.
        """
        for length in self._lengths:
            hashes, first_words, _ = hashing.ngram_hashes(words.hashes, words.offsets, length)
            candidates = np.flatnonzero(self._filter[(hashes >> self._shift).astype(np.int64)])
            if not len(candidates):
                continue
            starts = np.searchsorted(self._hashes, hashes[candidates], side="left")
            ends = np.searchsorted(self._hashes, hashes[candidates], side="right")
            for i in np.flatnonzero(ends > starts).tolist():
                entries = slice(int(starts[i]), int(ends[i]))
                if self._is_hit[entries].all():
                    continue
                position = int(words.starts[first_words[candidates[i]]])
                for row in self._rows[entries].tolist():
                    if row not in self._first:
                        excerpt = " ".join(text[position : position + _EXCERPT_CHARACTERS].split())
                        self._first[row] = (location(position), printable(excerpt))
                self._is_hit[entries] = True

    def summary(self) -> dict[str, Any]:
        """Return rows, compared rows, and hits of each file, and the rows with hits, largest overlap first."""
        hits = np.bincount(
            self._rows[self._is_hit], minlength=sum(len(entry.locations) for entry in self._files)
        )
        files: list[dict[str, Any]] = []
        rows: list[dict[str, Any]] = []
        first_row = 0
        for entry in self._files:
            num_rows = len(entry.locations)
            num_compared = sum(n > 0 for n in entry.num_ngrams)
            hit_rows = [i for i in range(num_rows) if hits[first_row + i]]
            files.append(
                {
                    "file": entry.file,
                    "rows": num_rows,
                    "too_short": num_rows - num_compared,
                    "hit": len(hit_rows),
                    "share": round(len(hit_rows) / max(1, num_compared), 6),
                }
            )
            for i in hit_rows:
                location, excerpt = self._first[first_row + i]
                share = round(int(hits[first_row + i]) / entry.num_ngrams[i], 4)
                rows.append({"row": entry.locations[i], "corpus": location, "share": share, "text": excerpt})
            first_row += num_rows
        rows.sort(key=lambda row: -row["share"])
        return {
            "ngram": self.n,
            "least_words": self._min_words,
            "files": files,
            "hit": len(rows),
            "rows": rows[: self._max_examples],
            "rows_not_listed": max(0, len(rows) - self._max_examples),
        }


def task_rows(file: str | Path | Table, encoding: str | None = None) -> Iterator[TaskRow]:
    """Yield the rows of a task file in any supported format; `encoding` is that of a file that is not UTF-8."""
    if isinstance(file, Table):
        yield from ((row.location, list(_strings(row.values))) for row in file)
        return
    suffix = format_suffix(file)
    if suffix == ".parquet":
        yield from ((f"{file}:{n}", list(_strings(values))) for n, values in parquet.read_rows(file))
    elif suffix == ".json":
        yield from _json_rows(file, encoding)
    elif suffix == ".jsonl":
        for number, line in read_lines(file, encoding):
            if line and not line.isspace():
                yield f"{file}:{number}", list(_strings(_parse_json(file, number, line)))
    else:
        is_table = suffix in (".csv", ".txt")
        delimiter = detect_delimiter(file, None, encoding) if is_table else None
        if delimiter in (None, "\t"):
            yield from _line_rows(file, encoding)
            return
        errors = ErrorCollector(file)
        for lines, fields in read_records(LineReader(file, errors, encoding), str(delimiter), errors):
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
    value = _parse_json(file, 1, "\n".join(line for _, line in read_lines(file, encoding)))
    for pointer, text in _strings_with_pointers(value, ""):
        if len(text) > 2 * MIN_WORDS or not text.isascii():
            yield f"{file}#{pointer}", [text]


def _parse_json(file: str | Path, number: int, text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        message = "this is not JSON"
        hint = "check how the file was made"
        raise InputError(
            "invalid_json", message, location=f"{file}:{number + error.lineno - 1}:{error.colno}", hint=hint
        ) from None
    except RecursionError:
        raise InputError(
            "json_too_deep", "this JSON is nested too deeply", location=f"{file}:{number}"
        ) from None


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


def _row_size(row: TaskRow) -> int:
    return max(_MIN_ROW_SIZE, sum(map(len, row[1])))
