"""N-gram language models: train, evaluate, continue a text, save, and exchange with other tools.

`train_ngram` counts the n-grams of a corpus and estimates their probabilities. With Kneser–Ney smoothing, they
equal those of KenLM's `lmplz` on the same lines: sentences begin with `<s>` and end with `</s>`, unigrams are
interpolated with the uniform distribution over the words, `</s>`, and `<unk>`, and discounts follow the closed
form of Chen and Goodman (1998). KenLM also counts blank lines as sentences.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Unpack, overload

import numpy as np
from numpy.typing import NDArray

from bertsmith.corpus.shards import BoolArray, IntArray, Shards, open_prepared
from bertsmith.errors import InputError, option
from bertsmith.formatting import pluralize
from bertsmith.io import atomic
from bertsmith.io.sources import Sources
from bertsmith.keywords import NgramKeywords
from bertsmith.predecessors import arpa, ngram_files
from bertsmith.predecessors.ngram_counts import ABSENT, count_ngrams, match_ngrams, word_bits
from bertsmith.predecessors.ngram_scores import CorpusPerplexity, SentenceScore
from bertsmith.predecessors.ngram_settings import NgramSettings
from bertsmith.predecessors.ngram_smoothing import (
    FloatArray,
    NgramTable,
    estimate_additive,
    estimate_interpolation,
    estimate_kneser_ney,
)
from bertsmith.predecessors.ngram_text import (
    SENTENCE_END,
    SENTENCE_START,
    UNKNOWN,
    WordIds,
    WordIndex,
    encode_sentences,
    encode_shards,
    read_sentences,
    read_training_shards,
    read_training_text,
    sentence_location,
    word_splitter,
)
from bertsmith.settings import check_positive
from bertsmith.tokenizer.tokenizer import Tokenizer

_CHUNK_TOKENS = 1 << 20  # that are scored at a time
_NATS = math.log(10)
_PIECES_FALLBACK = (0.5, 1.0, 1.5)  # as lmplz --discount_fallback

logger = logging.getLogger(__name__)


def train_ngram(
    corpus: Sources | Shards, *, documents: IntArray | None = None, **settings: Unpack[NgramKeywords]
) -> NgramModel:
    """Train an n-gram language model.

    Args:
        corpus: Text with a sentence on each line and blanks between words: one path, folder, or glob, or several,
            or data in memory, such as `Texts([…])`. Or prepared data (`Shards` or its folder), whose pieces are
            the words.
        documents: int64, the indices of the documents of shards; None: all.
        settings: Settings, such as order=3 and smoothing="kneser_ney"; see the settings reference.

    Returns:
        The model. With 30 million words, order 3 takes about a minute and 2 GB of memory.

    Raises:
        InputError: There is no sentence, a setting is invalid, or the text is too small to estimate discounts.
    """
    options = NgramSettings.of(settings, "settings")
    options.check()
    boundaries = options.sentence_boundaries
    tokenizer, fallback = None, options.discount_fallback
    corpus = open_prepared(corpus)
    if isinstance(corpus, Shards):
        tokenizer, fallback = corpus.tokenizer, fallback or _PIECES_FALLBACK
        words, ids = read_training_shards(corpus, documents, boundaries=boundaries)
    else:
        words, ids = read_training_text(
            corpus,
            word_splitter(lowercase=options.lowercase),
            vocabulary_size=options.vocabulary_size,
            boundaries=boundaries,
        )
    if not len(ids):
        message, hint = "there is no sentence to train on", "give text with words"
        raise InputError("empty_corpus", message, argument="corpus", hint=hint)
    counts = count_ngrams(ids, len(words), options.order, boundaries=boundaries)
    is_possible = np.ones(len(words), dtype=bool)
    is_possible[SENTENCE_START] = False
    is_possible[SENTENCE_END] = boundaries
    is_possible[UNKNOWN] = options.unknown_words or counts[0].counts[UNKNOWN] > 0
    del ids
    logger.info(
        "%s", ", ".join(pluralize(len(level.keys), f"{n}-gram") for n, level in enumerate(counts, start=1))
    )
    thresholds = options.thresholds()
    if options.smoothing == "kneser_ney":
        tables, discounts = estimate_kneser_ney(counts, is_possible, thresholds, fallback)
        for n, (d1, d2, d3) in enumerate(discounts, start=1):
            logger.info("discounts of %d-grams: %.4f, %.4f, %.4f", n, d1, d2, d3)
    elif options.smoothing == "interpolated":
        tables, weights = estimate_interpolation(
            counts, is_possible, thresholds, options.interpolation_weights
        )
        logger.info("weights by order: %s", ", ".join(f"{weight:.4f}" for weight in weights))
    else:
        k = options.k if options.smoothing == "add_k" else 0.0
        tables = estimate_additive(counts, is_possible, thresholds, k)
    return NgramModel(words, tables, options, tokenizer)


class NgramModel:
    """An n-gram language model.

    Attributes:
        settings: The settings it was trained with.
        words: The vocabulary: `<unk>`, `<s>`, `</s>`, and the words or pieces.
        tables: The n-grams by order with their probabilities.
        tokenizer: The tokenizer whose pieces are the words; None: words lie between blanks.
    """

    def __init__(
        self,
        words: list[str],
        tables: list[NgramTable],
        settings: NgramSettings,
        tokenizer: Tokenizer | None = None,
    ) -> None:
        self.words, self.tables, self.settings, self.tokenizer = words, tables, settings, tokenizer
        self._index = WordIndex(words)
        self._split = word_splitter(lowercase=settings.lowercase, tokenizer=tokenizer)
        self._is_additive = settings.smoothing in ("add_k", "maximum_likelihood")
        self._is_possible: BoolArray = tables[0].log_probs > -np.inf
        self._is_possible[SENTENCE_START] = False

    def __repr__(self) -> str:
        return f"NgramModel(order={self.order}, {self.settings.smoothing}, {len(self.words):,} words)"

    @property
    def order(self) -> int:
        """The length of the longest n-grams."""
        return len(self.tables)

    def log_probabilities(self, sentences: Sequence[str]) -> list[NDArray[np.float64]]:
        """Return the logarithm of the probability of each word of sentences, and of each `</s>`, in nats.

        Args:
            sentences: S sentences.

        Returns:
            S arrays, float64 [words + 1], or [words] if the model has no sentence boundaries.
        """
        return [np.array(score.log_probabilities) for score in self.score(list(sentences))]

    @overload
    def score(self, sentences: str) -> SentenceScore: ...

    @overload
    def score(self, sentences: list[str]) -> list[SentenceScore]: ...

    def score(self, sentences: str | list[str]) -> SentenceScore | list[SentenceScore]:
        """Return the `SentenceScore` of a sentence, or a list of them for a list of sentences."""
        texts = [sentences] if isinstance(sentences, str) else sentences
        ids = self._encode(map(self._split, texts))
        log_probs, orders = self._score_tokens(ids)
        scores = []
        (starts,) = np.nonzero(ids == SENTENCE_START)
        for start, end in pairwise([*starts.tolist(), len(ids)]):
            tokens = slice(start + 1, end)
            words = [self.words[i] for i in ids[tokens].tolist()]
            scores.append(SentenceScore(words, log_probs[tokens].tolist(), orders[tokens].tolist()))
        return scores[0] if isinstance(sentences, str) else scores

    def perplexity(self, corpus: Sources | Shards, *, documents: IntArray | None = None) -> CorpusPerplexity:
        """Return the perplexity of a corpus, which has the same forms as in `train_ngram`.

        Without smoothing, it is infinite if an n-gram is unseen; the number of such tokens and the first one are
        reported and logged.

        Raises:
            InputError: There is no sentence.
        """
        boundaries = self.settings.sentence_boundaries
        corpus = open_prepared(corpus)
        if isinstance(corpus, Shards):
            ids = encode_shards(corpus, documents, self._index, boundaries=boundaries)
        else:
            ids = self._encode(self._split(sentence.text) for sentence in read_sentences(corpus))
        if not len(ids):
            raise InputError("empty_corpus", "there is no sentence to score", argument="corpus")
        totals, counts = np.zeros(2), np.zeros(3, dtype=np.int64)
        sentences = 0
        first: str | None = None
        for part in self._parts(ids):
            log_probs, _ = self._score_tokens(part)
            is_token, is_unknown = part != SENTENCE_START, part == UNKNOWN
            is_impossible = np.isneginf(log_probs)
            if first is None and is_impossible.any():
                position = int(np.argmax(is_impossible))
                number = sentences + int(np.count_nonzero(~is_token[:position])) - 1
                first = f"{sentence_location(corpus, documents, number)}: {self._describe(part, position)}"
            sentences += int(np.count_nonzero(~is_token))
            totals += log_probs.sum(), log_probs[~is_unknown].sum()
            counts += [np.count_nonzero(mask) for mask in (is_token, is_unknown, is_impossible)]
        tokens, unknown, impossible = counts.tolist()
        if first is not None:
            logger.warning(
                "the perplexity is infinite: %s of %s have the probability 0; the first: %s",
                f"{impossible:,}",
                pluralize(tokens, "token"),
                first,
            )
        return CorpusPerplexity(
            float(totals[0]), tokens, sentences, unknown, float(totals[1]), impossible, first
        )

    def distribution(self, context: str | Sequence[str]) -> NDArray[np.float64]:
        """Return the probability of each word of the vocabulary after a context.

        Args:
            context: The preceding text or words, of which the model reads the last n - 1; a context that begins
                with `<s>` is the start of a sentence.

        Returns:
            float64 [V], which sum to 1, or to 0 after a context of which a model without smoothing knows nothing.
        """
        ids = self._context_ids(context)
        matches = match_ngrams([table.keys for table in self.tables[:-1]], ids, len(self.words))
        bits = word_bits(len(self.words))
        probs = 10.0 ** self.tables[0].log_probs.astype(np.float64)
        for n in range(2, min(self.order, len(ids) + 1) + 1):
            context_index = int(matches[n - 2][-1])
            keys = self.tables[n - 1].keys
            if context_index == ABSENT:
                probs = np.full(len(probs), 10.0**self._uniform) if self._is_additive else probs
                continue
            backoff = 10.0 ** float(self.tables[n - 2].backoffs[context_index])
            probs = np.full(len(probs), backoff) if self._is_additive else probs * backoff
            start, end = np.searchsorted(keys, [context_index << bits, (context_index + 1) << bits])
            followers = keys[start:end] & ((1 << bits) - 1)
            probs[followers] = 10.0 ** self.tables[n - 1].log_probs[start:end].astype(np.float64)
        probs[~self._is_possible] = 0
        return probs

    def probability(self, word: str, context: str | Sequence[str] = "") -> float:
        """Return the probability of a word, or `</s>`, after a context as in `distribution`."""
        index = SENTENCE_END if word == "</s>" else self._index[word]
        return float(self.distribution(context)[index])

    def next_words(self, context: str | Sequence[str], k: int = 10) -> list[tuple[str, float]]:
        """Return the k most probable words after a context as in `distribution`, with their probabilities.

        Raises:
            InputError: k is not an integer from 1 up.
        """
        check_positive(k, "k")
        probs = self.distribution(context)
        best = np.argsort(-probs, kind="stable")[:k]
        return [(self.words[i], float(probs[i])) for i in best if probs[i] > 0]

    def save(self, folder: str | Path, *, overwrite: bool = False) -> None:
        """Write the model to a folder.

        Args:
            folder: The folder.
            overwrite: Replace a folder that this method wrote.

        Raises:
            InputError: The folder is not empty, or with `overwrite` holds anything else.
        """
        content = self.words, self.tables, self.settings, self.tokenizer
        ngram_files.save(atomic.output_path(folder), *content, overwrite=overwrite)

    @classmethod
    def load(cls, folder: str | Path) -> NgramModel:
        """Load a model from a folder that `save` wrote.

        Raises:
            InputError: A file is missing or damaged.
        """
        words, tables, values, tokenizer = ngram_files.load(Path(folder))
        return cls(
            words, tables, NgramSettings.of(values, str(Path(folder, ngram_files.SETTINGS_FILE))), tokenizer
        )

    def write_arpa(self, path: str | Path, *, overwrite: bool = False) -> None:
        """Write the model to an ARPA file, which KenLM and other tools read.

        Args:
            path: The file.
            overwrite: Replace an existing file.

        Raises:
            InputError: The model has no smoothing or no sentence boundaries, or the file exists.
        """
        if self.settings.smoothing == "maximum_likelihood" or not self.settings.sentence_boundaries:
            message = "ARPA files hold models with smoothing and sentence boundaries, which this one lacks"
            raise InputError("arpa_unsupported", message, hint=f"train with other {option('smoothing')}")
        path = atomic.output_path(path)
        atomic.check_output_file(path, overwrite=overwrite, argument="path")
        arpa.write_arpa(path, self.words, self._tables_with_backoff())

    @classmethod
    def read_arpa(cls, path: str | Path) -> NgramModel:
        """Read a model from an ARPA file, also compressed.

        Raises:
            InputError: The file is damaged; the location is the line.
        """
        words, tables = arpa.read_arpa(path)
        settings = NgramSettings(order=len(tables), smoothing="kneser_ney")
        return cls(words, tables, settings)

    @property
    def _uniform(self) -> float:
        """Log10 of the probability of each word after a context of which an additive model knows nothing."""
        is_smoothed = self.settings.smoothing == "add_k"
        return -math.log10(np.count_nonzero(self._is_possible)) if is_smoothed else -math.inf

    def _tables_with_backoff(self) -> list[NgramTable]:
        """Return tables that give the same probabilities by the rule of ARPA files.

        Additive smoothing backs off to the uniform distribution. So all n-grams that only serve as the shorter
        context of others become uniform: those below the highest order that do not begin with `<s>`.
        """
        if not self._is_additive:
            return self.tables
        tables = []
        starts_sentence = np.arange(len(self.words)) == SENTENCE_START
        for n, table in enumerate(self.tables, start=1):
            if n > 1:
                starts_sentence = starts_sentence[table.keys >> word_bits(len(self.words))]
            is_lower = ~starts_sentence & (n < self.order)
            log_probs: FloatArray = np.where(is_lower, np.float32(self._uniform), table.log_probs)
            if n == 1:
                log_probs[~self._is_possible], log_probs[SENTENCE_START] = -np.inf, 0
            is_context = starts_sentence | (n == self.order - 1)
            backoffs = table.backoffs
            if n < self.order:
                backoffs = np.where(is_context, backoffs - np.float32(self._uniform), np.float32(0))
            tables.append(NgramTable(table.keys, log_probs, backoffs))
        return tables

    def _encode(self, sentences: Iterable[list[str]]) -> WordIds:
        return encode_sentences(sentences, self._index, boundaries=self.settings.sentence_boundaries)

    def _context_ids(self, context: str | Sequence[str]) -> WordIds:
        """Return the ids of the last n - 1 words of a context."""
        if isinstance(context, str):
            is_start, text = context.startswith("<s>"), context.removeprefix("<s>")
            words = self._split(text)
        else:
            is_start = bool(context) and context[0] == "<s>"
            words = list(context[1:] if is_start else context)
        start = [SENTENCE_START] if is_start and self.settings.sentence_boundaries else []
        ids = [*start, *(self._index[word] for word in words)]
        return np.array(ids[-(self.order - 1) :] if self.order > 1 else [], dtype=np.int32)

    def _parts(self, ids: WordIds) -> Iterator[WordIds]:
        """Yield the sentences of a text, about `_CHUNK_TOKENS` at a time."""
        (starts,) = np.nonzero(ids == SENTENCE_START)
        sentences = np.unique(np.searchsorted(starts, np.arange(0, len(ids), _CHUNK_TOKENS)))
        cuts = starts[sentences[sentences < len(starts)]]
        for start, end in pairwise([*cuts.tolist(), len(ids)]):
            yield ids[start:end]

    def _score_tokens(self, ids: WordIds) -> tuple[NDArray[np.float64], IntArray]:
        """Return the logarithm of each token's probability in nats, 0 for `<s>`, and the order of its n-gram."""
        if not len(ids):
            return np.empty(0), np.empty(0, dtype=np.int64)
        matches = match_ngrams([table.keys for table in self.tables], ids, len(self.words))
        log_probs = self.tables[0].log_probs[ids].astype(np.float64)
        orders = np.ones(len(ids), dtype=np.int64)
        is_start = ids == SENTENCE_START
        positions = np.arange(len(ids))
        num_preceding = positions - np.maximum.accumulate(np.where(is_start, positions, 0))
        num_preceding -= not self.settings.sentence_boundaries
        for n in range(2, self.order + 1):
            contexts = np.concatenate([[ABSENT], matches[n - 2][:-1]])
            has_context = contexts != ABSENT
            backoffs = np.zeros(len(ids))
            backoffs[has_context] = self.tables[n - 2].backoffs[contexts[has_context]]
            if self._is_additive:
                unseen = np.where(has_context, backoffs, self._uniform)
                log_probs = np.where(num_preceding >= n - 1, unseen, log_probs)
            else:
                log_probs += backoffs
            is_match = matches[n - 1] != ABSENT
            log_probs[is_match] = self.tables[n - 1].log_probs[matches[n - 1][is_match]]
            orders[is_match] = n
        log_probs[~self._is_possible[ids]] = -np.inf
        log_probs[is_start] = 0
        return log_probs * _NATS, orders

    def _describe(self, ids: WordIds, position: int) -> str:
        """Return a word of a text with the words that the model reads before it."""
        start = max(position - self.order + 1, 0)
        context = [self.words[i] for i in ids[start:position]]
        return f"{self.words[ids[position]]!r}" + (f" after {' '.join(context)!r}" if context else "")
