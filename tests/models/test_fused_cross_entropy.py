"""The loss over the vocabulary by parts of it, against torch's cross-entropy in fp64 and the plain way."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from bertsmith.kernels import backend_selection
from bertsmith.kernels.reference import TORCH, Kernels
from bertsmith.models import layers
from bertsmith.models.fused_cross_entropy import table_loss


class _PlainByParts(Kernels):
    """The parts by torch's operations."""

    def takes_parts(self, x: Tensor) -> bool:
        return True


WAYS: dict[str, Kernels] = {"torch": _PlainByParts()}
if backend_selection.are_here():
    WAYS["numba"] = backend_selection.of_name("numba")
ways = pytest.mark.parametrize("way", WAYS)


def given_to_it(rows: int, words: int, width: int = 24) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    drawing = torch.Generator().manual_seed(rows * words)
    x, table = torch.randn(rows, width, generator=drawing), torch.randn(words, width, generator=drawing)
    bias, labels = torch.randn(words, generator=drawing), torch.randint(words, (rows,), generator=drawing)
    labels[::2] = (x @ table.T + bias).argmax(1)[::2]
    return x, table, bias, labels


@ways
@settings(deadline=None, max_examples=30)
@given(
    rows=st.sampled_from([1, 2, 15, 16, 17, 63, 130]),
    words=st.sampled_from([1, 2, 31, 33, 4096, 4097, 9001]),
    threads=st.integers(1, 2),
)
def test_it_is_the_cross_entropy_and_has_its_slopes(way: str, rows: int, words: int, threads: int) -> None:
    *inputs, labels = given_to_it(rows, words)
    exact = [t.double().requires_grad_() for t in inputs]
    logits = exact[0] @ exact[1].T + exact[2]
    wanted = F.cross_entropy(logits, labels, reduction="sum")
    own = [t.requires_grad_() for t in inputs]
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        loss, right = table_loss(*own, labels, WAYS[way])
        slopes = torch.autograd.grad(loss * 0.25, own)
    finally:
        torch.set_num_threads(before)
    torch.testing.assert_close(loss.double(), wanted, atol=1e-4, rtol=1e-5)
    assert right == (logits.argmax(1) == labels).sum()
    for found, one in zip(slopes, torch.autograd.grad(wanted * 0.25, exact), strict=True):
        torch.testing.assert_close(found.double(), one, atol=2e-5, rtol=1e-4)


@ways
def test_where_nothing_is_trained_the_loss_is_the_same_to_the_bit(way: str) -> None:
    x, table, bias, labels = given_to_it(40, 5000)
    trained, right = table_loss(x.requires_grad_(), table, bias, labels, WAYS[way])
    with torch.no_grad():
        read, right_too = table_loss(x, table, bias, labels, WAYS[way])
    assert torch.equal(trained.detach(), read)
    assert torch.equal(right, right_too)
    assert not read.requires_grad


@ways
def test_logits_far_apart_and_what_is_no_number(way: str) -> None:
    table = torch.tensor([[200.0], [-200.0], [0.0]]).repeat(2000, 1)
    x, bias = torch.tensor([[1.0], [-1.0], [3.0]]).requires_grad_(), torch.zeros(6000)
    loss, right = table_loss(x, table, bias, torch.tensor([0, 0, 5998]), WAYS[way])
    wanted = F.cross_entropy(x.double() @ table.double().T, torch.tensor([0, 0, 5998]), reduction="sum")
    torch.testing.assert_close(loss.double(), wanted, atol=1e-3, rtol=1e-5)
    assert right == 1
    assert torch.autograd.grad(loss, x)[0].isfinite().all()
    table[5000] = torch.nan
    assert table_loss(x, table, bias, torch.tensor([0, 1, 2]), WAYS[way])[0].isnan()


