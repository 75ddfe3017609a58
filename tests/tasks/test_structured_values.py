"""A text or a label is a string, a number, or a bool in every format; other values are errors with their row."""

from __future__ import annotations

import csv
import json
import re
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bertsmith.errors import InputError
from bertsmith.inference.text_input import read_text_rows
from bertsmith.io.documents import read_documents
from bertsmith.io.sources import column_values, to_source
from bertsmith.tasks.classification.data import label_ids
from bertsmith.tasks.labels import LabelMap
from bertsmith.tasks.registry import get_task
from task_files import task_data

FORMATS = ["jsonl", "json lines", "json array", "parquet", "arrow", "memory"]


def read(
    source: Any, task: str = "classify", *, labeled: bool = True, names: Any = None, **settings: Any
) -> Any:
    """Return the examples and the metadata of a source."""
    declaration = get_task(task)
    data = declaration.part("data")(declaration.settings_type.of(settings, "test"), {})
    examples = data.read(to_source(source, "data", data.tuple_columns), labeled=labeled)
    return examples, data.fit_metadata(examples, names) if labeled else {}


def labels_of(source: Any, **settings: Any) -> list[list[str]]:
    """Return the names of the labels of each example of a multi-label source."""
    examples, metadata = read(source, multi_label=True, **settings)
    label_map = LabelMap(metadata)
    return [[metadata["labels"][i] for i in label_ids(example, label_map, ",")] for example in examples]


def stored(folder: Path, rows: list[dict[str, Any]], name: str) -> Any:
    """Return rows in one of `FORMATS`."""
    if name == "memory":
        return rows
    if name in ("arrow", "parquet"):
        table = pa.Table.from_pylist(rows)
        pq.write_table(table, folder / "a.parquet")
        return table if name == "arrow" else folder / "a.parquet"
    file = folder / ("a.jsonl" if name == "jsonl" else "a.json")
    file.write_text(json.dumps(rows) if "array" in name else "\n".join(map(json.dumps, rows)))
    return file


def csv_file(folder: Path, *cells: str) -> Path:
    file = folder / "a.csv"
    rows = "".join(f'text {i},"{cell.replace(chr(34), chr(34) * 2)}"\n' for i, cell in enumerate(cells))
    file.write_text(f"text,label\n{rows}")
    return file


def error_of(source: Any, task: str = "classify", **settings: Any) -> InputError:
    with pytest.raises(InputError) as caught:
        read(source, task, **settings)
    return caught.value


@pytest.mark.parametrize("name", FORMATS)
def test_a_structure_is_no_text_and_no_label(tmp_path: Path, name: str) -> None:
    for field, value in (("label", ["sad"]), ("label", {"name": "sad"}), ("text", ["rain", "falls"])):
        other = {"text": "sun", "label": "joy"} if name not in ("arrow", "parquet") else None
        rows = [*([other] if other else []), {"text": "rain", "label": "sad", field: value}]
        error = error_of(stored(tmp_path, rows, name))
        assert (error.code, error.argument) == ("not_a_string", f"{field}_column")
        row = len(rows) - ("array" in name)
        assert str(error.location).endswith(f"[{row}]" if "array" in name else f":{row}")
        assert ("multi_label" in str(error.hint)) == isinstance(value, list) & (field == "label")


@pytest.mark.parametrize("name", FORMATS)
def test_null_is_an_empty_text_and_a_missing_label(tmp_path: Path, name: str) -> None:
    rows = [{"text": None, "label": "joy"}, {"text": "rain", "label": "sad"}]
    assert [example.text for example in read(stored(tmp_path, rows, name))[0]] == ["", "rain"]
    assert [example.text for example in read(stored(tmp_path, rows, name), labeled=False)[0]] == ["", "rain"]
    rows = [{"text": "sun", "label": None}, {"text": "rain", "label": "sad"}]
    assert error_of(stored(tmp_path, rows, name)).code == "empty_label"


