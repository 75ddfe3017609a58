"""Questions with choices: each form of file, which choice is right, and what is said of bad rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bertsmith.errors import InputError
from bertsmith.tasks.multiple_choice.data import ChoiceExample, choice_index, read_choices
from bertsmith.tasks.settings import ChooseSettings

DIALOGUE = [["M: kaba", "W: lode"], [{"question": "who?", "choice": ["M", "W"], "answer": "W"}], "5-1"]
ARTICLE = {
    "id": "high1.txt",
    "article": "kaba lode",
    "questions": ["first?", "second?"],
    "options": [["a", "b", "c", "d"], ["e", "f", "g", "h"]],
    "answers": ["B", "D"],
}
COMMON = {
    "answerKey": "E",
    "id": "q1",
    "question": {
        "stem": "where?",
        "choices": [{"label": "D", "text": "here"}, {"label": "E", "text": "there"}],
    },
}


def written(folder: Path, document: Any, name: str) -> Path:
    file = folder / name
    file.parent.mkdir(exist_ok=True)
    file.write_text(document if isinstance(document, str) else json.dumps(document), encoding="utf-8")
    return file


def read(file: Path, *, labeled: bool = True, **settings: Any) -> list[ChoiceExample]:
    return list(read_choices(file, ChooseSettings(**settings), labeled=labeled))


def parts(example: ChoiceExample) -> tuple[str, str, tuple[str, ...], int | None]:
    return example.context, example.question, example.choices, example.label


SWAG_HEADER = ",video-id,startphrase,sent1,sent2,gold-source,ending0,ending1,label\n"


@pytest.mark.parametrize(
    ("name", "document", "context", "question", "choices", "right", "number"),
    [
        ("a.csv", SWAG_HEADER + "0,v,kaba He,kaba,He,gen,runs,sits,1\n", "kaba", "He", ["runs", "sits"], 1, None),
        ("b.csv", "startphrase,ending0,ending1,label\nkaba,1,2,1\n", "kaba", "", ["1", "2"], 0, None),
        ("d.json", [DIALOGUE], "M: kaba\nW: lode", "who?", ["M", "W"], 1, "5-1-1"),
        ("e.txt", ARTICLE, "kaba lode", "first?", ["a", "b", "c", "d"], 1, "high1.txt-1"),
        ("f.jsonl", json.dumps(ARTICLE), "kaba lode", "first?", ["a", "b", "c", "d"], 1, "high1.txt-1"),
        ("g.json", [ARTICLE], "kaba lode", "first?", ["a", "b", "c", "d"], 1, "high1.txt-1"),
        ("h.jsonl", json.dumps(COMMON), "", "where?", ["here", "there"], 1, "q1"),
        (
            "i.jsonl",
            json.dumps({"question": "where?", "choices": {"label": ["D", "E"], "text": ["x", "y"]}, "label": "E"}),
            "", "where?", ["x", "y"], 1, None,
        ),
        (
            "j.jsonl",
            json.dumps({"id": 7, "context": "kaba", "question": "?", "choices": ["x", "y", "z"], "label": 2}),
            "kaba", "?", ["x", "y", "z"], 2, "7",
        ),
        ("k.csv", 'context,choices,label\nkaba,"[""x"", ""y""]",B\n', "kaba", "", ["x", "y"], 1, None),
        ("l.tsv", "context\tchoice 1\tchoice 2\tlabel\nkaba\tx\ty\ty\n", "kaba", "", ["x", "y"], 1, None),
    ],
)  # fmt: skip
def test_each_form_is_read(
    tmp_path: Path, name: str, document: Any, context: str, question: str, choices: list[str], right: int,
    number: str | None,
) -> None:  # fmt: skip
    file = written(tmp_path, document, name)
    found = read(file)[0]
    assert parts(found) == (context, question, tuple(choices), right)
    assert found.id == number
    assert found.location.startswith(str(file))
    assert parts(read(file, labeled=False)[0]) == (context, question, tuple(choices), None)


def test_an_article_has_its_questions_and_a_folder_its_articles(tmp_path: Path) -> None:
    for name in ("high/2.txt", "high/1.txt"):
        written(tmp_path, {**ARTICLE, "id": name}, name)
    found = read(tmp_path)
    assert [(one.id, one.label) for one in found] == [
        ("high/1.txt-1", 1), ("high/1.txt-2", 3), ("high/2.txt-1", 1), ("high/2.txt-2", 3),
    ]  # fmt: skip
    assert found[1].location == f"{tmp_path}/high/1.txt: questions[1]"


@pytest.mark.parametrize(
    ("answer", "choices", "index"),
    [
        (1, ["x", "y"], 1),
        ("1", ["x", "y"], 1),
        ("B", ["x", "y"], 1),
        ("b", ["x", "y"], 1),
        ("y", ["x", "y"], 1),
        (" y ", ["x", "y"], 1),
        ("B", ["B", "A"], 0),  # a text before a letter
        ("1", ["1", "2"], 0),  # and before an index,
        (1, ["1", "2"], 1),  # which a number is
    ],
)
def test_the_right_one_by_index_letter_or_text(answer: Any, choices: list[str], index: int) -> None:
    assert choice_index(answer, choices, (), "here") == index


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv", "question,choice0,choice1,choice2,label\nq,1,0,2,1\n"),
        ("a.csv", 'question,choices,label\nq,"[1, 0, 2]",1\n'),
        ("a.jsonl", '{"question": "q", "choice0": "1", "choice1": "0", "choice2": "2", "label": "1"}'),
    ],
)
def test_a_text_that_is_a_choice_is_no_index_in_any_format(tmp_path: Path, name: str, content: str) -> None:
    (tmp_path / name).write_text(content)
    assert [example.label for example in read(tmp_path / name)] == [0]


ROW = {"context": "kaba", "choices": ["x", "y", "z"], "label": 0}


@pytest.mark.parametrize(
    ("name", "document", "location", "code"),
    [
        ("a.jsonl", {**ROW, "label": 3}, ":1", "answer_out_of_range"),
        ("a.jsonl", {**ROW, "label": -1}, ":1", "answer_out_of_range"),
        ("a.jsonl", {**ROW, "label": "D"}, ":1", "unknown_answer"),
        ("a.jsonl", {**ROW, "label": "w"}, ":1", "unknown_answer"),
        ("a.jsonl", {**ROW, "label": True}, ":1", "unknown_answer"),
        ("a.jsonl", {**ROW, "label": None}, ":1", "answer_missing"),
        ("a.jsonl", {**ROW, "choices": ["x", "x"], "label": "x"}, ":1", "ambiguous_answer"),
        ("a.jsonl", {**ROW, "choices": ["x"]}, ":1", "too_few_choices"),
        ("a.jsonl", {**ROW, "choices": "x"}, ":1", "not_a_list"),
        ("a.jsonl", {**ROW, "choices": [["x"], "y"]}, ":1", "not_a_string"),
        ("a.jsonl", {"context": "kaba", "label": 0}, ":1", "choices_missing"),
        ("a.jsonl", {**ROW, "context": 3.5, "question": ["?"]}, ":1", "not_a_string"),
        ("a.jsonl", {"choices": ["x", "y"], "label": 0}, ":1", "question_missing"),
        ("b.csv", "context,choice0,choice1,label\nkaba,x,y,2\n", ":2", "answer_out_of_range"),
        ("d.json", "[[", ":1:3", "not_json"),
        ("e.txt", "kaba lode", ":1:1", "not_json"),
        ("d.json", "3", "", "not_a_list_or_object"),
        ("d.json", [3], ": [0]", "not_a_list_or_object"),
        ("d.json", [["turn"]], ": [0]", "not_a_dialogue"),
        ("d.json", [[["t"], [{"question": "?", "choice": ["x", "y"], "answer": "z"}], "i"]],
         ": [0][1][0]", "unknown_answer"),
        ("d.json", [[["t"], [{"question": "?", "choice": ["x", "y"]}], "i"]], ": [0][1][0]", "answer_missing"),
        ("e.txt", {**ARTICLE, "answers": ["A"]}, "", "length_mismatch"),
        ("e.txt", {**ARTICLE, "answers": ["A", "E"]}, ": questions[1]", "unknown_answer"),
        ("e.txt", {**ARTICLE, "options": None}, "", "not_a_list"),
        ("h.jsonl", {**COMMON, "answerKey": "A"}, ":1", "unknown_answer"),
        ("h.jsonl", {**COMMON, "answerKey": "F"}, ":1", "unknown_answer"),
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
    ("document", "letters"), [({**ROW, "label": "D"}, "A to C"), ({**COMMON, "answerKey": "A"}, "D to E")]
)
def test_an_unknown_answer_lists_the_letters(tmp_path: Path, document: Any, letters: str) -> None:
    with pytest.raises(InputError) as caught:
        read(written(tmp_path, document, "a.jsonl"))
    assert letters in (caught.value.hint or "")


def test_a_folder_without_files_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        read(tmp_path)
    assert (caught.value.code, caught.value.location) == ("no_files", str(tmp_path))


@pytest.mark.parametrize(
    ("file", "number", "choices"), [("dream/dev.json.gz", 2040, 3), ("commonsenseqa/dev.jsonl", 611, 5)]
)
def test_published_files(file: str, number: int, choices: int) -> None:
    path = Path(__file__).parents[3] / "shared" / "data" / "tasks" / file
    if not path.exists():
        pytest.skip("the data sets of tasks are not on this machine")
    found = read(path)
    assert len(found) == number
    assert {len(one.choices) for one in found} == {choices}
    assert {one.label for one in found} == set(range(choices))


@pytest.mark.parametrize(
    ("name", "document", "settings"),
    [
        (
            "a.csv", "prompt,A,B,C,answer,ending0\nwho?,x,y,z,B,other\n",
            {"question_column": "prompt", "choices_column": "A,B,C"},
        ),
        (
            "b.csv", "prompt,A,B,C,answer,label\nwho?,x,y,z,2,0\n",
            {"question_column": "prompt", "choices_column": "A, B,C", "label_column": "answer", "first_index": 1},
        ),
        (
            "c.tsv", "who?\tx\ty\tz\t1\n",
            {"question_column": "1", "choices_column": "2,3,4", "label_column": "5", "header": False},
        ),
        (
            "d.jsonl", json.dumps({"q": "who?", "opts": ["x", "y", "z"], "gold": "y", "choices": ["no", "n"]}),
            {"question_column": "q", "choices_column": "opts", "label_column": "gold"},
        ),
        (
            "e.json", [{"q": "who?", "A,B": ["x", "y", "z"], "label": 1}],
            {"question_column": "q", "choices_column": "A,B"},
        ),
    ],
)  # fmt: skip
def test_columns_of_other_names(tmp_path: Path, name: str, document: Any, settings: dict[str, Any]) -> None:
    file = written(tmp_path, document, name)
    (row,) = read(file, **settings)
    assert parts(row) == ("", "who?", ("x", "y", "z"), 1)
    (row,) = read(file, labeled=False, **{**settings, "label_column": "not there"})
    assert parts(row) == ("", "who?", ("x", "y", "z"), None)
    with pytest.raises(InputError) as caught:
        read(file, labeled=False, **settings, context_column="gone")
    assert (caught.value.code, caught.value.argument) == ("column_missing", "context_column")


def test_a_question_with_fewer_choices_leaves_the_last_columns_empty(tmp_path: Path) -> None:
    text = "question,{}0,{}1,{}2,label\nwho?,x,y,,1\nwho?,x,,z,0\n"
    file = written(tmp_path, text.format("choice", "choice", "choice"), "a.csv")
    assert [row.choices for row in read(file)] == [("x", "y"), ("x", "", "z")]
    file = written(tmp_path, text.format("c", "c", "c"), "b.csv")
    assert [row.choices for row in read(file, choices_column="c0,c1,c2")] == [("x", "y"), ("x", "", "z")]


def test_columns_of_hellaswag_copa_and_piqa_are_known(tmp_path: Path) -> None:
    rows = [
        {"ctx": "kaba", "endings": ["x", "y"], "label": "1"},
        {"premise": "kaba", "choice1": "x", "choice2": "y", "label": 1},
    ]
    for row in rows:
        (found,) = read(written(tmp_path, json.dumps(row), "a.jsonl"))
        assert parts(found) == ("kaba", "", ("x", "y"), 1)


@pytest.mark.parametrize(("label", "first"), [(0, 1), (3, 1), (2, 0)])
def test_a_label_that_is_no_choice_s_says_where_indices_begin(tmp_path: Path, label: int, first: int) -> None:
    file = written(
        tmp_path, json.dumps({"context": "kaba", "choices": ["x", "y"], "label": label}), "a.jsonl"
    )
    with pytest.raises(InputError) as caught:
        read(file, first_index=first)
    assert caught.value.code == "answer_out_of_range"
    assert f"{first} to {first + 1}" in caught.value.message
    assert ("first_index=1" in (caught.value.hint or "")) == (first == 0)
