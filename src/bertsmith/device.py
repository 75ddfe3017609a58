"""Where numbers are computed: the device, the precision of products there, the generator that dropout draws from.

A workflow makes one Place from the settings and the machine; models, batches and the step are moved to it.
Nobody else asks what device there is.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from copy import copy
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol, Self, TypeVar, get_args

import torch
from torch import Tensor, nn

from bertsmith import hardware
from bertsmith.errors import InputError
from bertsmith.hardware import Precision
from bertsmith.kernels.reference import TORCH, Kernels, use_kernels

_CUBLAS = ("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # without it its products are not the same each time


class Movable(Protocol):
    """What can be sent to a device: a batch, or its packed sequences."""

    def to(self, device: torch.device) -> Self:
        """The same on the device."""
        ...


class Replayable(Protocol):
    """What was recorded of a device's work: `torch.cuda.CUDAGraph`."""

    def replay(self) -> None:
        """Have the device do it again, with what stands in the same memory now."""
        ...

    def pool(self) -> Any:
        """Its memory."""
        ...


AnyMovable = TypeVar("AnyMovable", bound=Movable)
AnyModule = TypeVar("AnyModule", bound=nn.Module)
Some = TypeVar("Some")
Answer = TypeVar("Answer")


@dataclass(frozen=True)
class Place:
    """A device and how it computes.

    device: where weights, batches and states are. precision: of products, "fp32" or "bf16"; weights, losses
    and softmax stay fp32. generator: on the device; all that torch draws there after the first weights; on a GPU
    a run's is the default one, since flash attention draws from no other. kernels: what computes between products
    where something is trained.
    """

    device: torch.device
    precision: Precision
    generator: torch.Generator
    kernels: Kernels = TORCH

    @classmethod
    def of(
        cls,
        device: str = "auto",
        precision: str = "auto",
        seed: int = 0,
        tell: Callable[[str], None] = lambda text: None,
        *,
        trains: bool = False,
    ) -> Place:
        """The place that settings name. "auto": a GPU where there is one; the precision that is faster there.

        seed: of the generator. trains: whether it is a run's own, whose draws nothing else may disturb: on a GPU
        torch's default generator is seeded for it. InputError for a device that torch does not know or that is not
        there.
        """
        where = torch.device(_device(device))
        if precision == "auto":
            choice = hardware.choose_precision(where)
            tell(f"computing in {choice.precision} on {hardware.name_of(where)}: {choice.reason}")
            found = choice.precision
        else:
            found = "bf16" if precision == "bf16" else "fp32"
        generator = _default_generator(where) if trains else torch.Generator(where)
        return cls(where, found, generator.manual_seed(seed))

    @property
    def drawing(self) -> torch.Generator:
        """What first weights are drawn from, on the host, so that they are the same for every device."""
        if self.device.type == "cpu":
            return self.generator
        return torch.Generator().manual_seed(self.generator.initial_seed())

    @property
    def uses_threads(self) -> bool:
        """Whether numbers are computed by threads of the processor."""
        return self.device.type == "cpu"

    @property
    def runs_ahead(self) -> bool:
        """Whether the host goes on while the device computes."""
        return self.device.type == "cuda"

    @contextmanager
    def repeating(self, wanted: bool = True) -> Iterator[None]:
        """The context in which the same computation gives the same bits each time, if that is wanted: on a GPU by
        torch's deterministic algorithms, on a processor anyhow. InputError where an operation has none."""
        if not wanted or not self.runs_ahead:
            yield
            return
        os.environ.setdefault(*_CUBLAS)
        before = torch.get_deterministic_debug_mode()
        memory: Any = torch.utils.deterministic  # torch says nothing of what is in it
        filled = memory.fill_uninitialized_memory
        torch.use_deterministic_algorithms(True)
        memory.fill_uninitialized_memory = False  # none of it is read before it is written
        try:
            yield
        except RuntimeError as error:
            if "deterministic" not in str(error):
                raise
            raise InputError(
                f"train.deterministic: {str(error).partition(',')[0].strip()}",
                "leave train.deterministic out, or compute on the processor: --set train.device=cpu",
            ) from None
        finally:
            torch.use_deterministic_algorithms(before > 0, warn_only=before == 1)
            memory.fill_uninitialized_memory = filled

    def fetched(self, value: Tensor) -> Callable[[], Tensor]:
        """Begin to copy a tensor to the host; what is returned gives it, and waits for no more than that copy."""
        there = value.to("cpu", non_blocking=True)
        if not value.is_cuda:
            return lambda: there
        done = torch.cuda.current_stream(value.device).record_event()

        def answer() -> Tensor:
            done.synchronize()
            return there

        return answer

    def recorded(self, work: Callable[[], None], other: Replayable | None) -> Replayable:
        """What a GPU is asked to do by `work`, and has not done yet. other: recorded before, never replayed at the
        same time, so that both can compute in the same memory, but for what their `work` keeps."""
        graph = torch.cuda.CUDAGraph()
        pool, stream = None if other is None else other.pool(), _recording(self.device)
        with torch.cuda.device(self.device), torch.cuda.graph(graph, pool=pool, stream=stream):
            work()
        return graph

    @property
    def threads(self) -> int:
        """How many passes are made at a time where nothing is trained."""
        return torch.get_num_threads() if self.uses_threads else 1

    def send(self, batch: AnyMovable) -> AnyMovable:
        """The batch on this device; the host does not wait for the copy."""
        return batch.to(self.device)

    def settle(self, *modules: nn.Module) -> None:
        """Move modules here; let their dropout draw from this place's generator, and its kernels compute."""
        for module in modules:
            module.to(self.device)
            for part in module.modules():
                if isinstance(getattr(part, "generator", None), torch.Generator):
                    setattr(part, "generator", self.generator)  # noqa: B010  (a Module's type knows no such name)
            use_kernels(module, self.kernels)

    def computing(self) -> AbstractContextManager[object]:
        """The context in which a forward pass computes in this place's precision."""
        if self.precision == "fp32":
            return nullcontext()
        return torch.autocast(self.device.type, torch.bfloat16)

    def reader(self, encoder: AnyModule) -> AnyModule:
        """What reads texts that are answered here: the same encoder with the same weights, whose own passes are
        computed in this place's precision. The heads on it are not: an answer's last digits are theirs.

        Whoever calls the encoder itself has fp32. One that has no passes of its own is returned as it is."""
        if self.precision == "fp32" or getattr(encoder, "computing", None) is not nullcontext:
            return encoder
        reader = copy(encoder)
        vars(reader)["computing"] = self.computing
        return reader

    def spread(self, work: Callable[[Some], Answer], over: Sequence[Some]) -> Iterator[Answer]:
        """`work` on each, in order: on a processor several at a time, each on a thread of its own, which waits for
        no other within an operation. Where there are fewer than threads, in turn, by all threads together."""
        threads = self.threads
        if threads == 1 or len(over) < threads:
            yield from map(work, over)
            return
        pool = ThreadPoolExecutor(threads, "answers", initializer=torch.set_num_threads, initargs=(1,))
        try:
            yield from pool.map(work, over)
        finally:
            pool.shutdown(cancel_futures=True)
            torch.set_num_threads(
                threads
            )  # for threads to come: those of the pool have set it for these, too


