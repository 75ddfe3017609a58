"""Matrix products by oneDNN equal torch's; embedding gradients are added to the decoder's."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import tiny_run
from bertsmith import hardware
from bertsmith.kernels.reference import KernelBackend
from bertsmith.models import encoder as encoder_module
from bertsmith.models import matmul
from bertsmith.models.encoder import Embedding, Encoder
from bertsmith.models.family import build_encoder, preset
from bertsmith.models.layers import Linear
from bertsmith.models.matmul import linear
from bertsmith.objectives.language_modeling import MaskedLM
from bertsmith.packed import Packed

HAS_ONEDNN = hasattr(torch.ops.mkldnn, "_linear_pointwise")
SIZES = [(1, 8, 6), (2, 8, 6), (40, 33, 17), (64, 384, 128)]


@pytest.fixture(params=[False, True], ids=["torch", "onednn"])
def by_onednn(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Test both backends, whichever is faster on this machine."""
    if request.param and not HAS_ONEDNN:
        pytest.skip("this torch has no oneDNN")
    monkeypatch.setattr(matmul, "hardware", SimpleNamespace(onednn_is_faster=lambda: request.param))
    return bool(request.param)


@pytest.mark.parametrize(("rows", "inputs", "outputs"), SIZES)
@pytest.mark.parametrize("biased", [True, False])
def test_output_and_gradients_equal_torchs(
    by_onednn: bool, rows: int, inputs: int, outputs: int, biased: bool
) -> None:
    generator = torch.Generator().manual_seed(rows)
    x, weight = (torch.randn(n, inputs, generator=generator) / inputs**0.5 for n in (rows, outputs))
    bias = torch.randn(outputs, generator=generator) if biased else None
    upstream = torch.randn(rows, outputs, generator=generator)
    results = []
    for function in (linear, F.linear):
        leaves = [t.clone().requires_grad_() for t in (x, weight, *([bias] if bias is not None else []))]
        out = function(leaves[0], leaves[1], leaves[2] if biased else None)
        (out * upstream).sum().backward()
        results.append([out, *(leaf.grad for leaf in leaves)])
        assert [leaf.grad is not None for leaf in leaves] == [True] * len(leaves)
    for actual, expected in zip(*results, strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)
    x = x.clone().requires_grad_()
    linear(x, weight, bias).sum().backward()  # an expanded gradient
    torch.testing.assert_close(x.grad, weight.sum(0).expand(rows, -1), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("outputs", [1, 2, 9, 384])
def test_a_row_does_not_depend_on_the_others(by_onednn: bool, outputs: int) -> None:
    generator = torch.Generator().manual_seed(0)
    x, weight = (torch.randn(n, 96, generator=generator) for n in (300, outputs))
    with torch.inference_mode():
        out = linear(x, weight, None)
        for first, last in ((0, 1), (5, 7), (3, 18), (100, 163), (1, 290)):
            assert torch.equal(linear(x[first:last], weight, None), out[first:last])


ZEN_5 = {"vendor_id": "AuthenticAMD", "cpu family": "26", "flags": "fpu avx2 avx512f avx512_bf16"}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, True),
        ({"cpu family": "23", "flags": "fpu avx2"}, True),
        ({"cpu family": "25", "flags": "fpu avx2"}, True),
        ({"cpu family": "21", "flags": "fpu avx2"}, False),
        ({"flags": "fpu sse2"}, False),
        ({"vendor_id": "GenuineIntel", "cpu family": "6"}, False),
        ({"vendor_id": "GenuineIntel", "cpu family": "27"}, False),
        ({"cpu family": "unknown"}, False),
    ],
)
def test_only_the_processor_decides_about_onednn(
    monkeypatch: pytest.MonkeyPatch, changes: dict[str, str], expected: bool
) -> None:
    """A timed probe could differ on a busy machine, and a resumed run would then have other numbers."""
    monkeypatch.setattr(hardware, "_cpu_info", lambda: ZEN_5 | changes)
    hardware.onednn_is_faster.cache_clear()
    assert hardware.onednn_is_faster() is (expected and HAS_ONEDNN)
    monkeypatch.undo()
    hardware.onednn_is_faster.cache_clear()


