"""Compiled kernels without the fused layer, for comparison with it."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from bertsmith.kernels.cpu.training import NumbaTrainingBackend


class ByParts(NumbaTrainingBackend):
    """The compiled kernels, which compute each operation of a layer separately."""

    def encoder_layer(self, *_: Any, **__: Any) -> Tensor | None:
        """Return None: there is no fused layer."""
        return None
