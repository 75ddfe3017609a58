"""Loss: a sum and the count it is over, for each part. Means are taken once, at the end.

So accumulation, batches of different sizes and several processes leave the gradient the same to rounding.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Loss:
    """sums: scalar tensors by part (`mlm`, `nsp`, …); counts: what each sum is over."""

    sums: Mapping[str, Tensor]
    counts: Mapping[str, int]

    def over(self, totals: Mapping[str, int]) -> Tensor:
        """The scalar to differentiate: each part's sum over the total count of the whole update, added up."""
        parts = [value / max(1, totals[name]) for name, value in self.sums.items()]
        total = parts[0]
        for part in parts[1:]:
            total = total + part
        return total
