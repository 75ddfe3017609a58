"""Texts too long for the model: their windows, and statistics of what the model does not read of texts.

A text becomes overlapping sequences that together hold all of its tokens. Each window is `[CLS] part [SEP]`, or
`[CLS] first text [SEP] part [SEP]` where the rest is repeated in each window (Devlin et al. 2019, section 4.2, and
run_squad.py of its release). Texts are encoded without truncation (`max_length=NO_LIMIT`), and each encoding is
split: `tag` splits source 0, its sentence; `answer` splits source 1, the passage after the question.
"""

from __future__ import annotations

import logging
import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bertsmith.corpus.checks.histogram import Histogram
from bertsmith.errors import InputError, option
from bertsmith.formatting import format_percent, pluralize
from bertsmith.tasks.batching import Item, TokenSequence
from bertsmith.tokenizer.text_check import TextCheck
from bertsmith.tokenizer.tokenizer import Encoding, Tokenizer

logger = logging.getLogger(__name__)

NO_LIMIT = 10**9
"""A `max_length` that no text reaches."""


@dataclass(frozen=True)
class Window:
    """A sequence with a part of a text.

    Attributes:
        sequence: The tokens, with offsets and sources. Its `tokens` exclude the part of the text in other windows,
            so that only truncation of the other text counts.
        sequence_start: The index in the sequence of the first token of the part.
        text_start: The index in the text of that token.
        size: The number of tokens of the part.
    """

    sequence: TokenSequence
    sequence_start: int
    text_start: int
    size: int


