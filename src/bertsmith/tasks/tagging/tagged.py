"""Read sentences with one tag for each word."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from bertsmith.errors import InputError, option
from bertsmith.formatting import pluralize
from bertsmith.io.compression import format_suffix
from bertsmith.io.sources import Source
from bertsmith.io.tables import Row, is_json_source, json_rows
from bertsmith.io.text_io import read_lines
from bertsmith.io.unicode_scripts import HAN_CLASS
from bertsmith.tasks.settings import TagSettings
from bertsmith.tasks.tagging.conll import Column, read_conll, split_columns

_NUMBER = re.compile(r"-?\d+")
_BREAK = re.compile(r"[\t\n\r]")
_CHINESE = re.compile(f"([{HAN_CLASS}])")


@dataclass(frozen=True)
class TagExample:
    """A sentence with its tags as the file has them, None where they are not known, and its first word's place.

    rows: of a sentence to predict, what its file has of each word, the tag last if there is one, and a separator;
    None where it was in no columns or lists. text: the running text that the words are from, None where they were
    given as words. predicate: the position of the word whose roles the tags are, None for other tags. lines: of
    the words in their file, where each has its own.
    """

    words: tuple[str, ...]
    tags: tuple[str, ...] | None
    place: str
    rows: tuple[str, ...] | None = None
    text: str | None = None
    predicate: int | None = None
    lines: Sequence[int] | None = None

    def place_of(self, word: int) -> str:
        """Return the location of a word."""
        if self.lines is None:
            return f"{self.place}, word {word + 1}"
        return f"{self.place.rpartition(':')[0]}:{self.lines[word]}"


def read_sentences(source: Source, settings: TagSettings, *, labelled: bool) -> list[TagExample]:
    """Return the sentences of a source: lists of words in JSON lines and tables, else columns (see `conll`).

    Without labels, a .txt that has no columns has one sentence on each line.
    """
    if is_json_source(source):
        rows = json_rows(source, settings.encoding)
        examples = [_example_of_row(row, settings, labelled=labelled) for row in rows]
    elif _has_sentence_lines(source, settings, labelled=labelled):
        lines = read_lines(source, settings.encoding)
        examples = [TagExample(words_of(line, ""), None, f"{source}:{n}", text=line) for n, line in lines]
    else:
        examples = list(_examples_in_columns(source, settings, labelled=labelled))
    if not examples:
        message, hint = "this file has no sentences", "give a file with at least one sentence"
        raise InputError("no_examples", message, location=f"{source}:1", hint=hint)
    return examples


def by_characters(examples: Sequence[TagExample]) -> bool:
    """Return True if each Chinese word is a single character, as in files of `char<TAB>tag`."""
    chinese = [word for example in examples for word in example.words if _CHINESE.search(word)]
    return bool(chinese) and all(len(word) == 1 for word in chinese)


def in_characters(example: TagExample) -> TagExample:
    """Return a running text with each Chinese character as a word; an example given as words stays."""
    if example.text is None:
        return example
    words = tuple(part for word in example.words for part in _CHINESE.split(word) if part)
    return replace(example, words=words)


def words_of(value: Any, place: str) -> tuple[str, ...]:
    """Return the words of a sentence: a list, or a string."""
    if isinstance(value, str):
        return tuple(value.split())
    if not isinstance(value, list | tuple) or not all(isinstance(word, str) for word in value):
        raise InputError(
            "not_a_sentence",
            "a sentence is a list of words or a string",
            location=place,
            hint='write ["John", "smiles"]',
        )
    if "" in value:
        raise InputError(
            "empty_word",
            f"word {list(value).index('') + 1} is empty",
            location=place,
            hint="remove it and its tag",
        )
    return tuple(value)


def predicate_of(value: Any, words: Sequence[str], place: str) -> int | None:
    """Return the position of a predicate, which is given as that, or as a word that occurs once."""
    if value is None or value == "":
        return None
    if isinstance(value, str) and not (_NUMBER.fullmatch(value) and value not in words):
        if value not in words:
            raise InputError(
                "predicate_not_in_sentence",
                f"the predicate '{value}' is not a word of the sentence",
                location=place,
                hint="give the index of its word, from 0",
            )
        if words.count(value) > 1:
            raise InputError(
                "ambiguous_predicate",
                f"the predicate '{value}' occurs {words.count(value):,} times in the sentence",
                location=place,
                hint="give the index of its word, from 0",
            )
        return words.index(value)
    number = int(value) if isinstance(value, str | int) else -1
    if isinstance(value, bool) or not 0 <= number < len(words):
        raise InputError(
            "predicate_out_of_range",
            f"the predicate {value!r} is not the index of a word",
            location=place,
            hint=f"give an index from 0 to {len(words) - 1}",
        )
    return number


def predicate_key(settings: TagSettings) -> str:
    """Return the key of the predicate's position in JSON lines."""
    return _key(settings.predicate_column, "predicate")


