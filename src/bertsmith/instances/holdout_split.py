"""Which documents are trained on and which are held out, so that no twin of the one side is on the other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bertsmith import rng
from bertsmith.corpus.near_duplicates import Documents, kin_of
from bertsmith.corpus.tokenized_corpus import Ints
from bertsmith.errors import InputError
from bertsmith.formatting import counted
from bertsmith.instances.epoch_plan import tokens_of
from bertsmith.instances.segment_pairs import check_documents
from bertsmith.instances.settings import DataSettings

HELD_OUT_SEED = 0
"""By what instances and masks of the held-out documents are drawn, whatever train.seed is: all runs on a corpus
are scored on the same."""

_LITTLE = 0.5  # of the tokens left to train on: below, it is said


@dataclass(frozen=True)
class Split:
    """The two sides of a corpus, as document numbers; kin: [D], as `twins.kin_of` tells."""

    training: Ints
    held_out: Ints
    kin: Ints

    @classmethod
    def of(cls, shards: Documents, settings: DataSettings, *, lenient: bool = False) -> Split:
        """The split that a user's settings ask for. InputError where there are too few documents for it; if
        lenient, nothing is held out of so few."""
        asked = settings.held_out > 0 or settings.lends
        kin = kin_of(shards, settings.twin_overlap if asked else 1)
        least, share = settings.least_documents, settings.held_out
        if lenient and len(np.unique(kin)) < 2 * least:
            share = 0
        hashes = _one_of_kin(shards.hashes, kin, share)
        training, held_out = split_documents(hashes, share, least)
        return cls(_some(training, hashes, settings.training_share, least), held_out, kin)

    def described(self, shards: Documents, settings: DataSettings) -> Iterator[str]:
        """What a user should know of it, in sentences."""
        documents = len(self.kin)
        kept, out = tokens_of(shards, self.training), tokens_of(shards, self.held_out)
        every = kept + out if settings.training_share == 1 else tokens_of(shards, np.arange(documents))
        yield (
            f"{counted(documents, 'document')}, {counted(every, 'token')}; held out: "
            f"{counted(len(self.held_out), 'document')}, {counted(out, 'token')}"
        )
        if settings.training_share < 1:
            yield (
                f"trained on: {counted(len(self.training), 'document')}, {counted(kept, 'token')} "
                f"(data.training_share={settings.training_share:g})"
            )
            return
        _, size = np.unique(self.kin, return_counts=True)
        if twins := int(size[size > 1].sum()):
            nsp = " and lend each other no NotNext" if settings.lends else ""
            yield (
                f"{twins:,} documents have twins, equal or nearly (data.twin_overlap={settings.twin_overlap:g}): "
                f"twins stay on one side{nsp}"
            )
        if kept < _LITTLE * (kept + out):
            yield (
                f"only {len(self.training):,} of {counted(documents, 'document')}, with {kept:,} of "
                f"{counted(kept + out, 'token')}, left to train on: data.held_out is {settings.held_out:g}"
            )


def split_documents(hashes: NDArray[np.uint64], held_out: float, least: int = 2) -> tuple[Ints, Ints]:
    """Documents to train on and documents held out: those whose hash falls into the lowest share.

    Documents of one hash fall on the same side, and a document keeps its side when others come or go. With a share
    above 0 at least those of the `least` lowest hashes are held out and those of the highest kept:
    next-sentence pairs need two documents, all else one.
    """
    if held_out == 0:
        if least == 2:
            check_documents(hashes)
        return np.arange(len(hashes)), np.empty(0, dtype=np.int64)
    different = np.unique(hashes)
    if len(different) < 2 * least:
        needed = "two documents to train on and two" if least == 2 else "one document to train on and one"
        # Without held-out documents next-sentence pairs still need two: what is named works in one step.
        settings = "data.held_out=0"
        if len(different) < least:
            settings = f"data.sentence_task=none and {settings}"
        raise InputError(
            f"different documents: {len(different)} (twins count as one, as do the parts of an over-long one); "
            f"{needed} to hold out are needed",
            "put a blank line between documents (or say what one is: data prepare --documents) and prepare again; "
            f"or set {settings}",
        )
    out = hashes < np.uint64(min(held_out * 2.0**64, 2.0**64 - 2048))
    out |= hashes <= different[least - 1]
    out &= hashes < different[-least]
    return np.flatnonzero(~out), np.flatnonzero(out)


def _some(training: Ints, hashes: NDArray[np.uint64], share: float, least: int) -> Ints:
    """Of the documents to train on a share, those of the highest hashes: at least those of the `least` highest."""
    if share == 1:
        return training
    own = hashes[training]
    different = np.unique(own)
    lowest = different[-max(least, round(share * len(different))) :][0]
    kept: Ints = training[own >= lowest]
    return kept


def _one_of_kin(hashes: NDArray[np.uint64], kin: Ints, share: float) -> NDArray[np.uint64]:
    """For each document the hash by which its kin is put on a side, [D]; its own where all of its kin are equal.

    Near twins are put by a hash of their least. Where they are more documents than should be held out together,
    they are trained on: above all others, still different from each other.
    """
    _, group, size = np.unique(kin, return_inverse=True, return_counts=True)
    least, greatest = np.full(len(size), np.iinfo(np.uint64).max), np.zeros(len(size), dtype=np.uint64)
    np.minimum.at(least, group, hashes)
    np.maximum.at(greatest, group, hashes)
    near = least != greatest
    many = near & (size > share * len(kin))
    least[near] = rng.further(least[near], np.zeros(1))
    least[many] = np.iinfo(np.uint64).max - np.arange(int(many.sum()), dtype=np.uint64)
    return least[group]
