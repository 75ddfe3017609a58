"""The bodies of attention over packed sequences, there and back.

A head of a sequence is one thread's work, some of its queries at a time, so that no score leaves the cache. What
comes of it depends on no other sequence, and not on the number of threads. All is computed in fp32.
"""

from __future__ import annotations

import numpy as np
from numba import cfunc, njit

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
from bertsmith.kernels.cpu.microkernel_fp32 import INIT_ACCUMULATE, INIT_ZERO, ROWS, microkernel_6x16
from bertsmith.kernels.cpu.simd import (
    VECTOR_WIDTH,
    broadcast_load,
    broadcast_scalar,
    dropout_mask,
    load,
    load_as_float,
    mask_lanes,
    maximum,
    reduce_max,
    reduce_sum,
    store,
    store_as_dtype,
    transpose_8x8,
)

WRITTEN_WITH = "07b5e5361d9b94bd"  # compilation.py, simd.py and microkernel_fp32.py, see the first
_WIDE = has_cpu_feature("avx512f")  # else the sums of twice as many columns are more than the registers hold
_QUERIES = 32  # worked on at a time
_BEFORE, _BEHIND = 1, 2
DIRECTIONS = {"all": 0, "before": _BEFORE, "behind": _BEHIND}
HEAD_SIZE_MULTIPLE = VECTOR_WIDTH  # a head's are a multiple of it
_FOUR = 4  # rows of a product that are made where six would be too many
_NUMBER, _PANEL = 4, 4 * VECTOR_WIDTH  # bytes of a number, and of a row in a panel
_SIDE = 8  # of a square that is turned
# Bytes behind a row of scores: at a power of two rows would share a part of the cache.
_APART = 64


