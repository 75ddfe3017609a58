"""Weights on disk: one safetensors file or several with an index, looked at before they are read, no pickles."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from bertsmith.artifacts.config_schema import WeightIndex, read_json, typed
from bertsmith.errors import InputError
from bertsmith.io import atomic

WEIGHTS = "model.safetensors"
INDEX = f"{WEIGHTS}.index.json"
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")
_FLOATS = {torch.float16, torch.bfloat16, torch.float32, torch.float64}


@dataclass(frozen=True)
class Stored:
    """A folder's weights, opened: shapes by the names in the file, and which file holds each tensor.

    place: the file that sentences name. files: in order, each with its tensors' names.
    """

    place: Path
    files: dict[Path, list[str]]
    shapes: dict[str, tuple[int, ...]]

    def read(self, skip: frozenset[str] = frozenset()) -> dict[str, Tensor]:
        """All tensors but those to `skip`; numbers that are not finite are an `InputError`."""
        tensors = {}
        for path, names in self.files.items():
            with _opened(path) as file:
                for name in names:
                    if name not in skip:
                        tensors[name] = _checked(file.get_tensor(name), name, path)
        return tensors

    def digest(self) -> str:
        """SHA-256 of the file's bytes; of several files, of their digests in order."""
        digests = [atomic.digest(path) for path in self.files]
        return digests[0] if len(digests) == 1 else hashlib.sha256("".join(digests).encode()).hexdigest()


def open_weights(folder: Path) -> Stored:
    """Look at a folder's weights: names and shapes, nothing allocated.

    A torn file, a pickle, an index that leads out of the folder or does not fit its files is an `InputError`.
    """
    if (folder / WEIGHTS).is_file():
        shapes = _shapes(folder / WEIGHTS)
        return Stored(folder / WEIGHTS, {folder / WEIGHTS: list(shapes)}, shapes)
    if (folder / INDEX).is_file():
        return _sharded(folder)
    for pattern in _PICKLES:
        for pickle in sorted(folder.glob(pattern)):
            raise InputError(
                f"{pickle}: this is a pickle, which can run code of its writer; it is not opened",
                "where you trust it, load it with transformers and save_pretrained() it as safetensors",
            )
    raise InputError(
        f"{folder}: there is no {WEIGHTS} in it",
        "copy the whole folder again, or name the one that has the weights",
    )


def _sharded(folder: Path) -> Stored:
    place = folder / INDEX
    named = typed(WeightIndex, read_json(place), str(place)).weight_map
    if not named:
        raise InputError(f"{place}: names no tensor", "copy the folder again")
    files: dict[Path, list[str]] = {}
    shapes: dict[str, tuple[int, ...]] = {}
    beside = sorted(set(named.values()))
    if outside := [name for name in beside if not re.fullmatch(r"[\w-][\w.-]*\.safetensors", name)]:
        raise InputError(
            f"{place}: {outside[0][:80]!r} is not the name of a safetensors file in this folder",
            "an index names files beside it: copy the folder again from its source",
        )
    for name in beside:
        if not (folder / name).is_file():
            raise InputError(f"{place}: {name} is missing from the folder", "copy the folder again")
        found = _shapes(folder / name)
        if set(found) != {tensor for tensor, file in named.items() if file == name}:
            raise InputError(f"{folder / name}: lacks the tensors that {INDEX} says", "copy the folder again")
        files[folder / name] = list(found)
        shapes |= found
    return Stored(place, files, shapes)


def _shapes(path: Path) -> dict[str, tuple[int, ...]]:
    with _opened(path) as file:
        names = list(file.keys())
        return {name: tuple(file.get_slice(name).get_shape()) for name in names}


def _checked(tensor: Tensor, name: str, path: Path) -> Tensor:
    if tensor.dtype not in _FLOATS:
        kind = str(tensor.dtype).removeprefix("torch.")
        raise InputError(
            f"{path}: tensor '{name}' holds {kind}, not floating-point numbers",
            "weights are read as fp32, fp16, bf16 or fp64: take the model as it was before it was converted",
        )
    wide = tensor.float() if tensor.dtype == torch.float64 else tensor  # what we compute with: fp32 at most
    if tensor.numel() and not bool(torch.stack(torch.aminmax(wide)).isfinite().all()):  # a NaN is both ends
        raise InputError(
            f"{path}: tensor '{name}' has values that are infinite or not a number",
            "the training that wrote it failed; take an earlier model",
        )
    return tensor


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    try:
        with safe_open(path, "pt") as file:
            yield file
    except PermissionError:
        raise InputError(f"{path}: you may not read this file", "ask its owner for the right to") from None
    except (SafetensorError, OSError) as error:
        raise InputError(
            f"{path}: this is not a whole safetensors file ({error})", "it is torn or damaged: copy it again"
        ) from None
