"""Read safetensors weights in one file or in several with an index; pickles are refused."""

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

from bertsmith.artifacts.config_schema import WeightIndex, read_json, validate
from bertsmith.errors import InputError
from bertsmith.io import atomic

WEIGHTS_FILE = "model.safetensors"
INDEX_FILE = f"{WEIGHTS_FILE}.index.json"
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")
_FLOAT_DTYPES = {torch.float16, torch.bfloat16, torch.float32, torch.float64}
_COPY_AGAIN = "Copy the folder again."


@dataclass(frozen=True)
class WeightFiles:
    """The weight files of a folder, with the shapes of their tensors.

    Attributes:
        location: The file that error messages name.
        files: The files in order, each with the names of its tensors.
        shapes: The shapes of the tensors by the names in the files.
    """

    location: Path
    files: dict[Path, list[str]]
    shapes: dict[str, tuple[int, ...]]

    def read(self) -> dict[str, Tensor]:
        """Read all tensors except position ids; values that are not finite are an InputError."""
        tensors = {}
        for path, names in self.files.items():
            with _open(path) as file:
                for name in names:
                    if not name.endswith("position_ids"):
                        tensors[name] = _check_values(file.get_tensor(name), name, path)
        return tensors

    def digest(self) -> str:
        """Return the SHA-256 of the file, or of the files' digests in order."""
        digests = [atomic.sha256_of_file(path) for path in self.files]
        return digests[0] if len(digests) == 1 else hashlib.sha256("".join(digests).encode()).hexdigest()


def open_weights(folder: Path) -> WeightFiles:
    """Read names and shapes of a folder's weights without allocating any.

    Raises:
        InputError: The file is damaged or a pickle, or an index names files outside of the folder or does not
            match its files.
    """
    if (folder / WEIGHTS_FILE).is_file():
        shapes = _shapes(folder / WEIGHTS_FILE)
        return WeightFiles(folder / WEIGHTS_FILE, {folder / WEIGHTS_FILE: list(shapes)}, shapes)
    if (folder / INDEX_FILE).is_file():
        return _open_sharded(folder)
    for pattern in _PICKLES:
        for pickle in sorted(folder.glob(pattern)):
            message = "this is a pickle, which can run code of its author; it is not opened"
            hint = (
                "if you trust it, load it with transformers and save it as safetensors by save_pretrained()"
            )
            raise InputError("pickle", message, location=pickle, hint=hint)
    message = f"the folder has no {WEIGHTS_FILE}"
    hint = "copy the whole folder again, or name the one that has the weights"
    raise InputError("weights_missing", message, location=folder, hint=hint)


def _open_sharded(folder: Path) -> WeightFiles:
    index = folder / INDEX_FILE
    weight_map = validate(WeightIndex, read_json(index), str(index)).weight_map
    if not weight_map:
        raise InputError("weight_index_empty", "the index names no tensor", location=index, hint=_COPY_AGAIN)
    file_names = sorted(set(weight_map.values()))
    for name in file_names:
        if not re.fullmatch(r"[\w-][\w.-]*\.safetensors", name):
            message = f"{name[:80]!r} is not the name of a safetensors file in this folder"
            hint = "copy the folder again from its source"
            raise InputError("weight_index_outside_folder", message, location=index, hint=hint)
    files: dict[Path, list[str]] = {}
    shapes: dict[str, tuple[int, ...]] = {}
    for name in file_names:
        if not (folder / name).is_file():
            raise InputError(
                "weight_file_missing", f"{name} is missing from the folder", location=index, hint=_COPY_AGAIN
            )
        file_shapes = _shapes(folder / name)
        if set(file_shapes) != {tensor for tensor, file in weight_map.items() if file == name}:
            message = f"the file does not hold the tensors that {INDEX_FILE} lists"
            raise InputError("weight_index_mismatch", message, location=folder / name, hint=_COPY_AGAIN)
        files[folder / name] = list(file_shapes)
        shapes |= file_shapes
    return WeightFiles(index, files, shapes)


def _shapes(path: Path) -> dict[str, tuple[int, ...]]:
    with _open(path) as file:
        names = list(file.keys())
        return {name: tuple(file.get_slice(name).get_shape()) for name in names}


def _check_values(tensor: Tensor, name: str, path: Path) -> Tensor:
    if tensor.dtype not in _FLOAT_DTYPES:
        dtype = str(tensor.dtype).removeprefix("torch.")
        message = f"tensor '{name}' holds {dtype}, not floating-point numbers"
        hint = "weights are read as fp32, fp16, bf16, or fp64: use the model from before its conversion"
        raise InputError("weights_not_float", message, location=path, hint=hint)
    # The encoder computes in fp32 at most, so a value beyond its range is infinite, too.
    values = tensor.float() if tensor.dtype == torch.float64 else tensor
    # The minimum and the maximum of values with a NaN are NaN.
    if tensor.numel() and not bool(torch.stack(torch.aminmax(values)).isfinite().all()):
        message = f"tensor '{name}' has values that are infinite or NaN"
        hint = "the training run that wrote it diverged; use an earlier model"
        raise InputError("weights_not_finite", message, location=path, hint=hint)
    return tensor


@contextmanager
def _open(path: Path) -> Iterator[Any]:
    try:
        with safe_open(path, "pt") as file:
            yield file
    except PermissionError:
        message = "no permission to read this file"
        hint = "ask its owner for permission"
        raise InputError("permission_denied", message, location=path, hint=hint) from None
    except (SafetensorError, OSError) as error:
        message = f"this is not a complete safetensors file ({error})"
        hint = "the file is damaged: copy it again"
        raise InputError("invalid_safetensors", message, location=path, hint=hint) from None
