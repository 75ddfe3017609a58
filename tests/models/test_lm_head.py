"""The language-modeling head of families without a transform below the decoder."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from bertsmith.errors import InputError
from bertsmith.models.config import ModelConfig
from bertsmith.models.families import BERT
from bertsmith.models.family import FAMILIES, HeadStructure, build_encoder
from bertsmith.models.parameter_count import count_parameters
from bertsmith.models.pretraining_heads import MaskedLMHead

SIZES = {"hidden_size": 24, "num_attention_heads": 2, "num_hidden_layers": 1, "vocab_size": 31}


def _use(monkeypatch: pytest.MonkeyPatch, heads: HeadStructure) -> None:
    monkeypatch.setitem(FAMILIES, "bert", dataclasses.replace(BERT, heads=heads))


@pytest.mark.parametrize("tied", [True, False])
def test_without_a_transform_the_head_is_the_decoder(tied: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    _use(monkeypatch, HeadStructure(lm_transform=False))
    config = ModelConfig(**SIZES, tie_word_embeddings=tied)
    head = MaskedLMHead(config, torch.Generator().manual_seed(0))
    hidden, embedding = torch.randn(5, 24), torch.randn(31, 24)
    decoder = embedding if head.decoder is None else head.decoder.weight
    torch.testing.assert_close(head(hidden, embedding), hidden @ decoder.T + head.bias)
    encoder_size = sum(term.size for term in count_parameters(config, []))
    size = sum(term.size for term in count_parameters(config, ["masked"])) - encoder_size
    assert size == sum(p.numel() for p in head.parameters()) == 31 + (0 if tied else 31 * 24)


def test_a_decoder_may_read_a_part_of_the_states(monkeypatch: pytest.MonkeyPatch) -> None:
    _use(monkeypatch, HeadStructure(lm_transform=False, decoder_size=lambda config: config.hidden_size // 2))
    config = ModelConfig(**SIZES, tie_word_embeddings=False)
    head, hidden = MaskedLMHead(config, torch.Generator().manual_seed(0)), torch.randn(5, 24)
    assert head.decoder is not None
    assert head.decoder.weight.shape == (31, 12)
    logits = head(hidden, torch.empty(0))
    torch.testing.assert_close(logits, hidden[:, :12] @ head.decoder.weight.T + head.bias)
    with pytest.raises(InputError) as caught:
        build_encoder(config.model_copy(update={"tie_word_embeddings": True}), torch.Generator())
    assert (caught.value.code, caught.value.argument) == ("tied_decoder_size", "model.tie_word_embeddings")
