"""Texts with one label each, or with any number of labels: reading, and the metadata of the labels."""

from __future__ import annotations

import csv
import json
import logging
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

from bertsmith.artifacts.folder import ModelFolder
from bertsmith.errors import InputError, command, option
from bertsmith.formatting import format_bytes, join_names, pluralize
from bertsmith.io.tables import Table
from bertsmith.io.values import (
    is_blank,
    is_unordered,
    is_unreadable_list,
    parse_array,
    parse_collection,
    parse_label,
    to_text,
)
from bertsmith.tasks.base import Metadata
from bertsmith.tasks.data_checks import LabelCounts, label_spellings
from bertsmith.tasks.labels import (
    LabelMap,
    LabelMetadata,
    LabelNames,
    check_spellings,
    label_metadata,
    sorted_labels,
)
from bertsmith.tasks.results import Diagnostic
from bertsmith.tasks.settings import ClassSettings
from bertsmith.tasks.texts import TextData, TextExample, TextMetadata

logger = logging.getLogger(__name__)
_MANY_BYTES = 500_000_000  # of scores of all validation examples
_SEPARATORS = re.compile(r"\s*[,;|#/]\s*|\s+")
_FLAG = "([01]|true|false)"
_VECTOR = re.compile(rf"\W*{_FLAG}(\W*{_FLAG})+\W*", re.IGNORECASE)
_DATE = re.compile(r"(\d{4}([-/.])\d\d?\2\d\d?|\d\d?([-/.])\d\d?\3\d{4})([T ]\d\d?:[\d:.+Z-]*)?")
_FRACTION = re.compile(r"-?\d+\.\d+")
_IS_TRUE = {
    **dict.fromkeys(("1", "1.0", "true", "yes", "y", "t"), True),
    **dict.fromkeys(("0", "0.0", "false", "no", "n", "f"), False),
}
_MULTI_LABEL_HINT = f"for texts with several labels, add {option('multi_label', True)}"
_MAX_FRACTIONS = 10  # different ones that may be classes; more are measurements
_MAX_SINGLE_LABELS = 100  # labels that may have one example each; of more, most need several
_MAX_DISTINCT_RATIO = 0.9  # of the examples


class ClassificationMetadata(TextMetadata, LabelMetadata):
    """Metadata of the task.

    Attributes:
        weights: The weight of each label in the loss; None if all are 1.
        separator: The string between the labels of a text; None if each text has exactly one label.
        integer_labels: True if the labels of the training data were integers, not strings.
    """

    weights: list[float] | None = None
    separator: str | None = None
    integer_labels: bool = False


class SingleLabelExample(TextExample):
    """A text with exactly one label."""

    @property
    def stratify_key(self) -> str | None:
        """Return the label."""
        return self.label


