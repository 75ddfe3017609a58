"""What a task is: from a user's file to a score, in one place.

A task is one file and one entry in `TASKS`. It is an objective whose answers people wrote: it owns its heads and
their loss, and besides reads files (`read`), looks through the examples (`learnt`), encodes them (`encode`,
`collate`), and turns what the heads say into answers (`outputs`, `decode`) and scores. The verbs, their options,
tables and pages know tasks only by this; evaluation, prediction and serving share the one `decode`.
"""

from __future__ import annotations

import copy
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Protocol, Self

import numpy as np
import torch
from pydantic import BaseModel
from torch import Tensor, nn

from bertsmith.device import ComputeContext
from bertsmith.errors import InputError, option
from bertsmith.loss import distillation_kl
from bertsmith.metrics.sufficient_statistics import SufficientStatistics
from bertsmith.models.config import ModelConfig
from bertsmith.models.encoder import Encoder
from bertsmith.models.feature_extraction import FeatureExtractor
from bertsmith.models.heads import ProblemType
from bertsmith.objectives.objective import MODEL, ModelParts, Objective
from bertsmith.registry import load_attribute, lookup
from bertsmith.settings import Settings
from bertsmith.tasks.batching import Item, TaskBatch, pack, run_batched
from bertsmith.tasks.data_checks import (
    LabelCounts,
    summarize_labels,
)
from bertsmith.tasks.error_analysis import ErrorAnalysis
from bertsmith.tasks.labels import LabelNames
from bertsmith.tasks.registry import TASKS, OutputFormat, TaskEntry
from bertsmith.tasks.results import DataSummary, Diagnostic, Metrics
from bertsmith.tasks.truncation import Coverage, TruncationStats, group_by_example
from bertsmith.tokenizer.tokenizer import Tokenizer

Facts = Mapping[str, Any]
"""What a task learnt of its training examples besides weights (labels, a tag scheme, a threshold): plain JSON."""

Prediction = dict[str, Any]
"""One example's answer: plain JSON."""


_COUNTS = ("tokens", "tokens_read")  # of a prediction


class HFCheckpoint(Protocol):
    """What a model folder of another tool says of its heads."""

    @property
    def architecture(self) -> str:
        """The field's class."""
        ...

    @property
    def labels(self) -> list[str] | None:
        """Names of the classes by id."""
        ...

    @property
    def problem_type(self) -> str | None:
        """What config.json says of the problem."""
        ...


class NoFacts(BaseModel):
    """Of a task that learns nothing besides weights."""


