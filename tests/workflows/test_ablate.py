"""`ablate`: rows and seeds as ordinary runs, the paper's orderings, and each recipe that is shipped."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from scipy.stats import ttest_rel

import bertsmith as bs
import tiny_run
from bertsmith.errors import InputError
from bertsmith.workflows.ablate import AblationRecipe, ablate, read_recipe, report_of, told

RECIPES = sorted((Path(__file__).parents[2] / "recipes" / "ablations").glob("*.yaml"))
FEW = [one for one in tiny_run.SETTINGS if not one.startswith("model.initializer")]
RECIPE = """
title: masks
source: a paper
preset: bert-tiny-uncased
rows:
  dynamic: {}
  "static, once": {data.masks: static, data.duplicates: 1}
paper:
  SST-2: {dynamic: 92.9, "static, once": 92.5}
"""


@pytest.fixture
def world(tmp_path: Path) -> dict[str, Any]:
    recipe = tmp_path / "masks.yaml"
    recipe.write_text(RECIPE, encoding="utf-8")
    rows = tiny_run.table(tmp_path / "train.csv", tiny_run.examples(30))
    task = {"train": str(rows), "dev": str(rows), "settings": {"train.max_steps": 2, "train.threads": 1}}
    pairs = tmp_path / "pairs.csv"
    pairs.write_text("good,bad\nkaba lode,lode kaba\nmi so,so mi so\n", encoding="utf-8")
    return {
        "recipe": recipe,
        "out": tmp_path / "out",
        "data": tiny_run.make_shards(tmp_path),
        "tasks": {"moods": task},
        "pairs": pairs,
        "settings": [*FEW, "train.max_steps=2"],
    }


def test_each_row_and_seed_is_an_ordinary_run(world: dict[str, Any]) -> None:
    report = ablate(**world, seeds=2)
    assert list(report["figures"]) == ["mlm_loss", "moods", "minimal pairs"]
    for row, folder in (("dynamic", "dynamic"), ("static, once", "static--once")):
        values = []
        for seed in (0, 1):
            run = bs.load(world["out"] / folder / str(seed) / "pretrain")
            values.append(run.report["held_out"]["mlm_loss"])
            assert bs.load(world["out"] / folder / str(seed) / "moods").task.name == "classify"
        assert report["figures"]["mlm_loss"][row]["values"] == values
    assert values[0] != values[1]
    assert report["paper"] == {"SST-2": {"dynamic": 92.9, "static, once": 92.5}}
    assert {one["figure"] for one in report["orderings"]} == {"mlm_loss", "moods", "minimal pairs"}
    assert json.loads((world["out"] / "report.json").read_text())["figures"] == report["figures"]
    drawn = sorted(path.name for path in (world["out"] / "figures").iterdir())
    assert drawn == ["minimal-pairs.png", "mlm-loss.png", "moods.png", "paper-SST-2.png"]
    assert all(file.read_bytes()[:4] == b"\x89PNG" for file in (world["out"] / "figures").iterdir())


def test_what_is_finished_stays(world: dict[str, Any]) -> None:
    first = ablate(**world, seeds=1)
    weights = world["out"] / "dynamic" / "0" / "pretrain" / "model" / "model.safetensors"
    written = weights.stat().st_mtime_ns
    with pytest.raises(InputError, match="already exists and is not empty"):
        ablate(**world, seeds=1)
    again = ablate(**world, seeds=2, resume=True)
    assert weights.stat().st_mtime_ns == written
    assert [of["values"][0] for of in again["figures"]["moods"].values()] == [
        of["values"][0] for of in first["figures"]["moods"].values()
    ]
    with pytest.raises(InputError, match="was begun with another recipe, other tasks or settings"):
        ablate(**{**world, "pairs": None}, resume=True)


def test_differences_are_paired_and_orderings_are_judged() -> None:
    recipe = AblationRecipe(
        rows={"a": {}, "b": {}, "c": {}},
        paper={"x": {"a": 3.0, "b": 2.0, "c": 1.0}, "y": {"a": 5.0, "b": 4.0, "c": 4.5}},
    )
    values = {"a": [0.80, 0.82, 0.84], "b": [0.70, 0.725, 0.74], "c": [0.81, 0.81, 0.85]}
    losses = {"a": [1.0, 1.1, 1.2], "b": [0.8, 0.91, 1.0], "c": [1.0, 1.2, 1.1]}
    found = {row: [{"task": values[row][i], "mlm_loss": losses[row][i]} for i in range(3)] for row in values}
    report = report_of(recipe, found)
    of_b = report["figures"]["task"]["b"]
    assert of_b["difference"] == pytest.approx(sum(values["b"]) / 3 - sum(values["a"]) / 3)
    assert of_b["p"] == pytest.approx(ttest_rel(values["b"], values["a"]).pvalue)
    verdicts = {(one["better"], one["worse"], one["figure"]): one["verdict"] for one in report["orderings"]}
    assert verdicts == {
        ("a", "b", "task"): "holds",
        ("a", "b", "mlm_loss"): "is reversed",  # less is better, and b has less
        ("a", "c", "task"): "cannot be told",
        ("a", "c", "mlm_loss"): "cannot be told",
    }  # x and y disagree on b and c
    assert told(report).startswith(
        "of 4 orderings of the paper, figure by figure, 1 hold at this size, 1 are reversed"
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("rows: {a: {}}", "at least two rows"),
        ("rows: {a: {}, b: {}}\npaper: {x: {c: 1.0}}", "names the row 'c', which is none"),
        ("rows: {a: {}, b: {}}\npapers: {}", "papers"),
    ],
)
def test_what_is_no_recipe_is_refused(text: str, said: str, tmp_path: Path) -> None:
    file = tmp_path / "recipe.yaml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=said):
        read_recipe(file)


def test_other_mistakes(world: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="there is no row 'fixed'"):
        ablate(**world, rows=["fixed"])
    with pytest.raises(InputError, match=r"there is no file 'gone\.csv'"):
        ablate(**{**world, "tasks": {"moods": {"train": "gone.csv", "dev": "gone.csv"}}})
    assert not world["out"].exists()


@pytest.mark.parametrize("file", RECIPES, ids=lambda file: file.stem)
def test_each_recipe_takes_two_steps(file: Path, tmp_path: Path) -> None:
    """Every row of it, at a size that a test can afford; what the rows change stays as it is."""
    recipe = read_recipe(file)
    assert recipe.title
    assert recipe.source
    assert recipe.paper
    shards = tiny_run.make_shards(tmp_path)
    changed = {name for row in (recipe.settings, *recipe.rows.values()) for name in row}
    own = [one for one in FEW if one.partition("=")[0] not in changed]
    if recipe.preset and "albert" in recipe.preset and "model.embedding_size" not in changed:
        own.append("model.embedding_size=16")
    if recipe.settings.get("objective.name") == "distil":
        teacher = tiny_run.run(shards, tmp_path / "teacher", "model.num_hidden_layers=4", "train.max_steps=2")
        own.append(f"objective.teacher={teacher.path}")
    report = ablate(
        file,
        tmp_path / "out",
        data=shards,
        seeds=1,
        settings=[*own, "train.max_steps=2", "train.batch_size=4"],
    )
    assert report["seeds"] == 1
    folders = {path.parent.parent.name for path in (tmp_path / "out").glob("*/*/pretrain")}
    assert len(folders) == len(recipe.rows)
    assert list(report["figures"]) == recipe.losses
    assert all(one["verdict"] == "cannot be told" for one in report["orderings"])
