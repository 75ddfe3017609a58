"""The interface of a tokenized corpus for document grouping and instance planning, and its array types."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

IntArray = NDArray[np.int64]
HashArray = NDArray[np.uint64]


class TokenizedCorpus(Protocol):
    """A corpus of D documents and S sentences as token ids."""

    sentence_ends: IntArray  # [S] token offset behind each sentence, over the whole corpus
    document_sentence_offsets: IntArray  # [D + 1] number of sentences before each document
    hashes: HashArray  # [D]
    duplicate_groups: IntArray  # [D] index of the first document of the group

    def take(self, positions: IntArray) -> IntArray:
        """Return the ids at token positions of the whole corpus."""
        ...

    def copy_spans(self, starts: IntArray, lengths: IntArray, out: IntArray, target_starts: IntArray) -> None:
        """Copy spans of token ids; span k goes to out[target_starts[k] : target_starts[k] + lengths[k]]."""
        ...
