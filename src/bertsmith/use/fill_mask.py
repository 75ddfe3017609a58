"""What stands behind [MASK]: for each mask of a text the likeliest tokens, and the text with each of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from bertsmith.errors import InputError
from bertsmith.models.encoder import Encoder
from bertsmith.models.heads import MaskedHead
from bertsmith.packed import Packed
from bertsmith.place import Place
from bertsmith.tasks.windows import UNCUT
from bertsmith.tokenizer.tokenizer import Tokenizer
from bertsmith.use.mask_windows import MaskWindow, mask_windows


class MaskFiller:
    """A model's guesses. max_length: tokens read at a time, special ones included; None: what the model takes."""

    def __init__(
        self, encoder: Encoder, head: MaskedHead, tokenizer: Tokenizer, place: Place, max_length: int | None
    ) -> None:
        self._encoder, self._head, self._tokenizer, self._place = encoder, head, tokenizer, place
        self._limit = min(encoder.config.longest, max_length or encoder.config.longest)

    def __call__(
        self, text: str, top_k: int, tell: Callable[[str], None] = lambda text: None
    ) -> list[list[dict[str, Any]]]:
        """For each mask of a text its `top_k` likeliest tokens, as `Model.fill_mask` has them. tell: is told where
        the text is too long to be read whole. InputError where there is no mask in it."""
        mask = self._tokenizer.mask_token
        if not isinstance(text, str):
            raise InputError(f"{text!r:.60} is not a string", "give each text as a string")
        if mask not in text:
            raise InputError(
                f"there is no {mask} in the text {text!r}", f"put {mask} where a word is to be guessed"
            )
        encoding = self._tokenizer.encode(text, max_length=UNCUT, specials="mask")
        answers = []
        for window in mask_windows(encoding, self._tokenizer.mask_id, self._limit, tell):
            scores, ids = self._best(window, top_k)
            for (_, row), of_mask, tokens in zip(window.masks, scores, ids, strict=True):
                start, end = encoding.offsets[row]
                answers.append(
                    [
                        {
                            "token": (token := self._tokenizer.tokens[i]),
                            "score": score,
                            "text": filled(text, start, end, self._as_text(i, token)),
                        }
                        for score, i in zip(of_mask, tokens, strict=True)
                    ]
                )
        return answers

    def _best(self, window: MaskWindow, top_k: int) -> tuple[list[list[float]], list[list[int]]]:
        """For each mask of a window the likeliest tokens: their probabilities, and their ids."""
        packed = self._place.send(Packed.of_lists([window.ids], [window.segments]))
        with torch.inference_mode():
            rows = torch.tensor([row for row, _ in window.masks], device=self._place.device)
            hidden = self._place.reader(self._encoder)(packed, rows=rows)
            shares = self._head(hidden, self._encoder.embeddings.token.weight).softmax(-1)
            best = shares.topk(min(top_k, shares.shape[1]))
        return best.values.tolist(), best.indices.tolist()

    def _as_text(self, number: int, token: str) -> str:
        """A token as it stands in text: a blank in front where it begins a word, "##" where it goes on one."""
        kind = self._tokenizer.kind
        if kind == "byte_level_bpe":
            return self._tokenizer.decode([number])
        return token.replace("▁", " ") if kind == "unigram" else token


def filled(text: str, start: int, end: int, token: str) -> str:
    """The text with a token in place of [start, end); one that goes on a word is joined to it."""
    if token.startswith("##"):
        return text[:start].rstrip() + token.removeprefix("##") + text[end:]
    if token.startswith(" "):
        return text[:start].rstrip() + token + text[end:]
    return text[:start] + token + text[end:]
