"""Loss: for each part a sum, the count that it is over, and how many were right. Means are taken once, at the end.

So accumulation, batches of different sizes and several processes leave the gradient the same to rounding.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class Loss:
    """One batch's loss by part (`mlm`, `nsp`, …).

    sums: scalar tensors; counts: what each sum is over; right: how many of those the model has right at the
    top, a scalar tensor each, of the parts that have such a thing.
    """

    sums: Mapping[str, Tensor]
    counts: Mapping[str, int]
    right: Mapping[str, Tensor] = field(default_factory=dict)

    def over(
        self,
        totals: Mapping[str, int],
        weights: Mapping[str, float] | None = None,
        summed: Collection[str] = (),
    ) -> Tensor:
        """The scalar to differentiate: each part's sum over the whole update's count of it (or the sum itself, of
        the parts that are `summed`), times its weight (1 where none is given), added up."""
        return self.times(factors(totals, weights or {}, summed))

    def times(self, factors: Mapping[str, float | Tensor]) -> Tensor:
        """The parts' sums times these, added up."""
        parts = [value * factors[name] for name, value in self.sums.items()]
        total = parts[0]
        for part in parts[1:]:
            total = total + part
        return total


def factors(
    totals: Mapping[str, int], weights: Mapping[str, float], summed: Collection[str] = ()
) -> dict[str, float]:
    """What each part's sum is multiplied by in `Loss.over`."""
    return {
        name: weights.get(name, 1.0) / (1 if name in summed else max(1, total))
        for name, total in totals.items()
    }


def far_apart(own: Tensor, wanted: Tensor, temperature: float, dim: int = -1) -> Tensor:
    """T² · KL(wanted ‖ own) of the shares along `dim`, both logits divided by the temperature T, summed: so its
    gradient is of one size whatever the temperature (Hinton et al. 2015). fp32."""
    shares, asked = ((logits.float() / temperature).log_softmax(dim) for logits in (own, wanted))
    return temperature**2 * F.kl_div(shares, asked, reduction="sum", log_target=True)
