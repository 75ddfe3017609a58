"""Eight rows and 32 columns of a product of bf16, whose sums stay in half of the registers of AVX-512.

One of its instructions adds up the products of a pair of terms, for 16 columns at a time. Pairs are added up
one after the other, the same for every element.
"""

from __future__ import annotations

from numba import njit

from bertsmith.kernels.cpu.compilation import JIT_OPTIONS, float32
from bertsmith.kernels.cpu.microkernel_fp32 import INIT_ACCUMULATE, INIT_BIAS, INIT_ZERO
from bertsmith.kernels.cpu.simd import (
    VECTOR_WIDTH,
    broadcast_scalar,
    load,
    store_as_dtype,
    store_non_temporal,
)
from bertsmith.kernels.cpu.simd_pairs import broadcast_int, dot_bf16, load_ints

ROWS = 8
COLUMNS = 2 * VECTOR_WIDTH
RIGHT = 4 * VECTOR_WIDTH  # bytes of the pairs that a register holds
NON_TEMPORAL = 2  # what is made, in fp32, is put past the caches: see `store_past`


@njit(inline="always", **JIT_OPTIONS)
def _put(kind, address, x):
    if kind == NON_TEMPORAL:
        store_non_temporal(address, x)
    else:
        store_as_dtype(kind, address, x)


@njit(**JIT_OPTIONS)
def microkernel_8x32(begins, bias, a, a_row, a_pair, b, b_pair, kind, out, width, pairs):
    """What begins there (microkernel_fp32.py), and a·b. What lies between two rows, or two pairs of terms, is in
    bytes; width: between rows of out. kind: whether that is bf16, or PAST."""
    below, under, apart = a + 4 * a_row, out + 4 * width, 2 * VECTOR_WIDTH if kind == 1 else 4 * VECTOR_WIDTH
    one, two, three = out + width, out + 2 * width, out + 3 * width
    five, six, seven = under + width, under + 2 * width, under + 3 * width
    if begins == INIT_ACCUMULATE:  # in fp32
        c, d, e, f = load(out), load(one), load(two), load(three)
        g, h, i, j = load(out + apart), load(one + apart), load(two + apart), load(three + apart)
        k, m, n, o = load(under), load(five), load(six), load(seven)
        p, q, r, s = load(under + apart), load(five + apart), load(six + apart), load(seven + apart)
    elif begins == INIT_BIAS:
        c = d = e = f = k = m = n = o = load(bias)
        g = h = i = j = p = q = r = s = load(bias + 4 * VECTOR_WIDTH)
    else:
        c = d = e = f = g = h = i = j = k = m = n = o = p = q = r = s = broadcast_scalar(float32(0))
    for _ in range(pairs):
        x, y, z = load_ints(b), load_ints(b + RIGHT), broadcast_int(a)
        c, g = dot_bf16(c, z, x), dot_bf16(g, z, y)
        z = broadcast_int(a + a_row)
        d, h = dot_bf16(d, z, x), dot_bf16(h, z, y)
        z = broadcast_int(a + 2 * a_row)
        e, i = dot_bf16(e, z, x), dot_bf16(i, z, y)
        z = broadcast_int(a + 3 * a_row)
        f, j = dot_bf16(f, z, x), dot_bf16(j, z, y)
        z = broadcast_int(below)
        k, p = dot_bf16(k, z, x), dot_bf16(p, z, y)
        z = broadcast_int(below + a_row)
        m, q = dot_bf16(m, z, x), dot_bf16(q, z, y)
        z = broadcast_int(below + 2 * a_row)
        n, r = dot_bf16(n, z, x), dot_bf16(r, z, y)
        z = broadcast_int(below + 3 * a_row)
        o, s = dot_bf16(o, z, x), dot_bf16(s, z, y)
        a += a_pair
        below += a_pair
        b += b_pair
    _put(kind, out, c)
    _put(kind, one, d)
    _put(kind, two, e)
    _put(kind, three, f)
    _put(kind, out + apart, g)
    _put(kind, one + apart, h)
    _put(kind, two + apart, i)
    _put(kind, three + apart, j)
    _put(kind, under, k)
    _put(kind, five, m)
    _put(kind, six, n)
    _put(kind, seven, o)
    _put(kind, under + apart, p)
    _put(kind, five + apart, q)
    _put(kind, six + apart, r)
    _put(kind, seven + apart, s)


@njit(**JIT_OPTIONS)
def multiply_block(adds, a, a_row, b, out, columns, terms, rows):
    """out [32, columns] in fp32 = a [32, terms] · b [terms, columns], both bf16, b's rows in pairs; or that is
    added to it. Columns are a multiple of 32. a_row: bytes from one row of a to the next. rows: of these at least
    are wanted."""
    width = 4 * columns
    for row in range(0, rows, ROWS):
        for column in range(0, width, 4 * COLUMNS):
            to = out + row * width + column
            own, begins = a + row * a_row, INIT_ACCUMULATE if adds else INIT_ZERO
            microkernel_8x32(begins, 0, own, a_row, 4, b + column, width, 0, to, width, terms // 2)


@njit(inline="always", **JIT_OPTIONS)
def configure(address):
    """Nothing has to be made ready."""


@njit(inline="always", **JIT_OPTIONS)
def release():
    """Nothing is left behind."""
