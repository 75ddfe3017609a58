"""What the heads of a model look at in a text: their weights, and their habits in a line each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from bertsmith.device import ComputeContext
from bertsmith.errors import InputError, MachineError
from bertsmith.io import atomic
from bertsmith.models.encoder import Encoder
from bertsmith.packed import Packed
from bertsmith.tokenizer.tokenizer import Tokenizer

_PLOTTED = 64  # tokens; beyond it a picture shows no token by its name, and the squares are too small


@dataclass(frozen=True)
class AttentionMaps:
    """The attention weights of one text, or of a pair.

    tokens: T strings, the special ones among them; special: bool [T]. weights: float32 [L, A, T, T]: in a layer
    and a head, how much of each token (column) goes to each token (row); rows sum to 1. layers, heads: the numbers
    of those that are there, from 0.
    """

    tokens: list[str]
    special: NDArray[np.bool_] = field(repr=False)
    weights: NDArray[np.float32] = field(repr=False)
    layers: list[int]
    heads: list[int]

    def of(self, layers: Sequence[int] | None = None, heads: Sequence[int] | None = None) -> AttentionMaps:
        """Those of some layers and heads, by number; None: of all. InputError for one that is not there."""
        rows, columns = _places(layers, self.layers, "layer"), _places(heads, self.heads, "head")
        return AttentionMaps(
            self.tokens,
            self.special,
            self.weights[np.ix_(rows, columns)],
            [self.layers[i] for i in rows],
            [self.heads[i] for i in columns],
        )

    def as_rows(self) -> list[dict[str, Any]]:
        """Each head's habits, with its `weights`, a list of T lists of T numbers."""
        every = self.weights.reshape(-1, *self.weights.shape[2:]).tolist()
        return [{**row, "weights": weights} for row, weights in zip(self.habits(), every, strict=True)]

    def habits(self) -> list[dict[str, Any]]:
        """A row for each head: where the weights of the text's own tokens go, on average, as shares that sum to 1
        (after Clark et al. 2019, section 3): `special` tokens, the token `itself`, the one `before` it, the one
        `after` it, the `others`; and `spread`, to how many tokens, exp(entropy).
        """
        own = np.flatnonzero(~self.special)
        rows = self.weights[:, :, own].astype(np.float64)  # [L, A, own, T]
        columns, here = np.arange(len(self.tokens)), own[:, None]
        kinds = {
            "special": np.broadcast_to(self.special, (len(own), len(columns))),
            "itself": columns == here,
            "before": (columns == here - 1) & ~self.special,
            "after": (columns == here + 1) & ~self.special,
        }
        kinds["others"] = ~np.logical_or.reduce(list(kinds.values()))
        shares = {kind: (rows * cells).sum(-1).mean(-1) for kind, cells in kinds.items()}
        logs = np.log(rows, out=np.zeros_like(rows), where=rows > 0)
        shares["spread"] = np.exp(-(rows * logs).sum(-1)).mean(-1)
        return [
            {
                "layer": self.layers[i],
                "head": self.heads[j],
                **{kind: float(share[i, j]) for kind, share in shares.items()},
            }
            for i, j in np.ndindex(*self.weights.shape[:2])
        ]

    def plot(self, file: str | Path) -> Path:
        """Draw the weights into a PNG, a square for each head, a row for each layer, and return its path. Tokens
        are named where there is one head. InputError for more than 64 of them."""
        from bertsmith.reports.attention import plot_attention

        if len(self.tokens) > _PLOTTED:
            raise InputError(
                "too_many_tokens_to_plot",
                f"the text has {len(self.tokens):,} tokens, and a plot shows at most {_PLOTTED}",
                hint="use a shorter text",
            )
        file = Path(file)
        try:
            atomic.write_bytes(file, plot_attention(self.tokens, self.weights, self.layers, self.heads))
        except OSError as error:
            raise MachineError(
                "plot_not_written", f"the plot could not be written: {error}", location=file
            ) from error
        return file


def _places(asked: Sequence[int] | None, known: Sequence[int], what: str) -> list[int]:
    """Where the layers or heads that were asked for stand."""
    if asked is None:
        return list(range(len(known)))
    for number in asked:
        if number not in known:
            raise InputError(
                "attention_index_out_of_range",
                f"there is no {what} {number}",
                argument=f"{what}s",
                hint=f"use one of {', '.join(map(str, known))}",
            )
    return [known.index(number) for number in dict.fromkeys(asked)]


def attention_of(
    encoder: Encoder, tokenizer: Tokenizer, place: ComputeContext, text: str, second: str | None = None
) -> AttentionMaps:
    """The attention weights of a text, or of a pair, without dropout. InputError where it is too long to be read
    at once."""
    longest = min(encoder.config.max_length, tokenizer.max_length)
    try:
        encoding = tokenizer.encode(
            text, second, max_length=longest, truncation="none", special_strings="mask"
        )
    except InputError as error:
        error.hint = "use a shorter text"
        raise
    packed = place.to_device(Packed.from_lists([encoding.ids], [encoding.type_ids]))
    with torch.inference_mode():
        weights = torch.stack([of_layer[0] for of_layer in encoder.attention_maps(packed)])
    special = np.array([source is None for source in encoding.sequence_ids])
    if special.all():
        raise InputError("no_tokens", "the text has no tokens", hint="use a text with words")
    layers, heads = (list(range(number)) for number in weights.shape[:2])
    return AttentionMaps(encoding.tokens, special, weights.float().cpu().numpy(), layers, heads)
