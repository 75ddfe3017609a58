"""The operations between a layer's products, as torch has them; who computes others in their place inherits these.

A module that computes such a thing asks its `kernels`, which `Place.settle` sets. Tests hold them all equal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import ClassVar, Literal, NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

BackendName = Literal["torch", "numba", "flash", "triton"]
DropoutState = Tensor | tuple[int, int, int, int] | None
"""What dropout drew: its mask; or what decides of each element, see cpu/training.py."""

NO_GRAD, NEVER_UPDATED = -1, -2
"""What is said of a row without a gradient in this update, or in any before it."""

# Products of integers of 8 bits that may be added up in fp32 without rounding: their sum is below 2**24.
_EXACT = 2**10
_MIDDLE = 128  # of the 256 numbers of 8 bits
_STEPS = 255  # from the lowest of them to the highest
MIN_QUANT_STEP = 1e-12


class DropoutLike(Protocol):
    """Dropout, as `layers.Dropout` is: the share that is dropped, and what draws."""

    p: float
    generator: torch.Generator

    @property
    def is_active(self) -> bool:
        """Whether anything is dropped."""
        ...

    def add_residual(self, residual: Tensor, x: Tensor) -> Tensor:
        """residual + dropout(x)."""
        ...

    def draw_mask(self, x: Tensor) -> Tensor:
        """What x is multiplied by."""
        ...


class DequantParams(NamedTuple):
    """Of each output [out]: the sum of its weights in 8 bits, what one of them stands for, its bias; and how many
    of these its weight is of the input that is kept apart."""

    weight_sums: Tensor
    scale: Tensor
    bias: Tensor
    outlier_weight: Tensor


class QuantizedLinear(NamedTuple):
    """A linear layer in 8-bit integers: the factors of its inputs [in], its weights as `integer_weights` has them,
    what its outputs are made with, and which input is not in 8 bits, whose factor and weights are 0."""

    input_scale: Tensor
    weight: Tensor
    dequant: DequantParams
    outlier_channel: int


class VocabChunk(NamedTuple):
    """A part of a vocabulary, its row `first` and those behind it, compared with M tokens: logits [v, M] without
    their bias [v], and the label of each token among all rows, long [M]."""

    logits: Tensor
    bias: Tensor
    labels: Tensor
    start: int

    def label_positions(self) -> tuple[Tensor, Tensor]:
        """The tokens whose labels are in this part, and which of its rows these are."""
        here = (self.labels >= self.start) & (self.labels < self.start + len(self.logits))
        (tokens,) = here.nonzero(as_tuple=True)
        return tokens, self.labels[tokens] - self.start


class VocabPrediction(NamedTuple):
    """Tokens x [M, E] that are compared with a vocabulary, a table [V, E] with bias [V], and their labels, long
    [M]."""

    x: Tensor
    table: Tensor
    bias: Tensor
    labels: Tensor

    def chunk(self, begin: int, end: int, logits: Tensor) -> VocabChunk:
        """These rows of the table, of which such logits came."""
        return VocabChunk(logits, self.bias[begin:end], self.labels, begin)


class OnlineSoftmaxState(NamedTuple):
    """What was seen of each token's logits, [M]: the highest, the sum of exp(logit - highest), and its label's."""

    max: Tensor
    sum_exp: Tensor
    label_logit: Tensor


class AdamWStep(NamedTuple):
    """What AdamW makes a parameter's update with. keep: what decay leaves of it. stride: the rate over the first
    mean's correction for its beginning with 0. root: the square root of the second's."""

    betas: tuple[float, float]
    decay_factor: float
    step_size: float
    sqrt_bias_correction2: float
    epsilon: float


class AdamWTensors(NamedTuple):
    """A parameter that AdamW moves, its gradient, and the means of its gradients so far and of their squares."""

    param: Tensor
    grad: Tensor
    exp_avg: Tensor
    exp_avg_sq: Tensor


class SequenceLayout(NamedTuple):
    """What attention keeps within: a token sees those of its own sequence alone. starts: where sequences begin and
    the last one ends, long [B + 1]. sees: which tokens of it a token sees, as a model's configuration has it.
    longest: tokens of the longest sequence, 0 where there is none. tokens: of all of them."""

    cu_seqlens: Tensor
    attention_direction: str
    max_seqlen: int
    num_tokens: int


AttentionFn = Callable[[Tensor, Tensor], Tensor]
"""Attention of queries [M, H] over keys with values behind them [N, 2H]: [M, H]."""


class EncoderLayerModules(NamedTuple):
    """What a layer of BERT is made of: what has weights, in the order in which it computes, and what has none."""

    qkv: nn.Module
    projection: nn.Module
    attention_norm: nn.Module
    inner: nn.Module
    output: nn.Module
    output_norm: nn.Module
    num_heads: int
    attention_dropout: DropoutLike
    dropout: DropoutLike
    activation: Callable[[Tensor], Tensor]

    @property
    def parametrized(self) -> Sequence[nn.Module]:
        """Those that have weights."""
        return self[:6]

    @property
    def linears(self) -> Sequence[nn.Module]:
        """Those that are products."""
        return self.qkv, self.projection, self.inner, self.output

    @property
    def norms(self) -> Sequence[nn.Module]:
        """The LayerNorms."""
        return self.attention_norm, self.output_norm


class MatmulBackend:
    """Products of matrices, by the libraries that torch takes. Nothing of them is differentiated."""

    def matmul(self, x: Tensor, y: Tensor, bias: Tensor | None = None, out: Tensor | None = None) -> Tensor:
        """x [N, K] · y [K, M] + bias [M], written to `out` [N, M] where it is given."""
        return torch.mm(x, y, out=out) if bias is None else torch.addmm(bias, x, y, out=out)

    def linear_weight_grads(self, x: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
        """Of a linear layer's weights [M, K] and bias [M], from its inputs x [N, K] and the slopes of its outputs,
        grad [N, M]."""
        return self.matmul(grad.T, x), grad.sum(0)


class KernelBackend(MatmulBackend):
    """By torch's operations: the plain way.

    by_rows: whether a table of which few rows have a gradient is trained quicker by `move_rows`. loss_rows: of
    logits, which are worked on together: 16 of 30,522 are 2 MB, which stay in a core's cache. columns: a row of
    logits is made as long as a multiple of this. skips_labels: whether `table_loss` counts no row whose label is
    below 0. lengths: what is computed is the same for a longest sequence of any length up to a multiple of this.
    """

    name: ClassVar[BackendName] = "torch"
    sparse_embedding_updates: ClassVar[bool] = False
    loss_block_rows: ClassVar[int] = 16
    logits_column_multiple: ClassVar[int] = 1
    ignores_negative_labels: ClassVar[bool] = False
    seqlen_multiple: ClassVar[int] = 1

    def activation(self, x: Tensor, activation: Callable[[Tensor], Tensor]) -> Tensor:
        """activation(x)."""
        return activation(x)

    def embed(
        self,
        x: Tensor,
        tables: Sequence[tuple[nn.Embedding, Tensor]],
        norm: nn.Module,
        dropout: DropoutLike,
        kind: torch.dtype,
    ) -> Tensor | None:
        """dropout(norm(x + rows of each table)), [N, E], by another way than one after the other; None where that
        is the better way. tables: with the numbers of each token's row, long [N]. kind: of the result."""
        return None

    def encoder_layer(
        self, x: Tensor, bounds: SequenceLayout, of: EncoderLayerModules, rows: Tensor | None = None
    ) -> Tensor | None:
        """A layer, [N, H] → [N, H], by another way than part by part; None where that is the better way. rows:
        long [M], those that are wanted, [M, H]: on a processor in ascending order, on a GPU in any, and of a
        batch that was filled up some twice."""
        return None

    def feed_forward(
        self, x: Tensor, inner: nn.Linear, output: nn.Linear, activation: Callable[[Tensor], Tensor]
    ) -> Tensor | None:
        """output(activation(inner(x))), [N, H], by another way than one after the other; None where that is the
        better way."""
        return None

    def add_layer_norm(self, residual: Tensor, x: Tensor, dropout: DropoutLike, norm: nn.Module) -> Tensor:
        """norm(residual + dropout(x)), [N, H]."""
        found: Tensor = norm(dropout.add_residual(residual, x))
        return found

    def has_fast_matmul(self, x: Tensor) -> bool:
        """Whether products of x are quicker by these than by the libraries that torch takes."""
        return False

    def attention(
        self, qkv: Tensor, bounds: SequenceLayout, heads: int, dropout: DropoutLike | None
    ) -> Tensor | None:
        """Attention over packed sequences, [N, 3H] → [N, H], by another way than buckets; zeros of rows behind the
        last sequence, of which there are none on a GPU. None where buckets are the better way."""
        return None

    def attention_of_queries(
        self, x: Tensor, rows: Tensor, bounds: SequenceLayout, heads: int, dropout: DropoutLike | None
    ) -> AttentionFn | None:
        """The same for the queries of some tokens alone, to be called once with what is made of x [N, H]; None
        where all tokens' is the better way. rows: these tokens, long [M] in ascending order."""
        return None

    def attention_softmax(
        self, scores: Tensor, bias: Tensor | None, dropout: DropoutLike | None
    ) -> tuple[Tensor, Tensor, DropoutState]:
        """Softmax of scores [b, A, T, T]: after dropout, before it, and what dropout drew. bias: is added to the
        scores, see `layout.Bucket`."""
        weights = softmax_fp32(scores if bias is None else scores + bias, scores.dtype)
        mask = None if dropout is None else dropout.draw_mask(weights)
        return weights if mask is None else weights * mask, weights, mask

    def softmax_backward(self, weights: Tensor, drawn: DropoutState, slopes: Tensor) -> tuple[Tensor, Tensor]:
        """The weights after dropout again, and the slopes of the scores. slopes: those of the weights after
        dropout, which may be written over."""
        if isinstance(drawn, Tensor):
            slopes *= drawn
        of_scores = torch._softmax_backward_data(slopes, weights, -1, weights.dtype)
        return weights * drawn if isinstance(drawn, Tensor) else weights, of_scores

    def fused_cross_entropy(
        self, logits: Tensor, bias: Tensor, labels: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The sum of the cross-entropies of logits [M, V] + bias [V], how many labels are at the top, and the
        bias's slopes. The logits become their slopes, in place: a few rows at a time while these are in the cache,
        in fp32 even where the buffer is bf16; torch's own way makes four such buffers."""
        exact = torch.promote_types(logits.dtype, torch.float32)
        loss, right = logits.new_zeros((), dtype=exact), labels.new_zeros(())
        of_bias = logits.new_zeros(bias.shape, dtype=exact)
        parts = (torch.split(whole, self.loss_block_rows) for whole in (logits, labels))
        for kept, wanted in zip(*parts, strict=True):
            rows = kept.to(exact)  # kept itself, where it is exact enough
            rows += bias
            gold = rows.gather(1, wanted[:, None])[:, 0]
            top = rows.amax(1)
            torch.softmax(rows, 1, out=rows)
            # The most likely token has probability 1 / sum(exp(logit - top)): no logarithm of a 0 this way.
            loss += (top - rows.amax(1).log() - gold).sum()
            right += (gold == top).sum()
            rows.scatter_add_(1, wanted[:, None], rows.new_full((len(wanted), 1), -1.0))
            of_bias += rows.sum(0)
            if rows is not kept:
                kept.copy_(rows)
        return loss, right, of_bias

    def prefers_chunked_loss(self, x: Tensor) -> bool:
        """Whether the loss over a vocabulary is made quicker of one part of it after the other, by the two below;
        x: rows that are compared with it."""
        return False

    def chunked_loss_forward(
        self,
        of: VocabPrediction,
        bounds: Sequence[tuple[int, int]],
        way: MatmulBackend,
        kept: list[Tensor] | None,
    ) -> OnlineSoftmaxState:
        """Take in the vocabulary, part by part. bounds: the first row of each part and the one behind its last.
        way: what makes the products. kept: is given the logits of each part, if they are wanted."""
        top = torch.full(of.labels.shape, -torch.inf)
        seen = OnlineSoftmaxState(top, torch.zeros_like(top), torch.zeros_like(top))
        for begin, end in bounds:
            logits = way.matmul(of.table[begin:end], of.x.T)
            self.update_online_softmax(of.chunk(begin, end, logits), *seen)
            if kept is not None:
                kept.append(logits)
        return seen

    def chunked_loss_backward(
        self,
        of: VocabPrediction,
        bounds: Sequence[tuple[int, int]],
        way: MatmulBackend,
        kept: Sequence[Tensor],
        seen: tuple[Tensor, Tensor, Tensor],
        of_table: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        """The slopes of x, in fp32, and of the bias; those of the table are written to `of_table`, if they are
        wanted. kept: the logits, which are written over. seen: the highest logits, share, and slope, see
        `part_slopes`."""
        of_x, of_bias = torch.zeros(of.x.shape), []
        for (begin, end), logits in zip(bounds, kept, strict=True):
            of_bias.append(self.chunk_backward(of.chunk(begin, end, logits), *seen))
            of_x += way.matmul(logits.T, of.table[begin:end])
            if of_table is not None:
                way.matmul(logits, of.x, out=of_table[begin:end])
        return of_x, torch.cat(of_bias)

    def update_online_softmax(self, part: VocabChunk, top: Tensor, total: Tensor, gold: Tensor) -> None:
        """Take in a part of the vocabulary. Of each column, [M], what was seen by now: top, the highest logit;
        total, the sum of exp(logit - top); gold, its label's logit."""
        rows = part.logits + part.bias[:, None]
        higher = torch.maximum(top, rows.amax(0))
        total.mul_((top - higher).exp_()).add_((rows - higher).exp_().sum(0))
        top.copy_(higher)
        column, row = part.label_positions()
        gold[column] = rows[row, column]

    def chunk_backward(self, part: VocabChunk, top: Tensor, share: Tensor, slope: Tensor) -> Tensor:
        """The logits of a part become their slopes, in place; returns those of the bias. slope: of the loss, [];
        share: slope / total, [M]."""
        values = part.logits + part.bias[:, None]  # in fp32
        values.sub_(top).exp_().mul_(share)
        column, row = part.label_positions()
        values[row, column] -= slope
        part.logits.copy_(values)
        return values.sum(1)

    def quantize_rows(self, x: Tensor, channels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """x [N, in] times `channels` [in], in 8 bits: int8 [N, in], and of each row how large a step is and what 0
        stands for, [N, 1]."""
        rows = x * channels
        lowest, highest = rows.amin(1, keepdim=True), rows.amax(1, keepdim=True)
        step = ((highest - lowest) / _STEPS).clamp_min_(MIN_QUANT_STEP)
        middle = lowest + _MIDDLE * step  # rounded to 0; the lowest to -128
        return (
            rows.sub_(middle).div_(step).round_().clamp_(-_MIDDLE, _MIDDLE - 1).to(torch.int8),
            step,
            middle,
        )

    def pack_int8_weight(self, weight: Tensor, *, is_native: bool) -> Tensor:
        """Weights int8 [in, out] in the form in which `integer_linear` multiplies with them. is_native: whether
        torch multiplies integers by the processor's instructions; else these are numbers in fp32."""
        return weight if is_native else weight.float()

    def int8_linear(
        self, x: Tensor, linear: QuantizedLinear, dtype: torch.dtype, *, activated: bool = False
    ) -> Tensor:
        """x [N, in] rounded to 8 bits, times the weights, and what comes of it: [N, out] of this dtype. A row
        does not depend on the others: sums of integers are exact. activated: whether GELU of it is wanted."""
        weight, (rounded, step, middle) = linear.weight, self.quantize_rows(x, linear.input_scale)
        if weight.dtype == torch.int8:
            products = torch._int_mm(rounded, weight)
        else:
            pairs = zip(torch.split(rounded, _EXACT, 1), torch.split(weight, _EXACT), strict=True)
            products = torch.stack([(some.float() @ part).int() for some, part in pairs]).sum(
                0, dtype=torch.int32
            )
        apart = x[:, linear.outlier_channel, None].float()
        found = self.dequantize(products, step, middle, apart, linear.dequant, dtype)
        return self.activation(found, F.gelu) if activated else found

    def dequantize(
        self,
        products: Tensor,
        step: Tensor,
        middle: Tensor,
        apart: Tensor,
        of: DequantParams,
        dtype: torch.dtype,
    ) -> Tensor:
        """What products of such integers, int32 [N, out], stand for. apart: the input that is kept so, [N, 1]."""
        whole = torch.addcmul(middle * of.weight_sums + apart * of.outlier_weight, products, step)
        return torch.addcmul(of.bias, whole, of.scale).to(dtype)

    def has_fused_adamw(self, gradient: Tensor) -> bool:
        """Whether parameters with such gradients are moved quicker by `move_all` than by torch's own AdamW."""
        return False

    def grad_norm(self, gradients: Sequence[Tensor]) -> Tensor:
        """Of all of them together, Euclidean, []."""
        return nn.utils.get_total_norm(gradients)

    def adamw_step(self, moved: Sequence[AdamWTensors], step: AdamWStep, factor: float) -> None:
        """AdamW's update of many parameters, in place. factor: what gradients are multiplied by first."""
        beta1, beta2 = step.betas
        for parameter, gradient, mean, square in moved:
            own = gradient * factor
            mean.lerp_(own, 1 - beta1)
            square.mul_(beta2).addcmul_(own, own, value=1 - beta2)
            parameter.mul_(step.decay_factor).addcdiv_(
                mean, (square.sqrt() / step.sqrt_bias_correction2).add_(step.epsilon), value=-step.step_size
            )

    def sparse_adamw(
        self, table: Tensor, mean: Tensor, square: Tensor, where: Tensor, gradients: Tensor, step: AdamWStep
    ) -> None:
        """AdamW's update, in place, of a table [V, E] of which some rows have a gradient. mean, square: of all
        gradients so far, and of their squares. where: of each row which of the gradients [n, E] is its own; or
        NO_GRADIENT; or NEVER_ONE, where both means are 0, so that the row but decays."""
        own = where >= 0
        gradient = torch.zeros_like(table)
        gradient[own] = gradients[where[own]]
        beta1, beta2 = step.betas
        mean.lerp_(gradient, 1 - beta1)
        square.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        table.mul_(step.decay_factor).addcdiv_(
            mean, (square.sqrt() / step.sqrt_bias_correction2).add_(step.epsilon), value=-step.step_size
        )


class WeightVersions:
    """Weights as they are now, of which something is made: to know when it must be made anew.

    It goes by where they lie and by how often torch has written to them, which it does not count by `.data`, nor
    through NumPy. They are held, so that no others can come to lie there.
    """

    def __init__(self, weights: Iterable[Tensor]) -> None:
        self._held = [weight.detach() for weight in weights]
        self._marks = _marks(self._held)

    def matches(self, weights: Iterable[Tensor]) -> bool:
        """Whether these are the same, and as they were."""
        return self._marks == _marks(weights)


def _marks(weights: Iterable[Tensor]) -> list[tuple[int, int]]:
    return [(weight.data_ptr(), 0 if weight.is_inference() else weight._version) for weight in weights]


def compute_dtype(x: Tensor) -> torch.dtype:
    """In which products of x are computed: autocast's, where it is on."""
    device = x.device.type
    low = torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)
    return torch.get_autocast_dtype(device) if low else x.dtype


def gelu_tanh(x: Tensor) -> Tensor:
    """GELU's tanh form."""
    return F.gelu(x, approximate="tanh")


def softmax_fp32(scores: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Softmax over the last axis, in fp32 even where the products are bf16; the result in `dtype`."""
    return scores.softmax(-1, dtype=torch.float32).to(dtype or scores.dtype)


REFERENCE = KernelBackend()


def set_kernel_backend(module: nn.Module, kernels: KernelBackend) -> None:
    """Let every part of `module` that asks kernels ask these."""
    for part in module.modules():
        if isinstance(getattr(part, "kernels", None), KernelBackend):
            setattr(part, "kernels", kernels)  # noqa: B010  (a Module's type knows no such name)
