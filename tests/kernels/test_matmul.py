"""Products by kernels: torch's, however matrices lie in memory, and each element the same to the last bit in any
company; where they are taken."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from bertsmith import hardware
from bertsmith.kernels import backend_selection
from bertsmith.kernels.reference import REFERENCE, set_kernel_backend
from bertsmith.models.encoder import FeedForward
from bertsmith.models.family import preset
from bertsmith.models.layers import Linear, matmul_backend

if not backend_selection.is_numba_available():
    pytest.skip("Numba, the extra fast, is not installed here", allow_module_level=True)

from bertsmith.kernels.cpu import amx, gemm_avx512bf16, gemm_fp32, inference, matmul, training

HALVES = [gemm_avx512bf16]
if amx.is_amx_available():
    from bertsmith.kernels.cpu import gemm_amx

    HALVES.append(gemm_amx)

FAST, ANSWERS = training.NumbaTrainingBackend(), inference.NumbaInferenceBackend()
FULL, HALF = torch.float32, torch.bfloat16
LAYOUTS = ("rows", "columns", "part of rows", "part of columns", "one number", "every other")
sizes = st.sampled_from([16, 17, 22, 48, 53, 96, 200, 500])


@pytest.fixture(autouse=True, params=HALVES, ids=lambda bodies: bodies.__name__.rpartition(".")[2])
def kept(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the libraries are as quick, the kernels are taken; those in bf16 also where the processor has no
    products of it."""
    monkeypatch.setattr(matmul, "GEMM_FP32", gemm_fp32)
    monkeypatch.setattr(matmul, "GEMM_BF16", request.param)


def laid(rows: int, columns: int, layout: str, seed: int) -> Tensor:
    draw = torch.Generator().manual_seed(seed)
    if layout == "rows":
        return torch.randn(rows, columns, generator=draw)
    if layout == "columns":
        return torch.randn(columns, rows, generator=draw).T
    if layout == "part of rows":
        return torch.randn(rows + 2, columns + 5, generator=draw)[1:-1, 3:-2]
    if layout == "part of columns":
        return torch.randn(columns + 5, rows + 2, generator=draw).T[1:-1, 3:-2]
    if layout == "one number":
        return torch.randn(1, 1, generator=draw).expand(rows, columns)
    return torch.randn(2 * rows, 2 * columns, generator=draw)[::2, ::2]


@settings(deadline=None, max_examples=200)
@given(
    rows=sizes,
    columns=sizes,
    terms=st.sampled_from([16, 31, 64, 255, 256, 257, 600]),
    own=st.sampled_from(LAYOUTS),
    other=st.sampled_from(LAYOUTS),
    kinds=st.sampled_from([(FULL, FULL), (HALF, HALF), (FULL, HALF), (HALF, FULL)]),
    biased=st.booleans(),
    given_out=st.booleans(),
    threads=st.integers(1, 3),
)
def test_they_are_products(
    rows: int,
    columns: int,
    terms: int,
    own: str,
    other: str,
    kinds: tuple[torch.dtype, torch.dtype],
    *,
    biased: bool,
    given_out: bool,
    threads: int,
) -> None:
    """Where one of the two is bf16 the other is rounded to it, and sums are in fp32; so is what is asked for in
    it."""
    x, y = laid(rows, terms, own, 0).to(kinds[0]), laid(terms, columns, other, 1).to(kinds[1])
    bias = laid(1, columns, "rows", 2)[0] if biased else None
    around = torch.full((rows, columns + 4), 7.0)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        found = FAST.matmul(x, y, bias, around[:, 1:-3] if given_out else None)
    finally:
        torch.set_num_threads(before)
    if HALF in kinds:
        x, y = x.to(HALF), y.to(HALF)
    wanted = x.double() @ y.double() + (0 if bias is None else bias)
    is_rounded = HALF in kinds and not (given_out and matmul.supports_matmul(x, y, bias))
    close = {"atol": 1e-2, "rtol": 8e-3} if is_rounded else {"atol": 2e-4, "rtol": 1e-5}
    torch.testing.assert_close(found.double(), wanted, **close)
    if given_out:
        assert found.data_ptr() == around[:, 1:].data_ptr()
        assert (around[:, [0, -3, -2, -1]] == 7).all()
    torch.set_num_threads(1)
    try:
        again = torch.empty_like(found, memory_format=torch.contiguous_format) if given_out else None
        assert torch.equal(FAST.matmul(x, y, bias, again), found)
    finally:
        torch.set_num_threads(before)


