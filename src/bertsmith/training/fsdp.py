"""Fully sharded data parallel training: each rank keeps a part of weights, gradients, and optimizer state (FSDP2).

It is for training that does not fit into the memory of one rank, which takes four times the memory of the weights,
and more for activations. The weights of a layer are unsharded when it computes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from bertsmith.device import ComputeContext
from bertsmith.training.settings import TrainSettings
from bertsmith.training.train_step import GradientStrategy, TrainModule

_LAYER_NAME = re.compile(r"\.blocks\.\d+$")


class FSDPStrategy(GradientStrategy):
    """Shards the module over all ranks; weights are rank 0's.

    Each layer is unsharded by itself, everything else together. Layers that share weights are not sharded by
    themselves, since one of them would shard weights that another one needs.
    """

    is_sharded = True
    _has_computed = False  # before its first pass, FSDP2 has no state to reset

    def __init__(self, module: TrainModule, context: ComputeContext, settings: TrainSettings) -> None:
        for tensor in (*module.parameters(), *module.buffers()):
            dist.broadcast(tensor.data, 0)
        mesh = init_device_mesh(context.device.type, (dist.get_world_size(),))
        layers = [part for name, part in module.named_modules() if _LAYER_NAME.search(name)]
        shares_layers = any(
            getattr(getattr(part, "config", None), "share", "none") != "none" for part in module.modules()
        )
        for part in (*(() if shares_layers else layers), module):
            sharded = fully_shard(part, mesh=mesh)
            sharded.set_gradient_divide_factor(1.0)  # sums, not means
            sharded.set_force_sum_reduction_for_comms(True)
        super().__init__(module, context, settings)

    def _forward(self, batch: Any) -> Mapping[str, Tensor]:
        self._has_computed = True
        return super()._forward(batch)

    @property
    def _root(self) -> FSDPModule:
        assert isinstance(self.module, FSDPModule)
        return self.module

    @property
    def _sharded_modules(self) -> list[FSDPModule]:
        return [part for part in self.module.modules() if isinstance(part, FSDPModule)]

    @contextmanager
    def accumulate(self, *, is_last: bool) -> Iterator[None]:
        self._root.set_requires_gradient_sync(is_last)
        yield

    def all_reduce(self, values: Tensor) -> Tensor:
        dist.all_reduce(values)
        return values

    @contextmanager
    def unsharded(self) -> Iterator[None]:
        """Return a context in which every rank has all weights. Entering and leaving it is collective."""
        self.unshard()
        try:
            yield
        finally:
            if self._has_computed:
                self._root.reset_iter_state()  # also shards the weights again
            else:
                for part in self._sharded_modules:
                    part.reshard()
            self._root.set_reshard_after_forward(True)

    def unshard(self) -> None:
        self._root.set_reshard_after_forward(False)  # a forward pass may follow on one rank only
        for part in self._sharded_modules:
            part.unshard()

    def optimizer_state(self) -> dict[str, Tensor]:
        """Return the unsharded state. Collective."""
        return {
            name: value.full_tensor() if isinstance(value, DTensor) else value
            for name, value in super().optimizer_state().items()
        }

    def load_optimizer_state(self, tensors: Mapping[str, Tensor]) -> None:
        super().load_optimizer_state(tensors)
        for parameter, state in self.optimizer.state.items():
            for name, value in state.items():
                if isinstance(parameter, DTensor) and value.dim():
                    state[name] = distribute_tensor(
                        value, parameter.device_mesh, parameter.placements, src_data_rank=None
                    )
