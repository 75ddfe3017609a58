"""Tables that are not as expected: they are read, or the advice of the error, when it is followed, reads them."""

from __future__ import annotations

import gzip
import json
import re
import shlex
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet
import pytest
import zstandard

from bertsmith.errors import InputError
from bertsmith.tasks.registry import get_task
from task_files import task_data

ROWS = [("the sun sings, now", "glad"), ("rain; café", "sad"), ("a day", "glad"), ("the dark night", "sad")]
Rows = list[tuple[str, str]]


def table(mark: str, header: str | None = "text,label", rows: Rows = ROWS, *, quoted: bool = False) -> str:
    """Return the rows as delimited text; fields that have the delimiter are in quotes."""

    def field(value: str) -> str:
        return f'"{value}"' if quoted or mark in value else value

    head = [] if header is None else [header.split(",")]
    return "".join(mark.join(map(field, row)) + "\n" for row in (*head, *rows))


def swapped(rows: Rows) -> Rows:
    return [(label, text) for text, label in rows]


def with_ids(mark: str, header: str | None) -> str:
    head = [] if header is None else [header.replace(",", mark)]
    return "\n".join([*head, *(mark.join((str(i), *row)) for i, row in enumerate(ROWS))]) + "\n"


RECORDS = [{"text": text, "label": label} for text, label in ROWS]
LINES = "".join(json.dumps(record) + "\n" for record in RECORDS)
NO_MARKS = [(text.replace(";", "").replace(",", ""), label) for text, label in ROWS]

# By name: the name of the file and its content.
FILES: dict[str, tuple[str, str | bytes]] = {
    "semicolons": ("a.csv", table(";")),
    "bars": ("a.csv", table("|")),
    "tabs in a .csv": ("a.csv", table("\t")),
    "tabs and quotes in a .csv": ("a.csv", table("\t", quoted=True)),
    "all in quotes in a .tsv": ("a.tsv", table("\t", quoted=True)),
    "quotes in a .tsv": ("a.tsv", table("\t", None, [("text", "label")]) + table("\t", None, quoted=True)),
    "commas in a .tsv": ("a.tsv", table(",")),
    "semicolons in a .tsv": ("a.tsv", table(";")),
    "sep=;": ("a.csv", "sep=;\n" + table(";")),
    "SEP=, in quotes": ("a.csv", '"SEP=,"\r\n' + table(",").replace("\n", "\r\n")),
    "sep=, padded": ("a.csv", "sep=,,\n" + table(",")),
    "sep=tab behind a mark": ("a.csv", "\ufeffsep=\\t\n" + table("\t")),
    "sep=tab, a tab": ("a.csv", "sep=\t\n" + table("\t")),
    "sep=; in a .txt": ("a.txt", "sep=;\n" + table(";")),
    "sep=; in a .tsv": ("a.tsv", "sep=;\n" + table(";")),
    "sep=;, no header": ("a.csv", "sep=;\n" + table(";", None)),
    "no header": ("a.csv", table(",", None)),
    "no header, swapped": ("a.csv", table(",", None, swapped(ROWS))),
    "no header in a .tsv": ("a.tsv", table("\t", None)),
    "no header, the first row again": ("a.tsv", table("\t", None, ROWS * 2)),
    "no header, with ids": ("a.tsv", with_ids("\t", None)),
    "semicolons, no header": ("a.csv", table(";", None, NO_MARKS)),
    "swapped": ("a.csv", table(",", "label,text", swapped(ROWS))),
    "more columns": ("a.tsv", with_ids("\t", "id,text,label")),
    "other names": ("a.csv", table(",", "review,sentiment")),
    "another text": ("a.csv", table(",", "sentence,label")),
    "another label": ("a.csv", table(",", "text,class")),
    "capitals": ("a.csv", table(",", "Text,Label")),
    "spaces in names": ("a.csv", table(",", "the text,the label")),
    "a mark": ("a.csv", "\ufeff" + table(",")),
    "a header with blanks": ("a.csv", table(",", "v1,v2,,,").replace("ad\n", "ad,,,\n")),
    "semicolons in a .txt": ("a.txt", table(";")),
    "commas in a .txt": ("a.txt", table(",")),
    "bars in a .txt": ("a.txt", table("|")),
    "tabs in a .txt": ("a.txt", table("\t")),
    "semicolons in a .txt, no header": ("a.txt", table(";", None, [(t, f"so {y}") for t, y in ROWS])),
    "semicolons in a .txt, swapped": ("a.txt", table(";", None, [(f"so {y}", t) for t, y in ROWS])),
    "another suffix": ("a.dat", table(",")),
    "another suffix, semicolons": ("a.dat", table(";")),
    "no suffix": ("train", table("\t")),
    "lines in a .json": ("a.json", LINES),
    "an array in a .json": ("a.json", json.dumps(RECORDS)),
    "an array in a .jsonl": ("a.jsonl", json.dumps(RECORDS)),
    "an array on lines in a .jsonl": ("a.jsonl", json.dumps(RECORDS, indent=1)),
    "commas at the ends of rows": ("a.csv", table(",").replace("ad\n", "ad,,\n")),
    "commas at the ends of all lines": ("a.csv", table(",").replace("\n", ",\n")),
    "a comma at the end of the header": ("a.csv", table(",").replace("label\n", "label,\n")),
    "tabs at the ends of rows": ("a.tsv", table("\t").replace("ad\n", "ad\t\n")),
    "JSON lines in a .csv": ("a.csv", LINES),
    "JSON lines in a .tsv": ("a.tsv", LINES),
    "JSON lines in a .txt": ("a.txt", LINES),
    "rows in an object": ("a.json", json.dumps({"version": 1, "rows": RECORDS})),
    "other keys": ("a.jsonl", LINES.replace('"text"', '"review"').replace('"label"', '"stars"')),
    "a mark in a .jsonl": ("a.jsonl", "\ufeff" + LINES),
    "cp1252": ("a.csv", table(",").encode("cp1252")),
    "UTF-16": ("a.csv", table(",").encode("utf-16")),
    "UTF-16 without a mark": ("a.csv", table("\t").encode("utf-16-le")),
    "gzip": ("a.csv.gz", gzip.compress(table(";").encode())),
    "zstandard": ("a.tsv.zst", zstandard.compress(table("\t", None).encode())),
    "gzip, misnamed": ("a.csv", gzip.compress(table(",").encode())),
    "zstandard, misnamed": ("a.csv", zstandard.compress(table(",").encode())),
}
OPTION = re.compile(r"--(no-)?([a-z]+(?:-[a-z]+)*)((?: (?:'[^']*'|[^\s,;:()'-][^\s,;:()]*))?)")


