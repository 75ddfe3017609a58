"""Multiple choice: which choice is right for a context, a question, or both (Devlin et al. 2019, section 4.4).

A choice is read as `[CLS] context [SEP] question choice [SEP]`, RACE's published form; without one of both,
`[CLS] context [SEP] choice [SEP]`. A vector gives each a score, and the softmax runs over the example's own
choices, of which each example may have another number. What does not fit is cut from the context's end, so that
choices are read whole; only where question and choice alone are too long is the end of these lost, too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice, zip_longest
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from bertsmith.errors import InputError
from bertsmith.formatting import pluralize
from bertsmith.loss import Loss, distillation_kl
from bertsmith.metrics.sufficient_statistics import SufficientStatistics, mean_statistics
from bertsmith.models.config import ModelConfig
from bertsmith.models.encoder import Encoder
from bertsmith.models.heads import MultipleChoiceHead
from bertsmith.tasks.data_checks import refuse_repeated_ids, repeats
from bertsmith.tasks.error_analysis import Answers, Details, cross_entropy, of_labels
from bertsmith.tasks.items import Encoded, Item, TaskBatch, log_of
from bertsmith.tasks.multiple_choice.choice_rows import check_choices, read_choices
from bertsmith.tasks.registry import CHOOSE
from bertsmith.tasks.scores import Finding, Overview, Scores, ScoreTable, told_of_cuts
from bertsmith.tasks.settings import ChooseSettings
from bertsmith.tasks.task import Facts, Foreign, Prediction, Task
from bertsmith.tasks.truncation import Coverage
from bertsmith.tasks.windows import UNCUT, part_of
from bertsmith.tokenizer.tokenizer import Encoding, Tokenizer

_AT_ONCE = 512  # examples that are encoded together: uncut encodings are large


@dataclass(frozen=True)
class ChoiceExample:
    """A context and a question ("" where there is none), the choices, the index of the right one (None where it is
    not known), its place; the file's own name for it, and the row of the table that it is."""

    context: str
    question: str
    choices: tuple[str, ...]
    right: int | None
    place: str
    number: str | None = None
    row: Mapping[str, str] | None = field(default=None, compare=False, repr=False)

    def pairs(self) -> list[tuple[str, str]]:
        """For each choice the text before the separator and the one behind it."""
        if self.context and self.question:
            return [(self.context, f"{self.question} {choice}") for choice in self.choices]
        return [(self.context or self.question, choice) for choice in self.choices]


