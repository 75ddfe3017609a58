"""Encoder and decoder beside torch.nn.Transformer with the same weights: outputs and gradients."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from bertsmith.models.config import ModelConfig
from bertsmith.models.decoder import DecoderLayer, EncodedSource, TransformerDecoder
from bertsmith.models.family import build_encoder
from bertsmith.models.layers import TransformerLayer
from bertsmith.packed import Packed

SOURCES = [[2, 7, 9, 11, 3], [2, 8, 3], [2, 7, 9, 4, 5, 6, 3]]
TARGETS = [[2, 20], [2, 23, 24, 25, 26], [2, 26, 27]]


def packed_of(rows: list[list[int]]) -> Packed:
    return Packed.from_lists(rows, [[0] * len(row) for row in rows])


def pairs_of(ours: TransformerLayer, theirs: nn.Module) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the parameters of a layer here and there."""
    norms = [ours.attention_norm, ours.output_norm]
    attentions = [(ours.attention.qkv, ours.attention.output, theirs.self_attn)]
    if isinstance(ours, DecoderLayer):
        norms.insert(1, ours.cross_attention_norm)
        cross = ours.cross_attention
        joined = nn.Module()
        joined.weight = nn.Parameter(torch.cat([cross.query.weight, cross.key_value.weight]).detach())
        joined.bias = nn.Parameter(torch.cat([cross.query.bias, cross.key_value.bias]).detach())
        attentions.append((joined, cross.output, theirs.multihead_attn))
    for qkv, output, attention in attentions:
        yield qkv.weight, attention.in_proj_weight
        yield qkv.bias, attention.in_proj_bias
        yield output.weight, attention.out_proj.weight
        yield output.bias, attention.out_proj.bias
    modules = [(ours.feed_forward.inner, theirs.linear1), (ours.feed_forward.output, theirs.linear2)]
    modules += [(norm, getattr(theirs, f"norm{i}")) for i, norm in enumerate(norms, 1)]
    for one, other in modules:
        yield one.weight, other.weight
        yield one.bias, other.bias


@pytest.mark.filterwarnings("ignore:enable_nested_tensor is True")
@pytest.mark.parametrize("norm", ["post", "pre"])
def test_outputs_and_gradients_are_those_of_torch(norm: str) -> None:
    """At 1e-5: both compute in fp32, and sums of some hundred products differ in their order only."""
    config = ModelConfig(
        vocab_size=50, hidden_size=32, num_attention_heads=4, num_hidden_layers=2, intermediate_size=48,
        max_position_embeddings=40, initializer_range=0.2, hidden_act="relu", norm=norm, layer_norm_eps=1e-5,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    generator = torch.Generator().manual_seed(0)
    encoder, decoder = build_encoder(config, generator), TransformerDecoder(config, generator)
    theirs = nn.Transformer(32, 4, 2, 2, 48, dropout=0.0, batch_first=True, norm_first=norm == "pre")
    if norm == "post":  # torch adds a LayerNorm at the end of either, which the paper does not have
        theirs.encoder.norm = theirs.decoder.norm = None
    layers = [*zip(encoder.layers, theirs.encoder.layers), *zip(decoder.layers, theirs.decoder.layers)]  # noqa: B905
    with torch.no_grad():
        for ours, other in layers:
            for here, there in pairs_of(ours, other):  # type: ignore[arg-type]
                there.copy_(here)

    sources, targets = packed_of(SOURCES), packed_of(TARGETS)
    inputs = [encoder.embeddings(packed) for packed in (sources, targets)]
    padded = [packed.pad(x) for packed, x in zip((sources, targets), inputs, strict=True)]
    is_padding = packed_padding(sources)
    expected = theirs(
        *padded,
        tgt_mask=nn.Transformer.generate_square_subsequent_mask(targets.max_seqlen),
        tgt_is_causal=True,
        src_key_padding_mask=is_padding,
        memory_key_padding_mask=is_padding,
    )[~packed_padding(targets)]
    outputs = decoder(encoder.embeddings, targets, EncodedSource(encoder(sources), sources))
    torch.testing.assert_close(outputs, expected, atol=1e-5, rtol=1e-5)

    upstream = torch.randn(outputs.shape, generator=generator)
    (outputs * upstream).sum().backward()
    tokens = encoder.embeddings.token.weight.grad
    encoder.embeddings.token.weight.grad = None
    (expected * upstream).sum().backward()
    torch.testing.assert_close(encoder.embeddings.token.weight.grad, tokens, atol=1e-5, rtol=1e-4)
    for ours, other in layers:
        gradients = [(here.grad, there.grad) for here, there in pairs_of(ours, other)]  # type: ignore[arg-type]
        if isinstance(ours, DecoderLayer):
            cross, there = ours.cross_attention, other.multihead_attn
            for name in ("weight", "bias"):
                parts = [getattr(part, name).grad for part in (cross.query, cross.key_value)]
                gradients.append((torch.cat(parts), getattr(there, f"in_proj_{name}").grad))
        compared = [pair for pair in gradients if pair[0] is not None]
        assert len(compared) == (18 if isinstance(ours, DecoderLayer) else 12)
        for here, there in compared:
            torch.testing.assert_close(here, there, atol=1e-5, rtol=1e-4)


def packed_padding(packed: Packed) -> Tensor:
    """Return True on padding, [B, T]."""
    return packed.pad(torch.ones(len(packed.tokens), dtype=torch.bool)).logical_not()
