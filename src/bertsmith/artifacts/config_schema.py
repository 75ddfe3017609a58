"""Typed JSON files of a model folder: config.json, bertsmith.json, and the index of sharded weights."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from bertsmith.errors import InputError
from bertsmith.formatting import shorten
from bertsmith.hardware import Precision
from bertsmith.io import atomic
from bertsmith.io.jsonl import load_json
from bertsmith.models.config import FAMILY_SETTINGS, ModelConfig, ProblemType
from bertsmith.models.family import FAMILIES, Family, get_family
from bertsmith.settings import describe_error
from bertsmith.suggestions import not_found_error

_MAX_JSON_BYTES = 16 * 2**20  # a config with a hundred thousand labels is far smaller
_HINT = "Correct the file, or copy it again from its source."
_MAX_VALUE_LENGTH = 60  # characters of a wrong value in a message

# Keys of config.json that change the computation, with the only value that is supported.
_FIXED = {"position_embedding_type": "absolute", "add_cross_attention": False}
# Settings whose key in config.json differs from the setting's name in all families.
_KEYS = {"causal": "is_decoder"}
# Settings that config.json omits if they have the family's default.
_OMITTED_DEFAULTS = (
    "share",
    "share_groups",
    "embedding_norm",
    "causal",
    "backwards",
    "position",
    "norm",
    "tie_word_embeddings",
    *FAMILY_SETTINGS,
)
# Prefix of the model type of models that Hugging Face's class of that type cannot compute, so that other tools
# report an unknown type and never open them as another model.
TYPE_PREFIX = "bertsmith-"
# Hugging Face's other names of the same activations.
_ACTIVATIONS = {
    "gelu_python": "gelu",
    "gelu_pytorch_tanh": "gelu_new",
    "gelu_python_tanh": "gelu_new",
    "gelu_fast": "gelu_new",
    "gelu_accurate": "gelu_new",
}


class _StrictModel(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore", allow_inf_nan=False, protected_namespaces=())


class HFConfig(_StrictModel):
    """The keys of config.json that are no settings of `ModelConfig`."""

    model_type: str | None = None
    architectures: list[str] | None = None
    id2label: dict[str, str | int | float | bool] | None = None
    problem_type: ProblemType | None = None

    @property
    def architecture(self) -> str | None:
        """Return the first of `architectures`, the Hugging Face class of the model."""
        return self.architectures[0] if self.architectures else None

    @property
    def class_prefix(self) -> str | None:
        """Return "Bert" for "BertForMaskedLM", "BertModel", and "BertLMHeadModel"."""
        return re.split("For|LMHead|Model", self.architecture)[0] if self.architecture else None


class UnfinishedRun(_StrictModel):
    """The training step of an unfinished run's weights, and the run's number of steps."""

    step: int
    of: int


class Record(_StrictModel):
    """The training record in bertsmith.json; tasks add other keys."""

    version: str | None = None
    weights_sha256: str | None = None
    task: str | None = None
    objective: str | None = None
    settings: dict[str, Any] = {}
    metadata: dict[str, Any] = {}
    decoder_state: dict[str, float | list[float]] = {}
    numbered: bool = False
    steps: int | None = None
    tokens: int | None = None
    pretraining_tokens: int | None = None
    held_out: dict[str, Any] | None = None
    validation: dict[str, Any] | None = None
    validation_digest: str | None = None
    extended: list[dict[str, Any]] = []
    base: str | None = None
    precision: Precision | None = None
    sentence_task: str | None = None
    is_next_label: Literal[0, 1] = 0
    unfinished: UnfinishedRun | None = None


class WeightIndex(_StrictModel):
    """The file of each tensor, from model.safetensors.index.json."""

    weight_map: dict[str, str]


ModelT = TypeVar("ModelT", bound=BaseModel)


def validate(model_class: type[ModelT], values: Mapping[str, Any], location: str) -> ModelT:
    """Validate values strictly; the first invalid one is an InputError that names its key."""
    try:
        return model_class.model_validate(dict(values), strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"]))
        message = describe_error(repr(key) if key else "", first)
        raise InputError("invalid_value", message, location=location, hint=_HINT) from None


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object of finite numbers; anything else is an InputError."""
    values = _read(path)
    if not isinstance(values, dict):
        raise InputError("not_a_json_object", "the file is not a JSON object", location=path, hint=_HINT)
    return values


def read_json_list(path: Path) -> list[Any]:
    """Read a JSON list of finite numbers; anything else is an InputError."""
    values = _read(path)
    if not isinstance(values, list):
        raise InputError("not_a_json_list", "the file is not a JSON list", location=path, hint=_HINT)
    return values


def _read(path: Path) -> Any:
    try:
        values = load_json(atomic.read_file(path, _MAX_JSON_BYTES).decode("utf-8"))
        key = _non_finite_key(values)
    except FileNotFoundError:
        raise not_found_error(path, hint="a model folder has one") from None
    except OSError as error:
        raise InputError(
            "unreadable_file", f"cannot read the file: {error.strerror}", location=path
        ) from None
    except (ValueError, RecursionError) as error:
        raise InputError(
            "invalid_json", f"the file is not JSON ({error})", location=path, hint="it may be damaged"
        ) from None
    if key is not None:
        raise InputError("not_finite", f"'{key}' is not a finite number", location=path, hint=_HINT)
    return values


