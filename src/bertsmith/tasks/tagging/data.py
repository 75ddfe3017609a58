"""Read sentences with a tag for each word, fit their metadata, and translate tags of a file to labels of a model.

Tags that break their scheme are read as conlleval reads them, and legal tags are learned instead. Entities are
mostly learned as IOBES, and predicted in the scheme of the file. So a decoder searches a legal path of labels.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Literal

import torch
from pydantic import Field

from bertsmith.artifacts.folder import ModelFolder
from bertsmith.errors import InputError, option
from bertsmith.formatting import join_names, pluralize
from bertsmith.io.compression import format_suffix
from bertsmith.io.sources import Source
from bertsmith.io.tables import Table
from bertsmith.io.text_io import read_lines
from bertsmith.io.values import MISSING_SPELLINGS
from bertsmith.metrics.tagging import (
    OUTSIDE,
    OUTSIDE_TYPOS,
    STANDARD_FORMAT,
    Scheme,
    entities_to_tags,
    extract_entities,
    format_tag,
    infer_letters,
    infer_scheme,
    infer_spelling,
    is_allowed_transition,
    read_tag,
    scheme_of_labels,
    split_tag,
)
from bertsmith.models.task_heads import FORBIDDEN_SCORE, ChainScores
from bertsmith.tasks.base import Metadata, TaskData
from bertsmith.tasks.labels import (
    LabelMap,
    LabelMetadata,
    LabelNames,
    check_spellings,
    label_metadata,
    sorted_labels,
)
from bertsmith.tasks.settings import TagSettings
from bertsmith.tasks.tagging.rows import (
    check_columns,
    field_name,
    parse_predicate,
    parse_words,
    read_brackets,
    read_named_rows,
)
from bertsmith.tasks.tagging.sentences import (
    COMMENT,
    TagExample,
    has_han_characters,
    has_split_words,
    read_conll,
    split_columns,
)

logger = logging.getLogger(__name__)
_MANY_WORDS = 1000  # of a sentence
UNKNOWN_LABEL = -1
"""The target of a word whose label training did not have: no prediction is correct."""


class TagData(TaskData):
    """Read sentences: words and tags in JSON or tables in memory, CoNLL files, and lines of text."""

    settings: TagSettings

    def read(self, source: Source, *, labeled: bool = True) -> list[TagExample]:
        """Return the sentences of a source. Without labels, a .txt without columns has one on each line."""
        if not labeled and _has_sentence_lines(source, self.settings.encoding):
            lines = read_lines(source, self.settings.encoding)
            examples = [TagExample(tuple(x.split()), None, f"{source}:{n}", text=x) for n, x in lines]
        else:
            rows = read_named_rows(source, self.settings, labeled=labeled)
            examples = rows if rows is not None else list(read_conll(source, self.settings, labeled=labeled))
        if not examples:
            message, hint = (
                "this file has no sentences",
                "give sentences; for semantic roles, with a predicate",
            )
            raise InputError("no_examples", message, location=f"{source}:1", hint=hint)
        if labeled:
            check_columns(examples, self.settings)
            examples = read_brackets(examples)
        if labeled and self.metadata:
            self.check_validation(examples, self.metadata)
        if long := [e.location for e in examples if len(e.words) > _MANY_WORDS]:
            message = "%s of more than %s words: %s; a blank line, or an id of the sentence, ends one"
            sentences = pluralize(len(long), "sentence")
            logger.warning(message, sentences, f"{_MANY_WORDS:,}", join_names(long))
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

    def example_inputs(self) -> dict[str, Any]:
        """Return a sentence, and for semantic roles its predicate."""
        sentence = {"words": ["Ada", "wrote", "a", "letter"]}
        return {**sentence, "predicate": 1} if self.metadata.get("roles") else sentence

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
        if label_names is None and not MISSING_SPELLINGS.isdisjoint(metadata["labels"]):
            check_spellings((t, e.word_location(i)) for e in examples for i, t in enumerate(e.tags or ()))
        splits = {"characters": has_han_characters(examples), "split_text": has_split_words(examples)}
        return {**metadata, "decoder": self.settings.decoder, **splits}

    def check_validation(self, examples: Sequence[TagExample], metadata: Metadata) -> None:
        """Check that not all tags are new: the file would have another column, or the model another tag set."""
        tag_map = TagMap(metadata)
        first = {
            tag: example.location
            for example in reversed(examples)
            for tag in tag_map.names(example.tags)
            if tag != OUTSIDE
        }
        if first and all(map(tag_map.is_new, first)):
            tag = min(first)
            raise tag_map.tag_names.unknown_label_error(tag, first[tag], "tag_column")

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
        columns = self.settings.word_column, self.settings.tag_column, self.settings.predicate_column
        words, tags, predicate = map(field_name, columns, ("words", "tags", "predicate"))
        return words, tags, predicate


def _has_sentence_lines(source: Source, encoding: str | None) -> bool:
    """Return whether a .txt file has one sentence on each line.

    Columns are equally many in all lines, and blank lines separate sentences in columns.
    """
    if isinstance(source, Table) or format_suffix(source) != ".txt":
        return False
    lines = [line for _, line in read_lines(source, encoding) if not COMMENT.match(line)]
    widths = {len(split_columns(line, has_tabs="\t" in line)) for line in lines if line.strip(" \t")}
    return len(widths) > 1 or all(line.strip(" \t") for line in lines)


class TagMetadata(LabelMetadata):
    """The metadata of a tagger.

    Attributes:
        file_tags: The file's tags; None if they are the labels.
        scheme: The scheme of the file's tags; None if they have none.
        label_scheme: The scheme of the labels; None if any label may follow any other.
        letters: The file's letters for those of IOBES.
        default_label: The label of a word without tokens.
        decoder: The decoder.
        characters: True if each Chinese character was a word.
        split_text: True if each punctuation character was a word, too.
        roles: True if the tags are semantic roles of a predicate.
        tag_format: The format of the file's tags, which are read as B-TYPE.
        outside: The file's tags that are read as O.
    """

    file_tags: list[str] | None = None
    scheme: Scheme | None
    label_scheme: Scheme | None = None
    letters: dict[str, str] = Field(default_factory=dict)
    default_label: str
    decoder: Literal["softmax", "crf"] = "softmax"
    characters: bool = False
    split_text: bool = False
    roles: bool = False
    tag_format: str = STANDARD_FORMAT
    outside: list[str] = Field(default_factory=list)


class TagMap:
    """Translates tags of a file to labels of a model and back.

    Attributes:
        tag_names: The names of the file's tags.
        labels: The labels of the model by id.
        ids: The id of each label.
        scheme: As in `TagMetadata`.
        label_scheme: As in `TagMetadata`.
        letters: As in `TagMetadata`.
    """

    def __init__(self, metadata: Mapping[str, Any]) -> None:
        file_tags = metadata.get("file_tags") or metadata["labels"]
        self.tag_names = LabelMap({**metadata, "labels": file_tags})
        self.labels: list[str] = metadata["labels"]
        self.ids = {label: i for i, label in enumerate(self.labels)}
        self.scheme: Scheme | None = metadata.get("scheme")
        self.label_scheme: Scheme | None = metadata.get("label_scheme")
        self.letters: Mapping[str, str] = metadata.get("letters") or {}
        self._format: str = metadata.get("tag_format", STANDARD_FORMAT)
        self._outside = {*metadata.get("outside", ()), *(OUTSIDE_TYPOS if self.scheme else ())}

    @property
    def label_letters(self) -> Mapping[str, str]:
        """The letters of the labels: those of the file if both have the same scheme, else those of IOBES."""
        return self.letters if self.label_scheme == self.scheme else {}

    def names(self, tags: Iterable[str] | None) -> tuple[str, ...]:
        """Return the names of a file's tags."""
        return tuple(read_tag(self.tag_names.name(tag), self._format, self._outside) for tag in tags or ())

    def to_labels(self, tags: Sequence[str]) -> list[str]:
        """Return the labels of a sentence with these tags."""
        if self.label_scheme is None:
            return list(tags)
        return entities_to_tags(extract_entities(tags), len(tags), self.label_scheme, self.label_letters)

    def label_ids(self, tags: Sequence[str]) -> list[int]:
        """Return the ids of the labels of a sentence with these tags of a file."""
        return [self.ids.get(label, UNKNOWN_LABEL) for label in self.to_labels(self.names(tags))]

    def to_tags(self, labels: Sequence[str]) -> list[str]:
        """Return the tags, in the file's scheme, of a sentence with these labels."""
        if self.scheme is None or self.label_scheme in (None, self.scheme):
            return list(labels)
        return entities_to_tags(extract_entities(labels), len(labels), self.scheme, self.letters)

    def is_new(self, tag: str) -> bool:
        """Return True if neither a tag nor, if the labels have a scheme, its entity type occurred in training."""
        if tag in self.tag_names.ids:
            return False
        types = {split_tag(label)[1] for label in self.labels if label != OUTSIDE}
        return self.label_scheme is None or split_tag(tag)[1] not in types

    def legal_scores(self) -> ChainScores:
        """Return 0 for each transition that the labels' scheme allows, FORBIDDEN_SCORE for all others."""

        def score(before: str | None, label: str | None) -> float:
            is_allowed = self.label_scheme is None or is_allowed_transition(before, label, self.label_scheme)
            return 0.0 if is_allowed else FORBIDDEN_SCORE

        return ChainScores(
            torch.tensor([score(None, label) for label in self.labels]),
            torch.tensor([[score(before, label) for label in self.labels] for before in self.labels]),
            torch.tensor([score(label, None) for label in self.labels]),
        )


