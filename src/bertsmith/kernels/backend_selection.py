"""Which kernels a run computes with: compiled ones where they are installed and pay, else torch's operations."""

from __future__ import annotations

import importlib
import importlib.util
import logging
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import torch

from bertsmith.errors import InputError, option
from bertsmith.kernels.reference import REFERENCE, BackendName, KernelBackend

logger = logging.getLogger(__name__)

_HERE = Path(__file__).parent / "cpu"
_BODIES = (
    "attention_fp32",
    "embedding",
    "fused_adamw",
    "layer_norm",
    "program",
    "quantize",
    "row_kernels",
)
_WHOLE = "bertsmith-kernels.whole"  # stands beside what Numba has kept, once all of it is there
_DAMAGED = ("EOFError", "UnpicklingError")  # by their names: nothing of ours unpickles
_ON_A_GPU = ("flash", "triton")
_EXTRA = "install the extra: pip install 'bertsmith[fast]'"
_PAY_FROM = 128  # columns: a narrower model's updates are hundreds of calls, whatever these compute


def resolve_backend_name(asked: str, width: int) -> BackendName:
    """The kernels of a model of this width, where "auto" leaves them to us. InputError where what is asked for is
    not here."""
    if asked == "auto":
        return "numba" if width >= _PAY_FROM and is_numba_available() else "torch"
    if asked in _ON_A_GPU:
        raise InputError(
            "kernels_need_gpu",
            f"the kernels {asked!r} compute on a GPU, and this run is on the CPU",
            argument="train.kernels",
            hint=f"leave it out, or choose a GPU: {option('train.device', 'cuda')}",
        )
    if asked == "numba" and not is_numba_available():
        raise InputError(
            "numba_unavailable",
            _why_not_here(),
            argument="train.kernels",
            hint=f"{_EXTRA}; or leave it out, or use {option('train.kernels', 'torch')}",
        )
    return "numba" if asked == "numba" else "torch"


def is_numba_available() -> bool:
    """Whether compiled kernels can be used: they need Numba, and GNU's threads, which torch has on Linux."""
    return sys.platform == "linux" and importlib.util.find_spec("numba") is not None


def load_backend(name: BackendName) -> KernelBackend:
    """The kernels of this name. Those of Numba are compiled now where that has not been done on this machine.
    InputError where it cannot be, as with a NumPy that Numba does not know."""
    if name == "torch":
        return REFERENCE
    try:
        if not _are_compiled():
            logger.info("compiling kernels for this machine once: up to a minute ...")
            compile_all()
        _imported("bertsmith.kernels.cpu.training")  # takes Numba along
        from bertsmith.kernels.cpu.training import NumbaTrainingBackend
    except Exception as error:  # Numba's are of no type that is known before it is loaded
        found = compile_error(error)
        without = f"or train without compiled kernels: {option('train.kernels', 'torch')}"
        raise InputError("kernels_not_compiled", found.message, hint=f"{found.hint}, {without}") from None
    return NumbaTrainingBackend()


def missing_numba_error() -> InputError | None:
    """What is said where there are no kernels to compile."""
    return None if is_numba_available() else InputError("numba_unavailable", _why_not_here(), hint=_EXTRA)


def compile_error(error: Exception) -> InputError:
    """What is said of what Numba raised."""
    is_of_place = isinstance(error, OSError) or not _can_keep()
    remedy = (
        "name a folder with room that can be written to in the environment variable NUMBA_CACHE_DIR"
        if is_of_place
        else "repair or remove Numba"
    )
    return InputError(
        "kernels_not_compiled", f"the kernels cannot be compiled here: {_why(error)}", hint=remedy
    )


def _why_not_here() -> str:
    is_linux = sys.platform == "linux"
    return "Numba is not installed" if is_linux else "there are compiled kernels on Linux only"


def compile_all() -> None:
    """Have all bodies compiled that are not yet: importing them does it. What Numba has kept of them then counts
    as new: of a file that was written again as it was, as by an installation, it goes on using the older code."""
    _imported("bertsmith.kernels.cpu.inference")
    for folder in _folders():
        found = [kept for name in _BODIES for kept in _kept_of(name, folder)]
        for kept in [*found, folder / _WHOLE] if found else []:
            with suppress(OSError):  # a folder that is another user's
                kept.touch()


def _imported(module: str) -> None:
    """Import kernels. Where what Numba has kept of them is damaged, as when a machine lost its power, it is
    removed, and they are compiled again."""
    try:
        importlib.import_module(module)
    except Exception as error:
        if type(error).__name__ not in _DAMAGED:
            raise
        logger.warning("the cache of compiled kernels is damaged: compiling them again, up to a minute ...")
        for folder in _folders():
            (folder / _WHOLE).unlink(missing_ok=True)  # what is not imported here is not there any more
            for body in _HERE.glob("*.py"):
                for kept in folder.glob(f"{body.stem}.*.nb[ic]"):
                    kept.unlink()
        importlib.import_module(module)


