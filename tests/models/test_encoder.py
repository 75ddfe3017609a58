"""The encoder without a reference: dropout, initial weights, packing, limits."""

from __future__ import annotations

import copy
import math

import pytest
import torch
import torch.nn.functional as F

from bertsmith.errors import InputError
from bertsmith.models.config import ModelConfig
from bertsmith.models.encoder import Encoder
from bertsmith.models.layers import ACTIVATIONS, Dropout
from bertsmith.models.pretraining_heads import MaskedLMHead, Pooler, SentencePairHead
from bertsmith.models.task_heads import LinearHead
from bertsmith.packed import Packed


def tiny(**changes) -> ModelConfig:
    return ModelConfig(
        **{
            "vocab_size": 60,
            "hidden_size": 16,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "intermediate_size": 32,
            "max_position_embeddings": 24,
            **changes,
        }
    )


def random_text(lengths=(5, 1, 9)) -> Packed:
    g = torch.Generator().manual_seed(9)
    rows = [torch.randint(1, 60, (n,), generator=g).tolist() for n in lengths]
    return Packed.from_lists(rows, [[0] * len(r) for r in rows])


def test_dropout_has_its_probability_and_preserves_the_mean() -> None:
    dropout = Dropout(0.1, torch.Generator().manual_seed(0))
    out = dropout(torch.ones(1000, 1001))
    fraction = (out == 0).double().mean().item()
    assert abs(fraction - 0.1) < 4 * math.sqrt(0.09 / out.numel())
    assert out.max().item() == pytest.approx(1 / 0.9, rel=1e-4)
    assert out.double().mean().item() == pytest.approx(1, abs=2e-3)
    for lane in range(4):  # each 16-bit lane of the 64-bit draws is unbiased, the one with the sign bit too
        lane_fraction = (out.flatten()[lane::4] == 0).double().mean().item()
        assert abs(lane_fraction - 0.1) < 5 * math.sqrt(0.09 / (out.numel() / 4))


def test_dropout_backward_uses_the_same_mask() -> None:
    dropout = Dropout(0.5, torch.Generator().manual_seed(0))
    x = torch.randn(7, 9, requires_grad=True)
    out = dropout(x)
    out.sum().backward()
    torch.testing.assert_close(x.grad, torch.where(out == 0, 0.0, 2.0))
    residual = torch.randn(7, 9, requires_grad=True)
    dropout.generator.manual_seed(0)
    torch.testing.assert_close(dropout.add_residual(residual, x), residual + out)


def test_inactive_dropout_is_the_identity() -> None:
    x = torch.randn(3, 3)
    generator = torch.Generator().manual_seed(0)
    before = generator.get_state()
    assert Dropout(0.999999, torch.Generator())(x).isfinite().all()
    assert Dropout(0.0, generator)(x) is x
    assert Dropout(0.5, generator).eval()(x) is x
    assert torch.equal(generator.get_state(), before)


def test_all_randomness_comes_from_the_generator() -> None:
    torch.manual_seed(1)
    state = torch.get_rng_state()
    encoder = Encoder(tiny(), torch.Generator().manual_seed(7))
    packed = random_text()
    first = encoder(packed)
    generator_state = encoder.generator.get_state()
    second = encoder(packed)
    encoder.generator.set_state(generator_state)
    assert torch.equal(encoder(packed), second)
    assert not torch.equal(first, second)
    again = Encoder(tiny(), torch.Generator().manual_seed(7))
    assert torch.equal(again(packed), first)
    assert not torch.equal(Encoder(tiny(), torch.Generator().manual_seed(8))(packed), first)
    assert torch.equal(torch.get_rng_state(), state)


def test_a_copy_has_its_own_generator() -> None:
    duplicate = copy.deepcopy(Encoder(tiny()))
    parts = [m.generator for m in duplicate.modules() if isinstance(m, Dropout)]
    assert all(g is duplicate.generator for g in parts)
    fresh = torch.Generator().manual_seed(3)
    duplicate.generator = fresh
    assert all(m.generator is fresh for m in duplicate.modules() if isinstance(m, Dropout))


