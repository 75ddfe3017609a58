"""An epoch's plan: which pieces of which documents make each instance, with which label.

The plan is a table of a few integers an instance, made once an epoch by array operations; ids and masks are
looked up and drawn when a batch is built. It departs from BERT's original data preparation (Devlin et al.
2019, appendix A.2, and the `create_pretraining_data` of its release) where that one loses text or gives the
label away:

* Pieces. A sentence longer than half of what a pair may hold is parted into equal pieces, so that any two
  neighbouring pieces fit in one instance. Nothing has to be trimmed away to make room.
* Chunks. A document is walked from its start; each chunk takes pieces up to a target length (the full length,
  or with probability `short_share` a random shorter one), at least two if there are two, and is split at a
  random piece into A and B. What is left at the end of a document joins the last chunk or makes a chunk.
* NotNext. In half of the chunks B changes places with the B of another document's chunk, chosen so that the
  two are as alike in length as the epoch allows. So A and B have the same lengths whatever the label (in the
  original, a random B fills up to the target while a true one ends with its document), and every piece is
  used once an epoch (in the original, what a random B displaced has to be put back).
* Documents of one piece have no B of their own. Each takes its place in the NotNext half: it borrows the B of
  a chunk that is split behind its first piece, one as long as the borrower's, and that chunk is labelled
  IsNext. For each length there are then as many instances of either label.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from bertsmith import draws
from bertsmith.errors import InputError

Ints = NDArray[np.int64]

IS_NEXT, NOT_NEXT = 0, 1  # the reference's label ids: 0 = B follows A


class Corpus(Protocol):
    """What a plan reads of token shards: cumulative ends, not ids."""

    sentence_ends: Ints  # [S] token offset behind each sentence, over the whole corpus
    document_sentences: Ints  # [D + 1] number of sentences before each document


@dataclass(frozen=True)
class Plan:
    """One epoch's instances. All arrays have one entry an instance, in the order of training.

    A is tokens [a_start, a_start + a_length) of the corpus, B likewise. label: IS_NEXT or NOT_NEXT. document
    and partner: the documents A and B come from. counts: what happened to the text, for people.
    """

    a_start: Ints
    a_length: Ints
    b_start: Ints
    b_length: Ints
    label: Ints
    document: Ints
    partner: Ints
    counts: dict[str, int]

    def __len__(self) -> int:
        return len(self.label)

    @property
    def tokens(self) -> int:
        """Tokens of the whole epoch, with [CLS] and the two [SEP]."""
        return int(self.a_length.sum() + self.b_length.sum()) + 3 * len(self)


@dataclass(frozen=True)
class _Chunks:
    """Runs of pieces: token offsets of the start, the end of the first piece, the split (B's start) and the
    end; the document of each.

    A chunk of one piece has first = split = end.
    """

    start: Ints
    first: Ints
    split: Ints
    end: Ints
    document: Ints


def plan_pairs(
    corpus: Corpus,
    documents: Ints,
    *,
    length: int,
    seed: int,
    epoch: int,
    short_share: float = 0.1,
) -> Plan:
    """Segment pairs with next-sentence labels for one epoch.

    documents: the indices to use; length: tokens an instance may have, its three special tokens included.
    A pure function of its arguments. InputError where fewer than two documents are given.
    """
    check_documents(len(documents))
    room = length - 3
    piece_ends, document_pieces, parted = _pieces(corpus, documents, longest=max(1, room // 2))
    chunks = _chunks(piece_ends, document_pieces, documents, room, seed, epoch, short_share)
    single = np.flatnonzero(chunks.split == chunks.end)
    paired = np.flatnonzero(chunks.split < chunks.end)
    lender = _lenders(chunks, single, paired, seed, epoch)
    split = chunks.split.copy()
    lent = np.intersect1d(lender, paired)
    split[lent] = chunks.first[lent]
    chunks = replace(chunks, split=split)
    b_from, label, counts = _partners(chunks, single, paired, lender, seed, epoch)

    used = np.flatnonzero(b_from >= 0)
    source = b_from[used]
    a_length = (chunks.split - chunks.start)[used]
    b_start = np.where(chunks.split == chunks.end, chunks.start, chunks.split)[source]
    b_whole = chunks.end[source] - b_start
    b_length = np.minimum(b_whole, room - a_length)
    counts |= {
        "documents": len(documents),
        "sentences": int(np.diff(corpus.document_sentences)[documents].sum()),
        "sentences_parted": parted,
        "documents_of_one_piece": len(single),
        "tokens_cut": int((b_whole - b_length).sum()),
        "tokens_left_out": _tokens_of(corpus, documents)
        - _covered(np.concatenate([chunks.start[used], b_start]), np.concatenate([a_length, b_length])),
    }
    order = draws.permutation(seed, "order", len(used), epoch)
    used, source = used[order], source[order]
    return Plan(
        a_start=chunks.start[used],
        a_length=a_length[order],
        b_start=b_start[order],
        b_length=b_length[order],
        label=label[used],
        document=chunks.document[used],
        partner=chunks.document[source],
        counts=counts,
    )


def check_documents(number: int) -> None:
    """InputError where pairs cannot be made of so few documents."""
    if number < 2:
        raise InputError(
            "next-sentence pairs need at least two documents: a NotNext sentence comes from another one",
            "put a blank line between the documents, or give one file a document",
        )


def _pieces(corpus: Corpus, documents: Ints, longest: int) -> tuple[Ints, Ints, int]:
    """Sentences as pieces of at most `longest` tokens.

    Returns the token offsets around the pieces of each document, laid end to end (a document of k pieces has
    k + 1 offsets), the cumulative number of offsets a document [D + 1], and how many sentences were parted.
    """
    first, last = corpus.document_sentences[documents], corpus.document_sentences[documents + 1]
    sentences = ranges(first, last - first)
    ends = corpus.sentence_ends[sentences]
    starts = np.where(sentences > 0, corpus.sentence_ends[sentences - 1], 0)
    parts = -(-(ends - starts) // longest)
    which = np.repeat(np.arange(len(sentences)), parts)
    k = ranges(np.zeros_like(parts), parts) + 1
    piece_ends = starts[which] + (ends - starts)[which] * k // parts[which]

    owner = np.repeat(np.repeat(np.arange(len(documents)), last - first), parts)
    pieces = np.bincount(owner, minlength=len(documents))
    offsets = np.concatenate([[0], np.cumsum(pieces + 1)])
    laid = np.empty(offsets[-1], dtype=np.int64)
    laid[offsets[:-1]] = np.where(first > 0, corpus.sentence_ends[first - 1], 0)
    laid[np.arange(len(owner)) + owner + 1] = piece_ends
    return laid, offsets, int((parts > 1).sum())


def _chunks(
    bounds: Ints, offsets: Ints, documents: Ints, room: int, seed: int, epoch: int, short_share: float
) -> _Chunks:
    """Walk all documents side by side, one chunk of each a round, so that the walk is array operations."""
    here = offsets[:-1].copy()  # index into `bounds` of each document's next chunk
    last = offsets[1:] - 1
    active = np.flatnonzero(here < last)
    found: list[tuple[Ints, Ints, Ints, Ints, Ints]] = []
    for round_ in range(len(bounds)):
        if not len(active):
            break
        at, end_of_document = here[active], last[active]
        target = np.full(len(active), room)
        short = draws.uniform(seed, "short", epoch, active, round_) < short_share
        target[short] = 2 + draws.integers(seed, "target", max(1, room - 1), epoch, active[short], round_)
        stop = _last_within(bounds, at, end_of_document, bounds[at] + target)
        stop = np.minimum(np.maximum(stop, at + 2), end_of_document)
        alone = end_of_document - stop == 1  # one piece would be left over
        fits = bounds[end_of_document] - bounds[at] <= room
        stop = np.where(alone & fits, end_of_document, np.where(alone & (stop - at >= 3), stop - 1, stop))
        pieces = stop - at
        split = at + 1 + draws.integers(seed, "split", np.maximum(pieces - 1, 1), epoch, active, round_)
        split = np.where(pieces == 1, stop, split)
        found.append((bounds[at], bounds[at + 1], bounds[split], bounds[stop], active))
        here[active] = stop
        active = active[stop < end_of_document]
    start, first, split, stop, which = (np.concatenate(column) for column in zip(*found, strict=True))
    return _Chunks(start, first, split, stop, documents[which])


def _last_within(bounds: Ints, low: Ints, high: Ints, limit: Ints) -> Ints:
    """For each row the last index in [low, high] whose bound is <= limit: bisection, all rows at once."""
    low, high = low.copy(), high.copy()
    while np.any(low < high):
        middle = (low + high + 1) // 2
        inside = bounds[middle] <= limit
        low = np.where(inside, middle, low)
        high = np.where(inside, high, middle - 1)
    return low


def _partners(
    chunks: _Chunks, single: Ints, paired: Ints, lender: Ints, seed: int, epoch: int
) -> tuple[Ints, Ints, dict[str, int]]:
    """For each chunk the chunk whose second segment stands behind its A (-1: none is to be had), and its label."""
    b_from = np.full(len(chunks.start), -1)
    label = np.full(len(chunks.start), IS_NEXT)
    b_from[paired] = paired
    label[single] = NOT_NEXT
    b_from[single] = lender

    # A lender is bound to IsNext, one for each borrower. Of the rest a half is NotNext, less what has no lender
    # of its own (there are more documents of one piece than chunks of two): the labels stay even if they can.
    free = np.setdiff1d(paired, lender)
    surplus = max(0, len(single) - len(paired))
    coin = int(draws.integers(seed, "odd", 2, epoch))
    wanted = max(0, (len(free) + coin - surplus) // 2)
    chosen = free[draws.permutation(seed, "label", len(free), epoch)[:wanted]]
    partner = _exchanged(chosen, paired, chunks, seed, epoch)
    chosen, partner = chosen[partner >= 0], partner[partner >= 0]
    b_from[chosen] = partner
    label[chosen] = NOT_NEXT

    had = b_from >= 0
    times_used = np.bincount(b_from[had], minlength=len(b_from))
    counts = {
        "instances": int(had.sum()),
        "is_next": int((label[had] == IS_NEXT).sum()),
        "not_next": int((label[had] == NOT_NEXT).sum()),
        "second_segments_used_again": int(np.maximum(times_used - 1, 0).sum()),
        "second_segments_left_out": int((times_used[paired] == 0).sum()),
        "documents_left_out": int((~had).sum()),
    }
    return b_from, label, counts


def _lenders(chunks: _Chunks, single: Ints, paired: Ints, seed: int, epoch: int) -> Ints:
    """For each chunk of one piece the chunk of another document that it borrows B from (-1: none).

    The lender's first piece is as long as the borrower's, and no two borrow from one lender while there are
    enough. Borrowers beyond that change pieces with each other.
    """
    matched = single[draws.permutation(seed, "single", len(single), epoch)]
    first_length = chunks.first - chunks.start
    lender_of = np.full(len(chunks.start), -1)

    candidates = paired[np.lexsort((draws.bits(seed, "lender", epoch, paired), first_length[paired]))]
    bound = matched[: len(candidates)]
    bound = bound[np.argsort(first_length[bound], kind="stable")]
    step = np.arange(len(bound))
    at = np.searchsorted(first_length[candidates], first_length[bound])
    at = np.maximum.accumulate(at - step) + step  # distinct and in order …
    at = np.minimum(at, len(candidates) - len(bound) + step)  # … and within the candidates
    lender_of[bound] = candidates[at]
    extra = matched[len(candidates) :]
    lender_of[extra] = _exchanged(extra, single, chunks, seed, epoch)

    lost = single[(lender_of[single] < 0) | (chunks.document[lender_of[single]] == chunks.document[single])]
    lender_of[lost] = _nearest_elsewhere(lost, candidates, first_length, chunks.document)
    return lender_of[single]


def _exchanged(takers: Ints, everyone: Ints, chunks: _Chunks, seed: int, epoch: int) -> Ints:
    """For each taker the chunk of another document whose second segment it takes; -1 where there is none.

    Sixteen neighbours in order of length change among themselves; sorted by document and moved on by the
    size of the largest document among them, no two of a document meet unless it holds more than half. Those
    are tried again in wider circles. What one document's weight leaves over borrows from `everyone`.
    """
    length = chunks.end - chunks.split
    length = np.where(length == 0, chunks.end - chunks.start, length)  # a chunk of one piece lends its piece
    document = chunks.document
    partner = np.full(len(chunks.start), -1)
    tie = draws.bits(seed, "tie", epoch, np.arange(len(chunks.start)))
    need = have = takers
    circle = 16
    while len(need) > 1:
        need = need[np.lexsort((tie[need], length[need]))]
        have = have[np.lexsort((tie[have], length[have]))]
        block = np.arange(len(need)) // circle
        need = need[np.lexsort((tie[need], document[need], block))]
        have = have[np.lexsort((tie[have], document[have], block))]
        got = have[_moved_on(block, document[need])]
        good = document[got] != document[need]
        partner[need[good]] = got[good]
        need, have = need[~good], got[~good]
        if circle >= len(block):
            break
        circle *= 16
    left = takers[partner[takers] < 0]
    by_length = everyone[np.lexsort((tie[everyone], length[everyone]))]
    partner[left] = _nearest_elsewhere(left, by_length, length, document)
    return partner[takers]


def _moved_on(block: Ints, document: Ints) -> Ints:
    """Each row's index moved on, within its block, by the size of the largest document there.

    Both arrays are sorted by (block, document).
    """
    size = np.bincount(block)
    begin = np.cumsum(size) - size
    change = np.flatnonzero(np.diff(block, prepend=-1) | np.diff(document, prepend=-1))
    run = np.diff(np.append(change, len(block)))
    largest = np.zeros(len(size), dtype=np.int64)
    np.maximum.at(largest, block[change], run)
    return begin[block] + (np.arange(len(block)) - begin[block] + largest[block]) % size[block]


def _tokens_of(corpus: Corpus, documents: Ints) -> int:
    before = np.concatenate([[0], corpus.sentence_ends])[corpus.document_sentences]
    return int((before[documents + 1] - before[documents]).sum())


def _covered(starts: Ints, lengths: Ints) -> int:
    """How many tokens lie in one or more of these runs."""
    order = np.argsort(starts, kind="stable")
    begin, end = starts[order], (starts + lengths)[order]
    seen = np.concatenate([[0], np.maximum.accumulate(end)[:-1]])
    return int(np.maximum(end - np.maximum(begin, seen), 0).sum())


def _nearest_elsewhere(rows: Ints, candidates: Ints, length: Ints, document: Ints) -> Ints:
    """For each row the candidate of another document that is nearest in length; -1 where there is none.

    candidates: in order of length.
    """
    nearest = np.full(len(rows), -1)
    for own in np.unique(document[rows]):
        other = candidates[document[candidates] != own]
        mine = np.flatnonzero(document[rows] == own)
        if len(other):
            at = np.searchsorted(length[other], length[rows[mine]])
            nearest[mine] = other[np.minimum(at, len(other) - 1)]
    return nearest


def ranges(starts: Ints, lengths: Ints) -> Ints:
    """[s, s + 1, …, s + n - 1] for each start s and length n, laid end to end."""
    ends = np.cumsum(lengths)
    total = int(ends[-1]) if len(ends) else 0
    laid: Ints = np.arange(total) + np.repeat(starts - (ends - lengths), lengths)
    return laid