def workspace_size(longest: int, width: int, back: bool) -> int:
    """How many fp32 numbers a thread of `forward` or `backward` needs to compute in; both divide it so."""
    most = -(-longest // VECTOR_WIDTH) * VECTOR_WIDTH
    block = _QUERIES * (most + _APART // _NUMBER)
    if back:
        return 6 * most * width + 3 * block + 2 * _QUERIES * width
    return 3 * most * width + _QUERIES * width + block


@njit(inline="always", **JIT_OPTIONS)
def _product(begins, a, a_row, a_term, b, b_term, b_panel, out, out_row, rows, panels, terms):
    """out = a · b, or that is added to it, one panel of 16 columns after the other; those of b may lie anywhere.
    Rows are made 6 at a time, or 4, so that at most 3 are too many. What lies between two is in bytes."""
    panel = 0
    while panel < panels:
        wide = _WIDE and panel + 1 < panels
        other, place, row = b + panel * b_panel, out + panel * _PANEL, 0
        while row < rows:
            own, to, left = a + row * a_row, place + row * out_row, rows - row
            if wide:
                _four_rows_wide(begins, own, a_row, a_term, other, b_term, b_panel, to, out_row, terms)
                row += _FOUR
            elif left > 2 * _FOUR or _FOUR < left <= ROWS:
                microkernel_6x16(begins, 0, own, a_row, a_term, other, b_term, to, out_row, terms)
                row += ROWS
            else:
                _four_rows(begins, own, a_row, a_term, other, b_term, to, out_row, terms)
                row += _FOUR
        panel += 2 if wide else 1


@njit(**JIT_OPTIONS)
def _multiply(a, a_row, b, b_panel, out, out_row, rows, panels, terms):
    """out = a · b: the terms of a row of a lie side by side, those of b in panels."""
    _product(INIT_ZERO, a, a_row, _NUMBER, b, _PANEL, b_panel, out, out_row, rows, panels, terms)


@njit(**JIT_OPTIONS)
def _add_turned(a, a_term, b, b_term, out, out_row, rows, panels, terms):
    """a · b is added to out: the rows of a lie side by side, as do the columns of b."""
    _product(INIT_ACCUMULATE, a, _NUMBER, a_term, b, b_term, _PANEL, out, out_row, rows, panels, terms)


@njit(inline="always", **JIT_OPTIONS)
def _four_rows_wide(begins, a, a_row, a_term, b, b_term, b_panel, out, width, terms):
    """Of two panels."""
    one, two, three = out + width, out + 2 * width, out + 3 * width
    if begins == INIT_ACCUMULATE:
        s, t, u, v = load(out), load(one), load(two), load(three)
        w, x, y, z = load(out + _PANEL), load(one + _PANEL), load(two + _PANEL), load(three + _PANEL)
    else:
        s = t = u = v = w = x = y = z = broadcast_scalar(float32(0))
    for _ in range(terms):
        left, right = load(b), load(b + b_panel)
        p, q, r, o = (
            broadcast_load(a),
            broadcast_load(a + a_row),
            broadcast_load(a + 2 * a_row),
            broadcast_load(a + 3 * a_row),
        )
        s, t, u, v = s + p * left, t + q * left, u + r * left, v + o * left
        w, x, y, z = w + p * right, x + q * right, y + r * right, z + o * right
        a += a_term
        b += b_term
    store(out, s)
    store(one, t)
    store(two, u)
    store(three, v)
    store(out + _PANEL, w)
    store(one + _PANEL, x)
    store(two + _PANEL, y)
    store(three + _PANEL, z)


@njit(inline="always", **JIT_OPTIONS)
def _four_rows(begins, a, a_row, a_term, b, b_term, out, width, terms):
    """Of one panel."""
    one, two, three = out + width, out + 2 * width, out + 3 * width
    if begins == INIT_ACCUMULATE:
        s, t, u, v = load(out), load(one), load(two), load(three)
    else:
        s = t = u = v = broadcast_scalar(float32(0))
    for _ in range(terms):
        own = load(b)
        s, t = s + broadcast_load(a) * own, t + broadcast_load(a + a_row) * own
        u, v = u + broadcast_load(a + 2 * a_row) * own, v + broadcast_load(a + 3 * a_row) * own
        a += a_term
        b += b_term
    store(out, s)
    store(one, t)
    store(two, u)
    store(three, v)


@njit(**JIT_OPTIONS)
def _read(half, x, begin, stride, count, width, scale, out, out_row, out_panel):
    """Rows of a head, [count, width], which lie `stride` numbers apart from `begin` on; of out rows, and panels of
    16 columns, lie so many bytes apart."""
    by = broadcast_scalar(scale)
    for i in range(count):
        place = out + i * out_row
        for c in range(begin + i * stride, begin + i * stride + width, VECTOR_WIDTH):
            store(place, load_as_float(half, x + (2 if half else 4) * c) * by)
            place += out_panel


@njit(**JIT_OPTIONS)
def unpack_rows(half, x, count, width, scale, out, begin, stride):
    """The same back, of rows that lie side by side."""
    place, by = x.ctypes.data, broadcast_scalar(scale)
    for i in range(count):
        for c in range(begin + i * stride, begin + i * stride + width, VECTOR_WIDTH):
            store_as_dtype(half, out + (2 if half else 4) * c, load(place) * by)
            place += 4 * VECTOR_WIDTH


@njit(**JIT_OPTIONS)
def _read_turned(half, x, begin, stride, count, width, rows, out):
    """The same into panels of 16 rows of the head, 0 behind the last: what is a row there is a column here. rows:
    room for them as they are."""
    across, by = round_up(count), _NUMBER * width
    _read(half, x, begin, stride, count, width, float32(1), rows, by, _PANEL)
    float_array(rows + count * by, (across - count) * width)[:] = float32(0)
    for i in range(0, across, _SIDE):
        here = out + i // VECTOR_WIDTH * width * _PANEL + i % VECTOR_WIDTH * _NUMBER
        for c in range(0, width, _SIDE):
            transpose_8x8(rows + i * by + c * _NUMBER, by, here + c * _PANEL, _PANEL)


@njit(inline="always", **JIT_OPTIONS)
def visible_range(i, count, sees):
    """The keys that query i sees, from one to before another."""
    return i if sees == _BEHIND else 0, i + 1 if sees == _BEFORE else count


@njit(inline="always", **JIT_OPTIONS)
def mask_scores(here, j, begin, end):
    """The scores of a row with keys from j on, -inf where the query does not see them, or there is no key."""
    value = load(here + 4 * j)
    return value if begin <= j and j + VECTOR_WIDTH <= end else mask_lanes(value, j, begin, end)


@njit(inline="always", **JIT_OPTIONS)
def masked_row_max(here, columns, begin, end):
    """Of a row of scores; what is not seen becomes -inf in it."""
    top = broadcast_scalar(float32(-np.inf))
    for j in range(0, columns, VECTOR_WIDTH):
        value = mask_scores(here, j, begin, end)
        store(here + 4 * j, value)
        top = maximum(top, value)
    return reduce_max(top)


@njit(**JIT_OPTIONS)
def round_up(count):
    return (count + VECTOR_WIDTH - 1) // VECTOR_WIDTH * VECTOR_WIDTH


@njit(inline="always", **JIT_OPTIONS)
def query_token(asked, query):
    """Which token a query is of; asked: where the tokens of all queries stand, 0 where each token has one."""
    return int64_array(asked, query + 1)[query] if asked else query


# Slots: 0 whether bf16, 1 queries, 2 the result, 3 of each query and head the highest score and 1 / the sum, 4
# starts, 5 sequences, 6 heads, 7 columns of a head, 8 what a token sees, 9 to 12 dropout, 13 queries in all, 14
# tokens of the longest sequence, 15 `room` for all threads, 16 how much of it a thread has, 17 on the way back the
# slope of the result, 18 what the tiles are, 19 keys, with values behind them in each row, 20 and 21 how many
# numbers lie between a query and the next, and a key and the next, 22 where each sequence's queries start, 23 see
# `token_of`; on the way back 2 and 24 are the slopes of queries and keys.


@cfunc("void(voidptr)", **KERNEL_OPTIONS)
def forward(given):
    s = load_slots(given)
    half, out, heads, width, sees, stride, key_stride = s[0], s[2], s[6], s[7], s[8], s[20], s[21]
    stats, starts, asked = (
        float_array(s[3], 2 * s[13] * heads),
        int64_array(s[4], s[5] + 1),
        int64_array(s[22], s[5] + 1),
    )
    low, high, dropped, scale = uint32(s[9]), uint32(s[10]), uint32(s[11]), float_from_bits(s[12])
    inner, most = heads * width, round_up(s[14])
    by, each = _NUMBER * width, _NUMBER * most * width
    keys = s[15] + _NUMBER * np.int64(thread_index()) * s[16]
    values = keys + each
    some_rows = values + each
    scores = some_rows + each + _QUERIES * by
    root = float32(1) / np.sqrt(float32(width))
    for pair in range(np.int64(thread_index()), s[5] * heads, np.int64(num_threads())):
        one, head = pair // heads, pair % heads
        first, count = starts[one], starts[one + 1] - starts[one]
        across, at = round_up(count), first * key_stride + head * width
        apart, panel, turned = _NUMBER * across + _APART, _PANEL * count, _PANEL * width
        if asked[one] < asked[one + 1]:
            _read_turned(half, s[19], at, key_stride, count, width, some_rows, keys)
            _read(half, s[19], at + inner, key_stride, count, width, float32(1), values, _PANEL, panel)
        for begin in range(asked[one], asked[one + 1], _QUERIES):
            some = min(_QUERIES, asked[one + 1] - begin)
            _read(half, s[1], begin * stride + head * width, stride, some, width, root, some_rows, by, _PANEL)
            _multiply(some_rows, by, keys, turned, scores, apart, some, across // VECTOR_WIDTH, width)
            for i in range(some):
                here, token = scores + i * apart, query_token(s[23], begin + i)
                nearest, furthest = visible_range(token - first, count, sees)
                highest = masked_row_max(here, across, nearest, furthest)
                total = broadcast_scalar(float32(0))
                for j in range(0, across, VECTOR_WIDTH):
                    value = exp_nonpositive(load(here + 4 * j) - broadcast_scalar(highest))
                    store(here + 4 * j, value)
                    total = total + value
                share = float32(1) / reduce_sum(total)
                own = 2 * ((begin + i) * heads + head)
                stats[own], stats[own + 1] = highest, share
                place = (token * heads + head) * most
                for j in range(0, across, VECTOR_WIDTH):
                    value = load(here + 4 * j) * broadcast_scalar(share)
                    if dropped:
                        value = value * dropout_mask(place + j, low, high, dropped, scale)
                    store(here + 4 * j, value)
            _multiply(scores, apart, values, panel, some_rows, by, some, width // VECTOR_WIDTH, count)
            made = float_array(some_rows, some * width)
            unpack_rows(half, made, some, width, float32(1), out, begin * inner + head * width, inner)


@cfunc("void(voidptr)", **KERNEL_OPTIONS)
def backward(given):
    s = load_slots(given)
    half, heads, width, sees, grad, stride, key_stride = s[0], s[6], s[7], s[8], s[17], s[20], s[21]
    stats, starts, asked = (
        float_array(s[3], 2 * s[13] * heads),
        int64_array(s[4], s[5] + 1),
        int64_array(s[22], s[5] + 1),
    )
    low, high, dropped, scale = uint32(s[9]), uint32(s[10]), uint32(s[11]), float_from_bits(s[12])
    inner, most = heads * width, round_up(s[14])
    by, each, block = _NUMBER * width, _NUMBER * most * width, _QUERIES * (_NUMBER * most + _APART)
    keys = s[15] + _NUMBER * np.int64(thread_index()) * s[16]
    keys_turned = keys + each
    values_turned = keys_turned + each
    some_rows = values_turned + each
    of_keys = some_rows + each
    of_values = of_keys + each
    weights = of_values + each
    through = weights + block
    after = through + block
    queries = after + block
    upstream = queries + _QUERIES * by
    root = float32(1) / np.sqrt(float32(width))
    for pair in range(np.int64(thread_index()), s[5] * heads, np.int64(num_threads())):
        one, head = pair // heads, pair % heads
        first, count = starts[one], starts[one + 1] - starts[one]
        across, at = round_up(count), first * key_stride + head * width
        apart, panel, turned = _NUMBER * across + _APART, _PANEL * count, _PANEL * width
        if asked[one] < asked[one + 1]:
            _read(half, s[19], at, key_stride, count, width, float32(1), keys, _PANEL, panel)
            _read_turned(half, s[19], at, key_stride, count, width, some_rows, keys_turned)
            _read_turned(half, s[19], at + inner, key_stride, count, width, some_rows, values_turned)
        float_array(of_keys, across * width)[:] = float32(0)
        float_array(of_values, across * width)[:] = float32(0)
        for begin in range(asked[one], asked[one + 1], _QUERIES):
            some = min(_QUERIES, asked[one + 1] - begin)
            of_query, of_out = begin * stride + head * width, begin * inner + head * width
            _read(half, s[1], of_query, stride, some, width, root, queries, by, _PANEL)
            _read(half, grad, of_out, inner, some, width, float32(1), upstream, by, _PANEL)
            _multiply(queries, by, keys_turned, turned, weights, apart, some, across // VECTOR_WIDTH, width)
            _multiply(
                upstream, by, values_turned, turned, through, apart, some, across // VECTOR_WIDTH, width
            )
            for i in range(some):
                here, slope, mixed = weights + i * apart, through + i * apart, after + i * apart
                token, own = query_token(s[23], begin + i), 2 * ((begin + i) * heads + head)
                nearest, furthest = visible_range(token - first, count, sees)
                place = (token * heads + head) * most
                highest, share = broadcast_scalar(stats[own]), broadcast_scalar(stats[own + 1])
                total = broadcast_scalar(float32(0))
                for j in range(0, across, VECTOR_WIDTH):
                    score, value = mask_scores(here, j, nearest, furthest), load(slope + 4 * j)
                    weight = exp_nonpositive(score - highest) * share
                    after_it = weight
                    if dropped:
                        after_it = weight * dropout_mask(place + j, low, high, dropped, scale)
                    value = value * after_it
                    store(here + 4 * j, weight)
                    store(mixed + 4 * j, after_it)
                    store(slope + 4 * j, value)
                    total = total + value
                whole = broadcast_scalar(reduce_sum(total))
                for j in range(0, across, VECTOR_WIDTH):
                    store(slope + 4 * j, load(slope + 4 * j) - load(here + 4 * j) * whole)
            _add_turned(after, apart, upstream, by, of_values, by, count, width // VECTOR_WIDTH, some)
            _add_turned(through, apart, queries, by, of_keys, by, count, width // VECTOR_WIDTH, some)
            _multiply(through, apart, keys, panel, upstream, by, some, width // VECTOR_WIDTH, count)
            made = float_array(upstream, some * width)
            unpack_rows(half, made, some, width, root, s[2], of_query, stride)
        unpack_rows(
            half, float_array(of_keys, count * width), count, width, float32(1), s[24], at, key_stride
        )
        unpack_rows(
            half,
            float_array(of_values, count * width),
            count,
            width,
            float32(1),
            s[24],
            at + inner,
            key_stride,
        )
