"""Train word vectors: skip-gram and CBOW (Mikolov et al. 2013a and 2013b), with fastText's subwords.

One thread trains, sentence by sentence, as the papers do. The vectors therefore depend on the corpus, the
settings, and the seed alone, and not on the number of processors: threads that share vectors race, and shards
that are trained apart and averaged need more epochs.
"""

from __future__ import annotations

import heapq
import logging
import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self, Unpack

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from bertsmith import hardware, rng
from bertsmith.corpus.shards import IntArray
from bertsmith.errors import InputError, option
from bertsmith.formatting import pluralize
from bertsmith.io.documents import Reading
from bertsmith.kernels.backend_selection import missing_numba_error
from bertsmith.keywords import WordVectorKeywords
from bertsmith.predecessors.word_corpus import WordCorpus, read_words
from bertsmith.predecessors.word_vectors import FloatArray, Subwords, WordVectors, split_ngrams
from bertsmith.settings import Settings
from bertsmith.tokenizer_training.training_text import DEFAULT_READING

logger = logging.getLogger(__name__)

_LOSSES = ("negative_sampling", "hierarchical_softmax", "softmax")  # in the order of the kernel's constants
_MAX_SENTENCE_WORDS = 10_000  # of longer sentences, the learning rate would change too rarely
_TRIAL_WORDS = 200_000  # whose time says how many epochs fit into max_minutes
_BLOCK_WORDS = 1_000_000  # between two calls of the kernel, after which an interrupt is noticed
_ROWS_PER_BLOCK = 65_536  # of initial vectors, whose random numbers take memory
_SAMPLING_POWER = 0.75  # of the counts of words, for negative samples
_MIN_RATE = 1e-4  # the last learning rate, as a fraction of the first


class Word2VecSettings(Settings):
    """Settings of word vectors."""

    algorithm: Literal["skip_gram", "cbow"] = Field(
        "skip_gram", description="predict the words around a word, or a word from the mean of those around it"
    )
    loss: Literal["negative_sampling", "hierarchical_softmax", "softmax"] = Field(
        "negative_sampling",
        description="words against sampled ones, a path in a Huffman tree, or a softmax over all words (slow)",
    )
    dimensions: int = Field(100, ge=1, le=10_000, description="numbers per vector")
    window: int = Field(
        5, ge=1, le=10_000, description="maximum distance; each position draws one from 1 to it"
    )
    negatives: int = Field(
        5, ge=1, le=1_000, description="negative samples, from the counts of words to the 0.75"
    )
    num_train_epochs: float = Field(
        5, gt=0, description="passes over the corpus; of a part of a pass, its first sentences"
    )
    max_minutes: float | None = Field(
        None,
        gt=0,
        description="maximum time, reading included: after a trial on the first words, as many epochs as fit",
    )
    learning_rate: float = Field(
        0.025, gt=0, le=1, description="first rate, which decreases linearly to 0.0001 of it"
    )
    min_count: int = Field(5, ge=1, description="words that occur less often are omitted")
    max_words: int | None = Field(None, ge=1, description="maximum size of the vocabulary")
    subsampling: float = Field(
        1e-3,
        ge=0,
        le=1,
        description="ratio of the corpus above which words are sampled; 0: every word is kept",
    )
    min_subword: int = Field(3, ge=1, description="minimum characters of a subword")
    max_subword: int = Field(0, ge=0, le=20, description="maximum characters of a subword; 0: no subwords")
    phrase_passes: int = Field(
        0, ge=0, le=10, description="passes that join frequent pairs of words to phrases"
    )
    phrase_threshold: float = Field(10.0, ge=0, description="minimum score of a phrase")
    lowercase: bool = Field(True, description="lower-case text, and remove accents")
    seed: int = Field(0, ge=0, description="seed of all random numbers")

    @model_validator(mode="after")
    def _check_subwords(self) -> Self:
        if 0 < self.max_subword < self.min_subword:
            raise ValueError("max_subword is less than min_subword")
        return self


