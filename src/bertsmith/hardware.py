"""Information about the hardware (cores, memory, instruction sets, precision), and settings of the process."""

from __future__ import annotations

import errno
import gc
import os
import platform
import resource
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import torch

from bertsmith.errors import InputError, command
from bertsmith.formatting import pluralize

Precision = Literal["fp32", "bf16"]

_TRAINING_BYTES_PER_PARAMETER = 16  # fp32: the weight, its gradient, AdamW's two moments
_BF16_INSTRUCTIONS = ("avx512_bf16", "amx_bf16")  # of matrix products
_INT8_INSTRUCTIONS = ("avx512_vnni", "amx_int8")  # with which torch's int8 products are fast and exact
_REPORTED_FLAGS = ("avx2", "avx512f", *_BF16_INSTRUCTIONS, *_INT8_INSTRUCTIONS, "asimd", "bf16", "sve")
_ZEN_FAMILY = 23  # AMD's CPU family of the first Zen; later ones have higher numbers


def available_cores() -> int:
    """Return the number of cores that CPU affinity and the container's quota allow this process, at least 1."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)
    try:  # cgroup v2: "max 100000" or "200000 100000"
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        if quota != "max":
            cores = min(cores, max(1, int(quota) // int(period)))
    except (OSError, ValueError):
        pass
    return cores


def memory_bytes(device: torch.device | None = None) -> int:
    """Return the bytes of a GPU's memory, or of the memory that this process may use; 0 if unknown.

    The latter is the least of the machine's memory, the container's limit, and `ulimit -v`.

    Args:
        device: The GPU; None or a CPU: the memory of the process.
    """
    if device is not None and device.type == "cuda":
        import torch

        return int(torch.cuda.get_device_properties(device).total_memory)
    try:
        limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    except (AttributeError, OSError, ValueError):
        return 0
    for file in ("memory.max", "memory/memory.limit_in_bytes"):  # cgroup v2 ("max" for none), v1
        with suppress(OSError, ValueError):
            limits.append(int((Path("/sys/fs/cgroup") / file).read_text()))
    address_space = resource.getrlimit(resource.RLIMIT_AS)[0]  # ulimit -v
    return min([*limits, address_space] if address_space != resource.RLIM_INFINITY else limits)


def training_bytes(num_parameters: int) -> int:
    """Return the bytes of weights, gradients, and AdamW's state; activations are not counted."""
    return num_parameters * _TRAINING_BYTES_PER_PARAMETER


def check_memory(num_parameters: int, limit: int) -> None:
    """Check that weights, gradients, and optimizer state fit into memory; activations are not counted.

    Args:
        num_parameters: The number of trained parameters of the model.
        limit: Bytes of memory; 0: unknown, and nothing is checked.

    Raises:
        InputError: They do not fit.
    """
    needed = training_bytes(num_parameters)
    if limit and needed > limit:
        raise InputError(
            "model_too_large",
            f"a model of {num_parameters / 1e6:,.0f} million parameters takes {needed / 1e9:,.1f} GB to train "
            f"(weights, gradients, AdamW's two moments); {limit / 1e9:,.1f} GB may be used here",
            hint="choose a smaller preset, or lower model.hidden_size, model.intermediate_size, or "
            "model.num_hidden_layers",
        )


def is_out_of_memory(error: BaseException) -> bool:
    """Return True if an error means that memory ran out: on the CPU, on a GPU, for a thread, or for a library."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    texts = ("DefaultCPUAllocator", "start new thread", "failed to map segment", "annot allocate memory")
    return isinstance(error, RuntimeError | ImportError) and any(text in str(error) for text in texts)


def is_disk_full(error: BaseException) -> bool:
    """Return True if an error means that the disk or the user's quota is full."""
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


def describe() -> dict[str, Any]:
    """Return a description of the machine; imports torch for the GPUs.

    Returns:
        `system` (operating system, architecture, and versions of Python and torch), `processor` (the name of the
        CPU), `cores` and `memory_gib` (that this process may use), `instruction_sets` (those that matter for the
        kernels), and `gpus` (name and memory of each).
    """
    import torch

    gpus = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
    return {
        "system": f"{platform.system()} {platform.machine()}, Python {platform.python_version()}, "
        f"torch {torch.__version__}",
        "processor": _cpu_info().get("model name") or platform.processor() or platform.machine(),
        "cores": available_cores(),
        "memory_gib": round(memory_bytes() / 2**30, 1),
        "instruction_sets": [name for name in _REPORTED_FLAGS if name in _cpu_flags()],
        "gpus": [{"name": gpu.name, "memory_gib": round(gpu.total_memory / 2**30, 1)} for gpu in gpus],
    }


