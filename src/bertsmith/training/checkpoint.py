"""Checkpoints: written atomically, verified when read, and pruned only after verification.

A checkpoint is written into a hidden folder and renamed when all of it is on the disk; a manifest holds size and
digest of each file. A folder named step-N is therefore complete, whenever a process is killed. Files are read
through typed schemas and compared with the model of the run, in case somebody changed them and the manifest.
"""

from __future__ import annotations

import errno
import json
import logging
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, TypeVar

import torch
from pydantic import BaseModel, ConfigDict, StringConstraints, ValidationError
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from bertsmith.errors import InputError, MachineError, option
from bertsmith.formatting import pluralize
from bertsmith.io import atomic
from bertsmith.io.folder_layout import FolderLayout
from bertsmith.training.data_loader import Count
from bertsmith.training.training_job import Digest, TrainState

logger = logging.getLogger(__name__)

_MANIFEST, _STATE = "manifest.json", "state.json"
_REQUIRED_FILES = {"weights.safetensors", "optimizer.safetensors", "generator.safetensors", _STATE}
LAYOUT = FolderLayout("a checkpoint", _MANIFEST, (_MANIFEST, *sorted(_REQUIRED_FILES)))
_PICKLE_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
_MAX_JSON_BYTES = 2**24

_FileName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_]+\.(safetensors|json)$")]


class _Schema(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)


class _FileEntry(_Schema):
    bytes: Count
    sha256: Digest


class _Manifest(_Schema):
    step: Count
    files: dict[_FileName, _FileEntry]


_SchemaT = TypeVar("_SchemaT", bound=BaseModel)


@dataclass(frozen=True)
class Checkpoint:
    """The content of a checkpoint.

    Attributes:
        state: The state of the run.
        tensors: Tensors by file name ("weights", "optimizer", "generator") and key.
    """

    state: TrainState
    tensors: Mapping[str, Mapping[str, Tensor]]


class _DamagedError(Exception):
    """A checkpoint is damaged."""

    def __init__(self, location: Path, message: str) -> None:
        super().__init__(f"{location}: {message}")
        self.location, self.message = location, message


def save(folder: Path, checkpoint: Checkpoint, keep: int) -> Path:
    """Write folder/step-N, then remove all but the newest `keep` checkpoints.

    Raises:
        MachineError: The disk is full, or a number is not finite; nothing has changed. Or an old checkpoint cannot
            be removed; the new one is complete.
    """
    atomic.refuse_link(folder)  # it may have become one since the run began
    state = checkpoint.state
    final = folder / f"step-{state.step}"
    for name, tensors in checkpoint.tensors.items():
        if (key := _find_not_finite(tensors)) is not None:
            newest = newest_name(folder)
            message = f"the {name} of step {state.step} are not finite ('{key}'), so they were not saved"
            hint = "lower train.learning_rate, or raise train.adam_epsilon" + (
                f"; the newest checkpoint is {newest}" if newest else ""
            )
            raise MachineError("state_not_finite", message, hint=hint)
    try:
        _write(final, checkpoint)
    except (OSError, SafetensorError) as error:
        if isinstance(error, OSError) and error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EIO):
            message = f"the checkpoint could not be written ({error.strerror})"
            raise MachineError("checkpoint_not_written", message, location=final) from None
        newest = newest_name(folder)
        message = "the disk is full or failing, so the checkpoint could not be written"
        hint = (
            f"free some space and continue with {option('resume', True)}; the newest checkpoint is {newest}"
            if newest
            else "free some space and start the run again"
        )
        raise MachineError("disk_full", message, location=final, hint=hint) from None
    try:
        prune(folder, keep)
    except OSError as error:
        message = f"old checkpoints could not be removed ({error.strerror}); {final.name} is complete"
        hint = f"fix the disk and continue with {option('resume', True)}"
        raise MachineError("checkpoint_not_removed", message, location=folder, hint=hint) from None
    return final


def _write(folder: Path, checkpoint: Checkpoint) -> None:
    """Write a checkpoint atomically."""
    state_json = checkpoint.state.model_dump_json(indent=1)
    TrainState.model_validate_json(state_json)
    with atomic.atomic_folder(folder, replace=True) as temporary:
        for name, tensors in checkpoint.tensors.items():
            _save_tensors(tensors, temporary / f"{name}.safetensors")
        (temporary / _STATE).write_text(state_json)
        files = {
            path.name: {"bytes": path.stat().st_size, "sha256": atomic.sha256_of_file(path)}
            for path in sorted(temporary.iterdir())
        }
        manifest = {"step": checkpoint.state.step, "files": files}
        (temporary / _MANIFEST).write_text(json.dumps(manifest, indent=1))
        LAYOUT.copy_other_files(folder, temporary)


def _save_tensors(tensors: Mapping[str, Tensor], file: Path) -> None:
    save_file({name: tensor.detach().contiguous() for name, tensor in tensors.items()}, file)


