"""ELECTRA's objective: detect tokens that a small generator replaced (Clark et al. 2020, section 3).

A generator is trained by masked LM, and masked tokens are replaced by samples from it. The discriminator, which is
the run's model, predicts for each token if it was replaced. No gradient of the discriminator's loss flows through
the samples. Both encoders share token, position, and segment embeddings, as in the release; norms, projections,
and layers are separate.

In the code, the names "replaced" and "detector" are the discriminator's loss and head. `generator` is the
generator's encoder as an attribute, and a random number generator (torch.Generator) as a parameter of
`from_settings`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from bertsmith import rng
from bertsmith.instances.batches import MaskedBatch
from bertsmith.instances.settings import DataSettings
from bertsmith.loss import Loss
from bertsmith.models.config import ModelConfig
from bertsmith.models.encoder import Encoder
from bertsmith.models.family import build_encoder, get_family
from bertsmith.models.pretraining_heads import MaskedLMHead, ReplacedTokenHead
from bertsmith.objectives.objective import GENERATOR, MODEL, ModelParts, Objective, check_data_settings
from bertsmith.objectives.settings import ElectraSettings


class Electra(Objective):
    """The generator with its masked-LM head `masked`, and the discriminator's head `detector`.

    The loss has two parts: `mlm`, the generator's cross-entropy over the masked tokens; and `replaced`, the
    discriminator's binary cross-entropy over all tokens. A sample that equals the original token counts as
    original.
    """

    name = "replaced"
    identifying_part = "detector"
    settings_type = ElectraSettings
    perplexity_parts = ("mlm",)
    uses_corpus_init = True

    def __init__(self, encoder: Encoder, torch_generator: torch.Generator, settings: ElectraSettings) -> None:
        super().__init__()
        config = encoder.config
        self.loss_weights = {"replaced": settings.replaced_weight}
        self._seed = torch_generator.initial_seed()
        self.generator = build_encoder(generator_config(config, settings.generator_size), torch_generator)
        for name in ("token", "position", "segment"):
            setattr(self.generator.embeddings, name, getattr(encoder.embeddings, name))
        self.masked = MaskedLMHead(self.generator.config, torch_generator)
        self.detector = ReplacedTokenHead(config, torch_generator)

    @classmethod
    def from_settings(
        cls, encoder: Encoder, generator: torch.Generator, data: DataSettings, settings: ElectraSettings
    ) -> Electra:
        """Build the generator and both heads.

        Raises:
            InputError: The data settings have pairs or insertions, or the family has no discriminator.
        """
        check_data_settings(data, cls.name, "insertion")  # inserted tokens would be labeled as original
        # Only to raise InputError if the model's family has no class with a discriminator's head.
        get_family(encoder.config.model_type).architecture({"encoder", "detector"})
        return cls(encoder, generator, settings)

    def counts(self, batch: MaskedBatch) -> Mapping[str, int]:
        """Return the number of masked tokens, and of all tokens."""
        return {"mlm": len(batch.rows), "replaced": batch.tokens}

    def loss(self, encoder: Encoder, batch: MaskedBatch) -> Loss:
        """Return summed cross-entropies: `mlm` over masked tokens, `replaced` over all, including special ones."""
        # `tied_decoder_weight` also lets the embedding's lookups add their gradients to the decoder's without a
        # copy. That is why the discriminator, which has no decoder, is computed in such a context too.
        token_embedding, tied = encoder.embeddings.token, self.masked.tied
        with token_embedding.tied_decoder_weight(tied) as decoder_weight:
            hidden = self.generator(batch.packed, rows=batch.rows)
        mlm_sum, mlm_correct = self.masked.loss(hidden, decoder_weight, batch.labels)
        samples = self._sample(hidden, decoder_weight, batch)
        corrupted_ids = batch.packed.tokens.index_copy(0, batch.rows, samples)
        is_replaced = torch.zeros_like(corrupted_ids, dtype=torch.bool)
        is_replaced.index_copy_(0, batch.rows, samples != batch.labels)
        with token_embedding.tied_decoder_weight(tied):
            hidden = encoder(replace(batch.packed, tokens=corrupted_ids))
        logits = self.detector(hidden).float()
        replaced_sum = F.binary_cross_entropy_with_logits(logits, is_replaced.float(), reduction="sum")
        replaced_correct = ((logits.detach() > 0) == is_replaced).sum()
        return Loss(
            sums={"mlm": mlm_sum, "replaced": replaced_sum},
            counts=self.counts(batch),
            num_correct={"mlm": mlm_correct, "replaced": replaced_correct},
        )

    @torch.no_grad()
    def _sample(self, hidden: Tensor, decoder_weight: Tensor, batch: MaskedBatch) -> Tensor:
        """Sample a token for each masked row from the generator's distribution, long [M].

        The random numbers depend only on the seed and the batch, so that evaluation changes no training state.
        """
        if not len(hidden):
            return batch.labels
        bits = rng.random_bits(self._seed, "guesses", batch.epoch, batch.first_instance)
        torch_generator = torch.Generator(hidden.device)
        torch_generator.manual_seed(int(bits >> np.uint64(1)))  # a signed 64-bit integer
        probabilities = self.masked(hidden, decoder_weight).float().softmax(-1)
        return torch.multinomial(probabilities, 1, generator=torch_generator)[:, 0]

    def export(self, encoder: Encoder) -> dict[str, ModelParts]:
        """Return the discriminator and the generator, each with its head."""
        return {
            MODEL: ModelParts(encoder.config, {"encoder": encoder, "detector": self.detector}),
            GENERATOR: ModelParts(self.generator.config, {"encoder": self.generator, "masked": self.masked}),
        }


def generator_config(config: ModelConfig, size_fraction: float) -> ModelConfig:
    """Return the configuration of a generator for a discriminator with this configuration.

    Both have the same number of layers, head size, and embedding size. The generator's number of attention heads,
    and with it the hidden size, and its intermediate size are this fraction of the discriminator's, rounded.
    """
    num_heads = max(1, round(size_fraction * config.num_attention_heads))
    hidden_size = num_heads * config.head_dim
    return config.model_copy(
        update={
            "num_attention_heads": num_heads,
            "hidden_size": hidden_size,
            "intermediate_size": max(1, round(size_fraction * config.intermediate_size)),
            "embedding_size": None if hidden_size == config.embedding_dim else config.embedding_dim,
        }
    )
