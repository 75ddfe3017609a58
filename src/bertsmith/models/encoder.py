"""The Transformer encoder on packed token ids, which returns hidden states [N, H] (Devlin et al. 2018, section 3).

Model families may build it from other embeddings and layers, and several layers may share one block.
"""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertsmith import hardware
from bertsmith.errors import InputError
from bertsmith.formatting import pluralize
from bertsmith.kernels.reference import REFERENCE, EncoderLayerModules, KernelBackend
from bertsmith.models.attention import attention, attention_maps
from bertsmith.models.attention_layout import AttentionLayout
from bertsmith.models.config import ModelConfig
from bertsmith.models.embeddings import Embeddings
from bertsmith.models.layers import ACTIVATIONS, Dropout, Linear, has_hooks, linear, set_generator
from bertsmith.models.weight_init import init_weights
from bertsmith.packed import Packed


class Attention(nn.Module):
    """Multi-head self-attention with its output projection; query, key, and value are one matrix product."""

    kernels: KernelBackend = REFERENCE

    def __init__(self, config: ModelConfig, generator: torch.Generator) -> None:
        super().__init__()
        self.heads = config.num_attention_heads
        self.qkv = Linear(config.hidden_size, 3 * config.hidden_size)
        self.output = Linear(config.hidden_size, config.hidden_size)
        self.dropout = Dropout(config.attention_probs_dropout_prob, generator)

    def forward(
        self, x: Tensor, layout: AttentionLayout, queries: tuple[Tensor, Tensor] | None = None
    ) -> Tensor:
        """Compute [N, H] → [N, H], or [M, H] for some tokens.

        Args:
            x: The input, [N, H].
            layout: The layout of the batch.
            queries: The tokens whose output is needed, sorted long [M], and x of these tokens, [M, H].
        """
        dropout = self.dropout if self.dropout.is_active else None
        rows, selected = (None, x) if queries is None else queries
        attend = None
        if rows is not None and isinstance(self.qkv, Linear) and not has_hooks(self.qkv):
            attend = self.kernels.attention_of_queries(x, rows, layout.ranges, self.heads, dropout)
        if attend is not None:
            mixed = attend(*self._split_projections(selected, x))
        else:
            mixed = _select(attention(self.qkv(x), layout, self.heads, dropout, self.kernels), rows)
        return self.output(mixed)  # type: ignore[no-any-return]

    def _split_projections(self, selected: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the queries of selected tokens, [M, H], and keys and values of all tokens, [N, 2H]."""
        sizes = [x.shape[1], 2 * x.shape[1]]
        q_weight, kv_weight = torch.split(self.qkv.weight, sizes)
        bias = self.qkv.bias
        q_bias, kv_bias = (None, None) if bias is None else torch.split(bias, sizes)
        return linear(selected, q_weight, q_bias, self.kernels), linear(x, kv_weight, kv_bias, self.kernels)


class FeedForward(nn.Module):
    """The feed-forward sublayer, W2·act(W1·x + b1) + b2: [N, H] → [N, H]."""

    kernels: KernelBackend = REFERENCE

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.inner = Linear(config.hidden_size, config.intermediate_size)
        self.output = Linear(config.intermediate_size, config.hidden_size)
        self.activation = ACTIVATIONS[config.hidden_act]

    def forward(self, x: Tensor) -> Tensor:
        """Compute [N, H] → [N, H]."""
        is_hooked = has_hooks(self.inner, self.output)
        output = None if is_hooked else self.kernels.feed_forward(x, self.inner, self.output, self.activation)
        if output is None and self.activation is F.gelu and self.inner.supports_gelu:
            output = self.output(self.inner(x, gelu=True))
        elif output is None:
            output = self.output(self.kernels.activation(self.inner(x), self.activation))
        return output


def _select(x: Tensor, rows: Tensor | None) -> Tensor:
    """Return rows of x, or x without rows."""
    return x if rows is None else x.index_select(0, rows)


class TransformerLayer(nn.Module):
    """A Transformer layer: attention and feed-forward, each with a residual connection and a LayerNorm."""

    kernels: KernelBackend = REFERENCE

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
        """Build a layer.

        Args:
            attention: The attention sublayer.
            feed_forward: The feed-forward sublayer.
            attention_norm: The LayerNorm of attention.
            output_norm: The LayerNorm of the feed-forward sublayer.
            dropout: The dropout on the outputs of both sublayers.
            norm_first: Apply LayerNorm before each sublayer (Xiong et al. 2020) instead of after each residual
                sum, as BERT and the original Transformer do.
        """
        super().__init__()
        self.attention = attention
        self.attention_norm = attention_norm
        self.feed_forward = feed_forward
        self.output_norm = output_norm
        self.dropout = dropout
        self._norm_first = norm_first

    def forward(self, x: Tensor, layout: AttentionLayout, rows: Tensor | None = None) -> Tensor:
        """Compute [N, H] → [N, H], or [M, H] for the tokens `rows`, sorted long [M].

        Of other tokens only the keys and values are computed.
        """
        parts = self.standard_modules()
        output = None if parts is None else self.kernels.encoder_layer(x, layout.ranges, parts, rows)
        return self._by_parts(x, layout, rows) if output is None else output

    def standard_modules(self) -> EncoderLayerModules | None:
        """Return the modules of a standard BERT layer, None if the layer is another one or has hooks."""
        if self._norm_first:
            return None
        attention, feed_forward = unwrap_shared(self.attention), unwrap_shared(self.feed_forward)
        if type(attention) is not Attention or type(feed_forward) is not FeedForward:
            return None
        parts = EncoderLayerModules(
            qkv=attention.qkv,
            projection=attention.output,
            attention_norm=unwrap_shared(self.attention_norm),
            inner=feed_forward.inner,
            output=feed_forward.output,
            output_norm=unwrap_shared(self.output_norm),
            num_heads=attention.heads,
            attention_dropout=attention.dropout,
            dropout=self.dropout,
            activation=feed_forward.activation,
        )
        return None if has_hooks(attention, feed_forward, *parts.parametrized) else parts

    def _by_parts(self, x: Tensor, layout: AttentionLayout, rows: Tensor | None) -> Tensor:
        attention_input, residual = self.attention_norm(x) if self._norm_first else x, _select(x, rows)
        selected = _select(attention_input, rows) if self._norm_first else residual
        attended = self.attention(attention_input, layout, None if rows is None else (rows, selected))
        x = self._add_residual(residual, attended, self.attention_norm)
        transformed = self.feed_forward(self.output_norm(x) if self._norm_first else x)
        return self._add_residual(x, transformed, self.output_norm)

    def _add_residual(self, residual: Tensor, x: Tensor, norm: nn.Module) -> Tensor:
        """Compute LayerNorm(residual + dropout(x)), or residual + dropout(x) with LayerNorm first."""
        if self._norm_first:
            return self.dropout.add_residual(residual, x)
        return self.kernels.add_layer_norm(residual, x, self.dropout, norm)


def build_layer(config: ModelConfig, generator: torch.Generator) -> TransformerLayer:
    """Build BERT's layer."""
    return TransformerLayer(
        Attention(config, generator),
        FeedForward(config),
        nn.LayerNorm(config.hidden_size, config.layer_norm_eps),
        nn.LayerNorm(config.hidden_size, config.layer_norm_eps),
        Dropout(config.hidden_dropout_prob, generator),
        norm_first=config.norm == "pre",
    )


class SharedModule(nn.Module):
    """A module of another layer, which owns its parameters, so that they are saved and updated once."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self._owned = (module,)  # in a tuple, so that torch does not register it as a submodule

    @property
    def module(self) -> nn.Module:
        """Return the shared module."""
        return self._owned[0]

    def forward(self, *inputs: Any) -> Any:
        """Call the shared module."""
        return self.module(*inputs)


def unwrap_shared(part: nn.Module) -> nn.Module:
    """Return the shared module of a `Borrowed`, or the module itself."""
    return part.module if isinstance(part, SharedModule) else part


LayerBuilder = Callable[[ModelConfig, torch.Generator], TransformerLayer]
"""Builds one layer."""

# Modules that a layer shares with the first one of its group (Lan et al. 2020, section 3.1 and table 4).
_SHARED = {
    "attention": ("attention", "attention_norm"),
    "feed_forward": ("feed_forward", "output_norm"),
}


def _blocks(config: ModelConfig, generator: torch.Generator, block: LayerBuilder) -> list[TransformerLayer]:
    if config.share == "all":
        return [block(config, generator) for _ in range(config.share_groups)]
    blocks = [block(config, generator) for _ in range(config.num_hidden_layers)]
    for layer, later in enumerate(blocks):
        first = blocks[config.first_layer_of_group(layer)]
        for name in _SHARED.get(config.share, ()) if later is not first else ():
            setattr(later, name, SharedModule(getattr(first, name)))
    return blocks


class Encoder(nn.Module):
    """Embeddings and layers, with fp32 weights.

    Attributes:
        forward_context: Returns the context of a forward pass (`ComputeContext.autocast_encoder`).
        is_int8: True if torch computes the layers' matrix products in int8.
    """

    kernels: KernelBackend = REFERENCE
    forward_context: Callable[[], AbstractContextManager[object]] = nullcontext
    is_int8 = False

    def __init__(
        self,
        config: ModelConfig,
        generator: torch.Generator | None = None,
        *,
        embeddings: Callable[[ModelConfig, torch.Generator], Embeddings] = Embeddings,
        layer: LayerBuilder = build_layer,
    ) -> None:
        """Build an encoder with random weights.

        Args:
            config: The model's sizes and switches.
            generator: Draws the initial weights and all dropout masks; the encoder is on its device. None: a new
                generator on the CPU with seed 0.
            embeddings: Builds the embeddings.
            block: Builds a layer.
        """
        super().__init__()
        self.config = config
        self._generator = torch.Generator().manual_seed(0) if generator is None else generator
        self.embeddings: Embeddings = embeddings(config, self._generator)
        self.blocks = nn.ModuleList(_blocks(config, self._generator, layer))
        eps = config.layer_norm_eps
        self.norm = nn.LayerNorm(config.hidden_size, eps) if config.norm == "pre" else None
        init_weights(self, config.initializer_range, self._generator)
        self.embeddings.init_fixed_weights(config)

    @property
    def layers(self) -> list[nn.Module]:
        """Return the block of each of the L layers; layers that share all parameters have the same block."""
        config = self.config
        layers = range(config.num_hidden_layers)
        return [self.blocks[config.group_index(i) if config.share == "all" else i] for i in layers]

    @property
    def generator(self) -> torch.Generator:
        """Return the generator of dropout; set another one after a move to another device."""
        return self._generator

    @generator.setter
    def generator(self, generator: torch.Generator) -> None:
        self._generator = generator
        set_generator(self, generator)

    def forward(
        self,
        inputs: Packed | Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        *,
        rows: Tensor | None = None,
    ) -> Tensor:
        """Compute the last hidden states.

        Args:
            inputs: A packed batch, or padded token ids, long [B, T] (see `padded`).
            attention_mask: See `padded`.
            token_type_ids: See `padded`.
            rows: Tokens of a packed batch, long [M]; the last layer computes queries, attention, and feed-forward
                for these only.

        Returns:
            fp32 [N, H] for a packed batch, [M, H] with `rows`, [B, T, H] for padded ids.
        """
        if isinstance(inputs, Tensor):
            if rows is not None:
                raise ValueError("rows need a packed batch; index the output of padded inputs instead")
            return self.forward_padded(inputs, attention_mask, token_type_ids)
        self._check_length(inputs.max_seqlen)
        with self.forward_context():
            x = self._last_state(inputs, rows)
            return (x if self.norm is None else self.norm(x)).float()

    def hidden_states(self, packed: Packed) -> list[Tensor]:
        """Return the outputs of the embeddings and of each layer, L + 1 tensors [N, H], fp32."""
        self._check_length(packed.max_seqlen)
        with self.forward_context():
            states = list(self._states(packed))
            if self.norm is not None:
                states[-1] = self.norm(states[-1])
        return [state.float() for state in states]

    def _embed(self, packed: Packed) -> tuple[Tensor, AttentionLayout]:
        """Return the output of the embeddings, with padding rows at the end, and the layout for attention."""
        x: Tensor = self.embeddings(packed)
        layout = self._layout(packed, x)
        return (F.pad(x, (0, 0, 0, layout.num_padding_rows)) if layout.num_padding_rows else x), layout

    def _states(self, packed: Packed) -> Iterator[Tensor]:
        """Yield the outputs of the embeddings and of each layer."""
        (x, layout), count = self._embed(packed), len(packed.tokens)
        yield x[:count]
        for layer in self.layers:
            x = layer(x, layout)
            yield x[:count]

    def _last_state(self, packed: Packed, rows: Tensor | None) -> Tensor:
        """Return the output of the last layer, or some rows of it."""
        (x, layout), count = self._embed(packed), len(packed.tokens)
        *earlier, last = self.layers
        for layer in earlier:
            x = layer(x, layout)
        if rows is None or not count:
            output: Tensor = last(x, layout)
            return output[:count]
        sorted_rows, inverse = layout.sort_rows(rows)
        output = last(x, layout, sorted_rows)
        return output[: len(rows)] if inverse is None else output.index_select(0, inverse)

    def _layout(self, packed: Packed, x: Tensor) -> AttentionLayout:
        """Return the layout for layers with input x.

        Without gradients only sequences of one length share a product: a sequence that is padded in one batch and
        not in another would differ in the last bits.
        """
        kernels = self.kernels
        by_library = x.is_cpu and not kernels.has_fast_matmul(x)
        prepares = self.is_int8 or (
            by_library and (torch.is_autocast_enabled(x.device.type) or hardware.onednn_is_faster())
        )
        return AttentionLayout(
            packed,
            self.config.attention_direction,
            equal_lengths_only=not torch.is_grad_enabled(),
            pads_rows=prepares,
        )

    def attention_maps(self, packed: Packed) -> list[list[Tensor]]:
        """Return the attention weights, before dropout: for each layer and sequence a tensor [A, t, t]."""
        maps: list[list[Tensor]] = []

        def record(_: nn.Module, __: Any, qkv: Tensor) -> None:
            maps.append(
                attention_maps(
                    qkv, packed, self.config.num_attention_heads, direction=self.config.attention_direction
                )
            )

        # a module that layers share is called, and so recorded, for each of them
        projections = [part.qkv for part in self.modules() if isinstance(part, Attention)]
        handles = [qkv.register_forward_hook(record) for qkv in projections]
        try:
            self(packed)
        finally:
            for handle in handles:
                handle.remove()
        return maps

    def forward_padded(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, token_type_ids: Tensor | None = None
    ) -> Tensor:
        """Compute the last hidden states of padded ids as transformers does.

        Args:
            input_ids: Long [B, T].
            attention_mask: [B, T], 1 on tokens and 0 on padding, on either side; None: no padding.
            token_type_ids: Long [B, T]; None: zeros.

        Returns:
            fp32 [B, T, H], zeros on padding. Positions are columns; if they start after the padding id (RoBERTa),
            they count the tokens with other ids.
        """
        packed = Packed.from_padded(input_ids, attention_mask, token_type_ids)
        self._check_ids(packed)
        mask = (torch.ones_like(input_ids) if attention_mask is None else attention_mask).bool()
        if self.config.first_position == "after_padding":
            is_token = (input_ids != self.config.pad_token_id).long()
            positions = is_token.cumsum(1) * is_token - 1  # -1 on padding: the row before the first token's
            packed = replace(packed, positions=positions[mask])
        if input_ids.shape[1] > self.config.max_length and len(packed.positions):
            self._check_length(int(packed.positions.max()) + 1)
        rows = self(packed)
        out: Tensor = rows.new_zeros(*input_ids.shape, rows.shape[1])
        return out.masked_scatter(mask[..., None], rows)

    def _check_ids(self, packed: Packed) -> None:
        """Raise an InputError for a token or segment id without an embedding."""
        token_ids, segment_ids, config = packed.tokens, packed.segments, self.config
        if (wrong := _out_of_range(token_ids, config.vocab_size)) is not None:
            raise InputError(
                "token_id_out_of_range",
                f"token id {wrong} is out of range: this model has ids 0 to {config.vocab_size - 1}",
                hint="encode the text with the model's tokenizer",
            )
        wrong = _out_of_range(segment_ids, config.type_vocab_size)
        if config.type_vocab_size > 1 and wrong is not None:
            raise InputError(
                "segment_id_out_of_range",
                f"segment id {wrong} is out of range: this model has ids 0 to {config.type_vocab_size - 1}",
                hint="encode the text with the model's tokenizer",
            )

    def _check_length(self, length: int) -> None:
        if length > self.config.max_length:
            raise ValueError(
                f"a sequence has {pluralize(length, 'token')}, and the model's limit is {self.config.max_length} "
                f"(max_position_embeddings {self.config.max_position_embeddings}): truncate it or split it into "
                "windows"
            )


def _out_of_range(ids: Tensor, count: int) -> int | None:
    """Return an id outside of 0 to count - 1, None if there is none."""
    if not len(ids) or 0 <= int(ids.min()) <= int(ids.max()) < count:
        return None
    return int(ids.max()) if int(ids.max()) >= count else int(ids.min())


def copy_without_hooks(encoder: Encoder) -> Encoder:
    """Return a copy of an encoder, in evaluation mode, with the same weights and without hooks."""
    # deepcopy takes objects in its memo as they are instead of copying them
    memo: dict[int, Any] = {id(shared): shared for shared in (*encoder.parameters(), encoder.generator)}
    for part in encoder.modules():
        hook_dicts = (
            *(part._forward_hooks, part._forward_pre_hooks),
            *(part._backward_hooks, part._backward_pre_hooks),
        )
        memo |= {id(hooks): OrderedDict() for hooks in hook_dicts}
    return copy.deepcopy(encoder, memo).eval()
