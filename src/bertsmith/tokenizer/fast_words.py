"""Encode a corpus with WordPiece by encoding each distinct word once.

BERT's normalizer treats each character alone, and its pre-tokenizer splits at whitespace, punctuation, and
ideographs. A text can therefore be split there into runs (of bytes between such characters, or one such
character), and its ids are the concatenated ids of its runs. NumPy classifies the bytes and finds the runs, Arrow
finds the distinct ones, the backend (the tokenizers library) encodes those that are not in the cache, and a gather
produces the ids of the texts. Splits that are missed, for example at the punctuation of other scripts, only make
runs longer; the backend splits them, so the ids always equal the backend's.

Shapes: R runs in all texts, N ids.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from itertools import chain, repeat

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from bertsmith.io.unicode_scripts import IDEOGRAPHS
from bertsmith.tokenizer.tokenizer import Tokenizer

IntArray = NDArray[np.int64]

# Classes of bytes: whitespace, ASCII punctuation (each character is a run), and all others, whose sequences are
# runs.
_BLANK, _PUNCTUATION, _OTHER = 0, 1, 2
_BLANKS = b"\t\n\r "
_MAX_CACHED_RUNS = 1 << 17  # some 20 MB
_RUNS_PER_TEXT = 1000  # number of runs that are joined to one text for the backend
_NEVER_EVICTED = 1 << 60  # a number of uses that no other run reaches
_ASCII_PUNCTUATION = [*range(33, 48), *range(58, 65), *range(91, 97), *range(123, 127)]
# Punctuation of three UTF-8 bytes that is common in Chinese and in typeset text: of Unicode's P categories,
# without characters that decompose.
_THREE_BYTE_PUNCTUATION = [
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


def text_encoder(tokenizer: Tokenizer) -> Callable[[Sequence[str]], tuple[IntArray, IntArray]]:
    """Return `WordEncoder.encode`, or a slower function that does the same for a tokenizer without one."""
    if can_encode(tokenizer):
        return WordEncoder(tokenizer).encode
    return lambda texts: concatenate(tokenizer.encode_ids(texts))


def can_encode(tokenizer: Tokenizer) -> bool:
    """Return True if `WordEncoder` supports a tokenizer.

    It must be WordPiece with the backend's BertNormalizer and BertPreTokenizer, and have a separator (see
    `_find_separator`). All its added tokens must be special, since the backend matches others across words.
    """
    definition = json.loads(tokenizer.definition)
    types = [(definition[part] or {}).get("type") for part in ("model", "normalizer", "pre_tokenizer")]
    return (
        types == ["WordPiece", "BertNormalizer", "BertPreTokenizer"]
        and bool(definition["normalizer"]["clean_text"])
        and all(token["special"] for token in definition["added_tokens"])
        and _find_separator(tokenizer) is not None
    )


class WordEncoder:
    """Encode many texts at once, with a cache of the ids of runs. It is not thread-safe."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        """Create the encoder for a tokenizer that passes `can_encode`."""
        self._encode_with_backend = tokenizer.encode_ids
        self._byte_classes = _byte_classes()
        normalizer = json.loads(tokenizer.definition)["normalizer"]
        self._is_three_byte_run = _three_byte_runs(normalizer["handle_chinese_chars"])
        separator = _find_separator(tokenizer)
        assert separator is not None
        self._separator, self._separator_id = separator
        # The separator of the runs that `_encode_runs` encodes together is always in the cache, so that it is
        # never one of these runs.
        self._run_index = {self._separator.encode(): 0}
        # For each cached run: the start of its ids in `_ids`, their number, and how often the run was used.
        self._starts, self._lengths, self._ids = np.array([0]), np.array([1]), np.array([self._separator_id])
        self._uses = np.array([_NEVER_EVICTED])

    def encode(self, texts: Sequence[str]) -> tuple[IntArray, IntArray]:
        """Encode texts without special tokens or truncation.

        Returns:
            The ids of all texts, concatenated, int64 [N], and the number of ids of each text, int64 [len(texts)].
        """
        # A line end ends each text. Line ends within texts are only whitespace, so a space replaces them.
        joined = "\n".join(texts) + "\n"
        if joined.count("\n") > len(texts):
            joined = "\n".join(text.replace("\n", " ") for text in texts) + "\n"
        raw = joined.encode("utf-8")
        data = np.frombuffer(raw, dtype=np.uint8)
        classes = self._byte_classes.take(data)
        is_other = classes == _OTHER
        is_start = classes == _PUNCTUATION
        is_start[0] |= is_other[0]
        is_start[1:] |= is_other[1:] > is_other[:-1]
        self._split_three_byte_runs(data, is_other, is_start)
        # Remove the blanks from the data and from `is_start`. Deleting bytes from a bytes object is three times as
        # fast as indexing with booleans, so bit 1 marks the blanks, where bit 0 is never set.
        flags = is_start.view(np.uint8) | (classes == _BLANK).view(np.uint8) << 1
        dense_starts = np.frombuffer(flags.tobytes().translate(None, b"\2"), dtype=np.uint8)
        dense_data = np.frombuffer(raw.translate(None, _BLANKS), dtype=np.uint8)
        id_starts, id_counts = self._look_up(dense_data, np.flatnonzero(dense_starts))
        ids = self._ids[_ranges(id_starts, id_counts)]
        runs_before_end = np.cumsum(is_start, dtype=np.int32)[data == ord("\n")]
        ids_before_end = np.concatenate([[0], np.cumsum(id_counts)])[runs_before_end]
        return ids, np.diff(ids_before_end, prepend=0)

    def _split_three_byte_runs(
        self, data: NDArray[np.uint8], is_other: NDArray[np.bool_], is_start: NDArray[np.bool_]
    ) -> None:
        """Start a run at and after each ideograph and punctuation character of three bytes, in place."""
        # In UTF-8 the bytes 1110xxxx 10xxxxxx 10xxxxxx are a character. E0 and E1 start none of these characters.
        leads = np.flatnonzero((data >= 0xE2) & (data <= 0xEF))
        if not len(leads):
            return
        code_points = (
            (data[leads].astype(np.int32) & 15) << 12
            | (data[leads + 1].astype(np.int32) & 63) << 6
            | (data[leads + 2].astype(np.int32) & 63)
        )
        leads = leads[self._is_three_byte_run[code_points]]
        is_start[leads] = True
        ends = leads + 3
        is_start[ends] |= is_other[ends]

    def _look_up(self, data: NDArray[np.uint8], starts: IntArray) -> tuple[IntArray, IntArray]:
        """Return for each run the start of its ids in `_ids` and their number, [R] each.

        Args:
            data: The bytes of all runs.
            starts: The start of each run in `data`, [R].
        """
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
        """Encode runs and add them to the cache."""
        ids, lengths = self._encode_runs([run.decode("utf-8") for run in runs])
        first_index = len(self._run_index)
        self._run_index.update(zip(runs, range(first_index, first_index + len(runs)), strict=True))
        self._starts = np.concatenate([self._starts, len(self._ids) + np.cumsum(lengths) - lengths])
        self._lengths = np.concatenate([self._lengths, lengths])
        self._uses = np.concatenate([self._uses, np.zeros(len(runs), dtype=np.int64)])
        self._ids = np.concatenate([self._ids, ids])

    def _encode_runs(self, runs: list[str]) -> tuple[IntArray, IntArray]:
        """Return the backend's ids of all runs, concatenated, and the number of ids of each run."""
        # A text costs the backend more than the few letters of a run. Many runs are therefore joined to one text,
        # with a separator after each, which has one known id. No run contains it: as punctuation it is a run by
        # itself, which is always in the cache.
        texts = [
            self._separator.join([*runs[start : start + _RUNS_PER_TEXT], ""])
            for start in range(0, len(runs), _RUNS_PER_TEXT)
        ]
        ids, _ = concatenate(self._encode_with_backend(texts))
        is_separator = ids == self._separator_id
        lengths = np.diff(np.flatnonzero(is_separator), prepend=-1) - 1
        return ids[~is_separator], lengths

    def _evict(self) -> None:
        """Keep the runs with the most uses, half as many as fit; others are encoded again when they recur."""
        best = np.sort(np.argsort(-self._uses, kind="stable")[: _MAX_CACHED_RUNS // 2])
        runs = list(self._run_index)  # in the order of their indices
        self._run_index = {runs[old]: new for new, old in enumerate(best.tolist())}
        self._ids = self._ids[_ranges(self._starts[best], self._lengths[best])]
        self._lengths = self._lengths[best]
        self._starts = np.cumsum(self._lengths) - self._lengths
        self._uses = self._uses[best] // 2  # Recent uses count more, so that new words can displace old ones.
        self._uses[0] = _NEVER_EVICTED


def _find_separator(tokenizer: Tokenizer) -> tuple[str, int] | None:
    """Return an ASCII punctuation character of the vocabulary with its id; None if there is none.

    The normalizer must map no other character to it.
    """
    candidates = "!,.()"
    for character, ids in zip(candidates, tokenizer.encode_ids(list(candidates)), strict=True):
        if len(ids) == 1 and ids[0] != tokenizer.unk_token_id:
            return character, ids[0]
    return None


def concatenate(lists: Sequence[Sequence[int]]) -> tuple[IntArray, IntArray]:
    """Return the concatenated ids of some texts, and the number of ids of each."""
    lengths = np.fromiter(map(len, lists), dtype=np.int64, count=len(lists))
    return np.fromiter(chain.from_iterable(lists), dtype=np.int64, count=int(lengths.sum())), lengths


def _ranges(starts: IntArray, lengths: IntArray) -> IntArray:
    """Return [s, s + 1, …, s + n - 1] for each start s and length n, concatenated."""
    shifts = np.repeat(starts - (np.cumsum(lengths) - lengths), lengths)
    ranges: IntArray = shifts + np.arange(len(shifts))
    return ranges


def _byte_classes() -> NDArray[np.uint8]:
    """Return the class of each byte, [256]."""
    classes = np.full(256, _OTHER, dtype=np.uint8)
    classes[list(_BLANKS)] = _BLANK
    classes[_ASCII_PUNCTUATION] = _PUNCTUATION
    return classes


def _three_byte_runs(ideographs: bool) -> NDArray[np.bool_]:
    """Mark the characters of three UTF-8 bytes that are runs by themselves, bool [65536] by code point."""
    is_run = np.zeros(1 << 16, dtype=np.bool_)
    is_run[_THREE_BYTE_PUNCTUATION] = True
    for block in IDEOGRAPHS if ideographs else ():
        is_run[block.start : block.stop] = True  # Blocks beyond U+FFFF are empty slices.
    return is_run
