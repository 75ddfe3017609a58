"""Parts of tasks whose examples are texts, or pairs of texts, with one label each: `classify` and `regress`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby, islice
from typing import Any

import numpy as np
import torch
from pydantic import BaseModel
from torch import Tensor

from bertsmith.artifacts.folder import ModelFolder
from bertsmith.errors import InputError, option
from bertsmith.formatting import pluralize
from bertsmith.io.sources import Source
from bertsmith.io.tables import Table
from bertsmith.io.values import is_blank, to_text
from bertsmith.models.config import ModelConfig
from bertsmith.models.encoder import Encoder
from bertsmith.models.family import get_family
from bertsmith.models.task_heads import SequenceClassificationHead
from bertsmith.tasks.base import Decoder, Example, TaskData, TaskEncoder, TaskModel
from bertsmith.tasks.batching import Item, Outputs, TaskBatch, TokenSequence
from bertsmith.tasks.labels import UNNAMED_LABEL, LabelNames, check_length, missing_label_error, parse_number
from bertsmith.tasks.results import Diagnostic
from bertsmith.tasks.rows import read_task_table
from bertsmith.tasks.settings import TextSettings
from bertsmith.tasks.windows import NO_LIMIT, Coverage, split_windows
from bertsmith.tokenizer.tokenizer import Encoding, Tokenizer

_TEXT_HINT = (
    f"write each text as one string, or name its column with {option('text_column')}; the second text of a pair "
    f"has a column of its own, {option('second_column')}"
)
_INPUT_HINT = f"give each text as one string, and the second texts of pairs with {option('text_pair')}"
_GUESS_ROWS = 200
_MAX_DISTINCT_LABELS = 2 / 3  # of the labels in these rows; a column with more of them may hold ids or texts
_DELIMITERS = re.compile("[;|,]")


@dataclass(frozen=True)
class TextExample(Example):
    """A text, or a pair of texts, with its label.

    Attributes:
        text: The text, or the first one of a pair.
        second: The second text of a pair.
        label: The label as the file has it; None if it is unknown.
        location: The file and line.
        table_row: The row of the table that the example was read from.
        label_stripped: True if the label had white space around it.
        label_is_integer: True if the label is an integer, or a list of integers, of JSON or Python.
    """

    text: str
    second: str | None
    label: str | None
    location: str
    table_row: Mapping[str, str] | None = field(default=None, compare=False, repr=False)
    label_stripped: bool = field(default=False, compare=False, repr=False)
    label_is_integer: bool = field(default=False, compare=False, repr=False)

    @property
    def group_key(self) -> tuple[str, str | None]:
        """Return the texts."""
        return self.text, self.second

    @property
    def is_empty(self) -> bool:
        """Return True if there is no text; of a pair, neither."""
        return is_blank(self.text) and is_blank(self.second or "")

    @property
    def display_inputs(self) -> dict[str, str]:
        """Return the text, or both texts."""
        return {"text": self.text} | ({} if self.second is None else {"second": self.second})

    @property
    def number(self) -> float:
        """Return the label as a number."""
        return parse_number(self.label, self.location)


class TextMetadata(BaseModel):
    """Metadata of a task on texts.

    Attributes:
        pairs: True if the training examples were pairs of texts; None if that is unknown.
    """

    pairs: bool | None = None


class TextData(TaskData):
    """Read texts, or pairs of texts, from a table."""

    example_type: type[TextExample] = TextExample
    allow_empty_label: bool = False

    def read(self, source: Source, *, labeled: bool = True) -> list[TextExample]:
        """Return the rows of a table; a .txt file without columns has one text per line."""
        settings = self.settings
        table = read_task_table(source, settings, labeled=labeled)
        has_lines, nothing = table.is_plain and not labeled, [None] * len(table)
        note = _header_advice(table, labeled=labeled)
        pair_note = f" (of pairs the second one with {option('second_column')}{note and '; '}{note})"
        text_column = "1" if has_lines else settings.text_column
        texts = table.texts(text_column, "text_column", pair_note, _TEXT_HINT)
        has_pairs = settings.second_column is not None and not has_lines
        seconds = (
            table.texts(settings.second_column, "second_column", hint=_TEXT_HINT) if has_pairs else nothing
        )
        labels = self.read_labels(table, note and f" ({note})") if labeled else nothing
        examples = []
        for row, text, second, label in zip(table, texts, seconds, labels, strict=True):
            stripped, values = None if label is None else label.strip(), None if has_lines else row.texts
            if stripped is not None and is_blank(stripped) and not self.allow_empty_label:
                raise missing_label_error("", row.location)
            names = _DELIMITERS.split(stripped or "") if self.allow_empty_label else [stripped or ""]
            check_length(max(names, key=len), row.location)
            is_changed, value = stripped != label, row.values.get(settings.label_column)
            if type(value) is float and value.is_integer():  # as data frames write integers beside NaN
                stripped = f"{value:.0f}"
            is_integer = _is_integer(value)
            example = self.example_type(text, second, stripped, row.location, values, is_changed, is_integer)
            examples.append(example)
        return examples

    def read_labels(self, table: Table, note: str = "") -> Sequence[str]:
        """Return the label of each row; `note` is appended to the hint if the column is missing."""
        return table.strings(self.settings.label_column, "label_column", note)

    def from_inputs(
        self, columns: Mapping[str, Sequence[Any]], locations: Sequence[str]
    ) -> list[TextExample]:
        """Return the examples of texts, or of pairs: in two columns, or in one with a tab between them."""
        columns = input_texts(columns, locations)
        if self.settings.second_column is not None and "text_pair" not in columns:
            pairs = []
            for text, location in zip(columns["text"], locations, strict=True):
                parts = ["", ""] if is_blank(text) else text.split("\t")
                if len(parts) != 2:
                    raise pairs_expected(location, self.settings)
                pairs.append(parts)
            columns = {"text": [first for first, _ in pairs], "text_pair": [second for _, second in pairs]}
        texts = columns["text"]
        seconds = columns.get("text_pair") or [None] * len(texts)
        return [
            self.example_type(text, second, None, location)
            for text, second, location in zip(texts, seconds, locations, strict=True)
        ]

    def example_inputs(self) -> dict[str, Any]:
        """Return a second text for a model of pairs."""
        return {} if self.settings.second_column is None else {"text_pair": "it was a good day"}

    def to_row(self, example: TextExample) -> dict[str, Any]:
        """Return the row with the column names of the settings."""
        settings = self.settings
        second = {} if settings.second_column is None else {settings.second_column: example.second}
        return {settings.text_column: example.text, settings.label_column: example.label, **second}

    def read_warnings(self, examples: Sequence[TextExample]) -> list[Diagnostic]:
        """Report labels that lost white space, and pairs with one text."""
        warnings = []
        if stripped := [example for example in examples if example.label_stripped]:
            shown = [f"'{example.label}' ({example.location})" for example in stripped]
            message = f"{pluralize(len(stripped), 'label')} with spaces around, which are left out"
            locations = [example.location for example in stripped]
            warnings.append(Diagnostic("spaces around labels", message, locations, shown))
        if single := [e for e in examples if e.second is not None and is_blank(e.text) != is_blank(e.second)]:
            message = f"one text of {pluralize(len(single), 'pair')} is empty"
            warnings.append(Diagnostic("pairs with an empty text", message, [e.location for e in single]))
        return warnings

    def fit_metadata(
        self, examples: Sequence[TextExample], label_names: LabelNames | None
    ) -> Mapping[str, Any]:
        """Return whether the examples are pairs."""
        super().fit_metadata(examples, label_names)
        return {"pairs": self.settings.second_column is not None}

    def metadata_from_hf(self, folder: ModelFolder) -> Mapping[str, Any] | None:
        """Return metadata for heads on whole sequences; whether they were trained on pairs is unknown."""
        return {"pairs": None} if folder.architecture.endswith("ForSequenceClassification") else None


@dataclass(frozen=True)
class WindowItem(Item):
    """A window of a text.

    Attributes:
        tokens: The number of tokens of the whole text or pair, special tokens excluded.
        tokens_read: The number of these that are in any window.
    """

    tokens: int = 0
    tokens_read: int = 0


class TextEncoder(TaskEncoder):
    """Encode [CLS] A [SEP] or [CLS] A [SEP] B [SEP], truncated, or in windows if the settings have a stride."""

    truncation_hint = " (with task.stride, long texts are read in windows)"

    def target(self, example: TextExample) -> Any:
        """Return the target of the loss, or None for an example without a label."""
        raise NotImplementedError

    def encode(self, examples: Sequence[TextExample], tokenizer: Tokenizer) -> list[Item]:
        """Return an item for each example, or for each window of it."""
        settings = self.settings
        has_pairs = any(example.second is not None for example in examples)
        if examples and self.metadata.get("pairs") not in (None, has_pairs):
            location = examples[0].location
            if not has_pairs:
                raise pairs_expected(location, settings)
            message = "this model was trained on single texts, and these are pairs of texts"
            hint = f"give single texts, without {option('second_column')}"
            raise InputError(
                "single_texts_expected", message, location=location, argument="second_column", hint=hint
            )
        encodings = tokenizer.encode_batch(
            [example.text for example in examples],
            [example.second or "" for example in examples] if has_pairs else None,
            max_length=self.max_length if settings.stride is None else NO_LIMIT,
            special_strings=settings.specials_in_text,
            with_offsets=settings.stride is not None,
        )
        return [
            item
            for index, (example, encoding) in enumerate(zip(examples, encodings, strict=True))
            for item in self._items(index, example, encoding)
        ]

    def _items(self, index: int, example: TextExample, encoding: Encoding) -> Iterator[Item]:
        """Yield the item of an example, or one for each window of its longer text."""
        target, limit = self.target(example), self.max_length
        if self.settings.stride is None or len(encoding.ids) <= limit:
            yield Item(index, (TokenSequence.from_encoding(encoding),), target)
            return
        lengths = [encoding.sequence_ids.count(source) for source in (0, 1)]
        windows = split_windows(
            encoding,
            limit,
            source=int(lengths[1] > lengths[0]),
            stride=self.settings.stride,
            max_other_tokens=limit // 2,
            location=example.location,
        )
        first = windows[0].sequence
        tokens_read = sum(lengths) - (first.tokens - first.tokens_read)
        for window in windows:
            yield WindowItem(index, (window.sequence,), target, window.text_start, sum(lengths), tokens_read)

    def coverage(self, items: Sequence[Item]) -> Coverage:
        """Return the coverage of an example, whose windows overlap."""
        return Coverage(**token_counts(items[0]))


class TextModel(TaskModel):
    """The family's head for sequences, with one output for each of `labels`."""

    def __init__(
        self, config: ModelConfig, generator: torch.Generator, metadata: Mapping[str, Any], settings: Any
    ) -> None:
        super().__init__(config, generator, metadata, settings)
        self.labels = metadata.get("labels") or [UNNAMED_LABEL]
        self.head = SequenceClassificationHead(config, generator, len(self.labels), pooled=settings.pooler)
        if not settings.pooler and get_family(config.model_type).heads.dense_act is not None:
            message = f"the head of {config.model_type} has no pooler, but a layer of its own"
            hint = f"remove {option('pooler', False)}, or use a BERT or ALBERT model"
            raise InputError("pooler_not_applicable", message, argument="pooler", hint=hint)

    def tensors(self, items: Sequence[Item]) -> tuple[dict[str, Tensor], dict[str, int]]:
        """Return `targets`: [B] or [B, K]."""
        if any(item.target is None for item in items):
            return {}, {}
        return {"targets": torch.from_numpy(np.stack([item.target for item in items]))}, {"task": len(items)}

    def logits(self, encoder: Encoder, batch: TaskBatch) -> Tensor:
        """Return the outputs of the head, fp32 [B, K]."""
        logits: Tensor = self.head(self.features.sequence_features(encoder, batch.packed))
        return logits.float()

    def outputs(self, encoder: Encoder, batch: TaskBatch) -> Sequence[Tensor]:
        """Return [1, K] for each item."""
        return torch.split(self.logits(encoder, batch), 1)


