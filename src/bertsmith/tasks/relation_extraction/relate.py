"""Relations: how two entities that are marked in a text are related.

The entities are marked in the text itself by characters that any vocabulary has, `@ child @` and `# cradle #`
(Zhou and Chen 2022, "entity marker (punct)"), so the vocabulary does not grow. The hidden states at the opening
markers are joined, dropped, and lead to the labels (Baldini Soares et al. 2019, "entity start"). Where the markers
are is known from their offsets: the text may have other @ and #. Of a text too long for the model the window is
read that holds both entities with as much context before as behind.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertsmith.errors import InputError, option
from bertsmith.loss import Loss
from bertsmith.metrics.relations import (
    RelationCounts,
    count_relations,
    has_direction,
    macro_f1,
    micro_f1,
    relation_statistics,
)
from bertsmith.metrics.sufficient_statistics import SufficientStatistics
from bertsmith.models.config import ModelConfig
from bertsmith.models.encoder import Encoder
from bertsmith.models.heads import RelationHead
from bertsmith.tasks.data_checks import repeats
from bertsmith.tasks.error_analysis import Answers, Details, cross_entropy, of_labels
from bertsmith.tasks.items import Item, TaskBatch, log_of
from bertsmith.tasks.labels import LabelFacts, Names, Naming, facts_of_names, in_order
from bertsmith.tasks.registry import RELATE
from bertsmith.tasks.relation_extraction.relation_rows import tagged
from bertsmith.tasks.relation_extraction.relations import (
    RelationExample,
    example_of,
    names_of,
    read_examples,
    with_markers,
)
from bertsmith.tasks.scores import Overview, Scores, ScoreTable, told_of_cuts
from bertsmith.tasks.settings import RelateSettings
from bertsmith.tasks.task import Facts, Foreign, Prediction, Task
from bertsmith.tasks.truncation import Coverage
from bertsmith.tasks.windows import UNCUT, part_of
from bertsmith.tokenizer.tokenizer import Encoding, Tokenizer

_NONE = ("other", "no_relation", "na")  # what "no relation" is called in published data, whatever its case


@dataclass(frozen=True)
class RelationItem(Item):
    """A text, or its window. rows: of the opening markers of head and tail, in the sequence."""

    rows: tuple[int, int] = (0, 0)


class RelationFacts(LabelFacts):
    """The labels, and which of them means that there is no relation."""

    none: str | None = None


class Relate(Task):
    """Two hidden states, joined, and a linear layer; cross-entropy.

    Facts: `labels` by id; `numbered`: the data may give ids in place of labels, or `codes`; `none`: the label that
    means no relation, if there is one.
    """

    name = "relate"
    summary = RELATE.summary
    hangs_on = "relation"
    example_file = RELATE.example_file
    inputs = ("text", "head", "tail")
    optional = ("head", "tail")
    inherits = ()
    may_name_labels = RELATE.may_name_labels
    settings_type = RELATE.settings_type
    answer_form = RELATE.answer_form
    settings: RelateSettings
    facts_type = RelationFacts

    def __init__(
        self, config: ModelConfig, generator: torch.Generator, facts: Facts, settings: RelateSettings
    ) -> None:
        super().__init__(config, generator, facts, settings)
        self._names: list[str] = facts["labels"]
        self._naming = Naming.of(facts)
        self.head = RelationHead(config, generator, len(self._names))

    @property
    def heads(self) -> Mapping[str, nn.Module]:
        """The classifier of relations."""
        heads: Mapping[str, nn.Module] = self.head.parts
        return heads

    # From a file to examples

    @classmethod
    def read(
        cls, file: str | Path, settings: RelateSettings, *, labelled: bool = True
    ) -> list[RelationExample]:
        """The examples of a file, in its order. InputError with its place for what is amiss."""
        return read_examples(file, settings, labelled=labelled)

    @classmethod
    def of_inputs(
        cls, columns: Mapping[str, Sequence[Any]], settings: RelateSettings, places: Sequence[str]
    ) -> list[RelationExample]:
        """Texts with the tags inside; or with two [start, end) in characters beside each, or lists of words with
        two in words."""
        texts = columns["text"]
        if ("head" in columns) != ("tail" in columns):
            raise InputError(
                "head_without_tail",
                "only one of head and tail is given",
                argument="tail" if "head" in columns else "head",
                hint="give both, or mark both entities by tags in the texts",
            )
        pairs: Any = (
            zip(columns["head"], columns["tail"], strict=True) if "head" in columns else [None] * len(texts)
        )
        return [example_of(*row) for row in zip(texts, pairs, places, strict=True)]

    @classmethod
    def columns_of_tuples(cls, settings: RelateSettings, width: int) -> list[str]:
        """A tagged text and its relation; with spans, these between."""
        text, head, tail, relation = (name or known for known, name in names_of(settings)._asdict().items())
        return [text, relation] if width < 4 else [text, head, tail, relation]

    @classmethod
    def as_row(cls, example: RelationExample, settings: RelateSettings) -> dict[str, Any]:
        """The text, both spans, the relation."""
        number = {} if example.number is None else {"id": example.number}
        own = {
            "text": example.text,
            "head": list(example.head),
            "tail": list(example.tail),
            "relation": example.relation,
        }
        names = names_of(settings)._asdict()
        return {**number, **{names[part] or part: value for part, value in own.items()}}

    @classmethod
    def learnt(
        cls, examples: Sequence[RelationExample], settings: RelateSettings, names: Names | None
    ) -> Facts:
        """The labels, sorted, or the names given for their numbers or codes; which of them means no relation."""
        given = {str(example.relation): example.place for example in reversed(examples)}
        found: dict[str, Any] = (
            {"labels": in_order(given), "numbered": False} if names is None else facts_of_names(names)
        )
        labels, naming = found["labels"], Naming.of(found)
        for label, place in given.items():
            if naming.id(label) is None:
                raise InputError(
                    "label_not_named",
                    f"the relation '{label}' is not among the label names",
                    location=place,
                    argument="label_names",
                    hint=f"name all relations with {option('label_names')}",
                )
        if len(labels) < 2:
            raise InputError(
                "single_label",
                f"all examples have the relation '{labels[0]}'",
                location=examples[0].place,
                argument="label_column",
                hint=f"two relations or more are needed; check {option('label_column')}",
            )
        return {**found, "none": _none_of(labels, settings.none_label)}

    @classmethod
    def facts_of(cls, folder: Foreign) -> Facts | None:
        """Of a folder of ours whose record is lost."""
        labels = folder.labels
        if not folder.architecture.endswith("ForEntityPairClassification") or not labels or len(labels) < 2:
            return None
        return {"labels": labels, "numbered": True, "none": _none_of(labels, None)}

    @classmethod
    def content(cls, example: RelationExample) -> str:
        """The text: pairs of entities in one stay on one side of a split."""
        return example.text

    @classmethod
    def question(cls, example: RelationExample) -> Hashable:
        """The text with its entities."""
        return example.text, example.head, example.tail

    @classmethod
    def asked(cls, example: RelationExample) -> dict[str, str]:
        """The text with the tags in it."""
        return {"text": tagged(example.text, example.head, example.tail) if example.text else ""}

    @classmethod
    def columns(cls, example: RelationExample) -> Mapping[str, str] | None:
        """The whole row of its file."""
        return example.row

    @classmethod
    def rows(cls, example: RelationExample, prediction: Prediction) -> list[dict[str, Any]]:
        """The tagged text, its relation, and the relation's probability."""
        number = {} if example.number is None else {"id": example.number}
        found = {"prediction": prediction["label"], "score": prediction["score"]}
        return [{**number, **cls.asked(example), **found}]

    @classmethod
    def answer_file(cls, answered: Iterable[tuple[RelationExample, Prediction | None]]) -> Iterator[str]:
        """What SemEval's scorer reads: a line with the example's number and its relation; counted from 1 where the
        file has no numbers. An empty text, which has no answer, has no line."""
        for place, (example, prediction) in enumerate(answered, start=1):
            if prediction is not None:
                yield f"{place if example.number is None else example.number}\t{prediction['label']}\n"

    @classmethod
    def is_empty(cls, example: RelationExample) -> bool:
        """No text."""
        return not example.text

    @classmethod
    def gold(cls, examples: Sequence[RelationExample], facts: Facts) -> list[tuple[str, ...]]:
        """The relation, by its name."""
        naming = Naming.of(facts)
        return [() if e.relation is None else (naming.name(e.relation),) for e in examples]

    @classmethod
    def overview_of_answers(
        cls, train: Sequence[RelationExample], dev: Sequence[RelationExample], facts: Facts
    ) -> Overview:
        """The table of labels, and which examples are repeated."""
        found = repeats(((cls.question(e), e.relation), e.place) for e in train)
        return super().overview_of_answers(train, dev, facts) | Overview(findings=[found] if found else [])

    @classmethod
    def stratum(cls, example: RelationExample) -> Hashable:
        """The relation."""
        return example.relation

    # From examples to a batch

    def encode(self, examples: Sequence[RelationExample], tokenizer: Tokenizer) -> list[Item]:
        """[CLS] the marked text, or its window, [SEP]; no item for an empty text. InputError where both entities
        do not fit into what the model takes."""
        self._refuse_strangers(examples)
        limit = self.reads
        some = [(number, example) for number, example in enumerate(examples) if example.text]
        texts = [with_markers(example) for _, example in some]
        encodings = tokenizer.encode_batch([text for text, _ in texts], max_length=UNCUT)
        return [
            self._item(number, example, encoding, places, limit)
            for (number, example), encoding, (_, places) in zip(some, encodings, texts, strict=True)
        ]

    def _item(
        self,
        number: int,
        example: RelationExample,
        encoding: Encoding,
        places: Sequence[tuple[int, int]],
        limit: int,
    ) -> RelationItem:
        """places: the characters of each entity's two markers, head and tail, in the marked text."""
        own = [
            offset
            for offset, source in zip(encoding.offsets, encoding.sequence_ids, strict=True)
            if source == 0
        ]
        ends = np.array([end for _, end in own])
        (head, head_end), (tail, tail_end) = (
            np.searchsorted(ends, pair, side="right").tolist() for pair in places
        )
        first, last = min(head, tail), max(head_end, tail_end)
        room = limit - (len(encoding.ids) - len(own))
        if last >= len(own) or last + 1 - first > room:
            raise InputError(
                "entities_too_far_apart",
                f"the two entities and the text between them have {last + 1 - first} tokens, and the model reads "
                f"{room}",
                location=example.place,
                argument="max_length",
                hint=f"raise {option('max_length')}, or remove this example",
            )
        spare = room - (last + 1 - first)
        begin = max(0, min(first - spare // 2, len(own) - room))
        window = part_of(encoding, begin, min(room, len(own)))
        rows = tuple(window.row + row - begin for row in (head, tail))
        return RelationItem(number, (window.encoded,), self._target(example), begin, rows=(rows[0], rows[1]))

    def coverage(self, items: Sequence[Item]) -> Coverage:
        """The window around both entities, which would be lost where a marker is behind the first tokens."""
        (item,) = items
        assert isinstance(item, RelationItem)
        (read,) = item.sequences
        assert read.sources is not None
        last = item.first + max(item.rows) - int(np.argmax(read.sources == 0))
        return Coverage(read.tokens, read.kept, read.kept, 1, 1, 1, int(last < read.kept))

    def _target(self, example: RelationExample) -> int | None:
        """-1 for a relation that training did not have: whatever the model says is wrong there."""
        if example.relation is None:
            return None
        found = self._naming.id(example.relation)
        return -1 if found is None else found

    def _refuse_strangers(self, examples: Sequence[RelationExample]) -> None:
        """A rare relation may be new; where all are, they are another model's."""
        found = {example.relation for example in examples if example.relation is not None}
        if found and all(self._naming.id(relation) is None for relation in found):
            raise self._naming.unknown(min(found), examples[0].place, "label_column")

    def tensors(self, items: Sequence[Item]) -> tuple[dict[str, Tensor], dict[str, int]]:
        """`rows`: long [B, 2], of the opening markers among all tokens of the batch; `label`: long [B]."""
        rows, start = [], 0
        for item in items:
            assert isinstance(item, RelationItem)
            rows.append([start + row for row in item.rows])
            start += item.size
        tensors = {"rows": torch.tensor(rows)}
        if any(item.target is None for item in items):
            return tensors, {}
        return {**tensors, "label": torch.tensor([item.target for item in items])}, {"task": len(items)}

    # From a batch to answers

    def logits(self, encoder: Encoder, batch: TaskBatch) -> Tensor:
        """[B, labels], fp32."""
        rows = batch.tensors["rows"].flatten()
        found: Tensor = self.head(self.features(encoder, batch.packed, rows))
        return found.float()

    def loss(self, encoder: Encoder, batch: TaskBatch) -> Loss:
        """Summed cross-entropy over the examples."""
        logits, wanted = self.logits(encoder, batch), batch.tensors["label"]
        right = (logits.detach().argmax(-1) == wanted).sum()
        return Loss({"task": F.cross_entropy(logits, wanted, reduction="sum")}, batch.counts, {"task": right})

    def outputs(self, encoder: Encoder, batch: TaskBatch) -> Sequence[Tensor]:
        """A row an example."""
        return torch.split(self.logits(encoder, batch), 1)

    def decode(
        self, outputs: Sequence[Tensor], items: Sequence[Item], examples: Sequence[RelationExample]
    ) -> list[Prediction]:
        """The relation as `label`, its probability, all probabilities, tokens of the text with its markers, and
        tokens read."""
        nothing: Prediction = {"label": None, "score": None, "scores": {}, "tokens": 0, "tokens_read": 0}
        found = [
            {**({} if example.number is None else {"id": example.number}), **nothing} for example in examples
        ]
        for logits, item in zip(outputs, items, strict=True):
            shares = logits[0].softmax(-1).tolist()
            best = max(range(len(shares)), key=shares.__getitem__)
            found[item.example] |= {
                "label": self._names[best],
                "score": shares[best],
                "scores": dict(zip(self._names, shares, strict=True)),
                "tokens": item.sequences[0].tokens,
                "tokens_read": item.sequences[0].kept,
            }
        return found

    @property
    def _none(self) -> str | None:
        """The label that means no relation, as the settings have it, else as training found it."""
        chosen = self.settings.none_label
        found: str | None = self.facts.get("none") if chosen is None else _none_of(self._names, chosen)
        return found

    def vote(self, output: Tensor) -> Tensor:
        """Probabilities."""
        return output.double().softmax(-1)

    def outcome(self, votes: Sequence[Tensor]) -> Tensor:
        """Their mean, as logits."""
        return log_of(super().outcome(votes))

    @property
    def decides(self) -> str:
        """SemEval's macro F1 where relations have directions, else micro F1, as for TACRED."""
        return "macro_f1" if any(map(has_direction, self._names)) else "micro_f1"

    @property
    def logged(self) -> tuple[str, ...]:
        """All three."""
        return ("macro_f1", "micro_f1", "accuracy")

    def score(self, predictions: Sequence[Prediction], examples: Sequence[RelationExample]) -> Scores:
        """Macro F1 over the relations of the truth, both directions pooled (SemEval-2010 task 8's official score),
        micro F1 over all but "no relation" (TACRED's), accuracy; each relation's figures."""
        truth = [self._naming.name(str(example.relation)) for example in examples]
        guess = [str(prediction["label"]) for prediction in predictions]
        relations = count_relations(truth, guess, self._none)
        cuts, notes = told_of_cuts(predictions)
        if turned := sum(counts.num_reversed for counts in relations.values()):
            notes = [
                *notes,
                f"answers of the right relation in the wrong direction, which are wrong: {turned:,}",
            ]
        if new := Counter(label for label in truth if label not in self._naming.ids):
            notes = [
                *notes,
                f"examples with a relation that the model never saw: {new.total():,} "
                f"({', '.join(sorted(new)[:5])}); each counts as wrong",
            ]
        accuracy = sum(a == b for a, b in zip(truth, guess, strict=True)) / max(1, len(truth))
        numbers = {
            "macro_f1": macro_f1(relations),
            "micro_f1": micro_f1(relations),
            "accuracy": accuracy,
            "examples": len(examples),
        }
        of_each = {name: _figures(counts) for name, counts in relations.items()}
        details = {**cuts, "none_label": self._none, "relations": of_each}
        return Scores(numbers, details, (_table(of_each),), notes)

    @property
    def measure(self) -> str:
        """Of the right relation."""
        return "minus the logarithm of the right relation's probability"

    def losses(self, answers: Answers) -> list[float | None]:
        """Of the probabilities that are answered; a relation that the model never saw has none."""
        wanted = [self._naming.name(str(example.relation)) for example in answers.examples]
        return [
            cross_entropy(p["scores"].get(label, 0.0)) if p["scores"] else None
            for p, label in zip(answers.predictions, wanted, strict=True)
        ]

    def details(self, predictions: Sequence[Prediction], examples: Sequence[RelationExample]) -> Details:
        """Which relations are taken for which, and how sure the model may be."""
        pairs = [(p, e) for p, e in zip(predictions, examples, strict=True) if p["label"] is not None]
        truth = [self._naming.name(str(e.relation)) for _, e in pairs]
        guess, sure = [p["label"] for p, _ in pairs], [p["score"] for p, _ in pairs]
        return of_labels("texts", truth, guess, sure, self._names)

    def tallies(
        self, predictions: Sequence[Prediction], examples: Sequence[RelationExample]
    ) -> SufficientStatistics:
        """All scores."""
        truth = [self._naming.name(str(example.relation)) for example in examples]
        guess = [str(prediction["label"]) for prediction in predictions]
        return relation_statistics(truth, guess, self._names, self._none)

    def baseline(self, training: Sequence[RelationExample], dev: Sequence[RelationExample]) -> Scores:
        """Always the most frequent relation of the training examples but "no relation", which F1 leaves out."""
        times = Counter(label for (label,) in self.gold(training, self.facts) if label != self._none)
        most = min(times, key=lambda label: (-times[label], label), default=self._names[0])
        return self.score([{"label": most, "tokens": 0, "tokens_read": 0}] * len(dev), dev)


def _figures(counts: RelationCounts) -> dict[str, float]:
    return {
        "precision": counts.precision,
        "recall": counts.recall,
        "f1": counts.f1,
        "support": counts.num_references,
        "found": counts.num_predictions,
        "wrong_direction": counts.num_reversed,
    }


def _table(of_each: Mapping[str, Mapping[str, float]]) -> ScoreTable:
    rows = [
        [
            name,
            *(f"{row[key]:.4f}" for key in ("precision", "recall", "f1")),
            *(f"{row[key]:,}" for key in ("support", "found")),
        ]
        for name, row in of_each.items()
    ]
    columns = ["relation", "precision", "recall", "F1", "support", "found"]
    return ScoreTable("", columns, rows)


def _none_of(labels: Sequence[str], chosen: str | None) -> str | None:
    """The label that means no relation: the one chosen, or one that is called so."""
    if chosen is not None and chosen not in labels:
        raise InputError(
            "unknown_label",
            f"there is no label '{chosen}'",
            argument="none_label",
            hint=f"the labels are: {', '.join(labels[:20])}",
        )
    if chosen is not None and has_direction(chosen):
        raise InputError(
            "none_label_has_direction",
            f"'{chosen}' has a direction, so it is a relation",
            argument="none_label",
            hint=f"name another label, or remove {option('none_label')}",
        )
    return chosen or next((label for label in labels if label.casefold() in _NONE), None)