def choose_precision(device: torch.device | None = None) -> Precision:
    """Return bf16 if a device (None: the CPU) multiplies matrices faster in bf16, else fp32.

    Processors with AMX do, and AMD's with AVX512-BF16. Intel's with AVX512-BF16 alone have one unit for it and two
    for fp32. A measurement might choose otherwise under load, and the same command would give another model.
    """
    if device is not None and device.type == "cuda":
        import torch

        return "bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "fp32"
    is_cpu = device is None or device.type == "cpu"
    is_faster = "amx_bf16" in _cpu_flags() or ("avx512_bf16" in _cpu_flags() and _is_amd())
    return "bf16" if is_cpu and is_faster else "fp32"


@cache
def onednn_is_faster() -> bool:
    """Return True on AMD's Zen processors, where oneDNN multiplies fp32 matrices faster than torch's default, MKL.

    MKL uses no 512-bit registers there: on one thread of a Zen 5, MKL reaches 95 GFLOP/s and oneDNN 190. With AVX2
    only, oneDNN is 0.99 to 1.08 times as fast.

    The result depends on the processor alone, not on a measurement: the last digits of a product depend on the
    library, and a measurement under load could differ in a resumed run or in one of several processes.
    """
    import torch

    has_onednn = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    if not has_onednn or not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        return False
    family = _cpu_info().get("cpu family", "")
    is_zen = _is_amd() and family.isdecimal() and int(family) >= _ZEN_FAMILY
    return is_zen and "avx2" in _cpu_flags()


def _is_amd() -> bool:
    return _cpu_info().get("vendor_id") == "AuthenticAMD"


def has_int8_matmul() -> bool:
    """Return True if torch multiplies int8 matrices exactly, and faster than fp32 matrices, on this CPU.

    Without these instructions torch multiplies one number at a time, and oneDNN's products overflow.
    """
    return not _cpu_flags().isdisjoint(_INT8_INSTRUCTIONS)


def device_name(device: torch.device) -> str:
    """Return a device's name for messages: the GPU's name, or the number of CPU threads."""
    import torch

    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    if device.type != "cpu":
        return str(device)
    return pluralize(torch.get_num_threads(), "thread")


