"""What was meant by a name that is not there: spelled nearly so, or called so elsewhere."""

from __future__ import annotations

import difflib

import pytest

from bertsmith.errors import InputError
from bertsmith.finetuning.settings import settings_type
from bertsmith.pretraining.settings import PretrainSettings
from bertsmith.settings import Settings
from bertsmith.suggestions import _ELSEWHERE, absent, nearest
from bertsmith.tasks.task import task_type

KINDS: list[type[Settings]] = [PretrainSettings, settings_type(task_type("classify"))]
NAMES = [name for kind in KINDS for name, _ in kind.names()]


def remedy(kind: type[Settings], assignment: str) -> str:
    with pytest.raises(InputError, match="there is no") as refused:
        kind().changed([assignment])
    assert refused.value.remedy is not None
    return refused.value.remedy


@pytest.mark.parametrize(
    ("assignment", "meant"),
    [
        ("lr=1e-4", "train.learning_rate"),
        ("train.lr=1e-4", "train.learning_rate"),
        ("model.lr=1e-4", "train.learning_rate"),
        ("bs=8", "train.batch_size"),
        ("batch=8", "train.batch_size"),
        ("epochs=3", "train.epochs"),
        ("dropout=0.1", "model.hidden_dropout_prob"),
        ("max_len=128", "data.sequence_length"),
        ("max_seq_length=128", "data.sequence_length"),
        ("layers=3", "model.num_hidden_layers"),
        ("hidden=64", "model.hidden_size"),
        ("heads=2", "model.num_attention_heads"),
        ("wd=0", "train.weight_decay"),
        ("steps=5", "train.max_steps"),
        ("grad_accum=4", "train.accumulate"),
        ("per_device_train_batch_size=4", "train.batch_size"),
        ("mlm_probability=0.2", "data.mask_share"),
        ("train.max_step=5", "train.max_steps"),
        ("train.learning-rate=1", "train.learning_rate"),
        ("trian.learning_rate=1", "train.learning_rate"),
    ],
)
def test_a_setting_is_found_by_its_meaning(assignment: str, meant: str) -> None:
    assert remedy(PretrainSettings, assignment).startswith(f"did you mean '{meant}'?")


def test_the_length_of_a_fine_tuned_text_is_its_tasks() -> None:
    assert remedy(KINDS[1], "max_seq_length=128") == "did you mean 'task.max_length'?"


def test_every_name_of_the_table_leads_to_a_setting_that_exists() -> None:
    for ours, others in _ELSEWHERE.items():
        settings = [name for name in NAMES if name.rpartition(".")[2] == ours]
        assert settings, ours
        for other in others.split():
            if not any(name.endswith(f".{other}") for name in NAMES):
                assert set(settings) & set(nearest(other, NAMES)), other


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
    assert nearest("train." + "x" * 10**6, NAMES) == []
    assert max(seen) <= 100


def test_the_name_of_nothing_is_said_to_be_empty() -> None:
    assert absent("").sentence == "the name of a file is empty"
    assert absent(" ", "folder").sentence == "the name of a folder is empty"
