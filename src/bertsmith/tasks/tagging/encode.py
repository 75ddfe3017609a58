"""Sentences as items: windows of tokens, in each of which some words' tags are read at their first tokens.

Words are joined by a space, and a word's tag is read at its first token, as in the paper. A sentence that is too
long for the model is read in overlapping windows, and each word in the window where it has the most context. For
semantic roles the predicate is the second text.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from bertsmith.errors import InputError, option
from bertsmith.models.config import ModelConfig
from bertsmith.tasks.base import TaskEncoder
from bertsmith.tasks.batching import Item
from bertsmith.tasks.tagging.data import TagMap
from bertsmith.tasks.tagging.sentences import TagExample, split_as_in_training
from bertsmith.tasks.windows import NO_LIMIT, Coverage, best_windows, split_windows
from bertsmith.tokenizer.tokenizer import Encoding, Tokenizer


@dataclass(frozen=True)
class TagItem(Item):
    """A window of a sentence. `target`: the label id of each of `words`.

    Attributes:
        words: The indices of the words whose tags are read in this window.
        token_indices: The index of each word's first token in the window.
        tokens: The number of tokens of the sentence.
        length: The number of words of the sentence.
    """

    words: tuple[int, ...] = ()
    token_indices: tuple[int, ...] = ()
    tokens: int = 0
    length: int = 0


class TagEncoder(TaskEncoder):
    """Encodes sentences as `[CLS] words [SEP]`, for semantic roles as `[CLS] words [SEP] predicate [SEP]`."""

    def __init__(self, config: ModelConfig, metadata: Mapping[str, Any], settings: Any) -> None:
        super().__init__(config, metadata, settings)
        self._tag_map = TagMap(metadata)

    def encode(self, examples: Sequence[TagExample], tokenizer: Tokenizer) -> list[Item]:
        """Return the windows of each sentence; none for a sentence without tokens."""
        examples = split_as_in_training(examples, self.metadata)
        self._check_predicates(examples)
        texts = [" ".join(example.words) for example in examples]
        predicates = [e.words[e.predicate] for e in examples if e.predicate is not None] or None
        encodings = tokenizer.encode_batch(texts, predicates, max_length=NO_LIMIT)
        return [
            item
            for index, (example, encoding) in enumerate(zip(examples, encodings, strict=True))
            for item in self._windows(index, example, encoding)
        ]

    def coverage(self, items: Sequence[Item]) -> Coverage:
        """Return the coverage of a sentence: all tokens are read, and the tags of all words with a token."""
        tag_items = [item for item in items if isinstance(item, TagItem)]
        tokens, words = tag_items[0].tokens, sum(len(item.words) for item in tag_items)
        return Coverage(tokens, tokens, words, words)

    def _windows(self, index: int, example: TagExample, encoding: Encoding) -> Iterator[TagItem]:
        words, tokens = first_tokens(example.words, encoding)
        if not len(words):
            return
        ids = None if example.tags is None else self._tag_map.label_ids(example.tags)
        windows = split_windows(encoding, self.max_length, location=example.location)
        window_of_word = best_windows(windows)[tokens]
        for i, window in enumerate(windows):
            in_window = window_of_word == i
            if not in_window.any():
                continue  # all its words have more context in other windows
            token_indices = tokens[in_window] - window.text_start + window.sequence_start
            indices = tuple(words[in_window].tolist())
            yield TagItem(
                index,
                (window.sequence,),
                None if ids is None else tuple(ids[word] for word in indices),
                text_start=window.text_start,
                words=indices,
                token_indices=tuple(token_indices.tolist()),
                tokens=encoding.sequence_ids.count(0),
                length=len(example.words),
            )

    def _check_predicates(self, examples: Sequence[TagExample]) -> None:
        """Raise InputError if examples lack a predicate that the model needs, or have one that it does not."""
        needs_predicate = bool(self.metadata.get("roles"))
        for example in examples:
            if needs_predicate and example.predicate is None and example.words:
                raise InputError(
                    "predicate_missing",
                    "this model labels the roles of a predicate, and this sentence has none",
                    location=example.location,
                    argument="predicate_column",
                    hint="give the index of each sentence's predicate, from 0",
                )
            if not needs_predicate and example.predicate is not None:
                raise InputError(
                    "predicates_unsupported",
                    "this sentence has a predicate with its roles, and this model was trained on other tags",
                    location=example.location,
                    argument="tag_column",
                    hint=f"name the column of the tags with {option('tag_column')}",
                )


def first_tokens(words: Sequence[str], encoding: Encoding) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the indices of the words that have a token, and of the first token of each.

    A token belongs to the word in which it begins. One that begins with the space before a word (byte-level BPE,
    Unigram) belongs to that word.

    Args:
        words: The words.
        encoding: The encoding of the words joined by a space.
    """
    ends = np.cumsum([len(word) + 1 for word in words]) - 1
    starts = [
        begin
        for (begin, _), source in zip(encoding.offsets, encoding.sequence_ids, strict=True)
        if source == 0
    ]
    word_of_token = np.searchsorted(ends, np.array(starts, dtype=np.int64), side="right")
    indices, first = np.unique(word_of_token, return_index=True)
    is_word = indices < len(words)
    return indices[is_word].astype(np.int64), first[is_word].astype(np.int64)


def contiguous_runs(items: Sequence[Item]) -> dict[str, Tensor]:
    """Return the R runs of contiguous words in the windows of a batch.

    Returns:
        `cells`: the index of each word among all words of the batch, long [R, T], 0 after the end of a run;
        `lengths`: long [R]; `begins` and `ends`: float [R], 1 if a run begins or ends its sentence, else 0.
    """
    cells: list[Tensor] = []
    begins: list[float] = []
    ends: list[float] = []
    index = 0
    for item in items:
        assert isinstance(item, TagItem)
        words = np.array(item.words)
        for run in np.split(words, np.flatnonzero(np.diff(words) != 1) + 1):
            cells.append(torch.arange(index, index + len(run)))
            begins.append(float(run[0] == 0))
            ends.append(float(run[-1] == item.length - 1))
            index += len(run)
    return {
        "cells": pad_sequence(cells, batch_first=True),
        "lengths": torch.tensor([len(run) for run in cells]),
        "begins": torch.tensor(begins),
        "ends": torch.tensor(ends),
    }
