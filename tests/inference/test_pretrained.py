"""The small BERT that the package includes: found by its name from anywhere, without a network."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import bertsmith as bs
import tiny_run

NAME = "bert-mini-uncased-en"
ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "src" / "bertsmith" / "pretrained" / NAME
LIKELY = {
    "Paris is the [MASK] of France.": "capital",
    "Madrid is the [MASK] of Spain.": "capital",
    "She opened the [MASK] and went in.": "door",
    "He plays the [MASK] in an orchestra.": "violin",
}


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not beside it, and without the hub."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)


def test_it_is_found_by_its_name_and_fills_masks() -> None:
    model = bs.load(NAME, "cpu")
    assert model.model_folder == FOLDER
    for text, token in LIKELY.items():
        assert model.fill_mask(text)[0][0].token == token, text


def test_masks_are_filled_with_tokens_of_the_vocabulary_alone(tmp_path: Path) -> None:
    """Other tools fill tables up to round numbers of rows."""
    folder = bs.load(NAME, "cpu").save(tmp_path / "model")
    tokens = (folder / "vocab.txt").read_text(encoding="utf-8").splitlines()[:20_000]
    bs.Tokenizer.from_vocabulary(tokens, lowercase=True, max_length=128).save(folder)
    (guesses,) = bs.load(folder, "cpu").fill_mask("Paris is the [MASK] of France.", top_k=20_000)
    assert [one.token for one in guesses if one.token not in tokens] == []
    assert len(guesses) == 20_000


def test_good_sentences_score_higher_than_bad_ones() -> None:
    scores = bs.load(NAME, "cpu").score(["the river sings .", "the rivers sing .", "the river sing ."])
    assert scores[0].score > scores[2].score


def test_it_is_fine_tuned_by_its_name(tmp_path: Path) -> None:
    table = tiny_run.table(tmp_path / "train.csv", tiny_run.examples(20))
    few = ["train.max_steps=2", "train.report_to=none", "train.device=cpu"]
    run = bs.finetune("classify", NAME, tmp_path / "run", train=table, validation=table, settings=few)
    assert run.encoder.config.hidden_size == 256


def test_a_folder_of_that_name_comes_first(tmp_path: Path) -> None:
    own = tiny_run.run(tiny_run.make_shards(tmp_path), tmp_path / NAME, "train.max_steps=1")
    assert bs.load(NAME, "cpu").model_folder.resolve() == own.model_folder.resolve()


def test_it_is_small_enough_for_the_package() -> None:
    assert sum(file.stat().st_size for file in FOLDER.iterdir()) < 25e6


def test_a_wheel_includes_it(tmp_path: Path) -> None:
    builder = pytest.importorskip("hatchling.builders.wheel").WheelBuilder(str(ROOT))
    (wheel,) = builder.build(directory=str(tmp_path / "dist"), versions=["standard"])
    site = tmp_path / "site"
    zipfile.ZipFile(wheel).extractall(site)
    program = f"import bertsmith; print(bertsmith.load({NAME!r}, 'cpu').model_folder)"
    loaded = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert Path(loaded.stdout.strip()) == site / "bertsmith" / "pretrained" / NAME