def train_word_vectors(
    corpus: Any,
    *,
    initial: WordVectors | str | Path | None = None,
    documents: IntArray | None = None,
    reading: Reading = DEFAULT_READING,
    **keywords: Unpack[WordVectorKeywords],
) -> WordVectors:
    """Train word vectors.

    The sentences are lines of text, see `read_words`. The mean loss of a prediction is logged after each epoch,
    and is in the report of the result. The result is the same for any number of processors. The settings in the
    report repeat the training: after `max_minutes` they have the number of epochs that fitted.

    Args:
        corpus: Files, folders, or data in memory, as in `prepare`; prepared data (`Shards` or its folder); or
            sentences that are lists of words.
        initial: Vectors to continue from, or their path, of the same dimensions and subwords. Their words are
            kept, and frequent new words are added. Vectors of a folder that `save` wrote also continue with their
            output vectors and counts; the inner nodes of hierarchical softmax begin anew.
        documents: int64 in ascending order, the documents of prepared data to read; None: all.
        reading: The rules by which files become documents.
        keywords: Settings, such as algorithm="cbow"; see the settings reference.

    Returns:
        The vectors of the words that occur often enough.

    Raises:
        InputError: The corpus is empty, no word is frequent enough, a setting is invalid, `initial` has other
            sizes, training diverged, or Numba is missing.
    """
    start, settings = hardware.clock(), Word2VecSettings.of(keywords, "settings")
    if (error := missing_numba_error()) is not None:
        raise error
    if isinstance(initial, str | Path):
        initial = WordVectors.load(initial)
    words = read_words(corpus, documents=documents, lowercase=settings.lowercase, reading=reading)
    for _ in range(settings.phrase_passes):
        words = words.with_phrases(settings.min_count, settings.phrase_threshold)
    if initial is None:
        words = words.with_min_count(settings.min_count, settings.max_words)
    else:
        words = _add_new_words(words, initial, settings)
    logger.info(
        "training on %s of %s", pluralize(len(words.ids), "word"), pluralize(len(words.words), "type")
    )
    state = _TrainingState.create(words, initial, settings)
    if settings.max_minutes is not None:
        speed, num_words = state.measure_speed(), len(words.ids)
        seconds = 60 * settings.max_minutes - (hardware.clock() - start)
        epochs = max(seconds * speed, min(_TRIAL_WORDS, num_words)) / num_words
        changes = {"num_train_epochs": min(settings.num_train_epochs, epochs), "max_minutes": None}
        settings = settings.model_copy(update=changes)
        logger.info("%s words/s: %.3g epochs", f"{speed:,.0f}", settings.num_train_epochs)
        state = _TrainingState.create(words, initial, settings)
    losses = [state.train_epoch(epoch) for epoch in range(math.ceil(settings.num_train_epochs))]
    return state.result({"settings": settings.model_dump(), "tokens": len(words.ids), "losses": losses})


def _add_new_words(corpus: WordCorpus, initial: WordVectors, settings: Word2VecSettings) -> WordCorpus:
    """Return the corpus with the vocabulary of vectors, and with its own frequent words after it."""
    if initial.vectors.shape[1] != settings.dimensions:
        message = f"the initial vectors have {pluralize(initial.vectors.shape[1], 'dimension')}"
        hint = f"use {option('dimensions', str(initial.vectors.shape[1]))}"
        raise InputError("dimensions_differ", message, argument="dimensions", hint=hint)
    lengths = (settings.min_subword, settings.max_subword) if settings.max_subword else None
    if (initial.subwords.lengths if initial.subwords else None) != lengths:
        message = "the initial vectors have other lengths of subwords"
        hint = f"use the settings of the initial vectors: {initial.subwords and initial.subwords.lengths}"
        raise InputError("subwords_differ", message, argument="max_subword", hint=hint)
    counts = corpus.counts
    order = np.argsort(-counts, kind="stable")
    frequent = [corpus.words[i] for i in order if counts[i] >= settings.min_count]
    new_words = [word for word in frequent[: settings.max_words] if word not in initial.indices]
    result = corpus.with_vocabulary([*initial.words, *new_words])
    if not len(result.ids):
        message = "the corpus has no word of the initial vectors, and no frequent new one"
        hint = f"lower {option('min_count')}, or use other text"
        raise InputError("no_frequent_word", message, argument="min_count", hint=hint)
    return result


