"""Eight rows and 32 columns of a product of bf16, whose sums stay in half of the registers of AVX-512.

One of its instructions adds up the products of a pair of terms, for 16 columns at a time. Pairs are added up
one after the other, the same for every element.
"""

from __future__ import annotations

from numba import njit

from bertsmith.kernels.cpu.compilation import LOOPS, F
from bertsmith.kernels.cpu.microkernel_fp32 import FROM_0, FROM_BIAS, FROM_SUMS
from bertsmith.kernels.cpu.simd import WIDTH, every, load, put, store_past
from bertsmith.kernels.cpu.simd_pairs import every_pair_at, pairs_at, with_halves

ROWS = 8
COLUMNS = 2 * WIDTH
RIGHT = 4 * WIDTH  # bytes of the pairs that a register holds
PAST = 2  # what is made, in fp32, is put past the caches: see `store_past`


@njit(inline="always", **LOOPS)
def _put(kind, address, x):
    if kind == PAST:
        store_past(address, x)
    else:
        put(kind, address, x)


@njit(**LOOPS)
def eight_rows(begins, bias, a, a_row, a_pair, b, b_pair, kind, out, width, pairs):
    """What begins there (microkernel_fp32.py), and a·b. What lies between two rows, or two pairs of terms, is in
    bytes; width: between rows of out. kind: whether that is bf16, or PAST."""
    below, under, apart = a + 4 * a_row, out + 4 * width, 2 * WIDTH if kind == 1 else 4 * WIDTH
    one, two, three = out + width, out + 2 * width, out + 3 * width
    five, six, seven = under + width, under + 2 * width, under + 3 * width
    if begins == FROM_SUMS:  # in fp32
        c, d, e, f = load(out), load(one), load(two), load(three)
        g, h, i, j = load(out + apart), load(one + apart), load(two + apart), load(three + apart)
        k, m, n, o = load(under), load(five), load(six), load(seven)
        p, q, r, s = load(under + apart), load(five + apart), load(six + apart), load(seven + apart)
    elif begins == FROM_BIAS:
        c = d = e = f = k = m = n = o = load(bias)
        g = h = i = j = p = q = r = s = load(bias + 4 * WIDTH)
    else:
        c = d = e = f = g = h = i = j = k = m = n = o = p = q = r = s = every(F(0))
    for _ in range(pairs):
        x, y, z = pairs_at(b), pairs_at(b + RIGHT), every_pair_at(a)
        c, g = with_halves(c, z, x), with_halves(g, z, y)
        z = every_pair_at(a + a_row)
        d, h = with_halves(d, z, x), with_halves(h, z, y)
        z = every_pair_at(a + 2 * a_row)
        e, i = with_halves(e, z, x), with_halves(i, z, y)
        z = every_pair_at(a + 3 * a_row)
        f, j = with_halves(f, z, x), with_halves(j, z, y)
        z = every_pair_at(below)
        k, p = with_halves(k, z, x), with_halves(p, z, y)
        z = every_pair_at(below + a_row)
        m, q = with_halves(m, z, x), with_halves(q, z, y)
        z = every_pair_at(below + 2 * a_row)
        n, r = with_halves(n, z, x), with_halves(r, z, y)
        z = every_pair_at(below + 3 * a_row)
        o, s = with_halves(o, z, x), with_halves(s, z, y)
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


@njit(**LOOPS)
def product(adds, a, a_row, b, out, columns, terms, rows):
    """out [32, columns] in fp32 = a [32, terms] · b [terms, columns], both bf16, b's rows in pairs; or that is
    added to it. Columns are a multiple of 32. a_row: bytes from one row of a to the next. rows: of these at least
    are wanted."""
    width = 4 * columns
    for row in range(0, rows, ROWS):
        for column in range(0, width, 4 * COLUMNS):
            to = out + row * width + column
            own, begins = a + row * a_row, FROM_SUMS if adds else FROM_0
            eight_rows(begins, 0, own, a_row, 4, b + column, width, 0, to, width, terms // 2)


@njit(inline="always", **LOOPS)
def configure(address):
    """Nothing has to be made ready."""


@njit(inline="always", **LOOPS)
def release():
    """Nothing is left behind."""