@settings(deadline=None, max_examples=100)
@given(
    rows=sizes,
    columns=sizes,
    terms=st.sampled_from([16, 32, 64, 100, 258]),
    layout=st.sampled_from(LAYOUTS),
    kind=st.sampled_from([FULL, HALF]),
    biased=st.booleans(),
    activated=st.booleans(),
    threads=st.integers(1, 3),
)
def test_a_matrix_in_panels_multiplies_as_it_does_itself(
    rows: int,
    columns: int,
    terms: int,
    layout: str,
    kind: torch.dtype,
    threads: int,
    *,
    biased: bool,
    activated: bool,
) -> None:
    """To the bit; GELU is also taken in place."""
    x, y = laid(rows, terms, "rows", 0).to(HALF), laid(terms, columns, layout, 1).to(kind)
    bias = laid(1, columns, "rows", 2)[0] if biased else None
    found, wanted = (torch.empty(rows, columns, dtype=HALF) for _ in range(2))
    after = torch.empty_like(wanted) if activated else None
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        panels = matmul.pack(y)
        matmul.matmul(x, panels, bias, found, activated=found if activated else None)
    finally:
        torch.set_num_threads(before)
    matmul.matmul(x, y, bias, wanted, activated=after)
    assert panels.shape == (terms, columns)
    assert torch.equal(found, wanted if after is None else after)


@pytest.mark.parametrize(("first", "last"), [(0, 32), (32, 96), (64, 100), (96, 100), (0, 100)])
def test_some_columns_of_panels(first: int, last: int) -> None:
    x, y = laid(20, 40, "rows", 0).to(HALF), laid(40, 100, "columns", 1)
    found, wanted = torch.empty(20, last - first, dtype=HALF), torch.empty(20, 100, dtype=HALF)
    matmul.matmul(x, matmul.pack(y).slice_columns(first, last), None, found)
    matmul.matmul(x, y, None, wanted)
    assert torch.equal(found, wanted[:, first:last])


@pytest.mark.parametrize("kind", [FULL, HALF])
@pytest.mark.parametrize("own", LAYOUTS[:4])
@pytest.mark.parametrize("other", LAYOUTS[:4])
def test_rows_and_columns_do_not_depend_on_the_others(own: str, other: str, kind: torch.dtype) -> None:
    x, y, bias = laid(200, 300, own, 0).to(kind), laid(300, 90, other, 1), laid(1, 90, "rows", 2)[0]
    whole = FAST.matmul(x, y, bias)
    for first, last in ((0, 16), (1, 18), (47, 80), (100, 200)):
        assert torch.equal(FAST.matmul(x[first:last], y, bias), whole[first:last])
    for first, last in ((0, 16), (1, 18), (30, 77), (50, 90)):
        assert torch.equal(FAST.matmul(x, y[:, first:last], bias[first:last]), whole[:, first:last])


@pytest.mark.parametrize("kind", [FULL, HALF])
def test_what_is_no_number_stays_in_its_row_and_column(kind: torch.dtype) -> None:
    x, y = laid(50, 300, "rows", 0).to(kind), laid(300, 40, "rows", 1)
    clean = FAST.matmul(x, y)
    x[49, 299], y[5, 39] = torch.nan, torch.inf
    for a in (x, x.T.contiguous().T):
        found = FAST.matmul(a, y)
        assert found[49].isnan().all()
        assert not found[:49, 39].isfinite().any()
        rounded = {} if kind == FULL else {"atol": 1e-2, "rtol": 8e-3}  # by rows, where not by columns
        torch.testing.assert_close(found[:49, :39], clean[:49, :39], check_dtype=False, **rounded)


@pytest.mark.parametrize("kind", [FULL, HALF])
@pytest.mark.parametrize("terms", [20, 41, 1000])
def test_slopes_of_a_linear_layer(terms: int, kind: torch.dtype) -> None:
    """In fp32 also where inputs and slopes are bf16."""
    x, grad = laid(terms, 33, "part of rows", 0).to(kind), laid(terms, 50, "rows", 1).to(kind)
    for given_grad in (grad, grad.T.contiguous().T, grad[:1, :1].expand(terms, 50)):
        of_weight, of_bias = FAST.linear_weight_grads(x, given_grad)
        assert of_weight.dtype == of_bias.dtype == FULL
        wanted = given_grad.float().T @ x.float()
        torch.testing.assert_close(of_weight, wanted, atol=2e-4, rtol=1e-5)
        torch.testing.assert_close(of_bias, given_grad.float().sum(0), atol=2e-4, rtol=1e-5)


