"""Convert weights between bertsmith's tensor names and Hugging Face's by a family's name table."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence

import torch
from torch import Tensor

from bertsmith.errors import InputError
from bertsmith.models.family import Family
from bertsmith.models.tensor_names import NameTable

_COPY_AGAIN = "Copy the folder again from its source."
_MAX_LISTED = 4  # names in a message
_CLASSIFIERS = {
    "classifier": "SequenceClassification",
    "tagger": "TokenClassification",
    "chooser": "MultipleChoice",
}
"""Parts that share a tensor name in Hugging Face's files, with a mark of their class names."""
_BASE_MODEL_MODULES = frozenset(
    {"embeddings", "embeddings_project", "encoder", "transformer", "pooler", "LayerNorm"}
)
"""The top-level modules of a base model's class."""


def checkpoint_names(
    table: NameTable, model_family: Family, architecture: str | None, names: Collection[str]
) -> NameTable:
    """Return a name table without the parts that a checkpoint of this architecture does not have.

    Hugging Face gives the tensors of classifiers of sequences, tokens, and choices one name. The class decides
    which they are; without a known class, a pooler indicates a classifier of sequences.
    """
    parts = model_family.parts(architecture) if architecture is not None else None
    if parts is not None:
        classifier = next((part for part in _CLASSIFIERS if part in parts), "classifier")
    elif architecture is not None:
        marked = (part for part, mark in _CLASSIFIERS.items() if mark in architecture)
        classifier = next(marked, "classifier")
    else:
        canonical_names = {canonical_name(name, table.base_model_prefix) for name in names}
        pooler = [name for name in table.tensors if name.startswith(("pooler.", "classifier.dense."))]
        has_pooler = any(hf_name in canonical_names for name in pooler for hf_name in table.tensors[name])
        classifier = "classifier" if has_pooler else "tagger"
    used: set[str] = set()
    for part in sorted(_CLASSIFIERS, key=lambda part: part != classifier):  # the checkpoint's part first
        hf_names = _hf_names(table, part)
        if used & hf_names:
            table = table.without_part(part)
        used |= hf_names
    return table


def _hf_names(table: NameTable, part: str) -> set[str]:
    return {
        hf_name
        for name, hf_names in table.tensors.items()
        if name.startswith(f"{part}.")
        for hf_name in hf_names
    }


def canonical_name(name: str, base: str) -> str:
    """Return a tensor's name as Hugging Face writes it today.

    Old `gamma` and `beta` of LayerNorm are renamed, and a base model's names get the prefix `base`.
    """
    name = re.sub(r"LayerNorm\.(gamma|beta)$", _new_norm_name, name)
    return f"{base}.{name}" if name.partition(".")[0] in _BASE_MODEL_MODULES else name


def _new_norm_name(match: re.Match[str]) -> str:
    return "LayerNorm." + {"gamma": "weight", "beta": "bias"}[match[1]]


def to_hf_names(weights: Mapping[str, Tensor], table: NameTable, *, is_base_model: bool) -> dict[str, Tensor]:
    """Convert weights to Hugging Face's names; `bare` drops the base model's prefix, as its own class does."""
    tensors: dict[str, Tensor] = {}
    for name, tensor in weights.items():
        hf_names = table.tensors[name]
        chunks = tensor.chunk(len(hf_names))
        tensors |= {hf_name: chunk.contiguous() for hf_name, chunk in zip(hf_names, chunks, strict=True)}
    copies = {**table.duplicates, **table.unused}
    tensors |= {name: tensors[source].clone() for name, source in copies.items() if source in tensors}
    return {
        name.removeprefix(f"{table.base_model_prefix}.") if is_base_model else name: tensor
        for name, tensor in tensors.items()
    }