@pytest.mark.parametrize(
    "label",
    [
        *(float("nan"), np.nan, np.float32("nan"), "NaN", "NA", "null", "None", "", " "),
        *("\\N", "#NV", "#NULL!", "#VALUE!", "#NAME?", "#REF!", "#DIV/0!", "Inf"),
        *(float("inf"), -np.float32("inf"), Decimal("Infinity"), "inf", "-Infinity"),
    ],
)
@pytest.mark.parametrize("task", ["classify", "regress", "embed"])
def test_spellings_of_missing_labels(label: Any, task: str) -> None:
    rows = [
        {"text": "sun", "second": "star", "label": "1"},
        {"text": "rain", "second": "star", "label": label},
    ]
    error = error_of(rows, task)
    assert (error.code, error.argument, str(error.location)[-2:]) == ("empty_label", "label_column", ":2")


def test_a_spelling_is_a_label_if_it_is_named_and_a_word_as_a_text() -> None:
    rows = [{"text": "null", "label": "None"}, {"text": "NA", "label": "joy"}]
    examples, metadata = read(rows, names=["None", "joy"])
    assert [example.text for example in examples] == ["null", "NA"]
    assert metadata["labels"] == ["None", "joy"]


@pytest.mark.parametrize(
    ("cell", "expected"),
    [
        ("['joy', 'hope']", ["hope", "joy"]),
        ('["joy", "hope"]', ["hope", "joy"]),
        ("('joy', 'hope')", ["hope", "joy"]),
        ("{'joy', 'hope'}", ["hope", "joy"]),
        ("joy, hope", ["hope", "joy"]),
        ("[]", []),
        ("", []),
        ("['joy' 'hope']", "not_a_label_list"),
        ("['joy', {}]", "not_a_string"),
        ("{'joy': 1}", "not_a_string"),
        ("['joy', '']", "empty_label"),
        ("[0, 1, 1]", "labels_are_indicators"),
        ("1,0,1", "labels_are_indicators"),
        ("{joy,hope}", ["hope", "joy"]),
        ('{"joy",hope}', ["hope", "joy"]),
        ("[joy, hope]", ["hope", "joy"]),
        ("{joy}", ["joy"]),
        ("{}", []),
        ('c("joy", "hope")', ["hope", "joy"]),
        ("character(0)", []),
        ("array(['joy', 'hope'], dtype=object)", ["hope", "joy"]),
        ("array(['joy', 'hope'], dtype='<U4')", ["hope", "joy"]),
        ("array([], dtype=object)", []),
        ("frozenset({'joy'})", ["joy"]),
        ("set()", []),
        ("[1 5]", ["1", "5"]),
        ("[ 1  5]", ["1", "5"]),
        ('c("joy", NA)', "not_a_label_list"),
        ("array(['joy' 'hope'])", "not_a_label_list"),
    ],
)
def test_a_cell_with_a_list(tmp_path: Path, cell: str, expected: Any) -> None:
    file = csv_file(tmp_path, cell, "joy", "sad")
    if isinstance(expected, list):
        assert labels_of(file) == [expected, ["joy"], ["sad"]]
    else:
        assert error_of(file, multi_label=True).code == expected
    if cell.endswith(("]", ")", "}")) and cell != "{joy}":
        assert (error_of(file).code, error_of(file).location) == ("not_a_string", f"{file}:2")


@pytest.mark.parametrize(
    "cells",
    [
        ("0,1", "1,0"),
        ("0 1 0", "1 0 1"),
        ("010", "100"),
        ("[0. 1.]", "[1. 0.]"),
        ("[0,1]", "[1,0]"),
        ("[False, True]", "[True, False]"),
    ],
)
@pytest.mark.parametrize("names", [None, ["a", "b"]])
def test_vectors_of_0_and_1_do_not_name_labels(tmp_path: Path, cells: tuple[str, str], names: Any) -> None:
    error = error_of(csv_file(tmp_path, *cells), multi_label=True, names=names)
    assert (error.code, error.argument) == ("labels_are_indicators", "label_column")
    assert error.location == f"{tmp_path / 'a.csv'}:2"


