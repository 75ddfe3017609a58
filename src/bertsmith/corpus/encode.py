"""A portion of a corpus becomes rows of ids: the pure function that threads and clusters run alike."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertsmith.corpus.sentence_splitter import split
from bertsmith.corpus.shards import Rows, hash_of, id_type
from bertsmith.io.files import Document
from bertsmith.tokenizer.fast_words import WordEncoder, can_encode
from bertsmith.tokenizer.tokenizer import Tokenizer

_SLICE = 1 << 20  # bytes of UTF-8 encoded at a time: a dozen arrays as long as the text wait in memory


class PortionEncoder:
    """Encodes documents of one language; the rows depend on the documents alone, whatever came before.

    One thread at a time may use it: it remembers the words it has seen.
    """

    def __init__(self, tokenizer: Tokenizer, language: str) -> None:
        self._tokenizer, self._language = tokenizer, language
        self._words = WordEncoder(tokenizer) if can_encode(tokenizer) else None

    def encode(self, documents: Sequence[Document]) -> tuple[Rows, Counter[str]]:
        """The rows of some documents, and the counts: documents and sentences without a token are dropped."""
        sentences = [split(document.text, self._language) for document in documents]
        if self._tokenizer.kind == "byte_level_bpe":  # which has the blank before a word in its piece
            sentences = [[*found[:1], *(f" {sentence}" for sentence in found[1:])] for found in sentences]
        sizes = [len(document.text.encode("utf-8")) for document in documents]
        flat, lengths = self._ids(sentences, sizes)
        owner = np.repeat(np.arange(len(documents)), [len(found) for found in sentences])[lengths > 0]
        kept = lengths[lengths > 0]
        counts = np.bincount(owner, minlength=len(documents))
        tokens = np.bincount(owner, weights=kept, minlength=len(documents)).astype(np.int64)
        # Sentence ends count from their document's start: all ends, less what stands before the document.
        ends = np.cumsum(kept) - (np.cumsum(tokens) - tokens)[owner]
        some = counts > 0
        borders = np.cumsum(tokens[some])
        left = [document for document, full in zip(documents, some, strict=True) if full]
        rows = Rows(
            ids=flat,
            lengths=tokens[some],
            sentence_ends=ends.astype(np.int32),
            sentence_counts=counts[some].astype(np.int64),
            places=[document.place for document in left],
            hashes=np.array([hash_of(ids) for ids in np.split(flat, borders)[:-1]], dtype=np.uint64),
            heads={row: document.head for row, document in enumerate(left) if document.head is not None},
        )
        counted = Counter(
            documents=int(some.sum()),
            sentences=len(kept),
            tokens=len(flat),
            unknown=int(np.count_nonzero(flat == self._tokenizer.unk_id)),
            characters=sum(len(document.text) for document in documents),
            bytes=sum(sizes),
            empty_documents_dropped=int((~some).sum()),
            empty_sentences_dropped=len(lengths) - len(kept),
        )
        return rows, counted

    def _ids(self, texts: list[list[str]], sizes: list[int]) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """The ids of all texts of all documents end to end, and how many each text has."""
        kind = id_type(self._tokenizer.vocab_size)
        found = [self._ids_of_slice(some) for some in _slices(texts, sizes)]
        if not found:
            return np.empty(0, dtype=kind), np.empty(0, dtype=np.int64)
        return (
            np.concatenate([ids.astype(kind) for ids, _ in found]),
            np.concatenate([lengths for _, lengths in found]),
        )

    def _ids_of_slice(self, texts: list[str]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        if self._words is not None:
            return self._words.encode(texts)
        pieces = self._tokenizer.pieces(texts)
        lengths = np.fromiter(map(len, pieces), dtype=np.int64, count=len(pieces))
        return np.fromiter(chain.from_iterable(pieces), dtype=np.int64), lengths


def _slices(texts: list[list[str]], sizes: list[int]) -> Iterator[list[str]]:
    """The texts in order, some documents at a time; of a document larger than a slice some texts at a time."""
    waiting: list[str] = []
    size = 0
    for of_document, bytes_ in zip(texts, sizes, strict=True):
        parts = -(-bytes_ // _SLICE)
        many = -(-len(of_document) // max(1, parts)) or 1
        for at in range(0, len(of_document), many):
            waiting += of_document[at : at + many]
            size += bytes_ // max(1, parts)
            if size >= _SLICE:
                yield waiting
                waiting, size = [], 0
    if waiting:
        yield waiting
