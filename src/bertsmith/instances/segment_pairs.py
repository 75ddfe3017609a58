"""Plans of pairs: next sentence, sentence order, or no label.

Next-sentence pairs are those of the original BERT data preparation (`create_instances_from_document` of its
release). A document is read in chunks of whole sentences up to a target length. Each chunk is split at a random
sentence into A and the rest. With probability 0.5, or if the chunk is a single sentence, the pair is NotNext: B is
not the rest, but consecutive sentences from a random position of a random document, up to the target length; the
rest is read again in the next chunk. A pair that is too long is trimmed: one token at a time from the longer
segment, at a random end. So documents of few sentences have fewer IsNext than NotNext pairs: what a NotNext pair
leaves is often a single sentence. With `data.nsp_balance` the coin is such that half of the pairs are IsNext. With
`data.nsp_sampling=same_document` the random position is in A's own document.
Differences: near-duplicates of A's document are never drawn (the release draws up to ten times to avoid A's
document, and does not know near-duplicates). Random numbers are functions of the position in the text, so that all
chunks are made at once.

For sentence order prediction (Lan et al. 2020, section 3.1) A and B are swapped in half of the pairs. Without a
label, B follows A. For both, a sentence longer than half of the tokens of a pair is split into equal fragments
(`segments.py`), so that nothing is trimmed, and a document of one fragment is split into two.

Shapes: D documents, N boundaries of sentences, I pairs, R NotNext pairs.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from bertsmith import rng
from bertsmith.corpus.shards import IntArray, Shards
from bertsmith.errors import InputError, command, option
from bertsmith.formatting import pluralize
from bertsmith.instances import epoch_plan, segments
from bertsmith.instances.epoch_plan import IN_ORDER, IS_NEXT, NOT_NEXT, SWAPPED, EpochPlan, Spans
from bertsmith.instances.segments import Fragments, split_into_fragments
from bertsmith.instances.settings import DataSettings

_BISECTIONS = 9  # after which the probability is known to 0.002


def plan_pairs(
    corpus: Shards,
    documents: IntArray,
    settings: DataSettings,
    *,
    max_length: int,
    seed: int,
    epoch: int,
    num_separators: int = 1,
) -> EpochPlan:
    """Plan the pairs of one epoch; a pure function of its arguments.

    Args:
        corpus: The corpus.
        documents: The documents to use, int64 [D], ascending.
        settings: The settings.
        max_length: The maximum tokens of an instance, special tokens included.
        seed: The seed.
        epoch: The epoch.
        num_separators: The number of separator tokens between A and B.

    Raises:
        InputError: NotNext's B is to come from another document, and all documents are in one duplicate group.
    """
    max_tokens = max_length - 2 - num_separators  # of A and B; [CLS] and the last separator are 2 tokens
    task = settings.sentence_task
    if task == "nsp":
        groups = corpus.duplicate_groups[documents]
        sentences = split_into_fragments(corpus, documents)
        has_text = sentences.fragments_per_document > 0
        num_groups = len(np.unique(groups[has_text]))
        if settings.uses_other_documents and num_groups < 2:
            requirement = "next-sentence pairs need 2: NotNext is from another document"
            raise too_few_documents_error(num_groups, requirement)
        a, b, labels, num_trimmed, num_single = draw_nsp_pairs(
            sentences, groups, settings, max_tokens, seed, epoch
        )
        counts = {
            "instances": len(labels),
            "is_next": int((labels == IS_NEXT).sum()),
            "not_next": int((labels == NOT_NEXT).sum()),
            "not_next_of_single_sentences": num_single,
            "documents_left_out": int(has_text.sum()) - len(np.unique(a.documents)),
            **_count_text(corpus, sentences, a, b, num_trimmed),
        }
        return epoch_plan.make_pair_plan(a, b, labels, num_separators, counts)
    fragments = split_into_fragments(corpus, documents, max(1, max_tokens // 2), split_single_fragments=True)
    if settings.instances == "sentence_pair":
        chunks = segments.make_sentence_chunks(fragments, seed, epoch)
    else:
        make_chunks = segments.make_chunks_from_either_end if task == "sop" else segments.make_segment_chunks
        chunks = make_chunks(fragments, max_tokens, seed, epoch, settings.short_seq_prob)
    has_b = chunks.b_start < chunks.end
    a_start, b_start, end = chunks.a_start[has_b], chunks.b_start[has_b], chunks.end[has_b]
    a = Spans(a_start, b_start - a_start, chunks.document[has_b])
    b = Spans(b_start, end - b_start, chunks.document[has_b])
    labels, counts = _draw_order_labels(task, len(a_start), seed, epoch)
    counts |= _count_text(corpus, fragments, a, b)
    # Only a document of a single token has no B, and it is one chunk.
    counts["documents_left_out"] = int((~has_b).sum())
    is_swapped = labels == SWAPPED
    first = Spans(*(np.where(is_swapped, y, x) for x, y in zip(a, b, strict=True)))
    second = Spans(*(np.where(is_swapped, x, y) for x, y in zip(a, b, strict=True)))
    return epoch_plan.make_pair_plan(first, second, labels, num_separators, counts)


def draw_nsp_pairs(
    sentences: Fragments,
    duplicate_groups: IntArray,
    settings: DataSettings,
    max_tokens: int,
    seed: int,
    epoch: int,
) -> tuple[Spans, Spans, IntArray, int, int]:
    """Draw the next-sentence pairs of an epoch.

    Args:
        sentences: Whole sentences of D documents.
        duplicate_groups: int64 [D]; documents of one group are near-duplicates. There are two groups or more,
            except with `nsp_sampling` same_document, where B is from A's own document, with a sentence or more
            between A and B. If there is none, B is the rest of the chunk, and a single sentence is omitted.
        settings: The settings. The instances sentence_pair are one sentence each, without a target length.
        max_tokens: The maximum tokens of A and B together.
        seed: The seed.
        epoch: The epoch.

    Returns:
        The segments A and B, the labels, int64 [I], the number of tokens that were trimmed, and the number of
        pairs that are NotNext because their chunk is a single sentence.
    """
    boundaries, num_documents = sentences.boundaries, len(sentences.documents)
    target = segments.draw_target_lengths(num_documents, max_tokens, seed, epoch, settings.short_seq_prob)
    target = target.repeat(np.diff(sentences.offsets))  # of a chunk that starts at each boundary
    start, split, stop, is_not_next = _draw_chunks(sentences, settings, target, seed, epoch)
    document = sentences.position_of(start)
    b_start, b_stop, b_document = split.copy(), stop.copy(), document.copy()
    b_start[is_not_next], b_stop[is_not_next], b_document[is_not_next] = _draw_not_next(
        sentences,
        duplicate_groups,
        settings,
        (start[is_not_next], split[is_not_next], document[is_not_next]),
        target,
        seed,
        epoch,
    )
    a_length, b_length = boundaries[split] - boundaries[start], boundaries[b_stop] - boundaries[b_start]
    # Trimming one token at a time from the longer segment, or from B if both are equal, ends at these lengths.
    new_a_length = np.minimum(a_length, np.maximum((max_tokens + 1) // 2, max_tokens - b_length))
    new_b_length = np.minimum(b_length, np.maximum(max_tokens // 2, max_tokens - a_length))
    a_cut, b_cut = a_length - new_a_length, b_length - new_b_length
    a_front_cut = _draw_front_cuts(a_cut, seed, "front of A", epoch, start)
    b_front_cut = _draw_front_cuts(b_cut, seed, "front of B", epoch, start)
    return (
        Spans(boundaries[start] + a_front_cut, new_a_length, sentences.documents[document]),
        Spans(boundaries[b_start] + b_front_cut, new_b_length, sentences.documents[b_document]),
        np.where(is_not_next, NOT_NEXT, IS_NEXT),
        int((a_cut + b_cut).sum()),
        int((stop - start == 1).sum()),
    )


def _draw_chunks(
    sentences: Fragments, settings: DataSettings, target: IntArray, seed: int, epoch: int
) -> tuple[IntArray, IntArray, IntArray, NDArray[np.bool_]]:
    """Draw the chunks that become pairs.

    Args:
        sentences: Whole sentences of D documents.
        settings: The settings.
        target: int64 [N], the target length of a chunk that starts at each boundary.
        seed: The seed.
        epoch: The epoch.

    Returns:
        For each of I pairs the boundaries where its chunk starts, is split, and ends, int64 [I] each, and True if
        it is NotNext, bool [I].
    """
    boundaries, last, offsets = sentences.boundaries, sentences.last_boundary, sentences.offsets
    # First for each boundary, as if a chunk started there: the boundaries where B starts and where the chunk ends.
    index = np.arange(len(boundaries))
    if settings.instances == "sentence_pair":
        stop = index + 2
    else:
        stop = np.searchsorted(boundaries, boundaries + target, side="left")
    stop = np.minimum(np.maximum(stop, index + 1), last)
    split = index + 1 + rng.integers(seed, "split", np.maximum(stop - index - 1, 1), epoch, index)
    uniform = rng.uniform(seed, "partner", epoch, index)
    can_be_not_next: NDArray[np.bool_] = np.ones(len(index), dtype=np.bool_)
    if settings.nsp_sampling == "same_document":
        first = offsets[sentences.position_of(index)]
        before, behind = _count_same_document_starts(index, split, first, last)
        can_be_not_next = before + behind > 0

    def chunks_of(probability: float) -> tuple[IntArray, NDArray[np.bool_]]:
        is_not_next = ((stop - index == 1) | (uniform < probability)) & can_be_not_next
        start = segments.follow_links(np.where(index == last, index + 1, np.where(is_not_next, split, stop)))
        return start[(start < last[start]) & (is_not_next | (stop - index > 1))[start]], is_not_next

    start, is_not_next = chunks_of(_balancing_probability(chunks_of) if settings.nsp_balance else 0.5)
    return start, split[start], stop[start], is_not_next[start]


def _balancing_probability(chunks_of: Callable[[float], tuple[IntArray, NDArray[np.bool_]]]) -> float:
    """Return the probability of NotNext by bisection, so that half of the pairs are NotNext, or as few as can be.

    Args:
        chunks_of: Returns the boundaries where pairs start, and for each boundary whether its chunk is NotNext.
    """
    low, high = 0.0, 1.0
    for _ in range(_BISECTIONS):
        probability = (low + high) / 2
        start, is_not_next = chunks_of(probability)
        if len(start) and is_not_next[start].mean() > 0.5:
            high = probability
        else:
            low = probability
    return low


def _count_same_document_starts(
    start: IntArray, split: IntArray, first: IntArray, last: IntArray
) -> tuple[IntArray, IntArray]:
    """Return the numbers of boundaries before and behind A, with a sentence between, where NotNext's B can start.

    Args:
        start: The boundaries where A starts.
        split: The boundaries where A ends.
        first: The first boundary of A's document.
        last: The last boundary of A's document.
    """
    return np.maximum(start - 1 - first, 0), np.maximum(last - split - 1, 0)


def _draw_not_next(
    sentences: Fragments,
    duplicate_groups: IntArray,
    settings: DataSettings,
    a: tuple[IntArray, IntArray, IntArray],
    target: IntArray,
    seed: int,
    epoch: int,
) -> tuple[IntArray, IntArray, IntArray]:
    """Draw B of R NotNext pairs: the boundaries where it starts and ends, and its document, int64 [R] each.

    Args:
        sentences: Whole sentences of D documents.
        duplicate_groups: int64 [D], the duplicate group of each document.
        settings: The settings.
        a: The boundaries where A starts and ends, and its document, int64 [R] each.
        target: int64 [N], the target length of a chunk that starts at each boundary.
        seed: The seed.
        epoch: The epoch.
    """
    boundaries, offsets = sentences.boundaries, sentences.offsets
    a_start, a_stop, document = a
    if settings.nsp_sampling == "same_document":
        first, last = offsets[document], offsets[document + 1] - 1
        before, behind = _count_same_document_starts(a_start, a_stop, first, last)
        position = rng.integers(seed, "place", before + behind, epoch, a_start)
        is_before = position < before
        start = np.where(is_before, first + position, a_stop + 1 + position - before)
        limit = np.where(is_before, a_start - 1, last)
    else:
        uniform = rng.uniform(seed, "other", epoch, a_start)
        document = _other_documents(sentences, duplicate_groups, document, uniform)
        first, limit = offsets[document], offsets[document + 1] - 1
        start = first + rng.integers(seed, "place", limit - first, epoch, a_start)
    if settings.instances == "sentence_pair":
        return start, np.minimum(start + 1, limit), document
    b_target = np.maximum(target[a_start] - (boundaries[a_stop] - boundaries[a_start]), 1)
    stop = np.searchsorted(boundaries, boundaries[start] + b_target, side="left")
    return start, np.minimum(stop, limit), document


def _other_documents(
    sentences: Fragments, groups: IntArray, documents: IntArray, uniform: NDArray[np.float64]
) -> IntArray:
    """Return for each of R documents a random one with text of a different group, all with equal probability, [R].

    Args:
        sentences: The sentences of D documents.
        groups: int64 [D], the duplicate group of each document.
        documents: int64 [R].
        uniform: A random number in [0, 1) for each, [R].
    """
    with_text = np.flatnonzero(sentences.fragments_per_document > 0)
    by_group = with_text[np.argsort(groups[with_text], kind="stable")]
    # The document's own group is by_group[first:stop]: draw a rank among the others, and skip the group.
    sorted_groups, document_groups = groups[by_group], groups[documents]
    first, stop = (np.searchsorted(sorted_groups, document_groups, side=side) for side in ("left", "right"))
    group_size = stop - first
    rank = (uniform * (len(by_group) - group_size)).astype(np.int64)
    others: IntArray = by_group[np.where(rank < first, rank, rank + group_size)]
    return others


def _draw_front_cuts(num_cut: IntArray, seed: int, purpose: str, epoch: int, counter: IntArray) -> IntArray:
    """Return how many of the trimmed tokens of each segment are at its front: a coin is tossed for each token."""
    segment = np.repeat(np.arange(len(num_cut)), num_cut)
    token = epoch_plan.concat_ranges(np.zeros_like(num_cut), num_cut)
    tosses = rng.uniform(seed, purpose, epoch, counter[segment], token)
    cuts: IntArray = np.bincount(segment[tosses < 0.5], minlength=len(num_cut)).astype(np.int64)
    return cuts


def too_few_documents_error(num_different: int, requirement: str) -> InputError:
    """Return the error for a corpus with too few different documents."""
    return InputError(
        "too_few_documents",
        f"the text has {pluralize(num_different, 'different document')} (near-duplicates count as one, and so do "
        f"the parts of a too long one), and {requirement}",
        hint=f"give more documents, or separate them by blank lines (or use {option('documents')} of "
        f"{command('data prepare')}) and prepare again; or use {option('data.sentence_task', 'none')} and "
        f"{option('data.validation_split', '0')}",
    )


def _count_text(
    corpus: Shards, fragments: Fragments, a: Spans, b: Spans, num_trimmed: int = 0
) -> dict[str, int]:
    starts, lengths = np.concatenate([a.starts, b.starts]), np.concatenate([a.lengths, b.lengths])
    counts = segments.count_text(corpus, fragments, starts, lengths, num_trimmed)
    return counts | {"documents_of_one_fragment": int((fragments.fragments_per_document == 1).sum())}


def _draw_order_labels(task: str, num_pairs: int, seed: int, epoch: int) -> tuple[IntArray, dict[str, int]]:
    """Return labels, half of them SWAPPED for sentence order and else all IN_ORDER, and their counts."""
    labels = np.full(num_pairs, IN_ORDER)
    counts = {"instances": num_pairs}
    if task == "sop":
        round_up = int(rng.integers(seed, "odd", 2, epoch))
        swapped_pairs = rng.permutation(seed, "label", num_pairs, epoch)[: (num_pairs + round_up) // 2]
        labels[swapped_pairs] = SWAPPED
        counts |= {"in_order": int((labels == IN_ORDER).sum()), "swapped": int((labels == SWAPPED).sum())}
    return labels, counts