class ClassificationData(TextData):
    """Read texts with exactly one label each, or with any number of labels."""

    def __init__(self, settings: ClassSettings, metadata: Metadata) -> None:
        super().__init__(settings, metadata)
        self.allow_empty_label = bool(settings.multi_label or metadata.get("separator"))
        self.example_type = TextExample if self.allow_empty_label else SingleLabelExample

    def read_labels(self, table: Table, note: str = "") -> Sequence[str]:
        """Return the label of each row; lists of labels, and columns of 0 and 1, as JSON lists."""
        column, names = self.settings.label_column, self._indicator_columns
        if column not in table.columns and len(names) > 1 and not set(names).isdisjoint(table.columns):
            return self._indicated_labels(table, names)
        values = zip(table.column(column, "label_column", note), table, strict=True)
        return [self._label_of(value, row.location) for value, row in values]

    def _label_of(self, value: Any, location: str) -> str:
        """Return a label, or with several labels the text or JSON list of all."""
        text = value.strip() if isinstance(value, str) else ""
        cell: Any = self._parse_cell(text) if text else value
        is_list = isinstance(cell, list | tuple | set | frozenset)
        if is_list and self.allow_empty_label:
            labels = [to_text(item, "label", location, "label_column") for item in cell]
            return text or json.dumps(sorted(labels) if is_unordered(cell) else labels, ensure_ascii=False)
        hint = _MULTI_LABEL_HINT if is_list else None
        return to_text(value if cell is None else cell, "label", location, "label_column", hint)

    def _parse_cell(self, text: str) -> Any:
        """Return the list or object in a cell; None for a label, such as (0, 30] or [joy]."""
        if self.allow_empty_label:
            return _parse_label_list(text, self.settings.label_separator)
        return parse_label(text)

    @property
    def _indicator_columns(self) -> list[str]:
        """The columns of 0 and 1 that `label_column` lists; else one name."""
        names = next(csv.reader([self.settings.label_column], skipinitialspace=True))
        return list(dict.fromkeys(map(str.strip, names)))

    def _indicated_labels(self, table: Table, names: Sequence[str]) -> Sequence[str]:
        """Return for each row a JSON list of the columns that are true."""
        if not self.allow_empty_label:
            message = f"the label is in {len(names)} columns"
            where: dict[str, Any] = {"location": table.start, "argument": "label_column"}
            raise InputError("column_missing", message, hint=_MULTI_LABEL_HINT, **where)
        rows = zip(*(table.strings(name, "label_column") for name in names), strict=True)
        labels = []
        for row, values in zip(table, rows, strict=True):
            flags = [_IS_TRUE.get(value.strip().casefold()) for value in values]
            if None in flags:
                name, value = names[flags.index(None)], values[flags.index(None)]
                message = (
                    f"column '{name}' is {value!r:.60}, neither 0 nor 1"
                    if value
                    else f"column '{name}' is empty"
                )
                hint = "write 1 for a label that the text has, and 0 for others"
                where = {"location": row.location, "argument": "label_column"}
                raise InputError("not_an_indicator", message, hint=hint, **where)
            present = [name for name, flag in zip(names, flags, strict=True) if flag]
            labels.append(json.dumps(present, ensure_ascii=False))
        return labels

    def fit_metadata(self, examples: Sequence[TextExample], label_names: LabelNames | None) -> Metadata:
        """Return the labels and their weights."""
        separator = self.settings.label_separator if self.allow_empty_label else None
        if separator is not None:
            _check_names(examples)
        if label_names is None:
            columns = self._indicator_columns
            in_data = {label for example in examples for label in split_labels(example, separator)}
            is_indicated = len(columns) > 1 and bool(in_data) and in_data <= set(columns)
            # A model has a label for each column, also for one that is true of no text.
            names = columns if is_indicated else collect_labels(examples, separator)
            labels: dict[str, Any] = {"labels": names, "numbered": False}
        else:
            labels = label_metadata(label_names)
        if label_names is None and all(example.label_is_integer for example in examples):
            labels["integer_labels"] = True
        metadata = {**super().fit_metadata(examples, None), **labels}
        label_map = LabelMap(metadata)
        id_counts = Counter(i for example in examples for i in label_ids(example, label_map, separator))
        num_examples, counts = len(examples), [id_counts[i] for i in range(len(metadata["labels"]))]
        balanced = [num_examples / len(counts) / max(1, count) for count in counts]
        if separator is not None:
            metadata["separator"] = separator
            balanced = [(num_examples - count) / max(1, count) for count in counts]
        if self.settings.class_weights != "none":
            metadata["weights"] = class_weights(self.settings, metadata["labels"], balanced)
        return metadata

    def check_validation(self, examples: Sequence[TextExample], metadata: Metadata) -> None:
        """Check that the model has each label."""
        labels = (
            (label, example.location)
            for example in examples
            for label in split_labels(example, metadata.get("separator"))
        )
        LabelMap(metadata).check_validation(labels, "label_column")
        num_bytes = 8 * len(metadata["labels"]) * len(examples)  # logits and probabilities
        if num_bytes > _MANY_BYTES:
            message = (
                "each evaluation holds %s of scores (%d examples, %d labels); validate on fewer examples"
            )
            logger.warning(message, format_bytes(num_bytes), len(examples), len(metadata["labels"]))

    def read_warnings(self, examples: Sequence[TextExample]) -> list[Diagnostic]:
        """Report labels that lost white space, or are read in another spelling."""
        separator = self.metadata.get("separator")
        labels = [(label, e.location) for e in examples for label in split_labels(e, separator)]
        count, names = LabelCounts.from_pairs(labels), {*self.metadata["labels"]}
        combined = [x for x in count.counts if len(p := {*_SEPARATORS.split(x)}) > 1 and p <= names]
        combined = combined or ([] if separator is None else _labels_with_separator(list(count.counts)))
        warnings = [*super().read_warnings(examples), *label_spellings(labels, LabelMap(self.metadata))]
        if combined:
            message = pluralize(len(combined), "label combines others", "labels combine others")
            locations, excerpts = [count.first[x] for x in combined], list(map(count.with_location, combined))
            arguments = "label_separator" if separator is not None else "multi_label and label_separator"
            hint = f"for texts with several labels, set {arguments}"
            warnings.append(Diagnostic("labels that combine others", message, locations, excerpts, hint))
        if count.counts and all(map(_DATE.fullmatch, count.counts)):
            hint = "choose another column by label_column"
            excerpts = [count.with_location(min(count.counts))]
            warnings.append(Diagnostic("labels that are dates", "all labels are dates", (), excerpts, hint))
        return warnings

    def metadata_from_hf(self, folder: ModelFolder) -> Metadata | None:
        """Return the labels of a classifier with at least two labels."""
        metadata, labels = super().metadata_from_hf(folder), folder.labels or []
        if metadata is None or folder.problem_type == "regression" or len(labels) < 2:
            return None
        is_multilabel = folder.problem_type == "multi_label_classification"
        return {**metadata, "labels": labels, "numbered": True} | (
            {"separator": ","} if is_multilabel else {}
        )