class TextDecoder(Decoder):
    """Decode the windows of each text into one prediction."""

    def by_example(self, outputs: Outputs, items: Sequence[Item]) -> Iterator[tuple[Tensor, Item]]:
        """Yield for each example the outputs of its windows, [W, K], and its first item."""
        pairs = zip(outputs.per_item, items, strict=True)
        for _, windows_of_example in groupby(pairs, key=lambda pair: pair[1].example):
            outputs_of_example, items_of_example = zip(*windows_of_example, strict=True)
            yield torch.cat(outputs_of_example), items_of_example[0]


def token_counts(item: Item) -> dict[str, Any]:
    """Return the counts of tokens of an item's whole text as the fields of a prediction."""
    if isinstance(item, WindowItem):
        return {"tokens": item.tokens, "tokens_read": item.tokens_read}
    return item.sequences[0].token_counts


def _header_advice(table: Table, *, labeled: bool) -> str:
    """Return the settings of a file without a header; "" for data that has names for its columns."""
    if not (table.is_delimited or table.is_plain) or len(table.named_columns) < len(table.columns):
        return ""
    text, label = _column_numbers(table)
    advice = f"without a header: {option('header', False)} {option('text_column', text)}"
    return advice + (f" {option('label_column', label)}" if labeled else "")


