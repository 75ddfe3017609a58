"""What stands behind [MASK]: for each mask of a text the likeliest tokens, and the text with each of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from bertsmith.device import ComputeContext
from bertsmith.errors import InputError
from bertsmith.inference.mask_windows import MaskWindow, mask_windows
from bertsmith.io.prefetch import growing_batches, prefetch
from bertsmith.models.encoder import Encoder
from bertsmith.models.heads import MaskedLMHead
from bertsmith.packed import Packed, copy_to_device
from bertsmith.tasks.batching import batches_within_budget
from bertsmith.tasks.windows import NO_LIMIT
from bertsmith.tokenizer.tokenizer import Encoding, Tokenizer, validate_texts

_CHUNK = 1024  # texts that are encoded at a time

_Guesses = tuple[list[list[float]], list[list[int]]]


@dataclass(frozen=True)
class MaskFiller:
    """A model's guesses. max_length: tokens read at a time, special ones included; None: what the model takes.
    check: sees texts before their masks are filled."""

    encoder: Encoder
    head: MaskedLMHead
    tokenizer: Tokenizer
    place: ComputeContext
    max_length: int | None
    check: Callable[[Sequence[str]], None] | None = None

    def __call__(self, texts: Sequence[str], top_k: int) -> list[list[list[dict[str, Any]]]]:
        """For each mask of each text its `top_k` likeliest tokens, as `Model.fill_mask` has them. Texts of like
        length share a pass. InputError where there is no mask in one."""

        def read(some: Sequence[str]) -> list[Encoding]:
            return self.tokenizer.encode_batch(some, max_length=NO_LIMIT, special_strings="mask")

        answers = []
        limit = min(self.encoder.config.max_length, self.max_length or self.encoder.config.max_length)
        with closing(
            prefetch(growing_batches(validate_texts(map(self._checked, texts)), _CHUNK), read)
        ) as parts:
            for some, encodings in parts:
                if self.check is not None:
                    self.check(some)
                windows = [
                    list(mask_windows(encoding, self.tokenizer.mask_token_id, limit))
                    for encoding in encodings
                ]
                best = iter(self._best([window for own in windows for window in own], top_k))
                for text, encoding, own in zip(some, encodings, windows, strict=True):
                    found = [self._told(text, encoding, window, *next(best)) for window in own]
                    answers.append([of_mask for of_window in found for of_mask in of_window])
        return answers

    def _checked(self, text: str) -> str:
        mask = self.tokenizer.mask_token
        if not isinstance(text, str):
            raise InputError(
                "text_not_a_string", f"{text!r:.60} is not a string", hint="pass each text as a string"
            )
        if mask not in text:
            raise InputError(
                "mask_missing",
                f"there is no {mask} in the text {text!r}",
                hint=f"put {mask} in place of a word",
            )
        return text

    def _told(
        self,
        text: str,
        encoding: Encoding,
        window: MaskWindow,
        scores: list[list[float]],
        ids: list[list[int]],
    ) -> list[list[dict[str, Any]]]:
        """The guesses for each mask of a window of a text."""
        answers = []
        for (_, row), of_mask, tokens in zip(window.masks, scores, ids, strict=True):
            start, end = encoding.offsets[row]
            answers.append(
                [
                    {
                        "token": (token := self.tokenizer.tokens[i]),
                        "score": score,
                        "text": filled(text, start, end, self._as_text(i, token)),
                    }
                    for score, i in zip(of_mask, tokens, strict=True)
                ]
            )
        return answers

    def _best(self, windows: Sequence[MaskWindow], top_k: int) -> Iterator[_Guesses]:
        """For each mask of each window the likeliest tokens: their probabilities, and their ids."""

        def guessed(some: Sequence[int]) -> list[_Guesses]:
            own = [windows[i] for i in some]
            packed = Packed.from_lists([window.ids for window in own], [window.segments for window in own])
            begins = np.cumsum(packed.lengths) - packed.lengths
            rows = [begin + row for begin, window in zip(begins, own, strict=True) for row, _ in window.masks]
            with torch.inference_mode():
                wanted = copy_to_device(torch.tensor(rows), self.place.device)
                hidden = self.place.autocast_encoder(self.encoder)(self.place.to_device(packed), rows=wanted)
                shares = self.head(hidden, self.encoder.embeddings.token.weight).softmax(-1)
                best = shares[:, : self.tokenizer.vocab_size].topk(min(top_k, self.tokenizer.vocab_size))
            masks = [len(window.masks) for window in own]
            parts = (torch.split(found, masks) for found in (best.values.cpu(), best.indices.cpu()))
            return [(scores.tolist(), ids.tolist()) for scores, ids in zip(*parts, strict=True)]

        sizes = [len(window.ids) for window in windows]
        passes = list(
            batches_within_budget(sorted(range(len(sizes)), key=sizes.__getitem__), sizes, self.place)
        )
        found = dict(
            pair
            for some, made in zip(passes, self.place.parallel_map(guessed, passes), strict=True)
            for pair in zip(some, made, strict=True)
        )
        return (found[i] for i in range(len(windows)))

    def _as_text(self, number: int, token: str) -> str:
        """A token as it stands in text: a blank in front where it begins a word, "##" where it goes on one."""
        kind = self.tokenizer.kind
        if kind == "byte_level_bpe":
            return self.tokenizer.decode([number])
        return token.replace("▁", " ") if kind == "unigram" else token


def filled(text: str, start: int, end: int, token: str) -> str:
    """The text with a token in place of [start, end); one that goes on a word is joined to it."""
    if token.startswith("##"):
        return text[:start].rstrip() + token.removeprefix("##") + text[end:]
    if token.startswith(" "):
        return text[:start].rstrip() + token + text[end:]
    return text[:start] + token + text[end:]
