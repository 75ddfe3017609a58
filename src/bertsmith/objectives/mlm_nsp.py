"""BERT's own objective: predict the masked tokens, and whether B follows A (Devlin et al. 2019, section 3.1)."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertsmith.data.batches import PairBatch
from bertsmith.loss import Loss
from bertsmith.models.config import ModelConfig
from bertsmith.models.encoder import Encoder
from bertsmith.models.heads import MaskedHead, PairHead, Pooler


class MlmNsp(nn.Module):
    """The heads that pre-training needs and their two losses, added up."""

    def __init__(self, config: ModelConfig, generator: torch.Generator) -> None:
        super().__init__()
        self.masked = MaskedHead(config, generator)
        self.pooler = Pooler(config, generator)
        self.pair = PairHead(config, generator)

    def loss(self, encoder: Encoder, batch: PairBatch) -> Loss:
        """Summed cross-entropies: `mlm` over the predicted rows, `nsp` over the pairs."""
        hidden = encoder(batch.packed)
        mlm, _ = self.masked.loss(hidden[batch.rows], encoder.embeddings.token.weight, batch.labels)
        nsp = F.cross_entropy(self._pair_logits(hidden, batch).float(), batch.pair_labels, reduction="sum")
        return Loss({"mlm": mlm, "nsp": nsp}, batch.counts)

    def _pair_logits(self, hidden: Tensor, batch: PairBatch) -> Tensor:
        """Next-sentence logits [B, 2]."""
        logits: Tensor = self.pair(self.pooler(hidden[batch.packed.first_rows]))
        return logits

    def measure(self, encoder: Encoder, batches: Iterable[PairBatch]) -> dict[str, float]:
        """Held-out figures: mean MLM loss, accuracy and perplexity over predicted rows; NSP loss, accuracy."""
        sums = dict.fromkeys(("mlm_loss", "mlm_accuracy", "nsp_loss", "nsp_accuracy"), 0.0)
        predicted = pairs = 0
        for batch in batches:
            hidden = encoder(batch.packed)
            loss, right = self.masked.loss(hidden[batch.rows], encoder.embeddings.token.weight, batch.labels)
            nsp = self._pair_logits(hidden, batch).float()
            sums["mlm_loss"] += float(loss)
            sums["mlm_accuracy"] += float(right)
            sums["nsp_loss"] += F.cross_entropy(nsp, batch.pair_labels, reduction="sum").item()
            sums["nsp_accuracy"] += (nsp.argmax(-1) == batch.pair_labels).sum().item()
            predicted, pairs = predicted + len(batch.labels), pairs + len(batch.pair_labels)
        values = {
            name: value / max(1, predicted if name[0] == "m" else pairs) for name, value in sums.items()
        }
        return values | {"mlm_perplexity": math.exp(min(values["mlm_loss"], 700.0))}
