"""Kernels for a GPU are tried before a run relies on them, on a little, beside torch's operations."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertsmith.kernels.reference import REFERENCE, EncoderLayerModules, KernelBackend, SequenceLayout

_LOW = torch.bfloat16
_CLOSE = 5e-2  # of numbers near 1 that are rounded to bf16 on their way, and added up in another order
_WIDTH, _HEADS = 96, 2
_LEAST = (8, 0)  # compute capability: bf16 in products


def check_backend(kernels: KernelBackend, device: torch.device) -> None:
    """Compute a little here, there and back. RuntimeError where it is not what torch's operations give, or, with
    dropout, not a number; or whatever is raised. Whoever draws afterwards draws as if nothing had been."""
    is_gpu = not _numbers(1, device).is_cpu
    if is_gpu and torch.cuda.get_device_capability(device) < _LEAST:
        raise RuntimeError("it needs a GPU of compute capability 8.0 or later")
    with torch.random.fork_rng([device] if is_gpu else []):
        for lengths in ([32, 64], [32, 160]):
            _check_attention(kernels, lengths, device)
        _check_layer(kernels, device)
        _check_embeddings(kernels, device)
        _check_loss(kernels, device)


@dataclass
class _Dropout:
    """As `Drops` is; what it draws is of no account."""

    p: float
    is_active: bool
    generator: torch.Generator

    def add_residual(self, residual: Tensor, x: Tensor) -> Tensor:
        return residual + x

    def draw_mask(self, x: Tensor) -> Tensor:
        return torch.ones_like(x)


def _dropouts(device: torch.device) -> Iterator[_Dropout]:
    """One that drops, so that this has been computed, too; and one that does not, to be compared."""
    for is_active in (True, False):
        yield _Dropout(0.1, is_active, torch.Generator(device))


def _check_attention(kernels: KernelBackend, lengths: list[int], device: torch.device) -> None:
    qkv = _numbers(sum(lengths), 3 * _WIDTH, device).to(_LOW).requires_grad_()
    exact = qkv.detach().float().requires_grad_()
    for dropout in _dropouts(device):
        found = kernels.attention(qkv, _bounds(lengths, device), _HEADS, dropout)
        _compare_way(found, _attended(exact, lengths), [qkv], [exact], are_equal=not dropout.is_active)


def _check_layer(kernels: KernelBackend, device: torch.device) -> None:
    lengths = [8, 16]
    x = _numbers(sum(lengths), _WIDTH, device).to(_LOW).requires_grad_()
    shapes = [(3 * _WIDTH, _WIDTH), (_WIDTH, _WIDTH), None, (2 * _WIDTH, _WIDTH), (_WIDTH, 2 * _WIDTH), None]
    qkv, projection, first_norm, inner, output, last_norm = parts = [_part(shape, device) for shape in shapes]
    weights = [one for part in parts for one in part.parameters()]
    exact = x.detach().float().requires_grad_()
    middle = first_norm(exact + projection(_attended(qkv(exact), lengths)))
    rows = torch.arange(0, sum(lengths), 2, device=device)
    wanted = last_norm(middle + output(F.gelu(inner(middle))))[rows]
    for dropout in _dropouts(device):
        of = EncoderLayerModules(
            *(qkv, projection, first_norm, inner, output, last_norm), _HEADS, dropout, dropout, F.gelu
        )
        found = kernels.encoder_layer(x, _bounds(lengths, device), of, rows)
        _compare_way(found, wanted, [x, *weights], [exact, *weights], are_equal=not dropout.is_active)


def _check_embeddings(kernels: KernelBackend, device: torch.device) -> None:
    x = _numbers(40, _WIDTH, device).to(_LOW).requires_grad_()
    tables, norm = [nn.Embedding(rows, _WIDTH, device=device) for rows in (2, 30)], _part(None, device)
    looked = [(table, torch.arange(40, device=device) * 7 % len(table.weight)) for table in tables]
    weights = [*(table.weight for table in tables), *norm.parameters()]
    exact = x.detach().float().requires_grad_()
    wanted = norm(exact + sum(table(rows) for table, rows in looked))
    for dropout in _dropouts(device):
        found = kernels.embed(x, looked, norm, dropout, _LOW)
        _compare_way(found, wanted, [x, *weights], [exact, *weights], are_equal=not dropout.is_active)


def _check_loss(kernels: KernelBackend, device: torch.device) -> None:
    logits, bias = _numbers(6, 50, device).to(_LOW), _numbers(50, device)
    labels = torch.tensor([7, 0, 49, 3, 3, 5], device=device)
    exact = logits[:5].clone().float()
    wanted = REFERENCE.fused_cross_entropy(exact, bias, labels[:5])
    if kernels.ignores_negative_labels:
        labels[5] = -1
        exact = torch.cat([exact, torch.zeros_like(exact[:1])])
    else:
        logits, labels = logits[:5], labels[:5]
    found = kernels.fused_cross_entropy(logits, bias, labels)
    _compare((logits, exact), *zip(found, wanted, strict=True))


def _part(shape: tuple[int, int] | None, device: torch.device) -> nn.Module:
    """A linear layer, or a LayerNorm."""
    made = (
        nn.LayerNorm(_WIDTH, device=device) if shape is None else nn.Linear(shape[1], shape[0], device=device)
    )
    with torch.no_grad():
        made.weight.copy_(_numbers(*made.weight.shape, device) * 0.2)
        made.bias.copy_(_numbers(*made.bias.shape, device) * 0.1)
    return made


def _bounds(lengths: list[int], device: torch.device) -> SequenceLayout:
    starts = torch.tensor([0, *lengths], device=device).cumsum(0)
    return SequenceLayout(starts, "all", max(lengths), sum(lengths))


def _attended(qkv: Tensor, lengths: list[int]) -> Tensor:
    """[N, 3H] → [N, H], one sequence after the other."""
    found = []
    for some in torch.split(qkv, lengths):
        q, k, v = some.view(len(some), 3, _HEADS, -1).permute(1, 2, 0, 3)
        found.append(F.scaled_dot_product_attention(q, k, v).transpose(0, 1).flatten(1))
    return torch.cat(found)


def _numbers(*given: Any) -> Tensor:
    """Some numbers between -1 and 1, the same everywhere: of a shape, on a device."""
    *shape, device = given
    return (torch.arange(math.prod(shape), device=device) * 0.7).sin().view(shape)


def _compare_way(
    found: Tensor | None, wanted: Tensor, given: list[Tensor], exact: list[Tensor], *, are_equal: bool
) -> None:
    """There and back; None is what is left to torch's operations. are_equal: else both are but numbers."""
    if found is None:
        return
    grad = found.detach()
    slopes = torch.autograd.grad(found, given, grad)
    if not all(bool(one.isfinite().all()) for one in (found, *slopes)):
        raise RuntimeError("it gives what is not a number")
    if are_equal:
        others = torch.autograd.grad(wanted, exact, grad.float(), retain_graph=True)
        _compare((found, wanted), *zip(slopes, others, strict=True))


def _compare(*pairs: tuple[Tensor, Tensor]) -> None:
    """RuntimeError where two of a pair are not the same but for bf16's rounding."""
    for found, wanted in pairs:
        if not torch.allclose(found.float(), wanted.float(), atol=_CLOSE, rtol=_CLOSE):
            raise RuntimeError("it gives other numbers than torch's operations")
