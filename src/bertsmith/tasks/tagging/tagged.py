"""Sentences with a tag a word: how they stand in files."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bertsmith.errors import InputError, option
from bertsmith.formatting import pluralize
from bertsmith.io.conll import Column, fields_of, read_conll
from bertsmith.io.files import bare_suffix, json_object, read_lines
from bertsmith.io.unicode_scripts import HAN_CLASS
from bertsmith.tasks.settings import TagSettings

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
        """Where a word is in its file."""
        if self.lines is None:
            return f"{self.place}, word {word + 1}"
        return f"{self.place.rpartition(':')[0]}:{self.lines[word]}"


def read_sentences(file: str | Path, settings: TagSettings, *, labelled: bool) -> list[TagExample]:
    """The sentences of a file, in its order: of a .jsonl by its lists, of a .txt to predict that has no columns a
    line each, of all others by their columns (see `files.conll`). InputError with file and line for any fault."""
    if bare_suffix(file) == ".jsonl":
        found = list(_of_jsonl(file, settings, labelled))
    elif _a_sentence_a_line(file, settings, labelled):
        lines = read_lines(file, settings.encoding)
        found = [TagExample(words_of(line, ""), None, f"{file}:{n}", text=line) for n, line in lines]
    else:
        found = list(_of_columns(file, settings, labelled))
    if not found:
        raise InputError(
            "no_examples",
            "this file has no sentences",
            location=f"{file}:1",
            hint="give a file with at least one sentence",
        )
    return found


def by_characters(examples: Sequence[TagExample]) -> bool:
    """Whether each Chinese word of these sentences is a single character, as in files of `char<TAB>tag`."""
    chinese = [word for example in examples for word in example.words if _CHINESE.search(word)]
    return bool(chinese) and all(len(word) == 1 for word in chinese)


def in_characters(example: TagExample) -> TagExample:
    """A running text whose Chinese characters are words of their own; words that were given as such stay."""
    if example.text is None:
        return example
    words = tuple(part for word in example.words for part in _CHINESE.split(word) if part)
    return replace(example, words=words)


def words_of(value: Any, place: str) -> tuple[str, ...]:
    """A sentence's words, of a list or of a string."""
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
    """The position of a predicate, of that or of its word. InputError for a word that is not there once."""
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
    """What a .jsonl calls the position of the predicate."""
    chosen = settings.predicate_column or "predicate"
    return "predicate" if _NUMBER.fullmatch(chosen) else chosen


def row_of(cells: Iterable[object]) -> str:
    """Columns, each with a tab behind it; a tab or line break in a word is written as a blank."""
    return "".join(_BREAK.sub(" ", str(cell)) + "\t" for cell in cells)


def keys_of(settings: TagSettings) -> tuple[str, str]:
    """What a .jsonl calls words and tags: a number is a column of other files."""
    words, tags = settings.word_column or "words", settings.tag_column or "tags"
    return "words" if _NUMBER.fullmatch(words) else words, "tags" if _NUMBER.fullmatch(tags) else tags


def _of_jsonl(file: str | Path, settings: TagSettings, labelled: bool) -> Iterator[TagExample]:
    for number, line in read_lines(file, settings.encoding):
        if not line or line.isspace():
            continue
        place = f"{file}:{number}"
        row = json_object(file, number, line)
        keys = dict(zip(("word_column", "tag_column"), keys_of(settings), strict=True))
        for argument, key in list(keys.items())[: 2 if labelled else 1]:
            if row.get(key) is None:
                raise InputError(
                    "field_missing",
                    f"the field '{key}' is missing",
                    location=place,
                    argument=argument,
                    hint=f"the fields are {', '.join(row)}; name it with {option(argument)}",
                )
        key, tag_key = keys.values()
        words, tags = words_of(row[key], place), row.get(tag_key)
        predicate = predicate_of(row.get(predicate_key(settings)), words, place)
        if not labelled:
            text = row[key] if isinstance(row[key], str) else None
            known = tags if isinstance(tags, list) and len(tags) == len(words) else None
            cells = zip(words, known, strict=True) if known else ((word,) for word in words)
            rows = tuple(map(row_of, cells))
            yield TagExample(words, None, place, rows=rows, text=text, predicate=predicate)
            continue
        if not isinstance(tags, list) or not all(isinstance(tag, str | int) for tag in tags):
            raise InputError(
                "not_a_list",
                f"'{tag_key}' is not a list of tags",
                location=place,
                hint='write ["B-PER", "O"]',
            )
        if len(tags) != len(words):
            raise InputError(
                "tag_count",
                f"there are {pluralize(len(words), 'word')} and {pluralize(len(tags), 'tag')}",
                location=place,
                hint="give each word one tag",
            )
        if "" in tags:
            raise InputError(
                "empty_label",
                f"tag {tags.index('') + 1} is empty",
                location=place,
                hint="give each word a tag",
            )
        if not words:
            raise InputError(
                "empty_sentence", "this sentence has no words", location=place, hint="remove the line"
            )
        yield TagExample(words, tuple(str(tag) for tag in tags), place, predicate=predicate)


def _a_sentence_a_line(file: str | Path, settings: TagSettings, labelled: bool) -> bool:
    """Whether a file to predict holds whole sentences: columns are as many on all lines, and blank lines part
    sentences."""
    if settings.layout == "lines" and labelled:
        raise InputError(
            "layout_with_tags",
            "the layout 'lines' is for sentences without tags",
            location=file,
            argument="layout",
            hint="give tags in columns",
        )
    if labelled or settings.layout != "auto" or bare_suffix(file) != ".txt":
        return settings.layout == "lines"
    lines = [line for _, line in read_lines(file, settings.encoding)]
    widths = {len(fields_of(line, tabs="\t" in line)) for line in lines if line.strip(" \t")}
    return len(widths) > 1 or all(line.strip(" \t") for line in lines)


def _of_columns(file: str | Path, settings: TagSettings, labelled: bool) -> Iterator[TagExample]:
    wanted = [
        Column(settings.word_column, "1", "FORM", "word_column"),
        Column(settings.tag_column, "-1", "UPOS", "tag_column", needed=labelled),
    ]
    for sentence in read_conll(file, wanted, settings.encoding):
        words, place = tuple(row[0] for row in sentence.rows), f"{file}:{sentence.lines[0]}"
        if labelled:
            yield TagExample(words, tuple(row[1] for row in sentence.rows), place, lines=sentence.numbers)
        else:
            yield TagExample(words, None, place, rows=tuple(sentence.texts))
