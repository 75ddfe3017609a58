"""Words of a corpus that a vocabulary splits: propose them by what they save, add them, and measure the effect.

New words are appended to the vocabulary, so existing ids do not change; `added_words.py` has the rules for
each kind of vocabulary. A new word may also start longer ones ("cardio" in "cardiogram"), which are then
split differently. The report counts and shows the other words of the corpus that change; WordPiece can
exclude such changes.
"""

from __future__ import annotations

import json
import math
import tempfile
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import tokenizers

from bertsmith.errors import InputError
from bertsmith.formatting import pluralize
from bertsmith.io import atomic
from bertsmith.io.files import Reading, read_documents, read_lines
from bertsmith.tokenizer import unigram
from bertsmith.tokenizer.tokenizer import Tokenizer
from bertsmith.tokenizer_training.added_words import VOCABULARY_KINDS, VocabularyKind

# The number of distinct runs between spaces, or their characters, after which they are normalized and split.
_MAX_PENDING_RUNS = 500_000
_MAX_PENDING_CHARACTERS = 1 << 25
_MAX_DISTINCT_WORDS = 2_000_000  # some 250 MB; beyond, the rarest are evicted
_MAX_EXAMPLES = 20


@dataclass(frozen=True)
class NewWord:
    """A word to add to a vocabulary.

    Attributes:
        word: The word as written.
        count: Number of occurrences in the corpus; 0 without a corpus.
        pieces: Its tokens so far.
        saved: Number of tokens that the new entry saves.
        commoner: Ratio of its frequency to that in the text of comparison; None without one.
    """

    word: str
    count: int
    pieces: list[str]
    saved: int
    commoner: float | None = None


@dataclass
class WordCounts:
    """Counts of words, as the tokenizer's model receives them.

    Attributes:
        counts: Number of occurrences of each word.
        total: Number of all words.
        too_long: Number of words of more than 100 characters, which are always unknown.
        forgotten: Number of occurrences of rare words that were evicted, beyond two million distinct words.
    """

    counts: Counter[str]
    total: int = 0
    too_long: int = 0
    num_evicted: int = 0


def count_domain_words(
    files: Sequence[str | Path],
    tokenizer: Tokenizer,
    reading: Reading = Reading(),  # noqa: B008  # frozen
    progress: Callable[[int], None] | None = None,
) -> WordCounts:
    """Count the words of files by the tokenizer's own normalizer and pre-tokenizer, in bounded memory.

    `progress` is called with the number of bytes of text so far.
    """
    counter = _WordCounter(tokenizer)
    num_bytes = 0
    for document in read_documents(files, reading):
        counter.add(document.text)
        num_bytes += len(document.text.encode("utf-8")) + 1
        if progress is not None:
            progress(num_bytes)
    return counter.finish()


