"""The columns of a table of pairs or triples."""

from __future__ import annotations

from typing import NamedTuple

from bertsmith.errors import InputError, option
from bertsmith.formatting import join_names
from bertsmith.io.tables import Table
from bertsmith.tasks.settings import EmbedSettings

_TEXT_COLUMNS = (
    ("text", "second"),
    ("sentence1", "sentence2"),
    ("question1", "question2"),
    ("anchor", "positive"),
    ("query", "passage"),
    ("query", "positive"),
    ("question", "passage"),
)
_LABEL_COLUMNS = ("label", "score")
_NEGATIVE_COLUMN = "negative"


class Columns(NamedTuple):
    """The names of a table's columns; None for one that it does not have."""

    text: str
    second: str | None
    label: str | None
    negative: str | None


def find_columns(table: Table, settings: EmbedSettings, *, labeled: bool) -> Columns:
    """Return the columns that the settings name, or those with usual names.

    Raises:
        InputError: The columns of the texts are unknown.
    """
    columns = table.columns
    if table.is_plain and labeled:
        raise InputError(
            "no_columns",
            "this file has one text per line and nothing that separates columns",
            location=f"{table.name}:1",
            hint="give pairs of texts in a .csv, .tsv, or .jsonl file; or set "
            f"{option('delimiter')} to the character that separates columns",
        )
    text, second = settings.text_column, settings.second_column
    if not settings.header and not table.is_plain:
        text, second = text or "1", second or ("2" if "2" in columns else None)
    if text is None and second is None:
        usual_pairs = (pair for pair in _TEXT_COLUMNS if set(pair) <= set(columns))
        text, second = next(usual_pairs, (None, None))
    if text is None:
        usual = [name for name, _ in _TEXT_COLUMNS if name in columns]
        text = usual[0] if usual else columns[0] if len(columns) == 1 else None
    if text is None or (second is None and labeled):
        raise InputError(
            "text_columns_unknown",
            f"no column has a known name for the two texts; the columns are {join_names(columns)}",
            location=table.start,
            argument="second_column" if text is not None else "text_column",
            hint=f"name them with {option('text_column')} and {option('second_column')}",
        )
    negative = settings.negative_column or (
        _NEGATIVE_COLUMN if labeled and _NEGATIVE_COLUMN in columns else None
    )
    label = settings.label_column
    if label is None and negative is None and settings.header:
        label = next((name for name in _LABEL_COLUMNS if name in columns), None)
    if label is not None and settings.negative_column is not None:
        raise InputError(
            "label_and_negative_column",
            f"pairs have labels ('{label}') and triples have negatives ('{negative}'); examples cannot have both",
            argument="negative_column",
            hint=f"remove {option('label_column')} or {option('negative_column')}",
        )
    return Columns(text, second, label if labeled else None, negative if labeled else None)
