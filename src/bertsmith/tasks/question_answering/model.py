"""Windows of a passage, the span head (a vector for starts and one for ends over their tokens), and decoding.

Each window is an item, `[CLS] question [SEP] part of the passage [SEP]`. An answer is the best span over all
windows of a passage, or no answer. Answers are compared with references by the rules of SQuAD 1.1, of SQuAD 2.0,
or of CMRC 2018.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import starmap
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from bertsmith.errors import InputError
from bertsmith.io.unicode_scripts import HAN
from bertsmith.loss import Loss, distillation_kl
from bertsmith.metrics import squad
from bertsmith.models.config import ModelConfig
from bertsmith.models.encoder import Encoder
from bertsmith.models.task_heads import SpanHead
from bertsmith.tasks.base import Decoder, Metadata, TaskEncoder, TaskModel
from bertsmith.tasks.batching import Item, Outputs, TaskBatch
from bertsmith.tasks.question_answering.data import QuestionExample
from bertsmith.tasks.results import OMIT_IF_NONE, Prediction
from bertsmith.tasks.settings import AnswerSettings, Rules
from bertsmith.tasks.targets import Target, find_label
from bertsmith.tasks.windows import NO_LIMIT, Coverage, Window, best_windows, split_windows
from bertsmith.tokenizer.tokenizer import Encoding, Tokenizer

Metric = Literal["f1", "exact_match"]


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


class QuestionAnsweringModel(TaskModel):
    """Start and end logits of each token."""

    outputs_per_token = True
    logit_names = ("start_logits", "end_logits")
    loss_weights: Mapping[str, float] = {"start": 0.5, "end": 0.5}

    def __init__(
        self, config: ModelConfig, generator: torch.Generator, metadata: Metadata, settings: AnswerSettings
    ) -> None:
        super().__init__(config, generator, metadata, settings)
        self.head = SpanHead(config, generator, transform=settings.transform)

    def tensors(self, items: Sequence[Item]) -> tuple[dict[str, Tensor], dict[str, int]]:
        """Return `start` and `end`, int64 [B]: token indices within each window."""
        if any(item.target is None for item in items):
            return {}, {}
        start, end = torch.tensor([item.target for item in items]).T
        return {"start": start, "end": end}, {"start": len(items), "end": len(items)}

    def logits(self, encoder: Encoder, batch: TaskBatch) -> Tensor:
        """Return the fp32 logits [N, 2] of an answer's start and end at each token."""
        logits: Tensor = self.head(self.features(encoder, batch.packed))
        return logits.float()

    def loss(self, encoder: Encoder, batch: TaskBatch) -> Loss:
        """Return the summed cross-entropies over the tokens of each window, special tokens and question included.

        The target of a window without the whole answer is [CLS], as in the BERT release.
        """
        padded = batch.packed.pad(self.logits(encoder, batch), -torch.inf)  # [B, longest, 2]
        sums, num_correct = {}, {}
        for part, logits in zip(("start", "end"), padded.unbind(-1), strict=True):
            targets = batch.tensors[part]
            sums[part] = F.cross_entropy(logits, targets, reduction="sum")
            num_correct[part] = (logits.detach().argmax(-1) == targets).sum()
        return Loss(sums, batch.counts, num_correct)

    def outputs(self, encoder: Encoder, batch: TaskBatch) -> Sequence[Tensor]:
        """Return the logits [T, 2] of each window of T tokens."""
        return torch.split(self.logits(encoder, batch), batch.packed.lengths.tolist())

    def distillation_loss(
        self, outputs: Sequence[Tensor], targets: Sequence[Tensor], batch: TaskBatch, temperature: float
    ) -> Tensor:
        """Return the divergence over the tokens of each window, the mean of starts and ends."""
        pairs = zip(outputs, targets, strict=True)
        return torch.stack([distillation_kl(a, b, temperature, 0) for a, b in pairs]).sum() / 2


