"""What a pre-training run depends on besides its data: a preset, then a recipe, then assignments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, create_model, model_validator

from bertsmith.errors import InputError
from bertsmith.formatting import counted
from bertsmith.instances.batches import check_segments
from bertsmith.instances.settings import DataSettings
from bertsmith.keywords import Chosen
from bertsmith.models.config import ModelConfig
from bertsmith.models.family import family, preset
from bertsmith.objectives.objective import OBJECTIVES, objective_type
from bertsmith.pretraining.minimal_pairs import EvaluateSettings
from bertsmith.pretraining.recipe import learning_settings, settings_in_minutes
from bertsmith.runs.compute_setup import budgets_aside, name_of
from bertsmith.settings import ADDED_LATER, MAY_CHANGE, Settings, read_yaml
from bertsmith.tokenizer.tokenizer import Tokenizer
from bertsmith.training.settings import TrainSettings

USUAL_PRESET = "bert-mini-uncased"
_USUAL = next(iter(OBJECTIVES))


class StartSettings(Settings):
    """What the weights are before the first update, where it departs from the paper."""

    tokens: Literal["normal", "neighbours"] = Field(
        "normal",
        description="the token table starts at random or from which tokens stand near each other in the text "
        "(takes seconds)",
    )
    token_vectors: str = Field(
        "",
        description="a text file of word vectors, word2vec's or GloVe's (also compressed), as wide as the token "
        "table: tokens that are words in it begin with their vectors, scaled to initializer_range; empty: none",
        json_schema_extra=ADDED_LATER,
    )
    positions: Literal["normal", "sinusoidal"] = Field(
        "normal", description="the position table starts at random or from sinusoids of the same deviation"
    )
    attention: Literal["normal", "local"] = Field(
        "normal",
        description="the first layer's heads start at random, or the first four of them look at what is near "
        "(positions must be sinusoidal)",
    )
    output_bias: Literal["zero", "unigram"] = Field(
        "zero", description="the masked-LM bias starts at 0 or at the log frequency of each token"
    )

    @model_validator(mode="after")
    def _fits_together(self) -> StartSettings:
        if self.attention == "local" and self.positions != "sinusoidal":
            raise ValueError(
                f"attention local finds what is near by sinusoids, and positions {self.positions} has none: set "
                "start.positions=sinusoidal, or start.attention=normal"
            )
        return self


class PretrainTrainSettings(TrainSettings):
    """What the loop may be told of pre-training, whose instances have no size of their own."""

    batch_tokens: int | None = Field(
        None,
        ge=8,
        description="tokens in a batch at most, of instances of similar length; in place of batch_size",
    )

    @model_validator(mode="after")
    def _knows_no_plateau(self) -> PretrainTrainSettings:
        if self.schedule == "plateau":
            raise ValueError(
                "schedule plateau lowers the rate where a score on dev gets no better, and pre-training has no "
                "such score: set train.schedule=constant_then_down, or step"
            )
        return self


class ObjectiveSettings(Settings):
    """What the text is asked; the objective's own settings are added to this group."""

    name: str = Field(_USUAL, description=f"the objective: {', '.join(OBJECTIVES)}")
    reduction: Literal["mean", "sum"] = Field(
        "mean",
        description="what an update minimises of the predicted tokens' losses: their mean, or their sum, whose "
        "gradient is as many times larger (train.clip_norm and epsilon see that)",
        json_schema_extra=ADDED_LATER,
    )


class PretrainSettings(Settings):
    """Everything a pre-training run depends on, besides its data."""

    base: str = Field(
        "",
        description="the model to start from (--model): a run, a model folder or a published name; empty: none",
        json_schema_extra=MAY_CHANGE,
    )
    objective: ObjectiveSettings = Field(
        default_factory=ObjectiveSettings, description="what the text is asked"
    )
    model: ModelConfig = Field(default_factory=ModelConfig, description="sizes of the model")
    start: StartSettings = Field(default_factory=StartSettings, description="first weights")
    data: DataSettings = Field(default_factory=DataSettings, description="instances")
    train: PretrainTrainSettings = Field(
        default_factory=PretrainTrainSettings, description="the training itself"
    )
    evaluate: EvaluateSettings = Field(
        default_factory=EvaluateSettings, description="what it is judged on besides its held-out text"
    )

    @model_validator(mode="after")
    def _has_positions_to_begin_from(self) -> PretrainSettings:
        if self.model.position == "none" and self.start.positions != "normal":
            raise ValueError(
                f"start.positions {self.start.positions} fills a table that model.position none leaves empty: set "
                "start.positions=normal and start.attention=normal"
            )
        return self


def settings_type(objective: str) -> type[PretrainSettings]:
    """The settings of a run with this objective: the group `objective` also holds the objective's own."""
    own = objective_type(objective).settings_type
    if own is Settings:
        return PretrainSettings
    name = (str, Field(objective, description="the objective"))
    group: Any = create_model("ObjectiveSettings", __base__=(ObjectiveSettings, own), name=name)
    field: Any = (group, Field(default_factory=group, description="what the text is asked"))
    return create_model("PretrainSettings", __base__=PretrainSettings, objective=field)


def settings_of(file: Path) -> type[PretrainSettings]:
    """The type of the settings that a run's file holds."""
    return settings_type(_objective_name(read_yaml(file), ()))


def needed_by(chosen: PretrainSettings) -> Mapping[str, Any]:
    """The settings of the model that a run's objective needs."""
    return objective_type(chosen.objective.name).model


