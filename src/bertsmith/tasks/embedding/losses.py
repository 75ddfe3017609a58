"""Losses of cosines, as sums over a batch.

Batches are micro-batches: gradient accumulation adds them, it does not make them larger.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def cosine_errors(cosines: Tensor, targets: Tensor) -> Tensor:
    """Return the sum of squared errors of cosines [B] against scores between 0 and 1 [B]."""
    return F.mse_loss(cosines, targets, reduction="sum")


def contrastive(cosines: Tensor, same: Tensor, margin: float) -> Tensor:
    """Return the contrastive loss of pairs (Hadsell, Chopra and LeCun 2006, equation 4).

    It is d²/2 for pairs that match (1) and max(0, margin - d)²/2 for others (0), where d = 1 - cosine.
    """
    distances = 1 - cosines
    return (same * distances.square() + (1 - same) * F.relu(margin - distances).square()).sum() / 2


def cosent(cosines: Tensor, targets: Tensor, scale: float) -> Tensor:
    """Return the CoSENT loss (Su 2022), which depends on the order of the scores only.

    It is B times log(1 + sum of exp(scale · (cosine of j - cosine of i))), over all i, j where i has the higher
    score.
    """
    differences = scale * (cosines[None, :] - cosines[:, None])  # [i, j]
    ordered = differences.masked_fill(targets[:, None] <= targets[None, :], -torch.inf)
    return len(cosines) * torch.cat([ordered.new_zeros(1), ordered.flatten()]).logsumexp(0)


def in_batch(products: Tensor, excluded: Tensor) -> tuple[Tensor, Tensor]:
    """Return the cross-entropies of choosing column i for row i, summed, and the number of correct rows.

    Henderson et al. 2017; van den Oord et al. 2018.

    Args:
        products: Scaled similarities [B, C].
        excluded: Booleans [B, C], True for columns to ignore; never for column i in row i.
    """
    logits = products.masked_fill(excluded, -torch.inf)
    targets = torch.arange(len(logits), device=logits.device)
    num_correct = (logits.detach().argmax(1) == targets).sum()
    return F.cross_entropy(logits, targets, reduction="sum"), num_correct
