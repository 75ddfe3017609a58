"""Weights, gradients and the optimiser's state cut over several processes, a part in each (torch's FSDP2).

For training that does not fit into the memory of one: it takes four times that of the weights, and more with each
sequence of a batch. A layer's weights are put together when it computes, its gradients summed and cut again.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from bertsmith.training.checkpoint import optimizer_tensors
from bertsmith.training.train_step import Passes, Trained

_LAYER = re.compile(r"\.blocks\.\d+$")


class Sharded(Passes):
    """Passes through a model that is cut over all processes; each begins with the leader's weights.

    Every layer is put together by itself, all else with the whole model. Layers that share weights are not: these
    would be wanted where they are cut.
    """

    is_sharded = True
    _has_computed = False  # before, torch knows of no state to forget

    def __init__(self, trained: Trained) -> None:
        super().__init__(trained)
        device = next(trained.parameters()).device.type
        for tensor in (*trained.parameters(), *trained.buffers()):
            dist.broadcast(tensor.data, 0)
        mesh = init_device_mesh(device, (dist.get_world_size(),))
        layers = {name: module for name, module in trained.named_modules() if _LAYER.search(name)}
        shared = any(
            getattr(getattr(m, "config", None), "share", "none") != "none" for m in trained.modules()
        )
        for module in (*(() if shared else layers.values()), trained):
            found = fully_shard(module, mesh=mesh)
            found.set_gradient_divide_factor(1.0)  # sums, as a loss of sums wants them
            found.set_force_sum_reduction_for_comms(True)

    def __call__(self, batch: Any) -> Mapping[str, Tensor]:
        self._has_computed = True
        return super().__call__(batch)

    @property
    def _root(self) -> FSDPModule:
        assert isinstance(self._passed, FSDPModule)
        return self._passed

    @property
    def _sharded(self) -> list[FSDPModule]:
        return [module for module in self._passed.modules() if isinstance(module, FSDPModule)]

    @contextmanager
    def adding(self, *, last: bool) -> Iterator[None]:
        self._root.set_requires_gradient_sync(last)
        yield

    def all_reduce(self, values: Tensor) -> Tensor:
        dist.all_reduce(values)
        return values

    @contextmanager
    def unsharded(self) -> Iterator[None]:
        """Return a context in which every rank has all weights. Collective; what is inside need not be."""
        self.unshard()
        try:
            yield
        finally:
            if self._has_computed:
                self._root.reset_iter_state()  # shards the weights again
            else:
                for module in self._sharded:
                    module.reshard()
            self._root.set_reshard_after_forward(True)

    def unshard(self) -> None:
        self._root.set_reshard_after_forward(False)  # a forward pass may follow on one rank alone
        for module in self._sharded:
            module.unshard()

    def state(self, optimizer: torch.optim.Optimizer, names: Mapping[Tensor, str]) -> dict[str, Tensor]:
        """Return the unsharded state. Collective."""
        return {
            name: value.full_tensor() if isinstance(value, DTensor) else value
            for name, value in optimizer_tensors(optimizer, names).items()
        }

    def shard_state(self, optimizer: torch.optim.Optimizer) -> None:
        for parameter, state in optimizer.state.items():
            for name, value in state.items():
                if isinstance(parameter, DTensor) and value.dim():
                    state[name] = distribute_tensor(
                        value, parameter.device_mesh, parameter.placements, src_data_rank=None
                    )
