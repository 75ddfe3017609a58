"""Forward and backward passes on a GPU as CUDA graphs, which the host starts with one call instead of hundreds.

A graph has fixed shapes. Batches are therefore padded to a few shapes, with sequences, rows, and pairs that do not
count. A shape is computed without a graph the first time, captured the second time, and replayed from then on. The
padding of a batch depends only on the batch, so that a resumed run computes the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from bertsmith.device import ComputeContext
from bertsmith.packed import copy_to_device
from bertsmith.training.optimizer import kernel_backends
from bertsmith.training.settings import TrainSettings
from bertsmith.training.train_step import GradientStrategy, TrainModule

_TOKEN_STEPS, _ROW_STEPS = 32, 16  # sizes from one power of two to the next
_MAX_GRAPHS = 16  # further shapes are computed without a graph


@dataclass
class _Outputs:
    """The outputs of captured passes: loss sums, their weighted sum, and gradients."""

    sums: Mapping[str, Tensor] = field(default_factory=dict)
    loss: Tensor | None = None
    gradients: Mapping[nn.Parameter, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class _Graph:
    """A captured graph with its inputs, to be overwritten before a replay, and its outputs."""

    graph: torch.cuda.CUDAGraph
    batch: Any
    factors: Tensor
    outputs: _Outputs


class CudaGraphStrategy(GradientStrategy):
    """Replays CUDA graphs in one process on a GPU; see `supports_cuda_graphs`.

    Batches have the attributes `sizes`, `tensors`, `padded_to`, and `unmeasured` of `MaskedBatch`.
    """

    def __init__(self, module: TrainModule, context: ComputeContext, settings: TrainSettings) -> None:
        super().__init__(module, context, settings)
        self._seqlen_multiple = min(kernels.seqlen_multiple for kernels in kernel_backends(module))
        self._graphs: dict[tuple[int, ...], _Graph | None] = {}
        self._first_graph: torch.cuda.CUDAGraph | None = None
        self._can_capture: bool | None = None

    def backward_batch(
        self, batch: Any, factors: Mapping[str, float], *, is_last: bool
    ) -> tuple[Mapping[str, Tensor], Tensor]:
        """Compute the gradients of the only batch of an update."""
        sizes = _padded_sizes(batch.sizes)
        shape = (*sizes[:3], -(-sizes.max_seqlen // self._seqlen_multiple))
        padded = batch.padded_to(sizes)
        result = None
        if self._can_capture is None:
            result = self._try_without_lengths(padded.unmeasured(sizes.max_seqlen), factors)
        if not self._can_capture:
            return super().backward_batch(batch, factors, is_last=is_last)
        if shape not in self._graphs:
            if len(self._graphs) < _MAX_GRAPHS:
                self._graphs[shape] = None
            return result or super().backward_batch(padded, factors, is_last=is_last)
        device_batch, graph = self.context.to_device(padded), self._graphs[shape]
        if graph is None:
            graph = self._graphs[shape] = self._capture(device_batch, sizes.max_seqlen, factors)
        for graph_tensor, tensor in zip(graph.batch.tensors, device_batch.tensors, strict=True):
            graph_tensor.copy_(tensor)
        graph.factors.copy_(copy_to_device(torch.tensor(list(factors.values())), self.context.device))
        graph.graph.replay()
        outputs = graph.outputs
        assert outputs.loss is not None
        for parameter, gradient in outputs.gradients.items():
            parameter.grad = gradient
        return {part: value.clone() for part, value in outputs.sums.items()}, outputs.loss.clone()

    def _try_without_lengths(
        self, batch: Any, factors: Mapping[str, float]
    ) -> tuple[Mapping[str, Tensor], Tensor] | None:
        """Compute a batch without sequence lengths on the host, as in a graph.

        Returns None, with everything as before, if the model needs the lengths, so that nothing can be captured.
        """
        state = self.context.generator.get_state()
        try:
            result = super().backward_batch(batch, factors, is_last=True)
        except (AttributeError, TypeError):
            self.context.generator.set_state(state)
            self.module.zero_grad()
            self._can_capture = False
            return None
        self._can_capture = True
        return result

    def _capture(self, device_batch: Any, max_seqlen: int, factors: Mapping[str, float]) -> _Graph:
        """Capture the passes of a batch on the device, which becomes the input of the graph."""
        batch = device_batch.unmeasured(max_seqlen)
        graph_factors = torch.tensor(list(factors.values()), device=self.context.device)
        parameters = [p for p in self.module.parameters() if p.requires_grad]
        outputs = _Outputs()

        def forward_backward() -> None:
            for parameter in parameters:
                parameter.grad = None
            with self.accumulate(is_last=True), self.context.autocast():
                loss = self.module.loss(batch)
            total = loss.weighted_sum(dict(zip(factors, graph_factors.unbind(), strict=True)))
            torch.autograd.backward(total)
            outputs.sums = {part: value.detach() for part, value in loss.sums.items()}
            outputs.loss = total.detach()
            outputs.gradients = {p: p.grad for p in parameters if p.grad is not None}

        graph = self.context.capture_graph(forward_backward, self._first_graph)
        self._first_graph = self._first_graph or graph
        return _Graph(graph, batch, graph_factors, outputs)


def supports_cuda_graphs(
    module: TrainModule, context: ComputeContext, settings: TrainSettings, *, unfreezes: bool
) -> bool:
    """Return True if updates of a run can be CUDA graphs.

    They need one batch per update, kernels that ignore rows without a label, an objective whose batches can be
    padded, and the same trainable parameters in all updates.
    """
    ignores_labels = all(kernels.ignores_negative_labels for kernels in kernel_backends(module))
    can_pad = bool(module.objective.supports_filling)
    is_one_batch = settings.gradient_accumulation_steps == 1
    return context.is_async and can_pad and ignores_labels and is_one_batch and not unfreezes


def _padded_sizes(sizes: Any) -> Any:
    """Return the sizes to which a batch of these sizes is padded.

    There is at least one more token, since the first row of an empty sequence belongs to another one, and there
    are enough sequences for all tokens of padding.
    """
    num_tokens, step = _round_up(sizes.num_tokens + 1, _TOKEN_STEPS)
    num_rows, _ = _round_up(sizes.num_rows, _ROW_STEPS)
    min_tokens = 1 << (sizes.max_seqlen.bit_length() - 1)  # of a sequence of padding
    num_sequences = sizes.num_sequences + 1 + step // min_tokens
    return sizes._replace(num_sequences=num_sequences, num_tokens=num_tokens, num_rows=num_rows)


def _round_up(size: int, steps: int) -> tuple[int, int]:
    """Return the next of `steps` equidistant sizes between two powers of two, and their distance."""
    step = max(1, (1 << (max(1, size).bit_length() - 1)) // steps)
    return -(-size // step) * step, step
