"""Sentences: no character is lost, line ends are boundaries, closing quotes stay with what they close."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertsmith.corpus import sentence_splitter as sentences_file
from bertsmith.corpus.sentence_splitter import split
from bertsmith.io.files import read_documents


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


@given(st.text() | st.text(marks, max_size=200), st.sampled_from(["en", "zh", "de", "ar"]))
def test_long_lines_keep_every_character_too(text: str, language: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sentences_file, "_WINDOW", 16)
        patch.setattr(sentences_file, "_SEEN_AGAIN", 4)
        assert dense("".join(split(text, language))) == dense(text)


DIALOGUE = "“你好吗？”他说：“我很好。（真的）”她回答道：「那么我们走吧！」"


def test_a_long_line_has_the_sentences_that_it_would_have_as_a_whole() -> None:
    line = DIALOGUE * 600
    assert len(line) > 2 * sentences_file._WINDOW
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sentences_file, "_WINDOW", 1 << 20)
        whole = split(line, "zh")
    assert split(line, "zh") == whole


def test_the_time_of_a_long_line_grows_with_its_length() -> None:
    line = (DIALOGUE * 10_000)[:310_000]  # 0.93 MB: 25 s when it was split at once
    begin = time.process_time()
    split(line, "zh")
    assert time.process_time() - begin < 8


@pytest.mark.parametrize(("name", "language"), [("english", "en"), ("chinese", "zh"), ("mixed", "en")])
def test_the_samples_keep_every_character(shared_data: Path, name: str, language: str) -> None:
    for document in read_documents([shared_data / f"corpora/sample/{name}.txt"]):
        assert dense("".join(split(document.text, language))) == dense(document.text)
