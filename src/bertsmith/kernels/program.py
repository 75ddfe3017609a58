"""Bodies made ready one after the other and then run as one.

No thread sleeps between two of them, and what Python does for all of them it does while it is in the caches of the
processor: between two products of some megabytes that takes half a dozen times as long.
"""

from __future__ import annotations

import ctypes
from typing import Any

from llvmlite import ir
from numba import cfunc, types
from numba.extending import intrinsic
from torch import Tensor

from bertsmith.kernels.loops import BODY, integers, launch, slots, slots_of, wait_for_all

WRITTEN_WITH = "82d2e42b9186b3e5"  # loops.py, see there


@intrinsic
def _call(typing: Any, body: Any, given: Any) -> Any:
    """Call the body at an address with the slots at another."""

    def made(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        pointer = ir.IntType(8).as_pointer()
        kind = ir.FunctionType(ir.VoidType(), [pointer])
        function, argument = values
        builder.call(builder.inttoptr(function, kind.as_pointer()), [builder.inttoptr(argument, pointer)])
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), made


# Slots: 0 how many bodies, 1 of each where it lies and where its slots lie.
@cfunc("void(voidptr)", **BODY)
def in_turn(given):
    s = slots(given)
    both = integers(s[1], 2 * s[0])
    for number in range(s[0]):
        _call(both[2 * number], both[2 * number + 1])
        wait_for_all()


class Program:
    """Bodies that are run in turn, each when the one before has ended on all threads."""

    def __init__(self) -> None:
        self._addresses: list[int] = []
        self._kept: list[Any] = []

    def __call__(self, body: Any, *arguments: int | Tensor) -> None:
        """Add a body. Nothing that it reads or writes is given back before the program is."""
        own = slots_of(arguments)
        self._addresses += body.address, ctypes.addressof(own)
        self._kept += own, arguments

    def end(self) -> None:
        """Run them all, once: bodies count in what they are given."""
        addresses = (ctypes.c_int64 * len(self._addresses))(*self._addresses)
        launch(in_turn, len(self._addresses) // 2, ctypes.addressof(addresses))