def select_training_backend(asked: str, width: int, *, is_long: bool = True) -> KernelBackend:
    """The kernels that a run of this width computes with. asked: as `train.kernels` has it; under "auto" torch's
    operations compute where Numba cannot, which is logged, and in a run that is not long where the kernels have
    not been compiled yet: that is then done beside it, for the runs to come. InputError where what is asked for
    cannot be had."""
    name = resolve_backend_name(asked, width)
    if asked == "auto" and name == "numba" and not is_long and not _are_compiled() and _is_whole():
        from bertsmith.kernels.background_compile import start_background_compile

        if not _can_keep():
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
        return load_backend(name)
    except InputError as error:
        if asked != "auto":
            raise
        logger.warning("%s; torch computes without them, more slowly", error.message)
        return REFERENCE


def select_gpu_backend(asked: str, device: torch.device, *, is_long: bool) -> KernelBackend:
    """The kernels of a run in bf16 on a GPU; asked: as `train.kernels` has it. is_long: whether some seconds for
    compiling are soon won back. Under "auto" what does not work here is done without, which is told. InputError
    where what is asked for cannot be had."""
    if asked == "torch":
        return REFERENCE
    if asked == "numba":
        raise InputError(
            "kernels_need_cpu",
            "the kernels 'numba' compute on the CPU, and this run is on a GPU",
            argument="train.kernels",
            hint=f"leave it out, or compute on the CPU: {option('train.device', 'cpu')}",
        )
    from bertsmith.kernels.gpu import self_test

    found: KernelBackend = REFERENCE
    wanted = [asked] if asked != "auto" else ["flash", "triton"] if is_long else ["flash"]
    for name in wanted:
        what, made = {"flash": ("flash attention", _flash), "triton": ("Triton", _by_triton)}[name]
        if name == "triton":
            logger.info(
                "programs of Triton are compiled for this GPU: for some twenty seconds the first time ..."
            )
        try:
            kernels = made()
            self_test.check_backend(kernels, device)
        except Exception as error:  # Triton's are of no type that is known before it is loaded
            why = _why(error)
            if asked != "auto":
                raise InputError(
                    "kernels_fail",
                    f"{what} does not work on this machine: {why}",
                    argument="train.kernels",
                    hint=f"leave it out, or use {option('train.kernels', 'torch')}",
                ) from None
            instead = "torch computes" if found is REFERENCE else "flash attention and torch compute"
            logger.warning("%s does not work here (%s); %s without it, more slowly", what, why, instead)
            return found
        found = kernels
    return found


def _flash() -> KernelBackend:
    from bertsmith.kernels.gpu.torch_flash_attention import FlashBackend

    return FlashBackend()


def _by_triton() -> KernelBackend:
    """Torch brings Triton along for a GPU on Linux."""
    from bertsmith.kernels.gpu.triton_backend import TritonBackend

    return TritonBackend()


def _why(error: BaseException) -> str:
    """The first line of what an error says."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def select_inference_backend(width: int) -> KernelBackend:
    """The kernels of a model of this width that answers: the same, also where nothing is trained. An answer does
    not wait for kernels that have not been compiled yet: torch computes it, and they are compiled beside."""
    if select_training_backend("auto", width, is_long=False) is REFERENCE:
        return REFERENCE
    _imported("bertsmith.kernels.cpu.inference")
    from bertsmith.kernels.cpu.inference import NumbaInferenceBackend

    return NumbaInferenceBackend()


def _is_whole() -> bool:
    """Whether Numba can be imported: with some versions of NumPy it cannot, which `of_name` tells."""
    try:
        import numba  # noqa: F401
    except Exception:  # of no type that is known before
        return False
    return True


def _are_compiled() -> bool:
    """Whether Numba has kept compiled code of ours as it is now."""
    written = max(body.stat().st_mtime for body in _HERE.glob("*.py"))
    return any(
        all(_is_kept(name, folder) for name in _BODIES) and _is_since(folder / _WHOLE, written)
        for folder in _folders()
    )


def _folders() -> Iterator[Path]:
    """Those in which Numba may have kept code: in the folder that it is told or, where that cannot be written to,
    beside the code or in the user's cache."""
    if (place := os.environ.get("NUMBA_CACHE_DIR")) and _is_writable(Path(place)):
        yield from Path(place).glob("**")
        return
    beside, users = _elsewhere()
    yield beside
    yield from users.glob("**")


def _elsewhere() -> tuple[Path, Path]:
    """Where Numba keeps code that it is told no folder for: beside it, or in the user's cache."""
    users = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return _HERE / "__pycache__", users / "numba"


def _can_keep() -> bool:
    """Whether Numba finds a folder to keep code in."""
    told = os.environ.get("NUMBA_CACHE_DIR")
    return any(_is_writable(folder) for folder in (*([Path(told)] if told else []), *_elsewhere()))


def _is_writable(folder: Path) -> bool:
    """As Numba finds out itself; the folder is there afterwards."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError:
        return False
    return True


def _kept_of(name: str, folder: Path) -> Iterator[Path]:
    """What says in a folder which code was kept of a body's file."""
    return folder.glob(f"{name}.*.nbi")


def _is_kept(name: str, folder: Path) -> bool:
    """Whether what was compiled of a body's file since it was last written lies in a folder."""
    written = (_HERE / f"{name}.py").stat().st_mtime
    return any(_is_since(kept, written) for kept in _kept_of(name, folder))


def _is_since(file: Path, when: float) -> bool:
    """Whether a file was written then or later."""
    return file.is_file() and file.stat().st_mtime >= when
