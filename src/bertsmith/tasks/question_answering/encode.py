"""From questions to windows: `[CLS] question [SEP] part of the passage [SEP]`, one item per window."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bertsmith.errors import InputError
from bertsmith.tasks.base import TaskEncoder
from bertsmith.tasks.batching import Item
from bertsmith.tasks.question_answering.data import QuestionExample
from bertsmith.tasks.settings import AnswerSettings
from bertsmith.tasks.truncation import Coverage
from bertsmith.tasks.windows import NO_LIMIT, Window, split_windows
from bertsmith.tokenizer.tokenizer import Encoding, Tokenizer


@dataclass(frozen=True)
class PassageItem(Item):
    """A window of a passage; the target is the indices of the answer's first and last token.

    Attributes:
        has_answer: True if the question has a reference answer, in this window or in another.
    """

    has_answer: bool = False


class QuestionAnsweringEncoder(TaskEncoder):
    """Read a passage in overlapping windows, each with the question before it."""

    settings: AnswerSettings

    def encode(self, examples: Sequence[QuestionExample], tokenizer: Tokenizer) -> list[Item]:
        """Return one item per window."""
        questions, contexts = [e.question for e in examples], [e.context for e in examples]
        encodings = tokenizer.encode_batch(questions, contexts, max_length=NO_LIMIT)
        return [
            item
            for index, (example, encoding) in enumerate(zip(examples, encodings, strict=True))
            for item in self._items(index, example, encoding)
        ]

    def _items(self, index: int, example: QuestionExample, encoding: Encoding) -> list[Item]:
        windows = split_windows(
            encoding,
            self.max_length,
            source=1,
            stride=self.settings.stride,
            max_other_tokens=self.settings.max_query_length,
            location=example.location,
        )
        if not any(has_text(example, window).any() for window in windows):
            message, hint = "the passage has no tokens", "give a passage with words in it"
            raise InputError("passage_without_tokens", message, location=example.location, hint=hint)
        span = _answer_tokens(example, encoding)
        return [
            PassageItem(
                index, (w.sequence,), _target(example, span, w), w.text_start, has_answer=span is not None
            )
            for w in windows
        ]

    def coverage(self, items: Sequence[Item]) -> Coverage:
        """Return how much of question and passage is read; an answer counts if one window has all of it."""
        windows = [window_of(item) for item in items]
        has_answer = isinstance(items[0], PassageItem) and items[0].has_answer
        is_read = has_answer and any(item.target not in (None, (0, 0)) for item in items)
        return Coverage(*count_tokens(windows), int(has_answer), int(is_read))


def window_of(item: Item) -> Window:
    """Return the window of the passage that an item holds."""
    (sequence,) = item.sequences
    indices = np.flatnonzero(sequence.sources == 1)
    return Window(sequence, int(indices[0]), item.text_start, len(indices))


def passage_offsets(window: Window) -> NDArray[np.int32]:
    """Return the slices of the passage [tokens of the passage in the window, 2]."""
    assert window.sequence.offsets is not None  # windows keep them
    return window.sequence.offsets[window.sequence_start : window.sequence_start + window.size]


def has_text(example: QuestionExample, window: Window) -> NDArray[np.bool_]:
    """Return which tokens of a window's passage hold more than white space, as some tokenizers' do not."""
    offsets = passage_offsets(window).tolist()
    return np.array([bool(example.context[start:end].strip()) for start, end in offsets], bool)


def count_tokens(windows: Sequence[Window]) -> tuple[int, int]:
    """Return the tokens of question and passage, and how many of these the windows hold."""
    last = windows[-1]
    passage = last.text_start + last.size
    return passage + last.sequence.tokens - last.size, passage + last.sequence.tokens_read - last.size


def _answer_tokens(example: QuestionExample, encoding: Encoding) -> tuple[int, int] | None:
    """Return the first and last token of the passage that the first answer touches; None without an answer."""
    if not example.answers:
        return None
    text, start, _ = example.answers[0]
    offsets = np.array([o for o, s in zip(encoding.offsets, encoding.sequence_ids, strict=True) if s == 1])
    tokens = np.flatnonzero((offsets[:, 1] > start) & (offsets[:, 0] < start + len(text)))
    if not len(tokens):
        message = f"the tokenizer has no token for the answer {text!r}"
        hint = "remove this question"
        raise InputError("answer_without_tokens", message, location=example.location, hint=hint)
    return int(tokens[0]), int(tokens[-1])


def _target(example: QuestionExample, span: tuple[int, int] | None, window: Window) -> tuple[int, int] | None:
    """Return the indices of a span's first and last token in a window; None if the question is unlabeled.

    They are (0, 0), which is [CLS], if the window lacks a part of the span, or if there is no answer.
    """
    if span is None:
        return (0, 0) if example.unanswerable else None
    first, last = (token - window.text_start for token in span)
    if first < 0 or last >= window.size:
        return 0, 0
    return window.sequence_start + first, window.sequence_start + last
