"""No verb says "1 texts": each is called on inputs of one document, one text, one row, one word."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

import tiny_run
from bertsmith.cli.main import main

TINY = [word for setting in tiny_run.SETTINGS for word in ("--set", setting)]
TUNE = ["--set", "train.precision=fp32", "--set", "train.report_to=none", "--threads", "1"]
# a number that is no count, or a word that is not a noun with an s
_FINE = {"is", "has", "was", "does", "this", "less", "as", "its", "bytes-per"}
_WRONG = re.compile(r"(?<![\d.,/:=-])1 ([a-z]+s)\b")


def said(capsys: pytest.CaptureFixture[str], *arguments: object, code: int | None = 0) -> str:
    """All that `bertsmith …` prints, tables without their rules."""
    capsys.readouterr()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["bertsmith", *map(str, arguments)])
        patch.setenv("COLUMNS", "400")
        with pytest.raises(SystemExit) as ended:
            main()
    out, told = capsys.readouterr()
    if code is not None:
        assert ended.value.code == code, told
    return f"{out}\n{told}"


def check(text: str) -> None:
    found = [match[0] for match in _WRONG.finditer(text) if match[1] not in _FINE]
    assert not found, text


def test_one_of_everything_has_a_singular_noun(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    one, some = tmp_path / "one.txt", tmp_path / "some.txt"
    one.write_text("Kaba.\n", encoding="utf-8")
    some.write_text(tiny_run.corpus(), encoding="utf-8")
    latin = tmp_path / "latin.txt"
    latin.write_bytes(b"Kaba caf\xe9 lode.\n\nMi kaba.\n")
    tokenizer, shards, bert, moods = (tmp_path / name for name in ("tokenizer", "shards", "bert", "moods"))
    train = tiny_run.table(tmp_path / "train.csv", tiny_run.examples(30))
    single = tiny_run.table(tmp_path / "single.csv", tiny_run.examples(1))
    long = tiny_run.table(tmp_path / "long.csv", [("kaba " * 500, "joy")])

    check(said(capsys, "tokenizer", "train", some, "--output-dir", tokenizer, "--vocab-size", 70))
    check(said(capsys, "tokenizer", "train", one, "--output-dir", tmp_path / "t1", "--vocab-size", 10_000))
    check(said(capsys, "tokenizer", "inspect", tokenizer, "--text", one))
    check(said(capsys, "tokenizer", "extend", one, "--tokenizer", tokenizer, "--words", 1,
               "--min-frequency", 1, code=None))  # fmt: skip
    check(said(capsys, "data", "check", one, "--no-benchmark", "--tokenizer", tokenizer))
    check(said(capsys, "data", "check", latin, "--no-benchmark"))
    check(said(capsys, "data", "prepare", one, "--tokenizer", tokenizer, "--output-dir", tmp_path / "s1"))
    check(said(capsys, "data", "prepare", latin, "--tokenizer", tokenizer, "--output-dir", tmp_path / "s2",
               "--on-error", "skip", code=None))  # fmt: skip
    check(said(capsys, "data", "show", tmp_path / "s1", "--set", "data.sentence_task=none", code=None))
    check(said(capsys, "data", "prepare", some, "--tokenizer", tokenizer, "--output-dir", shards))
    check(said(capsys, "pretrain", "--data", tmp_path / "s1", "--output-dir", tmp_path / "b1", "--steps", 1, *TINY,
               "--set", "data.sentence_task=none", code=None))  # fmt: skip
    check(said(capsys, "pretrain", "--data", shards, "--output-dir", bert, "--steps", 1, *TINY))
    check(said(capsys, "info", bert))
    finetune = ("finetune", "classify", "--model", bert, "--train", train, "--steps", 1, *TUNE)
    check(said(capsys, *finetune, "--validation", single, "--output-dir", moods))
    check(said(capsys, *finetune, "--validation", long, "--output-dir", tmp_path / "long", "--max-length", 8))
    check(said(capsys, *finetune, "--validation-split", "1%", "--output-dir", tmp_path / "few", code=None))
    check(said(capsys, "finetune", "classify", "--model", bert, "--train", single, "--validation-split", "50%",
               "--output-dir", tmp_path / "x", code=2))  # fmt: skip
    check(said(capsys, "evaluate", moods, "--data", single))
    check(said(capsys, "evaluate", moods, "--data", long, "--max-length", 8))
    check(said(capsys, "predict", moods, "kaba"))


def test_the_property_can_fail() -> None:
    for wrong in ("1 texts were cut", "made of 1 documents", "on 1 threads."):
        with pytest.raises(AssertionError):
            check(wrong)
    for right in ("1 text", "11 texts", "0.1 seconds", "row 1 is short", "2,001 texts"):
        check(right)
