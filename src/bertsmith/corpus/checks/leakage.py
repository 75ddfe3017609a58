"""Which rows of evaluation sets stand in the corpus: runs of n words in both (Brown et al. 2020, appendix C).

Compared are words in lower case without punctuation (characters, where a script has no blanks between words). A
text of fewer than n words is looked for as a whole if it has at least eight. Kept are 8-byte hashes of the tasks'
runs; the corpus streams past.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bertsmith.corpus import hashing
from bertsmith.corpus.checks.characters import shown
from bertsmith.corpus.hashing import Hashes, Ints, WordHashes
from bertsmith.errors import InputError
from bertsmith.io.files import bare_suffix, read_lines
from bertsmith.io.tables import table_delimiter, table_records
from bertsmith.suggestions import absent

LEAST_WORDS = 8
_TOGETHER = 4096  # texts whose hashes are taken at once
_FILTER_BITS = (20, 27)  # of the filter before the search: 1 to 128 MB
_EXCERPT = 100


@dataclass
class _Rows:
    """The rows of one file: places, and how many runs each has (0: too short to compare)."""

    file: str
    places: list[str]
    runs: list[int]


class Leakage:
    """The runs of words of some task files, and which of them the corpus holds.

    Memory: about 25 bytes a run of the tasks, 1 to 128 MB for the filter in front of them.
    """

    def __init__(
        self, files: Sequence[str | Path], n: int = 13, listed: int = 1000, encoding: str | None = None
    ) -> None:
        """Read the task files: .csv, .tsv, .txt, .jsonl, .json, .parquet, the text ones compressed or not.

        Every field is compared on its own. Lines of one word with its label (CoNLL) are joined to sentences.
        Raises `InputError` for a file that is missing or cannot be read.
        """
        self.n, self._listed = n, listed
        self._least = min(LEAST_WORDS, n)
        self._files: list[_Rows] = []
        hashes, rows, lengths = self._read(files, encoding)
        order = np.lexsort((rows, hashes))
        self._hashes, self._rows = hashes[order], rows[order]
        self._lengths = sorted(set(lengths.tolist()))
        self._hit = np.zeros(len(self._hashes), dtype=bool)
        self._first: dict[int, tuple[str, str]] = {}
        bits = int(np.clip(np.ceil(np.log2(max(1, len(hashes)) * 16)), *_FILTER_BITS))
        self._shift = np.uint64(64 - bits)
        self._filter = np.zeros(1 << bits, dtype=bool)
        self._filter[(self._hashes >> self._shift).astype(np.int64)] = True

    def _read(self, files: Sequence[str | Path], encoding: str | None) -> tuple[Hashes, Ints, Ints]:
        """All runs with their row and their number of words."""
        hashes, rows, lengths = [], [], []
        row = 0
        for file in files:
            entry = _Rows(str(file), [], [])
            for places, owners, texts in _batched(task_rows(file, encoding)):
                codes, bounds = hashing.code_points(texts)
                words = hashing.words(codes, bounds)
                found, _, ends = hashing.grams(words, self.n)
                number = np.diff(words.bounds)
                length = np.repeat(np.minimum(number, self.n), np.diff(ends))
                owner = np.repeat(np.array(owners, dtype=np.int64), np.diff(ends))
                kept = length >= self._least
                pairs = np.unique(np.stack([owner[kept].astype(np.uint64), found[kept]]), axis=1)
                counts = np.bincount(pairs[0].astype(np.int64), minlength=len(places))
                hashes.append(pairs[1])
                rows.append(pairs[0].astype(np.int64) + row)
                lengths.append(np.unique(length[kept]))
                entry.places += places
                entry.runs += counts.tolist()
                row += len(places)
            self._files.append(entry)
        nothing = np.empty(0, dtype=np.int64)
        return (
            np.concatenate([np.empty(0, dtype=np.uint64), *hashes]),
            np.concatenate([nothing, *rows]),
            np.concatenate([nothing, *lengths]),
        )

    def add(self, words: WordHashes, text: str, place: Callable[[int], str]) -> None:
        """Look for the tasks' runs in a window of the corpus; `place` says where a position of `text` is."""
        for length in self._lengths:
            hashes, first, _ = hashing.grams(words, length)
            likely = np.flatnonzero(self._filter[(hashes >> self._shift).astype(np.int64)])
            if not len(likely):
                continue
            begin = np.searchsorted(self._hashes, hashes[likely], side="left")
            end = np.searchsorted(self._hashes, hashes[likely], side="right")
            for i in np.flatnonzero(end > begin).tolist():
                entries = slice(int(begin[i]), int(end[i]))
                if self._hit[entries].all():
                    continue
                position = int(words.starts[first[likely[i]]])
                for row in self._rows[entries].tolist():
                    if row not in self._first:
                        excerpt = shown(" ".join(text[position : position + _EXCERPT].split()))
                        self._first[row] = (place(position), excerpt)
                self._hit[entries] = True

    def summary(self) -> dict[str, Any]:
        """By file: rows, rows compared, rows hit; and the rows that are hit, those most of which stands in the
        corpus first."""
        hits = np.bincount(self._rows[self._hit], minlength=sum(len(f.places) for f in self._files))
        files: list[dict[str, Any]] = []
        rows: list[dict[str, Any]] = []
        base = 0
        for entry in self._files:
            compared = sum(runs > 0 for runs in entry.runs)
            found = [i for i in range(len(entry.places)) if hits[base + i]]
            files.append(
                {
                    "file": entry.file,
                    "rows": len(entry.places),
                    "too_short": len(entry.places) - compared,
                    "hit": len(found),
                    "share": round(len(found) / max(1, compared), 6),
                }
            )
            for i in found:
                where, excerpt = self._first[base + i]
                share = round(int(hits[base + i]) / entry.runs[i], 4)
                rows.append({"row": entry.places[i], "corpus": where, "share": share, "text": excerpt})
            base += len(entry.places)
        rows.sort(key=lambda row: -row["share"])
        return {
            "ngram": self.n,
            "least_words": self._least,
            "files": files,
            "hit": len(rows),
            "rows": rows[: self._listed],
            "rows_not_listed": max(0, len(rows) - self._listed),
        }


