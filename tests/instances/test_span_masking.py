"""Word starts in Chinese text: runs of characters are segmented by jieba, from the ids alone."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from bertsmith.errors import InputError
from bertsmith.instances.settings import DataSettings
from bertsmith.instances.span_masking import ChineseWordStarts, word_start_function
from bertsmith.tokenizer.tokenizer import Tokenizer

TEXT = "地球是太阳系八大行星之一"
TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "bert", "##s", "。", *dict.fromkeys(TEXT)]
TOKENIZER = Tokenizer.from_vocabulary(TOKENS, lowercase=True)


def words(*texts: str) -> list[str]:
    ids = [TOKENIZER.cls_token_id]
    for text in texts:
        ids += [*TOKENIZER.encode_ids([text])[0], TOKENIZER.sep_token_id]
    starts = ChineseWordStarts(TOKENIZER)(np.array(ids))
    parts = np.split(np.array(ids), np.flatnonzero(starts)[1:])
    return ["".join(TOKENS[i].removeprefix("##") for i in part) for part in parts]


def test_characters_become_words() -> None:
    rjieba = pytest.importorskip("rjieba")
    segmented = list(rjieba.cut(TEXT))
    assert "太阳系" in segmented
    assert words(TEXT) == ["[CLS]", *segmented, "[SEP]"]
    # A special token, a Latin word, and a full stop end a run; pieces of a Latin word stay in one word.
    expected = ["[CLS]", "太阳系", "berts", "地球", "。", "[SEP]", "太阳", "[SEP]", "系", "[SEP]"]
    assert words("太阳系berts地球。", "太阳", "系") == expected


def test_the_settings_select_the_function() -> None:
    pytest.importorskip("rjieba")
    assert word_start_function(TOKENIZER, DataSettings()) is None
    plain = word_start_function(TOKENIZER, DataSettings.of({"masking": "whole_word"}, "test"))
    assert plain is not None
    assert plain(np.array([8, 9])).tolist() == [True, True]
    chinese = word_start_function(
        TOKENIZER, DataSettings.of({"masking": "span", "word_segmenter": "jieba"}, "test")
    )
    assert isinstance(chinese, ChineseWordStarts)
    assert chinese(np.array([8, 9])).tolist() == [True, False]


def test_a_missing_segmenter_and_a_vocabulary_without_chinese(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("rjieba")
    with pytest.raises(InputError) as caught:
        ChineseWordStarts(Tokenizer.from_vocabulary(TOKENS[:7], lowercase=True))
    assert (caught.value.code, caught.value.argument) == ("no_chinese_characters", "data.word_segmenter")
    monkeypatch.setitem(sys.modules, "rjieba", None)
    with pytest.raises(InputError) as caught:
        ChineseWordStarts(TOKENIZER)
    assert (caught.value.code, caught.value.argument) == ("jieba_missing", "data.word_segmenter")
