"""Bodies made ready one after the other and then run as one.

No thread sleeps between two of them, and what Python does for all of them it does while it is in the caches of the
processor: between two products of some megabytes that takes half a dozen times as long.
"""

from __future__ import annotations

from array import array
from typing import Any

import torch
from llvmlite import ir
from numba import cfunc, types
from numba.extending import intrinsic
from torch import Tensor

from bertsmith.kernels.cpu.compilation import (
    KERNEL_OPTIONS,
    NUM_SLOTS,
    barrier,
    int64_array,
    launch,
    load_slots,
    slot_values,
)

WRITTEN_WITH = "90ffe8208f2ee114"  # compilation.py, see there


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


# Slots: 0 how many bodies, 1 where each of them lies, 2 the slots of all of them.
@cfunc("void(voidptr)", **KERNEL_OPTIONS)
def run_sequence(given):
    s = load_slots(given)
    bodies = int64_array(s[1], s[0])
    for number in range(s[0]):
        _call(bodies[number], s[2] + 8 * NUM_SLOTS * number)
        barrier()


class KernelSequence:
    """Bodies that are run in turn, each when the one before has ended on all threads. They share the room
    that they work in, so that it stays in the caches of the processor."""

    def __init__(self) -> None:
        self._bodies: list[int] = []
        self._slots = array("q")
        self._kept: list[Any] = []
        self._room = torch.empty(0, dtype=torch.uint8)

    def __call__(self, body: Any, *arguments: int | Tensor) -> None:
        """Add a body. Nothing that it reads or writes is given back before the program is."""
        self._bodies.append(body.address)
        self._slots.fromlist(slot_values(arguments))
        self._kept.append(arguments)

    def workspace(self, size: int) -> Tensor:
        """See `Run`."""
        if size > len(self._room):
            self._room = torch.empty(size, dtype=torch.uint8)
        return self._room

    def run(self) -> None:
        """Run them all, once: bodies count in what they are given."""
        bodies = array("q", self._bodies)
        (at_bodies, count), (at_slots, _) = bodies.buffer_info(), self._slots.buffer_info()
        launch(run_sequence, count, at_bodies, at_slots)
