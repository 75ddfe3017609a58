"""Attention weights of a text, and statistics of each head."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from bertsmith.device import ComputeContext
from bertsmith.errors import InputError
from bertsmith.io import atomic
from bertsmith.models.encoder import Encoder
from bertsmith.packed import Packed
from bertsmith.tokenizer.tokenizer import Tokenizer

_MAX_PLOTTED_TOKENS = 64  # more squares are too small to see


@dataclass(frozen=True)
class AttentionMaps:
    """The attention weights of a text, or of a pair of texts.

    Attributes:
        tokens: T tokens, special tokens included.
        special: True for special tokens, bool [T].
        weights: float32 [L, A, T, T]: for each layer and head, the weight of each token (column) for each token
            (row); rows sum to 1.
        layers: The indices of the layers, from 0.
        heads: The indices of the heads, from 0.
    """

    tokens: list[str]
    special: NDArray[np.bool_] = field(repr=False)
    weights: NDArray[np.float32] = field(repr=False)
    layers: list[int]
    heads: list[int]

    def select(
        self, layers: Sequence[int] | None = None, heads: Sequence[int] | None = None
    ) -> AttentionMaps:
        """Return the maps of some layers and heads.

        Args:
            layers: The indices of layers; None for all.
            heads: The indices of heads; None for all.

        Raises:
            InputError: There is no layer or head with an index.
        """
        rows, columns = _positions(layers, self.layers, "layer"), _positions(heads, self.heads, "head")
        return AttentionMaps(
            self.tokens,
            self.special,
            self.weights[np.ix_(rows, columns)],
            [self.layers[i] for i in rows],
            [self.heads[i] for i in columns],
        )

    def summary(self) -> list[dict[str, Any]]:
        """Return the mean attention of each head from tokens that are not special (Clark et al. 2019, section 3).

        Returns:
            A dict per head: `layer`, `head`, and the weights of `special` tokens, of the token `itself`, of the
            ones `before` and `after` it, and of the `others`, which sum to 1; and `spread`, exp(entropy), the
            number of tokens among which the weights are spread.
        """
        indices = np.flatnonzero(~self.special)
        weights = self.weights[:, :, indices].astype(np.float64)  # [L, A, tokens that are not special, T]
        columns, rows = np.arange(len(self.tokens)), indices[:, None]
        kinds = {
            "special": np.broadcast_to(self.special, (len(indices), len(columns))),
            "itself": columns == rows,
            "before": (columns == rows - 1) & ~self.special,
            "after": (columns == rows + 1) & ~self.special,
        }
        kinds["others"] = ~np.logical_or.reduce(list(kinds.values()))
        means = {kind: (weights * cells).sum(-1).mean(-1) for kind, cells in kinds.items()}
        logs = np.log(weights, out=np.zeros_like(weights), where=weights > 0)
        means["spread"] = np.exp(-(weights * logs).sum(-1)).mean(-1)
        return [
            {"layer": self.layers[i], "head": self.heads[j]}
            | {kind: float(values[i, j]) for kind, values in means.items()}
            for i, j in np.ndindex(*self.weights.shape[:2])
        ]

    def to_rows(self) -> list[dict[str, Any]]:
        """Return the summary of each head with its `weights`, T lists of T numbers."""
        weights = self.weights.reshape(-1, *self.weights.shape[2:]).tolist()
        return [{**row, "weights": values} for row, values in zip(self.summary(), weights, strict=True)]

    def plot(self, file: str | Path) -> Path:
        """Draw a square per head and a row per layer to a PNG; return its path.

        The plot of a single head has the names of the tokens.

        Raises:
            InputError: There are more than 64 tokens, or the name of the file does not end in .png.
        """
        from bertsmith.reports.result_plots import plot_attention

        if Path(file).suffix.lower() != ".png":
            message, hint = "the plot is a PNG, and this name says otherwise", "name a file that ends in .png"
            raise InputError("not_a_png", message, location=file, argument="output", hint=hint)
        if len(self.tokens) > _MAX_PLOTTED_TOKENS:
            raise InputError(
                "too_many_tokens_to_plot",
                f"the text has {len(self.tokens):,} tokens, and a plot shows at most {_MAX_PLOTTED_TOKENS}",
                hint="use a shorter text",
            )
        with atomic.write_errors(file):
            atomic.write_bytes(Path(file), plot_attention(self.tokens, self.weights, self.layers, self.heads))
        return Path(file)


def _positions(indices: Sequence[int] | None, available: Sequence[int], name: str) -> list[int]:
    """Return the positions of layers or heads."""
    if indices is None:
        return list(range(len(available)))
    for index in indices:
        if index not in available:
            message = f"there is no {name} {index}"
            hint = f"use one of {', '.join(map(str, available))}"
            raise InputError("attention_index_out_of_range", message, argument=f"{name}s", hint=hint)
    return [available.index(index) for index in dict.fromkeys(indices)]


def compute_attention(
    encoder: Encoder, tokenizer: Tokenizer, context: ComputeContext, text: str, text_pair: str | None = None
) -> AttentionMaps:
    """Compute the attention weights of a text or pair, without dropout.

    Raises:
        InputError: The text is no string, empty, or longer than the model's maximum length.
    """
    for value in (text, text_pair):
        if value is not None and not isinstance(value, str):
            message, hint = f"{value!r:.60} is not a string", "pass a text, or a text and a second text"
            raise InputError("not_a_string", message, hint=hint)
    max_length = min(encoder.config.max_length, tokenizer.max_length)
    try:
        encoding = tokenizer.encode(
            text, text_pair, max_length=max_length, truncation="none", special_strings="mask"
        )
    except InputError as error:
        error.change_hint(lambda hint: "use a shorter text")
        raise
    packed = context.to_device(Packed.from_lists([encoding.ids], [encoding.type_ids]))
    with torch.inference_mode():
        weights = torch.stack([layer_weights[0] for layer_weights in encoder.attention_maps(packed)])
    special = np.array([source is None for source in encoding.sequence_ids])
    if special.all():
        raise InputError("no_tokens", "the text has no tokens", hint="use a text with words")
    layers, heads = (list(range(size)) for size in weights.shape[:2])
    return AttentionMaps(encoding.tokens, special, weights.float().cpu().numpy(), layers, heads)
