"""States of selected tokens equal those of all tokens, and the last layer computes no others."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bertsmith import hardware
from bertsmith.device import ComputeContext
from bertsmith.hardware import Precision
from bertsmith.kernels.backend_selection import is_numba_available, load_backend
from bertsmith.kernels.reference import BackendName, set_kernel_backend
from bertsmith.models.encoder import Encoder
from bertsmith.models.family import build_encoder
from bertsmith.models.layers import FeedForward
from bertsmith.models.quantization import quantize_encoder
from bertsmith.packed import Packed
from family_harness import CASES, config_of

KERNELS: list[BackendName] = ["torch", *(["numba"] if is_numba_available() else [])]
lengths = st.lists(st.integers(0, 34), min_size=1, max_size=6)
# Published models have such multiples: see tests/exactness/test_alone.py.
EVEN_SIZES = {"hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 64}


def texts(sizes: list[int], seed: int = 0) -> Packed:
    generator = torch.Generator().manual_seed(seed)
    rows = [torch.randint(5, 97, (size,), generator=generator).tolist() for size in sizes]
    return Packed.from_lists(rows, [[0] * size for size in sizes])


def random_rows(count: int, ratio: float, seed: int) -> torch.Tensor:
    """Return unsorted row indices with repetitions."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(max(1, count), (round(count * ratio),), generator=generator)


def encoder_of(case: str) -> Encoder:
    sizes = {**EVEN_SIZES, "embedding_size": 16} if config_of(case).embedding_size else EVEN_SIZES
    return build_encoder(config_of(case, **sizes), torch.Generator().manual_seed(1))


@pytest.mark.parametrize("precision", ["fp32", "bf16", "int8"])
@pytest.mark.parametrize("case", CASES)
@given(sizes=lengths, ratio=st.sampled_from([0.0, 0.1, 0.5, 1.5]), seed=st.integers(0, 99))
def test_states_of_selected_tokens(
    case: str, precision: str, sizes: list[int], ratio: float, seed: int
) -> None:
    encoder = encoder_of(case).eval()
    packed = texts(sizes, seed)
    if precision == "int8":
        encoder = quantize_encoder(encoder, texts([20, 30]))
    reader = ComputeContext.create("cpu", "fp32" if precision == "fp32" else "bf16").autocast_encoder(encoder)
    rows = random_rows(len(packed.tokens), ratio, seed)
    with torch.inference_mode():
        states, all_states = reader(packed, rows=rows), reader(packed)
    assert states.shape == (len(rows), 32)
    torch.testing.assert_close(states, all_states[rows], atol=1e-5 if precision == "fp32" else 0.05, rtol=0)


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("ratio", [0.0, 0.2, 1.5])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("prepares", [True, False])
def test_gradients_of_selected_tokens(
    case: str,
    ratio: float,
    name: BackendName,
    precision: Precision,
    *,
    prepares: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(hardware, "onednn_is_faster", lambda: prepares)
    packed = texts([7, 1, 0, 33, 33])
    rows = random_rows(len(packed.tokens), ratio, 3)
    gradients = []
    for selects in (True, False):
        encoder = encoder_of(case)
        set_kernel_backend(encoder, load_backend(name))
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
            states = encoder(packed, rows=rows) if selects else encoder(packed)[rows]
        states.pow(3).sum().div(len(packed.tokens)).backward()
        gradients.append({key: p.grad for key, p in encoder.named_parameters() if p.grad is not None})
    assert gradients[0].keys() == gradients[1].keys()
    for key, grad in gradients[0].items():
        expected = gradients[1][key]
        if precision == "fp32":
            torch.testing.assert_close(grad, expected, atol=2e-5, rtol=1e-4)
        else:
            assert (grad - expected).norm() <= 0.03 * expected.norm() + 1e-4


@pytest.mark.skipif(not is_numba_available(), reason="Numba, the extra fast, is not installed")
@pytest.mark.parametrize("by_kernels", [True, False])
def test_queries_are_computed_for_selected_tokens_only(
    monkeypatch: pytest.MonkeyPatch, *, by_kernels: bool
) -> None:
    """With the kernels' matrix products, and with the libraries'."""
    from bertsmith.kernels.cpu import gemm_fp32, layer_functions, matmul

    monkeypatch.setattr(matmul, "GEMM_FP32", gemm_fp32 if by_kernels else None)
    monkeypatch.setattr(hardware, "onednn_is_faster", lambda: False)  # which would pad the rows
    attend, row_counts = layer_functions.attention_forward, list[list[int]]()

    def counting_attend(q: torch.Tensor, kv: torch.Tensor, *others: Any) -> Any:
        row_counts.append([len(q), len(kv)])
        return attend(q, kv, *others)

    monkeypatch.setattr(layer_functions, "attention_forward", counting_attend)
    encoder = encoder_of("bert")
    set_kernel_backend(encoder, load_backend("numba"))
    encoder(texts([30] * 10), rows=torch.arange(0, 300, 10))
    assert row_counts == [[300, 300]] * (encoder.config.num_hidden_layers - 1) + [[30, 300]]


@pytest.mark.parametrize("case", ["bert", "albert"])
@pytest.mark.parametrize("prepares", [True, False])
def test_the_last_feed_forward_computes_selected_tokens_only(
    case: str, *, prepares: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = encoder_of(case)
    monkeypatch.setattr(hardware, "onednn_is_faster", lambda: prepares)
    row_counts: list[int] = []
    for part in encoder.modules():
        if isinstance(part, FeedForward):
            part.register_forward_pre_hook(lambda _, inputs: row_counts.append(len(inputs[0])))
    encoder(texts([30] * 10), rows=torch.arange(0, 300, 10))
    all_rows, selected = (320, 32) if prepares else (300, 30)  # a multiple of 32 for oneDNN
    assert row_counts == [all_rows] * (encoder.config.num_hidden_layers - 1) + [selected]


def test_selected_tokens_have_dropout() -> None:
    encoder = copy.deepcopy(encoder_of("bert"))
    encoder.blocks[-1].dropout.p = 0.5
    packed, rows = texts([12, 9]), torch.tensor([0, 12])
    assert not torch.equal(encoder(packed, rows=rows), encoder(packed, rows=rows))


def test_padded_inputs_do_not_take_rows() -> None:
    with pytest.raises(ValueError, match="rows"):
        encoder_of("bert")(torch.ones(1, 2, dtype=torch.long), rows=torch.tensor([0]))
