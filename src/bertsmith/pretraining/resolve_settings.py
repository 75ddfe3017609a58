"""The settings of a pre-training run from a preset, a recipe, and changes of single settings."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bertsmith.errors import InputError
from bertsmith.formatting import pluralize
from bertsmith.instances.batches import check_type_vocab_size
from bertsmith.models.family import get_family, preset
from bertsmith.objectives.objective import objective_type
from bertsmith.objectives.settings import OBJECTIVES
from bertsmith.pretraining.recipe import learning_settings, settings_in_minutes
from bertsmith.pretraining.settings import PretrainSettings, with_objective
from bertsmith.runs.compute_setup import without_other_budgets
from bertsmith.settings import Changes, read_yaml
from bertsmith.tokenizer.tokenizer import Tokenizer

USUAL_PRESET = "bert-mini-uncased"
_USUAL = next(iter(OBJECTIVES))


def settings_type(objective: str) -> type[PretrainSettings]:
    """Return the settings of a run with the objective of this name."""
    return with_objective(objective, objective_type(objective).settings_type)


def settings_of(file: Path) -> type[PretrainSettings]:
    """The type of the settings that a run's file holds."""
    return settings_type(_objective_name(read_yaml(file), {}))


def needed_by(chosen: PretrainSettings) -> Mapping[str, Any]:
    """The settings of the model that a run's objective needs."""
    return objective_type(chosen.objective.name).required_model_settings


def asked_kind(
    name: str | None, recipe: str | Path | None, settings: Changes, keywords: Mapping[str, Any]
) -> type[PretrainSettings]:
    """The type of the settings that keywords are looked up in: that of the objective asked for anywhere, or of the
    preset's family. name: of the preset, if one was asked for."""
    sizes, values = asked_for(name, recipe)
    changes = PretrainSettings.dotted(settings) | (
        {"objective.name": keywords["name"]} if "name" in keywords else {}
    )
    return settings_type(_objective_name(values, changes, _objective_of(sizes)))


def _objective_of(sizes: Mapping[str, Any]) -> str:
    """What models of these sizes' family are asked, {} being a BERT's."""
    return get_family(sizes.get("model_type", "bert")).objective


def _objective_name(values: Mapping[str, Any], changes: Mapping[str, Any], usual: str = _USUAL) -> str:
    group = values.get("objective")
    name = group.get("name", usual) if isinstance(group, dict) else usual
    return str(changes.get("objective.name", name))


def asked_for(name: str | None, recipe: str | Path | None) -> tuple[dict[str, Any], dict[str, Any]]:
    """The sizes of the preset that was asked for ({} if none was), and the recipe's other settings."""
    values = read_yaml(recipe) if recipe is not None else {}
    named = values.pop("preset", None)
    if named is not None and not isinstance(named, str):
        raise InputError(
            "preset_not_a_name",
            f"'preset' is not a name: {named!r}",
            location=recipe,
            hint="give the name of a preset, such as bert-mini-uncased",
        )
    if not isinstance(values.get("model", {}), dict):
        raise InputError(
            "group_expected",
            "'model' is a group of settings, not a value",
            location=recipe,
            hint="write the settings of the group below it, indented",
        )
    asked = name or named
    sizes = preset(asked).model_dump() if asked else {}
    for name_of_data in ("vocab_size", "pad_token_id"):
        sizes.pop(name_of_data, None)
    return sizes, values


def resolved(
    sizes: dict[str, Any],
    values: dict[str, Any],
    recipe: str | Path | None,
    changes: Mapping[str, Any],
    tokenizer: Tokenizer,
    *,
    of_model: bool = False,
) -> PretrainSettings:
    """The settings of a new run: sizes ({}: of the usual preset), the recipe's values, the changes.

    Below them stands what the family is pre-trained with and, where there is no recipe, what a model of the size
    that comes of it learns with, in minutes where the budget is one. The vocabulary is the tokenizer's. A budget
    among the changes stands in place of the recipe's. of_model: the sizes are those of a model, whose table
    may have more rows than the tokenizer has entries.
    """
    sizes = sizes or preset(USUAL_PRESET).model_dump()
    if not of_model:
        usually = {"name": _objective_of(sizes)}
        values = {**values, "objective": _below(values.get("objective", {}), usually)}
    below: list[Mapping[str, Mapping[str, Any]]] = []
    if not of_model:
        kind_of = get_family(sizes["model_type"])
        below.append({"data": kind_of.pretraining, "train": kind_of.training})
        if recipe is None:
            objective = _objective_name(values, changes)
            of_objective = objective_type(objective).required_model_settings
            below.append(_learning(_sized({**sizes, **of_objective}, changes), objective, changes))
    kind_asked = objective_type(_objective_name(values, changes))
    below.append({"data": kind_asked.default_data_settings})
    if kind_asked.required_model_settings and not of_model:
        below.append({"model": kind_asked.required_model_settings})
    for usual in reversed(below):
        values = {**values, **{group: _below(values.get(group, {}), usual[group]) for group in usual}}
    own = {} if of_model else {"vocab_size": tokenizer.vocab_size, "pad_token_id": tokenizer.pad_token_id}
    values = {**values, "model": sizes | own | values.get("model", {})}
    changes = without_other_budgets(changes)
    kind = settings_type(_objective_name(values, changes))
    chosen = kind.of(values, str(recipe or "settings")).changed(changes)
    if chosen.model.vocab_size != tokenizer.vocab_size and not of_model:
        raise InputError(
            "vocab_size_differs",
            f"the setting is {chosen.model.vocab_size}, and the tokenizer has "
            f"{pluralize(tokenizer.vocab_size, 'entry', 'entries')}",
            argument="model.vocab_size",
            hint="remove it: the size comes from the tokenizer",
        )
    check_type_vocab_size(chosen.data, tokenizer.uses_segments, chosen.model.type_vocab_size)
    return chosen


def _sized(sizes: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """The sizes with those among the changes."""
    own = {name: value for name, value in changes.items() if name.startswith("model.")}
    return PretrainSettings.of({"model": sizes}, "settings").changed(own).model.model_dump()


def _learning(
    sizes: Mapping[str, Any], objective: str, changes: Mapping[str, Any]
) -> dict[str, dict[str, Any]]:
    """What a new model of these sizes learns with, and what is added where the budget is one of minutes."""
    found = learning_settings(sizes)
    if not objective_type(objective).uses_corpus_init:
        found.pop("start", None)
    if "train.max_minutes" in changes:
        for group, values in settings_in_minutes(sizes).items():
            found[group] = {**found.get(group, {}), **values}
    return found


def _below(given: Any, usual: Mapping[str, Any]) -> Any:
    """The group of settings that was given, with the usual ones where it says nothing."""
    return {**usual, **given} if isinstance(given, dict) else given
