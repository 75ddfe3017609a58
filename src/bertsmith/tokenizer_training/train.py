"""Train a tokenizer from files: the same files give the same vocabulary in every process.

`training_text.py` counts the words. The tokenizers library merges them, but its hash maps are iterated in a
different order in each process, which must not affect the vocabulary:

* WordPiece: the library's trainer numbers the characters in the order of a hash map and breaks ties between merges
  by these numbers. It is therefore given all characters and their `##` forms as special tokens, sorted, which it
  numbers first. (The trainer merges the most frequent pair first, as in BPE.)
* Byte-level BPE: the initial alphabet is sorted and contains all 256 characters of bytes, so that the library
  numbers them in this order and breaks ties by number.
* Unigram: SentencePiece trains it, see `unigram_training.py`.
"""

from __future__ import annotations

import json
import logging
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar, Unpack

import tokenizers
from pydantic import Field
from tokenizers import models, pre_tokenizers, trainers

from bertsmith import console
from bertsmith.errors import InputError, option
from bertsmith.io import atomic
from bertsmith.io.documents import Reading
from bertsmith.io.folders import CorpusNotes
from bertsmith.io.sources import Sources, to_sources
from bertsmith.keywords import ReadingKeywords
from bertsmith.settings import Settings, with_keywords
from bertsmith.tokenizer import byte_level_bpe, unigram
from bertsmith.tokenizer.byte_level_bpe import ROBERTA_SPECIAL_TOKENS
from bertsmith.tokenizer.folder import TOKENIZER_FILES, TokenizerKind
from bertsmith.tokenizer.normalizer import NormalizerName, bert_normalizer, bert_pre_tokenizer
from bertsmith.tokenizer.script_coverage import script_ratios
from bertsmith.tokenizer.tokenizer import Tokenizer
from bertsmith.tokenizer.unigram import ALBERT_SPECIAL_TOKENS
from bertsmith.tokenizer.wordpiece import BERT_SPECIAL_TOKENS
from bertsmith.tokenizer_training import unigram_training
from bertsmith.tokenizer_training.alphabet import CharacterCounts, continuations
from bertsmith.tokenizer_training.training_text import (
    DEFAULT_READING,
    CorpusWords,
    Splitter,
    count_training_words,
    split_at_spaces,
    split_before_spaces,
    word_splitter,
)

_COVERAGE = 0.9995
# Training ignores longer words: WordPiece encodes them as [UNK], and words of more bytes are no natural language.
_MAX_WORD_LENGTHS: dict[str, int] = {"wordpiece": 100, "byte_level_bpe": 512}
_MAX_REPORTED_CHARACTERS = 10
_DEFAULT_MIN_FREQUENCY = 2
_REPETITIONS_PER_LINE = 1_000  # of a word, see `_repeat_words`
_ROBERTA_FIRST_TOKENS = ["<s>", "<pad>", "</s>", "<unk>"]  # the ids 0 to 3; the mask token has the last id

logger = logging.getLogger(__name__)
T = TypeVar("T")


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


class TokenizerTrainingSettings(Settings):
    """Settings of tokenizer training; see `train_tokenizer`."""

    kind: TokenizerKind = Field("wordpiece", description="The algorithm and the model family's file layout.")
    vocab_size: int = Field(30_000, ge=1, le=10_000_000, description="Entries, including special tokens.")
    lowercase: bool = Field(True, description="Lower-case text and strip accents.")
    chinese: bool = Field(False, description="Keep every ideograph that fits.")
    min_frequency: int = Field(
        _DEFAULT_MIN_FREQUENCY,
        ge=1,
        le=1_000_000_000,
        description="Minimum occurrences of a pair that is merged.",
    )
    max_length: int = Field(512, ge=2, lt=1_000_000_000, description="Maximum number of input tokens.")
    normalizer: NormalizerName = Field("hf", description="The variant of BERT's normalizer, for WordPiece.")


_FOLDER_LAYOUT = atomic.FolderLayout(
    "a trained tokenizer", "training.json", ("training.json", *TOKENIZER_FILES)
)


