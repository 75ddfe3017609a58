"""A model folder's JSON files, typed: config.json (the field's keys ↔ our settings), bertsmith.json, the index."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from bertsmith.errors import InputError
from bertsmith.hardware import Precision
from bertsmith.models.config import ModelConfig
from bertsmith.models.family import FAMILIES, Family, family
from bertsmith.models.heads import ProblemType
from bertsmith.suggestions import absent

_LARGEST_JSON = 16 * 2**20  # bytes; a config with a hundred thousand labels is far below
_REMEDY = "correct the file, or copy it again from its source"
_SHOWN = 60  # characters of a wrong value that a sentence repeats

# Keys of the field's configs that would change the numbers: the value that every family has, or refused.
_FIXED = {
    "position_embedding_type": "absolute",
    "add_cross_attention": False,
}
# Our settings by the field's names, where these are not ours in any family.
_KEYS = {"causal": "is_decoder"}
# Settings that are left out of config.json where they are the family's usual ones.
_LEFT_OUT = ("share", "share_groups", "causal", "backwards", "position", "norm", "tie_word_embeddings")
# Before the type of a model that is none of the field's class of that type, by its layers or by what it reads: so
# other tools say that they do not know it, and never open it as what it is not.
_OWN = "bertsmith-"
# The same functions by other names of the field.
_ACTIVATIONS = {
    "gelu_python": "gelu",
    "gelu_pytorch_tanh": "gelu_new",
    "gelu_python_tanh": "gelu_new",
    "gelu_fast": "gelu_new",
    "gelu_accurate": "gelu_new",
}


class _Typed(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore", allow_inf_nan=False, protected_namespaces=())


class FieldConfig(_Typed):
    """What config.json says besides sizes."""

    model_type: str | None = None
    architectures: list[str] | None = None
    id2label: dict[str, str | int | float | bool] | None = None
    problem_type: ProblemType | None = None

    @property
    def architecture(self) -> str | None:
        """The first class named."""
        return self.architectures[0] if self.architectures else None


class UnfinishedRun(_Typed):
    """Of a model whose run has not finished: the update that its weights are of, and how many there are to be."""

    step: int
    of: int


class Record(_Typed):
    """What bertsmith.json keeps of a model's making; other keys are a task's own."""

    version: str | None = None
    weights_sha256: str | None = None
    task: str | None = None
    objective: str | None = None
    settings: dict[str, Any] = {}
    facts: dict[str, Any] = {}
    numbered: bool = False
    steps: int | None = None
    tokens: int | None = None
    pretraining_tokens: int | None = None
    held_out: dict[str, Any] | None = None
    dev: dict[str, Any] | None = None
    extended: list[dict[str, Any]] = []
    base: str | None = None
    precision: Precision | None = None
    sentence_task: str | None = None
    is_next_label: Literal[0, 1] = 0
    unfinished: UnfinishedRun | None = None


class WeightIndex(_Typed):
    """model.safetensors.index.json: which file holds which tensor."""

    weight_map: dict[str, str]


Kind = TypeVar("Kind", bound=BaseModel)


def typed(kind: type[Kind], values: Mapping[str, Any], place: str) -> Kind:
    """Values of the right kinds; the first wrong one is an `InputError` with the file and the key."""
    try:
        return kind.model_validate(dict(values), strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        said = first["msg"].removeprefix("Value error, ").removeprefix("Input ")
        got = "" if isinstance(first["input"], dict) else f" (got {_short(first['input'])})"
        raise InputError(f"{place}: {repr(key) + ' ' if key else ''}{said}{got}", _REMEDY) from None


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object of finite numbers; anything else is an `InputError`."""
    values = _read(path)
    if not isinstance(values, dict):
        raise InputError(f"{path}: is not a JSON object", _REMEDY)
    return values


def read_json_list(path: Path) -> list[Any]:
    """The same for a JSON list."""
    values = _read(path)
    if not isinstance(values, list):
        raise InputError(f"{path}: is not a JSON list", _REMEDY)
    return values


def _read(path: Path) -> Any:
    try:
        if path.stat().st_size > _LARGEST_JSON:
            raise InputError(f"{path}: is larger than any of its kind", _REMEDY)
        values = json.loads(path.read_bytes().decode("utf-8"))
        infinite = _infinite(values)
    except FileNotFoundError:
        raise absent(path, remedy="a model folder has one") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: this is not JSON ({error})", "it is torn or damaged") from None
    if infinite is not None:
        raise InputError(f"{path}: '{infinite}' is not a finite number", "fix the file, or write it again")
    return values


