"""Read semantic roles in columns: a sentence with the roles of its words for each of its predicates.

One column marks the predicates by their senses (go.01, else _), and each column behind it has the roles of one
of them, in their order: one example for each predicate. A role is that of one word (its head), or written as IOB
or IOBES. The predicate's V is not a role: it is an input, and official
scores leave it out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from bertsmith.errors import InputError, option
from bertsmith.formatting import pluralize
from bertsmith.io.compression import format_suffix
from bertsmith.io.sources import Source
from bertsmith.io.tables import is_json_source
from bertsmith.io.text_io import read_lines
from bertsmith.metrics.tagging import OUTSIDE
from bertsmith.tasks.settings import TagSettings
from bertsmith.tasks.tagging.conll import CONLLU_COLUMNS, Column, Sentence, read_conll, split_columns
from bertsmith.tasks.tagging.sentences import TagExample

_NO_ROLE = ("_", "-", "")
_PREDICATE_TAG = re.compile(r"([BIES]-)?V")
_SPAN_TAG = re.compile(r"O|[BIES]-.+")


def has_roles(source: Source, settings: TagSettings) -> bool:
    """Return True if the columns of a file are roles.

    A column of predicates is named; or a .conllu has more columns than the format, and none is named for tags.
    """
    if is_json_source(source):
        return False
    if settings.predicate_column is not None:
        return True
    if format_suffix(source) != ".conllu" or settings.tag_column is not None:
        return False
    for _, line in read_lines(source, settings.encoding):
        if line.startswith("#"):
            if "global.columns" in line:
                return False
        elif line.strip():
            return len(split_columns(line)) > len(CONLLU_COLUMNS)
    return False


def read_roles(source: Source, settings: TagSettings, *, labeled: bool) -> list[TagExample]:
    """Return one example for each predicate of a file, in its order."""
    predicates = str(len(CONLLU_COLUMNS) + 1)
    columns = [
        Column(settings.word_column, "1", "FORM", "word_column"),
        Column(settings.predicate_column, "", predicates, "predicate_column", filled=False),
    ]
    sentences = read_conll(source, columns, settings.encoding)
    examples = [e for sentence in sentences for e in _examples_of(str(source), sentence, labeled=labeled)]
    if not examples:
        raise InputError(
            "no_predicates",
            "no word of this file is a predicate",
            location=f"{source}:1",
            argument="predicate_column",
            hint=f"name the column that marks predicates with {option('predicate_column')}",
        )
    return examples


def _examples_of(file: str, sentence: Sentence, *, labeled: bool) -> Iterator[TagExample]:
    words = tuple(cells[0] for cells in sentence.cells)
    predicates = [i for i, cells in enumerate(sentence.cells) if cells[1] not in _NO_ROLE]
    roles = sentence.further_fields
    widths = [max((n for n, cell in enumerate(cells, 1) if cell), default=0) for cells in roles]
    for line, width in zip(sentence.lines, widths, strict=True):
        if (labeled or width) and width != len(predicates):
            raise InputError(
                "role_column_count",
                f"the sentence has {pluralize(len(predicates), 'predicate')}, and the row "
                f"{pluralize(width, 'column')} of roles",
                location=f"{file}:{line}",
                hint="give each predicate a column of roles, with _ for words without a role",
            )
    for index, predicate in enumerate(predicates):
        tags = None
        if all(widths):
            cells = zip(roles, sentence.lines, strict=True)
            tags = tuple(_tag(fields[index], f"{file}:{line}") for fields, line in cells)
        yield TagExample(
            words,
            tags if labeled else None,
            f"{file}:{sentence.lines[0]}",
            None if labeled else _output_rows(sentence, tags),
            predicate=predicate,
            lines=sentence.line_numbers if labeled else None,
        )


def _output_rows(sentence: Sentence, tags: Sequence[str] | None) -> tuple[str, ...]:
    """Return the text in front of each predicted tag: the row, and its label if there is one."""
    rows = sentence.output_rows
    separator = rows[0][-1]
    labels = tags or [""] * len(rows)
    return tuple(
        f"{row}{label}{separator}" if label else row for row, label in zip(rows, labels, strict=True)
    )


def _tag(role: str, location: str) -> str:
    if "*" in role:
        raise InputError(
            "role_in_brackets",
            f"the role '{role}' is written with brackets",
            location=location,
            hint="write roles as IOB tags, or at their heads only",
        )
    if role in _NO_ROLE or _PREDICATE_TAG.fullmatch(role):
        return OUTSIDE
    return role if _SPAN_TAG.fullmatch(role) else f"B-{role}"
