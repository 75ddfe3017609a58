"""`start.token_vectors`: the vectors of a file of words → the first vectors of the tokens that are these words."""

from __future__ import annotations

import logging

import numpy as np
from numpy.typing import NDArray

from bertsmith.errors import InputError
from bertsmith.formatting import pluralize
from bertsmith.io.word_vectors import read_word_vectors
from bertsmith.tokenizer.tokenizer import Tokenizer

logger = logging.getLogger(__name__)


def token_vectors(file: str, tokenizer: Tokenizer, width: int) -> NDArray[np.float32]:
    """A vector for each token, [V, width], zeros for tokens that the file does not have; logs how many it has.

    A token has the vector of its own name (`##ing`, `Ġthe`), else of the word that it begins or is ("the").
    InputError where the file has vectors of another width, or none of the tokens.
    """
    names = _names(tokenizer)
    found = read_word_vectors(file, {name for some in names.values() for name in some})
    if found.width != width:
        raise InputError(
            "vector_length_differs",
            f"the vectors have {pluralize(found.width, 'number')}, and the token table has {width} columns",
            location=file,
            argument="start.token_vectors",
            hint=f"use vectors of {width} numbers, or a model as wide as the vectors (model.hidden_size, or "
            "model.embedding_size in families that have one)",
        )
    vectors = np.zeros((tokenizer.vocab_size, width), dtype=np.float32)
    for token, some in names.items():
        if known := [found.vectors[name] for name in some if name in found.vectors]:
            vectors[token] = known[0]
    given = int(vectors.any(1).sum())
    if not given or not np.ptp(vectors[vectors.any(1)]):
        raise InputError(
            "no_usable_vectors",
            "all numbers are the same" if given else "none of the words is a token of the vocabulary",
            location=file,
            argument="start.token_vectors",
            hint="use vectors of the language and the case of the corpus",
        )
    logger.info(
        "%s: %s of %s start from the vectors of this file, scaled to the deviation of random ones; the other %s "
        "start as without the file",
        file,
        f"{given:,}",
        pluralize(len(names), "token"),
        f"{len(names) - given:,}",
    )
    return vectors


def _names(tokenizer: Tokenizer) -> dict[int, list[str]]:
    """Under which names each token may be in a file, the best first; special tokens have none."""
    names: dict[int, list[str]] = {}
    for number, token in enumerate(tokenizer.tokens):
        if number in tokenizer.all_special_ids:
            continue
        spelt = token.replace("▁", " ") if tokenizer.kind == "unigram" else token
        if tokenizer.kind == "byte_level_bpe":
            spelt = tokenizer.decode([number])
        names[number] = [token, spelt[1:]] if spelt.startswith(" ") and len(spelt) > 1 else [token]
    return names
