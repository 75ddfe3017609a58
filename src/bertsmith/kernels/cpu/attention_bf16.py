"""The bodies of attention over packed sequences in bf16, there and back, by the processor's own products of bf16:
in tiles (AMX), or in registers (AVX512-BF16).

As in attention_fp32.py a head of a sequence is one thread's work, 32 of its queries at a time, and what comes of
it depends on nothing else. Sums and what lies between the products are in fp32; weights and slopes are rounded to
bf16 before they are multiplied, and weights divided by their sum behind that.
"""

from __future__ import annotations

import numpy as np
from numba import cfunc, njit

from bertsmith.kernels.cpu.attention_fp32 import highest_seen, seen, sight, token_of, up, write
from bertsmith.kernels.cpu.compilation import (
    BODY,
    LOOPS,
    F,
    U,
    as_float,
    compiles_for,
    floats,
    how_many,
    integers,
    my_number,
    slots,
)
from bertsmith.kernels.cpu.exponential import exp_below
from bertsmith.kernels.cpu.simd import WIDTH, every, kept, load, store, store_half, sum_of
from bertsmith.kernels.cpu.simd_pairs import join, turn

if compiles_for("amx-bf16"):
    from bertsmith.kernels.cpu.amx import configure, product, release
else:
    from bertsmith.kernels.cpu.microkernel_bf16 import configure, product, release

WRITTEN_WITH = "0ca680308cfe8f46"  # what is imported here, and what these import, see the first
SIDE = 32  # rows, columns and terms that a product is made of
_HALF = SIDE // 2  # rows of a tile; a product's terms in pairs


