"""Sentences: no character is lost, line ends are boundaries, closing quotes stay with what they close."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertsmith.files.files import read_documents
from bertsmith.files.sentences import split


def dense(text: str) -> str:
    return "".join(text.split())


def test_english() -> None:
    text = 'Mr. Smith paid $3.50 to Dr. Jones.  He said: "Go." Then he left!\nA heading\nIs it 5 p.m.? Yes.'
    assert split(text) == [
        "Mr. Smith paid $3.50 to Dr. Jones.",
        'He said: "Go."',
        "Then he left!",
        "A heading",
        "Is it 5 p.m.?",
        "Yes.",
    ]


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("他走了。真的吗？是的！", ["他走了。", "真的吗？", "是的！"]),
        ("他说：“你好。”然后走了！", ["他说：“你好。”", "然后走了！"]),
        ("“走吧！”“好。”完了。", ["“走吧！”", "“好。”", "完了。"]),
        ("「你好。」『真的吗？』是的。", ["「你好。」", "『真的吗？』", "是的。"]),
        ("真的吗？！不会吧……", ["真的吗？！", "不会吧……"]),
    ],
)
def test_chinese_end_marks_keep_their_closing_quotes(text: str, sentences: list[str]) -> None:
    assert split(text, "zh") == sentences


def test_blanks_make_no_sentence() -> None:
    assert split("") == split(" \n\t\n\u3000") == []


def test_an_unknown_language_is_split_all_the_same() -> None:
    assert split("One. Two.", "xx") == ["One.", "Two."]


marks = st.sampled_from(list("aZ .?!。！？”’」』）\"'\n\r\t\u2028\x00\x1c中…;:()[]«»é"))


@given(st.text() | st.text(marks), st.sampled_from(["en", "zh", "de", "ar"]))
def test_every_character_but_blanks_is_kept_in_order(text: str, language: str) -> None:
    sentences = split(text, language)
    assert dense("".join(sentences)) == dense(text)
    assert all(sentence and sentence == sentence.strip() and "\n" not in sentence for sentence in sentences)


@pytest.mark.parametrize(("name", "language"), [("english", "en"), ("chinese", "zh"), ("mixed", "en")])
def test_the_samples_keep_every_character(shared_data: Path, name: str, language: str) -> None:
    for document in read_documents([shared_data / f"corpora/sample/{name}.txt"]):
        assert dense("".join(split(document.text, language))) == dense(document.text)
