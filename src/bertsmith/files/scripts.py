"""Words without a tokenizer, and their scripts: what tokenizers are compared on must not be one's own."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence
from functools import cache, lru_cache

_HAN = "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U000323af"
_CODES = 0x110000


@lru_cache(maxsize=1 << 16)
def script_of(character: str) -> str:
    """The script of a letter in Unicode: Latin, Han, Cyrillic, …; "others" where it is several scripts' or none's.

    By fontTools' table: twice as fast as reading the characters' names, and right where those name no script
    (6,145 Tangut letters) or half of one ("Canadian" Aboriginal); 11,686 of 131,756 letters differ.
    """
    from fontTools import unicodedata as table

    # Full-width and mathematical letters are what they show.
    plain = unicodedata.normalize("NFKD", character)[0]
    name = str(table.script_name(table.script(plain)))
    return "others" if name in ("Common", "Inherited", "Unknown") else name


def script_of_word(word: str) -> str:
    """The script of a word's first letter; "digits" for one without a letter."""
    for character in word:
        if character.isalpha():
            return script_of(character)
    return "digits"


@cache
def word_pattern() -> re.Pattern[str]:
    """A word: letters, marks and digits in a row from a letter or digit on, or one ideograph."""
    return re.compile(rf"[{_HAN}]|[^\W_{_HAN}](?:[^\W_{_HAN}]|[{marks()}])*")


@cache
def marks() -> str:
    """All combining marks, as ranges for a character class of a regular expression.

    By table: Python's \\w leaves them out and would cut the words of India at their vowel signs.
    """
    return "".join(_ranges([code for code in range(_CODES) if unicodedata.category(chr(code))[0] == "M"]))


def _ranges(codes: Sequence[int]) -> Iterator[str]:
    first = last = codes[0]
    for code in [*codes[1:], _CODES]:
        if code != last + 1:
            yield f"{chr(first)}-{chr(last)}" if last > first else chr(first)
            first = code
        last = code
