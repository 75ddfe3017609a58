"""Examples that are a text, or a pair of texts, in a table: what classification and regression share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any, ClassVar

import torch
from pydantic import BaseModel
from torch import Tensor, nn

from bertsmith.errors import InputError, option
from bertsmith.formatting import pluralize
from bertsmith.io.compression import format_suffix
from bertsmith.io.tables import Table, read_table, text_of
from bertsmith.models.config import ModelConfig
from bertsmith.models.encoder import Encoder
from bertsmith.models.family import get_family
from bertsmith.models.heads import SequenceClassificationHead
from bertsmith.tasks.items import Encoded, Item, TaskBatch
from bertsmith.tasks.labels import Names
from bertsmith.tasks.scores import Finding
from bertsmith.tasks.settings import ClassWeights, TextSettings
from bertsmith.tasks.task import Facts, Foreign, Prediction, Task
from bertsmith.tasks.truncation import Coverage
from bertsmith.tasks.windows import UNCUT, windows
from bertsmith.tokenizer.tokenizer import Encoding, Tokenizer

_KEYED_SUFFIXES = (".jsonl", ".json", ".parquet")  # whose rows name their columns
_PAIRS_OR_NO_HEADER = (  # Follows the option in a hint.
    f" (of pairs the second one with {option('second_column')}; without a header: {option('header', False)} "
    f"{option('text_column', 1)}"
)


@dataclass(frozen=True)
class TextExample:
    """A text (or two) with its label as the file has it, None where it is not known, and its place.

    row: of the table that it was read from. unnamed: it is of a table whose only column was taken, though it has
    another name than the settings say. spaced: spaces around its label were left out.
    """

    text: str
    second: str | None
    label: str | None
    place: str
    row: Mapping[str, str] | None = field(default=None, compare=False, repr=False)
    unnamed: bool = field(default=False, compare=False, repr=False)
    spaced: bool = field(default=False, compare=False, repr=False)


IN_WINDOWS = " (with task.stride, long texts are read in windows)"


@dataclass(frozen=True)
class WindowItem(Item):
    """A window of a text. tokens: of the whole text (or both), special ones not counted; read: in any window."""

    tokens: int = 0
    read: int = 0


class TextFacts(BaseModel):
    """Whether the examples were pairs; None: not known."""

    pairs: bool | None = None


class TextTask(Task):
    """A task with one answer a text, or a pair of texts, given by a head on the whole sequence.

    may_be_blank: whether a label may be empty.
    The fact `pairs` is whether the examples were pairs; None for a model of another tool, which may be either.
    """

    inputs = ("text", "second")
    optional = ("second",)
    lasting = (*Task.lasting, "pooler")
    may_be_blank: ClassVar[bool] = False
    settings_type = TextSettings
    facts_type: ClassVar[type[BaseModel]] = TextFacts

    def __init__(
        self, config: ModelConfig, generator: torch.Generator, facts: Facts, settings: Any, outputs: int
    ) -> None:
        super().__init__(config, generator, facts, settings)
        self.head = SequenceClassificationHead(config, generator, outputs, pooled=settings.pooler)
        if not settings.pooler and get_family(config.model_type).heads.dense_act is not None:
            raise InputError(
                "pooler_not_applicable",
                f"the head of {config.model_type} has no pooler, but a layer of its own",
                argument="pooler",
                hint=f"remove {option('pooler', False)}, or use a BERT or ALBERT model",
            )

    @property
    def heads(self) -> Mapping[str, nn.Module]:
        """Pooler, where the head has one, and classifier."""
        heads: Mapping[str, nn.Module] = self.head.parts
        return heads

    @classmethod
    def read(cls, file: str | Path, settings: TextSettings, *, labelled: bool = True) -> list[TextExample]:
        """The rows of a csv, tsv, txt or jsonl file, in its order. Without labels, a .txt file that is no table
        has a text a line. InputError with file and line for what is amiss."""
        table = read_table(
            file,
            delimiter=settings.delimiter,
            header=settings.header,
            encoding=settings.encoding,
            keep_blank=not labelled,
        )
        if table.is_plain and not labelled:
            return [TextExample(row.texts["1"], None, None, row.location) for row in table]
        if not labelled and not table.in_memory and _has_one_column(table, settings):
            return _of_one_column(table, settings)
        note = _PAIRS_OR_NO_HEADER + (f" {option('label_column', 2)})" if labelled else ")")
        texts = table.texts(settings.text_column, "text_column", note)
        seconds = table.texts(settings.second_column, "second_column") if settings.second_column else None
        labels = table.texts(settings.label_column, "label_column") if labelled else None
        examples = []
        for i, row in enumerate(table):
            label = labels[i].strip() if labels else None
            if label == "" and not cls.may_be_blank:
                raise InputError(
                    "empty_label",
                    "the label is empty",
                    location=row.location,
                    hint="give each row a label, or remove the row",
                )
            second = seconds[i] if seconds else None
            spaced = labels is not None and label != labels[i]
            examples.append(TextExample(texts[i], second, label, row.location, row.texts, spaced=spaced))
        if not examples:
            raise InputError(
                "no_examples",
                "this file has no rows",
                location=file,
                hint="give a file with at least one example",
            )
        return examples

    @classmethod
    def of_inputs(
        cls, columns: Mapping[str, Sequence[str]], settings: TextSettings, places: Sequence[str]
    ) -> list[TextExample]:
        """Texts, or pairs of texts: two columns, or in one with a tab between."""
        for name, values in columns.items():
            for value, place in zip(values, places, strict=True):
                if not isinstance(value, str):
                    raise InputError(
                        "text_not_a_string",
                        f"{value!r:.60} is not a string",
                        location=place,
                        argument=name,
                        hint=f"give each {name} as a string",
                    )
        if settings.second_column is not None and "second" not in columns:
            columns = _parted(columns["text"], places, settings)
        texts = columns["text"]
        others: Sequence[str | None] = columns.get("second") or [None] * len(texts)
        return [TextExample(*row) for row in zip(texts, others, [None] * len(texts), places, strict=True)]

    @classmethod
    def as_row(cls, example: TextExample, settings: TextSettings) -> dict[str, Any]:
        """Under the columns' own names."""
        row: dict[str, Any] = {settings.text_column: example.text, settings.label_column: example.label}
        if settings.second_column is not None:
            row[settings.second_column] = example.second
        return row

    @classmethod
    def content(cls, example: TextExample) -> tuple[str, str | None]:
        """The texts."""
        return example.text, example.second

    @classmethod
    def asked(cls, example: TextExample) -> dict[str, str]:
        """The text, or both."""
        second = {} if example.second is None else {"second": example.second}
        return {"text": example.text, **second}

    @classmethod
    def columns(cls, example: TextExample) -> Mapping[str, str] | None:
        """The whole row of its file."""
        return example.row

    @classmethod
    def remarks(cls, examples: Sequence[TextExample]) -> list[Finding]:
        """Which column was read, where it was not the one that the settings name; which labels lost spaces."""
        if spaced := [example for example in examples if example.spaced]:
            labels = pluralize(len(spaced), "label has", "labels have")
            places = [example.place for example in spaced]
            shown = [f"'{example.label}' ({example.place})" for example in spaced]
            what = f"{labels} spaces around, which are left out"
            return [Finding("spaces around labels", what, places, shown)]
        first = next(iter(examples), None)
        if first is None or not first.unnamed:
            return []
        file = first.place.rpartition(":")[0]
        if first.row is None:
            said = f"{file}: its one column has no header, so the first line is read as a text"
        else:
            said = f"{file}: its one column, '{next(iter(first.row))}', is read"
        return [Finding("the column that is read", said)]

    @classmethod
    def is_empty(cls, example: TextExample) -> bool:
        """No text; of a pair, neither."""
        return not example.text.strip() and not (example.second or "").strip()

    @classmethod
    def learnt(cls, examples: Sequence[TextExample], settings: Any, names: Names | None) -> Facts:
        """Whether the examples are pairs."""
        return {**super().learnt(examples, settings, names), "pairs": settings.second_column is not None}

    @classmethod
    def facts_of(cls, folder: Foreign) -> Facts | None:
        """Of a class for whole sequences, whether it was trained on pairs is not known."""
        return {"pairs": None} if folder.architecture.endswith("ForSequenceClassification") else None

    def encode(self, examples: Sequence[TextExample], tokenizer: Tokenizer) -> list[Item]:
        """[CLS] A [SEP] (B [SEP]) for each example, cut to max_length or to what the model takes; with a stride,
        an item for each window of it."""
        limit = self.reads
        paired = any(example.second is not None for example in examples)
        if examples and self.facts.get("pairs") not in (None, paired):
            if not paired:
                raise _wants_pairs(examples[0].place, self.settings)
            raise InputError(
                "single_texts_expected",
                "this model was trained on single texts, and these are pairs of texts",
                location=examples[0].place,
                argument="second_column",
                hint=f"give single texts, without {option('second_column')}",
            )
        encodings = tokenizer.encode_batch(
            [example.text for example in examples],
            [example.second or "" for example in examples] if paired else None,
            max_length=limit if self.settings.stride is None else UNCUT,
            special_strings=self.settings.specials_in_text,
            warn=False,  # `finetune` warns once, about all texts
            with_offsets=self.settings.stride is not None,
        )
        return [
            item
            for number, (example, encoding) in enumerate(zip(examples, encodings, strict=True))
            for item in self._items(number, example, encoding, limit)
        ]

    def _items(self, number: int, example: TextExample, encoding: Encoding, limit: int) -> Iterator[Item]:
        """The example's one item, or one for each window of its longer text."""
        target = self.target(example)
        if self.settings.stride is None or len(encoding.ids) <= limit:
            yield Item(number, (Encoded.of(encoding),), target)
            return
        sizes = [encoding.sequence_ids.count(source) for source in (0, 1)]
        tokens, longer = sum(sizes), int(sizes[1] > sizes[0])
        cut = windows(
            encoding,
            limit,
            source=longer,
            stride=self.settings.stride,
            others=limit // 2,
            place=example.place,
        )
        read = tokens - (cut[0].encoded.tokens - cut[0].encoded.kept)
        for window in cut:
            yield WindowItem(number, (window.encoded,), target, window.first, tokens, read)

    def coverage(self, items: Sequence[Item]) -> Coverage:
        """The windows of one text, which hold the same tokens more than once."""
        read, at_once = self.read_of(items[0]), items[0].sequences[0].kept
        return Coverage(read["tokens"], read["tokens_read"], at_once, len(items))

    def target(self, example: TextExample) -> Any:
        """What the loss takes for an example's label; None where there is none. InputError for a wrong label."""
        raise NotImplementedError

    def logits(self, encoder: Encoder, batch: TaskBatch) -> Tensor:
        """[B, outputs], fp32."""
        found: Tensor = self.head(self.features.sequence_features(encoder, batch.packed))
        return found.float()

    def outputs(self, encoder: Encoder, batch: TaskBatch) -> Sequence[Tensor]:
        """A row an example."""
        return torch.split(self.logits(encoder, batch), 1)

    def of_each(
        self, outputs: Sequence[Tensor], items: Sequence[Item]
    ) -> Iterator[tuple[Tensor, Prediction]]:
        """For each example the outputs of its windows, [W, outputs], and what `read_of` says."""
        for _, some in groupby(zip(outputs, items, strict=True), key=lambda pair: pair[1].example):
            rows, windows_of = zip(*some, strict=True)
            yield torch.cat(rows), self.read_of(windows_of[0])

    def read_of(self, item: Item) -> Prediction:
        """How many tokens the text has, and how many were read."""
        if isinstance(item, WindowItem):
            return {"tokens": item.tokens, "tokens_read": item.read}
        return {"tokens": item.sequences[0].tokens, "tokens_read": item.sequences[0].kept}