class _WordCounter:
    """Normalize each distinct run between spaces once: no rule looks across a space."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._library = tokenizers.Tokenizer.from_str(tokenizer.definition)
        self._kind = VOCABULARY_KINDS[tokenizer.kind]
        self._pending: Counter[str] = Counter()
        self._num_characters = 0
        self._words = WordCounts(Counter())

    def add(self, text: str) -> None:
        self._pending.update(self._kind.split_runs(text))
        self._num_characters += len(text)
        if self._num_characters > _MAX_PENDING_CHARACTERS or len(self._pending) > _MAX_PENDING_RUNS:
            self._count_pending()

    def finish(self) -> WordCounts:
        self._count_pending()
        return self._words

    def _count_pending(self) -> None:
        words, max_length = self._words, self._kind.max_word_length
        for run, count in self._pending.items():
            for word in split_words(self._library, run):
                words.total += count
                if max_length is not None and len(word) > max_length:
                    words.too_long += count
                else:
                    words.counts[word] += count
        self._pending.clear()
        self._num_characters = 0
        if len(words.counts) > _MAX_DISTINCT_WORDS:
            frequent = Counter(dict(words.counts.most_common(_MAX_DISTINCT_WORDS // 2)))
            words.num_evicted += words.counts.total() - frequent.total()
            words.counts = frequent


def split_words(library: tokenizers.Tokenizer, text: str) -> list[str]:
    """Return the words into which a tokenizer of the library splits a text, as its model receives them."""
    normalized = library.normalizer.normalize_str(text) if library.normalizer else text
    if library.pre_tokenizer is None:
        return [normalized] if normalized else []
    return [word for word, _ in library.pre_tokenizer.pre_tokenize_str(normalized)]


def propose_words(
    words: WordCounts,
    tokenizer: Tokenizer,
    *,
    max_words: int = 1000,
    min_frequency: int = 5,
    min_pieces: int = 2,
    reference_words: WordCounts | None = None,
    keep_others: bool = False,
) -> list[NewWord]:
    """Return the words of a corpus that are worth an entry each, the best first.

    A word saves count · (pieces - 1) tokens. With `against`, this is weighted by log2 of the ratio of the word's
    frequencies in both texts (with one added to its count there). Ties are in alphabetical order.

    Args:
        words: The words of the corpus. Those with a letter and without unknown pieces are considered.
        tokenizer: The tokenizer to extend.
        number: Maximum number of words.
        min_frequency: Minimum number of occurrences.
        min_pieces: Minimum number of tokens into which a word is split.
        against: The words of a text of comparison; words that are not more frequent in the corpus are excluded.
        keep_others: Exclude words that would change the tokens of another word of the corpus.

    Raises:
        InputError: `keep_others` is set for a kind of tokenizer that cannot determine such changes.
    """
    kind, splitter = VOCABULARY_KINDS[tokenizer.kind], _WordSplitter(tokenizer)
    if keep_others and not kind.changes_only_longer_words:
        raise InputError(
            "keep_others_unsupported",
            "only with WordPiece can the words be determined that a new word changes",
            argument="keep_others",
            hint="omit it: the report shows the words that change",
        )
    counts = kind.candidate_tokens(words.counts)
    other_counts = None if reference_words is None else kind.candidate_tokens(reference_words.counts)
    vocabulary, unk_token = set(tokenizer.tokens), _unk_token(tokenizer)
    ranked: list[tuple[float, NewWord]] = []
    for token, count in counts.items():
        if (
            count < min_frequency
            or token in vocabulary
            or not any(map(str.isalpha, word := kind.to_word(token)))
        ):
            continue
        pieces = splitter.tokens(token)
        if len(pieces) < max(2, min_pieces) or unk_token in pieces:
            continue
        saved = count * (len(pieces) - 1)
        ratio = None
        if reference_words is not None and other_counts is not None:
            ratio = count / max(1, words.total) * (reference_words.total + 1) / (other_counts[token] + 1)
        weight = 1.0 if ratio is None else math.log2(ratio)
        if weight > 0:
            ranked.append((saved * weight, NewWord(word, count, pieces, saved, ratio)))
    ranked.sort(key=lambda entry: (-entry[0], entry[1].word))
    library = tokenizers.Tokenizer.from_str(tokenizer.definition)
    sorted_words = sorted(words.counts) if keep_others else []
    best: list[NewWord] = []
    for _, new in ranked:
        if len(best) == max_words:
            break
        # Tokenizing the word again must return the word, which holds for nearly all words.
        is_stable = split_words(library, kind.to_text(new.word)) == [kind.to_token(new.word)]
        if is_stable and not (keep_others and _changes_others(new.word, sorted_words, splitter)):
            best.append(new)
    return best


def _changes_others(word: str, sorted_words: Sequence[str], splitter: _WordSplitter) -> bool:
    """Return True if a longer word of the corpus starts with this one, and its first piece so far is shorter."""
    i = bisect_right(sorted_words, word)
    while i < len(sorted_words) and sorted_words[i].startswith(word):
        if not splitter.tokens(sorted_words[i])[0].startswith(word):
            return True
        i += 1
    return False


class _WordSplitter:
    """Split words into tokens with the tokenizer's model."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._model = tokenizers.Tokenizer.from_str(tokenizer.definition).model
        self._vocabulary = tokenizer.tokens

    def tokens(self, word: str) -> list[str]:
        return [self._vocabulary[token_id] for token_id in self.ids(word)]

    def ids(self, word: str) -> list[int]:
        return [token.id for token in self._model.tokenize(word)]