def row_of(cells: Iterable[object]) -> str:
    """Return columns, each with a tab behind it; a tab or line break in a word becomes a space."""
    return "".join(_BREAK.sub(" ", str(cell)) + "\t" for cell in cells)


def keys_of(settings: TagSettings) -> tuple[str, str]:
    """Return the keys of words and tags in JSON lines."""
    return _key(settings.word_column, "words"), _key(settings.tag_column, "tags")


def _key(column: str | None, default: str) -> str:
    """Return a column's name; a number is that of a column in other files."""
    return default if column is None or _NUMBER.fullmatch(column) else column


def _example_of_row(row: Row, settings: TagSettings, *, labelled: bool) -> TagExample:
    values, location = row.values, row.location
    key, tag_key = keys_of(settings)
    for argument, name in [("word_column", key), ("tag_column", tag_key)][: 2 if labelled else 1]:
        if values.get(name) is None:
            raise InputError(
                "field_missing",
                f"the field '{name}' is missing",
                location=location,
                argument=argument,
                hint=f"the fields are {', '.join(values)}; name it with {option(argument)}",
            )
    words, tags = words_of(values[key], location), values.get(tag_key)
    predicate = predicate_of(values.get(predicate_key(settings)), words, location)
    if not labelled:
        text = values[key] if isinstance(values[key], str) else None
        has_tags = isinstance(tags, list | tuple) and len(tags) == len(words)
        cells = zip(words, tags or (), strict=True) if has_tags else ((word,) for word in words)
        rows = tuple(map(row_of, cells))
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


def _has_sentence_lines(source: Source, settings: TagSettings, *, labelled: bool) -> bool:
    """Return True for a file with one sentence on each line.

    Columns are equally many in all lines, and blank lines separate sentences in columns.
    """
    if settings.layout == "lines" and labelled:
        raise InputError(
            "layout_with_tags",
            "the layout 'lines' is for sentences without tags",
            location=source,
            argument="layout",
            hint="give tags in columns",
        )
    if labelled or settings.layout != "auto" or format_suffix(source) != ".txt":
        return settings.layout == "lines"
    lines = [line for _, line in read_lines(source, settings.encoding)]
    widths = {len(split_columns(line)) for line in lines if line.strip(" \t")}
    return len(widths) > 1 or all(line.strip(" \t") for line in lines)


def _examples_in_columns(source: Source, settings: TagSettings, *, labelled: bool) -> Iterator[TagExample]:
    columns = [
        Column(settings.word_column, "1", "FORM", "word_column"),
        Column(settings.tag_column, "-1", "UPOS", "tag_column", required=labelled),
    ]
    for sentence in read_conll(source, columns, settings.encoding):
        words, location = tuple(cells[0] for cells in sentence.cells), f"{source}:{sentence.lines[0]}"
        if labelled:
            tags = tuple(cells[1] for cells in sentence.cells)
            yield TagExample(words, tags, location, lines=sentence.line_numbers)
        else:
            yield TagExample(words, None, location, rows=tuple(sentence.output_rows))
