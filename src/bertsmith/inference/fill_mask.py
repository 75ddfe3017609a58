"""Predict masked words: the most probable tokens for each mask of a text.

Each mask of a text that is longer than the model's maximum length is predicted in a window around it.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from bertsmith.errors import InputError
from bertsmith.formatting import pluralize
from bertsmith.inference.predictor import PredictedTokens, TokenPredictor, WindowedText
from bertsmith.notebook import Result
from bertsmith.settings import check_positive
from bertsmith.tasks.windows import NO_LIMIT
from bertsmith.tokenizer.text_check import TextCheck
from bertsmith.tokenizer.tokenizer import Encoding, validate_texts

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class MaskPrediction(Result):
    """A token for a mask.

    Attributes:
        token: The token.
        score: Its probability.
        text: The text with the token instead of the mask.
    """

    token: str
    score: float
    text: str


class MaskedText(NamedTuple):
    """A tokenized text, the rows of its masks, and the sequences in which these are predicted."""

    encoding: Encoding
    mask_rows: list[int]
    items: list[PredictedTokens]


@dataclass(frozen=True)
class MaskFiller(TokenPredictor):
    """Predicts the most probable tokens for each mask of a text.

    Attributes:
        max_length: Tokens that are read at a time, special tokens included; None: the model's maximum.
        top_k: The number of tokens per mask.
        targets: The ids of the tokens to choose from; empty: all.
    """

    max_length: int | None = None
    top_k: int = 5
    targets: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        check_positive(self.top_k, "top_k")

    def __call__(self, texts: Sequence[str]) -> list[list[list[MaskPrediction]]]:
        """Return for each mask of each text the `top_k` most probable tokens."""
        texts, check = list(map(self.check_mask, validate_texts(texts))), TextCheck()
        check.add(texts)
        check.log(self.tokenizer)
        return self.predict(texts)

    def check_mask(self, text: str) -> str:
        """Return a text; raise InputError if it has no mask."""
        if (mask := self.tokenizer.mask_token) not in text:
            message, hint = f"there is no {mask} in the text {text!r}", f"put {mask} in place of a word"
            raise InputError("mask_missing", message, hint=hint)
        return text

    def preprocess(self, requests: Sequence[str]) -> list[MaskedText]:
        """Tokenize texts and find the windows with their masks."""
        encodings = self.tokenizer.encode_batch(requests, max_length=NO_LIMIT, special_strings="mask")
        return [self._masked_text(encoding) for encoding in encodings]

    def _masked_text(self, encoding: Encoding) -> MaskedText:
        """Return a text that fits as one sequence with all its masks, and otherwise one for each mask."""
        limit = min(self.encoder.config.max_length, self.max_length or self.encoder.config.max_length)
        text = WindowedText(encoding, limit)
        masks = [row for row, token in enumerate(encoding.ids) if token == self.tokenizer.mask_token_id]
        if text.is_complete:
            item = PredictedTokens(0, (text.window(text.start, text.end),), rows=np.array(masks, np.int64))
            return MaskedText(encoding, masks, [item] if masks else [])
        if text.size < 2:
            message = f"{limit} tokens are too few for the special tokens, a mask, and a word"
            hint = "increase it"
            raise InputError("max_length_too_small", message, argument="max_length", hint=hint)
        logger.info(
            "the text has %s, of which %s are read at a time: each mask is predicted from the text around it",
            pluralize(len(encoding.ids), "token"),
            f"{limit:,}",
        )
        return MaskedText(encoding, masks, [text.around(0, row) for row in masks])

    def sizes(self, prepared: Sequence[MaskedText]) -> list[int]:
        """Return the number of tokens of the windows of each text."""
        return [sum(item.size for item in text.items) for text in prepared]

    def forward(self, prepared: Sequence[MaskedText]) -> list[Tensor]:
        """Return the probabilities and ids of the most probable tokens of each text's masks, [n, top_k, 2]."""
        targets = torch.tensor(self.targets or range(self.tokenizer.vocab_size))

        def best_tokens(hidden: Tensor, labels: Tensor) -> Tensor:
            probabilities = self.head(hidden, self.encoder.embeddings.token.weight).softmax(-1)
            ids = targets.to(probabilities.device)
            best = probabilities[:, ids].topk(min(self.top_k, len(ids)))
            return torch.stack(
                [best.values, ids[best.indices].to(best.values.dtype)], -1
            )  # fp32 holds any id

        outputs = iter(self.outputs_of([item for text in prepared for item in text.items], best_tokens))
        return [torch.cat([next(outputs) for _ in text.items] or [torch.empty(0)]) for text in prepared]

    def decode(
        self, outputs: Sequence[Tensor], items: Sequence[MaskedText], requests: Sequence[str]
    ) -> list[list[list[MaskPrediction]]]:
        """Return the tokens with the texts that they complete."""
        best_of_mask = (best for output in outputs for best in output.tolist())
        return [
            [
                [
                    self._prediction(text, masked.encoding.offsets[row], score, int(i))
                    for score, i in next(best_of_mask)
                ]
                for row in masked.mask_rows
            ]
            for text, masked in zip(requests, items, strict=True)
        ]

    def _prediction(self, text: str, offsets: tuple[int, int], score: float, token_id: int) -> MaskPrediction:
        """Return a token; in the text with a space in front if it begins a word, "##" if it continues one."""
        token = as_text = self.tokenizer.tokens[token_id]
        if self.tokenizer.kind == "byte_level_bpe":
            as_text = self.tokenizer.decode([token_id])
        elif self.tokenizer.kind == "unigram":
            as_text = token.replace("▁", " ")
        return MaskPrediction(token, score, replace_mask(text, *offsets, as_text))


def replace_mask(text: str, start: int, end: int, token: str) -> str:
    """Return the text with a token instead of [start, end); a token that continues a word is joined to it."""
    before = text[:start].rstrip() if token.startswith(("##", " ")) else text[:start]
    return before + token.removeprefix("##") + text[end:]
