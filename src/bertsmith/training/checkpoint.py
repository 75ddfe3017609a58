"""Checkpoints that are whole or not there, verified when read, pruned when superseded.

A checkpoint is written into a hidden folder, all of it is on the disk before that gets its name, and a manifest of
sizes and digests vouches for each file. Whatever is killed at whatever moment, a folder named step-N is whole,
and what a crash leaves behind has a name that nobody reads. Files signed anew by somebody else are read through
typed schemas and compared with the model they are for, like damaged ones.
"""

from __future__ import annotations

import errno
import json
import logging
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar

import torch
from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError, field_validator
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from bertsmith.errors import InputError, MachineError, option
from bertsmith.formatting import pluralize
from bertsmith.io import atomic
from bertsmith.training.run_plan import Entry, follows

logger = logging.getLogger(__name__)

_MANIFEST, _STATE = "manifest.json", "state.json"
_NEEDED = {"weights.safetensors", "optimizer.safetensors", "generator.safetensors", _STATE}
_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
_LARGEST_JSON = 2**24  # bytes

_Count = Annotated[int, Field(ge=0, lt=2**63)]
_Digest = Annotated[str, StringConstraints(pattern="^[0-9a-f]{64}$")]
_FileName = Annotated[
    str, StringConstraints(pattern=r"^[A-Za-z0-9_]+\.(safetensors|json)$")
]  # in this folder


class _Schema(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)


class _File(_Schema):
    bytes: _Count
    sha256: _Digest


class _Manifest(_Schema):
    step: _Count
    files: dict[_FileName, _File]


class _Position(_Schema):
    epoch: _Count
    instance: _Count


class State(_Schema):
    """What state.json holds: where the run stands, what it has reached, and what it must go on with."""

    fingerprint: str
    log_bytes: _Count
    step: _Count
    phase: _Count
    position: _Position
    tokens: _Count
    seconds: Annotated[float, Field(ge=0)]
    best: float | None
    best_step: _Count | None
    best_sha256: _Digest | None
    evaluation: dict[str, float]
    plan: list[Entry]
    waited: _Count = 0
    drops: _Count = 0

    @field_validator("plan")
    @classmethod
    def _follows(cls, plan: list[Entry]) -> list[Entry]:
        if not follows(plan):
            raise ValueError("these entries are no run's")
        return plan


_Parsed = TypeVar("_Parsed", bound=_Schema)


@dataclass(frozen=True)
class Checkpoint:
    """What a run needs to go on: `tensors` by file name and key, and `state`, the fields of `State`."""

    step: int
    tensors: Mapping[str, Mapping[str, Tensor]]
    state: Mapping[str, Any]


@dataclass(frozen=True)
class Expected:
    """What a checkpoint must fit to be gone on from.

    fingerprint: of settings and data. tensors: by file name and key, compared in dtype and shape; `optimizer`
    holds the parameters by name, whose moments are compared with them; moments: by name, what the optimiser keeps
    of a parameter.
    """

    fingerprint: str
    tensors: Mapping[str, Mapping[str, Tensor]]
    moments: Mapping[str, frozenset[str]]


class _TornError(Exception):
    """A fault of a checkpoint, with the location of the file at fault."""

    def __init__(self, location: Path, message: str) -> None:
        super().__init__(f"{location}: {message}")
        self.location, self.message = location, message


