"""The states of chosen tokens are those that all tokens have, and the last layer computes no others to its end."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bertsmith import hardware
from bertsmith.device import Place
from bertsmith.hardware import Precision
from bertsmith.kernels.backend_selection import are_here, of_name
from bertsmith.kernels.reference import Name, use_kernels
from bertsmith.models.encoder import Encoder, FeedForward
from bertsmith.models.family import build_encoder
from bertsmith.models.quantization import quantized
from bertsmith.packed import Packed
from family_harness import CASES, config_of

KERNELS: list[Name] = ["torch", *(["numba"] if are_here() else [])]
lengths = st.lists(st.integers(0, 34), min_size=1, max_size=6)
# those of published models are such multiples: see tests/exactness/test_alone.py
EVEN = {"hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 64}


def texts(sizes: list[int], seed: int = 0) -> Packed:
    draw = torch.Generator().manual_seed(seed)
    rows = [torch.randint(5, 97, (size,), generator=draw).tolist() for size in sizes]
    return Packed.of_lists(rows, [[0] * size for size in sizes])


def some_of(count: int, share: float, seed: int) -> torch.Tensor:
    """Rows in no order, some of them twice."""
    draw = torch.Generator().manual_seed(seed)
    return torch.randint(max(1, count), (round(count * share),), generator=draw)


def encoder_of(case: str) -> Encoder:
    widths = {**EVEN, "embedding_size": 16} if config_of(case).embedding_size else EVEN
    return build_encoder(config_of(case, **widths), torch.Generator().manual_seed(1))


@pytest.mark.parametrize("precision", ["fp32", "bf16", "int8"])
@pytest.mark.parametrize("case", CASES)
@given(sizes=lengths, share=st.sampled_from([0.0, 0.1, 0.5, 1.5]), seed=st.integers(0, 99))
def test_what_is_read_of_a_batch(
    case: str, precision: str, sizes: list[int], share: float, seed: int
) -> None:
    encoder = encoder_of(case).eval()
    packed = texts(sizes, seed)
    if precision == "int8":
        encoder = quantized(encoder, texts([20, 30]))
    reader = Place.of("cpu", "fp32" if precision == "fp32" else "bf16").reader(encoder)
    rows = some_of(len(packed.tokens), share, seed)
    with torch.inference_mode():
        found, whole = reader(packed, rows=rows), reader(packed)
    assert found.shape == (len(rows), 32)
    torch.testing.assert_close(found, whole[rows], atol=1e-5 if precision == "fp32" else 0.05, rtol=0)


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("share", [0.0, 0.2, 1.5])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("prepares", [True, False])
def test_what_is_learnt_from_it(
    case: str,
    share: float,
    name: Name,
    precision: Precision,
    *,
    prepares: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(hardware, "onednn_is_faster", lambda: prepares)
    packed = texts([7, 1, 0, 33, 33])
    rows = some_of(len(packed.tokens), share, 3)
    slopes = []
    for chosen in (True, False):
        encoder = encoder_of(case)
        use_kernels(encoder, of_name(name))
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
            found = encoder(packed, rows=rows) if chosen else encoder(packed)[rows]
        found.pow(3).sum().div(len(packed.tokens)).backward()
        slopes.append({key: p.grad for key, p in encoder.named_parameters() if p.grad is not None})
    assert slopes[0].keys() == slopes[1].keys()
    for key, slope in slopes[0].items():
        wanted = slopes[1][key]
        if precision == "fp32":
            torch.testing.assert_close(slope, wanted, atol=2e-5, rtol=1e-4)
        else:
            assert (slope - wanted).norm() <= 0.03 * wanted.norm() + 1e-4


@pytest.mark.skipif(not are_here(), reason="Numba, the extra fast, is not installed here")
@pytest.mark.parametrize("ours", [True, False])
def test_queries_are_made_of_the_tokens_alone_that_are_read(
    monkeypatch: pytest.MonkeyPatch, *, ours: bool
) -> None:
    """By products of the kernels, in a layer as a whole, and by the libraries'."""
    from bertsmith.kernels.cpu import gemm_fp32, layer_functions, matmul

    monkeypatch.setattr(matmul, "BODIES", gemm_fp32 if ours else None)
    attend, seen = layer_functions.attend, list[list[int]]()

    def watched(q: torch.Tensor, kv: torch.Tensor, *others: Any) -> Any:
        seen.append([len(q), len(kv)])
        return attend(q, kv, *others)

    monkeypatch.setattr(layer_functions, "attend", watched)
    encoder = encoder_of("bert")
    use_kernels(encoder, of_name("numba"))
    encoder(texts([30] * 10), rows=torch.arange(0, 300, 10))
    assert seen == [[300, 300]] * (encoder.config.num_hidden_layers - 1) + [[30, 300]]


@pytest.mark.parametrize("case", ["bert", "albert"])
@pytest.mark.parametrize("prepares", [True, False])
def test_the_last_layer_computes_no_other_tokens_to_its_end(
    case: str, *, prepares: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = encoder_of(case)
    monkeypatch.setattr(hardware, "onednn_is_faster", lambda: prepares)
    seen: list[int] = []
    for part in encoder.modules():
        if isinstance(part, FeedForward):
            part.register_forward_pre_hook(lambda _, given: seen.append(len(given[0])))
    encoder(texts([30] * 10), rows=torch.arange(0, 300, 10))
    all_rows, chosen = (320, 32) if prepares else (300, 30)  # by oneDNN a multiple of 32
    assert seen == [all_rows] * (encoder.config.num_hidden_layers - 1) + [chosen]


def test_dropout_falls_on_chosen_tokens_too() -> None:
    encoder = copy.deepcopy(encoder_of("bert"))
    encoder.blocks[-1].dropout.p = 0.5
    packed, rows = texts([12, 9]), torch.tensor([0, 12])
    assert not torch.equal(encoder(packed, rows=rows), encoder(packed, rows=rows))


def test_the_padded_form_has_no_rows_to_choose() -> None:
    with pytest.raises(ValueError, match="rows are chosen of a Packed"):
        encoder_of("bert")(torch.ones(1, 2, dtype=torch.long), rows=torch.tensor([0]))
