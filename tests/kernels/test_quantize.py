"""Compare quantization and int8 linear layers by kernels with PyTorch, and int8 embeddings across batches."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bertsmith import hardware
from bertsmith.device import ComputeContext
from bertsmith.hardware import Precision
from bertsmith.kernels import backend_selection
from bertsmith.kernels.linear import DequantParams, QuantizedLinear
from bertsmith.kernels.reference import REFERENCE, KernelBackend
from bertsmith.models.family import build_encoder, preset
from bertsmith.models.quantization import quantize_encoder
from bertsmith.packed import Packed

if not backend_selection.is_numba_available():
    pytest.skip("Numba, the extra fast, is not installed here", allow_module_level=True)

from bertsmith.kernels.cpu import amx, gemm_int8_vnni, matmul, quantize

INT8_GEMMS: list[Any] = [gemm_int8_vnni]
if amx.is_amx_available():
    from bertsmith.kernels.cpu import gemm_int8_amx

    INT8_GEMMS.append(gemm_int8_amx)

backend_selection.load_backend("numba")  # Otherwise inference starts before the kernels are compiled.
NUMBA = backend_selection.select_inference_backend(128)


@pytest.fixture(
    params=[*INT8_GEMMS, None], ids=lambda module: str(module and module.__name__.rpartition(".")[2])
)
def has_native_gemm(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Use each int8 kernel in turn, also if the processor has no such instructions, and then none of them."""
    monkeypatch.setattr(matmul, "GEMM_INT8", request.param)
    return request.param is not None


