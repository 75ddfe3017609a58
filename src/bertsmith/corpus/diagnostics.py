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
# With more documents of one sentence, next-sentence pairs are too few to learn from.
_MAX_ONE_SENTENCE_RATIO = 0.5
# A single document with at least this many sentences is taken for a book with chapters.
_MIN_BOOK_SENTENCES = 50


def required_settings(shards: Shards) -> dict[str, str]:
    """Return the settings that pre-training on this corpus needs; {} if the defaults work."""
    num_different = len(np.unique(shards.hashes))
    if num_different < 2:
        return NO_PAIR_SETTINGS
    if _one_sentence_ratio(shards) > _MAX_ONE_SENTENCE_RATIO:
        return FULL_SENTENCE_SETTINGS
    return NO_VALIDATION_SETTINGS if num_different < MIN_DOCUMENTS else {}


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
    num_different, num_sentences = len(np.unique(shards.hashes)), int(shards.counts.get("sentences", 0))
    settings = format_settings(required_settings(shards))
    if num_different < 2:
        units = "chapters" if num_sentences >= _MIN_BOOK_SENTENCES else "documents"
        problem = f"all the text is one document of {pluralize(num_sentences, 'sentence')}"
        if len(shards.hashes) > 1:
            problem = f"all {len(shards.hashes):,} documents are equal, or parts of one"
        yield (
            f"{problem}: next-sentence pairs and validation need another one. Put blank lines between the {units} "
            f"and prepare again (with documents=line, each line is a document), or train with {settings}"
        )
    elif _one_sentence_ratio(shards) > _MAX_ONE_SENTENCE_RATIO:
        yield (
            f"{_one_sentence_ratio(shards):.0%} of the {pluralize(len(shards.hashes), 'document')} have one "
            f"sentence, which has no next one: train with {settings}"
        )
    elif num_different < MIN_DOCUMENTS:
        yield (
            f"{pluralize(num_different, 'different document')}: too few to hold some out. Put blank lines between "
            f"documents and prepare again, or train with {settings}"
        )


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


def _one_sentence_ratio(shards: Shards) -> float:
    lengths = np.diff(shards.document_sentence_offsets)
    return float((lengths == 1).mean()) if len(lengths) else 0.0
