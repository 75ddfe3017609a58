"""Models with the GPU backends equal models with PyTorch's operations."""

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
from bertsmith.instances.batches import BatchSizes, SyntheticStream
from bertsmith.kernels.gpu import torch_flash_attention
from bertsmith.kernels.gpu.torch_flash_attention import FlashBackend
from bertsmith.kernels.reference import REFERENCE, KernelBackend, set_kernel_backend
from bertsmith.models.attention import AttentionLayout
from bertsmith.models.config import ModelConfig
from bertsmith.models.encoder import Encoder
from bertsmith.models.layers import Dropout
from bertsmith.models.pretraining_heads import fused_cross_entropy
from bertsmith.objectives.language_modeling import MaskedLM
from bertsmith.packed import Packed
from bertsmith.training.train_step import TrainModule
from reference_attention import reference_attention

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
needs_interpreter = pytest.mark.skipif(
    torch.cuda.is_available(), reason="Triton uses the GPU, and the tensors of these tests are on the CPU"
)
BF16_TOLERANCE = 0.1  # relative, of a whole model


def random_packed(lengths: list[int], seed: int = 0) -> Packed:
    generator = np.random.default_rng(seed)
    ids = [generator.integers(5, CONFIG.vocab_size, length).tolist() for length in lengths]
    return Packed.from_lists(ids, [[0] * length for length in lengths])


