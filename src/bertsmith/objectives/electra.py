"""ELECTRA's objective: detect tokens that a small generator replaced (Clark et al. 2020, section 3).

The generator learns masked LM; no gradient of the detection loss flows through its samples. Both encoders share
token, position, and segment embeddings, as in the release; norms, projections, and layers are separate.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from bertsmith import rng
from bertsmith.instances.batches import MaskedBatch
from bertsmith.instances.settings import DataSettings
from bertsmith.loss import Loss
from bertsmith.models.config import ModelConfig
from bertsmith.models.encoder import Encoder
from bertsmith.models.family import build_encoder, get_family
from bertsmith.models.heads import MaskedLMHead, ReplacedTokenHead
from bertsmith.models.weight_init import init_output_bias, unigram_cross_entropy
from bertsmith.objectives.objective import (
    GENERATOR,
    MODEL,
    ModelParts,
    Objective,
    check_corruption,
    check_no_pairs,
)
from bertsmith.objectives.settings import ElectraSettings


class Electra(Objective):
    """A generator with its masked-LM head, and the discriminator's head on every token.

    The loss has two parts: `mlm`, the generator's, over the masked tokens; `replaced`, over all tokens: the token
    differs from the original. A sample of the generator that equals the original is not replaced.
    """

    name = "replaced"
    identifying_part = "detector"
    settings_type = ElectraSettings
    perplexity_parts = ("mlm",)
    uses_corpus_init = True

    def __init__(self, encoder: Encoder, generator: torch.Generator, settings: ElectraSettings) -> None:
        super().__init__()
        self.config = encoder.config
        self.loss_weights = {"replaced": settings.replaced_weight}
        self._seed = generator.initial_seed()
        self.generator = build_encoder(generator_config(self.config, settings.generator_size), generator)
        for table in ("token", "position", "segment"):
            setattr(self.generator.embeddings, table, getattr(encoder.embeddings, table))
        self.masked = MaskedLMHead(self.generator.config, generator)
        self.detector = ReplacedTokenHead(self.config, generator)

    @classmethod
    def from_settings(
        cls, encoder: Encoder, generator: torch.Generator, data: DataSettings, settings: ElectraSettings
    ) -> Electra:
        """Build the generator and both heads; raise InputError for pairs, insertions, and other families."""
        check_no_pairs(data, cls.name)
        check_corruption(data, cls.name, "would label inserted tokens as original", "insertion")
        get_family(encoder.config.model_type).architecture({"encoder", "detector"})
        return cls(encoder, generator, settings)

    def counts(self, batch: MaskedBatch) -> Mapping[str, int]:
        """Count the masked tokens, and all tokens."""
        return {"mlm": len(batch.rows), "replaced": batch.tokens}

    def loss(self, encoder: Encoder, batch: MaskedBatch) -> Loss:
        """Return summed cross-entropies: `mlm` over masked tokens, `replaced` over all, including special ones."""
        with encoder.embeddings.token.tied_decoder_weight(self.masked.tied) as decoder_weight:
            hidden = self.generator(batch.packed, rows=batch.rows)
        mlm, mlm_correct = self.masked.loss(hidden, decoder_weight, batch.labels)
        samples = self._sample(hidden, decoder_weight, batch)
        tokens = batch.packed.tokens.index_copy(0, batch.rows, samples)
        is_replaced = torch.zeros_like(tokens).index_copy(0, batch.rows, (samples != batch.labels).long())
        with encoder.embeddings.token.tied_decoder_weight(self.masked.tied):
            logits = self.detector(encoder(replace(batch.packed, tokens=tokens))).float()
        detection = F.binary_cross_entropy_with_logits(logits, is_replaced.float(), reduction="sum")
        correct = ((logits.detach() > 0) == is_replaced.bool()).sum()
        return Loss(
            {"mlm": mlm, "replaced": detection},
            self.counts(batch),
            {"mlm": mlm_correct, "replaced": correct},
        )

    @torch.no_grad()
    def _sample(self, hidden: Tensor, decoder_weight: Tensor, batch: MaskedBatch) -> Tensor:
        """Sample a token for each masked row from the generator's distribution, long [M].

        The random numbers depend only on the seed and the batch, so that evaluation changes no training state.
        """
        if not len(hidden):
            return batch.labels
        generator = torch.Generator(hidden.device)
        generator.manual_seed(
            int(rng.random_bits(self._seed, "guesses", batch.epoch, batch.first_instance) >> np.uint64(1))
        )
        probabilities = self.masked(hidden, decoder_weight).float().softmax(-1)
        return torch.multinomial(probabilities, 1, generator=generator)[:, 0]

    def init_output_bias(self, tokens: NDArray[np.int64]) -> None:
        """Set the generator's output bias to the logarithm of each token's frequency in the corpus."""
        init_output_bias(self.masked.bias, tokens)

    def unigram_baseline(self, tokens: NDArray[np.int64], batches: Iterable[MaskedBatch]) -> dict[str, float]:
        """Return the loss of a unigram model on the masked tokens."""
        return {"unigram_mlm_loss": unigram_cross_entropy(tokens, (batch.labels for batch in batches))}

    def export(self, encoder: Encoder) -> dict[str, ModelParts]:
        """Return the discriminator and the generator, each with its head."""
        return {
            MODEL: ModelParts(self.config, {"encoder": encoder, "detector": self.detector}),
            GENERATOR: ModelParts(self.generator.config, {"encoder": self.generator, "masked": self.masked}),
        }


def generator_config(config: ModelConfig, size: float) -> ModelConfig:
    """Return the configuration of a generator.

    It has the model's depth, head size, and embedding size. Hidden and intermediate size are the fraction `size`
    of the model's, rounded to whole heads.
    """
    heads = max(1, round(size * config.num_attention_heads))
    hidden_size = heads * config.head_dim
    return config.model_copy(
        update={
            "num_attention_heads": heads,
            "hidden_size": hidden_size,
            "intermediate_size": max(1, round(size * config.intermediate_size)),
            "embedding_size": None if hidden_size == config.embedding_dim else config.embedding_dim,
        }
    )
