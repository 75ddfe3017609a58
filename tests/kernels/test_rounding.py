"""The compiled kernels of answers in 8 bits against torch's operations; what they answer alone and in company."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bertsmith.kernels import choice
from bertsmith.kernels.plain import TORCH, IntegerWeights
from bertsmith.machine import Precision
from bertsmith.models.family import build_encoder, preset
from bertsmith.models.int8 import quantized
from bertsmith.packed import Packed
from bertsmith.place import Place

if not choice.are_here():
    pytest.skip("Numba, the extra fast, is not installed here", allow_module_level=True)

FAST = choice.for_answers(128)


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
            found, step, middle = FAST.rounded(x, channels)
            wanted, steps, middles = TORCH.rounded(x, channels)
            torch.testing.assert_close(step, steps, atol=0, rtol=1e-6)
            # the lowest number and half of what lies above it, which may cancel each other
            torch.testing.assert_close(
                middle, middles, atol=2e-7 * float(x.abs().max() * channels.max()), rtol=1e-5
            )
            apart = (found.int() - wanted.int()).abs()
            assert int(apart.max()) <= 1  # between two that are as near
            assert float((apart > 0).float().mean()) < 0.01

            products = torch.randint(-(10**6), 10**6, (rows, columns), dtype=torch.int32)
            of = IntegerWeights(*(normal(columns, seed=seed + i) for i in (2, 3, 4)))
            brought, expected = (
                kernels.restored(products, step, middle, of, kind) for kernels in (FAST, TORCH)
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
        found, step, middle = FAST.rounded(torch.full((1, 16), 2.5), torch.ones(16))
    assert torch.isfinite(step * found + middle).all()
    torch.testing.assert_close(step * found + middle, torch.full((1, 16), 2.5))


def test_what_is_not_a_number_stays_none_in_its_row() -> None:
    x = normal(4, 64, seed=0)
    x[1, 5] = torch.nan
    products, of = torch.ones(4, 64, dtype=torch.int32), IntegerWeights(*torch.ones(3, 64))
    with torch.inference_mode():
        _, step, middle = FAST.rounded(x, torch.ones(64))
        found = FAST.restored(products, step, middle, of, torch.float32)
    assert found.isnan().all(1).tolist() == [False, True, False, False]
    assert not found[[0, 2, 3]].isnan().any()


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_an_encoder_in_8_bits_answers_as_it_does_without_kernels_and_alike_in_any_company(
    precision: Precision,
) -> None:
    config = preset("bert-mini-uncased", vocab_size=300)
    encoder = build_encoder(config, torch.Generator().manual_seed(0)).eval()
    lengths = [7, 60, 200, 1, 128, 33, 129, 16]
    ids = torch.randint(5, 300, (sum(lengths),), generator=torch.Generator().manual_seed(1)).numpy()
    texts = Packed.of_arrays(ids, np.zeros_like(ids), np.array(lengths))
    place = Place(torch.device("cpu"), precision, torch.Generator())
    quick, plain = (quantized(encoder, texts, kernels) for kernels in (FAST, TORCH))
    assert {part.kernels for part in quick.modules() if hasattr(part, "kernels")} == {FAST}
    assert {part.kernels for part in encoder.modules() if hasattr(part, "kernels")} == {TORCH}
    with torch.inference_mode():
        found, wanted = (place.reader(one)(texts) for one in (quick, plain))
        assert float(torch.cosine_similarity(found, wanted).min()) > 0.998
        for start, end in zip(texts.starts[:-1].tolist(), texts.starts[1:].tolist(), strict=True):
            own = texts.tokens[start:end].numpy(), texts.segments[start:end].numpy()
            alone = Packed.of_lists(*([part.tolist()] for part in own))
            assert torch.equal(place.reader(quick)(alone), found[start:end])
