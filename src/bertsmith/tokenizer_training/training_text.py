"""Count the words of corpus files for a trainer, within a memory limit.

If the words of a corpus exceed the limit, a sample of its documents is counted: a hash of (seed, document index)
decides if a document is in the sample, which is therefore spread evenly over the corpus and is the same in every
process. Counting starts with all documents; each time the limit is exceeded, the sampling ratio is halved and
counting starts again. Memory is estimated from the counts, not measured, so that the sample does not depend on the
machine.

A run is a part of a line that has the same words when it is split separately. Runs are counted first, and each
distinct run is then normalized and split into words once.
"""

from __future__ import annotations

import itertools
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bertsmith import rng
from bertsmith.errors import InputError
from bertsmith.io.compression import format_suffix
from bertsmith.io.documents import Reading, read_documents
from bertsmith.io.folders import CorpusNotes, find_files
from bertsmith.io.tables import Table
from bertsmith.io.text_io import read_lines

Splitter = Callable[[str], list[str]]

DEFAULT_READING = Reading()
_ROW_SUFFIXES = (".jsonl", ".json", ".csv", ".tsv", ".parquet")  # files in which a row is a document
_SAMPLING_BLOCK = 4096  # number of documents whose hashes are computed at once
# In characters; longer runs are divided, since a normalizer takes some 50 bytes for each.
_MAX_RUN_LENGTH = 10_000
_BEFORE_SPACES = re.compile(r"(?<=\S)(?= )")
# Pending runs are counted, but not yet split into words. They may take 60 MB, or an eighth of the limit for words.
_MAX_PENDING_RUNS = 500_000
_PENDING_DIVISOR = 8
# Estimated memory.
_BASE_BYTES = 150_000_000  # Python, the libraries, and the line that is read
_MIN_WORD_BYTES = 20_000_000  # the smallest limit for words
_PENDING_RUN_BYTES = 160
_PENDING_CHARACTER_BYTES = 4
_WORD_BYTES = 600  # of a word in the counts and in the library's trainer with its pairs, as measured
_CHARACTER_BYTES = 90  # of each of the word's characters


@dataclass(frozen=True)
class CorpusWords:
    """The counted words of a corpus or of a sample of it.

    Attributes:
        words: Number of occurrences of each word.
        bytes: Number of UTF-8 bytes that were read.
        documents: Number of documents that were read.
        documents_sampled: Number of documents whose words were counted.
        ratio: Sampling ratio: 1, or 1/2, 1/4, …
    """

    words: Counter[str]
    bytes: int
    documents: int
    documents_sampled: int
    ratio: float


def word_splitter(normalizer: Any, pre_tokenizer: Any) -> Splitter:
    """Return a function that splits a text into words as the model of a tokenizer receives them.

    Args:
        normalizer: The tokenizer's normalizer; None if it has none.
        pre_tokenizer: Its pre-tokenizer; None if it has none.
    """

    def split_words(text: str) -> list[str]:
        if normalizer is not None:
            text = normalizer.normalize_str(text)
        if pre_tokenizer is None:
            return [text] if text else []
        return [word for word, _ in pre_tokenizer.pre_tokenize_str(text)]

    return split_words


def split_at_spaces(line: str) -> list[str]:
    """Split a line into runs between spaces, for normalizers that treat the text around a space separately."""
    return _divide_long_runs(line.split(" "), len(line))


def split_before_spaces(line: str) -> list[str]:
    """Split a line with its line end into runs, before each space that follows another character.

    GPT-2's pattern never matches across these positions.
    """
    return _divide_long_runs(_BEFORE_SPACES.split(line + "\n"), len(line))


def _divide_long_runs(runs: list[str], line_length: int) -> list[str]:
    if line_length <= _MAX_RUN_LENGTH:
        return runs
    # The line may be a page or a book without a space.
    size = _MAX_RUN_LENGTH
    return [run[start : start + size] for run in runs for start in range(0, len(run), size)]


def count_training_words(
    files: Sequence[str | Path | Table],
    *,
    split_runs: Splitter,
    split_words: Splitter,
    reading: Reading = DEFAULT_READING,
    max_ram: int | None = None,
    seed: int = 0,
    progress: Callable[[int], None],
    notes: CorpusNotes | None = None,
) -> CorpusWords:
    """Count the words of documents.

    Splitting each distinct run into words only once is some 20 times less work than splitting all text.

    Args:
        files: Files, folders, or globs.
        split_runs: Splits a line into runs.
        split_words: Splits a run into words.
        reading: How files are divided into documents.
        max_ram: Maximum memory of the process in bytes; documents are sampled if their words need more.
        seed: The seed of the sample.
        progress: Called with the number of bytes so far.
        notes: Collects the files that are skipped.

    Raises:
        InputError: There are no files, the files have no words, or `max_ram` is too small.
    """
    if not files:
        message = "there is no file to train on"
        raise InputError("no_training_files", message, argument="files", hint="name text files")
    notes = notes if notes is not None else CorpusNotes()
    paths = find_files(files, notes)
    word_bytes = sys.maxsize if max_ram is None else max_ram - _BASE_BYTES
    if max_ram is not None and word_bytes < _MIN_WORD_BYTES:
        message = f"{max_ram / 1e6:,.0f} MB are too few: the program itself needs {_BASE_BYTES / 1e6:,.0f} MB"
        raise InputError("max_ram_too_small", message, argument="max_ram", hint="allow 256MB or more")
    max_bytes_read = 0

    def update_progress(bytes_read: int) -> None:
        nonlocal max_bytes_read  # The progress never decreases, although reading may start again.
        max_bytes_read = max(bytes_read, max_bytes_read)
        progress(max_bytes_read)

    ratio = 1.0
    while True:
        lines = _read_lines(paths, reading, notes)
        sample = _count_sample(lines, split_runs, split_words, word_bytes, ratio, seed, update_progress)
        if sample is not None:
            break
        ratio /= 2
    if not sample.words:
        hint = "check how the files were created"
        raise InputError("no_words", "the files contain no words", location=files[0], hint=hint)
    return sample