class Choose(Task):
    """The pooler and one vector; cross-entropy over the choices of each example."""

    name = "choose"
    summary = CHOOSE.summary
    example_file = CHOOSE.example_file
    inputs = ("context", "choices", "question")
    optional = ("choices", "question")
    settings_type = CHOOSE.settings_type
    settings: ChooseSettings

    def __init__(
        self, config: ModelConfig, generator: torch.Generator, facts: Facts, settings: ChooseSettings
    ) -> None:
        """facts: none are needed."""
        super().__init__(config, generator, facts, settings)
        self.head = MultipleChoiceHead(config, generator)

    @property
    def heads(self) -> Mapping[str, nn.Module]:
        """Pooler and vector."""
        heads: Mapping[str, nn.Module] = self.head.parts
        return heads

    # From a file to examples

    @classmethod
    def read(
        cls, file: str | Path, settings: ChooseSettings, *, labelled: bool = True
    ) -> list[ChoiceExample]:
        """The questions of a file, in its order (see `files.choices`). InputError with its place for what is
        amiss, and for an id that occurs twice."""
        found = read_choices(
            file,
            labelled=labelled,
            names=settings.file_names,
            delimiter=settings.delimiter,
            header=settings.header,
            encoding=settings.encoding,
        )
        examples = [ChoiceExample(*one) for one in found]
        if not examples:
            raise InputError(
                "no_examples",
                "this file has no questions",
                location=file,
                hint="give a file with at least one question",
            )
        refuse_repeated_ids((example.number, example.place) for example in examples)
        return examples

    @classmethod
    def of_inputs(
        cls, columns: Mapping[str, Sequence[Any]], settings: ChooseSettings, places: Sequence[str]
    ) -> list[ChoiceExample]:
        """Contexts with lists of choices, and questions where there are any; or in one text the context and its
        choices, with a tab between."""
        contexts = columns["context"]
        questions = columns.get("question") or [""] * len(contexts)
        choices: Sequence[Any] = columns.get("choices") or []
        if "choices" not in columns:
            parted = [_parted(text, place) for text, place in zip(contexts, places, strict=True)]
            contexts, choices = [one[0] for one in parted], [one[1:] for one in parted]
        rows = zip(contexts, questions, choices, places, strict=True)
        return [_of_values(*row) for row in rows]

    @classmethod
    def columns_of_tuples(cls, settings: ChooseSettings, width: int) -> list[str]:
        """Context, choices, label; with a question, that behind the context."""
        choices = settings.choice_columns
        asked = [settings.question_column or "question"] if width > 2 + len(choices) else []
        label = settings.label_column or "label"
        return [settings.context_column or "context", *asked, *choices, label]

    @classmethod
    def as_row(cls, example: ChoiceExample, settings: ChooseSettings) -> dict[str, Any]:
        """Context, question, choices, and the index of the right one."""
        number = {} if example.number is None else {"id": example.number}
        columns, choices = settings.choice_columns, list(example.choices)
        texts = {
            settings.context_column or "context": example.context,
            settings.question_column or "question": example.question,
            **(
                dict(zip_longest(columns, choices, fillvalue=""))
                if len(columns) > 1
                else {columns[0]: choices}
            ),
        }
        right = None if example.right is None else example.right + settings.first_index
        return {**number, **texts, settings.label_column or "label": right}

    @classmethod
    def remarks(cls, examples: Sequence[ChoiceExample]) -> list[Finding]:
        """How many choices have no text."""
        blank = [e.place for e in examples for choice in e.choices if not choice.strip()]
        if not blank:
            return []
        what = f"{pluralize(len(blank), 'choice has', 'choices have')} no text"
        return [Finding("choices without any text", what, blank)]

    @classmethod
    def facts_of(cls, folder: Foreign) -> Facts | None:
        """The field's class says it all."""
        return {} if folder.architecture.endswith("ForMultipleChoice") else None

    @classmethod
    def content(cls, example: ChoiceExample) -> str:
        """The context: questions about one stay on one side of a split; or the question."""
        return example.context or example.question

    @classmethod
    def question(cls, example: ChoiceExample) -> Hashable:
        """Context, question and choices, in whatever order."""
        return example.context, example.question, tuple(sorted(example.choices))

    @classmethod
    def asked(cls, example: ChoiceExample) -> dict[str, str]:
        """The question; where there is none, the context."""
        return {"question": example.question} if example.question else {"context": example.context}

    @classmethod
    def columns(cls, example: ChoiceExample) -> Mapping[str, str] | None:
        """The whole row of its file."""
        return example.row

    @classmethod
    def rows(cls, example: ChoiceExample, prediction: Prediction) -> list[dict[str, Any]]:
        """What was asked, the choice's index and text, and its probability."""
        number = {} if example.number is None else {"id": example.number}
        found = {"choice": prediction["choice"], "prediction": prediction["text"]}
        return [{**number, **cls.asked(example), **found, "score": prediction["score"]}]

    @classmethod
    def is_empty(cls, example: ChoiceExample) -> bool:
        """No choice: a blank row."""
        return not example.choices

    @classmethod
    def gold(cls, examples: Sequence[ChoiceExample], facts: Facts) -> list[tuple[str, ...]]:
        """The right choice's text."""
        return [() if e.right is None else (e.choices[e.right],) for e in examples]

    @classmethod
    def overview_of_answers(
        cls, train: Sequence[ChoiceExample], dev: Sequence[ChoiceExample], facts: Facts
    ) -> Overview:
        """How often each position is the right one, how many choices there are, which examples are repeated."""
        parts = {"train": train, "dev": dev}
        times = {name: Counter(str(e.right) for e in part) for name, part in parts.items()}
        sizes = {name: Counter(len(e.choices) for e in part) for name, part in parts.items()}
        most = max((n for counts in sizes.values() for n in counts), default=0)
        rows = []
        for position in map(str, range(most)):
            cells = [
                cell
                for name, part in parts.items()
                for cell in (f"{times[name][position]:,}", f"{times[name][position] / max(1, len(part)):.1%}")
            ]
            rows.append([position, *cells])
        low = min((n for counts in sizes.values() for n in counts), default=0)
        title = f"position of the right choice ({low if low == most else f'{low} to {most}'} choices)"
        table = ScoreTable(title, ["position", "train", "share", "dev", "share"], rows)
        findings = [
            Finding(
                "one position for all",
                f"the right choice of all {name} examples is at position {next(iter(times[name]))}",
                so="is the label read from the right column?",
            )
            for name, part in parts.items()
            if len(part) > 1 and len(times[name]) == 1
        ]
        if found := repeats(((cls.question(e), cls.gold([e], facts)[0]), e.place) for e in train):
            findings.append(found)
        details = {
            "positions": {name: dict(sorted(counts.items())) for name, counts in times.items()},
            "choices": {
                name: {str(n): k for n, k in sorted(counts.items())} for name, counts in sizes.items()
            },
        }
        return Overview(details, [table], findings)

    # From examples to a batch

    def encode(self, examples: Sequence[ChoiceExample], tokenizer: Tokenizer) -> list[Item]:
        """An item an example, a sequence a choice; none for an example without choices."""
        limit = self.reads
        items = []
        for start in range(0, len(examples), _AT_ONCE):
            some = list(enumerate(examples[start : start + _AT_ONCE], start))
            some = [(number, example) for number, example in some if example.choices]
            pairs = [pair for _, example in some for pair in example.pairs()]
            firsts, seconds = [first for first, _ in pairs], [second for _, second in pairs]
            encodings = tokenizer.encode_batch(firsts, seconds, max_length=UNCUT)
            cut = (
                _within(encoding, limit, pair, tokenizer)
                for encoding, pair in zip(encodings, pairs, strict=True)
            )
            items += [
                Item(number, tuple(islice(cut, len(example.choices))), example.right)
                for number, example in some
            ]
        return items

    def coverage(self, items: Sequence[Item]) -> Coverage:
        """Of the sequence that is cut most, as `decode` has it."""
        worst = _most_cut(items[0])
        return Coverage(worst.tokens, worst.kept, worst.kept)

    def tensors(self, items: Sequence[Item]) -> tuple[dict[str, Tensor], dict[str, int]]:
        """`right`: long [B], indices among each item's own choices."""
        if any(item.target is None for item in items):
            return {}, {}
        return {"right": torch.tensor([item.target for item in items])}, {"task": len(items)}

    def loss(self, encoder: Encoder, batch: TaskBatch) -> Loss:
        """Summed cross-entropy over the examples, each over its own choices."""
        logits = pad_sequence(
            list(self.outputs(encoder, batch)), batch_first=True, padding_value=-torch.inf
        )  # [B, most choices]
        wanted = batch.tensors["right"]
        right = (logits.detach().argmax(-1) == wanted).sum()
        return Loss({"task": F.cross_entropy(logits, wanted, reduction="sum")}, batch.counts, {"task": right})

    # From a batch to answers

    def outputs(self, encoder: Encoder, batch: TaskBatch) -> Sequence[Tensor]:
        """Logits [n] of an item's n choices."""
        found: Tensor = self.head(self.features.sequence_features(encoder, batch.packed))
        return torch.split(found.float(), list(batch.sizes))

    def apart(
        self, own: Sequence[Tensor], wanted: Sequence[Tensor], batch: TaskBatch, temperature: float
    ) -> Tensor:
        """Over each question's own choices."""
        return torch.stack(
            [distillation_kl(a, b, temperature) for a, b in zip(own, wanted, strict=True)]
        ).sum()

    def decode(
        self, outputs: Sequence[Tensor], items: Sequence[Item], examples: Sequence[ChoiceExample]
    ) -> list[Prediction]:
        """The choice's index and text, its probability, those of all choices, and of the sequence that was cut
        most its tokens and those read. Of equal scores the first wins."""
        nothing: Prediction = {
            "choice": None,
            "text": None,
            "score": None,
            "scores": [],
            "tokens": 0,
            "tokens_read": 0,
        }
        found: list[Prediction] = [{**_id(example), **nothing} for example in examples]
        for logits, item in zip(outputs, items, strict=True):
            shares = logits.softmax(0).tolist()
            best = max(range(len(shares)), key=shares.__getitem__)
            worst = _most_cut(item)
            found[item.example] |= {
                "choice": best,
                "text": examples[item.example].choices[best],
                "score": shares[best],
                "scores": shares,
                "tokens": worst.tokens,
                "tokens_read": worst.kept,
            }
        return found

    def vote(self, output: Tensor) -> Tensor:
        """Probabilities."""
        return output.double().softmax(0)

    def outcome(self, votes: Sequence[Tensor]) -> Tensor:
        """Their mean, as logits."""
        return log_of(super().outcome(votes))

    @property
    def decides(self) -> str:
        """Accuracy."""
        return "accuracy"

    def score(self, predictions: Sequence[Prediction], examples: Sequence[ChoiceExample]) -> Scores:
        """Accuracy, by numbers of choices where these differ, and what choosing by chance would have."""
        right = [p["choice"] == e.right for p, e in zip(predictions, examples, strict=True)]
        cuts, notes = told_of_cuts(predictions)
        of_size: dict[int, list[bool]] = {}
        for hit, example in zip(right, examples, strict=True):
            of_size.setdefault(len(example.choices), []).append(hit)
        by_choices = {
            str(n): {"accuracy": sum(hits) / len(hits), "examples": len(hits)}
            for n, hits in sorted(of_size.items())
        }
        tables = []
        if len(of_size) > 1:
            rows = [[n, f"{row['accuracy']:.4f}", f"{row['examples']:,}"] for n, row in by_choices.items()]
            tables.append(ScoreTable("", ["choices", "accuracy", "examples"], rows))
        number = max(1, len(examples))
        chance = sum(1 / max(1, len(example.choices)) for example in examples) / number
        numbers = {"accuracy": sum(right) / number, "examples": len(examples)}
        return Scores(numbers, {**cuts, "chance": chance, "choices": by_choices}, tables, notes)

    @property
    def measure(self) -> str:
        """Of the right choice."""
        return "minus the logarithm of the right choice's probability"

    def losses(self, answers: Answers) -> list[float | None]:
        """Of the probabilities that are answered."""
        return [
            cross_entropy(p["scores"][e.right]) if p["scores"] and e.right is not None else None
            for p, e in zip(answers.predictions, answers.examples, strict=True)
        ]

    def details(self, predictions: Sequence[Prediction], examples: Sequence[ChoiceExample]) -> Details:
        """Which positions are taken for which, and how sure the model may be."""
        pairs = [(p, e) for p, e in zip(predictions, examples, strict=True) if p["choice"] is not None]
        truth, guess = [str(e.right) for _, e in pairs], [str(p["choice"]) for p, _ in pairs]
        positions = [str(i) for i in range(max((len(e.choices) for _, e in pairs), default=0))]
        return of_labels("positions", truth, guess, [p["score"] for p, _ in pairs], positions)

    def tallies(
        self, predictions: Sequence[Prediction], examples: Sequence[ChoiceExample]
    ) -> SufficientStatistics:
        """Accuracy."""
        right = [p["choice"] == e.right for p, e in zip(predictions, examples, strict=True)]
        return mean_statistics({"accuracy": right})

    def baseline(self, training: Sequence[ChoiceExample], dev: Sequence[ChoiceExample]) -> Scores:
        """Always the position that is the right one most often in training; the last one where there are fewer."""
        times = Counter(example.right for example in training)
        most = min((p for p in times if p is not None), key=lambda position: (-times[position], position))
        return self.score(
            [{"choice": min(most, len(e.choices) - 1), "tokens": 0, "tokens_read": 0} for e in dev], dev
        )


