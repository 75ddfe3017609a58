"""Predict masked words: the most probable tokens for each mask of a text.

Each mask of a text that is longer than the model's maximum length is predicted in a window around it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from bertsmith.device import ComputeContext
from bertsmith.errors import InputError
from bertsmith.formatting import pluralize
from bertsmith.inference.predictor import Predictor
from bertsmith.models.encoder import Encoder
from bertsmith.models.heads import MaskedLMHead
from bertsmith.packed import Packed, copy_to_device
from bertsmith.tasks.batching import batches_within_budget
from bertsmith.tasks.windows import NO_LIMIT
from bertsmith.tokenizer.tokenizer import Encoding, Tokenizer, validate_texts

logger = logging.getLogger(__name__)

TopTokens = tuple[list[list[float]], list[list[int]]]
"""For each mask of a window the probabilities of the most probable tokens, and their ids."""


@dataclass(frozen=True)
class MaskPrediction:
    """A token for a mask.

    Attributes:
        token: The token.
        score: Its probability.
        text: The text with the token instead of the mask.
    """

    token: str
    score: float
    text: str

    def to_dict(self) -> dict[str, Any]:
        """Return the fields."""
        return asdict(self)


@dataclass(frozen=True)
class MaskWindow:
    """A sequence for the model.

    Attributes:
        ids: Token ids.
        segments: Segment ids.
        masks: The index of each mask in the sequence, and in the encoding of the whole text.
    """

    ids: list[int]
    segments: list[int]
    masks: list[tuple[int, int]]


class MaskedText(NamedTuple):
    """A tokenized text, and the windows with its masks."""

    encoding: Encoding
    windows: list[MaskWindow]


@dataclass(frozen=True)
class MaskFiller(Predictor):
    """Predicts the most probable tokens for each mask of a text.

    Attributes:
        encoder: The encoder.
        head: The masked-LM head.
        tokenizer: The tokenizer.
        context: The device.
        max_length: Tokens that are read at a time, special tokens included; None: the model's maximum.
        top_k: The number of tokens per mask.
    """

    encoder: Encoder
    head: MaskedLMHead
    tokenizer: Tokenizer
    context: ComputeContext
    max_length: int | None = None
    top_k: int = 5

    def __call__(self, texts: Sequence[str]) -> list[list[list[MaskPrediction]]]:
        """Return for each mask of each text the `top_k` most probable tokens."""
        return self.predict(validate_texts(map(self._check_mask, texts)))

    def _check_mask(self, text: str) -> str:
        mask = self.tokenizer.mask_token
        if not isinstance(text, str):
            raise InputError(
                "text_not_a_string", f"{text!r:.60} is not a string", hint="pass each text as a string"
            )
        if mask not in text:
            message, hint = f"there is no {mask} in the text {text!r}", f"put {mask} in place of a word"
            raise InputError("mask_missing", message, hint=hint)
        return text

    def preprocess(self, requests: Sequence[str]) -> list[MaskedText]:
        """Tokenize texts and find the windows with their masks."""
        limit = min(self.encoder.config.max_length, self.max_length or self.encoder.config.max_length)
        encodings = self.tokenizer.encode_batch(requests, max_length=NO_LIMIT, special_strings="mask")
        mask_id = self.tokenizer.mask_token_id
        return [MaskedText(encoding, mask_windows(encoding, mask_id, limit)) for encoding in encodings]

    def forward(self, prepared: Sequence[MaskedText]) -> list[TopTokens]:
        """Return the most probable tokens of each mask of each window of all texts."""
        windows = [window for text in prepared for window in text.windows]
        num_tokens = min(self.top_k, self.tokenizer.vocab_size)
        encoder = self.context.autocast_encoder(self.encoder)

        def top_tokens(indices: Sequence[int]) -> list[TopTokens]:
            batch = [windows[i] for i in indices]
            packed = Packed.from_lists([w.ids for w in batch], [w.segments for w in batch])
            starts = np.cumsum(packed.lengths) - packed.lengths
            rows = [start + row for start, w in zip(starts, batch, strict=True) for row, _ in w.masks]
            with torch.inference_mode():
                mask_rows = copy_to_device(torch.tensor(rows), self.context.device)
                hidden = encoder(self.context.to_device(packed), rows=mask_rows)
                probabilities = self.head(hidden, self.encoder.embeddings.token.weight).softmax(-1)
                best = probabilities[:, : self.tokenizer.vocab_size].topk(num_tokens)
            counts = [len(window.masks) for window in batch]
            parts = (torch.split(rows.cpu(), counts) for rows in (best.values, best.indices))
            return [(scores.tolist(), ids.tolist()) for scores, ids in zip(*parts, strict=True)]

        sizes = [len(window.ids) for window in windows]
        order = sorted(range(len(sizes)), key=sizes.__getitem__)
        batches = list(batches_within_budget(order, sizes, self.context))
        results = self.context.parallel_map(top_tokens, batches)
        by_window = {
            i: top
            for indices, tops in zip(batches, results, strict=True)
            for i, top in zip(indices, tops, strict=True)
        }
        return [by_window[i] for i in range(len(windows))]

    def decode(
        self, outputs: Sequence[TopTokens], prepared: Sequence[MaskedText], requests: Sequence[str]
    ) -> list[list[list[MaskPrediction]]]:
        """Return the tokens with the texts that they complete."""
        of_window = iter(outputs)
        return [
            [
                predictions
                for window in windows
                for predictions in self._predictions(text, encoding, window, *next(of_window))
            ]
            for text, (encoding, windows) in zip(requests, prepared, strict=True)
        ]

    def _predictions(
        self,
        text: str,
        encoding: Encoding,
        window: MaskWindow,
        scores: list[list[float]],
        ids: list[list[int]],
    ) -> Iterator[list[MaskPrediction]]:
        """Yield the predictions for each mask of a window."""
        for (_, row), mask_scores, mask_ids in zip(window.masks, scores, ids, strict=True):
            start, end = encoding.offsets[row]
            yield [
                MaskPrediction(
                    self.tokenizer.tokens[i], score, replace_mask(text, start, end, self._as_text(i))
                )
                for score, i in zip(mask_scores, mask_ids, strict=True)
            ]

    def _as_text(self, token_id: int) -> str:
        """Return a token as in text: with a space in front if it begins a word, "##" if it continues one."""
        if self.tokenizer.kind == "byte_level_bpe":
            return self.tokenizer.decode([token_id])
        token = self.tokenizer.tokens[token_id]
        return token.replace("▁", " ") if self.tokenizer.kind == "unigram" else token


def replace_mask(text: str, start: int, end: int, token: str) -> str:
    """Return the text with a token instead of [start, end); a token that continues a word is joined to it."""
    if token.startswith("##"):
        return text[:start].rstrip() + token.removeprefix("##") + text[end:]
    if token.startswith(" "):
        return text[:start].rstrip() + token + text[end:]
    return text[:start] + token + text[end:]


def window_starts(rows: NDArray[np.int64], start: int, end: int, size: int) -> NDArray[np.int64]:
    """Return where a window of `size` rows around each row begins, within the rows [start, end) of a text."""
    return np.clip(rows - size // 2, start, end - size)


def mask_windows(encoding: Encoding, mask_id: int, limit: int) -> list[MaskWindow]:
    """Return the sequences of at most `limit` tokens in which the masks of a text are predicted.

    A text that fits is one window with all its masks; otherwise each mask has its own, which is logged.

    Raises:
        InputError: A window has no room for a word besides the mask.
    """
    masks = [row for row, token in enumerate(encoding.ids) if token == mask_id]
    if len(encoding.ids) <= limit:
        return [MaskWindow(encoding.ids, encoding.type_ids, [(row, row) for row in masks])]
    text_rows = [row for row, source in enumerate(encoding.sequence_ids) if source is not None]
    start, end = text_rows[0], text_rows[-1] + 1
    size = limit - (len(encoding.ids) - (end - start))
    if size < 2:
        raise InputError(
            "max_length_too_small",
            f"{limit} tokens are too few for the special tokens, a mask, and a word",
            argument="max_length",
            hint="increase it",
        )
    logger.info(
        "the text has %s, of which %s are read at a time: each mask is predicted from the text around it",
        pluralize(len(encoding.ids), "token"),
        f"{limit:,}",
    )
    windows = []
    for mask, first in zip(masks, window_starts(np.array(masks), start, end, size).tolist(), strict=True):
        rows = [*range(start), *range(first, first + size), *range(end, len(encoding.ids))]
        ids, segments = ([values[row] for row in rows] for values in (encoding.ids, encoding.type_ids))
        windows.append(MaskWindow(ids, segments, [(mask - first + start, mask)]))
    return windows