@cache
def stored_tensors(module: nn.Module) -> dict[str, Tensor]:
    """Return a module's parameters and persistent buffers by name, as `state_dict` does.

    Without buffers no hook of `state_dict` runs: FSDP2's hook shards the weights again, which may be unsharded to
    be read on one rank alone.
    """
    if any(True for _ in module.buffers()):
        tensors: dict[str, Tensor] = module.state_dict(keep_vars=True)
        return tensors
    return dict(module.named_parameters(remove_duplicate=False))


def _recording(device: torch.device) -> torch.cuda.Stream:
    """What work is recorded on: one for all graphs of a device, since memory is shared within one alone; of this
    device, where torch would take the one it is at."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def _default_generator(device: torch.device) -> torch.Generator:
    """What a run on this device draws from: on a GPU torch's own, on a processor one of its own."""
    if device.type != "cuda":
        return torch.Generator(device)
    torch.cuda.init()  # type: ignore[no-untyped-call]
    number = torch.cuda.current_device() if device.index is None else device.index
    found: torch.Generator = torch.cuda.default_generators[number]
    return found


def check_device(name: str) -> None:
    """InputError for a device that torch does not know or that is not here; "auto" always is."""
    _device(name)


def check_precision(name: str, *more: str) -> None:
    """InputError for a precision that there is not; more: what there is besides."""
    if name not in (known := ("auto", *get_args(Precision), *more)):
        raise InputError(f"precision {name!r}: there is no such precision", f"known: {', '.join(known)}")


def is_processor(name: str) -> bool:
    """Whether a device's name stands for the processor on this machine, as "auto" does where there is no GPU."""
    return torch.device(_device(name)).type == "cpu"


def _device(name: str) -> str:
    """The device's name in full; InputError where there is none. Of several processes each has its own GPU."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
        if device.type not in ("cpu", "meta"):
            torch.empty(0, device=device)
    except (RuntimeError, AssertionError):
        raise InputError(
            f"device {name!r}: there is no such device here",
            f"name one of these with --device, or as train.device in a recipe: {_known()}",
        ) from None
    ranks = hardware.rank_info()
    return f"cuda:{ranks.local_rank}" if ranks.world_size > 1 and device.type == "cuda" else name


def _known() -> str:
    """The devices that are here, in words."""
    gpus = [f"cuda:{number}" for number in range(torch.cuda.device_count())]
    return f"{', '.join(['cpu', 'cuda', *gpus])} or auto" if gpus else "cpu or auto (torch sees no GPU here)"
