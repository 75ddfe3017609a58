"""A window over documents of a corpus, or over a part of a long one, with the location of each character."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from bertsmith.corpus import hashing
from bertsmith.corpus.checks.duplicates import LocationTable
from bertsmith.corpus.checks.lines import WindowLines
from bertsmith.corpus.tokenized_corpus import HashArray
from bertsmith.io.compression import format_suffix
from bertsmith.io.documents import Document
from bertsmith.io.tables import IN_MEMORY

_MAX_DOCUMENTS = 4096  # per group
# A record of these files has a location, but the lines inside it have none.
_RECORD_SUFFIXES = (".jsonl", ".csv", ".tsv", ".parquet")


class TextWindow:
    """Characters, words, and locations of T documents, or of a part of a long document.

    Attributes:
        codes: uint32 [C], the characters.
        offsets: int64 [T + 1], the start of each text in the characters.
        words: The hashed words.
        text: The characters as a string.
        is_start: bool [T], True for texts that start a document.
    """

    def __init__(
        self, file: str, documents: Sequence[Document], texts: list[str], offset: int, missing: list[int]
    ) -> None:
        """Hash the texts.

        Args:
            file: The file of the documents.
            documents: The documents.
            texts: Their texts, or a part of the text of a single document.
            offset: The start of that part in its document.
            missing: Numbers of lines of the file that could not be read, and so are not in the documents, in
                ascending order.
        """
        self.codes, self.offsets = hashing.code_points(texts)
        self.words = hashing.hash_words(self.codes, self.offsets)
        self.text = "\n".join(texts) + "\n"
        self._has_lines = not file.endswith(IN_MEMORY) and format_suffix(file) not in _RECORD_SUFFIXES
        self._missing = missing
        self._documents = documents
        self.is_start = np.array([document.part == 0 and offset == 0 for document in documents])
        first = documents[0].text
        self._lines_before = first.count("\n", 0, offset)
        self._columns_before = offset - (first.rfind("\n", 0, offset) + 1)
        end = offset + len(texts[0])
        self._ends_inside_line = len(texts) == 1 and end < len(first) and first[end - 1] != "\n"

    def location(self, position: int) -> str:
        """Return file:line:column of a character, or the location of its record."""
        text_index = int(np.searchsorted(self.offsets, position, side="right")) - 1
        location = self._documents[text_index].location
        if not self._has_lines:
            return location
        path, _, first_line = location.rpartition(":")
        start = int(self.offsets[text_index])
        lines_down = self.text.count("\n", start, position)
        if lines_down:
            column = position - self.text.rfind("\n", start, position)
        else:
            column = position - start + self._columns_before + 1
        return f"{path}:{self._file_line(int(first_line), lines_down + self._lines_before)}:{column}"

    def complete_lines(self, lines: WindowLines) -> WindowLines:
        """Return the lines without the pieces of a line longer than a window, which may equal each other."""
        first, last = self._columns_before > 0, self._ends_inside_line
        return lines.select(slice(int(first), -1 if last else None)) if first or last else lines

    def line_locations(self, lines: WindowLines, table: LocationTable) -> HashArray:
        """Return the packed location of each line, uint64 [L]."""
        packed = np.array([table.pack(document.location) for document in self._documents], dtype=np.uint64)
        if not self._has_lines:
            return packed[lines.owner]
        lines_down = lines.index + self._lines_before
        if self._missing:
            first_lines = (packed & np.uint64((1 << 40) - 1)).astype(np.int64)[lines.owner].tolist()
            lines_down = np.array(
                [
                    self._file_line(first, n) - first
                    for first, n in zip(first_lines, lines_down.tolist(), strict=True)
                ],
                dtype=np.int64,
            )
        return packed[lines.owner] + lines_down.astype(np.uint64)

    def _file_line(self, first: int, lines_down: int) -> int:
        """Return the line in the file that is `lines_down` lines below the first line of a document."""
        line = first + lines_down
        for missing in self._missing[bisect_left(self._missing, first) :]:
            if missing > line:
                break
            line += 1
        return line


def group_documents(documents: Iterator[Document], limit: Callable[[], int]) -> Iterator[list[Document]]:
    """Yield groups of at most `limit()` characters, or of a single longer document.

    `limit` is called for each document, since it falls while a sample is read.
    """
    group: list[Document] = []
    size = 0
    for document in documents:
        length = len(document.text) + 1
        if group and (size + length > limit() or len(group) >= _MAX_DOCUMENTS):
            yield group
            group, size = [], 0
        group.append(document)
        size += length
    if group:
        yield group
