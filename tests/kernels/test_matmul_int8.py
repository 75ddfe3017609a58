"""Training in 8-bit integers: the bodies against their definition in torch, a layer, a run, and who is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import bertsmith as bs
import tiny_run
from bertsmith.device import Place
from bertsmith.errors import InputError
from bertsmith.kernels import backend_selection
from bertsmith.kernels.reference import Integers, Kernels, use_kernels
from bertsmith.models.attention_layout import Layout
from bertsmith.models.config import Sees
from bertsmith.models.encoder import Block, block_of
from bertsmith.models.family import preset
from bertsmith.models.layers import use_generator
from bertsmith.packed import Packed
from bertsmith.runs import run_folder
from bertsmith.training.metric_logger import Recorder
from bertsmith.training.settings import TrainSettings

if not backend_selection.are_here():
    pytest.skip("Numba, the extra fast, is not installed here", allow_module_level=True)

from bertsmith.kernels import slopes_in_fours, weights_in_fours
from bertsmith.kernels.cpu import amx, autograd, gemm_int8_vnni, layer_functions, matmul_int8, training
from bertsmith.kernels.cpu.compilation import launch
from by_parts import ByParts

FULL, HALF = torch.float32, torch.bfloat16


BY_PARTS = ByParts()
NATIVES: list[Any] = [gemm_int8_vnni]
if amx.are_here():
    from bertsmith.kernels.cpu import gemm_int8_amx

    NATIVES.append(gemm_int8_amx)


@pytest.fixture(params=NATIVES, ids=lambda bodies: bodies.__name__.rpartition(".")[2], autouse=True)
def native(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """These bodies, also on a processor that has no products of integers; there slopes in integers, too."""
    monkeypatch.setattr(matmul_int8, "NATIVE", request.param)
    monkeypatch.setattr(matmul_int8, "WEIGHTS", weights_in_fours)
    monkeypatch.setattr(matmul_int8, "SLOPES", slopes_in_fours)
    monkeypatch.setattr(backend_selection, "_multiplies_integers", lambda: True)
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
    return layer_functions.joined_slopes([(x, grad)], launch, matmul_int8.multiply_columns)


def there_and_back(weight: Tensor, bias: Tensor | None = None) -> tuple[Integers, Integers]:
    """What is multiplied by a matrix [out, in] in integers."""
    bias = torch.zeros(len(weight)) if bias is None else bias
    (made,) = matmul_int8.rounded([(weight, bias)], launch)
    return made


def multiplied(x: Tensor, by: Integers, **more: Any) -> Tensor:
    return matmul_int8.in_integers(by, x, x.dtype, launch, least=1e-30, **more)


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
        of_there, of_back = there_and_back(weight, bias)
        found = multiplied(x, of_there)
        activated = multiplied(x, of_there, activated=True, kept=kept)
        back = multiplied(grad, of_back)
        sloped = multiplied(grad, of_back, before=before)
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


def test_slopes_may_lie_anywhere() -> None:
    """Those of few terms are put past the caches where each row begins at a line of these."""
    x, grad = normal(300, 64, seed=1), normal(300, 128, seed=2)
    wanted, of_bias = made_slopes(x, grad)
    for first, width in ((0, 80), (1, 64), (5, 70)):
        out = torch.empty(first + 128 * width)[first:].view(128, width)[:, :64]
        matmul_int8.multiply_columns(grad, x, out, torch.empty(128), launch)
        assert torch.equal(out, wanted)
    assert apart(of_bias, grad.sum(0)) < 1e-5


@pytest.mark.parametrize("kind", [FULL, HALF])
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_what_is_not_a_number_stays_none(kind: torch.dtype, value: float) -> None:
    """Rounding it would hide it: in a row, in what GELU is taken of or its slopes at, in a weight, in a term."""
    whole, x = normal(70, 64, seed=1, kind=kind), normal(70, 64, seed=1, kind=kind)
    weight, bias, others = normal(64, 64, seed=2), normal(64, seed=3), torch.arange(70) != 3
    x[3, 5] = value
    (there, back), kept = there_and_back(weight, bias), torch.empty_like(x)
    found = multiplied(x, there)
    activated = multiplied(x, there, activated=True, kept=kept)
    for made in (found, kept):
        assert not made[3].isfinite().any()
    assert not activated[3].isfinite().all()
    for made in (found, kept, activated):
        assert made[others].isfinite().all()
    sloped = multiplied(whole, back, before=x)
    assert sloped.isfinite().logical_not().nonzero().tolist() == ([[3, 5]] if value != value else [])
    bias[9] = value
    there, _ = there_and_back(weight, bias)
    found = multiplied(whole, there)
    assert not found[:, 9].isfinite().any()
    assert found[:, torch.arange(64) != 9].isfinite().all()
    weight[7, 9] = value
    for column, by in zip((7, 9), there_and_back(weight), strict=True):
        found = multiplied(whole, by)
        assert not found[:, column].isfinite().any()
        assert found[:, torch.arange(64) != column].isfinite().all()


@pytest.mark.parametrize("kind", [FULL, HALF])
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("term", [0, 600, 1099])
def test_nor_do_slopes_hide_it(kind: torch.dtype, value: float, term: int) -> None:
    x, grad = normal(1100, 64, seed=1, kind=kind), normal(1100, 128, seed=2, kind=kind)
    grad[term, 5] = value
    of_weight, of_bias = made_slopes(x, grad)
    assert not of_weight[5].isfinite().any()
    assert not of_bias[5].isfinite()
    others = torch.arange(128) != 5
    assert of_weight[others].isfinite().all()
    assert of_bias[others].isfinite().all()
    grad[term, 5], x[term, 40] = 0, value
    of_weight, of_bias = made_slopes(x, grad)
    assert not of_weight[:, 40].isfinite().any()
    assert of_weight[:, torch.arange(64) != 40].isfinite().all()
    assert of_bias.isfinite().all()


@pytest.mark.parametrize("rows", [417, 1100])
def test_the_number_of_threads_changes_nothing(rows: int) -> None:
    x, grad, weight = normal(rows, 128, seed=1), normal(rows, 320, seed=2), normal(320, 128, seed=3)
    usual, found = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3, 3):
            torch.set_num_threads(threads)
            there, back = there_and_back(weight)
            found.append([multiplied(x, there), multiplied(grad, back), *made_slopes(x, grad)])
    finally:
        torch.set_num_threads(usual)
    for others in found[1:]:
        assert all(map(torch.equal, found[0], others))


def block(p: float = 0.0, **changes: Any) -> Block:
    sizes = {"hidden_size": 128, "intermediate_size": 256, "num_attention_heads": 2, **changes}
    dropout = {"hidden_dropout_prob": p, "attention_probs_dropout_prob": p}
    made = block_of(preset("bert-tiny-uncased", **sizes, **dropout), torch.Generator())
    draw = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for weight in made.parameters():
            weight.copy_(torch.randn(weight.shape, generator=draw) / 8)
    return made


def layout_of(*lengths: int, sees: Sees = "all") -> Layout:
    ids = np.zeros(sum(lengths), dtype=np.int64)
    return Layout(Packed.of_arrays(ids, ids, np.array(lengths, dtype=np.int64)), sees)


def computed(
    made: Block, kernels: Kernels, x: Tensor, layout: Layout, rows: Tensor | None, *, learns: bool = True
) -> tuple[bool, list[Tensor]]:
    """Whether it is a program as a whole; its result, and all slopes. learns: whether x does."""
    use_kernels(made, kernels)
    use_generator(made, torch.Generator().manual_seed(5))
    x = x.clone().requires_grad_(learns)
    with torch.autocast("cpu", HALF, enabled=x.dtype == HALF):
        found = made(x, layout, rows)
    upstream = normal(*found.shape, seed=6, kind=found.dtype)
    learnt = [one for one in (x, *made.parameters()) if one.requires_grad]
    is_whole = isinstance(found.grad_fn, autograd.Layers._backward_cls)  # type: ignore[attr-defined]
    return is_whole, [found.detach(), *torch.autograd.grad(found, learnt, upstream)]


@pytest.mark.parametrize("kind", [FULL, HALF])
@pytest.mark.parametrize("chosen", [None, 1, 3, 21])
@pytest.mark.parametrize("sees", ["all", "before"])
@pytest.mark.parametrize("p", [0.0, 0.2])
def test_a_layer_in_integers_is_near_the_one_that_is_not(
    kind: torch.dtype, chosen: int | None, sees: Sees, p: float
) -> None:
    """But not the same, in any of its products."""
    made, layout, x = block(p), layout_of(40, 7, 90, 23, sees=sees), normal(160, 128, seed=1, kind=kind)
    rows = None if chosen is None else torch.arange(3, 3 + 5 * chosen, 5)
    _, wanted = computed(made, BY_PARTS, x, layout, rows)
    is_whole, found = computed(made, training.Fast(in_integers=True), x, layout, rows)
    assert is_whole
    far = [apart(*pair) for pair in zip(found, wanted, strict=True)]
    assert max(far) < 0.05, far
    matrices = [number for number, weight in enumerate(made.parameters(), 2) if weight.dim() == 2]
    assert min(far[number] for number in (0, 1, *matrices)) > 2e-3, far


@pytest.mark.parametrize("rows", [None, torch.arange(0, 40, 4)])
def test_a_way_back_may_be_gone_twice(rows: Tensor | None) -> None:
    """The integers of the weights, which the first one gives back, are made again."""
    made, x = block(), normal(40, 128, seed=1, kind=HALF).requires_grad_()
    use_kernels(made, training.Fast(in_integers=True))
    with torch.autocast("cpu", HALF):
        found = made(x, layout_of(40), rows)
    learnt, upstream = [x, *made.parameters()], normal(*found.shape, seed=6, kind=found.dtype)
    first = torch.autograd.grad(found, learnt, upstream, retain_graph=True)
    assert all(map(torch.equal, first, torch.autograd.grad(found, learnt, upstream)))


def test_a_layer_in_integers_reads_no_row() -> None:
    """Where a head reads none, as in a text of special tokens alone."""
    made, layout, x = block(), layout_of(5, 12), normal(17, 128, seed=1)
    is_whole, found = computed(
        made, training.Fast(in_integers=True), x, layout, torch.empty(0, dtype=torch.long)
    )
    assert not is_whole
    assert found[0].shape == (0, 128)
    assert all(not slopes.any() for slopes in found[1:])


@pytest.mark.parametrize(
    ("sizes", "serves"),
    [
        ({}, True),
        ({"intermediate_size": 96}, False),
        ({"hidden_act": "relu"}, False),
        ({"norm": "pre"}, False),
    ],
)
def test_which_layers_are_in_integers(sizes: dict[str, Any], serves: bool) -> None:
    made, x = block(**sizes), normal(40, 128, seed=1, kind=HALF)
    with mock.patch.object(matmul_int8, "rounded", wraps=matmul_int8.rounded) as asked:
        computed(made, training.Fast(in_integers=True), x, layout_of(40), None)
    assert asked.called == serves


def test_a_layer_whose_input_learns_nothing_is_in_integers_a_frozen_one_is_not() -> None:
    made, x, layout, kernels = (
        block(),
        normal(40, 128, seed=1),
        layout_of(40),
        training.Fast(in_integers=True),
    )
    _, wanted = computed(made, kernels, x, layout, None)
    is_whole, found = computed(made, kernels, x, layout, None, learns=False)
    assert is_whole
    assert all(map(torch.equal, found, [wanted[0], *wanted[2:]]))
    made.attention_norm.weight.requires_grad_(requires_grad=False)
    with mock.patch.object(matmul_int8, "rounded") as asked:
        computed(made, kernels, x, layout, None)
    assert not asked.called


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
    more = (*wide, "train.max_steps=8", "train.int8=false")  # as on a machine that cannot do it
    assert tiny_run.run(shards, tmp_path / "again", *more, resume=True).report["int8"] is False


def test_who_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, place = TrainSettings(int8=True), Place.of("cpu", "fp32")
    tiny = preset("bert-tiny-uncased")

    def refused(train: TrainSettings = asked, place: Place = place, **sizes: Any) -> str:
        with pytest.raises(InputError) as caught:
            run_folder.with_kernels(place, train, preset("bert-tiny-uncased", **sizes), updates=None)
        return str(caught.value)

    assert run_folder.with_kernels(place, asked, tiny, updates=3).kernels.in_integers
    assert "this model has model.hidden_size=96" in refused(hidden_size=96, intermediate_size=128)
    assert "this model has heads of 8 columns" in refused(num_attention_heads=16)
    odd = refused(hidden_act="relu", norm="pre")
    assert "this model has model.hidden_act=relu, model.norm=pre" in odd
    assert "train.kernels is torch" in refused(TrainSettings(int8=True, kernels="torch"))
    assert "train.kernels=flash: computes on a GPU" in refused(TrainSettings(int8=True, kernels="flash"))
    assert "on a GPU" in refused(place=Place(torch.device("meta"), "fp32", torch.Generator()))
    monkeypatch.setattr(backend_selection, "_multiplies_integers", lambda: False)
    assert "this processor has neither AVX512-VNNI nor AMX" in refused()
    monkeypatch.setattr(backend_selection, "are_here", lambda: False)
    assert "pip install 'bertsmith[fast]'; or train without it: train.int8=false" in refused()


def test_a_frozen_encoder_is_refused(tmp_path: Path) -> None:
    base = tiny_run.run(tiny_run.make_shards(tmp_path), tmp_path / "base", "train.max_steps=1")
    rows = [{"text": text, "label": label} for text, label in tiny_run.examples(20)]
    asked = ["train.int8=true", "train.frozen=true"]
    with pytest.raises(InputError, match=r"train\.frozen trains none"):
        bs.finetune("classify", base, tmp_path / "run", train=rows, dev_share=0.25, settings=asked)
    assert not (tmp_path / "run").exists()
