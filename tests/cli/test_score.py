"""`bertsmith score` as people call it: texts, files, pipes, minimal pairs; what is refused, in a sentence."""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

import bertsmith as bs
import tiny_run
from bertsmith.cli.main import main

Call = Callable[..., SimpleNamespace]
TEXTS = ["kaba lode mizu.", "kaba", "Ripe sogi."]


class Terminal(io.BytesIO):
    """What nobody pipes anything into."""

    def isatty(self) -> bool:
        return True


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pre-trained run, a classifier, and pairs of two phenomena."""
    folder = tmp_path_factory.mktemp("world")
    bert = tiny_run.run(tiny_run.make_shards(folder), folder / "bert", "train.max_steps=4")
    rows = tiny_run.table(folder / "rows.csv", tiny_run.examples(12))
    few = ["train.max_steps=1", "train.threads=1", "train.precision=fp32", "train.report_to=none"]
    bs.finetune("classify", bert, folder / "moods", train=rows, validation=rows, settings=few)
    lines = [
        {"good": f"{a} {b} {a}.", "bad": f"{a} {a} {b}.", "phenomenon": "order", "paradigm": f"order of {b}"}
        for a in tiny_run.WORDS[:6]
        for b in tiny_run.WORDS[6:8]
    ]
    lines += [
        {"good": a.title(), "bad": a, "phenomenon": "case", "paradigm": "case"} for a in tiny_run.WORDS[:3]
    ]
    (folder / "pairs.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return folder


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    """Run `bertsmith score …` in this process, through `main`."""

    def run(*arguments: object, stdin: bytes = b"", terminal: bool = False) -> SimpleNamespace:
        monkeypatch.setattr(sys, "argv", ["bertsmith", "score", *map(str, arguments)])
        stream = (Terminal if terminal else io.BytesIO)(stdin)
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(stream, encoding="utf-8"))
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        out, told = capsys.readouterr()
        assert "Traceback" not in told
        return SimpleNamespace(code=ended.value.code, out=out, told=told)

    return run


def test_texts_are_scored_as_python_scores_them_and_ranked_in_their_order(call: Call, world: Path) -> None:
    done = call(world / "bert", *TEXTS, "--json")
    rows = json.loads(done.out)
    found = [one.to_dict() for one in bs.load(world / "bert").score(TEXTS)]
    assert [row["text"] for row in rows] == TEXTS
    for row, one in zip(rows, found, strict=True):
        assert {name: row[name] for name in one} == one
    best = sorted((row["score"] for row in rows), reverse=True)
    assert [row["rank"] for row in rows] == [1 + best.index(row["score"]) for row in rows]
    assert "all 3 texts: pseudo-perplexity" in done.told
    shown = call(world / "bert", *TEXTS).out
    cells = [[cell.strip() for cell in line.split("│")[1:-1]] for line in shown.splitlines() if "│" in line]
    assert cells == [
        [
            f"{row['rank']}",
            row["text"],
            f"{row['score']:.3f}",
            f"{row['tokens']}",
            f"{row['pseudo_perplexity']:.2f}",
        ]
        for row in rows
    ]


def test_standard_input_a_text_file_and_a_table_say_their_lines(
    call: Call, world: Path, tmp_path: Path
) -> None:
    (tmp_path / "texts.txt").write_text("\n".join([TEXTS[0], "", *TEXTS[1:]]) + "\n", encoding="utf-8")
    (tmp_path / "texts.csv").write_text("n,said\n1,kaba lode mizu.\n2,\n3,kaba\n4,Ripe sogi.\n")
    piped = call(world / "bert", "--json", stdin=b"kaba lode mizu.\r\n\nkaba\nRipe sogi.\n")
    assert "1 text is empty and not scored: standard input:2" in piped.told
    file = call(world / "bert", "--input", tmp_path / "texts.txt", "--json")
    table = call(world / "bert", "--input", tmp_path / "texts.csv", "--text-column", "said", "--json")
    assert json.loads(piped.out) == json.loads(file.out)
    assert [row["line"] for row in json.loads(file.out)] == [1, 3, 4]
    assert [row["line"] for row in json.loads(table.out)] == [2, 4, 5]
    assert [row["score"] for row in json.loads(table.out)] == [row["score"] for row in json.loads(file.out)]
    nothing = call(world / "bert", stdin=b"\n \n")
    assert (nothing.code, nothing.out) == (0, "")
    assert "2 texts are empty and not scored" in nothing.told


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "json"])
def test_rows_are_written_whole_and_nothing_is_overwritten(
    call: Call, world: Path, tmp_path: Path, suffix: str
) -> None:
    for number, given in enumerate(([*TEXTS], ["--pairs", world / "pairs.jsonl"])):
        out = tmp_path / f"rows{number}.{suffix}"
        done = call(world / "bert", *given, "--output", out)
        assert done.code == 0
        text = out.read_text(encoding="utf-8-sig")
        if suffix == "csv":
            rows = [*csv.DictReader(io.StringIO(text))]
        else:
            rows = json.loads(text) if suffix == "json" else [json.loads(line) for line in text.splitlines()]
        if number == 0:
            assert [row["text"] for row in rows] == TEXTS
            assert done.out == ""
        else:
            assert len(rows) == 15
            assert {"line", "good", "bad", "phenomenon", "good_score", "bad_score", "right"} <= rows[0].keys()
            assert float(rows[-1]["good_score"]) == float(rows[-1]["bad_score"])
            assert "accuracy" in done.out
        again = call(world / "bert", *given, "--output", out)
        assert again.code == 2
        assert "already exists" in again.told


def test_pairs_are_reported_by_phenomenon_and_ties_are_wrong_and_said(call: Call, world: Path) -> None:
    done = call(world / "bert", "--pairs", world / "pairs.jsonl", "--json")
    report = json.loads(done.out)
    assert report == json.loads(json.dumps(bs.load(world / "bert").score_pairs(world / "pairs.jsonl")))
    assert (report["pairs"], report["of"], report["ties"], report["chance"]) == (15, 15, 3, 0.5)
    assert report["by_phenomenon"]["case"] == {"pairs": 3, "accuracy": 0.0}
    order = report["by_phenomenon"]["order"]
    assert order["pairs"] == 12
    assert report["accuracy"] == pytest.approx(order["accuracy"] * 12 / 15)
    assert report["mean_over"]["phenomenon"] == pytest.approx(order["accuracy"] / 2)
    assert [group["pairs"] for group in report["by_paradigm"].values()] == [3, 6, 6]
    assert "3 pairs are ties: both sentences have the same score; ties count as wrong" in done.told
    shown = call(world / "bert", "--pairs", world / "pairs.jsonl")
    for part in ("of 15 pairs (chance: 50 %)", "by phenomenon", "mean over 3 groups of paradigm"):
        assert part in shown.out
    some = call(world / "bert", "--pairs", world / "pairs.jsonl", "--sample", 5)
    assert "scoring a sample of 5 of 15 pairs" in some.told
    assert "of 5 pairs" in some.out
    by = call(world / "bert", "--pairs", world / "pairs.jsonl", "--group-column", "paradigm", "--json")
    assert json.loads(by.out)["mean_over"].keys() == {"paradigm"}


@pytest.mark.parametrize(
    ("content", "more", "parts"),
    [
        ('{"good": "ka", "bad": "lo"}\n{"good": "ka"}\n', (), ("p.jsonl:2", "the field 'bad' is missing")),
        ('{"good": "ka", "bad": " "}\n', (), ("p.jsonl:1: the bad sentence is empty", "remove the row")),
        ('{"good": "ka", "bad": \n', (), ("p.jsonl:1",)),
        ('{"a": "ka", "b": "lo"}\n', (), ("column 'good' is missing", "--good-column")),
        ('{"a": "ka", "bad": "lo"}\n', ("--good-column", "x"), ("column 'x' is missing",)),
        (
            '{"good": "ka", "bad": "lo"}\n',
            ("--group-column", "x"),
            ("column 'x' is missing", "--group-column"),
        ),
        ("", (), ("p.jsonl:1: this table has no rows",)),
    ],
    ids=["a missing field", "an empty side", "torn", "no columns", "named", "no group", "empty"],
)
def test_a_file_of_pairs_that_cannot_be_read(
    call: Call, world: Path, tmp_path: Path, content: str, more: tuple[str, ...], parts: tuple[str, ...]
) -> None:
    (tmp_path / "p.jsonl").write_text(content)
    done = call(world / "bert", "--pairs", tmp_path / "p.jsonl", *more)
    assert (done.code, done.out) == (2, "")
    for part in parts:
        assert part in done.told


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["kaba", "--pairs", "p.jsonl"], ("both texts and a file are given", "give one of them")),
        (["--input", "f.txt", "--pairs", "p.jsonl"], ("--input and --pairs exclude each other",)),
        (["kaba", "--sample", "3"], ("--sample has no effect without --pairs", "--pairs")),
        (["kaba", "--group-column", "x"], ("--group-column has no effect without --pairs",)),
        (["kaba", "--text-column", "x"], ("--text-column has no effect without --input",)),
        (["kaba", "--variant", "words"], ("--variant", "within_word")),
        (["kaba", "--output", "scores.xlsx"], ("this file name does not end in .csv",)),
        (["--input", "gone.txt"], ("gone.txt: no such file",)),
        (["--pairs", "gone.jsonl"], ("gone.jsonl: no such file",)),
        (["kaba", "--device", "tpu"], ("there is no device 'tpu'", "choose one of these: cpu")),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_cannot_be_scored_is_refused_in_a_sentence(
    call: Call,
    world: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    parts: tuple[str, ...],
) -> None:
    monkeypatch.chdir(tmp_path)
    done = call(world / "bert", *arguments)
    assert (done.code, [*tmp_path.iterdir()]) == (2, [])
    for part in parts:
        assert part in done.told


def test_a_model_without_a_masked_head_and_a_terminal_without_text_are_told(call: Call, world: Path) -> None:
    done = call(world / "moods", "kaba")
    assert done.code == 2
    assert "no masked-LM head" in done.told
    assert "bertsmith predict" in done.told
    done = call(world / "bert", terminal=True)
    assert done.code == 2
    assert "there is no text" in done.told


def test_bytes_that_are_no_text_are_told_with_their_line(call: Call, world: Path) -> None:
    done = call(world / "bert", stdin=b"kaba\n\xff\xfe\n")
    assert done.code == 2
    assert "standard input:2: byte 0 of the line is not UTF-8" in done.told


@pytest.mark.parametrize("option", ["--pairs", "--input"])
def test_a_file_in_another_encoding_is_read_as_the_message_advises(
    call: Call, world: Path, tmp_path: Path, option: str
) -> None:
    file = tmp_path / "old.csv"
    file.write_bytes("text,good,bad\nkaba naïve,kaba,naïve élan\n".encode("cp1252"))
    refused = call(world / "bert", option, file)
    assert refused.code == 2
    assert "add --encoding cp1252" in refused.told
    done = call(world / "bert", option, file, "--encoding", "cp1252", "--json")
    assert (done.code, json.loads(done.out) != []) == (0, True)
    assert call(world / "bert", option, file, "--encoding", "nonsense").code == 2
