"""What this machine is, and what it does best: cores, memory, instruction sets, precision.

Nothing here is decided by a flag alone: whether bf16 pays is measured, since units that a processor lists
may be missing, emulated or slow.
"""

from __future__ import annotations

import errno
import gc
import os
import platform
import resource
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import torch

from bertsmith.errors import InputError
from bertsmith.formatting import counted

Precision = Literal["fp32", "bf16"]

_BYTES_A_PARAMETER = 16  # fp32: the weight, its gradient, AdamW's two moments
_PROBE_SIZE = 512
_PROBE_SIZE_ELSEWHERE = 4096  # a GPU's units are not filled by less
_PROBE_PRODUCTS = 5  # in each of the two precisions, in turn
_PROBE_ROWS = 256  # of a product of integers
_FEW = 128  # rows and columns of a product of integers, which may take milliseconds
_ZEN_5 = 26  # AMD's number of that family; later ones have higher numbers
_BF16_PAYS = 1.2  # a smaller gain is eaten by the conversions around each product


@dataclass(frozen=True)
class Machine:
    """What a person would want to know before a run. memory in bytes; gpus as (name, bytes of memory)."""

    system: str
    processor: str
    cores: int
    memory: int
    instruction_sets: tuple[str, ...]
    gpus: tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class PrecisionChoice:
    """The precision that compute would run in, and the sentence that says why."""

    precision: Precision
    reason: str


def allowed_cores() -> int:
    """Cores this process may use: its affinity, cut by the container's CPU quota. At least 1."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)
    try:  # cgroup v2: "max 100000" or "200000 100000"
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        if quota != "max":
            cores = min(cores, max(1, int(quota) // int(period)))
    except (OSError, ValueError):
        pass
    return cores


def own_cores() -> int:
    """Cores for this process: those that are allowed, shared out among the processes of a run. At least 1."""
    return max(1, allowed_cores() // rank_info().local_world_size)


def memory_bytes(device: torch.device | None = None) -> int:
    """Memory this process may use: the machine's, cut by the container's and the shell's limits, or a GPU's; 0
    where it cannot be told."""
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


def check_memory(parameters: int, allowed: int) -> None:
    """InputError where a model of so many parameters cannot be trained in the memory that is allowed, in bytes (0:
    nobody knows). Counted is what is there at each moment of training; activations come on top."""
    needed = parameters * _BYTES_A_PARAMETER
    if allowed and needed > allowed:
        raise InputError(
            f"a model of {parameters / 1e6:,.0f} million parameters takes {needed / 1e9:,.1f} GB to train "
            f"(weights, gradients, AdamW's two moments); {allowed / 1e9:,.1f} GB may be used here",
            "choose a smaller preset, or lower model.hidden_size, intermediate_size or num_hidden_layers",
        )


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that there was no memory for something: Python's, torch's on a processor or a GPU."""
    if isinstance(error, MemoryError):
        return True
    known = type(error).__name__ == "OutOfMemoryError" or "DefaultCPUAllocator" in str(error)
    return isinstance(error, RuntimeError) and known


def is_disk_full(error: BaseException) -> bool:
    """Whether an error says that the disk, or the user's share of it, is full."""
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


def describe() -> Machine:
    """Look at the machine. Imports torch only to ask for GPUs."""
    import torch

    gpus = tuple(
        (torch.cuda.get_device_name(i), torch.cuda.get_device_properties(i).total_memory)
        for i in range(torch.cuda.device_count())
    )
    processor = _processor()
    flags = (processor.get("flags") or processor.get("Features", "")).split()  # the latter on Arm
    kept = ("avx2", "avx512f", "avx512_bf16", "amx_bf16", "avx512_vnni", "amx_int8", "asimd", "bf16", "sve")
    return Machine(
        system=f"{platform.system()} {platform.machine()}, Python {platform.python_version()}, "
        f"torch {torch.__version__}",
        processor=processor.get("model name") or platform.processor() or platform.machine(),
        cores=allowed_cores(),
        memory=memory_bytes(),
        instruction_sets=tuple(name for name in kept if name in flags),
        gpus=gpus,
    )


