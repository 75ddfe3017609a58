"""What was meant by a name that is not there: the nearest known name."""

from __future__ import annotations

import difflib
from pathlib import Path

import pytest

from bertsmith.errors import InputError
from bertsmith.finetuning.settings import settings_type
from bertsmith.pretraining.settings import PretrainSettings
from bertsmith.settings import Settings
from bertsmith.suggestions import not_found_error, similar_names
from bertsmith.tasks.registry import get_task

KINDS: list[type[Settings]] = [PretrainSettings, settings_type(get_task("classify"))]
NAMES = [name for kind in KINDS for name, _ in kind.names()]


def remedy(kind: type[Settings], assignment: str) -> str:
    with pytest.raises(InputError) as refused:
        kind().changed([assignment])
    assert refused.value.code == "unknown_setting"
    assert refused.value.hint_for("command line") is not None
    return refused.value.hint_for("command line")


@pytest.mark.parametrize(
    ("assignment", "meant"),
    [
        ("epochs=3", "train.num_train_epochs"),
        ("model.learning_rate=1e-4", "train.learning_rate"),
        ("train.max_step=5", "train.max_steps"),
        ("train.learning-rate=1", "train.learning_rate"),
        ("trian.learning_rate=1", "train.learning_rate"),
    ],
)
def test_the_nearest_setting_is_suggested(assignment: str, meant: str) -> None:
    assert remedy(PretrainSettings, assignment).startswith(f"did you mean '{meant}'?")


def test_an_unknown_group_lists_groups_and_an_unknown_setting_at_most_the_few_beside_it() -> None:
    for kind in KINDS:
        groups = [name for name, field in kind.model_fields.items() if field.annotation is not str]
        for assignment in ("qqq.x=1", "qqq=1", "trian.x=1"):
            assert ", ".join(groups) in remedy(kind, assignment)
        for assignment in ("qqq=1", "qqq.x=1", "train.qqq=1", "trian.x=1", "task.qqq=1"):
            named = [name for name, _ in kind.names() if name in remedy(kind, assignment)]
            assert len(named) <= 10
    assert remedy(PretrainSettings, "trian.x=1").startswith("did you mean 'train'?")
    assert "--help" in remedy(PretrainSettings, "train.qqq=1")


def test_a_long_name_is_not_compared_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    compare = difflib.get_close_matches
    monkeypatch.setattr(
        difflib,
        "get_close_matches",
        lambda word, *rest, **how: [seen.append(len(word)), compare(word, *rest, **how)][1],
    )
    assert similar_names("train." + "x" * 10**6, NAMES) == []
    assert max(seen) <= 100


def test_an_empty_path_and_a_missing_one_are_different_errors(tmp_path: Path) -> None:
    assert not_found_error("").code == not_found_error(" ", "folder").code == "empty_path"
    error = not_found_error(tmp_path / "a.txt", hint="make it")
    assert (error.code, error.location, error.hint) == ("not_found", str(tmp_path / "a.txt"), "make it")
    (tmp_path / "b.txt").touch()
    assert str(tmp_path / "b.txt") in str(not_found_error(tmp_path / "a.txt").hint)
