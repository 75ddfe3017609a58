"""Which characters are ideographs, and words without a tokenizer, with their scripts: what tokenizers are compared
on must not be one's own."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence
from functools import cache, lru_cache
from itertools import chain

IDEOGRAPHS = (
    range(0x3400, 0x4DC0),
    range(0x4E00, 0xA000),
    range(0xF900, 0xFB00),
    range(0x20000, 0x2A6E0),
    range(0x2A700, 0x2B740),
    range(0x2B740, 0x2B820),
    range(0x2B820, 0x2CEB0),
    range(0x2F800, 0x2FA20),
)
"""What BERT's tokenizer takes for ideographs, and sets apart as words (`_is_chinese_char` of its release)."""
HAN = (range(0x3400, 0x4DC0), range(0x4E00, 0xA000), range(0xF900, 0xFB00), range(0x20000, 0x323B0))
"""All ideographs, those that Unicode took up since, too: for what is said about texts."""
UNSPACED = (  # Thai and Lao, Burmese, Khmer, kana
    range(0x0E01, 0x0F00),
    range(0x1000, 0x10A0),
    range(0x1780, 0x1800),
    range(0x3041, 0x3100),
    range(0x31F0, 0x3200),
    *HAN,
)
"""Characters of scripts without blanks between words: each counts as a word."""
HAN_CLASS, UNSPACED_CLASS = (
    "".join(f"{chr(part.start)}-{chr(part.stop - 1)}" for part in parts) for parts in (HAN, UNSPACED)
)
"""Ranges for a character class of a regular expression."""
_WITH_MARKS = (range(0x20000), range(0xE0000, 0xE0200))  # Other planes have no marks, and are large.
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
    """Words other than ideographs: letters, marks, and digits in a row, of which the first is no mark."""
    return re.compile(rf"[^\W_{HAN_CLASS}]+(?:[{marks()}]+[^\W_{HAN_CLASS}]*)*")


@cache
def marks() -> str:
    """All combining marks, as ranges for a character class of a regular expression.

    By table: Python's \\w leaves them out and would cut the words of India at their vowel signs.
    """
    codes = chain.from_iterable(_WITH_MARKS)
    return "".join(_ranges([code for code in codes if unicodedata.category(chr(code))[0] == "M"]))


def _ranges(codes: Sequence[int]) -> Iterator[str]:
    first = last = codes[0]
    for code in [*codes[1:], _CODES]:
        if code != last + 1:
            yield f"{chr(first)}-{chr(last)}" if last > first else chr(first)
            first = code
        last = code
