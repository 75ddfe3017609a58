"""Word starts in sequences of token ids: as the tokenizer marks them, and for Chinese from a segmenter.

A Chinese BERT has a token for each character. To mask whole words (`data.word_segmenter=jieba`), consecutive
Chinese characters are segmented with jieba's dictionary when masks are drawn. This depends only on the ids, so the
same ids have the same words in every epoch, batch, and process.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from bertsmith.corpus.tokenized_corpus import IntArray
from bertsmith.errors import InputError, option
from bertsmith.instances.settings import DataSettings
from bertsmith.io.unicode_scripts import IDEOGRAPHS
from bertsmith.tokenizer.tokenizer import Tokenizer


def word_start_function(
    tokenizer: Tokenizer, settings: DataSettings
) -> Callable[[IntArray], NDArray[np.bool_]] | None:
    """Return a function from ids [N] to bool [N], the tokens that start a word; None for token masks."""
    if settings.masking == "token":
        return None
    return ChineseWordStarts(tokenizer) if settings.word_segmenter == "jieba" else tokenizer.word_starts


class ChineseWordStarts:
    """Compute word starts as `tokenizer.word_starts`, but join consecutive Chinese characters into words."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        """Load the segmenter.

        Raises:
            InputError: The segmenter is not installed, or the vocabulary has no Chinese characters.
        """
        try:
            import rjieba
        except ImportError:
            message = "the word segmenter jieba needs a package that is not installed"
            hint = f"run pip install 'bertsmith[zh]', or set {option('data.word_segmenter', 'none')}"
            raise InputError("jieba_missing", message, argument="data.word_segmenter", hint=hint) from None
        self._segment: Callable[[str], list[str]] = rjieba.cut
        self._word_starts = tokenizer.word_starts
        self._characters = [_chinese_character(token) for token in tokenizer.tokens]
        self._is_chinese = np.array([character != "" for character in self._characters], dtype=np.bool_)
        if not self._is_chinese.any():
            message = "jieba joins Chinese characters, and this vocabulary has none"
            hint = f"set {option('data.word_segmenter', 'none')}"
            raise InputError("no_chinese_characters", message, argument="data.word_segmenter", hint=hint)

    def __call__(self, ids: IntArray) -> NDArray[np.bool_]:
        """Return True for tokens that start a word: ids [N] → bool [N]."""
        word_starts = self._word_starts(ids).copy()
        is_chinese = self._is_chinese[ids]
        edges = np.flatnonzero(np.diff(is_chinese, prepend=False, append=False))
        run_starts, run_ends = edges[0::2], edges[1::2]
        for start, end in zip(run_starts.tolist(), run_ends.tolist(), strict=True):
            text = "".join(self._characters[i] for i in ids[start:end].tolist())
            offsets = itertools.accumulate(map(len, self._segment(text)), initial=start)
            word_starts[start:end] = False
            word_starts[list(offsets)[:-1]] = True
        word_starts[run_ends[run_ends < len(ids)]] = (
            True  # the token behind a run is not part of its last word
        )
        return word_starts


def _chinese_character(token: str) -> str:
    """Return the character of a token that is a single Chinese character, or an empty string."""
    text = token.removeprefix("##")
    if len(text) == 1 and any(ord(text) in block for block in IDEOGRAPHS):
        return text
    return ""
