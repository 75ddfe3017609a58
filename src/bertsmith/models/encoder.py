"""The encoder: token ids in packed form → hidden states [N, H] (Devlin et al. 2018, section 3; spec 2.2 to 2.4).

The encoder is given its parts: members of the family hand it other ones, and one block may serve many layers.
"""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertsmith import hardware
from bertsmith.errors import InputError
from bertsmith.formatting import counted
from bertsmith.kernels.reference import TORCH, Kernels, LayerParts
from bertsmith.models.attention import attention, attention_maps
from bertsmith.models.attention_layout import Layout
from bertsmith.models.config import ModelConfig
from bertsmith.models.embeddings import Embeddings
from bertsmith.models.layers import ACTIVATIONS, Dropout, Linear, linear, use_generator, watched
from bertsmith.models.weight_init import draw_weights
from bertsmith.packed import Packed


class Attention(nn.Module):
    """Multi-head self-attention with its output projection; query, key and value are one product."""

    kernels: Kernels = TORCH

    def __init__(self, config: ModelConfig, generator: torch.Generator) -> None:
        super().__init__()
        self.heads = config.num_attention_heads
        self.qkv = Linear(config.hidden_size, 3 * config.hidden_size)
        self.output = Linear(config.hidden_size, config.hidden_size)
        self.dropout = Dropout(config.attention_probs_dropout_prob, generator)

    def forward(self, x: Tensor, layout: Layout, asked: tuple[Tensor, Tensor] | None = None) -> Tensor:
        """[N, H] → [N, H]; a token sees the tokens of its own sequence. asked: the tokens that are wanted, long
        [M] in ascending order, and x of these: [M, H]."""
        dropout = self.dropout if self.dropout.active else None
        rows, own = (None, x) if asked is None else asked
        attend = None
        if rows is not None and isinstance(self.qkv, Linear) and not watched(self.qkv):
            attend = self.kernels.attention_of_rows(x, rows, layout.bounds, self.heads, dropout)
        if attend is not None:
            mixed = attend(*self._apart(own, x))
        else:
            mixed = _chosen(attention(self.qkv(x), layout, self.heads, dropout, self.kernels), rows)
        return self.output(mixed)  # type: ignore[no-any-return]

    def _apart(self, asking: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        """The queries of some tokens, and keys and values of all: [M, H] and [N, 2H]."""
        width = x.shape[1]
        of_q, of_kv = torch.split(self.qkv.weight, [width, 2 * width])
        bias = self.qkv.bias
        q_bias, kv_bias = (None, None) if bias is None else torch.split(bias, [width, 2 * width])
        return linear(asking, of_q, q_bias, self.kernels), linear(x, of_kv, kv_bias, self.kernels)


class FeedForward(nn.Module):
    """Linear to the inner width, activation, Linear back. [N, H] → [N, H]."""

    kernels: Kernels = TORCH

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.inner = Linear(config.hidden_size, config.intermediate_size)
        self.output = Linear(config.intermediate_size, config.hidden_size)
        self.activation = ACTIVATIONS[config.hidden_act]

    def forward(self, x: Tensor) -> Tensor:
        """W2·act(W1·x + b1) + b2."""
        is_seen = watched(self.inner, self.output)
        found = None if is_seen else self.kernels.fed_forward(x, self.inner, self.output, self.activation)
        if found is None and self.activation is F.gelu and self.inner.activates:
            found = self.output(self.inner(x, activated=True))
        elif found is None:
            found = self.output(self.kernels.activated(self.inner(x), self.activation))
        return found


def _chosen(x: Tensor, rows: Tensor | None) -> Tensor:
    """These rows of x, or all."""
    return x if rows is None else x.index_select(0, rows)


class Block(nn.Module):
    """One layer: attention, then feed-forward, each with a residual sum and a LayerNorm around it."""

    kernels: Kernels = TORCH

    def __init__(
        self,
        attention: nn.Module,
        feed_forward: nn.Module,
        attention_norm: nn.Module,
        output_norm: nn.Module,
        dropout: Dropout,
        *,
        norm_first: bool = False,
    ) -> None:
        """norm_first: whether a LayerNorm stands before its part, so that what is added up is never normalised on
        its way (Xiong et al. 2020), or behind the sum, as in BERT and the first Transformer."""
        super().__init__()
        self.attention = attention
        self.attention_norm = attention_norm
        self.feed_forward = feed_forward
        self.output_norm = output_norm
        self.dropout = dropout
        self._norm_first = norm_first

    def forward(self, x: Tensor, layout: Layout, rows: Tensor | None = None) -> Tensor:
        """[N, H] → [N, H]. rows: long [M] in ascending order, the tokens that are wanted: [M, H]; of the others
        only what attention reads is computed."""
        parts = self.parts()
        found = None if parts is None else self.kernels.layers(x, layout.bounds, [parts], rows)
        return self._by_parts(x, layout, rows) if found is None else found

    def parts(self) -> LayerParts | None:
        """Those of BERT's layer; None where they are others, or watched by hooks."""
        if self._norm_first:
            return None
        attention, feed_forward = owner(self.attention), owner(self.feed_forward)
        if type(attention) is not Attention or type(feed_forward) is not FeedForward:
            return None
        parts = LayerParts(
            qkv=attention.qkv,
            projection=attention.output,
            attention_norm=owner(self.attention_norm),
            inner=feed_forward.inner,
            output=feed_forward.output,
            output_norm=owner(self.output_norm),
            heads=attention.heads,
            attention_dropout=attention.dropout,
            dropout=self.dropout,
            activation=feed_forward.activation,
        )
        return None if watched(attention, feed_forward, *parts.weighted) else parts

    def _by_parts(self, x: Tensor, layout: Layout, rows: Tensor | None) -> Tensor:
        given, kept = self.attention_norm(x) if self._norm_first else x, _chosen(x, rows)
        own = _chosen(given, rows) if self._norm_first else kept
        attended = self.attention(given, layout, None if rows is None else (rows, own))
        x = self._added(kept, attended, self.attention_norm)
        fed = self.feed_forward(self.output_norm(x) if self._norm_first else x)
        return self._added(x, fed, self.output_norm)

    def _added(self, x: Tensor, made: Tensor, norm: nn.Module) -> Tensor:
        """What a part has made of x is added to it: LN(x + dropout(made)), or x + dropout(made)."""
        if self._norm_first:
            return self.dropout.added(x, made)
        return self.kernels.added_norm(x, made, self.dropout, norm)


def block_of(config: ModelConfig, generator: torch.Generator) -> Block:
    """BERT's block."""
    return Block(
        Attention(config, generator),
        FeedForward(config),
        nn.LayerNorm(config.hidden_size, config.layer_norm_eps),
        nn.LayerNorm(config.hidden_size, config.layer_norm_eps),
        Dropout(config.hidden_dropout_prob, generator),
        norm_first=config.norm == "pre",
    )


class Borrowed(nn.Module):
    """A part of another block, used here and owned there: its tensors are saved and updated once."""

    def __init__(self, owned: nn.Module) -> None:
        super().__init__()
        self._owned = (owned,)  # inside a tuple, so that torch does not count it among this module's own

    @property
    def owned(self) -> nn.Module:
        """The part itself."""
        return self._owned[0]

    def forward(self, *inputs: Any) -> Any:
        """What the owned part gives."""
        return self.owned(*inputs)


def owner(part: nn.Module) -> nn.Module:
    """A block's part, also where it is another block's."""
    return part.owned if isinstance(part, Borrowed) else part


BlockOf = Callable[[ModelConfig, torch.Generator], Block]
"""Makes one layer."""

# What of a later block is the first one's of its group, by `share` (Lan et al. 2020, section 3.1 and table 4).
_SHARED = {
    "attention": ("attention", "attention_norm"),
    "feed_forward": ("feed_forward", "output_norm"),
}


def _blocks(config: ModelConfig, generator: torch.Generator, block: BlockOf) -> list[Block]:
    if config.share == "all":
        return [block(config, generator) for _ in range(config.share_groups)]
    blocks = [block(config, generator) for _ in range(config.num_hidden_layers)]
    for layer, later in enumerate(blocks):
        first = blocks[config.first_of_group(layer)]
        for name in _SHARED.get(config.share, ()) if later is not first else ():
            setattr(later, name, Borrowed(getattr(first, name)))
    return blocks


class Encoder(nn.Module):
    """Embeddings and layers.

    `generator` draws the first weights and then every dropout mask; its state is all the randomness there is,
    its device the weights'. None means a fresh one, seeded 0. Weights are fp32. `embeddings` and `block` make
    the parts; BERT's if not given. `computing` makes the context of a forward pass (`Place.reader`).
    `in_integers`: whether torch makes its layers' products, of 8-bit integers.
    """

    kernels: Kernels = TORCH
    computing: Callable[[], AbstractContextManager[object]] = nullcontext
    in_integers = False

    def __init__(
        self,
        config: ModelConfig,
        generator: torch.Generator | None = None,
        *,
        embeddings: Callable[[ModelConfig, torch.Generator], Embeddings] = Embeddings,
        block: BlockOf = block_of,
    ) -> None:
        super().__init__()
        self.config = config
        self._generator = torch.Generator().manual_seed(0) if generator is None else generator
        self.embeddings: Embeddings = embeddings(config, self._generator)
        self.blocks = nn.ModuleList(_blocks(config, self._generator, block))
        eps = config.layer_norm_eps
        self.norm = nn.LayerNorm(config.hidden_size, eps) if config.norm == "pre" else None
        draw_weights(self, config.initializer_range, self._generator)
        self.embeddings.begin(config)

    @property
    def layers(self) -> list[nn.Module]:
        """The block of each layer: L of them, one for all layers of a group where it is shared."""
        c = self.config
        return [self.blocks[c.group_of(i) if c.share == "all" else i] for i in range(c.num_hidden_layers)]

    @property
    def generator(self) -> torch.Generator:
        """What dropout draws from; set it to draw from another one, as after a move to another device."""
        return self._generator

    @generator.setter
    def generator(self, generator: torch.Generator) -> None:
        self._generator = generator
        use_generator(self, generator)

    def forward(
        self,
        inputs: Packed | Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        *,
        rows: Tensor | None = None,
    ) -> Tensor:
        """Last hidden states: [N, H] of a `Packed`; [B, T, H] of the padded form, as `padded` gives it.

        rows: long [M], which tokens of a `Packed` are read. The result is then [M, H], as `encoder(packed)[rows]`
        is, and the last layer's queries, attention and feed-forward are computed for these alone.
        """
        if isinstance(inputs, Tensor):
            if rows is not None:
                raise ValueError("rows are chosen of a Packed: choose from what the padded form gives")
            return self.padded(inputs, attention_mask, token_type_ids)
        self._check_length(inputs.longest)
        with self.computing():
            x = self._last_state(inputs, rows)
            return (x if self.norm is None else self.norm(x)).float()

    def hidden_states(self, packed: Packed) -> list[Tensor]:
        """The embeddings' output and each layer's, L + 1 tensors [N, H]; the last are those of `forward`."""
        self._check_length(packed.longest)
        with self.computing():
            states = list(self._states(packed))
            if self.norm is not None:
                states[-1] = self.norm(states[-1])
        return [state.float() for state in states]

    def _begun(self, packed: Packed) -> tuple[Tensor, Layout]:
        """The embeddings' output, with rows of no token behind the others, and how attention is laid out."""
        x: Tensor = self.embeddings(packed)
        layout = self._layout(packed, x)
        return (F.pad(x, (0, 0, 0, layout.spare)) if layout.spare else x), layout

    def _states(self, packed: Packed) -> Iterator[Tensor]:
        """The embeddings' output and each layer's."""
        (x, layout), count = self._begun(packed), len(packed.tokens)
        yield x[:count]
        for layer in self.layers:
            x = layer(x, layout)
            yield x[:count]

    def _last_state(self, packed: Packed, rows: Tensor | None) -> Tensor:
        """The last layer's, or these rows of it."""
        (x, layout), count = self._begun(packed), len(packed.tokens)
        if rows is None or not count:
            return self._through(x, layout, None)[:count]
        chosen, back = layout.in_order(rows)
        x = self._through(x, layout, chosen)
        return x[: len(rows)] if back is None else x.index_select(0, back)

    def _through(self, x: Tensor, layout: Layout, rows: Tensor | None) -> Tensor:
        """x as it comes out of all layers; rows: of the last one, as `Layout.in_order` has them."""
        layers = self.layers
        found = self._together(x, layers, layout, rows)
        if found is not None:
            return found
        *earlier, last = layers  # of few rows the last one may be another way's
        between = self._together(x, earlier, layout, None)
        if between is None:
            between = x
            for layer in earlier:
                between = layer(between, layout)
        state: Tensor = last(between, layout, rows)
        return state

    def _together(
        self, x: Tensor, layers: Sequence[nn.Module], layout: Layout, rows: Tensor | None
    ) -> Tensor | None:
        """x as it comes out of these layers, where kernels compute them as one; rows: of the last one."""
        parts = []
        for layer in layers:
            own = layer.parts() if type(layer) is Block and not watched(layer) else None
            if own is None:
                return None
            parts.append(own)
        return self.kernels.layers(x, layout.bounds, parts, rows) if parts else None

    def _layout(self, packed: Packed, x: Tensor) -> Layout:
        """Where nothing is trained, sequences share a product with those of their own length alone: what is padded
        in one batch and not in another would differ in the last bits. x: what the layers' products begin with."""
        kernels = self.kernels
        by_library = x.is_cpu and not (kernels.multiplies(x) or kernels.in_integers)
        prepares = self.in_integers or (
            by_library and (torch.is_autocast_enabled(x.device.type) or hardware.onednn_is_faster())
        )
        return Layout(packed, self.config.sees, alike=not torch.is_grad_enabled(), prepares=prepares)

    def attention_maps(self, packed: Packed) -> list[list[Tensor]]:
        """What the heads of each layer look at: L lists with a tensor [A, t, t] for each sequence, before dropout,
        by the plain way (`attention.attention_maps`)."""
        maps: list[list[Tensor]] = []

        def watch(_: nn.Module, __: Any, qkv: Tensor) -> None:
            maps.append(attention_maps(qkv, packed, self.config.num_attention_heads, sees=self.config.sees))

        # one that layers share is called, and so watched, for each of them
        seen = [part.qkv for part in self.modules() if isinstance(part, Attention)]
        handles = [qkv.register_forward_hook(watch) for qkv in seen]
        try:
            self(packed)
        finally:
            for handle in handles:
                handle.remove()
        return maps

    def padded(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, token_type_ids: Tensor | None = None
    ) -> Tensor:
        """The call people know: long [B, T] each → [B, T, H], zeros on padding.

        The mask is 1 on tokens and 0 on padding, which may stand on either side. Positions count columns, as in
        the reference; where they start after the padding id (RoBERTa) they count the tokens that are not it.
        """
        packed = Packed.of_padded(input_ids, attention_mask, token_type_ids)
        self._check_ids(packed)
        kept = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        if self.config.first_position == "after_padding":
            real = (input_ids != self.config.pad_token_id).long()
            counted = real.cumsum(1) * real - 1  # -1 on padding: it has a row of its own before the first
            packed = replace(packed, positions=counted[kept.bool()])
        if input_ids.shape[1] > self.config.longest and len(packed.positions):
            self._check_length(int(packed.positions.max()) + 1)
        rows = self(packed)
        out: Tensor = rows.new_zeros(*input_ids.shape, rows.shape[1])
        return out.masked_scatter(kept.bool()[..., None], rows)

    def _check_ids(self, packed: Packed) -> None:
        """InputError where a token's or a segment's id has no row in its table."""
        for what, ids, rows in (
            ("token", packed.tokens, self.config.vocab_size),
            (
                "segment",
                packed.segments,
                self.config.type_vocab_size if self.config.type_vocab_size > 1 else 0,
            ),
        ):
            if rows and len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < rows:
                wrong = int(ids.max()) if int(ids.max()) >= rows else int(ids.min())
                raise InputError(
                    f"there is no {what} with id {wrong}: this model has ids 0 to {rows - 1}",
                    "encode the text with the model's own tokenizer",
                )

    def _check_length(self, length: int) -> None:
        if length > self.config.longest:
            raise ValueError(
                f"a sequence has {counted(length, 'token')} and the model's limit is {self.config.longest} "
                f"(max_position_embeddings {self.config.max_position_embeddings}): truncate it or cut it into "
                "windows"
            )


def unwatched(encoder: Encoder) -> Encoder:
    """The encoder in evaluation, with the same weights, whose passes nobody's hooks see."""
    # what is in the memo is not copied, but taken as it is said there
    memo: dict[int, Any] = {id(one): one for one in (*encoder.parameters(), encoder.generator)}
    for part in encoder.modules():
        own = (part._forward_hooks, part._forward_pre_hooks, part._backward_hooks, part._backward_pre_hooks)
        memo |= {id(hooks): OrderedDict() for hooks in own}
    return copy.deepcopy(encoder, memo).eval()
