"""Sequences of kernels that are launched as one.

Threads do not sleep between the kernels, and Python prepares all of them in one go, while its data is in the
processor's caches. Between two matrix products of some megabytes the preparation takes about six times as long.
"""

from __future__ import annotations

from array import array
from typing import Any

import torch
from llvmlite import ir
from numba import types
from numba.extending import intrinsic
from torch import Tensor

from bertsmith.kernels.cpu.arrays import int64s
from bertsmith.kernels.cpu.compilation import kernel
from bertsmith.kernels.cpu.launcher import NUM_SLOTS, launch, slot_values
from bertsmith.kernels.cpu.threads import barrier


@intrinsic
def _call(typing_context: Any, kernel: Any, slots: Any) -> Any:
    """Call the kernel at an address with the slots at another address."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = ir.IntType(8).as_pointer()
        function_type = ir.FunctionType(ir.VoidType(), [pointer])
        function = builder.inttoptr(args[0], function_type.as_pointer())
        builder.call(function, [builder.inttoptr(args[1], pointer)])
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), codegen


# Slots: 0 number of kernels, 1 their addresses, 2 the slots of all kernels.
@kernel
def run_sequence(s):
    kernels = int64s(s[1], s[0])
    for i in range(s[0]):
        _call(kernels[i], s[2] + 8 * NUM_SLOTS * i)
        barrier()


class KernelSequence:
    """Kernels that run one after the other, each when all threads have finished the previous one.

    They share one workspace, so that it stays in the processor's caches.
    """

    def __init__(self) -> None:
        self._kernels: list[int] = []
        self._slots = array("q")
        self._arguments: list[Any] = []  # keeps tensors alive
        self._workspace = torch.empty(0, dtype=torch.uint8)

    def __call__(self, kernel: Any, *arguments: int | Tensor) -> None:
        """Append a kernel. Its tensors stay alive as long as the sequence."""
        self._kernels.append(kernel.address)
        self._slots.fromlist(slot_values(arguments))
        self._arguments.append(arguments)

    def workspace(self, size: int) -> Tensor:
        """Return the shared workspace, enlarged if necessary."""
        if size > len(self._workspace):
            self._workspace = torch.empty(size, dtype=torch.uint8)
        return self._workspace

    def run(self) -> None:
        """Run all kernels; to be called once, since kernels count in tensors that they are passed."""
        addresses = array("q", self._kernels)
        launch(run_sequence, len(addresses), addresses.buffer_info()[0], self._slots.buffer_info()[0])
