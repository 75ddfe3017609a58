"""Our weight names and the field's: one table that reads both ways.

Ours are those of the modules' state_dict under the prefixes `encoder.`, `pooler.`, `masked.`, `pair.` and
`classifier.`; the field's are those of BertModel (bare) and of BertForPreTraining, BertForMaskedLM and
BertForSequenceClassification (encoder under `bert.`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from bertsmith.errors import InputError

_BOTH = ("weight", "bias")

# our module → (the field's module, or modules whose rows ours joins; the tensors it has)
_AROUND: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "encoder.embeddings.token": (("bert.embeddings.word_embeddings",), ("weight",)),
    "encoder.embeddings.position": (("bert.embeddings.position_embeddings",), ("weight",)),
    "encoder.embeddings.segment": (("bert.embeddings.token_type_embeddings",), ("weight",)),
    "encoder.embeddings.norm": (("bert.embeddings.LayerNorm",), _BOTH),
    "pooler.linear": (("bert.pooler.dense",), _BOTH),
    "masked.transform": (("cls.predictions.transform.dense",), _BOTH),
    "masked.norm": (("cls.predictions.transform.LayerNorm",), _BOTH),
    "masked": (("cls.predictions",), ("bias",)),
    "pair.linear": (("cls.seq_relationship",), _BOTH),
    "classifier.linear": (("classifier",), _BOTH),
}
_IN_LAYER: dict[str, tuple[str, ...]] = {
    "attention.qkv": ("attention.self.query", "attention.self.key", "attention.self.value"),
    "attention.output": ("attention.output.dense",),
    "attention_norm": ("attention.output.LayerNorm",),
    "feed_forward.inner": ("intermediate.dense",),
    "feed_forward.output": ("output.dense",),
    "output_norm": ("output.LayerNorm",),
}

# Tied or constant in the field's modules, so at most copies of what stands elsewhere: never written.
_COPIES = {
    "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
    "cls.predictions.decoder.bias": "cls.predictions.bias",
}
_CONSTANT = "bert.embeddings.position_ids"


def table(layers: int) -> dict[str, tuple[str, ...]]:
    """Our tensor name → the field's names whose rows it joins, for so many layers and all heads."""
    modules = dict(_AROUND)
    for layer in range(layers):
        for ours, theirs in _IN_LAYER.items():
            fields = tuple(f"bert.encoder.layer.{layer}.{name}" for name in theirs)
            modules[f"encoder.blocks.{layer}.{ours}"] = (fields, _BOTH)
    return {
        f"{ours}.{kind}": tuple(f"{name}.{kind}" for name in theirs)
        for ours, (theirs, kinds) in modules.items()
        for kind in kinds
    }


def canonical(name: str) -> str:
    """A name as the field writes it today: old `gamma` and `beta` renamed, a bare encoder prefixed."""
    name = re.sub(r"LayerNorm\.(gamma|beta)$", _new_norm_name, name)
    return f"bert.{name}" if name.startswith(("embeddings.", "encoder.", "pooler.")) else name


def _new_norm_name(match: re.Match[str]) -> str:
    return "LayerNorm." + {"gamma": "weight", "beta": "bias"}[match[1]]


def to_field(weights: Mapping[str, Tensor], *, bare: bool) -> dict[str, Tensor]:
    """Weights by our names → by the field's; `bare` leaves `bert.` away, as a BertModel's folder does."""
    layers = 1 + max((int(n.split(".")[2]) for n in weights if n.startswith("encoder.blocks.")), default=-1)
    names = table(layers)
    out = {}
    for ours, tensor in weights.items():
        fields = names[ours]
        for name, part in zip(fields, tensor.chunk(len(fields)), strict=True):
            out[name.removeprefix("bert.") if bare else name] = part.contiguous()
    return out


def check_names(names: Iterable[str], layers: int, place: str) -> None:
    """Refuse tensors that neither an encoder of so many layers nor any head knows, and doubled ones."""
    known = {field for fields in table(layers).values() for field in fields} | _COPIES.keys() | {_CONSTANT}
    seen: set[str] = set()
    unexpected = []
    for name in names:
        plain = canonical(name)
        if plain not in known:
            unexpected.append(name)
        elif plain in seen:
            raise InputError(f"{place}: tensor '{plain}' stands there twice, under two names")
        seen.add(plain)
    if unexpected:
        raise InputError(
            f"{place}: unexpected {_listed(unexpected)}",
            f"a BERT encoder of {layers} layers and its heads have no such part; compare with config.json",
        )


def from_field(weights: Mapping[str, Tensor], layers: int, place: str) -> dict[str, Tensor]:
    """Weights by the field's names → by ours, rows joined where ours joins them.

    What is absent altogether is absent from the result; a joined tensor with a part missing, an unknown name
    or a tied copy that differs from its original is an `InputError` that begins with `place`.
    """
    check_names(weights, layers, place)
    plain = {canonical(name): tensor for name, tensor in weights.items()}
    for copy, original in _COPIES.items():
        if copy in plain and original in plain and not torch.equal(plain[copy], plain[original]):
            raise InputError(
                f"{place}: tensor '{copy}' differs from '{original}'",
                "the two are one (tied) in every BERT; an untied decoder cannot be read",
            )
    if "cls.predictions.decoder.bias" in plain:
        plain.setdefault("cls.predictions.bias", plain["cls.predictions.decoder.bias"])
    out = {}
    for ours, fields in table(layers).items():
        missing = [name for name in fields if name not in plain]
        if not missing:
            parts = [plain[name] for name in fields]
            if any(part.shape != parts[0].shape for part in parts):
                raise InputError(f"{place}: {_listed(fields)} have unlike shapes")
            out[ours] = parts[0] if len(parts) == 1 else torch.cat(parts)
        elif len(missing) < len(fields):
            raise InputError(f"{place}: missing {_listed(missing)}")
    return out


def field_tensors(ours: Iterable[str], layers: int) -> str:
    """ "tensor 'bert.…'": our names told by the field's, for a sentence."""
    names = table(layers)
    return _listed([field for name in ours for field in names.get(name, (name,))])


def _listed(names: Iterable[str]) -> str:
    shown = [f"'{name}'" for name in names]
    more = f" and {len(shown) - 4} more" if len(shown) > 4 else ""
    return f"tensor{'s' if len(shown) > 1 else ''} {', '.join(shown[:4])}{more}"
