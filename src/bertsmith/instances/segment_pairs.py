"""Plans of pairs: next sentence, sentence order, or no label.

Next-sentence pairs are those of the original BERT data preparation (`nsp_random.py`). For sentence order (Lan et
al. 2020, section 3.1) A and B are swapped in half of the chunks. Half of the documents are read from their end,
so that lengths do not tell the order. Without a label, B follows A. For these two, a sentence longer than half
of what a pair can hold is split into equal fragments (`segments.py`), so that nothing is trimmed, and a document
of one fragment is divided into two.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from bertsmith import rng
from bertsmith.corpus.tokenized_corpus import IntArray, TokenizedCorpus
from bertsmith.errors import InputError, command, option
from bertsmith.instances.epoch_plan import (
    IN_ORDER,
    IS_NEXT,
    NOT_NEXT,
    SWAPPED,
    EpochPlan,
    count_covered_tokens,
    count_document_tokens,
    make_pair_plan,
)
from bertsmith.instances.nsp_random import NspPairs, draw_nsp_pairs
from bertsmith.instances.segments import (
    Fragments,
    make_bidirectional_chunks,
    make_segment_chunks,
    make_sentence_chunks,
    split_into_fragments,
)

SentenceTask = Literal["nsp", "sop", "none"]
NspNegatives = Literal["other_document", "same_document"]


def plan_pairs(
    corpus: TokenizedCorpus,
    documents: IntArray,
    *,
    max_length: int,
    seed: int,
    epoch: int,
    short_seq_prob: float = 0.1,
    task: SentenceTask = "nsp",
    single_sentences: bool = False,
    num_separators: int = 1,
    negatives: NspNegatives = "other_document",
    duplicate_groups: IntArray | None = None,
) -> EpochPlan:
    """Plan the pairs of one epoch; a pure function of its arguments.

    Args:
        corpus: The corpus.
        documents: The documents to use, int64 [D], ascending.
        length: The tokens of an instance, special tokens included.
        seed: The seed.
        epoch: The epoch.
        short_seq_prob: The probability of a random shorter target length.
        task: The label of a pair.
        single_sentences: A and B are one sentence each, not segments of several.
        num_separators: Separator tokens between A and B.
        negatives: The source of NotNext's B.
        kin: The duplicate group of each document of the corpus, int64; None: each is its own group.

    Raises:
        InputError: Next-sentence pairs need documents of two duplicate groups.
    """
    max_tokens = max_length - 2 - num_separators
    if task == "nsp":
        groups = documents if duplicate_groups is None else duplicate_groups[documents]
        sentences = split_into_fragments(corpus, documents)
        if negatives == "other_document":
            check_nsp_documents(groups[np.diff(sentences.offsets) > 1])
        pairs = draw_nsp_pairs(
            sentences,
            groups,
            max_tokens,
            seed,
            epoch,
            short_seq_prob,
            single_sentences=single_sentences,
            same_document=negatives == "same_document",
        )
        counts = _count_nsp_pairs(corpus, sentences, pairs)
        return make_pair_plan(pairs.a, pairs.b, pairs.labels, num_separators, counts)
    fragments = split_into_fragments(corpus, documents, max(1, max_tokens // 2), halve_single=True)
    if single_sentences:
        chunks = make_sentence_chunks(fragments, seed, epoch)
    else:
        make_chunks = make_bidirectional_chunks if task == "sop" else make_segment_chunks
        chunks = make_chunks(fragments, max_tokens, seed, epoch, short_seq_prob)
    has_b = chunks.split < chunks.end
    start, split, end, document = (
        x[has_b] for x in (chunks.start, chunks.split, chunks.end, chunks.document)
    )
    labels, counts = _draw_order_labels(task, len(start), seed, epoch)
    a, b = (start, split - start, document), (split, end - split, document)
    counts |= _count_text(corpus, fragments, a, b, 0)
    counts["documents_left_out"] = int((~has_b).sum())
    swapped = labels == SWAPPED
    first = (np.where(swapped, b[0], a[0]), np.where(swapped, b[1], a[1]), np.where(swapped, b[2], a[2]))
    second = (np.where(swapped, a[0], b[0]), np.where(swapped, a[1], b[1]), np.where(swapped, a[2], b[2]))
    return make_pair_plan(first, second, labels, num_separators, counts)


def check_nsp_documents(duplicate_groups: NDArray[Any]) -> None:
    """Raise InputError if the documents, given by their duplicate groups, are too few for next-sentence pairs."""
    if len(np.unique(duplicate_groups)) >= 2:
        return
    if len(duplicate_groups) < 2:
        raise InputError(
            "too_few_documents",
            "next-sentence pairs need at least two documents: a NotNext segment comes from another document",
            hint=f"separate documents by blank lines (or set {option('documents')} of {command('data prepare')}) "
            f"and prepare again; or set {option('data.sentence_task', 'none')}",
        )
    raise InputError(
        "only_duplicates",
        "next-sentence pairs need at least two documents that are not duplicates, and all "
        f"{len(duplicate_groups):,} are near-duplicates or parts of one too long document",
        hint=f"use other documents, or raise {option('data.twin_overlap')}; "
        f"or set {option('data.sentence_task', 'none')}",
    )


def _count_nsp_pairs(corpus: TokenizedCorpus, sentences: Fragments, pairs: NspPairs) -> dict[str, int]:
    return {
        "instances": len(pairs.labels),
        "is_next": int((pairs.labels == IS_NEXT).sum()),
        "not_next": int((pairs.labels == NOT_NEXT).sum()),
        "documents_left_out": sentences.num_documents_with_text - len(np.unique(pairs.a[2])),
        **_count_text(corpus, sentences, pairs.a, pairs.b, pairs.num_trimmed),
    }


def _count_text(
    corpus: TokenizedCorpus,
    fragments: Fragments,
    a: tuple[IntArray, IntArray, IntArray],
    b: tuple[IntArray, IntArray, IntArray],
    num_trimmed: int,
) -> dict[str, int]:
    """Count the text of the segments a and b (starts, lengths, documents), and the text that is in none."""
    starts, lengths = (np.concatenate(columns) for columns in zip(a[:2], b[:2], strict=True))
    return {
        "documents": len(fragments.documents),
        "sentences": int(np.diff(corpus.document_sentence_offsets)[fragments.documents].sum()),
        "sentences_parted": fragments.num_split_sentences,
        "documents_of_one_fragment": int((np.diff(fragments.offsets) == 2).sum()),
        "tokens_cut": num_trimmed,
        "tokens_left_out": count_document_tokens(corpus, fragments.documents)
        - count_covered_tokens(starts, lengths),
    }


def _draw_order_labels(
    task: SentenceTask, num_pairs: int, seed: int, epoch: int
) -> tuple[IntArray, dict[str, int]]:
    """Return labels, half of them SWAPPED for sentence order, and their counts."""
    labels = np.full(num_pairs, IN_ORDER)
    counts = {"instances": num_pairs}
    if task == "sop":
        odd = int(rng.integers(seed, "odd", 2, epoch))
        labels[rng.permutation(seed, "label", num_pairs, epoch)[: (num_pairs + odd) // 2]] = SWAPPED
        counts |= {"in_order": int((labels == IN_ORDER).sum()), "swapped": int((labels == SWAPPED).sum())}
    return labels, counts
