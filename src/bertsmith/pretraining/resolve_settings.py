"""The settings of a pre-training run from preset, recipe, and changes, with defaults by family, size, and time.

The paper's settings are for a thousand times the compute of a small run; a small BERT learns little more than word
frequencies with them. The defaults for small sizes were measured: benchmarks/learning.py. With a time budget and
no preset, the speed of this machine decides the size.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertsmith.artifacts.folder import ModelFolder
from bertsmith.console import format_duration
from bertsmith.device import ComputeContext
from bertsmith.errors import InputError, option
from bertsmith.formatting import pluralize
from bertsmith.inference.model import Model
from bertsmith.instances.batches import check_type_vocab_size
from bertsmith.instances.settings import MEAN_FILL_RATIO
from bertsmith.models.config import DROPOUT_SETTINGS, ModelConfig
from bertsmith.models.family import get_family
from bertsmith.models.family import preset as preset_sizes
from bertsmith.objectives.objective import infer_objective, objective_type
from bertsmith.pretraining.settings import DEFAULT_OBJECTIVE, PretrainSettings, StartSettings, with_objective
from bertsmith.pretraining.speed_probe import probe_speed
from bertsmith.runs.compute_setup import without_other_budgets
from bertsmith.runs.run_folder import SETTINGS, settings_of_run
from bertsmith.settings import Changes, read_yaml
from bertsmith.tokenizer.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

DEFAULT_PRESET = "bert-mini-uncased"

# No dropout, since a text is read about once, and initial weights that already reflect token frequencies,
# co-occurrences, and distances.
_SMALL_MODEL_SETTINGS: dict[str, dict[str, Any]] = {
    "model": {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0},
    "start": {
        "tokens": "neighbours",
        "positions": "sinusoidal",
        "attention": "local",
        "output_bias": "unigram",
    },
    "train": {
        "optim": "muon",
        "muon_momentum": 0.9,
        "adam_beta1": 0.9,
        "adam_beta2": 0.98,
        "warmup_steps": 0.06,
        "lr_scheduler_type": "warmup_stable_decay",
        "decay_ratio": 0.4,
        "weight_decay": 0.01,
    },
}
_TIME_BUDGET_DATA_SETTINGS = {"sequence_length": 64, "mlm_probability": 0.3}
_RATE, _MUON_RATE = "train.learning_rate", "train.muon_learning_rate"
_MAX_PROBE_RATIO, _MAX_PROBE_SECONDS = 0.005, 2.0  # of the time budget, for each size
_SIZE_SETTINGS = {
    "model.num_hidden_layers",
    "model.hidden_size",
    "model.num_attention_heads",
    "model.intermediate_size",
    "objective.name",
}


@dataclass(frozen=True)
class MeasuredSize:
    """A model size with the settings that were measured for it.

    Attributes:
        preset: The preset of the BERT of this size, with which they were measured.
        layers: Numbers of layers for which they are used at the same hidden size, in every family.
        initializer_range: The standard deviation of the initial weights.
        learning_rate: The peak learning rate of AdamW.
        muon_learning_rate: The peak learning rate of Muon.
        muon_weight_decay: The weight decay of Muon.
        batch_size: Sequences of 64 tokens in a batch, with a time budget.
        min_tokens: The number of training tokens from which this size is better than the smaller ones.
    """

    preset: str
    layers: tuple[int, ...]
    initializer_range: float
    learning_rate: float
    muon_learning_rate: float
    muon_weight_decay: float
    batch_size: int
    min_tokens: float


SIZES = (
    MeasuredSize("bert-tiny-uncased", (2,), 0.06, 2e-3, 5e-3, 0.2, 32, 0),
    MeasuredSize("bert-mini-uncased", (2, 4, 12), 0.06, 1e-3, 5e-3, 0.1, 64, 17e6),
    MeasuredSize("bert-small-uncased", (2, 4), 0.04, 5e-4, 3e-3, 0.1, 64, 70e6),
)
"""Sizes in ascending order. Tiny and mini were measured (benchmarks/RESULTS.md, "Model size by time budget").
Small is estimated; its `min_tokens` is in proportion to the parameters of its layers."""


def measured_settings(
    sizes: Mapping[str, Any], *, has_time_budget: bool = False
) -> dict[str, dict[str, Any]]:
    """Return the defaults of a new model with these settings of `model`; {} if its size was not measured.

    There are further ones if the budget is in minutes. Only Transformers were measured.
    """
    if not get_family(sizes.get("model_type", "bert")).is_transformer:
        return {}
    layers, hidden_size = sizes.get("num_hidden_layers"), sizes.get("hidden_size")
    measured = [s for s in SIZES if layers in s.layers and preset_sizes(s.preset).hidden_size == hidden_size]
    if not measured:
        return {}
    size = measured[0]
    settings: dict[str, dict[str, Any]] = {
        "model": {"initializer_range": size.initializer_range},
        "train": {
            "learning_rate": size.learning_rate,
            "muon_learning_rate": size.muon_learning_rate,
            "muon_weight_decay": size.muon_weight_decay,
        },
    }
    if sizes.get("position") == "none":  # there are no position embeddings
        settings["start"] = {"positions": "normal", "attention": "normal"}
    elif sizes.get("embedding_size") is not None:  # a projection is between positions and the first layer
        settings["start"] = {"attention": "normal"}
    if not get_family(sizes.get("model_type", "bert")).heads.lm_bias:
        settings["start"] = {**settings.get("start", {}), "output_bias": "zero"}
    if has_time_budget:
        settings["data"] = _TIME_BUDGET_DATA_SETTINGS
        settings["train"]["batch_size"] = size.batch_size
    return _merge(_SMALL_MODEL_SETTINGS, settings)


def settings_type(objective: str) -> type[PretrainSettings]:
    """Return the settings of a run with the objective of this name."""
    return with_objective(objective, objective_type(objective).settings_type)


def settings_type_of_file(file: Path) -> type[PretrainSettings]:
    """Return the settings of the run with this settings.yaml."""
    return settings_type(_objective_name(read_yaml(file)))


def settings_type_of_arguments(
    preset: str | None, recipe: str | Path | None, settings: Changes, keywords: Mapping[str, Any]
) -> type[PretrainSettings]:
    """Return the settings in which keywords are looked up, which depend on the objective."""
    sizes, values = _read_preset_and_recipe(preset, recipe)
    changes = PretrainSettings.dotted(settings)
    if "name" in keywords:
        changes |= {"objective.name": keywords["name"]}
    return settings_type(_objective_name(values, changes, _family_objective(sizes)))


def new_settings(
    preset: str | None,
    recipe: str | Path | None,
    changes: Mapping[str, Any],
    tokenizer: Tokenizer,
    base: Model | None = None,
) -> PretrainSettings:
    """Return the settings of a new run.

    Args:
        preset: The model's sizes; None: the recipe's preset, or bert-mini-uncased.
        recipe: A YAML file of settings. Without one, a new model has the settings that were measured for its size.
        changes: Settings by dotted names; a budget among them replaces the recipe's.
        tokenizer: The tokenizer, which sets the vocabulary size of a new model.
        base: The model to continue from, whose sizes and sentence task are used.
    """
    sizes, values = _read_preset_and_recipe(preset, recipe)
    if base is None:
        defaults = _new_model_defaults(sizes or _sizes_of(DEFAULT_PRESET), values, recipe, changes, tokenizer)
    else:
        defaults = _base_model_defaults(base.folder, sizes, values, changes)
        changes = {**changes, "base": str(base.path)}
    values = _merge(*defaults, values)
    changes = _with_muon_learning_rate(values.get("train"), changes)
    run_type = settings_type(_objective_name(values, changes))
    settings = run_type.of(values, str(recipe or "settings")).changed(without_other_budgets(changes))
    if base is not None:
        is_set = "is_next_label" in values["data"] or "data.is_next_label" in changes
        if settings.data.sentence_task == "nsp" and not is_set:
            settings = settings.changed({"data.is_next_label": base.folder.is_next_label})
        _check_base(settings, base)
    elif settings.model.vocab_size != tokenizer.vocab_size:
        message = (
            f"the setting is {settings.model.vocab_size}, and the tokenizer has "
            f"{pluralize(tokenizer.vocab_size, 'entry', 'entries')}"
        )
        hint = "remove it: the size comes from the tokenizer"
        raise InputError("vocab_size_differs", message, argument="model.vocab_size", hint=hint)
    check_type_vocab_size(settings.data, tokenizer.uses_segments, settings.model.type_vocab_size)
    return settings


def _with_muon_learning_rate(train: Any, changes: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the changes; one of the learning rate alone also scales Muon's, so that their ratio stays the same.

    Args:
        train: The settings of the group `train` before the changes.
        changes: Settings by dotted names.
    """
    if not isinstance(train, Mapping):
        return changes
    rate, muon_rate = (train.get(name) for name in ("learning_rate", "muon_learning_rate"))
    optim = changes.get("train.optim", train.get("optim"))
    if optim != "muon" or _MUON_RATE in changes or _RATE not in changes or not (rate and muon_rate):
        return changes
    try:
        factor = float(changes[_RATE]) / float(rate)
    except (TypeError, ValueError):
        return changes  # refused when the settings are read
    return {**changes, _MUON_RATE: float(f"{float(muon_rate) * factor:.6g}")}


