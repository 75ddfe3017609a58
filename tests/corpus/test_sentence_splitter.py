"""Sentence splitting loses no character; line ends are boundaries; closing quotes stay with their sentence."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertsmith.corpus import sentence_splitter
from bertsmith.corpus.sentence_splitter import split_sentences
from bertsmith.io.documents import read_documents


def remove_white_space(text: str) -> str:
    return "".join(text.split())


def test_english() -> None:
    text = 'Mr. Smith paid $3.50 to Dr. Jones.  He said: "Go." Then he left!\nA heading\nIs it 5 p.m.? Yes.'
    assert split_sentences(text) == [
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
def test_closing_quotes_stay_with_chinese_sentences(text: str, sentences: list[str]) -> None:
    assert split_sentences(text, "zh") == sentences


def test_white_space_is_no_sentence() -> None:
    assert split_sentences("") == split_sentences(" \n\t\n\u3000") == []


def test_an_unknown_language_is_split_as_english() -> None:
    assert split_sentences("One. Two.", "xx") == ["One.", "Two."]


marks = st.sampled_from(list("aZ .?!。！？”’」』）\"'\n\r\t\u2028\x00\x1c中…;:()[]«»é"))


@given(st.text() | st.text(marks), st.sampled_from(["en", "zh", "de", "ar"]))
def test_all_characters_but_white_space_stay_in_order(text: str, language: str) -> None:
    sentences = split_sentences(text, language)
    assert remove_white_space("".join(sentences)) == remove_white_space(text)
    assert all(sentence and sentence == sentence.strip() and "\n" not in sentence for sentence in sentences)


@given(st.text() | st.text(marks, max_size=200), st.sampled_from(["en", "zh", "de", "ar"]))
def test_long_lines_lose_no_character(text: str, language: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sentence_splitter, "_WINDOW_SIZE", 16)
        patch.setattr(sentence_splitter, "_WINDOW_OVERLAP", 4)
        assert remove_white_space("".join(split_sentences(text, language))) == remove_white_space(text)


DIALOGUE = "“你好吗？”他说：“我很好。（真的）”她回答道：「那么我们走吧！」"


def test_windows_do_not_change_the_sentences_of_a_long_line() -> None:
    line = DIALOGUE * 600
    assert len(line) > 2 * sentence_splitter._WINDOW_SIZE
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sentence_splitter, "_WINDOW_SIZE", 1 << 20)
        expected = split_sentences(line, "zh")
    assert split_sentences(line, "zh") == expected


def test_a_long_line_is_split_in_linear_time() -> None:
    line = (DIALOGUE * 10_000)[:310_000]  # 0.93 MB, which takes 25 s in one window
    start = time.process_time()
    split_sentences(line, "zh")
    assert time.process_time() - start < 8


@pytest.mark.parametrize(("name", "language"), [("english", "en"), ("chinese", "zh"), ("mixed", "en")])
def test_the_sample_corpora_lose_no_character(shared_data: Path, name: str, language: str) -> None:
    for document in read_documents([shared_data / f"corpora/sample/{name}.txt"]):
        assert remove_white_space("".join(split_sentences(document.text, language))) == remove_white_space(
            document.text
        )
