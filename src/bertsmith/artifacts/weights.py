"""Read safetensors weights, and convert them between bertsmith's tensor names and Hugging Face's.

The weights are in one file or in several with an index; pickles are refused. A family's name table has the names.
Tensors that bertsmith concatenates (query, key, and value to qkv) are split on the way to Hugging Face's names and
concatenated on the way back; those of GPT's `Conv1D` are transposed.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from bertsmith.artifacts.config_schema import WeightIndex, read_json, validate
from bertsmith.errors import InputError
from bertsmith.formatting import join_names
from bertsmith.io import atomic
from bertsmith.models.tensor_names import NameTable

WEIGHTS_FILE = "model.safetensors"
INDEX_FILE = f"{WEIGHTS_FILE}.index.json"
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")
_FLOAT_DTYPES = {torch.float16, torch.bfloat16, torch.float32, torch.float64}
_BUFFERS = ("position_ids", ".attn.bias", ".attn.masked_bias")
"""Ends of the names of tensors that are no weights; the last two are the attention masks of older GPT files."""
_COPY_AGAIN = "Copy the folder again from its source."
_MAX_LISTED = 4  # names in a message
_CLASSIFIER_CLASSES = {
    "classifier": ("SequenceClassification",),
    "tagger": ("TokenClassification", "FeatureTagging"),
    "chooser": ("MultipleChoice",),
}
"""Parts whose tensors may have the same names in Hugging Face's files, with marks of their classes' names."""
_BASE_MODEL_MODULES = frozenset(
    {
        "embeddings",
        "embeddings_project",  # ELECTRA
        "encoder",
        "transformer",  # DistilBERT
        "pooler",
        "LayerNorm",  # bertsmith's pre-norm models
        *("tokens_embed", "positions_embed", "h"),  # GPT
        *("wte", "wpe", "ln_f"),  # GPT-2
        "blocks",  # families of which Hugging Face has none
    }
)
"""The top-level modules of the families' base models, such as BertModel."""


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
        """Read all tensors but position ids and attention masks; values that are not finite are an InputError."""
        tensors = {}
        for path, names in self.files.items():
            with _open(path) as file:
                for name in names:
                    if not name.endswith(_BUFFERS):
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


def select_checkpoint_parts(table: NameTable, architecture: str | None, names: Collection[str]) -> NameTable:
    """Keep, of the classifiers that share Hugging Face's names, the one that a checkpoint contains.

    Hugging Face gives the tensors of sequence, token, and multiple-choice classifiers the same names; the
    architecture tells them apart. Without one, a pooler indicates sequence classification.

    Args:
        table: The family's table.
        architecture: The Hugging Face class; None if config.json names none.
        names: The names of the checkpoint's tensors.
    """
    classifier = _guess_classifier(table, architecture, names)
    selected_hf_names: set[str] = set()
    for part in (classifier, *(part for part in _CLASSIFIER_CLASSES if part != classifier)):
        hf_names = _part_hf_names(table, part)
        if selected_hf_names & hf_names:
            table = table.without_part(part)
        selected_hf_names |= hf_names
    return table


def _guess_classifier(table: NameTable, architecture: str | None, names: Collection[str]) -> str:
    """Return the part to which a checkpoint's classifier belongs, if it has one."""
    if architecture is None:
        canonical_names = {canonical_name(name, table.base_model_prefix) for name in names}
        # In RoBERTa and others the pooler's dense layer is in the sequence classifier.
        pooler_names = _part_hf_names(table, "pooler") | _part_hf_names(table, "classifier.dense")
        return "tagger" if pooler_names.isdisjoint(canonical_names) else "classifier"
    matching = (
        part for part, classes in _CLASSIFIER_CLASSES.items() if any(name in architecture for name in classes)
    )
    return next(matching, "classifier")


def _part_hf_names(table: NameTable, part: str) -> set[str]:
    return {
        hf_name
        for name, hf_names in table.tensors.items()
        if name.startswith(f"{part}.")
        for hf_name in hf_names
    }


def canonical_name(name: str, base: str) -> str:
    """Return a tensor's name as Hugging Face writes it today in a model with a head.

    LayerNorm's `gamma` and `beta` in files converted from TensorFlow are renamed, and the names of a base model,
    which have no prefix, get the prefix `base`.
    """
    name = re.sub(r"LayerNorm\.gamma$", "LayerNorm.weight", name)
    name = re.sub(r"LayerNorm\.beta$", "LayerNorm.bias", name)
    module = name.partition(".")[0]
    return f"{base}.{name}" if module != base and module in _BASE_MODEL_MODULES else name


