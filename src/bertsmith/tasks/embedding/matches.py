"""Texts that belong together, or do not: how pairs, triples and queries with passages stand in files.

What a file holds decides what is learnt from it: pairs with a score are graded, pairs with one of two labels are
labelled, and pairs without either, triples, and queries with passages say what is to be found among what else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from bertsmith.errors import InputError, option
from bertsmith.formatting import join_names
from bertsmith.io.sources import Source
from bertsmith.io.tables import Table, read_table
from bertsmith.tasks.classification.regress import number_of
from bertsmith.tasks.retrieval_queries import holds_queries, read_queries
from bertsmith.tasks.settings import EmbedSettings

Kind = Literal["graded", "labelled", "retrieval"]

_TEXTS = (
    ("text", "second"),
    ("sentence1", "sentence2"),
    ("question1", "question2"),
    ("anchor", "positive"),
    ("query", "passage"),
    ("query", "positive"),
    ("question", "passage"),
)
_LABELS = ("label", "score")
_NEGATIVE = "negative"
SAME = ("1", "1.0", "true", "yes", "same", "duplicate", "paraphrase", "entailment", "equivalent", "similar")


@dataclass(frozen=True)
class Match:
    """A text with those it is compared with. query: the text. positives: of a pair the other text, of a query its
    passages; empty for a text alone. negatives: texts that do not match. label: a pair's, None where it has none.
    row: of the table that it was read from."""

    query: str
    positives: tuple[str, ...]
    negatives: tuple[str, ...]
    label: str | None
    place: str
    row: Mapping[str, str] | None = field(default=None, compare=False, repr=False)

    @property
    def texts(self) -> tuple[str, ...]:
        """All its texts: the query, the positives, the negatives."""
        return (self.query, *self.positives, *self.negatives)


class _Names(NamedTuple):
    """The columns of a table; None for what is not in it."""

    text: str
    second: str | None
    label: str | None
    negative: str | None


def read_matches(source: Source, settings: EmbedSettings, *, labelled: bool) -> list[Match]:
    """Return the pairs, triples, or queries of a source in its order; without labels also single texts."""
    if settings.text_column is None and holds_queries(source, settings.encoding):
        queries = read_queries(source, settings.encoding, labelled=labelled)
        matches = [Match(*query[:3], None, query.place) for query in queries]
    else:
        table = read_table(
            source,
            delimiter=settings.delimiter,
            header=settings.header,
            encoding=settings.encoding,
            keep_blank=not labelled,
        )
        matches = _matches_of_rows(table, _names(table, settings, labelled=labelled))
    if not matches:
        message, hint = "this file has no examples", "give a file with at least one example"
        raise InputError("no_examples", message, location=source, hint=hint)
    return matches


def _matches_of_rows(table: Table, names: _Names) -> list[Match]:
    texts = table.texts(names.text, "text_column")
    seconds = table.texts(names.second, "second_column") if names.second else None
    labels = table.texts(names.label, "label_column") if names.label else None
    negatives = table.texts(names.negative, "negative_column") if names.negative else None
    matches = []
    for i, row in enumerate(table):
        label = labels[i].strip() if labels else None
        if label == "":
            raise InputError(
                "empty_label",
                "the label is empty",
                location=row.location,
                hint="give each row a label, or remove the row",
            )
        matches.append(
            Match(
                texts[i],
                (seconds[i],) if seconds else (),
                (negatives[i],) if negatives else (),
                label,
                row.location,
                None if table.is_plain else row.texts,
            )
        )
    return matches


def _names(table: Table, settings: EmbedSettings, *, labelled: bool) -> _Names:
    """Return the columns: the selected ones, else those with usual names."""
    columns = table.columns
    if table.is_plain and labelled:
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
        pairs = [pair for pair in _TEXTS if set(pair) <= set(columns)]
        text, second = pairs[0] if pairs else (None, None)
    if text is None:
        usual = [name for name, _ in _TEXTS if name in columns]
        text = usual[0] if usual else columns[0] if len(columns) == 1 else None
    if text is None or (second is None and labelled):
        raise InputError(
            "text_columns_unknown",
            f"no column has a known name for the two texts; the columns are {join_names(columns)}",
            location=table.start,
            argument="second_column" if text is not None else "text_column",
            hint=f"name them with {option('text_column')} and {option('second_column')}",
        )
    negative = settings.negative_column or (_NEGATIVE if labelled and _NEGATIVE in columns else None)
    label = settings.label_column
    if label is None and negative is None and settings.header:
        label = next((name for name in _LABELS if name in columns), None)
    if label is not None and settings.negative_column is not None:
        raise InputError(
            "label_and_negative_column",
            f"pairs have labels ('{label}') and triples have negatives ('{negative}'); examples cannot have both",
            argument="negative_column",
            hint=f"remove {option('label_column')} or {option('negative_column')}",
        )
    return _Names(text, second, label if labelled else None, negative if labelled else None)


def as_row(match: Match) -> dict[str, Any]:
    """Return an example as `read_matches` reads it from a .jsonl."""
    if match.row is not None:
        return dict(match.row)
    return {"query": match.query, "positives": match.positives, "negatives": match.negatives}


def kind_of(matches: Sequence[Match], settings: EmbedSettings) -> Kind:
    """Return the kind of the examples. Raises `InputError` if the labels or the selected loss do not fit one."""
    labels = {match.label for match in matches if match.label is not None}
    if not labels:
        return _fitting("retrieval", settings, matches[0])
    if len(labels) == 1 and settings.same_label is None:
        raise InputError(
            "single_label",
            f"all pairs have the label {next(iter(labels))!r}",
            location=matches[0].place,
            argument="label_column",
            hint=f"check {option('label_column')}",
        )
    if settings.loss not in ("cosine", "cosent") and (len(labels) == 2 or settings.same_label is not None):
        return _fitting("labelled", settings, matches[0])
    try:
        for match in matches:
            number_of(match)
    except InputError as error:
        raise InputError(
            "not_a_number",
            f"{error.message}, and there are more than two labels: {join_names(sorted(labels))}",
            location=error.location,
            argument="label_column",
            hint=f"give each pair a score; or name the label of pairs that match with {option('same_label')}",
        ) from None
    return _fitting("graded", settings, matches[0])


def same_label(matches: Sequence[Match], settings: EmbedSettings) -> str:
    """Return the label of pairs that mean the same: the selected one, or the one with a known name."""
    labels = sorted({str(match.label) for match in matches if match.label is not None})
    if settings.same_label is not None:
        if settings.same_label not in labels:
            raise InputError(
                "unknown_label",
                f"no pair has the label '{settings.same_label}'",
                argument="same_label",
                hint=f"the labels are {join_names(labels)}",
            )
        return settings.same_label
    same = [label for label in labels if label.casefold() in SAME]
    if len(same) != 1:
        raise InputError(
            "same_label_missing",
            f"it is not clear which of the labels {join_names(labels)} means that two texts match",
            location=matches[0].place,
            argument="same_label",
            hint=f"name it, as in {option('same_label', labels[0])}",
        )
    return same[0]


def _fitting(kind: Kind, settings: EmbedSettings, first: Match) -> Kind:
    takes: dict[str, Kind] = {
        "cosine": "graded",
        "cosent": "graded",
        "contrastive": "labelled",
        "softmax": "retrieval",
    }
    if takes.get(settings.loss, kind) == kind:
        return kind
    wants = {
        "graded": "pairs with a score",
        "labelled": "pairs with one of two labels",
        "retrieval": "pairs without labels, triples, or queries with passages",
    }
    raise InputError(
        "loss_not_applicable",
        f"the loss '{settings.loss}' takes {wants[takes[settings.loss]]}, and these are {wants[kind]}",
        location=first.place,
        argument="loss",
        hint=f"choose another {option('loss')}, or remove it",
    )
