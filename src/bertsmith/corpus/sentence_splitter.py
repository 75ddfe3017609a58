"""Split documents into sentences: sentencex finds the boundaries, and every line end is one.

No character is lost: the sentences of a text, joined, are the text without the white space at sentence boundaries.

sentencex looks for quotes and brackets in time that grows with the square of a line's length (0.94 MB of Chinese
dialogue on one line take 25 s). Lines of more than 8,192 characters are therefore split window by window: a window
begins at a sentence boundary, and boundaries in its last 1,024 characters are left to the next window.
"""

from __future__ import annotations

import itertools
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator

import sentencex

from bertsmith.io.unicode_scripts import HAN_CLASS

# A closing mark never opens a sentence, but sentencex leaves 』 and a few others at the start of the next one.
# Curly quotes close only in Chinese: Swedish and Finnish open with ” as well.
_CLOSING = "」』）】》〉〕"
_CLOSING_CHINESE = _CLOSING + "”’"
_HAN = re.compile(f"[{HAN_CLASS}]+")
_WINDOW_SIZE = 8192  # characters of a line that are split at once
_WINDOW_OVERLAP = 1024


def split_sentences(text: str, language: str = "en") -> list[str]:
    """Split a text into sentences, in order, without white space at their ends; none is empty.

    Args:
        text: The text.
        language: ISO 639-1 code, for abbreviations and end marks; the rules for English apply to unknown ones.
            Chinese ends a sentence at 。！？ together with the closing quotes behind them.
    """
    sentences: list[str] = []
    closing = _CLOSING_CHINESE if language.startswith("zh") else _CLOSING
    for line in text.split("\n"):
        if line and not line.isspace():
            sentences.extend(_split_line(line, language, closing))
    return sentences


def detect_language(texts: Iterable[str]) -> str:
    """Return "zh" if more than a fifth of the characters are ideographs, else "en", for sentence splitting."""
    num_characters = num_han = 0
    for text in texts:
        num_characters += len(text)
        num_han += len(text) - len(_HAN.sub("", text))
    return "zh" if 5 * num_han > num_characters else "en"


def _split_line(line: str, language: str, closing: str) -> list[str]:
    segments = sentencex.segment(language, line) if len(line) <= _WINDOW_SIZE else _segments(line, language)
    sentences = [sentence for part in segments if (sentence := part.strip())]
    if line.isascii():  # the closing marks are not
        return sentences
    result: list[str] = []
    for sentence in sentences:
        if result and sentence[0] in closing:
            rest = sentence.lstrip(closing)
            result[-1] += sentence[: len(sentence) - len(rest)]
            sentence = rest.strip()
        if sentence:
            result.append(sentence)
    return result


def _segments(line: str, language: str) -> Iterator[str]:
    """Yield the segments of a line longer than a window."""
    start = 0
    while len(line) - start > _WINDOW_SIZE:
        window = line[start : start + _WINDOW_SIZE]
        segments = sentencex.segment(language, window) or [window]
        ends = list(itertools.accumulate(map(len, segments)))
        # The text behind these segments is known; a sentence longer than a window is cut at the window's end.
        num_complete = bisect_right(ends, _WINDOW_SIZE - _WINDOW_OVERLAP) or 1
        yield from segments[:num_complete]
        start += ends[num_complete - 1]
    yield from sentencex.segment(language, line[start:])