def _non_finite_key(value: Any, key: str = "") -> str | None:
    """Return the dotted key of the first number that is infinite or NaN, None if all are finite."""
    if isinstance(value, float):
        return None if math.isfinite(value) else key
    parts = value.items() if isinstance(value, dict) else enumerate(value if isinstance(value, list) else ())
    keys = (_non_finite_key(part, f"{key}.{name}" if key else str(name)) for name, part in parts)
    return next((key for key in keys if key is not None), None)


def config_from_hf(raw: Mapping[str, Any], model_family: Family, location: str) -> ModelConfig:
    """Return the settings of a config.json; unknown keys are ignored, unsupported values are an InputError."""
    values: dict[str, Any] = {
        "model_type": model_family.model_type,
        **model_family.defaults,
        **model_family.structure,
    }
    for name in ModelConfig.model_fields:
        value = raw.get(_key(name, model_family))
        if value is not None and name not in model_family.structure and name != "model_type":
            values[name] = value
    values |= model_family.parse_extra(raw)
    if isinstance(activation := values.get("hidden_act"), str):
        values["hidden_act"] = _ACTIVATIONS.get(activation, activation)
    for name, other in model_family.none_if_equal.items():
        if values.get(name) == values.get(other, ModelConfig.model_fields[other].default):
            values[name] = None
    config = validate(ModelConfig, values, location)
    # A family whose models are all causal has no such key, or one without an effect.
    switches = {
        _KEYS[name]: value for name, value in model_family.structure.items() if name in _KEYS and not value
    }
    for key, value in (_FIXED | switches | _fixed_values(model_family, config)).items():
        if raw.get(key) not in (value, None):
            message = f"'{key}' {shorten(repr(raw[key]), _MAX_VALUE_LENGTH)} is not supported"
            hint = f"{model_family.model_type} models have {value!r}"
            raise InputError("unsupported_config", message, location=location, hint=hint)
    return config


def config_to_hf(config: ModelConfig) -> dict[str, Any]:
    """Return a config by Hugging Face's keys, without the settings that the family implies."""
    model_family = get_family(config.model_type)
    values: dict[str, Any] = {}
    for name, value in config.model_dump().items():
        is_default = name in _OMITTED_DEFAULTS and value == model_family.default_of(name)
        if not (name in model_family.structure or value is None or is_default):
            values[_key(name, model_family)] = value
    if config.norm != model_family.default_of("norm") or config.backwards:
        values["model_type"] = f"{TYPE_PREFIX}{model_family.model_type}"
    derived = {key: value(config) for key, value in model_family.derived.items()}
    return values | _fixed_values(model_family, config) | derived


def _key(name: str, model_family: Family) -> str:
    return model_family.keys.get(name) or _KEYS.get(name, name)


def family_from_hf(hf_config: HFConfig, names: list[str], location: str) -> Family:
    """Return the family that config.json names, or else the only one with these tensors and classes."""
    families = [get_family(model_type) for model_type in FAMILIES]
    if hf_config.model_type is None:
        matching = [
            model_family
            for model_family in families
            if model_family.class_prefix == hf_config.class_prefix or _has_base_tensors(model_family, names)
        ]
        if len(matching) != 1:
            message = "'model_type' is missing, and the tensor names do not determine the family"
            hint = f"add it: {', '.join(FAMILIES)}"
            raise InputError("model_type_missing", message, location=location, hint=hint)
        return matching[0]
    model_type = hf_config.model_type.removeprefix(TYPE_PREFIX)
    if model_type not in FAMILIES:
        message = f"unknown model type {shorten(repr(hf_config.model_type), _MAX_VALUE_LENGTH)}"
        hint = f"supported: {', '.join(FAMILIES)}"
        raise InputError("unknown_model_type", message, location=location, hint=hint)
    model_family = get_family(model_type)
    class_prefixes = {other.class_prefix for other in families}
    if hf_config.class_prefix in class_prefixes - {model_family.class_prefix}:
        message = f"'model_type' is {hf_config.model_type!r}, and 'architectures' {hf_config.architecture}"
        raise InputError("model_type_mismatch", message, location=location, hint="correct the wrong one")
    return model_family


def json_safe(value: Any) -> Any:
    """Replace numbers that are not finite, which JSON cannot hold, by None."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {key: json_safe(part) for key, part in value.items()}
    return [json_safe(part) for part in value] if isinstance(value, list | tuple) else value


def _has_base_tensors(model_family: Family, names: list[str]) -> bool:
    sizes: Mapping[str, Any] = next(iter(model_family.presets.values()), {})
    one_layer = {**model_family.defaults, **model_family.structure, **sizes, "num_hidden_layers": 1}
    table = model_family.names(ModelConfig.of(one_layer, model_family.model_type))
    return table.tensors["encoder.embeddings.token.weight"][0] in names


def _fixed_values(model_family: Family, config: ModelConfig) -> dict[str, Any]:
    return {key: value(config) if callable(value) else value for key, value in model_family.fixed.items()}
