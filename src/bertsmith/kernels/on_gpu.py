"""What stands between products on a GPU: flash attention over packed sequences, and layers compiled by torch.

Written as torch's own operations, in plain functions: torch.compile makes one program of each, which is the same
for every layer. All of it is in bf16 from end to end but for statistics, softmax and sums; in fp32 the plain way
computes.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._functorch import config as splitting

from bertsmith.kernels.plain import Bounds, Drops, Kernels, LayerParts, Name, kind_of

_FLASHES = (torch.bfloat16, torch.float16)
_WIDEST_HEAD, _STEP = 256, 8  # columns of a head that flash attention takes: a multiple of the step
_LENGTHS = 128  # the longest sequence is told rounded up to a multiple, so that few programs are made of it
_CLOSE = 5e-2  # of numbers near 1 that are rounded to bf16 on their way, and added up in another order


class OnGpu(Kernels):
    """Flash attention of sequences of any length, whose scores are never written (Dao 2023)."""

    name: ClassVar[Name] = "flash"
    loss_rows: ClassVar[int] = 2**10
    columns: ClassVar[int] = 64
    lengths: ClassVar[int] = _LENGTHS

    def attention(self, qkv: Tensor, bounds: Bounds, heads: int, dropout: Drops | None) -> Tensor | None:
        if not _takes(qkv.dtype, qkv.shape[1] // 3, heads, bounds.sees) or not len(qkv):
            return None
        share = None if dropout is None else _share(dropout)
        return _attended(
            qkv, bounds.starts.int(), _rounded_up(bounds.longest), heads, bounds.sees == "before", share
        )


class Blocks(NamedTuple):
    """What Triton compiles, in place of torch's own: attention, given what `_attended` is and behind it the seeds
    of its dropout, int32 [2]; of heads of at most so many columns; and the loss over a vocabulary with how many
    are right, of logits, which become their slopes, bias and labels."""

    attends: Callable[..., Tensor]
    most_columns: int
    loses: Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]


def blocks() -> Blocks | None:
    """None where Triton is not installed: torch brings it along for a GPU on Linux."""
    if importlib.util.find_spec("triton") is None:
        return None
    from bertsmith.kernels import attending_on_gpu, loss_on_gpu

    return Blocks(attending_on_gpu.attended, attending_on_gpu.MOST_COLUMNS, loss_on_gpu.cross_entropy)


class Compiled(OnGpu):
    """The same, and each layer, the embeddings and the loss over a vocabulary as one program each. blocks: what
    Triton does better."""

    name: ClassVar[Name] = "inductor"
    skips_labels: ClassVar[bool] = True

    def __init__(self, blocks: Blocks | None = None) -> None:
        self.blocks = blocks

    def embedded(
        self,
        x: Tensor,
        tables: Sequence[tuple[nn.Embedding, Tensor]],
        norm: nn.Module,
        dropout: Drops,
        kind: torch.dtype,
    ) -> Tensor | None:
        if kind_of(x) not in _FLASHES or not len(x) or type(norm) is not nn.LayerNorm:
            return None
        found: Tensor = _program(_embedded)(
            x,
            [(table.weight, rows, table.padding_idx) for table, rows in tables],
            (norm.weight, norm.bias, norm.eps),
            _share(dropout),
            kind,
            _seeds(2, x.device, dropout),
        )
        return found

    def layer(self, x: Tensor, bounds: Bounds, of: LayerParts, rows: Tensor | None = None) -> Tensor | None:
        if not len(x) or not _takes(kind_of(x), x.shape[1], of.heads, bounds.sees) or not _is_usual(of):
            return None
        shares = _share(of.attention_dropout), _share(of.dropout)
        is_narrow = self.blocks is not None and x.shape[1] // of.heads <= self.blocks.most_columns
        blocks = self.blocks if is_narrow else None
        shape = _shape(of.heads, bounds.sees == "before", *shares, of.activation, kind_of(x), blocks)
        weights = [(part.weight, part.bias) for part in of.weighted]
        ends = [part.eps for part in of.norms]
        found: Tensor = _program(_layer)(
            *(x, bounds.starts.int(), _rounded_up(bounds.longest), weights, ends, shape, rows),
            _seeds(6, x.device, of.dropout, of.attention_dropout),
        )
        return found

    def table_loss(self, logits: Tensor, bias: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        if not len(labels) or logits.dtype not in _FLASHES:
            return super().table_loss(logits, bias, labels)
        if self.blocks is not None:
            loss, right = self.blocks.loses(logits, bias, labels)
            torch._dynamo.mark_static(logits, 1)
            of_bias: Tensor = _program(_summed)(logits)
            return loss, right, of_bias
        for whole in (logits, bias):
            # as long as the vocabulary, which is no variable of the program: each index would be a division by it
            torch._dynamo.mark_static(whole, whole.dim() - 1)
        made: tuple[Tensor, Tensor, Tensor] = _program(_cross_entropy)(logits, bias, labels)
        return made


class _Shape(nn.Module):
    """What a layer computes beside its weights: the shares that dropout drops, None for none, and in which kind
    products are.

    A module, though it has no weights: of a module's numbers torch.compile makes constants. Elsewhere the number
    of heads would be a variable, and each index a division by it.
    """

    def __init__(
        self,
        heads: int,
        causal: bool,
        attention_dropout: float | None,
        dropout: float | None,
        activation: Callable[[Tensor], Tensor],
        kind: torch.dtype,
        blocks: Blocks | None = None,
    ) -> None:
        super().__init__()
        self.attends = None if blocks is None else blocks.attends
        self.heads, self.causal, self.activation, self.kind = heads, causal, activation, kind
        self.attention_dropout, self.dropout = attention_dropout, dropout


_shape = cache(_Shape)


@cache
def _program(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function compiled, for any number of rows: it is compiled when it is first called.

    By itself torch keeps for the way back, of a sum that is normalised, the sum in fp32 and the mask of its
    dropout, 5 bytes an element: to make them again from what was dropped from, which has 2, is quicker."""
    made: Callable[..., Any] = torch.compile(function, dynamic=True)

    def called(*given: Any) -> Any:
        with splitting.patch(ban_recompute_used_far_apart=False):
            return made(*given)

    return called


