"""Compare matrix products by kernels with PyTorch's, and test that elements do not depend on each other."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from bertsmith import hardware
from bertsmith.kernels import backend_selection
from bertsmith.kernels.reference import REFERENCE, set_kernel_backend
from bertsmith.models.family import preset
from bertsmith.models.layers import FeedForward, Linear
from bertsmith.models.matmul import matmul_backend

if not backend_selection.is_numba_available():
    pytest.skip("Numba, the extra fast, is not installed here", allow_module_level=True)

from bertsmith.kernels.cpu import amx, gemm_avx512bf16, gemm_fp32, inference, matmul, training

BF16_GEMMS = [gemm_avx512bf16]
if amx.is_amx_available():
    from bertsmith.kernels.cpu import gemm_amx

    BF16_GEMMS.append(gemm_amx)

TRAINING, INFERENCE = training.NumbaTrainingBackend(), inference.NumbaInferenceBackend()
FP32, BF16 = torch.float32, torch.bfloat16
LAYOUTS = ("row major", "column major", "row slice", "column slice", "expanded", "strided")
sizes = st.sampled_from([16, 17, 22, 48, 53, 96, 200, 500])


@pytest.fixture(autouse=True, params=BF16_GEMMS, ids=lambda module: module.__name__.rpartition(".")[2])
def use_kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Use the kernels on any processor, also if PyTorch is as fast or there are no bf16 instructions."""
    monkeypatch.setattr(matmul, "GEMM_FP32", gemm_fp32)
    monkeypatch.setattr(matmul, "GEMM_BF16", request.param)


