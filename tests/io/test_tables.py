"""Tables: the rows of csv, tsv and jsonl, and the place of every fault."""

from __future__ import annotations

import csv
import io
import time
import zipfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertsmith.errors import InputError
from bertsmith.io.tables import Row, read_table


def table(folder: Path, name: str, content: str) -> Path:
    file = folder / name
    file.write_bytes(content.encode())
    return file


def test_csv_quotes_hold_delimiters_line_ends_and_quotes(tmp_path: Path) -> None:
    file = table(tmp_path, "a.csv", 'text,label\n"a, b",x\r\n\n"two\nlines ""said"" he",y\nplain,\n')
    found = read_table(file)
    assert found.columns == ["text", "label"]
    assert found.rows == [
        Row({"text": "a, b", "label": "x"}, f"{file}:2"),
        Row({"text": 'two\nlines "said" he', "label": "y"}, f"{file}:4"),
        Row({"text": "plain", "label": ""}, f"{file}:6"),
    ]
    assert found.column("label") == ["x", "y", ""]


def test_in_tsv_a_quote_is_a_character(tmp_path: Path) -> None:
    file = table(tmp_path, "a.tsv", 'text\tlabel\n"open\t1\na "b" c\t2\n')
    assert read_table(file).column("text") == ['"open', 'a "b" c']


def test_without_a_header_columns_are_numbered(tmp_path: Path) -> None:
    file = table(tmp_path, "a.txt", "great film\tjoy\nbad one\tanger\n")
    found = read_table(file, header=False)
    assert found.columns == ["1", "2"]
    assert [row.line for row in found] == [1, 2]
    other = table(tmp_path, "b.txt", "great film;joy\n")
    assert read_table(other, header=False, delimiter=";").rows[0].values == {"1": "great film", "2": "joy"}


def test_jsonl_values_become_text(tmp_path: Path) -> None:
    lines = '{"text": "a", "label": 3, "gold": true}\n{"text": "b", "label": 0.5, "note": null, "x": ["ü"]}\n'
    found = read_table(table(tmp_path, "a.jsonl", lines))
    assert found.columns == ["text", "label", "gold", "x"]
    assert found.column("label") == [3, 0.5]
    assert found.texts("label") == ["3", "0.5"]
    assert (found.rows[0].values["gold"], found.rows[0].texts["gold"]) == (True, "true")
    assert (found.rows[1].values["x"], found.rows[1].texts["x"]) == (["ü"], '["ü"]')
    assert found.rows[1].values["note"] is None
    with pytest.raises(InputError) as caught:
        found.column("gold")
    assert (caught.value.code, caught.value.location) == ("field_missing", f"{tmp_path / 'a.jsonl'}:2")


def test_the_error_of_a_missing_column_lists_the_columns(tmp_path: Path) -> None:
    file = table(tmp_path, "reviews.csv", "text,mood\na,b\n")
    with pytest.raises(InputError) as error:
        read_table(file).column("label", "label_column")
    assert (error.value.code, error.value.location) == ("column_missing", f"{file}:1")
    assert error.value.argument == "label_column"
    for text in ("text, mood", "label_column='mood'"):
        assert text in (error.value.hint or "")


@pytest.mark.parametrize(
    ("name", "content", "location", "code"),
    [
        ("a.csv", "text,label\na,b\na,b,c\n", ":3", "field_count"),
        ("a.tsv", "text\tlabel\n\nalone\n", ":3", "field_count"),
        ("a.csv", 'text,label\n"a\nb",x\n"open,y\nz,z\n', ":4", "bad_quoting"),
        ("a.csv", 'text,label\n"a\nb","open\nz,z\n', ":3", "bad_quoting"),
        ("a.csv", 'text,label\n"open,y\nz,z\nz,"x" z\n', ":2", "bad_quoting"),
        ("a.csv", 'text,label\na,y\n"a" z,x\n', ":3", "bad_quoting"),
        ("a.csv", 'text,label\n"a"b,x\n', ":2", "bad_quoting"),
        ("a.csv", "text,label\nx\ry,z\n", ":2", "bad_quoting"),
        ("a.csv", "text,text\na,b\n", ":1", "duplicate_column"),
        ("a.csv", "text,label\na,b\ntext,label\nc,d\n", ":3", "header_repeated"),
        ("a.csv", "", ":1", "empty_table"),
        ("a.jsonl", "\n\n", ":1", "empty_table"),
        ("a.txt", "", ":1", "empty_file"),
        ("a.tsv", "text\tlabel\n", ":1", "empty_table"),
        ("a.jsonl", '{"text": "a"}\n[1]\n', ":2", "not_a_json_object"),
        ("a.dat", "text,label\na,b\n", "", "delimiter_unknown"),
    ],
)
def test_errors_have_their_line(tmp_path: Path, name: str, content: str, location: str, code: str) -> None:
    file = table(tmp_path, name, content)
    with pytest.raises(InputError) as error:
        read_table(file)
    assert (error.value.code, error.value.location) == (code, f"{file}{location}")


