"""Pairs as BERT's release makes them (`create_instances_from_document`): the rule behind `data.partner=random`.

A document is read in chunks of whole sentences up to a target length, each cut at a random sentence into A and
the rest. With a probability of a half, or where A is all there is, B is not the rest but a run of sentences from a
random place of a random document, up to what A leaves of the target, and reading goes on with the rest. A pair
that is too long is then trimmed, token by token from the longer segment, at either end at random.

With `data.nsp_negatives=same_document` the random place is one of A's own document.

Where it differs: a document of A's own kin is never drawn (the release tries ten times to miss A's document and
knows no twins); draws are functions of the place in the text, so that all chunks are made at once.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bertsmith import rng
from bertsmith.corpus.tokenized_corpus import Ints
from bertsmith.instances.epoch_plan import IS_NEXT, NOT_NEXT, ranges
from bertsmith.instances.segments import Fragments, followed


@dataclass(frozen=True)
class Drawn:
    """Pairs: start, length and document of A and of B, each [I]; label [I]; trimmed: tokens that were cut."""

    a: tuple[Ints, Ints, Ints]
    b: tuple[Ints, Ints, Ints]
    label: Ints
    trimmed: int


def drawn_pairs(
    sentences: Fragments,
    kin: Ints,
    room: int,
    seed: int,
    epoch: int,
    short_share: float,
    *,
    single: bool,
    within: bool = False,
) -> Drawn:
    """The pairs of an epoch.

    sentences: whole ones, of any length; kin: [documents of `sentences`], two kinds or more; room: tokens that A
    and B may have together; single: A and B are one sentence each, without a target. within: a random B is from a
    random place of A's own document, a sentence or more away from A on either side; where there is none, the rest
    of the chunk is B, and a sentence alone is left out.
    """
    borders, last = sentences.borders, sentences.last
    node = np.arange(len(borders))
    document = np.repeat(np.arange(len(sentences.documents)), np.diff(sentences.offsets))
    target = _targets(len(sentences.documents), room, seed, epoch, short_share)[document]
    full = node + 2 if single else np.searchsorted(borders, borders + target, side="left")
    stop = np.minimum(np.maximum(full, node + 1), last)
    split = node + 1 + rng.integers(seed, "split", np.maximum(stop - node - 1, 1), epoch, node)
    away = (stop - node == 1) | (rng.uniform(seed, "partner", epoch, node) < 0.5)
    before = np.maximum(
        node - 1 - sentences.offsets[document], 0
    )  # places for a B within, before A and behind it
    behind = np.maximum(last - split - 1, 0)
    if within:
        away &= before + behind > 0
    start = followed(np.where(node == last, node + 1, np.where(away, split, stop)))
    start = start[(start < last[start]) & (away | (stop - node > 1))[start]]
    split, stop, away, owner = split[start], stop[start], away[start], document[start]

    b_first, b_stop, b_owner = split.copy(), stop.copy(), owner.copy()
    number = start[away]  # by which the draws of a NotNext pair go
    if within:
        other, early = owner[away], before[number]
        place = rng.integers(seed, "place", early + behind[number], epoch, number)
        first = np.where(place < early, sentences.offsets[other] + place, split[away] + 1 + place - early)
        high = np.where(place < early, number - 1, last[number])
    else:
        other = _of_other_kin(sentences, kin, owner[away], rng.uniform(seed, "other", epoch, number))
        low, high = sentences.offsets[other], sentences.offsets[other + 1] - 1
        first = low + rng.integers(seed, "place", high - low, epoch, number)
    wanted = np.maximum(target[number] - (borders[split[away]] - borders[number]), 1)
    end = first + 1 if single else np.searchsorted(borders, borders[first] + wanted, side="left")
    b_first[away], b_stop[away], b_owner[away] = first, np.minimum(end, high), other

    a_start, a_size = borders[start], borders[split] - borders[start]
    b_start, b_size = borders[b_first], borders[b_stop] - borders[b_first]
    a_kept = np.minimum(a_size, np.maximum((room + 1) // 2, room - b_size))
    b_kept = np.minimum(b_size, np.maximum(room // 2, room - a_size))
    a_start = a_start + _cut_in_front(a_size - a_kept, seed, "front of A", epoch, start)
    b_start = b_start + _cut_in_front(b_size - b_kept, seed, "front of B", epoch, start)
    documents = sentences.documents
    return Drawn(
        (a_start, a_kept, documents[owner]),
        (b_start, b_kept, documents[b_owner]),
        np.where(away, NOT_NEXT, IS_NEXT),
        int((a_size - a_kept + b_size - b_kept).sum()),
    )


def _targets(documents: int, room: int, seed: int, epoch: int, short_share: float) -> Ints:
    """Of each document the length that its chunks aim at: all there is room for, or now and then 2 to that."""
    number = np.arange(documents)
    short = rng.uniform(seed, "short", epoch, number) < short_share
    return np.where(short, 2 + rng.integers(seed, "target", room - 1, epoch, number), room)


def _of_other_kin(sentences: Fragments, kin: Ints, own: Ints, uniform: NDArray[np.float64]) -> Ints:
    """For each document of `own` one that is no kin of it, each as likely."""
    documents = np.flatnonzero(np.diff(sentences.offsets) > 1)  # those with text
    row = documents[np.argsort(kin[documents], kind="stable")]
    low, high = (np.searchsorted(kin[row], kin[own], side=side) for side in ("left", "right"))
    place = (uniform * (len(row) - (high - low))).astype(np.int64)
    found: Ints = row[np.where(place < low, place, place + high - low)]
    return found


def _cut_in_front(cut: Ints, seed: int, purpose: str, epoch: int, number: Ints) -> Ints:
    """How many of the tokens that a segment loses it loses in front: a coin for each."""
    rows = np.repeat(np.arange(len(cut)), cut)
    coin = rng.uniform(seed, purpose, epoch, number[rows], ranges(np.zeros_like(cut), cut)) < 0.5
    found: Ints = np.bincount(rows[coin], minlength=len(cut)).astype(np.int64)
    return found