def _column_numbers(table: Table) -> tuple[int, int]:
    """Return the numbers of the columns that hold texts and labels, as far as the first rows show it.

    Labels repeat: they are few, or else constant.
    """
    rows = [list(map(str, row.values.values())) for row in islice(table, _GUESS_ROWS)]
    if table.is_plain:
        rows = [_DELIMITERS.split(line) for (line,) in rows if line.strip()]
    else:
        rows.insert(0, table.columns)  # a row, if the file has no header
    columns = dict(enumerate(zip(*rows, strict=False), start=1))
    if len(columns) < 2:
        return 1, 2
    text = max(columns, key=lambda number: sum(map(len, columns[number])))

    def label_order(number: int) -> tuple[bool, bool, float, int]:
        labels = [label for value in columns[number] for label in _DELIMITERS.split(value)]
        share = len(set(labels)) / len(labels)
        are_many = share > _MAX_DISTINCT_LABELS and len(set(labels)) > 1
        return are_many, len(set(labels)) == 1, share, -number if are_many else number

    return text, min(columns.keys() - {text}, key=label_order)


def _is_integer(label: Any) -> bool:
    """Return True for an integer, or a list of integers."""
    if type(label) is float:
        return label.is_integer()
    labels = label if isinstance(label, list) else [label]
    return bool(labels) and all(type(value) is int for value in labels)


def input_texts(columns: Mapping[str, Sequence[Any]], locations: Sequence[str]) -> dict[str, list[str]]:
    """Return the inputs of examples as strings. Raises `InputError` for a list or an object."""
    return {
        name: [
            to_text(value, name, location, hint=_INPUT_HINT)
            for value, location in zip(values, locations, strict=True)
        ]
        for name, values in columns.items()
    }


def pairs_expected(location: str, settings: TextSettings) -> InputError:
    """Return the error for a single text if the model reads pairs."""
    message = "this model was trained on pairs of texts, and this is a single text"
    hint = (
        f"give both texts: as two lists, as the columns {option('text_column', settings.text_column)} and "
        f"{option('second_column', settings.second_column or 'second')}, or on one line with a tab between them"
    )
    return InputError("pairs_expected", message, location=location, argument="second_column", hint=hint)
