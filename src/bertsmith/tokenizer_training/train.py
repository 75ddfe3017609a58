"""Training a vocabulary from files: the same files give the same vocabulary, in every process.

Words are counted here and merged by the library, whose hash maps differ from process to process.

* WordPiece: its trainer numbers the first symbols in the order of such a map, and ties between merges go by
  number; it is therefore seeded with all first symbols, sorted. Merges go by the frequency of pairs.
* Byte-level BPE: all 256 first symbols are given, sorted; the heap of pairs orders ties by number.
* Unigram: by SentencePiece's trainer, see `unigram_training.py`.
"""

from __future__ import annotations

import difflib
import json
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from dataclasses import replace as changed
from pathlib import Path
from typing import Any, TypeVar, get_args

import tokenizers
from pydantic import Field
from tokenizers import models, pre_tokenizers, trainers

from bertsmith import console
from bertsmith.errors import InputError
from bertsmith.io import atomic
from bertsmith.io.files import Notes, Reading
from bertsmith.io.memory import Sources, as_files
from bertsmith.keywords import with_keywords
from bertsmith.settings import Settings
from bertsmith.tokenizer import byte_level_bpe, unigram
from bertsmith.tokenizer.folder import FILES, Kind
from bertsmith.tokenizer.normalizer import Normalizer, bert_borders, bert_normalizer
from bertsmith.tokenizer.script_coverage import script_shares
from bertsmith.tokenizer.tokenizer import Tokenizer
from bertsmith.tokenizer.wordpiece import SPECIALS
from bertsmith.tokenizer_training import unigram_training
from bertsmith.tokenizer_training.alphabet import CharacterCounts, with_alphabet
from bertsmith.tokenizer_training.training_text import (
    AS_TEXT,
    Counted,
    Cut,
    before_blanks,
    between_blanks,
    count_training_words,
)

_LONGEST_WORD = 100  # longer words become [UNK] when encoding, so they have no say in training
_LONGEST_BYTES = 512  # nor have runs of letters that no language writes
_SHOWN = 10  # characters of those left out
_MIN_FREQUENCY = 2
_COPIES = 1_000  # of a word in one string for the library

_Parts = TypeVar("_Parts")


@dataclass(frozen=True)
class TrainingRecord:
    """What a training saw, kept and left out; counts, `bytes` of UTF-8 text read."""

    asked: int  # vocabulary size asked
    size: int  # vocabulary size reached; smaller when the text holds no more pieces
    bytes: int
    words: int
    distinct_words: int
    characters: int  # distinct ones in the text; of byte-level BPE: distinct bytes
    characters_cut: int  # the rarest, which the full vocabulary has no entry for
    characters_cut_share: float  # of all characters of the text
    characters_cut_first: list[str]  # the most frequent of them
    words_cut: int  # words that hold such a character, or are too long to be pieces: left out of the training
    scripts: dict[str, float]  # share of the letters, where it is 1 % or more; of byte-level BPE: none
    documents: int = 0  # seen
    documents_sampled: int = 0  # of them counted
    share_sampled: float = 1.0  # of the documents asked for: 1, or 1/2, 1/4, … to stay within max_ram
    files_skipped: dict[str, int] = field(default_factory=dict)  # of the folders, by suffix
    files_empty: int = 0  # without any text


class Wish(Settings):
    """What vocabulary is asked for."""

    kind: Kind = Field("wordpiece", description="The algorithm, and the family whose layout it has.")
    vocab_size: int = Field(30_000, ge=1, le=10_000_000, description="Entries, special tokens among them.")
    lowercase: bool = Field(True, description="Lower-case, and strip accents.")
    chinese: bool = Field(False, description="Keep every ideograph that fits.")
    min_frequency: int = Field(
        _MIN_FREQUENCY, ge=1, le=1_000_000_000, description="Occurrences of what becomes a piece."
    )
    max_length: int = Field(512, ge=2, lt=1_000_000_000, description="Tokens of the longest input.")
    normalizer: Normalizer = Field("hf", description="WordPiece's reading of BERT's rules.")


@dataclass(frozen=True)
class TrainingFiles:
    """What it is trained on, and within how many bytes of memory (None: as many as it takes)."""

    files: Sequence[str | Path]
    reading: Reading = AS_TEXT
    max_ram: int | None = None
    seed: int = 0
    notes: Notes = field(default_factory=Notes)


_LAYOUT = atomic.FolderLayout("a trained tokenizer", "training.json", ("training.json", *FILES))


