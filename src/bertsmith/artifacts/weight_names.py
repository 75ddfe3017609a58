"""Weights by our names ↔ by the field's: one table, a family's, that reads both ways."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence

import torch
from torch import Tensor

from bertsmith.errors import InputError
from bertsmith.models.family import Family
from bertsmith.models.tensor_names import NameTable

_AGAIN = "copy the folder again from its source"


def table_of_file(
    table: NameTable, kind: Family, architecture: str | None, names: Collection[str]
) -> NameTable:
    """The table as a file of this architecture has it.

    The field calls the tensors of a classifier of sentences, of tokens and of choices by one name: the class says
    which they are, and where no class is given or known, whether there is a pooler for a sentence classifier.
    """
    parts = kind.parts(architecture) if architecture is not None else None
    if parts is not None:
        own = next((part for part in _ALIKE if part in parts), "classifier")
    elif architecture is not None:
        own = next((part for part, name in _ALIKE.items() if name in architecture), "classifier")
    else:
        plain = {canonical(name, table.base) for name in names}
        ours = [ours for ours in table.tensors if ours.startswith(("pooler.", "classifier.dense."))]
        pooled = any(theirs in plain for name in ours for theirs in table.tensors[name])
        own = "classifier" if pooled else "tagger"
    claimed: set[str] = set()
    for part in sorted(_ALIKE, key=lambda part: part != own):  # the file's own first
        names_of_part = _field_names(table, part)
        if claimed & names_of_part:
            table = table.without(part)
        claimed |= names_of_part
    return table


_ALIKE = {
    "classifier": "SequenceClassification",
    "tagger": "TokenClassification",
    "chooser": "MultipleChoice",
}
"""The parts that share a name there, each with what its class is called."""


def _field_names(table: NameTable, part: str) -> set[str]:
    return {name for ours, theirs in table.tensors.items() if ours.startswith(f"{part}.") for name in theirs}


_OF_BARE = frozenset({"embeddings", "embeddings_project", "encoder", "transformer", "pooler", "LayerNorm"})
"""How the names of a bare encoder begin."""


def canonical(name: str, base: str) -> str:
    """A name as the field writes it today: old `gamma` and `beta` renamed, a bare encoder prefixed."""
    name = re.sub(r"LayerNorm\.(gamma|beta)$", _new_norm_name, name)
    return f"{base}.{name}" if name.partition(".")[0] in _OF_BARE else name


def _new_norm_name(match: re.Match[str]) -> str:
    return "LayerNorm." + {"gamma": "weight", "beta": "bias"}[match[1]]


def to_field(weights: Mapping[str, Tensor], table: NameTable, *, bare: bool) -> dict[str, Tensor]:
    """Weights by our names → by the field's; `bare` leaves the base's name away, as its own class does."""
    out: dict[str, Tensor] = {}
    for ours, tensor in weights.items():
        fields = table.tensors[ours]
        out |= {name: part.contiguous() for name, part in zip(fields, tensor.chunk(len(fields)), strict=True)}
    written = {**table.repeated, **table.idle}
    out |= {name: out[first].clone() for name, first in written.items() if first in out}
    return {name.removeprefix(f"{table.base}.") if bare else name: part for name, part in out.items()}


def check_names(names: Iterable[str], table: NameTable, place: str) -> None:
    """Refuse tensors that the table does not know, and doubled ones."""
    known = {field for fields in table.tensors.values() for field in fields}
    known |= table.copies.keys() | table.repeated.keys() | table.idle.keys() | table.constants
    seen: set[str] = set()
    unexpected = []
    for name in names:
        plain = canonical(name, table.base)
        if plain not in known:
            unexpected.append(name)
        elif plain in seen:
            raise InputError(f"{place}: tensor '{plain}' occurs twice, under two names", _AGAIN)
        seen.add(plain)
    if unexpected:
        raise InputError(
            f"{place}: unexpected {_listed(unexpected)}",
            "no part of a model of config.json's sizes and heads has this name",
        )


def join(fields: Mapping[str, Tensor], table: NameTable, place: str) -> dict[str, Tensor]:
    """Tensors by the field's names, of one width each → by ours, rows joined where ours joins them.

    What is absent altogether is absent from the result; a joined tensor with a part missing, or parts of unlike
    shapes, is an `InputError` that begins with `place`.
    """
    plain = {canonical(name, table.base): tensor for name, tensor in fields.items()}
    for copy, original in {**table.copies, **table.idle}.items():
        if copy in plain:  # a file may hold the copy alone: the two are one, or were when it was written
            plain.setdefault(original, plain[copy])
    out = {}
    for ours, theirs in table.tensors.items():
        missing = [name for name in theirs if name not in plain]
        if not missing:
            parts = [plain[name] for name in theirs]
            if any(part.shape != parts[0].shape for part in parts):
                raise InputError(f"{place}: {_listed(theirs)} have different shapes", _AGAIN)
            out[ours] = parts[0] if len(parts) == 1 else _above_each_other(parts)
        elif len(missing) < len(theirs):
            raise InputError(f"{place}: missing {_listed(missing)}", _AGAIN)
    return out


def _above_each_other(parts: Sequence[Tensor]) -> Tensor:
    """Tensors of one shape, joined by rows. Of tensors without memory `torch.cat` would load torch's compiler,
    which takes as long as all else that reading a model does."""
    if parts[0].is_meta:
        return parts[0].new_empty((sum(len(part) for part in parts), *parts[0].shape[1:]))
    return torch.cat(list(parts))


def from_field(weights: Mapping[str, Tensor], table: NameTable, place: str) -> dict[str, Tensor]:
    """Weights by the field's names → by ours; a tied copy that differs from its original is an `InputError`."""
    check_names(weights, table, place)
    plain = {canonical(name, table.base): tensor for name, tensor in weights.items()}
    for copy, original in {**table.copies, **table.repeated}.items():
        if copy in plain and original in plain and not torch.equal(plain[copy], plain[original]):
            raise InputError(
                f"{place}: tensor '{copy}' differs from '{original}'",
                "the two are one (tied) in this model; it cannot be read as it is",
            )
    return join(weights, table, place)


def field_tensors(ours: Iterable[str], table: NameTable) -> str:
    """ "tensor 'bert.…'": our names told by the field's, for a sentence."""
    return _listed([field for name in ours for field in table.tensors.get(name, (name,))])


def _listed(names: Iterable[str]) -> str:
    shown = [f"'{name}'" for name in names]
    more = f" and {len(shown) - 4} more" if len(shown) > 4 else ""
    return f"tensor{'s' if len(shown) > 1 else ''} {', '.join(shown[:4])}{more}"