def check_names(names: Iterable[str], table: NameTable, location: str) -> None:
    """Raise an InputError for tensors that the table does not have and for duplicate ones."""
    expected = {hf_name for hf_names in table.tensors.values() for hf_name in hf_names}
    expected |= table.tied.keys() | table.duplicates.keys() | table.unused.keys() | table.buffers
    seen: set[str] = set()
    unexpected = []
    for name in names:
        standard_name = canonical_name(name, table.base_model_prefix)
        if standard_name not in expected:
            unexpected.append(name)
        elif standard_name in seen:
            raise InputError(
                "duplicate_tensor",
                f"tensor '{standard_name}' occurs under two names",
                location=location,
                hint=_COPY_AGAIN,
            )
        seen.add(standard_name)
    if unexpected:
        raise InputError(
            "unexpected_tensors",
            f"unexpected {_listed(unexpected)}",
            location=location,
            hint="no part of a model with config.json's sizes and heads has this name",
        )


def merge_tensors(tensors: Mapping[str, Tensor], table: NameTable, location: str) -> dict[str, Tensor]:
    """Convert tensors from Hugging Face's names; tensors that bertsmith joins are concatenated by rows.

    A tensor whose parts are all absent is absent from the result.

    Raises:
        InputError: Some parts of a joined tensor are missing, or their shapes differ.
    """
    by_name = {canonical_name(name, table.base_model_prefix): tensor for name, tensor in tensors.items()}
    for duplicate, original in {**table.tied, **table.unused}.items():
        if duplicate in by_name:  # a file may hold the duplicate alone
            by_name.setdefault(original, by_name[duplicate])
    merged = {}
    for name, hf_names in table.tensors.items():
        missing = [hf_name for hf_name in hf_names if hf_name not in by_name]
        if not missing:
            parts = [by_name[hf_name] for hf_name in hf_names]
            if any(part.shape != parts[0].shape for part in parts):
                raise InputError(
                    "joined_shapes_differ",
                    f"{_listed(hf_names)} have different shapes",
                    location=location,
                    hint=_COPY_AGAIN,
                )
            merged[name] = parts[0] if len(parts) == 1 else _concatenate(parts)
        elif len(missing) < len(hf_names):
            raise InputError(
                "tensor_missing", f"missing {_listed(missing)}", location=location, hint=_COPY_AGAIN
            )
    return merged


def _concatenate(tensors: Sequence[Tensor]) -> Tensor:
    """Concatenate tensors of one shape by rows.

    On meta tensors `torch.cat` would load torch's compiler, which takes as long as the rest of reading a model.
    """
    if tensors[0].is_meta:
        return tensors[0].new_empty((sum(len(tensor) for tensor in tensors), *tensors[0].shape[1:]))
    return torch.cat(list(tensors))


def from_hf_names(weights: Mapping[str, Tensor], table: NameTable, location: str) -> dict[str, Tensor]:
    """Convert weights from Hugging Face's names; a tied copy that differs from its original is an InputError."""
    check_names(weights, table, location)
    by_name = {canonical_name(name, table.base_model_prefix): tensor for name, tensor in weights.items()}
    for duplicate, original in {**table.tied, **table.duplicates}.items():
        if (
            duplicate in by_name
            and original in by_name
            and not torch.equal(by_name[duplicate], by_name[original])
        ):
            raise InputError(
                "tied_tensors_differ",
                f"tensor '{duplicate}' differs from '{original}'",
                location=location,
                hint="the two are one tied tensor in this model; the file cannot be read",
            )
    return merge_tensors(weights, table, location)


def describe_tensors(names: Iterable[str], table: NameTable) -> str:
    """Return "tensor 'bert.…'" for a message: bertsmith's names listed as Hugging Face's."""
    return _listed([hf_name for name in names for hf_name in table.tensors.get(name, (name,))])


def _listed(names: Iterable[str]) -> str:
    quoted = [f"'{name}'" for name in names]
    more = f" and {len(quoted) - _MAX_LISTED} more" if len(quoted) > _MAX_LISTED else ""
    return f"tensor{'s' if len(quoted) > 1 else ''} {', '.join(quoted[:_MAX_LISTED])}{more}"