def _parse_label_list(text: str, separator: str) -> list[Any] | dict[Any, Any] | bytes | None:
    """Return the list or object in a cell with several labels; None for labels between separators."""
    value = parse_collection(text)
    array = None if isinstance(value, dict) and value else parse_array(text, separator)
    return value if array is None else array


def _labels_with_separator(labels: Sequence[str]) -> list[str]:
    """Return the labels that combine others by a mark that most labels have; those of hierarchies are none.

    In a hierarchy (sport/golf), no last part occurs first.
    """
    for mark in ",;|#/ ":
        parts = [list(map(str.strip, label.split(mark))) for label in labels]
        combined = [label for label in labels if mark in label]
        if len(combined) > len(labels) / 2 and {p[0] for p in parts} & {p[-1] for p in parts if len(p) > 1}:
            return combined
    return []


def split_labels(example: TextExample, separator: str | None) -> list[str]:
    """Return the labels of an example as the file has them.

    With a separator, the file has them between separators or as a list (JSON's, Python's, or PostgreSQL's); an
    empty text has no label.

    Raises:
        InputError: One of several labels is empty or a list, they are a vector of 0 and 1, or the list cannot be
            read.
    """
    if separator is None or example.label is None:
        return [] if example.label is None else [example.label]
    text, where = example.label.strip(), {"location": example.location, "argument": "label_column"}
    if (values := _parse_label_list(text, separator)) is not None:
        labels = [to_text(value, "label", **where).strip() for value in values]
    elif is_unreadable_list(text):
        message, hint = f"the list of labels {text[:60]} cannot be read", 'write a JSON list: ["joy", "hope"]'
        raise InputError("not_a_label_list", message, hint=hint, **where)
    else:
        labels = [label.strip() for label in text.split(separator)] if text else []
    if len(set(labels)) < len(labels) and {label.casefold() for label in labels} <= _IS_TRUE.keys():
        raise _indicators_error(text, example.location)
    if any(map(is_blank, labels)):
        hint = f"separate labels by {separator!r}, or use {option('label_separator')}"
        hint = "remove it from the list" if values is not None else hint
        raise InputError("empty_label", f"a label in '{text[:60]}' is empty", hint=hint, **where)
    return labels


