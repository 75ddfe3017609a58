"""README.md is true: its Python and its commands run as they stand, with a smaller budget."""

import csv
import random
import re
import shlex
import sys
from pathlib import Path

import pytest

from bertsmith.cli.main import main

README = Path(__file__).parents[1] / "README.md"
WORDS = [
    "the",
    "a",
    "day",
    "night",
    "rain",
    "sun",
    "walks",
    "sings",
    "falls",
    "over",
    "under",
    "river",
    "old",
]


def blocks(language: str) -> list[str]:
    fenced = re.findall(r"^```(\w*)\n(.*?)^```$", README.read_text(encoding="utf-8"), re.M | re.S)
    return [block for found, block in fenced if found == language]


@pytest.fixture
def users_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The files that the README's reader has: a corpus and three parts of a task."""
    draw = random.Random(0)

    def sentence() -> str:
        return " ".join(draw.choices(WORDS, k=9)).capitalize() + "."

    documents = ["\n".join(" ".join(sentence() for _ in range(4)) for _ in range(3)) for _ in range(40)]
    (tmp_path / "corpus.txt").write_text("\n\n".join(documents) + "\n", encoding="utf-8")
    for name in ("train", "validation", "test"):
        with (tmp_path / f"{name}.csv").open("w", newline="", encoding="utf-8") as file:
            rows = csv.writer(file)
            rows.writerow(["text", "label"])
            for i in range(24):
                rows.writerow([sentence(), ("glad", "sad")[i % 2]])
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_python_block_runs(users_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = blocks("python")
    assert "minutes=5" in code
    assert len([line for line in code.splitlines() if line.strip()]) <= 10
    names: dict[str, object] = {}
    exec(code.replace("minutes=5", "max_steps=3, threads=1"), names)
    assert names["again"].labels == ["glad", "sad"]  # type: ignore[attr-defined]
    assert capsys.readouterr().out.splitlines()[-1] in ("glad", "sad")


def test_commands_run(
    users_folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    commands = [line for block in blocks("") for line in block.splitlines() if line.startswith("bertsmith ")]
    assert [shlex.split(line)[1] for line in commands] == [
        "data",
        "tokenizer",
        "data",
        "pretrain",
        "fill-mask",
        "score",
        "finetune",
        "evaluate",
        "predict",
    ]
    for line in commands:
        words = shlex.split(line.replace("--minutes 60", "--set train.max_steps=3"))
        if words[1] in ("pretrain", "finetune"):
            words += ["--set", "train.threads=1"]
        monkeypatch.setattr(sys, "argv", words)
        with pytest.raises(SystemExit) as exit_:
            main()
        assert exit_.value.code == 0, capsys.readouterr().err
        assert capsys.readouterr().out
