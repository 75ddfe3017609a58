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
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import get_args

import tokenizers
from pydantic import Field
from tokenizers import models, pre_tokenizers, trainers

from bertsmith import disk
from bertsmith.errors import InputError
from bertsmith.files.files import Notes, Reading
from bertsmith.settings import Settings
from bertsmith.tokenizer import byte_level, unigram
from bertsmith.tokenizer.folder import Kind
from bertsmith.tokenizer.normaliser import Normalizer, bert_borders, bert_normalizer
from bertsmith.tokenizer.tokenizer import Tokenizer
from bertsmith.tokenizer.wordpiece import SPECIALS
from bertsmith.vocabulary import unigram_training
from bertsmith.vocabulary.training_text import (
    AS_TEXT,
    Counted,
    Cut,
    before_blanks,
    between_blanks,
    count_training_words,
)

_LONGEST_WORD = 100  # longer words become [UNK] when encoding, so they have no say in training
_LONGEST_BYTES = 512  # nor have runs of letters that no language writes
_ALPHABET = 1_000  # the field's customary limit for alphabetic scripts
_COPIES = 1_000  # of a word in one string for the library


@dataclass(frozen=True)
class TrainingRecord:
    """What a training saw, kept and left out; counts, `bytes` of UTF-8 text read."""

    asked: int  # vocabulary size asked
    size: int  # vocabulary size reached; smaller when the text holds no more pieces
    bytes: int
    words: int
    distinct_words: int
    characters: int  # distinct ones in the text; of byte-level BPE: distinct bytes
    characters_cut: int  # the rarest, which got no place in the vocabulary
    words_cut: int  # words that hold such a character, or are too long to be pieces: left out of the training
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
    min_frequency: int = Field(2, ge=1, le=1_000_000_000, description="Occurrences of a pair to merge.")
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


def train_tokenizer(
    files: Sequence[str | Path],
    out: str | Path,
    *,
    kind: Kind = "wordpiece",
    vocab_size: int = 30_000,
    cased: bool | None = None,
    chinese: bool = False,
    min_frequency: int = 2,
    max_length: int = 512,
    normalizer: Normalizer = "hf",
    max_ram: int | None = None,
    seed: int = 0,
    reading: Reading = AS_TEXT,
    progress: Callable[[int], None] | None = None,
    tell: Callable[[str], None] | None = None,
) -> Tokenizer:
    """Train a tokenizer and write it to the new folder `out`: the field's files, and `training.json` beside
    them (a `TrainingRecord`).

    `kind` with the layout of its family: WordPiece BERT's, byte-level BPE RoBERTa's (case is always kept),
    Unigram ALBERT's. `cased` keeps case and accents; `chinese` keeps every ideograph that fits; `normalizer` is
    WordPiece's reading of BERT's rules. With `max_ram` (bytes) documents are sampled by `seed` where their words
    would not fit. An `out` that holds something is an `InputError`; the folder is whole or not there. progress
    hears the bytes read so far, tell which files were left out.
    """
    out = Path(out)
    disk.refuse_filled(out)
    if kind not in (kinds := get_args(Kind)):
        near = difflib.get_close_matches(str(kind), kinds, n=1)
        raise InputError(
            f"there is no kind of tokenizer called {kind!r}",
            f"did you mean {near[0]!r}?" if near else "known are " + ", ".join(kinds),
        )
    if kind == "byte_level_bpe" and (cased is False or chinese):
        raise InputError("byte-level BPE keeps case and every script", "leave cased and chinese out")
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
    with disk.new_folder(out) as folder:
        tokenizer.save(folder)
        disk.write_text(folder / "training.json", json.dumps(asdict(record), indent=2) + "\n")
    return tokenizer


