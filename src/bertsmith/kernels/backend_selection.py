"""Selection of a kernel backend: compiled kernels if they are installed and faster, else PyTorch."""

from __future__ import annotations

import importlib
import importlib.util
import logging
import subprocess
import sys

import torch

from bertsmith.errors import InputError, option
from bertsmith.kernels import kernel_cache
from bertsmith.kernels.reference import REFERENCE, BackendName, KernelBackend

logger = logging.getLogger(__name__)

_CACHE_ERRORS = ("EOFError", "UnpicklingError")  # by name, since only Numba unpickles
_GPU_BACKENDS = ("flash", "triton")
_INSTALL_HINT = "install the extra: pip install 'bertsmith[fast]'"
_MIN_HIDDEN_SIZE = 128  # updates of smaller models are hundreds of calls that take as long with any backend


def resolve_backend_name(name: str, hidden_size: int) -> BackendName:
    """Return the backend for a CPU.

    Args:
        name: The setting `train.kernels`.
        hidden_size: The model's hidden size.

    Raises:
        InputError: The backend is not available.
    """
    if name == "auto":
        return "numba" if hidden_size >= _MIN_HIDDEN_SIZE and is_numba_available() else "torch"
    if name in _GPU_BACKENDS:
        message = f"the kernels {name!r} compute on a GPU, and this run is on the CPU"
        hint = f"leave it out, or choose a GPU: {option('train.device', 'cuda')}"
        raise InputError("kernels_need_gpu", message, argument="train.kernels", hint=hint)
    if name == "numba" and not is_numba_available():
        message = _unavailable_reason()
        hint = f"{_INSTALL_HINT}; or leave it out, or use {option('train.kernels', 'torch')}"
        raise InputError("numba_unavailable", message, argument="train.kernels", hint=hint)
    return "numba" if name == "numba" else "torch"


def is_numba_available() -> bool:
    """Return True if Numba is installed on Linux, where PyTorch brings GNU OpenMP along."""
    return sys.platform == "linux" and importlib.util.find_spec("numba") is not None


def load_backend(name: BackendName) -> KernelBackend:
    """Return a backend for a CPU; compile its kernels if that has not been done on this machine.

    Raises:
        InputError: The kernels cannot be compiled, as with a version of NumPy that Numba does not support.
    """
    if name == "torch":
        return REFERENCE
    try:
        if not kernel_cache.is_complete():
            logger.info("compiling kernels for this machine once: up to a minute ...")
            _compile_in_subprocess()
            if not kernel_cache.is_complete():
                compile_all()  # raises the error of the other process
        _import_kernels("bertsmith.kernels.cpu.training")
        from bertsmith.kernels.cpu.training import NumbaTrainingBackend
    except Exception as error:  # Numba's types of errors are unknown before it is imported
        reported = compile_error(error)
        alternative = f"or train without compiled kernels: {option('train.kernels', 'torch')}"
        message = reported.message
        raise InputError("kernels_not_compiled", message, hint=f"{reported.hint}, {alternative}") from None
    return NumbaTrainingBackend()


def missing_numba_error() -> InputError | None:
    """Return the error of a machine without compiled kernels; None if they are available."""
    if is_numba_available():
        return None
    return InputError("numba_unavailable", _unavailable_reason(), hint=_INSTALL_HINT)


def compile_error(error: Exception) -> InputError:
    """Return the error to report for an exception of Numba."""
    is_folder_missing = isinstance(error, OSError) or kernel_cache.cache_folder() is None
    hint = (
        "name a folder with room that can be written to in the environment variable NUMBA_CACHE_DIR"
        if is_folder_missing
        else "repair or remove Numba"
    )
    message = f"the kernels cannot be compiled here: {_first_line(error)}"
    return InputError("kernels_not_compiled", message, hint=hint)


def _unavailable_reason() -> str:
    is_linux = sys.platform == "linux"
    return "Numba is not installed" if is_linux else "there are compiled kernels on Linux only"


def compile_all() -> None:
    """Compile all kernels that are not in the cache, by importing them into this process."""
    try:
        importlib.import_module("bertsmith.kernels.cpu.inference")
    except Exception as error:
        _clear_damaged_cache(error)
        importlib.import_module("bertsmith.kernels.cpu.inference")
    else:
        kernel_cache.mark_complete()


def _compile_in_subprocess() -> None:
    """Compile all kernels in another process and wait for it; if it fails, the cache remains incomplete.

    In the process that compiles kernels, LLVM shares functions among them that each kernel in the cache has a copy
    of. Results then differ in the last bits from those of later processes, which load the cache.
    """
    for _ in range(2):  # The first process may find a damaged cache, and clear it.
        if kernel_cache.cache_folder() is None or kernel_cache.is_complete():
            return
        command = [sys.executable, "-P", "-m", "bertsmith.kernels.background_compile"]
        subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)