@dataclass
class AnswerPrediction(Prediction):
    """An answer, `context[start:end]`; "" from None to None if there is none.

    Attributes:
        id: The file's id of the question.
        score: The probability of the answer's start times that of its end, each a softmax over the window.
        null_score: The logits of no answer minus those of the best span (the release's `null_odds`); None if there
            always is an answer.
        n_best: The best spans with `answer`, `start`, `end`, and `score`.
    """

    id: str | None = field(default=None, metadata=OMIT_IF_NONE)
    answer: str = ""
    start: int | None = None
    end: int | None = None
    score: float = 0.0
    null_score: float | None = field(default=None, metadata=OMIT_IF_NONE)
    n_best: list[dict[str, Any]] = field(default_factory=list)


class QuestionAnsweringDecoder(Decoder):
    """The best span by the BERT release's rules, but over all spans instead of a beam of starts and ends.

    A span starts and ends in one window, the one where its first token has the most context. The sum of both
    logits ranks spans over all windows. If there may be no answer, `state["null_threshold"]` is how much the best
    span's score must be above that of no answer, the least of all windows.
    """

    settings: AnswerSettings

    def calibrate(self, outputs: Outputs, items: Sequence[Item], examples: Sequence[QuestionExample]) -> None:
        """Choose the threshold of no answer with the best F1."""
        if self.metadata.get("unanswerable"):
            predictions = self.decode(outputs, items, examples)
            scorer = AnswerScorer(examples, self.settings.rules)
            self.state["null_threshold"] = scorer.best_threshold("f1", predictions)[1]

    def decode(
        self, outputs: Outputs, items: Sequence[Item], examples: Sequence[QuestionExample]
    ) -> list[AnswerPrediction]:
        """Return the answer of each question, with the `n_best` spans."""
        logits_of: list[list[Tensor]] = [[] for _ in examples]
        windows_of: list[list[Window]] = [[] for _ in examples]  # at least one each
        for logits, item in zip(outputs.per_item, items, strict=True):
            logits_of[item.example].append(logits)
            windows_of[item.example].append(window_of(item))
        return [self._predict(*of) for of in zip(examples, logits_of, windows_of, strict=True)]

    def target(self, output: Tensor, item: Item, name: str | None) -> Target:
        """Return the sum of the start's and the end's logit: of the best span, or named "none" of [CLS]."""
        if name is not None:
            find_label(["none"], name)
            return Target(name, lambda output: output[0].sum())
        window = window_of(item)
        first, last = window.sequence_start, window.sequence_start + window.size
        scores = output[first:last, :1] + output[first:last, 1]
        indices = torch.arange(window.size)
        lengths = indices - indices[:, None] + 1
        is_span = (lengths >= 1) & (lengths <= self.settings.max_answer_length)
        scores = scores.masked_fill(~is_span, -torch.inf)
        start, end = divmod(int(scores.argmax()), window.size)
        offsets = passage_offsets(window)
        span = f"characters {offsets[start][0]} to {offsets[end][1]}"
        return Target(span, lambda output: output[first + start, 0] + output[first + end, 1])

    def _predict(
        self, example: QuestionExample, window_logits: Sequence[Tensor], windows: Sequence[Window]
    ) -> AnswerPrediction:
        deciding_window = best_windows(windows)
        spans: list[tuple[float, dict[str, Any]]] = []
        for index, (logits, window) in enumerate(zip(window_logits, windows, strict=True)):
            decides = deciding_window[window.text_start : window.text_start + window.size] == index
            spans += self._spans(example.context, logits, window, decides & has_text(example, window))
        spans.sort(key=lambda span: -span[0])
        candidates: dict[str, dict[str, Any]] = {}
        for _, span in spans:
            candidates.setdefault(span["answer"], span)  # as in the release, the same words are listed once
        n_best = list(candidates.values())[: self.settings.n_best]
        tokens, tokens_read = count_tokens(windows)
        best = n_best[0] | self._no_answer(window_logits, spans[0][0])
        return AnswerPrediction(example.id, **best, n_best=n_best, tokens=tokens, tokens_read=tokens_read)

    def _no_answer(self, window_logits: Sequence[Tensor], best_logit: float) -> dict[str, Any]:
        """Return the null score if there may be no answer, and the fields of "no answer" if that is chosen."""
        threshold = self.settings.null_threshold
        if threshold is None and self.metadata.get("unanswerable"):
            threshold = self.state.get("null_threshold", 0.0)
        if threshold is None:
            return {}
        least = min(window_logits, key=lambda logits: float(logits[0].sum()))
        null_score = float(least[0].sum()) - best_logit
        if -null_score > threshold:
            return {"null_score": null_score}
        probability = float(least.log_softmax(0)[0].sum().exp())
        return {"answer": "", "start": None, "end": None, "score": probability, "null_score": null_score}

    def _spans(
        self, context: str, logits: Tensor, window: Window, may_start: NDArray[np.bool_]
    ) -> Iterator[tuple[float, dict[str, Any]]]:
        """Yield the `n_best` spans of a window, each with the sum of its start and end logits.

        Args:
            context: The passage.
            logits: The start and end logits [T, 2] of the window.
            window: The window.
            may_start: True for each token of the passage that a span may start at.
        """
        passage = slice(window.sequence_start, window.sequence_start + window.size)
        max_length = min(self.settings.max_answer_length, window.size)
        starts = logits[passage, 0].masked_fill(~torch.from_numpy(may_start), -torch.inf)
        ends = F.pad(logits[passage, 1], (0, max_length - 1), value=-torch.inf).unfold(0, max_length, 1)
        sums = starts[:, None] + ends  # [first token, number of further tokens]
        best = sums.flatten().topk(min(self.settings.n_best, sums.numel()))
        log_probabilities, offsets = logits.log_softmax(0)[passage], passage_offsets(window)
        for logit, cell in zip(best.values.tolist(), best.indices.tolist(), strict=True):
            if logit > -torch.inf:
                first, more = divmod(cell, max_length)
                score = float((log_probabilities[first, 0] + log_probabilities[first + more, 1]).exp())
                start, text = int(offsets[first, 0]), context[offsets[first, 0] : offsets[first + more, 1]]
                start += len(text) - len(text.lstrip())  # tokens of some tokenizers hold white space
                answer = text.strip()
                yield logit, {"answer": answer, "start": start, "end": start + len(answer), "score": score}


