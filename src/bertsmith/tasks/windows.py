"""Windows: a text too long for the model becomes overlapping sequences, none of its tokens left out.

Each window is `[CLS] part [SEP]`, or `[CLS] first text [SEP] part [SEP]` with what stands around the part repeated
in every one (Devlin et al. 2019, section 4.2, and the release's run_squad.py). A task encodes without truncation
(`tokenizer.encode_many(…, max_length=UNCUT)`) and hands each encoding to `windows`: `tag` cuts source 0, its one
text; `answer` cuts source 1, the passage behind the question, with `others` as the release's max_query_length and
`stride` as its doc_stride, and finds a row's place in the passage by the window's `offsets`. `deciding` says which
window has the last word on a token: `tag` reads each word there, `answer` may begin an answer only there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bertsmith.errors import InputError, option
from bertsmith.tasks.items import Encoded
from bertsmith.tokenizer.tokenizer import Encoding

UNCUT = 10**9  # a max_length that no text reaches


@dataclass(frozen=True)
class Window:
    """A sequence that holds `size` tokens of a text, from its token `first` on, in rows [row, row + size).

    encoded: with offsets and sources; its tokens are its own, not the whole text's, since the other windows hold
    the rest: only what `others` took from the other text counts as cut.
    """

    encoded: Encoded
    row: int
    first: int
    size: int


def windows(
    encoding: Encoding,
    limit: int,
    *,
    source: int = 0,
    stride: int | None = None,
    others: int | None = None,
    place: str = "",
) -> list[Window]:
    """The windows of at most `limit` tokens, special ones included, over the text `source` of an uncut encoding.

    stride: tokens that a window starts behind the one before, at most what a window holds (None: half of that);
    others: tokens kept of the other text (None: all). A text that fits has one window, and so has an empty one.
    InputError with the location `place` where no token of the text would fit beside the rest.
    """
    sources = np.array([-1 if s is None else s for s in encoding.sequence_ids], dtype=np.int8)
    own = np.flatnonzero(sources == source)
    begin, end = (int(own[0]), int(own[-1]) + 1) if len(own) else (len(sources), len(sources))
    around = np.ones(len(sources), dtype=np.bool_)
    around[begin:end] = False
    if others is not None:
        around[np.flatnonzero((sources >= 0) & (sources != source))[others:]] = False
    before, after = np.flatnonzero(around[:begin]), end + np.flatnonzero(around[end:])
    room = limit - len(before) - len(after)
    if room < min(1, len(own)):
        raise InputError(
            "other_text_too_long",
            f"the special tokens and the other text take {len(before) + len(after)} of {limit} tokens",
            location=place or None,
            argument="max_length",
            hint=f"raise {option('max_length')}, or shorten the other text",
        )
    whole = _Arrays(encoding, sources)
    step = max(1, min(room // 2 if stride is None else stride, room))
    found = []
    for first in range(0, max(1, len(own)), step):
        size = min(room, len(own) - first)
        rows = np.concatenate([before, begin + first + np.arange(size), after])
        lost = int((sources >= 0).sum()) - len(own) - int((sources[around] >= 0).sum())
        found.append(Window(whole.rows(rows, lost), len(before), first, size))
        if first + size == len(own):
            break
    return found


def part_of(encoding: Encoding, first: int, size: int, *, source: int = 0) -> Window:
    """The one window of an uncut encoding that holds the tokens [first, first + size) of the text `source`, and
    all of the other text; what of the text is outside counts as cut."""
    sources = np.array([-1 if s is None else s for s in encoding.sequence_ids], dtype=np.int8)
    own = np.flatnonzero(sources == source)
    rows = np.delete(np.arange(len(sources)), np.concatenate([own[:first], own[first + size :]]))
    begin = int(own[0]) if len(own) else len(sources)
    return Window(_Arrays(encoding, sources).rows(rows, len(sources) - len(rows)), begin, first, size)


def deciding(cut: Sequence[Window]) -> NDArray[np.int64]:
    """int64 [tokens of the text]: for each token the number of the window where it has the most context.

    The release's rule: the lesser of the tokens to its left and right, and a hundredth of the window's size; the
    earliest of equal ones.
    """
    tokens = max(window.first + window.size for window in cut)
    best = np.full(tokens, -1, dtype=np.int64)
    decides = np.zeros(tokens, dtype=np.int64)
    for number, window in enumerate(cut):
        left = np.arange(window.size)
        context = 100 * np.minimum(left, left[::-1]) + window.size  # in hundredths, to stay exact
        held = slice(window.first, window.first + window.size)
        better = context > best[held]
        best[held][better] = context[better]
        decides[held][better] = number
    return decides


class _Arrays:
    """An encoding's lists as arrays, made once for all its windows."""

    def __init__(self, encoding: Encoding, sources: NDArray[np.int8]) -> None:
        self._ids = np.array(encoding.ids, dtype=np.int32)
        self._segments = np.array(encoding.type_ids, dtype=np.uint8)
        self._offsets = np.array(encoding.offsets, dtype=np.int32).reshape(-1, 2)
        self._sources = sources

    def rows(self, rows: NDArray[np.int64], lost: int) -> Encoded:
        """A sequence of some of its rows."""
        sources = self._sources[rows]
        kept = int((sources >= 0).sum())
        return Encoded(self._ids[rows], self._segments[rows], kept + lost, kept, self._offsets[rows], sources)
