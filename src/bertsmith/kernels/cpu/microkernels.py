"""Microkernels of matrix products.

In fp32 they compute 6 rows and 16 columns, whose sums fit the registers of AVX2; in bf16 8 rows and 32 columns,
whose sums fill half of the registers of AVX-512, and one instruction multiplies pairs of k for 16 columns. Each
sum is accumulated in the order of k, the same for all elements.
"""

from __future__ import annotations

from numba import njit

from bertsmith.kernels.cpu import simd
from bertsmith.kernels.cpu.compilation import JIT_OPTIONS
from bertsmith.kernels.cpu.simd import VECTOR_WIDTH, broadcast_load, load, splat, store
from bertsmith.kernels.cpu.simd_pairs import broadcast_int, dot_bf16, load_ints

FP32_ROWS, BF16_ROWS = 6, 8
_BF16_COLUMNS = 2 * VECTOR_WIDTH
_VECTOR_BYTES = 4 * VECTOR_WIDTH
INIT_ZERO, INIT_BIAS, INIT_OUT = 0, 1, 2  # initial values of the sums: 0, the bias, or out
NON_TEMPORAL = 2  # besides 0 and 1 of is_bf16: fp32 by `store_non_temporal`


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


@njit(inline="always", **JIT_OPTIONS)
def _store_output(output, address, x):
    if output == NON_TEMPORAL:
        simd.store_non_temporal(address, x)
    else:
        simd.store_vector(output, address, x)


@njit(**JIT_OPTIONS)
def microkernel_8x32(
    init, bias, a, a_row_stride, a_pair_stride, b, b_pair_stride, output, out, out_stride, num_pairs
):
    """Compute out [8, 32] = init + a [8, k] · b [k, 32], where k = 2 * num_pairs.

    init is a constant of this file. Strides are in bytes; columns of out are contiguous, and those of b
    as pairs. output: 0 if out is fp32, 1 if it is bf16 (not with INIT_OUT), or NON_TEMPORAL.
    """
    # The left and right 16 columns of row i are summed in li and ri.
    a4, out4 = a + 4 * a_row_stride, out + 4 * out_stride
    right = 2 * VECTOR_WIDTH if output == 1 else 4 * VECTOR_WIDTH
    out1, out2, out3 = out + out_stride, out + 2 * out_stride, out + 3 * out_stride
    out5, out6, out7 = out4 + out_stride, out4 + 2 * out_stride, out4 + 3 * out_stride
    if init == INIT_OUT:
        l0, l1, l2, l3 = load(out), load(out1), load(out2), load(out3)
        r0, r1, r2, r3 = load(out + right), load(out1 + right), load(out2 + right), load(out3 + right)
        l4, l5, l6, l7 = load(out4), load(out5), load(out6), load(out7)
        r4, r5, r6, r7 = load(out4 + right), load(out5 + right), load(out6 + right), load(out7 + right)
    elif init == INIT_BIAS:
        l0 = l1 = l2 = l3 = l4 = l5 = l6 = l7 = load(bias)
        r0 = r1 = r2 = r3 = r4 = r5 = r6 = r7 = load(bias + _VECTOR_BYTES)
    else:
        l0 = l1 = l2 = l3 = l4 = l5 = l6 = l7 = splat(0.0)
        r0 = r1 = r2 = r3 = r4 = r5 = r6 = r7 = l0
    for _ in range(num_pairs):
        b_left, b_right, a_pair = load_ints(b), load_ints(b + _VECTOR_BYTES), broadcast_int(a)
        l0, r0 = dot_bf16(l0, a_pair, b_left), dot_bf16(r0, a_pair, b_right)
        a_pair = broadcast_int(a + a_row_stride)
        l1, r1 = dot_bf16(l1, a_pair, b_left), dot_bf16(r1, a_pair, b_right)
        a_pair = broadcast_int(a + 2 * a_row_stride)
        l2, r2 = dot_bf16(l2, a_pair, b_left), dot_bf16(r2, a_pair, b_right)
        a_pair = broadcast_int(a + 3 * a_row_stride)
        l3, r3 = dot_bf16(l3, a_pair, b_left), dot_bf16(r3, a_pair, b_right)
        a_pair = broadcast_int(a4)
        l4, r4 = dot_bf16(l4, a_pair, b_left), dot_bf16(r4, a_pair, b_right)
        a_pair = broadcast_int(a4 + a_row_stride)
        l5, r5 = dot_bf16(l5, a_pair, b_left), dot_bf16(r5, a_pair, b_right)
        a_pair = broadcast_int(a4 + 2 * a_row_stride)
        l6, r6 = dot_bf16(l6, a_pair, b_left), dot_bf16(r6, a_pair, b_right)
        a_pair = broadcast_int(a4 + 3 * a_row_stride)
        l7, r7 = dot_bf16(l7, a_pair, b_left), dot_bf16(r7, a_pair, b_right)
        a += a_pair_stride
        a4 += a_pair_stride
        b += b_pair_stride
    _store_output(output, out, l0)
    _store_output(output, out1, l1)
    _store_output(output, out2, l2)
    _store_output(output, out3, l3)
    _store_output(output, out + right, r0)
    _store_output(output, out1 + right, r1)
    _store_output(output, out2 + right, r2)
    _store_output(output, out3 + right, r3)
    _store_output(output, out4, l4)
    _store_output(output, out5, l5)
    _store_output(output, out6, l6)
    _store_output(output, out7, l7)
    _store_output(output, out4 + right, r4)
    _store_output(output, out5 + right, r5)
    _store_output(output, out6 + right, r6)
    _store_output(output, out7 + right, r7)


@njit(**JIT_OPTIONS)
def multiply_block(accumulate, a, a_stride, b, out, num_columns, k, num_rows):
    """Compute num_rows of out [32, num_columns] = a [32, k] · b [k, num_columns], or add the product to out.

    a and b are bf16, the rows of b interleaved in pairs; out is fp32. a_stride is in bytes. k is even, and
    num_columns is a multiple of 32; num_rows is rounded up to a multiple of 8.
    """
    stride, init = 4 * num_columns, INIT_OUT if accumulate else INIT_ZERO
    for row in range(0, num_rows, BF16_ROWS):
        for column in range(0, stride, 4 * _BF16_COLUMNS):
            tile = out + row * stride + column
            microkernel_8x32(
                init, 0, a + row * a_stride, a_stride, 4, b + column, stride, 0, tile, stride, k // 2
            )


@njit(inline="always", **JIT_OPTIONS)
def configure(address):
    """Do nothing; the counterpart of `amx.configure`."""


@njit(inline="always", **JIT_OPTIONS)
def release():
    """Do nothing; the counterpart of `amx.release`."""
