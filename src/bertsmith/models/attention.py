"""Attention over packed sequences, by buckets of sequences of similar length.

qkv [N, 3H] has the concatenated query, key, and value of each of N tokens, each split into A heads of d = H / A
columns (Vaswani et al. 2017, section 3.2.2; scores are divided by sqrt(d)). Sequences are padded inside a bucket
only; the grouping, `AttentionLayout`, is computed once per batch, on the host, and shared by all layers. Compiled
kernels have their own implementation.

A row is a token of the packed batch. A cell is a token or padding in a bucket; the C cells of all buckets are
consecutive, so that one indexed copy of rows to cells serves all buckets. A bucket has b sequences of T cells; a
sequence has t tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from bertsmith.kernels.reference import REFERENCE, DropoutLike, KernelBackend, SequenceLayout, softmax_fp32
from bertsmith.models.config import AttentionDirection
from bertsmith.packed import Packed, copy_to_device

# Sequences whose lengths round up to the same multiple of this share a bucket: a larger value wastes more padding,
# a smaller one makes more and smaller products.
_BUCKET_WIDTH = 16
# Maximum scores per head (sequences x length squared) of a bucket, so that they stay in the cache between the
# products, the softmax, and the dropout.
_MAX_SCORES_CPU = 2**16
_MAX_SCORES_GPU = 2**22  # a GPU needs larger products to be busy

# oneDNN's matrix products on a CPU get a multiple of this many rows. It needs as long to prepare a new shape as to
# compute about 400 rows, and it caches a thousand shapes.
_ROW_MULTIPLE = 32

# torch computes products of fewer multiplications by another algorithm, so that a single sequence would differ in
# the last bits from one in a batch. Without gradients, products are padded with zeros to this size.
_MIN_MULTIPLICATIONS = 2**12


@dataclass(frozen=True)
class Bucket:
    """Sequences of similar length, padded to the longest of them.

    Attributes:
        sequences: Number of sequences.
        length: Tokens that each sequence is padded to.
        bias: Attention bias, fp32 [b, 1, 1, T]: 0 on tokens, fp32's lowest number on padding; None without
            padding. In causal attention the tokens on the side that is not attended to have the lowest number,
            too: [b, 1, T, T], or [1, 1, T, T] if one mask serves all sequences, since it hides padding as well.
    """

    sequences: int
    length: int
    bias: Tensor | None


@dataclass(frozen=True)
class AttentionLayout:
    """Layout of a batch's sequences for attention, used by all layers. Buckets are computed on first use.

    Attributes:
        packed: The batch.
        direction: The tokens that a token attends to besides itself.
        equal_lengths_only: True if only sequences of equal length share a bucket, so that none is padded.
        pads_rows: True to pad the batch at its end to a multiple of `_ROW_MULTIPLE` rows, so that matrix products
            have few different shapes.
    """

    packed: Packed
    direction: AttentionDirection = "all"
    equal_lengths_only: bool = False
    pads_rows: bool = False

    @property
    def num_padding_rows(self) -> int:
        """Return the number of padding rows after the tokens, 0 without `pads_rows`."""
        return -len(self.packed.tokens) % _ROW_MULTIPLE if self.pads_rows else 0

    def sort_rows(self, rows: Tensor) -> tuple[Tensor, Tensor | None]:
        """Pad row indices, long [M], with row 0 if `pads_rows`, and sort them.

        Returns:
            The padded and sorted indices, and the position of each of `rows` in them, long [M]: the inverse of the
            sort. The inverse is None if the order is unchanged, as on a GPU, whose kernels need no order.
        """
        padded_rows = F.pad(rows, (0, -len(rows) % _ROW_MULTIPLE)) if self.pads_rows else rows
        if not rows.is_cpu:
            return padded_rows, None
        indices = padded_rows.numpy()
        if (indices[1:] >= indices[:-1]).all():
            return padded_rows, None
        order = np.argsort(indices, kind="stable")
        inverse = np.empty_like(order)
        inverse[order] = np.arange(len(order))
        return torch.from_numpy(indices[order]), torch.from_numpy(inverse[: len(rows)])

    @cached_property
    def sequence_layout(self) -> SequenceLayout:
        """Return the sequences in the form that kernels take."""
        packed = self.packed
        return SequenceLayout(packed.cu_seqlens.long(), self.direction, packed.max_seqlen, len(packed.tokens))

    @property
    def buckets(self) -> tuple[Bucket, ...]:
        """Return the buckets; empty sequences are in none."""
        return self._buckets_and_cells[0]

    @property
    def row_of_cell(self) -> Tensor | None:
        """Return the row of each cell, long [C]; None if cell i holds row i.

        Padding cells hold row 0, and no result depends on them.
        """
        return self._buckets_and_cells[1]

    @property
    def cell_of_row(self) -> Tensor | None:
        """Return the cell of each row, long [N]; None if row i is in cell i."""
        return self._buckets_and_cells[2]

    @property
    def bucket_sizes(self) -> list[int]:
        """Return the number of cells of each bucket."""
        return [bucket.sequences * bucket.length for bucket in self.buckets]

    @cached_property
    def _buckets_and_cells(self) -> tuple[tuple[Bucket, ...], Tensor | None, Tensor | None]:
        """Compute `buckets`, `row_of_cell`, and `cell_of_row` on the host, and send them to the device."""
        lengths, device = self.packed.lengths, self.packed.tokens.device
        starts = np.cumsum(lengths) - lengths
        num_tokens, num_cells = len(self.packed.tokens), 0
        buckets = []
        row_of_cell = [np.empty(0, dtype=np.int64)]  # by bucket
        cell_of_row = np.empty(num_tokens + 1, dtype=np.int64)  # padding cells write to the last element
        max_scores = _MAX_SCORES_CPU if self.packed.tokens.is_cpu else _MAX_SCORES_GPU
        for members in _group_by_length(lengths, 1 if self.equal_lengths_only else _BUCKET_WIDTH, max_scores):
            length = int(lengths[members].max())
            columns = np.arange(length)
            is_token = columns < lengths[members, None]
            rows = starts[members, None] + columns
            cells = np.arange(num_cells, num_cells + is_token.size)
            cell_of_row[np.where(is_token, rows, num_tokens).ravel()] = cells
            row_of_cell.append(np.where(is_token, rows, 0).ravel())
            bias = _attention_bias(is_token, self.direction, device)
            buckets.append(Bucket(len(members), length, bias))
            num_cells += is_token.size
        if len(buckets) == 1 and num_cells == num_tokens:  # sequences of one length, in order
            return tuple(buckets), None, None
        indices = np.concatenate(row_of_cell), cell_of_row[:-1]
        row_index, cell_index = (copy_to_device(torch.from_numpy(index), device) for index in indices)
        return tuple(buckets), row_index, cell_index


def _group_by_length(lengths: NDArray[np.int64], width: int, max_scores: int) -> Iterator[NDArray[np.int64]]:
    """Yield the indices of each bucket's sequences.

    Lengths in a bucket round up to the same multiple of `width`, and a bucket has at most `max_scores` scores per
    head, unless a single sequence has more.
    """
    nonempty = np.flatnonzero(lengths)
    multiples = (lengths[nonempty] + width - 1) // width
    for multiple in np.unique(multiples):
        max_sequences = max(1, max_scores // (int(multiple) * width) ** 2)
        members = nonempty[multiples == multiple]
        yield from (members[i : i + max_sequences] for i in range(0, len(members), max_sequences))


def _attention_bias(
    is_token: NDArray[np.bool_], direction: AttentionDirection, device: torch.device
) -> Tensor | None:
    """Return the bias of a bucket (`Bucket.bias`) from a mask of its tokens, [b, T]; None if it hides nothing."""
    is_hidden = ~is_token[:, None]
    if direction != "all":
        mask = causal_mask(is_token.shape[1], direction)[None]
        # Padding is on the right, so attention to earlier tokens never reaches it.
        is_hidden = mask if direction == "before" or is_token.all() else mask | is_hidden
    return _bias_of(is_hidden, device) if is_hidden.any() else None


def _bias_of(is_hidden: NDArray[np.bool_], device: torch.device) -> Tensor:
    """Return the bias [b, 1, t, T] of a mask [b, t, T]: fp32's lowest number where it is True, else 0."""
    bias = np.where(is_hidden, np.finfo(np.float32).min, np.float32(0))
    return copy_to_device(torch.from_numpy(bias[:, None]), device)


