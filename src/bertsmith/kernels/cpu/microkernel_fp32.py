"""Microkernel of fp32 matrix products: 6 rows and 16 columns, whose sums fit the registers of AVX2.

Each sum is accumulated in the order of k, the same for all elements.
"""

from __future__ import annotations

from numba import njit

from bertsmith.kernels.cpu.compilation import JIT_OPTIONS
from bertsmith.kernels.cpu.simd import broadcast_load, load, splat, store

ROWS = 6
INIT_ZERO, INIT_BIAS, INIT_OUT = 0, 1, 2  # initial values of the sums: 0, the bias, or out


@njit(**JIT_OPTIONS)
def microkernel_6x16(init, bias, a, a_row_stride, a_k_stride, b, b_k_stride, out, out_stride, k):
    """Compute out [6, 16] = init + a [6, k] · b [k, 16].

    Strides are in bytes; columns of b and out are contiguous.
    """
    out1, out2 = out + out_stride, out + 2 * out_stride
    out3, out4, out5 = out + 3 * out_stride, out + 4 * out_stride, out + 5 * out_stride
    if init == INIT_OUT:
        s0, s1, s2, s3, s4, s5 = load(out), load(out1), load(out2), load(out3), load(out4), load(out5)
    elif init == INIT_BIAS:
        s0 = s1 = s2 = s3 = s4 = s5 = load(bias)
    else:
        s0 = s1 = s2 = s3 = s4 = s5 = splat(0.0)
    a3 = a + 3 * a_row_stride
    for _ in range(k):
        b_row = load(b)
        s0 = s0 + broadcast_load(a) * b_row
        s1 = s1 + broadcast_load(a + a_row_stride) * b_row
        s2 = s2 + broadcast_load(a + 2 * a_row_stride) * b_row
        s3 = s3 + broadcast_load(a3) * b_row
        s4 = s4 + broadcast_load(a3 + a_row_stride) * b_row
        s5 = s5 + broadcast_load(a3 + 2 * a_row_stride) * b_row
        a += a_k_stride
        a3 += a_k_stride
        b += b_k_stride
    store(out, s0)
    store(out1, s1)
    store(out2, s2)
    store(out3, s3)
    store(out4, s4)
    store(out5, s5)