def asked_kind(
    name: str | None, recipe: str | Path | None, settings: Chosen, keywords: Mapping[str, Any]
) -> type[PretrainSettings]:
    """The type of the settings that keywords are looked up in: that of the objective asked for anywhere, or of the
    preset's family. name: of the preset, if one was asked for."""
    sizes, values = asked_for(name, recipe)
    if isinstance(settings, Mapping):
        asked = dict(settings)
        if "objective.name" in asked:
            asked["objective"] = {"name": asked["objective.name"]}
        values, settings = {**values, **asked}, ()
    if "name" in keywords:
        values["objective"] = {"name": keywords["name"]}
    assignments = [settings] if isinstance(settings, str) else settings
    return settings_type(_objective_name(values, assignments, _objective_of(sizes)))


def _objective_of(sizes: Mapping[str, Any]) -> str:
    """What models of these sizes' family are asked, {} being a BERT's."""
    return family(sizes.get("model_type", "bert")).objective


def _objective_name(values: Mapping[str, Any], assignments: Sequence[str], usual: str = _USUAL) -> str:
    group = values.get("objective")
    name = group.get("name", usual) if isinstance(group, dict) else usual
    for assignment in assignments:
        key, _, text = assignment.partition("=")
        if key.strip() == "objective.name":
            name = text.strip()
    return str(name)


def asked_for(name: str | None, recipe: str | Path | None) -> tuple[dict[str, Any], dict[str, Any]]:
    """The sizes of the preset that was asked for ({} if none was), and the recipe's other settings."""
    values = read_yaml(recipe) if recipe is not None else {}
    named = values.pop("preset", None)
    if named is not None and not isinstance(named, str):
        raise InputError(f"{recipe}: 'preset' is a name, not {named!r}", "bert-mini-uncased, for example")
    if not isinstance(values.get("model", {}), dict):
        raise InputError(f"{recipe}: 'model' is a group of settings", "write its settings below it, indented")
    asked = name or named
    sizes = preset(asked).model_dump() if asked else {}
    for name_of_data in ("vocab_size", "pad_token_id"):
        sizes.pop(name_of_data, None)
    return sizes, values


def resolved(
    sizes: dict[str, Any],
    values: dict[str, Any],
    recipe: str | Path | None,
    assignments: Sequence[str],
    tokenizer: Tokenizer,
    *,
    of_model: bool = False,
) -> PretrainSettings:
    """The settings of a new run: sizes ({}: of the usual preset), the recipe's values, the assignments.

    Below them stands what the family is pre-trained with and, where there is no recipe, what a model of the size
    that comes of it learns with, in minutes where the budget is one. The vocabulary is the tokenizer's. A budget
    among the assignments stands in place of the recipe's. of_model: the sizes are those of a model, whose table
    may have more rows than the tokenizer has entries.
    """
    sizes = sizes or preset(USUAL_PRESET).model_dump()
    if not of_model:
        usually = {"name": _objective_of(sizes)}
        values = {**values, "objective": _below(values.get("objective", {}), usually)}
    below: list[Mapping[str, Mapping[str, Any]]] = []
    if not of_model:
        kind_of = family(sizes["model_type"])
        below.append({"data": kind_of.pretraining, "train": kind_of.training})
        if recipe is None:
            objective = _objective_name(values, assignments)
            of_objective = objective_type(objective).model
            below.append(_learning(_sized({**sizes, **of_objective}, assignments), objective, assignments))
    kind_asked = objective_type(_objective_name(values, assignments))
    below.append({"data": kind_asked.data})
    if kind_asked.model and not of_model:
        below.append({"model": kind_asked.model})
    for usual in reversed(below):
        values = {**values, **{group: _below(values.get(group, {}), usual[group]) for group in usual}}
    own = {} if of_model else {"vocab_size": tokenizer.vocab_size, "pad_token_id": tokenizer.pad_id}
    values = {**values, "model": sizes | own | values.get("model", {})}
    assignments = budgets_aside(assignments)
    kind = settings_type(_objective_name(values, assignments))
    chosen = kind.of(values, str(recipe or "settings")).changed(assignments)
    if chosen.model.vocab_size != tokenizer.vocab_size and not of_model:
        raise InputError(
            f"model.vocab_size is {chosen.model.vocab_size}, the tokenizer has "
            f"{counted(tokenizer.vocab_size, 'entry', 'entries')}",
            "leave model.vocab_size out: it is taken from the tokenizer",
        )
    check_segments(chosen.data, tokenizer.uses_segments, chosen.model.type_vocab_size)
    return chosen


def _sized(sizes: Mapping[str, Any], assignments: Sequence[str]) -> dict[str, Any]:
    """The sizes with those among the assignments."""
    own = [assignment for assignment in assignments if name_of(assignment).startswith("model.")]
    return PretrainSettings.of({"model": sizes}, "settings").changed(own).model.model_dump()


def _learning(
    sizes: Mapping[str, Any], objective: str, assignments: Sequence[str]
) -> dict[str, dict[str, Any]]:
    """What a new model of these sizes learns with, and what is added where the budget is one of minutes."""
    found = learning_settings(sizes)
    if not objective_type(objective).starts:
        found.pop("start", None)
    if any(name_of(assignment) == "train.max_minutes" for assignment in assignments):
        for group, values in settings_in_minutes(sizes).items():
            found[group] = {**found.get(group, {}), **values}
    return found


def _below(given: Any, usual: Mapping[str, Any]) -> Any:
    """The group of settings that was given, with the usual ones where it says nothing."""
    return {**usual, **given} if isinstance(given, dict) else given
