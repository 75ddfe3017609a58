"""What --label-names may be: names, a file of names, or a file of codes and names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import bertsmith as bs
import tiny_run
from bertsmith.errors import InputError
from bertsmith.tasks.labels import LabelMap, read_label_names

CODES = {"0": "joy", "1": "fear"}


@pytest.mark.parametrize(
    ("name", "text", "wanted"),
    [
        ("a.csv", "code,name\n0,joy\n1,fear\n", CODES),
        ("a.csv", "\ufeff0;joy\r\n1;fear\r\n", CODES),
        ("a.csv", "name;code\njoy;0\nfear;1\n", CODES),
        ("a.csv", "joy,0\nfear,1\n", CODES),
        ("a.tsv", "label\tname\n0\tjoy\n1\tfear\n", CODES),
        ("a.csv", "x,y\n0,joy\n1,fear\n", CODES),
        ("a.csv", "POS,good\nNEG,bad\n", {"POS": "good", "NEG": "bad"}),
        ("a.txt", "joy\nfear\n", ["joy", "fear"]),
        ("a.csv", "label\njoy\nfear\n", ["joy", "fear"]),
    ],
)
def test_files_of_names_and_of_codes(tmp_path: Path, name: str, text: str, wanted: object) -> None:
    (tmp_path / name).write_text(text, encoding="utf-8", newline="")
    assert read_label_names(tmp_path / name) == wanted
    assert read_label_names(str(tmp_path / name)) == wanted


def test_names_themselves() -> None:
    assert read_label_names("a, b,c") == ["a", "b", "c"]
    assert read_label_names(("a", "b")) == ["a", "b"]
    assert read_label_names({"x": "a"}) == {"x": "a"}


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("a,b,c\n1,2,3\n", "label_names_column_count"),
        ("0,joy\n0,fear\n", "duplicate_label_code"),
        ("joy\n", "too_few_label_names"),
        ("0,joy\n1,\n", "empty_label_name"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, text: str, code: str) -> None:
    (tmp_path / "a.csv").write_text(text)
    with pytest.raises(InputError) as caught:
        read_label_names(tmp_path / "a.csv")
    assert (caught.value.code, caught.value.location) == (code, str(tmp_path / "a.csv"))
    assert caught.value.argument == "label_names"
    with pytest.raises(InputError) as caught:
        read_label_names("none.csv")
    assert str(caught.value).startswith("none.csv: ")


def test_codes_are_learnt_by_their_names(base: bs.Model, tmp_path: Path) -> None:
    codes = {"joy": "100", "fear": "7", "anger": "x"}
    (tmp_path / "names.csv").write_text("code;name\n100;joy\nx;anger\n7;fear\n")
    rows = [(text, codes[label]) for text, label in tiny_run.examples(30)]
    few = ["train.max_steps=2", "train.threads=1", "train.report_to=none"]
    run = bs.finetune(
        "classify",
        base,
        tmp_path / "run",
        train=tiny_run.table(tmp_path / "all.csv", rows),
        validation_split=0.3,
        label_names=tmp_path / "names.csv",
        settings=few,
    )
    assert run.labels == ["joy", "anger", "fear"]
    assert run.report["examples"]["labels"]["train"] == {"joy": 7, "fear": 7, "anger": 7}
    again = bs.load(tmp_path / "run")
    named = tiny_run.table(tmp_path / "named.csv", tiny_run.examples(30))
    assert again.evaluate(tmp_path / "all.csv") == again.evaluate(named)
    with pytest.raises(InputError) as caught:
        again.evaluate(tiny_run.table(tmp_path / "odd.csv", [("kaba", "8")]))
    assert (caught.value.code, caught.value.location) == ("unknown_label", f"{tmp_path}/odd.csv:2")


@pytest.mark.parametrize(
    ("metadata", "label", "name"),
    [
        ({"labels": ["0", "1"]}, "1.0", "1"),
        ({"labels": ["0", "1"]}, "1.00", "1"),
        ({"labels": ["0.0", "1.0"]}, "1", "1.0"),
        ({"labels": ["-1", "1"]}, "-1.0", "-1"),
        ({"labels": ["1", "01"]}, "01", "01"),
        ({"labels": ["1", "01"]}, "1.0", "1"),
        ({"labels": ["0", "1"]}, "1.5", "1.5"),
        ({"labels": ["glad", "sad"], "numbered": True}, "1.00", "sad"),
    ],
)
def test_another_spelling_of_an_integer_is_the_label(metadata: dict[str, Any], label: str, name: str) -> None:
    assert LabelMap(metadata).name(label) == name
