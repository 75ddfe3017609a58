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

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from bertsmith import rng
from bertsmith.errors import InputError
from bertsmith.io.compression import format_suffix
from bertsmith.io.documents import Reading, read_documents
from bertsmith.io.folders import CorpusNotes, find_files
from bertsmith.io.tables import Table
from bertsmith.io.text_io import read_lines

Splitter = Callable[[str], list[str]]

DEFAULT_READING = Reading()
_ROW_SUFFIXES = (".jsonl", ".ndjson", ".csv", ".tsv", ".parquet")  # files in which a row is a document
_SAMPLING_BLOCK = 4096  # number of documents whose hashes are computed at once
_MAX_RUN_LENGTH = (
    10_000  # in characters; longer runs are divided, since a normalizer takes some 50 bytes for each
)
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


def split_at_spaces(line: str) -> list[str]:
    """Split a line into runs between spaces, for normalizers that treat the text around a space separately."""
    return line.split(" ")


def split_before_spaces(line: str) -> list[str]:
    """Split a line with its line end into runs, before each space that follows another character.

    GPT-2's pattern never matches across these positions.
    """
    return _BEFORE_SPACES.split(line + "\n")


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
        InputError: `max_ram` is too small.
    """
    notes = notes if notes is not None else CorpusNotes()
    paths = find_files(files, notes)
    word_bytes = None if max_ram is None else max_ram - _BASE_BYTES
    if max_ram is not None and word_bytes is not None and word_bytes < _MIN_WORD_BYTES:
        message = f"{max_ram / 1e6:,.0f} MB are too few: the program itself needs {_BASE_BYTES / 1e6:,.0f} MB"
        raise InputError("max_ram_too_small", message, argument="max_ram", hint="allow 256MB or more")
    monotonic_progress = _MonotonicProgress(progress)
    ratio = 1.0
    while True:
        lines = _read_lines(paths, reading, notes)
        words = _count_sample(lines, split_runs, split_words, word_bytes, ratio, seed, monotonic_progress)
        if words is not None:
            return words
        ratio /= 2


def _count_sample(
    lines: Iterator[tuple[bool, str]],
    split_runs: Splitter,
    split_words: Splitter,
    word_bytes: int | None,
    ratio: float,
    seed: int,
    progress: Callable[[int], None],
) -> CorpusWords | None:
    """Count the words of a sample; return None as soon as they need more than `word_bytes`.

    Args:
        lines: Lines, each with True if it starts a document.
        split_runs: See `count_training_words`.
        split_words: See `count_training_words`.
        word_bytes: Maximum estimated memory of pending runs and words together; None: no limit.
        ratio: The sampling ratio.
        seed: The seed of the sample.
        progress: Called with the number of bytes so far.
    """
    words: Counter[str] = Counter()
    pending_runs: Counter[str] = Counter()
    max_pending, max_bytes = _MAX_PENDING_RUNS, None
    if word_bytes is not None:
        max_pending = min(_MAX_PENDING_RUNS, word_bytes // _PENDING_DIVISOR // _PENDING_RUN_BYTES)
        max_bytes = word_bytes - max_pending * _PENDING_RUN_BYTES
    used_bytes = bytes_read = documents_sampled = 0
    document, pending_characters = -1, 0.0
    is_sampled = _make_sampler(seed, ratio)
    for starts_document, line in lines:
        if starts_document:
            document += 1
            documents_sampled += is_sampled(document)
        bytes_read += len(line.encode("utf-8")) + 1
        if document >= 0 and is_sampled(document):
            runs, num_pending = split_runs(line), len(pending_runs)
            if len(line) > _MAX_RUN_LENGTH:  # The line may be a page or a book without a space.
                runs = [part for run in runs for part in _divide(run)]
            pending_runs.update(runs)
            # The line's characters in new runs, if all its runs have the same length. In a script without spaces a
            # run is a whole line, so its characters determine the memory.
            num_new_runs = len(pending_runs) - num_pending
            pending_characters += len(line) * num_new_runs / max(1, len(runs))
            # Expressed as a number of runs that take the same memory.
            character_runs = pending_characters * _PENDING_CHARACTER_BYTES / _PENDING_RUN_BYTES
            if len(pending_runs) + character_runs > max_pending:
                pending_characters = 0.0
                used_bytes += _move_to_words(pending_runs, words, split_words)
                progress(bytes_read)
                if max_bytes is not None and used_bytes > max_bytes:
                    return None
    used_bytes += _move_to_words(pending_runs, words, split_words)
    if max_bytes is not None and used_bytes > max_bytes:
        return None
    progress(bytes_read)
    return CorpusWords(words, bytes_read, document + 1, documents_sampled, ratio)


def _divide(run: str) -> list[str]:
    return [run[start : start + _MAX_RUN_LENGTH] for start in range(0, len(run), _MAX_RUN_LENGTH)]


def _move_to_words(pending_runs: Counter[str], words: Counter[str], split_words: Splitter) -> int:
    """Split the pending runs into words and remove them; return the estimated bytes of the new words."""
    num_bytes = 0
    for run, count in pending_runs.items():
        for word in split_words(run):
            if word not in words:
                num_bytes += _WORD_BYTES + _CHARACTER_BYTES * len(word)
            words[word] += count
    pending_runs.clear()
    return num_bytes


def _make_sampler(seed: int, ratio: float) -> Callable[[int], bool]:
    """Return a function that returns True if the document of an index is in the sample.

    It is fast for increasing indices, since hashes are computed in blocks.
    """
    if ratio == 1:
        return lambda _: True
    block, block_is_sampled = -1, [False]

    def is_sampled(document: int) -> bool:
        nonlocal block, block_is_sampled
        if document // _SAMPLING_BLOCK != block:
            block = document // _SAMPLING_BLOCK
            documents = range(block * _SAMPLING_BLOCK, (block + 1) * _SAMPLING_BLOCK)
            block_is_sampled = (rng.uniform(seed, "tokenizer sample", list(documents)) < ratio).tolist()
        return block_is_sampled[document % _SAMPLING_BLOCK]

    return is_sampled


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


class _MonotonicProgress:
    """Report progress that never decreases, although reading may start again."""

    def __init__(self, progress: Callable[[int], None]) -> None:
        self._progress = progress
        self._maximum = 0

    def __call__(self, num_bytes: int) -> None:
        self._maximum = max(num_bytes, self._maximum)
        self._progress(self._maximum)
