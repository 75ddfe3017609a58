"""Layers on packed hidden states: dropout, linear, and Transformer layers (Vaswani et al. 2017, section 3).

Shapes and `rows` are those of `encoder`.

Modules compute by their attribute `kernels`, which `ComputeContext.prepare_modules` sets. An optional fused
kernel returns None for inputs that it does not support; the module then computes the parts one by one. No kernel
replaces a layer, a sublayer (`Attention`, `FeedForward`), or a linear layer of these that has hooks, so its hooks
run. Hooks of a layer's dropout and LayerNorms, and of a `SharedModule` itself, may not run.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertsmith.kernels.reference import REFERENCE, EncoderLayerModules, KernelBackend, gelu_tanh
from bertsmith.models.attention import AttentionLayout, KeyValueCache, attention
from bertsmith.models.config import ModelConfig
from bertsmith.models.matmul import linear

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_new": gelu_tanh,
    "relu": F.relu,
    "tanh": torch.tanh,
}


class Dropout(nn.Module):
    """Dropout that draws from a given generator, so that a checkpoint can save its state.

    16 random bits decide each element, so p is exact to 2**-17; the scale uses the rounded probability. One
    pass multiplies by a mask that includes the scale: over four times as fast as `F.dropout` on a CPU whose
    allocator reuses memory, and equally fast if every tensor is newly mapped.
    """

    def __init__(self, p: float, generator: torch.Generator) -> None:
        super().__init__()
        self.p = p
        self.generator = generator

    @property
    def is_active(self) -> bool:
        """Return True in training if p is not 0."""
        return self.training and self.p > 0

    def forward(self, x: Tensor) -> Tensor:
        """Drop and rescale elements of x in training; return x otherwise."""
        return x * self.draw_mask(x) if self.is_active else x

    def add_residual(self, residual: Tensor, x: Tensor) -> Tensor:
        """Compute residual + dropout(x) in one pass."""
        return torch.addcmul(residual, x, self.draw_mask(x)) if self.is_active else residual + x

    def draw_mask(self, x: Tensor) -> Tensor:
        """Draw a mask of the shape and dtype of x: 0 where dropped, 1 / (1 - p) elsewhere."""
        bits = torch.empty((x.numel() + 3) // 4, dtype=torch.int64, device=x.device)
        # random_() without a range leaves the sign bit 0, which biases every fourth 16-bit number.
        bits.random_(-(2**63), None, generator=self.generator)
        num_dropped = min(round(self.p * 2**16), 2**16 - 1)  # of the 2**16 values, the lowest ones
        mask = torch.empty_like(x, memory_format=torch.contiguous_format)
        torch.ge(bits.view(torch.int16)[: x.numel()].view(x.shape), num_dropped - 2**15, out=mask)
        return mask.mul_(2**16 / (2**16 - num_dropped))

    def extra_repr(self) -> str:
        return f"p={self.p}"


def set_generator(module: nn.Module, generator: torch.Generator) -> None:
    """Set the generator of all dropout layers in a module."""
    for part in module.modules():
        if isinstance(part, Dropout):
            part.generator = generator


def has_hooks(*modules: nn.Module) -> bool:
    """Return True if a module has forward or backward hooks, so that it must be called itself."""
    return any(
        module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
        for module in modules
    )


class Linear(nn.Linear):
    """A linear layer without initial weights.

    `weight_init.init_weights` draws them from a given generator; torch would use its global one.

    Attributes:
        supports_gelu: True if the layer can apply GELU to its output.
    """

    kernels: KernelBackend = REFERENCE
    supports_gelu: ClassVar[bool] = False

    def reset_parameters(self) -> None:
        """Do nothing."""

    def forward(self, x: Tensor) -> Tensor:
        """Compute […, in] → […, out]."""
        return linear(x, self.weight, self.bias, self.kernels)


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

    def step(self, x: Tensor, cache: KeyValueCache) -> Tensor:
        """Compute the output for the next token of each of n sequences, [n, H] → [n, H].

        Args:
            x: The input at the next tokens, [n, H]; with a `GroupedCache` at first that of several tokens.
            cache: The keys and values of the earlier tokens, to which those of the next ones are added.
        """
        return self.output(cache.attend(self.qkv(x), self.num_heads))  # type: ignore[no-any-return]

    def _project_separately(self, query_inputs: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the queries of M tokens, [M, H], and the keys and values of all tokens, [N, 2H]."""
        sizes = [x.shape[1], 2 * x.shape[1]]
        q_weight, kv_weight = torch.split(self.qkv.weight, sizes)
        bias = self.qkv.bias
        q_bias, kv_bias = (None, None) if bias is None else torch.split(bias, sizes)
        queries = linear(query_inputs, q_weight, q_bias, self.kernels)
        return queries, linear(x, kv_weight, kv_bias, self.kernels)


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

    def __init__(self, config: ModelConfig, generator: torch.Generator) -> None:
        """Build a layer.

        Args:
            config: The model's sizes and switches. With `norm` "pre", LayerNorm is before each sublayer (Xiong et
                al. 2020) instead of after each residual sum, as in BERT and the original Transformer.
            generator: Draws dropout.
        """
        super().__init__()
        self.attention: nn.Module = Attention(config, generator)
        self.attention_norm: nn.Module = nn.LayerNorm(config.hidden_size, config.layer_norm_eps)
        self.feed_forward: nn.Module = FeedForward(config)
        self.output_norm: nn.Module = nn.LayerNorm(config.hidden_size, config.layer_norm_eps)
        self.dropout = Dropout(config.hidden_dropout_prob, generator)
        self._norm_first = config.norm == "pre"

    def forward(self, x: Tensor, layout: AttentionLayout, rows: Tensor | None = None) -> Tensor:
        """Compute [N, H] → [N, H], or [M, H] for the tokens `rows` (see the module docstring).

        The output projection and the feed-forward sublayer are computed for these tokens only, and so are queries
        and attention where the kernels support it.
        """
        modules, output = self.fusable_modules(), None
        if modules is not None:
            output = self.kernels.encoder_layer(x, layout.sequence_layout, modules, rows)
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

    def step(self, x: Tensor, cache: KeyValueCache) -> Tensor:
        """Compute the next token of each of n sequences, [n, H] → [n, H], as `Attention.step` does."""
        return self._feed_forward(self._step_self_attention(x, cache))

    def _step_self_attention(self, x: Tensor, cache: KeyValueCache) -> Tensor:
        attention: Any = unwrap_shared(self.attention)
        attention_output = attention.step(self.attention_norm(x) if self._norm_first else x, cache)
        return self._add_residual(x, attention_output, self.attention_norm)

    def _forward_unfused(self, x: Tensor, layout: AttentionLayout, rows: Tensor | None) -> Tensor:
        return self._feed_forward(self._self_attention(x, layout, rows))

    def _self_attention(self, x: Tensor, layout: AttentionLayout, rows: Tensor | None = None) -> Tensor:
        """Apply the attention sublayer with its residual connection and LayerNorm."""
        residual = _select_rows(x, rows)
        attention_input, query_inputs = x, residual
        if self._norm_first:
            attention_input = self.attention_norm(x)
            query_inputs = _select_rows(attention_input, rows)
        query_tokens = None if rows is None else QueryTokens(rows, query_inputs)
        attention_output = self.attention(attention_input, layout, query_tokens)
        return self._add_residual(residual, attention_output, self.attention_norm)

    def _feed_forward(self, x: Tensor) -> Tensor:
        """Apply the feed-forward sublayer with its residual connection and LayerNorm."""
        feed_forward_output = self.feed_forward(self.output_norm(x) if self._norm_first else x)
        return self._add_residual(x, feed_forward_output, self.output_norm)

    def _add_residual(self, residual: Tensor, x: Tensor, norm: nn.Module) -> Tensor:
        """Compute LayerNorm(residual + dropout(x)), or residual + dropout(x) with LayerNorm first."""
        if self._norm_first:
            return self.dropout.add_residual(residual, x)
        return self.kernels.layer_norm(x, norm, residual, self.dropout)


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


def build_blocks(config: ModelConfig, generator: torch.Generator) -> list[TransformerLayer]:
    """Build `Encoder.blocks`: one layer per group if layers share all parameters, else L."""
    if config.share == "all":
        return [TransformerLayer(config, generator) for _ in range(config.share_groups)]
    blocks = [TransformerLayer(config, generator) for _ in range(config.num_hidden_layers)]
    for i, block in enumerate(blocks):
        first = blocks[config.first_layer_of_group(i)]
        if block is not first:
            for name in config.shared_submodules:
                setattr(block, name, SharedModule(getattr(first, name)))
    return blocks
