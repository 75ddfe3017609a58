"""The bodies of attention over packed sequences in bf16, there and back, by the processor's own products of bf16:
in tiles (AMX), or in registers (AVX512-BF16).

As in attention_fp32.py a head of a sequence is one thread's work, 32 of its queries at a time, and what comes of
it depends on nothing else. Sums and what lies between the products are in fp32; weights and slopes are rounded to
bf16 before they are multiplied, and weights divided by their sum behind that.
"""

from __future__ import annotations

import numpy as np
from numba import cfunc, njit

from bertsmith.kernels.cpu.attention_fp32 import (
    mask_scores,
    masked_row_max,
    query_token,
    round_up,
    unpack_rows,
    visible_range,
)
from bertsmith.kernels.cpu.compilation import (
    JIT_OPTIONS,
    KERNEL_OPTIONS,
    float32,
    float_array,
    float_from_bits,
    has_cpu_feature,
    int64_array,
    load_slots,
    num_threads,
    thread_index,
    uint32,
)
from bertsmith.kernels.cpu.exponential import exp_nonpositive
from bertsmith.kernels.cpu.simd import (
    VECTOR_WIDTH,
    broadcast_scalar,
    dropout_mask,
    load,
    reduce_sum,
    store,
    store_bf16,
)
from bertsmith.kernels.cpu.simd_pairs import interleave_bf16, transpose_16x16

if has_cpu_feature("amx-bf16"):
    from bertsmith.kernels.cpu.amx import configure, multiply_block, release
else:
    from bertsmith.kernels.cpu.microkernel_bf16 import configure, multiply_block, release

WRITTEN_WITH = "0ca680308cfe8f46"  # what is imported here, and what these import, see the first
HEAD_SIZE_MULTIPLE = 32  # rows, columns and terms that a product is made of
_HALF = HEAD_SIZE_MULTIPLE // 2  # rows of a tile; a product's terms in pairs


