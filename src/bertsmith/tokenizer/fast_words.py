"""Each distinct word encoded once: the fast path of WordPiece for whole corpora.

BERT's normaliser looks at one character at a time and its word borders at blanks, punctuation and ideographs;
so a text may be cut there, and the ids of the whole are the ids of the runs in between. NumPy classifies the
bytes, Arrow numbers the runs, the library encodes each distinct run, and a gather lays the ids out. What is not
cut (other scripts' punctuation, say) only makes runs longer: the library reads them, so the ids are always its.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import chain, repeat

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from bertsmith.io.unicode_scripts import IDEOGRAPHS
from bertsmith.tokenizer.tokenizer import Tokenizer

Ints = NDArray[np.int64]

_BLANK, _ALONE, _RUN = 0, 1, 2
_BLANKS = b"\t\n\r "
_KEPT = 1 << 17  # distinct runs that are remembered, some 20 MB
_TOGETHER = 1000  # runs in one text for the library
_ALWAYS = 1 << 60
_ASCII_ALONE = [*range(33, 48), *range(58, 65), *range(91, 97), *range(123, 127)]
# Signs that stand among ideographs and in typeset text, all of Unicode's P classes and none decomposed.
_SIGNS = [
    *range(0x2010, 0x2028),
    *range(0x2030, 0x203A),
    *range(0x3001, 0x3004),
    *range(0x3008, 0x3012),
    *range(0x3014, 0x3020),
    *range(0xFF01, 0xFF04),
    *range(0xFF05, 0xFF0B),
    *range(0xFF0C, 0xFF10),
    0xFF1A,
    0xFF1B,
    0xFF1F,
    0xFF20,
]


def can_encode(tokenizer: Tokenizer) -> bool:
    """Whether a tokenizer cuts text by the rules above: WordPiece behind BERT's normaliser and word borders as
    the library has them, and no added token but special ones (others are looked for across word borders)."""
    whole = json.loads(tokenizer.definition)
    kinds = [(whole.get(part) or {}).get("type") for part in ("model", "normalizer", "pre_tokenizer")]
    return (
        kinds == ["WordPiece", "BertNormalizer", "BertPreTokenizer"]
        and bool(whole["normalizer"]["clean_text"])
        and all(token["special"] for token in whole.get("added_tokens", []))
    )


class WordEncoder:
    """Encodes many texts at once; remembers the runs it has seen. One thread at a time may use it."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        """For a tokenizer that `can_encode`."""
        self._pieces = tokenizer.pieces
        self._classes = _byte_classes()
        self._wide = _wide_marks(bool(json.loads(tokenizer.definition)["normalizer"]["handle_chinese_chars"]))
        self._mark = _mark(tokenizer)
        self._greedy = _Greedy(tokenizer)
        self._known: dict[bytes, int] = {}
        self._first = self._count = self._ids = self._uses = np.empty(0, dtype=np.int64)
        if self._mark is not None:  # known from the start, and never forgotten: it parts what is learnt
            sign, number = self._mark
            self._known = {sign.encode(): 0}
            self._first, self._count, self._ids = np.array([0]), np.array([1]), np.array([number])
            self._uses = np.array([_ALWAYS])

    def encode(self, texts: Sequence[str]) -> tuple[Ints, Ints]:
        """The ids of all texts end to end [N], and how many each has [len(texts)], as the library gives them."""
        whole = "\n".join(texts) + "\n"
        if whole.count("\n") > len(texts):  # a line end is a blank like others, but here it parts the texts
            whole = "\n".join(text.replace("\n", " ") for text in texts) + "\n"
        raw = whole.encode("utf-8")
        data = np.frombuffer(raw, dtype=np.uint8)
        kinds = self._classes.take(data)
        in_run = kinds == _RUN
        begins = kinds == _ALONE
        begins[0] |= in_run[0]
        begins[1:] |= in_run[1:] > in_run[:-1]
        self._cut_wide(data, in_run, begins)
        # Both without the blanks; deleting bytes is three times as quick as an index of bools.
        marks = begins.view(np.uint8) | (kinds == _BLANK).view(np.uint8) << 1
        dense = np.frombuffer(marks.tobytes().translate(None, b"\2"), dtype=np.uint8)
        letters = np.frombuffer(raw.translate(None, _BLANKS), dtype=np.uint8)
        first, lengths = self._looked_up(letters, np.flatnonzero(dense))
        ids = self._ids[_laid(first, lengths)]
        runs_before = np.cumsum(begins, dtype=np.int32)[data == 10]
        tokens_before = np.concatenate([[0], np.cumsum(lengths)])[runs_before]
        return ids, np.diff(tokens_before, prepend=0)

    def _cut_wide(
        self, data: NDArray[np.uint8], in_run: NDArray[np.bool_], begins: NDArray[np.bool_]
    ) -> None:
        """Let a run begin at, and behind, each ideograph and sign of three bytes."""
        leads = np.flatnonzero((data >= 0xE2) & (data <= 0xEF))
        if not len(leads):
            return
        points = (
            (data[leads].astype(np.int32) & 15) << 12
            | (data[leads + 1].astype(np.int32) & 63) << 6
            | (data[leads + 2].astype(np.int32) & 63)
        )
        leads = leads[self._wide[points]]
        begins[leads] = True
        behind = leads + 3
        begins[behind] |= in_run[behind]

    def _looked_up(self, data: NDArray[np.uint8], starts: Ints) -> tuple[Ints, Ints]:
        """For each run where its ids begin in `_ids`, and how many they are."""
        offsets = np.append(starts, len(data)).astype(np.int32)
        runs = pa.Array.from_buffers(
            pa.binary(), len(starts), [None, pa.py_buffer(offsets), pa.py_buffer(data)]
        ).dictionary_encode()
        distinct: list[bytes] = runs.dictionary.to_pylist()
        if len(self._known) + len(distinct) > _KEPT:
            self._forget()
        number = np.fromiter(map(self._known.get, distinct, repeat(-1)), dtype=np.int32, count=len(distinct))
        new = np.flatnonzero(number < 0)
        if len(new):
            unknown = [distinct[i] for i in new.tolist()]
            self._learn(unknown)
            number[new] = [self._known[run] for run in unknown]
        number = number[runs.indices.to_numpy()]
        self._uses += np.bincount(number, minlength=len(self._uses))
        return self._first[number], self._count[number]

    def _learn(self, runs: list[bytes]) -> None:
        plain = [run for run in runs if run.isalnum()]  # of bytes: ASCII letters and digits
        others = [run for run in runs if not run.isalnum()]
        found = list(map(self._greedy.pieces, plain))
        ids, count = self._encoded([run.decode("utf-8") for run in others])
        ids = np.concatenate([_flat(found), ids])
        count = np.concatenate([_lengths(found), count])
        runs = plain + others
        self._known.update(zip(runs, range(len(self._known), len(self._known) + len(runs)), strict=True))
        self._first = np.concatenate([self._first, len(self._ids) + np.cumsum(count) - count])
        self._count = np.concatenate([self._count, count])
        self._uses = np.concatenate([self._uses, np.zeros(len(runs), dtype=np.int64)])
        self._ids = np.concatenate([self._ids, ids])

    def _encoded(self, runs: list[str]) -> tuple[Ints, Ints]:
        """The ids of all runs end to end, and how many each has, by the library."""
        # One call a text costs it more than the few letters of a run: many runs go in one text, with a mark of
        # one known id between them, at which a text may be cut. A run is that mark, or does not hold it.
        if self._mark is None:
            found = self._pieces(runs)
            return _flat(found), _lengths(found)
        mark, mark_id = self._mark
        texts = [mark.join(runs[at : at + _TOGETHER]) + mark for at in range(0, len(runs), _TOGETHER)]
        ids = _flat(self._pieces(texts))
        marks = ids == mark_id
        count = np.diff(np.flatnonzero(marks), prepend=-1) - 1
        return ids[~marks], count

    def _forget(self) -> None:
        """Keep the half of the runs that was used most; what is forgotten is learnt again when it comes."""
        best = np.sort(np.argsort(-self._uses, kind="stable")[: _KEPT // 2])
        runs = list(self._known)  # in the order of their numbers
        self._known = {runs[number]: i for i, number in enumerate(best.tolist())}
        self._ids = self._ids[_laid(self._first[best], self._count[best])]
        self._count = self._count[best]
        self._first = np.cumsum(self._count) - self._count
        self._uses = self._uses[best] // 2  # so that a new subject has its turn
        if self._mark is not None:
            self._uses[0] = _ALWAYS


class _Greedy:
    """WordPiece on ASCII letters and digits, where the normaliser only lower-cases: the longest piece first,
    `[UNK]` for what cannot be parted (Wu et al. 2016, section 4.1). A third of its time, its ids."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        model = json.loads(tokenizer.definition)["model"]
        prefix = model["continuing_subword_prefix"]
        self._first: dict[str, int] = model["vocab"]
        self._next = {
            token.removeprefix(prefix): i for token, i in self._first.items() if token.startswith(prefix)
        }
        self._longest = int(model["max_input_chars_per_word"])
        self._unknown = [tokenizer.unk_id]
        self._lower = tokenizer.lowercase

    def pieces(self, run: bytes) -> list[int]:
        word = run.decode("ascii")
        if self._lower:
            word = word.lower()
        whole = self._first.get(word)
        if len(word) > self._longest:
            return self._unknown
        if whole is not None:
            return [whole]
        found: list[int] = []
        start, known = 0, self._first
        while start < len(word):
            end = len(word)
            while (piece := known.get(word[start:end])) is None:
                end -= 1
                if end == start:
                    return self._unknown
            found.append(piece)
            start, known = end, self._next
        return found


