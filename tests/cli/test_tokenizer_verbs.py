"""`tokenizer inspect` and `tokenizer extend` as they are typed: tables, JSON, pages, and what is refused."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from bertsmith.cli.main import main
from bertsmith.tokenizer.tokenizer import Tokenizer

SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
LETTERS = "abcdefghijklmnopqrstuvwxyz"
TOKENS = [*SPECIALS, *LETTERS, *(f"##{c}" for c in LETTERS), "the", "card", "##io", "."]


def run(capsys: pytest.CaptureFixture[str], *arguments: object, code: int = 0) -> tuple[str, str]:
    """stdout and stderr of `bertsmith tokenizer …`."""
    capsys.readouterr()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["bertsmith", "tokenizer", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
    out, told = capsys.readouterr()
    assert ended.value.code == code, told
    return out, told


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    Tokenizer.from_vocabulary(TOKENS, lowercase=True).save(tmp_path / "one")
    Tokenizer.from_vocabulary([*TOKENS, "cardio", "é", "É"], lowercase=False).save(tmp_path / "<b>two<b>")
    text = "The cardio, the cardiogram. É 猫\n" * 6 + "<script>alert(1)</script>\n"
    (tmp_path / "text.txt").write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_inspect_side_by_side(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, told = run(capsys, "inspect", "one", "<b>two<b>", "--text", "text.txt", "--html", "r.html")
    assert "vocabulary" in out
    assert max(map(len, out.splitlines())) <= 80
    assert "written: r.html" in told
    page = (place / "r.html").read_text(encoding="utf-8")
    assert page.rstrip().endswith("</html>")
    assert "<script" not in page
    assert "<b>" not in page
    assert "&lt;b&gt;two&lt;b&gt;" in page
    assert not re.search(r"""(src|href)\s*=\s*["']?\s*(https?:|//)""", page)
    document, _ = run(capsys, "inspect", "one", "<b>two<b>", "--text", "text.txt", "--json")
    report = json.loads(document)
    assert list(report["tokenizers"]) == ["one", "<b>two<b>"]
    first, second = report["tokenizers"].values()
    assert first["unknown_characters"] > 0
    assert second["pieces_per_word"] < first["pieces_per_word"]


def test_many_tokenizers_fit_the_screen_and_unknown_words_are_told(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eight tokenizers side by side; one that knows no word does not look like one of one piece per word."""
    names = [f"tokenizer-{i}" for i in range(8)]
    for i, name in enumerate(names):
        tokens = [*TOKENS, "é", "猫", "<", ">", "/", "(", ")", "1"] if i else [*SPECIALS, "x"]
        Tokenizer.from_vocabulary(tokens, lowercase=True).save(place / name)
    (place / "plain.txt").write_text("The cardio, the card.\n" * 9, encoding="utf-8")
    for columns in (40, 80):
        monkeypatch.setenv("COLUMNS", str(columns))
        out, _ = run(capsys, "inspect", *names, "--text", "plain.txt")
        tables = [line for line in out.splitlines() if line[:1] in "┏┃┡│└"]
        assert max(map(len, tables)) <= columns
        for word in ("unknown", "words", "whole", "letters", "vocabulary"):
            assert word in out, (columns, word)
    rows = [line.split("│")[1:-1] for line in out.splitlines() if "tokenizer-" in line and "%" in line][:8]
    assert [row[0].strip() for row in rows] == [*names[1:], names[0]]  # the worst last
    assert [cell.strip() for cell in rows[-1][1:4]] == ["100 %", "0 %", "–"]
    assert "tokenizer-0 knows less than 99.5 % of the words" in out


def test_limit_globs_and_two_of_one_name(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (place / "a").mkdir()
    (place / "one").rename(place / "a" / "one")
    Tokenizer.from_vocabulary(TOKENS, lowercase=True).save(place / "one")
    arguments = ["inspect", "a/one", "one", "one/vocab.txt", "--cased", "one/vocab.txt", "--text", "*.txt"]
    out, _ = run(capsys, *arguments, "--limit", "40B", "--json")
    report = json.loads(out)
    names = list(report["tokenizers"])
    assert len(set(names)) == 3
    assert names[0].endswith("a/one")
    assert [row["lowercase"] for row in report["tokenizers"].values()] == [True, True, False]
    assert report["text"]["cut_short"] == ["text.txt"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["inspect", "none", "--text", "text.txt"], "none: "),
        (["inspect", "one", "--text", "none.txt"], "no such file"),
        (["inspect", "one", "one", "--text", "text.txt"], "named twice"),
        (["inspect", "one", "--cased", "two", "--text", "text.txt"], "not one of the tokenizers"),
        (["inspect", "one", "--text", "text.txt", "--html", "text.txt/p.html"], "a file, not a folder"),
        (["inspect", "one", "--text", "text.txt", "--html", "one"], "not a regular file"),
        (["inspect", "one"], "--text"),
        (["extend", "--tokenizer", "one", "--output-dir", "o"], "or a --word-list"),
        (["extend", "text.txt", "--output-dir", "o"], "either a tokenizer or a model"),
        (["extend", "text.txt", "--tokenizer", "one", "--output-dir", "one"], "already exists"),
        (["extend", "--tokenizer", "one", "--output-dir", "o", "--word-list", "l.txt"], "no such file"),
        (["extend", "text.txt", "--tokenizer", "one", "--output-dir", "o", "--words", "0"], "--words"),
    ],
)  # fmt: skip
def test_what_is_refused(
    place: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    before = sorted(place.rglob("*"))
    out, told = run(capsys, *arguments, code=2)
    assert said in told.replace("\n", " ")
    assert out == ""
    assert "Traceback" not in told
    assert sorted(place.rglob("*")) == before


def test_extend_proposes_then_adds(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    how: list[Any] = ["extend", "text.txt", "--tokenizer", "one"]
    out, told = run(capsys, *how)
    assert "only 2 of the 1,000 requested words" in told
    assert "cardio" in out
    assert "saved" in out
    assert max(map(len, out.splitlines())) <= 80
    assert not (place / "new").exists()
    proposed = json.loads(run(capsys, *how, "--json")[0])
    assert [row["word"] for row in proposed["words"]] == ["cardiogram", "cardio"]
    out, told = run(capsys, *how, "--output-dir", "new")
    assert f"{len(TOKENS)} → {len(TOKENS) + 2} entries" in told
    assert Tokenizer.load(place / "new").tokens == [*TOKENS, "cardiogram", "cardio"]
    (place / "list.txt").write_text("cardio\nthe\n")
    out, told = run(
        capsys, "extend", "--tokenizer", "one", "--word-list", "list.txt", "--output-dir", "listed"
    )
    assert "1 word of the list already one token" in told
    assert Tokenizer.load(place / "listed").tokens == [*TOKENS, "cardio"]
    (place / "plain.txt").write_text("the cardio " * 99)
    out, _ = run(capsys, *how, "--against", "plain.txt")
    assert "times commoner" in out
    assert "cardiogram" in out
