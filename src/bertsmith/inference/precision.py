"""Answers in bf16 by a model that was not trained in it: how near they are to those in fp32."""

from __future__ import annotations

import math
from contextlib import suppress
from pathlib import Path

import numpy as np
import torch

from bertsmith import rng
from bertsmith.device import ComputeContext
from bertsmith.errors import InputError
from bertsmith.models.encoder import Encoder, copy_without_hooks
from bertsmith.packed import Packed
from bertsmith.tokenizer.tokenizer import Tokenizer

NEAR = 0.999
"""The least cosine of a hidden state in bf16 with that in fp32 that rounding usually leaves: models of all sizes
at hand were above 0.9997 on the texts that are tried."""

_SEQUENCES = 4  # that are tried
# Tokens of a text of random ones: few, so that the special ones, some channels of which are by far the largest,
# weigh as much as in real texts.
_LENGTH = 16


def random_texts(encoder: Encoder, tokenizer: Tokenizer, sequences: int) -> Packed:
    """So many texts of random tokens, always the same; between the special ones where there are such."""
    length = min(_LENGTH, encoder.config.max_length)
    special = np.zeros(tokenizer.vocab_size, dtype=bool)
    special[sorted(tokenizer.all_special_ids)] = True
    usual = np.flatnonzero(~special) if not special.all() else np.arange(len(special))
    drawn = usual[rng.integers(0, "int8", len(usual), np.arange(sequences * length))]
    ids = drawn.reshape(sequences, length)
    with suppress(InputError):  # not every vocabulary has such tokens
        ids[:, 0], ids[:, -1] = tokenizer.cls_token_id, tokenizer.sep_token_id
    return Packed.from_arrays(ids.reshape(-1), np.zeros(ids.size, np.int64), np.full(sequences, length))


def cosine_in_bf16(encoder: Encoder, tokenizer: Tokenizer, place: ComputeContext) -> float:
    """The least cosine of a random text's hidden state in bf16 with that in fp32.

    A short fine-tuning of weights that were stored in bf16 moves most of them by less than half a step. Rounding
    takes that back, from all of them alike, so that it does not cancel out as it does elsewhere."""
    texts, alone = random_texts(encoder, tokenizer, _SEQUENCES).to(place.device), copy_without_hooks(encoder)
    with torch.inference_mode():
        exact, rounded = (one(texts).double() for one in (alone, place.autocast_encoder(alone)))
        return float(torch.cosine_similarity(exact, rounded, dim=1).min())


def told_of_bf16(model: Path, cosine: float) -> str:
    """The warning for a cosine below `NEAR`."""
    shown = math.floor(1e4 * cosine) / 1e4 if math.isfinite(cosine) else cosine
    return (
        f"{model}: bf16 changes the hidden states of this model more than usual: on random texts their cosine "
        f"with those in fp32 falls to {shown:.4f}, below {NEAR}; use precision fp32"
    )