@pytest.mark.parametrize("kind", [FULL, HALF])
def test_slopes_may_lie_anywhere(kind: torch.dtype) -> None:
    """Those of few terms in bf16 are put past the caches where each row begins at a line of these."""
    x, grad = laid(300, 64, "rows", 1).to(kind), laid(300, 128, "rows", 2).to(kind)
    wanted = torch.empty(128, 64)
    matmul.matmul_transposed_left(grad, x, wanted)
    torch.testing.assert_close(wanted, grad.float().T @ x.float(), rtol=1e-4, atol=1e-4)
    for first, width in ((0, 80), (1, 64), (5, 70)):
        out = torch.empty(first + 128 * width)[first:].view(128, width)[:, :64]
        matmul.matmul_transposed_left(grad, x, out)
        assert torch.equal(out, wanted)


@pytest.mark.parametrize("kind", [FULL, HALF])
def test_slopes_of_many_rows_do_not_depend_on_who_makes_them(kind: torch.dtype) -> None:
    """Nor on how many do; only the sums for the bias end in another order with another number of threads."""
    x, grad = laid(1300, 70, "rows", 0).to(kind), laid(1300, 333, "rows", 1).to(kind)
    wanted = grad.double().T @ x.double(), grad.double().sum(0)
    before, weights = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            of_weight, of_bias = FAST.linear_weight_grads(x, grad)
            torch.testing.assert_close(of_bias.double(), wanted[1], atol=2e-4, rtol=1e-5)
            for _ in range(4):
                again = FAST.linear_weight_grads(x, grad)
                assert torch.equal(again[0], of_weight)
                assert torch.equal(again[1], of_bias)
            weights.append(of_weight)
    finally:
        torch.set_num_threads(before)
    assert torch.equal(weights[0], weights[1])
    assert torch.equal(weights[0], weights[2])
    torch.testing.assert_close(weights[0].double(), wanted[0], atol=2e-4, rtol=1e-5)


def test_what_is_small_or_of_another_kind_is_left_to_torch() -> None:
    for shape in ((5, 40, 40), (40, 5, 40), (40, 40, 5)):
        rows, terms, columns = shape
        x, y = laid(rows, terms, "rows", 0), laid(terms, columns, "rows", 1)
        assert torch.equal(FAST.matmul(x, y), x @ y)
        slopes = FAST.linear_weight_grads(x, laid(rows, columns, "rows", 2))
        assert torch.equal(slopes[0], laid(rows, columns, "rows", 2).T @ x)
    x = laid(40, 40, "rows", 0).double()
    assert torch.equal(FAST.matmul(x, x), x @ x)


def test_where_they_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.ones(20, 30)
    assert matmul_backend(x, FAST) is FAST
    assert matmul_backend(x, ANSWERS) is ANSWERS
    with torch.no_grad():
        assert matmul_backend(x, FAST) is not FAST  # what a run is judged by, it answers as its folder will
        assert matmul_backend(x, ANSWERS) is ANSWERS
    assert matmul_backend(x.double(), FAST) is REFERENCE
    assert matmul_backend(x.bfloat16(), FAST) is FAST
    monkeypatch.setattr(matmul, "GEMM_FP32", None)
    assert matmul_backend(x, FAST) is not FAST
    with torch.autocast("cpu", torch.bfloat16):
        assert matmul_backend(x, FAST) is FAST
        with torch.no_grad():
            assert matmul_backend(x.bfloat16(), ANSWERS) is ANSWERS
        monkeypatch.setattr(matmul, "GEMM_BF16", None)
        assert matmul_backend(x, FAST) is REFERENCE
    assert matmul_backend(x.bfloat16(), FAST) is REFERENCE


def in_kind(kind: torch.dtype) -> torch.autocast:
    """Where it is computed in this kind."""
    return torch.autocast("cpu", HALF, enabled=kind == HALF)


def close_in(kind: torch.dtype, size: Tensor, **usual: float) -> dict[str, float]:
    """How close two ways are; in bf16 in proportion to how large the numbers are."""
    return {"atol": 2e-2 * size.abs().max().item(), "rtol": 2e-2} if kind == HALF else usual