def remedies(hint: str, chosen: dict[str, str]) -> Iterator[dict[str, Any]]:
    """Yield the settings that each alternative of a hint names; a value that it leaves open is chosen."""
    for alternative in re.split(r"[()]|; ", hint):
        settings: dict[str, Any] = {}
        for no, name, value in OPTION.findall(alternative):
            name = name.replace("-", "_")
            if no or name == "header":
                settings[name] = not no
            elif value:
                (settings[name],) = shlex.split(value)
            elif name in chosen:
                settings[name] = chosen[name]
        settings.pop("second_column", None)
        if (rename := re.search(r"end in (\.\w+)", alternative)) is not None:
            settings["suffix"] = rename[1]
        if settings:
            yield settings


def read(file: Path, settings: dict[str, Any]) -> tuple[Rows, str]:
    """Return the rows, or the hint of the error."""
    values = {name: value for name, value in settings.items() if name != "suffix"}
    if "suffix" in settings:
        file = file.rename(file.with_name(file.name + settings["suffix"]))
    try:
        examples = task_data("classify", get_task("classify").settings_type(**values)).read(file)
    except InputError as error:
        return [], error.hint_for("command line") or ""
    finally:
        if "suffix" in settings:
            file.rename(file.with_name(file.name.removesuffix(settings["suffix"])))
    return [(example.text, str(example.label).removeprefix("so ")) for example in examples], ""


