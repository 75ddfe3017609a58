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

import difflib
import json
import logging
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeVar, Unpack, get_args

import tokenizers
from pydantic import Field
from tokenizers import models, pre_tokenizers, trainers

from bertsmith import console
from bertsmith.errors import InputError, option
from bertsmith.io import atomic
from bertsmith.io.documents import Reading
from bertsmith.io.folders import CorpusNotes
from bertsmith.io.sources import Sources, to_sources
from bertsmith.io.tables import Table
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
from bertsmith.tokenizer_training.alphabet import CharacterCounts, train_with_largest_alphabet
from bertsmith.tokenizer_training.training_text import (
    DEFAULT_READING,
    CorpusWords,
    Splitter,
    count_training_words,
    split_at_spaces,
    split_before_spaces,
)

_MAX_WORD_LENGTH = 100  # longer words become [UNK] when they are encoded, so training ignores them
_MAX_BYTE_LEVEL_WORD_LENGTH = 512  # in bytes; longer ones are no natural language, so training ignores them
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
    documents: int = 0
    documents_sampled: int = 0
    share_sampled: float = 1.0
    files_skipped: dict[str, int] = field(default_factory=dict)
    files_empty: int = 0


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
    out, files, reading = (
        Path(output_dir),
        to_sources(files),
        with_keywords(reading, options, train_tokenizer),
    )
    replace = _FOLDER_LAYOUT.check_replaceable(out, overwrite=overwrite)
    _check_options(kind, cased, chinese, min_frequency, normalizer)
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
        "train_tokenizer",
    )
    notes = CorpusNotes()
    tokenizer, record = _train(
        settings,
        files,
        notes,
        reading=reading,
        max_ram=max_ram,
        seed=seed,
        progress=progress or (lambda _: None),
    )
    for sentence in notes.sentences():
        logger.info(sentence)
    with atomic.atomic_folder(out, replace=replace) as folder:
        tokenizer.save(folder)
        atomic.write_text(folder / "training.json", json.dumps(asdict(record), indent=2) + "\n")
    return tokenizer


def _check_options(
    kind: str, cased: bool | None, chinese: bool, min_frequency: int, normalizer: NormalizerName
) -> None:
    if kind not in (kinds := get_args(TokenizerKind)):
        near = difflib.get_close_matches(str(kind), kinds, n=1)
        message = f"{kind!r} is not a kind of tokenizer"
        hint = f"did you mean {near[0]!r}?" if near else f"use one of {', '.join(kinds)}"
        raise InputError("unknown_tokenizer_kind", message, argument="kind", hint=hint)
    if kind == "byte_level_bpe" and (cased is False or chinese):
        message = "byte-level BPE keeps case and all characters"
        hint = f"omit {option('cased')} and {option('chinese')}"
        raise InputError(
            "byte_level_bpe_keeps_case", message, argument="chinese" if chinese else "cased", hint=hint
        )
    if kind == "unigram" and min_frequency != _DEFAULT_MIN_FREQUENCY:
        message = "Unigram merges no pairs, so it has no minimum frequency"
        hint = f"omit {option('min_frequency')}"
        raise InputError("min_frequency_not_applicable", message, argument="min_frequency", hint=hint)
    if kind != "wordpiece" and normalizer != "hf":
        message = "the google normalizer is a variant of BERT's"
        hint = f"use {option('kind', 'wordpiece')}"
        raise InputError("normalizer_needs_wordpiece", message, argument="normalizer", hint=hint)


def _train(
    settings: TokenizerTrainingSettings,
    files: Sequence[str | Path | Table],
    notes: CorpusNotes,
    **reading_options: Any,
) -> tuple[Tokenizer, TrainingRecord]:
    """Train on files; `notes` collects the skipped ones, and the options are those of `count_training_words`."""
    if not files:
        raise InputError(
            "no_training_files", "there is no file to train on", argument="files", hint="name text files"
        )
    is_byte_level = settings.kind == "byte_level_bpe"
    min_size = len(ROBERTA_SPECIAL_TOKENS) + 256 if is_byte_level else 2 * len(BERT_SPECIAL_TOKENS)
    if settings.vocab_size < min_size:
        reason = f"all bytes and special tokens, which take {min_size}" if is_byte_level else "letters"
        message = f"a vocabulary of {settings.vocab_size:,} tokens is too small for {reason}"
        raise InputError("vocab_size_too_small", message, argument="vocab_size", hint="use several thousand")
    corpus_words = count_training_words(
        files,
        split_runs=split_before_spaces if is_byte_level else split_at_spaces,
        split_words=_word_splitter(settings),
        notes=notes,
        **reading_options,
    )
    if not corpus_words.words:
        hint = "check how the files were created"
        raise InputError("no_words", "the files contain no words", location=files[0], hint=hint)
    train_functions = {
        "wordpiece": _train_wordpiece,
        "byte_level_bpe": _train_byte_level_bpe,
        "unigram": _train_unigram,
    }
    result = train_functions[settings.kind](settings, corpus_words.words)
    return result.tokenizer, _make_record(settings, corpus_words, result, notes)


