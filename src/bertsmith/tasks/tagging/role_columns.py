"""Semantic roles in columns: one example for each predicate of a sentence.

One column marks predicates by their senses (go.01, _ elsewhere), and each column after it has the roles of one of
them, in order. A role belongs to one word (its head), or is written as IOB or IOBES. The predicate's V is not a
role: it is an input, and official scores leave it out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from bertsmith.errors import InputError, option
from bertsmith.formatting import pluralize
from bertsmith.io.conll import UNIVERSAL, Column, Sentence, fields_of, read_conll
from bertsmith.io.files import bare_suffix, read_lines
from bertsmith.metrics.tagging_schemes import OUTSIDE
from bertsmith.tasks.settings import TagSettings
from bertsmith.tasks.tagging.sentences import TagExample

_NO_ROLE = ("_", "-", "")
_PREDICATE_TAG = re.compile(r"([BIES]-)?V")
_SPAN_TAG = re.compile(r"O|[BIES]-.+")


def has_roles(file: str | Path, settings: TagSettings) -> bool:
    """Return whether a file's columns are roles.

    They are if the settings name a column of predicates, or a .conllu file has more than the ten columns of the
    format and the settings name no column of tags.
    """
    if bare_suffix(file) == ".jsonl":
        return False
    if settings.predicate_column is not None:
        return True
    if bare_suffix(file) != ".conllu" or settings.tag_column is not None:
        return False
    for _, line in read_lines(file, settings.encoding):
        if line.startswith("#"):
            if "global.columns" in line:
                return False
        elif line.strip():
            return len(fields_of(line, tabs="\t" in line)) > len(UNIVERSAL)
    return False


def read_roles(file: str | Path, settings: TagSettings, *, labeled: bool) -> list[TagExample]:
    """Return an example for each predicate of a file."""
    columns = [
        Column(settings.word_column, "1", "FORM", "word_column"),
        Column(settings.predicate_column, "", str(len(UNIVERSAL) + 1), "predicate_column", filled=False),
    ]
    examples = [
        example
        for sentence in read_conll(file, columns, settings.encoding)
        for example in _sentence_examples(str(file), sentence, labeled)
    ]
    if not examples:
        raise InputError(
            "no_predicates",
            "no word of this file is a predicate",
            location=f"{file}:1",
            argument="predicate_column",
            hint=f"name the column that marks predicates with {option('predicate_column')}",
        )
    return examples


def _sentence_examples(file: str, sentence: Sentence, labeled: bool) -> Iterator[TagExample]:
    words = tuple(row[0] for row in sentence.rows)
    predicates = [i for i, row in enumerate(sentence.rows) if row[1] not in _NO_ROLE]
    widths = [max((n for n, cell in enumerate(cells, 1) if cell), default=0) for cells in sentence.behind]
    for i, width in enumerate(widths):
        if (labeled or width) and width != len(predicates):
            raise InputError(
                "role_column_count",
                f"the sentence has {pluralize(len(predicates), 'predicate')}, and the row "
                f"{pluralize(width, 'column')} of roles",
                location=f"{file}:{sentence.lines[i]}",
                hint="give each predicate a column of roles, with _ for words without a role",
            )
    for index, predicate in enumerate(predicates):
        tags = None
        if all(widths):
            locations = (f"{file}:{line}" for line in sentence.lines)
            tags = tuple(_tag(c[index], p) for c, p in zip(sentence.behind, locations, strict=True))
        yield TagExample(
            words,
            tags if labeled else None,
            f"{file}:{sentence.lines[0]}",
            None if labeled else _rows(sentence, tags),
            predicate=predicate,
            lines=sentence.numbers if labeled else None,
        )


def _rows(sentence: Sentence, tags: Sequence[str] | None) -> tuple[str, ...]:
    """Return each word's row with its reference tag, if there are tags."""
    references = tags or [""] * len(sentence.texts)
    separator = sentence.texts[0][-1]
    pairs = zip(sentence.texts, references, strict=True)
    return tuple(f"{text}{tag}{separator}" if tag else text for text, tag in pairs)


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
