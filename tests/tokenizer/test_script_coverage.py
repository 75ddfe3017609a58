"""Recommended tokenizer options for scripts, and the script of a vocabulary."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from bertsmith.tokenizer.script_coverage import describe_script_mismatch, recommended_options, script_ratios

TEXTS = {
    "en": "The king went home to the land of his father, and nobody saw him again. " * 20 + "He said 你好.",
    "en with some Chinese": "Beijing (北京) is the capital of China (中国), the Forbidden City (故宫) its centre.",
    "ru": "Он не был в городе, но она сказала, что это так.",
    "de": "Der Bär sah den Wald, und über die Brücke ging ein Mädchen.",
    "zh": "我们今天去图书馆看书，明天再去。他用 Python 写程序。",
    "ja": "わたしは今日図書館に行きます。コンピュータも好きです。",
    "th": "ภาษาไทยเขียนติดกันโดยไม่เว้นวรรคระหว่างคำ",
    "ko": "나는 오늘 도서관에 갑니다.",
    "hi": "हिन्दी में मात्राएँ अक्षरों के साथ लिखी जाती हैं।",
}
TEXTS["hi with English"] = TEXTS["hi"] + " It is written with vowel signs beside the letters."
RECOMMENDED = {
    "hi with English": "--cased",
    "zh": "--chinese", "ja": "--kind unigram --cased", "th": "--kind unigram --cased", "ko": "--cased",
    "hi": "--cased",
}  # fmt: skip


@pytest.mark.parametrize("name", TEXTS)
def test_recommended_options(name: str) -> None:
    recommendation = recommended_options(script_ratios(Counter(TEXTS[name])))
    assert (recommendation[0] if recommendation else None) == RECOMMENDED.get(name)


@pytest.mark.parametrize("name", TEXTS)
def test_recommended_options_give_no_warning(name: str, tmp_path: Path) -> None:
    options = RECOMMENDED.get(name, "").split()
    kind = "unigram" if "unigram" in options else "wordpiece"
    settings = {"lowercase": "--cased" not in options, "chinese": "--chinese" in options}
    scripts = script_ratios(Counter(TEXTS[name]))
    assert describe_script_mismatch(scripts, kind, **settings) is None
    assert describe_script_mismatch(scripts, "byte_level_bpe", lowercase=False, chinese=False) is None
    warning = describe_script_mismatch(scripts, "wordpiece", lowercase=True, chinese=False)
    assert (warning is not None) == bool(options)
    if warning is not None:
        assert all(option in warning for option in options)
    if name not in ("zh", "ja"):
        chinese = describe_script_mismatch(scripts, "wordpiece", lowercase=True, chinese=True)
        assert (chinese is not None and "leave --chinese out" in chinese) == (name != "en with some Chinese")


DAMAGED = {"ja": "が", "th": "ที่", "hi": "में", "ko": "갑니다"}


@pytest.mark.parametrize("name", DAMAGED)
def test_lower_casing_damages_these_scripts(name: str, tmp_path: Path) -> None:
    from bertsmith.tokenizer.wordpiece import bert_normalizer

    word = DAMAGED[name]
    assert bert_normalizer(True).normalize_str(word) != word
    assert bert_normalizer(False).normalize_str(word) == word
