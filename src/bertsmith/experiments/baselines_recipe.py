"""The recipe of a comparison of language models: the models, and the claims that it checks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from bertsmith.errors import InputError
from bertsmith.experiments.ablation_recipe import check_folders_differ, check_no_seed
from bertsmith.experiments.synthetic_tasks import Side
from bertsmith.settings import Settings, read_yaml

HISTORY = Path(__file__).parent / "history.yaml"
"""The default recipe: from n-grams to BERT."""

Kind = Literal["pretrained", "untrained", "ngram", "word_vectors", "static_vectors", "one_hot"]


class ModelRecipe(Settings):
    """A model of the comparison."""

    kind: Kind = Field(
        "pretrained",
        description="a model of `pretrain`, the same with random weights, an n-gram model, word vectors, static "
        "vectors of a pre-trained model, or one-hot vectors",
    )
    preset: str | None = Field(None, description="sizes of a pre-trained model")
    settings: dict[str, Any] = Field(
        default_factory=dict, description="settings of `pretrain`, or arguments of the other kinds"
    )
    task_settings: dict[str, Any] = Field(default_factory=dict, description="settings of fine-tuning")
    second_encoder: str | None = Field(
        None, description="the model that is a second encoder in fine-tuning; hidden states are concatenated"
    )
    source: str = Field("", description="the paper")
    base: str | None = Field(
        None, description="the pre-trained model of this recipe that is used instead of a new one"
    )

    @property
    def is_trained_by_pretrain(self) -> bool:
        """True for a neural model that is not another one of the recipe."""
        return self.kind == "pretrained" and self.base is None

    @property
    def has_time_budget(self) -> bool:
        """True for a model that `minutes` limit: one of `pretrain`, or word vectors."""
        return self.is_trained_by_pretrain or self.kind == "word_vectors"


class Claim(Settings):
    """A claim that one model is better than another by a metric."""

    better: str
    worse: str
    metric: str
    source: str = Field("", description="the origin of the claim")


class PublishedScore(Settings):
    """A score of a publication, which is shown beside the results."""

    model: str
    metric: str
    value: float = Field(description="in the publication's unit, such as points")
    source: str


class BaselinesRecipe(Settings):
    """Models to compare, in the order of the table."""

    title: str = ""
    description: str = ""
    models: dict[str, ModelRecipe] = Field(default_factory=dict)
    settings: dict[str, Any] = Field(
        default_factory=dict, description="settings of all pre-training runs, changed by those of a model"
    )
    task_settings: dict[str, Any] = Field(
        default_factory=dict, description="settings of all fine-tuning runs, changed by those of a model"
    )
    measures: list[str] | None = Field(None, description="the measures; none: all that the given files allow")
    agreement_gaps: list[int] = Field(
        default_factory=list, description="distances of a synthetic long-distance agreement task, in words"
    )
    cloze_sides: list[Side] = Field(
        default_factory=list,
        description="sides of the evidence in a synthetic cloze task: left, right, or both",
    )
    claims: list[Claim] = Field(default_factory=list)
    published: list[PublishedScore] = Field(default_factory=list)

    def select(self, models: Sequence[str] | None, location: str) -> list[str]:
        """Return the names of all models or of some, in the recipe's order, with those that they are made from.

        Raises:
            InputError: A model does not exist, or there is none.
        """
        if models is not None and not models:
            message, hint = "there is no model to compare", f"the models are {', '.join(self.models)}"
            raise InputError("models_missing", message, location=location, argument="models", hint=hint)
        if unknown := [name for name in models or () if name not in self.models]:
            message, hint = f"there is no model '{unknown[0]}'", f"the models are {', '.join(self.models)}"
            raise InputError("model_unknown", message, location=location, argument="models", hint=hint)
        names = set(self.models if models is None else models)
        for name in list(names):
            recipe = self.models[name]
            names |= {other for other in (recipe.base, recipe.second_encoder) if other}
        return [name for name in self.models if name in names]


def read_recipe(file: str | Path) -> BaselinesRecipe:
    """Read a recipe.

    Raises:
        InputError: It is invalid, or names a model that it lacks.
    """
    values = read_yaml(file)
    if isinstance(models := values.get("models"), dict):
        values["models"] = {name: {} if model is None else model for name, model in models.items()}
    recipe = BaselinesRecipe.of(values, str(file))
    if not recipe.models:
        hint = "list them below 'models', each with its kind or preset"
        raise InputError("models_missing", "the recipe has no models", location=file, hint=hint)
    check_folders_differ(recipe.models, str(file))
    named = [(f"claim {i}", name) for i, c in enumerate(recipe.claims, 1) for name in (c.better, c.worse)]
    for name, model in recipe.models.items():
        named += [(f"model '{name}'", other) for other in (model.base, model.second_encoder) if other]
        check_no_seed(
            model.settings if model.kind == "pretrained" else {}, location=f"{file}: model '{name}'"
        )
        if model.base is not None and recipe.models.get(model.base, model).kind != "pretrained":
            message, hint = f"'{model.base}' is not pre-trained", "name a pre-trained model of this recipe"
            raise InputError("model_not_pretrained", message, location=f"{file}: model '{name}'", hint=hint)
        if model.kind in ("static_vectors", "untrained") and model.base is None:
            message, hint = f"{model.kind} needs another model", "name it: base: bert"
            raise InputError("model_missing", message, location=f"{file}: model '{name}'", hint=hint)
    for where, name in named:
        if name not in recipe.models:
            message, hint = f"there is no model '{name}'", f"the models are {', '.join(recipe.models)}"
            raise InputError("model_unknown", message, location=f"{file}: {where}", hint=hint)
    return recipe
