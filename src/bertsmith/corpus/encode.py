"""Encode a portion of a corpus: a pure function from documents to token ids."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from bertsmith.corpus.batching import batches
from bertsmith.corpus.near_duplicates import SIGNATURE_BYTES, minhash_signatures
from bertsmith.corpus.sentence_splitter import split_sentences
from bertsmith.corpus.shards import document_hash, id_dtype, list_array
from bertsmith.io.documents import Document
from bertsmith.tokenizer.fast_words import WordEncoder, can_encode
from bertsmith.tokenizer.tokenizer import Tokenizer

EncodedPortion = tuple[pa.RecordBatch, Counter[str]]
"""Encoded documents and counts.

Of a document that is several rows, `head` is the location of its start in each row but the first; else it is null.
The other columns are those of shards, and `signature` for near-duplicates.
"""
_BATCH_CHARACTERS = 1 << 20  # encoded at once: it takes a dozen arrays as long as the text


class PortionEncoder:
    """Encode documents of one language; the result depends on the documents alone.

    It caches words, so only one thread may use it at a time.
    """

    def __init__(self, tokenizer: Tokenizer, language: str) -> None:
        self._tokenizer, self._language = tokenizer, language
        self._words = WordEncoder(tokenizer) if can_encode(tokenizer) else None

    def encode(self, documents: Sequence[Document]) -> EncodedPortion:
        """Return the encoded documents and counts; documents and sentences without a token are dropped."""
        sentences = [split_sentences(document.text, self._language) for document in documents]
        if self._tokenizer.kind == "byte_level_bpe":  # Its pieces include the space before a word.
            sentences = [[*texts[:1], *(f" {sentence}" for sentence in texts[1:])] for texts in sentences]
        ids, sentence_lengths = self._encode_sentences(list(chain.from_iterable(sentences)))
        document_index = np.repeat(np.arange(len(documents)), [len(texts) for texts in sentences])
        is_nonempty = sentence_lengths > 0
        sentence_lengths, document_index = sentence_lengths[is_nonempty], document_index[is_nonempty]
        sentence_counts = np.bincount(document_index, minlength=len(documents))
        lengths = np.zeros(len(documents), dtype=np.int64)
        np.add.at(lengths, document_index, sentence_lengths)
        # Sentence ends are relative to the start of their document.
        ends = np.cumsum(sentence_lengths) - (np.cumsum(lengths) - lengths)[document_index]
        has_tokens = lengths > 0
        encoded = [document for document, keep in zip(documents, has_tokens, strict=True) if keep]
        texts = [document.text.encode("utf-8") for document in documents]
        signatures = minhash_signatures([text for text, keep in zip(texts, has_tokens, strict=True) if keep])
        hashes = [document_hash(part) for part in np.split(ids, np.cumsum(lengths[has_tokens]))[:-1]]
        batch = pa.record_batch(
            {
                "ids": list_array(lengths[has_tokens], ids),
                "sentence_ends": list_array(sentence_counts[has_tokens], ends.astype(np.int32)),
                "place": pa.array([document.location for document in encoded], pa.string()),
                "head": pa.array([document.head for document in encoded], pa.string()),
                "hash": pa.array(hashes, pa.uint64()),
                "signature": pa.FixedSizeListArray.from_arrays(signatures.ravel(), SIGNATURE_BYTES),
            }
        )
        return batch, Counter(
            documents=int(has_tokens.sum()),
            sentences=len(sentence_lengths),
            tokens=len(ids),
            unknown=int(np.count_nonzero(ids == self._tokenizer.unk_token_id)),
            characters=sum(len(document.text) for document in documents),
            bytes=sum(map(len, texts)),
            empty_documents_dropped=int((~has_tokens).sum()),
            empty_sentences_dropped=len(is_nonempty) - len(sentence_lengths),
        )

    def _encode_sentences(self, sentences: Sequence[str]) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """Return the concatenated ids of all sentences, [N], and the sentence lengths, [S]."""
        dtype = id_dtype(self._tokenizer.vocab_size)
        ids, lengths = [np.empty(0, dtype=dtype)], [np.empty(0, dtype=np.int64)]
        for batch in batches(sentences, len, _BATCH_CHARACTERS):
            batch_ids, batch_lengths = self._encode_batch(batch)
            ids.append(batch_ids.astype(dtype))
            lengths.append(batch_lengths)
        return np.concatenate(ids), np.concatenate(lengths)

    def _encode_batch(self, sentences: list[str]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        if self._words is not None:
            return self._words.encode(sentences)
        pieces = self._tokenizer.encode_ids(sentences)
        lengths = np.fromiter(map(len, pieces), dtype=np.int64, count=len(pieces))
        return np.fromiter(chain.from_iterable(pieces), dtype=np.int64), lengths
