"""The loss of a batch as sums and counts by part, such as `mlm` and `nsp`.

Sums are divided by the counts of a whole optimizer update instead of those of a batch. So gradient accumulation,
batches of different sizes, and several processes give the same gradient up to rounding.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class Loss:
    """The loss of one batch by part (`mlm`, `nsp`, …).

    Attributes:
        sums: The summed loss of each part, scalar tensors.
        counts: The number of predictions over which each part is summed.
        num_correct: The number of correct predictions of each part that is a classification, scalar tensors.
    """

    sums: Mapping[str, Tensor]
    counts: Mapping[str, int]
    num_correct: Mapping[str, Tensor] = field(default_factory=dict)

    def reduce(
        self,
        totals: Mapping[str, int],
        weights: Mapping[str, float] | None = None,
        sum_parts: Collection[str] = (),
    ) -> Tensor:
        """Return the scalar to differentiate: the weighted sum of the parts, each divided by its total count.

        Args:
            totals: The counts of the whole optimizer update by part.
            weights: The weight of each part; 1 if omitted.
            sum_parts: Parts whose sums are not divided.
        """
        return self.weighted_sum(reduction_factors(totals, weights or {}, sum_parts))

    def weighted_sum(self, factors: Mapping[str, float | Tensor]) -> Tensor:
        """Return the sum of the parts' sums, each multiplied by its factor."""
        first, *others = (value * factors[name] for name, value in self.sums.items())
        return sum(others, start=first)


def reduction_factors(
    totals: Mapping[str, int], weights: Mapping[str, float], sum_parts: Collection[str] = ()
) -> dict[str, float]:
    """Return the factors of the parts for `Loss.weighted_sum`; see `Loss.reduce`."""
    return {
        name: weights.get(name, 1.0) / (1 if name in sum_parts else max(1, total))
        for name, total in totals.items()
    }


def classification_loss(
    logits: Tensor, targets: Tensor, counts: Mapping[str, int], weights: Tensor | None = None
) -> Loss:
    """Return the cross-entropy of logits [B, K], summed, as the part `task`; with a weight for each class."""
    num_correct = (logits.detach().argmax(-1) == targets).sum()
    loss = F.cross_entropy(logits, targets, weights, reduction="sum")
    return Loss({"task": loss}, counts, {"task": num_correct})


def distillation_kl(
    student_logits: Tensor, teacher_logits: Tensor, temperature: float, dim: int = -1
) -> Tensor:
    """Return the distillation loss T² · KL(teacher ‖ student), summed, in fp32 (Hinton et al. 2015, section 2).

    Both logits are divided by the temperature T; the factor T² keeps the size of the gradient independent of T.

    Args:
        student_logits: Logits of the student, of any shape.
        teacher_logits: Logits of the teacher, of the same shape.
        temperature: T.
        dim: The dimension of the classes.
    """
    student, teacher = (
        (logits.float() / temperature).log_softmax(dim) for logits in (student_logits, teacher_logits)
    )
    return temperature**2 * F.kl_div(student, teacher, reduction="sum", log_target=True)
