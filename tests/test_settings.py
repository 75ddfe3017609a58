"""Settings: typed, bounded, no unknown names; YAML and `--set` read the same values."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest
from pydantic import Field

from bertsmith.errors import InputError
from bertsmith.settings import Settings, read_yaml


class Inner(Settings):
    rate: float = Field(0.1, gt=0, le=1, description="a rate")
    name: str | None = Field(None, description="a name")
    steps: int | None = Field(None, ge=1, description="some steps")


class Outer(Settings):
    inner: Inner = Field(default_factory=Inner, description="a group")
    flag: bool = Field(False, description="a flag")
    choice: Literal["none", "all"] = Field("all", description="a choice")
    several: Literal["none", "all"] | float = Field(1.0, description="a choice or a number")
    file: str = Field("", description="a file; empty: none")


@pytest.mark.parametrize(
    ("assignment", "expected"),
    [
        ("inner.rate=1e-4", 1e-4),
        ("inner.rate=0.5", 0.5),
        ("inner.rate=.5e0", 0.5),
        ("inner.rate=1", 1.0),
        ("inner.name=text", "text"),
        ('inner.name="1"', "1"),
        ("inner.name='1e5'", "1e5"),
        ('inner.name="none"', "none"),
        ("inner.name=nan", "nan"),
        ("inner.name=infinity", "infinity"),
        ("inner.name=5", "5"),
        ("inner.name=a=b", "a=b"),
        ("inner.steps=1_000", 1000),
        ("inner.steps=none", None),
        ("inner.steps=null", None),
        ("inner.steps=5", 5),
        ("choice=none", "none"),
        ("choice=null", "none"),
        ("several=none", "none"),
        ("file=none", ""),
        ("file=", ""),
        ("flag=true", True),
        ("flag=yes", True),
        (" flag =false", False),
    ],
)
def test_values_are_what_people_mean(assignment: str, expected: object) -> None:
    changed = Outer().changed([assignment])
    name = assignment.partition("=")[0].strip()
    found: object = changed
    for part in name.split("."):
        found = getattr(found, part)
    assert found == expected
    assert type(found) is type(expected)


@pytest.mark.parametrize(
    ("assignment", "parts"),
    [
        ("inner.rat=1", ("'inner.rat'", "did you mean 'inner.rate'")),
        ("rate=1", ("did you mean 'inner.rate'",)),
        ("inner.rate=0", ("inner.rate", "a rate")),
        ("inner.rate=nan", ("inner.rate",)),
        ("inner.rate=.inf", ("finite",)),
        ("inner=3", ("inner",)),
        ("inner.rate.x=3", ("not a group",)),
        ("inner.rate", ("no '='",)),
        ("=1", ("''",)),
        ("inner.steps=1.5", ("inner.steps",)),
        ("flag=[", ("not YAML",)),
        ("zebra=1", ("known here", "inner.rate")),
    ],
)
def test_mistakes_are_named_with_the_nearest_known(assignment: str, parts: tuple[str, ...]) -> None:
    with pytest.raises(InputError) as refused:
        Outer().changed([assignment])
    for part in parts:
        assert part in str(refused.value)


def test_yaml_is_read_back_to_equal_settings(tmp_path: Path) -> None:
    chosen = Outer().changed(["inner.rate=1e-5", 'inner.name="1e5"', "flag=true"])
    (tmp_path / "s.yaml").write_text(chosen.to_yaml(), encoding="utf-8")
    assert Outer.from_file(tmp_path / "s.yaml") == chosen


@pytest.mark.parametrize("content", [b"a: [", b"- 1", b"\xff", b"text", b"a: b: c"])
def test_a_recipe_that_is_none(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "recipe.yaml"
    file.write_bytes(content)
    with pytest.raises(InputError, match=r"recipe\.yaml"):
        read_yaml(file)


def test_an_empty_recipe_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "empty.yaml").write_text("# nothing\n")
    assert Outer.from_file(tmp_path / "empty.yaml") == Outer()
    assert [name for name, _ in Outer.names()] == [
        "inner.rate",
        "inner.name",
        "inner.steps",
        "flag",
        "choice",
        "several",
        "file",
    ]


def test_one_budget_at_a_time() -> None:
    from bertsmith.training.settings import TrainSettings

    assert TrainSettings(max_steps=5).changed(["max_steps=none", "max_tokens=10"]).max_tokens == 10
    with pytest.raises(InputError) as caught:
        TrainSettings(max_steps=5).changed(["max_tokens=1"])
    assert caught.value.code == "invalid_setting"
    assert "max_steps and max_tokens" in caught.value.message


def test_several_numbers_are_a_yaml_list() -> None:
    from bertsmith.instances.settings import DataSettings

    assert DataSettings().changed(
        ["replacement_probabilities=[0.5, 0.3, 2e-1]"]
    ).replacement_probabilities == (0.5, 0.3, 0.2)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("9" * 30, "less than or equal to 1"),
        ("9" * 5000, "not YAML"),
        ("1e400", "finite"),
        ("2020-13-45", "not YAML"),
        ("1,-", "valid number"),
        ("[" * 20_000, "not YAML"),
        ("!!float abc", "not YAML"),
        ("!!bool maybe", "not YAML"),
        ("!!timestamp x", "not YAML"),
    ],
)
def test_any_value_that_is_none_is_one_short_sentence(value: str, words: str) -> None:
    with pytest.raises(InputError, match=words) as refused:
        Outer().changed([f"inner.rate={value}"])
    assert refused.value.argument in ("settings", "inner.rate")
    sentence = refused.value.sentence_for("command line")
    assert sentence.startswith("--set: " if refused.value.argument == "settings" else "inner.rate ")
    assert len(sentence) < 250


def test_a_number_that_is_too_large_is_named() -> None:
    with pytest.raises(InputError) as caught:
        Outer().changed([f"inner.steps={2**63}"])
    assert (caught.value.code, caught.value.argument) == ("invalid_setting", "inner.steps")


def test_yaml_builds_no_objects(tmp_path: Path) -> None:
    recipe = tmp_path / "r.yaml"
    recipe.write_text("inner: !!python/object/apply:os.system [id]")
    with pytest.raises(InputError) as caught:
        read_yaml(recipe)
    assert caught.value.code == "not_yaml"
    assert str(caught.value.location).endswith("r.yaml:1")


@pytest.mark.parametrize("line", ["a{i}: &a{i} [{aliases}]", "a{i}: &a{i} {{<<: [{aliases}]}}", "a: &a [*a]"])
def test_a_few_lines_do_not_become_billions_of_values(tmp_path: Path, line: str) -> None:
    recipe = tmp_path / "r.yaml"
    aliases = [", ".join([f"*a{i - 1}"] * 10) for i in range(1, 10)]
    lines = [line.format(i=i, aliases=names) for i, names in enumerate(aliases, start=1)]
    recipe.write_text("\n".join(["a0: &a0 {b: 1}", *dict.fromkeys(lines)]))
    with pytest.raises(InputError) as caught:
        read_yaml(recipe)
    assert caught.value.code == "not_yaml"


def test_a_recipe_may_use_aliases_and_merges(tmp_path: Path) -> None:
    recipe = tmp_path / "r.yaml"
    recipe.write_text("inner: &a {rate: 0.2, name: b}\nother: {<<: *a, rate: 0.3}\nthird: *a\n")
    assert read_yaml(recipe)["other"] == {"rate": 0.3, "name": "b"}
    assert read_yaml(recipe)["third"] == {"rate": 0.2, "name": "b"}


def test_a_recipe_that_cannot_be_read_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        read_yaml(tmp_path)
    assert caught.value.code == "not_a_file"


def test_a_setting_says_where_it_is_declared_whether_it_may_change_on_resume() -> None:
    from bertsmith.finetuning.settings import settings_type
    from bertsmith.pretraining.settings import PretrainSettings
    from bertsmith.tasks.registry import get_task

    names = ("dataloader_num_workers", "save_steps", "save_total_limit", "report_to", "threads", "fsdp")
    computing = ("kernels", "cuda_graphs", "deterministic")
    budgets = ("max_steps", "max_tokens", "max_minutes", "num_train_epochs")
    free = {f"train.{name}" for name in (*names, *computing, *budgets)}
    judged = {f"evaluate.pairs{name}" for name in ("", "_encoding", "_sample")}
    assert PretrainSettings.may_change() == free | {"base"} | judged
    assert settings_type(get_task("classify")).may_change() == free | {
        "base",
        "files.train",
        "files.validation",
    }


def test_a_group_without_settings_is_named_as_a_group(tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text("inner: null\n")
    with pytest.raises(InputError) as caught:
        Outer.from_file(tmp_path / "recipe.yaml")
    assert (caught.value.code, caught.value.argument) == ("invalid_setting", "inner")
    assert "Inner" not in caught.value.message
