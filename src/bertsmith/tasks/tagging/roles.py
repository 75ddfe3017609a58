"""Semantic roles in columns: a sentence with what each of its predicates calls its words; one example a predicate.

One column marks the predicates by their senses (go.01, _ elsewhere), and each column behind it has the roles of
one of them, in their order. A role is of one word (its head), or spelt as IOB or IOBES. The predicate's own V
is no role: it is given, and official scores leave it out.
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
from bertsmith.tasks.tagging.tagged import TagExample

_NONE = ("_", "-", "")
_PREDICATE = re.compile(r"([BIES]-)?V")
_SPAN = re.compile(r"O|[BIES]-.+")


def has_roles(file: str | Path, settings: TagSettings) -> bool:
    """Whether a file's columns are to be read as roles: a column of predicates is named, or a .conllu file has
    columns behind the ten of the format and none is named for tags."""
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


def read_roles(file: str | Path, settings: TagSettings, *, labelled: bool) -> list[TagExample]:
    """An example a predicate, in the file's order. InputError with file and line for what is amiss."""
    columns = [
        Column(settings.word_column, "1", "FORM", "word_column"),
        Column(settings.predicate_column, "", str(len(UNIVERSAL) + 1), "predicate_column", filled=False),
    ]
    found = [
        example
        for sentence in read_conll(file, columns, settings.encoding)
        for example in _of_sentence(str(file), sentence, labelled)
    ]
    if not found:
        raise InputError(
            "no_predicates",
            "no word of this file is a predicate",
            location=f"{file}:1",
            argument="predicate_column",
            hint=f"name the column that marks predicates with {option('predicate_column')}",
        )
    return found


def _of_sentence(file: str, sentence: Sentence, labelled: bool) -> Iterator[TagExample]:
    words = tuple(row[0] for row in sentence.rows)
    predicates = [i for i, row in enumerate(sentence.rows) if row[1] not in _NONE]
    widths = [max((n for n, cell in enumerate(cells, 1) if cell), default=0) for cells in sentence.behind]
    for i, width in enumerate(widths):
        if (labelled or width) and width != len(predicates):
            raise InputError(
                "role_column_count",
                f"the sentence has {pluralize(len(predicates), 'predicate')}, and the row "
                f"{pluralize(width, 'column')} of roles",
                location=f"{file}:{sentence.lines[i]}",
                hint="give each predicate a column of roles, with _ for words without a role",
            )
    for number, predicate in enumerate(predicates):
        tags = None
        if all(widths):
            places = (f"{file}:{line}" for line in sentence.lines)
            tags = tuple(_tag(c[number], p) for c, p in zip(sentence.behind, places, strict=True))
        yield TagExample(
            words,
            tags if labelled else None,
            f"{file}:{sentence.lines[0]}",
            None if labelled else _rows(sentence, tags),
            predicate=predicate,
            lines=sentence.numbers if labelled else None,
        )


def _rows(sentence: Sentence, tags: Sequence[str] | None) -> tuple[str, ...]:
    """What is written in front of the predicted tag: the row, and the gold one."""
    golds = tags or [""] * len(sentence.texts)
    blank = sentence.texts[0][-1]
    pairs = zip(sentence.texts, golds, strict=True)
    return tuple(f"{text}{gold}{blank}" if gold else text for text, gold in pairs)


def _tag(role: str, place: str) -> str:
    if "*" in role:
        raise InputError(
            "role_in_brackets",
            f"the role '{role}' is written with brackets",
            location=place,
            hint="write roles as IOB tags, or at their heads only",
        )
    if role in _NONE or _PREDICATE.fullmatch(role):
        return OUTSIDE
    return role if _SPAN.fullmatch(role) else f"B-{role}"