@pytest.mark.parametrize(
    "cell", ["['joy', 'hope']", '["joy", "hope"]', "{joy,hope}", '{joy,"hope"}', "[joy, hope]"]
)
def test_a_cell_with_a_list_of_choices(tmp_path: Path, cell: str) -> None:
    with (tmp_path / "a.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["context", "choices", "label"], ["a", cell, "1.0"]])
    ((example,), _) = read(tmp_path / "a.csv", "choose")
    assert (example.choices, example.label) == (("joy", "hope"), 1)


def test_contexts_and_questions_that_spell_a_missing_value_are_empty(tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    file.write_text("context,question,choice0,choice1,label\nNaN,why,None,NA,1\n")
    ((example,), _) = read(file, "choose")
    assert (example.context, example.choices, example.label) == ("", ("None", "NA"), 1)
    file.write_text("question,context,answer\nwho,NaN,NaN\n")
    assert (error_of(file, "answer").code, error_of(file, "answer").location) == ("empty_text", f"{file}:2")


@pytest.mark.parametrize("multi_label", [False, True])
def test_labels_that_combine_others_are_reported(multi_label: bool) -> None:
    settings = get_task("classify").settings_type(multi_label=multi_label)
    labels = ["joy", "hope", "joy;hope", "sad; glad"]
    examples = task_data("classify", settings).read(
        to_source([{"text": x, "label": x} for x in labels], "data")
    )
    data = get_task("classify").part("data")(
        settings, {"labels": labels, "separator": "," if multi_label else None}
    )
    (combined,) = data.read_warnings(examples)
    assert (combined.kind, len(combined.locations)) == ("labels that combine others", 1)
    assert ("multi_label" in combined.consequence) != multi_label


@pytest.mark.parametrize(
    ("labels", "count"),
    [
        ([date(2021, 3, 1), date(2021, 3, 2)], 1),
        ([datetime(2021, 3, 1, 12), datetime(2021, 3, 2)], 1),
        (["2021-03-01", "2021-03-02"], 1),
        (["1.3.2021", "2.3.2021"], 1),
        (["3/1/2021", "2021-03-02 and later"], 0),
        (["2021", "2020"], 0),
        (["1.3", "1.4"], 0),
    ],
)
def test_labels_that_are_dates_are_reported(labels: list[Any], count: int) -> None:
    examples, metadata = read([{"text": f"t {x}", "label": x} for x in labels])
    data = get_task("classify").part("data")(get_task("classify").settings_type(), metadata)
    assert [warning.kind for warning in data.read_warnings(examples)] == ["labels that are dates"] * count


@pytest.mark.parametrize("mark", ["#", "/", ";", "|", " "])
@pytest.mark.parametrize(
    ("pairs", "count"),
    [
        (["joy hope", "hope fear", "calm"], 2),
        (["joy hope", "joy fear", "fear"], 2),
        (["sport golf", "sport tennis", "art"], 0),
    ],
)
def test_parts_of_labels_that_occur_only_combined_are_reported(
    mark: str, pairs: list[str], count: int
) -> None:
    labels = [pair.replace(" ", mark) for pair in pairs]
    settings = get_task("classify").settings_type(multi_label=True)
    examples = task_data("classify", settings).read(
        to_source([{"text": x, "label": x} for x in labels], "data")
    )
    data = get_task("classify").part("data")(settings, {"labels": labels, "separator": ","})
    assert [len(warning.locations) for warning in data.read_warnings(examples)] == [count] * bool(count)


@pytest.mark.parametrize("cell", ["(0, 30]", "(0, 30)", "[joy]", "(joy)", "{joy}"])
def test_a_label_in_brackets_is_no_list(tmp_path: Path, cell: str) -> None:
    assert cell in read(csv_file(tmp_path, cell, "joy"))[1]["labels"]


@pytest.mark.parametrize("names", ["toxic,threat", ["toxic", "threat"], "toxic, threat"])
def test_columns_of_0_and_1_are_labels(tmp_path: Path, names: Any) -> None:
    columns = {"text": ["a", "b", "c"], "toxic": [1, 0, 1], "threat": ["no", "false", "FALSE"]}
    assert labels_of(columns, label_column=names) == [["toxic"], [], ["toxic"]]
    assert read(columns, multi_label=True, label_column=names)[1]["labels"] == ["toxic", "threat"]
    file = tmp_path / "a.csv"
    file.write_text("text,toxic,threat\na,1,0\nb,1.0,true\n")
    assert labels_of(file, label_column=names) == [["toxic"], ["toxic", "threat"]]
    assert "multi_label" in str(error_of(file, label_column=names).hint)
    for value in ("2", "", "x"):
        file.write_text(f"text,toxic,threat\na,1,0\nb,1,{value}\n")
        error = error_of(file, multi_label=True, label_column=names)
        assert (error.code, error.location) == ("not_an_indicator", f"{file}:3")


def test_a_name_with_a_comma_is_one_column() -> None:
    rows = [{"text": "a", "x,y": "p"}, {"text": "b", "x,y": "q"}]
    assert read(rows, label_column="x,y")[1]["labels"] == ["p", "q"]


@pytest.mark.parametrize(
    ("task", "row"),
    [
        ("regress", {"text": "a", "label": [1]}),
        ("embed", {"text": "a", "second": ["b"], "label": 1}),
        ("embed", {"query": {"q": 1}, "positives": ["a"]}),
        ("embed", {"query": "q", "positives": [["a"]]}),
        ("relate", {"text": {"a": 1}, "relation": "r"}),
        ("relate", {"text": "<e1>a</e1> <e2>b</e2>", "relation": ["r"]}),
        ("choose", {"context": ["a"], "choices": ["x", "y"], "label": 0}),
        ("choose", {"context": "a", "choices": ["x", {"y": 1}], "label": 0}),
        ("choose", {"context": "a", "choices": ["x", "y"], "label": [0]}),
        ("answer", {"question": ["q"], "context": "a", "answer": "a"}),
        ("answer", {"question": "q", "context": {"a": 1}, "answer": "a"}),
    ],
)
def test_the_fields_of_every_task(task: str, row: dict[str, Any]) -> None:
    error = error_of([row], task)
    assert (error.code, str(error.location)[-2:]) == ("not_a_string", ":1")


@pytest.mark.parametrize("spelling", ["NaN", "null", "NA", "None", "<NA>", "\\N", "#NV", "#NAME?"])
def test_a_text_that_spells_a_missing_value_is_empty_in_a_delimited_file(
    tmp_path: Path, spelling: str, caplog: pytest.LogCaptureFixture
) -> None:
    for name, mark in (("a.csv", ","), ("a.tsv", "\t"), ("a.txt", ";")):
        file = tmp_path / name
        file.write_text(f"text,label\n{spelling},a\n{spelling} it,b\n".replace(",", mark))
        caplog.clear()
        assert [example.text for example in read(file)[0]] == ["", f"{spelling} it"]
        assert f"'{spelling}' ({file}:2)" in caplog.text
    assert [document.text for document in read_documents([tmp_path / "a.csv"])] == ["", f"{spelling} it"]
    assert [row.text for row in read_text_rows(tmp_path / "a.csv")] == ["", f"{spelling} it"]
    caplog.clear()
    rows = [{"text": spelling, "label": "a"}, {"text": "b", "label": "b"}]
    assert read(stored(tmp_path, rows, "jsonl"))[0][0].text == spelling
    assert not caplog.records


@pytest.mark.parametrize(
    "text", ["['the sun', 'sings']", '{"a": 1}', "['the sun' 'sings']", "('a', 'b')", "[1, 2]", "b'a'"]
)
@pytest.mark.parametrize("name", ["csv", *FORMATS])
def test_texts_that_are_printed_lists_are_reported(
    tmp_path: Path, text: str, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    rows = [{"text": text, "label": "a"}, {"text": "[sic] (b)", "label": "b"}]
    source: Any = stored(tmp_path, rows, name)
    if name == "csv":
        source = tmp_path / "a.csv"
        with source.open("w", newline="") as file:
            csv.writer(file).writerows([["text", "label"], *(row.values() for row in rows)])
    assert read(source)[0][0].text == text
    (record,) = caplog.records
    assert f"1 printed list, whose brackets and quotes are read as text: '{text}'" in record.getMessage()


@pytest.mark.parametrize("key", ["_id", "id"])
@pytest.mark.parametrize("value", [[1, 2], {"a": 1}])
def test_an_id_is_no_list(tmp_path: Path, key: str, value: Any) -> None:
    rows = [{"text": "a", key: "1"}, {"text": "b", key: value}]
    for source in (stored(tmp_path, rows, "jsonl"), rows):
        with pytest.raises(InputError) as caught:
            list(read_text_rows(source))
        assert (caught.value.code, caught.value.argument) == ("not_a_string", "id_column")
        assert str(caught.value.location).endswith(":2")


@pytest.mark.parametrize("task", ["choose", "relate", "tag"])
def test_an_id_of_an_example_is_no_list(task: str) -> None:
    row = {
        "choose": {"context": "a", "choices": ["x", "y"], "label": 0},
        "relate": {"text": "<e1>a</e1> <e2>b</e2>", "relation": "r"},
        "tag": {"words": ["a"], "tags": ["O"]},
    }[task]
    assert error_of([{**row, "sentence_id" if task == "tag" else "id": [1]}], task).code == "not_a_string"


@pytest.mark.parametrize(
    ("key", "wrap"),
    [("data", lambda row: row), ("rows", lambda row: {"row_idx": 0, "row": row}), ("records", dict)],
)
def test_rows_within_an_object_are_read(tmp_path: Path, key: str, wrap: Any) -> None:
    rows = [{"text": "a", "label": "x"}, {"text": "b", "label": "y"}]
    (tmp_path / "a.json").write_text(json.dumps({"version": 1, "schema": {"a": []}, key: [*map(wrap, rows)]}))
    examples, _ = read(tmp_path / "a.json")
    assert [(example.text, example.label) for example in examples] == [("a", "x"), ("b", "y")]
    assert examples[1].location == f"{tmp_path / 'a.json'}: {key}[1]"


@pytest.mark.parametrize(
    "answers", [["accept", "reject", "ignore"], ["accept"] * 3, ["reject"] * 3, ["a", "b", "c"]]
)
@pytest.mark.parametrize("task", ["classify", "tag"])
def test_rows_that_prodigy_rejected_are_left_out(
    answers: list[str], task: str, caplog: pytest.LogCaptureFixture
) -> None:
    spans = [{"start": 0, "end": 3, "label": "PER"}]
    rows = [{"text": f"Ada {a}", "label": a, "spans": spans, "answer": a} for a in answers]
    data = task_data(task, get_task(task).settings_type())
    if answers == ["reject"] * 3:
        with pytest.raises(InputError) as caught:
            data.read(to_source(rows, "data"))
        assert caught.value.code == "empty_table"
    else:
        assert len(data.read(to_source(rows, "data"))) == (1 if "reject" in answers else 3)
    assert ("2 rows" in caplog.text) == ("ignore" in answers)
    assert len(data.read(to_source(rows, "data"), labeled=False)) == 3


def test_a_column_of_labels_may_be_called_answer() -> None:
    rows = [{"text": "a", "answer": "accept"}, {"text": "b", "answer": "reject"}]
    assert len(read(rows, label_column="answer")[0]) == 2


@pytest.mark.parametrize("content", ['{"text": ["a"], "label": ["x"]}', '{"train": [{"text": "a"}]}'])
def test_a_json_object_that_is_not_rows_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "a.json").write_text(content)
    assert error_of(tmp_path / "a.json").code == "not_rows"


@pytest.mark.parametrize("values", [{"a", "b"}, frozenset("ab"), {"text": {"a", "b"}}])
def test_a_set_has_no_order(values: Any) -> None:
    for take in (to_source,) if isinstance(values, dict) else (to_source, column_values):
        with pytest.raises(InputError) as caught:
            take(values, "texts")
        assert caught.value.code == "no_order"
    assert column_values({"a": 1, "b": 2}.keys(), "texts") == ["a", "b"]
    assert column_values((text for text in "ab"), "texts") == ["a", "b"]


def test_a_column_that_occurs_twice_is_refused() -> None:
    table = pa.table([pa.array(["a"]), pa.array(["b"])], names=["text", "text"])
    with pytest.raises(InputError) as caught:
        to_source(table, "train")
    assert (caught.value.code, caught.value.location) == ("duplicate_column", "train")


def test_a_data_frame_that_arrow_cannot_read_is_read_by_columns() -> None:
    class DataFrame:
        columns = ("text", "label")

        def to_dict(self, orient: str) -> dict[str, list[Any]]:
            return {"text": ["a", "b"], "label": ["1", 1]}

        def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
            raise pa.ArrowTypeError("Expected bytes, got a 'int' object")

    table: Any = to_source(DataFrame(), "train")
    assert [row.values["label"] for row in table] == ["1", 1]


@pytest.mark.parametrize(
    "texts", [["a", None, float("nan")], np.array(["a", "", ""]), iter(["a", "", None]), ("a", None, "")]
)
def test_missing_texts_of_a_list_are_empty(texts: Any) -> None:
    assert [row.text for row in read_text_rows(texts)] == ["a", "", ""]


@pytest.mark.parametrize("texts", [[["a"], ["b"]], [("a",)]])
def test_a_list_is_no_text_of_a_list(texts: Any) -> None:
    with pytest.raises(InputError) as caught:
        list(read_text_rows(texts))
    assert (caught.value.code, str(caught.value.location)[-2:]) == ("not_a_string", ":1")


def test_titles_of_a_corpus_are_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    rows = [{"_id": i, "title": title, "text": "b"} for i, title in enumerate(["", "a", "c"])]
    assert [row.text for row in read_text_rows(rows)] == ["b"] * 3
    assert [record.getMessage().partition(": ")[0][-2:] for record in caplog.records] == [":2"]


@pytest.mark.parametrize("labels", [["1,0", "4,5"], ["1", "4,5"]])
def test_the_decimal_comma_of_a_score_is_reported(labels: list[str]) -> None:
    rows = [{"text": "a", "second": label, "label": label} for label in labels]
    error = error_of(rows, "embed")
    assert (error.code, "4.5" in str(error.hint) or "1.0" in str(error.hint)) == ("not_a_number", True)


def test_a_printed_list_of_positives_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    read([{"query": "a", "positive": "['b', 'c']"}, {"query": "d", "positive": "e"}], "embed")
    assert "'positive' has 1 printed list" in caplog.text


@pytest.mark.parametrize(
    ("labels", "count"),
    [(["1.250", "950"], 1), (["1.250", "950.5"], 0), (["1.250", "2.125"], 0), (["0.125", "1"], 0)],
)
def test_points_that_may_separate_thousands_are_reported(labels: list[str], count: int) -> None:
    data = task_data("regress", get_task("regress").settings_type())
    examples = data.read(to_source([{"text": label, "label": label} for label in labels], "data"))
    assert [warning.kind for warning in data.read_warnings(examples)] == ["points of thousands"] * count


def test_a_minus_sign_is_a_minus() -> None:
    examples, _ = read([{"text": "a", "label": "\u22120.5"}, {"text": "b", "label": "1"}], "regress")
    assert [example.number for example in examples] == [-0.5, 1]


@pytest.mark.parametrize("task", ["classify", "regress", "embed", "answer", "choose", "relate"])
def test_advice_for_inputs_names_only_inputs(task: str) -> None:
    inputs = get_task(task).inputs
    data = task_data(task, get_task(task).settings_type())
    with pytest.raises(InputError) as caught:
        data.from_inputs({name: [["a", "b"]] for name in inputs if name != "text_pair"}, ["text 1"])
    assert (caught.value.code in ("not_a_string", "bad_span"), caught.value.location) == (True, "text 1")
    assert {*re.findall(r"(\w+)=", caught.value.hint_for("python") or "")} <= {*inputs}


PRINTED_VALUES = [
    "b'joy'",
    "np.str_('joy')",
    "tensor(1)",
    "Counter({'joy': 1})",
    "Index(['joy'], dtype='object')",
]
RELATION = {"text": "The rain falls.", "head": [4, 8], "tail": [9, 14]}


@pytest.mark.parametrize("label", [*PRINTED_VALUES, "['joy', 'hope']", "{'joy': 1}"])
def test_a_printed_value_is_no_label_of_any_task(label: str) -> None:
    classify = [{"text": "a", "label": label}, {"text": "b", "label": "sad"}]
    relate = [{**RELATION, "relation": label}, {**RELATION, "relation": "Other"}]
    embed = [{"text": "a", "second": "b", "label": label}, {"text": "a", "second": "c", "label": "same"}]
    for task, rows in (("classify", classify), ("relate", relate), ("embed", embed)):
        assert (error_of(rows, task).code, str(error_of(rows, task).location)[-2:]) == ("not_a_string", ":1")


@pytest.mark.parametrize("relation", ["Cause-Effect(e1,e2)", "(0, 30]", "[joy]"])
def test_brackets_in_a_relation_are_no_list(relation: str) -> None:
    rows = [{**RELATION, "relation": relation}, {**RELATION, "relation": "Other"}]
    assert read(rows, "relate")[0][0].relation == relation


@pytest.mark.parametrize("label", ["\u200b", "\ufeff"])
def test_an_invisible_label_is_missing(label: str) -> None:
    rows = [{"text": "a", "label": label}, {"text": "b", "label": "sad"}]
    assert error_of(rows).code == "empty_label"
    assert error_of([{**RELATION, "relation": label}], "relate").code == "relation_missing"


def test_printed_lists_are_reported_for_questions_and_choices(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    questions = [{"question": "['a']", "context": "Snow falls.", "answer": "Snow"}]
    choices = [{"context": "['a']", "choices": ["b", "c"], "label": 0}]
    for task, rows, column in (("answer", questions, "question"), ("choose", choices, "context")):
        caplog.clear()
        read(rows, task)
        assert f"'{column}' has 1 printed list" in caplog.text
    (tmp_path / "a.csv").write_text("context,question,choice0,choice1,label\nNaN,What?,a,b,0\n")
    caplog.clear()
    assert read(tmp_path / "a.csv", "choose")[0][0].context == ""
    assert "'context' has 1 missing value" in caplog.text


def test_pairs_with_one_text_are_reported() -> None:
    rows = [{"text": "a", "second": None, "label": "x"}, {"text": "b", "second": "c", "label": "y"}]
    examples, metadata = read(rows, second_column="second")
    declaration = get_task("classify")
    data = declaration.part("data")(
        declaration.settings_type.of({"second_column": "second"}, "test"), metadata
    )
    (warning,) = data.read_warnings(examples)
    assert (warning.kind, list(warning.locations)) == ("pairs with an empty text", ["data (in memory):1"])


def test_digits_with_underscores_are_no_number() -> None:
    assert (
        error_of([{"text": "a", "label": "1_5"}, {"text": "b", "label": "2"}], "regress").code
        == "not_a_number"
    )


def test_integers_beyond_64_bits_in_a_data_frame() -> None:
    class Frame:
        """A table whose column Arrow refuses; its values are Python's, as in pandas."""

        columns = ("text", "label")

        def to_dict(self, orient: str) -> dict[str, list[Any]]:
            return {"text": ["a", "b"], "label": [10**400, 2]}

        def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
            raise OverflowError("Python int too large to convert to C long")

    assert error_of(Frame(), "regress").code == "number_too_large"


def test_a_label_of_any_task_that_is_too_long(tmp_path: Path) -> None:
    label = "x" * 1001
    sources = {
        "classify": [{"text": "a", "label": label}, {"text": "b", "label": "sad"}],
        "relate": [{**RELATION, "relation": label}, {**RELATION, "relation": "Other"}],
        "embed": [
            {"text": "a", "second": "b", "label": label},
            {"text": "a", "second": "c", "label": "same"},
        ],
        "tag": [{"words": ["Ada"], "tags": [label]}],
    }
    for task, rows in sources.items():
        assert (error_of(rows, task).code, str(error_of(rows, task).location)[-2:]) == (
            "label_too_long",
            ":1",
        )
