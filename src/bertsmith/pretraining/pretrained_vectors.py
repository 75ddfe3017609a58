"""`start.token_vectors`: the vectors of a file of words → the first vectors of the tokens that are these words."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from bertsmith.errors import InputError
from bertsmith.formatting import counted
from bertsmith.io.word_vectors import read_word_vectors
from bertsmith.tokenizer.tokenizer import Tokenizer


def token_vectors(
    file: str, tokenizer: Tokenizer, width: int, tell: Callable[[str], None]
) -> NDArray[np.float32]:
    """A vector for each token, [V, width], zeros for tokens that the file does not have; how many it has is told.

    A token has the vector of its own name (`##ing`, `Ġthe`), else of the word that it begins or is ("the").
    InputError where the file has vectors of another width, or none of the tokens.
    """
    names = _names(tokenizer)
    found = read_word_vectors(file, {name for some in names.values() for name in some})
    if found.width != width:
        raise InputError(
            f"{file}: its vectors have {counted(found.width, 'number')}, and the token table has {width} columns",
            f"take vectors of {width}, or a model as wide (model.hidden_size, or model.embedding_size in families "
            "that have one)",
        )
    vectors = np.zeros((tokenizer.vocab_size, width), dtype=np.float32)
    for token, some in names.items():
        if known := [found.vectors[name] for name in some if name in found.vectors]:
            vectors[token] = known[0]
    given = int(vectors.any(1).sum())
    if not given or not np.ptp(vectors[vectors.any(1)]):
        what = (
            "none of its words is a token of the vocabulary" if not given else "its numbers are all the same"
        )
        raise InputError(f"{file}: {what}", "take vectors of the corpus's language and case")
    tell(
        f"{file}: {given:,} of {counted(len(names), 'token')} begin with its vectors, scaled to the deviation of "
        f"drawn ones; {len(names) - given:,} have none there, and begin as they would without it"
    )
    return vectors


def _names(tokenizer: Tokenizer) -> dict[int, list[str]]:
    """Under which names each token may be in a file, the best first; special tokens have none."""
    names: dict[int, list[str]] = {}
    for number, token in enumerate(tokenizer.tokens):
        if number in tokenizer.special_ids:
            continue
        spelt = token.replace("▁", " ") if tokenizer.kind == "unigram" else token
        if tokenizer.kind == "byte_level_bpe":
            spelt = tokenizer.decode([number])
        names[number] = [token, spelt[1:]] if spelt.startswith(" ") and len(spelt) > 1 else [token]
    return names