def resumed_settings(
    out: Path, preset: str | None, recipe: str | Path | None, changes: Mapping[str, Any]
) -> tuple[PretrainSettings, dict[str, Any]]:
    """Return the settings of a run that is resumed, and those of preset, recipe, and changes by dotted names.

    Raises:
        InputError: Preset, recipe, or changes differ from the run's settings where these must not change.
    """
    sizes, values = _read_preset_and_recipe(preset, recipe)
    objective = _objective_name(read_yaml(out / SETTINGS))
    # The run has other values of these settings than its preset.
    overridden = {
        **measured_settings(sizes).get("model", {}),
        **objective_type(objective).required_model_settings,
    }
    sizes = {name: value for name, value in sizes.items() if name not in overridden}
    run_type = settings_type(objective)
    named = {**run_type.dotted({"model": sizes}), **run_type.dotted(values), **changes}
    return settings_of_run(run_type, out, named), named


def sizes_of_tokenizer(tokenizer: Tokenizer, model_type: str) -> dict[str, int | None]:
    """Return the settings of a model of a family that its tokenizer decides."""
    has_padding = "pad_token_id" not in get_family(model_type).structure  # otherwise it has none
    return {
        "vocab_size": tokenizer.vocab_size,
        "pad_token_id": tokenizer.pad_token_id if has_padding else None,
    }