def fit_tag_metadata(
    sentence_tags: Sequence[Sequence[str]],
    scheme: str,
    names: LabelNames | None,
    location: str,
    *,
    roles: bool = False,
) -> dict[str, Any]:
    """Return the metadata of the tags of all training sentences.

    Args:
        sentence_tags: The tags of each sentence.
        scheme: The setting `scheme`.
        names: The names of the tags if the user gave them.
        location: The location of the first sentence.
        roles: True if the tags are semantic roles, which may concern the heads of phrases only.
    """
    metadata: dict[str, Any] = {"numbered": False} if names is None else label_metadata(names)
    tags_of_file = sorted_labels(tag for tags in sentence_tags for tag in tags)
    tag_names = LabelMap({"labels": tags_of_file} if names is None else metadata)
    sentence_tags = [tuple(map(tag_names.name, tags)) for tags in sentence_tags]
    spelling = infer_spelling({*metadata.get("labels", ()), *(tag for tags in sentence_tags for tag in tags)})
    if spelling is not None and not spelling.others:
        metadata |= {"tag_format": spelling.tag_format, "outside": spelling.outside}
    read = partial(
        read_tag, tag_format=metadata.get("tag_format", STANDARD_FORMAT), outside=metadata.get("outside", ())
    )
    sentence_tags = [tuple(map(read, tags)) for tags in sentence_tags]
    counts = Counter(tag for tags in sentence_tags for tag in tags)
    file_tags: list[str] = list(map(read, metadata.pop("labels", ()))) or sorted(counts)
    _check_tag_counts(counts, file_tags, location)
    file_scheme = infer_scheme(sentence_tags)
    label_scheme: Any = file_scheme if scheme == "as_written" or file_scheme is None else scheme
    letters = infer_letters(file_tags) if file_scheme is not None else {}
    metadata |= {
        "labels": file_tags,
        "file_tags": file_tags,
        "scheme": file_scheme,
        "label_scheme": label_scheme,
        "letters": letters,
    }
    tag_map = TagMap(metadata)
    label_counts = Counter(label for tags in sentence_tags for label in tag_map.to_labels(tags))
    if file_scheme is not None and scheme != "as_written":
        heads_only = roles and all(
            e.end - e.start == 1 for tags in sentence_tags for e in extract_entities(tags)
        )
        labels = _all_labels(file_tags, label_scheme, tag_map.label_letters, heads_only=heads_only)
    elif names is None:
        labels = sorted(label_counts)
    else:  # a repaired tag may have no name
        labels = [*file_tags, *sorted(label_counts.keys() - set(file_tags))]
    # Ties are broken by name, so that the order of the sentences has no influence.
    most_frequent = min(label_counts, key=lambda label: (-label_counts[label], label))
    default_label = OUTSIDE if OUTSIDE in labels else most_frequent
    return {**metadata, "labels": labels, "default_label": default_label, "roles": roles}


