"""Which kernels a GPU gets, and what is said where one does not work there."""

from __future__ import annotations

import logging
import sys
from typing import Any

import pytest
import torch
from torch import Tensor

from bertsmith.device import ComputeContext
from bertsmith.errors import InputError
from bertsmith.kernels import backend_selection, gpu
from bertsmith.kernels.gpu import self_test, torch_flash_attention

pytest.importorskip("triton", reason="needs Triton, which the extra `dev` has on Linux")
from bertsmith.kernels.gpu import encoder_layer, triton_backend
from bertsmith.kernels.gpu.layer_norm import LayerNormOutput, SeededDropout, embed_layer_norm
from bertsmith.kernels.gpu.loss import cross_entropy

HERE = torch.device("cpu")

pytestmark = pytest.mark.skipif(
    torch.cuda.is_available(),
    reason="Triton computes on the GPU here, and these tensors are on the processor",
)


def broken(*_: Any, **__: Any) -> Tensor:
    raise NotImplementedError("needs a newer GPU\nand more")


def plain_attention(qkv: Tensor, *_: Any, **__: Any) -> Tensor:
    return qkv[:, : qkv.shape[1] // 3]


class OutOfResources(Exception):
    """As Triton's, which is no RuntimeError."""


def too_large(*_: Any) -> Tensor:
    raise OutOfResources("out of resource: shared memory")


def wrong_loss(logits: Tensor, bias: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    loss, right = cross_entropy(logits, bias, labels)
    return loss + 7, right


def half_too_much(*given: Any) -> Tensor:
    return encoder_layer.encoder_layer(*given) + 0.5


def no_number(x: Tensor, looked: Any, norm: Any, drawn: SeededDropout, kind: Any) -> LayerNormOutput:
    """With dropout alone."""
    made = embed_layer_norm(x, looked, norm, drawn, kind)
    return made._replace(out=made.out / 0 * 0) if drawn.dropped else made


@pytest.fixture
def interpreted(exact: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton's interpreter has no bf16: what is tried is tried in fp32."""
    monkeypatch.setattr(self_test, "_LOW", torch.float32)


def test_the_kernels_of_a_gpu(interpreted: None, caplog: pytest.LogCaptureFixture) -> None:
    for asked, is_long, name in (
        ("auto", True, "triton"),
        ("auto", False, "flash"),
        ("flash", True, "flash"),
        ("triton", False, "triton"),
        ("torch", True, "torch"),
    ):
        caplog.set_level(logging.INFO, "bertsmith")
        caplog.clear()
        assert backend_selection.select_gpu_backend(asked, HERE, is_long=is_long).name == name
        assert len(caplog.messages) == (name == "triton"), caplog.messages
    with pytest.raises(InputError, match="'numba' compute on the CPU") as refused:
        backend_selection.select_gpu_backend("numba", HERE, is_long=True)
    assert (refused.value.code, refused.value.argument) == ("kernels_need_cpu", "train.kernels")
    for asked in ("flash", "triton"):
        with pytest.raises(InputError, match=f"'{asked}' compute on a GPU") as refused:
            backend_selection.resolve_backend_name(asked, 128)
        assert (refused.value.code, refused.value.argument) == ("kernels_need_gpu", "train.kernels")


@pytest.mark.parametrize(
    ("room", "part", "fault", "what", "why", "left"),
    [
        (torch_flash_attention, "flash_attention", broken, "flash attention", "needs a newer GPU", "torch"),
        (
            torch_flash_attention,
            "flash_attention",
            plain_attention,
            "flash attention",
            "it gives other",
            "torch",
        ),
        (triton_backend, "attention", broken, "Triton", "needs a newer GPU", "flash"),
        (triton_backend, "attention", plain_attention, "Triton", "it gives other", "flash"),
        (triton_backend, "encoder_layer", too_large, "Triton", "out of resource: shared memory", "flash"),
        (triton_backend, "encoder_layer", half_too_much, "Triton", "it gives other", "flash"),
        (triton_backend, "embed_layer_norm", no_number, "Triton", "it gives what is not a number", "flash"),
        (triton_backend, "cross_entropy", wrong_loss, "Triton", "it gives other", "flash"),
    ],
)
def test_what_does_not_work_on_a_gpu_is_done_without(
    interpreted: None,
    monkeypatch: pytest.MonkeyPatch,
    room: Any,
    part: str,
    fault: Any,
    what: str,
    why: str,
    left: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(room, part, fault)
    caplog.set_level(logging.INFO, "bertsmith")
    caplog.clear()
    assert backend_selection.select_gpu_backend("auto", HERE, is_long=True).name == left
    assert len(caplog.messages) == (2 if what == "Triton" else 1)
    assert caplog.messages[-1].startswith(f"{what} does not work here ({why}")
    instead = "torch computes" if left == "torch" else "flash attention and torch compute"
    assert caplog.messages[-1].endswith(f"); {instead} without it, more slowly")
    asked = "triton" if left == "flash" else "flash"
    with pytest.raises(InputError) as refused:
        backend_selection.select_gpu_backend(asked, HERE, is_long=True)
    assert (refused.value.code, refused.value.argument) == ("kernels_fail", "train.kernels")
    assert refused.value.message.startswith(f"{what} does not work on this machine: {why}")


def test_a_gpu_without_triton(
    interpreted: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delattr(gpu, "triton_backend")
    monkeypatch.setitem(sys.modules, "bertsmith.kernels.gpu.triton_backend", None)
    caplog.set_level(logging.INFO, "bertsmith")
    caplog.clear()
    assert backend_selection.select_gpu_backend("auto", HERE, is_long=True).name == "flash"
    assert caplog.messages[-1].startswith("Triton does not work here (")


def test_what_is_tried_draws_nothing_from_the_run(interpreted: None) -> None:
    torch.manual_seed(3)
    state = torch.get_rng_state()
    backend_selection.select_gpu_backend("triton", HERE, is_long=True)
    assert torch.get_rng_state().equal(state)


def test_a_model_that_answers_leaves_the_run_its_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    """The default generator is a run's alone."""
    monkeypatch.setattr("bertsmith.device._default_generator", lambda _: torch.default_generator)
    run = ComputeContext.create("cpu", "bf16", 5, for_training=True)
    assert run.generator is torch.default_generator
    state = run.generator.get_state()
    assert ComputeContext.create("cpu", "bf16", 0).generator is not torch.default_generator
    assert run.generator.get_state().equal(state)
    assert run.generator.initial_seed() == 5