def test_initial_weights_are_those_of_the_paper() -> None:
    config = tiny(vocab_size=2000, hidden_size=64, intermediate_size=256)
    encoder = Encoder(config)
    heads = [cls(config, encoder.generator) for cls in (Pooler, MaskedLMHead, SentencePairHead, LinearHead)]
    for name, weight in [p for m in (encoder, *heads) for p in m.named_parameters()]:
        if name.endswith("norm.weight"):
            assert (weight == 1).all(), name
        elif name.endswith("bias"):
            assert (weight == 0).all(), name
        else:
            assert weight.abs().max() <= 0.04, name
            if weight.numel() > 5000:  # truncation at two sigma leaves 0.8796 of sigma
                assert weight.std().item() == pytest.approx(0.02 * 0.8796, rel=0.03), name
    assert (encoder.embeddings.token.weight[config.pad_token_id] == 0).all()


def test_initial_losses_are_those_of_chance() -> None:
    config = tiny(vocab_size=500, hidden_size=32)
    encoder, packed = Encoder(config), random_text()
    g = encoder.generator
    hidden = encoder(packed)
    logits = MaskedLMHead(config, g)(hidden, encoder.embeddings.token.weight)
    assert F.cross_entropy(logits, packed.tokens).item() == pytest.approx(math.log(500), abs=0.2)
    pairs = SentencePairHead(config, g)(Pooler(config, g)(hidden[packed.first_token_rows]))
    assert F.cross_entropy(pairs, torch.tensor([0, 1, 0])).item() == pytest.approx(math.log(2), abs=0.02)


def test_embeddings_equal_the_definition() -> None:
    encoder, packed = Encoder(tiny()).eval(), random_text()
    e = encoder.embeddings
    rows = e.token.weight[packed.tokens] + e.position.weight[packed.positions] + e.segment.weight[0]
    expected = (rows - rows.mean(1, keepdim=True)) / (rows.var(1, keepdim=True, correction=0) + 1e-12).sqrt()
    torch.testing.assert_close(encoder.hidden_states(packed)[0], expected, atol=1e-5, rtol=1e-5)


def test_activations_equal_their_definitions() -> None:
    x = torch.tensor([1.0, -1.0])
    assert ACTIVATIONS["gelu"](x).tolist() == pytest.approx([0.841345, -0.158655], abs=1e-6)
    assert ACTIVATIONS["gelu_new"](x)[0].item() == pytest.approx(0.841192, abs=1e-6)
    assert ACTIVATIONS["relu"](x).tolist() == [1, 0]


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_changes_nothing(side: str) -> None:
    encoder, packed = Encoder(tiny()).eval(), random_text((5, 0, 9))
    rows = encoder(packed)
    ids, mask = packed.pad(packed.tokens), packed.pad(torch.ones_like(packed.tokens))
    if side == "left":  # positions are columns, so only the longest sequence has the same ones
        ids, mask = ids.roll(3, 1), mask.roll(3, 1)
        ids, mask = F.pad(packed.pad(packed.tokens), (2, 0)), F.pad(packed.pad(mask.new_ones(14)), (2, 0))
    out = encoder(ids, mask)
    assert out.shape == (3, ids.shape[1], 16)
    assert (out[1] == 0).all()
    assert out.isfinite().all()
    if side == "right":
        torch.testing.assert_close(out[mask.bool()], rows)
        single = encoder(ids[:1, :5])
        torch.testing.assert_close(out[0, :5], single[0], atol=1e-6, rtol=1e-5)


def test_there_is_one_hidden_state_more_than_layers() -> None:
    encoder, packed = Encoder(tiny()).eval(), random_text()
    states = encoder.hidden_states(packed)
    assert len(states) == 3
    assert torch.equal(states[-1], encoder(packed))


def test_long_sequences_are_refused() -> None:
    encoder = Encoder(tiny())
    with pytest.raises(ValueError, match=r"25 tokens.* 24"):
        encoder(random_text((25,)))
    with pytest.raises(ValueError, match=r"30 tokens.* 24"):
        encoder(torch.ones(1, 30, dtype=torch.long), F.pad(torch.ones(1, 4, dtype=torch.long), (26, 0)))
    assert (
        encoder(torch.ones(1, 30, dtype=torch.long), F.pad(torch.ones(1, 4).long(), (0, 26))).shape[1] == 30
    )


