"""Vectors of texts that are given as token ids, and vectors of tokens."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import bertsmith as bs
import tiny_run
from bertsmith.errors import InputError
from bertsmith.inference.embedding import TokenEmbedder
from bertsmith.inference.predictor import with_class

TEXT = " ".join(tiny_run.WORDS[:7])


def test_token_ids_have_the_vector_of_their_text(base: bs.Model) -> None:
    ids, with_special_tokens = base.tokenizer.encode_ids([TEXT])[0], base.tokenizer(TEXT).ids
    assert ids != with_special_tokens
    expected, *vectors = base.embedder().predict([TEXT, ids, with_special_tokens, [*ids, *ids]])
    np.testing.assert_array_equal(vectors[0], expected)
    np.testing.assert_array_equal(vectors[1], expected)
    assert not np.array_equal(vectors[2], expected)


def test_token_ids_are_truncated_as_their_text(base: bs.Model) -> None:
    ids = base.tokenizer.encode_ids([TEXT])[0]
    first, second = base.embedder(max_length=5).predict([TEXT, ids])
    np.testing.assert_array_equal(first, second)


def test_texts_are_truncated_at_the_left(base: bs.Model) -> None:
    ids = base.tokenizer.encode_ids([TEXT])[0]
    left = replace(base.embedder(max_length=5), truncation_side="left")
    (expected,) = base.embedder().predict([ids[-3:]])
    for vector in left.predict([TEXT, ids]):
        np.testing.assert_array_equal(vector, expected)


def test_a_long_text_is_an_error_without_truncation(base: bs.Model) -> None:
    whole = replace(base.embedder(max_length=5), truncation_side=None)
    assert len(whole.predict([tiny_run.WORDS[0]])) == 1
    for text in (TEXT, base.tokenizer.encode_ids([TEXT])[0]):
        with pytest.raises(InputError) as error:
            whole.predict([text])
        assert error.value.code == "text_too_long"


@pytest.mark.parametrize("token_id", [-1, 10**6])
def test_ids_of_another_tokenizer_are_an_error(base: bs.Model, token_id: int) -> None:
    with pytest.raises(InputError) as error:
        base.embedder().predict([[5, token_id]])
    assert error.value.code == "token_id_out_of_range"


def test_vectors_of_tokens_average_to_that_of_the_text(base: bs.Model) -> None:
    embedder = base.embedder("mean")
    tokens = with_class(embedder, TokenEmbedder)
    states = tokens.predict([TEXT, tiny_run.WORDS[8]])
    assert [len(state) for state in states] == [
        len(base.tokenizer(text).ids) for text in (TEXT, tiny_run.WORDS[8])
    ]
    np.testing.assert_allclose(states[0].mean(0), embedder.predict([TEXT])[0], rtol=1e-5, atol=1e-6)
