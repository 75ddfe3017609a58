"""Characters: BERT's ideographs are its release's, and every list of ideographs in the house is one of two."""

from __future__ import annotations

import re
import sys
import unicodedata
from itertools import pairwise

from bertsmith.corpus.sentence_splitter import detect_language
from bertsmith.io.unicode_scripts import HAN, IDEOGRAPHS, UNSPACED, marks, word_pattern


def released(code: int) -> bool:
    """`_is_chinese_char` of the release, word for word."""
    return (
        (0x4E00 <= code <= 0x9FFF)
        or (0x3400 <= code <= 0x4DBF)
        or (0x20000 <= code <= 0x2A6DF)
        or (0x2A700 <= code <= 0x2B73F)
        or (0x2B740 <= code <= 0x2B81F)
        or (0x2B820 <= code <= 0x2CEAF)
        or (0xF900 <= code <= 0xFAFF)
        or (0x2F800 <= code <= 0x2FA1F)
    )


def test_the_ideographs_are_those_of_the_release() -> None:
    inside = {code for part in IDEOGRAPHS for code in part}
    assert inside == {code for code in range(sys.maxunicode + 1) if released(code)}


def test_all_that_unicode_calls_an_ideograph_is_one() -> None:
    named = {
        code
        for code in range(sys.maxunicode + 1)
        if unicodedata.name(chr(code), "").startswith(
            ("CJK UNIFIED IDEOGRAPH", "CJK COMPATIBILITY IDEOGRAPH")
        )
    }
    inside = {code for part in HAN for code in part}
    assert named <= inside
    assert inside <= {code for part in UNSPACED for code in part}
    assert all(first.stop <= second.start for first, second in pairwise(IDEOGRAPHS))


def test_an_ideograph_ends_a_word_and_a_fifth_of_them_is_chinese() -> None:
    assert word_pattern().findall("他saw 3人\U000323af") == ["saw", "3"]
    assert detect_language(["四个字"]) == "zh"
    assert detect_language(["一abcd"]) == "en"
    assert detect_language(["一abc", "d", "二"]) == "zh"
    assert detect_language([]) == "en"


def test_all_marks_are_found() -> None:
    expected = [chr(code) for code in range(0x110000) if unicodedata.category(chr(code))[0] == "M"]
    assert re.findall(f"[{marks()}]", "".join(map(chr, range(0x110000)))) == expected
