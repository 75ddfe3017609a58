"""Corpus files become counted words for a trainer, in bounded memory.

A corpus whose words do not fit is sampled: a document is taken or left by a hash of (seed, its number), so the
sample is spread evenly over the whole corpus and the same in every process. When what was taken fills the memory
allowed, the share is halved and the reading begins anew; memory is reckoned from what was counted, not measured,
so that it is the same everywhere, too.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from bertsmith import rng
from bertsmith.errors import InputError
from bertsmith.io.files import Notes, Reading, bare_suffix, find_files, read_documents, read_lines

Cut = Callable[[str], list[str]]

AS_TEXT = Reading()
_WAITING = 500_000  # distinct raw runs that wait to be normalised, some 60 MB
_WAITING_BYTES = 160
_FLOOR = 150_000_000  # Python, the libraries, and a line being read
_WORD_BYTES = 600  # a word here and in the library's trainer, with the pairs that it is made of (measured)
_LETTER_BYTES = 90
_ROWS = (".jsonl", ".ndjson", ".csv", ".tsv", ".parquet")
_BLOCK = 4096
_LONGEST_RUN = 10_000  # characters for a normaliser at once: it takes some 50 bytes of memory for each


@dataclass(frozen=True)
class Counted:
    """The words of a corpus, and how much of it they are from."""

    words: Counter[str]
    bytes: int  # of UTF-8 text that was read
    documents: int  # that were seen
    documents_taken: int
    share: float  # of the documents asked for: 1, or 1/2, 1/4, …


def between_blanks(line: str) -> list[str]:
    """The runs between blanks: what a normaliser that never looks past a blank may see one by one."""
    return line.split(" ")


def before_blanks(line: str) -> list[str]:
    """A line with its end, cut where a blank follows something else: GPT-2's pattern never spans that place."""
    return _BEFORE_BLANK.split(line + "\n")


_BEFORE_BLANK = re.compile(r"(?<=\S)(?= )")


def count_training_words(
    files: Sequence[str | Path],
    *,
    cut: Cut,
    words_of: Cut,
    reading: Reading = AS_TEXT,
    max_ram: int | None = None,
    seed: int = 0,
    progress: Callable[[int], None],
    notes: Notes | None = None,
) -> Counted:
    """How often each word stands in the documents. `cut` parts a line into runs, each of which `words_of` turns
    into words once, however often it occurs: some 20 times less work, and no text is kept.

    With `max_ram` (bytes for the whole process) documents are sampled where the words would not fit. `notes` takes
    which files were left out. Raises `InputError` when `max_ram` holds next to nothing, and what the readers
    raise.
    """
    notes = notes if notes is not None else Notes()
    paths = find_files(files, notes)
    room = None if max_ram is None else max_ram - _FLOOR
    if max_ram is not None and room is not None and room < 20_000_000:
        raise InputError(
            f"{max_ram / 1e6:,.0f} MB leave no room for words: the program itself takes {_FLOOR / 1e6:,.0f} MB",
            "allow 256MB or more",
        )
    heard = _Furthest(progress)
    share = 1.0
    while True:
        counted = _counted(_lines(paths, reading, notes), cut, words_of, room, share, seed, heard)
        if counted is not None:
            return counted
        share /= 2


def _counted(
    lines: Iterator[tuple[bool, str]],
    cut: Cut,
    words_of: Cut,
    room: int | None,
    share: float,
    seed: int,
    progress: Callable[[int], None],
) -> Counted | None:
    words: Counter[str] = Counter()
    waiting: Counter[str] = Counter()
    most = _WAITING if room is None else min(_WAITING, room // 8 // _WAITING_BYTES)
    left = None if room is None else room - most * _WAITING_BYTES
    size = read = taken = 0
    number, letters = -1, 0.0
    kept = _kept(seed, share)
    for new, line in lines:
        if new:
            number += 1
            taken += kept(number)
        read += len(line.encode("utf-8")) + 1
        if number >= 0 and kept(number):
            runs, before = cut(line), len(waiting)
            if len(line) > _LONGEST_RUN:  # a page or a book without a blank
                runs = [part for run in runs for part in _sliced(run)]
            waiting.update(runs)
            # Where a script has no blanks a run is a line, and its letters are what takes the room.
            letters += len(line) * (len(waiting) - before) / max(1, len(runs))
            if len(waiting) + letters * 4 / _WAITING_BYTES > most:
                letters = 0.0
                size += _move(waiting, words, words_of)
                progress(read)
                if left is not None and size > left:
                    return None
    size += _move(waiting, words, words_of)
    if left is not None and size > left:
        return None
    progress(read)
    return Counted(words, read, number + 1, taken, share)


def _sliced(run: str) -> list[str]:
    return [run[at : at + _LONGEST_RUN] for at in range(0, len(run), _LONGEST_RUN)]


def _move(waiting: Counter[str], words: Counter[str], words_of: Cut) -> int:
    """Turn the runs that wait into words; how many bytes the new words will take."""
    size = 0
    for run, count in waiting.items():
        for word in words_of(run):
            if word not in words:
                size += _WORD_BYTES + _LETTER_BYTES * len(word)
            words[word] += count
    waiting.clear()
    return size


def _kept(seed: int, share: float) -> Callable[[int], bool]:
    """Whether the document of a number is in the sample; asked in order, so hashes are made by the block."""
    if share == 1:
        return lambda _: True
    block, flags = -1, [False]

    def kept(number: int) -> bool:
        nonlocal block, flags
        if number // _BLOCK != block:
            block = number // _BLOCK
            numbers = range(block * _BLOCK, (block + 1) * _BLOCK)
            flags = (rng.uniform(seed, "tokenizer sample", list(numbers)) < share).tolist()
        return flags[number % _BLOCK]

    return kept


def _lines(paths: Sequence[str | Path], reading: Reading, notes: Notes) -> Iterator[tuple[bool, str]]:
    """All lines, and whether each begins a document; files without text are noted."""
    # Plain text by lines and not by documents: a large file without a blank line is one document.
    for path in paths:
        if bare_suffix(path) in _ROWS:
            for document in read_documents([path], reading, notes=notes):
                for number, line in enumerate(document.text.split("\n")):
                    yield number == 0, line
            continue
        new, empty = True, True
        for _, line in read_lines(path, reading.encoding):
            if line and not line.isspace():
                empty = False
                yield new, line
                new = reading.documents == "line"
            else:
                yield False, line
                new = new or reading.documents == "blank_line"
        if empty:
            notes.empty[str(path)] = None


class _Furthest:
    """Progress that never goes back, though the reading may begin anew."""

    def __init__(self, progress: Callable[[int], None]) -> None:
        self._progress = progress
        self._furthest = 0

    def __call__(self, done: int) -> None:
        self._furthest = max(done, self._furthest)
        self._progress(self._furthest)
