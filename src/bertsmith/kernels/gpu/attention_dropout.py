"""Dropout of attention weights, decided by hashes of rows and columns, as Triton functions.

A weight's 32 dropout bits are a + b * column hash, where a and b are hashes of its row (Dietzfelbinger 1996).
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _lowbias32(x):
    """Hash uint32 (Wellons 2018)."""
    x = (x ^ (x >> 16)) * 0x7FEB352D
    x = (x ^ (x >> 15)) * 0x846CA68B
    return x ^ (x >> 16)


@triton.jit
def hash_rows(rows, head, seeds, NUM_HEADS: tl.constexpr):
    """Compute a and b of each row."""
    a = _lowbias32((rows * NUM_HEADS + head).to(tl.uint32) ^ tl.load(seeds).to(tl.uint32))
    return a, _lowbias32(a ^ 0x5BD1E995) | 1


@triton.jit
def store_row_hashes(row_hashes, a, b, rows, length, num_tokens, NUM_HEADS: tl.constexpr):
    """Store what `hash_rows` returned, for the backward pass."""
    tl.store(row_hashes + rows, a.to(tl.int32, bitcast=True), mask=rows < length)
    tl.store(row_hashes + NUM_HEADS * num_tokens + rows, b.to(tl.int32, bitcast=True), mask=rows < length)


@triton.jit
def load_row_hashes(row_hashes, rows, length, num_tokens, NUM_HEADS: tl.constexpr):
    """Load what `hash_rows` returned in the forward pass."""
    a = tl.load(row_hashes + rows, mask=rows < length, other=0)
    b = tl.load(row_hashes + NUM_HEADS * num_tokens + rows, mask=rows < length, other=0)
    return a.to(tl.uint32, bitcast=True), b.to(tl.uint32, bitcast=True)


@triton.jit
def hash_columns(columns, seeds):
    """Hash columns in one round only, since it is repeated for each block of rows."""
    x = (columns.to(tl.uint32) ^ tl.load(seeds + 1).to(tl.uint32)) * 0x7FEB352D
    return x ^ (x >> 15)


@triton.jit
def delayed_keep_mask(a, b, columns, seeds, weights, THRESHOLD: tl.constexpr):
    """Return which weights dropout keeps.

    Adding the sign of the weights, which is 0, makes the compiler compute the bits after the weights: bits
    computed earlier would occupy as many registers as the weights.
    """
    column_hash = hash_columns(columns, seeds)[None, :]
    bits = (a[:, None] + (weights.to(tl.uint32, bitcast=True) >> 31)) + b[:, None] * column_hash
    return bits >= THRESHOLD
