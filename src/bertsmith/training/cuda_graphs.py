"""Forward passes and gradients on a GPU, recorded as CUDA graphs: the host asks for one thing instead of hundreds.

A graph is of one shape. So batches are filled up to one of few, with sequences, rows and pairs that count for
nothing; a shape is computed as usual when it is first met, and recorded when it comes again. What a batch is
filled up to depends on nothing but itself, so that a resumed run computes what one does that was never stopped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, Self

import torch
from torch import Tensor, nn

from bertsmith.device import CapturedGraph, ComputeContext
from bertsmith.kernels.reference import KernelBackend
from bertsmith.packed import copy_to_device
from bertsmith.training.settings import TrainSettings
from bertsmith.training.train_step import Passes, Trained

_STEPS, _ROW_STEPS = 32, 16  # of tokens, and of rows to predict, from a power of two to the next
_MOST = 16  # shapes that are recorded: others are computed as usual


class Fillable(Protocol):
    """A batch that can be padded to fixed sizes, as `MaskedBatch` can."""

    @property
    def sizes(self) -> Any:
        """A named tuple: its sequences, tokens, rows to predict, and the tokens of its longest sequence."""
        ...

    @property
    def tensors(self) -> Sequence[Tensor]:
        """All of it that computing reads."""
        ...

    def padded_to(self, sizes: Any) -> Self:
        """Return the batch padded to these sizes; padding adds nothing to losses and counts."""
        ...

    def unmeasured(self, longest: int) -> Self:
        """The same without what the host knows of its lengths, but that none is longer than this."""
        ...

    def to(self, device: torch.device) -> Self:
        """The same on another device."""
        ...


@dataclass
class _Made:
    """What a pass writes: the loss's sums and their total, and the gradients."""

    sums: Mapping[str, Tensor] = field(default_factory=dict)
    total: Tensor | None = None
    gradients: Mapping[nn.Parameter, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class _Graph:
    """What was recorded. batch, factors: to be written to before it is replayed."""

    graph: CapturedGraph
    batch: Fillable
    factors: Tensor
    made: _Made


class Recorded(Passes):
    """Those of one process on a GPU, where `pays` says so."""

    def __init__(self, trained: Trained) -> None:
        super().__init__(trained)
        self._trained = trained
        self._lengths = min(some.seqlen_multiple for some in _kernels_of(trained))
        self._graphs: dict[tuple[int, ...], _Graph | None] = {}
        self._first: CapturedGraph | None = None
        self._works: bool | None = None

    def gradients(
        self, batch: Any, factors: Mapping[str, float], place: ComputeContext, *, last: bool
    ) -> tuple[Mapping[str, Tensor], Tensor]:
        """As `Passes.gradients`, of an update of one batch: nothing is added to gradients of earlier ones."""
        sizes = _filled_up(batch.sizes)
        shape = (*sizes[:3], -(-sizes.max_seqlen // self._lengths))
        filled = batch.padded_to(sizes)
        tried = (
            self._tried(filled.unmeasured(sizes.max_seqlen), factors, place) if self._works is None else None
        )
        if not self._works:
            return super().gradients(batch, factors, place, last=last)
        if shape not in self._graphs:
            if len(self._graphs) < _MOST:
                self._graphs[shape] = None
            return tried or super().gradients(filled, factors, place, last=last)
        there, graph = place.to_device(filled), self._graphs[shape]
        if graph is None:
            graph = self._graphs[shape] = self._recorded(there, sizes.max_seqlen, factors, place)
        for kept, new in zip(graph.batch.tensors, there.tensors, strict=True):
            kept.copy_(new)
        graph.factors.copy_(copy_to_device(torch.tensor(list(factors.values())), place.device))
        graph.graph.replay()
        made = graph.made
        assert made.total is not None
        for parameter, gradient in made.gradients.items():
            parameter.grad = gradient
        return {part: value.clone() for part, value in made.sums.items()}, made.total.clone()

    def _tried(
        self, batch: Fillable, factors: Mapping[str, float], place: ComputeContext
    ) -> tuple[Mapping[str, Tensor], Tensor] | None:
        """The first pass, of a batch whose lengths the host does not know; None where the model asks for them, so
        that nothing can be recorded: all is then as it was."""
        state = place.generator.get_state()
        try:
            found = super().gradients(batch, factors, place, last=True)
        except (AttributeError, TypeError):
            place.generator.set_state(state)
            self._trained.zero_grad()
            self._works = False
            return None
        self._works = True
        return found

    def _recorded(
        self, there: Fillable, longest: int, factors: Mapping[str, float], place: ComputeContext
    ) -> _Graph:
        """The graph of a batch on the device, which stays its own."""
        batch, by = there.unmeasured(longest), torch.tensor(list(factors.values()), device=place.device)
        parameters = [p for p in self._trained.parameters() if p.requires_grad]
        made = _Made()

        def computed() -> None:
            for parameter in parameters:
                parameter.grad = None
            with self.adding(last=True), place.autocast():
                loss = self._trained.loss(batch)
            total = loss.weighted_sum(dict(zip(factors, by.unbind(), strict=True)))
            torch.autograd.backward(total)
            made.sums = {part: value.detach() for part, value in loss.sums.items()}
            made.total = total.detach()
            made.gradients = {p: p.grad for p in parameters if p.grad is not None}

        graph = place.capture_graph(computed, self._first)
        self._first = self._first or graph
        return _Graph(graph, batch, by, made)


def pays(
    trained: Trained, place: ComputeContext, settings: TrainSettings, thaws: Mapping[nn.Parameter, int]
) -> bool:
    """Whether updates can be recorded here: of one batch each, by kernels that skip rows without a label, of an
    objective whose batches can be filled up, with the same parameters throughout."""
    skip = all(some.ignores_negative_labels for some in _kernels_of(trained))
    fills = bool(getattr(trained.objective, "supports_filling", False))
    return place.is_async and fills and skip and settings.gradient_accumulation_steps == 1 and not thaws


def _kernels_of(trained: Trained) -> list[KernelBackend]:
    every: list[Any] = [getattr(module, "kernels", None) for module in trained.modules()]
    return [some for some in every if isinstance(some, KernelBackend)]


def _filled_up(sizes: Any) -> Any:
    """What a batch of these sizes is filled up to. The first row of an empty sequence is another's, so there is
    one token more at least; the sequences suffice for all that may be added."""
    tokens, step = _next(sizes.num_tokens + 1, _STEPS)
    rows, _ = _next(sizes.num_rows, _ROW_STEPS)
    each = 1 << (sizes.max_seqlen.bit_length() - 1)
    return sizes._replace(
        num_sequences=sizes.num_sequences + 1 + step // each, num_tokens=tokens, num_rows=rows
    )


def _next(size: int, steps: int) -> tuple[int, int]:
    """The next of so many steps from a power of two to the next, and how far they are apart."""
    step = max(1, (1 << (max(1, size).bit_length() - 1)) // steps)
    return -(-size // step) * step, step
