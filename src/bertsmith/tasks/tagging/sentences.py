"""Sentences with a tag for each word, and the reading of CoNLL files.

In a file, each line has one word with its annotations in columns, and a blank line ends a sentence. Tabs separate
columns if the first row has one, else spaces and tabs (a word may contain other white space). Lines that
begin with -DOCSTART- separate sentences. In .conllu, comments, ranges of words that are written as one (3-4),
and words that are not written (8.1) are skipped, and columns have names: those of the format, or of a first line
`# global.columns = …`.

For semantic roles, one column marks the predicates by their senses (go.01, else _), and each column behind it has
the roles of one of them, in their order: one example for each predicate. A role is that of one word (its head), or
written as IOB or IOBES. The predicate's V is not a role: it is an input, and official scores leave it out.
"""

from __future__ import annotations

import logging
import re
import unicodedata
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from bertsmith.errors import InputError, option
from bertsmith.formatting import join_names, pluralize
from bertsmith.io.compression import format_suffix
from bertsmith.io.text_io import read_lines
from bertsmith.io.unicode_scripts import HAN_CLASS
from bertsmith.io.values import is_blank
from bertsmith.metrics.tagging import OUTSIDE
from bertsmith.tasks.base import Example, Metadata
from bertsmith.tasks.settings import TagSettings

logger = logging.getLogger(__name__)
_HAN_CHARACTER = re.compile(f"([{HAN_CLASS}])")
_CONLLU_COLUMNS = ["ID", "FORM", "LEMMA", "UPOS", "XPOS", "FEATS", "HEAD", "DEPREL", "DEPS", "MISC"]
_GLOBAL_COLUMNS = re.compile(r"#\s*global\.columns\s*=\s*(.*)")
COMMENT = re.compile(r"#\s*[\w.:-]+(\s+[\w.:-]+)?\s+=(\s|$)|#\s.*\w=\S*\s*$|#(begin|end) document\b")
"""The form of comments in files of columns: `# key = value`, or `# id … key=value`, and those of CoNLL-2012."""
_DOCUMENT = "-DOCSTART-"
_MARKS = ("#", _DOCUMENT)
_NUMBER = re.compile(r"-?[1-9]\d*")
_SPACES = re.compile(r"[ \t]+")
_NO_ROLE = ("_", "-", "")
_PREDICATE_TAG = re.compile(r"([BIES]-)?V")
_SPAN_TAG = re.compile(r"O|[BIES]-.+")


@dataclass(frozen=True)
class TagExample(Example):
    """A sentence.

    Attributes:
        words: The words.
        tags: The tags as in the file; None if they are unknown.
        location: The location of the first word, or of the row that has the words as a list.
        output_rows: For an unlabeled sentence, the columns of each word's row, any tag last, with a final
            separator; None if the sentence does not come from columns or lists.
        text: The running text that was split into words; None if words were given, or for a labeled sentence.
        predicate: The index of the word whose semantic roles are the tags; None for other tags.
        lines: The line of each word of a labeled sentence, if each has its own.
        extended_spans: The number of spans that cut a word, and were extended to the whole word.
    """

    words: tuple[str, ...]
    tags: tuple[str, ...] | None
    location: str
    output_rows: tuple[str, ...] | None = None
    text: str | None = None
    predicate: int | None = None
    lines: Sequence[int] | None = None
    extended_spans: int = 0

    @property
    def group_key(self) -> tuple[str, ...]:
        """Return the words."""
        return self.words

    @property
    def question_key(self) -> Hashable:
        """Return the words and the predicate."""
        return self.words, self.predicate

    @property
    def is_empty(self) -> bool:
        """Return whether there is no word."""
        return not self.words or (self.text is not None and is_blank(self.text))

    @property
    def display_inputs(self) -> dict[str, str]:
        """Return the sentence, and the predicate if there is one."""
        inputs = {"words": " ".join(self.words)}
        return inputs if self.predicate is None else {**inputs, "predicate": self.words[self.predicate]}

    def word_location(self, index: int) -> str:
        """Return the location of a word."""
        if self.lines is None:
            return f"{self.location}, word {index + 1}"
        return f"{self.location.rpartition(':')[0]}:{self.lines[index]}"


def has_han_characters(examples: Sequence[TagExample]) -> bool:
    """Return whether each Chinese word is a single character, as in files of a character and its tag per line."""
    chinese = [word for example in examples for word in example.words if _HAN_CHARACTER.search(word)]
    return bool(chinese) and all(len(word) == 1 for word in chinese)


def has_split_words(examples: Sequence[TagExample]) -> bool:
    """Return whether all words are as `split_text` splits, and punctuation is among them."""
    words = {word for example in examples for word in example.words}
    return all(len(split_text(word)) == 1 for word in words) and any(
        len(split_text(f"a{w}")) > 1 for w in words
    )


def split_text(text: str) -> list[tuple[int, int]]:
    """Return the [start, end) of each word; punctuation, symbols, and Chinese characters are words."""

    def group(index: int) -> int:
        is_word = unicodedata.category(text[index])[0] in "PS" or _HAN_CHARACTER.match(text[index])
        return index if is_word else -1 - text[index].isspace()

    groups = [(key, list(indices)) for key, indices in groupby(range(len(text)), group)]
    return [(indices[0], indices[-1] + 1) for key, indices in groups if key != -2]


