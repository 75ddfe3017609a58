"""An encoder's beginning by kernels: torch's, there and back; the same on any number of threads; and where torch
makes it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from bertsmith.kernels import backend_selection
from bertsmith.kernels.reference import REFERENCE, set_kernel_backend
from bertsmith.models.embeddings import Embeddings
from bertsmith.models.family import preset
from bertsmith.packed import Packed

if not backend_selection.is_numba_available():
    pytest.skip("Numba, the extra fast, is not installed here", allow_module_level=True)

from bertsmith.kernels.cpu import autograd, inference, training

FAST = training.NumbaTrainingBackend()
MADE = autograd.Embed._backward_cls  # type: ignore[attr-defined]


def embeddings(name: str = "bert-tiny-uncased", p: float = 0.0, **changes: Any) -> Embeddings:
    config = preset(name, vocab_size=60, hidden_dropout_prob=p, **changes)
    made = Embeddings(config, torch.Generator())
    draw = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for weight in made.parameters():
            weight.copy_(torch.randn(weight.shape, generator=draw))
    return made


def packed_of(lengths: list[int], segments: int = 2) -> Packed:
    draw, total = np.random.default_rng(1), sum(lengths)
    return Packed.from_arrays(
        draw.integers(5, 60, total), draw.integers(0, segments, total), np.array(lengths, dtype=np.int64)
    )


def computed(
    made: Embeddings, packed: Packed, kernels: Any, threads: int = 1
) -> tuple[Tensor, dict[str, Tensor]]:
    set_kernel_backend(made, kernels)
    made.dropout.generator = torch.Generator().manual_seed(5)
    made.zero_grad()
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        found = made(packed)
        upstream = torch.randn(found.shape, generator=torch.Generator().manual_seed(6))
        found.backward(upstream.to(found.dtype))
    finally:
        torch.set_num_threads(before)
    return found, {name: weight.grad for name, weight in made.named_parameters() if weight.grad is not None}


@settings(deadline=None, max_examples=40)
@given(
    lengths=st.lists(st.integers(0, 60), min_size=1, max_size=5),
    name=st.sampled_from(["bert-tiny-uncased", "roberta-mini", "distilbert-mini-uncased", "albert-mini"]),
    width=st.sampled_from([32, 48, 72, 200]),
)
def test_they_are_torchs(lengths: list[int], name: str, width: int) -> None:
    """Three tables, one segment alone, two tables, and tables narrower than the layers."""
    own = (
        {"embedding_size": width}
        if name == "albert-mini"
        else {"hidden_size": width, "num_attention_heads": 4}
    )
    lengths = [*lengths, 1]
    made, packed = embeddings(name, **own), packed_of(lengths, 1 if name == "roberta-mini" else 2)
    found, slopes = computed(made, packed, FAST)
    wanted, expected = computed(made, packed, REFERENCE)
    assert isinstance(found.grad_fn, MADE) or name == "albert-mini"
    # the projection to the layers' width adds up as many products of such numbers as the tables are wide
    least = 1e-5 * (width**0.5 if made.projection is not None else 1)
    torch.testing.assert_close(found, wanted, atol=least, rtol=1e-5)
    assert slopes.keys() == expected.keys()
    for key, slope in slopes.items():
        torch.testing.assert_close(slope, expected[key], atol=2e-4, rtol=1e-4, msg=key)


def test_in_bf16_they_are_rounded_once() -> None:
    made, packed = embeddings(), packed_of([40, 3])
    exact, slopes = computed(made, packed, FAST)
    with torch.autocast("cpu", torch.bfloat16):
        found, others = computed(made, packed, FAST)
    assert found.dtype == torch.bfloat16
    assert torch.equal(found, exact.bfloat16())
    for key, slope in slopes.items():
        apart = (others[key] - slope).square().mean().sqrt()
        assert apart < 0.01 * slope.square().mean().sqrt(), key


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
def test_dropout_drops_its_share_and_what_it_dropped_has_no_slope(kind: torch.dtype) -> None:
    made, packed = embeddings(p=0.25), packed_of([200])
    with torch.no_grad():
        made.norm.bias.add_(100)  # so that nothing else is 0
    with torch.autocast("cpu", torch.bfloat16, enabled=kind == torch.bfloat16):
        found, _ = computed(made, packed, FAST)
        kept = found != 0
        assert 0.23 < 1 - kept.float().mean().item() < 0.27
        made.eval()
        whole, _ = computed(made, packed, FAST)
        torch.testing.assert_close(found[kept], (whole.float() / 0.75)[kept].to(kind), atol=0.5, rtol=0.01)
        made.train()
        set_kernel_backend(made, FAST)
        made.zero_grad()
        made.dropout.generator = torch.Generator().manual_seed(5)
        made(packed).sum().backward()
    # the slopes of its bias are what the kept ones were multiplied by
    torch.testing.assert_close(made.norm.bias.grad, kept.float().sum(0) / 0.75, atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("p", [0.0, 0.3])
def test_tables_learn_the_same_to_the_bit_on_any_number_of_threads(p: float) -> None:
    made, packed = embeddings(p=p), packed_of([100, 57])
    found, slopes = computed(made, packed, FAST)
    for threads in (2, 3):
        again, others = computed(made, packed, FAST, threads)
        assert torch.equal(found, again)
        for key, slope in slopes.items():
            if key.startswith("norm"):  # each thread's are added up
                torch.testing.assert_close(others[key], slope)
            else:
                assert torch.equal(others[key], slope), key


def test_what_is_not_trained_or_watched_or_has_no_row_torch_makes() -> None:
    made, packed = embeddings(), packed_of([20])
    set_kernel_backend(made, FAST)
    assert isinstance(made(packed).grad_fn, MADE)
    with torch.no_grad():
        assert made(packed).dtype == torch.float32
    handle = made.position.register_forward_hook(lambda *_: None)
    assert not isinstance(made(packed).grad_fn, MADE)
    handle.remove()
    for wrong in (-1, 2):
        packed.segments[3] = wrong
        with pytest.raises(IndexError):
            made(packed)
    packed.segments[3] = 0
    made.norm = nn.Identity()  # type: ignore[assignment]
    assert not isinstance(made(packed).grad_fn, MADE)


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
def test_answers_are_made_as_in_training(kind: torch.dtype) -> None:
    """To the bit, and each token's alone."""
    made, packed = embeddings().eval(), packed_of([20, 5])
    first = Packed.from_arrays(packed.tokens[:20].numpy(), packed.segments[:20].numpy(), np.array([20]))
    with torch.autocast("cpu", torch.bfloat16, enabled=kind == torch.bfloat16):
        wanted, _ = computed(made, packed, FAST)
        set_kernel_backend(made, inference.NumbaInferenceBackend())
        with torch.inference_mode():
            found, alone = made(packed), made(first)
    assert found.dtype == kind
    assert torch.equal(found, wanted)
    assert torch.equal(alone, wanted[:20])


def test_a_row_of_padding_does_not_learn() -> None:
    """RoBERTa's row before the first position."""
    made, packed = embeddings("roberta-mini"), packed_of([20], 1)
    packed.positions[4] = -1
    _, slopes = computed(made, packed, FAST)
    _, expected = computed(made, packed, REFERENCE)
    assert not slopes["position.weight"][1].any()
    torch.testing.assert_close(slopes["position.weight"], expected["position.weight"])
