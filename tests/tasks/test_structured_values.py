"""A text or a label is a string, a number, or a bool in every format; other values are errors with their row."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bertsmith.errors import InputError
from bertsmith.inference.text_input import read_text_rows
from bertsmith.io.sources import column_values, to_source
from bertsmith.tasks.classification.data import label_ids
from bertsmith.tasks.labels import LabelMap
from bertsmith.tasks.registry import get_task

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
    ],
)
def test_a_cell_with_a_list(tmp_path: Path, cell: str, expected: Any) -> None:
    file = csv_file(tmp_path, cell, "joy", "sad")
    if isinstance(expected, list):
        assert labels_of(file) == [expected, ["joy"], ["sad"]]
    else:
        assert error_of(file, multi_label=True).code == expected
    if cell[:1] in ("[", "(", "{"):
        assert (error_of(file).code, error_of(file).location) == ("not_a_string", f"{file}:2")


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


@pytest.mark.parametrize("content", ['{"text": ["a"], "label": ["x"]}', '{"data": [{"text": "a"}]}'])
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


def test_missing_texts_of_a_list_are_empty() -> None:
    assert [row.text for row in read_text_rows(["a", None, float("nan")])] == ["a", "", ""]
