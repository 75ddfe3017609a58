"""Corpora that are too small or of an odd shape: what is advised works when it is followed to the letter."""

from __future__ import annotations

import json
import random
import re
import shlex
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import tiny_run
from bertsmith.cli.main import main

SMALL = [
    word
    for setting in tiny_run.SETTINGS
    if not setting.startswith("data.validation_split")
    for word in ("--set", setting)
]
SMALL += ["--set", "train.max_steps=1"]

Result = SimpleNamespace
Call = Callable[..., Result]


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    """Run `bertsmith …` in this process, through `main`."""

    def run(*arguments: object) -> Result:
        monkeypatch.setattr(sys, "argv", ["bertsmith", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        out, told = capsys.readouterr()
        assert "Traceback" not in told
        return Result(code=ended.value.code, out=out, told=told)

    return run


def sentences(number: int, seed: int = 0) -> list[str]:
    draw = random.Random(seed)
    return [
        " ".join(draw.choices(tiny_run.WORDS, k=draw.randint(3, 12))).capitalize() + "." for _ in range(number)
    ]  # fmt: skip


def chinese(number: int) -> list[str]:
    draw = random.Random(0)
    return [
        "".join(chr(draw.randint(0x4E00, 0x4F00)) for _ in range(draw.randint(5, 30))) + "。"
        for _ in range(number)
    ]


NOVEL = sentences(240)
PARAGRAPHS = [" ".join(NOVEL[i : i + 6]) for i in range(0, len(NOVEL), 6)]
CORPORA = {
    "a word": "Loba\n",
    "a line": NOVEL[0],
    "three lines": "\n".join(NOVEL[:3]),
    "a document": "\n".join(NOVEL[:30]),
    "two documents": "\n".join(NOVEL[:30]) + "\n\n" + "\n".join(NOVEL[30:60]),
    "three documents": "\n\n".join("\n".join(NOVEL[i : i + 9]) for i in (0, 9, 18)),
    "a document five times": "\n\n".join([PARAGRAPHS[0]] * 5),
    "a novel, a sentence a line": "\n".join(NOVEL),
    "a novel, wrapped": textwrap.fill(" ".join(NOVEL), 70),
    "a novel, a paragraph a line": "\n".join(PARAGRAPHS),
    "a novel in one line": " ".join(NOVEL),
    "tweets, one a line": "\n".join(NOVEL),
    "tweets, blank lines": "\n\n".join(NOVEL[:60]),
    "words, blank lines": "\n\n".join(tiny_run.WORDS),
    "a Chinese novel": "\n".join(chinese(200)),
}


def next_command(told: str, name: str, out: Path) -> list[str]:
    """The command that a verb proposed, with the folder filled in."""
    (line,) = [line for line in told.splitlines() if line.startswith("next: bertsmith ")]
    words = shlex.split(line.removeprefix("next: bertsmith "))
    if name in words:
        words[words.index(name)] = str(out)
    return words


def assigned(text: str) -> list[str]:
    """The settings that a remedy names, as options."""
    return [word for found in re.findall(r"data\.\w+=[\w.]+", text) for word in ("--set", found)]


@pytest.mark.parametrize("name", CORPORA)
def test_advice_works_when_followed(call: Call, tmp_path: Path, name: str) -> None:
    corpus = tmp_path / "the corpus.txt"
    corpus.write_text(CORPORA[name] + "\n", encoding="utf-8")
    trained = call("tokenizer", "train", corpus, "--output-dir", tmp_path / "tokenizer", "--vocab-size", 300)
    assert trained.code == 0, trained.told

    # Each verb's next command, to the letter.
    prepared = call(*next_command(trained.told, "DIR", tmp_path / "shards"))
    assert prepared.code == 0, prepared.told
    command = next_command(prepared.told, "RUN", tmp_path / "run")
    (at,) = [i for i, word in enumerate(command) if word == "--minutes"]
    pretrained = call(*command[:at], *command[at + 2 :], *SMALL)
    assert pretrained.code == 0, pretrained.told
    filled = call(*next_command(pretrained.told, "", tmp_path))
    assert filled.code == 0, filled.told

    refused_once_at_most(call, tmp_path)


@pytest.mark.parametrize("joined", ["".join, " ".join])
def test_a_novel_of_paragraphs_is_read_by_lines(
    call: Call, tmp_path: Path, joined: Callable[[Any], str]
) -> None:
    of = chinese(240) if joined("ab") == "ab" else NOVEL
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("\n".join(joined(of[i : i + 4]) for i in range(0, 240, 4)) + "\n", encoding="utf-8")
    checked = json.loads(call("data", "check", corpus, "--no-benchmark", "--json").out)["findings"]
    assert any("documents=line" in finding["remedy"] for finding in checked)
    made = call(
        "tokenizer",
        "train",
        corpus,
        "--output-dir",
        tmp_path / "t",
        "--vocab-size",
        400,
        "--documents",
        "line",
    )
    command = next_command(made.told, "DIR", tmp_path / "s")
    assert command[-4:-2] == ["--documents", "line"]
    prepared = call(*command)
    assert "train with" not in prepared.told
    trained = call("pretrain", "--data", tmp_path / "s", "--output-dir", tmp_path / "r", *SMALL)
    assert trained.code == 0, trained.told


def test_the_remedy_for_near_twins_works(call: Call, tmp_path: Path) -> None:
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("\n\n".join(f"{' '.join(NOVEL[:9])} {word}" for word in tiny_run.WORDS[:9]) + "\n")
    tiny_run.tokenizer().save(tmp_path / "tokenizer")
    arguments = ["--tokenizer", tmp_path / "tokenizer", "--output-dir", tmp_path / "shards"]
    assert call("data", "prepare", corpus, *arguments).code == 0
    assert refused_once_at_most(call, tmp_path) == 2


def refused_once_at_most(call: Call, tmp_path: Path) -> int:
    """Pre-train with the usual settings, and with nothing held out; a refusal's remedy must need no second one."""
    refused = 0
    for number, more in enumerate(([], ["--validation-split", "0"])):
        command = ["pretrain", "--data", str(tmp_path / "shards"), *SMALL, *more]
        first = call(*command, "--output-dir", tmp_path / f"first-{number}")
        if first.code == 0:
            continue
        refused += 1
        assert first.code == 2
        remedy = first.told[first.told.index("error:") :]
        second = call(*command, *assigned(remedy), "--output-dir", tmp_path / f"second-{number}")
        assert assigned(remedy), remedy
        assert second.code == 0, (remedy, second.told)
    return refused


@pytest.mark.parametrize("name", CORPORA)
def test_the_check_and_the_preparation_advise_alike(call: Call, tmp_path: Path, name: str) -> None:
    corpus = tmp_path / "corpus.txt"
    corpus.write_text(CORPORA[name] + "\n", encoding="utf-8")
    tiny_run.tokenizer().save(tmp_path / "tokenizer")
    checked = json.loads(call("data", "check", corpus, "--no-benchmark", "--json").out)["findings"]
    prepared = call(
        "data", "prepare", corpus, "--tokenizer", tmp_path / "tokenizer", "--output-dir", tmp_path / "shards"
    )
    advised = set(assigned(" ".join(finding["remedy"] for finding in checked)))
    if name == "a document five times":  # which documents are equal is said in a finding of its own
        assert any("word for word" in finding["what"] for finding in checked)
    else:
        assert set(assigned(prepared.told)) <= advised


def test_wrapped_lines_are_told_and_joined_by_the_command_that_is_named(call: Call, tmp_path: Path) -> None:
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("\n\n".join(textwrap.fill(text, 70) for text in PARAGRAPHS) + "\n", encoding="utf-8")
    tiny_run.tokenizer().save(tmp_path / "tokenizer")
    arguments: list[Any] = ["data", "prepare", corpus, "--tokenizer", tmp_path / "tokenizer", "--output-dir"]
    told = call(*arguments, tmp_path / "shards").told
    assert "lines wrapped inside sentences" in told
    (command,) = re.findall(r"awk .*", told)
    joined = tmp_path / "joined.txt"
    shell = command.replace("FILE", shlex.quote(str(corpus))).replace("JOINED", shlex.quote(str(joined)))
    subprocess.run(shell, shell=True, check=True)
    assert joined.read_text("utf-8").split() == corpus.read_text("utf-8").split()
    arguments[2] = joined
    prepared = call(*arguments, tmp_path / "shards2")
    assert "lines wrapped" not in prepared.told
    assert f"{len(NOVEL):,}" in prepared.out  # sentences


def test_without_held_out_text_the_table_shows_the_training_loss(call: Call, tmp_path: Path) -> None:
    shards = tiny_run.make_shards(tmp_path)
    told = call(
        "pretrain", "--data", shards.folder, "--output-dir", tmp_path / "run", "--validation-split", 0, *SMALL
    )
    assert told.code == 0, told.told
    loss = re.search(r"last training loss\W+(\d\.\d{3}) \(without validation\)", told.out)
    assert loss is not None, told.out
    line = json.loads((tmp_path / "run" / "log.jsonl").read_text().splitlines()[0])
    assert float(loss[1]) == round(line["loss"], 3)


def test_minutes_must_be_more_than_none(call: Call) -> None:
    told = call("pretrain", "--data", "shards", "--output-dir", "run", "--minutes", 0)
    assert told.code == 2
    assert "'--minutes'" in told.told.splitlines()[0]


@pytest.mark.parametrize("value", ["nan", "inf"])
@pytest.mark.parametrize("option", ["--minutes", "--epochs"])
def test_a_number_that_is_none_is_refused_by_its_option(call: Call, option: str, value: str) -> None:
    told = call("pretrain", "--data", "shards", "--output-dir", "run", option, value)
    assert f"'{option}': '{value}' is not a finite number" in told.told.splitlines()[0]


def test_another_vocabulary_is_advised_before_the_next_step(call: Call, tmp_path: Path) -> None:
    file = tmp_path / "novel.txt"
    file.write_text("\n\n".join(chinese(200)), encoding="utf-8")
    told = call(
        "tokenizer", "train", file, "--output-dir", tmp_path / "t", "--vocab-size", 400
    ).told.splitlines()
    assert any(line.endswith("trained with --chinese") for line in told)
    assert told[-1].startswith("next: bertsmith data prepare")
