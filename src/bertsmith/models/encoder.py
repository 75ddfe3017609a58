"""The Transformer encoder on packed token ids, which returns hidden states [N, H] (Devlin et al. 2019, section 3).

Model families may build it from other embeddings and layers, and layers may share modules.

Shapes: N tokens in a packed batch, M of them selected, H hidden size, A attention heads, L layers, B sequences, t
tokens of one sequence, T tokens of a padded one.

The row of a token is its index in the packed batch. An argument `rows`, long [M], selects the tokens whose output
is needed. Callers of `Encoder` may pass rows in any order, and some repeatedly. On a CPU, whose kernels need
ascending rows, the encoder first pads them with row 0 if the layout pads (`AttentionLayout.pads_rows`), and sorts
them; on a GPU it passes them on unchanged. So layers and kernels accept repeated rows. Padding rows are rows of a
matrix after the last token that belong to no token; only a CPU has them, and no result depends on them.

Modules compute by their attribute `kernels`, which `ComputeContext.prepare_modules` sets. An optional fused
kernel returns None for inputs that it does not support; the module then computes the parts one by one. No kernel
replaces a layer, a sublayer (`Attention`, `FeedForward`), or a linear layer of these that has hooks, so its hooks
run. Hooks of a layer's dropout and LayerNorms, and of a `SharedModule` itself, may not run.
"""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertsmith import hardware
from bertsmith.errors import InputError
from bertsmith.formatting import pluralize
from bertsmith.kernels.reference import REFERENCE, EncoderLayerModules, KernelBackend
from bertsmith.models.attention import attention, attention_weights
from bertsmith.models.attention_layout import AttentionLayout
from bertsmith.models.config import ModelConfig
from bertsmith.models.embeddings import Embeddings
from bertsmith.models.layers import ACTIVATIONS, Dropout, Linear, has_hooks, linear, set_generator
from bertsmith.models.weight_init import init_weights
from bertsmith.packed import Packed


class QueryTokens(NamedTuple):
    """The M tokens whose output a layer computes, if not all are needed.

    Attributes:
        rows: The rows of the tokens, long [M] (see the module docstring).
        inputs: Inputs of the query projection at these tokens, [M, H].
    """

    rows: Tensor
    inputs: Tensor