@pytest.mark.parametrize("kind", [FULL, HALF])
@pytest.mark.parametrize("trained", ["all", "weight", "bias", "x"])
def test_a_layer_there_and_back(trained: str, kind: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "onednn_is_faster", lambda: False)  # else oneDNN makes TORCH's products
    layer = Linear(40, 24)
    with torch.no_grad():
        layer.weight.copy_(laid(24, 40, "rows", 0))
        layer.bias.copy_(laid(1, 24, "rows", 1)[0])
    x, upstream = laid(70, 40, "rows", 2), laid(70, 24, "rows", 3)
    found = []
    for kernels in (FAST, REFERENCE):
        layer.kernels = kernels
        leaves = {"weight": layer.weight, "bias": layer.bias, "x": x.clone()}
        wanted = [leaf for name, leaf in leaves.items() if trained in ("all", name)]
        for leaf in leaves.values():
            leaf.requires_grad_(any(leaf is one for one in wanted))
        with in_kind(kind):
            out = layer(leaves["x"])
        assert out.dtype == kind
        assert (type(out.grad_fn).__name__ == "_ProductBackward") is (kernels is FAST)
        found.append([out.detach(), *torch.autograd.grad(out, wanted, upstream.to(kind))])
    for one, other in zip(*found, strict=True):
        assert one.dtype == other.dtype
        torch.testing.assert_close(one, other, **close_in(kind, other, atol=2e-5, rtol=1e-5))


@pytest.mark.parametrize("kind", [FULL, HALF])
@pytest.mark.parametrize("rows", [16, 101])
@pytest.mark.parametrize("trained", ["all", "none of the first", "the first", "biases", "x"])
def test_a_feed_forward_there_and_back(rows: int, trained: str, kind: torch.dtype) -> None:
    config = preset("bert-tiny-uncased", hidden_size=32, intermediate_size=100, num_attention_heads=2)
    layer = FeedForward(config)
    for number, weight in enumerate(layer.parameters()):
        weight.data.copy_(laid(1, weight.numel(), "rows", number).view(weight.shape))
    x, upstream = laid(rows, 32, "rows", 8), laid(rows, 32, "rows", 9)
    found = []
    for kernels in (FAST, REFERENCE):
        set_kernel_backend(layer, kernels)
        leaves = {"x": x.clone(), **dict(layer.named_parameters())}
        for name, leaf in leaves.items():
            is_first = name.startswith("inner")
            leaf.requires_grad_(
                trained == "all"
                or (trained == "none of the first" and not is_first and name != "x")
                or (trained == "the first" and is_first)
                or (trained == "biases" and name.endswith("bias"))
                or trained == name
            )
        with in_kind(kind):
            out = layer(leaves["x"])
        assert (type(out.grad_fn).__name__ == "FedForwardBackward") is (kernels is FAST)
        wanted = [leaf for leaf in leaves.values() if leaf.requires_grad]
        found.append([out.detach(), *torch.autograd.grad(out, wanted, upstream.to(kind))])
    for one, other in zip(*found, strict=True):
        assert one.dtype == other.dtype
        torch.testing.assert_close(one, other, **close_in(kind, other, atol=5e-4, rtol=1e-4))


def test_a_feed_forward_of_another_kind_is_made_the_usual_way() -> None:
    x = laid(20, 32, "rows", 0)
    for changes in ({"hidden_act": "relu"}, {"intermediate_size": 8}):
        config = preset("bert-tiny-uncased", **{"hidden_size": 32, "num_attention_heads": 2, **changes})
        layer = FeedForward(config)
        assert FAST.feed_forward(x, layer.inner, layer.output, layer.activation) is None
    layer = FeedForward(preset("bert-tiny-uncased", hidden_size=32, num_attention_heads=2))
    assert FAST.feed_forward(x.double(), layer.inner, layer.output, layer.activation) is None
    odd = FeedForward(
        preset("bert-tiny-uncased", hidden_size=32, num_attention_heads=2, intermediate_size=101)
    )
    assert FAST.feed_forward(x, odd.inner, odd.output, odd.activation) is not None
    # in bf16 terms are added up in pairs
    assert FAST.feed_forward(x.to(HALF), odd.inner, odd.output, odd.activation) is None
