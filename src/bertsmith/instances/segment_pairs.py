"""Pairs of segments or sentences for one epoch, with the question asked of them.

It departs from BERT's original data preparation (Devlin et al. 2019, appendix A.2, and the
`create_pretraining_data` of its release) where that one loses text or gives the label away:

* A sentence longer than half of what a pair may hold is parted into equal fragments (`segments.py`), so that any
  two neighbours fit in one instance and nothing has to be trimmed.
* NotNext: half of the chunks exchange B with a chunk of another document, as alike in length as the epoch
  allows (`nsp_matching.py`). So A and B have the same lengths whatever the label (in the original, a random B
  fills up to the target while a true one ends with its document), and every fragment is used once an epoch (in
  the original, what a random B displaced has to be put back).
* Documents of one fragment have no B of their own. Each takes its place in the NotNext half with a B that it
  borrows (`nsp_borrowing.py`), and a chunk of the same length is labelled IsNext.

The original's way is there, too (`nsp_random.py`, `data.partner=random`). From the lengths of A and B alone
boosted trees guess its labels at 128 tokens with an area under the curve of 0.56 (0.5 is chance), those of the
exchange with 0.50; 9 % of the text is in none of its pairs, and an epoch holds 1.24 tokens for each of the text
(benchmarks/partners.py). Either way NotNext's B is never from a document of A's kin: an equal one, a near twin,
another part of the same over-long one (`twins.py`). With `data.nsp_negatives=same_document` it is, either way,
from elsewhere in A's own document (`within.py`).

Sentence order (Lan et al. 2020, section 3.1) swaps A and B in half of the chunks, of which half are made from
the end of their document, so that lengths do not tell the order; without a question A and B
follow each other. For these two, a document of one fragment is read as its two halves.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from bertsmith import rng
from bertsmith.corpus.tokenized_corpus import Corpus, Ints
from bertsmith.errors import InputError
from bertsmith.instances.epoch_plan import (
    IN_ORDER,
    IS_NEXT,
    NOT_NEXT,
    SWAPPED,
    Plan,
    covered,
    pairs_plan,
    tokens_of,
)
from bertsmith.instances.nsp_borrowing import borrowed, lenders
from bertsmith.instances.nsp_matching import matched
from bertsmith.instances.nsp_random import Drawn, drawn_pairs
from bertsmith.instances.segments import (
    Chunks,
    Fragments,
    fragments_of,
    segment_chunks,
    sentence_chunks,
    two_way_chunks,
)
from bertsmith.instances.within import matched_within

SentenceTask = Literal["nsp", "sop", "none"]
Partner = Literal["matched", "random"]
Negatives = Literal["other_document", "same_document"]

_UNPARTED = 1 << 62  # tokens that no sentence has


def plan_pairs(
    corpus: Corpus,
    documents: Ints,
    *,
    length: int,
    seed: int,
    epoch: int,
    short_share: float = 0.1,
    task: SentenceTask = "nsp",
    sentences: bool = False,
    separators: int = 1,
    partner: Partner = "matched",
    negatives: Negatives = "other_document",
    kin: Ints | None = None,
) -> Plan:
    """The pairs of one epoch.

    documents: the indices to use, ascending; length: tokens an instance may have, its special ones included;
    sentences: A and B are one sentence each, not segments of several; partner: how NotNext's B is chosen;
    negatives: in which documents;
    kin: [D], documents of one number are no "other document" to each other (none: each is for itself). A pure
    function of its arguments. InputError where next-sentence pairs are asked of documents that are all kin.
    """
    if kin is None:
        kin = np.arange(len(corpus.document_sentences) - 1)
    room = length - 2 - separators
    if task == "nsp":
        within = negatives == "same_document"
        if not within:
            check_documents(kin[documents])
        if partner == "random":
            whole = fragments_of(corpus, documents, _UNPARTED)
            found = drawn_pairs(
                whole, kin[documents], room, seed, epoch, short_share, single=sentences, within=within
            )
            return pairs_plan(found.a, found.b, found.label, separators, _random_counts(corpus, whole, found))
    fragments = fragments_of(corpus, documents, max(1, room // 2), halve_single=task != "nsp")
    if sentences:
        chunks = sentence_chunks(fragments, seed, epoch)
    else:
        walked = two_way_chunks if task == "sop" else segment_chunks
        chunks = walked(fragments, room, seed, epoch, short_share)
    if task == "nsp":
        chunks = replace(chunks, kin=kin[chunks.document])
        pair_up = _next_sentence_within if within else _next_sentence
        chunks, a_of, b_of, label, counts = pair_up(chunks, room, seed, epoch)
    else:
        a_of = np.flatnonzero(chunks.split < chunks.end)
        b_of = a_of
        label, counts = _order_labels(task, len(a_of), seed, epoch)
        counts["documents_left_out"] = len(chunks.split) - len(a_of)
    a_start, a_length = chunks.start[a_of], chunks.a_length[a_of]
    b_start, b_whole = chunks.b_start[b_of], chunks.b_length[b_of]
    b_length = np.minimum(b_whole, room - a_length)
    cut = int((b_whole - b_length).sum())
    counts |= _text_counts(corpus, fragments, (a_start, a_length), (b_start, b_length), cut)
    a = (a_start, a_length, chunks.document[a_of])
    b = (b_start, b_length, chunks.document[b_of])
    if task == "sop":
        swapped = label == SWAPPED
        both = [(np.where(swapped, y, x), np.where(swapped, x, y)) for x, y in zip(a, b, strict=True)]
        a, b = ((both[0][k], both[1][k], both[2][k]) for k in (0, 1))
    return pairs_plan(a, b, label, separators, counts)


def check_documents(kin: NDArray[Any]) -> None:
    """InputError where next-sentence pairs cannot be made of these documents, those of one number being kin."""
    if len(np.unique(kin)) >= 2:
        return
    if len(kin) < 2:
        raise InputError(
            "next-sentence pairs need at least two documents: a NotNext sentence comes from another one",
            "put a blank line between documents (or say what one is: data prepare --documents) and prepare again; "
            "or set data.sentence_task=none",
        )
    raise InputError(
        "next-sentence pairs need at least two documents that are no twins, and all "
        f"{len(kin):,} are twins or parts of one over-long document",
        "give other documents, or raise data.twin_overlap; or set data.sentence_task=none",
    )


def _random_counts(corpus: Corpus, sentences: Fragments, found: Drawn) -> dict[str, int]:
    return {
        "instances": len(found.label),
        "is_next": int((found.label == IS_NEXT).sum()),
        "not_next": int((found.label == NOT_NEXT).sum()),
        "second_segments_used_again": 0,
        "added_for_balance": 0,
        "documents_left_out": 0,
        **_text_counts(corpus, sentences, found.a[:2], found.b[:2], found.trimmed),
    }


def _text_counts(
    corpus: Corpus, fragments: Fragments, a: tuple[Ints, Ints], b: tuple[Ints, Ints], cut: int
) -> dict[str, int]:
    """What became of the text; a and b: start and length of the segments; cut: tokens trimmed off them."""
    seen = covered(*(np.concatenate(columns) for columns in zip(a, b, strict=True)))
    return {
        "documents": len(fragments.documents),
        "sentences": int(np.diff(corpus.document_sentences)[fragments.documents].sum()),
        "sentences_parted": fragments.parted,
        "documents_of_one_fragment": int((np.diff(fragments.offsets) == 2).sum()),
        "tokens_cut": cut,
        "tokens_left_out": tokens_of(corpus, fragments.documents) - seen,
    }


def _order_labels(task: SentenceTask, number: int, seed: int, epoch: int) -> tuple[Ints, dict[str, int]]:
    label = np.full(number, IN_ORDER)
    counts = {"instances": number}
    if task == "sop":
        odd = int(rng.integers(seed, "odd", 2, epoch))
        label[rng.permutation(seed, "label", number, epoch)[: (number + odd) // 2]] = SWAPPED
        counts |= {"in_order": int((label == IN_ORDER).sum()), "swapped": int((label == SWAPPED).sum())}
    return label, counts


def _next_sentence(
    chunks: Chunks, room: int, seed: int, epoch: int
) -> tuple[Chunks, Ints, Ints, Ints, dict[str, int]]:
    """The chunks as they are split in the end; for each instance the chunk of its A and that of its B, and its
    label.

    A lender is bound to IsNext, one for each borrower. Of the rest so many exchange that the labels are even,
    as far as chunks of different documents go; for what is missing then, chunks get a second instance.
    """
    single = np.flatnonzero(chunks.split == chunks.end)
    paired = np.flatnonzero(chunks.split < chunks.end)
    borrower, lender = lenders(chunks, single, paired, room, seed, epoch)
    split = chunks.split.copy()
    split[lender] = chunks.first[lender]
    chunks = replace(chunks, split=split)
    lent = np.zeros(len(split), dtype=bool)  # chunks that lend, and those that borrow
    lent[lender] = lent[borrower] = True
    others = single[~lent[single]]
    size = (chunks.end - chunks.start)[others]
    everyone = np.arange(len(split))
    from_others = borrowed(chunks, others, size, size, everyone, room, seed, epoch)
    others, from_others = others[from_others >= 0], from_others[from_others >= 0]

    free = paired[~lent[paired]]
    coin = int(rng.integers(seed, "odd", 4, epoch))
    wanted = max(0, (len(free) - len(others) + coin) // 4)
    one, two = matched(chunks, free, wanted, room, seed, epoch)
    exchanged = np.zeros(len(split), dtype=bool)
    exchanged[one] = exchanged[two] = True
    kept = paired[~exchanged[paired]]
    missing = min(4 * (wanted - len(one)), len(kept))
    again = kept[rng.permutation(seed, "again", len(kept), epoch)[:missing]]
    to_lend = borrowed(
        chunks, again, chunks.b_length[again], chunks.a_length[again], everyone, room, seed, epoch
    )
    again, to_lend = again[to_lend >= 0], to_lend[to_lend >= 0]

    a_of = np.concatenate([kept, one, two, borrower, others, again])
    b_of = np.concatenate([kept, two, one, lender, from_others, to_lend])
    label = np.full(len(a_of), NOT_NEXT)
    label[: len(kept)] = IS_NEXT
    counts = {
        "instances": len(a_of),
        "is_next": len(kept),
        "not_next": len(a_of) - len(kept),
        "second_segments_used_again": int(np.maximum(np.bincount(b_of) - 1, 0).sum()),
        "added_for_balance": len(again),
        "documents_left_out": len(single) - len(borrower) - len(others),
    }
    return chunks, a_of, b_of, label, counts


def _next_sentence_within(
    chunks: Chunks, room: int, seed: int, epoch: int
) -> tuple[Chunks, Ints, Ints, Ints, dict[str, int]]:
    """The same with each NotNext's B from A's document: half of the chunks exchange, as far as documents have
    enough of them; a document of one fragment has no B, and is left out."""
    paired = np.flatnonzero(chunks.split < chunks.end)
    coin = int(rng.integers(seed, "odd", 4, epoch))
    one, two = matched_within(chunks, paired, (len(paired) + coin) // 4, room, seed, epoch)
    kept = paired[~np.isin(paired, np.concatenate([one, two]))]
    label = np.full(len(paired), NOT_NEXT)
    label[: len(kept)] = IS_NEXT
    counts = {
        "instances": len(paired),
        "is_next": len(kept),
        "not_next": len(paired) - len(kept),
        "second_segments_used_again": 0,
        "added_for_balance": 0,
        "documents_left_out": len(chunks.split) - len(paired),
    }
    return chunks, np.concatenate([kept, one, two]), np.concatenate([kept, two, one]), label, counts
