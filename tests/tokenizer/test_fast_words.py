"""Distinct words encoded once: the ids are the library's, whatever the text."""

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


def same(tokenizer: Tokenizer, encoder: WordEncoder, texts: list[str]) -> None:
    expected = tokenizer.pieces(texts)
    ids, lengths = encoder.encode(texts)
    assert lengths.tolist() == [len(found) for found in expected]
    assert ids.tolist() == [i for found in expected for i in found]


@pytest.fixture(scope="module", params=["uncased", "cased", "chinese"])
def published(request: pytest.FixtureRequest, shared_data: Path) -> Tokenizer:
    return Tokenizer.load(
        shared_data / f"vocabs/bert-base-{request.param}", lowercase=request.param != "cased"
    )


def test_the_samples_give_the_library_s_ids(shared_data: Path, published: Tokenizer) -> None:
    encoder = WordEncoder(published)
    for name in ("english", "chinese", "mixed"):
        lines = (shared_data / f"corpora/sample/{name}.txt").read_bytes().decode().split("\n")
        same(published, encoder, lines)


def test_every_character_between_letters_gives_the_library_s_ids(published: Tokenizer) -> None:
    points = [c for c in range(0x110000) if c < 0x3000 or 0xFE00 <= c < 0x10000 or c % 61 == 0]
    characters = [chr(c) for c in points if not 0xD800 <= c < 0xE000]
    same(published, WordEncoder(published), [f"a{c}b {c}{c} c" for c in characters])


@pytest.mark.slow
def test_all_scalars_give_the_library_s_ids(published: Tokenizer) -> None:
    characters = [chr(c) for c in range(0x110000) if not 0xD800 <= c < 0xE000]
    for at in range(0, len(characters), 1 << 16):
        same(published, WordEncoder(published), [f"a{c}b {c}" for c in characters[at : at + (1 << 16)]])


@settings(max_examples=300, deadline=None)
@given(
    st.lists(
        st.text(alphabet="ab!?,.- \n\t\r\x00中文é“—\u0301\u200b[MASK]", max_size=30), min_size=1, max_size=5
    )
)
@pytest.mark.parametrize("lowercase", [True, False])
def test_any_texts_give_the_library_s_ids(lowercase: bool, texts: list[str]) -> None:
    tokenizer = Tokenizer.of_vocabulary(PIECES, lowercase=lowercase)
    same(tokenizer, WordEncoder(tokenizer), texts)


def test_what_is_forgotten_is_learnt_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fast_words, "_KEPT", 8)
    tokenizer = Tokenizer.of_vocabulary(PIECES, lowercase=True)
    encoder = WordEncoder(tokenizer)
    for text in ("a b ab aba ! a", "ba bb aa ab ! ?", "a b, ba", "a a a a"):
        same(tokenizer, encoder, [text, "!", ""])


def test_a_vocabulary_without_signs_is_encoded_run_by_run() -> None:
    tokenizer = Tokenizer.of_vocabulary([p for p in PIECES if p not in "!?,.-"], lowercase=True)
    same(tokenizer, WordEncoder(tokenizer), ["a b! ab, aba", "!", ". a"])


def test_only_bert_s_own_borders_may_be_cut() -> None:
    tokenizer = Tokenizer.of_vocabulary(PIECES, lowercase=True)
    assert can_encode(tokenizer)
    other = tokenizer.definition.replace('"BertPreTokenizer"', '"Whitespace"')
    assert not can_encode(
        Tokenizer(
            other, 512, {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
        )
    )


def test_the_signs_are_words_of_their_own_for_the_library() -> None:
    from tokenizers import pre_tokenizers

    from bertsmith.tokenizer.normalizer import bert_normalizer

    normalizer, borders = bert_normalizer(lowercase=True), pre_tokenizers.BertPreTokenizer()
    for point in np.flatnonzero(fast_words._wide_marks(ideographs=True)):
        parts = [word for word, _ in borders.pre_tokenize_str(normalizer.normalize_str(f"a{chr(point)}b"))]
        assert (parts[0], parts[-1]) == ("a", "b"), hex(point)
        assert len(parts) >= 3, hex(point)
