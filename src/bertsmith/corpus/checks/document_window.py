"""Documents of one file, with the location of each character."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import accumulate

from bertsmith.io.compression import format_suffix
from bertsmith.io.documents import Document
from bertsmith.io.tables import IN_MEMORY

_MAX_DOCUMENTS = 4096
# A record of these files has a location, but the lines inside it have none.
_RECORD_SUFFIXES = (".jsonl", ".json", ".csv", ".tsv", ".parquet")


class DocumentWindow:
    """Documents of one file.

    Attributes:
        documents: The documents.
        text: Their texts, joined with line ends.
    """

    def __init__(self, file: str, documents: Sequence[Document], missing: Collection[int]) -> None:
        """Join the texts; `missing` are the lines of the file that could not be read, and are in no document."""
        self.documents = documents
        self.text = "\n".join(document.text for document in documents)
        self._has_lines = not file.endswith(IN_MEMORY) and format_suffix(file) not in _RECORD_SUFFIXES
        self._missing = missing
        self._starts = [0, *accumulate(len(document.text) + 1 for document in documents)]

    def location(self, position: int) -> str:
        """Return file:line:column of a character of the text, or the location of its record."""
        index = bisect_right(self._starts, position) - 1
        document, start = self.documents[index], self._starts[index]
        *_, (location, _) = self.lines(document, position - start)
        column = position - max(start, self.text.rfind("\n", start, position) + 1) + 1
        return f"{location}:{column}" if self._has_lines else location

    def lines(self, document: Document, end: int | None = None) -> Iterator[tuple[str, str]]:
        """Yield the location of each line of a document (or of its record), and the line.

        Args:
            document: The document.
            end: The position of the character behind the last line to yield; None: the end of the document.
        """
        lines = document.text[:end].split("\n")
        if not self._has_lines:
            yield from ((document.location, line) for line in lines)
            return
        path, _, first = document.location.rpartition(":")
        number = int(first) - 1
        for line in lines:
            number += 1
            while number in self._missing:
                number += 1
            yield f"{path}:{number}", line


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
