"""A run whose best weights are lost continues from its last checkpoint, and evaluates that again."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import bertsmith as bs
import tiny_run
from run_equality import killed_in

SETTINGS = {
    "batch_size": 6,
    "learning_rate": 2e-3,
    "threads": 1,
    "precision": "fp32",
    "report_to": "none",
    "eval_steps": 1,
    "save_steps": 1,
}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a pre-trained model, rows, and a fine-tuning run that was killed in update 4."""
    folder = tmp_path_factory.mktemp("base")
    tiny_run.run(tiny_run.make_shards(folder), folder / "bert", "train.max_steps=1")
    tiny_run.table(folder / "rows.csv", tiny_run.examples(12))
    with killed_in(4):
        tune(folder, folder / "run")
    return folder


def tune(base: Path, out: Path, *, resume: bool = False) -> bs.Model:
    rows = base / "rows.csv"
    return bs.finetune(
        "classify", base / "bert", out, train=rows, validation=rows, resume=resume, max_steps=5, **SETTINGS
    )


@pytest.mark.parametrize("content", [None, b"", b"torn"])
def test_lost_best_weights_are_said_and_the_last_ones_are_evaluated_again(
    base: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, content: bytes | None
) -> None:
    shutil.copytree(base / "run", tmp_path / "run")
    for file in (tmp_path / "run" / "checkpoints").glob("best-*"):
        file.unlink() if content is None else file.write_bytes(content)
    model = tune(base, tmp_path / "run", resume=True)
    assert [text for text in caplog.messages if "best weights are lost" in text]
    lines = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    steps = [line["step"] for line in lines if line["kind"] == "evaluation"]
    assert steps == [1, 2, 3, 3, 4, 5]
    assert model.report["best_step"] in (3, 4, 5)
    for file in (tmp_path / "run" / "checkpoints").glob("best-*"):
        file.unlink()
    assert tune(base, tmp_path / "run", resume=True).report["steps"] == 5  # finished, and its best lost again
