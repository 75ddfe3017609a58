"""Sentences, and their files: .jsonl with lists, columns (CoNLL), and a sentence per line."""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from bertsmith.errors import InputError, option
from bertsmith.formatting import pluralize
from bertsmith.io.compression import format_suffix
from bertsmith.io.sources import Source
from bertsmith.io.tables import Row, is_json_source, json_rows
from bertsmith.io.text_io import read_lines
from bertsmith.io.unicode_scripts import HAN_CLASS
from bertsmith.tasks.base import Example
from bertsmith.tasks.settings import TagSettings
from bertsmith.tasks.tagging.conll import Column, read_conll, split_columns

_SEPARATOR = re.compile(r"[\t\n\r]")
_INTEGER = re.compile(r"-?\d+")
_HAN_CHARACTER = re.compile(f"([{HAN_CLASS}])")


@dataclass(frozen=True)
class TagExample(Example):
    """A sentence.

    Attributes:
        words: The words.
        tags: The tags as in the file; None if they are unknown.
        location: The location of the first word.
        rows: For an unlabeled sentence, the columns of each word's row, any tag last, with a final separator; None
            if the sentence does not come from columns or lists.
        text: The running text that was split into words; None if words were given.
        predicate: The index of the word whose semantic roles are the tags; None for other tags.
        lines: The line of each word, if each has its own.
    """

    words: tuple[str, ...]
    tags: tuple[str, ...] | None
    location: str
    rows: tuple[str, ...] | None = None
    text: str | None = None
    predicate: int | None = None
    lines: Sequence[int] | None = None

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
        return not self.words

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


def read_sentences(source: Source, settings: TagSettings, *, labeled: bool) -> list[TagExample]:
    """Return the sentences of a source: lists of words in JSON lines and tables, else columns (see `conll`).

    Without labels, a .txt that has no columns has one sentence on each line.
    """
    if is_json_source(source):
        rows = json_rows(source, settings.encoding)
        examples = [_example_of_row(row, settings, labeled=labeled) for row in rows]
    elif _has_sentence_lines(source, settings, labeled=labeled):
        lines = read_lines(source, settings.encoding)
        examples = [TagExample(parse_words(line, ""), None, f"{source}:{n}", text=line) for n, line in lines]
    else:
        examples = list(_examples_in_columns(source, settings, labeled=labeled))
    if not examples:
        message, hint = "this file has no sentences", "give a file with at least one sentence"
        raise InputError("no_examples", message, location=f"{source}:1", hint=hint)
    return examples


def has_han_characters(examples: Sequence[TagExample]) -> bool:
    """Return whether each Chinese word is a single character, as in files of a character and its tag per line."""
    chinese = [word for example in examples for word in example.words if _HAN_CHARACTER.search(word)]
    return bool(chinese) and all(len(word) == 1 for word in chinese)


def split_han_characters(example: TagExample) -> TagExample:
    """Make each Chinese character of a running text a word; words that were given remain."""
    if example.text is None:
        return example
    words = tuple(part for word in example.words for part in _HAN_CHARACTER.split(word) if part)
    return replace(example, words=words)


def parse_words(value: Any, location: str) -> tuple[str, ...]:
    """Return the words of a list or string."""
    if isinstance(value, str):
        return tuple(value.split())
    if not isinstance(value, list | tuple) or not all(isinstance(word, str) for word in value):
        raise InputError(
            "not_a_sentence",
            "a sentence is a list of words or a string",
            location=location,
            hint='write ["John", "smiles"]',
        )
    if "" in value:
        raise InputError(
            "empty_word",
            f"word {list(value).index('') + 1} is empty",
            location=location,
            hint="remove it and its tag",
        )
    return tuple(value)


def parse_predicate(value: Any, words: Sequence[str], location: str) -> int | None:
    """Return the index of a predicate that is given as an index or a word of the sentence."""
    if value is None or value == "":
        return None
    if isinstance(value, str) and not (_INTEGER.fullmatch(value) and value not in words):
        if value not in words:
            raise InputError(
                "predicate_not_in_sentence",
                f"the predicate '{value}' is not a word of the sentence",
                location=location,
                hint="give the index of its word, from 0",
            )
        if words.count(value) > 1:
            raise InputError(
                "ambiguous_predicate",
                f"the predicate '{value}' occurs {words.count(value):,} times in the sentence",
                location=location,
                hint="give the index of its word, from 0",
            )
        return words.index(value)
    index = int(value) if isinstance(value, str | int) else -1
    if isinstance(value, bool) or not 0 <= index < len(words):
        raise InputError(
            "predicate_out_of_range",
            f"the predicate {value!r} is not the index of a word",
            location=location,
            hint=f"give an index from 0 to {len(words) - 1}",
        )
    return index