def _find_not_finite(tensors: Mapping[str, Tensor]) -> str | None:
    """Return the name of a tensor with a NaN or an Inf; None if there is none."""
    names = [name for name, tensor in tensors.items() if tensor.is_floating_point() and tensor.numel()]
    if not names:
        return None
    # Minimum and maximum are NaN if any element is; the host waits for the device once.
    extremes = [torch.stack(torch.aminmax(tensors[name].detach())).float() for name in names]
    is_finite = torch.stack(extremes).isfinite().all(dim=1).tolist()
    return next((name for name, finite in zip(names, is_finite, strict=True) if not finite), None)


def prune(folder: Path, keep: int) -> None:
    """Remove all but the newest `keep` checkpoints, and best weights that none of these refers to.

    If none of the newest checkpoints is complete, nothing is removed. A folder is renamed before it is emptied, so
    that a kill leaves no damaged step-N.
    """
    existing = steps(folder)
    newest = existing[-keep:]
    if not any(_find_damage(folder / f"step-{step}") is None for step in newest[::-1]):
        return
    for path in (folder / f"step-{step}" for step in existing[:-keep]):
        if not LAYOUT.other_files(path):  # others are the user's
            atomic.remove_folder(path)
    try:
        best_files = {_best_file(folder, _read_state(folder / f"step-{step}").best_step) for step in newest}
    except _DamagedError:
        return
    for file in set(folder.glob("best-*.safetensors")) - best_files:
        if file.stem.removeprefix("best-").isdecimal():
            file.unlink()


def steps(folder: Path) -> list[int]:
    """Return the steps that have a checkpoint, in ascending order."""
    if not folder.is_dir():
        return []
    matches = (re.fullmatch(r"step-(0|[1-9][0-9]*)", path.name) for path in folder.iterdir() if path.is_dir())
    return sorted(int(match[1]) for match in matches if match)


def newest_name(folder: Path) -> str | None:
    """Return the name of the newest checkpoint; None if there is none."""
    existing = steps(folder)
    return f"step-{existing[-1]}" if existing else None


def newest_state(folder: Path) -> TrainState | None:
    """Return the state of the newest checkpoint with a readable one, without a look at its tensors."""
    for step in reversed(steps(folder)):
        with suppress(_DamagedError):
            return _read_state(folder / f"step-{step}")
    return None


def load_newest(folder: Path, expected: Checkpoint | None = None) -> Checkpoint | None:
    """Load the newest complete checkpoint of a run; None if there is none. Remove what killed processes left.

    A checkpoint that is damaged or has unexpected tensors is logged, and the previous one is tried; also if the
    weights of its best evaluation are lost. If the weights of all are lost, the newest is evaluated again.

    Args:
        folder: The folder of the checkpoints.
        expected: A checkpoint of the run, with its fingerprint and tensors of the same dtypes and shapes.

    Raises:
        InputError: No checkpoint is complete, or it has other settings or data.
    """
    if folder.is_dir():
        atomic.remove_abandoned(folder)
    errors: list[_DamagedError] = []
    without_best: Checkpoint | None = None
    for step in reversed(steps(folder)):
        path = folder / f"step-{step}"
        try:
            checkpoint = _read(path)
            if expected is not None:
                _check_content(checkpoint, expected, path)
        except _DamagedError as error:
            logger.warning("%s", error)
            errors.append(error)
            continue
        if checkpoint.state.best_step is not None and not _has_best_weights(folder, checkpoint.state):
            without_best = without_best or checkpoint
            continue
        if errors or without_best:
            logger.info("continuing from the newest checkpoint that is complete, %s", path.name)
        return checkpoint
    if without_best is not None:
        return _forget_best(without_best, folder)
    if errors:
        message = f"{errors[0].message}, and no older checkpoint is complete"
        hint = (
            "restore the folder of checkpoints from a backup, or start a new run without "
            f"{option('resume', True)} and with another {option('output_dir')}"
        )
        raise InputError("no_complete_checkpoint", message, location=errors[0].location, hint=hint)
    return None


def _forget_best(checkpoint: Checkpoint, folder: Path) -> Checkpoint:
    """Return a checkpoint whose best weights are lost as it was before the first evaluation."""
    state = checkpoint.state
    file = _best_file(folder, state.best_step or 0)
    logger.warning("%s: the best weights are lost; those of step %s are evaluated instead", file, state.step)
    update: dict[str, Any] = {"best_score": None, "best_step": None, "best_sha256": None, "best_state": {}}
    return replace(checkpoint, state=state.model_copy(update=update))


def _read(path: Path) -> Checkpoint:
    manifest, state = _verify(path)
    tensors = {}
    for file in (path / name for name in manifest.files if name.endswith(".safetensors")):
        try:
            tensors[file.stem] = load_file(file)
        except (SafetensorError, OSError, KeyError, TypeError, ValueError, RuntimeError) as error:
            raise _DamagedError(file, f"these are no tensors ({error})") from None
    return Checkpoint(state, tensors)


def _find_damage(path: Path) -> str | None:
    """Return what is damaged in a checkpoint, with its location; None if it is complete."""
    try:
        _verify(path)
    except _DamagedError as error:
        return str(error)
    return None