@dataclass
class _TrainingState:
    """The arrays that the kernel reads and updates; see `train_sentences` for their shapes."""

    corpus: WordCorpus
    counts: IntArray
    settings: Word2VecSettings
    ngrams: list[str]
    row_offsets: IntArray
    rows: NDArray[np.int32]
    inputs: FloatArray
    outputs: FloatArray

    @classmethod
    def create(
        cls, corpus: WordCorpus, initial: WordVectors | None, settings: Word2VecSettings
    ) -> _TrainingState:
        """Return the state before the first epoch."""
        num_words, counts = len(corpus.words), corpus.counts
        word_ngrams: list[list[str]] = [[] for _ in corpus.words]
        if settings.max_subword:
            lengths = settings.min_subword, settings.max_subword
            word_ngrams = [split_ngrams(word, lengths) for word in corpus.words]
        old_ngrams = initial.subwords.ngrams if initial is not None and initial.subwords is not None else []
        ngrams = list(dict.fromkeys([*old_ngrams, *(ngram for parts in word_ngrams for ngram in parts)]))
        ngram_rows = {ngram: row for row, ngram in enumerate(ngrams, start=num_words)}
        rows = [[word, *(ngram_rows[n] for n in parts)] for word, parts in enumerate(word_ngrams)]
        offsets = np.concatenate([[0], np.cumsum([len(row) for row in rows])]).astype(np.int64)
        inputs = _initial_vectors(num_words + len(ngrams), settings)
        outputs = np.zeros((num_words, settings.dimensions), dtype=np.float32)
        if initial is not None:
            num_known = len(initial.words)
            old_inputs = initial.vectors if initial.subwords is None else initial.subwords.inputs
            inputs[:num_known] = old_inputs[:num_known]
            inputs[num_words : num_words + len(old_ngrams)] = old_inputs[num_known:]
            if initial.outputs is not None and settings.loss != "hierarchical_softmax":
                outputs[:num_known] = initial.outputs
            if initial.counts is not None:
                counts[:num_known] += initial.counts
        flat_rows = np.array([row for word_rows in rows for row in word_rows], dtype=np.int32)
        return cls(corpus, counts, settings, ngrams, offsets, flat_rows, inputs, outputs)

    def __post_init__(self) -> None:
        from bertsmith.predecessors.word2vec_kernels import build_alias_table

        num_words = len(self.corpus.words)
        self._sampler = np.zeros(num_words, dtype=np.uint64), np.zeros(num_words, dtype=np.int64)
        build_alias_table(self.counts**_SAMPLING_POWER, *self._sampler)
        self._tree = _huffman_paths(
            self.counts if self.settings.loss == "hierarchical_softmax" else self.counts[:0]
        )
        self._keep_thresholds = (
            _keep_probabilities(self.counts, self.settings.subsampling) * 2.0**32
        ).astype(np.uint64)
        self._sentence_ends = _divide_sentences(self.corpus.sentence_ends)

    def measure_speed(self) -> float:
        """Return the words per second of the first words, which are trained on twice: the kernel may compile."""
        last = max(1, int(np.searchsorted(self._sentence_ends, _TRIAL_WORDS, side="right")))
        seconds = 0.0
        for _ in range(2):
            start = hardware.clock()
            self._train_block(0, 0, last, 0)
            seconds = hardware.clock() - start
        return float(self._sentence_ends[last - 1]) / max(seconds, 1e-9)

    def train_epoch(self, epoch: int) -> float:
        """Train on all sentences, or as many as the last epoch has, and return the mean loss of a prediction."""
        start = time.monotonic()
        num_words = min(1.0, self.settings.num_train_epochs - epoch) * len(self.corpus.ids)
        ends = self._sentence_ends
        ends = ends[: max(1, int(np.searchsorted(ends, num_words, side="right")))]
        total_loss, predictions, first = 0.0, 0, 0
        while first < len(ends):
            begin = int(ends[first - 1]) if first else 0
            last = max(first + 1, int(np.searchsorted(ends, begin + _BLOCK_WORDS, side="right")))
            loss, count = self._train_block(epoch, first, last, begin)
            total_loss, predictions, first = total_loss + loss, predictions + count, last
            if not math.isfinite(total_loss):
                hint = f"lower {option('learning_rate')}"
                raise InputError(
                    "training_diverged", "training diverged", argument="learning_rate", hint=hint
                )
        if not predictions and not epoch:
            message = "no sentence has two words of the vocabulary that subsampling keeps"
            hint = f"use more text, or {option('subsampling', '0')} to keep every word"
            raise InputError("no_word_pair", message, argument="corpus", hint=hint)
        speed = int(ends[-1]) / max(time.monotonic() - start, 1e-9)
        mean, epochs = total_loss / max(predictions, 1), self.settings.num_train_epochs
        logger.info("epoch %d of %.3g: loss %.4f, %s words/s", epoch + 1, epochs, mean, f"{speed:,.0f}")
        return mean

    def _train_block(self, epoch: int, first: int, last: int, begin: int) -> tuple[float, int]:
        """Train on the sentences from first to last, which begin with the word `begin`."""
        from bertsmith.predecessors.word2vec_kernels import train_sentences

        settings, num_words = self.settings, len(self.corpus.ids)
        ends = self._sentence_ends[first:last]
        starts = np.concatenate([[begin], ends[:-1]])
        progress = (epoch + starts / num_words) / settings.num_train_epochs
        rates = (settings.learning_rate * np.maximum(1 - progress, _MIN_RATE)).astype(np.float32)
        loss, predictions = train_sentences(
            self.corpus.ids[begin : ends[-1]],
            ends - begin,
            rng.random_bits(settings.seed, "word2vec", epoch, np.arange(first, last)),
            self._keep_thresholds,
            self.row_offsets,
            self.rows,
            self.inputs,
            self.outputs,
            settings.algorithm == "skip_gram",
            settings.window,
            _LOSSES.index(settings.loss),
            self._tree,
            self._sampler,
            settings.negatives,
            rates,
        )
        return float(loss), int(predictions)

    def result(self, report: dict[str, Any]) -> WordVectors:
        """Return the vectors."""
        settings, subwords, vectors = self.settings, None, self.inputs
        if settings.max_subword:
            sizes = np.diff(self.row_offsets)[:, None]
            sums = np.add.reduceat(self.inputs[self.rows], self.row_offsets[:-1], axis=0)
            vectors = (sums / sizes).astype(np.float32)
            subwords = Subwords((settings.min_subword, settings.max_subword), self.ngrams, self.inputs)
        outputs = None if settings.loss == "hierarchical_softmax" else self.outputs
        return WordVectors(self.corpus.words, vectors, self.counts, outputs, subwords, report)


