"""The compute context: device, precision, random number generator, and kernels.

A workflow, such as pre-training, creates it from the settings, and moves models and batches to it. Other code does
not depend on the hardware.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from copy import copy
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Protocol, Self, TypeVar, get_args

import torch
from torch import Tensor, nn

from bertsmith import hardware
from bertsmith.errors import InputError, option
from bertsmith.hardware import Precision
from bertsmith.kernels.backend_selection import select_gpu_backend, select_training_backend
from bertsmith.kernels.reference import REFERENCE, KernelBackend, set_kernel_backend

logger = logging.getLogger(__name__)

# With other values, products of cuBLAS vary from call to call.
_DETERMINISTIC_CUBLAS = ("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
CPU = "cpu"
"""The name of the device that every machine has."""
LONG_RUN_UPDATES, LONG_RUN_MINUTES = 500, 3.0  # from which compiling kernels pays


class SupportsTo(Protocol):
    """An object that can be copied to a device: a batch, or packed sequences."""

    def to(self, device: torch.device) -> Self:
        """Copy to a device."""


SupportsToT = TypeVar("SupportsToT", bound=SupportsTo)
ModuleT = TypeVar("ModuleT", bound=nn.Module)
Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True)
class ComputeContext:
    """A device, and how to compute on it.

    Attributes:
        device: The device of weights, batches, and optimizer state.
        precision: The precision of matrix products, "fp32" or "bf16"; weights, losses, and softmax stay in fp32.
        generator: The random number generator, on the device, for dropout and everything else that is random after
            weight initialization. For training on a GPU it is torch's default generator, the only one that flash
            attention uses.
        kernels: The kernels for the operations between matrix products in training.
        batch_size: The maximum number of sequences per forward pass of inference; None: as many as a budget of
            tokens allows.
    """

    device: torch.device
    precision: Precision
    generator: torch.Generator
    kernels: KernelBackend = REFERENCE
    batch_size: int | None = None

    @classmethod
    def create(
        cls, device: str = "auto", precision: str = "auto", seed: int = 0, *, for_training: bool = False
    ) -> ComputeContext:
        """Create the context from settings.

        Args:
            device: A device name; "auto": a GPU if there is one.
            precision: "fp32", "bf16", or "auto": bf16 if the device has instructions for it.
            seed: The seed of the generator.
            for_training: Use the generator of a training run, which on a GPU is torch's default generator.

        Raises:
            InputError: The device is unknown or missing.
        """
        torch_device = resolve_device(device)
        resolved: Precision = "bf16" if precision == "bf16" else "fp32"
        if precision == "auto":
            resolved = hardware.choose_precision(torch_device)
        generator = _default_generator(torch_device) if for_training else torch.Generator(torch_device)
        return cls(torch_device, resolved, generator.manual_seed(seed))

    @classmethod
    def for_training(cls, settings: Any) -> ComputeContext:
        """Configure the process and create the context of a run, still without kernels (`with_kernels`).

        Args:
            settings: The settings `train` of the run.

        Raises:
            InputError: The device is unknown or missing.
        """
        hardware.configure_process(settings.threads)
        return cls.create(settings.device, settings.precision, settings.seed, for_training=True)

    def with_kernels(self, settings: Any, hidden_size: int, num_updates: int | None) -> ComputeContext:
        """Return the context with the kernels of a run.

        Args:
            settings: The settings `train` of the run.
            hidden_size: The hidden size of the model.
            num_updates: The number of updates; None: many. A preview, without updates, and a run of less than
                three minutes do not wait for the compilation of kernels for a CPU. Others do, so that a run
                computes the same before and after.

        Raises:
            InputError: The kernels are not available.
        """
        has_time = (settings.max_minutes or LONG_RUN_MINUTES) >= LONG_RUN_MINUTES
        if self.is_cpu:
            waits = has_time and num_updates != 0
            return replace(self, kernels=select_training_backend(settings.kernels, hidden_size, waits=waits))
        is_long = has_time and (num_updates is None or num_updates >= LONG_RUN_UPDATES)
        if settings.kernels == "auto" and (self.precision == "fp32" or not self.is_async):
            return self
        return replace(self, kernels=select_gpu_backend(settings.kernels, self.device, is_long=is_long))

    @property
    def init_generator(self) -> torch.Generator:
        """Generator for weight initialization; it is on the CPU, so that weights do not depend on the device."""
        if self.is_cpu:
            return self.generator
        return torch.Generator().manual_seed(self.generator.initial_seed())

    @property
    def is_cpu(self) -> bool:
        """True if the device is the CPU."""
        return self.device.type == "cpu"

    @property
    def is_async(self) -> bool:
        """True if the device computes asynchronously to the host, as GPUs do."""
        return self.device.type == "cuda"

    @contextmanager
    def deterministic(self, enabled: bool = True) -> Iterator[None]:
        """Enable deterministic algorithms on a GPU; CPU computation is always deterministic.

        Raises:
            InputError: An operation has no deterministic algorithm.
        """
        if not enabled or not self.is_async:
            yield
            return
        os.environ.setdefault(*_DETERMINISTIC_CUBLAS)
        debug_mode = torch.get_deterministic_debug_mode()
        memory: Any = torch.utils.deterministic  # torch has no types for its content
        fill = memory.fill_uninitialized_memory
        torch.use_deterministic_algorithms(True)
        memory.fill_uninitialized_memory = False  # it costs time, and all memory is written before it is read
        try:
            yield
        except RuntimeError as error:
            if "deterministic" not in str(error):
                raise
            raise InputError(
                "not_deterministic",
                str(error).partition(",")[0].strip(),
                argument="train.deterministic",
                hint=f"leave train.deterministic out, or compute on the CPU: {option('train.device', 'cpu')}",
            ) from None
        finally:
            torch.use_deterministic_algorithms(debug_mode > 0, warn_only=debug_mode == 1)
            memory.fill_uninitialized_memory = fill

    def start_copy_to_host(self, tensor: Tensor) -> Callable[[], Tensor]:
        """Start to copy a tensor to the host.

        Returns:
            A function that waits for the copy, but not for work that was queued after it, and returns the copy.
        """
        copy_on_host = tensor.to("cpu", non_blocking=True)
        if not tensor.is_cuda:
            return lambda: copy_on_host
        event = torch.cuda.current_stream(tensor.device).record_event()

        def wait() -> Tensor:
            event.synchronize()
            return copy_on_host

        return wait

    def capture_graph(
        self, function: Callable[[], None], other: torch.cuda.CUDAGraph | None
    ) -> torch.cuda.CUDAGraph:
        """Capture the GPU work of a function in a CUDA graph without running it.

        Args:
            function: The function to capture.
            other: A graph that is never replayed at the same time, whose memory pool this graph shares; None: this
                graph has its own pool.
        """
        graph = torch.cuda.CUDAGraph()
        pool, stream = None if other is None else other.pool(), _capture_stream(self.device)
        with torch.cuda.device(self.device), torch.cuda.graph(graph, pool=pool, stream=stream):
            function()
        return graph

    @property
    def num_parallel_passes(self) -> int:
        """Number of forward passes that inference runs in parallel, each on one thread."""
        return torch.get_num_threads() if self.is_cpu else 1

    def to_device(self, batch: SupportsToT) -> SupportsToT:
        """Copy a batch to the device; the host does not wait for the copy."""
        return batch.to(self.device)

    def prepare_modules(self, *modules: nn.Module) -> None:
        """Move modules to the device, and set the generator of their dropout and their kernels."""
        for module in modules:
            module.to(self.device)
            for part in module.modules():
                if isinstance(getattr(part, "generator", None), torch.Generator):
                    setattr(part, "generator", self.generator)  # noqa: B010  (a Module's type knows no such name)
            set_kernel_backend(module, self.kernels)

    def autocast(self) -> AbstractContextManager[object]:
        """Return the autocast context for forward passes in the precision; for fp32 it does nothing."""
        if self.precision == "fp32":
            return nullcontext()
        return torch.autocast(self.device.type, torch.bfloat16)

    def autocast_encoder(self, encoder: ModuleT) -> ModuleT:
        """Return a shallow copy of an encoder, with the same weights, whose forward passes run in the precision.

        The encoder that was passed still computes in fp32, and so do heads on top of either. For fp32, and for a
        module without the attribute `forward_context` or with a context of its own, the module itself is returned.
        """
        if self.precision == "fp32" or getattr(encoder, "forward_context", None) is not nullcontext:
            return encoder
        autocast_encoder = copy(encoder)
        vars(autocast_encoder)["forward_context"] = self.autocast
        return autocast_encoder

    def parallel_map(self, function: Callable[[Item], Result], items: Sequence[Item]) -> Iterator[Result]:
        """Yield the function's result for each item, in order.

        On a CPU, several items are computed in parallel, each on one thread, which is faster than to divide every
        operation among all threads. If there are fewer items than threads, they are computed one after another,
        each on all threads.
        """
        threads = self.num_parallel_passes
        if threads == 1 or len(items) < threads:
            yield from map(function, items)
            return
        pool = ThreadPoolExecutor(threads, "answers", initializer=torch.set_num_threads, initargs=(1,))
        try:
            yield from pool.map(function, items)
        finally:
            pool.shutdown(cancel_futures=True)
            torch.set_num_threads(
                threads
            )  # torch.set_num_threads(1) in the pool also changed the process's default


def stored_tensors(module: nn.Module) -> dict[str, Tensor]:
    """Return a module's parameters and persistent buffers by name, as `state_dict` does.

    FSDP2 adds a hook to `state_dict` that shards the weights again, but they may be unsharded to be read on one
    rank only. `state_dict` is therefore called only for modules with buffers, which are int8 modules and never
    sharded.
    """
    has_buffers = any(True for _ in module.buffers())
    if has_buffers:
        tensors: dict[str, Tensor] = module.state_dict(keep_vars=True)
        return tensors
    return dict(module.named_parameters(remove_duplicate=False))


@cache
def _capture_stream(device: torch.device) -> torch.cuda.Stream:
    """Return the stream on which all graphs of a device are captured; graphs on one stream can share memory."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def _default_generator(device: torch.device) -> torch.Generator:
    """Return the generator of a training run: torch's default one on a GPU, a new one elsewhere."""
    if device.type != "cuda":
        return torch.Generator(device)
    torch.cuda.init()  # type: ignore[no-untyped-call]
    index = torch.cuda.current_device() if device.index is None else device.index
    generator: torch.Generator = torch.cuda.default_generators[index]
    return generator


