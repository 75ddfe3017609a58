"""Read and write ARPA files, the text format of n-gram models with backoff of SRILM, KenLM, and other tools.

A file has the number of n-grams of each order, and for each order a section of lines with the log10 of a
probability, a tab, the words, and, below the highest order, a tab and the log10 of the backoff (0 if missing).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from bertsmith.corpus.shards import IntArray
from bertsmith.errors import InputError
from bertsmith.io import atomic
from bertsmith.io.text_io import ErrorCollector, LineReader
from bertsmith.predecessors.ngram_counts import ABSENT, find_keys, is_first_of_run, join_keys, word_bits
from bertsmith.predecessors.ngram_smoothing import FloatArray, NgramTable
from bertsmith.predecessors.ngram_text import SPECIAL_WORDS, UNKNOWN

_NEVER = -99.0  # log10 of the probability 0, by convention
_MISSING_UNKNOWN = -100.0  # log10 of the probability of <unk> in a file without it, as in KenLM
_CHUNK_ROWS = 1 << 20  # n-grams that are written at a time
_CHUNK_CHARACTERS = 1 << 25  # of lines that are parsed at a time
_COUNT = re.compile(r"ngram\s+(\d{1,3})\s*=\s*(\d{1,15})\s*")
_SECTION = re.compile(r"\\(\d{1,3})-grams:\s*")
_HEADER_LINE = re.compile(r"^\\.*$", re.MULTILINE)
_HINT = "write the file again, or copy it again from its source"


def write_arpa(path: Path, words: list[str], tables: list[NgramTable]) -> None:
    """Write the tables of a model to an ARPA file atomically.

    Args:
        path: The file.
        words: The vocabulary.
        tables: The tables by order.

    Raises:
        InputError: A word is empty or contains a blank.
    """
    for word in words:
        if not word or word.split() != [word] or "\0" in word:
            message = f"the word {word!r} is empty or contains a blank, which ARPA files cannot represent"
            raise InputError("word_with_blank", message, location=path)
    with atomic.atomic_file(path) as part, atomic.write_errors(path), part.open("wb") as file:
        sizes = "".join(f"ngram {n}={len(table.keys)}\n" for n, table in enumerate(tables, start=1))
        file.write(f"\\data\\\n{sizes}\n".encode("ascii"))
        word_array = pa.array(words)
        for order in range(1, len(tables) + 1):
            file.write(f"\\{order}-grams:\n".encode("ascii"))
            _write_section(file, word_array, tables[:order], has_backoffs=order < len(tables))
            file.write(b"\n")
        file.write(b"\\end\\\n")


def _write_section(file: BinaryIO, words: pa.Array, tables: list[NgramTable], *, has_backoffs: bool) -> None:
    """Write the n-grams of the last of the tables."""
    bits = word_bits(len(words))
    table = tables[-1]
    for start in range(0, len(table.keys), _CHUNK_ROWS):
        rows = slice(start, start + _CHUNK_ROWS)
        columns: list[pa.Array] = []
        keys = table.keys[rows]
        for lower in reversed(tables[:-1]):
            columns.insert(0, words.take(pa.array(keys & ((1 << bits) - 1))))
            keys = lower.keys[keys >> bits]
        columns.insert(0, words.take(pa.array(keys)))
        ngrams = pc.binary_join_element_wise(*columns, " ")
        values = [table.log_probs[rows], *([table.backoffs[rows]] if has_backoffs else [])]
        numbers = [
            pc.cast(pa.array(np.where(np.isneginf(value), _NEVER, value)), pa.string()) for value in values
        ]
        lines = pc.binary_join_element_wise(numbers[0], ngrams, *numbers[1:], "\t")
        lines = pc.binary_join_element_wise(lines, "", "\n")
        _, _, characters = lines.buffers()
        file.write(memoryview(characters)[: lines.offset + _string_bytes(lines)])


def _string_bytes(strings: pa.StringArray) -> int:
    return int(np.frombuffer(strings.buffers()[1], dtype=np.int32)[len(strings)])


@dataclass
class _Section:
    """The n-grams of one section, and the line of each."""

    order: int
    line: int  # of its header
    words: list[list[str]] = field(default_factory=list)  # of unigrams
    ids: list[NDArray[np.int64]] = field(default_factory=list)  # [rows, order] of each chunk of other orders
    log_probs: list[FloatArray] = field(default_factory=list)
    backoffs: list[FloatArray] = field(default_factory=list)
    lines: list[IntArray] = field(default_factory=list)


def read_arpa(path: str | Path) -> tuple[list[str], list[NgramTable]]:
    """Read an ARPA file, also compressed.

    Returns:
        The vocabulary, special words first, and the tables by order.

    Raises:
        InputError: The file is not complete, or a line is not an n-gram, has an unknown word, repeats an n-gram,
            or is an n-gram whose context is missing.
    """
    reader = _ArpaReader(str(path))
    for line, header, text in _header_blocks(str(path)):
        reader.add(line, header, text)
    return reader.finish()


def _header_blocks(path: str) -> Iterator[tuple[int, str, str]]:
    """Yield the lines of a file in chunks: the number of the first, the header before it or "", and the lines.

    A header is a line that begins with a backslash.
    """
    parts: list[str] = []  # joined once: appending to a text of many blocks would copy it each time
    first_line, header, num_characters = 1, "", 0
    for block in LineReader(ErrorCollector(path), "utf-8").blocks():
        text, line, start = block.text.replace("\r", ""), block.line, 0
        for match in _HEADER_LINE.finditer(text):
            yield first_line, header, "".join([*parts, text[start : match.start()]])
            line += text.count("\n", start, match.end() + 1)
            parts, num_characters = [], 0
            first_line, header, start = line, match[0], match.end() + 1
        parts.append(text[start:])
        num_characters += len(parts[-1])
        if num_characters > _CHUNK_CHARACTERS:
            yield first_line, header, "".join(parts)
            first_line, header = line + text.count("\n", start), ""
            parts, num_characters = [], 0
    yield first_line, header, "".join(parts)


class _ArpaReader:
    """Collect the sections of an ARPA file."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._sizes: list[int] | None = None
        self._section: _Section | None = None
        self._words: list[str] = []
        self._word_array = pa.array([], pa.string())
        self._tables: list[NgramTable] = []
        self._is_complete = False

    def add(self, line: int, header: str, text: str) -> None:
        """Read a chunk of lines; the number of the first follows that of its header, if it has one."""
        if self._is_complete or (not header and self._sizes is None):
            return  # what stands before \data\ or behind \end\ is a comment
        if header.rstrip() == "\\data\\" and self._sizes is None:
            self._sizes = self._read_sizes(line, text)
        elif match := _SECTION.fullmatch(header):
            self._close_section()
            if int(match[1]) != len(self._tables) + 1 or self._sizes is None:
                raise self._error(line - 1, f"the section {header} is not the next one")
            self._section = _Section(int(match[1]), line - 1)
            self._read_lines(line, text, self._section)
        elif header.rstrip() == "\\end\\":
            self._close_section()
            self._is_complete = True
        elif header:
            raise self._error(line - 1, f"{header[:40]!r} is not a section of an ARPA file")
        elif self._section is not None:
            self._read_lines(line, text, self._section)

    def finish(self) -> tuple[list[str], list[NgramTable]]:
        """Return the vocabulary and the tables."""
        if self._sizes is None:
            message = "this is not an ARPA file: it has no \\data\\"
            raise InputError("not_arpa", message, location=self._path, hint=_HINT)
        if not self._is_complete or len(self._tables) < len(self._sizes):
            message = (
                f"the file ends after {len(self._tables)} of {len(self._sizes)} sections, or without \\end\\"
            )
            raise InputError("truncated_file", message, location=self._path, hint=_HINT)
        self._tables[-1].backoffs = np.empty(0, dtype=np.float32)
        return self._words, self._tables

    def _read_sizes(self, line: int, text: str) -> list[int]:
        sizes: list[int] = []
        for number, content in enumerate(text.split("\n"), start=line):
            if content.strip():
                match = _COUNT.fullmatch(content)
                if match is None or int(match[1]) != len(sizes) + 1:
                    raise self._error(number, "this is not the number of n-grams of the next order")
                sizes.append(int(match[2]))
        if not sizes:
            raise self._error(line - 1, "there are no numbers of n-grams")
        return sizes

    def _read_lines(self, line: int, text: str, section: _Section) -> None:
        """Parse lines of a section, all at a time."""
        lines = pc.split_pattern(pa.scalar(text.replace("\t", " ")), "\n").values
        numbers = np.arange(line, line + len(lines))
        lines = pc.utf8_trim(lines, " ")
        is_filled = pc.not_equal(lines, "").to_numpy(zero_copy_only=False)
        numbers, lines = numbers[is_filled], lines.filter(pa.array(is_filled))
        fields = pc.split_pattern(lines, " ")
        lengths = pc.list_value_length(fields).to_numpy()
        order = section.order
        self._check(
            (lengths == order + 1) | (lengths == order + 2),
            numbers,
            f"this line is not a probability, {order} words, and a backoff",
        )
        starts = np.cumsum(lengths) - lengths
        values = fields.flatten()
        section.lines.append(numbers)
        section.log_probs.append(self._numbers(values, starts, numbers))
        self._check(section.log_probs[-1] <= 0, numbers, "the log10 of a probability is above 0")
        has_backoff = lengths == order + 2
        backoffs = np.zeros(len(starts), dtype=np.float32)
        backoffs[has_backoff] = self._numbers(values, starts[has_backoff] + order + 1, numbers[has_backoff])
        section.backoffs.append(backoffs)
        words = [values.take(pa.array(starts + 1 + i)) for i in range(order)]
        if order == 1:
            section.words.append(words[0].to_pylist())
            return
        ids = [pc.fill_null(pc.index_in(column, self._word_array), ABSENT).to_numpy() for column in words]
        section.ids.append(np.stack(ids, axis=1).astype(np.int64))
        self._check((section.ids[-1] != ABSENT).all(axis=1), numbers, "a word is not among the 1-grams")

    def _numbers(self, values: pa.StringArray, positions: IntArray, lines: IntArray) -> FloatArray:
        """Return the numbers at positions of the fields."""
        texts = values.take(pa.array(positions))
        try:
            numbers: FloatArray = pc.cast(texts, pa.float32()).to_numpy(zero_copy_only=False)
        except pa.ArrowInvalid:
            is_number = [_is_number(text) for text in texts.to_pylist()]
            self._check(np.array(is_number, dtype=bool), lines, "this line has no number where one belongs")
            numbers = np.array(texts.to_pylist(), dtype=np.float32)
        self._check(~np.isnan(numbers), lines, "a number is NaN")
        return numbers

    def _close_section(self) -> None:
        """Sort the n-grams of the section that ends here."""
        section, self._section = self._section, None
        if section is None:
            return
        lines = np.concatenate(section.lines)
        expected = self._sizes[section.order - 1] if self._sizes and section.order <= len(self._sizes) else 0
        if len(lines) != expected:
            message = f"the section has {len(lines):,} {section.order}-grams, and should have {expected:,}"
            raise self._error(section.line, message)
        log_probs, backoffs = np.concatenate(section.log_probs), np.concatenate(section.backoffs)
        if section.order == 1:
            self._add_unigrams(
                [word for chunk in section.words for word in chunk], log_probs, backoffs, lines
            )
            return
        ids = np.concatenate(section.ids)
        bits = word_bits(len(self._words))
        contexts = ids[:, 0]
        for i, table in enumerate(self._tables[1:], start=1):
            contexts = find_keys(table.keys, join_keys(contexts, ids[:, i], bits)).astype(np.int64)
            self._check(contexts != ABSENT, lines, "the n-gram without its last word is missing")
        keys = join_keys(contexts, ids[:, -1], bits)
        order = np.argsort(keys, kind="stable")
        keys = keys[order]
        self._check(is_first_of_run(keys), lines[order], "this n-gram is repeated")
        self._tables.append(NgramTable(keys, log_probs[order], backoffs[order]))

    def _add_unigrams(
        self, words: list[str], log_probs: FloatArray, backoffs: FloatArray, lines: IntArray
    ) -> None:
        index = {word: i for i, word in enumerate(SPECIAL_WORDS)}
        ids = np.array([index.setdefault(word, len(index)) for word in words], dtype=np.int64)
        order = np.argsort(ids, kind="stable")
        self._check(is_first_of_run(ids[order]), lines[order], "this word is repeated")
        self._words = list(index)
        self._word_array = pa.array(self._words)
        table = NgramTable(
            np.arange(len(index)),
            np.full(len(index), -np.inf, dtype=np.float32),
            np.zeros(len(index), dtype=np.float32),
        )
        table.log_probs[UNKNOWN] = _MISSING_UNKNOWN
        table.log_probs[ids], table.backoffs[ids] = log_probs, backoffs
        self._tables.append(table)

    def _check(self, is_valid: NDArray[np.bool_], lines: IntArray, message: str) -> None:
        """Raise the error of the first line that is not valid."""
        if not is_valid.all():
            raise self._error(int(lines[np.argmin(is_valid)]), message)

    def _error(self, line: int, message: str) -> InputError:
        return InputError("arpa_damaged", message, location=f"{self._path}:{line}", hint=_HINT)


def _is_number(text: Any) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
