"""Masked language modeling, alone or with a classification of sentence pairs, and causal language modeling.

The sentence task is nsp, to predict if B follows A (Devlin et al. 2019, section 3.1); sop, to predict if A and B
are in order or swapped (Lan et al. 2020, section 3.1), with the same head; or none, masked tokens only (Liu et al.
2019), without pooler and sentence-pair head.

Causal language modeling predicts each token from those before it, or from those after it (`model.backwards`). Its
sources are Radford et al. 2018, and the ablation "LTR & No NSP" of Devlin et al. 2019, section 5.1. The instances
are those of masked language modeling without masks; the head is the masked-LM head, tied to the token embeddings.

Bidirectional language modeling trains both directions of an ELMo with one loss (Peters et al. 2018, section 3.1).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from bertsmith.instances.batches import MaskedBatch
from bertsmith.instances.settings import DataSettings
from bertsmith.loss import Loss
from bertsmith.models.config import ModelConfig
from bertsmith.models.encoder import Encoder
from bertsmith.models.pretraining_heads import MaskedLMHead, Pooler, SentencePairHead
from bertsmith.models.weight_init import unigram_cross_entropy
from bertsmith.objectives.objective import Objective, check_data_settings
from bertsmith.packed import Packed
from bertsmith.settings import Settings


class MaskedLM(Objective):
    """The heads of masked LM and of the sentence task, and the sum of their losses.

    Args:
        config: The encoder's configuration.
        generator: The random number generator for the initial weights.
        task: The sentence task; with "none" there are no heads `pooler` and `pair`, which nothing would train.
        is_next_label: The label of a pair whose B follows A; it is only recorded.
    """

    name = "mlm_nsp"
    identifying_part = "masked"
    required_model_settings = MappingProxyType({"causal": False})
    perplexity_parts = ("mlm",)
    uses_corpus_init = True
    supports_filling = True

    def __init__(
        self,
        config: ModelConfig,
        generator: torch.Generator,
        task: Literal["nsp", "sop", "none"] = "nsp",
        is_next_label: int = 0,
    ) -> None:
        super().__init__()
        self.task, self._is_next_label = task, is_next_label
        self.masked = MaskedLMHead(config, generator)
        if task != "none":
            self.pooler = Pooler(config, generator)
            self.pair = SentencePairHead(config, generator)

    @classmethod
    def from_settings(
        cls, encoder: Encoder, generator: torch.Generator, data: DataSettings, settings: Settings
    ) -> MaskedLM:
        """Build the heads for `data.sentence_task`."""
        return cls(encoder.config, generator, data.sentence_task, data.is_next_label)

    def loss(self, encoder: Encoder, batch: MaskedBatch) -> Loss:
        """Return summed cross-entropies: `mlm` over the masked tokens, `nsp` or `sop` over the pairs."""
        token_embedding, rows = encoder.embeddings.token, batch.rows
        if self.task != "none":
            rows = torch.cat([rows, batch.packed.first_token_rows])
        # The encoder returns hidden states of these rows alone: [M + B, H].
        with token_embedding.tied_decoder_weight(self.masked.tied) as decoder_weight:
            hidden, first_hidden = encoder(batch.packed, rows=rows).tensor_split([len(batch.rows)])
        mlm_sum, mlm_correct = self.masked.loss(hidden, decoder_weight, batch.labels)
        sums, num_correct = {"mlm": mlm_sum}, {"mlm": mlm_correct}
        if self.task != "none":
            logits = self.pair(self.pooler(first_hidden)).float()
            sums[self.task] = F.cross_entropy(logits, batch.pair_labels, reduction="sum")
            num_correct[self.task] = (logits.detach().argmax(-1) == batch.pair_labels).sum()
        return Loss(sums, batch.counts, num_correct)

    def training_record(self) -> dict[str, Any]:
        """Return the sentence task: in Hugging Face's files the heads of nsp and sop have the same name.

        The label of IsNext is included if it is not 0, as in Hugging Face's models.
        """
        label = {"is_next_label": self._is_next_label} if self._is_next_label else {}
        return {"sentence_task": self.task, **label}


class CausalLM(Objective):
    """A language-modeling head, the masked-LM head.

    The loss `lm` covers every token, including special ones, except the first of each sequence (if the model reads
    backwards, the last).
    """

    name = "causal"
    identifying_part = "masked"
    required_model_settings = MappingProxyType({"causal": True})
    default_data_settings = MappingProxyType({"instances": "full_sentences", "sentence_task": "none"})
    perplexity_parts = ("lm",)
    uses_corpus_init = True

    def __init__(self, config: ModelConfig, generator: torch.Generator) -> None:
        super().__init__()
        self.config = config
        self.masked = MaskedLMHead(config, generator)

    @classmethod
    def from_settings(
        cls, encoder: Encoder, generator: torch.Generator, data: DataSettings, settings: Settings
    ) -> CausalLM:
        """Build the head; raise InputError for sentence pairs and corrupted text."""
        check_data_settings(data, cls.name, "insertion", "deletion")
        return cls(encoder.config, generator)

    def counts(self, batch: MaskedBatch) -> Mapping[str, int]:
        """Return the number of predicted tokens: all but one of each sequence."""
        return {"lm": batch.tokens - int((batch.packed.lengths > 0).sum())}

    def loss(self, encoder: Encoder, batch: MaskedBatch) -> Loss:
        """Return the summed cross-entropy of each token given those before it, or those after it."""
        return self.sequence_loss(encoder, batch.unmasked)

    def sequence_loss(self, encoder: Encoder, packed: Packed) -> Loss:
        """Return the loss of sequences."""
        input_rows, label_rows = self._prediction_rows(packed)
        token_embedding = encoder.embeddings.token
        with token_embedding.tied_decoder_weight(self.masked.tied) as decoder_weight:
            hidden = encoder(packed)[input_rows]
        loss_sum, num_correct = self.masked.loss(hidden, decoder_weight, packed.tokens[label_rows])
        return Loss({"lm": loss_sum}, {"lm": len(label_rows)}, {"lm": num_correct})

    def unigram_baseline(
        self, token_counts: NDArray[np.int64], batches: Iterable[MaskedBatch]
    ) -> dict[str, float]:
        """Return the loss of a unigram model on the predicted tokens."""
        labels = (batch.unmasked.tokens[self._prediction_rows(batch.packed)[1]] for batch in batches)
        return {"unigram_lm_loss": unigram_cross_entropy(token_counts, labels)}

    def _prediction_rows(self, packed: Packed) -> tuple[Tensor, Tensor]:
        """Return the rows of hidden states that predict a token, and the rows of these tokens, long [M] each."""
        rows = _rows_with_successor(packed)
        return (rows + 1, rows) if self.config.backwards else (rows, rows + 1)


class BidirectionalLM(Objective):
    """The language-modeling heads of an ELMo: one for both directions, or one for each.

    The losses are `forward`, of each token but the first of a sequence given those before it, and `backward`, of
    each token but the last given those after it. Training minimizes their sum.
    """

    name = "bilm"
    identifying_part = "masked"
    required_model_settings = MappingProxyType({"causal": False})
    default_data_settings = CausalLM.default_data_settings
    perplexity_parts = ("forward", "backward")
    lm_directions = 2

    def __init__(self, config: ModelConfig, generator: torch.Generator) -> None:
        super().__init__()
        self.masked = MaskedLMHead(config, generator)
        if not config.tie_directions:
            self.masked_backward = MaskedLMHead(config, generator)

    @classmethod
    def from_settings(
        cls, encoder: Encoder, generator: torch.Generator, data: DataSettings, settings: Settings
    ) -> BidirectionalLM:
        """Build the heads; raise InputError for sentence pairs and corrupted text."""
        check_data_settings(data, cls.name, "insertion", "deletion")
        return cls(encoder.config, generator)

    def counts(self, batch: MaskedBatch) -> Mapping[str, int]:
        """Return the number of tokens that each direction predicts: all but one of each sequence."""
        count = batch.tokens - int((batch.packed.lengths > 0).sum())
        return {"forward": count, "backward": count}

    def loss(self, encoder: Encoder, batch: MaskedBatch) -> Loss:
        """Return the summed cross-entropies of both directions."""
        packed = batch.unmasked
        rows, embeddings = _rows_with_successor(packed), encoder.embeddings
        token = embeddings.token
        backward_token: Any = getattr(embeddings, "backward_token", None) or token
        head = getattr(self, "masked_backward", self.masked)
        with (
            token.tied_decoder_weight(self.masked.tied) as weight,
            backward_token.tied_decoder_weight(self.masked.tied) as backward_weight,
        ):
            forward, backward = encoder(packed).chunk(2, 1)
        sums, num_correct = {}, {}
        sums["forward"], num_correct["forward"] = self.masked.loss(
            forward[rows], weight, packed.tokens[rows + 1]
        )
        sums["backward"], num_correct["backward"] = head.loss(
            backward[rows + 1], backward_weight, packed.tokens[rows]
        )
        return Loss(sums, self.counts(batch), num_correct)

    def unigram_baseline(
        self, token_counts: NDArray[np.int64], batches: Iterable[MaskedBatch]
    ) -> dict[str, float]:
        """Return the loss of a unigram model on the tokens that the forward direction predicts."""
        labels = (batch.unmasked.tokens[_rows_with_successor(batch.packed) + 1] for batch in batches)
        return {"unigram_lm_loss": unigram_cross_entropy(token_counts, labels)}


def _rows_with_successor(packed: Packed) -> Tensor:
    """Return the rows of all tokens but the last of each sequence, long [M]."""
    lengths = packed.lengths[packed.lengths > 0]
    rows = np.delete(np.arange(lengths.sum()), lengths.cumsum() - 1)
    return torch.from_numpy(rows).to(packed.tokens.device)