def read_word_list(file: str | Path, tokenizer: Tokenizer) -> tuple[list[str], list[str]]:
    """Read a file with one word per line; blank lines are skipped.

    Returns:
        The words to add, and those that need no entry (one token already, or repeated), in the order of the file.

    Raises:
        InputError: A line cannot become one token: a special token, a piece (`##ing`), a word that is too long or
            that the tokenizer reads differently. The error names file and line.
    """
    library = tokenizers.Tokenizer.from_str(tokenizer.definition)
    kind, splitter, vocabulary = (
        VOCABULARY_KINDS[tokenizer.kind],
        _WordSplitter(tokenizer),
        set(tokenizer.tokens),
    )
    special_tokens = {tokenizer.tokens[i] for i in tokenizer.all_special_ids}
    unk_token = _unk_token(tokenizer)
    words: dict[str, None] = {}
    existing: list[str] = []
    for line_number, line in read_lines(file):
        word = line.strip()
        if not word:
            continue
        _check_word(
            word, kind, library, special_tokens, tokenizer.continuation_prefix, f"{file}:{line_number}"
        )
        token = kind.to_token(word)
        pieces = splitter.tokens(token)
        if word in words or token in vocabulary or (len(pieces) == 1 and pieces[0] != unk_token):
            existing.append(word)
        else:
            words[word] = None
    if not words:
        hint = "write one word per line"
        if existing:
            hint = f"each of its {pluralize(len(existing), 'word')} is one token already"
        raise InputError("no_new_words", "the file has no word to add", location=file, hint=hint)
    return list(words), existing


def _unk_token(tokenizer: Tokenizer) -> str | None:
    """Return the unknown token; None for byte-level BPE, in which every text has pieces."""
    return None if tokenizer.kind == "byte_level_bpe" else tokenizer.tokens[tokenizer.unk_token_id]


def _check_word(
    word: str,
    kind: VocabularyKind,
    library: tokenizers.Tokenizer,
    special_tokens: set[str],
    prefix: str,
    location: str,
) -> None:
    if word in special_tokens:
        raise InputError(
            "word_is_special_token",
            f"'{word}' is a special token",
            location=location,
            hint="remove it from the list",
        )
    if prefix and word.startswith(prefix):
        raise InputError(
            "word_is_continuation",
            f"'{word}' is a piece that continues a word",
            location=location,
            hint="list complete words",
        )
    if kind.candidate_token(kind.to_token(word)) != kind.to_token(word):
        raise InputError(
            "word_has_other_characters",
            f"'{word[:60]}' contains more than letters and digits, which this kind of vocabulary does not join",
            location=location,
            hint="list words of letters and digits only",
        )
    read_words = [kind.to_word(token) for token in split_words(library, kind.to_text(word))]
    if not read_words:
        raise InputError(
            "word_normalizes_to_nothing",
            f"the tokenizer removes all characters of {word!r}",
            location=location,
            hint="remove it from the list",
        )
    if len(read_words) > 1:
        raise InputError(
            "several_words",
            f"the tokenizer splits '{word[:60]}' into {pluralize(len(read_words), 'word')}: "
            f"{' '.join(read_words[:8])[:60]}",
            location=location,
            hint="list single words: words that the tokenizer splits cannot become one token",
        )
    if read_words[0] != word:
        raise InputError(
            "word_not_normalized",
            f"the tokenizer reads '{word[:60]}' as '{read_words[0][:60]}'",
            location=location,
            hint=f"write '{read_words[0][:60]}'",
        )
    if kind.max_word_length is not None and len(word) > kind.max_word_length:
        raise InputError(
            "word_too_long",
            f"the word has {pluralize(len(word), 'character')}; WordPiece reads at most {kind.max_word_length}",
            location=location,
            hint="remove it from the list",
        )


def add_words(tokenizer: Tokenizer, words: Sequence[str]) -> Tokenizer:
    """Return the tokenizer with words appended to its vocabulary, in their order; existing entries keep their ids.

    With byte-level BPE, the pieces from which a word is merged are entries before it.

    Raises:
        InputError: The vocabulary already has one of the words, or an added token outside of the vocabulary is
            itself a word.
    """
    kind, definition = VOCABULARY_KINDS[tokenizer.kind], json.loads(tokenizer.definition)
    vocabulary, tokens = set(tokenizer.tokens), [kind.to_token(word) for word in words]
    if duplicates := [
        word for word, count in Counter(words).items() if count > 1 or kind.to_token(word) in vocabulary
    ]:
        raise InputError(
            "word_not_new",
            f"'{duplicates[0]}' is repeated, or the vocabulary already has it",
            hint="name new words",
        )
    model = definition["model"]
    outside = _tokens_outside_vocabulary(tokenizer, definition)
    if tokenizer.kind == "unigram":
        model["vocab"].extend([token, 0.0] for token in outside)
    else:
        model["vocab"].update(outside)
    kind.add_tokens(model, tokens, tokenizer.vocab_size)
    # Written and loaded like any other tokenizer, so that the same checks apply.
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tokenizer.save(folder)
        atomic.write_text(folder / "tokenizer.json", json.dumps(definition, ensure_ascii=False))
        if (model_file := folder / "spiece.model").exists():
            if outside:  # SentencePiece has no equivalent of such tokens.
                model_file.unlink()
            else:
                atomic.write_bytes(model_file, unigram.append_pieces(model_file.read_bytes(), model["vocab"]))
        return Tokenizer.load(folder)


