"""Each recipe in recipes/ is a set of settings that pretrain takes."""

from pathlib import Path

import pytest

from bertsmith.models.family import preset
from bertsmith.settings import read_yaml
from bertsmith.workflows.pretrain_settings import PretrainSettings

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