@console.with_bar("reading")
def train_tokenizer(
    files: Sources,
    out: str | Path,
    *,
    kind: Kind = "wordpiece",
    vocab_size: int = 30_000,
    cased: bool | None = None,
    chinese: bool = False,
    min_frequency: int = _MIN_FREQUENCY,
    max_length: int = 512,
    normalizer: Normalizer = "hf",
    max_ram: int | None = None,
    seed: int = 0,
    reading: Reading = AS_TEXT,
    overwrite: bool = False,
    progress: Callable[[int], None] | None = None,
    tell: Callable[[str], None] | None = None,
    **how: Any,
) -> Tokenizer:
    """Train a tokenizer and write it to the new folder `out`: the field's files, and `training.json` beside
    them (a `TrainingRecord`).

    files: one path or several, or data in memory, as in `prepare`. how: fields of `reading` by name, such as
    text_column="title". overwrite: replace a tokenizer that was trained before; any other folder is refused.

    `kind` with the layout of its family: WordPiece BERT's, byte-level BPE RoBERTa's (case is always kept),
    Unigram ALBERT's. `cased` keeps case and accents; `chinese` keeps every ideograph that fits; `normalizer` is
    WordPiece's reading of BERT's rules. With `max_ram` (bytes) documents are sampled by `seed` where their words
    would not fit. An `out` that holds something is an `InputError`; the folder is whole or not there. progress
    hears the bytes read so far, tell which files were left out.
    """
    out, files, reading = Path(out), as_files(files), with_keywords(reading, how, train_tokenizer)
    replace = _LAYOUT.is_replaced(out, overwrite=overwrite)
    if kind not in (kinds := get_args(Kind)):
        near = difflib.get_close_matches(str(kind), kinds, n=1)
        raise InputError(
            f"there is no kind of tokenizer called {kind!r}",
            f"did you mean {near[0]!r}?" if near else "known are " + ", ".join(kinds),
        )
    if kind == "byte_level_bpe" and (cased is False or chinese):
        raise InputError("byte-level BPE keeps case and every script", "leave cased and chinese out")
    if kind == "unigram" and min_frequency != _MIN_FREQUENCY:
        raise InputError(
            "min_frequency is of pairs that are merged, and Unigram merges none", "leave min_frequency out"
        )
    if kind != "wordpiece" and normalizer != "hf":
        raise InputError("the google reading is of BERT's normaliser", "take it with the kind wordpiece")
    lowercase = kind != "byte_level_bpe" and not cased
    wish = Wish.of(
        {
            "kind": kind,
            "vocab_size": vocab_size,
            "lowercase": lowercase,
            "chinese": chinese,
            "min_frequency": min_frequency,
            "max_length": max_length,
            "normalizer": normalizer,
        },
        "train_tokenizer",
    )
    corpus = TrainingFiles(files, reading, max_ram, seed)
    tokenizer, record = _trained(wish, corpus, progress or (lambda _: None))
    if tell is not None:
        corpus.notes.tell(tell)
    with atomic.new_folder(out, replace=replace) as folder:
        tokenizer.save(folder)
        atomic.write_text(folder / "training.json", json.dumps(asdict(record), indent=2) + "\n")
    return tokenizer


def train_wordpiece(
    files: Sequence[str | Path],
    *,
    vocab_size: int,
    lowercase: bool = True,
    chinese: bool = False,
    min_frequency: int = _MIN_FREQUENCY,
    progress: Callable[[int], None] | None = None,
    report: Callable[[TrainingRecord], None] | None = None,
) -> Tokenizer:
    """A tokenizer whose vocabulary holds [PAD] [UNK] [CLS] [SEP] [MASK], the alphabet (sorted), its `##`
    forms (sorted), then merged pieces, the most frequent pair first.

    Pairs seen fewer than `min_frequency` times are not merged. The alphabet is every character that there is room
    for: those seen `min_frequency` times in up to half of the vocabulary (with `chinese`, where a character is a
    word, all of them in all of it), then the others as far as the merged pieces leave entries. `progress` hears
    the bytes read so far, `report` the counts at the end. Memory grows with the number of distinct words, not with
    the text. Special strings in the text are text.

    Raises `InputError` for a vocabulary too small to hold an alphabet, files without words, and what
    `read_documents` raises.
    """
    asked = {
        "vocab_size": vocab_size,
        "lowercase": lowercase,
        "chinese": chinese,
        "min_frequency": min_frequency,
    }
    wish = Wish.of(asked, "train_wordpiece")
    tokenizer, record = _trained(wish, TrainingFiles(files), progress or (lambda _: None))
    if report is not None:
        report(record)
    return tokenizer


