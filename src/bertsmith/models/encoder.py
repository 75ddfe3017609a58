"""The encoder: token ids in packed form → hidden states [N, H].

Post-LayerNorm, as the paper and its release have it (Devlin et al. 2018, section 3; spec 2.2 to 2.4). There
is one block, given its parts; members of the family hand it other parts.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertsmith.models.attention import Layout, attention_by_bucket
from bertsmith.models.config import ModelConfig
from bertsmith.packed import Packed

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_new": lambda x: F.gelu(x, approximate="tanh"),
    "relu": F.relu,
}


class Dropout(nn.Module):
    """Dropout that draws from a generator of its own, so that a checkpoint can hold its state.

    16 random bits decide one element, so p is met to 2**-17; the scale uses the probability really met. One
    pass multiplies by a mask that is drawn with its scale in it: over four times as fast as `F.dropout` on a
    CPU whose allocator keeps its memory, and as fast where every tensor is mapped anew.
    """

    def __init__(self, p: float, generator: torch.Generator) -> None:
        super().__init__()
        self.p = p
        self.generator = generator

    @property
    def active(self) -> bool:
        """Whether anything is dropped at all."""
        return self.training and self.p > 0

    def forward(self, x: Tensor) -> Tensor:
        """Drop and rescale elements of x in training; x itself otherwise."""
        return x * self.mask(x) if self.active else x

    def added(self, residual: Tensor, x: Tensor) -> Tensor:
        """residual + dropout(x), in one pass."""
        return torch.addcmul(residual, x, self.mask(x)) if self.active else residual + x

    def mask(self, x: Tensor) -> Tensor:
        """A fresh mask for x, of its shape and dtype: 0 where dropped, 1 / (1 - p) elsewhere."""
        bits = torch.empty((x.numel() + 3) // 4, dtype=torch.int64, device=x.device)
        # The full range by name: plain random_() leaves the sign bit 0 and so every fourth number biased.
        bits.random_(-(2**63), None, generator=self.generator)
        dropped = min(round(self.p * 2**16), 2**16 - 1)
        mask = torch.empty_like(x, memory_format=torch.contiguous_format)
        torch.ge(bits.view(torch.int16)[: x.numel()].view(x.shape), dropped - 2**15, out=mask)
        return mask.mul_(2**16 / (2**16 - dropped))

    def extra_repr(self) -> str:
        return f"p={self.p}"


def hand_generator(module: nn.Module, generator: torch.Generator) -> None:
    """Let every dropout inside `module` draw from `generator`."""
    for part in module.modules():
        if isinstance(part, Dropout):
            part.generator = generator


def draw_weights(module: nn.Module, sigma: float, generator: torch.Generator) -> None:
    """Draw a module's first weights from the generator alone (spec 2.6).

    Matrices and tables from a normal cut at two sigma, biases 0, LayerNorm 1 and 0.
    """
    for part in module.modules():
        if isinstance(part, nn.Linear | nn.Embedding):
            nn.init.trunc_normal_(part.weight, std=sigma, a=-2 * sigma, b=2 * sigma, generator=generator)
        if isinstance(part, nn.Linear) and part.bias is not None:
            nn.init.zeros_(part.bias)
        if isinstance(part, nn.LayerNorm):
            part.reset_parameters()


class Linear(nn.Linear):
    """A linear layer whose first weights are left to `draw_weights`: torch draws them from a global state."""

    def reset_parameters(self) -> None:
        """Nothing."""


class Table(nn.Embedding):
    """A table of vectors whose first values are left to `draw_weights`."""

    def reset_parameters(self) -> None:
        """Nothing."""


class Embeddings(nn.Module):
    """LN(token + position + segment), then dropout: they enter here and never again. [N] ids → [N, H]."""

    def __init__(self, config: ModelConfig, generator: torch.Generator) -> None:
        super().__init__()
        # padding_idx: as in the reference, looking up [PAD] teaches its vector nothing.
        self.token = Table(config.vocab_size, config.hidden_size, padding_idx=config.pad_token_id)
        self.position = Table(config.max_position_embeddings, config.hidden_size)
        self.segment = Table(config.type_vocab_size, config.hidden_size)
        self.norm = nn.LayerNorm(config.hidden_size, config.layer_norm_eps)
        self.dropout = Dropout(config.hidden_dropout_prob, generator)

    def forward(self, packed: Packed) -> Tensor:
        """Hidden states [N, H] of a batch's tokens."""
        x = self.token(packed.tokens) + self.position(packed.positions) + self.segment(packed.segments)
        return self.dropout(self.norm(x))  # type: ignore[no-any-return]