def _new_model_defaults(
    sizes: Mapping[str, Any],
    values: Mapping[str, Any],
    recipe: str | Path | None,
    changes: Mapping[str, Any],
    tokenizer: Tokenizer,
) -> list[Mapping[str, Any]]:
    """Return the groups of default settings of a new model; later ones replace earlier ones."""
    family, default_objective = get_family(sizes["model_type"]), _family_objective(sizes)
    objective = objective_type(_objective_name(values, changes, default_objective))
    defaults: list[Mapping[str, Any]] = [
        {"objective": {"name": default_objective}, "model": sizes},
        {"model": sizes_of_tokenizer(tokenizer, sizes["model_type"])},
        {"data": family.pretraining, "train": family.training},
    ]
    if recipe is None:
        required_sizes = {**sizes, **objective.required_model_settings}
        size_changes = {name: value for name, value in changes.items() if name.startswith("model.")}
        requested = PretrainSettings.of({"model": required_sizes}, "settings").changed(size_changes)
        has_time_budget = "train.max_minutes" in changes
        measured = measured_settings(requested.model.model_dump(), has_time_budget=has_time_budget)
        if not objective.uses_corpus_init:
            measured.pop("start", None)
        defaults.append(measured)
    return [*defaults, {"data": objective.default_data_settings, "model": objective.required_model_settings}]


def _base_model_defaults(
    base: ModelFolder, sizes: Mapping[str, Any], values: Mapping[str, Any], changes: Mapping[str, Any]
) -> list[Mapping[str, Any]]:
    """Return the groups of default settings of a run from a model; later ones replace earlier ones.

    A preset may repeat the model's sizes; others are refused later.
    """
    base_objective = infer_objective(base.config, base.parts)
    objective = _objective_name(values, changes, base_objective)
    open_sizes = (*DROPOUT_SETTINGS, "initializer_range")
    task = base.record.get("sentence_task")
    return [
        {"objective": {"name": base_objective}},
        {"model": base.config.model_dump()},
        {"model": {name: value for name, value in sizes.items() if name not in open_sizes}},
        {"data": objective_type(objective).default_data_settings},
        {"data": get_family(base.config.model_type).pretraining},
        {"data": objective_type(base_objective).default_data_settings},
        {"data": {} if task is None else {"sentence_task": task}},
    ]