def _trained(
    wish: Wish, corpus: TrainingFiles, progress: Callable[[int], None]
) -> tuple[Tokenizer, TrainingRecord]:
    if not corpus.files:
        raise InputError("there is no file to train on", "name some text files")
    least = 2 * len(SPECIALS) if wish.kind != "byte_level_bpe" else len(byte_level_bpe.ROBERTA) + 256
    if wish.vocab_size < least:
        raise InputError(
            f"a vocabulary of {wish.vocab_size:,} tokens has no room for "
            + ("letters" if wish.kind != "byte_level_bpe" else f"all bytes and specials, {least} in all"),
            "ask for some thousands",
        )
    counted = count_training_words(
        corpus.files,
        cut=before_blanks if wish.kind == "byte_level_bpe" else between_blanks,
        words_of=_words_of(wish),
        reading=corpus.reading,
        max_ram=corpus.max_ram,
        seed=corpus.seed,
        progress=progress,
        notes=corpus.notes,
    )
    if not counted.words:
        raise InputError(f"{corpus.files[0]}: there is no word in the files", "check how they were made")
    make = {"wordpiece": _wordpiece, "byte_level_bpe": _byte_level, "unigram": _unigram}[wish.kind]
    made, notes = make(wish, counted.words), corpus.notes
    record = _record(wish, counted, made)
    return made.tokenizer, changed(record, files_skipped=notes.by_number(), files_empty=len(notes.empty))


def _words_of(wish: Wish) -> Cut:
    """What turns a run of the text into the words that the tokenizer will see."""
    if wish.kind == "byte_level_bpe":
        bytewise = pre_tokenizers.ByteLevel(add_prefix_space=False)
        return lambda run: [word for word, _ in bytewise.pre_tokenize_str(run)]
    if wish.kind == "unigram":
        normalizer = unigram.unigram_normalizer(wish.lowercase, not wish.lowercase, b"")
        borders = unigram.unigram_borders()
    else:
        normalizer = bert_normalizer(wish.lowercase, reading=wish.normalizer)
        borders = bert_borders(reading=wish.normalizer)
    return lambda run: [word for word, _ in borders.pre_tokenize_str(normalizer.normalize_str(run))]


@dataclass(frozen=True)
class _Made:
    """A tokenizer; the characters of the text, those of them in the vocabulary, and the words it was made of."""

    tokenizer: Tokenizer
    seen: Counter[str]
    letters: Collection[str]
    words: Counter[str]


def _wordpiece(wish: Wish, words: Counter[str]) -> _Made:
    characters = CharacterCounts.of(words, continued=True)

    def make(letters: frozenset[str]) -> tuple[list[str], Counter[str]]:
        readable = {word: n for word, n in words.items() if letters.issuperset(word)}
        kept = Counter({word: n for word, n in readable.items() if len(word) <= _LONGEST_WORD})
        inside = letters & CharacterCounts.of(readable, continued=True).inside
        seeds = sorted(letters) + sorted(f"##{letter}" for letter in inside)
        return _merged(kept, [*SPECIALS.values(), *seeds], wish), kept

    (tokens, kept), letters = _with_alphabet(wish, characters, make, lambda made: len(made[0]))
    tokenizer = Tokenizer.of_vocabulary(
        tokens, lowercase=wish.lowercase, max_length=wish.max_length, normalizer=wish.normalizer
    )
    return _Made(tokenizer, characters.counts, letters, kept)


def _with_alphabet(
    wish: Wish,
    characters: CharacterCounts,
    make: Callable[[frozenset[str]], _Parts],
    size: Callable[[_Parts], int],
) -> tuple[_Parts, frozenset[str]]:
    """Characters that occur `min_frequency` times in half of the vocabulary, or all of them anywhere in a Chinese
    one; the rest where room is left."""
    share = 1.0 if wish.chinese else 0.5
    # Unigram's trainer fills its size whatever the text is, so no room would be left for the others.
    least = 1 if wish.chinese or wish.kind == "unigram" else wish.min_frequency
    return with_alphabet(characters, wish.vocab_size, share=share, least=least, make=make, size=size)


