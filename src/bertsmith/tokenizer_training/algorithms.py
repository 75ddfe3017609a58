"""The algorithms of tokenizer training: from counted words to a vocabulary, the same in every process.

The tokenizers library merges words, but its hash maps are iterated in a different order in each process, which
must not affect the vocabulary:

* WordPiece: the library's trainer numbers the characters in the order of a hash map and breaks ties between merges
  by these numbers. It is therefore given all characters and their `##` forms as special tokens, sorted, which it
  numbers first. (The trainer merges the most frequent pair first, as in BPE.)
* Byte-level BPE: the initial alphabet is sorted and contains all 256 characters of bytes, so that the library
  numbers them in this order and breaks ties by number.
* Unigram (Kudo 2018): SentencePiece trains it, and makes a spiece.model like ALBERT's. It divides sums over its
  threads, so the same number of threads, which is fixed here, gives the same model in every process and on every
  machine. The trainer of the tokenizers library would not: it breaks ties in the order of hash maps.

SentencePiece considers only substrings that repeat within the distinct words, so in small texts a word such as
`from` may not become a piece. A pure-Python trainer without this limit, with 8,000 pieces, gave 2 % fewer tokens
for 1 MB of English, but 0.2 % more for 20 MB of English and 4 % more for 8 MB of Chinese; it took a quarter of the
time.
"""

from __future__ import annotations

import io
import json
import math
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any, TypeVar

import tokenizers
from pydantic import Field
from tokenizers import models, pre_tokenizers, trainers

from bertsmith.errors import InputError
from bertsmith.settings import Settings
from bertsmith.tokenizer import byte_level_bpe, unigram
from bertsmith.tokenizer.byte_level_bpe import ROBERTA_SPECIAL_TOKENS
from bertsmith.tokenizer.folder import TokenizerKind
from bertsmith.tokenizer.tokenizer import Tokenizer
from bertsmith.tokenizer.unigram import ALBERT_SPECIAL_TOKENS
from bertsmith.tokenizer.wordpiece import BERT_SPECIAL_TOKENS, MAX_WORD_LENGTHS, NormalizerName

_COVERAGE = 0.9995
# Training ignores longer words: WordPiece encodes them as [UNK], and words of more bytes are no natural language.
_MAX_BPE_WORD_BYTES = 512
DEFAULT_MIN_FREQUENCY = 2
_REPETITIONS_PER_LINE = 1_000  # of a word, see `_repeat_words`
_ROBERTA_FIRST_TOKENS = ["<s>", "<pad>", "</s>", "<unk>"]  # the ids 0 to 3; the mask token has the last id
_NUM_THREADS = 8  # on any machine, for the same model
# Training starts with this many seed pieces per requested piece, but not fewer than the minimum. With
# SentencePiece's default of a million it takes 50 % longer, and texts have 0.1 % fewer tokens.
_SEED_PIECES_PER_PIECE = 8
_MIN_SEED_PIECES = 100_000
# The most frequent words up to these limits are trained on.
_MAX_UNIGRAM_WORDS = 200_000
_MAX_UNIGRAM_CHARACTERS = 2_000_000
_MAX_UNIGRAM_WORD_LENGTH = 1_000  # in characters; longer words, such as a page without spaces, are split

T = TypeVar("T")


class TokenizerTrainingSettings(Settings):
    """Settings of tokenizer training; see `train_tokenizer`."""

    kind: TokenizerKind = Field("wordpiece", description="The algorithm and the model family's file layout.")
    vocab_size: int = Field(30_000, ge=1, le=10_000_000, description="Entries, including special tokens.")
    lowercase: bool = Field(True, description="Lower-case text and strip accents.")
    chinese: bool = Field(False, description="Keep every ideograph that fits.")
    min_frequency: int = Field(
        DEFAULT_MIN_FREQUENCY, ge=1, le=1_000_000_000, description="Minimum occurrences of a merged pair."
    )
    max_length: int = Field(512, ge=2, lt=1_000_000_000, description="Maximum number of input tokens.")
    normalizer: NormalizerName = Field("hf", description="The variant of BERT's normalizer, for WordPiece.")


class CharacterCounts:
    """The occurrences of each character in the words of a text.

    Attributes:
        counts: Number of occurrences of each character.
        continuations: In WordPiece, the characters that occur after the first position of a word and so need a
            second entry (`##x`); empty for other kinds of vocabulary.
    """

    def __init__(self, words: Mapping[str, int], *, has_continuations: bool) -> None:
        """Count the characters of counted words, for a vocabulary with or without `##` entries."""
        self.counts: Counter[str] = Counter()
        for word, count in words.items():
            for character in word:
                self.counts[character] += count
        self.continuations = continuations(words) if has_continuations else set()

    def num_entries(self, characters: Collection[str]) -> int:
        """Return the number of entries that these characters take."""
        return len(characters) + sum(character in self.continuations for character in characters)

    def select_most_frequent(self, max_entries: int, min_frequency: int = 1) -> frozenset[str]:
        """Return the most frequent characters that fit into `max_entries` and reach `min_frequency`."""
        characters = []
        for character, count in self._by_frequency():
            entries = self.num_entries([character])
            if count < min_frequency or not max_entries:
                break
            if entries <= max_entries:
                max_entries -= entries
                characters.append(character)
        return frozenset(characters)

    def select_covering(self, ratio: float) -> list[str]:
        """Return the most frequent characters that together make up this ratio of the text."""
        by_frequency, min_total = self._by_frequency(), ratio * self.counts.total()
        totals_before = accumulate((count for _, count in by_frequency), initial=0)
        return [
            character
            for (character, _), total in zip(by_frequency, totals_before, strict=False)
            if total < min_total
        ]

    def _by_frequency(self) -> list[tuple[str, int]]:
        return sorted(self.counts.items(), key=lambda item: (-item[1], item[0]))


