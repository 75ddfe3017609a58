"""Warnings about a prepared corpus, and the settings of `pretrain` that it needs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import numpy as np

from bertsmith.formatting import pluralize
from bertsmith.tokenizer.script_coverage import recommended_options, script_ratios

if TYPE_CHECKING:
    from bertsmith.corpus.shards import Shards

MAX_UNKNOWN_RATIO = 0.02
"""The fraction of unknown tokens above which the tokenizer does not fit the text."""
MIN_DOCUMENTS = 4
"""The number of different documents that next-sentence pairs for training and validation need."""
NO_PAIR_SETTINGS = {"data.sentence_task": "none", "data.validation_split": "0"}
"""The settings for a single document."""
NO_VALIDATION_SETTINGS = {"data.validation_split": "0"}
"""The settings for two or three documents."""
FULL_SENTENCE_SETTINGS = {"data.sentence_task": "none", "data.instances": "full_sentences"}
"""The settings for documents of one sentence."""
MAX_ONE_SENTENCE_RATIO = 0.5
"""With more documents of one sentence, next-sentence pairs are too few to learn from."""


def required_settings(shards: Shards) -> dict[str, str]:
    """Return the settings that pre-training on this corpus needs; {} if the defaults work."""
    return _assess(shards)[1]


def _assess(shards: Shards) -> tuple[str, dict[str, str]]:
    """Return a problem of the documents, and the settings without it; "" and {} if the defaults work."""
    num_different = len(np.unique(shards.hashes))
    one_sentence_ratio = float((np.diff(shards.document_sentence_offsets) == 1).mean())
    separate = "put blank lines between documents and prepare again (with documents=line, each line is one)"
    if num_different < 2:
        problem = "all the text is one document: next-sentence pairs and validation need another one"
        return f"{problem}; {separate}", NO_PAIR_SETTINGS
    if one_sentence_ratio > MAX_ONE_SENTENCE_RATIO:
        documents = pluralize(len(shards.hashes), "document")
        problem = f"{one_sentence_ratio:.0%} of the {documents} have one sentence, which has no next one"
        return f"{problem}; give complete documents", FULL_SENTENCE_SETTINGS
    if num_different < MIN_DOCUMENTS:
        problem = f"{pluralize(num_different, 'different document')}: too few to hold some out"
        return f"{problem}; {separate}", NO_VALIDATION_SETTINGS
    return "", {}


def format_settings(settings: Mapping[str, str]) -> str:
    """Return settings as text: "data.sentence_task=none and data.validation_split=0"."""
    return " and ".join(f"{name}={value}" for name, value in settings.items())


def corpus_warnings(shards: Shards, characters: Mapping[str, int]) -> Iterator[str]:
    """Yield warnings about training on a corpus.

    Args:
        shards: The corpus.
        characters: Counts of each character, at least at the start of the text.
    """
    yield from unknown_token_warnings(shards.counts, characters)
    problem, settings = _assess(shards)
    if problem:
        yield f"{problem}, or train with {format_settings(settings)}"


def unknown_token_warnings(
    counts: Mapping[str, int], characters: Mapping[str, int] | None = None
) -> Iterator[str]:
    """Yield a warning if many tokens of a corpus with these counts are unknown to its tokenizer."""
    ratio = counts.get("unknown", 0) / max(1, counts.get("tokens", 0))
    if ratio > MAX_UNKNOWN_RATIO:
        needed = recommended_options(script_ratios(characters or {}))
        options = f" with {needed[0]}" if needed else ""
        yield (
            f"{ratio:.1%} of the tokens are unknown to this tokenizer, and the model learns nothing about them: "
            f"train a tokenizer on this text{options} and prepare again with it"
        )
