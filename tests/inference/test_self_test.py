"""Examples that are stored with a model and their answers: another copy must answer them alike."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import bertsmith as bs
import tiny_run
from bertsmith.errors import InputError
from bertsmith.serving.models import ServedModel

SETTINGS = ["train.max_steps=3", "train.threads=1", "train.precision=fp32", "train.report_to=none"]


@pytest.fixture(scope="module")
def moods(tmp_path_factory: pytest.TempPathFactory) -> bs.Model:
    folder = tmp_path_factory.mktemp("moods")
    base = tiny_run.run(tiny_run.make_shards(folder), folder / "bert", "train.max_steps=2")
    file = tiny_run.table(folder / "train.csv", tiny_run.examples(45))
    return bs.finetune("classify", base, folder / "run", train=file, validation=file, settings=SETTINGS)


def test_a_copy_answers_the_stored_examples_again(moods: bs.Model, tmp_path: Path) -> None:
    saved = moods.save(tmp_path / "moods", examples=moods.path.parent / "train.csv")
    copied = bs.load(saved).save(tmp_path / "again")
    for folder in (saved, copied):
        result = bs.load(folder).self_test()
        assert result is not None
        assert (result["examples"], result["max_difference"]) == (32, 1e-3)
        assert result["difference"] < 1e-6
    assert bs.load(moods.save(tmp_path / "without")).self_test() is None
    assert moods.self_test() is None


def test_other_answers_and_damaged_files_are_errors_also_for_a_server(
    moods: bs.Model, tmp_path: Path
) -> None:
    saved = moods.save(tmp_path / "moods", examples=tiny_run.examples(9))
    file = saved / "self_test.json"
    whole = json.loads(file.read_text())
    for code, change in {
        "self_test_failed": lambda stored: stored["answers"][4].update(
            score=stored["answers"][4]["score"] - 0.01
        ),
        "invalid_self_test": lambda stored: stored["rows"].pop(),
    }.items():
        stored = json.loads(json.dumps(whole))
        change(stored)
        file.write_text(json.dumps(stored))
        for load in (
            lambda: bs.load(saved).self_test(),
            lambda: ServedModel.load("moods", str(saved), "cpu"),
        ):
            with pytest.raises(InputError) as caught:
                load()
            assert (caught.value.code, Path(str(caught.value.location))) == (code, file)
