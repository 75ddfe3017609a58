"""Losses over vectors that should be near or far: sums over a batch, so that means are taken once.

The first two look at each pair by itself. The last two compare what is together in a batch, which is the
micro-batch: accumulation adds up such batches, it does not make them larger.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def cosine_errors(cosines: Tensor, wanted: Tensor) -> Tensor:
    """The squared errors of cosines [B] against scores between 0 and 1 [B], summed."""
    return F.mse_loss(cosines, wanted, reduction="sum")


def contrastive(cosines: Tensor, same: Tensor, margin: float) -> Tensor:
    """Of pairs [B], with d = 1 - cosine: d²/2 for those that are the same (1), max(0, margin - d)²/2 for others
    (0), summed (Hadsell, Chopra and LeCun 2006, equation 4)."""
    apart = 1 - cosines
    near, far = apart.square(), F.relu(margin - apart).square()
    return (same * near + (1 - same) * far).sum() / 2


def cosent(cosines: Tensor, wanted: Tensor, scale: float) -> Tensor:
    """B times log(1 + sum of exp(scale · (cosine of j - cosine of i))) over all i, j of the batch where i has the
    higher score (Su 2022): only the order of the scores counts."""
    apart = scale * (cosines[None, :] - cosines[:, None])  # [i, j]
    held = apart.masked_fill(wanted[:, None] <= wanted[None, :], -torch.inf)
    return len(cosines) * torch.cat([held.new_zeros(1), held.flatten()]).logsumexp(0)


def in_batch(products: Tensor, excluded: Tensor) -> tuple[Tensor, Tensor]:
    """Cross-entropies of choosing column i for row i among all C columns but those excluded, summed, and how many
    rows are right. products: [B, C], scaled; excluded: bool [B, C], never of column i in row i (Henderson et al.
    2017; van den Oord et al. 2018)."""
    logits = products.masked_fill(excluded, -torch.inf)
    wanted = torch.arange(len(logits), device=logits.device)
    right = (logits.detach().argmax(1) == wanted).sum()
    return F.cross_entropy(logits, wanted, reduction="sum"), right
