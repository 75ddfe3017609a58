"""Fused layers: bit-equal to their parts, and used only for layers that they support."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from bertsmith import hardware
from bertsmith.kernels import backend_selection
from bertsmith.kernels.reference import REFERENCE, KernelBackend, set_kernel_backend
from bertsmith.models.attention import AttentionLayout
from bertsmith.models.config import AttentionDirection
from bertsmith.models.family import build_encoder, preset
from bertsmith.models.layers import TransformerLayer, set_generator
from bertsmith.models.quantization import quantize_encoder
from bertsmith.packed import Packed

if not backend_selection.is_numba_available():
    pytest.skip("Numba, the extra fast, is not installed here", allow_module_level=True)

from bertsmith.kernels.cpu import (
    amx,
    autograd,
    encoder_layer,
    gemm_avx512bf16,
    gemm_fp32,
    gemm_int8_avx2,
    gemm_int8_vnni,
    inference,
    matmul,
    row_kernels,
    training,
)
from bertsmith.kernels.cpu.launcher import KernelSequence, launch
from by_parts import ByParts

FP32, BF16 = torch.float32, torch.bfloat16
HIDDEN_SIZE = 64
NATIVE_INT8: dict[str, Any] = {"vnni": gemm_int8_vnni}
if amx.is_amx_available():
    from bertsmith.kernels.cpu import gemm_int8_amx

    NATIVE_INT8["amx"] = gemm_int8_amx


FUSED, BY_PARTS = training.NumbaTrainingBackend(), ByParts()


@pytest.fixture(autouse=True)
def compiled_matmul(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use the kernels' matrix products on all processors."""
    monkeypatch.setattr(matmul, "GEMM_FP32", gemm_fp32)
    monkeypatch.setattr(matmul, "GEMM_BF16", gemm_avx512bf16)


def autocast(dtype: torch.dtype) -> Any:
    return torch.autocast("cpu", torch.bfloat16) if dtype == BF16 else nullcontext()


def random_layer(p: float = 0.1, **changes: Any) -> TransformerLayer:
    config = preset(
        "bert-tiny-uncased",
        **{"hidden_size": HIDDEN_SIZE, "intermediate_size": 100, "num_attention_heads": 2, **changes},
        hidden_dropout_prob=p,
        attention_probs_dropout_prob=p,
    )
    layer = TransformerLayer(config, torch.Generator())
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for weight in layer.parameters():
            weight.copy_(torch.randn(weight.shape, generator=generator) / 8)
    return layer


def layout_of(lengths: list[int], direction: AttentionDirection = "all") -> AttentionLayout:
    ids = np.zeros(sum(lengths), dtype=np.int64)
    return AttentionLayout(Packed.from_arrays(ids, ids, np.array(lengths, dtype=np.int64)), direction)


def run_training(
    layer: TransformerLayer, kernels: KernelBackend, x: Tensor, layout: AttentionLayout, rows: Tensor | None
) -> tuple[Any, list[Tensor]]:
    """Return the autograd node of the output; the output and all gradients."""
    set_kernel_backend(layer, kernels)
    set_generator(layer, torch.Generator().manual_seed(5))
    x = x.clone().requires_grad_()
    with autocast(x.dtype):
        output = layer(x, layout, rows)
    grad = torch.randn(output.shape, generator=torch.Generator().manual_seed(6)).to(output.dtype)
    grads = torch.autograd.grad(output, [x, *layer.parameters()], grad)
    return output.grad_fn, [output.detach(), *grads]


def is_fused(node: Any) -> bool:
    return isinstance(node, autograd.EncoderLayerFunction._backward_cls)  # type: ignore[attr-defined]


@settings(deadline=None, max_examples=40)
@given(
    lengths=st.lists(st.one_of(st.integers(0, 20), st.sampled_from([31, 32, 70])), min_size=1, max_size=6),
    direction=st.sampled_from(["all", "before", "behind"]),
    dtype=st.sampled_from([FP32, BF16]),
    p=st.sampled_from([0.0, 0.3]),
    num_rows=st.sampled_from([0, 16, 40]),
    threads=st.integers(1, 3),
)
def test_a_fused_layer_equals_its_parts(
    lengths: list[int],
    direction: AttentionDirection,
    dtype: torch.dtype,
    p: float,
    num_rows: int,
    threads: int,
) -> None:
    lengths = [*lengths, 16]
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(sum(lengths), HIDDEN_SIZE, generator=generator).to(dtype)
    # Rows may repeat.
    rows = torch.randint(sum(lengths), (num_rows,), generator=generator).sort().values if num_rows else None
    layer, layout = random_layer(p), layout_of(lengths, direction)
    previous_threads = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        node, actual = run_training(layer, FUSED, x, layout, rows)
        last_node, expected = run_training(layer, BY_PARTS, x, layout, rows)
    finally:
        torch.set_num_threads(previous_threads)
    assert is_fused(node)
    assert not is_fused(last_node)
    assert [tensor.dtype for tensor in actual] == [tensor.dtype for tensor in expected]
    assert [n for n, pair in enumerate(zip(actual, expected, strict=True)) if not torch.equal(*pair)] == []


