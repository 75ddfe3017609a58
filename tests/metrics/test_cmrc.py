"""Test Chinese answers on small cases and against an independent version of the script's rules."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertsmith.metrics.squad import cmrc_exact_match, cmrc_f1, cmrc_segments


def test_segments_are_single_ideographs_and_words() -> None:
    assert cmrc_segments(" 光荣和ω-Force 3.5%！") == ["光", "荣", "和", "ωforce", "3.5", "%"]
    assert cmrc_segments("It's 1,000 年…") == ["it's", "1,000", "年", "…"]
    assert cmrc_segments("。") == []


def test_small_cases() -> None:
    assert cmrc_exact_match("《光荣》", ["光荣。", "别的"])
    assert not cmrc_exact_match("光荣", ["光"])
    # The longest common run is 光荣, of 3 and of 5.
    assert cmrc_f1("光荣和", ["与光荣公司"]) == pytest.approx(2 * (2 / 3) * (2 / 5) / (2 / 3 + 2 / 5))
    assert cmrc_f1("荣光", ["光荣"]) == 0.5  # a run, not a bag of characters
    assert cmrc_f1("二", ["三"]) == 0.0
    assert cmrc_f1("", [""]) == 1.0
    assert cmrc_f1("", ["光"]) == cmrc_f1("光", [""]) == 0.0
    with pytest.raises(ValueError, match="empty"):
        cmrc_f1("光", [])


PUNCTUATION = "-:_*^/\\~`+=，。：？！“”；’《》·、「」（）－～『』"


def reference_scores(answer: str, references: list[str]) -> tuple[bool, float]:
    """Score as cmrc2018_evaluate.py (Cui et al. 2019) does for words that its tokenizer does not split."""

    def split_text(text: str) -> list[str]:
        result, word = [], ""
        for c in text.lower().strip():
            if c in PUNCTUATION:
                continue
            if re.search("[\u4e00-\u9fa5]", c):
                result += [*word.split(), c]
                word = ""
            else:
                word += c
        return [*result, *word.split()]

    def longest_common_run(a: list[str], b: list[str]) -> int:
        table = [[0] * (len(b) + 1) for _ in range(len(a) + 1)]
        length = 0
        for i in range(len(a)):
            for j in range(len(b)):
                if a[i] == b[j]:
                    table[i + 1][j + 1] = table[i][j] + 1
                    length = max(length, table[i + 1][j + 1])
        return length

    def f1_of(reference: str) -> float:
        words, reference_words = split_text(answer), split_text(reference)
        same = longest_common_run(words, reference_words)
        if same == 0:
            return 0
        precision, recall = same / len(words), same / len(reference_words)
        return 2 * precision * recall / (precision + recall)

    def normalize(text: str) -> str:
        return "".join(c for c in text.lower().strip() if c not in PUNCTUATION)

    exact = any(normalize(answer) == normalize(reference) for reference in references)
    return exact, max(map(f1_of, references))


TEXTS = st.lists(st.sampled_from([*"光荣和公司一二三aB3，。-《》 "]), min_size=1, max_size=10).map("".join)


@given(TEXTS, st.lists(TEXTS, min_size=1, max_size=3))
def test_scores_equal_the_reference(answer: str, references: list[str]) -> None:
    exact, score = reference_scores(answer, references)
    assert cmrc_exact_match(answer, references) == exact
    assert cmrc_f1(answer, references) == pytest.approx(score)