def normal(*shape: int, seed: int, scale: float = 1.0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * scale


@settings(deadline=None, max_examples=40)
@given(
    rows=st.integers(1, 40),
    columns=st.sampled_from([16, 48, 384, 20]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    threads=st.integers(1, 2),
    seed=st.integers(0, 9),
)
def test_quantize_and_dequantize(
    rows: int, columns: int, dtype: torch.dtype, threads: int, seed: int
) -> None:
    x = normal(rows, columns, seed=seed, scale=3).to(dtype)
    input_scale = normal(columns, seed=seed + 1).abs() + 0.1
    num_threads = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        with torch.inference_mode():
            quantized, steps, offsets = NUMBA.quantize_rows(x, input_scale)
            expected, expected_steps, expected_offsets = REFERENCE.quantize_rows(x, input_scale)
            torch.testing.assert_close(steps, expected_steps, atol=0, rtol=1e-6)
            # An offset is the minimum plus half of the range, which can cancel out.
            atol = 2e-7 * float(x.abs().max() * input_scale.max())
            torch.testing.assert_close(offsets, expected_offsets, atol=atol, rtol=1e-5)
            difference = (quantized.int() - expected.int()).abs()
            assert int(difference.max()) <= 1  # A value halfway between two integers may become either.
            assert float((difference > 0).float().mean()) < 0.01

            sums = torch.randint(-(10**6), 10**6, (rows, columns), dtype=torch.int32)
            params = DequantParams(*(normal(columns, seed=seed + i) for i in (2, 3, 4, 5)))
            outliers = normal(rows, 1, seed=seed + 6, scale=1e4)
            output, expected_output = (
                kernels.dequantize(sums, steps, offsets, outliers, params, dtype)
                for kernels in (NUMBA, REFERENCE)
            )
            assert output.dtype == dtype
            tolerance = 0.01 if dtype == torch.bfloat16 else 1e-5
            atol = tolerance * float(expected_output.abs().max())
            torch.testing.assert_close(output, expected_output, atol=atol, rtol=tolerance)
    finally:
        torch.set_num_threads(num_threads)


def test_a_constant_row_is_quantized_to_finite_values() -> None:
    with torch.inference_mode():
        quantized, step, offset = NUMBA.quantize_rows(torch.full((1, 16), 2.5), torch.ones(16))
    assert torch.isfinite(step * quantized + offset).all()
    torch.testing.assert_close(step * quantized + offset, torch.full((1, 16), 2.5))


def test_nan_stays_in_its_row(*, has_native_gemm: bool) -> None:
    x = normal(4, 64, seed=0)
    x[1, 5] = torch.nan
    sums, params = torch.ones(4, 64, dtype=torch.int32), DequantParams(*torch.ones(4, 64))
    with torch.inference_mode():
        _, steps, offsets = NUMBA.quantize_rows(x, torch.ones(64))
        dequantized = NUMBA.dequantize(sums, steps, offsets, x[:, :1], params, torch.float32)
        weight = NUMBA.pack_int8_weight(torch.ones(64, 64, dtype=torch.int8), is_native=has_native_gemm)
        output = NUMBA.int8_linear(x, QuantizedLinear(torch.ones(64), weight, params, 0), torch.float32)
    for result in (dequantized, output):
        assert result.isnan().all(1).tolist() == [False, True, False, False]
        assert not result[[0, 2, 3]].isnan().any()


@settings(deadline=None, max_examples=40)
@given(
    rows=st.sampled_from([1, 2, 3, 4, 5, 31, 63, 64, 65, 130]),
    inputs=st.sampled_from([16, 48, 384, 20, 1536]),
    outputs=st.sampled_from([16, 64, 80, 384, 10]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    threads=st.integers(1, 2),
    activated=st.booleans(),
)
def test_an_int8_linear_layer_is_the_same_by_all_kernels(
    rows: int, inputs: int, outputs: int, dtype: torch.dtype, threads: int, *, activated: bool
) -> None:
    x = normal(rows, inputs, seed=rows, scale=3).to(dtype)
    input_scale = normal(inputs, seed=1).abs() + 0.1
    weight = torch.randint(
        -127, 128, (inputs, outputs), dtype=torch.int8, generator=torch.Generator().manual_seed(2)
    )
    scale, bias = normal(outputs, seed=3).abs() * 0.01, normal(outputs, seed=4)
    outlier_channel = rows % inputs
    weight[outlier_channel], input_scale[outlier_channel] = 0, 0.0
    params = DequantParams(weight.sum(0, dtype=torch.float32), scale, bias, normal(outputs, seed=5, scale=50))
    num_threads = torch.get_num_threads()
    torch.set_num_threads(threads)
    default_gemm = matmul.GEMM_INT8
    is_exact = hardware.has_int8_matmul()  # Otherwise inference does not use PyTorch's int8 products.
    configs: list[tuple[KernelBackend, bool, Any]]
    configs = [(REFERENCE, is_exact, None), (REFERENCE, False, None), (NUMBA, False, None)]
    for module in INT8_GEMMS:
        is_supported = inputs % quantize.COLUMNS == 0 and outputs % module.OUTPUT_MULTIPLE == 0
        configs.append((NUMBA, is_exact or is_supported, module))
    results = []
    try:
        with torch.inference_mode():
            for kernels, is_native, matmul.GEMM_INT8 in configs:
                packed_weight = kernels.pack_int8_weight(weight, is_native=is_native)
                linear = QuantizedLinear(input_scale, packed_weight, params, outlier_channel)
                results.append(kernels.int8_linear(x, linear, dtype, gelu=activated))
    finally:
        matmul.GEMM_INT8 = default_gemm
        torch.set_num_threads(num_threads)
    expected, fp32_result, *kernel_results = results
    assert torch.equal(expected, fp32_result)
    # A value halfway between two integers may become either, so that an output differs by a weight.
    size = float(expected.float().abs().max())
    for result in kernel_results:
        assert result.dtype == dtype
        torch.testing.assert_close(result.float(), expected.float(), atol=2e-3 * size, rtol=0.01)
        assert float((result.float() - expected.float()).abs().mean()) < 3e-4 * size + 1e-6


@pytest.mark.usefixtures("has_native_gemm")
def test_sums_of_the_largest_integers_are_exact() -> None:
    inputs, outputs = 4096, 32
    x = torch.full((2, inputs), 1.0)
    x[:, 0] = -1.0  # 1 becomes 127, and -1 becomes -128.
    weight = torch.full((inputs, outputs), 127, dtype=torch.int8)
    weight[:, 1::2] = -127
    ones, zeros = torch.ones(outputs), torch.zeros(outputs)
    params = DequantParams(weight.sum(0, dtype=torch.float32), ones, zeros, zeros)
    expected = (x @ weight.float()).double()
    is_exact = hardware.has_int8_matmul()  # Otherwise inference does not use PyTorch's int8 products.
    configs = (REFERENCE, is_exact), (REFERENCE, False), (NUMBA, is_exact), (NUMBA, False)
    with torch.inference_mode():
        for kernels, is_native in configs:
            packed_weight = kernels.pack_int8_weight(weight, is_native=is_native)
            linear = QuantizedLinear(torch.ones(inputs), packed_weight, params, 0)
            output = kernels.int8_linear(x, linear, torch.float32)
            torch.testing.assert_close(output.double(), expected, rtol=1e-5, atol=1.0)


def test_layout_of_packed_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = torch.arange(-128, 128, dtype=torch.int16).to(torch.int8).view(16, 16)
    for kernels in (REFERENCE, NUMBA):
        assert torch.equal(kernels.pack_int8_weight(weight, is_native=True), weight)
        unsupported = kernels.pack_int8_weight(weight[:, :10], is_native=False)
        assert torch.equal(unsupported, weight[:, :10].float())
    int16_pairs = NUMBA.pack_int8_weight(weight, is_native=False)
    if int16_pairs.dtype == torch.int16:  # The processor has AVX2.
        assert int16_pairs.shape == (1, 8, 16, 2)
        assert int16_pairs[0, 3, 5].tolist() == weight[6:8, 5].tolist()
    monkeypatch.setattr(matmul, "GEMM_INT8", gemm_int8_vnni)
    large_weight = torch.cat([weight] * 4, 1)
    int8_quads = NUMBA.pack_int8_weight(large_weight, is_native=True)
    assert int8_quads.shape == (2, 4, 32, 4)
    assert int8_quads[1, 3, 5].tolist() == large_weight[12:16, 37].tolist()
    for module in INT8_GEMMS[1:]:
        monkeypatch.setattr(matmul, "GEMM_INT8", module)
        padded_quads = NUMBA.pack_int8_weight(large_weight, is_native=True)
        assert padded_quads.shape == (2, 16, 32, 4)
        assert torch.equal(padded_quads[:, :4], int8_quads)
        assert not padded_quads[:, 4:].any()


@pytest.mark.parametrize("is_native", [True, False])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_an_int8_encoder_equals_the_reference_and_does_not_depend_on_the_batch(
    precision: Precision, is_native: bool, monkeypatch: pytest.MonkeyPatch, *, has_native_gemm: bool
) -> None:
    monkeypatch.setattr(hardware, "has_int8_matmul", lambda: is_native)
    config = preset("bert-mini-uncased", vocab_size=300)
    encoder = build_encoder(config, torch.Generator().manual_seed(0)).eval()
    lengths = [7, 60, 200, 1, 128, 33, 129, 16]
    ids = torch.randint(5, 300, (sum(lengths),), generator=torch.Generator().manual_seed(1)).numpy()
    texts = Packed.from_arrays(ids, np.zeros_like(ids), np.array(lengths))
    context = ComputeContext(torch.device("cpu"), precision, torch.Generator())
    numba_encoder, reference_encoder = (
        quantize_encoder(encoder, texts, kernels) for kernels in (NUMBA, REFERENCE)
    )
    if has_native_gemm and is_native:
        assert not numba_encoder.is_int8  # PyTorch's own int8 products are not used.
    assert {module.kernels for module in numba_encoder.modules() if hasattr(module, "kernels")} == {NUMBA}
    assert {module.kernels for module in encoder.modules() if hasattr(module, "kernels")} == {REFERENCE}
    with torch.inference_mode():
        output, expected = (
            context.autocast_encoder(model)(texts) for model in (numba_encoder, reference_encoder)
        )
        assert float(torch.cosine_similarity(output, expected).min()) > 0.998
        for start, end in zip(texts.cu_seqlens[:-1].tolist(), texts.cu_seqlens[1:].tolist(), strict=True):
            text = texts.tokens[start:end].numpy(), texts.segments[start:end].numpy()
            single = Packed.from_lists(*([part.tolist()] for part in text))
            assert torch.equal(context.autocast_encoder(numba_encoder)(single), output[start:end])
