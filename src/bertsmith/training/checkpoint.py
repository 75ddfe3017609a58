"""Checkpoints that are whole or not there, verified when read, pruned when superseded.

A checkpoint is written into a hidden folder beside its place, each file and the folder synchronised to disk,
a manifest of sizes and digests last; then the folder is renamed. Whatever is killed at whatever moment, a
folder named step-N is whole, and what a crash leaves behind has a name that nobody reads.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from bertsmith import disk
from bertsmith.errors import InputError, MachineError

_MANIFEST = "manifest.json"
_NEEDED = {"weights.safetensors", "optimizer.safetensors", "generator.safetensors", "state.json"}
_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")


@dataclass(frozen=True)
class Checkpoint:
    """What a run needs to go on: `tensors` by file name and key, and `state`, plain JSON."""

    step: int
    tensors: Mapping[str, Mapping[str, Tensor]]
    state: Mapping[str, Any]


def save(folder: Path, checkpoint: Checkpoint, keep: int) -> Path:
    """Write folder/step-N, then remove all but the newest `keep`. A full disk leaves everything as it was."""
    final = folder / f"step-{checkpoint.step}"
    beside = folder / f".writing-{checkpoint.step}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(beside, ignore_errors=True)
        beside.mkdir()
        for name, tensors in checkpoint.tensors.items():
            save_file(
                {k: v.detach().contiguous() for k, v in tensors.items()}, beside / f"{name}.safetensors"
            )
        (beside / "state.json").write_text(json.dumps(checkpoint.state, indent=1))
        files = sorted(beside.iterdir())
        manifest = {path.name: {"bytes": path.stat().st_size, "sha256": disk.digest(path)} for path in files}
        for path in files:
            disk.synchronise(path)
        (beside / _MANIFEST).write_text(json.dumps({"step": checkpoint.step, "files": manifest}, indent=1))
        disk.synchronise(beside / _MANIFEST)
        disk.synchronise(beside)
        if final.exists():  # the same step, written again: what a resume found torn there
            _remove(final)
        os.rename(beside, final)
        disk.synchronise(folder)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(beside, ignore_errors=True)
        if isinstance(error, OSError) and error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EIO):
            raise MachineError(f"{final}: the checkpoint could not be written ({error.strerror})") from None
        kept = newest_name(folder)
        raise MachineError(
            f"{final}: the disk is full or failing, the checkpoint could not be written",
            f"free some space and go on with --resume (the newest whole checkpoint is {kept})"
            if kept
            else "free some space and start again",
        ) from None
    try:
        prune(folder, keep)
    except OSError as error:
        raise MachineError(
            f"{folder}: old checkpoints could not be removed ({error.strerror}); {final.name} is whole",
            "mend the disk and go on with --resume",
        ) from None
    return final


def prune(folder: Path, keep: int) -> None:
    """Remove all but the newest `keep` checkpoints, and what interrupted writes left behind.

    A folder is renamed out of sight before it is emptied, so that a kill in between leaves no torn step-N. If
    none of those to be kept verifies, nothing is removed.
    """
    found = steps(folder)
    kept = found[-keep:]
    if not any(_fault(folder / f"step-{step}") is None for step in kept[::-1]):
        return
    for step in found[:-keep]:
        _remove(folder / f"step-{step}")
    for leftover in [*folder.glob(".writing-*"), *folder.glob(".removing-*")]:
        shutil.rmtree(leftover, ignore_errors=True)


def _remove(path: Path) -> None:
    """Remove a checkpoint, out of sight first, so that a kill in between leaves nothing torn under its name."""
    away = path.with_name(f".removing-{path.name}")
    shutil.rmtree(away, ignore_errors=True)
    os.rename(path, away)
    shutil.rmtree(away)


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


def load_newest(folder: Path, tell: Callable[[str], None]) -> Checkpoint | None:
    """The newest whole checkpoint of a run; None if it has none at all.

    Each one that does not verify is told, with its fault, and the one before it tried. InputError when there
    are checkpoints and none is whole.
    """
    faults: list[str] = []
    for step in reversed(steps(folder)):
        path = folder / f"step-{step}"
        if (fault := _fault(path)) is None:
            if faults:
                tell(f"going on from the newest whole checkpoint, {path.name}")
            return _read(path)
        tell(fault)
        faults.append(fault)
    if faults:
        raise InputError(
            f"{faults[0]}, and no older checkpoint is whole",
            "copy the checkpoints folder back from a backup, or start again without --resume in a new --out",
        )
    return None


def _read(path: Path) -> Checkpoint:
    listed = (path / name for name in json.loads((path / _MANIFEST).read_text())["files"])
    tensors = {file.stem: load_file(file) for file in listed if file.suffix == ".safetensors"}
    state = json.loads((path / "state.json").read_text())
    return Checkpoint(int(path.name.removeprefix("step-")), tensors, state)


def _fault(path: Path) -> str | None:
    """What is wrong with a checkpoint folder, in half a sentence with its place; None when it is whole."""
    pickles = [file.name for file in path.iterdir() if file.suffix in _PICKLES]
    if pickles:
        return f"{path / pickles[0]}: this is a pickle, which can run code and is never opened"
    try:
        manifest = json.loads((path / _MANIFEST).read_text())
        files = {str(name): (int(v["bytes"]), str(v["sha256"])) for name, v in manifest["files"].items()}
    except FileNotFoundError:
        return f"{path / _MANIFEST}: the manifest is missing"
    except (ValueError, KeyError, TypeError, AttributeError):
        return f"{path / _MANIFEST}: the manifest is damaged"
    if f"step-{manifest.get('step')}" != path.name or _NEEDED - files.keys():
        return f"{path / _MANIFEST}: the manifest is damaged"
    for name, (size, sha256) in files.items():
        file = path / name
        if not file.is_file():
            return f"{file}: the file is missing"
        if file.stat().st_size != size:
            return f"{file}: the file has {file.stat().st_size} bytes and was written with {size}"
        if disk.digest(file) != sha256:
            return f"{file}: the content is not what was written (its digest differs)"
    return None


def save_weights(file: Path, tensors: Mapping[str, Tensor]) -> str:
    """Write one file of weights, whole or not at all; returns its digest, by which it is read."""
    beside = file.with_name(f".writing-{file.name}")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        save_file(dict(tensors), beside)
        disk.synchronise(beside)
        sha256 = disk.digest(beside)
        os.replace(beside, file)
    except (OSError, SafetensorError) as error:
        beside.unlink(missing_ok=True)
        raise MachineError(
            f"{file}: the best weights could not be written ({error})",
            "free some space and go on with --resume",
        ) from None
    return sha256


def load_weights(file: Path, sha256: str | None) -> dict[str, Tensor]:
    """Read what `save_weights` wrote; a missing or changed file is an InputError."""
    if not file.is_file() or disk.digest(file) != sha256:
        raise InputError(
            f"{file}: the best weights are missing, or are not what was written",
            "copy the file back from a backup, or start again in a new --out",
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
