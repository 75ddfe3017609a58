"""A document becomes sentences: sentencex finds the boundaries, and every line end is one.

No character is lost: the sentences of a text, joined, are the text without its blanks at sentence borders.
"""

from __future__ import annotations

import sentencex

# A closing mark never opens a sentence, but sentencex leaves 』 and a few others at the head of the next one.
# Curly quotes close only in Chinese: Swedish and Finnish open with ” as well.
_CLOSING = "」』）】》〉〕"
_CLOSING_CHINESE = _CLOSING + "”’"


def split(text: str, language: str = "en") -> list[str]:
    """The sentences of a text, in order, without blanks at their ends; none is empty.

    `language` is an ISO 639-1 code (for abbreviations and end marks); an unknown one falls back to English
    rules. Chinese ends a sentence at 。！？ together with the closing quotes behind them.
    """
    sentences: list[str] = []
    closing = _CLOSING_CHINESE if language.startswith("zh") else _CLOSING
    for line in text.split("\n"):
        if line and not line.isspace():
            sentences.extend(_of_line(line, language, closing))
    return sentences


def _of_line(line: str, language: str, closing: str) -> list[str]:
    sentences = [sentence for part in sentencex.segment(language, line) if (sentence := part.strip())]
    if line.isascii():  # the closing marks are not
        return sentences
    found: list[str] = []
    for sentence in sentences:
        if found and sentence[0] in closing:
            rest = sentence.lstrip(closing)
            found[-1] += sentence[: len(sentence) - len(rest)]
            sentence = rest.strip()
        if sentence:
            found.append(sentence)
    return found
