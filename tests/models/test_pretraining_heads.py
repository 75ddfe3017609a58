"""Fused cross-entropy over chunks of the vocabulary, against torch in fp64 and against all logits at once."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from bertsmith.kernels import backend_selection
from bertsmith.kernels.reference import REFERENCE, KernelBackend
from bertsmith.models import matmul
from bertsmith.models.pretraining_heads import fused_cross_entropy


class _ChunkedReference(KernelBackend):
    """The reference kernels with a chunked loss."""

    def prefers_chunked_loss(self, x: Tensor) -> bool:
        return True


BACKENDS: dict[str, KernelBackend] = {"torch": _ChunkedReference()}
if backend_selection.is_numba_available():
    BACKENDS["numba"] = backend_selection.load_backend("numba")
backends = pytest.mark.parametrize("backend", BACKENDS)


def random_inputs(rows: int, words: int, size: int = 24) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(rows * words)
    x, table = (torch.randn(n, size, generator=generator) for n in (rows, words))
    bias, labels = torch.randn(words, generator=generator), torch.randint(words, (rows,), generator=generator)
    labels[::2] = (x @ table.T + bias).argmax(1)[::2]
    return x, table, bias, labels


@backends
@settings(deadline=None, max_examples=30)
@given(
    rows=st.sampled_from([1, 2, 15, 16, 17, 63, 130]),
    words=st.sampled_from([1, 2, 31, 33, 4096, 4097, 9001]),
    threads=st.integers(1, 2),
)
def test_loss_and_gradients_equal_cross_entropy(backend: str, rows: int, words: int, threads: int) -> None:
    *inputs, labels = random_inputs(rows, words)
    exact = [t.double().requires_grad_() for t in inputs]
    logits = exact[0] @ exact[1].T + exact[2]
    expected = F.cross_entropy(logits, labels, reduction="sum")
    leaves = [t.requires_grad_() for t in inputs]
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        loss, num_correct = fused_cross_entropy(*leaves, labels, BACKENDS[backend])
        gradients = torch.autograd.grad(loss * 0.25, leaves)
    finally:
        torch.set_num_threads(before)
    torch.testing.assert_close(loss.double(), expected, atol=1e-4, rtol=1e-5)
    assert num_correct == (logits.argmax(1) == labels).sum()
    for grad, expected_grad in zip(gradients, torch.autograd.grad(expected * 0.25, exact), strict=True):
        torch.testing.assert_close(grad.double(), expected_grad, atol=2e-5, rtol=1e-4)


@backends
def test_the_loss_without_gradients_is_equal_bit_for_bit(backend: str) -> None:
    x, table, bias, labels = random_inputs(40, 5000)
    trained, num_correct = fused_cross_entropy(x.requires_grad_(), table, bias, labels, BACKENDS[backend])
    with torch.no_grad():
        evaluated, num_correct_evaluated = fused_cross_entropy(x, table, bias, labels, BACKENDS[backend])
    assert torch.equal(trained.detach(), evaluated)
    assert torch.equal(num_correct, num_correct_evaluated)
    assert not evaluated.requires_grad


@backends
def test_extreme_logits_and_nan(backend: str) -> None:
    table = torch.tensor([[200.0], [-200.0], [0.0]]).repeat(2000, 1)
    x, bias = torch.tensor([[1.0], [-1.0], [3.0]]).requires_grad_(), torch.zeros(6000)
    loss, num_correct = fused_cross_entropy(x, table, bias, torch.tensor([0, 0, 5998]), BACKENDS[backend])
    expected = F.cross_entropy(x.double() @ table.double().T, torch.tensor([0, 0, 5998]), reduction="sum")
    torch.testing.assert_close(loss.double(), expected, atol=1e-3, rtol=1e-5)
    assert num_correct == 1
    assert torch.autograd.grad(loss, x)[0].isfinite().all()
    table[5000] = torch.nan
    assert fused_cross_entropy(x, table, bias, torch.tensor([0, 1, 2]), BACKENDS[backend])[0].isnan()


@backends
def test_a_second_backward_pass_is_refused(backend: str) -> None:
    x, table, bias, labels = random_inputs(8, 50)
    loss, _ = fused_cross_entropy(x.requires_grad_(), table, bias, labels, BACKENDS[backend])
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@pytest.mark.skipif(not hasattr(torch.ops.mkldnn, "_linear_pointwise"), reason="this torch has no oneDNN")
def test_onednn_gives_the_same_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    *inputs, labels = random_inputs(40, 5000)
    leaves = [t.requires_grad_() for t in inputs]
    results = []
    for by_onednn in (False, True):
        monkeypatch.setattr(matmul, "hardware", SimpleNamespace(onednn_is_faster=lambda by=by_onednn: by))
        loss, _ = fused_cross_entropy(*leaves, labels, BACKENDS["torch"])
        results.append([loss.detach(), *torch.autograd.grad(loss, leaves)])
    for first, second in zip(*results, strict=True):
        torch.testing.assert_close(first, second, atol=2e-5, rtol=1e-4)


@pytest.fixture
def bf16_kernels(monkeypatch: pytest.MonkeyPatch) -> KernelBackend:
    """Return kernels with bf16 products, also on processors without bf16 instructions."""
    if "numba" not in BACKENDS:
        pytest.skip("Numba, the extra fast, is not installed")
    from bertsmith.kernels.cpu import gemm_avx512bf16, matmul

    monkeypatch.setattr(matmul, "GEMM_BF16", gemm_avx512bf16)
    return BACKENDS["numba"]


@pytest.mark.parametrize(("rows", "words"), [(1, 40), (17, 4097), (130, 9001)])
def test_the_chunked_loss_in_bf16(rows: int, words: int, bf16_kernels: KernelBackend) -> None:
    """Logits and their gradients are rounded; sums and the gradients of the embeddings are in fp32."""
    *inputs, labels = random_inputs(rows, words)
    results = []
    for kernels in (bf16_kernels, REFERENCE):
        leaves = [t.detach().clone().requires_grad_() for t in inputs]
        with torch.autocast("cpu", torch.bfloat16):
            loss, num_correct = fused_cross_entropy(*leaves, labels, kernels)
        is_chunked = loss.grad_fn is not None and type(loss.grad_fn).__name__ == "_ChunkedLogitsBackward"
        assert is_chunked is (kernels is bf16_kernels)
        gradients = torch.autograd.grad(loss * 0.25, leaves)
        assert [grad.dtype for grad in gradients] == [torch.float32] * 3
        results.append((loss.detach() / rows, num_correct, *gradients))
    (loss, num_correct, *gradients), (expected, expected_correct, *expected_gradients) = results
    torch.testing.assert_close(loss, expected, atol=0.02, rtol=0.01)
    assert abs(num_correct - expected_correct) <= 0.02 * rows  # rounding makes some logits equal
    for grad, expected_grad in zip(gradients, expected_gradients, strict=True):
        tolerance = 0.02 * float(expected_grad.abs().max())
        torch.testing.assert_close(grad, expected_grad, atol=tolerance, rtol=0.02)


def test_gradients_of_nearly_certain_predictions_are_rounded_once_in_bf16(
    bf16_kernels: KernelBackend,
) -> None:
    table, labels = torch.zeros(200, 16), torch.full((16,), 3)
    table[3, 0] = 10.0
    table.requires_grad_()
    x, bias = torch.eye(16)[:1].repeat(16, 1).requires_grad_(), torch.zeros(200).requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        loss, _ = fused_cross_entropy(x, table, bias, labels, bf16_kernels)
    table_grad, bias_grad = torch.autograd.grad(loss, [table, bias])
    probability = torch.softmax(torch.tensor([10.0, *[0.0] * 199], dtype=torch.float64), 0)[0]
    torch.testing.assert_close(table_grad[3, 0].double(), -16 * (1 - probability), rtol=5e-3, atol=0)
    torch.testing.assert_close(
        bias_grad[3].double(), -16 * (1 - probability), rtol=2e-3, atol=0
    )  # the probability is near 1


def test_backends_that_chunk_the_loss() -> None:
    x = torch.ones(3, 4)
    assert not REFERENCE.prefers_chunked_loss(x)
    if "numba" in BACKENDS:
        assert BACKENDS["numba"].prefers_chunked_loss(x)
        assert not BACKENDS["numba"].prefers_chunked_loss(x.double())
