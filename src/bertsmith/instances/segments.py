"""Sentences → fragments that fit, and runs of fragments: what every kind of instance is made of.

A sentence longer than a kind of instance can hold is parted into equal fragments, so nothing has to be trimmed
away to make room. A walk over the fragments is a table "where does a run that begins here end", made for all
fragments at once, and then followed from the first: as quick for one huge document as for a million tiny ones.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from bertsmith import rng
from bertsmith.corpus.tokenized_corpus import Corpus, Ints
from bertsmith.instances.epoch_plan import ranges


@dataclass(frozen=True)
class Fragments:
    """The fragments of some documents, as borders laid end to end: a document of k fragments has k + 1.

    borders: token offsets, ascending; offsets: [D + 1], the borders before each document; documents: [D];
    parted: how many sentences had to be parted.
    """

    borders: Ints
    offsets: Ints
    documents: Ints
    parted: int

    @property
    def last(self) -> Ints:
        """For each border the last one of its document."""
        return np.repeat(self.offsets[1:] - 1, np.diff(self.offsets))

    def document_of(self, border: Ints) -> Ints:
        """The documents that some borders are of."""
        found: Ints = self.documents[np.searchsorted(self.offsets, border, side="right") - 1]
        return found


def fragments_of(corpus: Corpus, documents: Ints, longest: int, *, halve_single: bool = False) -> Fragments:
    """Sentences as fragments of at most `longest` tokens. halve_single: documents of one fragment become two."""
    first, last = corpus.document_sentences[documents], corpus.document_sentences[documents + 1]
    sentences = ranges(first, last - first)
    ends = corpus.sentence_ends[sentences]
    starts = np.where(sentences > 0, corpus.sentence_ends[sentences - 1], 0)
    size = ends - starts
    parts = -(-size // longest)
    parted = int((parts > 1).sum())
    owner = np.repeat(np.arange(len(documents)), last - first)
    if halve_single:
        fragments = np.bincount(owner, parts, minlength=len(documents))
        parts[(fragments[owner] == 1) & (parts == 1) & (size > 1)] = 2
    which = np.repeat(np.arange(len(sentences)), parts)
    k = ranges(np.zeros_like(parts), parts) + 1
    # What does not part evenly makes early parts the longer ones in every other sentence: no order to learn.
    up = (sentences % 2)[which] * (parts[which] - 1)
    ends_of_fragments = starts[which] + (size[which] * k + up) // parts[which]

    owner = owner[which]
    counts = np.bincount(owner, minlength=len(documents))
    offsets = np.concatenate([[0], np.cumsum(counts + 1)])
    borders = np.empty(offsets[-1], dtype=np.int64)
    borders[offsets[:-1]] = np.where(first > 0, corpus.sentence_ends[first - 1], 0)
    borders[np.arange(len(owner)) + owner + 1] = ends_of_fragments
    return Fragments(borders, offsets, documents, parted)


def followed(following: Ints) -> Ints:
    """The stations of a walk from 0 that goes from i to following[i] > i until it is behind the last."""
    to, at, end = following.tolist(), 0, len(following)
    stations = []
    while at < end:
        stations.append(at)
        at = to[at]
    return np.array(stations, dtype=np.int64)


@dataclass(frozen=True)
class Chunks:
    """Runs of fragments: token offsets of the start, the end of the first fragment, the split (B's start) and the
    end; the document of each, and the kin of that: two chunks of one kin are no "other document" to each other. A
    chunk of one fragment has first = split = end."""

    start: Ints
    first: Ints
    split: Ints
    end: Ints
    document: Ints
    kin: Ints

    @property
    def a_length(self) -> Ints:
        """Tokens before the split."""
        return self.split - self.start

    @property
    def b_start(self) -> Ints:
        """Where what another chunk may take begins: behind the split, or with the only fragment."""
        return np.where(self.split == self.end, self.start, self.split)

    @property
    def b_length(self) -> Ints:
        """Tokens of that."""
        return self.end - self.b_start


def segment_chunks(fragments: Fragments, room: int, seed: int, epoch: int, short_share: float) -> Chunks:
    """Each document from its start in chunks of up to `room` tokens, or now and then a random shorter target,
    each split at a random fragment.

    What is left at the end of a document joins the last chunk if it fits; else the chunk before gives it its
    last fragment, or is read again from its last fragment on, so that only documents of one fragment have no B.
    """
    borders, last = fragments.borders, fragments.last
    node = np.arange(len(borders))
    target = np.full(len(borders), room)
    short = np.flatnonzero(rng.bits(seed, "short", epoch, node) < _threshold(short_share))
    if short_share >= 1:
        short = node
    target[short] = 2 + rng.integers(seed, "target", max(1, room - 1), epoch, short)
    stop = np.searchsorted(borders, borders + target, side="right") - 1
    stop = np.minimum(np.maximum(stop, node + 2), last)
    alone = last - stop == 1  # one fragment would be left over
    fits = borders[last] - borders <= room
    stop = np.where(alone & fits, last, np.where(alone & (stop - node >= 3), stop - 1, stop))
    start = followed(np.where(node == last, node + 1, stop))
    start = start[start < last[start]]
    stop = stop[start]
    first_of_document = fragments.offsets[np.searchsorted(fragments.offsets, start, side="right") - 1]
    start = np.where((stop - start == 1) & (start > first_of_document), start - 1, start)
    split = start + 1 + rng.integers(seed, "split", np.maximum(stop - start - 1, 1), epoch, start)
    return _chunks(fragments, start, np.minimum(split, stop), stop)


def two_way_chunks(fragments: Fragments, room: int, seed: int, epoch: int, short_share: float) -> Chunks:
    """`segment_chunks`, with half of the documents, as drawn, walked from their end.

    The last fragment of a chunk is one that still fitted, so it is short. Walked either way, neither segment is
    the shorter one, and lengths do not tell which came first.
    """
    low, high = fragments.borders[fragments.offsets[:-1]], fragments.borders[fragments.offsets[1:] - 1]
    number = np.arange(len(low))
    backwards = rng.bits(seed, "backwards", epoch, number) < _threshold(0.5)
    own = np.repeat(number, np.diff(fragments.offsets))
    opposite = (fragments.offsets[:-1] + fragments.offsets[1:] - 1)[own] - np.arange(len(own))
    both = low + high
    turned = np.where(backwards[own], both[own] - fragments.borders[opposite], fragments.borders)
    found = segment_chunks(replace(fragments, borders=turned), room, seed, epoch, short_share)
    of = np.searchsorted(fragments.documents, found.document)
    back, sum_ = backwards[of], both[of]
    start, end = (
        np.where(back, sum_ - y, x) for x, y in ((found.start, found.end), (found.end, found.start))
    )
    split = np.where(back, sum_ - found.split, found.split)
    alone = found.split == found.end
    return replace(found, start=start, first=split, split=np.where(alone, end, split), end=end)


def sentence_chunks(fragments: Fragments, seed: int, epoch: int) -> Chunks:
    """Each document two fragments at a time. Of an odd number the first or the last pair, as drawn, shares a
    fragment with its neighbour."""
    offsets = fragments.offsets
    number = np.diff(offsets) - 1
    pairs = (number + 1) // 2
    k = ranges(np.zeros_like(pairs), pairs)
    which = np.repeat(np.arange(len(number)), pairs)
    early = rng.bits(seed, "odd pair", epoch, np.arange(len(number))) < _threshold(0.5)
    odd = (number % 2 == 1) & (number > 1)
    back = odd[which] & np.where(early[which], k > 0, k == pairs[which] - 1)
    start = offsets[which] + 2 * k - back
    stop = np.minimum(start + 2, offsets[which + 1] - 1)
    return _chunks(fragments, start, start + 1, stop)


def _chunks(fragments: Fragments, start: Ints, split: Ints, stop: Ints) -> Chunks:
    borders, document = fragments.borders, fragments.document_of(start)
    return Chunks(borders[start], borders[start + 1], borders[split], borders[stop], document, document)


def _threshold(share: float) -> np.uint64:
    """Bits below it are a share of all bits (below 1)."""
    return np.uint64(min(int(share * 2.0**64), 2**64 - 1))