def piece_ids_of_new_tokens(old: Tokenizer, grown: Tokenizer) -> list[list[int]]:
    """Return the ids that the old tokenizer gives each new entry of the extended one."""
    splitter = _WordSplitter(old)
    return [splitter.ids(token) for token in grown.tokens[old.vocab_size :]]


def _tokens_outside_vocabulary(tokenizer: Tokenizer, definition: Mapping[str, Any]) -> dict[str, int]:
    """Return the added tokens with ids after the vocabulary.

    They must become part of it: otherwise the library renumbers them after the new words. That changes no text as
    long as no word starts with one.
    """
    library = tokenizers.Tokenizer.from_str(tokenizer.definition)
    added_tokens = sorted((int(token["id"]), token["content"]) for token in definition["added_tokens"])
    vocab = {entry if isinstance(entry, str) else entry[0] for entry in definition["model"]["vocab"]}
    outside = {token: token_id for token_id, token in added_tokens if token not in vocab}
    if words := [token for token in outside if split_words(library, token) == [token]]:
        raise InputError(
            "added_token_is_word",
            f"the added token '{words[0]}' is not in the vocabulary, so no word can be added after it",
            hint="make it an entry of the vocabulary, or remove it",
        )
    return outside


def compare_tokenizations(
    words: WordCounts, before: Tokenizer, after: Tokenizer, new_words: Sequence[str]
) -> dict[str, Any]:
    """Return the changes that new words cause in a corpus, counted word by word.

    Returns:
        `tokens_before` and `tokens_after`; `unknown_before` and `unknown_after` (occurrences of words); and
        `other_words`, words that are not new but are split differently: the number of distinct ones and of
        occurrences, how many of them have more tokens or become unknown, and the most frequent ones with both
        splits.
    """
    old, new, kind = _WordSplitter(before), _WordSplitter(after), VOCABULARY_KINDS[before.kind]
    unk_token = _unk_token(before)
    new_tokens = {kind.to_token(word) for word in new_words}
    num_tokens = [words.too_long + words.num_evicted] * 2
    num_unknown = [words.too_long] * 2
    changed: list[tuple[int, str, list[str], list[str]]] = []
    for word, count in words.counts.items():
        splits = old.tokens(word), new.tokens(word)
        for i, pieces in enumerate(splits):
            num_tokens[i] += count * len(pieces)
            num_unknown[i] += count * (unk_token in pieces)
        if splits[0] != splits[1] and kind.candidate_token(word) not in new_tokens:
            changed.append((count, word, *splits))
    changed.sort(key=lambda entry: (-entry[0], entry[1]))
    longer = [entry for entry in changed if len(entry[3]) > len(entry[2])]
    newly_unknown = [entry for entry in changed if unk_token in entry[3] and unk_token not in entry[2]]
    return {
        "words": words.total,
        "tokens_before": num_tokens[0],
        "tokens_after": num_tokens[1],
        "saved_share": round(1 - num_tokens[1] / max(1, num_tokens[0]), 6),
        "unknown_before": num_unknown[0],
        "unknown_after": num_unknown[1],
        "words_forgotten": words.num_evicted,
        "other_words": {
            "distinct": len(changed),
            "times": sum(entry[0] for entry in changed),
            "longer": len(longer),
            "become_unknown": len(newly_unknown),
            "examples": [
                {"word": kind.to_word(word), "times": count, "before": old_split, "after": new_split}
                for count, word, old_split, new_split in changed[:_MAX_EXAMPLES]
            ],
        },
    }


def measure_word_list(
    listed: Sequence[str], counts: Mapping[str, int], tokenizer: Tokenizer
) -> list[NewWord]:
    """Return the words of a list with the number of tokens that each saves in a corpus."""
    kind, splitter = VOCABULARY_KINDS[tokenizer.kind], _WordSplitter(tokenizer)
    token_counts = kind.candidate_tokens(Counter(counts))
    rows = []
    for word in listed:
        token = kind.to_token(word)
        pieces, count = splitter.tokens(token), token_counts[token]
        rows.append(NewWord(word, count, pieces, count * (len(pieces) - 1)))
    return rows


def to_dicts(words: Sequence[NewWord]) -> list[dict[str, Any]]:
    """Return the words for a report, without fields that are None."""
    return [{key: value for key, value in asdict(word).items() if value is not None} for word in words]
