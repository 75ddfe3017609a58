"""BERT's own objective and its two shorter forms: predict the masked tokens, and what is asked of a pair.

nsp: whether B follows A (Devlin et al. 2019, section 3.1); sop: whether both are in order (Lan et al. 2020,
section 3.1), with the same head; none: masked tokens alone (Liu et al. 2019), without pooler and pair head.
"""

from __future__ import annotations

from collections.abc import Iterable
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from bertsmith.instances.batches import PairBatch
from bertsmith.instances.segment_pairs import SentenceTask
from bertsmith.instances.settings import DataSettings
from bertsmith.loss import Loss
from bertsmith.models.config import ModelConfig
from bertsmith.models.encoder import Encoder
from bertsmith.models.heads import MaskedHead, PairHead, Pooler
from bertsmith.models.weight_init import start_from_unigrams, unigram_loss
from bertsmith.objectives.objective import MODEL, Objective, Parts
from bertsmith.settings import Settings


class MlmNsp(Objective):
    """The heads that pre-training needs and their losses, added up.

    With the task "none" there are no `pooler` and `pair`: heads that nothing trains are not made.
    """

    name = "mlm_nsp"
    shown_by = "masked"
    model = MappingProxyType({"causal": False})
    perplexities = ("mlm",)
    starts = True
    fills = True

    def __init__(
        self,
        config: ModelConfig,
        generator: torch.Generator,
        task: SentenceTask = "nsp",
        is_next_label: int = 0,
    ) -> None:
        """is_next_label: what the batches call a pair whose B follows A; it is only recorded."""
        super().__init__()
        self.config, self.task, self._is_next_label = config, task, is_next_label
        self.masked = MaskedHead(config, generator)
        if task != "none":
            self.pooler = Pooler(config, generator)
            self.pair = PairHead(config, generator)

    @classmethod
    def made(
        cls, encoder: Encoder, generator: torch.Generator, data: DataSettings, settings: Settings
    ) -> MlmNsp:
        """The heads for what `data.sentence_task` asks of a pair."""
        return cls(encoder.config, generator, data.sentence_task, data.is_next_label)

    def loss(self, encoder: Encoder, batch: PairBatch) -> Loss:
        """Summed cross-entropies: `mlm` over the predicted rows, `nsp` or `sop` over the pairs."""
        tokens, rows = encoder.embeddings.token, batch.rows
        if self.task != "none":
            rows = torch.cat([rows, batch.packed.first_rows])
        with tokens.beside_decoder(self.masked.tied) as table:
            predicted, firsts = encoder(batch.packed, rows=rows).tensor_split([len(batch.rows)])
        mlm, found = self.masked.loss(predicted, table, batch.labels)
        sums, right = {"mlm": mlm}, {"mlm": found}
        if self.task != "none":
            logits = self.pair(self.pooler(firsts)).float()
            sums[self.task] = F.cross_entropy(logits, batch.pair_labels, reduction="sum")
            right[self.task] = (logits.detach().argmax(-1) == batch.pair_labels).sum()
        return Loss(sums, batch.counts, right)

    def begin(self, tokens: NDArray[np.int64]) -> None:
        """The masked head's bias becomes the logarithm of each token's share of the corpus."""
        start_from_unigrams(self.masked.bias, tokens)

    def by_frequency(self, tokens: NDArray[np.int64], batches: Iterable[PairBatch]) -> dict[str, float]:
        """What a unigram model of the corpus loses on the masked tokens."""
        return {"unigram_mlm_loss": unigram_loss(tokens, (batch.labels for batch in batches))}

    def record(self) -> dict[str, Any]:
        """What was asked of pairs, since the field's files have one name for the head of both; and which label is
        IsNext, where it is not the field's."""
        return {"sentence_task": self.task} | (
            {"is_next_label": self._is_next_label} if self._is_next_label else {}
        )

    def folders(self, encoder: Encoder) -> dict[str, Parts]:
        """One model: the encoder and all heads."""
        return {MODEL: Parts(self.config, {"encoder": encoder, **dict(self.named_children())})}
