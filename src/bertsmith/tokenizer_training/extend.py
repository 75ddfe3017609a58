"""Words of a corpus that a vocabulary breaks: proposed by what they save, added, and weighed again.

New words are appended to the vocabulary, so existing ids do not change; `added_words.py` has the rules for each kind
of vocabulary. A new word may also begin longer ones ("cardio" in "cardiogram"), which are then split differently. The
report counts and shows the other words of the corpus that change; with WordPiece such changes can be ruled out.
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
from bertsmith.formatting import counted
from bertsmith.io import atomic
from bertsmith.io.files import Reading, read_documents, read_lines
from bertsmith.tokenizer import unigram
from bertsmith.tokenizer.tokenizer import Tokenizer
from bertsmith.tokenizer_training.added_words import KINDS, VocabularyKind

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
        self._kind = KINDS[tokenizer.kind]
        self._waiting: Counter[str] = Counter()
        self._characters = 0
        self._words = WordCounts(Counter())

    def add(self, text: str) -> None:
        self._waiting.update(self._kind.runs(text))
        self._characters += len(text)
        if self._characters > _WAITING_CHARACTERS or len(self._waiting) > _WAITING:
            self._settle()

    def done(self) -> WordCounts:
        self._settle()
        return self._words

    def _settle(self) -> None:
        words, longest = self._words, self._kind.longest
        for run, count in self._waiting.items():
            for word in words_of(self._library, run):
                words.total += count
                if longest is not None and len(word) > longest:
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
    another word of the corpus is cut; `InputError` for a kind of which that cannot be told. Equal words go by the
    alphabet.
    """
    kind, cut = KINDS[tokenizer.kind], _Cutter(tokenizer)
    if keep_others and not kind.keeps_others:
        raise InputError(
            "--keep-others: which other words a new one changes can be told only with WordPiece",
            "leave it out: the report shows the words that change",
        )
    here = kind.candidates(words.counts)
    there = None if against is None else kind.candidates(against.counts)
    known, unknown = set(tokenizer.tokens), _unknown(tokenizer)
    ranked: list[tuple[float, NewWord]] = []
    for token, count in here.items():
        if count < min_frequency or token in known or not any(map(str.isalpha, word := kind.word(token))):
            continue
        pieces = cut(token)
        if len(pieces) < max(2, min_pieces) or unknown in pieces:
            continue
        saved = count * (len(pieces) - 1)
        commoner = None
        if against is not None and there is not None:
            commoner = count / max(1, words.total) * (against.total + 1) / (there[token] + 1)
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
        # Read twice it is the same, as nearly all words are.
        stays = words_of(library, kind.text(new.word)) == [kind.token(new.word)]
        if stays and not (keep_others and _changes_others(new.word, ordered, cut)):
            best.append(new)
    return best


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
        self._tokens = tokenizer.tokens

    def __call__(self, word: str) -> list[str]:
        return [self._tokens[number] for number in self.ids(word)]

    def ids(self, word: str) -> list[int]:
        return [piece.id for piece in self._model.tokenize(word)]


def read_word_list(file: str | Path, tokenizer: Tokenizer) -> tuple[list[str], list[str]]:
    """The words of a file, one a line, in its order: those to add, and those that need none (one token already,
    or named before). Blank lines are skipped.

    Raises `InputError` with file:line for what cannot be one word: a special token, a piece (`##ing`), what is too
    long for the kind, and what the tokenizer would read otherwise (it says how).
    """
    library = tokenizers.Tokenizer.from_str(tokenizer.definition)
    kind, cut, known = KINDS[tokenizer.kind], _Cutter(tokenizer), set(tokenizer.tokens)
    special = {tokenizer.tokens[i] for i in tokenizer.special_ids}
    unknown = _unknown(tokenizer)
    words: dict[str, None] = {}
    needless: list[str] = []
    for number, line in read_lines(file):
        word, place = line.strip(), f"{file}:{number}"
        if not word:
            continue
        _check_word(word, kind, library, special, tokenizer.prefix, place)
        token = kind.token(word)
        pieces = cut(token)
        if word in words or token in known or (len(pieces) == 1 and pieces[0] != unknown):
            needless.append(word)
        else:
            words[word] = None
    if not words:
        raise InputError(
            f"{file}: there is no word to add in this file",
            f"each of its {counted(len(needless), 'word')} is one token already"
            if needless
            else "write one word per line",
        )
    return list(words), needless


def _unknown(tokenizer: Tokenizer) -> str | None:
    """The token of what has no pieces; None where everything has some."""
    return None if tokenizer.kind == "byte_level_bpe" else tokenizer.tokens[tokenizer.unk_id]


