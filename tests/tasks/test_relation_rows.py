"""Texts with two marked entities: blocks, rows, spans; and what is said of bad ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bertsmith.errors import InputError
from bertsmith.io.sources import to_source
from bertsmith.tasks.registry import get_task
from bertsmith.tasks.relation_extraction.data import (
    RelationExample,
    add_tags,
    insert_markers,
    parse_tagged_text,
    read_relations,
)
from bertsmith.tasks.settings import RelateSettings

BLOCK = '7\t"The <e1>child</e1> was put into the <e2>cradle</e2>."\nContent-Container(e1,e2)\nComment: c\n\n'
LABEL = "Content-Container(e1,e2)"
TEXT = "The child was put into the cradle."
TAGGED = "The <e1>child</e1> was put into the <e2>cradle</e2>."
TOKENS = ["The", "child", "was", "put", "into", "the", "cradle", "."]


def written(folder: Path, document: Any, name: str) -> Path:
    file = folder / name
    file.write_text(document if isinstance(document, str) else json.dumps(document), encoding="utf-8")
    return file


def read(file: Path, *, labeled: bool = True, **settings: Any) -> list[RelationExample]:
    return list(read_relations(file, RelateSettings(**settings), labeled=labeled))


def parts(example: RelationExample) -> tuple[str, tuple[int, int], tuple[int, int], str | None]:
    return example.text, example.head, example.tail, example.relation


@pytest.mark.parametrize(
    ("name", "document"),
    [
        ("a.txt", BLOCK),
        ("a.txt", BLOCK.replace("\n", "\r\n")),
        ("a.txt", BLOCK.replace('"', "")),
        ("b.jsonl", {"id": 7, "text": TAGGED, "relation": LABEL}),
        ("b.jsonl", {"id": "7", "sentence": TAGGED, "label": LABEL}),
        ("b.jsonl", {"id": 7, "text": TEXT, "head": [4, 9], "tail": [27, 33], "relation": LABEL}),
        ("c.json", [{"id": 7, "text": TAGGED, "relation": LABEL}]),
        ("d.tsv", f"id\ttext\trelation\n7\t{TAGGED}\tContent-Container(e1,e2)\n"),
        (
            "e.csv",
            'id,text,head_start,head_end,tail,relation\n'
            f'7,{TEXT},4,9,"[27, 33]","Content-Container(e1,e2)"\n',
        ),
    ],
)  # fmt: skip
def test_each_form_is_the_same_example(tmp_path: Path, name: str, document: Any) -> None:
    file = written(tmp_path, document, name)
    (found,) = read(file)
    assert parts(found) == (TEXT, (4, 9), (27, 33), LABEL)
    assert found.id == "7"
    assert found.location.startswith(str(file))
    assert parts(read(file, labeled=False)[0]) == (TEXT, (4, 9), (27, 33), None)


@pytest.mark.parametrize(
    "spans",
    [
        {"head": [1, 2], "tail": [6, 7]},
        {"e1": "[1, 2]", "e2": (6, 7)},
        {"subj_start": 1, "subj_end": 1, "obj_start": 6, "obj_end": 6},  # TACRED's ends are inclusive
    ],
)
def test_spans_of_words_are_slices_of_the_joined_text(tmp_path: Path, spans: dict[str, Any]) -> None:
    (found,) = read(written(tmp_path, {"tokens": TOKENS, **spans, "relation": "r"}, "a.jsonl"))
    assert found.text == "The child was put into the cradle ."
    assert [found.text[slice(*span)] for span in (found.head, found.tail)] == ["child", "cradle"]


def test_columns_by_other_names(tmp_path: Path) -> None:
    names = {"text_column": "body", "head_column": "who", "tail_column": "where", "label_column": "kind"}
    rows = f'id,body,who,where,kind,text\n7,{TEXT},"[4, 9]","[27, 33]",r,no\n'
    (found,) = read(written(tmp_path, rows, "a.csv"), **names)
    assert parts(found) == (TEXT, (4, 9), (27, 33), "r")
    words = {"body": TOKENS, "who": [1, 2], "where": [6, 7], "kind": "r", "text": "no"}
    (found,) = read(written(tmp_path, words, "b.jsonl"), **names)
    assert found.text == " ".join(TOKENS)
    file = written(tmp_path, {"text": TAGGED, "kind": "r"}, "c.jsonl")
    assert read(file, label_column="kind")[0].relation == "r"
    for relation, code in ((None, "relation_missing"), ("rel", "column_missing")):
        with pytest.raises(InputError) as caught:
            read(file, label_column=relation)
        assert (caught.value.code, caught.value.argument) == (code, "label_column")
        for text in ("text, kind", "label_column"):
            assert text in (caught.value.hint or "")
    assert read(file, labeled=False, label_column="rel")[0].relation is None


def test_to_predict_relations_are_not_needed(tmp_path: Path) -> None:
    plain = written(tmp_path, f"{TAGGED}\n\n{TAGGED}\n", "a.txt")
    assert [(one.text, one.id, one.location) for one in read(plain, labeled=False)] == [
        (TEXT, None, f"{plain}:1"), (TEXT, None, f"{plain}:3"),
    ]  # fmt: skip
    numbered = written(tmp_path, f'8\t"{TAGGED}"\n9\t"{TAGGED}"\n', "b.txt")  # SemEval's test file
    assert [one.id for one in read(numbered, labeled=False)] == ["8", "9"]


def test_a_blank_row_is_an_empty_text_to_predict(tmp_path: Path) -> None:
    file = written(tmp_path, f"text,n\n{TAGGED},1\n,2\n", "a.csv")
    assert [one.text for one in read(file, labeled=False)] == [TEXT, ""]


ROW = {"text": TAGGED, "relation": "r"}


@pytest.mark.parametrize(
    ("name", "document", "location", "code"),
    [
        ("a.txt", '1\t"The <e1>child</e1>."\nOther\n', ":1", "entity_missing"),
        ("a.txt", f'1\t"{TAGGED}"\n\n2\t"{TAGGED}"\nOther\n', ":1", "relation_missing"),
        ("a.txt", f'1\t"{TAGGED}"\nComment: c\n', ":1", "relation_missing"),
        ("a.txt", f"{BLOCK}what is this\n", ":5", "not_semeval"),
        ("a.txt", '1\t"a <e1>b <e2>c</e2>"\nOther\n', ":1", "invalid_tags"),
        ("a.txt", '1\t"a <e1>b</e1> <e1>d</e1> <e2>c</e2>"\nOther\n', ":1", "invalid_tags"),
        ("a.txt", '1\t"a </e1> <e2>c</e2>"\nOther\n', ":1", "invalid_tags"),
        ("a.txt", '1\t"a <e1></e1> <e2>c</e2>"\nOther\n', ":1", "span_out_of_range"),
        ("a.txt", '1\t"a <e1>b <e2>c</e1> d</e2>"\nOther\n', ":1", "overlapping_spans"),
        ("b.jsonl", {"text": TEXT, "relation": "r"}, ":1", "entity_missing"),
        ("b.jsonl", {"text": TAGGED}, ":1", "relation_missing"),
        ("b.jsonl", {"relation": "r"}, ":1", "text_missing"),
        ("b.jsonl", {**ROW, "head": [0, 99], "tail": [1, 2]}, ":1", "span_out_of_range"),
        ("b.jsonl", {**ROW, "head": [3, 3], "tail": [1, 2]}, ":1", "span_out_of_range"),
        ("b.jsonl", {**ROW, "head": "child", "tail": [1, 2]}, ":1", "bad_span"),
        ("b.jsonl", {**ROW, "head": [1, True], "tail": [1, 2]}, ":1", "bad_span"),
        ("b.jsonl", {"tokens": TOKENS, "head": [0, 1], "tail": [7, 9], "relation": "r"},
         ":1", "span_out_of_range"),
        ("b.jsonl", {"tokens": "a b", "head": [0, 1], "tail": [1, 2], "relation": "r"}, ":1", "not_a_list"),
        ("c.json", {"a": 1}, ": [0]", "relation_missing"),
        ("c.json", [ROW, 3], ": [1]", "not_an_object"),
        ("d.csv", f"text,relation\n{TAGGED},\n", ":2", "relation_missing"),
    ],
)  # fmt: skip
def test_errors_have_their_location(
    tmp_path: Path, name: str, document: Any, location: str, code: str
) -> None:
    file = written(tmp_path, document, name)
    with pytest.raises(InputError) as caught:
        read(file)
    assert (caught.value.code, caught.value.location) == (code, f"{file}{location}")


@pytest.mark.parametrize(
    "text",
    [
        "The <e1>child</e1> in the <e2>cradle</e2>.",
        "<e2>a</e2><e1>b</e1>",
        "<e1>the <e2>old</e2> town</e1> sings",
        "<e1><e2>old</e2> town</e1>",
        "<e2>the <e1>town</e1></e2>",
    ],
)
def test_tags_come_back_where_they_were(text: str) -> None:
    assert add_tags(*parse_tagged_text(text, "here")) == text


def test_marks_are_where_they_are_said_to_be() -> None:
    text, places = insert_markers("ab", (1, 2), (0, 1), [("[[", "]"), ("{", "}}}")])
    assert text == "{a}}}[[b]"
    assert places == [(5, 8), (0, 2)]


def test_published_files() -> None:
    folder = Path(__file__).parents[3] / "shared" / "data" / "tasks" / "semeval2010_task8"
    if not folder.exists():
        pytest.skip("the data sets of tasks are not on this machine")
    found = read(folder / "dev.txt")
    assert (len(found), len({one.relation for one in found})) == (800, 18)
    assert len({one.id for one in found}) == 800


@pytest.mark.parametrize(("end", "count"), [(0, 2), (1, 0)])
def test_ends_that_are_inclusive_are_reported(end: int, count: int) -> None:
    texts = [("Ada met Bob here", "met"), ("Eva saw Tom here", "saw"), ("Émile a vu 李明了", "saw")]
    spans = [([0, 2 + end], [8, 10 + end]), ([0, 2 + end], [8, 10 + end]), ([0, 5], [11, 12])]
    rows = [
        {"text": text, "head": head, "tail": tail, "relation": relation}
        for (text, relation), (head, tail) in zip(texts, spans, strict=True)
    ]
    settings = get_task("relate").settings_type()
    data = get_task("relate").part("data")(
        settings, {"labels": ["met", "saw"], "numbered": False, "none": None}
    )
    warnings = data.read_warnings(data.read(to_source(rows, "train", data.tuple_columns)))
    assert [len(warning.locations) for warning in warnings] == [count] * bool(count)
