"""BERT's basic tokenizer, written from its published rules for comparison."""

from __future__ import annotations

import unicodedata

_IDEOGRAPHS = (
    (0x4E00, 0x9FFF),
    (0x3400, 0x4DBF),
    (0x20000, 0x2A6DF),
    (0x2A700, 0x2B73F),
    (0x2B740, 0x2B81F),
    (0x2B820, 0x2CEAF),
    (0xF900, 0xFAFF),
    (0x2F800, 0x2FA1F),
)


def is_control(character: str) -> bool:
    return character not in "\t\n\r" and unicodedata.category(character) in ("Cc", "Cf")


def is_blank(character: str) -> bool:
    return character in " \t\n\r" or unicodedata.category(character) == "Zs"


def is_ideograph(character: str) -> bool:
    return any(first <= ord(character) <= last for first, last in _IDEOGRAPHS)


def is_punctuation(character: str) -> bool:
    ascii_sign = 33 <= ord(character) < 127 and not character.isalnum()
    return ascii_sign or unicodedata.category(character).startswith("P")


def words_of(text: str, *, lowercase: bool, chinese: bool = True) -> list[str]:
    """Return the words of a text as BERT's basic tokenizer splits it."""
    cleaned = []
    for character in text:
        if character in "\0\ufffd" or is_control(character):
            continue
        if is_blank(character):
            cleaned.append(" ")
        elif chinese and is_ideograph(character):
            cleaned.append(f" {character} ")
        else:
            cleaned.append(character)
    words = []
    for token in "".join(cleaned).split():
        if lowercase:
            parts = unicodedata.normalize("NFD", token.lower())
            token = "".join(c for c in parts if unicodedata.category(c) != "Mn")
        words += _split_punctuation(token)
    return words


def _split_punctuation(token: str) -> list[str]:
    words: list[str] = []
    joins_previous = False
    for character in token:
        if is_punctuation(character):
            words.append(character)
            joins_previous = False
        elif joins_previous:
            words[-1] += character
        else:
            words.append(character)
            joins_previous = True
    return " ".join(words).split()
