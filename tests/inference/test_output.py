"""Answers as people take them away: a spreadsheet in, a spreadsheet out; what was empty, or read otherwise."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import bertsmith as bs
import tiny_run
from bertsmith.cli.main import bertsmith
from bertsmith.errors import InputError
from bertsmith.inference.output import Answered, csv_lines, line_or_place, output_format, table_of

SHORT = ["train.max_steps=2", "train.threads=1", "train.report_to=none"]
SHEET = '\ufeffid;text;mood\r\n1;"kaba; lode";joy\r\n2;"migi\r\nnufo 😀 „ü";\r\n3;  ;x\r\n4;=pezu;fear\r\n'


@pytest.fixture(scope="module")
def moods(base: bs.Model, tmp_path_factory: pytest.TempPathFactory) -> bs.Model:
    folder = tmp_path_factory.mktemp("moods")
    file = tiny_run.table(folder / "all.csv", tiny_run.examples(30))
    return bs.finetune("classify", base, folder / "run", train=file, validation_split=0.3, settings=SHORT)


@pytest.fixture(scope="module")
def pairs(base: bs.Model, tmp_path_factory: pytest.TempPathFactory) -> bs.Model:
    folder = tmp_path_factory.mktemp("pairs")
    rows = [(f"{text},{text}", label) for text, label in tiny_run.examples(12)]
    file = tiny_run.table(folder / "pairs.csv", rows, header="text,other,label")
    settings = [*SHORT, "task.second_column=other"]
    return bs.finetune("classify", base, folder / "run", train=file, validation=file, settings=settings)


@pytest.fixture
def sheet(tmp_path: Path) -> Path:
    (tmp_path / "sheet.csv").write_text(SHEET, encoding="utf-8", newline="")
    return tmp_path / "sheet.csv"


def predict(*arguments: object, stdin: bytes | None = None) -> Result:
    return CliRunner().invoke(bertsmith, ["predict", *map(str, arguments)], input=stdin)


def test_a_spreadsheet_comes_back_with_its_predictions(
    moods: bs.Model, sheet: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    out = tmp_path / "predictions.csv"
    done = predict(moods.path, "--input", sheet, "--output", out)
    assert done.exit_code == 0, done.output
    assert f"1 text is empty and not predicted: {sheet}:5\n" in done.stderr
    assert "predictions.csv: 3 predictions" in done.stderr
    assert out.read_bytes().startswith(b"\xef\xbb\xbfid;text;mood;prediction;score\n")
    rows = list(csv.DictReader(io.StringIO(out.read_text(encoding="utf-8-sig"), newline=""), delimiter=";"))
    assert [row["id"] for row in rows] == ["1", "2", "3", "4"]
    assert [row["text"] for row in rows] == ["kaba; lode", "migi\nnufo 😀 „ü", "  ", "=pezu"]
    assert [row["mood"] for row in rows] == ["joy", "", "x", "fear"]
    answers = moods.predict([row["text"] for row in rows])
    assert "1 text is empty and not predicted: text 3" in caplog.messages
    for i, row in enumerate(rows):
        wanted = ("", "") if i == 2 else (answers[i].label, f"{answers[i].score:.4f}")
        assert (row["prediction"], row["score"]) == wanted
    assert predict(moods.path, "--input", sheet, "--format", "csv").stdout_bytes == out.read_bytes()
    # What was written is read again, and a column that is taken keeps its place.
    again = predict(moods.path, "--input", out, "--format", "csv").stdout.splitlines()[0]
    assert again == "\ufeffid;text;mood;prediction;score;prediction 2;score 2"


def test_each_json_answer_has_its_line_and_text(moods: bs.Model, sheet: Path, tmp_path: Path) -> None:
    found = [json.loads(line) for line in predict(moods.path, "--input", sheet).stdout.splitlines()]
    assert [(row["line"], row["text"]) for row in found] == [
        (2, "kaba; lode"),
        (3, "migi\nnufo 😀 „ü"),
        (6, "=pezu"),
    ]
    assert found == list(moods.predict_file(sheet))
    predict(moods.path, "--input", sheet, "--output", tmp_path / "a.json")
    predict(moods.path, "--input", sheet, "--output", tmp_path / "a.jsonl")
    assert json.loads((tmp_path / "a.json").read_text()) == found
    assert [json.loads(line) for line in (tmp_path / "a.jsonl").read_text().splitlines()] == found


@pytest.mark.parametrize("columns", [40, 80])
def test_a_table_fits_the_terminal(
    moods: bs.Model, sheet: Path, columns: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    long = tiny_run.table(tmp_path / "long.csv", [("kaba lode " * 30, "joy")])
    for file in (sheet, long):
        shown = predict(moods.path, "--input", file, "--format", "table").stdout
        assert max(map(len, shown.splitlines())) <= columns
        assert "prediction" in shown
        assert len(shown.splitlines()) == 4 + (3 if file == sheet else 1)


def test_other_columns_are_named_on_the_call(moods: bs.Model, tmp_path: Path) -> None:
    file = tmp_path / "bare.tsv"
    file.write_text("7\tkaba lode\n8\tmigi\n")
    done = predict(moods.path, "--input", file, "--no-header", "--text-column", "2", "--format", "csv")
    assert [line.rsplit(",", 2)[0] for line in done.stdout.splitlines()] == ["1,2", "7,kaba lode", "8,migi"]
    with pytest.raises(InputError) as error:
        list(moods.predict_file(file))
    assert (error.value.code, error.value.argument) == ("column_missing", "text_column")
    assert "--no-header --text-column 2" in str(error.value.hint_for("command line"))
    assert "--second-column" in str(error.value.hint_for("command line"))


def test_nothing_but_empty_texts(moods: bs.Model, tmp_path: Path) -> None:
    file = tmp_path / "empty.csv"
    file.write_text("id,text\n1,\n2,\n")
    done = predict(moods.path, "--input", file, "--format", "csv")
    assert done.stdout == "id,text\n1,\n2,\n"
    assert f"2 texts are empty and not predicted: {file}:2, {file}:3" in done.stderr
    assert predict(moods.path, "--input", file).stdout == ""
    half = tiny_run.table(tmp_path / "e.csv", [("", "joy"), ("kaba", "joy")])
    assert moods.evaluate(half).notes == [f"1 text is empty: {half}:2: fill in each, or remove its row"]


def test_a_byte_order_mark_of_a_stream_is_no_text(moods: bs.Model) -> None:
    done = predict(moods.path, stdin="\ufeffkaba lode\r\n\r\nmigi\r\n".encode())
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(row["line"], row["text"]) for row in found] == [(1, "kaba lode"), (3, "migi")]
    assert "1 text is empty and not predicted: standard input:2" in done.stderr


def test_a_cut_text_is_told(moods: bs.Model) -> None:
    done = predict(moods.path, "kaba lode migi", "kaba", "--max-length", "4")
    assert "1 of 2 texts truncated: 1 token (25.0 %) not read" in done.stderr


def test_pairs_stand_in_a_file_or_with_a_tab_between(pairs: bs.Model, tmp_path: Path) -> None:
    (wanted,) = pairs.predict(["kaba lode"], ["migi"])
    (found,) = [
        json.loads(line) for line in predict(pairs.path, stdin=b"kaba lode\tmigi\n\n").stdout.splitlines()
    ]
    assert (found["text"], found["second"], found["score"]) == ("kaba lode", "migi", wanted.score)
    for call in (
        lambda: pairs.predict(["kaba"]),
        lambda: list(pairs.predictor.examples_of_lines([b"a\tb", b"kaba"], "here")),
    ):
        with pytest.raises(InputError) as caught:
            call()
        assert caught.value.code == "pairs_expected"
    assert len(pairs.predict(["kaba", ""], ["", "mi"])) == 2


def test_what_cannot_be_written_is_refused(moods: bs.Model, tmp_path: Path) -> None:
    (tmp_path / "there.csv").write_text("x")
    for arguments, code in (
        (["--output", tmp_path / "there.csv"], "output_exists"),
        (["--output", tmp_path / "a.pdf"], "suffix_unsupported"),
    ):
        done = predict(moods.path, "kaba", *arguments)
        assert isinstance(done.exception, InputError)
        assert (done.exception.code, done.exception.argument) == (code, "output")
    for arguments in (["--json", "--format", "csv"], ["--json", "--output", tmp_path / "a.json"]):
        done = predict(moods.path, "kaba", *arguments)
        assert done.exit_code == 2
        assert "--json" in done.stderr
    assert (tmp_path / "there.csv").read_text() == "x"
    assert output_format("a.CSV", None) == "csv"
    assert output_format(None, "table") == "table"


def test_places(moods: bs.Model) -> None:
    class At:
        def __init__(self, location: str) -> None:
            self.location = location

    assert line_or_place(At("a.csv:12")) == {"line": 12}
    assert line_or_place(At("text 3")) == {}
    assert line_or_place(At("a.json: data[0].paragraphs[1].qas[2]")) == {
        "place": "data[0].paragraphs[1].qas[2]"
    }


def test_regression_and_tags_have_rows_too(base: bs.Model, tmp_path: Path) -> None:
    numbers = tiny_run.table(tmp_path / "n.csv", [(f"kaba {i}", str(i)) for i in range(12)])
    stars = bs.finetune(
        "regress", base, tmp_path / "stars", train=numbers, validation_split=0.3, settings=SHORT
    )
    first, second = list(csv_lines(stars.task.report, stars.predictor.answered_file(numbers)))[:2]
    assert first == "text,label,prediction\n"
    assert second.startswith("kaba 0,0,")
    (tmp_path / "t.conll").write_text("kaba B-A\nlode O\n\nmigi O\n\n" * 6)
    tagger = bs.finetune(
        "tag",
        base,
        tmp_path / "tags",
        train=tmp_path / "t.conll",
        validation=tmp_path / "t.conll",
        settings=SHORT,
    )
    answered = tagger.predictor.answered_file(tmp_path / "t.conll")
    rows = [line.split(",")[:2] for line in csv_lines(tagger.task.report, answered)]
    assert rows[:4] == [["line", "word"], ["1", "kaba"], ["1", "lode"], ["4", "migi"]]
    names, cells = table_of(
        tagger.task.report, tagger.predictor.answered(tagger.predictor.examples({"words": ["kaba lode"]})), 80
    )
    assert names == ["word", "prediction", "score"]
    assert [row[0] for row in cells] == ["kaba", "lode"]


def test_blank_rows_keep_their_place(moods: bs.Model) -> None:
    examples = moods.task.data.from_inputs({"text": ["", "kaba", " "]}, ["f:1", "f:2", "f:3"])
    (answer,) = moods.predictor.predict(examples[1:2])
    answered = [Answered(e, answer if e.text == "kaba" else None) for e in examples]
    assert list(csv_lines(moods.task.report, answered)) == [
        "line,text,prediction,score\n",
        "1,,,\n",
        f"2,kaba,{answer.label},{answer.score:.4f}\n",
        "3, ,,\n",
    ]


def test_precision_is_said_to_the_verb(moods: bs.Model) -> None:
    scores = {}
    for name in ("fp32", "bf16"):
        done = CliRunner().invoke(bertsmith, ["predict", str(moods.path), "kaba", "--precision", name])
        scores[name] = json.loads(done.stdout)["score"]
        assert scores[name] == bs.load(moods.path, precision=name).predict(["kaba"])[0].score
    assert scores["fp32"] != scores["bf16"]
    assert scores["fp32"] == pytest.approx(scores["bf16"], abs=0.02)
    with pytest.raises(InputError) as caught:
        bs.load(moods.path, precision="fp8")
    assert (caught.value.code, caught.value.argument) == ("unknown_precision", "precision")