@pytest.mark.parametrize("delimiter", ["ab", '"', "\n"])
def test_a_delimiter_is_one_character(tmp_path: Path, delimiter: str) -> None:
    with pytest.raises(InputError) as error:
        read_table(table(tmp_path, "a.csv", "a,b\n1,2\n"), delimiter=delimiter)
    assert (error.value.code, error.value.argument) == ("bad_delimiter", "delimiter")


def test_invalid_utf8_is_an_error_with_line_and_column(tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    file.write_bytes(b"text,label\ncaf\xe9,1\n")
    with pytest.raises(InputError) as error:
        read_table(file)
    assert (error.value.code, error.value.location) == ("not_utf8", f"{file}:2:4")


# A small table full of control characters is taken for a binary file, which test_kinds.py is about.
cells = st.text(st.characters(exclude_categories=["Cs", "Cc"], include_characters="\n\t"), max_size=12)


@given(st.lists(st.tuples(cells, cells, cells), min_size=1, max_size=8))
def test_what_the_csv_module_writes_is_read_back(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, str, str]]
) -> None:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([("a", "b", "c"), *rows])
    file = tmp_path_factory.mktemp("csv") / "a.csv"
    file.write_bytes(text.getvalue().encode())
    assert [tuple(row.values.values()) for row in read_table(file)] == rows


def test_published_task_files_read(shared_data: Path) -> None:
    sst2 = read_table(shared_data / "tasks/sst2/train.tsv.gz")
    assert len(sst2) > 60_000
    assert set(sst2.column(sst2.columns[-1])) == {"0", "1"}
    assert len(read_table(shared_data / "tasks/imdb/dev.jsonl.gz").column("text")) == 1_000


def test_quote_within_plain_field_is_a_character(tmp_path: Path) -> None:
    file = table(tmp_path, "a.csv", 'text,label\nx,a "b" c\n5" disk,y\n')
    assert [row.values for row in read_table(file)] == [
        {"text": "x", "label": 'a "b" c'},
        {"text": '5" disk', "label": "y"},
    ]


def test_field_may_be_longer_than_the_csv_modules_limit(tmp_path: Path) -> None:
    long = "word " * 100_000
    assert read_table(table(tmp_path, "a.csv", f'text,label\n"{long}",y\n')).column("text") == [long]


LABELLED = "i feel calm;joy\ni feel bad, really;sadness\nso angry, all of it;anger\nwhat a day;joy\n"


@pytest.mark.parametrize("mark", [";", "\t", ","])
def test_what_parts_labels_in_a_txt_is_seen(tmp_path: Path, mark: str) -> None:
    text = LABELLED.replace(",", "").replace(";", mark)
    found = read_table(table(tmp_path, "a.txt", text), header=False)
    assert not found.is_plain
    assert found.column("2") == ["joy", "sadness", "anger", "joy"]
    given = read_table(table(tmp_path, "b.txt", text), header=False, delimiter=mark)
    assert [row.values for row in given] == [row.values for row in found]


def test_quoted_texts_of_a_labelled_txt_keep_their_commas(tmp_path: Path) -> None:
    text = '"fine, well",joy\n"bad, really",anger\nsad,anger\n'
    assert read_table(table(tmp_path, "a.txt", text), header=False).column("1")[0] == "fine, well"


@pytest.mark.parametrize(
    "text",
    [
        "He came, saw\nShe went, too\nThey all stood, there\n",  # a comma a line, with its blank
        "He came; saw\nShe went; saw\nThey stood; there\n",
        "one text\n\nanother; with a mark\n",
        "a;joy\nb;sadness\n",  # no label twice: too little evidence
        "Paris\nRome,Italy,Europe\nBerlin\n",
    ],
)
def test_prose_is_a_text_a_line(tmp_path: Path, text: str) -> None:
    file = table(tmp_path, "a.txt", text)
    for header in (True, False):
        found = read_table(file, header=header)
        assert found.is_plain
        assert found.column("1") == text.splitlines()
    with pytest.raises(InputError) as caught:
        found.column("label", "label_column")
    assert (caught.value.code, caught.value.location) == ("column_missing", f"{file}:1")


def test_a_bad_row_of_a_labelled_txt_is_an_error_and_not_read_as_prose(tmp_path: Path) -> None:
    rows = [f"text number {i};{'joy' if i % 2 else 'anger'}" for i in range(40)]
    rows[6] = "a label is missing here"
    with pytest.raises(InputError) as caught:
        read_table(table(tmp_path, "a.txt", "\n".join(rows)), header=False)
    assert (caught.value.code, caught.value.location) == ("field_count", f"{tmp_path / 'a.txt'}:7")


def test_a_csv_of_semicolons_is_read_as_one(tmp_path: Path) -> None:
    file = table(tmp_path, "a.csv", "text;label\nwell, so;joy\nno;anger\n")
    assert read_table(file).column("text") == ["well, so", "no"]


def test_a_header_of_a_hundred_thousand_columns_takes_no_time(tmp_path: Path) -> None:
    names = ",".join(f"c{i}" for i in range(100_000))
    file = table(tmp_path, "a.csv", f"{names}\n{',' * 99_999}\n")
    begin = time.process_time()
    with pytest.raises(InputError) as error:
        read_table(file).column("label")
    assert time.process_time() - begin < 3  # names are not looked for in a list
    assert len(error.value.hint or "") < 1000


