"""The attention weights of a page: rounded to bytes, and compressed for each head.

A browser decodes a head when it is opened. A byte b stands for the weight (b / 255)²: even weights of 0.001, of
which attention to hundreds of tokens consists, differ from 0, and no weight changes by more than 0.004.
"""

from __future__ import annotations

import base64
import zlib
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bertsmith.reports.page import visible

if TYPE_CHECKING:
    from bertsmith.explain.attention import AttentionMaps

_THUMBNAIL_SIDE = 32  # pixels, at most
_NAMES = {
    "entropy": "entropy",
    "distance": "mean distance",
    "cls": "on [CLS]",
    "sep": "on [SEP]",
    "punctuation": "on punctuation",
    "previous": "on previous token",
    "next": "on next token",
    "itself": "on itself",
}


class AttentionView(NamedTuple):
    """The values of the template attention_view.html.

    Attributes:
        title: The model or the input, if a page has several views; else empty.
        layers: The indices of the layers.
        heads: The indices of the heads.
        is_pair: True if there are two texts.
        measures: The names of the numbers of a head by their keys.
        summary: The numbers of each head.
        data: The values for the script.
        weights: The weights of each head in base64.
    """

    title: str
    layers: list[int]
    heads: list[int]
    is_pair: bool
    measures: dict[str, str]
    summary: list[dict[str, Any]]
    data: dict[str, Any]
    weights: list[str]


def attention_view(maps: AttentionMaps, title: str = "") -> AttentionView:
    """Return the view of attention weights.

    Args:
        maps: The attention weights.
        title: The title of the view.
    """
    summary = maps.summary()
    heads = maps.weights.reshape(-1, *maps.weights.shape[2:])
    data = {
        "tokens": [visible(token) for token in maps.tokens],
        "sources": maps.sources.tolist(),
        "measures": {name: [row[name] for row in summary] for name in _NAMES},
        "thumbnails": _encode(np.stack([_thumbnail(weights) for weights in heads])),
        "side": len(_thumbnail(heads[0])),
    }
    weights = [_encode(head) for head in heads]
    is_pair = bool((maps.sources == 1).any())
    return AttentionView(title, maps.layers, maps.heads, is_pair, _NAMES, summary, data, weights)


def _encode(weights: NDArray[np.float32]) -> str:
    """Return the bytes of weights, compressed and in base64."""
    values = np.rint(np.sqrt(weights) * 255).astype(np.uint8)
    return base64.b64encode(zlib.compress(values.tobytes())).decode("ascii")


def _thumbnail(weights: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the largest weight of each block of tokens, of at most 32 blocks a side."""
    starts = np.unique(np.linspace(0, len(weights), _THUMBNAIL_SIDE, endpoint=False).astype(np.int64))
    rows: NDArray[np.float32] = np.maximum.reduceat(weights, starts, axis=0)
    return np.maximum.reduceat(rows, starts, axis=1)