def _initial_vectors(num_rows: int, settings: Word2VecSettings) -> FloatArray:
    """Return vectors of uniform numbers between ±1 divided by the dimensions, as in fastText and gensim."""
    vectors = np.empty((num_rows, settings.dimensions), dtype=np.float32)
    columns = np.arange(settings.dimensions)
    for first in range(0, num_rows, _ROWS_PER_BLOCK):
        rows = np.arange(first, min(first + _ROWS_PER_BLOCK, num_rows))[:, None]
        numbers = rng.uniform(settings.seed, "word2vec vectors", rows, columns)
        vectors[first : first + len(rows)] = (2 * numbers - 1) / settings.dimensions
    return vectors


def _keep_probabilities(counts: IntArray, subsampling: float) -> NDArray[np.float64]:
    """Return the probability to keep each word, √(t/f) + t/f for its frequency f, as in word2vec.c."""
    if not subsampling:
        return np.ones(len(counts))
    ratio = subsampling * counts.sum() / np.maximum(counts, 1)
    probabilities: NDArray[np.float64] = np.minimum(np.sqrt(ratio) + ratio, 1.0)
    return probabilities


def _divide_sentences(ends: IntArray) -> IntArray:
    """Return the ends of sentences and of parts of long ones."""
    starts = np.concatenate([[0], ends[:-1]])
    num_parts = np.maximum(-(-(ends - starts) // _MAX_SENTENCE_WORDS), 1)
    part = np.arange(num_parts.sum()) - np.repeat(np.cumsum(num_parts) - num_parts, num_parts)
    part_ends = np.repeat(starts, num_parts) + (part + 1) * _MAX_SENTENCE_WORDS
    divided: IntArray = np.minimum(part_ends, np.repeat(ends, num_parts))
    return divided


def _huffman_paths(counts: IntArray) -> tuple[IntArray, NDArray[np.int32], NDArray[np.int8]]:
    """Return each word's path from the root of the Huffman tree: offsets [V + 1], inner nodes, and branches."""
    num_words = len(counts)
    parents, branches = np.zeros((2, max(2 * num_words - 1, 0)), dtype=np.int64)
    heap = [(int(count), node) for node, count in enumerate(counts)]
    heapq.heapify(heap)
    for node in range(num_words, 2 * num_words - 1):
        low_count, low = heapq.heappop(heap)
        high_count, high = heapq.heappop(heap)
        parents[low] = parents[high] = node
        branches[high] = 1
        heapq.heappush(heap, (low_count + high_count, node))
    root, paths = 2 * num_words - 2, []
    for word in range(num_words):
        path, node = [], word
        while node != root:
            path.append((int(parents[node]) - num_words, int(branches[node])))
            node = int(parents[node])
        paths.append(path[::-1])
    offsets = np.concatenate([[0], np.cumsum([len(path) for path in paths])]).astype(np.int64)
    steps = np.array([step for path in paths for step in path], dtype=np.int64).reshape(-1, 2)
    return offsets, steps[:, 0].astype(np.int32), steps[:, 1].astype(np.int8)
