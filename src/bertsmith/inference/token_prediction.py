"""Predict tokens of texts by a head over the vocabulary; those of a long text each in a window around them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bertsmith.inference.predictor import Predictor
from bertsmith.models.pretraining_heads import MaskedLMHead
from bertsmith.tasks.batching import Item, TaskBatch, TokenSequence, pack, run_batched
from bertsmith.tokenizer.tokenizer import Encoding


@dataclass(frozen=True)
class PredictedTokens(Item):
    """A sequence in which tokens are predicted.

    Attributes:
        rows: The indices of these tokens in the sequence.
        mask_end: The mask token replaces the tokens from the first of `rows` to this index; 0: none.
    """

    rows: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    mask_end: int = 0


class WindowedText:
    """A tokenized text and the windows in which the model reads it.

    Attributes:
        encoding: The tokens of the whole text.
        start: The row of the first token that is not special.
        end: The end of these rows.
        size: The number of these tokens in a window.
    """

    def __init__(self, encoding: Encoding, max_length: int) -> None:
        """Describe the windows of at most `max_length` tokens, special tokens included."""
        self.encoding = encoding
        rows = [row for row, source in enumerate(encoding.sequence_ids) if source is not None]
        self.start, self.end = (rows[0], rows[-1] + 1) if rows else (0, 0)
        self.size = min(len(rows), max_length - (len(encoding.ids) - len(rows)))
        self._sequence = TokenSequence.from_encoding(encoding)

    @property
    def num_tokens(self) -> int:
        """The number of tokens, special tokens excluded."""
        return self.end - self.start

    @property
    def is_complete(self) -> bool:
        """True if a window holds the whole text."""
        return self.size == self.num_tokens

    def window(self, first: int, stop: int) -> TokenSequence:
        """Return the rows [first, stop) between the special tokens."""
        sequence = self._sequence
        if stop - first == self.num_tokens:
            return sequence
        rows = np.r_[: self.start, first:stop, self.end : len(sequence.ids)]
        return TokenSequence(sequence.ids[rows], sequence.segments[rows], self.num_tokens, stop - first)

    def around(self, index: int, row: int, mask_end: int = 0) -> PredictedTokens:
        """Return the window around a row, which is predicted in it.

        Args:
            index: The index of the text.
            row: The row.
            mask_end: The end of the rows that are masked with it.
        """
        first = min(max(row - self.size // 2, self.start), self.end - self.size)
        stop, shift = first + self.size, self.start - first
        return PredictedTokens(
            index,
            (self.window(first, stop),),
            rows=np.array([row + shift]),
            mask_end=min(mask_end, stop) + shift if mask_end else 0,
        )


@dataclass(frozen=True)
class TokenPredictor(Predictor):
    """Computes outputs for tokens of texts.

    Attributes:
        head: The head with a logit for each token of the vocabulary.
    """

    head: MaskedLMHead

    def outputs_of(
        self, items: Sequence[PredictedTokens], compute: Callable[[Tensor, Tensor], Tensor], offset: int = 0
    ) -> list[Tensor]:
        """Return the outputs for the tokens of each item, a tensor [n, …] per item.

        Args:
            items: The items.
            compute: Returns [M, …] for the hidden states [M, H] and the ids [M] of M predicted tokens.
            offset: The distance from a token to the row whose hidden state predicts it.
        """
        encoder, mask_id = self.context.autocast_encoder(self.encoder), self.tokenizer.mask_token_id

        def collate(batch: Sequence[PredictedTokens]) -> TaskBatch:
            packed = pack(batch)
            starts = np.cumsum(packed.lengths) - packed.lengths
            rows = np.concatenate([start + item.rows for start, item in zip(starts, batch, strict=True)])
            labels = packed.tokens[rows]
            for start, item in zip(starts.tolist(), batch, strict=True):
                packed.tokens[start + item.rows[0] : start + item.mask_end] = mask_id
            tensors = {"rows": torch.from_numpy(rows + offset), "labels": labels}
            return TaskBatch(packed, tuple(len(item.rows) for item in batch), tensors, {})

        def forward(batch: TaskBatch) -> Sequence[Tensor]:
            hidden = encoder(batch.packed, rows=batch.tensors["rows"])
            return torch.split(compute(hidden, batch.tensors["labels"]), list(batch.sizes))

        return run_batched(items, collate, forward, self.context)