def split_as_in_training(examples: Sequence[TagExample], metadata: Metadata) -> Sequence[TagExample]:
    """Split running text into Chinese characters, and from punctuation, if the training examples were split so."""
    if metadata.get("split_text"):
        texts = [e.text or "" for e in examples]
        words = [tuple(text[start:end] for start, end in split_text(text)) for text in texts]
        return [e if e.text is None else replace(e, words=w) for e, w in zip(examples, words, strict=True)]
    if not metadata.get("characters"):
        return examples

    def split(words: Sequence[str]) -> tuple[str, ...]:
        return tuple(part for word in words for part in _HAN_CHARACTER.split(word) if part)

    return [e if e.text is None else replace(e, words=split(e.words)) for e in examples]


class _Row(NamedTuple):
    """The row of a word: the number of its line, the line, and its columns."""

    number: int
    line: str
    fields: list[str]


class _Layout(NamedTuple):
    """The columns of a file, by its first row.

    Attributes:
        word: The index of the words' column (negative: from the end).
        annotation: The index of the column of tags or predicates; None if an unlabeled file has none.
        has_roles: True if it is the column of predicates.
        width: The number of columns of the first row.
        separator: A tab, or a space.
    """

    word: int
    annotation: int | None
    has_roles: bool
    width: int
    separator: str

    @classmethod
    def from_row(
        cls, row: _Row, names: Sequence[str], settings: TagSettings, path: str | Path, *, labeled: bool
    ) -> _Layout:
        """Return the layout of a file with this first row.

        Args:
            row: The first row.
            names: The names of the columns of a .conllu file.
            settings: The settings, which may choose the columns.
            path: The file.
            labeled: True if tags must exist.
        """
        width, location = len(row.fields), f"{path}:{row.number}"

        has_more_columns = names == _CONLLU_COLUMNS and width > len(names) and settings.tag_column is None
        has_roles = settings.predicate_column is not None or has_more_columns
        defaults = {
            "word_column": "FORM" if names else "1",
            "tag_column": "UPOS" if names else "-1",
            "predicate_column": str(len(_CONLLU_COLUMNS) + 1),
        }

        def index_of(argument: str, other: int | None = None) -> int | None:
            """Return the index of a column that is not the other one."""
            name = getattr(settings, argument) or defaults[argument]
            index = names.index(name) if name in names else width
            if _NUMBER.fullmatch(name):
                index = int(name) - 1 if int(name) > 0 else int(name)
            if -width <= index < width and (other is None or index % width != other % width):
                return index
            if argument == "tag_column" and not labeled:
                return None
            message = f"there is no column '{name}'" + ("" if other is None else " besides that of the words")
            hint = (
                f"its columns are {', '.join(names) or f'1 to {width}'}; choose one with {option(argument)}"
            )
            if width == 1:
                hint = (
                    "separate the word and its tag by a tab; if a comma does, let the file's name end in .csv"
                )
            raise InputError("column_missing", message, location=location, argument=argument, hint=hint)

        word = index_of("word_column")
        assert word is not None
        annotation = index_of("predicate_column" if has_roles else "tag_column", word)
        return cls(word, annotation, has_roles, width, "\t" if "\t" in row.line else " ")

    def check(self, rows: Sequence[_Row], path: str | Path, *, labeled: bool) -> None:
        """Raise InputError if a row lacks a column, or has an empty word or tag."""
        required = [
            i for i in (self.word, self.annotation if labeled or self.has_roles else None) if i is not None
        ]
        filled = required[:1] if self.has_roles else required
        for row in rows:
            width, location = len(row.fields), f"{path}:{row.number}"
            if max(required) >= width or (min(required) < 0 and width != self.width):
                message = f"the row has {pluralize(width, 'column')}, the file's first has {self.width}"
                hint = "fix the row; where spaces separate columns no word can contain one: use tabs"
                raise InputError("field_count", message, location=location, hint=hint)
            if not all(row.fields[index] for index in filled):
                message, hint = "the word or its tag is empty", "give each word a tag, or remove the row"
                if self.annotation == -1 and (filled_fields := sum(map(bool, row.fields))) > 1:
                    hint += f"; if tabs end each line, add {option('tag_column', filled_fields)}"
                raise InputError("empty_cell", message, location=location, hint=hint)

    def output_row(self, row: _Row) -> str:
        """Return a row behind which a prediction is written, with any tag as its last column, as for conlleval."""
        text = (row.line if self.separator == "\t" else row.line.strip(" ")) + self.separator
        last, index = len(row.fields) - 1, self.annotation
        if self.has_roles or index is None or not 0 <= (index if index >= 0 else last + 1 + index) < last:
            return text
        return f"{text}{row.fields[index]}{self.separator}"


