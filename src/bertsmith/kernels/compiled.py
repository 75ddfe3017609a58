"""The bodies of the compiled kernels: loops over rows, which Numba compiles when this module is imported.

A body reads its arguments from slots of 64 bits: addresses, sizes, and floats by their bits. Threads that enter it
together share out the rows. bf16 is held as 16-bit integers, whose values are widened to fp32, computed with, and
rounded to the nearest, ties to even. Compiled code is kept beside this file or in NUMBA_CACHE_DIR; `python -m
bertsmith.kernels.compiled` compiles ahead.
"""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm
import llvmlite.ir as ir
import numpy as np
import torch
from numba import carray, cfunc, njit, types
from numba.extending import intrinsic, overload

from bertsmith.kernels.plain import NEVER_ONE, NO_GRADIENT

SLOTS = 24
# The threads of torch's own operations: a second set would wait for cores that the first one spins on.
LIBRARY = next((Path(torch.__file__).parent / "lib").glob("libgomp*.so*"))
llvm.load_library_permanently(str(LIBRARY))
_my_number = types.ExternalFunction("omp_get_thread_num", types.int32())
_how_many = types.ExternalFunction("omp_get_num_threads", types.int32())

# Sums may be added in another order, as vectors need it; what is not a number stays one.
_LOOPS: dict[str, Any] = {
    "fastmath": {"reassoc", "contract", "nsz", "arcp"},
    "error_model": "numpy",
    "boundscheck": False,
}
_BODY = {**_LOOPS, "cache": True}
_U, _F = np.uint32, np.float32
_LANES = 64


