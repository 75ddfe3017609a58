"""Pairs of a source text and its target text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bertsmith.errors import InputError, option
from bertsmith.io.sources import Source
from bertsmith.io.tables import read_table
from bertsmith.io.values import is_blank
from bertsmith.tasks.base import Example, TaskData
from bertsmith.tasks.rows import without_rejected
from bertsmith.tasks.texts import input_texts


@dataclass(frozen=True)
class TranslationExample(Example):
    """A source text and its target.

    Attributes:
        text: The source text.
        target: The target text; None if it is unknown.
        location: The file and line.
        table_row: The row of the table that the example was read from.
    """

    text: str
    target: str | None
    location: str
    table_row: Mapping[str, str] | None = field(default=None, compare=False, repr=False)

    @property
    def group_key(self) -> str:
        """Return the source text."""
        return self.text

    @property
    def is_empty(self) -> bool:
        """Return True if there is no source text."""
        return is_blank(self.text)

    @property
    def display_inputs(self) -> dict[str, str]:
        """Return the source text."""
        return {"text": self.text}


class TranslationData(TaskData):
    """Read pairs of texts from a table."""

    def read(self, source: Source, *, labeled: bool = True) -> list[TranslationExample]:
        """Return the rows of a table; a .txt file without columns has one source text per line."""
        settings = self.settings
        table = read_table(
            source,
            delimiter=settings.delimiter,
            header=settings.header,
            encoding=settings.encoding,
            keep_blank=not labeled,
        )
        has_lines = table.is_plain and not labeled
        if labeled:
            table = without_rejected(table)
        texts = table.texts("1" if has_lines else settings.text_column, "text_column")
        targets = table.texts(settings.target_column, "target_column") if labeled else [None] * len(table)
        examples = []
        for row, text, target in zip(table, texts, targets, strict=True):
            if target is not None and is_blank(target):
                message, hint = (
                    "the target text is empty",
                    f"check {option('target_column')}, or omit the row",
                )
                raise InputError(
                    "target_missing", message, location=row.location, argument="target_column", hint=hint
                )
            values = None if has_lines else row.texts
            examples.append(TranslationExample(text, target, row.location, values))
        return examples

    def from_inputs(
        self, columns: Mapping[str, Sequence[Any]], locations: Sequence[str]
    ) -> list[TranslationExample]:
        """Return the examples of source texts."""
        texts = input_texts(columns, locations)["text"]
        return [
            TranslationExample(text, None, location) for text, location in zip(texts, locations, strict=True)
        ]

    def to_row(self, example: TranslationExample) -> dict[str, Any]:
        """Return the row with the column names of the settings."""
        return {self.settings.text_column: example.text, self.settings.target_column: example.target}
