"""Training a WordPiece vocabulary from files: the same files give the same vocabulary, in every process.

Words are counted here, merged by the library. Its trainer numbers the first symbols in the order of a hash
map that differs from process to process, and ties between merges go by number: it is therefore seeded with
all first symbols, sorted. Words are merged by the frequency of pairs, as the library's WordPiece trainer
does.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import tokenizers
from tokenizers import models, pre_tokenizers, trainers

from bertsmith import disk
from bertsmith.errors import InputError
from bertsmith.text.files import bare_suffix, read_documents, read_lines
from bertsmith.text.normal import bert_normalizer
from bertsmith.text.tokenizer import Tokenizer
from bertsmith.text.tokenizer_files import SPECIALS, wordpiece

_LONGEST_WORD = 100  # longer words become [UNK] when encoding, so they have no say in training
_ALPHABET = 1_000  # the field's customary limit for alphabetic scripts
_WAITING = 500_000  # distinct raw words that wait to be normalised, some 60 MB
_COPIES = 1_000  # of a word in one string for the library


@dataclass(frozen=True)
class TrainingRecord:
    """What a training saw, kept and left out; counts, `bytes` of UTF-8 text."""

    asked: int  # vocabulary size asked
    size: int  # vocabulary size reached; smaller when the text holds no more pieces
    bytes: int
    words: int
    distinct_words: int
    characters: int  # distinct ones in the text
    characters_cut: int  # the rarest, which got no place in the vocabulary
    words_cut: int  # words that hold such a character, or are longer than 100 characters: [UNK]


def train_tokenizer(
    files: Sequence[str | Path],
    out: str | Path,
    *,
    vocab_size: int = 30_000,
    cased: bool = False,
    chinese: bool = False,
    min_frequency: int = 2,
    max_length: int = 512,
    progress: Callable[[int], None] | None = None,
) -> Tokenizer:
    """Train a tokenizer and write it to the new folder `out`: the field's files, and `training.json` beside
    them (a `TrainingRecord`). `cased` keeps case and accents; else as `train_wordpiece`. An `out` that holds
    something is an `InputError`; the folder is whole or not there."""
    out = Path(out)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise InputError(f"{out}: there is something already", "name another --out, or remove it")
    tokenizer, record = _trained(
        files, vocab_size, not cased, chinese, min_frequency, max_length, progress or (lambda _: None)
    )
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
    tokenizer, record = _trained(
        files, vocab_size, lowercase, chinese, min_frequency, 512, progress or (lambda _: None)
    )
    if report is not None:
        report(record)
    return tokenizer


def _trained(
    files: Sequence[str | Path],
    vocab_size: int,
    lowercase: bool,
    chinese: bool,
    min_frequency: int,
    max_length: int,
    progress: Callable[[int], None],
) -> tuple[Tokenizer, TrainingRecord]:
    if not files:
        raise InputError("there is no file to train on", "name some text files")
    if vocab_size < 2 * len(SPECIALS):
        raise InputError(
            f"a vocabulary of {vocab_size} tokens has no room for letters", "ask for some thousands"
        )
    words, read = count_words(files, lowercase, progress)
    if not words:
        raise InputError(f"{files[0]}: there is no word in the files", "check how they were made")
    characters, going_on = _characters(words)
    letters = _alphabet(characters, going_on, vocab_size, chinese, min_frequency)
    kept = {w: n for w, n in words.items() if len(w) <= _LONGEST_WORD and letters.issuperset(w)}
    seeds = sorted(letters) + sorted(f"##{letter}" for letter in letters & _characters(kept)[1])
    tokens = _merged(kept, [*SPECIALS.values(), *seeds], vocab_size, min_frequency)
    total = sum(words.values())
    record = TrainingRecord(
        asked=vocab_size,
        size=len(tokens),
        bytes=read,
        words=total,
        distinct_words=len(words),
        characters=len(characters),
        characters_cut=len(characters) - len(letters),
        words_cut=total - sum(kept.values()),
    )
    library = wordpiece(tokens, lowercase=lowercase, specials=SPECIALS, place="vocabulary")
    return Tokenizer(library.to_str(), max_length, dict(SPECIALS)), record


def count_words(
    files: Sequence[str | Path], lowercase: bool, progress: Callable[[int], None]
) -> tuple[Counter[str], int]:
    """How often each word, as the tokenizer will see it, stands in the files; and their size in bytes."""
    # Normaliser and word borders look at a character alone, or at most up to the next blank. So each run
    # between blanks is normalised once, however often it occurs: some 20 times less work, and no text is
    # kept.
    words: Counter[str] = Counter()
    waiting: Counter[str] = Counter()
    read = 0
    for path in files:
        for number, line in enumerate(_lines(path), start=1):
            waiting.update(line.split(" "))
            read += len(line.encode("utf-8")) + 1
            if number % 1024 == 0:
                progress(read)
            if len(waiting) > _WAITING:
                _add_normalised(waiting, words, lowercase)
        progress(read)
    _add_normalised(waiting, words, lowercase)
    return words, read


def _lines(path: str | Path) -> Iterator[str]:
    # Plain text by lines and not by documents: a large file without a blank line is one document.
    if bare_suffix(path) == ".jsonl":
        for document in read_documents([path]):
            yield from document.text.split("\n")
    else:
        for _, line in read_lines(path):
            yield line


def _add_normalised(waiting: Counter[str], words: Counter[str], lowercase: bool) -> None:
    normalizer = bert_normalizer(lowercase)
    borders = pre_tokenizers.BertPreTokenizer()
    for run, count in waiting.items():
        for word, _ in borders.pre_tokenize_str(normalizer.normalize_str(run)):
            words[word] += count
    waiting.clear()


def _characters(words: Mapping[str, int]) -> tuple[Counter[str], set[str]]:
    """How often each character stands in the words, and which ones stand within a word, not only first."""
    seen: Counter[str] = Counter()
    going_on: set[str] = set()
    for word, count in words.items():
        if len(word) <= _LONGEST_WORD:
            for character in word:
                seen[character] += count
            going_on.update(word[1:])
    return seen, going_on


def _alphabet(
    characters: Counter[str], going_on: set[str], vocab_size: int, chinese: bool, min_frequency: int
) -> set[str]:
    room = vocab_size - len(SPECIALS)
    room, most = (room, room) if chinese else (room // 2, _ALPHABET)
    letters: set[str] = set()
    for character, count in sorted(characters.items(), key=lambda item: (-item[1], item[0])):
        room -= 2 if character in going_on else 1  # itself and its ## form
        if count < min_frequency or room < 0 or len(letters) == most:
            break
        letters.add(character)
    if not letters:
        raise InputError(f"no character stands {min_frequency} times in the files", "give more text")
    return letters


def _merged(words: Mapping[str, int], seeds: list[str], vocab_size: int, min_frequency: int) -> list[str]:
    library = tokenizers.Tokenizer(models.WordPiece(unk_token=SPECIALS["unk"]))
    library.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocab_size,
        min_frequency=min_frequency,
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
