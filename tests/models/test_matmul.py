"""Products by oneDNN are torch's, there and back; a decoder's table takes in the gradients of looked-up rows."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import tiny_run
from bertsmith import hardware
from bertsmith.kernels.reference import Kernels
from bertsmith.models import encoder as encoder_module
from bertsmith.models import layers
from bertsmith.models.encoder import Encoder
from bertsmith.models.family import build_encoder, preset
from bertsmith.models.layers import Linear, Table, linear
from bertsmith.objectives.masked_lm import MlmNsp
from bertsmith.packed import Packed

HERE = hasattr(torch.ops.mkldnn, "_linear_pointwise")
SIZES = [(1, 8, 6), (2, 8, 6), (40, 33, 17), (64, 384, 128)]


@pytest.fixture(params=[False, True], ids=["usual", "onednn"])
def by_onednn(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whichever is faster here: both ways are taken."""
    if request.param and not HERE:
        pytest.skip("this torch has no products of oneDNN's")
    monkeypatch.setattr(layers, "machine", SimpleNamespace(onednn_is_faster=lambda: request.param))
    return bool(request.param)


@pytest.mark.parametrize(("rows", "inputs", "outputs"), SIZES)
@pytest.mark.parametrize("biased", [True, False])
def test_there_and_back_it_is_a_linear(
    by_onednn: bool, rows: int, inputs: int, outputs: int, biased: bool
) -> None:
    draw = torch.Generator().manual_seed(rows)
    given = [torch.randn(n, inputs, generator=draw) / inputs**0.5 for n in (rows, outputs)]
    bias = torch.randn(outputs, generator=draw) if biased else None
    slopes = torch.randn(rows, outputs, generator=draw)
    found = []
    for way in (linear, F.linear):
        leaves = [t.clone().requires_grad_() for t in (*given, *([bias] if bias is not None else []))]
        out = way(leaves[0], leaves[1], leaves[2] if biased else None)
        (out * slopes).sum().backward()
        found.append([out, *(leaf.grad for leaf in leaves)])
        assert [leaf.grad is not None for leaf in leaves] == [True] * len(leaves)
    for own, other in zip(*found, strict=True):
        torch.testing.assert_close(own, other, rtol=1e-5, atol=1e-5)
    x = given[0].clone().requires_grad_()
    linear(x, given[1], bias).sum().backward()  # a slope that is one number for all
    torch.testing.assert_close(x.grad, given[1].sum(0).expand(rows, -1), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("outputs", [1, 2, 9, 384])
def test_a_row_does_not_depend_on_the_others(by_onednn: bool, outputs: int) -> None:
    draw = torch.Generator().manual_seed(0)
    x, weight = (torch.randn(n, 96, generator=draw) for n in (300, outputs))
    with torch.inference_mode():
        whole = linear(x, weight, None)
        for first, last in ((0, 1), (5, 7), (3, 18), (100, 163), (1, 290)):
            assert torch.equal(linear(x[first:last], weight, None), whole[first:last])


ZEN_5 = {"vendor_id": "AuthenticAMD", "cpu family": "26", "flags": "fpu avx2 avx512f avx512_bf16"}


@pytest.mark.parametrize(
    ("other", "wanted"),
    [
        ({}, True),
        ({"cpu family": "25"}, False),
        ({"flags": "fpu avx2"}, False),
        ({"vendor_id": "GenuineIntel", "cpu family": "6"}, False),
        ({"vendor_id": "GenuineIntel", "cpu family": "27"}, False),
        ({"cpu family": "unknown"}, False),
    ],
)
def test_the_processor_alone_decides(
    monkeypatch: pytest.MonkeyPatch, other: dict[str, str], wanted: bool
) -> None:
    """A probe decided once. A busy machine could mislead it, and a resumed run, or the other process of one, then
    had other numbers than the straight run."""
    monkeypatch.setattr(hardware, "_processor", lambda: ZEN_5 | other)
    monkeypatch.setattr(hardware, "_seconds_of", lambda work: pytest.fail("nothing is timed"))
    hardware.onednn_is_faster.cache_clear()
    assert hardware.onednn_is_faster() is (wanted and HERE)
    monkeypatch.undo()
    hardware.onednn_is_faster.cache_clear()


def test_a_machine_that_lists_no_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "_processor", dict)
    hardware.onednn_is_faster.cache_clear()
    assert not hardware.onednn_is_faster()
    assert hardware.describe().processor  # as Python has it
    monkeypatch.undo()
    hardware.onednn_is_faster.cache_clear()