class AnswerScorer:
    """Score answers by the official scripts' rules.

    Attributes:
        rules: "squad" or "cmrc".
        has_unanswerable: True if an example is unanswerable, so that the rules are SQuAD 2.0's.
    """

    def __init__(self, examples: Sequence[QuestionExample], rules: Rules) -> None:
        self.examples = examples
        self.rules = _infer_rules(examples) if rules == "auto" else rules
        self.has_unanswerable = any(example.unanswerable for example in examples)
        if self.rules == "cmrc":
            self._functions = {"f1": squad.cmrc_f1, "exact_match": squad.cmrc_exact_match}
        elif self.has_unanswerable:
            self._functions = {"f1": squad.f1_v2, "exact_match": squad.exact_match_v2}
        else:
            self._functions = {"f1": squad.f1, "exact_match": squad.exact_match}

    def scores(self, metric: Metric, answers: Iterable[str]) -> list[float]:
        """Return the score of each example's answer, 0 to 1."""
        score = self._functions[metric]
        pairs = zip(answers, self.examples, strict=True)
        return [float(score(answer, example.references)) for answer, example in pairs]

    def best_threshold(self, metric: Metric, predictions: Sequence[Any]) -> tuple[float, float]:
        """Return the best mean score over all values of `null_threshold`, and the value that reaches it."""
        spans = [prediction.n_best[0]["answer"] for prediction in predictions]
        null_scores = [prediction.null_score for prediction in predictions]
        unanswerable = [float(example.unanswerable) for example in self.examples]
        questions = zip(null_scores, self.scores(metric, spans), unanswerable, strict=True)
        score, null_score = squad.find_best_threshold(starmap(squad.QuestionScores, questions))
        return score, -null_score


def _infer_rules(examples: Sequence[QuestionExample]) -> Literal["squad", "cmrc"]:
    """Return CMRC's rules if most answers have an ideograph, since they have no words to compare."""
    answers = [answer.text for example in examples for answer in example.answers]
    num_chinese = sum(any(ord(c) in part for c in text for part in HAN) for text in answers)
    return "cmrc" if 2 * num_chinese > len(answers) else "squad"