def save(folder: Path, checkpoint: Checkpoint, keep: int) -> Path:
    """Write folder/step-N, then remove all but the newest `keep`.

    A full disk, and numbers that are not finite any more, leave everything as it was: MachineError.
    """
    final = folder / f"step-{checkpoint.step}"
    _refuse_not_finite(folder, checkpoint)
    State.model_validate(checkpoint.state)
    try:
        with atomic.atomic_replacement(final) as beside:
            for name, tensors in checkpoint.tensors.items():
                save_file(
                    {k: v.detach().contiguous() for k, v in tensors.items()}, beside / f"{name}.safetensors"
                )
            (beside / _STATE).write_text(json.dumps(checkpoint.state, indent=1))
            files = {
                path.name: {"bytes": path.stat().st_size, "sha256": atomic.sha256_of_file(path)}
                for path in sorted(beside.iterdir())
            }
            (beside / _MANIFEST).write_text(json.dumps({"step": checkpoint.step, "files": files}, indent=1))
    except (OSError, SafetensorError) as error:
        if isinstance(error, OSError) and error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EIO):
            raise MachineError(
                "checkpoint_not_written",
                f"the checkpoint could not be written ({error.strerror})",
                location=final,
            ) from None
        kept = newest_name(folder)
        raise MachineError(
            "disk_full",
            "the disk is full or failing, so the checkpoint could not be written",
            location=final,
            hint=f"free some space and continue with {option('resume', True)}; the newest checkpoint is {kept}"
            if kept
            else "free some space and start the run again",
        ) from None
    try:
        prune(folder, keep)
    except OSError as error:
        raise MachineError(
            "checkpoint_not_removed",
            f"old checkpoints could not be removed ({error.strerror}); {final.name} is complete",
            location=folder,
            hint=f"fix the disk and continue with {option('resume', True)}",
        ) from None
    return final


def _refuse_not_finite(folder: Path, checkpoint: Checkpoint) -> None:
    for name, tensors in checkpoint.tensors.items():
        if (key := _not_finite(tensors)) is not None:
            kept = newest_name(folder)
            raise MachineError(
                "state_not_finite",
                f"the {name} of step {checkpoint.step} are not finite ('{key}'), so they were not saved",
                hint="lower train.learning_rate, or raise train.adam_epsilon"
                + (f"; the newest checkpoint is {kept}" if kept else ""),
            )


def _not_finite(tensors: Mapping[str, Tensor]) -> str | None:
    """The first tensor with a NaN or an infinity, None if there is none; one pass, and one wait for a device."""
    names = [name for name, tensor in tensors.items() if tensor.is_floating_point() and tensor.numel()]
    if not names:
        return None
    ends = [torch.stack(torch.aminmax(tensors[name].detach())).float() for name in names]  # NaN goes through
    finite = torch.stack(ends).isfinite().all(dim=1).tolist()
    return next((name for name, good in zip(names, finite, strict=True) if not good), None)


def prune(folder: Path, keep: int) -> None:
    """Remove all but the newest `keep` checkpoints, best weights of none of them, and what killed writers left.

    A folder is renamed out of sight before it is emptied, so that a kill in between leaves no torn step-N. If
    none of those to be kept verifies, nothing is removed.
    """
    found = steps(folder)
    kept = found[-keep:]
    if not any(_fault(folder / f"step-{step}") is None for step in kept[::-1]):
        return
    for step in found[:-keep]:
        atomic.remove_folder(folder / f"step-{step}")
    try:
        needed = {_state(folder / f"step-{step}").best_step for step in kept}
    except _TornError:
        return
    for file in folder.glob("best-*.safetensors"):
        if file.name not in {_best(folder, step).name for step in needed if step is not None}:
            file.unlink()


def steps(folder: Path) -> list[int]:
    """The steps that have a checkpoint in `folder`, ascending."""
    if not folder.is_dir():
        return []
    named = (re.fullmatch(r"step-(0|[1-9][0-9]*)", path.name) for path in folder.iterdir() if path.is_dir())
    return sorted(int(match[1]) for match in named if match)


def newest_name(folder: Path) -> str | None:
    """The name of the newest checkpoint, None if there is none."""
    found = steps(folder)
    return f"step-{found[-1]}" if found else None


def newest_state(folder: Path) -> State | None:
    """Where the newest checkpoint that says so stands; its tensors are not looked at. None if there is none."""
    for step in reversed(steps(folder)):
        with suppress(_TornError):
            return _state(folder / f"step-{step}")
    return None


