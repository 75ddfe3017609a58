"""Training in 8-bit integers: the bodies against their definition in torch, a layer, a run, and who is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import tiny_run
from bertsmith.errors import InputError
from bertsmith.kernels import choice
from bertsmith.kernels.plain import Kernels, use_kernels
from bertsmith.models.encoder import Block, block_of
from bertsmith.models.family import preset
from bertsmith.models.layers import use_generator
from bertsmith.models.layout import Layout
from bertsmith.packed import Packed
from bertsmith.place import Place
from bertsmith.training.progress import Recorder
from bertsmith.training.settings import TrainSettings
from bertsmith.workflows import run

if not choice.are_here():
    pytest.skip("Numba, the extra fast, is not installed here", allow_module_level=True)

from bertsmith.kernels import (
    fast,
    integer_products,
    integers_in_fours,
    parts,
    slopes_in_fours,
    tiles,
    weights_in_fours,
)
from bertsmith.kernels.loops import launch

FULL, HALF = torch.float32, torch.bfloat16
NATIVES: list[Any] = [integers_in_fours]
if tiles.are_here():
    from bertsmith.kernels import integers_in_tiles

    NATIVES.append(integers_in_tiles)


@pytest.fixture(params=NATIVES, ids=lambda bodies: bodies.__name__.rpartition(".")[2], autouse=True)
def native(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """These bodies, also on a processor that has no products of integers; there slopes in integers, too."""
    monkeypatch.setattr(integer_products, "NATIVE", request.param)
    monkeypatch.setattr(integer_products, "WEIGHTS", weights_in_fours)
    monkeypatch.setattr(integer_products, "SLOPES", slopes_in_fours)
    return request.param


def normal(*shape: int, seed: int, kind: torch.dtype = FULL) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(kind)


def by_rows(x: Tensor) -> Tensor:
    """What rows of x are rounded to: 256 values from the lowest to the highest."""
    x = x.float()
    low, high = x.amin(1, keepdim=True), x.amax(1, keepdim=True)
    step = ((high - low) / 255).clamp_min(1e-30)
    middle = low + 128 * step
    return ((x - middle) / step).round().clamp(-128, 127) * step + middle


def by_columns(y: Tensor) -> Tensor:
    """What columns of y are rounded to: 255 values, the same on both sides of 0."""
    scale = (y.float().abs().amax(0) * torch.tensor(1 / 127)).clamp_min(1e-30)
    return (y.float() * (1 / scale)).round() * scale


def slopes(x: Tensor, grad: Tensor) -> Tensor:
    """Those of weights, 512 terms at a time."""
    pairs = zip(torch.split(grad, 512), torch.split(x, 512), strict=True)
    return torch.stack([by_columns(one).T @ by_columns(other) for one, other in pairs]).sum(0)


def made_slopes(x: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
    return parts.joined_slopes([(x, grad)], launch, integer_products.multiply_columns)


def apart(found: Tensor, wanted: Tensor) -> float:
    """How far, of what is wanted. Rounding to 8 bits alone is worth 0.01."""
    return float((found.float() - wanted.float()).norm() / wanted.float().norm())


SIZES = st.sampled_from([64, 128, 320])
KINDS = st.sampled_from([FULL, HALF])


@settings(deadline=None, max_examples=30)
@given(
    rows=st.integers(1, 140),
    inputs=SIZES,
    outputs=SIZES,
    kind=KINDS,
    threads=st.integers(1, 3),
    scale=st.sampled_from([1.0, 1e-9]),
)
def test_products_are_as_defined(
    rows: int, inputs: int, outputs: int, kind: torch.dtype, threads: int, scale: float
) -> None:
    x, grad = normal(rows, inputs, seed=1, kind=kind), normal(rows, outputs, seed=2, kind=kind) * scale
    weight, bias = normal(outputs, inputs, seed=3), normal(outputs, seed=4)
    before, kept = normal(rows, inputs, seed=5, kind=kind), torch.empty(rows, outputs, dtype=kind)
    usual = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        there = integer_products.rounded_weights(weight.T, bias, launch)
        found = integer_products.in_integers(there, x, kind, launch, least=1e-30)
        activated = integer_products.in_integers(
            there, x, kind, launch, activated=True, kept=kept, least=1e-30
        )
        back = integer_products.BACK.multiplied(grad, weight, None, launch)
        sloped = integer_products.BACK.multiplied(grad, weight, before, launch)
    finally:
        torch.set_num_threads(usual)
    near = 3e-3 if kind == HALF else 1e-3
    wanted = by_rows(x) @ by_columns(weight.T) + bias
    assert apart(found, wanted) < near
    assert torch.equal(kept, found)
    assert apart(activated, F.gelu(wanted)) < near
    wanted = by_rows(grad) @ by_columns(weight)
    assert apart(back, wanted) < near
    at = before.float().requires_grad_()
    (of_gelu,) = torch.autograd.grad(F.gelu(at).sum(), at)
    assert apart(sloped, wanted * of_gelu) < near


@settings(deadline=None, max_examples=30)
@given(
    terms=st.one_of(st.integers(1, 40), st.sampled_from([511, 512, 513, 1100])),
    inputs=SIZES,
    outputs=SIZES,
    kind=KINDS,
    threads=st.integers(1, 3),
)
def test_slopes_are_as_defined(
    terms: int, inputs: int, outputs: int, kind: torch.dtype, threads: int
) -> None:
    x, grad = normal(terms, inputs, seed=1, kind=kind), normal(terms, outputs, seed=2, kind=kind) * 1e-9
    usual = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        of_weight, of_bias = made_slopes(x, grad)
    finally:
        torch.set_num_threads(usual)
    assert apart(of_weight, slopes(x, grad)) < 1e-6
    assert apart(of_bias, grad.float().sum(0)) < 1e-5


@pytest.mark.parametrize("kind", [FULL, HALF])
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_what_is_not_a_number_stays_none(kind: torch.dtype, value: float) -> None:
    """Rounding it would hide it."""
    x, weight = normal(70, 64, seed=1, kind=kind), normal(64, 64, seed=2)
    x[3, 5] = value
    there = integer_products.rounded_weights(weight.T, None, launch)
    found = integer_products.in_integers(there, x, kind, launch)
    assert not found[3].isfinite().any()
    assert found[torch.arange(70) != 3].isfinite().all()
    of_weight, of_bias = made_slopes(normal(70, 64, seed=3, kind=kind), x)
    assert not of_weight[5].isfinite().any()
    assert not of_bias[5].isfinite()
    weight[7, 9] = value
    for there in (integer_products.rounded_weights(y, None, launch) for y in (weight.T, weight)):
        assert not integer_products.in_integers(there, normal(3, 64, seed=4), FULL, launch).isfinite().all()


def block() -> Block:
    sizes = {"hidden_size": 128, "intermediate_size": 256, "num_attention_heads": 2}
    made = block_of(preset("bert-tiny-uncased", **sizes), torch.Generator())
    draw = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for weight in made.parameters():
            weight.copy_(torch.randn(weight.shape, generator=draw) / 8)
    return made


def computed(made: Block, kernels: Kernels, x: Tensor, layout: Layout, rows: Tensor | None) -> list[Tensor]:
    """Its result, and all slopes."""
    use_kernels(made, kernels)
    use_generator(made, torch.Generator().manual_seed(5))
    x = x.clone().requires_grad_()
    with torch.autocast("cpu", HALF, enabled=x.dtype == HALF):
        found = made(x, layout, rows)
    upstream = normal(*found.shape, seed=6, kind=found.dtype)
    return [found.detach(), *torch.autograd.grad(found, [x, *made.parameters()], upstream)]


@pytest.mark.parametrize("kind", [FULL, HALF])
@pytest.mark.parametrize("chosen", [0, 21])
def test_a_layer_in_integers_is_near_the_one_that_is_not(kind: torch.dtype, chosen: int) -> None:
    """And the same to the bit on any number of threads, but for sums that threads share."""
    lengths = np.array([40, 7, 90, 23], dtype=np.int64)
    ids = np.zeros(lengths.sum(), dtype=np.int64)
    made, layout = block(), Layout(Packed.of_arrays(ids, ids, lengths), "all")
    x = normal(160, 128, seed=1, kind=kind)
    rows = torch.arange(3, 3 + 5 * chosen, 5) if chosen else None
    wanted = computed(made, fast.Fast(), x, layout, rows)
    found = computed(made, fast.Fast(in_integers=True), x, layout, rows)
    far = [apart(one, other) for one, other in zip(found, wanted, strict=True)]
    assert 1e-4 < max(far) < 0.05
    usual = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        alone = computed(made, fast.Fast(in_integers=True), x, layout, rows)
    finally:
        torch.set_num_threads(usual)
    assert torch.equal(alone[0], found[0])
    assert torch.equal(alone[1], found[1])


class Killed(BaseException):
    """What ends a run at once."""


def test_a_run_in_integers_and_its_resume(tmp_path: Path) -> None:
    """To the bit the unbroken run; and another than the one without integers."""
    shards, stepped = tiny_run.make_shards(tmp_path), Recorder.stepped
    wide = ("model.hidden_size=128", "model.intermediate_size=128", "train.kernels=numba")
    few = (*wide, "train.max_steps=6", "train.checkpoint_every=2", "train.int8=true")

    def step_and_die(self: Recorder, number: int, *rest: Any) -> None:
        stepped(self, number, *rest)
        if number == 3:
            raise Killed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Recorder, "stepped", step_and_die)
        with pytest.raises(Killed):
            tiny_run.run(shards, tmp_path / "again", *few)
    tiny_run.run(shards, tmp_path / "again", *few, resume=True)
    tiny_run.run(shards, tmp_path / "whole", *few)
    tiny_run.run(shards, tmp_path / "usual", *few[:-1])
    weights = {
        name: (tmp_path / name / "model/model.safetensors").read_bytes() for name in ("whole", "again")
    }
    assert weights["whole"] == weights["again"]
    assert weights["whole"] != (tmp_path / "usual/model/model.safetensors").read_bytes()
    told = yaml.safe_load((tmp_path / "again/settings.yaml").read_text(encoding="utf-8"))
    assert told["train"]["int8"] is True


def test_who_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, place = TrainSettings(int8=True), Place.of("cpu", "fp32")
    tiny = preset("bert-tiny-uncased")

    def refused(train: TrainSettings = asked, place: Place = place, **sizes: Any) -> str:
        with pytest.raises(InputError) as caught:
            run.with_kernels(place, train, preset("bert-tiny-uncased", **sizes), updates=None)
        return str(caught.value)

    assert run.with_kernels(place, asked, tiny, updates=3).kernels.in_integers  # type: ignore[attr-defined]
    assert "this model has hidden_size=96" in refused(hidden_size=96, intermediate_size=128)
    assert "this model has hidden_act=relu" in refused(hidden_act="relu")
    assert "train.kernels is torch" in refused(TrainSettings(int8=True, kernels="torch"))
    assert "on a GPU" in refused(place=Place(torch.device("meta"), "fp32", torch.Generator()))
    monkeypatch.setattr(integer_products, "NATIVE", None)
    assert "this processor has no products of 8-bit integers" in refused()
    monkeypatch.setattr(choice, "are_here", lambda: False)
    assert "Numba is not installed" in refused()