def json_keys(settings: Any) -> tuple[str, str, str]:
    """Return the keys of words, tags, and predicate in .jsonl; a setting that is a number is for other files."""
    columns = {
        "words": settings.word_column,
        "tags": settings.tag_column,
        "predicate": settings.predicate_column,
    }
    words, tags, predicate = (
        default if not column or _INTEGER.fullmatch(column) else column for default, column in columns.items()
    )
    return words, tags, predicate


def tab_separated(cells: Iterable[object]) -> str:
    """Return cells each followed by a tab; tabs and line breaks in words become spaces."""
    return "".join(_SEPARATOR.sub(" ", str(cell)) + "\t" for cell in cells)


def _example_of_row(row: Row, settings: TagSettings, *, labeled: bool) -> TagExample:
    values, location = row.values, row.location
    key, tag_key, predicate_key = json_keys(settings)
    for argument, name in [("word_column", key), ("tag_column", tag_key)][: 2 if labeled else 1]:
        if values.get(name) is None:
            raise InputError(
                "field_missing",
                f"the field '{name}' is missing",
                location=location,
                argument=argument,
                hint=f"the fields are {', '.join(values)}; name it with {option(argument)}",
            )
    words, tags = parse_words(values[key], location), values.get(tag_key)
    predicate = parse_predicate(values.get(predicate_key), words, location)
    if not labeled:
        text = values[key] if isinstance(values[key], str) else None
        has_tags = isinstance(tags, list | tuple) and len(tags) == len(words)
        cells = zip(words, tags or (), strict=True) if has_tags else ((word,) for word in words)
        rows = tuple(map(tab_separated, cells))
        return TagExample(words, None, location, rows=rows, text=text, predicate=predicate)
    if not isinstance(tags, list | tuple) or not all(isinstance(tag, str | int) for tag in tags):
        message, hint = f"'{tag_key}' is not a list of tags", 'write ["B-PER", "O"]'
        raise InputError("not_a_list", message, location=location, hint=hint)
    if len(tags) != len(words):
        message = f"there are {pluralize(len(words), 'word')} and {pluralize(len(tags), 'tag')}"
        raise InputError("tag_count", message, location=location, hint="give each word one tag")
    if "" in tags:
        message = f"tag {tags.index('') + 1} is empty"
        raise InputError("empty_label", message, location=location, hint="give each word a tag")
    if not words:
        message = "this sentence has no words"
        raise InputError("empty_sentence", message, location=location, hint="remove the line")
    return TagExample(words, tuple(str(tag) for tag in tags), location, predicate=predicate)


def _has_sentence_lines(source: Source, settings: TagSettings, *, labeled: bool) -> bool:
    """Return True for a file with one sentence on each line.

    Columns are equally many in all lines, and blank lines separate sentences in columns.
    """
    if settings.layout == "lines" and labeled:
        raise InputError(
            "layout_with_tags",
            "the layout 'lines' is for sentences without tags",
            location=source,
            argument="layout",
            hint="give tags in columns",
        )
    if labeled or settings.layout != "auto" or format_suffix(source) != ".txt":
        return settings.layout == "lines"
    lines = [line for _, line in read_lines(source, settings.encoding)]
    widths = {len(split_columns(line)) for line in lines if line.strip(" \t")}
    return len(widths) > 1 or all(line.strip(" \t") for line in lines)


def _examples_in_columns(source: Source, settings: TagSettings, *, labeled: bool) -> Iterator[TagExample]:
    columns = [
        Column(settings.word_column, "1", "FORM", "word_column"),
        Column(settings.tag_column, "-1", "UPOS", "tag_column", required=labeled),
    ]
    for sentence in read_conll(source, columns, settings.encoding):
        words, location = tuple(cells[0] for cells in sentence.cells), f"{source}:{sentence.lines[0]}"
        if labeled:
            tags = tuple(cells[1] for cells in sentence.cells)
            yield TagExample(words, tags, location, lines=sentence.line_numbers)
        else:
            yield TagExample(words, None, location, rows=tuple(sentence.output_rows))