class Task(Objective):
    """Heads on the encoder, or on what stands between (`features`), their loss, and what their outputs mean.

    name: as `finetune` takes it. summary: what it does, in a line; example_file: a name that its files usually
    have. inputs: what an example is made of, by the names that `predict` takes; those in `optional` may be
    missing. accepts_label_names: whether `learnt` takes names. inherits: parts that are taken over from
    the base model where it has them; all others start anew. facts_type: the kinds of what a folder's facts hold,
    checked before they are used. output_format: the field's own form of a file of answers, which `answer_file`
    writes. baseline_name: what the column of the baseline's scores is called. baseline_reads: whether that looks
    at the texts: it is a rival then, and to score less is not to have learnt nothing. pooled: whether answers of
    several models, of each fold's, may be scored together: not where they are on scales of their own. by_token:
    whether outputs are of tokens, so that only models of one tokenizer can answer together. own_facts: facts that
    may differ between these, numbers chosen on dev among them. hangs_on: what people gave that is lost where its
    place in the text is not read, such as "tag"; "" where it is of the whole text. imitated: what of a teacher's
    answers is (`apart`); "" where nothing can be. lasting: settings that a finished model keeps.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    example_file: ClassVar[str] = "train.csv"
    inputs: ClassVar[tuple[str, ...]] = ("text",)
    optional: ClassVar[tuple[str, ...]] = ()
    accepts_label_names: ClassVar[bool] = False
    inherits: ClassVar[tuple[str, ...]] = ("pooler",)
    facts_type: ClassVar[type[BaseModel]] = NoFacts
    output_format: ClassVar[OutputFormat | None] = None
    baseline_name: ClassVar[str] = "without looking at the text"
    baseline_reads: ClassVar[bool] = False
    hangs_on: ClassVar[str] = ""
    imitated: ClassVar[str] = "shares"
    pooled: ClassVar[bool] = True
    by_token: ClassVar[bool] = False
    own_facts: ClassVar[tuple[str, ...]] = ()
    lasting: ClassVar[tuple[str, ...]] = ("head", "second_encoder")

    def __init__(self, config: ModelConfig, generator: torch.Generator, facts: Facts, settings: Any) -> None:
        """facts: of `learnt`, or of a folder; settings: of `settings_type`."""
        super().__init__()
        self.config, self.facts, self.settings = config, dict(facts), settings
        recurrent = getattr(settings, "head", "linear") == "bilstm"
        self.features = FeatureExtractor(
            config,
            generator,
            getattr(settings, "layers", "last"),
            recurrent=recurrent,
            second_encoder=bool(getattr(settings, "second_encoder", "")),
        )

    @classmethod
    def variant(cls, settings: Any, facts: Facts | None = None) -> type[Task]:
        """The task that these settings mean, or a model with these facts was trained for: another class where the
        path from labels to answers is another."""
        return cls

    def under(self, settings: Any) -> Self:
        """The same heads under other settings: what a finished model is asked with. InputError where what was
        learnt would have to be another."""
        for name in self.lasting:
            if (asked := getattr(settings, name, None)) != (own := getattr(self.settings, name, None)):
                raise InputError(
                    "fixed_setting_changed",
                    f"this model was trained with {own}, not {asked}",
                    argument=name,
                    hint=f"remove {option(name)}, or fine-tune another model",
                )
        other = copy.copy(self)
        other.settings = settings
        return other

    @property
    def layers_read(self) -> list[int]:
        """The layers whose hidden states the heads read; 0 is the embeddings' output."""
        return self.features.layers

    @classmethod
    def settled(cls, settings: Any, base: Path, longest: int) -> Any:
        """Return the settings of training, with open values taken from the base's model folder. longest: tokens
        that the base can take."""
        return settings

    # From a file to examples

    @classmethod
    def read(cls, file: str | Path, settings: Any, *, labelled: bool = True) -> list[Any]:
        """The examples of a file, in its order. InputError with file and line for what is amiss."""
        raise NotImplementedError

    @classmethod
    def of_inputs(
        cls, columns: Mapping[str, Sequence[Any]], settings: Any, places: Sequence[str]
    ) -> list[Any]:
        """Examples without answers, from values that are in no file. columns: by the names in `inputs`; the first
        one's values may be texts, as the command line has them."""
        raise NotImplementedError

    @classmethod
    def columns_of_tuples(cls, settings: Any, width: int) -> list[str]:
        """What the values are where an example is a tuple: the columns that the settings name, in their order."""
        names = (
            getattr(settings, field) for field in type(settings).model_fields if field.endswith("_column")
        )
        return [name for name in names if name is not None]

    @classmethod
    def as_row(cls, example: Any, settings: Any) -> dict[str, Any]:
        """An example as `read` reads it from a jsonl file."""
        raise NotImplementedError

    @classmethod
    def remarks(cls, examples: Sequence[Any]) -> list[Diagnostic]:
        """What people should know of how some examples were read (what was corrected or left out)."""
        return []

    @classmethod
    def learnt(cls, examples: Sequence[Any], settings: Any, names: LabelNames | None) -> Facts:
        """What there is to know of the training examples. names: of the labels, if the user gave them.
        InputError where the examples cannot be learnt from."""
        if names is not None:
            raise InputError(
                "label_names_not_applicable",
                f"the task '{cls.name}' has no labels to name",
                argument="label_names",
                hint=f"remove {option('label_names')}",
            )
        return {}

    @classmethod
    def check_dev(cls, examples: Sequence[Any], facts: Facts) -> None:
        """InputError where an example of dev has an answer that the training examples rule out; asked before
        anything is told or trained."""

    @classmethod
    def facts_of(cls, folder: HFCheckpoint) -> Facts | None:
        """What is known of a model that another tool wrote; None where its heads are not this task's."""
        return None

    @classmethod
    def content(cls, example: Any) -> Hashable:
        """What must not be on both sides of a split: equal texts, questions about one passage."""
        raise NotImplementedError

    @classmethod
    def question(cls, example: Any) -> Hashable:
        """What has one right answer: two examples that are equal in it and differ in their answers contradict each
        other. The content, unless one content is asked about in several ways."""
        return cls.content(example)

    @classmethod
    def asked(cls, example: Any) -> dict[str, str]:
        """Return the inputs of an example as texts by name, to display with its answer."""
        return {}

    @classmethod
    def columns(cls, example: Any) -> Mapping[str, str] | None:
        """The row of the table that an example is, by its columns; None for one of no table."""
        return None

    @classmethod
    def rows(cls, example: Any, prediction: Prediction) -> list[dict[str, Any]]:
        """An answer as rows of a table, for spreadsheets and terminals: what was asked, and what of the answer
        fits into cells (a list with blanks between)."""
        cells = {
            name: " ".join(map(str, value)) if isinstance(value, list) else value
            for name, value in prediction.items()
            if not isinstance(value, dict)
        }
        return [{**cls.asked(example), **cells}]

    @classmethod
    def answer_file(cls, answered: Iterable[tuple[Any, Prediction | None]]) -> Iterator[str]:
        """The whole file in `output_format`, in pieces. answered: each example with its answer, None if there was
        nothing to read. InputError where an example lacks what the form needs, such as an id."""
        raise NotImplementedError

    @classmethod
    def is_empty(cls, example: Any) -> bool:
        """Whether there is nothing to read in an example: it is told, and not predicted."""
        return False

    @classmethod
    def unanswered(cls, prediction: Prediction) -> Prediction:
        """What stands in place of an empty example's prediction where answers are aligned with examples: the same
        keys, marked `empty`; None for all but lists, which are empty as well, and the counts of tokens."""
        kept = {n: v if isinstance(v, list) or n in _COUNTS else None for n, v in prediction.items()}
        return {**kept, "empty": True}

    @classmethod
    def gold(cls, examples: Sequence[Any], facts: Facts) -> Sequence[tuple[str, ...]]:
        """The labels that people gave each example, as the model names them: one for a text, one for each word. A
        label that the model does not have stays as it is. Empty where answers are not labels."""
        return [()] * len(examples)

    @classmethod
    def overview(cls, train: Sequence[Any], dev: Sequence[Any], facts: Facts) -> DataSummary:
        """What the examples are like before anything is learnt: tables of their answers, and what may be a
        mistake, with its places."""
        found: list[Diagnostic] = []
        return cls.overview_of_answers(train, dev, facts) | DataSummary(
            diagnostics=[one for one in found if one]
        )

    @classmethod
    def overview_of_answers(cls, train: Sequence[Any], dev: Sequence[Any], facts: Facts) -> DataSummary:
        """The part of `overview` that depends on what an answer is; of labels, a table of them."""
        of_train, of_dev = (
            LabelCounts.from_pairs(
                (label, example.place)
                for example, gold in zip(part, cls.gold(part, facts), strict=True)
                for label in gold
            )
            for part in (train, dev)
        )
        return (
            summarize_labels(of_train, of_dev, facts.get("labels", ())) if of_train.counts else DataSummary()
        )

    @classmethod
    def stratum(cls, example: Any) -> Hashable | None:
        """What keeps its proportion in a split (a label); None for all where there is no such thing."""
        return None

    # From examples to a batch

    def encode(self, examples: Sequence[Any], tokenizer: Tokenizer) -> list[Item]:
        """Items of sequences that the model can take (`config.longest`), in the order of the examples.
        InputError for an answer that is none of the model's."""
        raise NotImplementedError

    def items(self, examples: Sequence[Any], tokenizer: Tokenizer) -> list[Item]:
        """`encode`, checked against what the model can take: InputError where a second text has a segment id of
        its own and the model knows only one."""
        found = self.encode(examples, tokenizer)
        known = self.config.type_vocab_size
        for item in found if known else ():
            if any(sequence.segments.max(initial=0) >= known for sequence in item.sequences):
                raise InputError(
                    "segments_unsupported",
                    "the second text needs a segment id of its own, and this model has only one",
                    location=examples[item.example].place,
                    hint=f"give single texts, or use a model with {option('model.type_vocab_size', 2)}",
                )
        return found

    def apart(
        self, own: Sequence[Tensor], wanted: Sequence[Tensor], batch: TaskBatch, temperature: float
    ) -> Tensor:
        """How far answers are from a teacher's, summed over what the task's loss counts. own, wanted: of
        `outputs`.

        Where outputs are rows of logits: `loss.distillation_kl`.
        """
        return distillation_kl(torch.cat(list(own)), torch.cat(list(wanted)), temperature)

    @property
    def reads(self) -> int:
        """Tokens of a sequence at most, special ones included."""
        return min(
            self.config.max_length, getattr(self.settings, "max_length", None) or self.config.max_length
        )

    def coverage(self, items: Sequence[Item]) -> Coverage:
        """How much of an example is read. items: all of its own, which are parts of it unless a task says more."""
        sequences = [sequence for item in items for sequence in item.sequences]
        read = sum(sequence.tokens_read for sequence in sequences)
        return Coverage(sum(sequence.tokens for sequence in sequences), read, read)

    def account(self, items: Sequence[Item]) -> TruncationStats:
        """What truncation costs of the examples that these items were made of."""
        special = len(items[0].sequences[0].ids) - items[0].sequences[0].tokens_read if items else 0
        return TruncationStats(
            self.hangs_on, self.reads, special, [self.coverage(some) for some in group_by_example(items)]
        )

    def tensors(self, items: Sequence[Item]) -> tuple[dict[str, Tensor], dict[str, int]]:
        """What the loss and the outputs want to know of a batch besides its text, by name, and the counts of the
        loss. Items without a target have none of the targets' tensors."""
        raise NotImplementedError

    def collate(self, items: Sequence[Item], epoch: int = 0, first: int = 0) -> TaskBatch:
        """Items packed for the model."""
        tensors, counts = self.tensors(items)
        sizes = tuple(len(item.sequences) for item in items)
        return TaskBatch(pack(items), sizes, tensors, counts, epoch, first)

    # From a batch to answers

    @property
    def heads(self) -> Mapping[str, nn.Module]:
        """The heads by the names that a model folder has for them."""
        raise NotImplementedError

    @property
    def parts(self) -> Mapping[str, nn.Module]:
        """What stands between the encoder and the heads, and these, by the names that a model folder has."""
        return {**self.features.parts, **self.heads}

    @property
    def begins_as(self) -> Mapping[str, str]:
        """Heads that begin as another head of the base: the part → the base's. InputError where one cannot."""
        return {}

    @property
    def labels(self) -> list[str] | None:
        """Names of the classes by id, where there are any."""
        return self.facts.get("labels")

    @property
    def problem_type(self) -> ProblemType | None:
        """What the field's config.json calls this problem."""
        return None

    def outputs(self, encoder: Encoder, batch: TaskBatch) -> Sequence[Tensor]:
        """What the heads say of each item: a tensor [r, …] an item, r as the task likes."""
        raise NotImplementedError

    def decode(
        self, outputs: Sequence[Tensor], items: Sequence[Item], examples: Sequence[Any]
    ) -> list[Prediction]:
        """One answer an example. There is no other way from outputs to answers."""
        raise NotImplementedError

    def answers(
        self, encoder: Encoder, items: Sequence[Item], examples: Sequence[Any], place: ComputeContext
    ) -> list[Prediction]:
        """Forward passes over all items, then `decode`."""
        return self.decode(self.outputs_of(encoder, items, place), items, examples)

    def outputs_of(self, encoder: Encoder, items: Sequence[Item], place: ComputeContext) -> list[Tensor]:
        """`outputs` of all items, in their order, on the host."""
        reader = place.autocast_encoder(encoder)
        return run_batched(items, self.collate, lambda batch: self.outputs(reader, batch), place)

    # Several models that answer together

    def together(self, others: Sequence[Self]) -> Self:
        """What decodes for this model and others, an ensemble: with the numbers among `own_facts` averaged over
        all."""
        every = [task.kept_facts for task in (self, *others)]
        facts = {**every[0]}
        for name in self.own_facts:
            values = [facts_of_one.get(name) for facts_of_one in every]
            if all(isinstance(value, int | float | list) for value in values):
                facts[name] = np.mean(np.array(values, dtype=np.float64), axis=0).tolist()
        made = type(self)(self.config, torch.Generator(), facts, self.settings)
        return made.eval()

    def vote(self, output: Tensor) -> Tensor:
        """What this model gives to an ensemble of an item's output: probabilities, where decoding takes them."""
        return output

    def outcome(self, votes: Sequence[Tensor]) -> Tensor:
        """The output that `decode` takes for the votes on an item: that whose own vote is their mean."""
        return torch.stack(list(votes)).mean(0)

    # Choosing on dev, and scores

    def fit(self, outputs: Sequence[Tensor], items: Sequence[Item], examples: Sequence[Any]) -> None:
        """Choose on dev what is no weight, and what `decode` goes by (a threshold, a temperature): before each
        evaluation of a run. It is kept in buffers, so that it goes with the weights of the best evaluation, and
        `kept_facts` has it."""

    @property
    def kept_facts(self) -> Facts:
        """The facts with what `fit` chose: what a model folder keeps, and `facts_type` reads."""
        return self.facts

    @property
    def decides(self) -> str:
        """The score by which the best epoch is kept; higher is better."""
        raise NotImplementedError

    @property
    def logged(self) -> tuple[str, ...]:
        """The scores of an evaluation on the way that are written into the log; `decides` is one."""
        return (self.decides,)

    def score(self, predictions: Sequence[Prediction], examples: Sequence[Any]) -> Metrics:
        """The task's scores, as the field's scripts have them; the examples hold the gold answers."""
        raise NotImplementedError

    # What a report shows besides

    @property
    def measure(self) -> str:
        """What `losses` are, in words."""
        return ""

    def losses(self, answers: Any) -> list[float | None]:
        """How wrong each answer is; None where that is not known."""
        return [None] * len(answers.examples)

    def details(self, predictions: Sequence[Prediction], examples: Sequence[Any]) -> ErrorAnalysis:
        """What a report shows beside the scores."""
        return {}

    def compared(self, example: Any, prediction: Prediction) -> tuple[str, str]:
        """The right answer and the model's, in words."""
        rows = [row.get("prediction") for row in self.rows(example, prediction)]
        gold = self.gold([example], self.facts)[0]
        return ", ".join(gold), ", ".join(str(cell) for cell in rows if cell is not None)

    def tallies(
        self, predictions: Sequence[Prediction], examples: Sequence[Any]
    ) -> SufficientStatistics | None:
        """Those of the scores that are functions of sums over examples, equal to what `score` has: of many
        resamples they are had in no time. None where there are none."""
        return None

    def baseline(self, training: Sequence[Any], dev: Sequence[Any]) -> Metrics:
        """What an answer that never looks at the text would score on dev."""
        raise NotImplementedError

    def export(self, encoder: Encoder) -> dict[str, ModelParts]:
        """One model: the encoder and the heads."""
        modules = {"encoder": encoder, **self.parts}
        return {MODEL: ModelParts(self.config, modules, self.labels, self.problem_type)}


