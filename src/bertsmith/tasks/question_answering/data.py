"""Examples of question answering: a question, its passage, and the reference answers; and their windows.

Each window is an item, `[CLS] question [SEP] part of the passage [SEP]`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel

from bertsmith.artifacts.folder import ModelFolder
from bertsmith.errors import InputError, option
from bertsmith.formatting import pluralize
from bertsmith.io.sources import Source
from bertsmith.tasks.base import Example, Metadata, TaskData, TaskEncoder
from bertsmith.tasks.batching import Item
from bertsmith.tasks.data_checks import check_examples, check_text
from bertsmith.tasks.labels import LabelNames
from bertsmith.tasks.question_answering.squad import SquadQuestion, read_questions
from bertsmith.tasks.results import Diagnostic
from bertsmith.tasks.settings import AnswerSettings
from bertsmith.tasks.windows import NO_LIMIT, Coverage, Window, split_windows
from bertsmith.tokenizer.tokenizer import Encoding, Tokenizer


class ReferenceAnswer(NamedTuple):
    """A reference answer, `context[start : start + len(text)]`; `moved`: the file gives another start or none."""

    text: str
    start: int
    moved: bool = False


@dataclass(frozen=True)
class QuestionExample(Example):
    """A question about a passage.

    Attributes:
        answers: The reference answers; none if the question is unlabeled or unanswerable.
        id: The file's id of the question, if it has one.
        unanswerable: True if the reference is that the passage has no answer.
    """

    question: str
    context: str
    answers: tuple[ReferenceAnswer, ...]
    location: str
    id: str | None = None
    unanswerable: bool = False

    @property
    def references(self) -> list[str]:
        """The texts of the reference answers; one empty text if the question is unanswerable."""
        return [""] if self.unanswerable else [answer.text for answer in self.answers]

    @property
    def group_key(self) -> str:
        """The passage."""
        return self.context

    @property
    def display_inputs(self) -> dict[str, str]:
        """The question."""
        return {"question": self.question}


class AnswerMetadata(BaseModel):
    """Metadata: `unanswerable` is True if a training question had no answer."""

    unanswerable: bool = False


class QuestionAnsweringData(TaskData):
    """SQuAD's JSON, or rows of a question, its passage, and its answers."""

    settings: AnswerSettings

    def read(self, source: Source, *, labeled: bool = True) -> list[QuestionExample]:
        """Return the questions of a source in order; see `read_questions` for the formats."""
        rows = read_questions(source, self.settings, labeled=labeled)
        examples = [_make_example(*row, labeled=labeled) for row in rows]
        check_examples(examples, source, "questions")
        if labeled and all(example.unanswerable for example in examples):
            raise InputError(
                "no_answers",
                "none of the questions in this file has an answer",
                location=source,
                hint="give the answers as SQuAD does, or in rows as 'answer' and 'start' (for other names, "
                f"{option('answer_column')} and {option('start_column')})",
            )
        return examples

    def from_inputs(
        self, columns: Mapping[str, Sequence[str]], locations: Sequence[str]
    ) -> list[QuestionExample]:
        """Return questions with their passages."""
        rows = zip(columns["question"], columns["context"], locations, strict=True)
        return [_unlabeled_example(*row) for row in rows]

    def to_row(self, example: QuestionExample) -> dict[str, Any]:
        """Return the question, its passage, and its answers as SQuAD writes them."""
        question_column, context_column, *_ = self.tuple_columns(2)
        row: dict[str, Any] = {} if example.id is None else {"id": example.id}
        row |= {question_column: example.question, context_column: example.context}
        row["answers"] = [{"text": text, "answer_start": start} for text, start, _ in example.answers]
        return row | ({"is_impossible": True} if example.unanswerable else {})

    def tuple_columns(self, num_values: int) -> list[str]:
        """Return the columns of the question, its passage, its answer, and optionally the answer's start."""
        parts = ("question", "context", "answer", "start")
        names = [getattr(self.settings, f"{part}_column") or part for part in parts]
        return names[: max(3, num_values)]

    def read_warnings(self, examples: Sequence[QuestionExample]) -> list[Diagnostic]:
        """Return the answers that are not where the file says."""
        return moved_answers(examples)

    def fit_metadata(self, examples: Sequence[QuestionExample], label_names: LabelNames | None) -> Metadata:
        """Return whether a question may have no answer."""
        super().fit_metadata(examples, label_names)
        return {"unanswerable": any(example.unanswerable for example in examples)}

    def metadata_from_hf(self, folder: ModelFolder) -> Metadata | None:
        """Return no metadata: the architecture does not say whether a question may have no answer."""
        return {} if folder.architecture.endswith("ForQuestionAnswering") else None


def moved_answers(examples: Sequence[QuestionExample]) -> list[Diagnostic]:
    """Return a diagnostic of the answers that are not where the file says, if there are any."""
    moved = [example.location for example in examples for answer in example.answers if answer.moved]
    if not moved:
        return []
    were = pluralize(len(moved), "answer was", "answers were")
    text = "its text" if len(moved) == 1 else "their texts"
    message = f"{were} found by {text}, at another start than the file gives, or where it gives none"
    return [Diagnostic("answers not at their offset", message, moved)]


def _make_example(context: str, row: SquadQuestion, location: str, *, labeled: bool) -> QuestionExample:
    """Return an example of a row of `read_questions`."""
    example = _unlabeled_example(row.question, context, location, row.id)
    if not labeled:
        return example
    if row.is_impossible and row.answers:
        message, hint = "the question is impossible, and has an answer", "remove one of the two"
        raise InputError("impossible_with_answer", message, location=location, hint=hint)
    answers = tuple(_locate(context, answer.text, answer.answer_start, location) for answer in row.answers)
    return replace(example, answers=answers, unanswerable=not answers)


def _unlabeled_example(question: Any, context: Any, location: str, id: str | None = None) -> QuestionExample:
    """Return an example without answers.

    Raises:
        InputError: The question or the passage is empty or not a string.
    """
    for name, text in (("question", question), ("context", context)):
        check_text(text, name, location)
    return QuestionExample(question, context, (), location, id)


def _locate(context: str, text: str, start: int | None, location: str) -> ReferenceAnswer:
    """Return an answer at its start, or else at its occurrence nearest to it (the first if no start is given)."""
    if start is not None and context.startswith(text, start):
        return ReferenceAnswer(text, start)
    near = start or 0
    starts = [i for i in (context.rfind(text, 0, near + len(text)), context.find(text, near)) if i >= 0]
    if not starts:
        message, hint = f"the answer {text!r} is not in the passage", "fix it, or remove this question"
        raise InputError("answer_not_in_passage", message, location=location, hint=hint)
    return ReferenceAnswer(text, min(starts, key=lambda i: abs(i - near)), moved=True)


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