def _byte_level(wish: Wish, words: Counter[str]) -> _Made:
    seen = CharacterCounts.of(words, continued=False).counts
    kept = Counter({word: n for word, n in words.items() if len(word) <= _LONGEST_BYTES})
    *first, mask = byte_level_bpe.ROBERTA.values()
    order = ["<s>", "<pad>", "</s>", "<unk>"]
    assert sorted(first) == sorted(order)
    library = tokenizers.Tokenizer(models.BPE())
    library.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    trainer = trainers.BpeTrainer(
        vocab_size=wish.vocab_size - 1,
        min_frequency=wish.min_frequency,
        special_tokens=order,
        initial_alphabet=sorted(byte_level_bpe.byte_of()),
        show_progress=False,
    )
    library.train_from_iterator(_repeated(kept), trainer)
    model = json.loads(library.to_str())["model"]
    vocabulary = {**model["vocab"], mask: len(model["vocab"])}
    merges = [(a, b) for a, b in model["merges"]]
    made = byte_level_bpe.byte_level(vocabulary, merges, specials=byte_level_bpe.ROBERTA)
    tokenizer = Tokenizer(made.to_str(), wish.max_length, dict(byte_level_bpe.ROBERTA))
    return _Made(tokenizer, seen, seen, kept)


def _unigram(wish: Wish, words: Counter[str]) -> _Made:
    # A word is a whole sentence in scripts without blanks: of any length, and what holds a rare character is cut
    # there, not left out.
    characters = CharacterCounts.of(words, continued=False)

    def make(letters: frozenset[str]) -> tuple[bytes, unigram.PieceModel, Counter[str]]:
        letters = letters | {unigram.WORD}
        kept = Counter({word: n for word, n in words.items() if letters.issuperset(word)})
        parts = kept.copy()
        if rare := "".join(sorted(set(characters.counts) - letters)):
            border = re.compile(f"[{re.escape(rare)}]+")
            for word, n in words.items():
                if word not in kept:
                    for part in filter(None, border.split(word)):
                        parts[part] += n
        file = unigram_training.piece_model(parts, wish.vocab_size)
        return file, unigram.parse_model(file, "vocabulary"), kept

    made, _ = _with_alphabet(wish, characters, make, lambda made: len(made[1].pieces))
    file, model, kept = made
    library = unigram.unigram(
        model.pieces,
        unknown=model.unknown,
        lowercase=wish.lowercase,
        keep_accents=not wish.lowercase,
        specials=unigram.ALBERT,
        place="vocabulary",
    )
    tokenizer = Tokenizer(library.to_str(), wish.max_length, dict(unigram.ALBERT), file)
    return _Made(tokenizer, characters.counts, {name for name, _ in model.pieces if len(name) == 1}, kept)


def _record(wish: Wish, counted: Counted, made: _Made) -> TrainingRecord:
    total = sum(counted.words.values())
    cut = Counter({character: n for character, n in made.seen.items() if character not in made.letters})
    return TrainingRecord(
        asked=wish.vocab_size,
        size=made.tokenizer.vocab_size,
        bytes=counted.bytes,
        words=total,
        distinct_words=len(counted.words),
        characters=len(made.seen),
        characters_cut=len(cut),
        characters_cut_share=sum(cut.values()) / max(1, sum(made.seen.values())),
        characters_cut_first=[character for character, _ in cut.most_common(_SHOWN)],
        words_cut=total - sum(made.words.values()),
        scripts=script_shares(made.seen) if wish.kind != "byte_level_bpe" else {},
        documents=counted.documents,
        documents_sampled=counted.documents_taken,
        share_sampled=counted.share,
    )


def _merged(words: Mapping[str, int], seeds: list[str], wish: Wish) -> list[str]:
    library = tokenizers.Tokenizer(models.WordPiece(unk_token=SPECIALS["unk"]))
    library.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    trainer = trainers.WordPieceTrainer(
        vocab_size=wish.vocab_size,
        min_frequency=wish.min_frequency,
        special_tokens=seeds,  # takes them in this order, before it looks at its hash map
        show_progress=False,
    )
    library.train_from_iterator(_repeated(words), trainer)
    numbers: dict[str, int] = library.get_vocab(with_added_tokens=False)
    return sorted(numbers, key=numbers.__getitem__)


def _repeated(words: Mapping[str, int]) -> Iterator[str]:
    # The library takes text, not counts. Counting words that need no normaliser is quick and keeps only them.
    for word, count in sorted(words.items()):
        full, rest = divmod(count, _COPIES)
        if full:
            line = " ".join([word] * _COPIES)
            for _ in range(full):
                yield line
        if rest:
            yield " ".join([word] * rest)