def _check_names(examples: Sequence[TextExample]) -> None:
    """Raise InputError if all examples have a vector of 0 and 1, of the same length, in place of labels."""
    labels = [example.label or "" for example in examples]
    flags = [re.findall(_FLAG, label.casefold()) for label in labels]
    has_one_length = len(set(map(len, flags))) == 1
    if has_one_length and all(map(_VECTOR.fullmatch, labels)) and any(f[0] in ("0", "false") for f in flags):
        raise _indicators_error(labels[0], examples[0].location)


def _indicators_error(text: str, location: str) -> InputError:
    message = f"'{text[:60]}' is a list of 0 and 1, which does not name labels"
    hint = f"write their names, or give each label a column of 0 and 1: {option('label_column', 'a,b,c')}"
    where: dict[str, Any] = {"location": location, "argument": "label_column"}
    return InputError("labels_are_indicators", message, hint=hint, **where)


def label_ids(example: TextExample, label_map: LabelMap, separator: str | None) -> list[int]:
    """Return the ids of the labels of an example, each once, in ascending order.

    Raises:
        InputError: The model does not have a label.
    """
    ids = {label: label_map.id(label) for label in split_labels(example, separator)}
    for label, label_id in ids.items():
        if label_id is None:
            raise label_map.unknown_label_error(label, example.location, "label_column")
    return sorted({label_id for label_id in ids.values() if label_id is not None})


def collect_labels(examples: Sequence[TextExample], separator: str | None = None) -> list[str]:
    """Return the labels of the training examples in the order of their ids.

    Raises:
        InputError: There are fewer than two labels, or they look like measurements.
    """
    located = [
        (label, example.location) for example in examples for label in split_labels(example, separator)
    ]
    check_spellings(located)
    labels = sorted_labels(label for label, _ in located)
    where: Any = {"location": examples[0].location, "argument": "label_column"}
    check = f"check {option('label_column')}"
    if len(labels) < 2:
        message = f"the examples have no labels but {', '.join(labels) or 'none'}"
        separated = "" if separator is None else f" and {option('label_separator')}, which is {separator!r}"
        hint = f"a classifier needs at least two labels; {check}{separated}"
        raise InputError("single_label", message, hint=hint, **where)
    if len(labels) > _MAX_FRACTIONS and all(map(_FRACTION.fullmatch, labels)):
        message = f"the labels are {len(labels):,} different numbers ({join_names(labels, 3)})"
        hint = f"to predict a number, use {command('finetune', 'regress')}; or {check}"
        raise InputError("labels_are_numbers", message, hint=hint, **where)
    if len(labels) > max(_MAX_SINGLE_LABELS, _MAX_DISTINCT_RATIO * len(examples)):
        message = f"{len(examples):,} examples have {len(labels):,} different labels, as texts would"
        hint = f"{check}; each label needs several examples"
        raise InputError("labels_are_texts", message, hint=hint, **where)
    return labels


def class_weights(settings: ClassSettings, labels: Sequence[str], balanced: Sequence[float]) -> list[float]:
    """Return the weight of each label in the loss.

    Args:
        settings: Settings with `class_weights` other than "none".
        labels: The labels by id.
        balanced: The weights for "balanced", which compensate for rare labels.

    Raises:
        InputError: The settings have a weight for an unknown label.
    """
    weights: Any = settings.class_weights
    if weights == "balanced":
        return list(balanced)
    if unknown := [name for name in weights if name not in labels]:
        message = f"there is no label '{unknown[0]}'"
        hint = f"the labels are {', '.join(labels[:10])}{', …' if len(labels) > 10 else ''}"
        raise InputError("unknown_label", message, argument="class_weights", hint=hint)
    return [weights.get(label, 1.0) for label in labels]