def _check_tag_counts(counts: Counter[str], file_tags: Sequence[str], location: str) -> None:
    """Raise InputError if a tag has no name, or if all words have the same tag."""
    if unnamed := sorted(counts.keys() - set(file_tags)):
        message, hint = f"the tag '{unnamed[0]}' is not named", f"name all tags with {option('label_names')}"
        raise InputError("label_not_named", message, location=location, argument="label_names", hint=hint)
    if len(counts) < 2:
        message, hint = f"all words have the tag '{file_tags[0]}'", f"check {option('tag_column')}"
        raise InputError("single_label", message, location=location, argument="tag_column", hint=hint)


def _all_labels(
    tags: Sequence[str], scheme: Scheme, letters: Mapping[str, str], *, heads_only: bool
) -> list[str]:
    """Return all tags of a scheme for the types of these tags; if `heads_only`, those of single words."""
    types = {split_tag(tag)[1] for tag in tags if tag != OUTSIDE}
    prefixes = {"iobes": "S" if heads_only else "BIES", "iob2": "B" if heads_only else "BI", "iob1": "IB"}[
        scheme
    ]
    labels = {format_tag(prefix, entity_type, letters) for prefix in prefixes for entity_type in types}
    return sorted(labels | ({OUTSIDE} & set(tags)))
