"""Extend a vocabulary by words of a corpus: propose words, add them, and measure the effect.

Words that the vocabulary splits into several tokens are proposed, ranked by the number of tokens that an entry of
their own saves. New words are appended to the vocabulary, so existing ids do not change; `added_words.py` has the
rules for each kind of vocabulary, and defines run, text, pretoken, token, entry, and piece. A new word may also
start longer ones ("cardio" in "cardiogram"), which are then split differently. The report counts and shows the
other words of the corpus that change; with WordPiece, new words that cause such changes can be excluded.
"""

from __future__ import annotations

import itertools
import json
import math
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bertsmith.errors import InputError
from bertsmith.formatting import pluralize
from bertsmith.io import atomic
from bertsmith.io.documents import Reading, read_documents
from bertsmith.io.tables import Table
from bertsmith.io.text_io import read_lines
from bertsmith.tokenizer import unigram
from bertsmith.tokenizer.tokenizer import Tokenizer
from bertsmith.tokenizer_training.added_words import VOCABULARY_KINDS, TokenizationSteps, max_word_length
from bertsmith.tokenizer_training.training_text import Splitter, count_runs

# Some 250 MB. If there are more, only half as many, the most frequent ones, are kept. A word that was evicted and
# occurs again is counted from 0, so counts are lower bounds.
_MAX_DISTINCT_WORDS = 2_000_000
_MAX_EXAMPLES = 20  # number of changed words in a report


@dataclass(frozen=True)
class NewWord:
    """A word to add to a vocabulary.

    Attributes:
        word: The word as written.
        count: Number of occurrences in the corpus; 0 without a corpus.
        pieces: Its tokens in the old vocabulary.
        saved: Number of tokens of the corpus that the new entry saves.
        commoner: Its frequency ratio: the relative frequency in the corpus divided by that in the reference
            corpus, as `propose_words` computes it; None without a reference corpus.
    """

    word: str
    count: int
    pieces: list[str]
    saved: int
    commoner: float | None = None


@dataclass
class WordCounts:
    """The counted words of a corpus, as pretokens.

    Attributes:
        counts: Number of occurrences of each pretoken; a lower bound if any were evicted.
        total: Number of all pretokens, those that are too long or evicted included.
        too_long: Number of pretokens that exceed `max_word_length`, which are always unknown.
        num_evicted: Number of occurrences of rare pretokens that were removed from `counts` to limit memory.
    """

    counts: Counter[str]
    total: int = 0
    too_long: int = 0
    num_evicted: int = 0


