"""Sentences, and their files: .jsonl with lists, columns (CoNLL), and a sentence per line."""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bertsmith.errors import InputError, option
from bertsmith.formatting import pluralize
from bertsmith.io.conll import Column, fields_of, read_conll
from bertsmith.io.files import bare_suffix, json_object, read_lines
from bertsmith.io.unicode_scripts import HAN_CLASS
from bertsmith.tasks.base import Example
from bertsmith.tasks.settings import TagSettings

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


def read_sentences(file: str | Path, settings: TagSettings, *, labeled: bool) -> list[TagExample]:
    """Return the sentences of a file.

    A .jsonl file has lists; an unlabeled .txt file without columns, a sentence per line; all others have columns
    (see `io.conll`).
    """
    if bare_suffix(file) == ".jsonl":
        examples = list(_read_jsonl(file, settings, labeled))
    elif _has_sentence_lines(file, settings, labeled):
        lines = read_lines(file, settings.encoding)
        examples = [TagExample(parse_words(line, ""), None, f"{file}:{n}", text=line) for n, line in lines]
    else:
        examples = list(_read_columns(file, settings, labeled))
    if not examples:
        raise InputError(
            "no_examples",
            "this file has no sentences",
            location=f"{file}:1",
            hint="give a file with at least one sentence",
        )
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


def _read_jsonl(file: str | Path, settings: TagSettings, labeled: bool) -> Iterator[TagExample]:
    word_key, tag_key, predicate_key = json_keys(settings)
    for number, line in read_lines(file, settings.encoding):
        if not line or line.isspace():
            continue
        location = f"{file}:{number}"
        row = json_object(file, number, line)
        for argument, key in (("word_column", word_key), *((("tag_column", tag_key),) if labeled else ())):
            if row.get(key) is None:
                raise InputError(
                    "field_missing",
                    f"the field '{key}' is missing",
                    location=location,
                    argument=argument,
                    hint=f"the fields are {', '.join(row)}; name it with {option(argument)}",
                )
        words, tags = parse_words(row[word_key], location), row.get(tag_key)
        predicate = parse_predicate(row.get(predicate_key), words, location)
        if not labeled:
            text = row[word_key] if isinstance(row[word_key], str) else None
            row_tags = tags if isinstance(tags, list) and len(tags) == len(words) else None
            cells = zip(words, row_tags, strict=True) if row_tags else ((word,) for word in words)
            rows = tuple(map(tab_separated, cells))
            yield TagExample(words, None, location, rows=rows, text=text, predicate=predicate)
            continue
        if not isinstance(tags, list) or not all(isinstance(tag, str | int) for tag in tags):
            raise InputError(
                "not_a_list",
                f"'{tag_key}' is not a list of tags",
                location=location,
                hint='write ["B-PER", "O"]',
            )
        if len(tags) != len(words):
            raise InputError(
                "tag_count",
                f"there are {pluralize(len(words), 'word')} and {pluralize(len(tags), 'tag')}",
                location=location,
                hint="give each word one tag",
            )
        if "" in tags:
            raise InputError(
                "empty_label",
                f"tag {tags.index('') + 1} is empty",
                location=location,
                hint="give each word a tag",
            )
        if not words:
            raise InputError(
                "empty_sentence", "this sentence has no words", location=location, hint="remove the line"
            )
        yield TagExample(words, tuple(str(tag) for tag in tags), location, predicate=predicate)


def _has_sentence_lines(file: str | Path, settings: TagSettings, labeled: bool) -> bool:
    """Return whether an unlabeled file has a sentence per line: no blank lines, or lines of different widths."""
    if settings.layout == "lines" and labeled:
        raise InputError(
            "layout_with_tags",
            "the layout 'lines' is for sentences without tags",
            location=file,
            argument="layout",
            hint="give tags in columns",
        )
    if labeled or settings.layout != "auto" or bare_suffix(file) != ".txt":
        return settings.layout == "lines"
    lines = [line for _, line in read_lines(file, settings.encoding)]
    widths = {len(fields_of(line, tabs="\t" in line)) for line in lines if line.strip(" \t")}
    return len(widths) > 1 or all(line.strip(" \t") for line in lines)


def _read_columns(file: str | Path, settings: TagSettings, labeled: bool) -> Iterator[TagExample]:
    columns = [
        Column(settings.word_column, "1", "FORM", "word_column"),
        Column(settings.tag_column, "-1", "UPOS", "tag_column", needed=labeled),
    ]
    for sentence in read_conll(file, columns, settings.encoding):
        words, location = tuple(row[0] for row in sentence.rows), f"{file}:{sentence.lines[0]}"
        if labeled:
            yield TagExample(words, tuple(row[1] for row in sentence.rows), location, lines=sentence.numbers)
        else:
            yield TagExample(words, None, location, rows=tuple(sentence.texts))