def _word_splitter(settings: TokenizerTrainingSettings) -> Splitter:
    """Return the function that splits a run of text into the words that the tokenizer will receive."""
    if settings.kind == "byte_level_bpe":
        pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        return lambda run: [word for word, _ in pre_tokenizer.pre_tokenize_str(run)]
    if settings.kind == "unigram":
        normalizer = unigram.unigram_normalizer(settings.lowercase, not settings.lowercase, b"")
        word_splitter = unigram.unigram_pre_tokenizer()
    else:
        normalizer = bert_normalizer(settings.lowercase, variant=settings.normalizer)
        word_splitter = bert_pre_tokenizer(variant=settings.normalizer)
    return lambda run: [word for word, _ in word_splitter.pre_tokenize_str(normalizer.normalize_str(run))]


@dataclass(frozen=True)
class _TrainingResult:
    """A trained tokenizer.

    Attributes:
        tokenizer: The tokenizer.
        characters: Number of occurrences of each character of the text; for byte-level BPE, of each byte.
        alphabet: The characters that have an entry.
        words: Number of occurrences of each word that was not excluded from training.
    """

    tokenizer: Tokenizer
    characters: Counter[str]
    alphabet: Collection[str]
    words: Counter[str]


def _train_wordpiece(settings: TokenizerTrainingSettings, words: Counter[str]) -> _TrainingResult:
    """Train the vocabulary [PAD] [UNK] [CLS] [SEP] [MASK], the alphabet, its `##` forms, and merged pieces."""
    characters = CharacterCounts.from_words(words, has_continuations=True)

    def train(alphabet: frozenset[str]) -> tuple[list[str], Counter[str]]:
        spelled_words = {word: n for word, n in words.items() if alphabet.issuperset(word)}
        training_words = Counter(
            {word: n for word, n in spelled_words.items() if len(word) <= _MAX_WORD_LENGTH}
        )
        continuations = CharacterCounts.from_words(spelled_words, has_continuations=True).continuations
        initial_tokens = [
            *BERT_SPECIAL_TOKENS.values(),
            *sorted(alphabet),
            *sorted(f"##{character}" for character in continuations),
        ]
        return _merge_wordpieces(training_words, initial_tokens, settings), training_words

    (tokens, training_words), alphabet = _fit_alphabet(
        settings, characters, train, lambda result: len(result[0])
    )
    tokenizer = Tokenizer.from_vocabulary(
        tokens, lowercase=settings.lowercase, max_length=settings.max_length, normalizer=settings.normalizer
    )
    return _TrainingResult(tokenizer, characters.counts, alphabet, training_words)


def _fit_alphabet(
    settings: TokenizerTrainingSettings,
    characters: CharacterCounts,
    train: Callable[[frozenset[str]], T],
    get_size: Callable[[T], int],
) -> tuple[T, frozenset[str]]:
    """Train with the largest alphabet that fits.

    It has first the characters with at least `min_frequency` occurrences, in up to half of the vocabulary (with
    `chinese`, any characters in all of it), then others if merged pieces leave entries free.
    """
    # Unigram's trainer nearly always fills the vocabulary, so no entries would remain for rarer characters.
    any_frequency = settings.chinese or settings.kind == "unigram"
    return train_with_largest_alphabet(
        characters,
        settings.vocab_size,
        max_ratio=1.0 if settings.chinese else 0.5,
        min_frequency=1 if any_frequency else settings.min_frequency,
        train=train,
        get_size=get_size,
    )


def _train_byte_level_bpe(settings: TokenizerTrainingSettings, words: Counter[str]) -> _TrainingResult:
    characters = CharacterCounts.from_words(words, has_continuations=False).counts
    training_words = Counter(
        {word: n for word, n in words.items() if len(word) <= _MAX_BYTE_LEVEL_WORD_LENGTH}
    )
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    trainer = trainers.BpeTrainer(
        vocab_size=settings.vocab_size - 1,
        min_frequency=settings.min_frequency,
        special_tokens=_ROBERTA_FIRST_TOKENS,
        initial_alphabet=sorted(byte_level_bpe.byte_decoder()),
        show_progress=False,
    )
    backend.train_from_iterator(_repeat_words(training_words), trainer)
    model = json.loads(backend.to_str())["model"]
    vocabulary = {**model["vocab"], ROBERTA_SPECIAL_TOKENS["mask"]: len(model["vocab"])}
    merges = [(first, second) for first, second in model["merges"]]
    backend = byte_level_bpe.build_byte_level_bpe(vocabulary, merges, special_tokens=ROBERTA_SPECIAL_TOKENS)
    tokenizer = Tokenizer(backend.to_str(), settings.max_length, dict(ROBERTA_SPECIAL_TOKENS))
    return _TrainingResult(tokenizer, characters, characters, training_words)


