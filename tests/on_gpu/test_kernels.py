"""What a GPU computes between products, held equal to the plain way."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import bertsmith as bs
import tiny_run
from bertsmith.device import ComputeContext
from bertsmith.instances.batches import BatchSizes
from bertsmith.instances.synthetic_batches import SyntheticStream
from bertsmith.kernels.gpu import torch_flash_attention
from bertsmith.kernels.gpu.torch_flash_attention import FlashBackend
from bertsmith.kernels.reference import REFERENCE, KernelBackend, set_kernel_backend
from bertsmith.models.attention import reference_attention
from bertsmith.models.attention_layout import AttentionLayout
from bertsmith.models.config import ModelConfig
from bertsmith.models.encoder import Encoder
from bertsmith.models.fused_cross_entropy import fused_cross_entropy
from bertsmith.models.layers import Dropout
from bertsmith.objectives.masked_lm import MaskedLM
from bertsmith.packed import Packed
from bertsmith.training.train_step import Trained

pytest.importorskip("triton", reason="needs Triton, which the extra `dev` has on Linux")
from bertsmith.kernels.gpu import encoder_layer, triton_backend
from bertsmith.kernels.gpu.triton_backend import TritonBackend

CONFIG = ModelConfig(
    vocab_size=50,
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=64,
    max_position_embeddings=64,
    hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0,
)
INTERPRETED = pytest.mark.skipif(
    torch.cuda.is_available(),
    reason="Triton computes on the GPU here, and these tensors are on the processor",
)
CLOSE = 0.1  # of bf16 from end to end, relative


def packed_of(lengths: list[int], seed: int = 0) -> Packed:
    draw = np.random.default_rng(seed)
    rows = [draw.integers(5, CONFIG.vocab_size, length).tolist() for length in lengths]
    return Packed.from_lists(rows, [[0] * length for length in lengths])


def passed(
    encoder: Encoder, packed: Packed, kernels: KernelBackend, rows: Tensor | None, *, low: bool = True
) -> tuple[Tensor, dict[str, Tensor]]:
    """States, and the slopes of all weights."""
    set_kernel_backend(encoder, kernels)
    encoder.zero_grad()
    with torch.autocast("cpu", torch.bfloat16, enabled=low):
        found = encoder(packed, rows=rows)
    (found * torch.linspace(-1, 2, found.numel()).view_as(found)).sum().backward()
    return found.detach(), {
        name: p.grad.clone() for name, p in encoder.named_parameters() if p.grad is not None
    }


def hold_equal(
    encoder: Encoder, packed: Packed, kernels: KernelBackend, rows: Tensor | None, *, low: bool, close: float
) -> None:
    wanted, slopes = passed(encoder, packed, REFERENCE, rows, low=False)
    found, own = passed(encoder, packed, kernels, rows, low=low)
    assert (found - wanted).abs().max() <= close * wanted.abs().max()
    assert own.keys() == slopes.keys()
    for name, slope in slopes.items():
        assert (own[name] - slope).norm() <= close * max(float(slope.norm()), 1e-2), name


@pytest.mark.parametrize("sees", ["all", "before"])
@settings(max_examples=20, deadline=None)
@given(
    lengths=st.lists(st.integers(0, 40), min_size=1, max_size=6).filter(any),
    heads=st.sampled_from([1, 2, 3]),
    width=st.sampled_from([8, 16, 64]),
    seed=st.integers(0, 99),
)
def test_flash_attention_is_attention(
    sees: Any, lengths: list[int], heads: int, width: int, seed: int
) -> None:
    packed = packed_of(lengths)
    numbers = torch.Generator().manual_seed(seed)
    qkv = torch.randn(sum(lengths), 3 * heads * width, generator=numbers).bfloat16().requires_grad_()
    grad = torch.randn(sum(lengths), heads * width, generator=numbers)
    found = FlashBackend().attention(qkv, AttentionLayout(packed, sees).ranges, heads, None)
    assert found is not None
    (slope,) = torch.autograd.grad(found, qkv, grad.bfloat16())
    exact = qkv.detach().float().requires_grad_()
    wanted = reference_attention(exact, packed, heads, direction=sees)
    (slope_wanted,) = torch.autograd.grad(wanted, exact, grad)
    assert torch.allclose(found.float(), wanted, atol=2e-2, rtol=2e-2)
    assert torch.allclose(slope.float(), slope_wanted, atol=5e-2, rtol=5e-2)


@INTERPRETED
@pytest.mark.parametrize("kernels", [FlashBackend(), TritonBackend()], ids=lambda kernels: kernels.name)
@pytest.mark.parametrize("activation", ["gelu", "gelu_new", "relu"])
@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=6),
    chooses=st.booleans(),
    narrow=st.booleans(),
    causal=st.booleans(),
)
def test_a_model_is_the_plain_one(
    exact: None,
    kernels: KernelBackend,
    activation: Any,
    lengths: list[int],
    chooses: bool,
    narrow: bool,
    causal: bool,
) -> None:
    change = {"hidden_act": activation, "embedding_size": 16 if narrow else None, "causal": causal}
    encoder = Encoder(CONFIG.model_copy(update=change)).train()
    rows = torch.arange(0, sum(lengths), 3) if chooses else None
    hold_equal(encoder, packed_of(lengths), kernels, rows, low=False, close=2e-5)


def test_a_model_in_bf16_is_the_plain_one_to_its_digits() -> None:
    packed = packed_of([15, 35, 1])
    for rows in (None, torch.arange(0, 51, 3)):
        hold_equal(Encoder(CONFIG).train(), packed, FlashBackend(), rows, low=True, close=CLOSE)


@INTERPRETED
def test_frozen_parts_have_no_slopes(exact: None) -> None:
    """And those that learn have the same."""
    encoder, packed = Encoder(CONFIG).train(), packed_of([15, 8])
    for name, parameter in encoder.named_parameters():
        parameter.requires_grad_("blocks.1" in name and "norm" not in name and "inner.weight" not in name)
    hold_equal(encoder, packed, TritonBackend(), None, low=False, close=2e-5)


@INTERPRETED
def test_a_layer_keeps_no_mask_for_its_way_back(exact: None) -> None:
    """Nor scores, nor a sum in fp32: of N tokens what products have made, and two numbers a row."""
    config = CONFIG.model_copy(update={"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1})
    encoder, made = Encoder(config).train(), []
    set_kernel_backend(encoder, TritonBackend())
    apply = encoder_layer._Layer.apply
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(encoder_layer._Layer, "apply", lambda *given: made.append(apply(*given)) or made[-1])
        encoder(packed_of([15, 37]))
    for found in made:
        kept = found.grad_fn.made
        kept = [*kept.attended, *kept.first, *(one for one in kept if isinstance(one, Tensor))]
        wide = [tuple(one.shape) for one in kept if 52 in one.shape]
        assert (
            sum(shape == (52, 32) for shape in wide) == 6
        )  # of attention and the residual, twice; and products
        assert sorted(set(wide)) == [(2, 2, 52), (2, 52), (52, 32), (52, 64), (52, 96)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("count", [0, 1, 37])
def test_the_loss_over_a_vocabulary(dtype: torch.dtype, count: int) -> None:
    draw = torch.Generator().manual_seed(count)
    x, table = (torch.randn(n, 16, generator=draw).to(dtype).requires_grad_() for n in (count, 50))
    bias = torch.randn(50, generator=draw, requires_grad=True)
    labels = torch.randint(50, (count,), generator=draw)
    found = fused_cross_entropy(x, table, bias, labels, FlashBackend())
    wanted = fused_cross_entropy(x, table, bias, labels, REFERENCE)
    assert found[1] == wanted[1]
    assert torch.allclose(found[0].float(), wanted[0].float(), rtol=1e-5)
    if count:
        slopes = (torch.autograd.grad(loss, (x, table, bias)) for loss, _ in (found, wanted))
        for own, other in zip(*slopes, strict=True):
            assert torch.allclose(own.float(), other.float(), atol=1e-5, rtol=1e-2)


@INTERPRETED
@pytest.mark.parametrize("count", [0, 1, 37])
def test_the_loss_over_a_vocabulary_by_triton(exact: None, count: int) -> None:
    draw = torch.Generator().manual_seed(0)
    x, table = (torch.randn(n, 16, generator=draw).requires_grad_() for n in (count, 50))
    bias = torch.randn(50, generator=draw, requires_grad=True)
    labels = torch.randint(50, (count,), generator=draw)
    found, wanted = (
        fused_cross_entropy(x, table, bias, labels, kernels) for kernels in (TritonBackend(), REFERENCE)
    )
    assert found[1] == wanted[1]
    slopes = (torch.autograd.grad(loss, (x, table, bias)) for loss, _ in (found, wanted))
    for own, other in zip(*slopes, strict=True):
        assert torch.allclose(own, other, atol=1e-5)


def test_dropout_is_asked_for_in_training_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[float] = []
    kernel = torch_flash_attention.flash_attention

    def attended(*given: Any) -> Tensor:
        asked.append(given[-1])
        return kernel(*given)

    monkeypatch.setattr(torch_flash_attention, "flash_attention", attended)
    hold_draws(FlashBackend())
    assert set(asked) == {0.25, None}


@INTERPRETED
def test_dropout_by_triton_draws_from_the_models_generator(exact: None) -> None:
    hold_draws(TritonBackend(), low=False)


def hold_draws(kernels: KernelBackend, *, low: bool = True) -> None:
    """Each pass in training draws anew, and the same from the same state; none does afterwards."""
    config = CONFIG.model_copy(update={"attention_probs_dropout_prob": 0.25, "hidden_dropout_prob": 0.5})
    encoder, packed = Encoder(config), packed_of([7, 9])
    torch.manual_seed(0)  # flash attention's
    encoder.generator.manual_seed(0)
    states = [passed(encoder.train(), packed, kernels, None, low=low)[0] for _ in range(2)]
    assert not states[0].equal(states[1])
    torch.manual_seed(0)
    encoder.generator.manual_seed(0)
    assert passed(encoder.train(), packed, kernels, None, low=low)[0].equal(states[0])
    states = [passed(encoder.eval(), packed, kernels, None, low=low)[0] for _ in range(2)]
    assert states[0].equal(states[1])


@INTERPRETED
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(sequences=st.integers(1, 4), more=st.tuples(st.integers(1, 3), st.integers(1, 9), st.integers(0, 5)))
def test_a_batch_that_is_filled_up_is_the_same(
    exact: None, sequences: int, more: tuple[int, int, int]
) -> None:
    """Its losses, how many are right, and all gradients."""
    batch = SyntheticStream(CONFIG.vocab_size, 12, 0.3).batch(0, 0, sequences)
    sizes = BatchSizes(*(own + n for own, n in zip(batch.sizes, (*more, 2), strict=True)))
    encoder = Encoder(CONFIG, torch.Generator().manual_seed(0))
    objective = MaskedLM(CONFIG, encoder.generator)
    trained = Trained(encoder, objective).train()
    set_kernel_backend(trained, TritonBackend())
    found = []
    for one in (batch, batch.padded_to(sizes)):
        trained.zero_grad()
        loss = trained.loss(one)
        loss.reduce(batch.counts).backward()
        found.append((loss, {name: p.grad for name, p in trained.named_parameters()}))
    (plain, slopes), (filled, others) = found
    for part, value in plain.sums.items():
        assert filled.sums[part].item() == pytest.approx(value.item(), rel=1e-5)
        assert filled.num_correct[part] == plain.num_correct[part]
    for name, slope in slopes.items():
        assert torch.allclose(slope, others[name], atol=1e-6), name


@INTERPRETED
def test_tables_that_are_looked_up(exact: None) -> None:
    """More than are read at once, of few rows and of many, with a row that learns nothing."""
    numbers = torch.Generator().manual_seed(0)
    x = torch.randn(30, 16, generator=numbers).requires_grad_()
    tables = [nn.Embedding(count, 16, padding_idx=padding) for count, padding in ((3, 1), (9, 2), (5, None))]
    rows = [torch.randint(len(table.weight), (30,), generator=numbers) for table in tables]
    norm, dropout = nn.LayerNorm(16), Dropout(0.1, numbers).eval()
    learnt = [x, *(table.weight for table in tables), *norm.parameters()]
    found = TritonBackend().embed(x, list(zip(tables, rows, strict=True)), norm, dropout, torch.float32)
    assert found is not None
    wanted = norm(x + sum(table(row) for table, row in zip(tables, rows, strict=True)))
    assert torch.allclose(found, wanted, atol=1e-5)
    grad = torch.randn(30, 16, generator=numbers)
    ways = (torch.autograd.grad(one, learnt, grad) for one in (found, wanted))
    for own, other in zip(*ways, strict=True):
        assert torch.allclose(own, other, atol=1e-5)


@INTERPRETED
def test_more_sequences_than_a_grid_has_are_left_to_flash_attention(exact: None) -> None:
    qkv, many = torch.randn(4, 48), torch.zeros(2**16 + 1, dtype=torch.long)
    many[-1] = 4
    bounds = AttentionLayout(packed_of([4])).ranges._replace(cu_seqlens=many)
    assert triton_backend._takes(torch.float32, 16, 2, bounds._replace(cu_seqlens=many[1:]))
    assert not triton_backend._takes(torch.float32, 16, 2, bounds)
    assert TritonBackend().attention(qkv, bounds._replace(cu_seqlens=many[-2:]), 2, None) is not None


def test_what_flash_attention_does_not_take() -> None:
    five = AttentionLayout(packed_of([5])).ranges
    low = torch.randn(5, 48).bfloat16()
    assert FlashBackend().attention(low, five, 2, None) is not None
    assert FlashBackend().attention(low.float(), five, 2, None) is None
    assert FlashBackend().attention(low, five._replace(attention_direction="behind"), 2, None) is None
    assert FlashBackend().attention(torch.randn(5, 36).bfloat16(), five, 2, None) is None
    assert FlashBackend().attention(low[:0], AttentionLayout(packed_of([0])).ranges, 2, None) is None
    encoder, packed = Encoder(CONFIG), packed_of([3, 8])
    plain = passed(encoder, packed, REFERENCE, None, low=False)[0]
    assert passed(encoder, packed, TritonBackend(), None, low=False)[0].equal(plain)


def test_buckets_are_larger_on_a_device() -> None:
    packed = packed_of([40] * 100)
    assert len(AttentionLayout(packed).buckets) > 1
    assert len(AttentionLayout(packed.to("meta")).buckets) == 1


def test_answers_are_by_flash_attention(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = tiny_run.run(tiny_run.make_shards(tmp_path), tmp_path / "run", "train.max_steps=3")
    texts = [text for text, _ in tiny_run.examples(20)]
    exact = bs.load(run.path, precision="fp32").embed(texts)
    asked: list[int] = []
    kernel = torch_flash_attention.flash_attention

    def attended(qkv: Tensor, starts: Tensor, *more: Any, **named: Any) -> Tensor:
        asked.append(len(starts) - 1)
        return kernel(qkv, starts, *more, **named)

    monkeypatch.setattr(torch_flash_attention, "flash_attention", attended)
    monkeypatch.setattr(ComputeContext, "is_cpu", property(lambda _: False))
    monkeypatch.setattr(ComputeContext, "is_async", property(lambda _: True))
    exactly = bs.load(run.path, precision="fp32")
    assert exactly.encoder.kernels.name == "torch"
    model = bs.load(run.path, precision="bf16")
    assert model.encoder.kernels.name == "flash"
    found = model.embed(texts)
    assert max(asked) == len(texts)  # in one pass
    assert torch.cosine_similarity(torch.from_numpy(found), torch.from_numpy(exact)).min() > 0.999
    asked.clear()
    for text in texts[:3]:
        alone = torch.from_numpy(model.embed([text]))
        assert torch.cosine_similarity(alone, torch.from_numpy(found[[texts.index(text)]])).min() > 0.9999