@intrinsic
def _pointer(typing: Any, address: Any) -> Any:
    """An address as a pointer."""

    def made(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        return builder.inttoptr(values[0], ir.IntType(8).as_pointer())

    return types.voidptr(types.int64), made


@njit(**_LOOPS)
def _slots(given):
    return carray(given, (SLOTS,), np.int64)


@njit(**_LOOPS)
def _floats(address, size):
    return carray(_pointer(address), (size,), np.float32)


@njit(**_LOOPS)
def _halves(address, size):
    return carray(_pointer(address), (size,), np.uint16)


@njit(**_LOOPS)
def _integers(address, size):
    return carray(_pointer(address), (size,), np.int64)


@njit(**_LOOPS)
def _float(bits):
    return _U(bits).view(np.float32)


@njit(**_LOOPS)
def _my_rows(rows):
    mine, of = np.int64(_my_number()), np.int64(_how_many())
    return rows * mine // of, rows * (mine + 1) // of


def _get(row, i):
    """An element as fp32."""


def _put(row, i, value):
    """Store an element."""


@overload(_get, inline="always")
def _get_of(row, i):
    if row.dtype == types.uint16:
        return lambda row, i: _U(_U(row[i]) << _U(16)).view(np.float32)
    return lambda row, i: row[i]


@overload(_put, inline="always")
def _put_of(row, i, value):
    def rounded(row, i, value):
        bits = _F(value).view(np.uint32)
        odd = _U(_U(bits >> _U(16)) & _U(1))
        row[i] = np.uint16(_U(_U(bits + _U(0x7FFF)) + odd) >> _U(16))

    def as_it_is(row, i, value):
        row[i] = value

    return rounded if row.dtype == types.uint16 else as_it_is


@njit(inline="always", **_LOOPS)
def _kept(number, low, high, dropped, scale):
    """What an element is multiplied by in dropout: 16 bits of a hash of its number decide, of 65,536 values
    `dropped` drop it. The hash is lowbias32 (Wellons 2018), its second half with other bits of the seed."""
    x = _U(_U(_U(number) * _U(0x9E3779B9)) ^ low)
    x = _U(_U(x ^ _U(x >> _U(16))) * _U(0x7FEB352D))
    x = _U(x ^ high)
    x = _U(_U(x ^ _U(x >> _U(15))) * _U(0x846CA68B))
    x = _U(x ^ _U(x >> _U(16)))
    return scale if _U(x >> _U(16)) >= dropped else _F(0)


@njit(inline="always", **_LOOPS)
def _exp(x):
    """exp of x ≤ 0, to 2e-7 of its value: 2 to a whole number times a polynomial (Cephes)."""
    x = x if x > _F(-87) else (_F(-87) if x <= _F(-87) else x)
    whole = np.floor(x * _F(1.44269504) + _F(0.5))
    r = x - whole * _F(0.693359375) + whole * _F(2.12194440e-4)
    p = _F(1.9875691500e-4)
    p = p * r + _F(1.3981999507e-3)
    p = p * r + _F(8.3334519073e-3)
    p = p * r + _F(4.1665795894e-2)
    p = p * r + _F(1.6666665459e-1)
    p = p * r + _F(5.0000001201e-1)
    y = p * r * r + r + _F(1)
    return y * _U(np.int32((np.int32(whole) + np.int32(127)) << np.int32(23))).view(np.float32)


@njit(inline="always", **_LOOPS)
def _normal(x):
    """The normal distribution's share below x and exp(-x²/2), to 1e-7 (Abramowitz and Stegun, 7.1.26)."""
    a = abs(x) * _F(0.70710678)
    t = _F(1) / (_F(1) + _F(0.3275911) * a)
    bell = _exp(-a * a)
    p = _F(1.061405429) * t - _F(1.453152027)
    p = p * t + _F(1.421413741)
    p = p * t - _F(0.284496736)
    p = p * t + _F(0.254829592)
    tail = _F(0.5) * p * t * bell
    return (_F(1) - tail if x > _F(0) else tail), bell


@njit(**_LOOPS)
def _top(values, lanes):
    """The largest, by the largest of each lane: a single one would wait for itself at each value."""
    for k in range(_LANES):
        lanes[k] = -np.inf
    whole = len(values) // _LANES
    for i in range(whole):
        some = values[i * _LANES : i * _LANES + _LANES]
        for k in range(_LANES):
            lanes[k] = some[k] if some[k] > lanes[k] else lanes[k]
    top = lanes[0]
    for k in range(_LANES):
        top = max(top, lanes[k])
    for j in range(whole * _LANES, len(values)):
        top = max(top, values[j])
    return top


# GELU. Slots: 0 whether bf16, 1 x, 2 the result, 3 elements; on the way back 4 the slope of the result.


@njit(**_LOOPS)
def _gelu(x, y):
    for i in range(len(x)):
        value = _get(x, i)
        share, _ = _normal(value)
        _put(y, i, value * share)


@njit(**_LOOPS)
def _gelu_back(x, g, y):
    for i in range(len(x)):
        value = _get(x, i)
        share, bell = _normal(value)
        _put(y, i, _get(g, i) * (share + value * bell * _F(0.39894228)))


@cfunc("void(voidptr)", **_BODY)
def gelu(given):
    s = _slots(given)
    first, last = _my_rows(s[3])
    if s[0]:
        _gelu(_halves(s[1], s[3])[first:last], _halves(s[2], s[3])[first:last])
    else:
        _gelu(_floats(s[1], s[3])[first:last], _floats(s[2], s[3])[first:last])


@cfunc("void(voidptr)", **_BODY)
def gelu_back(given):
    s = _slots(given)
    n = s[3]
    first, last = _my_rows(n)
    if s[0]:
        x, g, y = _halves(s[1], n), _halves(s[4], n), _halves(s[2], n)
        _gelu_back(x[first:last], g[first:last], y[first:last])
    else:
        a, b, c = _floats(s[1], n), _floats(s[4], n), _floats(s[2], n)
        _gelu_back(a[first:last], b[first:last], c[first:last])


# LN(residual + dropout(x)). Slots: 0 whether bf16, 1 x, 2 residual, 3 the result, 4 rows, 5 columns, 6 weight,
# 7 bias, 8 each row's mean and 1/deviation, 9 epsilon, 10 and 11 seed, 12 of 65,536 dropped, 13 scale; on the way
# back 3 is the slope of the sum, and 14 the slope of the result, 15 the slope of x, 16 each thread's sums for the
# slopes of weight and bias.


@njit(**_LOOPS)
def _add_norm(x, residual, y, columns, weight, bias, stats, epsilon, low, high, dropped, scale, first, last):
    added = np.empty(columns, np.float32)
    for row in range(first, last):
        begin = row * columns
        xs, rs, ys = x[begin : begin + columns], residual[begin : begin + columns], y[begin : begin + columns]
        total = _F(0)
        if dropped:
            for j in range(columns):
                value = _get(rs, j) + _get(xs, j) * _kept(begin + j, low, high, dropped, scale)
                added[j] = value
                total += value
        else:
            for j in range(columns):
                value = _get(rs, j) + _get(xs, j)
                added[j] = value
                total += value
        mean = total / _F(columns)
        square = _F(0)
        for j in range(columns):
            apart = added[j] - mean
            square += apart * apart
        inverse = _F(1) / np.sqrt(square / _F(columns) + epsilon)
        stats[2 * row], stats[2 * row + 1] = mean, inverse
        for j in range(columns):
            _put(ys, j, (added[j] - mean) * inverse * weight[j] + bias[j])


@njit(**_LOOPS)
def _add_norm_back(
    x, residual, g, of_sum, of_x, columns, weight, stats, sums, low, high, dropped, scale, first, last
):
    unit, slope = np.empty(columns, np.float32), np.empty(columns, np.float32)
    of_weight, of_bias = sums[:columns], sums[columns:]
    for row in range(first, last):
        begin = row * columns
        xs, rs, gs = x[begin : begin + columns], residual[begin : begin + columns], g[begin : begin + columns]
        os, ds = of_sum[begin : begin + columns], of_x[begin : begin + columns]
        mean, inverse = stats[2 * row], stats[2 * row + 1]
        along, across = _F(0), _F(0)
        if dropped:
            for j in range(columns):
                value = _get(rs, j) + _get(xs, j) * _kept(begin + j, low, high, dropped, scale)
                unit[j] = (value - mean) * inverse
        else:
            for j in range(columns):
                unit[j] = (_get(rs, j) + _get(xs, j) - mean) * inverse
        for j in range(columns):
            given = _get(gs, j)
            of_weight[j] += given * unit[j]
            of_bias[j] += given
            value = given * weight[j]
            slope[j] = value
            along += value
            across += value * unit[j]
        along /= _F(columns)
        across /= _F(columns)
        if dropped:
            for j in range(columns):
                value = (slope[j] - along - unit[j] * across) * inverse
                _put(os, j, value)
                _put(ds, j, value * _kept(begin + j, low, high, dropped, scale))
        else:
            for j in range(columns):
                _put(os, j, (slope[j] - along - unit[j] * across) * inverse)


@cfunc("void(voidptr)", **_BODY)
def add_norm(given):
    s = _slots(given)
    n, h = s[4] * s[5], s[5]
    first, last = _my_rows(s[4])
    weight, bias, stats = _floats(s[6], h), _floats(s[7], h), _floats(s[8], 2 * s[4])
    eps, low, high, dropped, scale = _float(s[9]), _U(s[10]), _U(s[11]), _U(s[12]), _float(s[13])
    if s[0]:
        x, r, y = _halves(s[1], n), _halves(s[2], n), _halves(s[3], n)
        _add_norm(x, r, y, h, weight, bias, stats, eps, low, high, dropped, scale, first, last)
    else:
        a, b, c = _floats(s[1], n), _floats(s[2], n), _floats(s[3], n)
        _add_norm(a, b, c, h, weight, bias, stats, eps, low, high, dropped, scale, first, last)


@cfunc("void(voidptr)", **_BODY)
def add_norm_back(given):
    s = _slots(given)
    n, h = s[4] * s[5], s[5]
    first, last = _my_rows(s[4])
    weight, stats = _floats(s[6], h), _floats(s[8], 2 * s[4])
    low, high, dropped, scale = _U(s[10]), _U(s[11]), _U(s[12]), _float(s[13])
    mine = np.int64(_my_number()) * 2 * h
    sums = _floats(s[16], 2 * h * np.int64(_how_many()))[mine : mine + 2 * h]
    if s[0]:
        x, r, g, o, d = (
            _halves(s[1], n),
            _halves(s[2], n),
            _halves(s[14], n),
            _halves(s[3], n),
            _halves(s[15], n),
        )
        _add_norm_back(x, r, g, o, d, h, weight, stats, sums, low, high, dropped, scale, first, last)
    else:
        x_, r_, g_ = _floats(s[1], n), _floats(s[2], n), _floats(s[14], n)
        o_, d_ = _floats(s[3], n), _floats(s[15], n)
        _add_norm_back(x_, r_, g_, o_, d_, h, weight, stats, sums, low, high, dropped, scale, first, last)


# Softmax of scores, then dropout. Slots: 0 whether bf16, 1 scores, 2 weights, 3 weights after dropout, 4 rows,
# 5 columns, 6 bias or 0, 7 rows of a sequence, 8 elements of the bias from one sequence to the next, 9 from one
# row to the next, 10 and 11 seed, 12 of 65,536 dropped, 13 scale. On the way back 1 is the slope of 3, which
# becomes that of the scores.


@njit(**_LOOPS)
def _weights(
    scores,
    weights,
    after,
    columns,
    bias,
    a_sequence,
    by_sequence,
    by_row,
    low,
    high,
    dropped,
    scale,
    first,
    last,
):
    filled, lanes = np.empty(columns, np.float32), np.empty(_LANES, np.float32)
    for row in range(first, last):
        begin = row * columns
        ss, ws, ds = (
            scores[begin : begin + columns],
            weights[begin : begin + columns],
            after[begin : begin + columns],
        )
        if len(bias):
            at = row // a_sequence * by_sequence + row % columns * by_row
            bs = bias[at : at + columns]
            for j in range(columns):
                filled[j] = _get(ss, j) + bs[j]
        else:
            for j in range(columns):
                filled[j] = _get(ss, j)
        top = _top(filled, lanes)
        total = _F(0)
        for j in range(columns):
            value = _exp(filled[j] - top)
            filled[j] = value
            total += value
        share = _F(1) / total
        if dropped:
            for j in range(columns):
                _put(ws, j, filled[j] * share)
                _put(ds, j, _get(ws, j) * _kept(begin + j, low, high, dropped, scale))
        else:
            for j in range(columns):
                _put(ws, j, filled[j] * share)


@njit(**_LOOPS)
def _weights_back(slopes, weights, after, columns, low, high, dropped, scale, first, last):
    through = np.empty(columns, np.float32)
    for row in range(first, last):
        begin = row * columns
        gs, ws, ds = (
            slopes[begin : begin + columns],
            weights[begin : begin + columns],
            after[begin : begin + columns],
        )
        total = _F(0)
        if dropped:
            for j in range(columns):
                kept = _kept(begin + j, low, high, dropped, scale)
                weight, value = _get(ws, j), _get(gs, j) * kept
                _put(ds, j, weight * kept)
                through[j] = value
                total += weight * value
        else:
            for j in range(columns):
                value = _get(gs, j)
                through[j] = value
                total += _get(ws, j) * value
        for j in range(columns):
            _put(gs, j, _get(ws, j) * (through[j] - total))


@cfunc("void(voidptr)", **_BODY)
def weights(given):
    s = _slots(given)
    n = s[4] * s[5]
    first, last = _my_rows(s[4])
    bias = _floats(s[6], s[4] // s[7] * s[8] + s[5] * s[9] + s[5] if s[6] else 0)
    low, high, dropped, scale = _U(s[10]), _U(s[11]), _U(s[12]), _float(s[13])
    if s[0]:
        a, b, c = _halves(s[1], n), _halves(s[2], n), _halves(s[3], n)
        _weights(a, b, c, s[5], bias, s[7], s[8], s[9], low, high, dropped, scale, first, last)
    else:
        x, y, z = _floats(s[1], n), _floats(s[2], n), _floats(s[3], n)
        _weights(x, y, z, s[5], bias, s[7], s[8], s[9], low, high, dropped, scale, first, last)


@cfunc("void(voidptr)", **_BODY)
def weights_back(given):
    s = _slots(given)
    n = s[4] * s[5]
    first, last = _my_rows(s[4])
    low, high, dropped, scale = _U(s[10]), _U(s[11]), _U(s[12]), _float(s[13])
    if s[0]:
        a, b, c = _halves(s[1], n), _halves(s[2], n), _halves(s[3], n)
        _weights_back(a, b, c, s[5], low, high, dropped, scale, first, last)
    else:
        x, y, z = _floats(s[1], n), _floats(s[2], n), _floats(s[3], n)
        _weights_back(x, y, z, s[5], low, high, dropped, scale, first, last)


# Cross-entropy over the vocabulary. Slots: 0 whether bf16, 1 logits, which become their slopes, 2 rows, 3 columns,
# 4 bias, 5 the label of each row, 6 each row's loss, 7 whether its label is at the top, 8 each thread's sums of
# the slopes.


@njit(**_LOOPS)
def _table(logits, columns, bias, labels, losses, right, sums, first, last):
    filled, lanes = np.empty(columns, np.float32), np.empty(_LANES, np.float32)
    for row in range(first, last):
        ls, label = logits[row * columns : row * columns + columns], labels[row]
        for j in range(columns):
            filled[j] = _get(ls, j) + bias[j]
        top, gold = _top(filled, lanes), filled[label]
        total = _F(0)
        for j in range(columns):
            value = _exp(filled[j] - top)
            filled[j] = value
            total += value
        losses[row] = np.log(total) + (top - gold)
        right[row] = gold == top
        share = _F(1) / total
        filled[label] -= total
        for j in range(columns):
            value = filled[j] * share
            sums[j] += value
            _put(ls, j, value)


@cfunc("void(voidptr)", **_BODY)
def table(given):
    s = _slots(given)
    n, v = s[2], s[3]
    first, last = _my_rows(n)
    bias, labels, losses, right = _floats(s[4], v), _integers(s[5], n), _floats(s[6], n), _integers(s[7], n)
    mine = np.int64(_my_number()) * v
    sums = _floats(s[8], v * np.int64(_how_many()))[mine : mine + v]
    if s[0]:
        _table(_halves(s[1], n * v), v, bias, labels, losses, right, sums, first, last)
    else:
        _table(_floats(s[1], n * v), v, bias, labels, losses, right, sums, first, last)


# AdamW of a table of which few rows have a gradient. Slots: 0 the table, 1 and 2 the means of its gradients and of
# their squares, 3 which gradient is each row's, see `Kernels.move_rows`, 4 the gradients, 5 rows, 6 columns, 7 how
# many gradients, 8 and 9 the betas, 10 to 13 what else is in `Step`.


@njit(**_LOOPS)
def _row_moved(row, mean, square, beta1, beta2, keep, stride, root, epsilon, gradient):
    for j in range(len(row)):
        m = beta1 * mean[j] + (_F(1) - beta1) * gradient[j]
        v = beta2 * square[j] + (_F(1) - beta2) * gradient[j] * gradient[j]
        mean[j], square[j] = m, v
        row[j] = row[j] * keep - stride * m / (np.sqrt(v) / root + epsilon)


@cfunc("void(voidptr)", **_BODY)
def move_rows(given):
    s = _slots(given)
    h, n = s[6], s[5] * s[6]
    table, means, squares = _floats(s[0], n), _floats(s[1], n), _floats(s[2], n)
    where, gradients = _integers(s[3], s[5]), _floats(s[4], s[7] * h)
    beta1, beta2, keep, stride = _float(s[8]), _float(s[9]), _float(s[10]), _float(s[11])
    root, epsilon = _float(s[12]), _float(s[13])
    none = np.zeros(h, np.float32)
    for number in range(np.int64(_my_number()), s[5], np.int64(_how_many())):
        row, at = table[number * h : number * h + h], where[number]
        if at == NEVER_ONE:
            if keep != _F(1):
                for j in range(h):
                    row[j] *= keep
            continue
        mean, square = means[number * h : number * h + h], squares[number * h : number * h + h]
        gradient = none if at == NO_GRADIENT else gradients[at * h : at * h + h]
        _row_moved(row, mean, square, beta1, beta2, keep, stride, root, epsilon, gradient)


_gomp: Any = ctypes.CDLL(str(LIBRARY)).GOMP_parallel
_gomp.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
_gomp.restype = None
_Slots = ctypes.c_int64 * SLOTS


def launch(body: Any, *slots: int) -> None:
    """Run a body on as many threads as torch computes on."""
    _gomp(body.address, ctypes.byref(_Slots(*slots)), torch.get_num_threads(), 0)


def bits(value: float) -> int:
    """Of a float in fp32."""
    return int(np.float32(value).view(np.uint32))
