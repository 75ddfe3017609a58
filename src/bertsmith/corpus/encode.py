"""Encode a portion of a corpus: a pure function from documents to token ids."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertsmith.corpus.sentence_splitter import split_sentences
from bertsmith.corpus.shards import EncodedDocuments, document_hash, id_dtype
from bertsmith.io.files import Document
from bertsmith.tokenizer.fast_words import WordEncoder, can_encode
from bertsmith.tokenizer.tokenizer import Tokenizer

_SLICE_BYTES = 1 << 20  # UTF-8 encoded at a time: a dozen arrays as long as the text are in memory


class PortionEncoder:
    """Encode documents of one language; the result depends on the documents alone.

    It caches words, so only one thread may use it at a time.
    """

    def __init__(self, tokenizer: Tokenizer, language: str) -> None:
        self._tokenizer, self._language = tokenizer, language
        self._words = WordEncoder(tokenizer) if can_encode(tokenizer) else None

    def encode(self, documents: Sequence[Document]) -> tuple[EncodedDocuments, Counter[str]]:
        """Return the encoded documents and counts; documents and sentences without a token are dropped."""
        sentences = [split_sentences(document.text, self._language) for document in documents]
        if self._tokenizer.kind == "byte_level_bpe":  # whose pieces include the space before a word
            sentences = [[*texts[:1], *(f" {sentence}" for sentence in texts[1:])] for texts in sentences]
        num_bytes = [len(document.text.encode("utf-8")) for document in documents]
        ids, lengths = self._encode_sentences(sentences, num_bytes)
        filled = lengths[lengths > 0]
        owner = np.repeat(np.arange(len(documents)), [len(texts) for texts in sentences])[lengths > 0]
        counts = np.bincount(owner, minlength=len(documents))
        tokens = np.bincount(owner, weights=filled, minlength=len(documents)).astype(np.int64)
        # Sentence ends are relative to the start of their document.
        ends = np.cumsum(filled) - (np.cumsum(tokens) - tokens)[owner]
        has_tokens = counts > 0
        document_ends = np.cumsum(tokens[has_tokens])
        encoded = [document for document, keep in zip(documents, has_tokens, strict=True) if keep]
        result = EncodedDocuments(
            ids=ids,
            lengths=tokens[has_tokens],
            sentence_ends=ends.astype(np.int32),
            sentence_counts=counts[has_tokens].astype(np.int64),
            locations=[document.place for document in encoded],
            hashes=np.array(
                [document_hash(part) for part in np.split(ids, document_ends)[:-1]], dtype=np.uint64
            ),
            continuations={
                row: document.head for row, document in enumerate(encoded) if document.head is not None
            },
        )
        return result, Counter(
            documents=int(has_tokens.sum()),
            sentences=len(filled),
            tokens=len(ids),
            unknown=int(np.count_nonzero(ids == self._tokenizer.unk_token_id)),
            characters=sum(len(document.text) for document in documents),
            bytes=sum(num_bytes),
            empty_documents_dropped=int((~has_tokens).sum()),
            empty_sentences_dropped=len(lengths) - len(filled),
        )

    def _encode_sentences(
        self, sentences: list[list[str]], num_bytes: list[int]
    ) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """Return the concatenated ids of all sentences of all documents, [N], and the sentence lengths, [S]."""
        dtype = id_dtype(self._tokenizer.vocab_size)
        parts = [self._encode_slice(texts) for texts in _slices(sentences, num_bytes)]
        if not parts:
            return np.empty(0, dtype=dtype), np.empty(0, dtype=np.int64)
        return (
            np.concatenate([ids.astype(dtype) for ids, _ in parts]),
            np.concatenate([lengths for _, lengths in parts]),
        )

    def _encode_slice(self, sentences: list[str]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        if self._words is not None:
            return self._words.encode(sentences)
        pieces = self._tokenizer.encode_ids(sentences)
        lengths = np.fromiter(map(len, pieces), dtype=np.int64, count=len(pieces))
        return np.fromiter(chain.from_iterable(pieces), dtype=np.int64), lengths


def _slices(sentences: list[list[str]], num_bytes: list[int]) -> Iterator[list[str]]:
    """Yield the sentences in order in slices of several documents, or of a part of a large document."""
    waiting: list[str] = []
    size = 0
    for texts, document_bytes in zip(sentences, num_bytes, strict=True):
        num_parts = -(-document_bytes // _SLICE_BYTES)
        part_sentences = -(-len(texts) // max(1, num_parts)) or 1
        for start in range(0, len(texts), part_sentences):
            waiting += texts[start : start + part_sentences]
            size += document_bytes // max(1, num_parts)
            if size >= _SLICE_BYTES:
                yield waiting
                waiting, size = [], 0
    if waiting:
        yield waiting
