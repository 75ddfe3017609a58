"""A layer as a whole in a program of bodies: to the bit what parts make one after the other; and where it is made
part by part."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from bertsmith import hardware
from bertsmith.kernels import backend_selection
from bertsmith.kernels.reference import REFERENCE, KernelBackend, set_kernel_backend
from bertsmith.models.attention_layout import AttentionLayout
from bertsmith.models.config import AttentionDirection
from bertsmith.models.encoder import TransformerLayer, build_layer
from bertsmith.models.family import build_encoder, preset
from bertsmith.models.layers import set_generator
from bertsmith.models.quantization import quantize_encoder
from bertsmith.packed import Packed

if not backend_selection.is_numba_available():
    pytest.skip("Numba, the extra fast, is not installed here", allow_module_level=True)

from bertsmith.kernels.cpu import (
    amx,
    autograd,
    encoder_layer,
    gemm_avx512bf16,
    gemm_fp32,
    gemm_int8_avx2,
    gemm_int8_vnni,
    inference,
    matmul,
    matmul_int8,
    row_kernels,
    training,
)
from bertsmith.kernels.cpu.compilation import launch
from bertsmith.kernels.cpu.program import KernelSequence
from by_parts import ByParts

FULL, HALF = torch.float32, torch.bfloat16
WIDTH = 64
NATIVES: dict[str, Any] = {"fours": gemm_int8_vnni}
if amx.is_amx_available():
    from bertsmith.kernels.cpu import gemm_int8_amx

    NATIVES["tiles"] = gemm_int8_amx


FAST, BY_PARTS = training.NumbaTrainingBackend(), ByParts()


@pytest.fixture(autouse=True)
def ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """Products by kernels also where the libraries are as quick."""
    monkeypatch.setattr(matmul, "GEMM_FP32", gemm_fp32)
    monkeypatch.setattr(matmul, "GEMM_BF16", gemm_avx512bf16)


def in_kind(kind: torch.dtype) -> Any:
    return torch.autocast("cpu", torch.bfloat16) if kind == HALF else nullcontext()


def block(p: float = 0.1, **changes: Any) -> TransformerLayer:
    config = preset(
        "bert-tiny-uncased",
        **{"hidden_size": WIDTH, "intermediate_size": 100, "num_attention_heads": 2, **changes},
        hidden_dropout_prob=p,
        attention_probs_dropout_prob=p,
    )
    made = build_layer(config, torch.Generator())
    draw = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for weight in made.parameters():
            weight.copy_(torch.randn(weight.shape, generator=draw) / 8)
    return made


def layout_of(lengths: list[int], sees: AttentionDirection = "all") -> AttentionLayout:
    ids = np.zeros(sum(lengths), dtype=np.int64)
    return AttentionLayout(Packed.from_arrays(ids, ids, np.array(lengths, dtype=np.int64)), sees)


def computed(
    made: TransformerLayer, kernels: KernelBackend, x: Tensor, layout: AttentionLayout, rows: Tensor | None
) -> tuple[Any, list[Tensor]]:
    """What made its result; it and all slopes."""
    set_kernel_backend(made, kernels)
    set_generator(made, torch.Generator().manual_seed(5))
    x = x.clone().requires_grad_()
    with in_kind(x.dtype):
        found = made(x, layout, rows)
    upstream = torch.randn(found.shape, generator=torch.Generator().manual_seed(6)).to(found.dtype)
    return found.grad_fn, [found.detach(), *torch.autograd.grad(found, [x, *made.parameters()], upstream)]


@settings(deadline=None, max_examples=40)
@given(
    lengths=st.lists(st.one_of(st.integers(0, 20), st.sampled_from([31, 32, 70])), min_size=1, max_size=6),
    sees=st.sampled_from(["all", "before", "behind"]),
    kind=st.sampled_from([FULL, HALF]),
    p=st.sampled_from([0.0, 0.3]),
    chosen=st.sampled_from([0, 16, 40]),
    threads=st.integers(1, 3),
)
def test_a_whole_layer_is_its_parts_to_the_bit(
    lengths: list[int], sees: AttentionDirection, kind: torch.dtype, p: float, chosen: int, threads: int
) -> None:
    lengths = [*lengths, 16]
    draw = torch.Generator().manual_seed(1)
    x = torch.randn(sum(lengths), WIDTH, generator=draw).to(kind)
    # also one and the same row twice
    rows = torch.randint(sum(lengths), (chosen,), generator=draw).sort().values if chosen else None
    made, layout = block(p), layout_of(lengths, sees)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        whole, found = computed(made, FAST, x, layout, rows)
        parts, wanted = computed(made, BY_PARTS, x, layout, rows)
    finally:
        torch.set_num_threads(before)
    assert isinstance(whole, autograd.EncoderLayer._backward_cls)  # type: ignore[attr-defined]
    assert not isinstance(parts, autograd.EncoderLayer._backward_cls)  # type: ignore[attr-defined]
    assert [one.dtype for one in found] == [other.dtype for other in wanted]
    assert [
        n for n, (one, other) in enumerate(zip(found, wanted, strict=True)) if not torch.equal(one, other)
    ] == []


@pytest.mark.parametrize("kind", [FULL, HALF])
def test_a_whole_layer_is_torchs(kind: torch.dtype) -> None:
    made, layout = block(0.0), layout_of([40, 7, 23])
    x = torch.randn(70, WIDTH, generator=torch.Generator().manual_seed(1)).to(kind)
    found, wanted = (computed(made, kernels, x, layout, None)[1] for kernels in (FAST, REFERENCE))
    for one, other in zip(found, wanted, strict=True):
        near = 0.03 * other.float().square().mean().sqrt().item() if kind == HALF else 1e-5
        assert (one.float() - other.float()).square().mean().sqrt().item() < near


def relu(made: TransformerLayer) -> None:
    made.feed_forward.activation = torch.relu  # type: ignore[assignment]


def frozen(made: TransformerLayer) -> None:
    made.attention_norm.weight.requires_grad_(requires_grad=False)


def watched(made: TransformerLayer) -> None:
    made.attention.qkv.register_forward_hook(lambda *_: None)  # type: ignore[union-attr]


def another_norm(made: TransformerLayer) -> None:
    made.output_norm = nn.Identity()


@pytest.mark.parametrize("change", [relu, frozen, watched, another_norm])
def test_what_is_not_such_a_layer_is_made_by_parts(change: Callable[[TransformerLayer], None]) -> None:
    made, layout = block(), layout_of([40])
    change(made)
    set_kernel_backend(made, FAST)
    x = torch.randn(40, WIDTH, requires_grad=True)
    assert not isinstance(made(x, layout).grad_fn, autograd.EncoderLayer._backward_cls)  # type: ignore[attr-defined]


def test_hooks_see_the_products_of_a_feed_forward() -> None:
    made, seen = block(), []
    set_kernel_backend(made, FAST)
    for part in (made.feed_forward.inner, made.feed_forward.output):
        part.register_forward_pre_hook(lambda _, given: seen.append(given[0].shape[1]))  # type: ignore[union-attr]
    made(torch.randn(40, WIDTH, requires_grad=True), layout_of([40]))
    assert seen == [WIDTH, 100]


def test_so_are_a_few_rows_other_heads_and_what_is_not_trained() -> None:
    for made, lengths, rows in (
        (block(), [15], None),
        (block(), [40], torch.arange(15)),
        (block(num_attention_heads=8), [40], None),
        (block(norm="pre"), [40], None),
    ):
        set_kernel_backend(made, FAST)
        x = torch.randn(sum(lengths), WIDTH, requires_grad=True)
        found = made(x, layout_of(lengths), rows)
        assert not isinstance(found.grad_fn, autograd.EncoderLayer._backward_cls)  # type: ignore[attr-defined]
    made = block(0.0)
    set_kernel_backend(made, FAST)
    with torch.no_grad():
        assert made(torch.randn(40, WIDTH), layout_of([40])).grad_fn is None


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_gradients_of_an_encoder_in_bf16(norm: str) -> None:
    """They are off by hundredths from those in fp32; where LayerNorms add up in bf16 it is by tenths."""
    config = preset("bert-tiny-uncased", norm=norm, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    encoder = build_encoder(config, torch.Generator().manual_seed(1)).train()
    draw = torch.Generator().manual_seed(2)
    ids = torch.randint(5, 30_000, (2048,), generator=draw).numpy()
    packed = Packed.from_arrays(ids, np.zeros_like(ids), np.full(16, 128))
    slope = torch.randn(2048, config.hidden_size, generator=draw) + 0.5
    found = []
    for kernels, kind in ((REFERENCE, FULL), (FAST, HALF)):
        set_kernel_backend(encoder, kernels)
        encoder.zero_grad()
        with torch.autocast("cpu", HALF, enabled=kind == HALF):
            states = encoder(packed)
        (states.float() * slope).sum().backward()
        found.append({name: weight.grad for name, weight in encoder.named_parameters() if "norm" in name})
    for name, exact in found[0].items():
        assert exact is not None
        assert (found[1][name] - exact).norm() < 0.02 * exact.norm(), name


def test_layers_that_share_weights() -> None:
    """ALBERT's: their slopes are added up."""
    config = preset("albert-mini", vocab_size=100, num_hidden_layers=3)
    encoder = build_encoder(config, torch.Generator().manual_seed(0))
    ids = np.arange(40, dtype=np.int64)
    packed = Packed.from_arrays(ids, np.zeros_like(ids), np.array([25, 15], dtype=np.int64))
    found = []
    for kernels in (FAST, BY_PARTS):
        set_kernel_backend(encoder, kernels)
        encoder.generator = torch.Generator().manual_seed(5)
        encoder.zero_grad()
        encoder(packed).square().sum().backward()
        found.append([weight.grad for weight in encoder.parameters() if weight.grad is not None])
    assert len(found[0]) == len(found[1]) > 10
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other)