def _mark(tokenizer: Tokenizer) -> tuple[str, int] | None:
    """A sign that the vocabulary knows and that no other character is normalised to; none in odd vocabularies."""
    signs = "!,.()"
    for sign, ids in zip(signs, tokenizer.pieces(list(signs)), strict=True):
        if len(ids) == 1 and ids[0] != tokenizer.unk_id:
            return sign, ids[0]
    return None


def _lengths(lists: list[list[int]]) -> Ints:
    return np.fromiter(map(len, lists), dtype=np.int64, count=len(lists))


def _flat(lists: list[list[int]]) -> Ints:
    return np.fromiter(chain.from_iterable(lists), dtype=np.int64, count=sum(map(len, lists)))


def _laid(first: Ints, lengths: Ints) -> Ints:
    """[f, f + 1, …, f + n - 1] for each first f and length n, end to end."""
    ends = np.cumsum(lengths)
    total = int(ends[-1]) if len(ends) else 0
    laid: Ints = np.repeat(first - (ends - lengths), lengths) + np.arange(total)
    return laid


def _byte_classes() -> NDArray[np.uint8]:
    classes = np.full(256, _RUN, dtype=np.uint8)
    classes[list(_BLANKS)] = _BLANK
    classes[_ASCII_ALONE] = _ALONE
    return classes


def _wide_marks(ideographs: bool) -> NDArray[np.bool_]:
    """bool [65536]: the characters of three bytes that are a word of their own."""
    marks = np.zeros(1 << 16, dtype=np.bool_)
    marks[_SIGNS] = True
    for part in IDEOGRAPHS if ideographs else ():
        marks[part.start : part.stop] = True  # beyond three bytes there is nothing to mark
    return marks