def train_wordpiece(
    files: Sequence[str | Path],
    *,
    vocab_size: int,
    lowercase: bool = True,
    chinese: bool = False,
    min_frequency: int = 2,
    progress: Callable[[int], None] | None = None,
    report: Callable[[TrainingRecord], None] | None = None,
) -> Tokenizer:
    """A tokenizer whose vocabulary holds [PAD] [UNK] [CLS] [SEP] [MASK], the alphabet (sorted), its `##`
    forms (sorted), then merged pieces, the most frequent pair first.

    Characters and pairs seen fewer than `min_frequency` times are left out. Of the others the most frequent
    make the alphabet: at most 1,000, and no more than fill half of the vocabulary; with `chinese`, where a
    character is a word, as many as fit. `progress` hears the bytes read so far, `report` the counts at the
    end. Memory grows with the number of distinct words, not with the text. Special strings in the text are
    text.

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
    least = 2 * len(SPECIALS) if wish.kind != "byte_level_bpe" else len(byte_level.ROBERTA) + 256
    if wish.vocab_size < least:
        raise InputError(
            f"a vocabulary of {wish.vocab_size} tokens has no room for "
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
    tokenizer, seen, letters, kept = make(wish, counted.words)
    record = _record(wish, counted, tokenizer, seen - letters, kept, seen)
    left_out = corpus.notes
    return tokenizer, replace(record, files_skipped=left_out.by_number(), files_empty=len(left_out.empty))


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


Made = tuple[Tokenizer, frozenset[str], frozenset[str], Counter[str]]
"""A tokenizer, the characters seen, those kept, the words kept."""


def _wordpiece(wish: Wish, words: Counter[str]) -> Made:
    characters, going_on = _characters(words)
    letters = _alphabet(characters, going_on, wish)
    kept = Counter({w: n for w, n in words.items() if len(w) <= _LONGEST_WORD and letters.issuperset(w)})
    seeds = sorted(letters) + sorted(f"##{letter}" for letter in letters & _characters(kept)[1])
    tokens = _merged(kept, [*SPECIALS.values(), *seeds], wish)
    tokenizer = Tokenizer.of_vocabulary(
        tokens, lowercase=wish.lowercase, max_length=wish.max_length, normalizer=wish.normalizer
    )
    return tokenizer, frozenset(characters), frozenset(letters), kept


def _byte_level(wish: Wish, words: Counter[str]) -> Made:
    seen = frozenset().union(*words)
    kept = Counter({word: n for word, n in words.items() if len(word) <= _LONGEST_BYTES})
    *first, mask = byte_level.ROBERTA.values()
    order = ["<s>", "<pad>", "</s>", "<unk>"]
    assert sorted(first) == sorted(order)
    library = tokenizers.Tokenizer(models.BPE())
    library.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    trainer = trainers.BpeTrainer(
        vocab_size=wish.vocab_size - 1,
        min_frequency=wish.min_frequency,
        special_tokens=order,
        initial_alphabet=sorted(byte_level.byte_of()),
        show_progress=False,
    )
    library.train_from_iterator(_repeated(kept), trainer)
    model = json.loads(library.to_str())["model"]
    vocabulary = {**model["vocab"], mask: len(model["vocab"])}
    merges = [(a, b) for a, b in model["merges"]]
    made = byte_level.byte_level(vocabulary, merges, specials=byte_level.ROBERTA)
    return Tokenizer(made.to_str(), wish.max_length, dict(byte_level.ROBERTA)), seen, seen, kept


def _unigram(wish: Wish, words: Counter[str]) -> Made:
    # A word is a whole sentence in scripts without blanks: of any length, and what holds a rare character is cut
    # there, not left out.
    characters, _ = _characters(words, longest=None)
    letters = _alphabet(characters, set(), wish) | {unigram.WORD}
    kept = Counter({word: n for word, n in words.items() if letters.issuperset(word)})
    parts = kept.copy()
    if rare := "".join(sorted(set(characters) - letters)):
        border = re.compile(f"[{re.escape(rare)}]+")
        for word, n in words.items():
            if word not in kept:
                for part in filter(None, border.split(word)):
                    parts[part] += n
    piece_model = unigram_training.piece_model(parts, wish.vocab_size)
    model = unigram.parse_model(piece_model, "vocabulary")
    library = unigram.unigram(
        model.pieces,
        unknown=model.unknown,
        lowercase=wish.lowercase,
        keep_accents=not wish.lowercase,
        specials=unigram.ALBERT,
        place="vocabulary",
    )
    tokenizer = Tokenizer(library.to_str(), wish.max_length, dict(unigram.ALBERT), piece_model)
    return tokenizer, frozenset(characters), frozenset(letters), kept


def _record(
    wish: Wish,
    counted: Counted,
    tokenizer: Tokenizer,
    cut: frozenset[str],
    kept: Counter[str],
    seen: frozenset[str],
) -> TrainingRecord:
    total = sum(counted.words.values())
    return TrainingRecord(
        asked=wish.vocab_size,
        size=tokenizer.vocab_size,
        bytes=counted.bytes,
        words=total,
        distinct_words=len(counted.words),
        characters=len(seen),
        characters_cut=len(cut),
        words_cut=total - sum(kept.values()),
        documents=counted.documents,
        documents_sampled=counted.documents_taken,
        share_sampled=counted.share,
    )


def _characters(
    words: Mapping[str, int], longest: int | None = _LONGEST_WORD
) -> tuple[Counter[str], set[str]]:
    """How often each character stands in the words, and which ones stand within a word, not only first."""
    seen: Counter[str] = Counter()
    going_on: set[str] = set()
    for word, count in words.items():
        if longest is None or len(word) <= longest:
            for character, times in Counter(word).items():
                seen[character] += times * count
            going_on.update(word[1:])
    return seen, going_on


def _alphabet(characters: Counter[str], going_on: set[str], wish: Wish) -> set[str]:
    room = wish.vocab_size - len(SPECIALS)
    room, most = (room, room) if wish.chinese else (room // 2, _ALPHABET)
    letters: set[str] = set()
    for character, count in sorted(characters.items(), key=lambda item: (-item[1], item[0])):
        room -= 2 if character in going_on else 1  # itself and its ## form
        least = 1 if wish.chinese else wish.min_frequency  # every ideograph that fits
        if count < least or room < 0 or len(letters) == most:
            break
        letters.add(character)
    if not letters:
        raise InputError(f"no character stands {wish.min_frequency} times in the files", "give more text")
    return letters


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
