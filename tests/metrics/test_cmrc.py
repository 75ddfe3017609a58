"""Chinese answers: cases by hand, and the script's rules written down a second time."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertsmith.metrics.cmrc import exact_match, f1, segments


def test_ideographs_stand_alone_and_other_words_are_whole() -> None:
    assert segments(" 光荣和ω-Force 3.5%！") == ["光", "荣", "和", "ωforce", "3.5", "%"]
    assert segments("It's 1,000 年…") == ["it's", "1,000", "年", "…"]
    assert segments("。") == []


def test_hand_cases() -> None:
    assert exact_match("《光荣》", ["光荣。", "别的"])
    assert not exact_match("光荣", ["光"])
    # The longest run of both is 光荣, of 3 and of 5.
    assert f1("光荣和", ["与光荣公司"]) == pytest.approx(2 * (2 / 3) * (2 / 5) / (2 / 3 + 2 / 5))
    assert f1("荣光", ["光荣"]) == 0.5  # a run, not a bag of characters
    assert f1("二", ["三"]) == 0.0
    assert f1("", [""]) == 1.0
    assert f1("", ["光"]) == f1("光", [""]) == 0.0
    with pytest.raises(ValueError, match="empty"):
        f1("光", [])


PUNCTUATION = "-:_*^/\\~`+=，。：？！“”；’《》·、「」（）－～『』"


def by_the_rules(answer: str, gold: list[str]) -> tuple[bool, float]:
    """Cui et al. 2019, cmrc2018_evaluate.py, for words that its tokenizer leaves whole."""

    def parts(text: str) -> list[str]:
        found, word = [], ""
        for c in text.lower().strip():
            if c in PUNCTUATION:
                continue
            if re.search("[\u4e00-\u9fa5]", c):
                found += [*word.split(), c]
                word = ""
            else:
                word += c
        return [*found, *word.split()]

    def longest(a: list[str], b: list[str]) -> int:
        table = [[0] * (len(b) + 1) for _ in range(len(a) + 1)]
        most = 0
        for i in range(len(a)):
            for j in range(len(b)):
                if a[i] == b[j]:
                    table[i + 1][j + 1] = table[i][j] + 1
                    most = max(most, table[i + 1][j + 1])
        return most

    def of_one(other: str) -> float:
        ours, theirs = parts(answer), parts(other)
        same = longest(ours, theirs)
        if same == 0:
            return 0
        precision, recall = same / len(ours), same / len(theirs)
        return 2 * precision * recall / (precision + recall)

    def plain(text: str) -> str:
        return "".join(c for c in text.lower().strip() if c not in PUNCTUATION)

    return any(plain(answer) == plain(other) for other in gold), max(map(of_one, gold))


TEXTS = st.lists(st.sampled_from([*"光荣和公司一二三aB3，。-《》 "]), min_size=1, max_size=10).map("".join)


@given(TEXTS, st.lists(TEXTS, min_size=1, max_size=3))
def test_equal_to_the_rules_written_a_second_time(answer: str, gold: list[str]) -> None:
    exact, score = by_the_rules(answer, gold)
    assert exact_match(answer, gold) == exact
    assert f1(answer, gold) == pytest.approx(score)
