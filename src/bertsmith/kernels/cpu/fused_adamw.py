"""The bodies of what an update does to parameters: AdamW, and the norm of all gradients."""

from __future__ import annotations

import numpy as np
from numba import cfunc, njit

from bertsmith.kernels.cpu.compilation import (
    BODY,
    LOOPS,
    F,
    as_float,
    floats,
    how_many,
    integers,
    my_number,
    slots,
)

WRITTEN_WITH = "90ffe8208f2ee114"  # compilation.py, see there
_TOGETHER = 32  # rows of a table that one thread moves: memory is read ahead
NO_GRADIENT, NEVER_ONE = -1, -2  # as plain.py has them, whose changes Numba does not see


# AdamW of a table of which few rows have a gradient. Slots: 0 the table, 1 and 2 the means of its gradients and of
# their squares, 3 which gradient is each row's, see `Kernels.move_rows`, 4 the gradients, 5 rows, 6 columns, 7 how
# many gradients, 8 to 15 see `_row_moved`.


@njit(**LOOPS)
def _row_moved(row, mean, square, s, first, gradient, factor):
    """By the numbers that the slots hold from the first on: the betas, what each leaves of 1, which in fp32 is not
    their difference from it, and what else is in `AdamWStep`."""
    beta1, beta2, rest1, rest2 = (
        as_float(s[first]),
        as_float(s[first + 1]),
        as_float(s[first + 2]),
        as_float(s[first + 3]),
    )
    keep, stride = as_float(s[first + 4]), as_float(s[first + 5])
    root, epsilon = as_float(s[first + 6]), as_float(s[first + 7])
    for j in range(len(row)):
        g = gradient[j] * factor
        m = beta1 * mean[j] + rest1 * g
        v = beta2 * square[j] + rest2 * g * g
        mean[j], square[j] = m, v
        row[j] = row[j] * keep - stride * m / (np.sqrt(v) / root + epsilon)


@cfunc("void(voidptr)", **BODY)
def move_rows(given):
    s = slots(given)
    h, n = s[6], s[5] * s[6]
    table, means, squares = floats(s[0], n), floats(s[1], n), floats(s[2], n)
    where, gradients = integers(s[3], s[5]), floats(s[4], s[7] * h)
    keep = as_float(s[12])
    none = np.zeros(h, np.float32)
    for begin in range(_TOGETHER * np.int64(my_number()), s[5], _TOGETHER * np.int64(how_many())):
        for number in range(begin, min(begin + _TOGETHER, s[5])):
            row, at = table[number * h : number * h + h], where[number]
            if at == NEVER_ONE:
                if keep != F(1):
                    for j in range(h):
                        row[j] *= keep
                continue
            mean, square = means[number * h : number * h + h], squares[number * h : number * h + h]
            gradient = none if at == NO_GRADIENT else gradients[at * h : at * h + h]
            _row_moved(row, mean, square, s, 8, gradient, F(1))


# Many tensors in one launch, some thousand numbers of one at a time, shared out by their place among all. Slots: 0
# a row for each tensor, see the constants, 1 how many tensors; 2 the sums of squares of each of these parts; or 2
# to 9 see `_row_moved`, 10 what gradients are multiplied by.

PART, ROW = 2**14, 6
_FIRST, _SIZE, _GRADIENT, _PARAMETER, _MEAN, _SQUARE = range(ROW)


@njit(inline="always", **LOOPS)
def _parts(size):
    return (size + PART - 1) // PART


@cfunc("void(voidptr)", **BODY)
def squares(given):
    s = slots(given)
    mine, of = np.int64(my_number()), np.int64(how_many())
    for number in range(s[1]):
        tensor = integers(s[0] + 8 * ROW * number, ROW)
        for part in range(_parts(tensor[_SIZE])):
            place = tensor[_FIRST] + part
            if place % of != mine:
                continue
            begin = part * PART
            some, total = floats(tensor[_GRADIENT] + 4 * begin, min(PART, tensor[_SIZE] - begin)), F(0)
            for j in range(len(some)):
                total += some[j] * some[j]
            floats(s[2] + 4 * place, 1)[0] = total


@cfunc("void(voidptr)", **BODY)
def move_all(given):
    s = slots(given)
    mine, of = np.int64(my_number()), np.int64(how_many())
    factor = as_float(s[10])
    for number in range(s[1]):
        tensor = integers(s[0] + 8 * ROW * number, ROW)
        for part in range(_parts(tensor[_SIZE])):
            if (tensor[_FIRST] + part) % of != mine:
                continue
            begin = 4 * part * PART
            size = min(PART, tensor[_SIZE] - part * PART)
            row, gradient = floats(tensor[_PARAMETER] + begin, size), floats(tensor[_GRADIENT] + begin, size)
            mean, square = floats(tensor[_MEAN] + begin, size), floats(tensor[_SQUARE] + begin, size)
            _row_moved(row, mean, square, s, 2, gradient, factor)
