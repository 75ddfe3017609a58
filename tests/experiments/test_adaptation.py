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


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a corpus, a model `bert`, text of a domain, and labeled examples."""
    folder = tmp_path_factory.mktemp("files")
    corpus, domain = folder / "corpus.txt", folder / "domain.txt"
    corpus.write_text(tiny_run.corpus())
    tokenizer = bs.train_tokenizer([corpus], folder / "tokenizer", vocab_size=80, min_frequency=1)
    shards = bs.prepare([corpus], tokenizer, folder / "shards", workers=1)
    tiny_run.run(shards, folder / "bert", "train.max_steps=2")
    domain.write_text(tiny_run.corpus(seed=7) + "\n\n" + "Kababalode mi nugi. Kababalode so tuba. " * 12)
    tiny_run.table(folder / "train.csv", tiny_run.examples(30))
    return folder


@pytest.fixture
def world(files: Path, tmp_path: Path) -> dict[str, Any]:
    return {
        "model": files / "bert",
        "corpus": [files / "domain.txt"],
        "output_dir": tmp_path / "out",
        "task": "classify",
        "train": files / "train.csv",
        "validation": files / "train.csv",
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
        assert [run.report["validation"][report.metric] for run in runs] == [row.before, row.after]
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
    assert (caught.value.code, caught.value.argument) == ("arguments_differ", "task")


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
    other = world["output_dir"].with_name("other.csv")
    other.write_text(world["train"].read_text(encoding="utf-8").replace("text", "words", 1), encoding="utf-8")
    with pytest.raises(InputError) as caught:
        adapt(**{**world, "train": other})
    assert "other.csv" in str(caught.value)
    assert "task.text_column" in str(caught.value.hint)
    assert not world["output_dir"].exists()


def test_arguments_may_not_change(world: dict[str, Any]) -> None:
    world["output_dir"].mkdir()
    previous = {"settings": {"train.max_steps": 9}}
    (world["output_dir"] / "adapt.json").write_text(json.dumps(previous))
    with pytest.raises(InputError) as caught:
        adapt(**{**world, "settings": [*world["settings"], "train.learning_rate=1e-5"]}, resume=True)
    assert (caught.value.code, caught.value.argument) == ("arguments_differ", "settings")
    with pytest.raises(InputError) as caught:
        adapt(**world)
    assert caught.value.code == "run_exists"
    assert "overwrite" not in str(caught.value)  # which this function does not have
    (world["output_dir"] / "adapt.json").write_text("[")
    with pytest.raises(InputError) as caught:
        adapt(**world, resume=True)
    assert (caught.value.code, caught.value.location) == (
        "file_damaged",
        str(world["output_dir"] / "adapt.json"),
    )