def read_conll(path: str | Path, settings: TagSettings, *, labeled: bool) -> Iterator[TagExample]:
    """Yield the sentences of a file; one with columns of roles once for each predicate.

    Raises:
        InputError: A row lacks one of the columns or has nothing in it; if a column is counted from the end, also
            for a row with another number of columns than the first.
    """
    layout: _Layout | None = None
    for names, rows in _read_rows(path, settings.encoding):
        layout = layout or _Layout.from_row(rows[0], names, settings, path, labeled=labeled)
        layout.check(rows, path, labeled=labeled)
        words = tuple(row.fields[layout.word] for row in rows)
        numbers: Sequence[int] = [row.number for row in rows]
        if numbers[-1] - numbers[0] == len(numbers) - 1:
            numbers = range(numbers[0], numbers[-1] + 1)  # smaller
        outputs = None if labeled else tuple(map(layout.output_row, rows))
        example = TagExample(words, None, f"{path}:{numbers[0]}", outputs, lines=numbers if labeled else None)
        if layout.has_roles:
            yield from _role_examples(example, rows, layout, path, labeled=labeled)
        else:
            tags = tuple(row.fields[layout.annotation or 0] for row in rows) if labeled else None
            yield replace(example, tags=tags)


def _read_rows(path: str | Path, encoding: str | None) -> Iterator[tuple[list[str], list[_Row]]]:
    """Yield the names of the columns, and the rows of each sentence."""
    is_conllu = format_suffix(path) == ".conllu"
    names = _CONLLU_COLUMNS if is_conllu else []
    plain = (
        line for _, line in read_lines(path, encoding) if line.strip(" \t") and not line.startswith(_MARKS)
    )
    has_tabs = "\t" in (first := next(plain, ""))
    width = len(split_columns(first, has_tabs=has_tabs)) if first else None
    rows: list[_Row] = []
    skipped: list[str] = []
    for number, line in read_lines(path, encoding):
        fields = split_columns(line, has_tabs=has_tabs)
        # A line with as many columns as all rows is a word: #sun O.
        is_short = not rows and len(fields) != width is not None and (fields[0] == "#" or len(fields) == 1)
        is_comment = line.startswith("#") and (is_conllu or is_short or COMMENT.match(line) is not None)
        if is_comment and is_conllu and (match := _GLOBAL_COLUMNS.match(line)):
            names = match[1].split()
        skipped += [f"line {number}"] if is_comment or line.startswith(_DOCUMENT) else []
        if not line.strip(" \t") or line.startswith(_DOCUMENT):
            if rows:
                yield names, rows
            rows = []
        elif not is_comment and (not is_conllu or fields[0].isdecimal()):
            rows.append(_Row(number, line, fields))
    if rows:
        yield names, rows
    if skipped and not is_conllu:
        comments = pluralize(len(skipped), "comment line is", "comment lines are")
        logger.info("%s: %s skipped: %s", path, comments, join_names(skipped))


def split_columns(line: str, *, has_tabs: bool) -> list[str]:
    """Return the columns of a row."""
    return line.split("\t") if has_tabs else _SPACES.split(line.strip(" \t"))


def _role_examples(
    sentence: TagExample, rows: Sequence[_Row], layout: _Layout, path: str | Path, *, labeled: bool
) -> Iterator[TagExample]:
    """Yield a sentence once for each predicate."""
    assert layout.annotation is not None
    column = layout.annotation
    predicates = [i for i, row in enumerate(rows) if row.fields[column] not in _NO_ROLE]
    roles = [_without_empty_end(row.fields[column % len(row.fields) + 1 :]) for row in rows]
    for row, cells in zip(rows, roles, strict=True):
        if (labeled or cells) and len(cells) != len(predicates):
            raise InputError(
                "role_column_count",
                f"the sentence has {pluralize(len(predicates), 'predicate')}, and the row "
                f"{pluralize(len(cells), 'column')} of roles",
                location=f"{path}:{row.number}",
                hint="give each predicate a column of roles, with _ for words without a role",
            )
    for index, predicate in enumerate(predicates):
        example = replace(sentence, predicate=predicate)
        if all(roles):
            pairs = zip(rows, roles, strict=True)
            tags = tuple(_tag(cells[index], f"{path}:{row.number}") for row, cells in pairs)
            if labeled:
                example = replace(example, tags=tags)
            else:  # the reference in front of the predicted tag
                outputs = zip(sentence.output_rows or (), tags, strict=True)
                example = replace(
                    example, output_rows=tuple(f"{row}{tag}{layout.separator}" for row, tag in outputs)
                )
        yield example


def _without_empty_end(cells: list[str]) -> list[str]:
    return cells[: max((number for number, cell in enumerate(cells, 1) if cell), default=0)]


def _tag(role: str, location: str) -> str:
    """Return the tag of a role."""
    if "*" in role:
        message, hint = f"the role '{role}' has brackets", "write roles as IOB tags, or at their heads only"
        raise InputError("role_in_brackets", message, location=location, hint=hint)
    if role in _NO_ROLE or _PREDICATE_TAG.fullmatch(role):
        return OUTSIDE
    return role if _SPAN_TAG.fullmatch(role) else f"B-{role}"
