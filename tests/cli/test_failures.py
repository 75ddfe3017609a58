"""How verbs end that fail: a sentence on stderr; with --json one document on stdout, whatever went wrong."""

from __future__ import annotations

import errno
import json
import signal
import sys
from pathlib import Path
from typing import Any

import click
import pytest

import tiny_run
from bertsmith.cli import main as command_line
from bertsmith.errors import InputError, MachineError, Stopped
from bertsmith.settings import read_yaml

ERRORS: list[tuple[BaseException, str, int]] = [
    (InputError("wrong", "it is wrong", location="a.csv:3", hint="correct it"), "input", 2),
    (InputError("wrong", "it is wrong", location="a.csv:3"), "input", 2),
    (MachineError("failing", "the disk is failing", hint="replace it"), "machine", 1),
    (Stopped(15, "stopped at step 3", "continue with --resume"), "stopped", 143),
    (KeyboardInterrupt(), "stopped", 130),
    (click.Abort(), "stopped", 130),
    (click.UsageError("Something is wrong."), "usage", 2),
    (OSError(errno.ENOSPC, "No space left on device", "/a/b"), "machine", 1),
    (PermissionError(errno.EACCES, "Permission denied", "/a/b"), "input", 2),
    (IsADirectoryError(errno.EISDIR, "Is a directory", "/a/b"), "input", 2),
    (MemoryError(), "machine", 1),
    (UnicodeEncodeError("utf-8", "caf\udce9", 3, 4, "surrogates not allowed"), "input", 2),
]


def ended(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[Any, str, str]:
    capsys.readouterr()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["bertsmith", *arguments])
        with pytest.raises(SystemExit) as end:
            command_line.main()
    return end.value.code, *capsys.readouterr()


@pytest.mark.parametrize("as_json", [True, False], ids=["json", "text"])
@pytest.mark.parametrize(("error", "kind", "code"), ERRORS, ids=lambda part: type(part).__name__)
def test_every_kind_of_error_is_one_sentence_and_one_document(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    error: BaseException,
    kind: str,
    code: int,
    as_json: bool,
) -> None:
    def fail(**_: object) -> None:
        raise error

    monkeypatch.setattr(command_line, "bertsmith", fail)
    found, out, told = ended(capsys, "verb", *(["--json"] if as_json else []))
    assert found == code
    lines = told.splitlines()
    assert lines[0].startswith("error: ") == (kind != "stopped")
    if not as_json:
        assert out == ""
        return
    assert out.count("\n") == 1
    document = json.loads(out)
    assert set(document) == {"error"}
    assert set(document["error"]) == {"kind", "code", "message", "location", "argument", "hint", "exit_code"}
    assert (document["error"]["kind"], document["error"]["exit_code"]) == (kind, code)
    assert lines[0].removeprefix("error: ") == document["error"]["message"]
    assert [line.strip() for line in lines[1:]] == [document["error"]["hint"]] * bool(lines[1:])
    assert bool(lines[1:]) == bool(document["error"]["hint"])


def test_a_signal_that_ends_a_verb_is_a_document_too(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        command_line._handle_signal(True, 15, None)
    out, told = capsys.readouterr()
    assert end.value.code == 143
    assert told == "stopped\n"
    assert json.loads(out)["error"]["exit_code"] == 143


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_run_that_is_stopped_after_training_names_resume(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """Stop a run while its report is written, where the trainer handles no signal."""

    def finetune(*_: object, **__: object) -> None:
        (tmp_path / "run").mkdir()
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        command_line._handle_signal(False, number, None)

    monkeypatch.setattr("bertsmith.finetuning.run.finetune", finetune)
    (tmp_path / "train.csv").write_text("text,label\n")
    words = ["--model", "bert", "--train", f"{tmp_path}/train.csv", "--output-dir", f"{tmp_path}/run"]
    monkeypatch.setattr(
        sys, "argv", ["bertsmith", "finetune", "classify", *words, "--validation-split", "10%"]
    )
    with pytest.raises(SystemExit) as end:
        command_line.main()
    assert end.value.code == 128 + number
    assert "--resume" in capsys.readouterr().err


def test_a_fault_of_our_own_keeps_its_traceback(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(**_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(command_line, "bertsmith", fail)
    monkeypatch.setattr(sys, "argv", ["bertsmith", "--json"])
    with pytest.raises(ZeroDivisionError):
        command_line.main()
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    "words",
    [
        ["info", "./nowhere"],
        ["tokenizer", "train", "nowhere.txt", "--output-dir", "t"],
        ["data", "check", "nowhere.txt"],
        ["pretrain", "--data", "nowhere", "--output-dir", "r"],
        ["predict", "./nowhere", "text"],
        ["evaluate", "./nowhere", "--data", "x.csv"],
        ["pretrain", "nowhere.yaml", "--data", "nowhere", "--output-dir", "r", "--set", "trian.x=1"],
    ],
    ids=" ".join,
)
def test_what_is_missing_is_told_as_json(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, words: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, told = ended(capsys, *words, "--json")
    error = json.loads(out)["error"]
    assert (code, error["exit_code"], error["kind"]) == (2, 2, "input")
    assert "nowhere" in error["message"]
    assert told.startswith(f"error: {error['message']}\n")


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["tokenizer", "train", "corpsu.txt", "--output-dir", "s"], "corpus.txt"),
        (["data", "prepare", "corpus.txt", "--tokenizer", "tokeniser", "--output-dir", "s"], "tokenizer"),
        (["pretrain", "--data", "shrads", "--output-dir", "b"], "shards"),
        (["info", "bret"], "bert"),
        (["predict", "./brt", "text"], "bert"),
    ],
    ids=lambda part: " ".join(part) if isinstance(part, list) else part,
)
def test_a_mistyped_path_is_answered_by_what_is_here(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    words: list[str],
    meant: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("shards", "bert", "tokenizer"):
        (tmp_path / name).mkdir()
    (tmp_path / "corpus.txt").write_text("Kaba.\n")
    code, _, told = ended(capsys, *words)
    assert code == 2
    assert told.splitlines()[1] == f"       did you mean {meant}?"


def test_a_text_that_looks_like_the_option_does_not_ask_for_json(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = ended(capsys, "predict", "./nowhere", "--", "--json")
    assert (code, out) == (2, "")


def test_the_short_forms_are_the_settings(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    shards = tiny_run.make_shards(tmp_path).folder
    short = {"batch_size": 3, "learning_rate": 0.002, "seed": 5, "threads": 1}
    flags = [word for name, value in short.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    given = [f"train.{name}" for name in short]
    rest = [
        word
        for setting in tiny_run.SETTINGS
        if setting.partition("=")[0] not in given
        for word in ("--set", setting)
    ]
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("train: {max_steps: 500}\n")
    for name, length in (("steps", ["--steps", "2"]), ("epochs", ["--epochs", "0.3"])):
        out = tmp_path / name
        code, _, told = ended(
            capsys,
            "pretrain",
            str(recipe),
            "--data",
            str(shards),
            "--output-dir",
            str(out),
            *flags,
            *rest,
            *length,
        )
        assert code == 0, told
        train = read_yaml(out / "settings.yaml")["train"]
        assert {setting: train[setting] for setting in short} == short
        assert train["max_steps"] == (2 if name == "steps" else None)  # the recipe's budget gave way
        assert train["num_train_epochs"] == (1 if name == "steps" else 0.3)
    assert ended(capsys, "pretrain", "--data", str(shards), "--output-dir", str(out), *flags, *rest, "--epochs",
                 "0.3", "--resume")[0] == 0  # fmt: skip