@pytest.mark.parametrize("name", FILES)
def test_a_table_is_read_after_at_most_two_remedies(
    tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    file_name, content = FILES[name]
    file = tmp_path / file_name
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    rows = NO_MARKS if file_name.endswith(".csv") and name == "semicolons, no header" else ROWS
    rows = rows * 2 if name.endswith("again") else rows
    chosen = {"text_column": "review", "label_column": "stars" if "keys" in name else "sentiment"}
    if "spaces" in name:
        chosen = {"text_column": "the text", "label_column": "the label"}
    if "blanks" in name:
        chosen = {"text_column": "v1", "label_column": "v2"}
    tried: list[tuple[dict[str, Any], str]] = [({}, "")]
    for _ in range(3):
        following: list[tuple[dict[str, Any], str]] = []
        for settings, _ in tried:
            found, hint = read(file, settings)
            if found == rows:
                return
            hint = " ".join([hint, *caplog.messages])
            following += [(settings | remedy, hint) for remedy in remedies(hint, chosen)]
        tried, earlier = following, tried
    pytest.fail(f"{earlier}")


COLUMNAR = {
    "classify": [{"text": "the sun", "label": 1}, {"text": "rain", "label": 0}],
    "tag": [{"words": ["Ada", "walks"], "tags": ["B-PER", "O"]}],
    "embed": [{"query": "sun", "positives": ["the sun", "light"]}],
    "answer": [
        {"id": "1", "question": "who", "context": "Ada", "answers": {"text": ["Ada"], "answer_start": [0]}}
    ],
    "choose": [{"context": "sun", "choices": ["a", "b"], "label": 1}],
    "relate": [{"text": "<e1>Ada</e1> and <e2>Bob</e2>", "relation": "Other"}],
}


@pytest.mark.parametrize("suffix", [".parquet", ".feather", ".arrow"])
@pytest.mark.parametrize("task", COLUMNAR)
def test_columnar_files_have_the_examples_of_a_jsonl(tmp_path: Path, task: str, suffix: str) -> None:
    table = pa.Table.from_pylist(COLUMNAR[task])
    file, lines = tmp_path / f"a{suffix}", tmp_path / "a.jsonl"
    lines.write_text("".join(json.dumps(row) + "\n" for row in COLUMNAR[task]))
    if suffix == ".parquet":
        pyarrow.parquet.write_table(table, file)
    elif suffix == ".feather":
        pyarrow.feather.write_feather(table, file)
    else:
        with pa.ipc.new_stream(file, table.schema) as stream:
            stream.write_table(table)
    data = task_data(task, get_task(task).settings_type())

    def examples(path: Path) -> list[Any]:
        return [replace(example, location="") for example in data.read(path)]

    assert examples(file) == examples(lines)


@pytest.mark.parametrize(
    ("content", "columns"),
    [
        ('"3","Bears Claw Back","Short-sellers are here"\n"3","Carlyle","A private firm grows"\n', "3 1"),
        ("0,17,Monday,NO,ann,the sun is out\n0,18,Tuesday,NO,bob,it rains\n", "6 1"),
        ("0,17,NO,ann,the sun is out\n4,18,NO,bob,it rains\n0,19,NO,bob,it snows\n", "5 1"),
        ("0,17,NO,the sun is out\n4,18,NO,it rains\n0,19,NO,it snows\n4,20,NO,a day\n", "4 1"),
        ('the sun sings,"2,5",x\nrain falls,27,y\na day,2,z\n', "1 2"),
        ("the sun,2,x7\nrain falls,5,y8\na day,2,z9\na night,5,w1\n", "1 2"),
    ],
)
def test_the_label_of_a_file_without_a_header_repeats(tmp_path: Path, content: str, columns: str) -> None:
    hint = error_of("classify", tmp_path / "a.csv", content).hint or ""
    assert re.findall(r"text_column=(\d) label_column=(\d)", hint) == [tuple(columns.split())]


@pytest.mark.parametrize(
    ("name", "content"),
    [("a.jsonl", '{"id": 1, "data": "sun"}\n'), ("a.json", '[{"id": 1}]'), ("a.csv", "v1,v2,,\na,b,,\n")],
)
def test_a_table_with_names_has_a_header(tmp_path: Path, name: str, content: str) -> None:
    error = error_of("classify", tmp_path / name, content)
    assert (error.code, "header" in (error.hint or "")) == ("column_missing", False)
    assert ("v1, v2;" in (error.hint or "")) == (name == "a.csv")


@pytest.mark.parametrize("more", ["", "\t"])
def test_a_tab_at_the_end_of_each_line_is_no_column_once_the_advice_is_followed(
    tmp_path: Path, more: str
) -> None:
    file = tmp_path / "a.txt"
    file.write_text(f"Ada\tB-PER\t{more}\nwalks\tO\t{more}\n")
    with pytest.raises(InputError) as caught:
        task_data("tag", get_task("tag").settings_type()).read(file)
    (settings,) = remedies(caught.value.hint_for("command line") or "", {})
    (example,) = task_data("tag", get_task("tag").settings_type(**settings)).read(file)
    assert (example.words, example.tags) == (("Ada", "walks"), ("B-PER", "O"))


def error_of(task: str, file: Path, content: str, **settings: Any) -> InputError:
    file.write_text(content)
    data = task_data(task, get_task(task).settings_type(**settings))
    with pytest.raises(InputError) as caught:
        data.fit_metadata(data.read(file), None)
    return caught.value


@pytest.mark.parametrize("name", ["a.json", "a.jsonl"])
@pytest.mark.parametrize("records", [RECORDS[:1], RECORDS])
def test_objects_over_several_lines_are_read_as_one_line_each(
    tmp_path: Path, name: str, records: list[dict[str, str]]
) -> None:
    content = "\n".join(json.dumps(record, indent=2) for record in records)
    if name == "a.jsonl" or len(records) > 1:
        error = error_of("classify", tmp_path / name, content)
        assert (error.code, "jq -c . FILE > NEW.jsonl" in (error.hint or "")) == ("not_json", True)
        (tmp_path / "new.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
        assert read(tmp_path / "new.jsonl", {})[0] == ROWS[: len(records)]
    else:
        (tmp_path / name).write_text(content)
        assert read(tmp_path / name, {})[0] == ROWS[:1]


@pytest.mark.parametrize("name", ["a.json", "a.jsonl"])
def test_commas_between_objects_are_removed_or_brackets_added(tmp_path: Path, name: str) -> None:
    content = LINES.replace("}\n", "},\n", 3)
    assert "commas between objects" in (error_of("classify", tmp_path / name, content).hint or "")
    (tmp_path / "b.json").write_text(f"[{content}]")
    assert read(tmp_path / "b.json", {})[0] == ROWS


def test_quotes_behind_spaces_are_fields_without_the_spaces(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    content = "text,label\n" + table(",", None, NO_MARKS, quoted=True).replace(",", ", ")
    (tmp_path / "a.csv").write_text(content)
    assert read(tmp_path / "a.csv", {})[0] == [(text, f'"{label}"') for text, label in NO_MARKS]
    assert "quotes around 4 values of the column 'label'" in caplog.text
    (tmp_path / "a.csv").write_text(content.replace(", ", ","))
    caplog.clear()
    assert read(tmp_path / "a.csv", {})[0] == NO_MARKS
    assert not caplog.records


@pytest.mark.parametrize(
    ("label", "numbers"),
    [
        ("95%", [95]), ("95.5 %", [95.5]),
        ("1,500", [1500, 1.5]), ("3,5", [3.5]), ("1.500,25", [1500.25]), ("1,500.25", [1500.25]),
        ("-1,500,000", [-1500000]), ("2 500,5", [2500.5]), ("12,5000", [12.5]),
        ("1 500", [1500]), ("1'500'000.5", [1500000.5]),
    ],
)  # fmt: skip
def test_commas_in_numbers_are_read_as_the_advice_writes_them(
    tmp_path: Path, label: str, numbers: list[float]
) -> None:
    error = error_of("regress", tmp_path / "a.csv", f'text,label\na,"{label}"\nb,0\n')
    assert (error.code, error.location) == ("not_a_number", f"{tmp_path / 'a.csv'}:2")
    assert [float(number) for number in re.findall(r"-?\d[\d.]*", error.hint or "")] == numbers


def test_a_vector_of_labels_is_read_as_columns(tmp_path: Path) -> None:
    error = error_of("classify", tmp_path / "a.csv", 'text,label\na,"0,1,1"\nb,"1,0,0"\n', multi_label=True)
    (columns,) = re.findall(r"--label-column (\S+)", error.hint_for("command line") or "")
    (tmp_path / "a.csv").write_text("text,a,b,c\nx,0,1,1\ny,1,0,0\n")
    data = task_data("classify", get_task("classify").settings_type(multi_label=True, label_column=columns))
    assert [example.label for example in data.read(tmp_path / "a.csv")] == ['["b", "c"]', '["a"]']


@pytest.mark.parametrize(
    "content",
    [
        "T1\tPER 0 3\tAda\nR1\tIn Arg1:T1 Arg2:T2\n", "#1\tAnnotatorNotes T1\tno\n", "E1\tWalk:T2\n",
        "<s><PER>Ada</PER> walks</s>\n", "Here <PER id='1'>Ada</PER> walks\n", "<doc>\n<s>Ada walks</s>\n</doc>\n",
        "<START:person> Ada <END> walks\n", "Ada/PER walks/O\n", "Ada/n walks/v ./w\n",
        "#FORMAT=WebAnno TSV 3.3\n\n#Text=Ada\n1-1\t0-3\tAda\t*\tPER\t\n",
    ],
)  # fmt: skip
@pytest.mark.parametrize("name", ["a.ann", "a.txt", "a.csv"])
def test_other_formats_of_tags_are_read_as_the_advice_writes_them(
    tmp_path: Path, content: str, name: str
) -> None:
    error = error_of("tag", tmp_path / name, "\n" + content)
    assert (error.code, error.location) == ("other_tag_format", f"{tmp_path / name}:2")
    (row,) = re.findall(r"\{.*\}", error.hint or "")
    (tmp_path / "a.jsonl").write_text(row)
    (example,) = task_data("tag", get_task("tag").settings_type()).read(tmp_path / "a.jsonl")
    assert (example.words, example.tags) == (("Ada", "walks"), ("B-PER", "O"))


@pytest.mark.parametrize(
    "row",
    [
        {"tokenized_text": ["Ada", "walks"], "ner": [[0, 0, "PER"]]},
        {"doc_key": "1", "sentences": [["Ada", "walks"]], "ner": [[[0, 0, "PER"]]], "relations": [[]]},
        {"id": 0, "paragraphs": [{"raw": "Ada walks", "sentences": []}]},
    ],
)
@pytest.mark.parametrize("task", ["tag", "relate"])
def test_json_of_other_tools_is_read_as_the_advice_writes_it(
    tmp_path: Path, row: dict[str, Any], task: str
) -> None:
    error = error_of(task, tmp_path / "other.jsonl", json.dumps(row))
    assert (error.code, error.location) == ("other_row_format", f"{tmp_path / 'other.jsonl'}:1")
    advised = dict(zip(("tag", "relate"), re.findall(r"\{.*?\}", error.hint or ""), strict=True))[task]
    (tmp_path / "a.jsonl").write_text(advised)
    (example,) = task_data(task, get_task(task).settings_type()).read(tmp_path / "a.jsonl")
    expected = {"tag": ("Ada", "walks"), "relate": "Ada met Bob"}[task]
    assert (example.words if task == "tag" else example.text) == expected


def test_documents_of_spacy_are_read(tmp_path: Path) -> None:
    tokens = [{"id": 0, "start": 0, "end": 3}, {"id": 1, "start": 4, "end": 9}]
    row = {"text": "Ada walks", "ents": [{"start": 0, "end": 3, "label": "PER"}], "tokens": tokens}
    (tmp_path / "a.json").write_text(json.dumps([row]))
    (example,) = task_data("tag", get_task("tag").settings_type()).read(tmp_path / "a.json")
    assert (example.words, example.tags) == (("Ada", "walks"), ("B-PER", "O"))


@pytest.mark.parametrize("line", ["T1\tO", "and/or CC", "<unk> O", "</s> O", "R1\tNN", "1/2 CD", "< O"])
def test_words_that_resemble_other_formats_are_words(tmp_path: Path, line: str) -> None:
    (tmp_path / "a.txt").write_text(f"{line}\n{line}\n")
    (example,) = task_data("tag", get_task("tag").settings_type()).read(tmp_path / "a.txt")
    assert example.words == (line.split()[0],) * 2
