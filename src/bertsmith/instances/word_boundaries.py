"""Where words begin in a row of pieces: as the tokenizer marks it, and for Chinese as a segmenter reads it.

A Chinese BERT has a piece for each character. To mask whole words, runs of such pieces are cut by jieba's
dictionary (`data.word_segmenter=jieba`), at mask time and from the ids alone; so the same ids have the same
words in every epoch, batch and process.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from bertsmith.corpus.tokenized_corpus import Ints
from bertsmith.errors import InputError
from bertsmith.instances.settings import DataSettings
from bertsmith.io.unicode_scripts import IDEOGRAPHS
from bertsmith.tokenizer.tokenizer import Tokenizer


def word_borders(tokenizer: Tokenizer, settings: DataSettings) -> Callable[[Ints], NDArray[np.bool_]] | None:
    """ids [N] → bool [N], which pieces begin a word, as the settings' masks need it; None for token masks."""
    if settings.masking == "token":
        return None
    return ChineseWords(tokenizer) if settings.word_segmenter == "jieba" else tokenizer.word_starts


class ChineseWords:
    """`tokenizer.word_starts`, with runs of single Chinese characters joined into words."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        """Raises InputError where the segmenter is not installed or the vocabulary has no such characters."""
        try:
            import rjieba
        except ImportError:
            raise InputError(
                "data.word_segmenter=jieba needs a package that is not installed",
                "pip install 'bertsmith[zh]', or set data.word_segmenter=none",
            ) from None
        self._cut: Callable[[str], list[str]] = rjieba.cut
        self._starts = tokenizer.word_starts
        self._characters = [_character(token) for token in tokenizer.tokens]
        self._han = np.array([c != "" for c in self._characters], dtype=np.bool_)
        if not self._han.any():
            raise InputError(
                "data.word_segmenter=jieba joins Chinese characters, and this vocabulary has none",
                "set data.word_segmenter=none",
            )

    def __call__(self, ids: Ints) -> NDArray[np.bool_]:
        """ids [N] → bool [N]: which pieces begin a word."""
        starts = self._starts(ids).copy()
        han = self._han[ids]
        edges = np.flatnonzero(np.diff(han, prepend=False, append=False))
        for begin, end in zip(edges[0::2].tolist(), edges[1::2].tolist(), strict=True):
            text = "".join(self._characters[i] for i in ids[begin:end].tolist())
            starts[begin:end] = False
            starts[
                [begin + before for before in itertools.accumulate(self._word_sizes(text), initial=0)][:-1]
            ] = True
        starts[edges[1::2][edges[1::2] < len(ids)]] = True  # what follows a run is no part of its last word
        return starts

    def _word_sizes(self, text: str) -> list[int]:
        return [len(word) for word in self._cut(text)]


def _character(token: str) -> str:
    """The one Chinese character that a piece is, or an empty string."""
    plain = token.removeprefix("##")
    if len(plain) == 1 and any(ord(plain) in part for part in IDEOGRAPHS):
        return plain
    return ""
