"""The bodies of what an update does to parameters: AdamW, and the norm of all gradients."""

from __future__ import annotations

import numpy as np
from numba import cfunc, njit

from bertsmith.kernels.cpu.compilation import (
    JIT_OPTIONS,
    KERNEL_OPTIONS,
    float32,
    float_array,
    float_from_bits,
    int64_array,
    load_slots,
    num_threads,
    thread_index,
)

WRITTEN_WITH = "90ffe8208f2ee114"  # compilation.py, see there
_TOGETHER = 32  # rows of a table that one thread moves: memory is read ahead
NO_GRADIENT, NEVER_ONE = -1, -2  # as plain.py has them, whose changes Numba does not see


# AdamW of a table of which few rows have a gradient. Slots: 0 the table, 1 and 2 the means of its gradients and of
# their squares, 3 which gradient is each row's, see `Kernels.move_rows`, 4 the gradients, 5 rows, 6 columns, 7 how
# many gradients, 8 to 15 see `_row_moved`.


@njit(**JIT_OPTIONS)
def _row_moved(row, mean, square, s, first, gradient, factor):
    """By the numbers that the slots hold from the first on: the betas, what each leaves of 1, which in fp32 is not
    their difference from it, and what else is in `AdamWStep`."""
    beta1, beta2, rest1, rest2 = (
        float_from_bits(s[first]),
        float_from_bits(s[first + 1]),
        float_from_bits(s[first + 2]),
        float_from_bits(s[first + 3]),
    )
    keep, stride = float_from_bits(s[first + 4]), float_from_bits(s[first + 5])
    root, epsilon = float_from_bits(s[first + 6]), float_from_bits(s[first + 7])
    for j in range(len(row)):
        g = gradient[j] * factor
        m = beta1 * mean[j] + rest1 * g
        v = beta2 * square[j] + rest2 * g * g
        mean[j], square[j] = m, v
        row[j] = row[j] * keep - stride * m / (np.sqrt(v) / root + epsilon)


@cfunc("void(voidptr)", **KERNEL_OPTIONS)
def sparse_adamw_kernel(given):
    s = load_slots(given)
    h, n = s[6], s[5] * s[6]
    table, means, squares = float_array(s[0], n), float_array(s[1], n), float_array(s[2], n)
    where, gradients = int64_array(s[3], s[5]), float_array(s[4], s[7] * h)
    keep = float_from_bits(s[12])
    none = np.zeros(h, np.float32)
    for begin in range(_TOGETHER * np.int64(thread_index()), s[5], _TOGETHER * np.int64(num_threads())):
        for number in range(begin, min(begin + _TOGETHER, s[5])):
            row, at = table[number * h : number * h + h], where[number]
            if at == NEVER_ONE:
                if keep != float32(1):
                    for j in range(h):
                        row[j] *= keep
                continue
            mean, square = means[number * h : number * h + h], squares[number * h : number * h + h]
            gradient = none if at == NO_GRADIENT else gradients[at * h : at * h + h]
            _row_moved(row, mean, square, s, 8, gradient, float32(1))


# Many tensors in one launch, some thousand numbers of one at a time, shared out by their place among all. Slots: 0
# a row for each tensor, see the constants, 1 how many tensors; 2 the sums of squares of each of these parts; or 2
# to 9 see `_row_moved`, 10 what gradients are multiplied by.

CHUNK_SIZE, TABLE_FIELDS = 2**14, 6
_FIRST, _SIZE, _GRADIENT, _PARAMETER, _MEAN, _SQUARE = range(TABLE_FIELDS)


@njit(inline="always", **JIT_OPTIONS)
def _parts(size):
    return (size + CHUNK_SIZE - 1) // CHUNK_SIZE


@cfunc("void(voidptr)", **KERNEL_OPTIONS)
def squared_norms(given):
    s = load_slots(given)
    mine, of = np.int64(thread_index()), np.int64(num_threads())
    for number in range(s[1]):
        tensor = int64_array(s[0] + 8 * TABLE_FIELDS * number, TABLE_FIELDS)
        for part in range(_parts(tensor[_SIZE])):
            place = tensor[_FIRST] + part
            if place % of != mine:
                continue
            begin = part * CHUNK_SIZE
            some, total = (
                float_array(tensor[_GRADIENT] + 4 * begin, min(CHUNK_SIZE, tensor[_SIZE] - begin)),
                float32(0),
            )
            for j in range(len(some)):
                total += some[j] * some[j]
            float_array(s[2] + 4 * place, 1)[0] = total


@cfunc("void(voidptr)", **KERNEL_OPTIONS)
def adamw_kernel(given):
    s = load_slots(given)
    mine, of = np.int64(thread_index()), np.int64(num_threads())
    factor = float_from_bits(s[10])
    for number in range(s[1]):
        tensor = int64_array(s[0] + 8 * TABLE_FIELDS * number, TABLE_FIELDS)
        for part in range(_parts(tensor[_SIZE])):
            if (tensor[_FIRST] + part) % of != mine:
                continue
            begin = 4 * part * CHUNK_SIZE
            size = min(CHUNK_SIZE, tensor[_SIZE] - part * CHUNK_SIZE)
            row, gradient = (
                float_array(tensor[_PARAMETER] + begin, size),
                float_array(tensor[_GRADIENT] + begin, size),
            )
            mean, square = (
                float_array(tensor[_MEAN] + begin, size),
                float_array(tensor[_SQUARE] + begin, size),
            )
            _row_moved(row, mean, square, s, 2, gradient, factor)