def _check_word(
    word: str,
    kind: VocabularyKind,
    library: tokenizers.Tokenizer,
    special: set[str],
    prefix: str,
    place: str,
) -> None:
    if word in special:
        raise InputError(f"{place}: '{word}' is a special token", "leave it out")
    if prefix and word.startswith(prefix):
        raise InputError(f"{place}: '{word}' is a piece that continues a word", "name whole words")
    if kind.core(kind.token(word)) != kind.token(word):
        raise InputError(
            f"{place}: '{word[:60]}' holds more than letters and digits, which this vocabulary does not join",
            "name words of letters and digits alone",
        )
    read = [kind.word(token) for token in words_of(library, kind.text(word))]
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
    if kind.longest is not None and len(word) > kind.longest:
        raise InputError(
            f"{place}: a word of {counted(len(word), 'character')}; WordPiece reads {kind.longest} at most",
            "leave it out",
        )


def with_words(tokenizer: Tokenizer, words: Sequence[str]) -> Tokenizer:
    """The tokenizer with some words as entries at the end of its vocabulary, in their order: ids V, V + 1, …;
    between them, with byte-level BPE, what they are joined from.

    Existing entries keep their ids. Raises `InputError` for words that the vocabulary already has, and for an
    added token outside of the vocabulary that is itself a word.
    """
    kind, definition = KINDS[tokenizer.kind], json.loads(tokenizer.definition)
    known, tokens = set(tokenizer.tokens), [kind.token(word) for word in words]
    if twice := [word for word, times in Counter(words).items() if times > 1 or kind.token(word) in known]:
        raise InputError(f"the vocabulary has '{twice[0]}' already, or it is named twice", "name new words")
    model = definition["model"]
    outside = _outside(tokenizer, definition)
    if tokenizer.kind == "unigram":
        model["vocab"].extend([token, 0.0] for token in outside)
    else:
        model["vocab"].update(outside)
    kind.grow(model, tokens, tokenizer.vocab_size)
    # Through the field's files, which is how any other tokenizer comes in: what is checked there is checked here.
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tokenizer.save(folder)
        atomic.write_text(folder / "tokenizer.json", json.dumps(definition, ensure_ascii=False))
        if (pieces := folder / "spiece.model").exists():
            if outside:  # what such tokens are to it is not known
                pieces.unlink()
            else:
                atomic.write_bytes(pieces, unigram.with_pieces(pieces.read_bytes(), model["vocab"]))
        return Tokenizer.load(folder)


def old_pieces(old: Tokenizer, grown: Tokenizer) -> list[list[int]]:
    """What each new entry of a grown tokenizer is to the old one: the ids of its pieces there."""
    cut = _Cutter(old)
    return [cut.ids(token) for token in grown.tokens[old.vocab_size :]]


def _outside(tokenizer: Tokenizer, definition: Mapping[str, Any]) -> dict[str, int]:
    """Added tokens behind the vocabulary. They must come into it, or the library numbers them anew behind the new
    words; that changes no text as long as they are nothing that a word begins with."""
    library = tokenizers.Tokenizer.from_str(tokenizer.definition)
    found = sorted((int(token["id"]), token["content"]) for token in definition["added_tokens"])
    inside = {entry if isinstance(entry, str) else entry[0] for entry in definition["model"]["vocab"]}
    outside = {token: i for i, token in found if token not in inside}
    if reached := [token for token in outside if words_of(library, token) == [token]]:
        raise InputError(
            f"the added token '{reached[0]}' is not in the vocabulary, so no word can be put after it",
            "make it an entry of the vocabulary, or remove it",
        )
    return outside


def effect(
    words: WordCounts, before: Tokenizer, after: Tokenizer, new_words: Sequence[str]
) -> dict[str, Any]:
    """What new words change in a corpus, counted word by word.

    `tokens_before` and `tokens_after`; `unknown_before` and `unknown_after`, occurrences of words; and
    `other_words`, not added themselves, that are cut in another way: how many distinct ones and occurrences, how
    many of those take more tokens than before or become unknown, and the most frequent with both cuts.
    """
    old, new, kind, unknown = _Cutter(before), _Cutter(after), KINDS[before.kind], _unknown(before)
    added = {kind.token(word) for word in new_words}
    tokens = [words.too_long + words.forgotten] * 2
    lost = [words.too_long] * 2
    changed: list[tuple[int, str, list[str], list[str]]] = []
    for word, count in words.counts.items():
        first, second = old(word), new(word)
        for i, pieces in enumerate((first, second)):
            tokens[i] += count * len(pieces)
            lost[i] += count * (unknown in pieces)
        if first != second and kind.core(word) not in added:
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
                {"word": kind.word(word), "times": count, "before": first, "after": second}
                for count, word, first, second in changed[:_EXAMPLES]
            ],
        },
    }


def of_list(listed: Sequence[str], counts: Mapping[str, int], tokenizer: Tokenizer) -> list[NewWord]:
    """The words of a list with what adding each saves in a corpus."""
    kind, cut = KINDS[tokenizer.kind], _Cutter(tokenizer)
    known = kind.candidates(Counter(counts))
    rows = []
    for word in listed:
        pieces, count = cut(kind.token(word)), known[kind.token(word)]
        rows.append(NewWord(word, count, pieces, count * (len(pieces) - 1)))
    return rows


def as_rows(words: Sequence[NewWord]) -> list[dict[str, Any]]:
    """The words as a report holds them."""
    return [{key: value for key, value in asdict(word).items() if value is not None} for word in words]