def _import_kernels(module: str) -> None:
    """Import a module of kernels; if the cache is damaged, compile them again."""
    try:
        importlib.import_module(module)
    except Exception as error:
        _clear_damaged_cache(error)
        _compile_in_subprocess()
        importlib.import_module(module)


def _clear_damaged_cache(error: Exception) -> None:
    """Clear the cache if an error says that it is damaged, as after a power failure; else raise the error."""
    if type(error).__name__ not in _CACHE_ERRORS:
        raise error
    logger.warning("the cache of compiled kernels is damaged: compiling them again, up to a minute ...")
    kernel_cache.clear()


def select_training_backend(name: str, hidden_size: int, *, waits: bool = True) -> KernelBackend:
    """Return the backend of a run on a CPU.

    With "auto" a run uses PyTorch, and logs it, if the kernels cannot be compiled. A run that does not wait also
    does so if they are not compiled yet; they are then compiled in the background for later runs.

    Args:
        name: The setting `train.kernels`.
        hidden_size: The model's hidden size.
        waits: Wait for compilation.

    Raises:
        InputError: The backend is not available.
    """
    resolved = resolve_backend_name(name, hidden_size)
    waits = waits or name != "auto" or resolved != "numba"
    if not waits and not kernel_cache.is_complete() and _can_import_numba():
        from bertsmith.kernels.background_compile import start_background_compile

        if kernel_cache.cache_folder() is None:
            logger.warning(
                "kernels are not compiled, since no folder for them can be written to: name one in the "
                "environment variable NUMBA_CACHE_DIR; torch computes without them, more slowly"
            )
            return REFERENCE
        start_background_compile()
        logger.info(
            "kernels are being compiled for this machine, once, in the background; until then torch computes "
            "without them"
        )
        return REFERENCE
    try:
        return load_backend(resolved)
    except InputError as error:
        if name != "auto":
            raise
        logger.warning("%s; torch computes without them, more slowly", error.message)
        return REFERENCE


def select_gpu_backend(name: str, device: torch.device, *, is_long: bool) -> KernelBackend:
    """Return the backend of a run in bf16 on a GPU; with "auto" the fastest one that works, and log failures.

    Args:
        name: The setting `train.kernels`.
        device: The GPU.
        is_long: True if the run is worth some seconds of compilation.

    Raises:
        InputError: The backend is not available.
    """
    if name == "torch":
        return REFERENCE
    if name == "numba":
        message = "the kernels 'numba' compute on the CPU, and this run is on a GPU"
        hint = f"leave it out, or compute on the CPU: {option('train.device', 'cpu')}"
        raise InputError("kernels_need_cpu", message, argument="train.kernels", hint=hint)
    from bertsmith.kernels.gpu import self_test

    backend: KernelBackend = REFERENCE
    names = [name] if name != "auto" else ["flash", "triton"] if is_long else ["flash"]
    for candidate_name in names:
        title, create = {"flash": ("flash attention", _flash_backend), "triton": ("Triton", _triton_backend)}[
            candidate_name
        ]
        if candidate_name == "triton":
            logger.info("compiling Triton kernels for this GPU: about 20 s the first time ...")
        try:
            candidate = create()
            self_test.check_backend(candidate, device)
        except Exception as error:  # Triton's types of errors are unknown before it is imported
            reason = _first_line(error)
            if name != "auto":
                message = f"{title} does not work on this machine: {reason}"
                hint = f"leave it out, or use {option('train.kernels', 'torch')}"
                raise InputError("kernels_fail", message, argument="train.kernels", hint=hint) from None
            fallback = "torch computes" if backend is REFERENCE else "flash attention and torch compute"
            logger.warning("%s does not work here (%s); %s without it, more slowly", title, reason, fallback)
            return backend
        backend = candidate
    return backend


def _flash_backend() -> KernelBackend:
    from bertsmith.kernels.gpu.torch_flash_attention import FlashBackend

    return FlashBackend()


def _triton_backend() -> KernelBackend:
    from bertsmith.kernels.gpu.triton_backend import TritonBackend

    return TritonBackend()


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def select_inference_backend(hidden_size: int) -> KernelBackend:
    """Return the backend of inference on a CPU, which does not wait for compilation."""
    if select_training_backend("auto", hidden_size, waits=False) is REFERENCE:
        return REFERENCE
    _import_kernels("bertsmith.kernels.cpu.inference")
    from bertsmith.kernels.cpu.inference import NumbaInferenceBackend

    return NumbaInferenceBackend()


def _can_import_numba() -> bool:
    """Return False with a version of NumPy that Numba does not support; `load_backend` then reports the error."""
    try:
        import numba  # noqa: F401
    except Exception:
        return False
    return True
