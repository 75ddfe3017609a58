"""Chinese words at mask time: runs of characters as jieba reads them, pure in the ids."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from bertsmith.errors import InputError
from bertsmith.instances.settings import DataSettings
from bertsmith.instances.word_boundaries import ChineseWords, word_borders
from bertsmith.tokenizer.tokenizer import Tokenizer

TEXT = "地球是太阳系八大行星之一"
TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "bert", "##s", "。", *dict.fromkeys(TEXT)]
TOKENIZER = Tokenizer.of_vocabulary(TOKENS, lowercase=True)


def words(*texts: str) -> list[str]:
    ids = [TOKENIZER.cls_id]
    for text in texts:
        ids += [*TOKENIZER.pieces([text])[0], TOKENIZER.sep_id]
    starts = ChineseWords(TOKENIZER)(np.array(ids))
    parts = np.split(np.array(ids), np.flatnonzero(starts)[1:])
    return ["".join(TOKENS[i].removeprefix("##") for i in part) for part in parts]


def test_characters_become_words() -> None:
    rjieba = pytest.importorskip("rjieba")
    cut = list(rjieba.cut(TEXT))
    assert "太阳系" in cut
    assert words(TEXT) == ["[CLS]", *cut, "[SEP]"]
    # A special token, a Latin word and a full stop end a run; pieces of a Latin word stay together.
    expected = ["[CLS]", "太阳系", "berts", "地球", "。", "[SEP]", "太阳", "[SEP]", "系", "[SEP]"]
    assert words("太阳系berts地球。", "太阳", "系") == expected


def test_the_settings_choose_the_borders() -> None:
    pytest.importorskip("rjieba")
    assert word_borders(TOKENIZER, DataSettings()) is None
    plain = word_borders(TOKENIZER, DataSettings.of({"masking": "whole_word"}, "test"))
    assert plain is not None
    assert plain(np.array([8, 9])).tolist() == [True, True]
    chinese = word_borders(TOKENIZER, DataSettings.of({"masking": "span", "word_segmenter": "jieba"}, "test"))
    assert isinstance(chinese, ChineseWords)
    assert chinese(np.array([8, 9])).tolist() == [True, False]


def test_what_is_missing_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("rjieba")
    with pytest.raises(InputError, match="this vocabulary has none"):
        ChineseWords(Tokenizer.of_vocabulary(TOKENS[:7], lowercase=True))
    monkeypatch.setitem(sys.modules, "rjieba", None)
    with pytest.raises(InputError) as told:
        ChineseWords(TOKENIZER)
    assert told.value.remedy is not None
    assert "pip install 'bertsmith[zh]'" in told.value.remedy
