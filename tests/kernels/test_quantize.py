"""The compiled kernels of answers in 8 bits against torch's operations; what they answer alone and in company."""

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
from bertsmith.kernels.reference import REFERENCE, DequantParams, KernelBackend, QuantizedLinear
from bertsmith.models.family import build_encoder, preset
from bertsmith.models.quantization import quantize_encoder
from bertsmith.packed import Packed

if not backend_selection.is_numba_available():
    pytest.skip("Numba, the extra fast, is not installed here", allow_module_level=True)

from bertsmith.kernels.cpu import amx, gemm_int8_vnni, matmul_int8, quantize

NATIVES: list[Any] = [gemm_int8_vnni]
if amx.is_amx_available():
    from bertsmith.kernels.cpu import gemm_int8_amx

    NATIVES.append(gemm_int8_amx)

backend_selection.load_backend("numba")  # compiles the kernels, for which answers do not wait
FAST = backend_selection.select_inference_backend(128)


@pytest.fixture(
    params=[*NATIVES, None], ids=lambda bodies: str(bodies and bodies.__name__.rpartition(".")[2])
)
def native(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether integers are multiplied by these bodies: in fours also by a processor that has no such products."""
    monkeypatch.setattr(matmul_int8, "GEMM_INT8", request.param)
    return request.param is not None


def normal(*shape: int, seed: int, scale: float = 1.0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * scale


@settings(deadline=None, max_examples=40)
@given(
    rows=st.integers(1, 40),
    columns=st.sampled_from([16, 48, 384, 20]),
    kind=st.sampled_from([torch.float32, torch.bfloat16]),
    threads=st.integers(1, 2),
    seed=st.integers(0, 9),
)
def test_rounding_to_8_bits_and_back(
    rows: int, columns: int, kind: torch.dtype, threads: int, seed: int
) -> None:
    x, channels = (
        normal(rows, columns, seed=seed, scale=3).to(kind),
        normal(columns, seed=seed + 1).abs() + 0.1,
    )
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        with torch.inference_mode():
            found, step, middle = FAST.quantize_rows(x, channels)
            wanted, steps, middles = REFERENCE.quantize_rows(x, channels)
            torch.testing.assert_close(step, steps, atol=0, rtol=1e-6)
            # the lowest number and half of what lies above it, which may cancel each other
            torch.testing.assert_close(
                middle, middles, atol=2e-7 * float(x.abs().max() * channels.max()), rtol=1e-5
            )
            apart = (found.int() - wanted.int()).abs()
            assert int(apart.max()) <= 1  # between two that are as near
            assert float((apart > 0).float().mean()) < 0.01

            products = torch.randint(-(10**6), 10**6, (rows, columns), dtype=torch.int32)
            of = DequantParams(*(normal(columns, seed=seed + i) for i in (2, 3, 4, 5)))
            apart = normal(rows, 1, seed=seed + 6, scale=1e4)
            brought, expected = (
                kernels.dequantize(products, step, middle, apart, of, kind) for kernels in (FAST, REFERENCE)
            )
            assert brought.dtype == kind
            loosely = 0.01 if kind == torch.bfloat16 else 1e-5
            torch.testing.assert_close(
                brought, expected, atol=loosely * float(expected.abs().max()), rtol=loosely
            )
    finally:
        torch.set_num_threads(before)


def test_a_row_of_one_number_is_rounded_to_something_finite() -> None:
    with torch.inference_mode():
        found, step, middle = FAST.quantize_rows(torch.full((1, 16), 2.5), torch.ones(16))
    assert torch.isfinite(step * found + middle).all()
    torch.testing.assert_close(step * found + middle, torch.full((1, 16), 2.5))


def test_what_is_not_a_number_stays_none_in_its_row(*, native: bool) -> None:
    x = normal(4, 64, seed=0)
    x[1, 5] = torch.nan
    products, of = torch.ones(4, 64, dtype=torch.int32), DequantParams(*torch.ones(4, 64))
    with torch.inference_mode():
        _, step, middle = FAST.quantize_rows(x, torch.ones(64))
        restored = FAST.dequantize(products, step, middle, x[:, :1], of, torch.float32)
        weights = FAST.pack_int8_weight(torch.ones(64, 64, dtype=torch.int8), is_native=native)
        whole = FAST.int8_linear(x, QuantizedLinear(torch.ones(64), weights, of, 0), torch.float32)
    for found in (restored, whole):
        assert found.isnan().all(1).tolist() == [False, True, False, False]
        assert not found[[0, 2, 3]].isnan().any()


@settings(deadline=None, max_examples=40)
@given(
    rows=st.sampled_from([1, 2, 3, 4, 5, 31, 63, 64, 65, 130]),
    inputs=st.sampled_from([16, 48, 384, 20, 1536]),
    outputs=st.sampled_from([16, 64, 80, 384, 10]),
    kind=st.sampled_from([torch.float32, torch.bfloat16]),
    threads=st.integers(1, 2),
    activated=st.booleans(),
)
def test_a_layer_in_integers_is_the_same_by_each_way_of_multiplying(
    rows: int, inputs: int, outputs: int, kind: torch.dtype, threads: int, *, activated: bool
) -> None:
    x, channels = normal(rows, inputs, seed=rows, scale=3).to(kind), normal(inputs, seed=1).abs() + 0.1
    weight = torch.randint(
        -127, 128, (inputs, outputs), dtype=torch.int8, generator=torch.Generator().manual_seed(2)
    )
    scale, bias = normal(outputs, seed=3).abs() * 0.01, normal(outputs, seed=4)
    apart = rows % inputs
    weight[apart], channels[apart] = 0, 0.0
    of = DequantParams(weight.sum(0, dtype=torch.float32), scale, bias, normal(outputs, seed=5, scale=50))
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    usual = matmul_int8.GEMM_INT8
    is_exact = hardware.has_exact_int8_matmul()  # else answers do not use PyTorch's int8 products
    ways: list[tuple[KernelBackend, bool, Any]]
    ways = [(REFERENCE, is_exact, None), (REFERENCE, False, None), (FAST, False, None)]
    for bodies in NATIVES:
        has_body = inputs % quantize.COLUMNS == 0 and outputs % bodies.OUTPUT_MULTIPLE == 0
        ways.append((FAST, is_exact or has_body, bodies))
    made = []
    try:
        with torch.inference_mode():
            for kernels, is_native, matmul_int8.GEMM_INT8 in ways:
                form = QuantizedLinear(
                    channels, kernels.pack_int8_weight(weight, is_native=is_native), of, apart
                )
                made.append(kernels.int8_linear(x, form, kind, gelu=activated))
    finally:
        matmul_int8.GEMM_INT8 = usual
        torch.set_num_threads(before)
    plain, whole, *by_bodies = made
    assert torch.equal(plain, whole)
    # numbers between two may go to either, so that a product differs by a weight
    size = float(plain.float().abs().max())
    for found in by_bodies:
        assert found.dtype == kind
        torch.testing.assert_close(found.float(), plain.float(), atol=2e-3 * size, rtol=0.01)
        assert float((found.float() - plain.float()).abs().mean()) < 3e-4 * size + 1e-6


@pytest.mark.usefixtures("native")
def test_sums_of_the_largest_integers_are_exact() -> None:
    inputs, outputs = 4096, 32
    x = torch.full((2, inputs), 1.0)
    x[:, 0] = -1.0  # 1 becomes 127, -1 the lowest
    weight = torch.full((inputs, outputs), 127, dtype=torch.int8)
    weight[:, 1::2] = -127
    ones, none = torch.ones(outputs), torch.zeros(outputs)
    of = DequantParams(weight.sum(0, dtype=torch.float32), ones, none, none)
    wanted = (x @ weight.float()).double()
    is_exact = hardware.has_exact_int8_matmul()  # else answers do not use PyTorch's int8 products
    with torch.inference_mode():
        for kernels, is_native in (
            (REFERENCE, is_exact),
            (REFERENCE, False),
            (FAST, is_exact),
            (FAST, False),
        ):
            form = kernels.pack_int8_weight(weight, is_native=is_native)
            found = kernels.int8_linear(x, QuantizedLinear(torch.ones(inputs), form, of, 0), torch.float32)
            torch.testing.assert_close(found.double(), wanted, rtol=1e-5, atol=1.0)


def test_in_which_form_weights_are_multiplied(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = torch.arange(-128, 128, dtype=torch.int16).to(torch.int8).view(16, 16)
    for kernels in (REFERENCE, FAST):
        assert torch.equal(kernels.pack_int8_weight(weight, is_native=True), weight)
        odd = kernels.pack_int8_weight(weight[:, :10], is_native=False)
        assert torch.equal(odd, weight[:, :10].float())
    paired = FAST.pack_int8_weight(weight, is_native=False)
    if paired.dtype == torch.int16:  # the processor has AVX2
        assert paired.shape == (1, 8, 16, 2)
        assert paired[0, 3, 5].tolist() == weight[6:8, 5].tolist()
    monkeypatch.setattr(matmul_int8, "GEMM_INT8", gemm_int8_vnni)
    wide = torch.cat([weight] * 4, 1)
    in_fours = FAST.pack_int8_weight(wide, is_native=True)
    assert in_fours.shape == (2, 4, 32, 4)
    assert in_fours[1, 3, 5].tolist() == wide[12:16, 37].tolist()
    for bodies in NATIVES[1:]:
        monkeypatch.setattr(matmul_int8, "GEMM_INT8", bodies)
        in_tiles = FAST.pack_int8_weight(wide, is_native=True)
        assert in_tiles.shape == (2, 16, 32, 4)
        assert torch.equal(in_tiles[:, :4], in_fours)
        assert not in_tiles[:, 4:].any()


@pytest.mark.parametrize("is_native", [True, False])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_an_encoder_in_8_bits_answers_as_it_does_without_kernels_and_alike_in_any_company(
    precision: Precision, is_native: bool, monkeypatch: pytest.MonkeyPatch, *, native: bool
) -> None:
    monkeypatch.setattr(hardware, "has_fast_int8_matmul", lambda: is_native)
    config = preset("bert-mini-uncased", vocab_size=300)
    encoder = build_encoder(config, torch.Generator().manual_seed(0)).eval()
    lengths = [7, 60, 200, 1, 128, 33, 129, 16]
    ids = torch.randint(5, 300, (sum(lengths),), generator=torch.Generator().manual_seed(1)).numpy()
    texts = Packed.from_arrays(ids, np.zeros_like(ids), np.array(lengths))
    place = ComputeContext(torch.device("cpu"), precision, torch.Generator())
    quick, plain = (quantize_encoder(encoder, texts, kernels) for kernels in (FAST, REFERENCE))
    if native and is_native:
        assert not quick.is_int8  # by torch's own products
    assert {part.kernels for part in quick.modules() if hasattr(part, "kernels")} == {FAST}
    assert {part.kernels for part in encoder.modules() if hasattr(part, "kernels")} == {REFERENCE}
    with torch.inference_mode():
        found, wanted = (place.autocast_encoder(one)(texts) for one in (quick, plain))
        assert float(torch.cosine_similarity(found, wanted).min()) > 0.998
        for start, end in zip(texts.cu_seqlens[:-1].tolist(), texts.cu_seqlens[1:].tolist(), strict=True):
            own = texts.tokens[start:end].numpy(), texts.segments[start:end].numpy()
            alone = Packed.from_lists(*([part.tolist()] for part in own))
            assert torch.equal(place.autocast_encoder(quick)(alone), found[start:end])
