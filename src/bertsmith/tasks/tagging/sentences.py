"""Sentences with a tag for each word, and the parsing of their parts."""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from bertsmith.errors import InputError
from bertsmith.io.unicode_scripts import HAN_CLASS
from bertsmith.tasks.base import Example

INTEGER = re.compile(r"-?\d+")
_SEPARATOR = re.compile(r"[\t\n\r]")
_HAN_CHARACTER = re.compile(f"([{HAN_CLASS}])")


@dataclass(frozen=True)
class TagExample(Example):
    """A sentence.

    Attributes:
        words: The words.
        tags: The tags as in the file; None if they are unknown.
        location: The location of the first word, or of the row of lists.
        output_rows: For an unlabeled sentence, the columns of each word's row, any tag last, with a final
            separator; None if the sentence does not come from columns or lists.
        text: The running text that was split into words; None if words were given, or for a labeled sentence.
        predicate: The index of the word whose semantic roles are the tags; None for other tags.
        lines: The line of each word of a labeled sentence, if each has its own.
    """

    words: tuple[str, ...]
    tags: tuple[str, ...] | None
    location: str
    output_rows: tuple[str, ...] | None = None
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
        message, hint = "a sentence is a list of words or a string", 'write ["John", "smiles"]'
        raise InputError("not_a_sentence", message, location=location, hint=hint)
    if "" in value:
        message, hint = f"word {list(value).index('') + 1} is empty", "remove it and its tag"
        raise InputError("empty_word", message, location=location, hint=hint)
    return tuple(value)


def parse_predicate(value: Any, words: Sequence[str], location: str) -> int | None:
    """Return the index of a predicate that is given as an index, or as a word that the sentence has once."""
    if value is None or value == "":
        return None
    if isinstance(value, str):
        if words.count(value) == 1:
            return words.index(value)
        value = int(value) if INTEGER.fullmatch(value) and value not in words else value
    if type(value) is not int or not 0 <= value < len(words):
        raise InputError(
            "unknown_predicate",
            f"the predicate {value!r:.60} is not a word that the sentence has once, and not the index of a word",
            location=location,
            hint=f"give the index of its word, from 0 to {len(words) - 1}",
        )
    return value


def tab_separated(cells: Iterable[object]) -> str:
    """Return cells each followed by a tab; tabs and line breaks in words become spaces."""
    return "".join(_SEPARATOR.sub(" ", str(cell)) + "\t" for cell in cells)