def task_rows(file: str | Path, encoding: str | None = None) -> Iterator[tuple[str, list[str]]]:
    """The rows of a task file in any of the usual forms, as (place, texts); encoding: of one that is not UTF-8."""
    suffix = bare_suffix(file)
    if suffix == ".parquet":
        yield from _of_parquet(file)
    elif suffix == ".json":
        yield from _of_json(file, encoding)
    elif suffix == ".jsonl":
        for number, line in read_lines(file, encoding):
            if line and not line.isspace():
                yield f"{file}:{number}", list(_strings(_json(file, number, line)))
    elif suffix in (".csv", ".txt") and (delimiter := table_delimiter(file, None, encoding)) not in (
        None,
        "\t",
    ):
        for at, fields in table_records(file, str(delimiter), encoding):
            yield f"{file}:{at}", fields
    else:
        yield from _of_lines(file, encoding)


def _of_lines(file: str | Path, encoding: str | None) -> Iterator[tuple[str, list[str]]]:
    block: list[str] = []
    first = 1
    for number, line in read_lines(file, encoding):
        if line.strip():
            first = number if not block else first
            block.append(line)
            continue
        yield from _of_block(file, first, block)
        block = []
    yield from _of_block(file, first, block)


def _of_block(file: str | Path, first: int, block: list[str]) -> Iterator[tuple[str, list[str]]]:
    """The lines between two blank ones: rows of tab-parted fields, or one sentence with a word a line."""
    lines = [line for line in block if not line.startswith("#")]
    columns = {len(line.split()) for line in lines}
    if len(lines) >= LEAST_WORDS and len(columns) == 1 and 2 <= min(columns) <= 16:
        column = 1 if all(line.split()[0].isdigit() for line in lines) else 0  # CoNLL-U numbers its words
        yield f"{file}:{first}", [" ".join(line.split()[column] for line in lines)]
        return
    for offset, line in enumerate(block):
        yield f"{file}:{first + offset}", line.split("\t")


def _of_json(file: str | Path, encoding: str | None) -> Iterator[tuple[str, list[str]]]:
    """Each string of at least some length is a row of its own: nested sets (SQuAD) have no lines to count."""
    value = _json(file, 1, "\n".join(line for _, line in read_lines(file, encoding)))
    for place, text in _named_strings(value, ""):
        if len(text) > 2 * LEAST_WORDS or not text.isascii():
            yield f"{file}#{place}", [text]


def _json(file: str | Path, number: int, text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        line = number + error.lineno - 1
        raise InputError(f"{file}:{line}:{error.colno}: this is not JSON", "check how it was made") from None
    except RecursionError:
        raise InputError(f"{file}:{number}: this JSON is nested too deeply") from None


def _strings(value: Any) -> Iterator[str]:
    return (text for _, text in _named_strings(value, ""))


def _named_strings(value: Any, place: str) -> Iterator[tuple[str, str]]:
    """The strings in a JSON value, each with its place as a JSON pointer (RFC 6901, without its escapes)."""
    if isinstance(value, str):
        yield place, value
    elif isinstance(value, dict):
        for name, part in value.items():
            yield from _named_strings(part, f"{place}/{name}")
    elif isinstance(value, list):
        if len(value) >= LEAST_WORDS and all(isinstance(part, str) and " " not in part for part in value):
            yield place, " ".join(value)  # a sentence as a list of its words
        else:
            for number, part in enumerate(value):
                yield from _named_strings(part, f"{place}/{number}")


def _of_parquet(file: str | Path) -> Iterator[tuple[str, list[str]]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    if not Path(file).is_file():
        raise absent(file)
    try:
        number = 0
        with pq.ParquetFile(file) as table:
            for batch in table.iter_batches(batch_size=64):  # few: one long text may stand for many rows
                for row in batch.to_pylist():
                    number += 1
                    yield f"{file}:{number}", list(_strings(row))
    except (pa.ArrowException, OSError, UnicodeDecodeError):
        raise InputError(f"{file}: this is not a whole parquet file", "download it again") from None


def _batched(
    rows: Iterator[tuple[str, list[str]]],
) -> Iterator[tuple[list[str], list[int], list[str]]]:
    """Rows in groups: their places, the texts of all, and each text's row within the group."""
    places: list[str] = []
    owners: list[int] = []
    texts: list[str] = []
    size = 0
    for place, fields in rows:
        owners += [len(places)] * len(fields)
        texts += fields
        places.append(place)
        size += sum(map(len, fields))
        if len(places) >= _TOGETHER or size >= hashing.WINDOW:
            yield places, owners, texts
            places, owners, texts, size = [], [], [], 0
    if places:
        yield places, owners, texts