def _verify(path: Path) -> tuple[_Manifest, TrainState]:
    """Return the manifest and the state of a checkpoint; raise _DamagedError if it is not complete.

    Its files have the size and digest of the manifest.
    """
    pickles = [file.name for file in path.iterdir() if file.suffix in _PICKLE_SUFFIXES]
    if pickles:
        raise _DamagedError(path / pickles[0], "this is a pickle, which can run code and is never opened")
    manifest = _parse(_Manifest, path / _MANIFEST, "manifest")
    if f"step-{manifest.step}" != path.name or _REQUIRED_FILES - manifest.files.keys():
        raise _DamagedError(path / _MANIFEST, "the manifest is damaged")
    for name, entry in manifest.files.items():
        file = path / name
        if not file.is_file():
            raise _DamagedError(file, "the file is missing")
        if (size := file.stat().st_size) != entry.bytes:
            raise _DamagedError(file, f"the file has {pluralize(size, 'byte')} instead of {entry.bytes:,}")
        if atomic.sha256_of_file(file) != entry.sha256:
            raise _DamagedError(file, "the content is not what was written (its digest differs)")
    state = _read_state(path)
    if state.step != manifest.step or (state.best_step is None) != (state.best_sha256 is None):
        raise _DamagedError(path / _STATE, "the state is damaged")
    return manifest, state


def _read_state(path: Path) -> TrainState:
    state = _parse(TrainState, path / _STATE, "state")
    if missing := TrainState.model_fields.keys() - state.model_fields_set:
        raise _DamagedError(path / _STATE, f"the state is damaged ('{min(missing)}')")
    return state


def _parse(schema: type[_SchemaT], file: Path, title: str) -> _SchemaT:
    try:
        return schema.model_validate_json(atomic.read_file(file, _MAX_JSON_BYTES))
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise _DamagedError(file, f"the {title} cannot be read ({reason})") from None
    except ValidationError as error:
        key = ".".join(str(part) for part in error.errors()[0]["loc"])
        raise _DamagedError(file, f"the {title} is damaged" + (f" ('{key}')" if key else "")) from None


def _check_content(checkpoint: Checkpoint, expected: Checkpoint, path: Path) -> None:
    """Raise InputError for a checkpoint of another run, and _DamagedError for tensors of another model."""
    if checkpoint.state.fingerprint != expected.state.fingerprint:
        message = "this checkpoint was written with other settings or data, or by another version"
        hint = (
            "resume with the settings and data of the run (settings.yaml in its folder), or choose another "
            f"{option('output_dir')}"
        )
        raise InputError("checkpoint_of_another_run", message, location=path, hint=hint)
    for name, expected_tensors in expected.tensors.items():
        file, tensors = path / f"{name}.safetensors", checkpoint.tensors[name]
        if name == "optimizer":  # a parameter that was never updated has no state
            updated = {key.rpartition("/")[0] for key in tensors}
            expected_tensors = {
                key: tensor for key, tensor in expected_tensors.items() if key.rpartition("/")[0] in updated
            }
        if different := sorted(tensors.keys() ^ expected_tensors.keys()):
            raise _DamagedError(file, f"the tensors are not this model's ('{different[0]}')")
        for key, tensor in tensors.items():
            if (tensor.shape, tensor.dtype) != (expected_tensors[key].shape, expected_tensors[key].dtype):
                raise _DamagedError(file, f"tensor '{key}' is not this model's")


def _best_file(folder: Path, step: int | None) -> Path:
    return folder / f"best-{step}.safetensors"


def _has_best_weights(folder: Path, state: TrainState) -> bool:
    """Return True if the file of the best weights is as it was written."""
    file = _best_file(folder, state.best_step)
    return file.is_file() and atomic.sha256_of_file(file) == state.best_sha256


def save_best_weights(folder: Path, step: int, tensors: Mapping[str, Tensor]) -> str:
    """Write folder/best-STEP.safetensors atomically, and return its digest.

    Earlier best weights remain until `prune` removes the checkpoints that refer to them.
    """
    atomic.refuse_link(folder)
    file = _best_file(folder, step)
    if (key := _find_not_finite(tensors)) is not None:
        message = f"the weights of step {step} are not finite ('{key}'), so they were not saved"
        hint = "lower train.learning_rate, or raise train.adam_epsilon"
        raise MachineError("weights_not_finite", message, hint=hint)
    try:
        with atomic.atomic_file(file) as temporary:
            _save_tensors(tensors, temporary)
        return atomic.sha256_of_file(file)
    except (OSError, SafetensorError) as error:
        message = f"the best weights could not be written ({error})"
        hint = f"free some space and continue with {option('resume', True)}"
        raise MachineError("weights_not_written", message, location=file, hint=hint) from None


def load_best_weights(folder: Path, state: TrainState) -> dict[str, Tensor]:
    """Load the weights of the best evaluation; raise InputError if the file is missing or has changed."""
    file = _best_file(folder, state.best_step)
    if not _has_best_weights(folder, state):
        message = "the file of the best weights is missing, or its content has changed"
        hint = f"restore the file from a backup, or start a new run with another {option('output_dir')}"
        raise InputError("best_weights_changed", message, location=file, hint=hint)
    return load_file(file)