@cache
def choose_precision(device: torch.device | None = None) -> PrecisionChoice:
    """bf16 where its matrix product is really faster on the device (None: the processor), fp32 elsewhere; a probe
    of some 100 ms, once. It is for where nothing is trained: before that, updates are timed
    (`training/execution_benchmark.py`).

    Products are made in turn on one thread, whose own time counts, and of each kind the quickest: a busy machine
    must not answer otherwise than an idle one."""
    import torch

    where = torch.device("cpu") if device is None else device
    size, now = (
        (_PROBE_SIZE, time.thread_time) if where.type == "cpu" else (_PROBE_SIZE_ELSEWHERE, time.perf_counter)
    )
    with _on_one_thread():
        rates = [
            [product_rate(where, kind, size, 0.0, now) / 1e9 for kind in ("fp32", "bf16")]
            for _ in range(_PROBE_PRODUCTS)
        ]
    full, half = (max(of_kind) for of_kind in zip(*rates, strict=True))
    on = " on one thread" if where.type == "cpu" else ""
    measured = f"a bf16 product ran at {half:,.0f} GFLOP/s here{on}, an fp32 one at {full:,.0f}"
    return PrecisionChoice("bf16" if half > _BF16_PAYS * full else "fp32", measured)


def product_rate(
    device: torch.device,
    precision: Precision,
    size: int,
    seconds: float,
    now: Callable[[], float] = time.perf_counter,
) -> float:
    """Operations a second of a product of two square matrices of `size` rows, measured for so long by a clock, and
    once at least."""
    import torch

    a = torch.ones(size, size, dtype=torch.bfloat16 if precision == "bf16" else torch.float32, device=device)
    torch.mm(a, a)[0, 0].item()
    products, begin = 0, now()
    while not products or now() - begin < seconds:
        torch.mm(a, a)[0, 0].item()  # the number is waited for: some devices answer before they compute
        products += 1
    return products * 2 * size**3 / (now() - begin)


@cache
def onednn_is_faster() -> bool:
    """Whether the processor's fp32 products are quicker by oneDNN than by MKL, which torch takes for them. MKL
    uses no 512-bit registers on AMD's processors: from Zen 5 on, whose units are as wide, it is at half their rate
    (79 GFLOP/s on one thread where oneDNN has 171); on Zen 3 and Zen 4 both are about as fast.

    The processor alone decides. A product's last digits depend on this, so that a probe, which a busy machine can
    mislead, would have a resumed run, or one of several processes, compute something else.
    """
    import torch

    here = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    if not here or not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        return False
    processor = _processor()
    is_wide = "avx512f" in processor.get("flags", "").split()
    family = processor.get("cpu family", "")
    of_amd = processor.get("vendor_id") == "AuthenticAMD" and family.isdecimal()
    return of_amd and is_wide and int(family) >= _ZEN_5


@cache
def multiplies_integers() -> bool:
    """Whether products of 8-bit integers, as torch makes them, are quicker here than those in fp32. Where the
    processor has no instructions for them torch multiplies number by number, which takes fifty times as long. A
    probe of some 20 ms, once, in turn on one thread."""
    import torch

    x, y = (torch.ones(shape, dtype=torch.int8) for shape in ((_FEW, _PROBE_ROWS), (_PROBE_ROWS, _FEW)))
    full_x, full_y = x.float(), y.float()
    ways = (lambda: torch._int_mm(x, y), lambda: torch.mm(full_x, full_y))
    with torch.no_grad(), _on_one_thread():
        seconds = [[_seconds_of(way) for way in ways] for _ in range(_PROBE_PRODUCTS)]
    integers, full = (min(of_way) for of_way in zip(*seconds[1:], strict=True))
    return bool(integers < full)


@contextmanager
def _on_one_thread() -> Iterator[None]:
    import torch

    threads = torch.get_num_threads()
    use_threads(1)
    try:
        yield
    finally:
        use_threads(threads)


def _seconds_of(work: Callable[[], Any]) -> float:
    """That this thread has computed for it: what other work takes of a core does not count."""
    begin = time.thread_time()
    work()
    return time.thread_time() - begin


def name_of(device: torch.device) -> str:
    """A device as people call it: the GPU's name, or the number of threads of the processor."""
    import torch

    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    if device.type != "cpu":
        return str(device)
    return counted(torch.get_num_threads(), "thread")


def clock() -> float:
    """Seconds since some moment: what all that takes time is measured by."""
    return time.perf_counter()


def asked_threads() -> int | None:
    """OMP_NUM_THREADS, where the user has set it to a number: how many threads to compute on."""
    first = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    return int(first) if first.isascii() and first.isdigit() and int(first) else None


@dataclass(frozen=True)
class RankInfo:
    """The rank of this process among those that torchrun has started, and its rank on this machine."""

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_world_size: int = 1

    @property
    def is_main(self) -> bool:
        """True on rank 0."""
        return self.rank == 0