def refuse_too_long(settings: Settings, longest: int) -> None:
    """InputError for a max_length above what a model can take, in tokens."""
    asked = getattr(settings, "max_length", None)
    if asked is not None and asked > longest:
        raise InputError(
            "max_length_too_large",
            f"this model reads at most {longest:,} tokens, not {asked:,}",
            argument="max_length",
            hint=f"use {option('max_length', longest)} or less",
        )


def task_type(name: str) -> type[Task]:
    """The task of this name; InputError if there is none."""
    known: Any = lookup(TASKS, name, f"there is no task {name!r}", "task")
    task_class: type[Task] = load_attribute(known.home) if isinstance(known, TaskEntry) else known
    return task_class


def task_of(folder: HFCheckpoint, place: str) -> tuple[type[Task], Facts]:
    """The task that a model of another tool was trained for, by its class, its labels and its problem type.
    InputError that names its heads where it is none of ours."""
    for name in TASKS:
        kind = task_type(name)
        if (facts := kind.facts_of(folder)) is not None:
            return kind.variant(kind.settings_type(), facts), facts
    said = f" ({folder.problem_type})" if folder.problem_type else ""
    raise InputError(
        "unsupported_architecture",
        f"bertsmith has no task for the heads of {folder.architecture}{said}",
        location=place,
        hint=f"use a model for one of the tasks {', '.join(TASKS)}",
    )