def _check_base(settings: PretrainSettings, base: Model) -> None:
    """Raise InputError for settings that differ from those of the base model."""
    for name in ModelConfig.model_fields:
        size, base_size = getattr(settings.model, name), getattr(base.folder.config, name)
        if name not in DROPOUT_SETTINGS and size != base_size:
            message = f"the setting is {size}, and {base.path} has {base_size}"
            hint = (
                f"remove it, and {option('preset')} too: the sizes are those of the model; only its dropout "
                "can be set"
            )
            raise InputError("size_differs_from_model", message, argument=f"model.{name}", hint=hint)
    if settings.start != StartSettings():
        message = f"the settings of 'start' are for new weights, and {option('model')} gives the weights"
        hint = f"remove the settings of 'start', or {option('model')}"
        raise InputError("start_with_model", message, argument="start", hint=hint)


def _read_preset_and_recipe(
    preset: str | None, recipe: str | Path | None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the sizes of the preset, {} without one, and the recipe's other settings."""
    values = read_yaml(recipe) if recipe is not None else {}
    recipe_preset = values.pop("preset", None)
    name = preset or recipe_preset
    return _sizes_of(str(name)) if name else {}, values


def _sizes_of(preset: str) -> dict[str, Any]:
    """Return the settings `model` of a preset, without those that the tokenizer sets."""
    return preset_sizes(preset).model_dump(exclude={"vocab_size", "pad_token_id"})


def _family_objective(sizes: Mapping[str, Any]) -> str:
    """Return the objective of the family of these sizes; BERT's without any."""
    return get_family(sizes.get("model_type", "bert")).objective


def _objective_name(
    values: Mapping[str, Any], changes: Mapping[str, Any] | None = None, default: str = DEFAULT_OBJECTIVE
) -> str:
    group = values.get("objective")
    name = group.get("name", default) if isinstance(group, dict) else default
    return str((changes or {}).get("objective.name", name))


def _merge(*settings: Mapping[str, Any]) -> dict[str, Any]:
    """Merge groups of settings; later values replace earlier ones."""
    merged: dict[str, Any] = {}
    for groups in settings:
        for group, values in groups.items():
            before = merged.get(group, {})
            is_mergeable = isinstance(before, Mapping) and isinstance(values, Mapping)
            merged[group] = {**before, **values} if is_mergeable else values
    return merged


def choose_preset(changes: Mapping[str, Any], tokenizer: Tokenizer) -> str | None:
    """Return the preset of the size that the time budget allows, and log it.

    It is None without a time budget, and if the changes name the sizes.
    """
    minutes = new_settings(None, None, changes, tokenizer).train.max_minutes
    if minutes is None or not changes.keys().isdisjoint(_SIZE_SETTINGS):
        return None
    seconds = 60 * minutes
    size, tokens = largest_size(lambda size: _num_tokens(size, seconds, changes, tokenizer))
    sizes = preset_sizes(size.preset)
    logger.info(
        "for %s on this machine: %d layers of %d, as in %s, which will see about %s million tokens",
        format_duration(seconds),
        sizes.num_hidden_layers,
        sizes.hidden_size,
        size.preset,
        f"{tokens / 1e6:.2g}",
    )
    return size.preset


def largest_size(num_tokens: Callable[[MeasuredSize], float]) -> tuple[MeasuredSize, float]:
    """Return the largest size that is trained on enough tokens, and their number.

    Args:
        num_tokens: Returns the number of training tokens of a size in the time budget. It is called from the
            smallest size on, up to the first one with too few.
    """
    largest, tokens = SIZES[0], num_tokens(SIZES[0])
    for size in SIZES[1:]:
        if (tokens_of_size := num_tokens(size)) < size.min_tokens:
            break
        largest, tokens = size, tokens_of_size
    return largest, tokens


def _num_tokens(
    size: MeasuredSize, seconds: float, changes: Mapping[str, Any], tokenizer: Tokenizer
) -> float:
    """Return the number of training tokens of a size in a time, measured on a few updates."""
    settings = new_settings(size.preset, None, changes, tokenizer)
    train, hidden_size = settings.train, settings.model.hidden_size
    context = ComputeContext.for_training(train).with_kernels(train, hidden_size, train.max_steps)
    update_seconds = probe_speed(settings, context, min(_MAX_PROBE_SECONDS, _MAX_PROBE_RATIO * seconds))
    updates = min(seconds / update_seconds, train.max_steps or math.inf)
    sequences = updates * train.batch_size * train.gradient_accumulation_steps
    return sequences * settings.data.sequence_length * MEAN_FILL_RATIO