class Answers(inference.NumbaInferenceBackend):
    """What answers are computed by; keeps in mind which layers it made as a whole."""

    def __init__(self, *, whole: bool) -> None:
        super().__init__()
        self.whole, self.made = whole, list[bool]()

    def encoder_layer(self, x: Tensor, bounds: Any, of: Any, rows: Tensor | None = None) -> Tensor | None:
        found = super().encoder_layer(x, bounds, of, rows) if self.whole else None
        self.made.append(found is not None)
        return found


@settings(deadline=None, max_examples=40)
@given(
    lengths=st.lists(st.one_of(st.integers(1, 20), st.sampled_from([31, 32, 70])), min_size=1, max_size=6),
    kind=st.sampled_from([FULL, HALF]),
    way=st.sampled_from(["numbers", "pairs", *NATIVES]),
    chosen=st.sampled_from([0, 1, 17]),
    threads=st.integers(1, 3),
)
def test_a_whole_layer_answers_as_its_parts_do_to_the_bit(
    lengths: list[int], kind: torch.dtype, way: str, chosen: int, threads: int
) -> None:
    sizes = {"hidden_size": WIDTH, "intermediate_size": 128, "num_attention_heads": 2, "vocab_size": 50}
    config = preset("bert-tiny-uncased", num_hidden_layers=3, **sizes)
    encoder = build_encoder(config, torch.Generator().manual_seed(0)).eval()
    count = sum(lengths)
    ids = torch.randint(5, 50, (count,), generator=torch.Generator().manual_seed(1)).numpy()
    packed = Packed.from_arrays(ids, np.zeros_like(ids), np.array(lengths))
    rows = torch.randint(count, (chosen,), generator=torch.Generator().manual_seed(2)) if chosen else None
    before, found = torch.get_num_threads(), []
    torch.set_num_threads(threads)
    try:
        with mock.patch.multiple(matmul_int8, GEMM_INT8=NATIVES.get(way), GEMM_INT8_FALLBACK=gemm_int8_avx2):
            for kernels in (Answers(whole=True), Answers(whole=False)):
                set_kernel_backend(encoder, kernels)
                with mock.patch.object(hardware, "has_fast_int8_matmul", return_value=way in NATIVES):
                    own = encoder if way == "numbers" else quantize_encoder(encoder, packed, kernels)
                kernels.made.clear()
                with torch.inference_mode(), in_kind(kind):
                    found.append((kernels.made, own(packed, rows=rows)))
    finally:
        torch.set_num_threads(before)
    (whole, one), (parts, other) = found
    # the libraries make products of fewer rows
    first, last = [count >= 16, (chosen or count) >= 16] if way == "numbers" else [True, True]
    assert whole == [first, first, first and last]
    assert parts == [False] * 3
    assert torch.equal(one, other)


