"""BERT's own objective and its two shorter forms: predict the masked tokens, and what is asked of a pair.

nsp: whether B follows A (Devlin et al. 2019, section 3.1); sop: whether both are in order (Lan et al. 2020,
section 3.1), with the same head; none: masked tokens alone (Liu et al. 2019), without pooler and pair head.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertsmith.instances.batches import PairBatch
from bertsmith.instances.plan_pairs import SentenceTask
from bertsmith.loss import Loss
from bertsmith.models.config import ModelConfig
from bertsmith.models.encoder import Encoder
from bertsmith.models.heads import MaskedHead, PairHead, Pooler


class MlmNsp(nn.Module):
    """The heads that pre-training needs and their losses, added up.

    With the task "none" there are no `pooler` and `pair`: heads that nothing trains are not made.
    """

    def __init__(self, config: ModelConfig, generator: torch.Generator, task: SentenceTask = "nsp") -> None:
        super().__init__()
        self.task = task
        self.masked = MaskedHead(config, generator)
        if task != "none":
            self.pooler = Pooler(config, generator)
            self.pair = PairHead(config, generator)

    @property
    def heads(self) -> dict[str, nn.Module]:
        """The heads by the names that a model folder has for them."""
        return dict(self.named_children())

    @property
    def architecture(self) -> str:
        """The field's class that has these heads and no other."""
        return "BertForMaskedLM" if self.task == "none" else "BertForPreTraining"

    def loss(self, encoder: Encoder, batch: PairBatch) -> Loss:
        """Summed cross-entropies: `mlm` over the predicted rows, `nsp` or `sop` over the pairs."""
        hidden = encoder(batch.packed)
        mlm, _ = self.masked.loss(hidden[batch.rows], encoder.embeddings.token.weight, batch.labels)
        sums = {"mlm": mlm}
        if self.task != "none":
            logits = self._pair_logits(hidden, batch).float()
            sums[self.task] = F.cross_entropy(logits, batch.pair_labels, reduction="sum")
        return Loss(sums, batch.counts)

    def _pair_logits(self, hidden: Tensor, batch: PairBatch) -> Tensor:
        """Logits of what is asked of a pair, [B, 2]."""
        logits: Tensor = self.pair(self.pooler(hidden[batch.packed.first_rows]))
        return logits

    def measure(self, encoder: Encoder, batches: Iterable[PairBatch]) -> dict[str, float]:
        """Held-out figures: mean MLM loss, accuracy and perplexity over predicted rows; the pair task's loss and
        accuracy, named after it."""
        parts = ["mlm"] if self.task == "none" else ["mlm", self.task]
        sums = {f"{part}_{what}": 0.0 for part in parts for what in ("loss", "accuracy")}
        numbers = dict.fromkeys(parts, 0)
        for batch in batches:
            hidden = encoder(batch.packed)
            loss, right = self.masked.loss(hidden[batch.rows], encoder.embeddings.token.weight, batch.labels)
            sums["mlm_loss"] += float(loss)
            sums["mlm_accuracy"] += float(right)
            if self.task != "none":
                logits = self._pair_logits(hidden, batch).float()
                wrong = F.cross_entropy(logits, batch.pair_labels, reduction="sum")
                sums[f"{self.task}_loss"] += wrong.item()
                sums[f"{self.task}_accuracy"] += (logits.argmax(-1) == batch.pair_labels).sum().item()
            for part, count in batch.counts.items():
                numbers[part] += count
        values = {name: value / max(1, numbers[name.partition("_")[0]]) for name, value in sums.items()}
        return values | {"mlm_perplexity": math.exp(min(values["mlm_loss"], 700.0))}
