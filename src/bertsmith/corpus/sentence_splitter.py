"""A document becomes sentences: sentencex finds the boundaries, and every line end is one.

No character is lost: the sentences of a text, joined, are the text without its blanks at sentence borders.

sentencex looks for quotes and brackets in time that grows with the square of a line's length (0.94 MB of Chinese
dialogue on one line took 25 s). A line of more than 8,192 characters is split a window at a time: each begins with
a sentence, and what it says of its last 1,024 characters is left to the next one.
"""

from __future__ import annotations

import itertools
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator

import sentencex

from bertsmith.io.unicode_scripts import HAN_CLASS

# A closing mark never opens a sentence, but sentencex leaves 』 and a few others at the head of the next one.
# Curly quotes close only in Chinese: Swedish and Finnish open with ” as well.
_CLOSING = "」』）】》〉〕"
_CLOSING_CHINESE = _CLOSING + "”’"
_HAN = re.compile(f"[{HAN_CLASS}]+")
_WINDOW = 8192  # characters of a line that sentencex sees together
_SEEN_AGAIN = 1024


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


def guessed_language(texts: Iterable[str]) -> str:
    """Whose sentence ends to look for where nobody says: Chinese where every fifth character is an ideograph."""
    total = ideographs = 0
    for text in texts:
        total += len(text)
        ideographs += len(text) - len(_HAN.sub("", text))
    return "zh" if 5 * ideographs > total else "en"


def _of_line(line: str, language: str, closing: str) -> list[str]:
    sentences = [sentence for part in _segments(line, language) if (sentence := part.strip())]
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


def _segments(line: str, language: str) -> Iterator[str]:
    begin = 0
    while len(line) - begin > _WINDOW:
        window = line[begin : begin + _WINDOW]
        found = sentencex.segment(language, window) or [window]
        ends = list(itertools.accumulate(map(len, found)))
        # Those for whose end what follows is known; a sentence longer than that is cut where the window ends.
        whole = bisect_right(ends, _WINDOW - _SEEN_AGAIN) or 1
        yield from found[:whole]
        begin += ends[whole - 1]
    yield from sentencex.segment(language, line[begin:])