def _layer(
    x: Tensor,
    starts: Tensor,
    longest: int,
    weights: Sequence[tuple[Tensor, Tensor]],
    epsilons: Sequence[float],
    shape: _Shape,
    rows: Tensor | None,
    seeds: Tensor,
) -> Tensor:
    """A layer of BERT (Devlin et al. 2018, section 3), [N, H] → [N, H]; rows: those that are wanted. seeds: of its
    three dropouts, attention's the last."""
    qkv, projection, first_norm, inner, output, second_norm = weights
    with torch.autocast(x.device.type, enabled=False):
        x = x.to(shape.kind)
        given = (_linear(x, *qkv), starts, longest, shape.heads, shape.causal, shape.attention_dropout)
        mixed = _attended(*given) if shape.attends is None else shape.attends(*given, seeds[4:])
        if rows is not None:
            mixed, x = mixed.index_select(0, rows), x.index_select(0, rows)
        x = _added_norm(x, _linear(mixed, *projection), shape.dropout, seeds[:2], *first_norm, epsilons[0])
        made = _linear(shape.activation(_linear(x, *inner)), *output)
        return _added_norm(x, made, shape.dropout, seeds[2:4], *second_norm, epsilons[1])


def _linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """In x's precision; the gradients come back in the weights'."""
    return F.linear(x, weight.to(x.dtype), bias.to(x.dtype))


def _added_norm(
    residual: Tensor,
    x: Tensor,
    share: float | None,
    seeds: Tensor,
    weight: Tensor,
    bias: Tensor,
    epsilon: float,
) -> Tensor:
    """LN(residual + dropout(x)), summed and divided in fp32."""
    whole = residual.float() + _dropped(x.float(), share, seeds)
    return F.layer_norm(whole, weight.shape, weight, bias, epsilon).to(x.dtype)


