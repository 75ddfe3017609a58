"""`info --diff`: in what two models differ: their settings, what their families do otherwise, their parameters."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bertsmith.artifacts.folder import read_folder
from bertsmith.artifacts.locate import locate
from bertsmith.errors import InputError
from bertsmith.instances.settings import DataSettings
from bertsmith.models.config import ModelConfig, encoder_terms
from bertsmith.models.family import Family, family, known_as, near_presets, preset
from bertsmith.settings import read_yaml
from bertsmith.training.settings import TrainSettings


def difference(a: str | Path, b: str | Path) -> dict[str, Any]:
    """In what two models differ. a, b: each a preset's name, a run, a model folder, or a published model's name.

    Returns plain JSON: `settings`, `family`, `runs` (what two runs were trained with, else empty) and `parameters`
    (of the encoders), each a list of the rows {"what", "a", "b"} that differ; the last row of `parameters` has
    both sums. InputError for a name that is no model's.
    """
    configs = [_config_of(name) for name in (a, b)]
    runs = [_of_run(name) for name in (a, b)]
    kinds = [family(config.model_type) for config in configs]
    settings = [config.model_dump(mode="json") for config in configs]
    sums = [_sums(config) for config in configs]
    rows = _differing(*sums)
    rows.append({"what": "sum", **{side: sum(one.values()) for side, one in zip("ab", sums, strict=True)}})
    return {
        "kind": "difference",
        "a": str(a),
        "b": str(b),
        "settings": _differing(*settings),
        "family": _differing(*map(_habits, kinds)),
        "runs": _differing(*runs) if all(runs) else [],
        "parameters": rows,
    }


def _config_of(name: str | Path) -> ModelConfig:
    if Path(name).exists():
        return read_folder(locate(name)).config
    if known_as(str(name)):
        return preset(str(name))
    if near := near_presets(str(name), alike=0.8):
        raise InputError(
            f"{name}: there is no preset, run or model folder of this name", f"did you mean {near[0]}?"
        )
    return read_folder(locate(name)).config


def _of_run(name: str | Path) -> dict[str, Any]:
    """The settings of a run that are not its model's, by their dotted names; of what is no run none."""
    file = Path(name) / "settings.yaml"
    values = read_yaml(file) if file.is_file() else {}
    flat: dict[str, Any] = {}
    for group, own in values.items():
        if group != "model":
            flat |= {f"{group}.{key}": v for key, v in own.items()} if isinstance(own, dict) else {group: own}
    return flat


def _habits(kind: Family) -> dict[str, Any]:
    """What a family does that its settings do not say."""
    heads = kind.heads
    has_pair = any("pair" in parts for parts in kind.architectures)
    data = {**{name: DataSettings.model_fields[name].default for name in _DATA}, **kind.pretraining}
    return {
        "usual tokenizer": kind.tokenizer,
        "a pooler": frozenset({"encoder", "pooler"}) in kind.architectures,
        "a text's classifier reads": _reads(heads.dense_act),
        "a choice's score reads": _reads(heads.choice_act),
        "activation of the masked head": heads.masked_act or "the encoder's",
        "a head for pairs of sentences": has_pair,
        "pre-trained with objective": kind.objective,
        **{f"pre-trained with data.{name}": value for name, value in data.items()},
        "pre-trained with train.betas": list(kind.training.get("betas", TrainSettings().betas)),
    }


_DATA = ("instances", "sentence_task", "masking", "mask_split", "span_lengths", "span_max")


def _reads(activation: str | None) -> str:
    return "the pooler" if activation is None else f"the first token, by a layer of its own ({activation})"


def _sums(config: ModelConfig) -> dict[str, int]:
    """The encoder's parameters, of each part of the layers for all layers together."""
    found: dict[str, int] = {}
    for term in encoder_terms(config):
        first, _, rest = term.term.partition(" ")
        name = f"the layers' {rest.partition(' ')[2]}" if first == "layer" else term.term
        found[name] = found.get(name, 0) + term.size
    return found


def _differing(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[dict[str, Any]]:
    names = dict.fromkeys([*a, *b])
    rows = ({"what": name, "a": a.get(name), "b": b.get(name)} for name in names)
    return [row for row in rows if row["a"] != row["b"]]