@pytest.mark.parametrize("change", ["written in place", "another", "another's place", "none"])
def test_answers_in_bf16_are_by_the_weights_as_they_are_now(change: str) -> None:
    """Which are kept in panels from one answer to the next."""
    made = block(0.0)
    set_kernel_backend(made, inference.NumbaInferenceBackend())
    x, weight = torch.randn(40, WIDTH), made.feed_forward.output.weight
    with in_kind(HALF), torch.no_grad():
        with mock.patch.object(encoder_layer, "pack", side_effect=matmul.pack) as packed:
            before = made(x, layout_of([40]))
            if change == "written in place":
                weight.mul_(2)
            elif change == "another":
                made.feed_forward.output.weight = nn.Parameter(2 * weight)
            elif change == "another's place":
                weight.data = 2 * weight
            after = made(x, layout_of([40]))
        set_kernel_backend(made, inference.NumbaInferenceBackend())
        anew = made(x, layout_of([40]))
    assert packed.call_count == (4 if change == "none" else 8)
    assert torch.equal(after, anew)
    assert torch.equal(before, after) is (change == "none")


@pytest.mark.parametrize("share", ["none", "attention", "feed_forward", "all"])
def test_panels_are_made_once_where_layers_share_weights(share: str) -> None:
    config = preset("albert-mini", vocab_size=100, num_hidden_layers=3, share=share, hidden_act="gelu")
    encoder = build_encoder(config, torch.Generator().manual_seed(0)).eval()
    ids = np.arange(40, dtype=np.int64)
    packed = Packed.from_arrays(ids, np.zeros_like(ids), np.array([25, 15], dtype=np.int64))
    found = []
    set_kernel_backend(encoder, inference.NumbaInferenceBackend())
    with in_kind(HALF), torch.inference_mode():
        for _ in range(2):
            with mock.patch.object(encoder_layer, "pack", side_effect=matmul.pack) as made:
                found.append((made, encoder(packed)))
        set_kernel_backend(encoder, inference.NumbaInferenceBackend())
        with mock.patch.object(
            inference.NumbaInferenceBackend,
            "_packed_matmuls",
            side_effect=lambda _, weights: weights.matmuls(),
        ):
            wanted = encoder(packed)
    assert [made.call_count for made, _ in found] == [4 if share == "all" else 12, 0]
    assert all(torch.equal(states, wanted) for _, states in found)