def load_newest(folder: Path, expected: Expected | None = None) -> Checkpoint | None:
    """The newest whole checkpoint of a run; None if it has none at all. What killed writers left is removed.

    Each one that does not verify, or is not of the tensors expected, is logged, with its fault, and the one before
    it tried. InputError when there are checkpoints and none is whole, and for one of other settings or data.
    """
    if folder.is_dir():
        atomic.remove_abandoned(folder)
    faults: list[_TornError] = []
    for step in reversed(steps(folder)):
        path = folder / f"step-{step}"
        try:
            found = _read(path)
            if expected is not None:
                _check_fit(found, expected, path)
            _check_best(path, found.state)
        except _TornError as fault:
            logger.warning("%s", fault)
            faults.append(fault)
            continue
        if faults:
            logger.info("continuing from the newest checkpoint that is complete, %s", path.name)
        return found
    if faults:
        raise InputError(
            "no_complete_checkpoint",
            f"{faults[0].message}, and no older checkpoint is complete",
            location=faults[0].location,
            hint="restore the folder of checkpoints from a backup, or start a new run without "
            f"{option('resume', True)} and with another {option('output_dir')}",
        )
    return None


def _read(path: Path) -> Checkpoint:
    manifest, state = _verified(path)
    tensors = {}
    for file in (path / name for name in manifest.files if name.endswith(".safetensors")):
        try:
            tensors[file.stem] = load_file(file)
        except (SafetensorError, OSError, KeyError, TypeError, ValueError, RuntimeError) as error:
            raise _TornError(file, f"these are no tensors ({error})") from None
    return Checkpoint(manifest.step, tensors, state.model_dump())


def _fault(path: Path) -> str | None:
    """What is wrong with a checkpoint folder, in half a sentence with its place; None when it is whole."""
    try:
        _check_best(path, _verified(path)[1].model_dump())
    except _TornError as fault:
        return str(fault)
    return None


def _verified(path: Path) -> tuple[_Manifest, State]:
    """The manifest and the state of a checkpoint whose files are all what was written."""
    pickles = [file.name for file in path.iterdir() if file.suffix in _PICKLES]
    if pickles:
        raise _TornError(path / pickles[0], "this is a pickle, which can run code and is never opened")
    manifest = _parsed(_Manifest, path / _MANIFEST, "manifest")
    if f"step-{manifest.step}" != path.name or _NEEDED - manifest.files.keys():
        raise _TornError(path / _MANIFEST, "the manifest is damaged")
    for name, entry in manifest.files.items():
        file = path / name
        if not file.is_file():
            raise _TornError(file, "the file is missing")
        if (size := file.stat().st_size) != entry.bytes:
            raise _TornError(
                file, f"the file has {pluralize(size, 'byte')} and was written with {entry.bytes:,}"
            )
        if atomic.sha256_of_file(file) != entry.sha256:
            raise _TornError(file, "the content is not what was written (its digest differs)")
    state = _state(path)
    if state.step != manifest.step or (state.best_step is None) != (state.best_sha256 is None):
        raise _TornError(path / _STATE, "the state is damaged")
    return manifest, state


def _check_best(path: Path, state: Mapping[str, Any]) -> None:
    """A fault where the best weights that a checkpoint refers to are not there any more."""
    if state["best_step"] is not None:
        best = _best(path.parent, state["best_step"])
        if not best.is_file() or atomic.sha256_of_file(best) != state["best_sha256"]:
            raise _TornError(best, "the best weights are missing, or are not what was written")


def _state(path: Path) -> State:
    return _parsed(State, path / _STATE, "state")


def _parsed(kind: type[_Parsed], file: Path, what: str) -> _Parsed:
    try:
        if file.stat().st_size > _LARGEST_JSON:
            raise _TornError(file, f"the {what} is damaged (larger than any of its kind)")
        return kind.model_validate_json(file.read_bytes())
    except FileNotFoundError:
        raise _TornError(file, f"the {what} is missing") from None
    except OSError as error:
        raise _TornError(
            file, f"the {what} cannot be read ({(error.strerror or str(error)).lower()})"
        ) from None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise _TornError(file, f"the {what} is damaged" + (f" ('{where}')" if where else "")) from None