@pytest.mark.parametrize(
    ("ids", "segments", "code", "wrong"),
    [
        ([[5, 60_000]], [[0, 0]], "token_id_out_of_range", "60000"),
        ([[5, -1]], [[0, 0]], "token_id_out_of_range", "-1"),
        ([[5, 6]], [[0, 2]], "segment_id_out_of_range", "2"),
    ],
)
def test_ids_out_of_range_are_named(
    ids: list[list[int]], segments: list[list[int]], code: str, wrong: str
) -> None:
    with pytest.raises(InputError) as caught:
        Encoder(tiny())(torch.tensor(ids), None, torch.tensor(segments))
    assert caught.value.code == code
    assert wrong in caught.value.message


def test_the_order_of_tokens_matters_only_through_positions() -> None:
    """Without positions the outputs are permuted as the inputs are; with them they are not (S17, E10)."""
    encoder, packed = Encoder(tiny()).eval(), random_text((8,))
    order = torch.randperm(8, generator=torch.Generator().manual_seed(2))
    shuffled = Packed.from_arrays(packed.tokens[order].numpy(), packed.segments.numpy(), packed.lengths)
    assert not torch.allclose(encoder(shuffled), encoder(packed)[order], atol=1e-4)
    with torch.no_grad():
        encoder.embeddings.position.weight.zero_()
    torch.testing.assert_close(encoder(shuffled), encoder(packed)[order], atol=1e-5, rtol=1e-5)


def test_bf16_autocast_approximates_fp32() -> None:
    encoder, packed = Encoder(tiny()).eval(), random_text()
    exact = encoder(packed)
    with torch.autocast("cpu", torch.bfloat16):
        output = encoder(packed)
    torch.testing.assert_close(output.float(), exact, atol=0.1, rtol=0.1)
    encoder.train()
    with torch.autocast("cpu", torch.bfloat16):
        encoder(packed).float().sum().backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in encoder.parameters())


@pytest.mark.parametrize("rows", [0, 1, 15, 16, 37])
def test_fused_masked_loss_equals_cross_entropy(rows: int) -> None:
    config = tiny(vocab_size=101)
    g = torch.Generator().manual_seed(4)
    head = MaskedLMHead(config, g).double()
    table = torch.randn(101, 16, generator=g).double().mul_(200).requires_grad_()  # probabilities underflow
    hidden = torch.randn(rows, 16, generator=g).double().requires_grad_()
    labels = torch.randint(0, 101, (rows,), generator=g)
    inputs = [hidden, table, *head.parameters()]
    logits = head(hidden, table)
    expected = F.cross_entropy(logits, labels, reduction="sum")
    expected_grads = torch.autograd.grad(expected * 3, inputs)
    fused, num_correct = head.loss(hidden, table, labels)
    assert num_correct.item() == (logits.argmax(1) == labels).sum().item()
    torch.testing.assert_close(fused, expected)
    for a, b in zip(torch.autograd.grad(fused * 3, inputs), expected_grads, strict=True):
        torch.testing.assert_close(a, b)
    assert fused.isfinite()


def test_fused_masked_loss_in_bf16_approximates_fp32() -> None:
    config = tiny(vocab_size=101)
    head = MaskedLMHead(config, torch.Generator().manual_seed(4))
    table = torch.randn(101, 16, generator=torch.Generator().manual_seed(5), requires_grad=True)
    hidden, labels = torch.randn(20, 16, generator=torch.Generator().manual_seed(6)), torch.arange(20)
    exact, _ = head.loss(hidden, table, labels)
    with torch.autocast("cpu", torch.bfloat16):
        loss, _ = head.loss(hidden, table, labels)
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(exact.item(), rel=0.02)
    (grad,) = torch.autograd.grad(loss, table)
    assert grad.dtype == torch.float32
