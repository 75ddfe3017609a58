"""Plans of pairs: next sentence, sentence order, or no label.

Next-sentence pairs are those of the original BERT data preparation (`nsp_random.py`). For sentence order
prediction (Lan et al. 2020, section 3.1) A and B are swapped in half of the pairs. Without a label, B follows A.
For sentence order and for pairs without a label, a sentence longer than half of the tokens of a pair is split into
equal fragments (`segments.py`), so that nothing is trimmed, and a document of one fragment is split into two.
"""

from __future__ import annotations

import numpy as np

from bertsmith import rng
from bertsmith.corpus.tokenized_corpus import IntArray, TokenizedCorpus
from bertsmith.errors import InputError, command, option
from bertsmith.formatting import pluralize
from bertsmith.instances.epoch_plan import (
    IN_ORDER,
    IS_NEXT,
    NOT_NEXT,
    SWAPPED,
    EpochPlan,
    Spans,
    make_pair_plan,
)
from bertsmith.instances.nsp_random import draw_nsp_pairs
from bertsmith.instances.segments import (
    Fragments,
    count_text,
    make_chunks_from_either_end,
    make_segment_chunks,
    make_sentence_chunks,
    split_into_fragments,
)
from bertsmith.instances.settings import DataSettings


def plan_pairs(
    corpus: TokenizedCorpus,
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
        num_groups = len(np.unique(groups[sentences.fragments_per_document > 0]))
        if settings.uses_other_documents and num_groups < 2:
            requirement = "next-sentence pairs need 2: NotNext is from another document"
            raise too_few_documents_error(num_groups, requirement)
        a, b, labels, num_trimmed = draw_nsp_pairs(sentences, groups, settings, max_tokens, seed, epoch)
        num_documents_with_text = int((sentences.fragments_per_document > 0).sum())
        counts = {
            "instances": len(labels),
            "is_next": int((labels == IS_NEXT).sum()),
            "not_next": int((labels == NOT_NEXT).sum()),
            "documents_left_out": num_documents_with_text - len(np.unique(a.documents)),
            **_count_text(corpus, sentences, a, b, num_trimmed),
        }
        return make_pair_plan(a, b, labels, num_separators, counts)
    fragments = split_into_fragments(corpus, documents, max(1, max_tokens // 2), split_single_fragments=True)
    if settings.instances == "sentence_pair":
        chunks = make_sentence_chunks(fragments, seed, epoch)
    else:
        make_chunks = make_chunks_from_either_end if task == "sop" else make_segment_chunks
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
    return make_pair_plan(first, second, labels, num_separators, counts)


def too_few_documents_error(num_different: int, requirement: str) -> InputError:
    """Return the error for a corpus with too few different documents."""
    return InputError(
        "too_few_documents",
        f"there are {pluralize(num_different, 'different document')} (near-duplicates count as one, and so do the "
        f"parts of a too long one), and {requirement}",
        hint=f"give more documents, or separate them by blank lines (or set {option('documents')} of "
        f"{command('data prepare')}) and prepare again; or set {option('data.sentence_task', 'none')} and "
        f"{option('data.validation_split', '0')}",
    )


def _count_text(
    corpus: TokenizedCorpus, fragments: Fragments, a: Spans, b: Spans, num_trimmed: int = 0
) -> dict[str, int]:
    starts, lengths = np.concatenate([a.starts, b.starts]), np.concatenate([a.lengths, b.lengths])
    counts = count_text(corpus, fragments, starts, lengths, num_trimmed)
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
