"""WordEncoder: its ids equal the backend's for any text."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertsmith.tokenizer import fast_words
from bertsmith.tokenizer.fast_words import WordEncoder, can_encode
from bertsmith.tokenizer.tokenizer import Tokenizer

PIECES = [
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "[MASK]",
    *"ab!?,.-中文é",
    "##a",
    "##b",
    "##é",
    "ab",
    "aba",
    "“",
    "——",
]


def assert_same_ids(tokenizer: Tokenizer, encoder: WordEncoder, texts: list[str]) -> None:
    expected = tokenizer.encode_ids(texts)
    ids, lengths = encoder.encode(texts)
    assert lengths.tolist() == [len(row) for row in expected]
    assert ids.tolist() == [i for row in expected for i in row]


@pytest.fixture(scope="module", params=["uncased", "cased", "chinese"])
def published(request: pytest.FixtureRequest, shared_data: Path) -> Tokenizer:
    return Tokenizer.load(
        shared_data / f"vocabs/bert-base-{request.param}", lowercase=request.param != "cased"
    )


def test_samples(shared_data: Path, published: Tokenizer) -> None:
    encoder = WordEncoder(published)
    for name in ("english", "chinese", "mixed"):
        lines = (shared_data / f"corpora/sample/{name}.txt").read_bytes().decode().split("\n")
        assert_same_ids(published, encoder, lines)


def test_characters_between_letters(published: Tokenizer) -> None:
    points = [c for c in range(0x110000) if c < 0x3000 or 0xFE00 <= c < 0x10000 or c % 61 == 0]
    characters = [chr(c) for c in points if not 0xD800 <= c < 0xE000]
    assert_same_ids(published, WordEncoder(published), [f"a{c}b {c}{c} c" for c in characters])


@pytest.mark.slow
def test_all_scalars(published: Tokenizer) -> None:
    characters = [chr(c) for c in range(0x110000) if not 0xD800 <= c < 0xE000]
    for start in range(0, len(characters), 1 << 16):
        assert_same_ids(
            published, WordEncoder(published), [f"a{c}b {c}" for c in characters[start : start + (1 << 16)]]
        )


@settings(max_examples=300, deadline=None)
@given(
    st.lists(
        st.text(alphabet="ab!?,.- \n\t\r\x00中文é“—\u0301\u200b[MASK]", max_size=30), min_size=1, max_size=5
    )
)
@pytest.mark.parametrize("lowercase", [True, False])
def test_any_texts(lowercase: bool, texts: list[str]) -> None:
    tokenizer = Tokenizer.from_vocabulary(PIECES, lowercase=lowercase)
    assert_same_ids(tokenizer, WordEncoder(tokenizer), texts)


def test_evicted_runs_are_encoded_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fast_words, "_MAX_CACHED_RUNS", 8)
    tokenizer = Tokenizer.from_vocabulary(PIECES, lowercase=True)
    encoder = WordEncoder(tokenizer)
    for text in ("a b ab aba ! a", "ba bb aa ab ! ?", "a b, ba", "a a a a"):
        assert_same_ids(tokenizer, encoder, [text, "!", ""])


def test_vocabulary_without_punctuation() -> None:
    tokenizer = Tokenizer.from_vocabulary([p for p in PIECES if p not in "!?,.-"], lowercase=True)
    assert not can_encode(tokenizer)


def test_can_encode_only_with_the_bert_pre_tokenizer() -> None:
    tokenizer = Tokenizer.from_vocabulary(PIECES, lowercase=True)
    assert can_encode(tokenizer)
    other = tokenizer.definition.replace('"BertPreTokenizer"', '"Whitespace"')
    assert not can_encode(
        Tokenizer(
            other, 512, {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
        )
    )


def test_three_byte_runs_are_words_of_the_backend() -> None:
    from tokenizers import pre_tokenizers

    from bertsmith.tokenizer.wordpiece import bert_normalizer

    normalizer, pre_tokenizer = bert_normalizer(lowercase=True), pre_tokenizers.BertPreTokenizer()
    for point in np.flatnonzero(fast_words._three_byte_runs(ideographs=True)):
        parts = [
            word for word, _ in pre_tokenizer.pre_tokenize_str(normalizer.normalize_str(f"a{chr(point)}b"))
        ]
        assert (parts[0], parts[-1]) == ("a", "b"), hex(point)
        assert len(parts) >= 3, hex(point)
