"""Question answering: the span of a passage that answers a question (Devlin et al. 2019, section 4.2).

Files are SQuAD's JSON, JSON lists and lines with a question, its passage and its answers, or tables of these. A
passage that does not fit is read in overlapping windows; an answer is always `context[start:end]` exactly. Where
some of the training questions had no answer (SQuAD 2.0; section 4.3), there may be none: unless the best span's
score is above that of none by more than a threshold, which is chosen on dev and kept with the model.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from pydantic import BaseModel
from torch import Tensor, nn

from bertsmith.errors import InputError, option
from bertsmith.formatting import pluralize
from bertsmith.loss import Loss, distillation_kl
from bertsmith.metrics import squad
from bertsmith.metrics.sufficient_statistics import SufficientStatistics
from bertsmith.models.config import ModelConfig
from bertsmith.models.encoder import Encoder
from bertsmith.models.heads import SpanHead
from bertsmith.tasks.error_analysis import Answers, Details
from bertsmith.tasks.items import Item, TaskBatch
from bertsmith.tasks.labels import Names
from bertsmith.tasks.question_answering.answer_scores import details_of, scored, tallied, threshold_of
from bertsmith.tasks.question_answering.passages import PassageExample, check_texts, read_passages
from bertsmith.tasks.question_answering.spans import (
    Span,
    target_of,
    tokens_of,
    window_of,
    without_blanks,
    worded,
)
from bertsmith.tasks.question_answering.squad import PassageNames
from bertsmith.tasks.registry import ANSWER
from bertsmith.tasks.scores import Finding, Overview, Scores, ScoreTable
from bertsmith.tasks.settings import AnswerSettings
from bertsmith.tasks.task import Facts, Foreign, Prediction, Task
from bertsmith.tasks.truncation import Coverage
from bertsmith.tasks.windows import UNCUT, Window, deciding, windows
from bertsmith.tokenizer.tokenizer import Tokenizer


@dataclass(frozen=True)
class PassageItem(Item):
    """A window of a passage. given: the question has an answer that is known, in this window or in another."""

    given: bool = False


class AnswerFacts(BaseModel):
    """Whether a question may have no answer; and how much more the model must then be for one than for none."""

    unanswerable: bool = False
    null_threshold: float = 0.0


class Answer(Task):
    """A vector for starts and one for ends, over the tokens of each window."""

    name = "answer"
    summary = ANSWER.summary
    hangs_on = "answer"
    example_file = ANSWER.example_file
    inputs = ("question", "context")
    settings_type = ANSWER.settings_type
    facts_type = AnswerFacts
    by_token = True
    own_facts = ("null_threshold",)
    lasting = (*Task.lasting, "transform")
    settings: AnswerSettings
    answer_form = ANSWER.answer_form
    null_threshold: Tensor
    loss_weights: Mapping[str, float] = {"start": 0.5, "end": 0.5}

    def __init__(
        self, config: ModelConfig, generator: torch.Generator, facts: Facts, settings: AnswerSettings
    ) -> None:
        """facts: of `AnswerFacts`."""
        super().__init__(config, generator, facts, settings)
        self.head = SpanHead(config, generator, transform=settings.transform)
        known = AnswerFacts(**facts)
        self.register_buffer("null_threshold", torch.tensor(known.null_threshold, dtype=torch.float64))
        self._may_be_none = known.unanswerable

    @property
    def heads(self) -> Mapping[str, nn.Module]:
        """The two vectors, and the layer before them where there is one."""
        heads: Mapping[str, nn.Module] = self.head.parts
        return heads

    # From a file to examples

    @classmethod
    def read(
        cls, file: str | Path, settings: AnswerSettings, *, labelled: bool = True
    ) -> list[PassageExample]:
        """The questions of a .json (SQuAD's, or a list of rows), .jsonl, .csv or .tsv file, in its order.

        A row has question, context and answer with start, or answers as SQuAD or as columns; an answer that is
        not at its start is looked for. InputError with its place (`file: data[3].paragraphs[0].qas[2]`, or
        file:line) for what is amiss, an answer that is nowhere in its passage, and a question without one.
        """
        return read_passages(
            file,
            labelled=labelled,
            names=_names(settings),
            delimiter=settings.delimiter,
            header=settings.header,
            encoding=settings.encoding,
        )

    @classmethod
    def of_inputs(
        cls, columns: Mapping[str, Sequence[str]], settings: AnswerSettings, places: Sequence[str]
    ) -> list[PassageExample]:
        """Questions with their passages."""
        rows = list(zip(columns["question"], columns["context"], places, strict=True))
        for question, context, place in rows:
            check_texts(question, context, place)
        return [PassageExample(question, context, (), place) for question, context, place in rows]

    @classmethod
    def columns_of_tuples(cls, settings: AnswerSettings, width: int) -> list[str]:
        """Question, passage, answer, and where it begins if that is given."""
        names = _names(settings)._asdict().items()
        return [name or known for known, name in names][: max(3, width)]

    @classmethod
    def as_row(cls, example: PassageExample, settings: AnswerSettings) -> dict[str, Any]:
        """Question, passage, and the answers as SQuAD has them."""
        row: dict[str, Any] = {"id": example.number} if example.number is not None else {}
        answers = [{"text": gold.text, "answer_start": gold.start} for gold in example.answers]
        none = {"is_impossible": True} if example.unanswerable else {}
        texts = {
            settings.question_column or "question": example.question,
            settings.context_column or "context": example.context,
        }
        return {**row, **texts, "answers": answers, **none}

    @classmethod
    def remarks(cls, examples: Sequence[PassageExample]) -> list[Finding]:
        """How many answers were not where the file says."""
        moved = [example.place for example in examples for gold in example.answers if gold.moved]
        if not moved:
            return []
        were = pluralize(len(moved), "answer was", "answers were")
        text = "its text" if len(moved) == 1 else "their texts"
        what = f"{were} found by {text}, at another start than the file gives, or where it gives none"
        return [Finding("answers not at their offset", what, moved)]

    @classmethod
    def learnt(
        cls, examples: Sequence[PassageExample], settings: AnswerSettings, names: Names | None
    ) -> Facts:
        """Whether a question may have no answer."""
        found = super().learnt(examples, settings, names)
        return {**found, "unanswerable": any(example.unanswerable for example in examples)}

    @classmethod
    def facts_of(cls, folder: Foreign) -> Facts | None:
        """The field's class says it all, but whether a question may have no answer."""
        return {} if folder.architecture.endswith("ForQuestionAnswering") else None

    @classmethod
    def content(cls, example: PassageExample) -> str:
        """The passage: questions about one stay on one side of a split."""
        return example.context

    @classmethod
    def asked(cls, example: PassageExample) -> dict[str, str]:
        """The question."""
        return {"question": example.question}

    @classmethod
    def rows(cls, example: PassageExample, prediction: Prediction) -> list[dict[str, Any]]:
        """The question, its answer, where that is in the passage, and its probability."""
        number = {} if example.number is None else {"id": example.number}
        keys = ("start", "end", "score", *(["null_score"] if "null_score" in prediction else []))
        found = {"prediction": prediction["answer"], **{key: prediction[key] for key in keys}}
        return [{**number, **cls.asked(example), **found}]

    @classmethod
    def answer_file(cls, answered: Iterable[tuple[PassageExample, Prediction | None]]) -> Iterator[str]:
        """SQuAD's predictions.json: {id: answer}. InputError for a question without an id, or with another's."""
        found: dict[str, str] = {}
        for example, prediction in answered:
            if example.number is None or example.number in found:
                hint = f"give each question an id of its own, or choose another {option('format')}"
                if example.number is None:
                    message = "the question has no id"
                    raise InputError("id_missing", message, location=example.place, hint=hint)
                message = f"the id '{example.number}' occurs twice"
                raise InputError("duplicate_id", message, location=example.place, hint=hint)
            found[example.number] = prediction["answer"] if prediction else ""
        yield json.dumps(found, ensure_ascii=False) + "\n"

    @classmethod
    def overview_of_answers(
        cls, train: Sequence[PassageExample], dev: Sequence[PassageExample], facts: Facts
    ) -> Overview:
        """How many questions and passages, and how long answers are."""
        parts = {"train": train, "dev": dev}
        figures = {
            part: {
                "questions": len(some),
                "passages": len({example.context for example in some}),
                "unanswerable": sum(example.unanswerable for example in some),
                "answers": sum(len(example.answers) for example in some),
                "letters_per_answer": _letters(some),
            }
            for part, some in parts.items()
            if some
        }
        rows = [[part, *(f"{value:,}" for value in found.values())] for part, found in figures.items()]
        columns = ["part", "questions", "passages", "unanswerable", "answers", "letters per answer"]
        of_train, of_dev = ([e.place for e in some if e.unanswerable] for some in (train, dev))
        findings = []
        if of_dev and not of_train:
            said = (
                f"{pluralize(len(of_dev), 'question of dev has', 'questions of dev have')} no answer, and all of "
                "train have one: the model will never say that there is none"
            )
            findings.append(Finding("questions without an answer", said, of_dev))
        return Overview({"questions": figures}, [ScoreTable("questions", columns, rows)], findings)

    # From examples to a batch

    def encode(self, examples: Sequence[PassageExample], tokenizer: Tokenizer) -> list[Item]:
        """[CLS] question [SEP] part of the passage [SEP]: an item a window."""
        limit = self.reads
        encodings = tokenizer.encode_batch(
            [example.question for example in examples],
            [example.context for example in examples],
            max_length=UNCUT,
        )
        items: list[Item] = []
        for number, (example, encoding) in enumerate(zip(examples, encodings, strict=True)):
            cut = windows(
                encoding,
                limit,
                source=1,
                stride=self.settings.stride,
                others=self.settings.question_length,
                place=example.place,
            )
            if not any(worded(example, window).any() for window in cut):
                raise InputError(
                    "passage_without_tokens",
                    "the passage has no tokens",
                    location=example.place,
                    hint="give a passage with words in it",
                )
            span = tokens_of(example, encoding)
            items += [
                PassageItem(
                    number,
                    (window.encoded,),
                    target_of(example, span, window),
                    window.first,
                    span is not None,
                )
                for window in cut
            ]
        return items

    def coverage(self, items: Sequence[Item]) -> Coverage:
        """Question and passage, of which no window may have all; an answer counts where one has all of it. A
        question that has none, or whose answer is not known, has none to lose."""
        cut = [window_of(item) for item in items]
        tokens, read = _read_in(cut)
        targets = [item.target not in (None, (0, 0)) for item in items]
        given = int(items[0].given) if isinstance(items[0], PassageItem) else 0
        at_once = cut[0].encoded.kept
        return Coverage(
            tokens, read, at_once, len(items), given, min(given, sum(targets)), min(given, targets[0])
        )

    def tensors(self, items: Sequence[Item]) -> tuple[dict[str, Tensor], dict[str, int]]:
        """`start`, `end`: long [B], rows within each window."""
        if any(item.target is None for item in items):
            return {}, {}
        start, end = torch.tensor([item.target for item in items]).T
        return {"start": start, "end": end}, {"start": len(items), "end": len(items)}

    def logits(self, encoder: Encoder, batch: TaskBatch) -> Tensor:
        """[N, 2], fp32: of starting and of ending at each token."""
        found: Tensor = self.head(self.features(encoder, batch.packed))
        return found.float()

    def loss(self, encoder: Encoder, batch: TaskBatch) -> Loss:
        """Cross-entropies over the tokens of each window, special ones and question included: a window without
        the whole answer points at its first token ([CLS]), as the release trains."""
        rows = batch.packed.pad(self.logits(encoder, batch), -torch.inf)  # [B, longest, 2]
        sums, right = {}, {}
        for part, logits in zip(("start", "end"), rows.unbind(-1), strict=True):
            wanted = batch.tensors[part]
            sums[part] = F.cross_entropy(logits, wanted, reduction="sum")
            right[part] = (logits.detach().argmax(-1) == wanted).sum()
        return Loss(sums, batch.counts, right)

    def outputs(self, encoder: Encoder, batch: TaskBatch) -> Sequence[Tensor]:
        """[T, 2] a window of T tokens."""
        return torch.split(self.logits(encoder, batch), batch.packed.lengths.tolist())

    def apart(
        self, own: Sequence[Tensor], wanted: Sequence[Tensor], batch: TaskBatch, temperature: float
    ) -> Tensor:
        """Over the tokens of each window, the mean of both ends'."""
        parts = (distillation_kl(a, b, temperature, 0) for a, b in zip(own, wanted, strict=True))
        return torch.stack(list(parts)).sum() / 2

    # From a batch to answers

    def decode(
        self, outputs: Sequence[Tensor], items: Sequence[Item], examples: Sequence[PassageExample]
    ) -> list[Prediction]:
        """Answer, its start and end in the passage, its score, the n best, tokens and tokens read.

        A span starts and ends in one window, where its first token has the most context (the release's rule);
        the sum of both logits ranks spans over all windows. All spans are looked at, the release's beam of
        the 20 best starts and ends of a window is not needed. score: the probability of the start times that of
        the end, each a softmax over the window. Where there may be no answer, null_score is how much its sum of
        logits, the least of all windows, is above the best span's (the release's null_odds); the answer
        is "", from None to None, unless that is below minus the threshold.
        """
        of_example: list[list[tuple[Tensor, Window]]] = [[] for _ in examples]  # each has a window or more
        for logits, item in zip(outputs, items, strict=True):
            of_example[item.example].append((logits, window_of(item)))
        return [self._prediction(example, found) for example, found in zip(examples, of_example, strict=True)]

    def _prediction(self, example: PassageExample, found: Sequence[tuple[Tensor, Window]]) -> Prediction:
        decides = deciding([window for _, window in found])
        spans: list[Span] = []
        for number, (logits, window) in enumerate(found):
            mine = decides[window.first : window.first + window.size] == number
            spans += self._spans(logits, window, mine & worded(example, window))
        best: dict[str, dict[str, Any]] = {}
        for span in sorted(spans, key=lambda span: -span.logit):
            start, end = without_blanks(example.context, span.start, span.end)
            text = example.context[start:end]
            # As in the release, the same words are listed once.
            best.setdefault(text, {"answer": text, "start": start, "end": end, "score": span.score})
        listed = list(best.values())[: self.settings.n_best]
        question = {} if example.number is None else {"id": example.number}
        chosen = listed[0] | self._unless_none([logits for logits, _ in found], max(s.logit for s in spans))
        tokens, read = _read_in([window for _, window in found])
        return {**question, **chosen, "n_best": listed, "tokens": tokens, "tokens_read": read}

    @property
    def _threshold(self) -> float | None:
        """Of no answer; None where there always is one."""
        if self.settings.null_threshold is not None:
            return self.settings.null_threshold
        return float(self.null_threshold) if self._may_be_none else None

    def _unless_none(self, windows_of: Sequence[Tensor], best: float) -> dict[str, Any]:
        """What stands in place of an answer that is none; the null score alone where it is one. best: the sum of
        logits of the best span."""
        if (threshold := self._threshold) is None:
            return {}
        least = min(windows_of, key=lambda logits: float(logits[0].sum()))
        score = float(least[0].sum()) - best
        if -score > threshold:
            return {"null_score": score}
        share = float(least.log_softmax(0)[0].sum().exp())
        return {"answer": "", "start": None, "end": None, "score": share, "null_score": score}

    def _spans(self, logits: Tensor, window: Window, mine: NDArray[np.bool_]) -> list[Span]:
        """The n best spans of a window that begin at tokens where `mine` is true, if it is for any.

        logits: [T, 2]; mine: bool [tokens of the passage in the window]."""
        rows = slice(window.row, window.row + window.size)
        longest = min(self.settings.longest_answer, window.size)
        starts = logits[rows, 0].masked_fill(~torch.from_numpy(mine), -torch.inf)
        ends = F.pad(logits[rows, 1], (0, longest - 1), value=-torch.inf).unfold(0, longest, 1)
        sums = starts[:, None] + ends  # [first token, tokens more]
        best = sums.flatten().topk(min(self.settings.n_best, sums.numel()))
        shares = logits.log_softmax(0)
        offsets = window.encoded.offsets
        assert offsets is not None  # windows are located
        found = []
        for logit, cell in zip(best.values.tolist(), best.indices.tolist(), strict=True):
            if logit > -torch.inf:
                first, more = divmod(cell, longest)
                row = window.row + first
                score = float((shares[row, 0] + shares[row + more, 1]).exp())
                found.append(Span(logit, score, int(offsets[row, 0]), int(offsets[row + more, 1])))
        return found

    @property
    def decides(self) -> str:
        """F1."""
        return "f1"

    @property
    def logged(self) -> tuple[str, ...]:
        """F1 and exact match."""
        return ("f1", "exact_match")

    def fit(
        self, outputs: Sequence[Tensor], items: Sequence[Item], examples: Sequence[PassageExample]
    ) -> None:
        """The threshold of no answer with the best F1, where a question may have none."""
        if self._may_be_none:
            found = self.decode(outputs, items, examples)
            self.null_threshold.fill_(-threshold_of(found, examples, self.settings.rules))

    @property
    def kept_facts(self) -> Facts:
        """With the threshold, where a question may have no answer."""
        return self.facts | ({"null_threshold": float(self.null_threshold)} if self._may_be_none else {})

    def score(self, predictions: Sequence[Prediction], examples: Sequence[PassageExample]) -> Scores:
        """As SQuAD 1.1's script has it; SQuAD 2.0's, where a question has no answer; or CMRC 2018's."""
        details, notes = {"moved_answers": _moved(examples)}, [one.said for one in self.remarks(examples)]
        return scored(predictions, examples, self.settings.rules, details, notes)

    @property
    def measure(self) -> str:
        """As in training."""
        return "the mean over its windows of the cross-entropies of the answer's start and end"

    def losses(self, answers: Answers) -> list[float | None]:
        """The loss of each question's windows."""
        found: list[list[float]] = [[] for _ in answers.examples]
        for logits, item in zip(answers.outputs, answers.items, strict=True):
            if item.target is not None:
                start, end = item.target
                shares = logits.log_softmax(0)
                found[item.example].append(-float(shares[start, 0] + shares[end, 1]) / 2)
        return [mean(parts) if parts else None for parts in found]

    def details(self, predictions: Sequence[Prediction], examples: Sequence[PassageExample]) -> Details:
        """How sure the model may be; where questions may have no answer, which were taken for which."""
        return details_of(predictions, examples, self.settings.rules)

    def compared(self, example: PassageExample, prediction: Prediction) -> tuple[str, str]:
        """The answers of people, each once, and the model's."""
        gold = " / ".join(dict.fromkeys(answer or "no answer" for answer in example.gold))
        return gold, prediction["answer"] or "no answer"

    def tallies(
        self, predictions: Sequence[Prediction], examples: Sequence[PassageExample]
    ) -> SufficientStatistics:
        """F1 and exact match over all questions."""
        return tallied(predictions, examples, self.settings.rules)

    def baseline(self, training: Sequence[PassageExample], dev: Sequence[PassageExample]) -> Scores:
        """Always the most frequent answer of the training examples, which may be none."""
        most = Counter(squad.normalize_answer(example.gold[0]) for example in training).most_common(1)[0][0]
        return self.score([{"answer": most, "tokens": 0, "tokens_read": 0}] * len(dev), dev)


def _names(settings: AnswerSettings) -> PassageNames:
    """What the settings call a row's parts."""
    return PassageNames(
        settings.question_column, settings.context_column, settings.answer_column, settings.start_column
    )


def _read_in(cut: Sequence[Window]) -> tuple[int, int]:
    """Tokens of question and passage, and those that the windows hold: all of the passage, and of the question as
    much as the settings read."""
    last = cut[-1]
    passage = last.first + last.size
    return passage + last.encoded.tokens - last.size, passage + last.encoded.kept - last.size


def _letters(examples: Sequence[PassageExample]) -> float:
    """Of an answer, on average; 0 where no question has one."""
    lengths = [len(gold.text) for example in examples for gold in example.answers]
    return round(mean(lengths), 1) if lengths else 0.0


def _moved(examples: Sequence[PassageExample]) -> int:
    return sum(gold.moved for example in examples for gold in example.answers)