def num_threads(configured: int | None = None) -> int:
    """Return this process's number of threads: as configured, or OMP_NUM_THREADS, or its part of the cores."""
    return configured or omp_num_threads() or max(1, available_cores() // rank_info().local_world_size)


def clock() -> float:
    """Return the seconds of a monotonic clock; tests replace this function."""
    return time.perf_counter()


def omp_num_threads() -> int | None:
    """Return the number of threads that OMP_NUM_THREADS sets; None if it sets none."""
    first = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    return int(first) if first.isascii() and first.isdigit() and int(first) else None


@dataclass(frozen=True)
class RankInfo:
    """The rank of this process in a distributed run, as torchrun sets it in the environment.

    Attributes:
        rank: The global rank.
        world_size: The number of processes.
        local_rank: The rank among the processes of this machine.
        local_world_size: The number of processes of this machine.
    """

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_world_size: int = 1

    @property
    def is_main(self) -> bool:
        """True on rank 0."""
        return self.rank == 0


def rank_info() -> RankInfo:
    """Return the rank that torchrun gave this process; rank 0 of 1 without torchrun.

    Raises:
        InputError: RANK and WORLD_SIZE contradict each other.
    """
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    values = [os.environ.get(name, "") for name in names]
    if not values[0] or not values[1]:
        return RankInfo()
    rank, world_size, local_rank, local_world_size = (
        int(value) if value.isascii() and value.isdigit() else -1 for value in values
    )
    if not 0 <= rank < world_size:
        raise InputError(
            "invalid_rank",
            f"the environment variables RANK={values[0]!r} and WORLD_SIZE={values[1]!r} are not a valid rank",
            hint="start several processes with torchrun, or unset both variables for one process",
        )
    return RankInfo(rank, world_size, max(0, local_rank), max(1, local_world_size))


def check_single_process(command_name: str) -> None:
    """Check that torchrun did not start several processes of a command that runs in one.

    Args:
        command_name: The name of the command, for the message.

    Raises:
        InputError: torchrun started several processes.
    """
    if (rank := rank_info()).world_size > 1:
        raise InputError(
            "single_process_only",
            f"{command_name} works in one process, but torchrun has started {rank.world_size} of it",
            hint=f"start it without torchrun; only {command('pretrain')} and {command('distill')} run in several "
            "processes",
        )


def thread_wait_policy() -> dict[str, str]:
    """Return environment variables by which waiting OpenMP threads spin for microseconds and then sleep.

    By default they spin hundreds of times as long, which under load takes CPU time from the threads that they wait
    for. If they slept at once, a small model, whose operations are short, would take a third longer.

    With a limit on memory (`ulimit -v`), OpenBLAS has one thread: it would wait forever for the memory of others.

    Returns:
        The variables, which have no effect once torch and SciPy are loaded; no policy if the user has set one.
    """
    is_limited = resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY
    variables = {"OPENBLAS_NUM_THREADS": "1"} if is_limited else {}
    if {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"} & os.environ.keys():
        return variables
    policy = {"GOMP_SPINCOUNT": "3000"} if sys.platform == "linux" else {"OMP_WAIT_POLICY": "PASSIVE"}
    return {**variables, **policy}


def subprocess_environment(**variables: str) -> dict[str, str]:
    """Return the environment of a child process (`python -P -m …`) that imports this package.

    PYTHONPATH contains the folder of the package, which a new process might not have in its path. It never
    contains the current folder (-P, and no empty entry), since a json.py next to a downloaded corpus would be
    imported.

    Args:
        variables: Environment variables to add.
    """
    source = str(Path(__file__).parents[1])
    entries = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    return {**os.environ, "PYTHONPATH": os.pathsep.join([source, *entries]), **variables}


def set_num_threads(count: int) -> None:
    """Set the number of threads that torch computes on; do nothing if it is set."""
    import torch

    if torch.get_num_threads() != count:
        torch.set_num_threads(count)


def configure_process(threads: int | None = None) -> int:
    """Set up this process for long numeric work; call it before the first tensor is created.

    The number of threads, on which the order of sums depends, is fixed. Denormal numbers are flushed to zero:
    AdamW's moments of embeddings that are seldom used decay into them, and a product with a denormal takes about
    30 times as long. glibc keeps freed memory, instead of returning each large block to the kernel and getting it
    back by page faults in every step.

    Args:
        threads: The number of torch's threads; None: that of `num_threads`.

    Returns:
        The number of threads.
    """
    import ctypes  # imported here to keep --help fast

    import torch

    count = num_threads(threads)
    torch.set_flush_denormal(True)
    torch.set_num_threads(count)  # even if it is the number already: MKL then uses no fewer of its own accord
    if omp_set_dynamic := getattr(ctypes.CDLL(None), "omp_set_dynamic", None):
        omp_set_dynamic(0)  # OMP_DYNAMIC=true would use fewer threads on a busy machine
    m_trim_threshold, m_mmap_max = -1, -4  # malloc.h
    _set_malloc_options({m_mmap_max: 0, m_trim_threshold: 2**31 - 1})
    return count


@contextmanager
def import_without_gc() -> Iterator[None]:
    """Return a context manager for the import of torch, without garbage collection.

    During the import, the collector would traverse all objects of torch several times, a sixth of the import's
    time. Afterwards all existing objects are exempt from collection (`gc.freeze`).
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_enabled:
            gc.enable()


def return_freed_memory() -> None:
    """Make glibc return freed blocks of 4 MiB and more to the system.

    By default glibc raises the size from which it returns blocks, so that a process that allocates arrays of some
    MB one after another keeps growing. Smaller blocks are kept: to request them again takes longer than the work
    on them. `configure_process` sets the opposite, which makes training faster.
    """
    m_trim_threshold, m_mmap_threshold = -1, -3  # malloc.h
    _set_malloc_options({m_mmap_threshold: 1 << 22, m_trim_threshold: 1 << 26})


def _set_malloc_options(options: Mapping[int, int]) -> None:
    """Set options of glibc's malloc; elsewhere do nothing."""
    if sys.platform == "linux" and platform.libc_ver()[0] == "glibc":
        import ctypes  # imported here to keep --help fast

        libc = ctypes.CDLL(None)
        for name, value in options.items():
            libc.mallopt(name, value)


def _cpu_flags() -> set[str]:
    """Return the instruction sets that the CPU lists ("Features" on Arm)."""
    cpu_info = _cpu_info()
    return set((cpu_info.get("flags") or cpu_info.get("Features", "")).split())


@cache
def _cpu_info() -> dict[str, str]:
    """Return the fields of the first CPU in /proc/cpuinfo; empty on other systems than Linux."""
    try:
        first, _, _ = Path("/proc/cpuinfo").read_text().partition("\n\n")
    except OSError:
        return {}
    fields = (line.partition(":") for line in first.splitlines())
    return {name.strip(): value.strip() for name, _, value in fields}