def rank_info() -> RankInfo:
    """Return the rank of this process, from torchrun's environment variables; rank 0 of 1 without them.

    Raises InputError for numbers that cannot be.
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
            f"the environment has RANK={values[0]!r} and WORLD_SIZE={values[1]!r}, which are no process of "
            "several",
            "start several processes with torchrun, or unset both for one",
        )
    return RankInfo(rank, world_size, max(0, local_rank), max(1, local_world_size))


def check_one_process(what: str) -> None:
    """InputError where torchrun has started several processes for what only one can do."""
    if (world_size := rank_info().world_size) > 1:
        raise InputError(
            f"{what} works in one process, and torchrun has started {world_size} of it",
            "start it without torchrun; several processes share out `bertsmith pretrain` and `bertsmith distill`",
        )


def brief_waits() -> dict[str, str]:
    """The environment of a process whose threads wait for each other for some microseconds and then give their
    core away. Empty where the user has set how they are to wait.

    By default they wait hundreds of times as long, so that beside other work each of them takes the time that
    another one needs. Where they sleep at once, a small model, whose operations are short, takes a third longer.
    """
    if {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"} & os.environ.keys():
        return {}
    return {"GOMP_SPINCOUNT": "3000"} if sys.platform == "linux" else {"OMP_WAIT_POLICY": "PASSIVE"}


def have_threads_wait_briefly() -> None:
    """Have this process's threads wait so; before torch is loaded. Python's users set the variables themselves:
    the library cannot once torch is loaded."""
    os.environ.update(brief_waits())


def of_child(**more: str) -> dict[str, str]:
    """The environment of a process of ours (`python -P -m …`), with what is given on top.

    The package may be here by a path that a new process does not have. Never by the current folder (-P, no empty
    name in the path): a json.py beside a downloaded corpus would run.
    """
    home = str(Path(__file__).parents[1])
    known = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    return {**os.environ, "PYTHONPATH": os.pathsep.join([home, *known]), **more}


def use_threads(count: int) -> None:
    """Compute on so many threads from now on."""
    import torch

    if torch.get_num_threads() != count:
        torch.set_num_threads(count)


def prepare_process(threads: int | None = None) -> int:
    """Settings of the process that make long numeric work fast; to be called before the first tensor.

    threads: for torch; None = OMP_NUM_THREADS, or the cores that are really for it. Returns the number set.
    Denormal numbers are flushed to zero (rows of AdamW's state that were seen once decay into them, and a product
    with a denormal costs some 30 times a normal one), and glibc is told to keep freed memory instead of giving
    each large block back to the kernel and faulting it in again at every step.
    """
    import torch

    count = threads or asked_threads() or own_cores()
    torch.set_flush_denormal(True)
    use_threads(count)
    m_trim_threshold, m_mmap_max = -1, -4  # malloc.h
    _tell_malloc({m_mmap_max: 0, m_trim_threshold: 2**31 - 1})
    return count


@contextmanager
def importing() -> Iterator[None]:
    """Where torch and what stands on it are imported: Python's garbage collector rests, and leaves alone for good
    what was made. It would go through all of torch's objects several times: a sixth of the time of the import."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_on:
            gc.enable()


def return_freed_memory() -> None:
    """Have this process hand blocks of 4 MiB and more back to the system when they are free (glibc; elsewhere
    nothing).

    By default glibc keeps ever larger ones for itself, and a process that works on arrays of some MB in turn goes
    on growing. Smaller blocks stay: fetched anew each time they cost more than the work on them.
    `prepare_process` asks for the opposite, which training is faster with.
    """
    m_trim_threshold, m_mmap_threshold = -1, -3  # malloc.h
    _tell_malloc({m_mmap_threshold: 1 << 22, m_trim_threshold: 1 << 26})


def _tell_malloc(options: Mapping[int, int]) -> None:
    """Set options of glibc's malloc; elsewhere nothing."""
    if sys.platform == "linux" and platform.libc_ver()[0] == "glibc":
        import ctypes  # some milliseconds, which --help has not to spare

        libc = ctypes.CDLL(None)
        for option, value in options.items():
            libc.mallopt(option, value)


def _processor() -> dict[str, str]:
    """What Linux lists of the first processor, by name; elsewhere nothing."""
    try:
        first, _, _ = Path("/proc/cpuinfo").read_text().partition("\n\n")
    except OSError:
        return {}
    fields = (line.partition(":") for line in first.splitlines())
    return {name.strip(): value.strip() for name, _, value in fields}
