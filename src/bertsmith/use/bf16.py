"""Answers in bf16 by a model that was not trained in it: whether they are near those in fp32."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from bertsmith import draws
from bertsmith.models.encoder import Encoder
from bertsmith.packed import Packed
from bertsmith.place import Place
from bertsmith.tokenizer.tokenizer import Tokenizer
from bertsmith.wording import counted

_COSINE = 0.999  # of each token's hidden state with that in single precision
_SEQUENCES = 4  # of random tokens: models of all sizes at hand were above 0.9997 on them
# Texts are short, so that their special tokens, some channels of which are by far the largest, weigh as much as in
# real ones.
_LENGTH = 16


def random_texts(encoder: Encoder, tokenizer: Tokenizer, sequences: int) -> Packed:
    """So many texts of random tokens between the special ones, always the same."""
    length = min(_LENGTH, encoder.config.longest)
    special = np.zeros(tokenizer.vocab_size, dtype=bool)
    special[sorted(tokenizer.special_ids)] = True
    usual = np.flatnonzero(~special)
    drawn = usual[draws.integers(0, "int8", len(usual), np.arange(sequences * length))]
    ids = drawn.reshape(sequences, length)
    ids[:, 0], ids[:, -1] = tokenizer.cls_id, tokenizer.sep_id
    return Packed.of_arrays(ids.reshape(-1), np.zeros(ids.size, np.int64), np.full(sequences, length))


def is_near_in_bf16(
    encoder: Encoder, tokenizer: Tokenizer, place: Place, tell: Callable[[str], None]
) -> bool:
    """Whether hidden states in bf16 differ from those in fp32 by no more than rounding usually makes of them; else
    it is told. A short fine-tuning of weights that were stored in bf16 is such a case: it moves most of them by
    less than half a step, and rounding takes that back from all of them alike."""
    texts = random_texts(encoder, tokenizer, _SEQUENCES).to(place.device)
    with torch.inference_mode():
        exact, rounded = (one(texts).double() for one in (encoder, place.reader(encoder)))
        least = float(torch.cosine_similarity(exact, rounded, dim=1).min())
    if least >= _COSINE:
        return True
    tell(
        f"in bf16 this model's hidden states are off: on {counted(len(exact), 'random token')} their cosine with "
        f"those in fp32 is down to {least:.4f} ({_COSINE} or more is usual); precision fp32 answers as it was "
        "trained"
    )
    return False
