"""Six rows and 16 columns of a product in fp32, whose sums stay in as many registers as AVX2 has.

Terms are added up one after the other, the same for every element.
"""

from __future__ import annotations

from numba import njit

from bertsmith.kernels.cpu.compilation import JIT_OPTIONS, float32
from bertsmith.kernels.cpu.simd import broadcast_load, broadcast_scalar, load, store

ROWS = 6
INIT_ZERO, INIT_BIAS, INIT_ACCUMULATE = 0, 1, 2


@njit(**JIT_OPTIONS)
def microkernel_6x16(begins, bias, a, a_row, a_term, b, b_term, out, width, terms):
    """What begins there, and a·b. What lies between two rows, or two terms, is in bytes; width: between rows of
    out."""
    one, two = out + width, out + 2 * width
    three, four, five = out + 3 * width, out + 4 * width, out + 5 * width
    if begins == INIT_ACCUMULATE:
        s, t, u, v, w, x = load(out), load(one), load(two), load(three), load(four), load(five)
    elif begins == INIT_BIAS:
        s = t = u = v = w = x = load(bias)
    else:
        s = t = u = v = w = x = broadcast_scalar(float32(0))
    below = a + 3 * a_row
    for _ in range(terms):
        own = load(b)
        s = s + broadcast_load(a) * own
        t = t + broadcast_load(a + a_row) * own
        u = u + broadcast_load(a + 2 * a_row) * own
        v = v + broadcast_load(below) * own
        w = w + broadcast_load(below + a_row) * own
        x = x + broadcast_load(below + 2 * a_row) * own
        a += a_term
        below += a_term
        b += b_term
    store(out, s)
    store(one, t)
    store(two, u)
    store(three, v)
    store(four, w)
    store(five, x)
