"""Kernels of an optimizer step: AdamW (Loshchilov and Hutter 2019), and the norm of all gradients."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numba import njit
from torch import Tensor

from bertsmith.kernels.cpu.arrays import float_from_bits, floats, int64s
from bertsmith.kernels.cpu.compilation import JIT_OPTIONS, float32, kernel
from bertsmith.kernels.cpu.launcher import float_bits, num_threads, thread_index
from bertsmith.kernels.reference import AdamWStep

_BLOCK_ROWS = 32  # Consecutive rows go to the same thread, since the processor prefetches memory.
# The same as in reference.py. They are not imported: Numba would not notice that they changed there.
NO_GRAD, NEVER_UPDATED = -1, -2


@njit(**JIT_OPTIONS)
def _adamw_update(param, exp_avg, exp_avg_sq, s, first, grad, factor):
    """Update arrays in place by AdamW; gradients are multiplied by `factor`.

    Slots from `first` on: beta1, beta2, 1 - beta1, 1 - beta2 (computed in double precision), and the other values
    of `AdamWStep`.
    """
    beta1, beta2 = float_from_bits(s[first]), float_from_bits(s[first + 1])
    one_minus_beta1, one_minus_beta2 = float_from_bits(s[first + 2]), float_from_bits(s[first + 3])
    decay_factor, step_size = float_from_bits(s[first + 4]), float_from_bits(s[first + 5])
    sqrt_bias_correction2, epsilon = float_from_bits(s[first + 6]), float_from_bits(s[first + 7])
    for j in range(len(param)):
        g = grad[j] * factor
        m = beta1 * exp_avg[j] + one_minus_beta1 * g
        v = beta2 * exp_avg_sq[j] + one_minus_beta2 * g * g
        exp_avg[j], exp_avg_sq[j] = m, v
        param[j] = param[j] * decay_factor - step_size * m / (np.sqrt(v) / sqrt_bias_correction2 + epsilon)


# AdamW of an embedding of which few rows have a gradient. Slots: 0 weights, 1 exp_avg, 2 exp_avg_sq, all [rows,
# columns], 3 the index of each row's gradient, or NO_GRAD or NEVER_UPDATED, 4 gradients [their count, columns], 5
# rows, 6 columns, 7 number of gradients, 8 to 15 see `_adamw_update`.


@kernel
def sparse_adamw_kernel(s):
    rows, columns, size = s[5], s[6], s[5] * s[6]
    weights, exp_avgs, exp_avg_sqs = floats(s[0], size), floats(s[1], size), floats(s[2], size)
    grad_indices, grads = int64s(s[3], rows), floats(s[4], s[7] * columns)
    decay_factor = float_from_bits(s[12])
    zeros = np.zeros(columns, np.float32)
    for block in range(_BLOCK_ROWS * thread_index(), rows, _BLOCK_ROWS * num_threads()):
        for row in range(block, min(block + _BLOCK_ROWS, rows)):
            start, end, index = row * columns, row * columns + columns, grad_indices[row]
            param = weights[start:end]
            if index == NEVER_UPDATED:
                if decay_factor != float32(1):
                    for j in range(columns):
                        param[j] *= decay_factor
                continue
            grad = zeros if index == NO_GRAD else grads[index * columns : index * columns + columns]
            _adamw_update(param, exp_avgs[start:end], exp_avg_sqs[start:end], s, 8, grad, float32(1))


# Many tensors in one launch. Threads take turns at chunks of CHUNK_SIZE elements, numbered over all tensors.
# Slots: 0 int64 [tensors, TABLE_FIELDS], see the constants below, 1 number of tensors. For the norm 2 the sum of
# squares of each chunk; for AdamW 2 to 9 see `_adamw_update`, 10 the factor of gradients.

CHUNK_SIZE, TABLE_FIELDS = 2**14, 6
_FIRST_CHUNK, _SIZE, _GRAD, _PARAM, _EXP_AVG, _EXP_AVG_SQ = range(TABLE_FIELDS)


@njit(inline="always", **JIT_OPTIONS)
def _num_chunks(size):
    return (size + CHUNK_SIZE - 1) // CHUNK_SIZE


@kernel
def squared_norms(s):
    thread, threads = thread_index(), num_threads()
    for i in range(s[1]):
        tensor = int64s(s[0] + 8 * TABLE_FIELDS * i, TABLE_FIELDS)
        for chunk in range(_num_chunks(tensor[_SIZE])):
            index = tensor[_FIRST_CHUNK] + chunk
            if index % threads != thread:
                continue
            start = chunk * CHUNK_SIZE
            grad = floats(tensor[_GRAD] + 4 * start, min(CHUNK_SIZE, tensor[_SIZE] - start))
            total = float32(0)
            for j in range(len(grad)):
                total += grad[j] * grad[j]
            floats(s[2] + 4 * index, 1)[0] = total


@kernel
def adamw_kernel(s):
    thread, threads = thread_index(), num_threads()
    factor = float_from_bits(s[10])
    for i in range(s[1]):
        tensor = int64s(s[0] + 8 * TABLE_FIELDS * i, TABLE_FIELDS)
        for chunk in range(_num_chunks(tensor[_SIZE])):
            if (tensor[_FIRST_CHUNK] + chunk) % threads != thread:
                continue
            start, size = 4 * chunk * CHUNK_SIZE, min(CHUNK_SIZE, tensor[_SIZE] - chunk * CHUNK_SIZE)
            param, grad = floats(tensor[_PARAM] + start, size), floats(tensor[_GRAD] + start, size)
            exp_avg = floats(tensor[_EXP_AVG] + start, size)
            exp_avg_sq = floats(tensor[_EXP_AVG_SQ] + start, size)
            _adamw_update(param, exp_avg, exp_avg_sq, s, 2, grad, factor)


def tensor_fields(groups: Sequence[Sequence[Tensor]]) -> tuple[Tensor, int]:
    """Return the table of tensors that the kernels over many tensors read, and the number of chunks of all.

    Args:
        groups: Tensors of equal size per group.

    Returns:
        For each group the index of its first chunk, its size, and its addresses, int64 [n, TABLE_FIELDS].
    """
    fields, first_chunk = [], 0
    for group in groups:
        size = group[0].numel()
        row = [first_chunk, size, *(tensor.data_ptr() for tensor in group)]
        fields.append(row + [0] * (TABLE_FIELDS - len(row)))
        first_chunk += -(-size // CHUNK_SIZE)
    return torch.from_numpy(np.array(fields, np.int64)), first_chunk


def step_args(step: AdamWStep) -> list[int]:
    """Return the slots of `_adamw_update`."""
    complements = (1 - beta for beta in step.betas)
    return [float_bits(value) for value in (*step.betas, *complements, *step[1:])]
