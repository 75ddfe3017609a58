"""Read sentences with a tag for each word, and fit their metadata."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bertsmith.artifacts.folder import ModelFolder
from bertsmith.errors import InputError, option
from bertsmith.formatting import pluralize
from bertsmith.io.compression import format_suffix
from bertsmith.io.sources import Source
from bertsmith.io.tables import Row, is_json_source, json_rows
from bertsmith.io.text_io import read_lines
from bertsmith.metrics.tagging import OUTSIDE, scheme_of_labels
from bertsmith.tasks.base import Metadata, TaskData
from bertsmith.tasks.labels import LabelNames
from bertsmith.tasks.settings import TagSettings
from bertsmith.tasks.tagging.conll import read_conll, split_columns
from bertsmith.tasks.tagging.sentences import (
    INTEGER,
    TagExample,
    has_han_characters,
    parse_predicate,
    parse_words,
    tab_separated,
)
from bertsmith.tasks.tagging.tag_map import fit_tag_metadata


class TagData(TaskData):
    """Reads sentences: words and tags in JSON or tables in memory, columns (see `conll`), and lines of text."""

    settings: TagSettings

    def read(self, source: Source, *, labeled: bool = True) -> list[TagExample]:
        """Return the sentences of a source. Without labels, a .txt without columns has one on each line."""
        if is_json_source(source):
            rows = json_rows(source, self.settings.encoding)
            examples = [self._example_of_row(row, labeled=labeled) for row in rows]
        elif not labeled and _has_sentence_lines(source, self.settings.encoding):
            lines = read_lines(source, self.settings.encoding)
            examples = [TagExample(tuple(x.split()), None, f"{source}:{n}", text=x) for n, x in lines]
        else:
            examples = list(read_conll(source, self.settings, labeled=labeled))
        if not examples:
            message, hint = (
                "this file has no sentences",
                "give sentences; for semantic roles, with a predicate",
            )
            raise InputError("no_examples", message, location=f"{source}:1", hint=hint)
        return examples

    def from_inputs(self, columns: Mapping[str, Sequence[Any]], locations: Sequence[str]) -> list[TagExample]:
        """Return sentences.

        Args:
            columns: `words`: lists of words, or strings of words separated by spaces; `predicate`: for each
                sentence the word whose roles to label, or its index.
            locations: The locations of the examples.
        """
        predicates = columns.get("predicate", [None] * len(locations))
        examples = []
        for value, predicate, location in zip(columns["words"], predicates, locations, strict=True):
            words, text = parse_words(value, location), value if isinstance(value, str) else None
            index = parse_predicate(predicate, words, location)
            examples.append(TagExample(words, None, location, text=text, predicate=index))
        return examples

    def tuple_columns(self, num_values: int) -> list[str]:
        """Return the columns of words and tags."""
        return list(self._keys[:2])

    def to_row(self, example: TagExample) -> dict[str, Any]:
        """Return the sentence as lists."""
        words, tags, predicate = self._keys
        row = {words: list(example.words), tags: None if example.tags is None else list(example.tags)}
        return row if example.predicate is None else {**row, predicate: example.predicate}

    def fit_metadata(self, examples: Sequence[TagExample], label_names: LabelNames | None) -> Metadata:
        """Return the tags, their scheme, and the labels of the model."""
        tags = [example.tags or () for example in examples]
        roles = any(example.predicate is not None for example in examples)
        location = examples[0].location
        metadata = fit_tag_metadata(tags, self.settings.scheme, label_names, location, roles=roles)
        return {**metadata, "decoder": self.settings.decoder, "characters": has_han_characters(examples)}

    def metadata_from_hf(self, folder: ModelFolder) -> Metadata | None:
        """Return the metadata of a model for token classification whose classes have names."""
        labels = folder.labels
        if not folder.architecture.endswith("ForTokenClassification") or not labels:
            return None
        # Labels do not show whether B begins each entity: only those of IOBES forbid a transition.
        scheme = scheme_of_labels(labels)
        return {
            "labels": labels,
            "numbered": True,
            "scheme": scheme,
            "label_scheme": scheme if scheme == "iobes" else None,
            "default_label": OUTSIDE if OUTSIDE in labels else labels[0],
        }

    @property
    def _keys(self) -> tuple[str, str, str]:
        """The keys of words, tags, and predicate in rows; a setting that is a number is for columns."""
        words, tags, predicate = (
            name if name and not INTEGER.fullmatch(name) else default
            for default, name in (
                ("words", self.settings.word_column),
                ("tags", self.settings.tag_column),
                ("predicate", self.settings.predicate_column),
            )
        )
        return words, tags, predicate

    def _example_of_row(self, row: Row, *, labeled: bool) -> TagExample:
        values, location = row.values, row.location
        word_key, tag_key, predicate_key = self._keys
        for argument, key in (("word_column", word_key), *((("tag_column", tag_key),) if labeled else ())):
            if values.get(key) is None:
                message = f"the field '{key}' is missing"
                hint = f"the fields are {', '.join(values)}; name it with {option(argument)}"
                raise InputError("field_missing", message, location=location, argument=argument, hint=hint)
        words, tags = parse_words(values[word_key], location), values.get(tag_key)
        predicate = parse_predicate(values.get(predicate_key), words, location)
        if labeled:
            _check_tags(words, tags, tag_key, location)
            return TagExample(words, tuple(map(str, tags or ())), location, predicate=predicate)
        text = values[word_key] if isinstance(values[word_key], str) else None
        has_tags = isinstance(tags, list | tuple) and len(tags) == len(words)
        cells = zip(words, tags or (), strict=True) if has_tags else ((word,) for word in words)
        rows = tuple(map(tab_separated, cells))
        return TagExample(words, None, location, output_rows=rows, text=text, predicate=predicate)


def _has_sentence_lines(source: Source, encoding: str | None) -> bool:
    """Return whether a .txt file has one sentence on each line.

    Columns are equally many in all lines, and blank lines separate sentences in columns.
    """
    if format_suffix(source) != ".txt":
        return False
    lines = [line for _, line in read_lines(source, encoding)]
    widths = {len(split_columns(line, has_tabs="\t" in line)) for line in lines if line.strip(" \t")}
    return len(widths) > 1 or all(line.strip(" \t") for line in lines)


def _check_tags(words: Sequence[str], tags: Any, key: str, location: str) -> None:
    """Raise InputError for a labeled row whose tags are not a list with a tag for each word."""
    if not isinstance(tags, list | tuple) or not all(isinstance(tag, str | int) for tag in tags):
        message, hint = f"'{key}' is not a list of tags", 'write ["B-PER", "O"]'
        raise InputError("not_a_list", message, location=location, hint=hint)
    if len(tags) != len(words):
        message = f"there are {pluralize(len(words), 'word')} and {pluralize(len(tags), 'tag')}"
        raise InputError("tag_count", message, location=location, hint="give each word one tag")
    if "" in tags:
        message, hint = f"tag {tags.index('') + 1} is empty", "give each word a tag"
        raise InputError("empty_label", message, location=location, hint=hint)
    if not words:
        message, hint = "this sentence has no words", "remove the line"
        raise InputError("empty_sentence", message, location=location, hint=hint)
