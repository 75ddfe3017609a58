"""The tags of a file and the labels of a model, and their translation.

Tags that break their scheme are read as conlleval reads them, and legal tags are learned instead. Entities are
mostly learned as IOBES, and predicted in the scheme of the file. So a decoder searches a legal path of labels.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import torch
from pydantic import Field

from bertsmith.errors import InputError, option
from bertsmith.metrics.tagging import (
    OUTSIDE,
    Scheme,
    entities_to_tags,
    extract_entities,
    format_tag,
    infer_letters,
    infer_scheme,
    is_allowed_transition,
    split_tag,
)
from bertsmith.models.task_heads import FORBIDDEN_SCORE, ChainScores
from bertsmith.tasks.labels import LabelMap, LabelMetadata, LabelNames, label_metadata

UNKNOWN_LABEL = -1
"""The target of a word whose label training did not have: no prediction is correct."""


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
        roles: True if the tags are semantic roles of a predicate.
    """

    file_tags: list[str] | None = None
    scheme: Scheme | None
    label_scheme: Scheme | None = None
    letters: dict[str, str] = Field(default_factory=dict)
    default_label: str
    decoder: Literal["softmax", "crf"] = "softmax"
    characters: bool = False
    roles: bool = False


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
        self.tag_names = LabelMap.from_metadata({**metadata, "labels": file_tags})
        self.labels: list[str] = metadata["labels"]
        self.ids = {label: i for i, label in enumerate(self.labels)}
        self.scheme: Scheme | None = metadata.get("scheme")
        self.label_scheme: Scheme | None = metadata.get("label_scheme")
        self.letters: Mapping[str, str] = metadata.get("letters") or {}

    @property
    def label_letters(self) -> Mapping[str, str]:
        """The letters of the labels: those of the file if both have the same scheme, else those of IOBES."""
        return self.letters if self.label_scheme == self.scheme else {}

    def names(self, tags: Iterable[str] | None) -> tuple[str, ...]:
        """Return the names of a file's tags."""
        return tuple(map(self.tag_names.name, tags or ()))

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
    if names is not None:
        tag_names = LabelMap.from_metadata(metadata)
        sentence_tags = [tuple(map(tag_names.name, tags)) for tags in sentence_tags]
    counts = Counter(tag for tags in sentence_tags for tag in tags)
    file_tags: list[str] = metadata.pop("labels", None) or sorted(counts)
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