def continuations(words: Collection[str]) -> set[str]:
    """Return the characters that occur after the first position of a word."""
    return set[str]().union(*(word[1:] for word in words))


def train_wordpiece(
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


def train_byte_level_bpe(settings: TokenizerTrainingSettings, words: Mapping[str, int]) -> Tokenizer:
    trainer = trainers.BpeTrainer(
        vocab_size=settings.vocab_size - 1,
        min_frequency=settings.min_frequency,
        special_tokens=_ROBERTA_FIRST_TOKENS,
        initial_alphabet=sorted(byte_level_bpe.byte_decoder()),
        show_progress=False,
    )
    backend = _train_merges(models.BPE(), trainer, words, settings)
    model = json.loads(backend.to_str())["model"]
    vocabulary, merges = model["vocab"], model["merges"]
    vocabulary[ROBERTA_SPECIAL_TOKENS["mask"]] = len(vocabulary)
    backend = byte_level_bpe.build_byte_level_bpe(vocabulary, merges, special_tokens=ROBERTA_SPECIAL_TOKENS)
    return Tokenizer(backend.to_str(), settings.max_length, dict(ROBERTA_SPECIAL_TOKENS))


def train_unigram(
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
        model = train_sentencepiece(training_words, settings.vocab_size)
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


def max_word_length(settings: TokenizerTrainingSettings) -> float:
    """Return the length of the longest word that training uses, in characters, or in bytes for byte-level BPE."""
    if settings.kind == "wordpiece":
        return MAX_WORD_LENGTHS[settings.normalizer]
    return _MAX_BPE_WORD_BYTES if settings.kind == "byte_level_bpe" else math.inf


def _train_merges(
    model: Any, trainer: Any, words: Mapping[str, int], settings: TokenizerTrainingSettings
) -> tokenizers.Tokenizer:
    """Train a model of the tokenizers library on the words that are not too long."""
    backend = tokenizers.Tokenizer(model)
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    max_length = max_word_length(settings)
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


def train_sentencepiece(words: Mapping[str, int], size: int) -> bytes:
    """Train a spiece.model with at most `size` pieces, including ALBERT's special tokens; return its bytes.

    It has fewer only if the words do not contain as many. All characters are pieces (except U+2585, which
    SentencePiece reserves). No piece mixes two scripts, or letters and digits. Training uses the 200,000 most
    frequent words, fewer if they are long.

    Args:
        words: Number of occurrences of each word, with ▁ for the space before it.
        size: Maximum number of pieces.
    """
    import sentencepiece

    buffer = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=(f"{word}\t{count}" for word, count in _unigram_words(words)),
            input_format="tsv",
            model_writer=buffer,
            model_type="unigram",
            vocab_size=size,
            hard_vocab_limit=False,
            character_coverage=1.0,
            seed_sentencepiece_size=max(_SEED_PIECES_PER_PIECE * size, _MIN_SEED_PIECES),
            max_sentence_length=8 * _MAX_UNIGRAM_WORD_LENGTH,
            num_threads=_NUM_THREADS,
            # The words are normalized already, and start with ▁ where a space was.
            normalization_rule_name="identity",
            add_dummy_prefix=False,
            remove_extra_whitespaces=False,
            minloglevel=2,
            **_special_token_options(),
        )
    except RuntimeError as error:
        message = f"SentencePiece cannot train on these words ({error})"
        raise InputError("sentencepiece_training_failed", message, hint="provide more text") from None
    return _add_text_normalization(buffer.getvalue())


def _special_token_options() -> dict[str, Any]:
    pad, unk, cls, sep, mask = ALBERT_SPECIAL_TOKENS.values()
    options: dict[str, Any] = {"control_symbols": [mask]}
    for i, (name, piece) in enumerate({"pad": pad, "unk": unk, "bos": cls, "eos": sep}.items()):
        options |= {f"{name}_id": i, f"{name}_piece": piece}
    return options


def _unigram_words(words: Mapping[str, int]) -> Sequence[tuple[str, int]]:
    """Return the most frequent words within the limits, and the characters of other words, in alphabetical order.

    Ties are broken by a hash, so that pages without spaces, which occur once each, are sampled evenly.
    """
    short_words: Counter[str] = Counter()
    for word, count in words.items():
        for start in range(0, len(word), _MAX_UNIGRAM_WORD_LENGTH):
            short_words[word[start : start + _MAX_UNIGRAM_WORD_LENGTH]] += count
    ordered = sorted(short_words.items(), key=lambda item: (-item[1], zlib.crc32(item[0].encode()), item[0]))
    remaining_characters = _MAX_UNIGRAM_CHARACTERS
    selected: list[tuple[str, int]] = []
    for word, count in ordered[:_MAX_UNIGRAM_WORDS]:
        remaining_characters -= len(word)
        if remaining_characters < 0 and selected:
            break
        selected.append((word, count))
    other_characters = set().union(*words) - set().union(*(word for word, _ in selected))
    return sorted([*selected, *((character, 1) for character in other_characters)])


def _add_text_normalization(model: bytes) -> bytes:
    """Return the model with ALBERT's normalization of texts: add ▁ at the start, merge successive spaces."""
    from sentencepiece import sentencepiece_model_pb2

    message = sentencepiece_model_pb2.ModelProto.FromString(model)  # type: ignore[attr-defined]
    message.normalizer_spec.add_dummy_prefix = True
    message.normalizer_spec.remove_extra_whitespaces = True
    return bytes(message.SerializeToString(deterministic=True))
