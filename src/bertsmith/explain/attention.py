"""Attention weights of a text, and statistics of each head."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from bertsmith.device import ComputeContext
from bertsmith.errors import InputError
from bertsmith.io import atomic
from bertsmith.models.encoder import Encoder
from bertsmith.packed import Packed
from bertsmith.tokenizer.tokenizer import Tokenizer

_MAX_PLOTTED_TOKENS = 64  # more squares are too small to see


@dataclass(frozen=True)
class AttentionMaps:
    """The attention weights of a sequence of T tokens: of a text, or of a pair of texts.

    Attributes:
        tokens: The tokens, special tokens included.
        sources: The text of each token: 0 the first, 1 the second, -1 for [CLS] and [SEP]; int8 [T].
        punctuation: True for punctuation, bool [T].
        weights: float32 [L, A, T, T]: for each layer and head, the weight of each token (column) for each token
            (row); rows sum to 1.
        layers: The indices of the layers, from 0.
        heads: The indices of the heads, from 0.
        model: The path or name of the model.
        title: What they are besides the attention of a text to itself.
    """

    tokens: list[str]
    sources: NDArray[np.int8] = field(repr=False)
    punctuation: NDArray[np.bool_] = field(repr=False)
    weights: NDArray[np.float32] = field(repr=False)
    layers: list[int]
    heads: list[int]
    model: str = ""
    title: str = ""

    @property
    def special(self) -> NDArray[np.bool_]:
        """True for [CLS] and [SEP], or the tokens in their place; bool [T]."""
        return self.sources < 0

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
        if layers is None and heads is None:
            return self
        rows, columns = _positions(layers, self.layers, "layer"), _positions(heads, self.heads, "head")
        return replace(
            self,
            weights=self.weights[np.ix_(rows, columns)],
            layers=[self.layers[i] for i in rows],
            heads=[self.heads[i] for i in columns],
        )

    def summary(self) -> list[dict[str, Any]]:
        """Return means of each head over the tokens that are not special (Clark et al. 2019, section 3).

        Returns:
            A dict per head: `layer`, `head`; `entropy` of the weights in nats; `distance`, the mean number of
            tokens between two tokens, weighted by attention, without special tokens (Vig and Belinkov 2019), or
            None if there is no attention between them; and the weight on `cls` and `sep` (the special tokens
            before and after the texts), on `punctuation`, on the `previous` and `next` token, and on the token
            `itself`. The weight of a token on a comma after it counts as `punctuation` and as `next`.
        """
        attends = self.weights.any((0, 1, 3))  # in cross-attention the tokens of the target do
        is_read = ~self.special & attends
        indices = np.flatnonzero(is_read if is_read.any() else attends)  # an empty target is [CLS] alone
        columns, rows = np.arange(len(self.tokens)), indices[:, None]
        is_cls = self.special & (columns == 0)
        masks = {  # of [rows, columns], of columns, or weights of cells
            "cls": is_cls,
            "sep": self.special & ~is_cls,
            "punctuation": self.punctuation,
            "previous": (columns == rows - 1) & ~self.special,
            "next": (columns == rows + 1) & ~self.special,
            "itself": columns == rows,
        }
        distances = np.abs(columns - rows) * ~self.special
        result = []
        for i, j in np.ndindex(*self.weights.shape[:2]):
            weights = self.weights[i, j, indices].astype(np.float64)
            logs = np.log(weights, out=np.zeros_like(weights), where=weights > 0)
            total = float((weights * ~self.special).sum())
            row: dict[str, Any] = {"layer": self.layers[i], "head": self.heads[j]}
            row["entropy"] = float(-(weights * logs).sum(-1).mean())
            row["distance"] = float((weights * distances).sum()) / total if total else None
            result.append(
                row | {name: float((weights * mask).sum(-1).mean()) for name, mask in masks.items()}
            )
        return result

    def to_rows(self) -> Iterator[dict[str, Any]]:
        """Yield the summary of each head with its `weights`, T lists of T numbers."""
        weights = self.weights.reshape(-1, *self.weights.shape[2:])
        for row, head_weights in zip(self.summary(), weights, strict=True):
            yield {**row, "weights": head_weights.tolist()}

    def save(self, file: str | Path) -> Path:
        """Write a page (.html) or a plot (.png); return its path.

        The page shows each head as a matrix and as lines between tokens, and needs no network. The plot has a
        square per head and a row per layer; that of a single head has the names of the tokens.

        Raises:
            InputError: The name of the file has another ending; a page would have more than 64 MB; or a plot would
                have more than 64 tokens.
        """
        from bertsmith.explain.page import render_attention, save_page
        from bertsmith.reports.page import check_suffix
        from bertsmith.reports.result_plots import plot_attention

        if check_suffix(file) == ".html":
            return save_page(file, render_attention(self), "use fewer layers or heads, or a shorter text")
        if len(self.tokens) > _MAX_PLOTTED_TOKENS:
            raise InputError(
                "too_many_tokens_to_plot",
                f"the text has {len(self.tokens):,} tokens, and a plot shows at most {_MAX_PLOTTED_TOKENS}",
                hint="use a shorter text, or write a page, .html",
            )
        with atomic.write_errors(file):
            atomic.write_bytes(Path(file), plot_attention(self.tokens, self.weights, self.layers, self.heads))
        return Path(file)

    def _repr_html_(self) -> str:
        from bertsmith.explain.page import render_attention
        from bertsmith.reports.page import notebook_frame

        return notebook_frame(render_attention(self))


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
    if all(source is None for source in encoding.sequence_ids):
        raise InputError("no_tokens", "the text has no tokens", hint="use a text with words")
    packed = context.to_device(Packed.from_lists([encoding.ids], [encoding.type_ids]))
    return attention_maps(encoder, tokenizer, packed)[0]


def attention_maps(encoder: Encoder, tokenizer: Tokenizer, packed: Packed) -> list[AttentionMaps]:
    """Return the attention weights of each sequence of a batch, on the encoder's device."""
    with torch.inference_mode():
        weights = encoder.attention_maps(packed)  # of each layer and sequence
    sequences = np.split(packed.tokens.cpu().numpy(), packed.cu_seqlens[1:-1].tolist())
    return [_maps(tokenizer, ids, [layer[i] for layer in weights]) for i, ids in enumerate(sequences)]


