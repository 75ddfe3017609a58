"""Self-test of GPU kernels: they are compared with PyTorch's operations on small inputs before a run uses them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertsmith.kernels.reference import REFERENCE, EncoderLayerModules, KernelBackend, SequenceLayout

_DTYPE = torch.bfloat16
_TOLERANCE = 5e-2  # of values near 1 that are rounded to bf16 in between and summed in another order
_HIDDEN_SIZE, _NUM_HEADS = 96, 2
_MIN_COMPUTE_CAPABILITY = (8, 0)  # the first with matrix products in bf16


def check_backend(kernels: KernelBackend, device: torch.device) -> None:
    """Check that kernels work on a device. The state of random generators is preserved.

    Raises:
        RuntimeError: Outputs or gradients differ from those of PyTorch's operations or, with dropout, are not
            finite. What the kernels or the compiler raise is raised as well.
    """
    is_gpu = torch.empty(0, device=device).is_cuda
    if is_gpu and torch.cuda.get_device_capability(device) < _MIN_COMPUTE_CAPABILITY:
        raise RuntimeError("a GPU of compute capability 8.0 or later is required")
    with torch.random.fork_rng([device] if is_gpu else []):
        for lengths in ([32, 64], [32, 160]):
            _check_attention(kernels, lengths, device)
        _check_encoder_layer(kernels, device)
        _check_embed(kernels, device)
        _check_cross_entropy(kernels, device)


@dataclass
class _Dropout:
    """A `DropoutLike` whose mask keeps everything: outputs with dropout are checked only for finite values."""

    p: float
    is_active: bool
    generator: torch.Generator

    def add_residual(self, residual: Tensor, x: Tensor) -> Tensor:
        return residual + x

    def draw_mask(self, x: Tensor) -> Tensor:
        return torch.ones_like(x)


def _dropouts(device: torch.device) -> Iterator[_Dropout]:
    """Yield an active dropout, to run this code path, and an inactive one, to compare results."""
    for is_active in (True, False):
        yield _Dropout(0.1, is_active, torch.Generator(device))


def _check_attention(kernels: KernelBackend, lengths: list[int], device: torch.device) -> None:
    qkv = _values((sum(lengths), 3 * _HIDDEN_SIZE), device).to(_DTYPE).requires_grad_()
    qkv_fp32 = qkv.detach().float().requires_grad_()
    for dropout in _dropouts(device):
        out = kernels.attention(qkv, _layout(lengths, device), _NUM_HEADS, dropout)
        expected = _reference_attention(qkv_fp32, lengths)
        _check_out_and_grads(out, expected, [qkv], [qkv_fp32], compare=not dropout.is_active)


def _check_encoder_layer(kernels: KernelBackend, device: torch.device) -> None:
    lengths, size = [8, 16], _HIDDEN_SIZE
    x = _values((sum(lengths), size), device).to(_DTYPE).requires_grad_()
    qkv, projection = _linear(size, 3 * size, device), _linear(size, size, device)
    inner, output = _linear(size, 2 * size, device), _linear(2 * size, size, device)
    attention_norm, output_norm = _layer_norm(device), _layer_norm(device)
    modules = qkv, projection, attention_norm, inner, output, output_norm
    parameters = [parameter for module in modules for parameter in module.parameters()]
    x_fp32 = x.detach().float().requires_grad_()
    attended = attention_norm(x_fp32 + projection(_reference_attention(qkv(x_fp32), lengths)))
    rows = torch.arange(0, sum(lengths), 2, device=device)
    expected = output_norm(attended + output(F.gelu(inner(attended))))[rows]
    for dropout in _dropouts(device):
        layer = EncoderLayerModules(*modules, _NUM_HEADS, dropout, dropout, F.gelu)
        out = kernels.encoder_layer(x, _layout(lengths, device), layer, rows)
        inputs, inputs_fp32 = [x, *parameters], [x_fp32, *parameters]
        _check_out_and_grads(out, expected, inputs, inputs_fp32, compare=not dropout.is_active)


def _check_embed(kernels: KernelBackend, device: torch.device) -> None:
    x = _values((40, _HIDDEN_SIZE), device).to(_DTYPE).requires_grad_()
    embeddings = [nn.Embedding(size, _HIDDEN_SIZE, device=device) for size in (2, 30)]
    norm = _layer_norm(device)
    lookups = [
        (embedding, torch.arange(40, device=device) * 7 % len(embedding.weight)) for embedding in embeddings
    ]
    parameters = [*(embedding.weight for embedding in embeddings), *norm.parameters()]
    x_fp32 = x.detach().float().requires_grad_()
    expected = norm(x_fp32 + sum(embedding(indices) for embedding, indices in lookups))
    for dropout in _dropouts(device):
        out = kernels.embed(x, lookups, norm, dropout, _DTYPE)
        inputs, inputs_fp32 = [x, *parameters], [x_fp32, *parameters]
        _check_out_and_grads(out, expected, inputs, inputs_fp32, compare=not dropout.is_active)


def _check_cross_entropy(kernels: KernelBackend, device: torch.device) -> None:
    logits, bias = _values((6, 50), device).to(_DTYPE), _values((50,), device)
    labels = torch.tensor([7, 0, 49, 3, 3, 5], device=device)
    expected_logits = logits[:5].clone().float()
    expected = REFERENCE.fused_cross_entropy(expected_logits, bias, labels[:5])
    if kernels.ignores_negative_labels:
        labels[5] = -1
        expected_logits = torch.cat([expected_logits, torch.zeros_like(expected_logits[:1])])
    else:
        logits, labels = logits[:5], labels[:5]
    results = kernels.fused_cross_entropy(logits, bias, labels)
    _compare((logits, expected_logits), *zip(results, expected, strict=True))


def _linear(in_features: int, out_features: int, device: torch.device) -> nn.Module:
    return _set_parameters(nn.Linear(in_features, out_features, device=device), device)


def _layer_norm(device: torch.device) -> nn.Module:
    return _set_parameters(nn.LayerNorm(_HIDDEN_SIZE, device=device), device)


def _set_parameters(module: nn.Linear | nn.LayerNorm, device: torch.device) -> nn.Module:
    with torch.no_grad():
        module.weight.copy_(_values(module.weight.shape, device) * 0.2)
        module.bias.copy_(_values(module.bias.shape, device) * 0.1)
    return module


def _layout(lengths: list[int], device: torch.device) -> SequenceLayout:
    cu_seqlens = torch.tensor([0, *lengths], device=device).cumsum(0)
    return SequenceLayout(cu_seqlens, "all", max(lengths), sum(lengths))


def _reference_attention(qkv: Tensor, lengths: list[int]) -> Tensor:
    """Compute attention for one sequence after the other, [N, 3H] → [N, H]."""
    outputs = []
    for sequence in torch.split(qkv, lengths):
        q, k, v = sequence.view(len(sequence), 3, _NUM_HEADS, -1).permute(1, 2, 0, 3)
        outputs.append(F.scaled_dot_product_attention(q, k, v).transpose(0, 1).flatten(1))
    return torch.cat(outputs)


def _values(shape: tuple[int, ...], device: torch.device) -> Tensor:
    """Return fixed values between -1 and 1."""
    return (torch.arange(math.prod(shape), device=device) * 0.7).sin().view(shape)


def _check_out_and_grads(
    out: Tensor | None,
    expected: Tensor,
    inputs: list[Tensor],
    expected_inputs: list[Tensor],
    *,
    compare: bool,
) -> None:
    """Check that outputs and gradients are finite and, if compare is set, equal to the expected ones.

    The output is None if the kernels leave the operation to PyTorch.
    """
    if out is None:
        return
    out_grad = out.detach()
    grads = torch.autograd.grad(out, inputs, out_grad)
    if not all(bool(tensor.isfinite().all()) for tensor in (out, *grads)):
        raise RuntimeError("its results are not finite")
    if compare:
        expected_grads = torch.autograd.grad(expected, expected_inputs, out_grad.float(), retain_graph=True)
        _compare((out, expected), *zip(grads, expected_grads, strict=True))


def _compare(*pairs: tuple[Tensor, Tensor]) -> None:
    for actual, expected in pairs:
        if not torch.allclose(actual.float(), expected.float(), atol=_TOLERANCE, rtol=_TOLERANCE):
            raise RuntimeError("its results differ from those of PyTorch's operations")
