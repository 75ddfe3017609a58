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
        mlm, nsp = self.logits(encoder, batch)
        return Loss(
            {
                "mlm": F.cross_entropy(mlm.float(), batch.labels, reduction="sum"),
                "nsp": F.cross_entropy(nsp.float(), batch.pair_labels, reduction="sum"),
            },
            batch.counts,
        )

    def logits(self, encoder: Encoder, batch: PairBatch) -> tuple[Tensor, Tensor]:
        """Masked-LM logits [M, V] of the predicted rows, and next-sentence logits [B, 2]."""
        hidden = encoder(batch.packed)
        mlm = self.masked(hidden[batch.rows], encoder.embeddings.token.weight)
        return mlm, self.pair(self.pooler(hidden[batch.packed.first_rows]))

    def measure(self, encoder: Encoder, batches: Iterable[PairBatch]) -> dict[str, float]:
        """Held-out figures: mean MLM loss, accuracy and perplexity over predicted rows; NSP loss, accuracy."""
        sums = dict.fromkeys(("mlm_loss", "mlm_accuracy", "nsp_loss", "nsp_accuracy"), 0.0)
        predicted = pairs = 0
        for batch in batches:
            mlm, nsp = self.logits(encoder, batch)
            sums["mlm_loss"] += F.cross_entropy(mlm.float(), batch.labels, reduction="sum").item()
            sums["mlm_accuracy"] += (mlm.argmax(-1) == batch.labels).sum().item()
            sums["nsp_loss"] += F.cross_entropy(nsp.float(), batch.pair_labels, reduction="sum").item()
            sums["nsp_accuracy"] += (nsp.argmax(-1) == batch.pair_labels).sum().item()
            predicted, pairs = predicted + len(batch.labels), pairs + len(batch.pair_labels)
        values = {
            name: value / max(1, predicted if name[0] == "m" else pairs) for name, value in sums.items()
        }
        return values | {"mlm_perplexity": math.exp(min(values["mlm_loss"], 700.0))}