def _most_cut(item: Item) -> Encoded:
    """The sequence of an item that lost the most tokens; of equal ones the longest."""
    return max(item.sequences, key=lambda sequence: (sequence.tokens - sequence.kept, sequence.tokens))


def _id(example: ChoiceExample) -> dict[str, str]:
    return {} if example.number is None else {"id": example.number}


def _parted(text: Any, place: str) -> list[str]:
    """A context and its choices, written with a tab between; nothing of a blank one."""
    if not isinstance(text, str):
        raise InputError(
            "text_not_a_string",
            f"{text!r:.60} is not a string",
            location=place,
            argument="context",
            hint="give each context as a string",
        )
    if not text.strip():
        return [""]
    parts = text.split("\t")
    if len(parts) < 3:
        raise InputError(
            "choices_missing",
            "there are no choices",
            location=place,
            argument="choices",
            hint="give them: in Python as a list of texts for each context, in a file as a column, or on the line "
            "of the context with tabs between them",
        )
    return parts


def _of_values(context: Any, question: Any, choices: Any, place: str) -> ChoiceExample:
    """An example of values that are in no file."""
    for name, text in (("context", context), ("question", question)):
        if not isinstance(text, str):
            raise InputError(
                "text_not_a_string",
                f"{text!r:.60} is not a string",
                location=place,
                argument=name,
                hint=f"give each {name} as a string",
            )
    if isinstance(choices, str) and choices:
        raise InputError(
            "choices_not_a_list",
            f"the choices {choices!r:.60} are a single text",
            location=place,
            argument="choices",
            hint="give a list of texts",
        )
    choices = list(choices)
    if not choices and not context.strip() and not question.strip():
        return ChoiceExample("", "", (), None, place)
    return ChoiceExample(context, question, check_choices(choices, place), None, place)


def _within(encoding: Encoding, limit: int, pair: tuple[str, str], tokenizer: Tokenizer) -> Encoded:
    """A sequence of at most `limit` tokens: without the end of the first text, of which a token stays; where the
    second alone is too long, the longer one gives until both fit. encoding: of the pair, uncut."""
    excess, first = len(encoding.ids) - limit, encoding.sequence_ids.count(0)
    if excess <= 0:
        return Encoded.of(encoding)
    if excess < first:
        return part_of(encoding, 0, first - excess).encoded
    return Encoded.of(tokenizer.encode(*pair, max_length=limit))
