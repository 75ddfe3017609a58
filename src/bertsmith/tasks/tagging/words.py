"""Words and their tokens: which is whose, which window decides on a word, which words follow one another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from bertsmith.tasks.batching import Item
from bertsmith.tokenizer.tokenizer import Encoding


@dataclass(frozen=True)
class TagItem(Item):
    """A window, and what it decides: the tags of `words` (numbers in the sentence), read at `rows`. target: their
    ids. tokens, length: tokens and words of the whole sentence."""

    words: tuple[int, ...] = ()
    rows: tuple[int, ...] = ()
    tokens: int = 0
    length: int = 0


def first_tokens(words: Sequence[str], encoding: Encoding) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The words that have a token, and the number of the first token of each, special ones not counted.

    encoding: of the words joined by one blank. A token belongs to the word it begins in; one that begins with the
    blank in front of a word (byte-level BPE, Unigram) to that word.
    """
    ends = np.cumsum([len(word) + 1 for word in words]) - 1
    starts = [
        begin
        for (begin, _), source in zip(encoding.offsets, encoding.sequence_ids, strict=True)
        if source == 0
    ]
    of_token = np.searchsorted(ends, np.array(starts, dtype=np.int64), side="right")
    found, first = np.unique(of_token, return_index=True)
    inside = found < len(words)
    return found[inside].astype(np.int64), first[inside].astype(np.int64)


def runs_of(items: Sequence[Item]) -> dict[str, Tensor]:
    """The words of each window that follow one another, R runs: `cells` long [R, longest], each word's number
    among all words of the batch (0 behind a run's end); `lengths` long [R]; `begins` and `ends` float [R], 1
    where a run has its sentence's first word, or its last."""
    cells: list[Tensor] = []
    begins: list[float] = []
    ends: list[float] = []
    number = 0
    for item in items:
        assert isinstance(item, TagItem)
        words = np.array(item.words)
        for run in np.split(words, np.flatnonzero(np.diff(words) != 1) + 1):
            cells.append(torch.arange(number, number + len(run)))
            begins.append(float(run[0] == 0))
            ends.append(float(run[-1] == item.length - 1))
            number += len(run)
    return {
        "cells": pad_sequence(cells, batch_first=True),
        "lengths": torch.tensor([len(run) for run in cells]),
        "begins": torch.tensor(begins),
        "ends": torch.tensor(ends),
    }