def to_hf_names(weights: Mapping[str, Tensor], table: NameTable, *, is_base_model: bool) -> dict[str, Tensor]:
    """Convert weights to Hugging Face's names; those of a base model have no prefix."""
    tensors: dict[str, Tensor] = {}
    for name, tensor in weights.items():
        hf_names = table.tensors[name]
        chunks = (tensor.T if name in table.transposed else tensor).chunk(len(hf_names))
        tensors |= {hf_name: chunk.contiguous() for hf_name, chunk in zip(hf_names, chunks, strict=True)}
    tensors |= {
        copy: tensors[original].clone()
        for copy, original in {**table.duplicates, **table.unused}.items()  # transformers expects them
        if original in tensors
    }
    return {
        name.removeprefix(f"{table.base_model_prefix}.") if is_base_model else name: tensor
        for name, tensor in tensors.items()
    }


def check_names(names: Iterable[str], table: NameTable, location: str) -> None:
    """Raise an InputError for tensors that the table does not have, and for a tensor under two names."""
    expected = {hf_name for hf_names in table.tensors.values() for hf_name in hf_names}
    expected |= table.tied.keys() | table.duplicates.keys() | table.unused.keys() | table.buffers
    # buffers of older files, which are ignored
    expected |= {
        f"{table.base_model_prefix}.embeddings.{name}" for name in ("position_ids", "token_type_ids")
    }
    seen: set[str] = set()
    unexpected = []
    for name in names:
        hf_name = canonical_name(name, table.base_model_prefix)
        if hf_name not in expected:
            unexpected.append(name)
        elif hf_name in seen:
            message = f"tensor '{hf_name}' occurs under two names"
            raise InputError("duplicate_tensor", message, location=location, hint=_COPY_AGAIN)
        seen.add(hf_name)
    if unexpected:
        message = f"unexpected {_format_names(unexpected)}"
        hint = "no part of a model with config.json's sizes and heads has this name"
        raise InputError("unexpected_tensors", message, location=location, hint=hint)


def merge_tensors(tensors: Mapping[str, Tensor], table: NameTable, location: str) -> dict[str, Tensor]:
    """Rename and concatenate tensors by a table, without a check of other names and of copies.

    A tensor whose parts are all absent is absent from the result. Values are not read, so tensors may be on the
    meta device.

    Raises:
        InputError: Some parts of a concatenated tensor are missing, or their shapes differ.
    """
    by_hf_name = {canonical_name(name, table.base_model_prefix): tensor for name, tensor in tensors.items()}
    for copy, original in {**table.tied, **table.unused}.items():  # where the file lacks the original
        if copy in by_hf_name:
            by_hf_name.setdefault(original, by_hf_name[copy])
    merged = {}
    for name, hf_names in table.tensors.items():
        missing = [hf_name for hf_name in hf_names if hf_name not in by_hf_name]
        if not missing:
            parts = [by_hf_name[hf_name] for hf_name in hf_names]
            if any(part.shape != parts[0].shape for part in parts):
                message = f"{_format_names(hf_names)} have different shapes"
                raise InputError("joined_shapes_differ", message, location=location, hint=_COPY_AGAIN)
            joined = parts[0] if len(parts) == 1 else _concatenate(parts)
            merged[name] = joined.T.contiguous() if name in table.transposed else joined
        elif len(missing) < len(hf_names):
            raise InputError(
                "tensor_missing", f"missing {_format_names(missing)}", location=location, hint=_COPY_AGAIN
            )
    return merged


def _concatenate(tensors: Sequence[Tensor]) -> Tensor:
    """Concatenate tensors of equal shapes along dimension 0.

    On meta tensors `torch.cat` would load torch's compiler, which takes as long as the rest of reading a model.
    """
    if tensors[0].is_meta:
        return tensors[0].new_empty((sum(len(tensor) for tensor in tensors), *tensors[0].shape[1:]))
    return torch.cat(list(tensors))


def from_hf_names(weights: Mapping[str, Tensor], table: NameTable, location: str) -> dict[str, Tensor]:
    """Check weights by a table, and convert them from Hugging Face's names.

    Raises:
        InputError: A tensor is unexpected or incomplete, or a copy differs from its original.
    """
    check_names(weights, table, location)
    by_hf_name = {canonical_name(name, table.base_model_prefix): tensor for name, tensor in weights.items()}
    for copy, original in {**table.tied, **table.duplicates}.items():  # of which this model has one tensor
        if (
            copy in by_hf_name
            and original in by_hf_name
            and not torch.equal(by_hf_name[copy], by_hf_name[original])
        ):
            message = f"tensor '{copy}' differs from '{original}'"
            hint = "the two are one tied tensor in this model; the file cannot be read"
            raise InputError("tied_tensors_differ", message, location=location, hint=hint)
    return merge_tensors(weights, table, location)


def describe_tensors(names: Iterable[str], table: NameTable) -> str:
    """Return "tensor 'bert.…'" for a message, with Hugging Face's names of bertsmith's tensors."""
    return _format_names([hf_name for name in names for hf_name in table.tensors.get(name, (name,))])


def _format_names(names: Iterable[str]) -> str:
    quoted = [f"'{name}'" for name in names]
    return f"tensor{'s' if len(quoted) > 1 else ''} {join_names(quoted, _MAX_LISTED)}"
