"""The bodies of rows that are chosen of a matrix, and of what is added to such rows."""

from __future__ import annotations

from numba import cfunc

from bertsmith.kernels.cpu.compilation import BODY, halves, integers, my_rows, slots
from bertsmith.kernels.cpu.simd import WIDTH, get, put

WRITTEN_WITH = "693f23ba0d5061c2"  # compilation.py and simd.py, see there


# Slots: 0 whether bf16, 1 a matrix, 2 the result, 3 which rows, 4 how many, 5 columns.
@cfunc("void(voidptr)", **BODY)
def chosen(given):
    s = slots(given)
    size = s[5] * (1 if s[0] else 2)
    rows = integers(s[3], s[4])
    first, last = my_rows(s[4])
    for number in range(first, last):
        row, found = halves(s[1] + 2 * size * rows[number], size), halves(s[2] + 2 * size * number, size)
        for j in range(size):
            found[j] = row[j]


# Slots: 0 whether bf16, 1 a matrix, 2 what is added to rows of it, 3 which rows, in ascending order, 4 how many,
# 5 columns, a multiple of WIDTH. What is added to one and the same row is added up first, in fp32, in its place.


@cfunc("void(voidptr)", **BODY)
def add_to(given):
    s = slots(given)
    half = s[0] != 0
    step = (2 if half else 4) * WIDTH
    length = s[5] // WIDTH * step
    rows = integers(s[3], s[4])
    first, last = my_rows(s[4])
    for number in range(first, last):
        if number > 0 and rows[number] == rows[number - 1]:
            continue  # added by whoever has the first of them
        end = number + 1
        while end < s[4] and rows[end] == rows[number]:
            end += 1
        for place in range(0, length, step):
            own, to = s[2] + length * number + place, s[1] + length * rows[number] + place
            total = get(half, own)
            for other in range(number + 1, end):
                total = total + get(half, s[2] + length * other + place)
            put(half, own, total)  # which rounds it
            put(half, to, get(half, to) + get(half, own))
