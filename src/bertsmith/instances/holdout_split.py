"""Split of the documents into training and validation, with all near-duplicates on one side.

The split is by hash: a document is in the validation split if its hash is below a threshold, so that it stays on
its side if other documents are added or removed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from bertsmith import rng
from bertsmith.corpus.shards import HashArray, IntArray, Shards
from bertsmith.formatting import pluralize
from bertsmith.instances.epoch_plan import count_document_tokens
from bertsmith.instances.segment_pairs import too_few_documents_error
from bertsmith.instances.settings import DataSettings

VALIDATION_SEED = 0
"""Seed of validation instances and masks for any train.seed: all runs on a corpus are scored on the same ones."""

_MIN_TRAIN_RATIO = 0.5  # of the tokens; the description warns of less


@dataclass(frozen=True)
class DocumentSplit:
    """Documents of a corpus to train and to validate on.

    Attributes:
        train: int64, the indices of the documents to train on.
        validation: int64, the indices of the documents to validate on.
    """

    train: IntArray
    validation: IntArray

    @classmethod
    def from_settings(
        cls, corpus: Shards, settings: DataSettings, *, allow_empty_validation: bool = False
    ) -> DocumentSplit:
        """Split the documents of a corpus.

        Args:
            corpus: The corpus.
            settings: The settings.
            allow_empty_validation: Train on all documents if they are too few for a validation split, instead of
                raising an error.

        Raises:
            InputError: There are too few documents.
        """
        groups = corpus.duplicate_groups
        min_documents, fraction = settings.min_documents, settings.validation_split
        if allow_empty_validation and len(np.unique(groups)) < 2 * min_documents:
            fraction = 0
        hashes = _split_hashes(corpus.hashes, groups, fraction)
        train, validation = split_documents(hashes, fraction, min_documents)
        train = _train_subset(train, hashes, settings.train_fraction, min_documents)
        return cls(train, validation)

    def describe(self, corpus: Shards, settings: DataSettings) -> Iterator[str]:
        """Describe the split for the user, one sentence at a time."""
        num_documents = len(corpus.duplicate_groups)
        num_train = count_document_tokens(corpus, self.train)
        num_validation = count_document_tokens(corpus, self.validation)
        num_tokens = count_document_tokens(corpus, np.arange(num_documents))
        yield (
            f"{pluralize(num_documents, 'document')}, {pluralize(num_tokens, 'token')}; training on "
            f"{pluralize(len(self.train), 'document')}, {pluralize(num_train, 'token')}; validation split: "
            f"{pluralize(len(self.validation), 'document')}, {pluralize(num_validation, 'token')}"
        )
        _, sizes = np.unique(corpus.duplicate_groups, return_counts=True)
        if num_duplicates := int(sizes[sizes > 1].sum()):
            nsp = " and give each other no NotNext" if settings.uses_other_documents else ""
            yield (
                f"{num_duplicates:,} documents have exact or near-duplicates: these stay on one side of the "
                f"split{nsp}"
            )
        if num_train < _MIN_TRAIN_RATIO * settings.train_fraction * num_tokens:
            yield (
                f"only {num_train / num_tokens:.0%} of the text remain to train on: data.validation_split is "
                f"{settings.validation_split:g}"
            )


def split_documents(
    hashes: HashArray, validation_split: float, min_documents: int = 2
) -> tuple[IntArray, IntArray]:
    """Split documents by hash: those with the lowest hashes are the validation split.

    Documents with equal hashes are on the same side, and a document stays on its side if others are added or
    removed. With a fraction above 0, both sides have documents with at least `min_documents` different hashes.

    Args:
        hashes: uint64 [D].
        validation_split: The fraction of the documents to validate on.
        min_documents: The minimum number of different documents on each side: 2 for next-sentence pairs, else 1.

    Returns:
        The indices of the documents to train on and to validate on, int64.

    Raises:
        InputError: There are too few different documents.
    """
    unique_hashes = np.unique(hashes)
    required = [f"{min_documents} to train on", f"{min_documents} to validate on"]
    if validation_split == 0:
        required.pop()
    if len(unique_hashes) < len(required) * min_documents:
        raise too_few_documents_error(len(unique_hashes), f"{' and '.join(required)} are required")
    if validation_split == 0:
        return np.arange(len(hashes)), np.empty(0, dtype=np.int64)
    # 2**64 - 2048 is the largest float below 2**64.
    is_validation = hashes < np.uint64(min(validation_split * 2.0**64, 2.0**64 - 2048))
    is_validation |= hashes <= unique_hashes[min_documents - 1]
    is_validation &= hashes < unique_hashes[-min_documents]
    return np.flatnonzero(~is_validation), np.flatnonzero(is_validation)


def _train_subset(documents: IntArray, hashes: HashArray, fraction: float, min_documents: int) -> IntArray:
    """Return the documents with the highest hashes: this fraction, of at least `min_documents` hashes."""
    if fraction == 1:
        return documents
    unique_hashes = np.unique(hashes[documents])
    threshold = unique_hashes[-max(min_documents, round(fraction * len(unique_hashes))) :][0]
    subset: IntArray = documents[hashes[documents] >= threshold]
    return subset


def _split_hashes(hashes: HashArray, groups: IntArray, fraction: float) -> HashArray:
    """Return the hash by which each document is split, equal for all documents of a duplicate group, [D].

    This is the documents' own hash if all documents of the group are equal, and otherwise a hash of the smallest
    one. A group of near-duplicates that is larger than the whole validation split is to be trained on, so it gets
    one of the highest possible hashes.
    """
    _, group, size = np.unique(groups, return_inverse=True, return_counts=True)
    smallest, largest = np.full(len(size), np.iinfo(np.uint64).max), np.zeros(len(size), dtype=np.uint64)
    np.minimum.at(smallest, group, hashes)
    np.maximum.at(largest, group, hashes)
    group_hashes, has_near_duplicates = smallest.copy(), smallest != largest
    is_large = has_near_duplicates & (size > fraction * len(groups))
    # The smallest of several hashes is not uniform, and would be below the threshold too often: hash it again.
    group_hashes[has_near_duplicates] = rng.extend_bits(smallest[has_near_duplicates], np.zeros(1))
    group_hashes[is_large] = np.iinfo(np.uint64).max - np.arange(int(is_large.sum()), dtype=np.uint64)
    return group_hashes[group]
