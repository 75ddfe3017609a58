"""Words of a corpus that a WordPiece vocabulary breaks: proposed by what they save, added, and weighed again.

New words stand at the end of the vocabulary, so every id stays. WordPiece takes the longest entry that a word
begins with: a new word is one token wherever it stands, and it may also begin longer words ("cardio" in
"cardiogram"), which are then cut in another way. Texts with neither keep their ids. Which other words of the
corpus change is counted and shown; it can also be ruled out.
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

from bertsmith import disk
from bertsmith.errors import InputError
from bertsmith.files.files import Reading, read_documents, read_lines
from bertsmith.tokenizer.tokenizer import Tokenizer
from bertsmith.wording import counted

_LONGEST = 100  # characters of a word; longer ones are unknown to WordPiece whatever its vocabulary holds
_WAITING = 500_000  # distinct runs between blanks that wait to be normalised, or
_WAITING_CHARACTERS = 1 << 25
_DISTINCT = 2_000_000  # distinct words remembered, some 250 MB; then the rarest are forgotten
_EXAMPLES = 20


@dataclass(frozen=True)
class NewWord:
    """A word to add: how often it stands in the corpus (0 without one), its pieces so far, the tokens it saves,
    and how many times commoner it is than in the text it was compared with (None without one)."""

    word: str
    count: int
    pieces: list[str]
    saved: int
    commoner: float | None = None


@dataclass
class WordCounts:
    """Words as the tokenizer reads them, with how often each stands in some files.

    total: all words. too_long: those of more than 100 characters, unknown in any case. forgotten: occurrences of
    rare words that were dropped when two million distinct ones were remembered.
    """

    counts: Counter[str]
    total: int = 0
    too_long: int = 0
    forgotten: int = 0


def check_extendable(tokenizer: Tokenizer, place: str = "this tokenizer") -> None:
    """Refuse what no word can be added to soundly: an `InputError` for other kinds than WordPiece."""
    model = json.loads(tokenizer.definition)["model"]
    if (kind := model["type"]) == "WordPiece":
        return
    why = {
        "BPE": "a word is the end of a chain of merges, and new merges change how other words are split",
        "Unigram": "a piece's score weighs against all others', and one that was not trained is a guess",
    }.get(kind, "it is not known how")
    raise InputError(
        f"{place}: words cannot be added to a {kind} vocabulary: {why}",
        "extend takes WordPiece, BERT's kind; for others train on the corpus: bertsmith tokenizer train",
    )


def count_domain_words(
    files: Sequence[str | Path],
    tokenizer: Tokenizer,
    reading: Reading = Reading(),  # noqa: B008  # frozen
    progress: Callable[[int], None] | None = None,
) -> WordCounts:
    """How often each word stands in some files, by the tokenizer's own normaliser and word borders.

    Memory is bounded: see `WordCounts`. progress hears the bytes of text done so far.
    """
    found = _Counting(tokenizer)
    read = 0
    for document in read_documents(files, reading):
        found.add(document.text)
        read += len(document.text.encode("utf-8")) + 1
        if progress is not None:
            progress(read)
    return found.done()


class _Counting:
    """Runs between blanks are normalised once each, however often they stand: no rule looks across a blank."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._library = tokenizers.Tokenizer.from_str(tokenizer.definition)
        self._waiting: Counter[str] = Counter()
        self._characters = 0
        self._words = WordCounts(Counter())

    def add(self, text: str) -> None:
        self._waiting.update(text.replace("\n", " ").split(" "))
        self._characters += len(text)
        if self._characters > _WAITING_CHARACTERS or len(self._waiting) > _WAITING:
            self._settle()

    def done(self) -> WordCounts:
        self._settle()
        return self._words

    def _settle(self) -> None:
        words = self._words
        for run, count in self._waiting.items():
            for word in words_of(self._library, run):
                words.total += count
                if len(word) > _LONGEST:
                    words.too_long += count
                else:
                    words.counts[word] += count
        self._waiting.clear()
        self._characters = 0
        if len(words.counts) > _DISTINCT:
            kept = Counter(dict(words.counts.most_common(_DISTINCT // 2)))
            words.forgotten += words.counts.total() - kept.total()
            words.counts = kept


def words_of(library: tokenizers.Tokenizer, text: str) -> list[str]:
    """The words that a tokenizer of the library cuts a text into, as its model is given them."""
    normal = library.normalizer.normalize_str(text) if library.normalizer else text
    if library.pre_tokenizer is None:
        return [normal] if normal else []
    return [word for word, _ in library.pre_tokenizer.pre_tokenize_str(normal)]


def propose(
    words: WordCounts,
    tokenizer: Tokenizer,
    *,
    number: int = 1000,
    min_frequency: int = 5,
    min_pieces: int = 2,
    against: WordCounts | None = None,
    keep_others: bool = False,
) -> list[NewWord]:
    """The words of a corpus that are worth an entry each, the best first, at most `number`.

    Looked at are words with a letter that stand at least `min_frequency` times and are cut into `min_pieces` or
    more, all of them known. What a word saves is count · (pieces − 1). With `against`, the words of a text to
    compare with, that is weighed by log2 of how many times commoner the word is here (one added to its count
    there), and words that are not commoner are left out. keep_others: leave out a word that would change how
    another word of the corpus is cut. Equal words go by the alphabet.
    """
    cut = _Cutter(tokenizer)
    known = set(tokenizer.tokens)
    ranked: list[tuple[float, NewWord]] = []
    for word, count in words.counts.items():
        if count < min_frequency or word in known or not any(map(str.isalpha, word)):
            continue
        pieces = cut(word)
        if len(pieces) < max(2, min_pieces):
            continue
        saved = count * (len(pieces) - 1)
        commoner = None if against is None else _commoner(word, words, against)
        weight = 1.0 if commoner is None else math.log2(commoner)
        if weight > 0:
            ranked.append((saved * weight, NewWord(word, count, pieces, saved, commoner)))
    ranked.sort(key=lambda entry: (-entry[0], entry[1].word))
    library = tokenizers.Tokenizer.from_str(tokenizer.definition)
    ordered = sorted(words.counts) if keep_others else []
    best: list[NewWord] = []
    for _, new in ranked:
        if len(best) == number:
            break
        stays = words_of(library, new.word) == [
            new.word
        ]  # read twice it is the same, as nearly all words are
        if stays and not (keep_others and _changes_others(new.word, ordered, cut)):
            best.append(new)
    return best


def _commoner(word: str, here: WordCounts, there: WordCounts) -> float:
    share = here.counts[word] / max(1, here.total)
    return share * (there.total + 1) / (there.counts[word] + 1)


def _changes_others(word: str, ordered: Sequence[str], cut: _Cutter) -> bool:
    """Whether some longer word of the corpus (sorted) begins with this one, and now with a shorter piece."""
    at = bisect_right(ordered, word)
    while at < len(ordered) and ordered[at].startswith(word):
        if not cut(ordered[at])[0].startswith(word):
            return True
        at += 1
    return False


class _Cutter:
    """A word as the tokenizer's model cuts it, into tokens."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._model = tokenizers.Tokenizer.from_str(tokenizer.definition).model

    def __call__(self, word: str) -> list[str]:
        return [piece.value for piece in self._model.tokenize(word)]


def read_word_list(file: str | Path, tokenizer: Tokenizer) -> tuple[list[str], list[str]]:
    """The words of a file, one a line, in its order: those to add, and those that need none (one token already,
    or named before). Blank lines are skipped.

    Raises `InputError` with file:line for what cannot be one word: a special token, a piece (`##ing`), more than
    100 characters, and what the tokenizer would read otherwise (it says how).
    """
    library = tokenizers.Tokenizer.from_str(tokenizer.definition)
    cut, known = _Cutter(tokenizer), set(tokenizer.tokens)
    special = {tokenizer.tokens[i] for i in tokenizer.special_ids}
    unknown = tokenizer.tokens[tokenizer.unk_id]
    words: dict[str, None] = {}
    needless: list[str] = []
    for number, line in read_lines(file):
        word, place = line.strip(), f"{file}:{number}"
        if not word:
            continue
        _check_word(word, library, special, tokenizer.prefix, place)
        pieces = cut(word)
        if word in words or word in known or (len(pieces) == 1 and pieces[0] != unknown):
            needless.append(word)
        else:
            words[word] = None
    if not words:
        raise InputError(
            f"{file}: there is no word to add in this file",
            f"all {len(needless)} are one token already" if needless else "write one word per line",
        )
    return list(words), needless


def _check_word(word: str, library: tokenizers.Tokenizer, special: set[str], prefix: str, place: str) -> None:
    if word in special:
        raise InputError(f"{place}: '{word}' is a special token", "leave it out")
    if prefix and word.startswith(prefix):
        raise InputError(f"{place}: '{word}' is a piece that continues a word", "name whole words")
    read = words_of(library, word)
    if not read:
        raise InputError(f"{place}: nothing is left of {word!r} when the tokenizer reads it", "leave it out")
    if len(read) > 1:
        parts = " ".join(read[:8])
        raise InputError(
            f"{place}: '{word[:60]}' is {counted(len(read), 'word')} to the tokenizer: {parts[:60]}",
            "name single words: what is split before the vocabulary is used cannot become one token",
        )
    if read[0] != word:
        raise InputError(
            f"{place}: the tokenizer reads '{word[:60]}' as '{read[0][:60]}'", f"write '{read[0][:60]}'"
        )
    if len(word) > _LONGEST:
        raise InputError(
            f"{place}: a word of {counted(len(word), 'character')}; WordPiece reads {_LONGEST} at most",
            "leave it out",
        )


def with_words(tokenizer: Tokenizer, words: Sequence[str]) -> Tokenizer:
    """The tokenizer with some words as entries at the end of its vocabulary, in their order: ids V, V + 1, …

    All that went before keeps its id. Raises `InputError` for other kinds than WordPiece, for entries that stand
    there already, and for an added token that is a word and stands outside of the vocabulary.
    """
    check_extendable(tokenizer)
    definition = json.loads(tokenizer.definition)
    known = set(tokenizer.tokens)
    if twice := [word for word, times in Counter(words).items() if times > 1 or word in known]:
        raise InputError(f"the vocabulary has '{twice[0]}' already, or it is named twice", "name new words")
    size = tokenizer.vocab_size
    entries: dict[str, int] = definition["model"]["vocab"]
    entries.update(_outside(tokenizer, definition))
    entries.update({word: size + i for i, word in enumerate(words)})
    # Through the field's files, which is how any other tokenizer comes in: what is checked there is checked here.
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tokenizer.save(folder)
        disk.write_text(folder / "tokenizer.json", json.dumps(definition, ensure_ascii=False))
        return Tokenizer.load(folder)


def _outside(tokenizer: Tokenizer, definition: Mapping[str, Any]) -> dict[str, int]:
    """Added tokens behind the vocabulary. They must come into it, or the library numbers them anew behind the new
    words; that changes no text as long as they are nothing that a word begins with."""
    library = tokenizers.Tokenizer.from_str(tokenizer.definition)
    found = {token["content"]: int(token["id"]) for token in definition["added_tokens"]}
    outside = {token: i for token, i in found.items() if token not in definition["model"]["vocab"]}
    if reached := [token for token in outside if words_of(library, token) == [token]]:
        raise InputError(
            f"the added token '{reached[0]}' is not in the vocabulary, so no word can be put after it",
            "make it an entry of the vocabulary, or remove it",
        )
    return outside


def effect(words: WordCounts, before: Tokenizer, after: Tokenizer) -> dict[str, Any]:
    """What new entries change in a corpus, counted word by word.

    `tokens_before` and `tokens_after`; `unknown_before` and `unknown_after`, occurrences of words; and
    `other_words`, not added themselves, that are cut in another way: how many distinct ones and occurrences, how
    many of those take more tokens than before or become unknown, and the most frequent with both cuts.
    """
    old, new, added = _Cutter(before), _Cutter(after), set(after.tokens[before.vocab_size :])
    unknown = before.tokens[before.unk_id]
    tokens = [words.too_long + words.forgotten] * 2
    lost = [words.too_long] * 2
    changed: list[tuple[int, str, list[str], list[str]]] = []
    for word, count in words.counts.items():
        first, second = old(word), new(word)
        for i, pieces in enumerate((first, second)):
            tokens[i] += count * len(pieces)
            lost[i] += count * (unknown in pieces)
        if first != second and word not in added:
            changed.append((count, word, first, second))
    changed.sort(key=lambda entry: (-entry[0], entry[1]))
    longer = [entry for entry in changed if len(entry[3]) > len(entry[2])]
    newly = [entry for entry in changed if unknown in entry[3] and unknown not in entry[2]]
    return {
        "words": words.total,
        "tokens_before": tokens[0],
        "tokens_after": tokens[1],
        "saved_share": round(1 - tokens[1] / max(1, tokens[0]), 6),
        "unknown_before": lost[0],
        "unknown_after": lost[1],
        "words_forgotten": words.forgotten,
        "other_words": {
            "distinct": len(changed),
            "times": sum(entry[0] for entry in changed),
            "longer": len(longer),
            "become_unknown": len(newly),
            "examples": [
                {"word": word, "times": count, "before": first, "after": second}
                for count, word, first, second in changed[:_EXAMPLES]
            ],
        },
    }


def of_list(listed: Sequence[str], counts: Mapping[str, int], tokenizer: Tokenizer) -> list[NewWord]:
    """The words of a list with what adding each saves in a corpus."""
    cut = _Cutter(tokenizer)
    rows = []
    for word in listed:
        pieces, count = cut(word), counts.get(word, 0)
        rows.append(NewWord(word, count, pieces, count * (len(pieces) - 1)))
    return rows


def as_rows(words: Sequence[NewWord]) -> list[dict[str, Any]]:
    """The words as a report holds them."""
    return [{key: value for key, value in asdict(word).items() if value is not None} for word in words]
