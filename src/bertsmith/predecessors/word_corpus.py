"""Words of a corpus as integers, for models whose vocabulary consists of whole words."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertsmith.corpus.shards import IntArray, Shards, open_prepared
from bertsmith.errors import InputError, option
from bertsmith.formatting import pluralize
from bertsmith.instances.epoch_plan import read_portions
from bertsmith.io.documents import Reading, read_documents
from bertsmith.io.sources import to_sources
from bertsmith.tokenizer_training.training_text import DEFAULT_READING, word_splitter

_MAX_CACHED_RUNS = 1_000_000
_MAX_CACHED_LENGTH = 40  # characters; longer runs are of scripts without spaces, and rarely occur again
_PHRASE_DELIMITER = "_"


@dataclass(frozen=True)
class WordCorpus:
    """Sentences of N words in total from a vocabulary of V.

    Attributes:
        words: The vocabulary, the most frequent word first.
        ids: The words of all sentences, int32 [N].
        sentence_ends: The end of each sentence in `ids`, int64 [S].
    """

    words: list[str]
    ids: NDArray[np.int32]
    sentence_ends: IntArray

    @property
    def counts(self) -> IntArray:
        """The number of occurrences of each word, int64 [V]."""
        return np.bincount(self.ids, minlength=len(self.words))

    def with_min_count(self, min_count: int, max_words: int | None = None) -> WordCorpus:
        """Return the corpus without words that occur less often, and with the most frequent ones only.

        Raises:
            InputError: No word is left.
        """
        counts = self.counts
        order = np.argsort(-counts, kind="stable")
        order = order[counts[order] >= max(min_count, 1)][:max_words]
        if not len(order):
            message = f"no word occurs {pluralize(min_count, 'time')} or more"
            hint = f"lower {option('min_count')}, or use more text"
            raise InputError("no_frequent_word", message, argument="min_count", hint=hint)
        return self.with_vocabulary([self.words[i] for i in order])

    def with_vocabulary(self, words: Sequence[str]) -> WordCorpus:
        """Return the corpus with another vocabulary, without all other words."""
        indices = {word: i for i, word in enumerate(words)}
        new_ids = np.array([indices.get(word, -1) for word in self.words], dtype=np.int32)[self.ids]
        kept_before = np.concatenate([[0], np.cumsum(new_ids >= 0)])
        return WordCorpus(list(words), new_ids[new_ids >= 0], kept_before[self.sentence_ends])

    def with_phrases(self, min_count: int, threshold: float) -> WordCorpus:
        """Return the corpus with frequent pairs of words joined to one, such as "new_york".

        A pair (a, b) is joined if (count(a b) − min_count) · V / (count(a) · count(b)) exceeds the threshold; of
        overlapping pairs, the left one is joined (Mikolov et al. 2013b, section 4).
        """
        num_words, counts = len(self.words), self.counts
        pairs = self.ids[:-1].astype(np.int64) * num_words + self.ids[1:]
        is_pair = np.ones(len(pairs), dtype=bool)
        is_pair[self.sentence_ends[(self.sentence_ends > 0) & (self.sentence_ends < len(self.ids))] - 1] = (
            False
        )
        keys, pair_counts = np.unique(pairs[is_pair], return_counts=True)
        scores = (pair_counts - min_count) * (
            num_words / (counts[keys // num_words] * counts[keys % num_words])
        )
        phrases = keys[(pair_counts >= min_count) & (scores > threshold)]
        if not len(phrases):
            return self
        index = np.minimum(np.searchsorted(phrases, pairs), len(phrases) - 1)
        starts = _every_second(is_pair & (phrases[index] == pairs))
        ids = self.ids.copy()
        ids[:-1][starts] = num_words + index[starts]
        is_kept = np.ones(len(ids), dtype=bool)
        is_kept[1:][starts] = False
        kept_before = np.concatenate([[0], np.cumsum(is_kept)])
        names = [
            f"{self.words[key // num_words]}{_PHRASE_DELIMITER}{self.words[key % num_words]}"
            for key in phrases
        ]
        return WordCorpus([*self.words, *names], ids[is_kept], kept_before[self.sentence_ends])


def read_words(
    corpus: Any,
    *,
    documents: IntArray | None = None,
    lowercase: bool = True,
    reading: Reading = DEFAULT_READING,
) -> WordCorpus:
    """Return the words of a corpus; a line of text is a sentence.

    Text is normalized and split as BERT's tokenizers do (white space, punctuation, and Chinese characters separate
    words; without accents if lower-cased). The words of prepared data are those of its tokens, joined again;
    unknown words are omitted.

    Args:
        corpus: Files, folders, globs, or data in memory, as in `prepare`; prepared data (`Shards` or its folder);
            or sentences that are lists of words, which are taken as they are.
        documents: int64 in ascending order, the documents of prepared data to read; None: all.
        lowercase: Lower-case text, and remove accents.
        reading: The rules by which files become documents.

    Raises:
        InputError: The corpus is empty, or cannot be read.
    """
    corpus = open_prepared(corpus)
    if isinstance(corpus, Shards):
        result = _words_of_shards(corpus, np.arange(corpus.documents) if documents is None else documents)
    else:
        is_split = isinstance(corpus, Sequence) and len(corpus) > 0 and isinstance(corpus[0], list | tuple)
        sentences = iter(corpus) if is_split else None
        result = _words_of_texts(sentences, corpus, lowercase, reading)
    if not len(result.ids):
        raise InputError("no_words", "the corpus contains no words", argument="corpus", hint="give a text")
    return result


def _words_of_texts(
    sentences: Iterator[Sequence[str]] | None, corpus: Any, lowercase: bool, reading: Reading
) -> WordCorpus:
    """Return the words of sentences, or if they are None, of documents."""
    indices = _Numbering()
    ids, ends = array("i"), array("q")
    if sentences is not None:
        for words in sentences:
            ids.extend(map(indices.__getitem__, words))
            ends.append(len(ids))
    else:
        runs = _RunCache(_bert_word_splitter(lowercase), indices)
        for document in read_documents(to_sources(corpus), reading):
            for line in document.text.split("\n"):
                for run in line.split():
                    ids.extend(runs[run])
                ends.append(len(ids))
    return WordCorpus(list(indices), np.frombuffer(ids, np.int32), np.frombuffer(ends, np.int64))


def _bert_word_splitter(lowercase: bool) -> Callable[[str], list[str]]:
    from tokenizers.normalizers import BertNormalizer
    from tokenizers.pre_tokenizers import BertPreTokenizer

    return word_splitter(BertNormalizer(lowercase=lowercase), BertPreTokenizer())


def _words_of_shards(shards: Shards, documents: IntArray) -> WordCorpus:
    """Return the words of prepared data: tokens that start no word are joined to those before them."""
    tokenizer = shards.tokenizer
    special_ids = np.array(sorted(tokenizer.all_special_ids), dtype=np.int64)
    words = _PieceCache(tokenizer.decode)
    parts: list[NDArray[np.int32]] = []
    ends: list[IntArray] = []
    offset = num_words = 0
    is_read = np.zeros(shards.documents, dtype=bool)
    is_read[documents] = True
    lengths = np.diff(shards.sentence_ends, prepend=0)
    all_ends = np.cumsum(lengths[np.repeat(is_read, np.diff(shards.document_sentence_offsets))])
    for ids, _ in read_portions(shards, documents):
        first, last = np.searchsorted(all_ends, [offset, offset + len(ids)], side="right")
        sentence_ends = all_ends[first:last] - offset
        is_start = tokenizer.word_starts(ids)
        is_start[np.concatenate([[0], sentence_ends[:-1]])] = True
        starts = np.flatnonzero(is_start)
        stops = np.append(starts[1:], len(ids))
        word_ids = np.array(
            [
                words[ids[start:stop].tobytes()]
                for start, stop in zip(starts.tolist(), stops.tolist(), strict=True)
            ],
            dtype=np.int32,
        )
        is_word = ~np.isin(ids[starts], special_ids)
        words_before = np.concatenate([[0], np.cumsum(is_word)])
        ends.append(words_before[np.searchsorted(starts, sentence_ends)] + num_words)
        parts.append(word_ids[is_word])
        num_words += len(parts[-1])
        offset += len(ids)
    return WordCorpus(list(words.indices), np.concatenate(parts), np.concatenate(ends))


class _Numbering(dict[str, int]):
    """Indices of words in the order in which they are first looked up."""

    def __missing__(self, word: str) -> int:
        self[word] = index = len(self)
        return index


class _RunCache(dict[str, list[int]]):
    """The words of character runs between white space; each distinct run is split once."""

    def __init__(self, split_words: Callable[[str], list[str]], indices: _Numbering) -> None:
        super().__init__()
        self._split_words, self._indices = split_words, indices

    def __missing__(self, run: str) -> list[int]:
        words = [self._indices[word] for word in self._split_words(run)]
        if len(self) >= _MAX_CACHED_RUNS:
            self.clear()
        if len(run) <= _MAX_CACHED_LENGTH:
            self[run] = words
        return words


class _PieceCache(dict[bytes, int]):
    """The words of token sequences, whose ids are given as the bytes of an int64 array."""

    def __init__(self, decode: Callable[[Iterable[int]], str]) -> None:
        super().__init__()
        self._decode, self.indices = decode, _Numbering()

    def __missing__(self, pieces: bytes) -> int:
        text = self._decode(np.frombuffer(pieces, np.int64).tolist())
        self[pieces] = index = self.indices[text.strip()]
        return index


def _every_second(is_pair: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Mark the first, third, … of each run of consecutive True, so that no two marked ones are neighbors."""
    positions = np.arange(len(is_pair))
    run_starts = np.maximum.accumulate(np.where(is_pair, -1, positions)) + 1
    is_first: NDArray[np.bool_] = is_pair & ((positions - run_starts) % 2 == 0)
    return is_first