def check_precision(name: str, *others: str) -> None:
    """Check the name of a precision.

    Args:
        name: The name.
        others: Names that are allowed besides "auto", "fp32", and "bf16".

    Raises:
        InputError: There is no such precision.
    """
    if name not in (names := ("auto", *get_args(Precision), *others)):
        message = f"there is no precision {name!r}"
        hint = f"known: {', '.join(names)}"
        raise InputError("unknown_precision", message, argument="precision", hint=hint)


def resolve_device(name: str) -> torch.device:
    """Return the device of a name; in a distributed run, the GPU of this process.

    Args:
        name: A device name; "auto": a GPU if there is one, else the CPU.

    Raises:
        InputError: There is no such device.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
        if device.type not in ("cpu", "meta"):
            torch.empty(0, device=device)
    except (RuntimeError, AssertionError):
        message = f"there is no device {name!r} on this machine"
        hint = f"choose one of these: {_available_devices()}"
        raise InputError("unknown_device", message, argument="device", hint=hint) from None
    ranks = hardware.rank_info()
    is_distributed_gpu = ranks.world_size > 1 and device.type == "cuda"
    return torch.device("cuda", ranks.local_rank) if is_distributed_gpu else device


def is_cpu(name: str) -> bool:
    """Return True if a device name means the CPU, as "auto" does on a machine without a GPU."""
    return resolve_device(name).type == "cpu"


def _available_devices() -> str:
    gpus = [f"cuda:{index}" for index in range(torch.cuda.device_count())]
    return f"{', '.join(['cpu', 'cuda', *gpus])} or auto" if gpus else "cpu or auto (torch sees no GPU here)"
