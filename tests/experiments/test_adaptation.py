"""`adapt`: the model before and after, each stage kept, one report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import bertsmith as bs
import tiny_run
from bertsmith.errors import InputError, Stopped
from bertsmith.experiments.adaptation import adapt

FEW = [one for one in tiny_run.SETTINGS if not one.startswith(("model.", "start."))]
PRETRAINING = (*FEW, "data.validation_split=0.2", "train.max_steps=3")
TASK = ("train.max_steps=4", "train.threads=1", "train.precision=fp32", "train.batch_size=4")


@pytest.fixture
def world(tmp_path: Path) -> dict[str, Any]:
    (tmp_path / "corpus.txt").write_text(tiny_run.corpus())
    tokenizer = bs.train_tokenizer(
        [tmp_path / "corpus.txt"], tmp_path / "tokenizer", vocab_size=80, min_frequency=1
    )
    shards = bs.prepare([tmp_path / "corpus.txt"], tokenizer, tmp_path / "shards", workers=1)
    base = tiny_run.run(shards, tmp_path / "bert", "train.max_steps=2")
    corpus = tmp_path / "domain.txt"
    corpus.write_text(tiny_run.corpus(seed=7) + "\n\n" + "Kababalode mi nugi. Kababalode so tuba. " * 12)
    rows = tiny_run.table(tmp_path / "train.csv", tiny_run.examples(30))
    return {
        "model": base.path,
        "corpus": [corpus],
        "output_dir": tmp_path / "out",
        "task": "classify",
        "train": rows,
        "validation": rows,
        "settings": PRETRAINING,
        "task_settings": TASK,
    }


def test_both_are_measured_with_the_same_seeds(world: dict[str, Any]) -> None:
    report = adapt(**world, seeds=2)
    out = world["output_dir"]
    assert report.metric == "macro_f1" or report.metric == "accuracy"
    assert [row.seed for row in report.runs] == [0, 1]
    for row in report.runs:
        runs = [bs.load(out / f"{name}-{row.seed}") for name in ("before", "after")]
        assert [run.report["dev"][report.metric] for run in runs] == [row.before, row.after]
        assert row.comparison["difference"] == pytest.approx(row.after - row.before)
    gains = [row.after - row.before for row in report.runs]
    assert report.gain == pytest.approx(sum(gains) / 2)
    assert json.loads((out / "report.json").read_text()) == report.to_dict()
    assert bs.load(out / "model").report["base"].startswith(str(world["model"]))


def test_the_vocabulary_grows_first(world: dict[str, Any]) -> None:
    adapt(**world, words=1)
    added = json.loads((world["output_dir"] / "extended" / "extension.json").read_text())["words"][0]["word"]
    own = {
        name: bs.load(world["output_dir"] / name).tokenizer.tokens
        for name in ("model", "after-0", "before-0")
    }
    assert {name: added in tokens for name, tokens in own.items()} == {
        "model": True,
        "after-0": True,
        "before-0": False,
    }


def test_what_is_finished_stays(world: dict[str, Any]) -> None:
    first = adapt(**world)
    weights = world["output_dir"] / "model" / "model" / "model.safetensors"
    written = weights.stat().st_mtime_ns
    with pytest.raises(InputError) as caught:
        adapt(**world)
    assert str(world["output_dir"]) in str(caught.value)
    again = adapt(**world, seeds=2, resume=True)  # one more
    assert weights.stat().st_mtime_ns == written
    assert again.runs[0] == first.runs[0]
    assert len(again.runs) == 2
    with pytest.raises(InputError) as caught:
        adapt(**{**world, "task": "tag"}, resume=True)
    assert (caught.value.code, caught.value.argument) == ("adaptation_differs", "task")


def test_stopped_between_two_steps_it_says_what_is_kept(
    world: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("bertsmith.experiments.adaptation.finetune", interrupted)
        with pytest.raises(Stopped) as caught:
            adapt(**world)
    assert caught.value.exit_code == 130
    assert "resume" in str(caught.value.hint)
    assert len(adapt(**world, resume=True).runs) == 1


def test_mistakes_are_reported_before_anything_is_written(world: dict[str, Any]) -> None:
    with pytest.raises(InputError) as caught:
        adapt(**{**world, "settings": ["train.sed=1"]}, words=1)
    assert "train.sed" in str(caught.value)
    with pytest.raises(InputError) as caught:
        adapt(**{**world, "task_settings": ["train.seed=7"]})
    assert (caught.value.code, caught.value.argument) == ("seed_set", "task_settings")
    other = world["train"].with_name("other.csv")
    other.write_text(world["train"].read_text(encoding="utf-8").replace("text", "words", 1), encoding="utf-8")
    with pytest.raises(InputError) as caught:
        adapt(**{**world, "train": other})
    assert "other.csv" in str(caught.value)
    assert "task.text_column" in str(caught.value.hint)
    assert not world["output_dir"].exists()


def test_arguments_may_change_until_they_have_been_used(world: dict[str, Any]) -> None:
    world["output_dir"].mkdir()
    (world["output_dir"] / "adapt.json").write_text(
        '{"corpus": "another", "settings": ["train.max_steps=9"]}'
    )
    first = adapt(**world)  # nothing was made of it
    with pytest.raises(InputError) as caught:
        adapt(**{**world, "settings": [*world["settings"], "train.learning_rate=1e-5"]}, resume=True)
    assert (caught.value.code, caught.value.argument) == ("adaptation_differs", "settings")
    (world["output_dir"] / "adapt.json").write_text("[")
    with pytest.raises(InputError) as caught:
        adapt(**world, resume=True)
    assert (caught.value.code, caught.value.location) == (
        "file_damaged",
        str(world["output_dir"] / "adapt.json"),
    )
    assert first.runs