def room(longest: int, width: int, back: bool) -> int:
    """How many fp32 numbers a thread of `forward` or `backward` needs to compute in; both divide it so."""
    most = -(-longest // SIDE) * SIDE
    each, block, few = most * width, SIDE * most, SIDE * width
    if back:
        return 9 * each // 2 + 9 * block // 2 + 3 * few
    return 3 * each // 2 + 3 * block // 2 + 3 * few // 2


@njit(**LOOPS)
def _read(x, stride, count, width, out, rows):
    """Rows of a head in bf16, [count, width], `stride` bytes apart; and zeros behind them, [rows, width]."""
    for _ in range(count):
        for c in range(0, 2 * width, 64):
            store(out + c, load(x + c))
        x += stride
        out += 2 * width
    for c in range(0, 2 * width * (rows - count), 64):
        store(out + c, every(F(0)))


@njit(**LOOPS)
def _joined(x, rows, columns, out):
    """x [rows, columns] in bf16 with its rows in pairs."""
    for _ in range(0, rows, 2):
        for c in range(0, columns, WIDTH):
            join(x + 2 * c, x + 2 * (columns + c), out + 4 * c)
        x += 4 * columns
        out += 4 * columns


@njit(**LOOPS)
def _turned(x, rows, pairs, out):
    """x [rows, pairs] of 32 bits → [pairs, rows]; both multiples of 16."""
    for i in range(0, rows, WIDTH):
        for c in range(0, pairs, WIDTH):
            turn(x + 4 * (i * pairs + c), 4 * pairs, out + 4 * (c * rows + i), 4 * rows)


@njit(**LOOPS)
def _wide(count):
    return (count + SIDE - 1) // SIDE * SIDE


@njit(**LOOPS)
def _emptied(out, columns, across, some):
    """Zeros in bf16 behind `columns` of the first rows [32, across], and in all others."""
    if columns < across:
        for i in range(some):
            store_half(out + 2 * (i * across + columns), every(F(0)))
    for c in range(2 * some * across, 2 * SIDE * across, 64):
        store(out + c, every(F(0)))


# Slots: those of attention_fp32.py.


@cfunc("void(voidptr)", **BODY)
def forward(given):
    s = slots(given)
    out, heads, width, sees, stride, key_stride = s[2], s[6], s[7], s[8], 2 * s[20], 2 * s[21]
    stats, starts, asked = (
        floats(s[3], 2 * s[13] * heads),
        integers(s[4], s[5] + 1),
        integers(s[22], s[5] + 1),
    )
    low, high, dropped, scale = U(s[9]), U(s[10]), U(s[11]), as_float(s[12])
    inner, most, widest = heads * width, up(s[14]), _wide(s[14])
    each, block, few = 2 * widest * width, 2 * SIDE * widest, 2 * SIDE * width
    copied = s[15] + 4 * np.int64(my_number()) * s[16]
    keys, values = copied + each, copied + 2 * each
    weights, queries = copied + 3 * each, copied + 3 * each + block
    mixed, made = queries + few, queries + 3 * few
    root = F(1) / np.sqrt(F(width))
    configure(s[18])
    for pair in range(np.int64(my_number()), s[5] * heads, np.int64(how_many())):
        one, head = pair // heads, pair % heads
        first, count = starts[one], starts[one + 1] - starts[one]
        across, columns, at = _wide(count), up(count), s[19] + first * key_stride + 2 * head * width
        if asked[one] < asked[one + 1]:
            _read(at, key_stride, count, width, copied, across)
            _turned(copied, across, width // 2, keys)
            _read(at + 2 * inner, key_stride, count, width, copied, across)
            _joined(copied, across, width, values)
        for begin in range(asked[one], asked[one + 1], SIDE):
            some = min(SIDE, asked[one + 1] - begin)
            _read(s[1] + begin * stride + 2 * head * width, stride, some, width, queries, SIDE)
            product(False, queries, 2 * width, keys, made, across, width, some)
            for i in range(some):
                here, token = made + 4 * i * across, token_of(s[23], begin + i)
                nearest, furthest = sight(token - first, count, sees)
                highest = highest_seen(here, columns, nearest, furthest) * root
                there, place = weights + 2 * i * across, (token * heads + head) * most
                total = every(F(0))
                for j in range(0, columns, WIDTH):
                    value = exp_below(load(here + 4 * j) * every(root) - every(highest))
                    total = total + value
                    if dropped:
                        value = value * kept(place + j, low, high, dropped, scale)
                    store_half(there + 2 * j, value)
                own = 2 * ((begin + i) * heads + head)
                stats[own], stats[own + 1] = highest, F(1) / sum_of(total)
            _emptied(weights, columns, across, some)
            product(False, weights, 2 * across, values, mixed, width, across, some)
            for i in range(some):  # a row's sum divides what comes of its weights, fewer numbers than these
                own, place = 2 * ((begin + i) * heads + head), (begin + i) * inner + head * width
                write(1, floats(mixed + 4 * i * width, width), 1, width, stats[own + 1], out, place, inner)
    release()


@cfunc("void(voidptr)", **BODY)
def backward(given):
    s = slots(given)
    heads, width, sees, grad, stride, key_stride = s[6], s[7], s[8], s[17], s[20], s[21]
    stats, starts, asked = (
        floats(s[3], 2 * s[13] * heads),
        integers(s[4], s[5] + 1),
        integers(s[22], s[5] + 1),
    )
    low, high, dropped, scale = U(s[9]), U(s[10]), U(s[11]), as_float(s[12])
    inner, most, widest = heads * width, up(s[14]), _wide(s[14])
    each, block, few = 2 * widest * width, 2 * SIDE * widest, 2 * SIDE * width
    copied = s[15] + 4 * np.int64(my_number()) * s[16]
    keys, keys_turned, keys_below = copied, copied + each, copied + 2 * each
    values, values_turned = copied + 3 * each, copied + 4 * each
    key_sums, value_sums = copied + 5 * each, copied + 7 * each
    of_keys, of_values = floats(key_sums, each // 2), floats(value_sums, each // 2)
    after = copied + 9 * each
    through, below = after + block, after + 2 * block
    after_turned, through_turned = after + 3 * block, after + 4 * block
    made, wanted = after + 5 * block, after + 7 * block
    queries = after + 9 * block
    upstream, queries_below, upstream_below = queries + few, queries + 2 * few, queries + 3 * few
    of_queries = floats(queries + 4 * few, SIDE * width)
    root = F(1) / np.sqrt(F(width))
    configure(s[18])
    for pair in range(np.int64(my_number()), s[5] * heads, np.int64(how_many())):
        one, head = pair // heads, pair % heads
        first, count = starts[one], starts[one + 1] - starts[one]
        across, columns, at = _wide(count), up(count), first * key_stride + head * width
        if asked[one] < asked[one + 1]:
            _read(s[19] + 2 * at, 2 * key_stride, count, width, keys, across)
            _turned(keys, across, width // 2, keys_turned)
            _joined(keys, across, width, keys_below)
            _read(s[19] + 2 * (at + inner), 2 * key_stride, count, width, values, across)
            _turned(values, across, width // 2, values_turned)
        of_keys[: across * width] = F(0)
        of_values[: across * width] = F(0)
        for begin in range(asked[one], asked[one + 1], SIDE):
            some, of_query = min(SIDE, asked[one + 1] - begin), begin * stride + head * width
            _read(s[1] + 2 * of_query, 2 * stride, some, width, queries, SIDE)
            _read(grad + 2 * (begin * inner + head * width), 2 * inner, some, width, upstream, SIDE)
            product(False, queries, 2 * width, keys_turned, made, across, width, some)
            product(False, upstream, 2 * width, values_turned, wanted, across, width, some)
            for i in range(some):
                token, own = token_of(s[23], begin + i), 2 * ((begin + i) * heads + head)
                nearest, furthest = sight(token - first, count, sees)
                here, slope = made + 4 * i * across, wanted + 4 * i * across
                place = (token * heads + head) * most
                highest, share = every(stats[own]), every(stats[own + 1])
                total = every(F(0))
                mixed, moved = after + 2 * i * across, through + 2 * i * across
                for j in range(0, columns, WIDTH):
                    weight = exp_below(seen(here, j, nearest, furthest) * every(root) - highest) * share
                    value = load(slope + 4 * j)
                    after_it = weight
                    if dropped:
                        after_it = weight * kept(place + j, low, high, dropped, scale)
                    value = value * after_it
                    store(here + 4 * j, weight)
                    store_half(mixed + 2 * j, after_it)
                    store(slope + 4 * j, value)
                    total = total + value
                whole = every(sum_of(total))
                for j in range(0, columns, WIDTH):
                    value = load(slope + 4 * j) - load(here + 4 * j) * whole
                    store_half(moved + 2 * j, value * every(root))
            _emptied(after, columns, across, some)
            _emptied(through, columns, across, some)
            product(False, through, 2 * across, keys_below, queries + 4 * few, width, across, some)
            write(1, of_queries, some, width, F(1), s[2], of_query, stride)
            _joined(after, SIDE, across, below)
            _turned(below, _HALF, across, after_turned)
            _joined(through, SIDE, across, below)
            _turned(below, _HALF, across, through_turned)
            _joined(queries, SIDE, width, queries_below)
            _joined(upstream, SIDE, width, upstream_below)
            for j in range(0, across, SIDE):
                to, of = 4 * j * width, 2 * j * SIDE
                product(True, after_turned + of, 2 * SIDE, upstream_below, value_sums + to, width, SIDE, SIDE)
                product(True, through_turned + of, 2 * SIDE, queries_below, key_sums + to, width, SIDE, SIDE)
        write(1, of_keys, count, width, F(1), s[24], at, key_stride)
        write(1, of_values, count, width, F(1), s[24], at + inner, key_stride)
    release()