def _train_unigram(settings: TokenizerTrainingSettings, words: Counter[str]) -> _TrainingResult:
    # In scripts without spaces a word is a whole sentence. Words therefore may have any length, and a word with a
    # rare character is split there instead of being excluded.
    characters = CharacterCounts.from_words(words, has_continuations=False)

    def train(alphabet: frozenset[str]) -> tuple[bytes, unigram.SentencePieceModel, Counter[str]]:
        alphabet = alphabet | {unigram.WORD_PREFIX}
        spelled_words = Counter({word: n for word, n in words.items() if alphabet.issuperset(word)})
        training_words = spelled_words.copy()
        if rare := "".join(sorted(set(characters.counts) - alphabet)):
            separator = re.compile(f"[{re.escape(rare)}]+")
            for word, n in words.items():
                if word not in spelled_words:
                    for part in filter(None, separator.split(word)):
                        training_words[part] += n
        model_bytes = unigram_training.train_sentencepiece(training_words, settings.vocab_size)
        return model_bytes, unigram.parse_model(model_bytes, "vocabulary"), spelled_words

    (model_bytes, model, spelled_words), _ = _fit_alphabet(
        settings, characters, train, lambda result: len(result[1].pieces)
    )
    backend = unigram.build_unigram(
        model.pieces,
        unk_id=model.unk_id,
        lowercase=settings.lowercase,
        keep_accents=not settings.lowercase,
        special_tokens=ALBERT_SPECIAL_TOKENS,
        location="vocabulary",
    )
    tokenizer = Tokenizer(backend.to_str(), settings.max_length, dict(ALBERT_SPECIAL_TOKENS), model_bytes)
    alphabet = {piece for piece, _ in model.pieces if len(piece) == 1}
    return _TrainingResult(tokenizer, characters.counts, alphabet, spelled_words)


def _make_record(
    settings: TokenizerTrainingSettings,
    corpus_words: CorpusWords,
    result: _TrainingResult,
    notes: CorpusNotes,
) -> TrainingRecord:
    num_words = sum(corpus_words.words.values())
    characters = result.characters
    excluded = Counter(
        {character: n for character, n in characters.items() if character not in result.alphabet}
    )
    return TrainingRecord(
        requested_size=settings.vocab_size,
        size=result.tokenizer.vocab_size,
        bytes=corpus_words.bytes,
        words=num_words,
        distinct_words=len(corpus_words.words),
        characters=len(characters),
        characters_cut=len(excluded),
        characters_cut_share=sum(excluded.values()) / max(1, sum(characters.values())),
        characters_cut_first=[character for character, _ in excluded.most_common(_MAX_REPORTED_CHARACTERS)],
        words_cut=num_words - sum(result.words.values()),
        scripts=script_ratios(characters) if settings.kind != "byte_level_bpe" else {},
        documents=corpus_words.documents,
        documents_sampled=corpus_words.documents_sampled,
        share_sampled=corpus_words.ratio,
        files_skipped=notes.skipped_counts(),
        files_empty=len(notes.empty),
    )


def _merge_wordpieces(
    words: Mapping[str, int], initial_tokens: list[str], settings: TokenizerTrainingSettings
) -> list[str]:
    """Return the initial tokens and merged pieces, by id."""
    backend = tokenizers.Tokenizer(models.WordPiece(unk_token=BERT_SPECIAL_TOKENS["unk"]))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    trainer = trainers.WordPieceTrainer(
        vocab_size=settings.vocab_size,
        min_frequency=settings.min_frequency,
        special_tokens=initial_tokens,  # see the module's docstring
        show_progress=False,
    )
    backend.train_from_iterator(_repeat_words(words), trainer)
    token_ids: dict[str, int] = backend.get_vocab(with_added_tokens=False)
    return sorted(token_ids, key=token_ids.__getitem__)


def _repeat_words(words: Mapping[str, int]) -> Iterator[str]:
    """Yield each word as often as it occurs, in lines: the library's trainers take text, not counts.

    They store only the counts of words, and count fast without a normalizer.
    """
    for word, count in sorted(words.items()):
        lines, rest = divmod(count, _REPETITIONS_PER_LINE)
        if lines:
            line = " ".join([word] * _REPETITIONS_PER_LINE)
            for _ in range(lines):
                yield line
        if rest:
            yield " ".join([word] * rest)