def test_published_labelled_txt_reads_without_a_word_about_it(shared_data: Path) -> None:
    found = read_table(shared_data / "tasks/emotion/dev.txt", header=False)
    assert set(found.column("2")) == {"sadness", "anger", "love", "surprise", "fear", "joy"}


def test_a_carriage_return_is_no_space(tmp_path: Path) -> None:
    found = read_table(table(tmp_path, "a.txt", "text,label\n\rkaba\n"), delimiter=" ")
    assert found.is_plain


@pytest.mark.parametrize("delimiter", [None, ","])
def test_a_workbook_is_recognized_before_its_suffix(tmp_path: Path, delimiter: str | None) -> None:
    file = tmp_path / "all.xlsx"
    with zipfile.ZipFile(file, "w") as workbook:
        workbook.writestr("xl/workbook.xml", "<workbook/>")
    with pytest.raises(InputError) as error:
        read_table(file, delimiter=delimiter)
    assert (error.value.code, error.value.location) == ("not_text", str(file))
    assert ".xlsx" in error.value.message
    assert ".csv" in (error.value.hint or "")
    with pytest.raises(InputError) as error:
        read_table(tmp_path / "absent.xlsx", delimiter=delimiter)
    assert (error.value.code, error.value.location) == ("not_found", str(tmp_path / "absent.xlsx"))


def test_a_txt_may_hold_carriage_returns_inside_of_its_lines(tmp_path: Path) -> None:
    file = table(tmp_path, "a.txt", "one\rtwo\nthree\n")
    assert [row.values["1"] for row in read_table(file)] == ["one\rtwo", "three"]


@pytest.mark.parametrize(
    "rows", ['"a";joy\n"b";anger\n', '"a, b";joy\n', "a, b;joy\n"], ids=["quotes", "both", "ragged"]
)
def test_a_delimiter_that_the_header_lacks_is_an_error(tmp_path: Path, rows: str) -> None:
    file = table(tmp_path, "a.csv", f"text;label\n{rows}")
    with pytest.raises(InputError) as error:
        read_table(file, delimiter=",")
    assert "delimiter=';'" in (error.value.hint or "")


def test_empty_lines_between_rows_are_rows_where_they_are_kept(tmp_path: Path) -> None:
    for name, text in (
        ("a.csv", 'text,label\n\n"a\nb",x\n\n\nc,y\n\n'),
        ("a.tsv", "text\tlabel\n\na\tx\n\n\n\nc\ty\n\n"),
    ):
        file = table(tmp_path, name, text)
        assert [row.line for row in read_table(file)] == [3, 7]
        found = read_table(file, keep_blank=True)
        assert [row.line for row in found] == ([2, 3, 5, 6, 7] if name == "a.csv" else [2, 3, 4, 5, 6, 7])
        assert found.rows[0].values == {"text": "", "label": ""}
    bare = table(tmp_path, "b.csv", "\na,x\n\nb,y\n")
    assert [row.line for row in read_table(bare, header=False, keep_blank=True)] == [2, 3, 4]


def test_a_text_in_the_place_of_a_header_is_cut(tmp_path: Path) -> None:
    text = "a sheet without a header " * 8
    with pytest.raises(InputError) as error:
        read_table(table(tmp_path, "a.csv", f"{text},joy\nb,anger\n")).column("text")
    assert f" {text[:39]}…, joy" in (error.value.hint or "")


@pytest.mark.parametrize(
    ("name", "content", "is_reported"),
    [
        ("a.tsv", 'text\tlabel\na\t"glad, so"\nb\tsad\n', True),
        ("a.tsv", 'text\tlabel\n"a" he said\tglad\n"b"\tsad\n', False),
        ("a.csv", 'text,label\n"a,x\nb,y\nb,y\nb,y\nc",x\n', True),
        ("a.csv", 'text,label\n"a, x\nb\nb, y, z\nb, y\nc",x\n', False),
    ],
)
def test_quotes_that_are_read_in_an_unexpected_way_are_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str, content: str, is_reported: bool
) -> None:
    read_table(table(tmp_path, name, content))
    assert bool(caplog.messages) == is_reported


def test_an_unclosed_quote_takes_linear_time(tmp_path: Path) -> None:
    file = table(tmp_path, "a.csv", 'text,label\n"open,y\n' + "rain again,sad\n" * 100_000)
    start = time.process_time()
    with pytest.raises(InputError) as caught:
        read_table(file)
    assert (caught.value.code, caught.value.location) == ("bad_quoting", f"{file}:2")
    assert time.process_time() - start < 5


@pytest.mark.parametrize(("name", "mark"), [("a.tsv", "\t"), ("a.csv", ",")])
def test_single_quotes_around_all_values_are_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str, mark: str
) -> None:
    file = tmp_path / name
    file.write_text(f"text{mark}label\n'Tis so{mark}'joy'\nrain{mark}'sad'\n")
    read_table(file)
    (record,) = caplog.records
    assert "'label'" in record.getMessage()