def test_a_machine_without_processor_details(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "_cpu_info", dict)
    hardware.onednn_is_faster.cache_clear()
    assert not hardware.onednn_is_faster()
    assert hardware.describe()["processor"]  # Python's description
    monkeypatch.undo()
    hardware.onednn_is_faster.cache_clear()


def test_embedding_gradients_are_added_to_the_decoders_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    config = preset("bert-tiny-uncased", vocab_size=tiny_run.tokenizer().vocab_size, hidden_dropout_prob=0.0)
    ids = tiny_run.tokenizer().encode("kaba lode mi kaba").ids
    packed = Packed.from_lists([ids, ids[:4]], [[0] * len(ids), [0] * 4])
    batch = SimpleNamespace(
        packed=packed, rows=torch.tensor([1, 3]), labels=torch.tensor([7, 9]), counts={"mlm": 2}
    )
    gradients = []
    for joined in (True, False):
        if not joined:
            monkeypatch.setattr(Embedding, "_joins", property(lambda self: False, lambda self, value: None))
        generator = torch.Generator().manual_seed(0)
        encoder: Encoder = build_encoder(config, generator).eval()
        objective = MaskedLM(config, generator, "none").eval()
        objective.loss(encoder, batch).sums["mlm"].backward()  # type: ignore[arg-type]
        grad = encoder.embeddings.token.weight.grad
        assert grad is not None
        assert not grad.is_sparse
        gradients.append(grad.clone())
        encoder(packed).sum().backward()  # without a decoder the gradient is dense
        assert not encoder.embeddings.token.weight.grad.is_sparse  # type: ignore[union-attr]
    torch.testing.assert_close(*gradients, rtol=1e-5, atol=1e-6)


def test_embedding_gradients_are_added_in_place() -> None:
    addresses: list[int] = []

    class Decode(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(x, table)
            return x @ table.T

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            x, table = ctx.saved_tensors
            table_grad = grad.T @ x
            addresses.append(table_grad.data_ptr())
            return grad @ table, table_grad

    table = Embedding(50, 8)
    with torch.no_grad():
        table.weight.copy_(torch.randn(50, 8, generator=torch.Generator().manual_seed(0)))
    ids = torch.tensor([3, 3, 7])
    with table.tied_decoder_weight(is_tied=True) as weight:
        x = table(ids).sin()
    Decode.apply(x, weight).square().sum().backward()
    assert table.weight.grad is not None
    assert [table.weight.grad.data_ptr()] == addresses
    grad, table.weight.grad = table.weight.grad, None
    (table(ids).sin() @ table.weight.T).square().sum().backward()
    torch.testing.assert_close(grad, table.weight.grad, rtol=1e-5, atol=1e-5)


def test_an_empty_batch(by_onednn: bool) -> None:
    layer = Linear(8, 4)
    assert layer(torch.empty(0, 8)).shape == (0, 4)


class MatmulKernels(KernelBackend):
    """Kernels that compute matrix products."""

    def has_fast_matmul(self, x: torch.Tensor) -> bool:
        return True


@pytest.mark.parametrize("mode", ["default", "onednn", "bf16", "int8", "kernels"])
def test_rows_are_padded_where_shapes_are_prepared(monkeypatch: pytest.MonkeyPatch, mode: str) -> None:
    config = preset("bert-tiny-uncased", vocab_size=50)
    encoder: Encoder = build_encoder(config, torch.Generator().manual_seed(0)).eval()
    texts = Packed.from_lists([[1, 2, 3], [4, 5]], [[0] * 3, [0] * 2])
    row_counts = []
    encoder.blocks[0].feed_forward.inner.register_forward_hook(
        lambda module, inputs, output: row_counts.append(len(inputs[0]))
    )
    monkeypatch.setattr(
        encoder_module, "hardware", SimpleNamespace(onednn_is_faster=lambda: mode in ("onednn", "kernels"))
    )
    if mode == "kernels":
        encoder.kernels = MatmulKernels()
    encoder.is_int8 = mode == "int8"
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16, enabled=mode == "bf16"):
        output = encoder(texts)
    assert row_counts == [5 if mode in ("default", "kernels") else 32]
    assert output.shape == (5, 128)
