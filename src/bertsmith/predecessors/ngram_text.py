"""Sentences as word ids for n-gram models: the words of text, or the pieces of token shards.

Each line of a text is a sentence, and its words are what lies between blanks. Blank lines are no sentences.
`<unk>` in a text is the unknown word, and so are `<s>` and `</s>`, which only mark the ends of sentences.
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from bertsmith.corpus.shards import IntArray, Shards
from bertsmith.io.documents import Document, Reading, read_documents
from bertsmith.io.sources import Sources, to_sources
from bertsmith.tokenizer.tokenizer import Tokenizer

UNKNOWN, SENTENCE_START, SENTENCE_END = 0, 1, 2
SPECIAL_WORDS = ("<unk>", "<s>", "</s>")

WordIds = NDArray[np.int32]
SplitWords = Callable[[str], list[str]]


class WordIndex(dict[str, int]):
    """The ids of words; any other word, `<s>`, and `</s>` have the id of `<unk>`."""

    def __init__(self, words: Iterable[str]) -> None:
        super().__init__((word, i) for i, word in enumerate(words))
        self.update(dict.fromkeys(SPECIAL_WORDS, UNKNOWN))

    def __missing__(self, word: str) -> int:
        return UNKNOWN


def word_splitter(*, lowercase: bool = False, tokenizer: Tokenizer | None = None) -> SplitWords:
    """Return the function that splits a sentence into words, or into a tokenizer's pieces.

    NUL separates words, as in KenLM, whose files cannot contain it.
    """
    if tokenizer is not None:
        return lambda text: [tokenizer.tokens[i] for i in tokenizer.encode_ids([text])[0]]
    if lowercase:
        return lambda text: text.lower().replace("\0", " ").split()
    return lambda text: text.replace("\0", " ").split()


def read_sentences(corpus: Sources) -> Iterator[Document]:
    """Yield the sentences of files or texts in memory with their locations."""
    for document in read_documents(to_sources(corpus, "corpus"), Reading(documents="line")):
        for line in document.text.split("\n"):
            if line and not line.isspace():
                yield Document(line, document.location)


def encode_sentences(sentences: Iterable[list[str]], index: dict[str, int], *, boundaries: bool) -> WordIds:
    """Return the ids of sentences, `<s>` before each, and `</s>` behind each if `boundaries`."""
    ids, lookup = array("i"), index.__getitem__
    for words in sentences:
        ids.append(SENTENCE_START)
        ids.extend(map(lookup, words))
        if boundaries:
            ids.append(SENTENCE_END)
    return np.frombuffer(ids, dtype=np.int32) if ids else np.empty(0, dtype=np.int32)


def read_training_text(
    corpus: Sources, split: SplitWords, *, vocabulary_size: int | None, boundaries: bool
) -> tuple[list[str], WordIds]:
    """Return the vocabulary, in order of first occurrence behind the special words, and the ids of a text.

    With `vocabulary_size`, only the most frequent words are in the vocabulary; the first of equally frequent ones
    take precedence.
    """
    index: defaultdict[str, int] = defaultdict(None, dict.fromkeys(SPECIAL_WORDS, UNKNOWN))
    index.default_factory = index.__len__
    sentences = (split(sentence.text) for sentence in read_sentences(corpus))
    ids = encode_sentences(sentences, index, boundaries=boundaries)
    words = list(index)
    if vocabulary_size is None or len(words) - len(SPECIAL_WORDS) <= vocabulary_size:
        return words, ids
    counts = np.bincount(ids, minlength=len(words))
    counts[: len(SPECIAL_WORDS)] = counts.max() + 1
    is_frequent = np.zeros(len(words), dtype=bool)
    is_frequent[np.argsort(-counts, kind="stable")[: vocabulary_size + len(SPECIAL_WORDS)]] = True
    new_ids = np.where(is_frequent, np.cumsum(is_frequent) - 1, UNKNOWN).astype(np.int32)
    return [words[i] for i in np.flatnonzero(is_frequent)], new_ids[ids]


def read_training_shards(
    shards: Shards, documents: IntArray | None, *, boundaries: bool
) -> tuple[list[str], WordIds]:
    """Return the vocabulary of the pieces that occur in documents (None: all), and the ids of their sentences."""
    piece_ids, lengths = _shard_sentences(shards, documents)
    tokens = shards.tokenizer.tokens
    is_piece = np.bincount(piece_ids, minlength=len(tokens)) > 0
    is_piece[shards.tokenizer.unk_token_id] = False
    words = [*SPECIAL_WORDS, *(tokens[i] for i in np.flatnonzero(is_piece))]
    new_ids = np.where(is_piece, np.cumsum(is_piece) + len(SPECIAL_WORDS) - 1, UNKNOWN).astype(np.int32)
    return words, _join_sentences(new_ids[piece_ids], lengths, boundaries=boundaries)


def encode_shards(
    shards: Shards, documents: IntArray | None, index: WordIndex, *, boundaries: bool
) -> WordIds:
    """Return the ids of the sentences of documents (None: all) in a vocabulary of pieces."""
    piece_ids, lengths = _shard_sentences(shards, documents)
    new_ids = np.array([index[token] for token in shards.tokenizer.tokens], dtype=np.int32)
    new_ids[shards.tokenizer.unk_token_id] = UNKNOWN
    return _join_sentences(new_ids[piece_ids], lengths, boundaries=boundaries)


def sentence_location(corpus: Sources | Shards, documents: IntArray | None, number: int) -> str:
    """Return the location of a sentence, counted from 0, of files or texts, or of its document in shards."""
    if not isinstance(corpus, Shards):
        return next(islice(read_sentences(corpus), number, None)).location
    if documents is None:
        documents = np.arange(corpus.documents)
    offsets = corpus.document_sentence_offsets
    ends = np.cumsum(offsets[documents + 1] - offsets[documents])
    return corpus.location(int(documents[np.searchsorted(ends, number, side="right")]))


def _shard_sentences(shards: Shards, documents: IntArray | None) -> tuple[IntArray, IntArray]:
    """Return the token ids of documents, and the length of each of their sentences."""
    if documents is None:
        documents = np.arange(shards.documents)
    offsets = shards.document_sentence_offsets
    counts = offsets[documents + 1] - offsets[documents]
    all_starts = np.concatenate([[0], shards.sentence_ends])
    starts = all_starts[offsets[documents]]
    lengths = all_starts[offsets[documents + 1]] - starts
    ids = np.empty(int(lengths.sum()), dtype=np.int64)
    shards.copy_spans(starts, lengths, ids, np.cumsum(lengths) - lengths)
    sentences = np.arange(int(counts.sum())) + (offsets[documents] - np.cumsum(counts) + counts).repeat(
        counts
    )
    return ids, np.diff(all_starts)[sentences]


def _join_sentences(ids: WordIds, lengths: IntArray, *, boundaries: bool) -> WordIds:
    """Return the ids of sentences with the marks of their ends."""
    marks = 1 + boundaries
    starts = np.cumsum(lengths + marks) - (lengths + marks)
    joined = np.full(len(ids) + marks * len(lengths), SENTENCE_START, dtype=np.int32)
    if boundaries:
        joined[starts + lengths + 1] = SENTENCE_END
    joined[np.arange(len(ids)) + (1 + marks * np.arange(len(lengths))).repeat(lengths)] = ids
    return joined