def outputs_and_grads(
    encoder: Encoder, packed: Packed, kernels: KernelBackend, rows: Tensor | None, *, bf16: bool = True
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the hidden states and the gradients of all parameters."""
    set_kernel_backend(encoder, kernels)
    encoder.zero_grad()
    with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
        hidden = encoder(packed, rows=rows)
    (hidden * torch.linspace(-1, 2, hidden.numel()).view_as(hidden)).sum().backward()
    return hidden.detach(), {
        name: p.grad.clone() for name, p in encoder.named_parameters() if p.grad is not None
    }


def assert_equals_reference(
    encoder: Encoder,
    packed: Packed,
    kernels: KernelBackend,
    rows: Tensor | None,
    *,
    bf16: bool,
    tolerance: float,
) -> None:
    expected, expected_grads = outputs_and_grads(encoder, packed, REFERENCE, rows, bf16=False)
    hidden, grads = outputs_and_grads(encoder, packed, kernels, rows, bf16=bf16)
    assert (hidden - expected).abs().max() <= tolerance * expected.abs().max()
    assert grads.keys() == expected_grads.keys()
    for name, grad in expected_grads.items():
        assert (grads[name] - grad).norm() <= tolerance * max(float(grad.norm()), 1e-2), name


@pytest.mark.parametrize("direction", ["all", "before"])
@settings(max_examples=20, deadline=None)
@given(
    lengths=st.lists(st.integers(0, 40), min_size=1, max_size=6).filter(any),
    num_heads=st.sampled_from([1, 2, 3]),
    head_size=st.sampled_from([8, 16, 64]),
    seed=st.integers(0, 99),
)
def test_flash_attention_equals_reference(
    direction: Any, lengths: list[int], num_heads: int, head_size: int, seed: int
) -> None:
    packed = random_packed(lengths)
    generator = torch.Generator().manual_seed(seed)
    qkv = torch.randn(sum(lengths), 3 * num_heads * head_size, generator=generator)
    qkv = qkv.bfloat16().requires_grad_()
    grad = torch.randn(sum(lengths), num_heads * head_size, generator=generator)
    out = FlashBackend().attention(qkv, AttentionLayout(packed, direction).sequence_layout, num_heads, None)
    assert out is not None
    (qkv_grad,) = torch.autograd.grad(out, qkv, grad.bfloat16())
    qkv_fp32 = qkv.detach().float().requires_grad_()
    expected = reference_attention(qkv_fp32, packed, num_heads, direction=direction)
    (expected_grad,) = torch.autograd.grad(expected, qkv_fp32, grad)
    assert torch.allclose(out.float(), expected, atol=2e-2, rtol=2e-2)
    assert torch.allclose(qkv_grad.float(), expected_grad, atol=5e-2, rtol=5e-2)


@needs_interpreter
@pytest.mark.parametrize(
    ("kernels", "activation"),
    [(FlashBackend(), "gelu"), *((TritonBackend(), name) for name in ("gelu", "gelu_new", "relu"))],
    ids=["flash", "triton-gelu", "triton-gelu_new", "triton-relu"],
)
@settings(max_examples=5, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=3),
    selects_rows=st.booleans(),
    has_small_embeddings=st.booleans(),
    causal=st.booleans(),
)
def test_model_equals_reference_in_fp32(
    fp32_attention: None,
    kernels: KernelBackend,
    activation: Any,
    lengths: list[int],
    selects_rows: bool,
    has_small_embeddings: bool,
    causal: bool,
) -> None:
    changes = {
        "hidden_act": activation,
        "embedding_size": 16 if has_small_embeddings else None,
        "causal": causal,
    }
    encoder = Encoder(CONFIG.model_copy(update=changes)).train()
    rows = torch.arange(0, sum(lengths), 3) if selects_rows else None
    assert_equals_reference(encoder, random_packed(lengths), kernels, rows, bf16=False, tolerance=2e-5)


def test_model_equals_reference_in_bf16() -> None:
    packed = random_packed([15, 35, 1])
    for rows in (None, torch.arange(0, 51, 3)):
        assert_equals_reference(
            Encoder(CONFIG).train(), packed, FlashBackend(), rows, bf16=True, tolerance=BF16_TOLERANCE
        )


@needs_interpreter
def test_frozen_parameters_have_no_gradients(fp32_attention: None) -> None:
    """Frozen parameters have no gradients; the gradients of all others equal the reference."""
    encoder, packed = Encoder(CONFIG).train(), random_packed([15, 8])
    for name, parameter in encoder.named_parameters():
        parameter.requires_grad_("blocks.1" in name and "norm" not in name and "inner.weight" not in name)
    assert_equals_reference(encoder, packed, TritonBackend(), None, bf16=False, tolerance=2e-5)


@needs_interpreter
def test_layer_saves_no_masks_scores_or_sums(fp32_attention: None) -> None:
    """A layer saves only the results of matrix products, attention, and LayerNorm, and a few numbers per row."""
    config = CONFIG.model_copy(update={"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1})
    encoder, outputs = Encoder(config).train(), []
    set_kernel_backend(encoder, TritonBackend())
    apply = encoder_layer._EncoderLayer.apply
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            encoder_layer._EncoderLayer, "apply", lambda *args: outputs.append(apply(*args)) or outputs[-1]
        )
        encoder(random_packed([15, 37]))
    for output in outputs:
        saved = output.grad_fn.activations
        tensors = [*saved.attention, *saved.attention_norm, *(x for x in saved if isinstance(x, Tensor))]
        shapes = [tuple(tensor.shape) for tensor in tensors if 52 in tensor.shape]
        # Attention's output and the residual are counted twice; the others are matrix products.
        assert sum(shape == (52, 32) for shape in shapes) == 6
        assert sorted(set(shapes)) == [(2, 2, 52), (2, 52), (52, 32), (52, 64), (52, 96)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("num_rows", [0, 1, 37])
def test_cross_entropy_equals_reference(dtype: torch.dtype, num_rows: int) -> None:
    generator = torch.Generator().manual_seed(num_rows)
    x, weight = (
        torch.randn(size, 16, generator=generator).to(dtype).requires_grad_() for size in (num_rows, 50)
    )
    bias = torch.randn(50, generator=generator, requires_grad=True)
    labels = torch.randint(50, (num_rows,), generator=generator)
    result = fused_cross_entropy(x, weight, bias, labels, FlashBackend())
    expected = fused_cross_entropy(x, weight, bias, labels, REFERENCE)
    assert result[1] == expected[1]
    assert torch.allclose(result[0].float(), expected[0].float(), rtol=1e-5)
    if num_rows:
        grads = (torch.autograd.grad(loss, (x, weight, bias)) for loss, _ in (result, expected))
        for actual, expected_grad in zip(*grads, strict=True):
            assert torch.allclose(actual.float(), expected_grad.float(), atol=1e-5, rtol=1e-2)


@needs_interpreter
@pytest.mark.parametrize("num_rows", [0, 1, 37])
def test_triton_cross_entropy_equals_reference(fp32_attention: None, num_rows: int) -> None:
    generator = torch.Generator().manual_seed(0)
    x, weight = (torch.randn(size, 16, generator=generator).requires_grad_() for size in (num_rows, 50))
    bias = torch.randn(50, generator=generator, requires_grad=True)
    labels = torch.randint(50, (num_rows,), generator=generator)
    result, expected = (
        fused_cross_entropy(x, weight, bias, labels, kernels) for kernels in (TritonBackend(), REFERENCE)
    )
    assert result[1] == expected[1]
    grads = (torch.autograd.grad(loss, (x, weight, bias)) for loss, _ in (result, expected))
    for actual, expected_grad in zip(*grads, strict=True):
        assert torch.allclose(actual, expected_grad, atol=1e-5)


def test_flash_attention_has_dropout_only_in_training(monkeypatch: pytest.MonkeyPatch) -> None:
    probabilities: list[float] = []
    flash_attention = torch_flash_attention.flash_attention

    def recorded_attention(*args: Any) -> Tensor:
        probabilities.append(args[-1])
        return flash_attention(*args)

    monkeypatch.setattr(torch_flash_attention, "flash_attention", recorded_attention)
    check_dropout_draws(FlashBackend())
    assert set(probabilities) == {0.25, None}


@needs_interpreter
def test_triton_dropout_uses_the_models_generator(fp32_attention: None) -> None:
    check_dropout_draws(TritonBackend(), bf16=False)


def check_dropout_draws(kernels: KernelBackend, *, bf16: bool = True) -> None:
    """Check that training draws a new mask per pass, equal for equal generator states, and inference none."""
    config = CONFIG.model_copy(update={"attention_probs_dropout_prob": 0.25, "hidden_dropout_prob": 0.5})
    encoder, packed = Encoder(config), random_packed([7, 9])
    torch.manual_seed(0)  # used by flash attention
    encoder.generator.manual_seed(0)
    states = [outputs_and_grads(encoder.train(), packed, kernels, None, bf16=bf16)[0] for _ in range(2)]
    assert not states[0].equal(states[1])
    torch.manual_seed(0)
    encoder.generator.manual_seed(0)
    assert outputs_and_grads(encoder.train(), packed, kernels, None, bf16=bf16)[0].equal(states[0])
    states = [outputs_and_grads(encoder.eval(), packed, kernels, None, bf16=bf16)[0] for _ in range(2)]
    assert states[0].equal(states[1])


@needs_interpreter
@settings(max_examples=4, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    num_sequences=st.integers(1, 3),
    padding=st.tuples(st.integers(1, 3), st.integers(1, 9), st.integers(0, 5)),
)
def test_padded_batch_equals_batch(
    fp32_attention: None, num_sequences: int, padding: tuple[int, int, int]
) -> None:
    """Losses, numbers of correct predictions, and all gradients are equal."""
    batch = SyntheticStream(CONFIG.vocab_size, 12, 0.3).batch(0, 0, num_sequences)
    sizes = BatchSizes(*(size + n for size, n in zip(batch.sizes, (*padding, 2), strict=True)))
    encoder = Encoder(CONFIG, torch.Generator().manual_seed(0))
    objective = MaskedLM(CONFIG, encoder.generator)
    module = TrainModule(encoder, objective).train()
    set_kernel_backend(module, TritonBackend())
    results = []
    for training_batch in (batch, batch.padded_to(sizes)):
        module.zero_grad()
        loss = module.loss(training_batch)
        loss.reduce(batch.counts).backward()
        results.append((loss, {name: p.grad for name, p in module.named_parameters()}))
    (loss, grads), (padded_loss, padded_grads) = results
    for name, value in loss.sums.items():
        assert padded_loss.sums[name].item() == pytest.approx(value.item(), rel=1e-5)
        assert padded_loss.num_correct[name] == loss.num_correct[name]
    for name, grad in grads.items():
        assert torch.allclose(grad, padded_grads[name], atol=1e-6), name


@needs_interpreter
def test_embed_with_three_embeddings(fp32_attention: None) -> None:
    """Three embeddings, more than a kernel adds, have correct gradients: small and large, with padding indices."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(30, 16, generator=generator).requires_grad_()
    embeddings = [nn.Embedding(size, 16, padding_idx=index) for size, index in ((3, 1), (9, 2), (5, None))]
    indices = [torch.randint(len(e.weight), (30,), generator=generator) for e in embeddings]
    lookups = list(zip(embeddings, indices, strict=True))
    norm, dropout = nn.LayerNorm(16), Dropout(0.1, generator).eval()
    inputs = [x, *(embedding.weight for embedding in embeddings), *norm.parameters()]
    out = TritonBackend().embed(x, lookups, norm, dropout, torch.float32)
    assert out is not None
    expected = norm(x + sum(embedding(rows) for embedding, rows in lookups))
    assert torch.allclose(out, expected, atol=1e-5)
    grad = torch.randn(30, 16, generator=generator)
    grads = (torch.autograd.grad(result, inputs, grad) for result in (out, expected))
    for actual, expected_grad in zip(*grads, strict=True):
        assert torch.allclose(actual, expected_grad, atol=1e-5)


@needs_interpreter
def test_too_many_sequences_for_a_grid_use_flash_attention(fp32_attention: None) -> None:
    qkv, cu_seqlens = torch.randn(4, 48), torch.zeros(2**16 + 1, dtype=torch.long)
    cu_seqlens[-1] = 4
    layout = AttentionLayout(random_packed([4])).sequence_layout._replace(cu_seqlens=cu_seqlens)
    smaller = layout._replace(cu_seqlens=cu_seqlens[1:])
    assert triton_backend._supports_attention(torch.float32, 16, 2, smaller)
    assert not triton_backend._supports_attention(torch.float32, 16, 2, layout)
    two_sequences = layout._replace(cu_seqlens=cu_seqlens[-2:])
    assert TritonBackend().attention(qkv, two_sequences, 2, None) is not None


def test_unsupported_by_flash_attention() -> None:
    layout = AttentionLayout(random_packed([5])).sequence_layout
    qkv = torch.randn(5, 48).bfloat16()
    assert FlashBackend().attention(qkv, layout, 2, None) is not None
    assert FlashBackend().attention(qkv.float(), layout, 2, None) is None
    assert FlashBackend().attention(qkv, layout._replace(attention_direction="behind"), 2, None) is None
    assert FlashBackend().attention(torch.randn(5, 36).bfloat16(), layout, 2, None) is None
    assert (
        FlashBackend().attention(qkv[:0], AttentionLayout(random_packed([0])).sequence_layout, 2, None)
        is None
    )
    encoder, packed = Encoder(CONFIG), random_packed([3, 8])
    expected = outputs_and_grads(encoder, packed, REFERENCE, None, bf16=False)[0]
    assert outputs_and_grads(encoder, packed, TritonBackend(), None, bf16=False)[0].equal(expected)


def test_buckets_are_larger_on_a_device() -> None:
    packed = random_packed([40] * 100)
    assert len(AttentionLayout(packed).buckets) > 1
    assert len(AttentionLayout(packed.to("meta")).buckets) == 1


def test_inference_uses_flash_attention(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = tiny_run.run(tiny_run.make_shards(tmp_path), tmp_path / "run", "train.max_steps=3")
    texts = [text for text, _ in tiny_run.examples(20)]
    expected = torch.from_numpy(bs.load(run.path, precision="fp32").embed(texts))
    num_sequences: list[int] = []
    flash_attention = torch_flash_attention.flash_attention

    def recorded_attention(qkv: Tensor, cu_seqlens: Tensor, *args: Any, **options: Any) -> Tensor:
        num_sequences.append(len(cu_seqlens) - 1)
        return flash_attention(qkv, cu_seqlens, *args, **options)

    monkeypatch.setattr(torch_flash_attention, "flash_attention", recorded_attention)
    monkeypatch.setattr(ComputeContext, "is_cpu", property(lambda _: False))
    monkeypatch.setattr(ComputeContext, "is_async", property(lambda _: True))
    assert bs.load(run.path, precision="fp32").encoder.kernels.name == "torch"
    model = bs.load(run.path, precision="bf16")
    assert model.encoder.kernels.name == "flash"
    embeddings = torch.from_numpy(model.embed(texts))
    assert max(num_sequences) == len(texts)  # in one pass
    assert torch.cosine_similarity(embeddings, expected).min() > 0.999
    num_sequences.clear()
    for text in texts[:3]:
        embedding = torch.from_numpy(model.embed([text]))
        assert torch.cosine_similarity(embedding, embeddings[[texts.index(text)]]).min() > 0.9999