def causal_mask(length: int, direction: AttentionDirection) -> NDArray[np.bool_]:
    """Return a mask [T, T] of the tokens (columns) that each token (row) does not attend to."""
    ones = np.ones((length, length), dtype=np.bool_)
    return np.triu(ones, 1) if direction == "before" else np.tril(ones, -1)


def attention_weights(
    qkv: Tensor, packed: Packed, num_heads: int, *, direction: AttentionDirection = "all"
) -> list[Tensor]:
    """Return the attention weights of each sequence, [A, t, t] each, from tokens (rows) to tokens (columns).

    Each row sums to 1; tokens that are not attended to have exactly 0.
    """
    weights = []
    for start, end in pairwise(packed.cu_seqlens.tolist()):
        sequence_qkv = qkv[start:end]
        q, k, _ = _split_heads(sequence_qkv, num_heads)
        scores = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5
        if direction != "all":
            mask = torch.from_numpy(causal_mask(len(sequence_qkv), direction))
            scores = scores.masked_fill(copy_to_device(mask, qkv.device), -torch.inf)
        weights.append(softmax_fp32(scores))
    return weights


def _split_heads(sequence_qkv: Tensor, num_heads: int) -> Tensor:
    """Split the qkv of a sequence, [t, 3H], into queries, keys, and values, [3, A, t, d]."""
    length, size = sequence_qkv.shape
    return sequence_qkv.view(length, 3, num_heads, size // 3 // num_heads).permute(1, 2, 0, 3)


def attention(
    qkv: Tensor,
    layout: AttentionLayout,
    num_heads: int,
    dropout: DropoutLike | None = None,
    kernels: KernelBackend = REFERENCE,
) -> Tensor:
    """Compute attention by the kernels, or else by buckets: [N, 3H] → [N, H].

    Args:
        qkv: Queries, keys, and values, with the layout's padding rows at the end; their output is 0.
        layout: The layout of the batch.
        num_heads: The number of attention heads.
        dropout: The dropout of the attention weights; None if it is inactive.
        kernels: The kernels to use.
    """
    output = kernels.attention(qkv, layout.sequence_layout, num_heads, dropout)
    if output is not None:
        return output
    padding = layout.num_padding_rows
    if not padding:
        return bucket_attention(qkv, layout, num_heads, dropout, kernels)
    context = bucket_attention(qkv[: len(qkv) - padding], layout, num_heads, dropout, kernels)
    return F.pad(context, (0, 0, 0, padding))


def bucket_attention(
    qkv: Tensor,
    layout: AttentionLayout,
    num_heads: int,
    dropout: DropoutLike | None = None,
    kernels: KernelBackend = REFERENCE,
) -> Tensor:
    """Compute attention by buckets of sequences of similar length: [N, 3H] → [N, H].

    Without gradients and padding a sequence's result does not depend, even in rounding, on the rest of its batch:
    hence the care about the algorithm of each product.
    """
    if not layout.buckets:
        return qkv[:, : qkv.shape[1] // 3]  # no tokens: an empty tensor of the right shape
    if torch.is_grad_enabled() and qkv.requires_grad:
        return _BucketAttention.apply(qkv, layout, num_heads, dropout, kernels)  # type: ignore[no-any-return, no-untyped-call]
    outputs = []
    qkv_parts = torch.split(_rows_to_cells(qkv, layout), layout.bucket_sizes)
    for bucket, bucket_qkv in zip(layout.buckets, qkv_parts, strict=True):
        q, k, v = _split_bucket(bucket_qkv, bucket.sequences, bucket.length, num_heads)
        context = attend(q, k, v, bucket.bias, dropout)
        outputs.append(context.transpose(1, 2).flatten(2).flatten(0, 1))
    return _cells_to_rows(torch.cat(outputs), layout)


def attend(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None = None, dropout: DropoutLike | None = None
) -> Tensor:
    """Compute softmax(q kᵀ / sqrt(d) + bias) v of queries [b, A, t, d], keys, and values [b, A, T, d].

    Without gradients a sequence's result does not depend on the other sequences.

    Args:
        q: The queries.
        k: The keys.
        v: The values.
        bias: Added to the scores, [b or 1, 1, t or 1, T].
        dropout: The dropout of the attention weights; None if it is inactive.
    """
    # Without dropout torch's fused kernel is up to twice as fast as separate products, except in bf16 on a CPU,
    # where separate products are up to twice as fast.
    if dropout is None and (q.is_cuda or q.dtype == torch.float32):
        return F.scaled_dot_product_attention(q, k, v, None if bias is None else bias.to(q.dtype))
    num_sequences, shares_bias = len(q), bias is None or len(bias) == 1
    padding = _MIN_MULTIPLICATIONS // max(1, q[:1].numel() * k.shape[2]) + 1 - num_sequences
    if padding > 0 and dropout is None and shares_bias and not torch.is_grad_enabled():
        q, k, v = (F.pad(tensor, (0, 0, 0, 0, 0, 0, 0, padding)) for tensor in (q, k, v))
    # torch copies strided inputs of several sequences but not of one, whose last bits would then differ
    q, k, v = (tensor.contiguous() for tensor in (q, k, v))
    scores = (q * q.shape[-1] ** -0.5) @ k.transpose(-2, -1)
    weights, _, _ = REFERENCE.attention_softmax(scores, bias, dropout)
    return (weights @ v)[:num_sequences]


class KeyValueCache:
    """The keys and values, [n, A, t, d] each, of the t earlier tokens of n sequences of equal length."""

    def __init__(self) -> None:
        self._keys: Tensor | None = None
        self._values: Tensor | None = None

    def attend(self, qkv: Tensor, num_heads: int, num_tokens: int = 1) -> Tensor:
        """Attend from the next tokens to the earlier ones and themselves, and keep their keys and values.

        Args:
            qkv: Queries, keys, and values of the next tokens of each sequence, [n · next tokens, 3H].
            num_heads: The number of attention heads.
            num_tokens: The number of next tokens of each sequence.

        Returns:
            The output at these tokens, [n · next tokens, H].
        """
        q, k, v = _split_bucket(qkv, len(qkv) // num_tokens, num_tokens, num_heads)
        if self._keys is not None and self._values is not None:
            k, v = torch.cat([self._keys, k], 2), torch.cat([self._values, v], 2)
        self._keys, self._values = k, v
        bias = None
        if num_tokens > 1:
            is_hidden = causal_mask(k.shape[2], "before")[-num_tokens:]
            bias = _bias_of(is_hidden[None], qkv.device)
        return attend(q, k, v, bias).transpose(1, 2).flatten(2).flatten(0, 1)

    def select(self, sequences: Tensor) -> None:
        """Keep these sequences, long [m], in this order; a sequence may occur repeatedly."""
        if self._keys is not None and self._values is not None:
            self._keys, self._values = self._keys[sequences], self._values[sequences]


class GroupedCache(KeyValueCache):
    """The keys and values of sequences in groups of equal length, so that nothing is padded.

    The first tokens of each sequence are added in one step, and the others one by one.
    """

    def __init__(self, sizes: Sequence[int], lengths: Sequence[int]) -> None:
        """Create an empty cache.

        Args:
            sizes: The number of sequences of each group; groups are consecutive.
            lengths: The number of the first tokens of each sequence of a group.
        """
        self._caches = [KeyValueCache() for _ in sizes]
        self._sizes, self._next_lengths = list(sizes), list(lengths)

    def attend(self, qkv: Tensor, num_heads: int, num_tokens: int = 1) -> Tensor:
        """Attend from the first tokens of all sequences, or from their next one: [N, 3H] → [N, H]."""
        lengths, self._next_lengths = self._next_lengths, [num_tokens] * len(self._sizes)
        parts = torch.split(qkv, [size * length for size, length in zip(self._sizes, lengths, strict=True)])
        groups = zip(self._caches, parts, lengths, strict=True)
        return torch.cat([cache.attend(part, num_heads, length) for cache, part, length in groups])

    def select(self, sequences: Tensor) -> None:
        """Keep these sequences, long [m], in ascending order."""
        stops = np.cumsum(self._sizes)
        groups = np.searchsorted(stops, sequences.cpu().numpy(), side="right")
        counts = np.bincount(groups, minlength=len(stops)).tolist()
        members = torch.split(sequences, counts)
        for cache, indices, stop, size in zip(
            self._caches, members, stops.tolist(), self._sizes, strict=True
        ):
            if len(indices) < size:
                cache.select(indices - (stop - size))
        remaining = np.flatnonzero(counts).tolist()
        self._caches, self._sizes = [self._caches[i] for i in remaining], [counts[i] for i in remaining]
        self._next_lengths = [self._next_lengths[i] for i in remaining]


def _rows_to_cells(rows: Tensor, layout: AttentionLayout) -> Tensor:
    return rows if layout.row_of_cell is None else rows.index_select(0, layout.row_of_cell)


def _cells_to_rows(cells: Tensor, layout: AttentionLayout) -> Tensor:
    return cells if layout.cell_of_row is None else cells.index_select(0, layout.cell_of_row)


def _split_bucket(bucket_qkv: Tensor, sequences: int, length: int, num_heads: int) -> Tensor:
    """Split the qkv of a bucket, [b · T, 3H], into queries, keys, and values, [3, b, A, T, d]."""
    return bucket_qkv.view(sequences, length, 3, num_heads, -1).permute(2, 0, 3, 1, 4)


class _BucketAttention(torch.autograd.Function):
    """`bucket_attention` with a backward pass that saves, of size T · T, only the weights and their dropout mask.

    Autograd through torch's functions would save four tensors of that size, in fp32.
    """

    @staticmethod
    def forward(
        ctx: Any,
        qkv: Tensor,
        layout: AttentionLayout,
        num_heads: int,
        dropout: DropoutLike | None,
        kernels: KernelBackend,
    ) -> Tensor:
        cells_qkv = _rows_to_cells(qkv, layout)
        cells_output = cells_qkv.new_empty(len(cells_qkv), cells_qkv.shape[1] // 3)
        saved: list[Tensor | None] = []
        ctx.dropout_seeds = []
        parts = (torch.split(cells, layout.bucket_sizes) for cells in (cells_qkv, cells_output))
        for bucket, bucket_qkv, bucket_output in zip(layout.buckets, *parts, strict=True):
            b, t = bucket.sequences, bucket.length
            # a copy in the layout that is fast in both passes' products
            q, k, v = _split_bucket(bucket_qkv, b, t, num_heads).clone(memory_format=torch.contiguous_format)
            q *= q.shape[-1] ** -0.5
            dropped_weights, weights, dropout_state = kernels.attention_softmax(
                q @ k.transpose(-2, -1), bucket.bias, dropout
            )
            bucket_output.view(b, t, num_heads, -1).copy_((dropped_weights @ v).transpose(1, 2))
            # The state is a mask, which autograd must save, or seeds, from which backward draws the mask again.
            mask = dropout_state if isinstance(dropout_state, Tensor) else None
            saved += [q, k, v, weights, mask]
            ctx.dropout_seeds.append(dropout_state if mask is None else None)
        ctx.layout, ctx.num_heads, ctx.kernels = layout, num_heads, kernels
        ctx.save_for_backward(*saved)
        return _cells_to_rows(cells_output, layout)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None, None]:
        layout, num_heads = ctx.layout, ctx.num_heads
        if layout.cell_of_row is None:
            cells_output_grad = grad.contiguous()
        else:  # padding has no gradient
            zeros = grad.new_zeros(len(layout.row_of_cell), grad.shape[1])
            cells_output_grad = zeros.index_copy_(0, layout.cell_of_row, grad)
        cells_qkv_grad = grad.new_empty(len(cells_output_grad), 3 * grad.shape[1])
        saved = iter(ctx.saved_tensors)
        parts = (torch.split(cells, layout.bucket_sizes) for cells in (cells_output_grad, cells_qkv_grad))
        for bucket, dropout_seeds, bucket_output_grad, bucket_qkv_grad in zip(
            layout.buckets, ctx.dropout_seeds, *parts, strict=True
        ):
            b, t = bucket.sequences, bucket.length
            q, k, v, weights, mask = (next(saved) for _ in range(5))
            output_grad = bucket_output_grad.view(b, t, num_heads, -1).transpose(1, 2).contiguous()
            q_grad, k_grad, v_grad = _split_bucket(bucket_qkv_grad, b, t, num_heads)
            dropped_weights_grad = output_grad @ v.transpose(-2, -1)
            state = dropout_seeds if mask is None else mask
            dropped_weights, scores_grad = ctx.kernels.softmax_backward(weights, state, dropped_weights_grad)
            v_grad.copy_(dropped_weights.transpose(-2, -1) @ output_grad)
            q_grad.copy_((scores_grad @ k).mul_(q.shape[-1] ** -0.5))
            k_grad.copy_(scores_grad.transpose(-2, -1) @ q)
        return _cells_to_rows(cells_qkv_grad, layout), None, None, None, None
