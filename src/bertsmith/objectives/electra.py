"""ELECTRA's objective: a small generator fills the masks, and the model tells which tokens were replaced
(Clark et al. 2020, section 3).

The generator learns masked LM; no gradient of the other part reaches its guesses. Both have one token table, one
table of positions and one of segments, as the release has it; norms, projections and layers are their own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from bertsmith import rng
from bertsmith.instances.batches import PairBatch
from bertsmith.instances.settings import DataSettings
from bertsmith.loss import Loss
from bertsmith.models.config import ModelConfig
from bertsmith.models.encoder import Encoder
from bertsmith.models.family import build_encoder, family
from bertsmith.models.heads import MaskedHead, ReplacedHead
from bertsmith.models.weight_init import start_from_unigrams, unigram_loss
from bertsmith.objectives.objective import (
    GENERATOR,
    MODEL,
    Objective,
    Parts,
    refuse_corruption,
    refuse_pairs,
)
from bertsmith.settings import Settings


class ReplacedSettings(Settings):
    """How large the generator is, and how much the model's part of the loss counts."""

    generator_size: float = Field(
        0.25,
        gt=0,
        le=1,
        description="the generator's width, heads and inner width, as a share of the model's",
    )
    replaced_weight: float = Field(
        50.0, gt=0, description="weight of the loss on replaced tokens; the generator's counts 1"
    )
    generator: str | None = Field(
        None,
        description="a run or model folder, or a published name, of the generator to go on with, where the model "
        "given to start from has none beside it",
    )


class Replaced(Objective):
    """A generator with its masked head, and the model's head on every token.

    Parts of the loss: `mlm`, over the predicted rows, the generator's; `replaced`, over all tokens: was it another
    than the text's own? Where the generator guesses that one, it is not replaced.
    """

    name = "replaced"
    shown_by = "detector"
    settings_type = ReplacedSettings
    perplexities = ("mlm",)
    starts = True

    def __init__(self, encoder: Encoder, generator: torch.Generator, settings: ReplacedSettings) -> None:
        super().__init__()
        self.config = encoder.config
        self.weights = {"replaced": settings.replaced_weight}
        self._seed = generator.initial_seed()
        self.generator = build_encoder(generator_config(self.config, settings.generator_size), generator)
        for table in ("token", "position", "segment"):
            setattr(self.generator.embeddings, table, getattr(encoder.embeddings, table))
        self.masked = MaskedHead(self.generator.config, generator)
        self.detector = ReplacedHead(self.config, generator)

    @classmethod
    def made(
        cls, encoder: Encoder, generator: torch.Generator, data: DataSettings, settings: ReplacedSettings
    ) -> Replaced:
        """The generator and both heads. InputError where pairs are asked for, or a family has no such head."""
        refuse_pairs(data, cls.name)
        refuse_corruption(data, cls.name, "would call inserted tokens the text's own", "insert")
        family(encoder.config.model_type).architecture({"encoder", "detector"})
        return cls(encoder, generator, settings)

    def counts(self, batch: PairBatch) -> Mapping[str, int]:
        """Predicted tokens, and all."""
        return {"mlm": len(batch.rows), "replaced": batch.tokens}

    def loss(self, encoder: Encoder, batch: PairBatch) -> Loss:
        """Summed cross-entropies: `mlm` over the predicted rows, `replaced` over all tokens, special ones too, as
        in the release."""
        with encoder.embeddings.token.beside_decoder(self.masked.tied) as table:
            rows = self.generator(batch.packed, rows=batch.rows)
        mlm, found = self.masked.loss(rows, table, batch.labels)
        guesses = self._guesses(rows, table, batch)
        tokens = batch.packed.tokens.index_copy(0, batch.rows, guesses)
        wanted = torch.zeros_like(tokens).index_copy(0, batch.rows, (guesses != batch.labels).long())
        with encoder.embeddings.token.beside_decoder(self.masked.tied):
            scores = self.detector(encoder(replace(batch.packed, tokens=tokens))).float()
        replaced = F.binary_cross_entropy_with_logits(scores, wanted.float(), reduction="sum")
        right = ((scores.detach() > 0) == wanted.bool()).sum()
        return Loss({"mlm": mlm, "replaced": replaced}, self.counts(batch), {"mlm": found, "replaced": right})

    @torch.no_grad()
    def _guesses(self, rows: Tensor, table: Tensor, batch: PairBatch) -> Tensor:
        """A token for each predicted row, drawn from what the generator expects there, long [M]: a function of the
        weights, the seed and the batch, so that a judged batch moves no state of the training."""
        if not len(rows):
            return batch.labels
        drawing = torch.Generator(rows.device)
        drawing.manual_seed(int(rng.bits(self._seed, "guesses", batch.epoch, batch.first) >> np.uint64(1)))
        shares = self.masked(rows, table).float().softmax(-1)
        return torch.multinomial(shares, 1, generator=drawing)[:, 0]

    def begin(self, tokens: NDArray[np.int64]) -> None:
        """The generator's bias becomes the logarithm of each token's share of the corpus."""
        start_from_unigrams(self.masked.bias, tokens)

    def by_frequency(self, tokens: NDArray[np.int64], batches: Iterable[PairBatch]) -> dict[str, float]:
        """What a unigram model of the corpus loses on the masked tokens."""
        return {"unigram_mlm_loss": unigram_loss(tokens, (batch.labels for batch in batches))}

    def folders(self, encoder: Encoder) -> dict[str, Parts]:
        """The model with its head, and beside it the generator with its own."""
        return {
            MODEL: Parts(self.config, {"encoder": encoder, "detector": self.detector}),
            GENERATOR: Parts(self.generator.config, {"encoder": self.generator, "masked": self.masked}),
        }


def generator_config(config: ModelConfig, share: float) -> ModelConfig:
    """The generator of a model: as deep, its width and inner width the share of the model's, in whole heads of the
    model's size; its tables as wide as the model's."""
    heads = max(1, round(share * config.num_attention_heads))
    width = heads * config.head_size
    return config.model_copy(
        update={
            "num_attention_heads": heads,
            "hidden_size": width,
            "intermediate_size": max(1, round(share * config.intermediate_size)),
            "embedding_size": None if width == config.embedding_width else config.embedding_width,
        }
    )