def _check_fit(found: Checkpoint, expected: Expected, path: Path) -> None:
    """InputError for a checkpoint of another run; a fault where its tensors are not those of this model."""
    if found.state["fingerprint"] != expected.fingerprint:
        raise InputError(
            "checkpoint_of_another_run",
            "this checkpoint was written with other settings or data, or by another version",
            location=path,
            hint="resume with the settings and data of the run (settings.yaml in its folder), or choose another "
            f"{option('output_dir')}",
        )
    for name, wanted in expected.tensors.items():
        file, tensors = path / f"{name}.safetensors", found.tensors[name]
        if name == "optimizer":
            _check_moments(file, tensors, wanted, expected.moments)
        elif tensors.keys() != wanted.keys():
            odd = sorted(tensors.keys() ^ wanted.keys())[0]
            raise _TornError(file, f"the tensors are not this model's ('{odd}')")
        else:
            for key, tensor in tensors.items():
                if tensor.shape != wanted[key].shape or tensor.dtype != wanted[key].dtype:
                    raise _TornError(file, f"tensor '{key}' is not this model's")


def _check_moments(
    file: Path,
    tensors: Mapping[str, Tensor],
    parameters: Mapping[str, Tensor],
    moments: Mapping[str, frozenset[str]],
) -> None:
    parts: dict[str, set[str]] = {}
    for key, tensor in tensors.items():
        name, _, part = key.rpartition("/")
        parts.setdefault(name, set()).add(part)
        shape = torch.Size([]) if part == "step" else getattr(parameters.get(name), "shape", None)
        if name not in parameters or tensor.shape != shape or not tensor.is_floating_point():
            raise _TornError(file, f"tensor '{key}' is not of this model's parameters")
    if odd := [name for name, found in parts.items() if found != moments[name]]:
        raise _TornError(file, f"the moments of '{odd[0]}' are not those of this run's optimiser")


def _best(folder: Path, step: int) -> Path:
    return folder / f"best-{step}.safetensors"


def save_weights(folder: Path, step: int, tensors: Mapping[str, Tensor]) -> str:
    """Write the best weights so far, folder/best-STEP.safetensors, whole or not at all; returns its digest.

    The earlier ones stay until `prune` finds no checkpoint that refers to them.
    """
    file = _best(folder, step)
    if (key := _not_finite(tensors)) is not None:
        raise MachineError(
            "weights_not_finite",
            f"the weights of step {step} are not finite ('{key}'), so they were not saved",
            hint="lower train.learning_rate, or raise train.adam_epsilon",
        )
    try:
        with atomic.atomic_file(file) as beside:
            save_file({k: v.detach().contiguous() for k, v in tensors.items()}, beside)
        return atomic.sha256_of_file(file)
    except (OSError, SafetensorError) as error:
        raise MachineError(
            "weights_not_written",
            f"the best weights could not be written ({error})",
            location=file,
            hint=f"free some space and continue with {option('resume', True)}",
        ) from None


def load_weights(folder: Path, step: int | None, sha256: str | None) -> dict[str, Tensor]:
    """Read what `save_weights` wrote; a missing or changed file is an InputError."""
    file = _best(folder, step or 0)
    if not file.is_file() or atomic.sha256_of_file(file) != sha256:
        raise InputError(
            "best_weights_changed",
            "the file of the best weights is missing, or its content has changed",
            location=file,
            hint=f"restore the file from a backup, or start a new run with another {option('output_dir')}",
        )
    return load_file(file)


def optimizer_tensors(optimizer: torch.optim.Optimizer, names: Mapping[Tensor, str]) -> dict[str, Tensor]:
    """An optimiser's state by `parameter name/state name`."""
    return {
        f"{names[parameter]}/{key}": value
        for parameter, state in optimizer.state.items()
        for key, value in state.items()
    }


def restore_optimizer(
    optimizer: torch.optim.Optimizer, names: Mapping[Tensor, str], tensors: Mapping[str, Tensor]
) -> None:
    """Put back what `optimizer_tensors` took."""
    by_name = {name: parameter for parameter, name in names.items()}
    optimizer.state.clear()
    for key, value in tensors.items():
        name, _, part = key.rpartition("/")
        parameter = by_name[name]
        optimizer.state[parameter][part] = value.to(parameter.device, copy=True)
