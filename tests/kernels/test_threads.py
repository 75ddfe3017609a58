"""Encoders with fused layers: equal to their parts bit for bit; hooks see all inputs and gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from bertsmith.kernels import backend_selection
from bertsmith.kernels.reference import set_kernel_backend
from bertsmith.models.encoder import Encoder
from bertsmith.models.family import build_encoder, preset
from bertsmith.packed import Packed

if not backend_selection.is_numba_available():
    pytest.skip("Numba, the extra fast, is not installed here", allow_module_level=True)

from bertsmith.kernels.cpu import gemm_avx512bf16, gemm_fp32, inference, matmul, row_kernels, training
from bertsmith.kernels.cpu.launcher import KernelSequence, launch
from by_parts import ByParts

LENGTHS = [30, 7, 19]
ROWS = torch.tensor([40, 3, 3, 17, 0, 55, 3, 40, 22, 21, 20, 31, 33, 35, 9, 8])  # unordered, with repetitions


@pytest.fixture(autouse=True)
def compiled_matmul(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use the kernels' matrix products on all processors."""
    monkeypatch.setattr(matmul, "GEMM_FP32", gemm_fp32)
    monkeypatch.setattr(matmul, "GEMM_BF16", gemm_avx512bf16)


@pytest.fixture
def sequences(monkeypatch: pytest.MonkeyPatch) -> list[KernelSequence]:
    """Record the kernel sequences that run."""
    sequences: list[KernelSequence] = []
    run = KernelSequence.run
    monkeypatch.setattr(KernelSequence, "run", lambda self: (sequences.append(self), run(self)))
    return sequences


def tiny_encoder(p: float = 0.2, **changes: Any) -> Encoder:
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 2, "vocab_size": 50}
    dropout = {"hidden_dropout_prob": p, "attention_probs_dropout_prob": p}
    name = "albert-mini" if "share" in changes else "bert-tiny-uncased"
    config = preset(name, **{"hidden_act": "gelu", "num_hidden_layers": 3, **sizes, **dropout, **changes})
    return build_encoder(config, torch.Generator().manual_seed(0))


def packed_tokens() -> Packed:
    ids = torch.randint(5, 50, (sum(LENGTHS),), generator=torch.Generator().manual_seed(1)).numpy()
    return Packed.from_arrays(ids, np.zeros_like(ids), np.array(LENGTHS))


def run_training(
    encoder: Encoder, kernels: training.NumbaTrainingBackend, *, bf16: bool = True, rows: Tensor | None = None
) -> list[Tensor]:
    """Return an encoder's output and the gradients of all weights."""
    set_kernel_backend(encoder, kernels)
    encoder.generator = torch.Generator().manual_seed(5)
    encoder.zero_grad()
    with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
        output = encoder(packed_tokens(), rows=rows)
    output.backward(torch.randn(output.shape, generator=torch.Generator().manual_seed(6)))
    return [output.detach(), *(w.grad.clone() for w in encoder.parameters() if w.grad is not None)]


def assert_equal(actual: list[Tensor], expected: list[Tensor]) -> None:
    assert len(actual) == len(expected)
    assert [n for n, pair in enumerate(zip(actual, expected, strict=True)) if not torch.equal(*pair)] == []


@pytest.mark.parametrize("bf16", [False, True])
@pytest.mark.parametrize("rows", [None, ROWS])
@pytest.mark.parametrize("p", [0.0, 0.2])
@pytest.mark.parametrize("share", ["none", "all"])
def test_fused_layers_equal_their_parts(
    bf16: bool, rows: Tensor | None, p: float, share: str, sequences: list[KernelSequence]
) -> None:
    # The gradients of three layers that share weights would be added up in another order.
    encoder = tiny_encoder(p) if share == "none" else tiny_encoder(p, share=share, num_hidden_layers=2)
    results = run_training(encoder, training.NumbaTrainingBackend(), bf16=bf16, rows=rows)
    count = 2 * encoder.config.num_hidden_layers  # forward and backward
    assert len(sequences) == count
    assert_equal(results, run_training(encoder, ByParts(), bf16=bf16, rows=rows))
    assert len(sequences) == count