def cross_attention_maps(
    tokenizer: Tokenizer,
    source_ids: NDArray[np.int64],
    target_ids: NDArray[np.int64],
    weights: Sequence[Tensor],
) -> AttentionMaps:
    """Return the attention of a target text to its source as the maps of both texts one after the other.

    Args:
        tokenizer: The tokenizer.
        source_ids: The tokens of the source, [S].
        target_ids: The tokens of the target, [T].
        weights: For each layer the weights [A, T, S].
    """
    padding = (0, len(target_ids), len(source_ids), 0)  # the tokens of the source attend to nothing
    maps = _maps(
        tokenizer, np.concatenate([source_ids, target_ids]), [F.pad(layer, padding) for layer in weights]
    )
    return replace(maps, title="from the written text to its source")


def _maps(tokenizer: Tokenizer, ids: NDArray[np.int64], weights: Sequence[Tensor]) -> AttentionMaps:
    """Return the weights of each layer, [A, T, T], with the tokens."""
    roles = tokenizer.info()["specials"]
    marks = [roles[role]["id"] for role in ("cls", "sep") if role in roles] or [tokenizer.end_token_id]
    special = np.isin(ids, marks)
    behind_separator = np.cumsum(ids == marks[-1]) > (
        len(marks) == 1
    )  # GPT-2's end token is before a text, too
    return AttentionMaps(
        [tokenizer.tokens[token] for token in ids],
        np.where(special, -1, behind_separator).astype(np.int8),
        np.array([_is_punctuation(tokenizer.decode([token])) for token in ids]) & ~special,
        torch.stack(list(weights)).float().cpu().numpy(),
        list(range(len(weights))),
        list(range(weights[0].shape[0])),
    )


def _is_punctuation(text: str) -> bool:
    characters = text.strip()
    return bool(characters) and all(unicodedata.category(c).startswith("P") for c in characters)
