"""Test tokenizers at their limits: bytes that are no text, and words that are too long."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import bertsmith as bs
import tiny_run
from bertsmith.errors import InputError
from bertsmith.tokenizer.tokenizer import Tokenizer
from bertsmith.tokenizer.wordpiece import NormalizerName


@pytest.fixture(scope="module")
def byte_level(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder = tmp_path_factory.mktemp("bytes")
    (folder / "corpus.txt").write_text(tiny_run.corpus(), encoding="utf-8")
    return bs.train_tokenizer(folder / "corpus.txt", folder / "bpe", kind="byte_level_bpe", vocab_size=300)


@given(data=st.binary(max_size=60) | st.text(max_size=30).map(str.encode))
def test_any_bytes_come_back(byte_level: Tokenizer, data: bytes) -> None:
    """Also those that are not UTF-8, and those of special tokens."""
    assert byte_level.decode_bytes(byte_level.encode_bytes(data)) == data


def test_bytes_that_are_text_have_the_ids_of_the_text(byte_level: Tokenizer) -> None:
    text = "Kaba lode miso; kaba über <s> ka"
    assert byte_level.encode_bytes(text.encode()) == byte_level.encode_ids([text])[0]
    assert byte_level.decode_bytes(byte_level.encode_bytes(b"ka\xff\xc3(<mask>")) == b"ka\xff\xc3(<mask>"


def test_only_byte_level_tokenizers_read_bytes() -> None:
    for call in (
        lambda: tiny_run.tokenizer().encode_bytes(b"ka"),
        lambda: tiny_run.tokenizer().decode_bytes([1_0]),
    ):
        with pytest.raises(InputError) as caught:
            call()
        assert caught.value.code == "tokenizer_not_byte_level"


@pytest.mark.parametrize(("normalizer", "longest"), [("hf", 100), ("google", 200)])
def test_a_word_is_read_up_to_the_length_of_transformers_or_of_the_release(
    normalizer: NormalizerName, longest: int
) -> None:
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "##a"]
    tokenizer = Tokenizer.from_vocabulary(tokens, lowercase=True, normalizer=normalizer)
    assert tokenizer.encode_ids(["a" * longest]) == [[5] + [6] * (longest - 1)]
    assert tokenizer.encode_ids(["a" * (longest + 1)]) == [[1]]