def test_a_copy_of_what_answers_keeps_no_weights() -> None:
    made, x = block(0.0), torch.randn(40, WIDTH)
    set_kernel_backend(made, inference.NumbaInferenceBackend())
    with in_kind(HALF), torch.no_grad():
        before = made(x, layout_of([40]))
        copied = pickle.loads(pickle.dumps(made.kernels))
        assert (len(made.kernels._packed_layers), len(copied._packed_layers)) == (1, 0)
        set_kernel_backend(made, copied)
        assert torch.equal(made(x, layout_of([40])), before)


def test_answers_with_slopes_are_made_as_in_training() -> None:
    made = block(0.0)
    set_kernel_backend(made, inference.NumbaInferenceBackend())
    found = made(torch.randn(40, WIDTH, requires_grad=True), layout_of([40]))
    assert isinstance(found.grad_fn, autograd.EncoderLayer._backward_cls)  # type: ignore[attr-defined]


@pytest.mark.parametrize("change", [relu, watched, another_norm])
def test_answers_of_what_is_not_such_a_layer_are_made_by_parts(
    change: Callable[[TransformerLayer], None],
) -> None:
    made, kernels = block(0.0), Answers(whole=True)
    change(made)
    set_kernel_backend(made, kernels)
    with torch.inference_mode(), in_kind(HALF):
        made(torch.randn(40, WIDTH), layout_of([40]))
    assert not any(kernels.made)
    assert not kernels._packed_layers  # no weights in panels, which nobody would read


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_a_program_runs_its_bodies_in_their_order_when_it_ends(threads: int) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        x, y = torch.ones(480), torch.full((480,), 2.0)
        program = KernelSequence()
        program(row_kernels.add, 0, x, y, 480)  # x = 3
        program(row_kernels.add, 0, y, x, 480)  # y = 5
        program(row_kernels.add, 0, x, y, 480)  # x = 8
        assert x.unique().tolist() == [1]
        program.run()
        assert (x.unique().tolist(), y.unique().tolist()) == ([8], [5])
        launch(row_kernels.add, 0, x, y, 480)
        assert x.unique().tolist() == [13]
        KernelSequence().run()
    finally:
        torch.set_num_threads(before)