def workspace_size(longest: int, width: int, back: bool) -> int:
    """How many fp32 numbers a thread of `forward` or `backward` needs to compute in; both divide it so."""
    most = -(-longest // HEAD_SIZE_MULTIPLE) * HEAD_SIZE_MULTIPLE
    each, block, few = most * width, HEAD_SIZE_MULTIPLE * most, HEAD_SIZE_MULTIPLE * width
    if back:
        return 9 * each // 2 + 9 * block // 2 + 3 * few
    return 3 * each // 2 + 3 * block // 2 + 3 * few // 2


@njit(**JIT_OPTIONS)
def _read(x, stride, count, width, out, rows):
    """Rows of a head in bf16, [count, width], `stride` bytes apart; and zeros behind them, [rows, width]."""
    for _ in range(count):
        for c in range(0, 2 * width, 64):
            store(out + c, load(x + c))
        x += stride
        out += 2 * width
    for c in range(0, 2 * width * (rows - count), 64):
        store(out + c, broadcast_scalar(float32(0)))


@njit(**JIT_OPTIONS)
def _joined(x, rows, columns, out):
    """x [rows, columns] in bf16 with its rows in pairs."""
    for _ in range(0, rows, 2):
        for c in range(0, columns, VECTOR_WIDTH):
            interleave_bf16(x + 2 * c, x + 2 * (columns + c), out + 4 * c)
        x += 4 * columns
        out += 4 * columns


@njit(**JIT_OPTIONS)
def _turned(x, rows, pairs, out):
    """x [rows, pairs] of 32 bits → [pairs, rows]; both multiples of 16."""
    for i in range(0, rows, VECTOR_WIDTH):
        for c in range(0, pairs, VECTOR_WIDTH):
            transpose_16x16(x + 4 * (i * pairs + c), 4 * pairs, out + 4 * (c * rows + i), 4 * rows)


@njit(**JIT_OPTIONS)
def _wide(count):
    return (count + HEAD_SIZE_MULTIPLE - 1) // HEAD_SIZE_MULTIPLE * HEAD_SIZE_MULTIPLE


@njit(**JIT_OPTIONS)
def _emptied(out, columns, across, some):
    """Zeros in bf16 behind `columns` of the first rows [32, across], and in all others."""
    if columns < across:
        for i in range(some):
            store_bf16(out + 2 * (i * across + columns), broadcast_scalar(float32(0)))
    for c in range(2 * some * across, 2 * HEAD_SIZE_MULTIPLE * across, 64):
        store(out + c, broadcast_scalar(float32(0)))


# Slots: those of attention_fp32.py.


@cfunc("void(voidptr)", **KERNEL_OPTIONS)
def forward(given):
    s = load_slots(given)
    out, heads, width, sees, stride, key_stride = s[2], s[6], s[7], s[8], 2 * s[20], 2 * s[21]
    stats, starts, asked = (
        float_array(s[3], 2 * s[13] * heads),
        int64_array(s[4], s[5] + 1),
        int64_array(s[22], s[5] + 1),
    )
    low, high, dropped, scale = uint32(s[9]), uint32(s[10]), uint32(s[11]), float_from_bits(s[12])
    inner, most, widest = heads * width, round_up(s[14]), _wide(s[14])
    each, block, few = 2 * widest * width, 2 * HEAD_SIZE_MULTIPLE * widest, 2 * HEAD_SIZE_MULTIPLE * width
    copied = s[15] + 4 * np.int64(thread_index()) * s[16]
    keys, values = copied + each, copied + 2 * each
    weights, queries = copied + 3 * each, copied + 3 * each + block
    mixed, made = queries + few, queries + 3 * few
    root = float32(1) / np.sqrt(float32(width))
    configure(s[18])
    for pair in range(np.int64(thread_index()), s[5] * heads, np.int64(num_threads())):
        one, head = pair // heads, pair % heads
        first, count = starts[one], starts[one + 1] - starts[one]
        across, columns, at = _wide(count), round_up(count), s[19] + first * key_stride + 2 * head * width
        if asked[one] < asked[one + 1]:
            _read(at, key_stride, count, width, copied, across)
            _turned(copied, across, width // 2, keys)
            _read(at + 2 * inner, key_stride, count, width, copied, across)
            _joined(copied, across, width, values)
        for begin in range(asked[one], asked[one + 1], HEAD_SIZE_MULTIPLE):
            some = min(HEAD_SIZE_MULTIPLE, asked[one + 1] - begin)
            _read(s[1] + begin * stride + 2 * head * width, stride, some, width, queries, HEAD_SIZE_MULTIPLE)
            multiply_block(False, queries, 2 * width, keys, made, across, width, some)
            for i in range(some):
                here, token = made + 4 * i * across, query_token(s[23], begin + i)
                nearest, furthest = visible_range(token - first, count, sees)
                highest = masked_row_max(here, columns, nearest, furthest) * root
                there, place = weights + 2 * i * across, (token * heads + head) * most
                total = broadcast_scalar(float32(0))
                for j in range(0, columns, VECTOR_WIDTH):
                    value = exp_nonpositive(
                        load(here + 4 * j) * broadcast_scalar(root) - broadcast_scalar(highest)
                    )
                    total = total + value
                    if dropped:
                        value = value * dropout_mask(place + j, low, high, dropped, scale)
                    store_bf16(there + 2 * j, value)
                own = 2 * ((begin + i) * heads + head)
                stats[own], stats[own + 1] = highest, float32(1) / reduce_sum(total)
            _emptied(weights, columns, across, some)
            multiply_block(False, weights, 2 * across, values, mixed, width, across, some)
            for i in range(some):  # a row's sum divides what comes of its weights, fewer numbers than these
                own, place = 2 * ((begin + i) * heads + head), (begin + i) * inner + head * width
                unpack_rows(
                    1, float_array(mixed + 4 * i * width, width), 1, width, stats[own + 1], out, place, inner
                )
    release()


@cfunc("void(voidptr)", **KERNEL_OPTIONS)
def backward(given):
    s = load_slots(given)
    heads, width, sees, grad, stride, key_stride = s[6], s[7], s[8], s[17], s[20], s[21]
    stats, starts, asked = (
        float_array(s[3], 2 * s[13] * heads),
        int64_array(s[4], s[5] + 1),
        int64_array(s[22], s[5] + 1),
    )
    low, high, dropped, scale = uint32(s[9]), uint32(s[10]), uint32(s[11]), float_from_bits(s[12])
    inner, most, widest = heads * width, round_up(s[14]), _wide(s[14])
    each, block, few = 2 * widest * width, 2 * HEAD_SIZE_MULTIPLE * widest, 2 * HEAD_SIZE_MULTIPLE * width
    copied = s[15] + 4 * np.int64(thread_index()) * s[16]
    keys, keys_turned, keys_below = copied, copied + each, copied + 2 * each
    values, values_turned = copied + 3 * each, copied + 4 * each
    key_sums, value_sums = copied + 5 * each, copied + 7 * each
    of_keys, of_values = float_array(key_sums, each // 2), float_array(value_sums, each // 2)
    after = copied + 9 * each
    through, below = after + block, after + 2 * block
    after_turned, through_turned = after + 3 * block, after + 4 * block
    made, wanted = after + 5 * block, after + 7 * block
    queries = after + 9 * block
    upstream, queries_below, upstream_below = queries + few, queries + 2 * few, queries + 3 * few
    of_queries = float_array(queries + 4 * few, HEAD_SIZE_MULTIPLE * width)
    root = float32(1) / np.sqrt(float32(width))
    configure(s[18])
    for pair in range(np.int64(thread_index()), s[5] * heads, np.int64(num_threads())):
        one, head = pair // heads, pair % heads
        first, count = starts[one], starts[one + 1] - starts[one]
        across, columns, at = _wide(count), round_up(count), first * key_stride + head * width
        if asked[one] < asked[one + 1]:
            _read(s[19] + 2 * at, 2 * key_stride, count, width, keys, across)
            _turned(keys, across, width // 2, keys_turned)
            _joined(keys, across, width, keys_below)
            _read(s[19] + 2 * (at + inner), 2 * key_stride, count, width, values, across)
            _turned(values, across, width // 2, values_turned)
        of_keys[: across * width] = float32(0)
        of_values[: across * width] = float32(0)
        for begin in range(asked[one], asked[one + 1], HEAD_SIZE_MULTIPLE):
            some, of_query = min(HEAD_SIZE_MULTIPLE, asked[one + 1] - begin), begin * stride + head * width
            _read(s[1] + 2 * of_query, 2 * stride, some, width, queries, HEAD_SIZE_MULTIPLE)
            _read(
                grad + 2 * (begin * inner + head * width),
                2 * inner,
                some,
                width,
                upstream,
                HEAD_SIZE_MULTIPLE,
            )
            multiply_block(False, queries, 2 * width, keys_turned, made, across, width, some)
            multiply_block(False, upstream, 2 * width, values_turned, wanted, across, width, some)
            for i in range(some):
                token, own = query_token(s[23], begin + i), 2 * ((begin + i) * heads + head)
                nearest, furthest = visible_range(token - first, count, sees)
                here, slope = made + 4 * i * across, wanted + 4 * i * across
                place = (token * heads + head) * most
                highest, share = broadcast_scalar(stats[own]), broadcast_scalar(stats[own + 1])
                total = broadcast_scalar(float32(0))
                mixed, moved = after + 2 * i * across, through + 2 * i * across
                for j in range(0, columns, VECTOR_WIDTH):
                    weight = (
                        exp_nonpositive(
                            mask_scores(here, j, nearest, furthest) * broadcast_scalar(root) - highest
                        )
                        * share
                    )
                    value = load(slope + 4 * j)
                    after_it = weight
                    if dropped:
                        after_it = weight * dropout_mask(place + j, low, high, dropped, scale)
                    value = value * after_it
                    store(here + 4 * j, weight)
                    store_bf16(mixed + 2 * j, after_it)
                    store(slope + 4 * j, value)
                    total = total + value
                whole = broadcast_scalar(reduce_sum(total))
                for j in range(0, columns, VECTOR_WIDTH):
                    value = load(slope + 4 * j) - load(here + 4 * j) * whole
                    store_bf16(moved + 2 * j, value * broadcast_scalar(root))
            _emptied(after, columns, across, some)
            _emptied(through, columns, across, some)
            multiply_block(False, through, 2 * across, keys_below, queries + 4 * few, width, across, some)
            unpack_rows(1, of_queries, some, width, float32(1), s[2], of_query, stride)
            _joined(after, HEAD_SIZE_MULTIPLE, across, below)
            _turned(below, _HALF, across, after_turned)
            _joined(through, HEAD_SIZE_MULTIPLE, across, below)
            _turned(below, _HALF, across, through_turned)
            _joined(queries, HEAD_SIZE_MULTIPLE, width, queries_below)
            _joined(upstream, HEAD_SIZE_MULTIPLE, width, upstream_below)
            for j in range(0, across, HEAD_SIZE_MULTIPLE):
                to, of = 4 * j * width, 2 * j * HEAD_SIZE_MULTIPLE
                multiply_block(
                    True,
                    after_turned + of,
                    2 * HEAD_SIZE_MULTIPLE,
                    upstream_below,
                    value_sums + to,
                    width,
                    HEAD_SIZE_MULTIPLE,
                    HEAD_SIZE_MULTIPLE,
                )
                multiply_block(
                    True,
                    through_turned + of,
                    2 * HEAD_SIZE_MULTIPLE,
                    queries_below,
                    key_sums + to,
                    width,
                    HEAD_SIZE_MULTIPLE,
                    HEAD_SIZE_MULTIPLE,
                )
        unpack_rows(1, of_keys, count, width, float32(1), s[24], at, key_stride)
        unpack_rows(1, of_values, count, width, float32(1), s[24], at + inner, key_stride)
    release()
