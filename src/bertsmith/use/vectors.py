"""Texts become vectors: the hidden states of a model's last layer, pooled to one vector a text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bertsmith.errors import InputError
from bertsmith.models.encoder import Encoder
from bertsmith.place import Place
from bertsmith.tasks.items import Encoded, Item, TaskBatch, pack, run_over
from bertsmith.tokenizer.tokenizer import Tokenizer

Pooling = Literal["mean", "cls", "max"]
_CHUNK = 4096  # texts encoded at a time


def embedded(
    texts: Sequence[str],
    encoder: Encoder,
    tokenizer: Tokenizer,
    place: Place,
    *,
    pooling: Pooling = "mean",
    normalize: bool = False,
    max_length: int | None = None,
) -> NDArray[np.float32]:
    """A vector a text, float32 [n, H], in the order of the texts. Texts of like length share a pass; what is
    longer than `max_length` tokens, or than the model takes, is cut at its end.

    pooling: the mean or the maximum of all tokens' last hidden states, the special ones among them, or the first
    token's ("cls"). normalize: to the length 1, so that products are cosines. InputError for what is no text.
    """
    if pooling not in get_args(Pooling):
        raise InputError(
            f"pooling={pooling!r}: there is no such pooling", f"known: {', '.join(get_args(Pooling))}"
        )
    for number, text in enumerate(texts, start=1):
        if not isinstance(text, str):
            raise InputError(f"text {number}: {text!r:.60} is not a string", "give each text as a string")
    limit = min(encoder.config.longest, max_length or encoder.config.longest)
    found = [np.empty((0, encoder.config.hidden_size), dtype=np.float32)]

    def forward(batch: TaskBatch) -> Sequence[Tensor]:
        states = torch.split(encoder(batch.packed), batch.packed.starts.diff().tolist())
        if pooling == "cls":
            rows = [state[:1] for state in states]
        elif pooling == "max":
            rows = [state.amax(0, keepdim=True) for state in states]
        else:
            rows = [state.mean(0, keepdim=True) for state in states]
        return rows

    for start in range(0, len(texts), _CHUNK):
        encodings = tokenizer.encode_many(list(texts[start : start + _CHUNK]), max_length=limit)
        items = [Item(number, (Encoded.of(encoding),)) for number, encoding in enumerate(encodings)]
        rows = run_over(items, lambda some: TaskBatch(pack(some), (1,) * len(some), {}, {}), forward, place)
        found.append(torch.cat(rows).numpy())
    vectors = np.concatenate(found)
    if normalize:
        vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    return vectors