def _has_one_column(table: Table, settings: TextSettings) -> bool:
    """Whether there is no doubt which column holds the texts, whatever it is called."""
    alone = len(table.columns) == 1 and settings.second_column is None
    return alone and settings.text_column not in table.columns and not table.is_plain


def _of_one_column(table: Table, settings: TextSettings) -> list[TextExample]:
    """The texts of a table of one column. Its first line is a text as well, unless it is a single word above rows
    of which most are not."""
    (name,) = table.columns
    sentences = sum(len(text_of(row.values.get(name)).split()) > 1 for row in table)
    keyed = format_suffix(table.name) in _KEYED_SUFFIXES
    headed = keyed or not settings.header or (len(name.split()) == 1 and 2 * sentences > len(table))
    found = [
        TextExample(text, None, None, row.location, row.texts if headed else None, unnamed=True)
        for text, row in zip(table.texts(name), table, strict=True)
    ]
    if headed:
        return found
    return [TextExample(name, None, None, f"{table.name}:1", unnamed=True), *found]


def _parted(texts: Sequence[str], places: Sequence[str], settings: TextSettings) -> dict[str, Sequence[str]]:
    """Pairs that are written with a tab between."""
    pairs = []
    for text, place in zip(texts, places, strict=True):
        parts = text.split("\t") if isinstance(text, str) and text.strip() else ["", ""]
        if len(parts) != 2:
            raise _wants_pairs(place, settings)
        pairs.append(parts)
    return {"text": [first for first, _ in pairs], "second": [second for _, second in pairs]}


def _wants_pairs(place: str, settings: TextSettings) -> InputError:
    columns = f"'{settings.text_column}' and '{settings.second_column or 'second'}'"
    return InputError(
        "pairs_expected",
        "this model was trained on pairs of texts, and this is a single text",
        location=place,
        argument="second_column",
        hint=f"give both texts: in Python as two lists, in a file as the columns {columns} (for other names, "
        f"{option('text_column')} and {option('second_column')}), or on one line with a tab between them",
    )


def weights_of(
    asked: ClassWeights, labels: Sequence[str], balanced: Mapping[str, float]
) -> list[float] | None:
    """The weight of each label in the loss; None where all are 1. balanced: what makes up for how rare each is.
    InputError for a name that is no label."""
    if asked == "none":
        return None
    if asked == "balanced":
        return [balanced[label] for label in labels]
    if unknown := [name for name in asked if name not in labels]:
        raise InputError(
            "unknown_label",
            f"there is no label '{unknown[0]}'",
            argument="class_weights",
            hint=f"the labels are {', '.join(labels[:10])}{', …' if len(labels) > 10 else ''}",
        )
    return [asked.get(label, 1.0) for label in labels]
