"""First weights: drawn from a generator, and four starts that depart from the paper.

They are vectors of tokens by their neighbours, sinusoids for positions, heads that look at what is near, and an
output bias of word frequencies.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

_OFFSETS = (-1, 1, -2, 2)  # tokens: to which side the first heads look
_STRENGTH = 1.5  # against the deviation of the weights that were drawn, 0.06 or less


def draw_weights(module: nn.Module, sigma: float, generator: torch.Generator) -> None:
    """Move a module to the generator's device and draw its first weights from the generator alone (spec 2.6).

    Matrices and tables from a normal cut at two sigma, biases 0, LayerNorm 1 and 0. A module on the meta device
    has no weights to draw and stays there.
    """
    if any(parameter.is_meta for parameter in module.parameters()):
        return
    module.to(generator.device)
    for part in module.modules():
        if isinstance(part, nn.Linear | nn.Embedding):
            nn.init.trunc_normal_(part.weight, std=sigma, a=-2 * sigma, b=2 * sigma, generator=generator)
        if isinstance(part, nn.Linear) and part.bias is not None:
            nn.init.zeros_(part.bias)
        if isinstance(part, nn.LayerNorm):
            part.reset_parameters()


def start_from_sinusoids(table: Tensor, sigma: float, first: int = 0) -> None:
    """Fill a position table [P, E] from row `first` on, position 0, with sinusoids of deviation sigma."""
    with torch.no_grad():
        rows = table[first:]
        rows.copy_(sinusoids(*rows.shape) * (sigma * 2**0.5))


def sinusoids(positions: int, size: int) -> Tensor:
    """PE(p, 2i) = sin(p / 10000^(2i/d)), PE(p, 2i+1) = cos of the same (Vaswani et al. 2017, section 3.5)."""
    column = torch.arange(size)
    angle = torch.arange(positions)[:, None] / 10_000 ** (2 * (column // 2) / size)
    return torch.where(column % 2 == 0, angle.sin(), angle.cos())


def start_looking_near(qkv: Tensor, heads: int, strength: float = _STRENGTH) -> None:
    """Let the first four heads of a layer [3H, H] that reads sinusoids of width H look at what is near.

    A head's keys get the sines and cosines of the highest frequencies, as many as it has room for, and its queries
    the same turned by an offset of one or two tokens to the left or right. So their product depends on the
    distance: at first a head looks at the token itself and those around it, more on its own side. That is added,
    `strength` times, to what was drawn. Otherwise a small model spends its first million tokens on finding out
    what is near (benchmarks/learning.py).
    """
    size = qkv.shape[1]
    width = size // heads
    with torch.no_grad():
        queries, keys, _ = qkv.view(3, heads, width, size)
        for query, key, offset in zip(queries, keys, _OFFSETS, strict=False):
            for sine in range(0, width - 1, 2):
                turn = offset / 10_000 ** (sine / size)
                cosine = sine + 1
                key[sine, sine] += strength
                key[cosine, cosine] += strength
                query[sine, sine] += strength * math.cos(turn)
                query[sine, cosine] += strength * math.sin(turn)
                query[cosine, sine] -= strength * math.sin(turn)
                query[cosine, cosine] += strength * math.cos(turn)


def start_from_vectors(table: Tensor, vectors: NDArray[np.float32], sigma: float) -> None:
    """Fill a token table [V, E] with vectors [V, E] scaled to deviation sigma; a token whose vector is zero keeps
    what was drawn."""
    known = vectors.any(1)
    if not known.any():
        return
    scaled = vectors[known] * (sigma / vectors[known].std())
    with torch.no_grad():
        table[torch.from_numpy(known)] = torch.from_numpy(scaled).to(table)


def start_from_unigrams(bias: Tensor, counts: NDArray[np.int64]) -> None:
    """Fill an output bias [V] with the log share of each token, so that the first guess is the unigram model's."""
    with torch.no_grad():
        bias.copy_(torch.from_numpy(unigram(counts)).log())


def unigram(counts: NDArray[np.int64]) -> NDArray[np.float64]:
    """Add-one shares of the tokens: counts [V] → shares [V] that sum to 1."""
    shares: NDArray[np.float64] = (counts + 1.0) / (counts.sum() + len(counts))
    return shares


def unigram_loss(counts: NDArray[np.int64], labels: Iterable[Tensor]) -> float:
    """What a unigram model with these counts [V] loses on tokens, on average. labels: long, batch by batch."""
    every = np.concatenate([some.numpy() for some in labels])
    return float(-np.log(unigram(counts))[every].mean())