class Attention(nn.Module):
    """Multi-head self-attention with its output projection; query, key, and value are one matrix product.

    Quantization replaces the linear layers by `Int8Linear`, whose weights cannot be split into those of queries,
    keys, and values.
    """

    kernels: KernelBackend = REFERENCE

    def __init__(self, config: ModelConfig, generator: torch.Generator) -> None:
        super().__init__()
        self.num_heads = config.num_attention_heads
        self.qkv = Linear(config.hidden_size, 3 * config.hidden_size)
        self.output = Linear(config.hidden_size, config.hidden_size)
        self.dropout = Dropout(config.attention_probs_dropout_prob, generator)

    def forward(self, x: Tensor, layout: AttentionLayout, query_tokens: QueryTokens | None = None) -> Tensor:
        """Compute [N, H] → [N, H], or [M, H] for some tokens.

        Args:
            x: The input, [N, H].
            layout: The layout of the batch.
            query_tokens: The tokens whose output is needed; None: all.
        """
        dropout = self.dropout if self.dropout.is_active else None
        attend = None
        if query_tokens is not None and isinstance(self.qkv, Linear) and not has_hooks(self.qkv):
            attend = self.kernels.attention_of_queries(
                x, query_tokens.rows, layout.sequence_layout, self.num_heads, dropout
            )
        if query_tokens is not None and attend is not None:
            context = attend(*self._project_separately(query_tokens.inputs, x))
        else:
            context = attention(self.qkv(x), layout, self.num_heads, dropout, self.kernels)
            context = _select_rows(context, None if query_tokens is None else query_tokens.rows)
        return self.output(context)  # type: ignore[no-any-return]

    def _project_separately(self, query_inputs: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the queries of M tokens, [M, H], and the keys and values of all tokens, [N, 2H]."""
        sizes = [x.shape[1], 2 * x.shape[1]]
        q_weight, kv_weight = torch.split(self.qkv.weight, sizes)
        bias = self.qkv.bias
        q_bias, kv_bias = (None, None) if bias is None else torch.split(bias, sizes)
        return linear(query_inputs, q_weight, q_bias, self.kernels), linear(
            x, kv_weight, kv_bias, self.kernels
        )


class FeedForward(nn.Module):
    """The feed-forward sublayer, W2·act(W1·x + b1) + b2: [N, H] → [N, H].

    Quantization replaces the linear layers by `Int8Linear`, which can apply GELU to its output (`supports_gelu`).
    """

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


def _select_rows(x: Tensor, rows: Tensor | None) -> Tensor:
    """Return the given rows of x, or all of x if `rows` is None."""
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
        """Compute [N, H] → [N, H], or [M, H] for the tokens `rows` (see the module docstring).

        The output projection and the feed-forward sublayer are computed for these tokens only, and so are queries
        and attention where the kernels support it.
        """
        modules = self.fusable_modules()
        output = (
            None if modules is None else self.kernels.encoder_layer(x, layout.sequence_layout, modules, rows)
        )
        return self._forward_unfused(x, layout, rows) if output is None else output

    def fusable_modules(self) -> EncoderLayerModules | None:
        """Return the modules for the fused layer kernel.

        Returns:
            None for a layer that the kernel cannot compute: with pre-norm, with other sublayers than `Attention`
            and `FeedForward`, or with hooks.
        """
        if self._norm_first:
            return None
        attention, feed_forward = unwrap_shared(self.attention), unwrap_shared(self.feed_forward)
        if type(attention) is not Attention or type(feed_forward) is not FeedForward:
            return None
        modules = EncoderLayerModules(
            qkv=attention.qkv,
            projection=attention.output,
            attention_norm=unwrap_shared(self.attention_norm),
            inner=feed_forward.inner,
            output=feed_forward.output,
            output_norm=unwrap_shared(self.output_norm),
            num_heads=attention.num_heads,
            attention_dropout=attention.dropout,
            dropout=self.dropout,
            activation=feed_forward.activation,
        )
        return None if has_hooks(attention, feed_forward, *modules.parametrized) else modules

    def _forward_unfused(self, x: Tensor, layout: AttentionLayout, rows: Tensor | None) -> Tensor:
        residual = _select_rows(x, rows)
        attention_input, query_inputs = x, residual
        if self._norm_first:
            attention_input = self.attention_norm(x)
            query_inputs = _select_rows(attention_input, rows)
        query_tokens = None if rows is None else QueryTokens(rows, query_inputs)
        attention_output = self.attention(attention_input, layout, query_tokens)
        x = self._add_residual(residual, attention_output, self.attention_norm)
        feed_forward_output = self.feed_forward(self.output_norm(x) if self._norm_first else x)
        return self._add_residual(x, feed_forward_output, self.output_norm)

    def _add_residual(self, residual: Tensor, x: Tensor, norm: nn.Module) -> Tensor:
        """Compute LayerNorm(residual + dropout(x)), or residual + dropout(x) with LayerNorm first."""
        if self._norm_first:
            return self.dropout.add_residual(residual, x)
        return self.kernels.add_layer_norm(residual, x, self.dropout, norm)


def build_layer(config: ModelConfig, generator: torch.Generator) -> TransformerLayer:
    """Build a layer with BERT's sublayers; LayerNorm is before or after them as `config.norm` says."""
    return TransformerLayer(
        Attention(config, generator),
        FeedForward(config),
        nn.LayerNorm(config.hidden_size, config.layer_norm_eps),
        nn.LayerNorm(config.hidden_size, config.layer_norm_eps),
        Dropout(config.hidden_dropout_prob, generator),
        norm_first=config.norm == "pre",
    )


class SharedModule(nn.Module):
    """A reference to a module of another layer.

    The other layer owns the parameters: they occur once in `state_dict` and in `parameters`.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self._module_reference = (module,)  # in a tuple, so that torch does not register it as a submodule

    @property
    def module(self) -> nn.Module:
        """Return the shared module."""
        return self._module_reference[0]

    def forward(self, *inputs: Any) -> Any:
        """Call the shared module."""
        return self.module(*inputs)


def unwrap_shared(module: nn.Module) -> nn.Module:
    """Return the module that a `SharedModule` refers to, or the module itself."""
    return module.module if isinstance(module, SharedModule) else module


LayerBuilder = Callable[[ModelConfig, torch.Generator], TransformerLayer]
"""Builds one layer."""

# Submodules that a layer shares with the first layer of its group, by the value of the setting `share` (Lan et al.
# 2020, section 3.1 and table 4). With "all" the whole layer is shared.
_SHARED_SUBMODULES = {
    "attention": ("attention", "attention_norm"),
    "feed_forward": ("feed_forward", "output_norm"),
}


def _build_blocks(
    config: ModelConfig, generator: torch.Generator, build: LayerBuilder
) -> list[TransformerLayer]:
    """Build `Encoder.blocks`: one layer per group if layers share all parameters, else L."""
    if config.share == "all":
        return [build(config, generator) for _ in range(config.share_groups)]
    blocks = [build(config, generator) for _ in range(config.num_hidden_layers)]
    for i, block in enumerate(blocks):
        first = blocks[config.first_layer_of_group(i)]
        if block is not first:
            for name in _SHARED_SUBMODULES.get(config.share, ()):
                setattr(block, name, SharedModule(getattr(first, name)))
    return blocks


class Encoder(nn.Module):
    """Embeddings and layers, with fp32 weights.

    Attributes:
        blocks: The layers as registered modules: L of them, or one per group of layers that share all parameters
            (`config.share_groups`, ALBERT's num_hidden_groups). `layers` has L modules in either case.
        forward_context: Makes the context manager of a forward pass (`ComputeContext.autocast_encoder`).
        is_int8: True if torch, not our kernels, computes the layers' matrix products in int8; rows are then
            padded (see `_layout`).
    """

    kernels: KernelBackend = REFERENCE
    forward_context: Callable[[], AbstractContextManager[object]] = nullcontext
    is_int8 = False

    def __init__(
        self,
        config: ModelConfig,
        generator: torch.Generator | None = None,
        *,
        build_embeddings: Callable[[ModelConfig, torch.Generator], Embeddings] = Embeddings,
        build_layer: LayerBuilder = build_layer,
    ) -> None:
        """Build an encoder with random weights.

        Args:
            config: The model's sizes and switches.
            generator: Draws the initial weights and all dropout masks; the encoder is on its device. None: a new
                generator on the CPU with seed 0.
            build_embeddings: Builds the embeddings.
            build_layer: Builds a layer.
        """
        super().__init__()
        self.config = config
        self._generator = torch.Generator().manual_seed(0) if generator is None else generator
        self.embeddings: Embeddings = build_embeddings(config, self._generator)
        self.blocks = nn.ModuleList(_build_blocks(config, self._generator, build_layer))
        eps = config.layer_norm_eps
        self.norm = nn.LayerNorm(config.hidden_size, eps) if config.norm == "pre" else None
        init_weights(self, config.initializer_range, self._generator)
        self.embeddings.init_fixed_weights(config)

    @property
    def layers(self) -> list[nn.Module]:
        """Return the L layers in order; layers that share all parameters are the same module."""
        if self.config.share != "all":
            return list(self.blocks)
        return [self.blocks[self.config.group_index(i)] for i in range(self.config.num_hidden_layers)]

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
            rows: The tokens of a packed batch whose output is needed, long [M], in any order; the last layer
                computes its feed-forward sublayer for these only. None: all.

        Returns:
            fp32 [N, H] for a packed batch, [M, H] with `rows`, [B, T, H] for padded ids.
        """
        if isinstance(inputs, Tensor):
            if rows is not None:
                raise ValueError("rows need a packed batch; index the output of padded inputs instead")
            return self.forward_padded(inputs, attention_mask, token_type_ids)
        self._check_length(inputs.max_seqlen)
        with self.forward_context():
            x = self._last_hidden_state(inputs, rows)
            return (x if self.norm is None else self.norm(x)).float()

    def hidden_states(self, packed: Packed) -> list[Tensor]:
        """Return the outputs of the embeddings and of each layer, L + 1 tensors [N, H], fp32.

        With pre-norm the last one is the output of the final LayerNorm, so it equals the output of `forward`.
        """
        self._check_length(packed.max_seqlen)
        with self.forward_context():
            states = list(self._layer_outputs(packed))
            if self.norm is not None:
                states[-1] = self.norm(states[-1])
        return [state.float() for state in states]

    def _embed(self, packed: Packed) -> tuple[Tensor, AttentionLayout]:
        """Return the output of the embeddings, with padding rows at the end, and the layout for attention."""
        x: Tensor = self.embeddings(packed)
        layout = self._layout(packed, x)
        return (F.pad(x, (0, 0, 0, layout.num_padding_rows)) if layout.num_padding_rows else x), layout

    def _layer_outputs(self, packed: Packed) -> Iterator[Tensor]:
        """Yield the outputs of the embeddings and of each layer."""
        x, layout = self._embed(packed)
        num_tokens = len(packed.tokens)
        yield x[:num_tokens]
        for layer in self.layers:
            x = layer(x, layout)
            yield x[:num_tokens]

    def _last_hidden_state(self, packed: Packed, rows: Tensor | None) -> Tensor:
        """Return the output of the last layer, or some rows of it."""
        x, layout = self._embed(packed)
        num_tokens = len(packed.tokens)
        *first_layers, last_layer = self.layers
        for layer in first_layers:
            x = layer(x, layout)
        if rows is None or not num_tokens:
            output: Tensor = last_layer(x, layout)
            return output[:num_tokens]
        sorted_rows, inverse = layout.sort_rows(rows)
        output = last_layer(x, layout, sorted_rows)
        # Without an inverse the rows have kept their order, and any padding is at their end.
        return output[: len(rows)] if inverse is None else output.index_select(0, inverse)

    def _layout(self, packed: Packed, x: Tensor) -> AttentionLayout:
        """Return the layout for layers with input x.

        Without gradients only sequences of equal length are batched into one matrix product, so that a sequence's
        output does not depend, even in rounding, on the rest of its batch.
        """
        # On a CPU, int8 and bf16 matrix products of torch, and those in fp32 on some processors, are oneDNN's. It
        # prepares each new shape at some cost, so the number of rows is padded to a multiple (`_ROW_MULTIPLE`).
        uses_torch_matmul = x.is_cpu and not self.kernels.has_fast_matmul(x)
        uses_onednn = uses_torch_matmul and (
            torch.is_autocast_enabled(x.device.type) or hardware.onednn_is_faster()
        )
        return AttentionLayout(
            packed,
            self.config.attention_direction,
            equal_lengths_only=not torch.is_grad_enabled(),
            pads_rows=self.is_int8 or uses_onednn,
        )

    def attention_maps(self, packed: Packed) -> list[list[Tensor]]:
        """Return the attention weights, before dropout: for each layer and sequence a tensor [A, t, t].

        They are transformers' `attentions`, without padding.
        """
        maps: list[list[Tensor]] = []

        def record(module: nn.Module, inputs: Any, qkv: Tensor) -> None:
            maps.append(
                attention_weights(
                    qkv, packed, self.config.num_attention_heads, direction=self.config.attention_direction
                )
            )

        # A module that layers share is called, and so recorded, for each of them.
        projections = [module.qkv for module in self.modules() if isinstance(module, Attention)]
        handles = [projection.register_forward_hook(record) for projection in projections]
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
            fp32 [B, T, H], zeros on padding.

        Positions are column indices (BERT) or, for RoBERTa, counts of the preceding ids that are not the padding
        id, both as in transformers.
        """
        packed = Packed.from_padded(input_ids, attention_mask, token_type_ids)
        self._check_ids(packed)
        mask = (torch.ones_like(input_ids) if attention_mask is None else attention_mask).bool()
        if self.config.first_position == "after_padding":
            is_token = (input_ids != self.config.pad_token_id).long()
            # Without RoBERTa's offset, which the embeddings add; -1 is the position of padding ids.
            positions = is_token.cumsum(1) * is_token - 1
            packed = replace(packed, positions=positions[mask])
        # Positions are checked, not lengths: padding on the left takes positions, and on the right it does not.
        if input_ids.shape[1] > self.config.max_length and len(packed.positions):
            counts_padding = self.config.first_position == "zero"
            self._check_length(int(packed.positions.max()) + 1, counts_padding=counts_padding)
        hidden = self(packed)
        padded: Tensor = hidden.new_zeros(*input_ids.shape, hidden.shape[1])
        return padded.masked_scatter(mask[..., None], hidden)

    def _check_ids(self, packed: Packed) -> None:
        """Raise an InputError for a token or segment id without an embedding."""
        config = self.config
        invalid_id = _find_invalid_id(packed.tokens, config.vocab_size)
        if invalid_id is not None:
            raise InputError(
                "token_id_out_of_range",
                f"token id {invalid_id} is out of range: this model has ids 0 to {config.vocab_size - 1}",
                hint="encode the text with the model's tokenizer",
            )
        # A single segment embedding is added to every token, whatever its id.
        invalid_id = _find_invalid_id(packed.segments, config.type_vocab_size)
        if config.type_vocab_size > 1 and invalid_id is not None:
            raise InputError(
                "segment_id_out_of_range",
                f"segment id {invalid_id} is out of range: this model has ids 0 to {config.type_vocab_size - 1}",
                hint="encode the text with the model's tokenizer",
            )

    def _check_length(self, length: int, *, counts_padding: bool = False) -> None:
        if length > self.config.max_length:
            padding = " including padding on its left" if counts_padding else ""
            raise ValueError(
                f"a sequence has {pluralize(length, 'token')}{padding}, and the model's limit is "
                f"{self.config.max_length} "
                f"(max_position_embeddings {self.config.max_position_embeddings}): truncate it or split it into "
                "windows"
            )


def _find_invalid_id(ids: Tensor, count: int) -> int | None:
    """Return an id outside of 0 to count - 1, None if there is none."""
    if not len(ids) or 0 <= int(ids.min()) <= int(ids.max()) < count:
        return None
    return int(ids.max()) if int(ids.max()) >= count else int(ids.min())


def copy_without_hooks(encoder: Encoder) -> Encoder:
    """Return a copy without hooks, in evaluation mode, that shares the parameters and the generator."""
    # deepcopy does not copy an object whose id is in its memo, but takes the memo's value: here the
    # parameters and the generator themselves, and empty dictionaries of hooks.
    memo: dict[int, Any] = {id(shared): shared for shared in (*encoder.parameters(), encoder.generator)}
    for module in encoder.modules():
        for hooks in (
            module._forward_hooks,
            module._forward_pre_hooks,
            module._backward_hooks,
            module._backward_pre_hooks,
        ):
            memo[id(hooks)] = OrderedDict()
    return copy.deepcopy(encoder, memo).eval()