def matrix(rows: int, columns: int, layout: str, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    if layout == "row major":
        return torch.randn(rows, columns, generator=generator)
    if layout == "column major":
        return torch.randn(columns, rows, generator=generator).T
    if layout == "row slice":
        return torch.randn(rows + 2, columns + 5, generator=generator)[1:-1, 3:-2]
    if layout == "column slice":
        return torch.randn(columns + 5, rows + 2, generator=generator).T[1:-1, 3:-2]
    if layout == "expanded":
        return torch.randn(1, 1, generator=generator).expand(rows, columns)
    return torch.randn(2 * rows, 2 * columns, generator=generator)[::2, ::2]


@settings(deadline=None, max_examples=200)
@given(
    rows=sizes,
    columns=sizes,
    terms=st.sampled_from([16, 31, 64, 255, 256, 257, 600]),
    x_layout=st.sampled_from(LAYOUTS),
    y_layout=st.sampled_from(LAYOUTS),
    dtypes=st.sampled_from([(FP32, FP32), (BF16, BF16), (FP32, BF16), (BF16, FP32)]),
    has_bias=st.booleans(),
    has_out=st.booleans(),
    threads=st.integers(1, 3),
)
def test_products_equal_those_of_pytorch(
    rows: int,
    columns: int,
    terms: int,
    x_layout: str,
    y_layout: str,
    dtypes: tuple[torch.dtype, torch.dtype],
    *,
    has_bias: bool,
    has_out: bool,
    threads: int,
) -> None:
    """If one matrix is bf16, the other is rounded to it. Sums and outputs that the caller provides are in fp32."""
    x, y = matrix(rows, terms, x_layout, 0).to(dtypes[0]), matrix(terms, columns, y_layout, 1).to(dtypes[1])
    bias = matrix(1, columns, "row major", 2)[0] if has_bias else None
    padded_out = torch.full((rows, columns + 4), 7.0)
    num_threads = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        product = TRAINING.matmul(x, y, bias, padded_out[:, 1:-3] if has_out else None)
    finally:
        torch.set_num_threads(num_threads)
    if BF16 in dtypes:
        x, y = x.to(BF16), y.to(BF16)
    expected = x.double() @ y.double() + (0 if bias is None else bias)
    is_rounded = BF16 in dtypes and not (has_out and matmul.supports_matmul(x, y, bias))
    tolerance = {"atol": 1e-2, "rtol": 8e-3} if is_rounded else {"atol": 2e-4, "rtol": 1e-5}
    torch.testing.assert_close(product.double(), expected, **tolerance)
    if has_out:
        assert product.data_ptr() == padded_out[:, 1:].data_ptr()
        assert (padded_out[:, [0, -3, -2, -1]] == 7).all()
    torch.set_num_threads(1)
    try:
        out = torch.empty_like(product, memory_format=torch.contiguous_format) if has_out else None
        assert torch.equal(TRAINING.matmul(x, y, bias, out), product)
    finally:
        torch.set_num_threads(num_threads)


@settings(deadline=None, max_examples=100)
@given(
    rows=sizes,
    columns=sizes,
    terms=st.sampled_from([16, 32, 64, 100, 258]),
    layout=st.sampled_from(LAYOUTS),
    dtypes=st.sampled_from([(FP32, FP32), (FP32, BF16), (BF16, BF16)]),
    has_bias=st.booleans(),
    has_gelu=st.booleans(),
    threads=st.integers(1, 3),
)
def test_a_packed_matrix_multiplies_bit_for_bit_as_an_unpacked_one(
    rows: int,
    columns: int,
    terms: int,
    layout: str,
    dtypes: tuple[torch.dtype, torch.dtype],
    threads: int,
    *,
    has_bias: bool,
    has_gelu: bool,
) -> None:
    """GELU is also computed in place."""
    y_dtype, product_dtype = dtypes
    x, y = (
        matrix(rows, terms, "row major", 0).to(product_dtype),
        matrix(terms, columns, layout, 1).to(y_dtype),
    )
    bias = matrix(1, columns, "row major", 2)[0] if has_bias else None
    product, expected = (torch.empty(rows, columns, dtype=product_dtype) for _ in range(2))
    expected_gelu = torch.empty_like(expected) if has_gelu else None
    num_threads = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        packed = matmul.pack(y, product_dtype)
        matmul.matmul(x, packed, bias, product, activated=product if has_gelu else None)
    finally:
        torch.set_num_threads(num_threads)
    matmul.matmul(x, y, bias, expected, activated=expected_gelu)
    assert packed.shape == (terms, columns)
    assert torch.equal(product, expected if expected_gelu is None else expected_gelu)


@pytest.mark.parametrize(("first", "last"), [(0, 32), (32, 96), (64, 100), (96, 100), (0, 100)])
@pytest.mark.parametrize("dtype", [FP32, BF16])
def test_columns_of_a_packed_matrix(first: int, last: int, dtype: torch.dtype) -> None:
    x, y = matrix(20, 40, "row major", 0).to(dtype), matrix(40, 100, "column major", 1)
    product, expected = torch.empty(20, last - first, dtype=dtype), torch.empty(20, 100, dtype=dtype)
    matmul.matmul(x, matmul.pack(y, dtype).slice_columns(first, last), None, product)
    matmul.matmul(x, y, None, expected)
    assert torch.equal(product, expected[:, first:last])


@pytest.mark.parametrize("dtype", [FP32, BF16])
@pytest.mark.parametrize("x_layout", LAYOUTS[:4])
@pytest.mark.parametrize("y_layout", LAYOUTS[:4])
def test_rows_and_columns_do_not_depend_on_the_others(
    x_layout: str, y_layout: str, dtype: torch.dtype
) -> None:
    x, y = matrix(200, 300, x_layout, 0).to(dtype), matrix(300, 90, y_layout, 1)
    bias = matrix(1, 90, "row major", 2)[0]
    product = TRAINING.matmul(x, y, bias)
    for first, last in ((0, 16), (1, 18), (47, 80), (100, 200)):
        assert torch.equal(TRAINING.matmul(x[first:last], y, bias), product[first:last])
    for first, last in ((0, 16), (1, 18), (30, 77), (50, 90)):
        assert torch.equal(TRAINING.matmul(x, y[:, first:last], bias[first:last]), product[:, first:last])


@pytest.mark.parametrize("dtype", [FP32, BF16])
def test_nan_and_infinity_stay_in_their_row_and_column(dtype: torch.dtype) -> None:
    x, y = matrix(50, 300, "row major", 0).to(dtype), matrix(300, 40, "row major", 1)
    expected = TRAINING.matmul(x, y)
    x[49, 299], y[5, 39] = torch.nan, torch.inf
    for a in (x, x.T.contiguous().T):
        product = TRAINING.matmul(a, y)
        assert product[49].isnan().all()
        assert not product[:49, 39].isfinite().any()
        # In bf16 the result is rounded for a row-major matrix, but not for a column-major one.
        tolerance = {} if dtype == FP32 else {"atol": 1e-2, "rtol": 8e-3}
        torch.testing.assert_close(product[:49, :39], expected[:49, :39], check_dtype=False, **tolerance)


@pytest.mark.parametrize("dtype", [FP32, BF16])
@pytest.mark.parametrize("terms", [20, 41, 1000])
def test_gradients_of_a_linear_layer(terms: int, dtype: torch.dtype) -> None:
    """They are in fp32 also if inputs and output gradients are bf16."""
    x, grad = matrix(terms, 33, "row slice", 0).to(dtype), matrix(terms, 50, "row major", 1).to(dtype)
    for out_grad in (grad, grad.T.contiguous().T, grad[:1, :1].expand(terms, 50)):
        weight_grad, bias_grad = TRAINING.linear_weight_grads(x, out_grad)
        assert weight_grad.dtype == bias_grad.dtype == FP32
        torch.testing.assert_close(weight_grad, out_grad.float().T @ x.float(), atol=2e-4, rtol=1e-5)
        torch.testing.assert_close(bias_grad, out_grad.float().sum(0), atol=2e-4, rtol=1e-5)


@pytest.mark.parametrize("dtype", [FP32, BF16])
def test_weight_gradients_are_written_to_any_address(dtype: torch.dtype) -> None:
    """In bf16 with few terms, rows that are aligned to cache lines are stored past the caches."""
    x, grad = matrix(300, 64, "row major", 1).to(dtype), matrix(300, 128, "row major", 2).to(dtype)
    expected = torch.empty(128, 64)
    matmul.matmul_transposed_left(grad, x, expected)
    torch.testing.assert_close(expected, grad.float().T @ x.float(), rtol=1e-4, atol=1e-4)
    for first, stride in ((0, 80), (1, 64), (5, 70)):
        out = torch.empty(first + 128 * stride)[first:].view(128, stride)[:, :64]
        matmul.matmul_transposed_left(grad, x, out)
        assert torch.equal(out, expected)


@pytest.mark.parametrize("dtype", [FP32, BF16])
def test_weight_gradients_of_many_rows_do_not_depend_on_threads(dtype: torch.dtype) -> None:
    """Only the bias gradients are summed in another order with another number of threads."""
    x, grad = matrix(1300, 70, "row major", 0).to(dtype), matrix(1300, 333, "row major", 1).to(dtype)
    expected_weight_grad, expected_bias_grad = grad.double().T @ x.double(), grad.double().sum(0)
    num_threads, weight_grads = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            weight_grad, bias_grad = TRAINING.linear_weight_grads(x, grad)
            torch.testing.assert_close(bias_grad.double(), expected_bias_grad, atol=2e-4, rtol=1e-5)
            for _ in range(4):
                repeated = TRAINING.linear_weight_grads(x, grad)
                assert torch.equal(repeated[0], weight_grad)
                assert torch.equal(repeated[1], bias_grad)
            weight_grads.append(weight_grad)
    finally:
        torch.set_num_threads(num_threads)
    assert torch.equal(weight_grads[0], weight_grads[1])
    assert torch.equal(weight_grads[0], weight_grads[2])
    torch.testing.assert_close(weight_grads[0].double(), expected_weight_grad, atol=2e-4, rtol=1e-5)


def test_small_matrices_and_other_dtypes_use_pytorch() -> None:
    for rows, terms, columns in ((5, 40, 40), (40, 5, 40), (40, 40, 5)):
        x, y = matrix(rows, terms, "row major", 0), matrix(terms, columns, "row major", 1)
        assert torch.equal(TRAINING.matmul(x, y), x @ y)
        grad = matrix(rows, columns, "row major", 2)
        assert torch.equal(TRAINING.linear_weight_grads(x, grad)[0], grad.T @ x)
    x = matrix(40, 40, "row major", 0).double()
    assert torch.equal(TRAINING.matmul(x, x), x @ x)


def test_backend_of_products(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.ones(20, 30)
    assert matmul_backend(x, TRAINING) is TRAINING
    assert matmul_backend(x, INFERENCE) is INFERENCE
    with torch.no_grad():
        # Validation during training computes as the saved model does.
        assert matmul_backend(x, TRAINING) is not TRAINING
        assert matmul_backend(x, INFERENCE) is INFERENCE
    assert matmul_backend(x.double(), TRAINING) is REFERENCE
    assert matmul_backend(x.bfloat16(), TRAINING) is TRAINING
    monkeypatch.setattr(matmul, "GEMM_FP32", None)
    assert matmul_backend(x, TRAINING) is not TRAINING
    with torch.autocast("cpu", torch.bfloat16):
        assert matmul_backend(x, TRAINING) is TRAINING
        with torch.no_grad():
            assert matmul_backend(x.bfloat16(), INFERENCE) is INFERENCE
        monkeypatch.setattr(matmul, "GEMM_BF16", None)
        assert matmul_backend(x, TRAINING) is REFERENCE
    assert matmul_backend(x.bfloat16(), TRAINING) is REFERENCE


def autocast_to(dtype: torch.dtype) -> torch.autocast:
    return torch.autocast("cpu", BF16, enabled=dtype == BF16)


def tolerance_for(dtype: torch.dtype, expected: Tensor, **fp32_tolerance: float) -> dict[str, float]:
    """Return the tolerances of assert_close; in bf16 they are relative to the largest value."""
    bf16_tolerance = {"atol": 2e-2 * expected.abs().max().item(), "rtol": 2e-2}
    return bf16_tolerance if dtype == BF16 else fp32_tolerance


@pytest.mark.parametrize("dtype", [FP32, BF16])
@pytest.mark.parametrize("trained", ["all", "weight", "bias", "x"])
def test_forward_and_backward_of_a_linear_layer(
    trained: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hardware, "onednn_is_faster", lambda: False)  # Otherwise REFERENCE uses oneDNN.
    layer = Linear(40, 24)
    with torch.no_grad():
        layer.weight.copy_(matrix(24, 40, "row major", 0))
        layer.bias.copy_(matrix(1, 24, "row major", 1)[0])
    x, out_grad = matrix(70, 40, "row major", 2), matrix(70, 24, "row major", 3)
    results = []
    for kernels in (TRAINING, REFERENCE):
        layer.kernels = kernels
        inputs = {"weight": layer.weight, "bias": layer.bias, "x": x.clone()}
        for name, tensor in inputs.items():
            tensor.requires_grad_(trained in ("all", name))
        with autocast_to(dtype):
            out = layer(inputs["x"])
        assert out.dtype == dtype
        assert (type(out.grad_fn).__name__ == "_BackendMatmulBackward") is (kernels is TRAINING)
        trained_inputs = [tensor for tensor in inputs.values() if tensor.requires_grad]
        results.append([out.detach(), *torch.autograd.grad(out, trained_inputs, out_grad.to(dtype))])
    for actual, expected in zip(*results, strict=True):
        assert actual.dtype == expected.dtype
        torch.testing.assert_close(actual, expected, **tolerance_for(dtype, expected, atol=2e-5, rtol=1e-5))


@pytest.mark.parametrize("dtype", [FP32, BF16])
@pytest.mark.parametrize("rows", [16, 101])
@pytest.mark.parametrize("trained", ["all", "second layer", "first layer", "biases", "x"])
def test_forward_and_backward_of_a_feed_forward_layer(rows: int, trained: str, dtype: torch.dtype) -> None:
    config = preset("bert-tiny-uncased", hidden_size=32, intermediate_size=100, num_attention_heads=2)
    layer = FeedForward(config)
    for seed, weight in enumerate(layer.parameters()):
        weight.data.copy_(matrix(1, weight.numel(), "row major", seed).view(weight.shape))
    x, out_grad = matrix(rows, 32, "row major", 8), matrix(rows, 32, "row major", 9)
    results = []
    for kernels in (TRAINING, REFERENCE):
        set_kernel_backend(layer, kernels)
        inputs = {"x": x.clone(), **dict(layer.named_parameters())}
        for name, tensor in inputs.items():
            is_first = name.startswith("inner")
            tensor.requires_grad_(
                trained == "all"
                or (trained == "second layer" and not is_first and name != "x")
                or (trained == "first layer" and is_first)
                or (trained == "biases" and name.endswith("bias"))
                or trained == name
            )
        with autocast_to(dtype):
            out = layer(inputs["x"])
        assert (type(out.grad_fn).__name__ == "FeedForwardFunctionBackward") is (kernels is TRAINING)
        trained_inputs = [tensor for tensor in inputs.values() if tensor.requires_grad]
        results.append([out.detach(), *torch.autograd.grad(out, trained_inputs, out_grad.to(dtype))])
    for actual, expected in zip(*results, strict=True):
        assert actual.dtype == expected.dtype
        torch.testing.assert_close(actual, expected, **tolerance_for(dtype, expected, atol=5e-4, rtol=1e-4))


def test_unsupported_feed_forward_layers_use_pytorch() -> None:
    x = matrix(20, 32, "row major", 0)
    for changes in ({"hidden_act": "relu"}, {"intermediate_size": 8}):
        config = preset("bert-tiny-uncased", **{"hidden_size": 32, "num_attention_heads": 2, **changes})
        layer = FeedForward(config)
        assert TRAINING.feed_forward(x, layer.inner, layer.output, layer.activation) is None
    layer = FeedForward(preset("bert-tiny-uncased", hidden_size=32, num_attention_heads=2))
    assert TRAINING.feed_forward(x.double(), layer.inner, layer.output, layer.activation) is None
    odd = FeedForward(
        preset("bert-tiny-uncased", hidden_size=32, num_attention_heads=2, intermediate_size=101)
    )
    assert TRAINING.feed_forward(x, odd.inner, odd.output, odd.activation) is not None
    # The bf16 kernels add up terms in pairs.
    assert TRAINING.feed_forward(x.to(BF16), odd.inner, odd.output, odd.activation) is None