def count_domain_words(
    files: Sequence[str | Path | Table],
    tokenizer: Tokenizer,
    reading: Reading = Reading(),  # noqa: B008  # frozen
    progress: Callable[[int], None] | None = None,
) -> WordCounts:
    """Count the words of files with the tokenizer's own normalizer and pre-tokenizer, in bounded memory.

    Args:
        files: Files, folders, or globs.
        tokenizer: The tokenizer to extend.
        reading: How files are divided into documents.
        progress: Called with the number of bytes of text so far.
    """
    kind, split_words = VOCABULARY_KINDS[tokenizer.kind], TokenizationSteps(tokenizer).pretokens

    def read_texts() -> Iterator[str]:
        num_bytes = 0
        for document in read_documents(files, reading):
            num_bytes += len(document.text.encode("utf-8")) + 1
            if progress is not None:
                progress(num_bytes)
            yield document.text

    result, max_length = WordCounts(Counter()), max_word_length(tokenizer)
    for runs in count_runs(read_texts(), kind.split_runs):
        for run, count in runs.items():
            for pretoken in split_words(run):
                result.total += count
                if len(pretoken) > max_length:
                    result.too_long += count
                else:
                    result.counts[pretoken] += count
        if len(result.counts) > _MAX_DISTINCT_WORDS:
            frequent = Counter(dict(result.counts.most_common(_MAX_DISTINCT_WORDS // 2)))
            result.num_evicted += result.counts.total() - frequent.total()
            result.counts = frequent
    return result


def propose_words(
    word_counts: WordCounts,
    tokenizer: Tokenizer,
    *,
    max_words: int = 1000,
    min_frequency: int = 5,
    min_pieces: int = 2,
    reference_counts: WordCounts | None = None,
) -> list[NewWord]:
    """Return the words of a corpus that save the most tokens if each gets an entry, the best first.

    A word saves count * (pieces - 1) tokens, which is its score. With a reference corpus, the score is

        count * (pieces - 1) * log2((count / total) / ((reference count + 1) / (reference total + 1))).

    The argument of the logarithm is the word's frequency ratio (`NewWord.commoner`). Ties are in alphabetical
    order.

    Args:
        word_counts: The words of the corpus. Those with a letter and without unknown pieces are considered.
        tokenizer: The tokenizer to extend.
        max_words: Maximum number of words to return.
        min_frequency: Minimum number of occurrences.
        min_pieces: Minimum number of tokens into which a word is split; at least 2 are required in any case.
        reference_counts: The words of a reference corpus, such as general text; words whose frequency ratio is not
            above 1 are excluded.
    """
    kind, splitter = VOCABULARY_KINDS[tokenizer.kind], TokenizationSteps(tokenizer)
    reference_token_counts = kind.candidate_tokens(reference_counts.counts if reference_counts else {})
    vocabulary = set(tokenizer.tokens)
    scored_words: list[tuple[float, NewWord]] = []
    for token, count in kind.candidate_tokens(word_counts.counts).items():
        if count < min_frequency or token in vocabulary:
            continue
        word = kind.to_word(token)
        if not any(map(str.isalpha, word)):
            continue
        pieces = splitter.tokens(token)
        if len(pieces) < max(2, min_pieces) or splitter.unk_token in pieces:
            continue
        num_saved = count * (len(pieces) - 1)
        frequency_ratio, weight = None, 1.0
        if reference_counts is not None:
            frequency = count / word_counts.total
            frequency_ratio = frequency * (reference_counts.total + 1) / (reference_token_counts[token] + 1)
            weight = math.log2(frequency_ratio)
        if weight > 0:
            new_word = NewWord(word, count, pieces, num_saved, frequency_ratio)
            scored_words.append((num_saved * weight, new_word))
    scored_words.sort(key=lambda item: (-item[0], item[1].word))

    # For nearly all words, pre-tokenizing the word again gives the word. Others could not become one token.
    def is_one_pretoken(word: str) -> bool:
        return splitter.pretokens(kind.to_text(word)) == [kind.to_token(word)]

    best_words = (new for _, new in scored_words if is_one_pretoken(new.word))
    return list(itertools.islice(best_words, max_words))


def read_word_list(file: str | Path, tokenizer: Tokenizer) -> tuple[list[str], list[str]]:
    """Read a file with one word per line; blank lines are skipped.

    Returns:
        The words to add, and those that need no entry (one token already, or repeated), in the order of the file.

    Raises:
        InputError: A line cannot become one token: a special token, a piece (`##ing`), a word that is too long or
            that the tokenizer reads differently. The error names file and line.
    """
    split_words, vocabulary = TokenizationSteps(tokenizer).pretokens, set(tokenizer.tokens)
    new_words: dict[str, None] = {}  # an ordered set
    existing_words: list[str] = []
    for line_number, line in read_lines(file):
        word = line.strip()
        if not word:
            continue
        _check_word(word, tokenizer, split_words, f"{file}:{line_number}")
        if word in new_words or VOCABULARY_KINDS[tokenizer.kind].to_token(word) in vocabulary:
            existing_words.append(word)
        else:
            new_words[word] = None
    if not new_words:
        hint = "write one word per line"
        if existing_words:
            hint = f"each of its {pluralize(len(existing_words), 'word')} is one token already"
        raise InputError("no_new_words", "the file has no word to add", location=file, hint=hint)
    return list(new_words), existing_words


def _check_word(word: str, tokenizer: Tokenizer, split_words: Splitter, location: str) -> None:
    """Raise an `InputError` if a word cannot become one token.

    Args:
        word: The word as written.
        tokenizer: The tokenizer.
        split_words: Splits a text into the tokenizer's pretokens.
        location: The file and line that the error names.
    """
    kind, prefix = VOCABULARY_KINDS[tokenizer.kind], tokenizer.continuation_prefix
    if word in (tokenizer.tokens[i] for i in tokenizer.all_special_ids):
        message = f"'{word}' is a special token"
        raise InputError("word_is_special_token", message, location=location, hint="remove it from the list")
    if prefix and word.startswith(prefix):
        message = f"'{word}' is a piece that continues a word"
        raise InputError("word_is_continuation", message, location=location, hint="list complete words")
    if kind.candidate_token(kind.to_token(word)) != kind.to_token(word):
        message = f"a new Unigram token has letters and digits only, and '{word[:60]}' has other characters"
        hint = "list words of letters and digits only"
        raise InputError("word_has_other_characters", message, location=location, hint=hint)
    read_words = [kind.to_word(token) for token in split_words(kind.to_text(word))]
    if not read_words:
        message = f"the tokenizer removes all characters of {word!r}"
        hint = "remove it from the list"
        raise InputError("word_normalizes_to_nothing", message, location=location, hint=hint)
    if len(read_words) > 1:
        message = (
            f"the tokenizer splits '{word[:60]}' into {pluralize(len(read_words), 'word')}: "
            f"{' '.join(read_words[:8])[:60]}"
        )
        hint = "list single words: words that the tokenizer splits cannot become one token"
        raise InputError("several_words", message, location=location, hint=hint)
    if read_words[0] != word:
        message = f"the tokenizer reads '{word[:60]}' as '{read_words[0][:60]}'"
        hint = f"write '{read_words[0][:60]}'"
        raise InputError("word_not_normalized", message, location=location, hint=hint)
    if len(word) > (max_length := max_word_length(tokenizer)):
        message = f"the word has {len(word):,} characters; WordPiece reads at most {max_length}"
        raise InputError("word_too_long", message, location=location, hint="remove it from the list")


def add_words(tokenizer: Tokenizer, words: Sequence[str]) -> Tokenizer:
    """Return the tokenizer with words appended to its vocabulary, in their order; existing entries keep their ids.

    With byte-level BPE, the intermediate pieces from which a word is merged become entries before it.

    Raises:
        InputError: The vocabulary already has one of the words, or an added token outside of the vocabulary is
            itself a word.
    """
    kind, definition = VOCABULARY_KINDS[tokenizer.kind], json.loads(tokenizer.definition)
    vocabulary, tokens = set(tokenizer.tokens), [kind.to_token(word) for word in words]
    if duplicates := [
        word for word, count in Counter(words).items() if count > 1 or kind.to_token(word) in vocabulary
    ]:
        message = f"'{duplicates[0]}' is repeated, or the vocabulary already has it"
        raise InputError("word_not_new", message, hint="name new words")
    model = definition["model"]
    # Added tokens that the model lacks have ids after its vocabulary, so appended words would shift them. They are
    # moved into the vocabulary, in which a token that is also a pretoken would be a piece of words.
    model_tokens = dict(model["vocab"])
    added_token_ids = {token: i for i, token in enumerate(tokenizer.tokens) if token not in model_tokens}
    split_words = TokenizationSteps(tokenizer).pretokens
    if added_words := [token for token in added_token_ids if split_words(token) == [token]]:
        message = f"the added token '{added_words[0]}' is not in the vocabulary, so no word can follow it"
        hint = "make it an entry of the vocabulary, or remove it"
        raise InputError("added_token_is_word", message, hint=hint)
    if tokenizer.kind == "unigram":
        # The log probability 0, the highest one, is that of SentencePiece's user-defined symbols: the model does
        # not split them.
        model["vocab"].extend([token, 0.0] for token in added_token_ids)
    else:
        model["vocab"].update(added_token_ids)
    kind.add_tokens(model, tokens, tokenizer.vocab_size)
    # Write and load the tokenizer like any other, so that the same checks apply.
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tokenizer.save(folder)
        atomic.write_text(folder / "tokenizer.json", json.dumps(definition, ensure_ascii=False))
        if (model_file := folder / "spiece.model").exists():
            # In a spiece.model, added tokens would become ordinary pieces: alone, it would define another
            # tokenizer than tokenizer.json does.
            if added_token_ids:
                model_file.unlink()
            else:
                atomic.write_bytes(
                    model_file, unigram.append_pieces(atomic.read_file(model_file), model["vocab"])
                )
        return Tokenizer.load(folder)


def piece_ids_of_new_tokens(old: Tokenizer, extended: Tokenizer) -> list[list[int]]:
    """Return for each new entry of an extended tokenizer the ids into which the old tokenizer splits it."""
    splitter = TokenizationSteps(old)
    return [splitter.ids(token) for token in extended.tokens[old.vocab_size :]]


def compare_tokenizations(
    word_counts: WordCounts, before: Tokenizer, after: Tokenizer, new_words: Sequence[str]
) -> dict[str, Any]:
    """Compare the tokens of a corpus before and after the extension of a vocabulary.

    Args:
        word_counts: The words of the corpus.
        before: The old tokenizer.
        after: The extended tokenizer.
        new_words: The new words, as written.

    Returns:
        `words`, the number of words of the corpus; `tokens_before` and `tokens_after`; `saved_share`, the ratio of
        tokens that are saved; `unknown_before` and `unknown_after`, occurrences of words with unknown pieces;
        `words_forgotten`, see `WordCounts.num_evicted`; and `other_words`, words that are not new but are split
        differently: the number of distinct ones and of occurrences, how many of the distinct ones have more tokens
        or become unknown, and the most frequent ones with both tokenizations.
    """
    splitter_before, splitter_after = TokenizationSteps(before), TokenizationSteps(after)
    kind, unk_token = VOCABULARY_KINDS[before.kind], splitter_before.unk_token
    new_tokens = {kind.to_token(word) for word in new_words}
    # Words that are too long are one unknown token, and words that were evicted count as one token.
    num_tokens_before = num_tokens_after = word_counts.too_long + word_counts.num_evicted
    unknown_before = unknown_after = word_counts.too_long
    changed: list[dict[str, Any]] = []
    for pretoken, count in word_counts.counts.items():
        tokens_before, tokens_after = splitter_before.tokens(pretoken), splitter_after.tokens(pretoken)
        num_tokens_before += count * len(tokens_before)
        num_tokens_after += count * len(tokens_after)
        unknown_before += count * (unk_token in tokens_before)
        unknown_after += count * (unk_token in tokens_after)
        if tokens_before != tokens_after and kind.candidate_token(pretoken) not in new_tokens:
            word = kind.to_word(pretoken)
            changed.append({"word": word, "times": count, "before": tokens_before, "after": tokens_after})
    changed.sort(key=lambda row: (-row["times"], row["word"]))
    return {
        "words": word_counts.total,
        "tokens_before": num_tokens_before,
        "tokens_after": num_tokens_after,
        "saved_share": round(1 - num_tokens_after / max(1, num_tokens_before), 6),
        "unknown_before": unknown_before,
        "unknown_after": unknown_after,
        "words_forgotten": word_counts.num_evicted,
        "other_words": {
            "distinct": len(changed),
            "times": sum(row["times"] for row in changed),
            "longer": sum(len(row["after"]) > len(row["before"]) for row in changed),
            "become_unknown": sum(
                unk_token in row["after"] and unk_token not in row["before"] for row in changed
            ),
            "examples": changed[:_MAX_EXAMPLES],
        },
    }


def measure_word_list(words: Sequence[str], counts: Mapping[str, int], tokenizer: Tokenizer) -> list[NewWord]:
    """Return the words of a list with the number of tokens that an entry for each saves in a corpus.

    Args:
        words: The words as written.
        counts: Number of occurrences of each pretoken of the corpus; empty without a corpus.
        tokenizer: The tokenizer to extend.
    """
    kind, splitter = VOCABULARY_KINDS[tokenizer.kind], TokenizationSteps(tokenizer)
    token_counts = kind.candidate_tokens(counts)
    new_words = []
    for word in words:
        token = kind.to_token(word)
        pieces, count = splitter.tokens(token), token_counts[token]
        new_words.append(NewWord(word, count, pieces, count * (len(pieces) - 1)))
    return new_words


def to_dicts(words: Sequence[NewWord]) -> list[dict[str, Any]]:
    """Return the words for a report, without fields that are None."""
    return [{key: value for key, value in asdict(word).items() if value is not None} for word in words]