@pytest.mark.parametrize("dtype", [FP32, BF16])
def test_a_fused_layer_is_close_to_pytorch(dtype: torch.dtype) -> None:
    layer, layout = random_layer(0.0), layout_of([40, 7, 23])
    x = torch.randn(70, HIDDEN_SIZE, generator=torch.Generator().manual_seed(1)).to(dtype)
    actual, expected = (run_training(layer, kernels, x, layout, None)[1] for kernels in (FUSED, REFERENCE))
    for result, reference in zip(actual, expected, strict=True):
        tolerance = 0.03 * reference.float().square().mean().sqrt().item() if dtype == BF16 else 1e-5
        assert (result.float() - reference.float()).square().mean().sqrt().item() < tolerance


def use_relu(layer: TransformerLayer) -> None:
    layer.feed_forward.activation = torch.relu  # type: ignore[assignment]


def freeze_norm(layer: TransformerLayer) -> None:
    layer.attention_norm.weight.requires_grad_(requires_grad=False)


def add_hook(layer: TransformerLayer) -> None:
    layer.attention.qkv.register_forward_hook(lambda *_: None)  # type: ignore[union-attr]


def replace_norm(layer: TransformerLayer) -> None:
    layer.output_norm = nn.Identity()


@pytest.mark.parametrize("change", [use_relu, freeze_norm, add_hook, replace_norm])
def test_other_layers_are_not_fused(change: Callable[[TransformerLayer], None]) -> None:
    layer, layout = random_layer(), layout_of([40])
    change(layer)
    set_kernel_backend(layer, FUSED)
    x = torch.randn(40, HIDDEN_SIZE, requires_grad=True)
    assert not is_fused(layer(x, layout).grad_fn)


def test_hooks_of_the_feed_forward_sublayer_run() -> None:
    layer, input_sizes = random_layer(), []
    set_kernel_backend(layer, FUSED)
    for module in (layer.feed_forward.inner, layer.feed_forward.output):
        module.register_forward_pre_hook(lambda _, inputs: input_sizes.append(inputs[0].shape[1]))  # type: ignore[union-attr]
    layer(torch.randn(40, HIDDEN_SIZE, requires_grad=True), layout_of([40]))
    assert input_sizes == [HIDDEN_SIZE, 100]


