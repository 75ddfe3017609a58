"""Processes on the cores of one machine, whose gradients are summed in memory that all of them see.

A message from process to process would be copied several times on its way; here each process writes its gradients
once and reads the others'.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import torch
import torch.distributed as dist
from torch import Tensor

from bertsmith.training.train_step import Passes, Trained


def shared_by_all(size: int) -> Tensor | None:
    """Numbers in fp32 that all processes of a run see, zeros at first; None for all of them where one cannot.

    They lie in memory of the leader's that has no name and no file system: it goes with the last process.
    """
    leads = dist.get_rank() == 0
    held, where = -1, [0, -1]
    if leads and hasattr(os, "memfd_create"):
        with suppress(OSError):
            held = os.memfd_create("bertsmith")
            os.truncate(held, 4 * size)
            where = [os.getpid(), held]
    place = torch.tensor(where)
    dist.broadcast(place, 0)
    process, file = place.tolist()
    found = None
    if file >= 0:
        with suppress(OSError, RuntimeError):
            found = torch.from_file(f"/proc/{process}/fd/{file}", shared=True, size=size)
    without = torch.tensor(int(found is None))
    dist.all_reduce(without)
    if held >= 0:
        os.close(held)  # mapped by all who could
    return None if without.item() else found


class InSharedMemory(Passes):
    """Passes whose gradients are summed over the processes of one machine, after the last one's backward pass; all
    begin with the leader's weights.

    Each process adds up the gradients of all in the order of their numbers: the sums are the same to the bit.
    """

    def __init__(self, trained: Trained, shared: Tensor) -> None:
        super().__init__(trained)
        for tensor in (*trained.parameters(), *trained.buffers()):
            dist.broadcast(tensor.data, 0)
        self._parameters, self._mine = list(trained.parameters()), dist.get_rank()
        count, sizes = dist.get_world_size(), [p.numel() for p in self._parameters]
        flags, *gradients = torch.split(shared, [count * len(sizes), *(sizes * count)])
        self._flags = flags.view(count, -1)
        self._gradients = [gradients[i : i + len(sizes)] for i in range(0, len(gradients), len(sizes))]

    @classmethod
    def of(cls, trained: Trained) -> InSharedMemory | None:
        """None where the processes cannot share memory, or weights are not in fp32 on a processor."""
        parameters = list(trained.parameters())
        if any(not p.is_cpu or p.dtype != torch.float32 for p in parameters):
            return None
        each = len(parameters) + sum(p.numel() for p in parameters)
        shared = shared_by_all(dist.get_world_size() * each)
        return None if shared is None else cls(trained, shared)

    @contextmanager
    def adding(self, *, last: bool) -> Iterator[None]:
        """After the update's last backward pass all gradients are sums."""
        yield
        if last:
            self._add_up()

    def over_all(self, values: Tensor) -> Tensor:
        """Sums over all processes; none writes its next gradients before all have read these."""
        dist.all_reduce(values)
        return values

    @torch.no_grad()
    def _add_up(self) -> None:
        """A weight has a gradient where some process has one: of the others it is zero."""
        for number, (p, view) in enumerate(zip(self._parameters, self._gradients[self._mine], strict=True)):
            self._flags[self._mine, number] = float(p.grad is not None)
            if p.grad is not None:
                view.view_as(p).copy_(p.grad)
        dist.barrier()
        has = self._flags.bool().tolist()
        for number, p in enumerate(self._parameters):
            some = [g[number].view_as(p) for g, one in zip(self._gradients, has, strict=True) if one[number]]
            if not some:
                continue
            if p.grad is None:
                p.grad = torch.empty_like(p)
            p.grad.copy_(some[0]) if len(some) == 1 else torch.add(some[0], some[1], out=p.grad)
            for more in some[2:]:
                p.grad.add_(more)
