"""Windows: some documents of a corpus, or a part of a long one, as characters and words whose places are known."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from bertsmith.corpus import hashing
from bertsmith.corpus.checks.lines import WindowLines
from bertsmith.corpus.deduplication import Places
from bertsmith.corpus.hashing import Hashes
from bertsmith.io.files import Document, bare_suffix

_MOST = 4096  # documents looked at together, or a window's characters
_RECORDS = (".jsonl", ".csv", ".tsv", ".parquet")  # a record's place is its own; lines inside have none


class TextWindow:
    """Some documents, or a part of a long one, as characters and words; knows the place of each position."""

    def __init__(
        self, file: str, documents: Sequence[Document], texts: list[str], offset: int, missing: list[int]
    ) -> None:
        """texts: of the documents, or the part of the only one that begins at `offset`. missing: lines that the
        documents lack, rising."""
        self.codes, self.bounds = hashing.code_points(texts)
        self.words = hashing.words(self.codes, self.bounds)
        self.text = "\n".join(texts) + "\n"
        self._plain = bare_suffix(file) not in _RECORDS
        self._missing = missing
        self._documents = documents
        self.begun = np.array([document.part == 0 and offset == 0 for document in documents])  # [T]
        whole = documents[0].text
        self._lines_before = whole.count("\n", 0, offset)
        self._columns_before = offset - (whole.rfind("\n", 0, offset) + 1)
        end = offset + len(texts[0])
        self._ends_within_a_line = len(texts) == 1 and end < len(whole) and whole[end - 1] != "\n"

    def place(self, position: int) -> str:
        """file:line:column of a character; in a file of records the place of the record."""
        owner = int(np.searchsorted(self.bounds, position, side="right")) - 1
        where = self._documents[owner].place
        if not self._plain:
            return where
        path, _, first = where.rpartition(":")
        begin = int(self.bounds[owner])
        below = self.text.count("\n", begin, position)
        if below:
            column = position - self.text.rfind("\n", begin, position)
        else:
            column = position - begin + self._columns_before + 1
        return f"{path}:{self._line(int(first), below + self._lines_before)}:{column}"

    def uncut(self, lines: WindowLines) -> WindowLines:
        """Without the pieces of a line that is longer than a window: they are no lines, and may be alike."""
        first, last = self._columns_before > 0, self._ends_within_a_line
        return lines.part(slice(int(first), -1 if last else None)) if first or last else lines

    def line_places(self, lines: WindowLines, names: Places) -> Hashes:
        """The place of each line, packed; uint64 [L]."""
        packed = np.array([names.packed(document.place) for document in self._documents], dtype=np.uint64)
        if not self._plain:
            return packed[lines.owner]
        below = lines.number + self._lines_before
        if self._missing:
            firsts = (packed & np.uint64((1 << 40) - 1)).astype(np.int64)[lines.owner].tolist()
            found = [self._line(first, n) - first for first, n in zip(firsts, below.tolist(), strict=True)]
            below = np.array(found, dtype=np.int64)
        return packed[lines.owner] + below.astype(np.uint64)

    def _line(self, first: int, below: int) -> int:
        """The line in the file that is the `below`-th of a document that begins at line `first`."""
        line = first + below
        for missing in self._missing[bisect_left(self._missing, first) :]:
            if missing > line:
                break
            line += 1
        return line


def together(documents: Iterator[Document], limit: Callable[[], int]) -> Iterator[list[Document]]:
    """Documents in groups of at most `limit` characters, asked anew for each (or one that is longer)."""
    group: list[Document] = []
    size = 0
    for document in documents:
        length = len(document.text) + 1
        if group and (size + length > limit() or len(group) >= _MOST):
            yield group
            group, size = [], 0
        group.append(document)
        size += length
    if group:
        yield group
