"""Six rows and 16 columns of a product in fp32, whose sums stay in as many registers as AVX2 has.

Terms are added up one after the other, the same for every element.
"""

from __future__ import annotations

from numba import njit

from bertsmith.kernels.cpu.compilation import LOOPS, F
from bertsmith.kernels.cpu.simd import every, every_at, load, store

ROWS = 6
FROM_0, FROM_BIAS, FROM_SUMS = 0, 1, 2


@njit(**LOOPS)
def six_rows(begins, bias, a, a_row, a_term, b, b_term, out, width, terms):
    """What begins there, and a·b. What lies between two rows, or two terms, is in bytes; width: between rows of
    out."""
    one, two = out + width, out + 2 * width
    three, four, five = out + 3 * width, out + 4 * width, out + 5 * width
    if begins == FROM_SUMS:
        s, t, u, v, w, x = load(out), load(one), load(two), load(three), load(four), load(five)
    elif begins == FROM_BIAS:
        s = t = u = v = w = x = load(bias)
    else:
        s = t = u = v = w = x = every(F(0))
    below = a + 3 * a_row
    for _ in range(terms):
        own = load(b)
        s = s + every_at(a) * own
        t = t + every_at(a + a_row) * own
        u = u + every_at(a + 2 * a_row) * own
        v = v + every_at(below) * own
        w = w + every_at(below + a_row) * own
        x = x + every_at(below + 2 * a_row) * own
        a += a_term
        below += a_term
        b += b_term
    store(out, s)
    store(one, t)
    store(two, u)
    store(three, v)
    store(four, w)
    store(five, x)
