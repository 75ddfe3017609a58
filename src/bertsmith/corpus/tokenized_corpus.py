"""Types of a tokenized corpus, shared by what groups its documents and what plans instances."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


class Corpus(Protocol):
    """Sentences and documents of a tokenized corpus as cumulative ends, without token ids."""

    sentence_ends: Ints  # [S] token offset behind each sentence, over the whole corpus
    document_sentences: Ints  # [D + 1] number of sentences before each document