def split_windows(
    encoding: Encoding,
    limit: int,
    *,
    source: int = 0,
    stride: int | None = None,
    max_other_tokens: int | None = None,
    location: str = "",
) -> list[Window]:
    """Split one text of an encoding into windows; a text that fits, or an empty one, has one window.

    Args:
        encoding: The encoding, not truncated.
        limit: The largest number of tokens of a window, special tokens included.
        source: The index of the text to split.
        stride: The number of tokens between the starts of two windows, at most the tokens that a window holds (the
            release's doc_stride); None: half of these.
        max_other_tokens: The number of tokens of the other text that are read (the release's max_query_length);
            None: all.
        location: The location of the example, for the error.

    Raises:
        InputError: The rest leaves no token for the text.
    """
    full = TokenSequence.from_encoding(encoding, with_offsets=True)
    sources = np.asarray(full.sources)
    text_indices = np.flatnonzero(sources == source)
    begin, end = (
        (int(text_indices[0]), int(text_indices[-1]) + 1)
        if len(text_indices)
        else (len(sources), len(sources))
    )
    is_around = np.ones(len(sources), dtype=np.bool_)
    is_around[begin:end] = False
    if max_other_tokens is not None:
        is_around[np.flatnonzero((sources >= 0) & (sources != source))[max_other_tokens:]] = False
    before, after = np.flatnonzero(is_around[:begin]), end + np.flatnonzero(is_around[end:])
    max_size = limit - len(before) - len(after)
    if max_size < min(1, len(text_indices)):
        message = f"the special tokens and the other text take {len(before) + len(after)} of {limit} tokens"
        hint = f"raise {option('max_length')}, or shorten the other text"
        raise InputError(
            "other_text_too_long", message, location=location or None, argument="max_length", hint=hint
        )
    step = max(1, min(max_size // 2 if stride is None else stride, max_size))
    lost = int((sources >= 0).sum()) - len(text_indices) - int((sources[is_around] >= 0).sum())
    windows = []
    for start in range(0, max(1, len(text_indices)), step):
        size = min(max_size, len(text_indices) - start)
        indices = np.concatenate([before, begin + start + np.arange(size), after])
        windows.append(Window(_select(full, indices, lost), len(before), start, size))
        if start + size == len(text_indices):
            break
    return windows


def single_window(encoding: Encoding, start: int, size: int) -> Window:
    """Return the window with the tokens [start, start + size) of the first text and all of the second text.

    The rest of the first text counts as truncated.
    """
    full = TokenSequence.from_encoding(encoding, with_offsets=True)
    sources = np.asarray(full.sources)
    text_indices = np.flatnonzero(sources == 0)
    outside = np.concatenate([text_indices[:start], text_indices[start + size :]])
    indices = np.delete(np.arange(len(sources)), outside)
    begin = int(text_indices[0]) if len(text_indices) else len(sources)
    return Window(_select(full, indices, len(outside)), begin, start, size)


def best_windows(windows: Sequence[Window]) -> NDArray[np.int64]:
    """Return for each token of a text the index of the window where it has the most context, int64 [tokens].

    This is the rule of the release: the smaller number of tokens to its left and right, plus a hundredth of the
    window's size; the first of equal windows.
    """
    tokens = max(window.text_start + window.size for window in windows)
    best_context = np.full(tokens, -1, dtype=np.int64)
    best_window = np.zeros(tokens, dtype=np.int64)
    for index, window in enumerate(windows):
        distance = np.arange(window.size)
        context = 100 * np.minimum(distance, distance[::-1]) + window.size  # in hundredths, to stay exact
        part = slice(window.text_start, window.text_start + window.size)
        is_better = context > best_context[part]
        best_context[part][is_better] = context[is_better]
        best_window[part][is_better] = index
    return best_window


def _select(full: TokenSequence, indices: NDArray[np.int64], num_lost: int) -> TokenSequence:
    """Return the sequence of some tokens of an encoding, whose text has `num_lost` more tokens."""
    assert full.sources is not None
    assert full.offsets is not None
    sources = full.sources[indices]
    read = int((sources >= 0).sum())
    offsets = full.offsets[indices]
    return TokenSequence(full.ids[indices], full.segments[indices], read + num_lost, read, offsets, sources)


class Coverage(NamedTuple):
    """The part of one example that is read, in tokens (special tokens excluded) and annotations.

    Attributes:
        tokens: The number of tokens of its texts.
        tokens_read: The number of these in any window.
        annotations: The number of tags, answers, or relations with a position in the text.
        annotations_read: The number of these that the model can learn from the windows.
    """

    tokens: int
    tokens_read: int
    annotations: int = 0
    annotations_read: int = 0


def count_tokens(items: Sequence[Item]) -> Coverage:
    """Return how much of an example is read, from all of its items, which do not overlap."""
    sequences = [sequence for item in items for sequence in item.sequences]
    read = sum(sequence.tokens_read for sequence in sequences)
    return Coverage(sum(sequence.tokens for sequence in sequences), read)


class TextStats:
    """Statistics of texts as they stream by, and what a model does not read of them.

    Attributes:
        tokenizer: The tokenizer of the texts.
        limit: The largest number of tokens of a sequence, special tokens included.
        annotation_unit: The unit of annotations, such as "tag"; "" if labels concern the whole text.
        hint: The end of the message on truncated texts.
        special: The number of special tokens in the first sequence.
        total: The coverage of all examples.
        num_truncated: The number of examples with tokens that are not read.
        longest: The number of tokens of the longest example.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        limit: int,
        coverage: Callable[[Sequence[Item]], Coverage] = count_tokens,
        annotation_unit: str = "",
        hint: str = "",
    ) -> None:
        self.tokenizer, self.limit, self.annotation_unit, self.hint = tokenizer, limit, annotation_unit, hint
        self.special = self.num_truncated = self.longest = 0
        self.total = Coverage(0, 0)
        self._coverage, self._lengths, self._check = coverage, Histogram(), TextCheck()

    def add(self, items: Sequence[Item], requests: Iterable[Any] = ()) -> None:
        """Count items, and the texts that they are from: strings, or examples of a task."""
        sequences = [sequence for item in items for sequence in item.sequences]
        if sequences:
            ids = np.concatenate([sequence.ids for sequence in sequences])
            self.special = self.special or len(sequences[0].ids) - sequences[0].tokens_read
            num_special = len(ids) - sum(sequence.tokens_read for sequence in sequences)
            self._check.add_ids(ids, num_special, self.tokenizer)
        for _, group in groupby(items, key=operator.attrgetter("example")):
            coverage = self._coverage(list(group))
            self.total = Coverage(*map(operator.add, self.total, coverage))
            self.num_truncated += coverage.tokens > coverage.tokens_read
            self.longest = max(self.longest, coverage.tokens)
            self._lengths.add([coverage.tokens])
        for request in requests:
            self._check.add([request] if isinstance(request, str) else request.texts)

    def to_dict(self) -> dict[str, Any]:
        """Return the statistics as in a report; `cut` is what is lost."""
        total = self.total
        values = {"texts": self._lengths.count, "tokens": total.tokens}
        lost = {"texts": self.num_truncated, "tokens": total.tokens - total.tokens_read}
        if self.annotation_unit:
            values[f"{self.annotation_unit}s"] = total.annotations
            lost[f"{self.annotation_unit}s"] = total.annotations - total.annotations_read
        return {"limit": self.limit, "special_tokens": self.special, **values, "cut": lost}

    def lengths(self) -> dict[str, Any]:
        """Return quantiles and a histogram of the examples' lengths in tokens, special tokens excluded."""
        return self._lengths.summary()

    def messages(self) -> list[str]:
        """Return sentences on truncated texts, on lost annotations, and on what the tokenizer loses."""
        total, messages = self.total, []
        if self.num_truncated:
            lost = total.tokens - total.tokens_read
            lost_tokens = f"{pluralize(lost, 'token')} ({format_percent(lost / total.tokens)})"
            messages.append(
                f"{self.num_truncated:,} of {pluralize(self._lengths.count, 'text')} truncated: {lost_tokens} not "
                f"read; the longest takes {self.longest + self.special:,} tokens, and max_length is "
                f"{self.limit:,}{self.hint}"
            )
        if lost := total.annotations - total.annotations_read:
            messages.append(f"{pluralize(lost, self.annotation_unit)} in no window, so not learned")
        return [*messages, *self._check.warnings(self.tokenizer)]

    def log(self) -> None:
        """Log the messages."""
        for message in self.messages():
            logger.warning("%s", message)