def _dropped(x: Tensor, share: float | None, seeds: Tensor) -> Tensor:
    """Dropout whose mask is made of two seeds, int32 [2], and made again on the way back, not kept: 16 bits of a
    hash of an element's number decide, lowbias32 (Wellons 2018) as in `elements.kept_one`. A GPU's own generator
    takes longer for a number than memory for the element."""
    if share is None:
        return x
    dropped = min(round(share * 2**16), 2**16 - 1)
    number = torch.arange(x.numel(), dtype=torch.int32, device=x.device).view(x.shape)
    # the seed first: a product of numbers alone the compiler would reckon as an index, in integers without bounds
    hashed = number ^ seeds[0]
    hashed = (hashed ^ (hashed >> 16 & 0xFFFF)) * 0x7FEB352D ^ seeds[1]  # >> fills up with the sign
    hashed = (hashed ^ (hashed >> 15 & 0x1FFFF)) * (0x846CA68B - 2**32)
    return torch.where((hashed >> 16 & 0xFFFF) >= dropped, x * (2**16 / (2**16 - dropped)), 0.0)


def _seeds(count: int, device: torch.device, *dropouts: Drops | None) -> Tensor:
    """What dropouts make their masks of, two each, int32 [count], drawn from the generator that they share."""
    seeds = torch.empty(count, dtype=torch.int32, device=device)
    torch._dynamo.mark_static(seeds)  # else a batch of as many rows would have a program of its own
    for dropout in dropouts:
        if dropout is not None and dropout.active:
            return seeds.random_(-(2**31), 2**31, generator=dropout.generator)
    return seeds


def _attended(
    qkv: Tensor,
    starts: Tensor,
    longest: int,
    heads: int,
    causal: bool,
    dropout: float | None,
) -> Tensor:
    """[N, 3H] → [N, H], by torch's kernel. starts: int32 [B + 1], the last of them N. longest: no sequence is
    longer. Dropout draws from the device's default generator: the kernel takes no other."""
    q, k, v = qkv.view(len(qkv), 3, heads, -1).unbind(1)
    found: Tensor = torch.ops.aten._flash_attention_forward(
        *(q, k, v, starts, starts, longest, longest, 0.0 if dropout is None else dropout, causal, False)
    )[0]
    return found.flatten(1)


def _embedded(
    x: Tensor,
    tables: Sequence[tuple[Tensor, Tensor, int | None]],
    norm: tuple[Tensor, Tensor, float],
    share: float | None,
    kind: torch.dtype,
    seeds: Tensor,
) -> Tensor:
    """dropout(LN(x + rows of each table)), [N, E]."""
    with torch.autocast(x.device.type, enabled=False):
        for weight, rows, padding in tables:
            x = x + F.embedding(rows, weight, padding)
        weight, bias, epsilon = norm
        found = F.layer_norm(x.float(), weight.shape, weight, bias, epsilon)
        return _dropped(found, share, seeds).to(kind)


