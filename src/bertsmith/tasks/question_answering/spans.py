"""Spans of a passage: which of its tokens an answer touches, and which of its characters tokens stand for."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bertsmith.errors import InputError
from bertsmith.tasks.batching import Item
from bertsmith.tasks.question_answering.passages import PassageExample
from bertsmith.tasks.windows import Window
from bertsmith.tokenizer.tokenizer import Encoding


class Span(NamedTuple):
    """Of a window: the sum of both logits, the probability, and the characters that its tokens span."""

    logit: float
    score: float
    start: int
    end: int


def tokens_of(example: PassageExample, encoding: Encoding) -> tuple[int, int] | None:
    """The first and last token of the passage that the first answer touches; None where there is no answer."""
    if not example.answers:
        return None
    gold = example.answers[0]
    offsets = np.array([o for o, s in zip(encoding.offsets, encoding.sequence_ids, strict=True) if s == 1])
    held = np.flatnonzero((offsets[:, 1] > gold.start) & (offsets[:, 0] < gold.start + len(gold.text)))
    if not len(held):
        raise InputError(
            "answer_without_tokens",
            f"the tokenizer has no token for the answer {gold.text!r}",
            location=example.place,
            hint="remove this question",
        )
    return int(held[0]), int(held[-1])


def target_of(
    example: PassageExample, span: tuple[int, int] | None, window: Window
) -> tuple[int, int] | None:
    """The rows of a span in a window; (0, 0), its first token's, where the window does not hold all of it, and
    where the question has no answer; None where it is not known."""
    if span is None:
        return (0, 0) if example.unanswerable else None
    first, last = (token - window.first for token in span)
    if first < 0 or last >= window.size:
        return 0, 0
    return window.row + first, window.row + last


def window_of(item: Item) -> Window:
    """The window that an item was made of."""
    (encoded,) = item.sequences
    rows = np.flatnonzero(encoded.sources == 1)
    return Window(encoded, int(rows[0]), item.first, len(rows))


def worded(example: PassageExample, window: Window) -> NDArray[np.bool_]:
    """bool [tokens of the passage in the window]: which hold more than white space, as some tokenizers' do not."""
    offsets = window.sequence.offsets
    assert offsets is not None  # windows are located
    rows = offsets[window.row : window.row + window.size].tolist()
    return np.array([not example.context[start:end].isspace() and start < end for start, end in rows], bool)


def without_blanks(text: str, start: int, end: int) -> tuple[int, int]:
    """A slice without the white space at its ends, which tokens of some tokenizers hold."""
    inner = text[start:end].strip()
    start += text[start:end].index(inner)
    return start, start + len(inner)
