"""Initial weights: BERT's random ones, and four optional initializations that depart from the paper.

The optional ones are pretrained token vectors, sinusoidal positions, heads with local attention, and an output
bias of token frequencies.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

_HEAD_OFFSETS = (-1, 1, -2, 2)  # tokens that each of the first heads attends to
_LOCAL_STRENGTH = 1.5  # added to weights whose standard deviation is at most 0.06


def init_weights(module: nn.Module, sigma: float, generator: torch.Generator) -> None:
    """Move a module to the generator's device and draw its initial weights.

    Matrices and embeddings are normal with deviation sigma, truncated at two deviations; biases are 0, LayerNorm
    is 1 and 0. A module on the meta device stays as it is.
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


def init_sinusoidal_positions(table: Tensor, sigma: float, first: int = 0) -> None:
    """Fill position embeddings [P, E] with sinusoids of deviation sigma; row `first` is position 0."""
    with torch.no_grad():
        rows = table[first:]
        rows.copy_(sinusoidal_positions(*rows.shape) * (sigma * 2**0.5))


def sinusoidal_positions(positions: int, size: int) -> Tensor:
    """Return sinusoidal position embeddings [P, E] (Vaswani et al. 2017, section 3.5).

    PE(p, 2i) = sin(p / 10000^(2i/d)), and PE(p, 2i+1) is the cosine of the same angle. They are computed in
    float64 and rounded to float32: an angle of 500 in float32 is off by up to 3e-5.
    """
    column = torch.arange(size, dtype=torch.float64)
    angle = torch.arange(positions)[:, None] / 10_000 ** (2 * (column // 2) / size)
    return torch.where(column % 2 == 0, angle.sin(), angle.cos()).float()


def init_local_attention(qkv: Tensor, heads: int) -> None:
    """Initialize the first four heads of a layer [3H, H] on sinusoidal positions of size H to local attention.

    A head's keys get the sines and cosines of the highest frequencies, as many as fit, and its queries the same
    rotated by an offset of one or two tokens to the left or right. Their product depends on the distance only: a
    head attends to the token itself and its neighbors, more on its own side. These weights are added to the random
    ones. Otherwise a small model spends its first million tokens on learning locality
    (benchmarks/learning.py).
    """
    hidden_size = qkv.shape[1]
    head_dim = hidden_size // heads
    with torch.no_grad():
        queries, keys, _ = qkv.view(3, heads, head_dim, hidden_size)
        for query, key, offset in zip(queries, keys, _HEAD_OFFSETS, strict=False):
            for sine in range(0, head_dim - 1, 2):
                angle = offset / 10_000 ** (sine / hidden_size)
                cosine = sine + 1
                key[sine, sine] += _LOCAL_STRENGTH
                key[cosine, cosine] += _LOCAL_STRENGTH
                query[sine, sine] += _LOCAL_STRENGTH * math.cos(angle)
                query[sine, cosine] += _LOCAL_STRENGTH * math.sin(angle)
                query[cosine, sine] -= _LOCAL_STRENGTH * math.sin(angle)
                query[cosine, cosine] += _LOCAL_STRENGTH * math.cos(angle)


def init_token_embeddings(table: Tensor, vectors: NDArray[np.float32], sigma: float) -> None:
    """Fill token embeddings [V, E] with vectors [V, E] scaled to deviation sigma; zero vectors change nothing."""
    is_set = vectors.any(1)
    if not is_set.any():
        return
    scaled = vectors[is_set] * (sigma / vectors[is_set].std())
    with torch.no_grad():
        table[torch.from_numpy(is_set)] = torch.from_numpy(scaled).to(table)


def init_output_bias(bias: Tensor, counts: NDArray[np.int64]) -> None:
    """Fill an output bias [V] with log-frequencies, so that initial predictions are the unigram model's."""
    with torch.no_grad():
        bias.copy_(torch.from_numpy(unigram_probabilities(counts)).log())


def unigram_probabilities(counts: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the add-one smoothed probabilities of tokens with counts [V]."""
    probabilities: NDArray[np.float64] = (counts + 1.0) / (counts.sum() + len(counts))
    return probabilities


def unigram_cross_entropy(counts: NDArray[np.int64], labels: Iterable[Tensor]) -> float:
    """Return the mean cross-entropy of a unigram model with counts [V] on labels, long, batch by batch."""
    tokens = np.concatenate([batch.numpy() for batch in labels])
    return float(-np.log(unigram_probabilities(counts))[tokens].mean())
