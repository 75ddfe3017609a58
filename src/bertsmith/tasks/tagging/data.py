"""Sentences with a tag for each word, and their metadata."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bertsmith.io.sources import Source
from bertsmith.metrics.tagging import OUTSIDE, infer_scheme
from bertsmith.tasks.base import HFCheckpoint, Metadata, TaskData
from bertsmith.tasks.labels import LabelNames
from bertsmith.tasks.tagging.role_columns import has_roles, read_roles
from bertsmith.tasks.tagging.sentences import (
    TagExample,
    has_han_characters,
    json_keys,
    parse_predicate,
    parse_words,
    read_sentences,
)
from bertsmith.tasks.tagging.tag_map import fit_tag_metadata


class TagData(TaskData):
    """Reads sentences: .jsonl with lists of words and tags, and columns (CoNLL, CoNLL-U, semantic roles)."""

    def read(self, source: Source, *, labeled: bool = True) -> list[TagExample]:
        """Return the sentences of a file; a sentence with columns of roles once for each predicate."""
        read = read_roles if has_roles(source, self.settings) else read_sentences
        return read(source, self.settings, labeled=labeled)

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
        return list(json_keys(self.settings)[:2])

    def to_row(self, example: TagExample) -> dict[str, Any]:
        """Return the sentence as lists."""
        words, tags, predicate = json_keys(self.settings)
        row = {words: list(example.words), tags: None if example.tags is None else list(example.tags)}
        return row if example.predicate is None else {**row, predicate: example.predicate}

    def fit_metadata(self, examples: Sequence[TagExample], label_names: LabelNames | None) -> Metadata:
        """Return the tags, their scheme, and the labels of the model."""
        rows = [example.tags or () for example in examples]
        roles = any(example.predicate is not None for example in examples)
        location = examples[0].location
        metadata = fit_tag_metadata(rows, self.settings.scheme, label_names, location, roles=roles)
        return {**metadata, "decoder": self.settings.decoder, "characters": has_han_characters(examples)}

    def metadata_from_hf(self, checkpoint: HFCheckpoint) -> Metadata | None:
        """Return the metadata of a model for token classification whose classes have names."""
        labels = checkpoint.labels
        if not checkpoint.architecture.endswith("ForTokenClassification") or not labels:
            return None
        # Labels alone identify IOBES. They do not show whether B begins each entity, so nothing is forbidden.
        scheme = infer_scheme([[label] for label in labels])
        return {
            "labels": labels,
            "numbered": True,
            "scheme": scheme,
            "trained": scheme if scheme == "iobes" else None,
            "usual": OUTSIDE if OUTSIDE in labels else labels[0],
        }