@ways
def test_logits_that_have_become_slopes_are_not_used_again(way: str) -> None:
    x, table, bias, labels = given_to_it(8, 50)
    loss, _ = table_loss(x.requires_grad_(), table, bias, labels, WAYS[way])
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@pytest.mark.skipif(not hasattr(torch.ops.mkldnn, "_linear_pointwise"), reason="this torch has no oneDNN")
def test_products_by_onednn_give_the_same_slopes(monkeypatch: pytest.MonkeyPatch) -> None:
    *inputs, labels = given_to_it(40, 5000)
    own = [t.requires_grad_() for t in inputs]
    found = []
    for by_onednn in (False, True):
        monkeypatch.setattr(layers, "machine", SimpleNamespace(onednn_is_faster=lambda by=by_onednn: by))
        loss, _ = table_loss(*own, labels, WAYS["torch"])
        found.append([loss.detach(), *torch.autograd.grad(loss, own)])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, atol=2e-5, rtol=1e-4)


@pytest.fixture
def by_kernels(monkeypatch: pytest.MonkeyPatch) -> Kernels:
    """Kernels that make products in bf16, also where the processor has none of its own."""
    if "numba" not in WAYS:
        pytest.skip("Numba, the extra fast, is not installed here")
    from bertsmith.kernels.cpu import gemm_avx512bf16, matmul

    monkeypatch.setattr(matmul, "HALF_BODIES", gemm_avx512bf16)
    return WAYS["numba"]


@pytest.mark.parametrize(("rows", "words"), [(1, 40), (17, 4097), (130, 9001)])
def test_in_bf16_by_parts_too(rows: int, words: int, by_kernels: Kernels) -> None:
    """As by rows: logits and their slopes are rounded, sums and the table's slopes are in fp32."""
    *inputs, labels = given_to_it(rows, words)
    found = []
    for kernels in (by_kernels, TORCH):
        own = [t.detach().clone().requires_grad_() for t in inputs]
        with torch.autocast("cpu", torch.bfloat16):
            loss, right = table_loss(*own, labels, kernels)
        parts = loss.grad_fn is not None and type(loss.grad_fn).__name__ == "_ByPartsBackward"
        assert parts is (kernels is by_kernels)
        slopes = torch.autograd.grad(loss * 0.25, own)
        assert [slope.dtype for slope in slopes] == [torch.float32] * 3
        found.append((loss.detach() / rows, right, *slopes))
    (loss, right, *slopes), (wanted, expected, *others) = found
    torch.testing.assert_close(loss, wanted, atol=0.02, rtol=0.01)
    assert abs(right - expected) <= 0.02 * rows  # words whose logits are rounded to one number
    for one, other in zip(slopes, others, strict=True):
        torch.testing.assert_close(one, other, atol=0.02 * float(other.abs().max()), rtol=0.02)


def test_in_bf16_the_slope_of_what_is_nearly_certain_is_rounded_once(by_kernels: Kernels) -> None:
    table, labels = torch.zeros(200, 16), torch.full((16,), 3)
    table[3, 0] = 10.0
    table.requires_grad_()
    x, bias = torch.eye(16)[:1].repeat(16, 1).requires_grad_(), torch.zeros(200).requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        loss, _ = table_loss(x, table, bias, labels, by_kernels)
    of_table, of_bias = torch.autograd.grad(loss, [table, bias])
    certain = torch.softmax(torch.tensor([10.0, *[0.0] * 199], dtype=torch.float64), 0)[0]
    torch.testing.assert_close(of_table[3, 0].double(), -16 * (1 - certain), rtol=5e-3, atol=0)
    torch.testing.assert_close(of_bias[3].double(), -16 * (1 - certain), rtol=2e-3, atol=0)  # near 1


def test_who_takes_parts() -> None:
    x = torch.ones(3, 4)
    assert not TORCH.takes_parts(x)
    if "numba" in WAYS:
        assert WAYS["numba"].takes_parts(x)
        assert not WAYS["numba"].takes_parts(x.double())