class Attention(nn.Module):
    """Multi-head self-attention with its output projection; query, key and value are one product."""

    def __init__(self, config: ModelConfig, generator: torch.Generator) -> None:
        super().__init__()
        self.heads = config.num_attention_heads
        self.qkv = Linear(config.hidden_size, 3 * config.hidden_size)
        self.output = Linear(config.hidden_size, config.hidden_size)
        self.dropout = Dropout(config.attention_probs_dropout_prob, generator)

    def forward(self, x: Tensor, layout: Layout) -> Tensor:
        """[N, H] → [N, H]; a token sees the tokens of its own sequence."""
        drop = self.dropout if self.dropout.active else None
        return self.output(attention_by_bucket(self.qkv(x), layout, self.heads, drop))  # type: ignore[no-any-return]


class FeedForward(nn.Module):
    """Linear to the inner width, activation, Linear back. [N, H] → [N, H]."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.inner = Linear(config.hidden_size, config.intermediate_size)
        self.output = Linear(config.intermediate_size, config.hidden_size)
        self.activation = ACTIVATIONS[config.hidden_act]

    def forward(self, x: Tensor) -> Tensor:
        """W2·act(W1·x + b1) + b2."""
        return self.output(self.activation(self.inner(x)))  # type: ignore[no-any-return]


class Block(nn.Module):
    """One layer, post-LayerNorm: y = LN(x + dropout(attention(x))), z = LN(y + dropout(feed_forward(y)))."""

    def __init__(
        self,
        attention: nn.Module,
        feed_forward: nn.Module,
        attention_norm: nn.Module,
        output_norm: nn.Module,
        dropout: Dropout,
    ) -> None:
        super().__init__()
        self.attention = attention
        self.attention_norm = attention_norm
        self.feed_forward = feed_forward
        self.output_norm = output_norm
        self.dropout = dropout

    def forward(self, x: Tensor, layout: Layout) -> Tensor:
        """[N, H] → [N, H]."""
        x = self.attention_norm(self.dropout.added(x, self.attention(x, layout)))
        return self.output_norm(self.dropout.added(x, self.feed_forward(x)))  # type: ignore[no-any-return]


def block_of(config: ModelConfig, generator: torch.Generator) -> Block:
    """BERT's block."""
    return Block(
        Attention(config, generator),
        FeedForward(config),
        nn.LayerNorm(config.hidden_size, config.layer_norm_eps),
        nn.LayerNorm(config.hidden_size, config.layer_norm_eps),
        Dropout(config.hidden_dropout_prob, generator),
    )


class Encoder(nn.Module):
    """Embeddings and blocks.

    `generator` draws the first weights and then every dropout mask; its state is all the randomness there is.
    None means a fresh one, seeded 0. Weights are fp32.
    """

    def __init__(self, config: ModelConfig, generator: torch.Generator | None = None) -> None:
        super().__init__()
        self.config = config
        self._generator = torch.Generator().manual_seed(0) if generator is None else generator
        self.embeddings = Embeddings(config, self._generator)
        self.blocks = nn.ModuleList(
            block_of(config, self._generator) for _ in range(config.num_hidden_layers)
        )
        draw_weights(self, config.initializer_range, self._generator)
        with torch.no_grad():
            self.embeddings.token.weight[config.pad_token_id].zero_()

    @property
    def generator(self) -> torch.Generator:
        """What dropout draws from; set it to draw from another one, as after a move to another device."""
        return self._generator

    @generator.setter
    def generator(self, generator: torch.Generator) -> None:
        self._generator = generator
        hand_generator(self, generator)

    def forward(
        self,
        inputs: Packed | Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
    ) -> Tensor:
        """Last hidden states: [N, H] of a `Packed`; [B, T, H] of the padded form, as `padded` gives it."""
        if isinstance(inputs, Tensor):
            return self.padded(inputs, attention_mask, token_type_ids)
        self._check_length(inputs.longest)
        layout = Layout.of(inputs)
        x: Tensor = self.embeddings(inputs)
        for block in self.blocks:
            x = block(x, layout)
        return x

    def hidden_states(self, packed: Packed) -> list[Tensor]:
        """The embeddings' output and each layer's, L + 1 tensors [N, H]."""
        self._check_length(packed.longest)
        layout = Layout.of(packed)
        states: list[Tensor] = [self.embeddings(packed)]
        for block in self.blocks:
            states.append(block(states[-1], layout))
        return states

    def padded(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, token_type_ids: Tensor | None = None
    ) -> Tensor:
        """The call people know: long [B, T] each → [B, T, H], zeros on padding.

        The mask is 1 on tokens and 0 on padding, which may stand on either side; positions count columns.
        """
        packed = Packed.of_padded(input_ids, attention_mask, token_type_ids)
        if input_ids.shape[1] > self.config.max_position_embeddings and len(packed.positions):
            self._check_length(int(packed.positions.max()) + 1)
        rows = self(packed)
        out: Tensor = rows.new_zeros(*input_ids.shape, rows.shape[1])
        kept = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        return out.masked_scatter(kept.bool()[..., None], rows)

    def _check_length(self, length: int) -> None:
        limit = self.config.max_position_embeddings
        if length > limit:
            raise ValueError(
                f"a sequence has {length} tokens and the model's limit is {limit} (max_position_embeddings): "
                "truncate it or cut it into windows"
            )