def config_of(raw: Mapping[str, Any], kind: Family, place: str) -> ModelConfig:
    """Our settings of a config.json; other families' keys are ignored, wrong values refused by name."""
    values: dict[str, Any] = {"model_type": kind.model_type, **kind.defaults, **kind.structure}
    for name in ModelConfig.model_fields:
        given = raw.get(_key(name, kind))
        if given is not None and name not in kind.structure and name != "model_type":
            values[name] = given
    values |= kind.told(raw)
    if isinstance(act := values.get("hidden_act"), str):
        values["hidden_act"] = _ACTIVATIONS.get(act, act)
    for name, other in kind.none_where.items():
        if values.get(name) == values.get(other, ModelConfig.model_fields[other].default):
            values[name] = None
    config = typed(ModelConfig, values, place)
    switches = {_KEYS[name]: value for name, value in kind.structure.items() if name in _KEYS}
    for key, value in (_FIXED | switches | _fixed(kind, config)).items():
        if raw.get(key) not in (value, None):
            raise InputError(
                f"{place}: {key} {_short(raw[key])} cannot be read", f"{kind.model_type} has {value!r} here"
            )
    return config


def field_values(config: ModelConfig) -> dict[str, Any]:
    """A config by the field's keys; switches that the family's name says already are left out."""
    kind = family(config.model_type)
    out: dict[str, Any] = {}
    for name, value in config.model_dump().items():
        usual = name in _LEFT_OUT and value == kind.setting(name)
        if not (name in kind.structure or value is None or usual):
            out[_key(name, kind)] = value
    if config.norm == "pre" or config.backwards:
        out["model_type"] = f"{_OWN}{kind.model_type}"
    return out | _fixed(kind, config) | {key: value(config) for key, value in kind.also.items()}


def _key(name: str, kind: Family) -> str:
    return kind.keys.get(name) or _KEYS.get(name, name)


def family_of(said: FieldConfig, names: list[str], place: str) -> Family:
    """The family that config.json names; where it names none, the one whose tensors and classes these are."""
    if said.model_type is not None:
        own = said.model_type.removeprefix(_OWN)
        if own not in FAMILIES:
            raise InputError(
                f"{place}: this is a model of type {_short(said.model_type)}",
                f"these can be read: {', '.join(FAMILIES)}",
            )
        named = family(own)
        others = {kind.class_prefix for kind in map(family, FAMILIES)} - {named.class_prefix}
        if said.architecture is not None and _class_prefix(said.architecture) in others:
            raise InputError(
                f"{place}: 'model_type' is {said.model_type!r}, and 'architectures' names {said.architecture}",
                "they do not belong together: correct the one that is wrong",
            )
        return named
    found = [kind for kind in map(family, FAMILIES) if _is_of(kind, said.architecture, names)]
    if len(found) != 1:
        raise InputError(
            f"{place}: 'model_type' is missing, and the weights do not tell the family",
            f"add it: one of {', '.join(FAMILIES)}",
        )
    return found[0]


def plain(value: Any) -> Any:
    """A value as JSON can hold it: numbers that are not finite become null."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {key: plain(part) for key, part in value.items()}
    return [plain(part) for part in value] if isinstance(value, list | tuple) else value


def _is_of(kind: Family, architecture: str | None, names: list[str]) -> bool:
    if architecture is not None and _class_prefix(architecture) == kind.class_prefix:
        return True
    smallest = {"num_hidden_layers": 1, **kind.defaults, **kind.structure}
    base = kind.names(ModelConfig.of(smallest, kind.model_type)).base
    return any(name.startswith(f"{base}.") for name in names)


def _class_prefix(architecture: str) -> str:
    """ "Bert" of "BertForMaskedLM", "BertModel" and "BertLMHeadModel"."""
    for mark in ("For", "Model", "LMHead"):
        head, found, _ = architecture.partition(mark)
        if found and head:
            return head.removesuffix("LMHead")
    return architecture


def _fixed(kind: Family, config: ModelConfig) -> dict[str, Any]:
    return {key: value(config) if callable(value) else value for key, value in kind.fixed.items()}


def _short(value: Any) -> str:
    return repr(str(value)[:_SHOWN]) if isinstance(value, str) else repr(value)[:_SHOWN]


def _infinite(value: Any, key: str = "") -> str | None:
    """The dotted key of the first number that is infinite or none at all."""
    if isinstance(value, float):
        return None if math.isfinite(value) else key
    if isinstance(value, dict):
        parts = [(f"{key}.{name}" if key else name, part) for name, part in value.items()]
    else:
        parts = [(f"{key}.{i}", part) for i, part in enumerate(value)] if isinstance(value, list) else []
    return next((found for name, part in parts if (found := _infinite(part, name)) is not None), None)
