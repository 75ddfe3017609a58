"""The Transformer encoder on packed token ids, which returns hidden states [N, H] (Devlin et al. 2019, section 3).

Model families may build it from other embeddings and layers, and layers may share modules.

Shapes: N tokens in a packed batch, M of them selected, H hidden size, A attention heads, L layers, B sequences, t
tokens of one sequence, T tokens of a padded one.

The row of a token is its index in the packed batch. An argument `rows`, long [M], selects the tokens whose output
is needed. Callers of `Encoder` may pass rows in any order, and some repeatedly. On a CPU, whose kernels need
ascending rows, the encoder first pads them with row 0 if the layout pads (`AttentionLayout.pads_rows`), and sorts
them; on a GPU it passes them on unchanged. So layers and kernels accept repeated rows. Padding rows are rows of a
matrix after the last token that belong to no token; only a CPU has them, and no result depends on them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from bertsmith import hardware
from bertsmith.errors import InputError
from bertsmith.formatting import pluralize
from bertsmith.kernels.reference import REFERENCE, KernelBackend, compute_dtype
from bertsmith.models.attention import AttentionLayout, attention_weights
from bertsmith.models.config import ModelConfig
from bertsmith.models.layers import Attention, Dropout, Linear, build_blocks, has_hooks, set_generator
from bertsmith.models.weight_init import init_weights, sinusoidal_positions
from bertsmith.packed import Packed

_MIN_SPARSE_ROWS = 4096  # in smaller embeddings a batch looks up most rows, or a dense update is fast


class Embedding(nn.Embedding):
    """An embedding without initial weights, which `weight_init.init_weights` draws.

    Attributes:
        sparse_grad: True if its gradient is sparse, with the rows that were looked up.
    """

    kernels: KernelBackend = REFERENCE
    sparse_grad = False
    _joins = False

    def reset_parameters(self) -> None:
        """Do nothing."""

    @property
    def benefits_from_sparse_grad(self) -> bool:
        """Return True if training is faster with a sparse gradient."""
        is_large = len(self.weight) >= _MIN_SPARSE_ROWS
        return self.kernels.sparse_embedding_updates and self.weight.is_cpu and is_large

    def forward(self, ids: Tensor) -> Tensor:
        """Look up ids […] → […, E]."""
        return F.embedding(ids, self.weight, self.padding_idx, sparse=self._joins or self.sparse_grad)

    @contextmanager
    def tied_decoder_weight(self, is_tied: bool) -> Iterator[Tensor]:
        """Yield the weights for a decoder, so that a tied decoder trains faster on a CPU.

        In this context lookups have sparse gradients, which autograd adds in place to the decoder's dense
        gradient. Otherwise the lookup would make a second dense gradient, mostly of zeros.

        Args:
            is_tied: True if a decoder uses the weights in the same loss; otherwise the context changes nothing.
        """
        self._joins = is_tied and torch.is_grad_enabled() and self.weight.is_cpu
        try:
            yield _GradientLast.apply(self.weight) if self._joins else self.weight  # type: ignore[no-untyped-call]
        finally:
            self._joins = False


class _GradientLast(torch.autograd.Function):
    """The identity, whose gradient arrives last among all uses of its input.

    Among nodes that are ready torch's engine runs the newest first, and this node is created before the other
    uses. The engine adds sparse gradients to a dense one in place if the dense one arrives last, and otherwise
    to a copy.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad


class Embeddings(nn.Module):
    """LayerNorm(token + position + segment), dropout, and a projection to H if E differs: [N] → [N, H].

    GPT has no LayerNorm here (`config.embedding_norm`).
    Embeddings have size E, the hidden size H unless `embedding_size` is set. Without segment embeddings nothing is
    added; a single one is added to every token (RoBERTa has no segment ids). Position embeddings that are not
    learned are saved as weights, too, but never updated: so every Hugging Face tool reads them.

    Attributes:
        offset: The row of the position embeddings for a sequence's first token.
    """

    kernels: KernelBackend = REFERENCE

    def __init__(self, config: ModelConfig, generator: torch.Generator) -> None:
        super().__init__()
        size = config.embedding_dim
        self.offset = config.position_offset
        # padding_idx as in transformers: looking up [PAD] gives its vector no gradient.
        self.token = Embedding(config.vocab_size, size, padding_idx=config.pad_token_id)
        self.position = Embedding(
            config.max_position_embeddings, size, padding_idx=self.offset - 1 if self.offset else None
        )
        self.position.requires_grad_(config.position == "learned")
        self.segment = Embedding(config.type_vocab_size, size) if config.type_vocab_size else None
        self.norm: nn.Module = (
            nn.LayerNorm(size, config.layer_norm_eps) if config.embedding_norm else nn.Identity()
        )
        self.dropout = Dropout(config.hidden_dropout_prob, generator)
        # With LayerNorm first, layers add to the embeddings without normalizing the sum, so it stays in fp32;
        # otherwise it has the dtype of the first layer's matrix products.
        self._keeps_fp32 = config.norm == "pre"
        self.projection = Linear(size, config.hidden_size) if config.embedding_size is not None else None

    @torch.no_grad()
    def init_fixed_weights(self, config: ModelConfig) -> None:
        """Set the weights that are not random: the padding vector and positions that are not learned."""
        if config.pad_token_id is not None:
            self.token.weight[config.pad_token_id].zero_()
        if config.position != "learned":
            self.position.weight.zero_()
        if config.position == "sinusoidal":
            positions = self.position.weight[self.offset :]
            positions.copy_(sinusoidal_positions(*positions.shape))

    def set_tokens(self, tokens: Sequence[str]) -> None:
        """Set the strings of all tokens, in the order of their ids: vectors of ids do not depend on them."""

    def forward(self, packed: Packed) -> Tensor:
        """Return the input of the first layer for a batch's tokens, [N, H]."""
        positions = packed.positions + self.offset if self.offset else packed.positions
        x = self.token(packed.tokens)
        has_single_segment = self.segment is not None and self.segment.num_embeddings == 1
        lookups: list[tuple[nn.Embedding, Tensor]] = [(self.position, positions)]
        if self.segment is not None:
            segments = torch.zeros_like(positions) if has_single_segment else packed.segments
            lookups.append((self.segment, segments))
        dtype = x.dtype if self._keeps_fp32 else compute_dtype(x)
        embedded = None
        if not has_hooks(self.norm, self.dropout, *(embedding for embedding, _ in lookups)):
            embedded = self.kernels.embed(x, lookups, self.norm, self.dropout, dtype)
        if embedded is None:
            for embedding, ids in lookups:
                is_single_row = has_single_segment and embedding is self.segment
                x = x + (embedding.weight[0] if is_single_row else embedding(ids))
            embedded = self.dropout(self.norm(x))
        return embedded if self.projection is None else self.projection(embedded)


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

    def __init__(self, config: ModelConfig, generator: torch.Generator | None = None) -> None:
        """Build an encoder with random weights.

        Args:
            config: The model's sizes and switches.
            generator: Draws the initial weights and all dropout masks; the encoder is on its device. None: a new
                generator on the CPU with seed 0.
        """
        super().__init__()
        self.config = config
        self._generator = torch.Generator().manual_seed(0) if generator is None else generator
        self.embeddings = self._build_embeddings()
        self.blocks = nn.ModuleList(self._build_blocks())
        eps = config.layer_norm_eps
        self.norm = nn.LayerNorm(config.hidden_size, eps) if config.norm == "pre" else None
        init_weights(self, config.initializer_range, self._generator)
        self.embeddings.init_fixed_weights(config)

    def _build_embeddings(self) -> Embeddings:
        return Embeddings(self.config, self._generator)

    def _build_blocks(self) -> Sequence[nn.Module]:
        return build_blocks(self.config, self._generator)

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
            x, layout = self._embed(packed)
            states = [x]
            for layer in self.layers:
                states.append(layer(states[-1], layout))
            states = [state[: len(packed.tokens)] for state in states]
            if self.norm is not None:
                states[-1] = self.norm(states[-1])
        return [state.float() for state in states]

    def _embed(self, packed: Packed) -> tuple[Tensor, AttentionLayout]:
        """Return the output of the embeddings, with padding rows at the end, and the layout for attention."""
        x: Tensor = self.embeddings(packed)
        layout = self._layout(packed, x)
        return (F.pad(x, (0, 0, 0, layout.num_padding_rows)) if layout.num_padding_rows else x), layout

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
        sorted_rows, inverse = layout.sort_rows(rows.long())  # kernels read 64 bits
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
            direction = self.config.attention_direction
            maps.append(attention_weights(qkv, packed, self.config.num_attention_heads, direction=direction))

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
            is_token = input_ids.ne(self.config.position_offset - 1).long()
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
        config, hint = self.config, "encode the text with the model's tokenizer"
        invalid_id = _find_invalid_id(packed.tokens, config.vocab_size)
        if invalid_id is not None:
            message = (
                f"token id {invalid_id} is out of range: this model has ids 0 to {config.vocab_size - 1}"
            )
            raise InputError("token_id_out_of_range", message, hint=hint)
        # A single segment embedding is added to every token, whatever its id.
        invalid_id = _find_invalid_id(packed.segments, config.type_vocab_size)
        if config.type_vocab_size > 1 and invalid_id is not None:
            last_id = config.type_vocab_size - 1
            message = f"segment id {invalid_id} is out of range: this model has ids 0 to {last_id}"
            raise InputError("segment_id_out_of_range", message, hint=hint)

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
    invalid_ids = ids[(ids < 0) | (ids >= count)]
    return int(invalid_ids[0]) if len(invalid_ids) else None
