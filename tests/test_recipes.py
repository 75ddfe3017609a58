"""Each recipe in recipes/ is a set of settings that pretrain takes."""

from pathlib import Path

import pytest

import tiny_run
from bertsmith.models.family import preset
from bertsmith.pretraining.resolve_settings import new_settings
from bertsmith.pretraining.settings import PretrainSettings
from bertsmith.settings import read_yaml

RECIPES = sorted((Path(__file__).parents[1] / "recipes").glob("*.yaml"))


def test_there_are_recipes() -> None:
    assert len(RECIPES) >= 2


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_recipe_is_read_whole(recipe: Path) -> None:
    values = read_yaml(recipe)
    values["model"] = preset(values.pop("preset")).model_dump() | values.get("model", {})
    chosen = PretrainSettings.of(values, str(recipe))
    assert chosen.train.batch_size == values["train"]["batch_size"]
    assert PretrainSettings.of(chosen.model_dump(mode="json"), "again") == chosen


def test_the_laptops_recipe_is_what_minutes_make_of_that_size() -> None:
    """So that the file cannot fall behind what was measured since."""
    tokenizer = tiny_run.tokenizer()
    recipe = RECIPES[0].parent / "laptop.yaml"
    written = new_settings(None, recipe, {"train.max_minutes": 60}, tokenizer)
    usual = new_settings("bert-mini-uncased", None, {"train.max_minutes": 60}, tokenizer)
    assert written == usual