def test_rows_that_are_looked_up_are_added_to_the_decoders_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    config = preset("bert-tiny-uncased", vocab_size=tiny_run.tokenizer().vocab_size, hidden_dropout_prob=0.0)
    ids = tiny_run.tokenizer().encode("kaba lode mi kaba").ids
    whole = Packed.of_lists([ids, ids[:4]], [[0] * len(ids), [0] * 4])
    batch = SimpleNamespace(
        packed=whole, rows=torch.tensor([1, 3]), labels=torch.tensor([7, 9]), counts={"mlm": 2}
    )
    found = []
    for joined in (True, False):
        if not joined:
            monkeypatch.setattr(Table, "_joins", property(lambda self: False, lambda self, value: None))
        draw = torch.Generator().manual_seed(0)
        encoder: Encoder = build_encoder(config, draw).eval()
        objective = MlmNsp(config, draw, "none").eval()
        objective.loss(encoder, batch).sums["mlm"].backward()  # type: ignore[arg-type]
        grad = encoder.embeddings.token.weight.grad
        assert grad is not None
        assert not grad.is_sparse
        found.append(grad.clone())
        encoder(whole).sum().backward()  # alone, the table's gradient is an ordinary one
        assert not encoder.embeddings.token.weight.grad.is_sparse  # type: ignore[union-attr]
    torch.testing.assert_close(*found, rtol=1e-5, atol=1e-6)


def test_the_decoders_gradient_comes_last_and_takes_in_the_others_in_place() -> None:
    made: list[int] = []

    class Decoded(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(x, table)
            return x @ table.T

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            x, table = ctx.saved_tensors
            of_table = grad.T @ x
            made.append(of_table.data_ptr())
            return grad @ table, of_table

    table = Table(50, 8)
    with torch.no_grad():
        table.weight.copy_(torch.randn(50, 8, generator=torch.Generator().manual_seed(0)))
    ids = torch.tensor([3, 3, 7])
    with table.beside_decoder(decodes=True) as decoding:
        x = table(ids).sin()
    Decoded.apply(x, decoding).square().sum().backward()
    assert table.weight.grad is not None
    assert [table.weight.grad.data_ptr()] == made
    found, table.weight.grad = table.weight.grad, None
    (table(ids).sin() @ table.weight.T).square().sum().backward()
    torch.testing.assert_close(found, table.weight.grad, rtol=1e-5, atol=1e-5)


def test_an_empty_batch_has_a_product(by_onednn: bool) -> None:
    layer = Linear(8, 4)
    assert layer(torch.empty(0, 8)).shape == (0, 4)


class Multiplying(Kernels):
    """Kernels that say that they make products."""

    def multiplies(self, x: torch.Tensor) -> bool:
        return True


@pytest.mark.parametrize("why", ["nothing", "onednn", "bf16", "integers", "kernels"])
def test_rows_of_no_token_are_there_where_shapes_are_prepared(
    monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    config = preset("bert-tiny-uncased", vocab_size=50)
    encoder: Encoder = build_encoder(config, torch.Generator().manual_seed(0)).eval()
    texts = Packed.of_lists([[1, 2, 3], [4, 5]], [[0] * 3, [0] * 2])
    seen = []
    encoder.blocks[0].feed_forward.inner.register_forward_hook(lambda *given: seen.append(len(given[1][0])))
    monkeypatch.setattr(
        encoder_module, "machine", SimpleNamespace(onednn_is_faster=lambda: why in ("onednn", "kernels"))
    )
    if why == "kernels":
        encoder.kernels = Multiplying()
    encoder.in_integers = why == "integers"
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16, enabled=why == "bf16"):
        found = encoder(texts)
    assert seen == [5 if why in ("nothing", "kernels") else 32]
    assert found.shape == (5, 128)
