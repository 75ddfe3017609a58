"""Selection of GPU kernels, and the messages about kernels that fail their self-test."""

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
from bertsmith.kernels.gpu import encoder_layer, layer_norm, triton_backend
from bertsmith.kernels.gpu.layer_norm import LayerNormOutput, NormInputs, SeededDropout, layer_norm_forward
from bertsmith.kernels.gpu.loss import cross_entropy

DEVICE = torch.device("cpu")

pytestmark = pytest.mark.skipif(
    torch.cuda.is_available(), reason="Triton uses the GPU, and the tensors of these tests are on the CPU"
)


def not_implemented(*_: Any, **__: Any) -> Tensor:
    raise NotImplementedError("needs a newer GPU\nand more")


def wrong_attention(qkv: Tensor, *_: Any, **__: Any) -> Tensor:
    return qkv[:, : qkv.shape[1] // 3]


class OutOfResources(Exception):
    """An error like Triton's, which is no RuntimeError."""


def out_of_resources(*_: Any) -> Tensor:
    raise OutOfResources("out of resource: shared memory")


def wrong_loss(logits: Tensor, bias: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    loss, num_correct = cross_entropy(logits, bias, labels)
    return loss + 7, num_correct


def wrong_layer(*args: Any) -> Tensor:
    return encoder_layer.encoder_layer(*args) + 0.5


def nan_with_dropout(inputs: NormInputs, norm: Any, dropout: SeededDropout, dtype: Any) -> LayerNormOutput:
    """Return NaN for the embeddings, but not for an encoder layer."""
    output = layer_norm_forward(inputs, norm, dropout, dtype)
    is_nan = dropout.threshold and inputs.is_dropout_last
    return output._replace(out=output.out / 0 * 0) if is_nan else output


@pytest.fixture
def fp32_self_test(fp32_attention: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the self-test in fp32, since Triton's interpreter does not support bf16, and with small tensors."""
    monkeypatch.setattr(self_test, "_DTYPE", torch.float32)
    monkeypatch.setattr(self_test, "_HIDDEN_SIZE", 32)
    monkeypatch.setattr(self_test, "_NUM_HEADS", 1)


def test_select_gpu_backend(fp32_self_test: None, caplog: pytest.LogCaptureFixture) -> None:
    for setting, is_long, name in (
        ("auto", True, "triton"),
        ("auto", False, "flash"),
        ("flash", True, "flash"),
        ("triton", False, "triton"),
        ("torch", True, "torch"),
    ):
        caplog.set_level(logging.INFO, "bertsmith")
        caplog.clear()
        assert backend_selection.select_gpu_backend(setting, DEVICE, is_long=is_long).name == name
        assert len(caplog.messages) == (name == "triton"), caplog.messages
    with pytest.raises(InputError) as error:
        backend_selection.select_gpu_backend("numba", DEVICE, is_long=True)
    assert (error.value.code, error.value.argument) == ("kernels_need_cpu", "train.kernels")
    for setting in ("flash", "triton"):
        with pytest.raises(InputError) as error:
            backend_selection.resolve_backend_name(setting, 128)
        assert (error.value.code, error.value.argument) == ("kernels_need_gpu", "train.kernels")


@pytest.mark.parametrize(
    ("module", "function", "fault", "kernels", "reason", "fallback"),
    [
        (
            *(torch_flash_attention, "flash_attention", not_implemented),
            *("flash attention", "needs a newer GPU", "torch"),
        ),
        (
            *(torch_flash_attention, "flash_attention", wrong_attention),
            *("flash attention", "its results differ", "torch"),
        ),
        (triton_backend, "attention", not_implemented, "Triton", "needs a newer GPU", "flash"),
        (triton_backend, "attention", wrong_attention, "Triton", "its results differ", "flash"),
        (
            *(triton_backend, "encoder_layer", out_of_resources),
            *("Triton", "out of resource: shared memory", "flash"),
        ),
        (triton_backend, "encoder_layer", wrong_layer, "Triton", "its results differ", "flash"),
        (
            *(layer_norm, "layer_norm_forward", nan_with_dropout),
            *("Triton", "its results are not finite", "flash"),
        ),
        (triton_backend, "cross_entropy", wrong_loss, "Triton", "its results differ", "flash"),
    ],
)
def test_faulty_kernels_are_not_used(
    fp32_self_test: None,
    monkeypatch: pytest.MonkeyPatch,
    module: Any,
    function: str,
    fault: Any,
    kernels: str,
    reason: str,
    fallback: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(module, function, fault)
    caplog.set_level(logging.INFO, "bertsmith")
    caplog.clear()
    assert backend_selection.select_gpu_backend("auto", DEVICE, is_long=True).name == fallback
    assert len(caplog.messages) == (2 if kernels == "Triton" else 1)
    assert caplog.messages[-1].startswith(f"{kernels} does not work here ({reason}")
    instead = "torch computes" if fallback == "torch" else "flash attention and torch compute"
    assert caplog.messages[-1].endswith(f"); {instead} without it, more slowly")
    setting = "triton" if fallback == "flash" else "flash"
    with pytest.raises(InputError) as error:
        backend_selection.select_gpu_backend(setting, DEVICE, is_long=True)
    assert (error.value.code, error.value.argument) == ("kernels_fail", "train.kernels")
    assert error.value.message.startswith(f"{kernels} does not work on this machine: {reason}")


def test_missing_triton(
    fp32_self_test: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delattr(gpu, "triton_backend")
    monkeypatch.setitem(sys.modules, "bertsmith.kernels.gpu.triton_backend", None)
    caplog.set_level(logging.INFO, "bertsmith")
    caplog.clear()
    assert backend_selection.select_gpu_backend("auto", DEVICE, is_long=True).name == "flash"
    assert caplog.messages[-1].startswith("Triton does not work here (")


def test_self_test_preserves_the_random_state(fp32_self_test: None) -> None:
    torch.manual_seed(3)
    state = torch.get_rng_state()
    backend_selection.select_gpu_backend("triton", DEVICE, is_long=True)
    assert torch.get_rng_state().equal(state)


def test_inference_does_not_use_the_default_generator(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a training run uses the default generator."""
    monkeypatch.setattr("bertsmith.device._default_generator", lambda _: torch.default_generator)
    run = ComputeContext.create("cpu", "bf16", 5, for_training=True)
    assert run.generator is torch.default_generator
    state = run.generator.get_state()
    assert ComputeContext.create("cpu", "bf16", 0).generator is not torch.default_generator
    assert run.generator.get_state().equal(state)
    assert run.generator.initial_seed() == 5