def freeze_first_layer(encoder: Encoder) -> None:
    """Let the first trained layer have inputs without gradient."""
    encoder.embeddings.requires_grad_(requires_grad=False)
    encoder.blocks[0].requires_grad_(requires_grad=False)


def hook_a_module(encoder: Encoder) -> None:
    encoder.blocks[1].attention.qkv.register_forward_hook(lambda *_: None)  # type: ignore[union-attr]


def select_few_rows(encoder: Encoder) -> None:
    """Change nothing: products of few rows are left to the libraries."""


@pytest.mark.parametrize(
    ("change", "count"), [(freeze_first_layer, 2), (hook_a_module, 4), (select_few_rows, 4)]
)
def test_other_layers_are_fused_if_one_cannot_be(
    change: Callable[[Encoder], None], count: int, sequences: list[KernelSequence]
) -> None:
    encoder, rows = tiny_encoder(), ROWS[:5] if change is select_few_rows else None
    change(encoder)
    results = run_training(encoder, training.NumbaTrainingBackend(), rows=rows)
    assert len(sequences) == count
    assert_equal(results, run_training(encoder, ByParts(), rows=rows))


def register_hooks(block: nn.Module, calls: list[str]) -> None:
    block.register_forward_pre_hook(lambda *_: calls.append("forward pre"))
    block.register_forward_hook(lambda *_: calls.append("forward"))
    block.register_full_backward_pre_hook(lambda *_: calls.append("backward pre"))
    block.register_full_backward_hook(lambda *_: calls.append("backward"))


@pytest.mark.parametrize("name", ["block", "attention", "linear layer"])
def test_hooks_run_in_forward_and_backward_pass(name: str) -> None:
    encoder, calls = tiny_encoder(), list[str]()
    attention: Any = encoder.blocks[1].attention
    modules = {"block": encoder.blocks[1], "attention": attention, "linear layer": attention.output}
    register_hooks(modules[name], calls)
    run_training(encoder, training.NumbaTrainingBackend())
    assert calls == ["forward pre", "forward", "backward pre", "backward"]


@pytest.mark.parametrize("hook", ["register_full_backward_pre_hook", "register_full_backward_hook"])
def test_backward_hooks_run(hook: str) -> None:
    encoder, calls = tiny_encoder(), list[int]()
    for module in (encoder.blocks[0], encoder.blocks[2].feed_forward):
        getattr(module, hook)(lambda *_: calls.append(1))
    run_training(encoder, training.NumbaTrainingBackend())
    assert len(calls) == 2


def test_layers_are_fused_in_inference(sequences: list[KernelSequence]) -> None:
    """Also if the hidden states of all layers are returned."""
    encoder, packed = tiny_encoder().eval(), packed_tokens()
    set_kernel_backend(encoder, inference.NumbaInferenceBackend())
    with torch.inference_mode():
        last = encoder(packed)
        assert len(sequences) == 3
        states = encoder.hidden_states(packed)
    assert len(sequences) == 6
    assert torch.equal(states[-1], last)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize(
    "rows", [[0], [4], [1, 1, 1, 1, 1], [0, 0, 3, 5, 5, 5, 8, 19], list(range(20))], ids=str
)
def test_gather_and_scatter_add_rows(rows: list[int], threads: int, dtype: torch.dtype) -> None:
    generator, indices = torch.Generator().manual_seed(1), torch.tensor(rows)
    x = torch.randn(20, 48, generator=generator).to(dtype)
    y = torch.randn(len(rows), 48, generator=generator).to(dtype)
    expected = x + torch.zeros_like(x).index_add_(0, indices, y)
    previous_threads = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        actual, is_bf16 = torch.empty_like(y), int(dtype == torch.bfloat16)
        launch(row_kernels.gather_rows_kernel, is_bf16, x, actual, indices, len(rows), 48)
        assert torch.equal(actual, x[indices])
        launch(row_kernels.scatter_add_rows_kernel, is_bf16, x, y, indices, len(rows), 48)
        assert torch.equal(x, expected)
    finally:
        torch.set_num_threads(previous_threads)