def _count_sample(
    lines: Iterator[tuple[bool, str]],
    split_runs: Splitter,
    split_words: Splitter,
    word_bytes: int,
    ratio: float,
    seed: int,
    progress: Callable[[int], None],
) -> CorpusWords | None:
    """Count the words of a sample; return None as soon as they need more than `word_bytes`.

    Args:
        lines: Lines, each with True if it starts a document.
        split_runs: See `count_training_words`.
        split_words: See `count_training_words`.
        word_bytes: Maximum estimated memory of pending runs and words together.
        ratio: The sampling ratio.
        seed: The seed of the sample.
        progress: Called with the number of bytes so far.
    """
    words: Counter[str] = Counter()
    max_pending = min(_MAX_PENDING_RUNS, word_bytes // _PENDING_DIVISOR // _PENDING_RUN_BYTES)
    max_bytes = word_bytes - max_pending * _PENDING_RUN_BYTES
    used_bytes = bytes_read = documents = documents_sampled = 0

    def sampled_lines() -> Iterator[str]:
        nonlocal bytes_read, documents, documents_sampled
        sample, is_sampled = _draw_sample(seed, ratio), False
        for starts_document, line in lines:
            if starts_document:
                is_sampled = next(sample)
                documents += 1
                documents_sampled += is_sampled
            bytes_read += len(line.encode("utf-8")) + 1
            if is_sampled:
                yield line

    for runs in count_runs(sampled_lines(), split_runs, max_pending):
        for run, count in runs.items():
            for word in split_words(run):
                if word not in words:
                    used_bytes += _WORD_BYTES + _CHARACTER_BYTES * len(word)
                words[word] += count
        if used_bytes > max_bytes:
            return None
        progress(bytes_read)
    return CorpusWords(words, bytes_read, documents, documents_sampled, ratio)


def count_runs(
    texts: Iterable[str], split_runs: Splitter, max_pending: int = _MAX_PENDING_RUNS
) -> Iterator[Counter[str]]:
    """Yield the counted runs of texts, in portions with the memory of some `max_pending` short runs each."""
    runs: Counter[str] = Counter()
    num_characters = 0.0
    for text in texts:
        text_runs, num_runs = split_runs(text), len(runs)
        runs.update(text_runs)
        # The text's characters in new runs, if all its runs have the same length. In a script without spaces a
        # run is a whole line, so its characters determine the memory.
        num_characters += len(text) * (len(runs) - num_runs) / max(1, len(text_runs))
        # Expressed as a number of runs that take the same memory.
        if len(runs) + num_characters * _PENDING_CHARACTER_BYTES / _PENDING_RUN_BYTES > max_pending:
            yield runs
            runs, num_characters = Counter(), 0.0
    yield runs


def _draw_sample(seed: int, ratio: float) -> Iterator[bool]:
    """Yield for each document, in order, True if it is in the sample."""
    for start in itertools.count(0, _SAMPLING_BLOCK):
        documents = np.arange(start, start + _SAMPLING_BLOCK)
        yield from (rng.uniform(seed, "tokenizer sample", documents) < ratio).tolist()


def _read_lines(
    paths: Sequence[str | Path | Table], reading: Reading, notes: CorpusNotes
) -> Iterator[tuple[bool, str]]:
    """Yield all lines, each with True if it starts a document; record files without text in `notes`."""
    # Plain text is read by line, not by document: a large file without a blank line would be one document.
    for path in paths:
        if isinstance(path, Table) or format_suffix(path) in _ROW_SUFFIXES:
            for document in read_documents([path], reading, notes=notes):
                for i, line in enumerate(document.text.split("\n")):
                    yield i == 0, line
            continue
        starts_document, is_empty = True, True
        for _, line in read_lines(path, reading.encoding):
            if line and not line.isspace():
                is_empty = False
                yield starts_document, line
                starts_document = reading.documents == "line"
            else:
                yield False, line
                starts_document = starts_document or reading.documents == "blank_line"
        if is_empty:
            notes.empty[str(path)] = None
