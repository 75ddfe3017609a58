"""Left to right: each token from those before it (Radford et al. 2018); backwards, from those behind it.

The ablation of the BERT paper sets it beside masks (Devlin et al. 2019, section 5.1, "LTR & No NSP").
The instances are those of masked LM without their masks; the head is the masked head, whose decoder is the token
table.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bertsmith.instances.batches import PairBatch
from bertsmith.instances.settings import DataSettings
from bertsmith.loss import Loss
from bertsmith.models.config import ModelConfig
from bertsmith.models.encoder import Encoder
from bertsmith.models.heads import MaskedHead
from bertsmith.models.weight_init import start_from_unigrams, unigram_loss
from bertsmith.objectives.objective import MODEL, Objective, Parts, refuse_corruption, refuse_pairs
from bertsmith.packed import Packed
from bertsmith.settings import Settings


class Causal(Objective):
    """One head over the vocabulary; part of the loss: `lm`, over every token but the first of a sequence that is
    read, special ones too."""

    name = "causal"
    shown_by = "masked"
    model = MappingProxyType({"causal": True})
    data = MappingProxyType({"instances": "full_sentences", "sentence_task": "none"})
    perplexities = ("lm",)
    starts = True

    def __init__(self, config: ModelConfig, generator: torch.Generator) -> None:
        super().__init__()
        self.config = config
        self.masked = MaskedHead(config, generator)

    @classmethod
    def made(
        cls, encoder: Encoder, generator: torch.Generator, data: DataSettings, settings: Settings
    ) -> Causal:
        """The head. InputError where pairs are asked for, or other text than there is."""
        refuse_pairs(data, cls.name)
        refuse_corruption(data, cls.name, "predicts each token of the text as it is", "insert", "delete")
        return cls(encoder.config, generator)

    def counts(self, batch: PairBatch) -> Mapping[str, int]:
        """Tokens with one that is read before them."""
        return {"lm": batch.tokens - int((batch.packed.lengths > 0).sum())}

    def loss(self, encoder: Encoder, batch: PairBatch) -> Loss:
        """Summed cross-entropy of each token of the text, given those that are read before it."""
        whole = batch.unmasked
        rows, wanted = self._rows(whole)
        tokens = encoder.embeddings.token
        with tokens.beside_decoder(self.masked.tied) as table:
            hidden = encoder(whole)[rows]
        lost, right = self.masked.loss(hidden, table, whole.tokens[wanted])
        return Loss({"lm": lost}, self.counts(batch), {"lm": right})

    def begin(self, tokens: NDArray[np.int64]) -> None:
        """The head's bias becomes the logarithm of each token's share of the corpus."""
        start_from_unigrams(self.masked.bias, tokens)

    def by_frequency(self, tokens: NDArray[np.int64], batches: Iterable[PairBatch]) -> dict[str, float]:
        """What a unigram model of the corpus loses on the same tokens."""
        labels = (batch.unmasked.tokens[self._rows(batch.packed)[1]] for batch in batches)
        return {"unigram_lm_loss": unigram_loss(tokens, labels)}

    def _rows(self, packed: Packed) -> tuple[Tensor, Tensor]:
        """The tokens that another is expected after, and those that are expected, long each."""
        rows = _with_a_next(packed)
        return (rows + 1, rows) if self.config.backwards else (rows, rows + 1)

    def folders(self, encoder: Encoder) -> dict[str, Parts]:
        """The encoder and its head."""
        return {MODEL: Parts(self.config, {"encoder": encoder, "masked": self.masked})}


def _with_a_next(packed: Packed) -> Tensor:
    """Rows of the tokens that another of their sequence follows, long."""
    lengths = packed.lengths[packed.lengths > 0]
    rows = np.delete(np.arange(lengths.sum()), lengths.cumsum() - 1)
    return torch.from_numpy(rows).to(packed.tokens.device)
