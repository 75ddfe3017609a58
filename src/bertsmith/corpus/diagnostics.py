"""What a prepared corpus allows: what to say of it, and the settings of `pretrain` that it needs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from bertsmith.formatting import counted
from bertsmith.tokenizer.script_coverage import fitting_options, script_shares

UNKNOWN_SHARE = 0.02
"""Of the tokens: where more are unknown, the tokenizer does not fit the text."""
FEW_DOCUMENTS = 4
"""Different documents that next-sentence pairs of both sides are made of; with fewer none can be held out."""
NO_PAIRS = {"data.sentence_task": "none", "data.held_out": "0"}
"""What a single document is trained with."""
NOT_HELD_OUT = {"data.held_out": "0"}
"""What two or three documents are trained with."""
FULL_SENTENCES = {"data.sentence_task": "none", "data.instances": "full_sentences"}
"""What documents of one sentence are trained with."""
_ONE_SENTENCE = 0.5  # of the documents: with more, next sentences are too few to learn from
_LONG_DOCUMENT = 50  # sentences, from which on a single document is a book and not a note


class Prepared(Protocol):
    """What is asked of shards."""

    hashes: NDArray[np.uint64]
    document_sentences: NDArray[np.int64]
    counts: dict[str, int]


def needed_settings(shards: Prepared) -> dict[str, str]:
    """The settings without which this corpus cannot be pre-trained on, or learns nothing of what they are about;
    {} where the usual ones do."""
    different = len(np.unique(shards.hashes))
    if different < 2:
        return NO_PAIRS
    if _of_one_sentence(shards) > _ONE_SENTENCE:
        return FULL_SENTENCES
    return NOT_HELD_OUT if different < FEW_DOCUMENTS else {}


def as_options(settings: Mapping[str, str]) -> str:
    """Settings as the command line takes them."""
    return " ".join(f"--set {name}={value}" for name, value in settings.items())


def remarks(shards: Prepared, characters: Mapping[str, int]) -> Iterator[str]:
    """What a user should know before training on it, a sentence each.

    characters: how often each one occurs, at least at the beginning of the text.
    """
    yield from unknown_tokens(shards.counts, characters)
    different, sentences = len(np.unique(shards.hashes)), int(shards.counts.get("sentences", 0))
    settings = as_options(needed_settings(shards))
    if different < 2:
        book = sentences >= _LONG_DOCUMENT
        parted = "put blank lines between its chapters" if book else "put blank lines between the documents"
        whole = f"all the text is one document of {counted(sentences, 'sentence')}"
        if len(shards.hashes) > 1:
            whole = f"all {len(shards.hashes):,} documents are equal, or parts of one"
        yield (
            f"{whole}: no other one for next-sentence "
            f"pairs, none to hold out. {parted.capitalize()} and prepare again (--documents line: each line is a "
            f"document), or train with {settings}"
        )
    elif _of_one_sentence(shards) > _ONE_SENTENCE:
        yield (
            f"{_of_one_sentence(shards):.0%} of the {counted(len(shards.hashes), 'document')} have one sentence, "
            f"which has no next one: train with {settings}"
        )
    elif different < FEW_DOCUMENTS:
        yield (
            f"{counted(different, 'different document')}: too few to hold some out. Put blank lines between "
            f"documents and prepare again, or train with {settings}"
        )


def unknown_tokens(counts: Mapping[str, int], characters: Mapping[str, int] | None = None) -> Iterator[str]:
    """A remark where many tokens of a corpus with these counts are unknown to its tokenizer."""
    share = counts.get("unknown", 0) / max(1, counts.get("tokens", 0))
    if share > UNKNOWN_SHARE:
        needed = fitting_options(script_shares(characters or {}))
        options = f" with {needed[0]}" if needed else ""
        yield (
            f"{share:.1%} of the tokens are unknown to this tokenizer, and nothing is learnt of them: train one "
            f"on this text (bertsmith tokenizer train{options}) and prepare again with it"
        )


def _of_one_sentence(shards: Prepared) -> float:
    number = np.diff(shards.document_sentences)
    return float((number == 1).mean()) if len(number) else 0.0