@console.with_progress_bar("reading")
def train_tokenizer(
    files: Sources,
    output_dir: str | Path,
    *,
    kind: TokenizerKind = "wordpiece",
    vocab_size: int = 30_000,
    cased: bool | None = None,
    chinese: bool = False,
    min_frequency: int = _DEFAULT_MIN_FREQUENCY,
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
    out, files = Path(output_dir), to_sources(files)
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
    corpus_words = count_training_words(
        files,
        split_runs=split_runs,
        split_words=split_words,
        reading=reading,
        max_ram=max_ram,
        seed=seed,
        progress=progress or (lambda _: None),
        notes=notes,
    )
    characters = CharacterCounts(corpus_words.words, has_continuations=settings.kind == "wordpiece")
    if kind == "byte_level_bpe":
        tokenizer = _train_byte_level_bpe(settings, corpus_words.words)
    else:
        train = _train_unigram if kind == "unigram" else _train_wordpiece
        tokenizer = train(settings, corpus_words.words, characters)
    record = _make_record(settings, corpus_words, characters.counts, tokenizer, notes)
    for sentence in notes.sentences():
        logger.info(sentence)
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
    if kind == "unigram" and settings.min_frequency != _DEFAULT_MIN_FREQUENCY:
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
        return split_before_spaces, word_splitter(None, pre_tokenizers.ByteLevel(add_prefix_space=False))
    if settings.kind == "unigram":
        normalizer = unigram.unigram_normalizer(settings.lowercase, not settings.lowercase, b"")
        return split_at_spaces, word_splitter(normalizer, unigram.unigram_pre_tokenizer())
    normalizer = bert_normalizer(settings.lowercase, variant=settings.normalizer)
    return split_at_spaces, word_splitter(normalizer, bert_pre_tokenizer(variant=settings.normalizer))


def _train_wordpiece(
    settings: TokenizerTrainingSettings, words: Mapping[str, int], characters: CharacterCounts
) -> Tokenizer:
    """Train the vocabulary [PAD] [UNK] [CLS] [SEP] [MASK], the alphabet, its `##` forms, and merged pieces."""

    def train(alphabet: frozenset[str]) -> tuple[list[str], int]:
        spelled_words = {word: n for word, n in words.items() if alphabet.issuperset(word)}
        trainer = trainers.WordPieceTrainer(
            vocab_size=settings.vocab_size,
            min_frequency=settings.min_frequency,
            special_tokens=[  # see the module's docstring
                *BERT_SPECIAL_TOKENS.values(),
                *sorted(alphabet),
                *sorted(f"##{character}" for character in continuations(spelled_words)),
            ],
            show_progress=False,
        )
        backend = _train_merges(
            models.WordPiece(unk_token=BERT_SPECIAL_TOKENS["unk"]), trainer, spelled_words, settings
        )
        token_ids = backend.get_vocab(with_added_tokens=False)
        return sorted(token_ids, key=token_ids.__getitem__), len(token_ids)

    return Tokenizer.from_vocabulary(
        _train_with_largest_alphabet(settings, characters, train),
        lowercase=settings.lowercase,
        max_length=settings.max_length,
        normalizer=settings.normalizer,
    )


def _train_byte_level_bpe(settings: TokenizerTrainingSettings, words: Mapping[str, int]) -> Tokenizer:
    trainer = trainers.BpeTrainer(
        vocab_size=settings.vocab_size - 1,
        min_frequency=settings.min_frequency,
        special_tokens=_ROBERTA_FIRST_TOKENS,
        initial_alphabet=sorted(byte_level_bpe.byte_decoder()),
        show_progress=False,
    )
    backend = _train_merges(models.BPE(), trainer, words, settings)
    model = json.loads(backend.to_str())["model"]
    vocabulary = {**model["vocab"], ROBERTA_SPECIAL_TOKENS["mask"]: len(model["vocab"])}
    backend = byte_level_bpe.build_byte_level_bpe(
        vocabulary, model["merges"], special_tokens=ROBERTA_SPECIAL_TOKENS
    )
    return Tokenizer(backend.to_str(), settings.max_length, dict(ROBERTA_SPECIAL_TOKENS))


def _train_unigram(
    settings: TokenizerTrainingSettings, words: Mapping[str, int], characters: CharacterCounts
) -> Tokenizer:
    # In scripts without spaces a word is a whole sentence. Words therefore may have any length, and a word with a
    # rare character is split there instead of being excluded.
    def train(alphabet: frozenset[str]) -> tuple[bytes, int]:
        rare = characters.counts.keys() - alphabet - {unigram.WORD_PREFIX}
        to_spaces = dict.fromkeys(map(ord, rare), " ")
        training_words: Counter[str] = Counter()
        for word, n in words.items():
            for part in word.translate(to_spaces).split(" "):
                training_words[part] += n
        model = unigram_training.train_sentencepiece(training_words, settings.vocab_size)
        return model, len(unigram.parse_model(model).pieces)

    model = _train_with_largest_alphabet(settings, characters, train)
    backend = unigram.build_unigram(
        unigram.parse_model(model),
        lowercase=settings.lowercase,
        keep_accents=not settings.lowercase,
        special_tokens=ALBERT_SPECIAL_TOKENS,
    )
    return Tokenizer(backend.to_str(), settings.max_length, dict(ALBERT_SPECIAL_TOKENS), model)


def _train_with_largest_alphabet(
    settings: TokenizerTrainingSettings,
    characters: CharacterCounts,
    train: Callable[[frozenset[str]], tuple[T, int]],
) -> T:
    """Train with the largest alphabet that fits.

    The first alphabet has the most frequent characters: those that together make up 99.95 % of the text
    (SentencePiece's default coverage), and others with at least `min_frequency` occurrences, in up to half of the
    vocabulary (with `chinese`, any characters in all of it). Longer pieces have the other entries. If training
    leaves entries free, it is repeated with more characters, however rare: a character is excluded only if the
    vocabulary is full without it. (The common limit of 1,000 characters and a minimum frequency of 2 would leave
    a tenth of the words of a Chinese text unknown, although entries are free.)

    Args:
        settings: The settings.
        characters: The characters of the text.
        train: Trains with an alphabet; returns the result and its vocabulary size.
    """
    max_entries = settings.vocab_size - len(BERT_SPECIAL_TOKENS)
    covering_entries = characters.num_entries(characters.select_covering(_COVERAGE))
    max_ratio = 1.0 if settings.chinese else 0.5
    first_entries = min(max_entries, max(int(max_ratio * max_entries), covering_entries))
    # Unigram's trainer nearly always fills the vocabulary, so no entries would remain for rarer characters.
    any_frequency = settings.chinese or settings.kind == "unigram"
    alphabet = characters.select_most_frequent(first_entries, 1 if any_frequency else settings.min_frequency)
    if not alphabet:
        alphabet = characters.select_most_frequent(max_entries)
    while True:
        result, size = train(alphabet)
        free_entries = max(0, settings.vocab_size - size)
        larger_alphabet = characters.select_most_frequent(characters.num_entries(alphabet) + free_entries)
        if len(larger_alphabet) <= len(alphabet):
            return result
        alphabet = larger_alphabet


def _train_merges(
    model: Any, trainer: Any, words: Mapping[str, int], settings: TokenizerTrainingSettings
) -> tokenizers.Tokenizer:
    """Train a model of the tokenizers library on the words that are not too long."""
    backend = tokenizers.Tokenizer(model)
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    max_length = _MAX_WORD_LENGTHS[settings.kind]
    training_words = {word: n for word, n in words.items() if len(word) <= max_length}
    backend.train_from_iterator(_repeat_words(training_words), trainer)
    return backend


def _repeat_words(words: Mapping[str, int]) -> Iterator[str]:
    """Yield each word as often as it occurs, in lines: the library's trainers take text, not counts.

    They store only the counts of words, and count fast without a normalizer.
    """
    for word, count in sorted(words.items()):
        for start in range(0, count, _REPETITIONS_PER_LINE):
            yield f"{word} " * min(_REPETITIONS_PER_LINE, count - start)


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
    max_length = _MAX_WORD_LENGTHS.get(settings.kind, sys.maxsize)
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