def _cross_entropy(logits: Tensor, bias: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """See `Kernels.table_loss`; a row whose label is below 0 counts for nothing."""
    rows, counts = logits.float() + bias, labels >= 0
    gold = rows.gather(1, labels.clamp_min(0)[:, None])[:, 0]
    top = rows.amax(1)
    shares = (rows - top[:, None]).exp()
    total = shares.sum(1)
    loss = torch.where(counts, total.log() + (top - gold), 0.0).sum()
    right = ((gold == top) & counts).sum()
    words = torch.arange(logits.shape[1], dtype=torch.int32, device=logits.device)
    is_label = words == labels.int()[:, None]
    slopes = torch.where(counts[:, None], shares * total.reciprocal()[:, None] - is_label.float(), 0.0)
    logits.copy_(slopes)
    return loss, right, _summed(logits)


def _summed(slopes: Tensor) -> Tensor:
    """Of each word, of what is kept: slopes in fp32 are never written."""
    return slopes.sum(0, dtype=torch.float32)


def _takes(kind: torch.dtype, width: int, heads: int, sees: str) -> bool:
    """Whether flash attention computes this."""
    columns = width // heads
    return kind in _FLASHES and columns <= _WIDEST_HEAD and columns % _STEP == 0 and sees != "behind"


def _share(dropout: Drops) -> float | None:
    """What is dropped, where anything is."""
    return dropout.p if dropout.active else None


def _is_usual(of: LayerParts) -> bool:
    """Whether a layer's parts are weights in the form in which they are read here."""
    return all(isinstance(part, nn.Linear) and part.bias is not None for part in of.linear) and all(
        type(norm) is nn.LayerNorm for norm in of.norms
    )


def _rounded_up(length: int) -> int:
    """A length that no sequence exceeds, where none exceeds this one."""
    return max(1, -(-length // _LENGTHS)) * _LENGTHS


def check_flash(device: torch.device) -> None:
    """Compute a little here, there and back, and raise RuntimeError where the answer is not attention's, or there
    is none. Whoever draws afterwards draws as if nothing had been."""
    _check_attention("flash attention gives other numbers than attention", _attended, [32, 64], device)


def check_blocks(blocks: Blocks, device: torch.device) -> None:
    """The same of what Triton compiles."""
    fault = "a program of Triton gives other numbers than the operations it is made of"
    seeds = torch.arange(2, dtype=torch.int32, device=device)
    for lengths in ([32, 64], [32, 160]):
        _check_attention(fault, lambda *given: blocks.attends(*given, seeds), lengths, device)
    logits, bias = _numbers(5, 50, device).bfloat16(), _numbers(50, device)
    labels = torch.tensor([7, -1, 0, 49, 3], device=device)
    wanted = logits.clone()
    _compare(
        fault,
        (blocks.loses(logits, bias, labels)[0], _cross_entropy(wanted, bias, labels)[0]),
        (logits, wanted),
    )


def _check_attention(
    fault: str, attends: Callable[..., Tensor], lengths: list[int], device: torch.device
) -> None:
    heads, longest = 2, _rounded_up(max(lengths))
    qkv = _numbers(sum(lengths), 3 * heads * 32, device).bfloat16().requires_grad_()
    starts = torch.tensor([0, *lengths], device=device).cumsum(0).int()
    with torch.random.fork_rng([] if qkv.is_cpu else [device]):
        torch.autograd.grad(attends(qkv, starts, longest, heads, False, 0.5).sum(), qkv)
    found = attends(qkv, starts, longest, heads, False, None)
    (slopes,) = torch.autograd.grad(found, qkv, found.detach())
    exact = qkv.detach().float().requires_grad_()
    wanted = []
    for some in torch.split(exact, lengths):
        q, k, v = some.view(len(some), 3, heads, -1).permute(1, 2, 0, 3)
        wanted.append(F.scaled_dot_product_attention(q, k, v).transpose(0, 1).flatten(1))
    whole = torch.cat(wanted)
    (exact_slopes,) = torch.autograd.grad(whole, exact, whole.detach())
    _compare(fault, (found, whole), (slopes, exact_slopes))


def check_compiler(device: torch.device) -> None:
    """The same of the programs that torch compiles."""
    width, rows = 32, 24
    x = _numbers(rows, width, device).bfloat16().requires_grad_()
    shapes = [(3 * width, width), (width, width), (width,), (2 * width, width), (width, 2 * width), (width,)]
    weights = [(_numbers(*shape, device) * 0.2, torch.zeros(shape[0], device=device)) for shape in shapes]
    starts = torch.tensor([0, 8, rows], dtype=torch.int32, device=device)
    seeds = torch.arange(6, dtype=torch.int32, device=device)
    shape = _shape(2, False, None, 0.1, F.gelu, torch.bfloat16)
    labels = torch.arange(rows, device=device)
    pairs = []
    for layer, loss in ((_program(_layer), _program(_cross_entropy)), (_layer, _cross_entropy)):
        made = layer(x, starts, _LENGTHS, weights, [1e-5, 1e-5], shape, None, seeds)
        (slope,) = torch.autograd.grad(made, x, made.detach())
        logits = made.detach().clone()
        pairs.append((made, slope, loss(logits, weights[1][1], labels)[0], logits))
    _compare(
        "a compiled program gives other numbers than the operations it is made of", *zip(*pairs, strict=True)
    )


def _numbers(*given: Any) -> Tensor:
    """Some numbers between -1 and 1, the same everywhere: of a shape, on a device."""
    *shape, device = given
    return (torch.arange(math.prod(shape), device=device) * 0.7).sin().view(shape)


def _compare(fault: str, *pairs: tuple[Tensor, Tensor]) -> None:
    """RuntimeError where two of a pair are not the same but for bf16's rounding."""
    for found, wanted in pairs:
        if not torch.allclose(found.float(), wanted.float(), atol=_CLOSE, rtol=_CLOSE):
            raise RuntimeError(fault)
