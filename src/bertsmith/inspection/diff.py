"""`info --diff`: compare two models' settings, families, training settings, and parameters."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bertsmith.artifacts.folder import read_folder
from bertsmith.artifacts.locate import locate
from bertsmith.errors import InputError
from bertsmith.instances.settings import DataSettings
from bertsmith.models.config import ModelConfig, encoder_parameter_terms
from bertsmith.models.family import Family, get_family, preset, resolve_preset, similar_presets
from bertsmith.settings import read_yaml
from bertsmith.training.settings import TrainSettings

_PRETRAINING_DATA = (
    "instances",
    "sentence_task",
    "masking",
    "replacement_probabilities",
    "span_length_distribution",
    "max_span_length",
)


def compare_models(a: str | Path, b: str | Path) -> dict[str, Any]:
    """Compare two models.

    Args:
        a: A preset's name, a run, a model folder, or a published model's name.
        b: Likewise.

    Returns:
        `settings` (of the model), `family`, `runs` (training settings if both are runs, else empty), and
        `parameters` (counts of the encoders' parameters): each a list of the rows {"what", "a", "b"} in which they
        differ. The last row of `parameters` has both sums.

    Raises:
        InputError: A name is not that of a model.
    """
    configs = [_config(name) for name in (a, b)]
    run_settings = [_run_settings(name) for name in (a, b)]
    traits = [_family_traits(get_family(config.model_type)) for config in configs]
    counts = [_parameter_counts(config) for config in configs]
    parameters = _differing_rows(*counts)
    parameters.append({"what": "sum", "a": sum(counts[0].values()), "b": sum(counts[1].values())})
    return {
        "kind": "difference",
        "a": str(a),
        "b": str(b),
        "settings": _differing_rows(*(config.flat() for config in configs)),
        "family": _differing_rows(*traits),
        "runs": _differing_rows(*run_settings) if all(run_settings) else [],
        "parameters": parameters,
    }


def _config(name: str | Path) -> ModelConfig:
    if not Path(name).exists():
        if resolve_preset(str(name)):
            return preset(str(name))
        if suggestions := similar_presets(str(name), cutoff=0.8):
            message = "there is no preset, run, or model folder of this name"
            hint = f"did you mean {suggestions[0]}?"
            raise InputError("model_not_found", message, location=name, hint=hint)
    return read_folder(locate(name)).config


def _run_settings(name: str | Path) -> dict[str, Any]:
    """Return the settings of a run except its model's, by dotted names; empty for other folders and names."""
    file = Path(name) / "settings.yaml"
    values = read_yaml(file) if file.is_file() else {}
    flat: dict[str, Any] = {}
    for group, settings in values.items():
        if group == "model":
            continue
        if isinstance(settings, dict):
            flat |= {f"{group}.{key}": value for key, value in settings.items()}
        else:
            flat[group] = settings
    return flat


def _family_traits(model_family: Family) -> dict[str, Any]:
    """Return the tokenizer of a family, and how it is pre-trained."""
    defaults = {name: DataSettings.model_fields[name].default for name in _PRETRAINING_DATA}
    data = {**defaults, **model_family.pretraining}
    training = {"adam_beta2": TrainSettings().adam_beta2, **model_family.training}
    return {
        "usual tokenizer": model_family.tokenizer,
        "pre-trained with objective": model_family.objective,
        **{f"pre-trained with data.{name}": value for name, value in data.items()},
        **{f"pre-trained with train.{name}": value for name, value in training.items()},
    }


def _parameter_counts(config: ModelConfig) -> dict[str, int]:
    """Return the number of the encoder's parameters by part, summed over the layers."""
    counts: dict[str, int] = {}
    for term in encoder_parameter_terms(config):
        first, _, rest = term.name.partition(" ")
        name = f"the layers' {rest.partition(' ')[2]}" if first == "layer" else term.name
        counts[name] = counts.get(name, 0) + term.size
    return counts


def _differing_rows(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return a row for each name whose values differ; a missing value is None."""
    names = dict.fromkeys([*a, *b])
    rows = ({"what": name, "a": a.get(name), "b": b.get(name)} for name in names)
    return [row for row in rows if row["a"] != row["b"]]
