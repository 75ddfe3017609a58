"""Encode each distinct word once: the fast path of WordPiece for whole corpora.

BERT's normalizer looks at one character at a time, and its pre-tokenizer at whitespace, punctuation, and
ideographs. A text may therefore be split there, and its ids are the concatenated ids of the runs between. NumPy
classifies the bytes, Arrow indexes the runs, the library encodes each distinct run, and a gather produces the
ids. A missed split (at other scripts' punctuation, for example) only makes runs longer: the library encodes them,
so the ids always equal the library's.
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

IntArray = NDArray[np.int64]

_BLANK, _ISOLATED, _RUN = 0, 1, 2  # classes of bytes
_BLANKS = b"\t\n\r "
_MAX_CACHED_RUNS = 1 << 17  # some 20 MB
_RUNS_PER_TEXT = 1000  # runs that the library encodes in one text
_NEVER_EVICTED = 1 << 60  # a number of uses
_ASCII_PUNCTUATION = [*range(33, 48), *range(58, 65), *range(91, 97), *range(123, 127)]
# Punctuation (Unicode's P classes, without decompositions) that is common between ideographs and in typeset text.
_WIDE_PUNCTUATION = [
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
    """Return True if a tokenizer splits text by BERT's rules, so that `WordEncoder` may encode for it.

    It must be WordPiece with the library's BERT normalizer and pre-tokenizer. All added tokens must be special;
    the library matches others across word boundaries.
    """
    definition = json.loads(tokenizer.definition)
    types = [(definition.get(part) or {}).get("type") for part in ("model", "normalizer", "pre_tokenizer")]
    return (
        types == ["WordPiece", "BertNormalizer", "BertPreTokenizer"]
        and bool(definition["normalizer"]["clean_text"])
        and all(token["special"] for token in definition.get("added_tokens", []))
    )


class WordEncoder:
    """Encode many texts at once with a cache of runs. Not thread-safe."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        """Create the encoder for a tokenizer that passes `can_encode`."""
        self._encode_with_library = tokenizer.encode_ids
        self._byte_classes = _byte_classes()
        chinese = bool(json.loads(tokenizer.definition)["normalizer"]["handle_chinese_chars"])
        self._is_wide_word = _wide_words(chinese)
        self._separator = _separator(tokenizer)
        self._ascii_encoder = _AsciiEncoder(tokenizer)
        self._run_index: dict[bytes, int] = {}
        # By run: the start of its ids in `_ids`, their number, and how often the run was used.
        self._starts = self._lengths = self._ids = self._uses = np.empty(0, dtype=np.int64)
        if (
            self._separator is not None
        ):  # always in the cache: it separates the runs that are encoded together
            character, token_id = self._separator
            self._run_index = {character.encode(): 0}
            self._starts, self._lengths, self._ids = np.array([0]), np.array([1]), np.array([token_id])
            self._uses = np.array([_NEVER_EVICTED])

    def encode(self, texts: Sequence[str]) -> tuple[IntArray, IntArray]:
        """Return the library's ids of all texts, concatenated [N], and the number of ids of each [len(texts)]."""
        joined = "\n".join(texts) + "\n"
        if joined.count("\n") > len(texts):  # Line ends are blanks; here they separate the texts.
            joined = "\n".join(text.replace("\n", " ") for text in texts) + "\n"
        raw = joined.encode("utf-8")
        data = np.frombuffer(raw, dtype=np.uint8)
        classes = self._byte_classes.take(data)
        in_run = classes == _RUN
        starts = classes == _ISOLATED
        starts[0] |= in_run[0]
        starts[1:] |= in_run[1:] > in_run[:-1]
        self._split_wide(data, in_run, starts)
        # Both without the blanks; deleting bytes is three times as fast as indexing with booleans.
        flags = starts.view(np.uint8) | (classes == _BLANK).view(np.uint8) << 1
        dense_starts = np.frombuffer(flags.tobytes().translate(None, b"\2"), dtype=np.uint8)
        dense_data = np.frombuffer(raw.translate(None, _BLANKS), dtype=np.uint8)
        first, lengths = self._look_up(dense_data, np.flatnonzero(dense_starts))
        ids = self._ids[_ranges(first, lengths)]
        num_runs = np.cumsum(starts, dtype=np.int32)[data == ord("\n")]
        num_ids = np.concatenate([[0], np.cumsum(lengths)])[num_runs]
        return ids, np.diff(num_ids, prepend=0)

    def _split_wide(
        self, data: NDArray[np.uint8], in_run: NDArray[np.bool_], starts: NDArray[np.bool_]
    ) -> None:
        """Start a run at and after each ideograph and punctuation character of three bytes, in place."""
        leads = np.flatnonzero((data >= 0xE2) & (data <= 0xEF))
        if not len(leads):
            return
        code_points = (
            (data[leads].astype(np.int32) & 15) << 12
            | (data[leads + 1].astype(np.int32) & 63) << 6
            | (data[leads + 2].astype(np.int32) & 63)
        )
        leads = leads[self._is_wide_word[code_points]]
        starts[leads] = True
        ends = leads + 3
        starts[ends] |= in_run[ends]

    def _look_up(self, data: NDArray[np.uint8], starts: IntArray) -> tuple[IntArray, IntArray]:
        """Return for each run the start of its ids in `_ids` and their number."""
        offsets = np.append(starts, len(data)).astype(np.int32)
        runs = pa.Array.from_buffers(
            pa.binary(), len(starts), [None, pa.py_buffer(offsets), pa.py_buffer(data)]
        ).dictionary_encode()
        distinct: list[bytes] = runs.dictionary.to_pylist()
        if len(self._run_index) + len(distinct) > _MAX_CACHED_RUNS:
            self._evict()
        index = np.fromiter(
            map(self._run_index.get, distinct, repeat(-1)), dtype=np.int32, count=len(distinct)
        )
        missing = np.flatnonzero(index < 0)
        if len(missing):
            new_runs = [distinct[i] for i in missing.tolist()]
            self._add(new_runs)
            index[missing] = [self._run_index[run] for run in new_runs]
        index = index[runs.indices.to_numpy()]
        self._uses += np.bincount(index, minlength=len(self._uses))
        return self._starts[index], self._lengths[index]

    def _add(self, runs: list[bytes]) -> None:
        alphanumeric = [run for run in runs if run.isalnum()]  # of bytes: ASCII letters and digits
        others = [run for run in runs if not run.isalnum()]
        id_lists = list(map(self._ascii_encoder.encode, alphanumeric))
        ids, lengths = self._encode_runs([run.decode("utf-8") for run in others])
        ids = np.concatenate([_concatenate(id_lists), ids])
        lengths = np.concatenate([_list_lengths(id_lists), lengths])
        runs = alphanumeric + others
        first_index = len(self._run_index)
        self._run_index.update(zip(runs, range(first_index, first_index + len(runs)), strict=True))
        self._starts = np.concatenate([self._starts, len(self._ids) + np.cumsum(lengths) - lengths])
        self._lengths = np.concatenate([self._lengths, lengths])
        self._uses = np.concatenate([self._uses, np.zeros(len(runs), dtype=np.int64)])
        self._ids = np.concatenate([self._ids, ids])

    def _encode_runs(self, runs: list[str]) -> tuple[IntArray, IntArray]:
        """Return the library's ids of all runs, concatenated, and the number of ids of each."""
        # A call costs the library more than the few letters of a run. One text therefore holds many runs, with a
        # separator between them that has one known id and at which a text may be split. A run either is that
        # separator or does not contain it.
        if self._separator is None:
            id_lists = self._encode_with_library(runs)
            return _concatenate(id_lists), _list_lengths(id_lists)
        separator, separator_id = self._separator
        texts = [
            separator.join(runs[start : start + _RUNS_PER_TEXT]) + separator
            for start in range(0, len(runs), _RUNS_PER_TEXT)
        ]
        ids = _concatenate(self._encode_with_library(texts))
        is_separator = ids == separator_id
        lengths = np.diff(np.flatnonzero(is_separator), prepend=-1) - 1
        return ids[~is_separator], lengths

    def _evict(self) -> None:
        """Keep the most used half of the cache; evicted runs are encoded again when they recur."""
        best = np.sort(np.argsort(-self._uses, kind="stable")[: _MAX_CACHED_RUNS // 2])
        runs = list(self._run_index)  # in the order of their indices
        self._run_index = {runs[old]: new for new, old in enumerate(best.tolist())}
        self._ids = self._ids[_ranges(self._starts[best], self._lengths[best])]
        self._lengths = self._lengths[best]
        self._starts = np.cumsum(self._lengths) - self._lengths
        self._uses = self._uses[best] // 2  # so that the words of a new subject can displace old ones
        if self._separator is not None:
            self._uses[0] = _NEVER_EVICTED


class _AsciiEncoder:
    """WordPiece on ASCII letters and digits, for which the normalizer only lower-cases.

    The longest matching piece first, `[UNK]` if no piece matches (Wu et al. 2016, section 4.1). The ids equal the
    library's, in a third of its time.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        model = json.loads(tokenizer.definition)["model"]
        prefix = model["continuing_subword_prefix"]
        self._vocabulary: dict[str, int] = model["vocab"]
        self._continuations = {
            token.removeprefix(prefix): i for token, i in self._vocabulary.items() if token.startswith(prefix)
        }
        self._max_length = int(model["max_input_chars_per_word"])
        self._unknown = [tokenizer.unk_token_id]
        self._lowercase = tokenizer.lowercase

    def encode(self, run: bytes) -> list[int]:
        word = run.decode("ascii")
        if self._lowercase:
            word = word.lower()
        word_id = self._vocabulary.get(word)
        if len(word) > self._max_length:
            return self._unknown
        if word_id is not None:
            return [word_id]
        ids: list[int] = []
        start, pieces = 0, self._vocabulary
        while start < len(word):
            end = len(word)
            while (piece_id := pieces.get(word[start:end])) is None:
                end -= 1
                if end == start:
                    return self._unknown
            ids.append(piece_id)
            start, pieces = end, self._continuations
        return ids


def _separator(tokenizer: Tokenizer) -> tuple[str, int] | None:
    """Return a punctuation character of the vocabulary with its id; None if there is none.

    The normalizer maps no other character to it.
    """
    candidates = "!,.()"
    for character, ids in zip(candidates, tokenizer.encode_ids(list(candidates)), strict=True):
        if len(ids) == 1 and ids[0] != tokenizer.unk_token_id:
            return character, ids[0]
    return None


def _list_lengths(lists: list[list[int]]) -> IntArray:
    return np.fromiter(map(len, lists), dtype=np.int64, count=len(lists))


def _concatenate(lists: list[list[int]]) -> IntArray:
    return np.fromiter(chain.from_iterable(lists), dtype=np.int64, count=sum(map(len, lists)))


def _ranges(starts: IntArray, lengths: IntArray) -> IntArray:
    """Return [s, s + 1, …, s + n - 1] for each start s and length n, concatenated."""
    ends = np.cumsum(lengths)
    total = int(ends[-1]) if len(ends) else 0
    ranges: IntArray = np.repeat(starts - (ends - lengths), lengths) + np.arange(total)
    return ranges


def _byte_classes() -> NDArray[np.uint8]:
    classes = np.full(256, _RUN, dtype=np.uint8)
    classes[list(_BLANKS)] = _BLANK
    classes[_ASCII_PUNCTUATION] = _ISOLATED
    return classes


def _wide_words(ideographs: bool) -> NDArray[np.bool_]:
    """Return bool [65536]: True for the three-byte characters that are words by themselves."""
    is_word = np.zeros(1 << 16, dtype=np.bool_)
    is_word[_WIDE_PUNCTUATION] = True
    for block in IDEOGRAPHS if ideographs else ():
        is_word[block.start : block.stop] = True  # slices beyond the end are empty
    return is_word
