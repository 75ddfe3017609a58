"""Train a tokenizer from files: the same files give the same vocabulary in every process.

`training_text.py` counts the words, and `algorithms.py` makes the vocabulary.
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Unpack

from tokenizers import pre_tokenizers

from bertsmith import console
from bertsmith.errors import InputError, option
from bertsmith.io import atomic
from bertsmith.io.documents import Reading
from bertsmith.io.folder_layout import FolderLayout
from bertsmith.io.folders import CorpusNotes
from bertsmith.io.sources import Sources, to_sources
from bertsmith.keywords import ReadingKeywords
from bertsmith.settings import with_keywords
from bertsmith.tokenizer import unigram, wordpiece
from bertsmith.tokenizer.byte_level_bpe import ROBERTA_SPECIAL_TOKENS
from bertsmith.tokenizer.folder import TOKENIZER_FILES, TokenizerKind
from bertsmith.tokenizer.script_coverage import script_ratios
from bertsmith.tokenizer.text_check import TextCheck
from bertsmith.tokenizer.tokenizer import Tokenizer
from bertsmith.tokenizer.wordpiece import BERT_SPECIAL_TOKENS, NormalizerName
from bertsmith.tokenizer_training import algorithms, training_text
from bertsmith.tokenizer_training.algorithms import DEFAULT_MIN_FREQUENCY, TokenizerTrainingSettings
from bertsmith.tokenizer_training.training_text import DEFAULT_READING, CorpusWords, Splitter, word_splitter

_MAX_REPORTED_CHARACTERS = 10

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class TrainingRecord:
    """Statistics of the text that a tokenizer was trained on, and of what training excluded; see training.json.

    Attributes:
        requested_size: The vocabulary size that was requested.
        size: The vocabulary size; smaller if the text has no more pieces.
        bytes: Number of UTF-8 bytes that were read.
        words: Number of words.
        distinct_words: Number of distinct words.
        characters: Number of distinct characters of the text; for byte-level BPE, of distinct bytes.
        characters_cut: Number of distinct characters that have no entry, since the vocabulary is full without
            these rarest ones.
        characters_cut_share: The ratio of their occurrences among all characters of the text.
        characters_cut_first: The most frequent of them.
        words_cut: Number of words that are excluded from training, since they contain such a character or are too
            long.
        scripts: The ratio of each script among the letters, without those below 1 %; empty for byte-level BPE.
        documents: Number of documents that were read.
        documents_sampled: Number of documents whose words were counted.
        share_sampled: The sampling ratio for documents: 1, or 1/2, 1/4, … to stay within max_ram.
        files_skipped: Number of files in folders that were skipped for their suffix, by suffix.
        files_empty: Number of files without text.
    """

    requested_size: int
    size: int
    bytes: int
    words: int
    distinct_words: int
    characters: int
    characters_cut: int
    characters_cut_share: float
    characters_cut_first: list[str]
    words_cut: int
    scripts: dict[str, float]
    documents: int
    documents_sampled: int
    share_sampled: float
    files_skipped: dict[str, int]
    files_empty: int


_FOLDER_LAYOUT = FolderLayout("a trained tokenizer", "training.json", ("training.json", *TOKENIZER_FILES))


@console.with_progress_bar("reading")
def train_tokenizer(
    files: Sources,
    output_dir: str | Path,
    *,
    kind: TokenizerKind = "wordpiece",
    vocab_size: int = 30_000,
    cased: bool | None = None,
    chinese: bool = False,
    min_frequency: int = DEFAULT_MIN_FREQUENCY,
    max_length: int = 512,
    normalizer: NormalizerName = "hf",
    max_ram: int | None = None,
    seed: int = 0,
    reading: Reading = DEFAULT_READING,
    overwrite: bool = False,
    progress: Callable[[int], None] | None = None,
    **options: Unpack[ReadingKeywords],
) -> Tokenizer:
    """Train a tokenizer and write it to a folder: tokenizer files and training.json (a `TrainingRecord`).

    Args:
        files: One path or several, or data in memory, as in `prepare`.
        output_dir: The folder to write, which must be empty or not exist. It is written completely or not at all.
        kind: "wordpiece" with BERT's layout, "byte_level_bpe" with RoBERTa's, "unigram" with ALBERT's.
        vocab_size: Number of entries, including special tokens.
        cased: Keep case and accents; byte-level BPE always does.
        chinese: For Chinese text, in which a character is a word: include every ideograph that fits.
        min_frequency: Minimum number of occurrences of a pair that is merged.
        max_length: Maximum number of input tokens.
        normalizer: The variant of BERT's normalizer, for WordPiece.
        max_ram: Maximum memory in bytes; documents are sampled if their words need more.
        seed: The seed of this sample.
        reading: How files are divided into documents.
        overwrite: Replace a tokenizer that this function wrote; other folders are never replaced.
        progress: Called with the number of bytes read so far.
        options: Fields of `reading`, such as text_column="title".

    Raises:
        InputError: The folder is not empty, options conflict, or the files have no words.
    """
    out, files = atomic.output_path(output_dir), to_sources(files)
    reading = with_keywords(reading, options, train_tokenizer)
    replace = _FOLDER_LAYOUT.check_replaceable(out, overwrite=overwrite)
    settings = TokenizerTrainingSettings.of(
        {
            "kind": kind,
            "vocab_size": vocab_size,
            "lowercase": kind != "byte_level_bpe" and not cased,
            "chinese": chinese,
            "min_frequency": min_frequency,
            "max_length": max_length,
            "normalizer": normalizer,
        },
        "settings",
    )
    _check_options(settings, cased)
    split_runs, split_words = _splitters(settings)
    notes = CorpusNotes()
    check = TextCheck()

    def check_and_split(line: str) -> list[str]:
        check.add([line])
        return split_runs(line)

    corpus_words = training_text.count_training_words(
        files,
        split_runs=check_and_split,
        split_words=split_words,
        reading=reading,
        max_ram=max_ram,
        seed=seed,
        progress=progress or (lambda _: None),
        notes=notes,
    )
    is_wordpiece = settings.kind == "wordpiece"
    characters = algorithms.CharacterCounts(corpus_words.words, has_continuations=is_wordpiece)
    if kind == "byte_level_bpe":
        tokenizer = algorithms.train_byte_level_bpe(settings, corpus_words.words)
    else:
        train = algorithms.train_unigram if kind == "unigram" else algorithms.train_wordpiece
        tokenizer = train(settings, corpus_words.words, characters)
    record = _make_record(settings, corpus_words, characters.counts, tokenizer, notes)
    for sentence in notes.sentences():
        logger.info(sentence)
    check.log(tokenizer, chinese=chinese)
    with atomic.atomic_folder(out, replace=replace) as folder:
        tokenizer.save(folder)
        atomic.write_text(folder / "training.json", json.dumps(asdict(record), indent=2) + "\n")
    return tokenizer


def _check_options(settings: TokenizerTrainingSettings, cased: bool | None) -> None:
    kind = settings.kind
    if kind == "byte_level_bpe" and (cased is False or settings.chinese):
        message = "byte-level BPE keeps case and all characters"
        hint = f"omit {option('cased')} and {option('chinese')}"
        argument = "chinese" if settings.chinese else "cased"
        raise InputError("byte_level_bpe_keeps_case", message, argument=argument, hint=hint)
    if kind == "unigram" and settings.min_frequency != DEFAULT_MIN_FREQUENCY:
        message = "Unigram merges no pairs, so it has no minimum frequency"
        hint = f"omit {option('min_frequency')}"
        raise InputError("min_frequency_not_applicable", message, argument="min_frequency", hint=hint)
    if kind != "wordpiece" and settings.normalizer != "hf":
        message = "the google normalizer is a variant of BERT's"
        hint = f"use {option('kind', 'wordpiece')}"
        raise InputError("normalizer_needs_wordpiece", message, argument="normalizer", hint=hint)
    min_size = 256 + len(ROBERTA_SPECIAL_TOKENS) if kind == "byte_level_bpe" else 2 * len(BERT_SPECIAL_TOKENS)
    if settings.vocab_size < min_size:
        message = f"a vocabulary of {settings.vocab_size:,} tokens is too small; the minimum is {min_size}"
        raise InputError("vocab_size_too_small", message, argument="vocab_size", hint="use several thousand")


def _splitters(settings: TokenizerTrainingSettings) -> tuple[Splitter, Splitter]:
    """Return functions that split a line into runs, and a run into the words that the tokenizer will receive."""
    if settings.kind == "byte_level_bpe":
        byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False)
        return training_text.split_before_spaces, word_splitter(None, byte_level)
    if settings.kind == "unigram":
        normalizer = unigram.unigram_normalizer(settings.lowercase, not settings.lowercase, b"")
        return training_text.split_at_spaces, word_splitter(normalizer, unigram.unigram_pre_tokenizer())
    normalizer = wordpiece.bert_normalizer(settings.lowercase, variant=settings.normalizer)
    pre_tokenizer = wordpiece.bert_pre_tokenizer(variant=settings.normalizer)
    return training_text.split_at_spaces, word_splitter(normalizer, pre_tokenizer)


def _make_record(
    settings: TokenizerTrainingSettings,
    corpus_words: CorpusWords,
    characters: Counter[str],
    tokenizer: Tokenizer,
    notes: CorpusNotes,
) -> TrainingRecord:
    words = corpus_words.words
    alphabet = {token for token in tokenizer.tokens if len(token) == 1}
    excluded = Counter({character: n for character, n in characters.items() if character not in alphabet})
    max_length = algorithms.max_word_length(settings)
    return TrainingRecord(
        requested_size=settings.vocab_size,
        size=tokenizer.vocab_size,
        bytes=corpus_words.bytes,
        words=words.total(),
        distinct_words=len(words),
        characters=len(characters),
        characters_cut=len(excluded),
        characters_cut_share=excluded.total() / max(1, characters.total()),
        characters_cut_first=[character for character, _ in excluded.most_common(_MAX_REPORTED_CHARACTERS)],
        words_cut=sum(
            n for word, n in words.items() if len(word) > max_length or not excluded.keys().isdisjoint(word)
        ),
        scripts=script_ratios(characters) if settings.kind != "byte_level_bpe" else {},
        documents=corpus_words.documents,
        documents_sampled=corpus_words.documents_sampled,
        share_sampled=corpus_words.ratio,
        files_skipped=notes.skipped_counts(),
        files_empty=len(notes.empty),
    )