def test_few_rows_other_heads_and_layers_without_gradients_are_not_fused() -> None:
    for layer, lengths, rows in (
        (random_layer(), [15], None),
        (random_layer(), [40], torch.arange(15)),
        (random_layer(num_attention_heads=8), [40], None),
        (random_layer(norm="pre"), [40], None),
    ):
        set_kernel_backend(layer, FUSED)
        x = torch.randn(sum(lengths), HIDDEN_SIZE, requires_grad=True)
        assert not is_fused(layer(x, layout_of(lengths), rows).grad_fn)
    layer = random_layer(0.0)
    set_kernel_backend(layer, FUSED)
    with torch.no_grad():
        assert layer(torch.randn(40, HIDDEN_SIZE), layout_of([40])).grad_fn is None


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_gradients_of_an_encoder_in_bf16(norm: str) -> None:
    """They differ from those in fp32 by some percent; if LayerNorms add up in bf16, by tens of percent."""
    config = preset("bert-tiny-uncased", norm=norm, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    encoder = build_encoder(config, torch.Generator().manual_seed(1)).train()
    generator = torch.Generator().manual_seed(2)
    ids = torch.randint(5, 30_000, (2048,), generator=generator).numpy()
    packed = Packed.from_arrays(ids, np.zeros_like(ids), np.full(16, 128))
    grad = torch.randn(2048, config.hidden_size, generator=generator) + 0.5
    results = []
    for kernels, dtype in ((REFERENCE, FP32), (FUSED, BF16)):
        set_kernel_backend(encoder, kernels)
        encoder.zero_grad()
        with torch.autocast("cpu", BF16, enabled=dtype == BF16):
            states = encoder(packed)
        (states.float() * grad).sum().backward()
        results.append({name: weight.grad for name, weight in encoder.named_parameters() if "norm" in name})
    for name, expected in results[0].items():
        assert expected is not None
        assert (results[1][name] - expected).norm() < 0.02 * expected.norm(), name


def test_gradients_of_shared_weights_are_added_up() -> None:
    config = preset("albert-mini", vocab_size=100, num_hidden_layers=3)
    encoder = build_encoder(config, torch.Generator().manual_seed(0))
    ids = np.arange(40, dtype=np.int64)
    packed = Packed.from_arrays(ids, np.zeros_like(ids), np.array([25, 15], dtype=np.int64))
    results = []
    for kernels in (FUSED, BY_PARTS):
        set_kernel_backend(encoder, kernels)
        encoder.generator = torch.Generator().manual_seed(5)
        encoder.zero_grad()
        encoder(packed).square().sum().backward()
        results.append([weight.grad for weight in encoder.parameters() if weight.grad is not None])
    assert len(results[0]) == len(results[1]) > 10
    for actual, expected in zip(*results, strict=True):
        torch.testing.assert_close(actual, expected)


class RecordingBackend(inference.NumbaInferenceBackend):
    """The inference backend with or without fused layers; it records which layers were fused."""

    def __init__(self, *, fuses: bool) -> None:
        super().__init__()
        self.fuses, self.fused = fuses, list[bool]()

    def encoder_layer(self, *args: Any, **kwargs: Any) -> Tensor | None:
        output = super().encoder_layer(*args, **kwargs) if self.fuses else None
        self.fused.append(output is not None)
        return output


@settings(deadline=None, max_examples=40)
@given(
    lengths=st.lists(st.one_of(st.integers(1, 20), st.sampled_from([31, 32, 70])), min_size=1, max_size=6),
    dtype=st.sampled_from([FP32, BF16]),
    weights=st.sampled_from(["float", "int8 pairs", *NATIVE_INT8]),
    num_rows=st.sampled_from([0, 1, 17]),
    threads=st.integers(1, 3),
)
def test_a_fused_layer_equals_its_parts_in_inference(
    lengths: list[int], dtype: torch.dtype, weights: str, num_rows: int, threads: int
) -> None:
    sizes = {"hidden_size": HIDDEN_SIZE, "intermediate_size": 128, "num_attention_heads": 2, "vocab_size": 50}
    config = preset("bert-tiny-uncased", num_hidden_layers=3, **sizes)
    encoder = build_encoder(config, torch.Generator().manual_seed(0)).eval()
    count = sum(lengths)
    ids = torch.randint(5, 50, (count,), generator=torch.Generator().manual_seed(1)).numpy()
    packed = Packed.from_arrays(ids, np.zeros_like(ids), np.array(lengths))
    generator = torch.Generator().manual_seed(2)
    rows = torch.randint(count, (num_rows,), generator=generator) if num_rows else None
    previous_threads, results = torch.get_num_threads(), []
    torch.set_num_threads(threads)
    try:
        with mock.patch.multiple(
            matmul, GEMM_INT8=NATIVE_INT8.get(weights), GEMM_INT8_FALLBACK=gemm_int8_avx2
        ):
            for kernels in (RecordingBackend(fuses=True), RecordingBackend(fuses=False)):
                set_kernel_backend(encoder, kernels)
                with mock.patch.object(hardware, "has_int8_matmul", return_value=weights in NATIVE_INT8):
                    model = encoder if weights == "float" else quantize_encoder(encoder, packed, kernels)
                kernels.fused.clear()
                with torch.inference_mode(), autocast(dtype):
                    results.append((kernels.fused, model(packed, rows=rows)))
    finally:
        torch.set_num_threads(previous_threads)
    (fused, actual), (not_fused, expected) = results
    # Products of fewer rows are left to the libraries.
    first, last = [count >= 16, (num_rows or count) >= 16] if weights == "float" else [True, True]
    assert fused == [first, first, first and last]
    assert not_fused == [False] * 3
    assert torch.equal(actual, expected)


@pytest.mark.parametrize("change", ["in place", "new parameter", "new data", "none"])
@pytest.mark.parametrize("dtype", [FP32, BF16])
def test_weights_are_packed_again_after_a_change(change: str, dtype: torch.dtype) -> None:
    layer = random_layer(0.0)
    set_kernel_backend(layer, inference.NumbaInferenceBackend())
    x, weight = torch.randn(40, HIDDEN_SIZE), layer.feed_forward.output.weight
    with autocast(dtype), torch.no_grad():
        with mock.patch.object(encoder_layer, "pack", side_effect=matmul.pack) as packed:
            before = layer(x, layout_of([40]))
            if change == "in place":
                weight.mul_(2)
            elif change == "new parameter":
                layer.feed_forward.output.weight = nn.Parameter(2 * weight)
            elif change == "new data":
                weight.data = 2 * weight
            after = layer(x, layout_of([40]))
        set_kernel_backend(layer, inference.NumbaInferenceBackend())
        expected = layer(x, layout_of([40]))
    assert packed.call_count == (4 if change == "none" else 8)
    assert torch.equal(after, expected)
    assert torch.equal(before, after) is (change == "none")


@pytest.mark.parametrize("share", ["none", "attention", "feed_forward", "all"])
@pytest.mark.parametrize("dtype", [FP32, BF16])
def test_shared_weights_are_packed_once(share: str, dtype: torch.dtype) -> None:
    config = preset("albert-mini", vocab_size=100, num_hidden_layers=3, share=share, hidden_act="gelu")
    encoder = build_encoder(config, torch.Generator().manual_seed(0)).eval()
    ids = np.arange(40, dtype=np.int64)
    packed = Packed.from_arrays(ids, np.zeros_like(ids), np.array([25, 15], dtype=np.int64))
    results = []
    set_kernel_backend(encoder, inference.NumbaInferenceBackend())
    with autocast(dtype), torch.inference_mode():
        for _ in range(2):
            with mock.patch.object(encoder_layer, "pack", side_effect=matmul.pack) as pack:
                results.append((pack, encoder(packed)))
        set_kernel_backend(encoder, inference.NumbaInferenceBackend())
        with mock.patch.object(
            inference.NumbaInferenceBackend,
            "_packed_matmuls",
            side_effect=lambda _, weights, dtype: weights.matmuls(),
        ):
            expected = encoder(packed)
    assert [pack.call_count for pack, _ in results] == [4 if share == "all" else 12, 0]
    assert all(torch.equal(states, expected) for _, states in results)


def test_a_pickled_backend_contains_no_weights() -> None:
    layer, x = random_layer(0.0), torch.randn(40, HIDDEN_SIZE)
    set_kernel_backend(layer, inference.NumbaInferenceBackend())
    with autocast(BF16), torch.no_grad():
        before = layer(x, layout_of([40]))
        copied = pickle.loads(pickle.dumps(layer.kernels))
        assert (len(layer.kernels._packed_layers), len(copied._packed_layers)) == (1, 0)
        set_kernel_backend(layer, copied)
        assert torch.equal(layer(x, layout_of([40])), before)


def test_the_inference_backend_fuses_layers_with_gradients() -> None:
    layer = random_layer(0.0)
    set_kernel_backend(layer, inference.NumbaInferenceBackend())
    output = layer(torch.randn(40, HIDDEN_SIZE, requires_grad=True), layout_of([40]))
    assert is_fused(output.grad_fn)


@pytest.mark.parametrize("change", [use_relu, add_hook, replace_norm])
def test_other_layers_are_not_fused_in_inference(change: Callable[[TransformerLayer], None]) -> None:
    layer, kernels = random_layer(0.0), RecordingBackend(fuses=True)
    change(layer)
    set_kernel_backend(layer, kernels)
    with torch.inference_mode(), autocast(BF16):
        layer(torch.randn(40, HIDDEN_SIZE), layout_of([40]))
    assert not any(kernels.fused)
    assert not kernels._packed_layers  # they would never be read


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_a_sequence_runs_its_kernels_in_order(threads: int) -> None:
    previous_threads = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        x, y = torch.ones(480), torch.full((480,), 2.0)
        sequence = KernelSequence()
        sequence(row_kernels.add, 0, x, y, 480)  # x = 3
        sequence(row_kernels.add, 0, y, x, 480)  # y = 5
        sequence(row_kernels.add, 0, x, y, 480)  # x = 8
        assert x.unique().tolist() == [1]
        sequence.run()
        assert (x.unique().tolist(), y.unique().tolist()) == ([8], [5])
        launch(row_kernels.add, 0, x, y, 480)
        assert x.unique().tolist() == [13]
        KernelSequence().run()
    finally:
        torch.set_num_threads(previous_threads)
